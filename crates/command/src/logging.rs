//! Optional logging to standard error.

use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The environment variable with the filter.
const VARIABLE: &str = "DUNLIN_LOG";

/// Starts logging. The filter is `DUNLIN_LOG` if set, else follows the number of `-v`; the default is
/// warnings.
pub fn start(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let builder = EnvFilter::builder().with_default_directive(level.into());
    let filter = match std::env::var(VARIABLE) {
        Ok(text) => builder.parse(&text).unwrap_or_else(|error| {
            eprintln!("warning: {VARIABLE}={text} cannot be understood and is not used: {error}");
            EnvFilter::default().add_directive(level.into())
        }),
        Err(_) => builder.parse_lossy(""),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .init();
}
