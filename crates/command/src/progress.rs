//! Progress bars, shown on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::Duration;

/// Creates a bar on standard error; hidden if that is not a terminal.
fn bar(length: u64, template: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(10)
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(length), target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Creates a bar that counts items.
pub fn counting(length: u64, message: &str) -> ProgressBar {
    let bar = bar(length, "{msg:<34} [{bar:30}] {human_pos}/{human_len} {per_sec}");
    bar.set_message(message.to_owned());
    bar
}

/// Creates a bar that counts the bytes of a file. Without a length it shows only the count.
pub fn bytes(length: Option<u64>, message: &str) -> ProgressBar {
    let bar = match length {
        Some(length) => bar(length, "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"),
        None => bar(0, "{msg} {spinner} {bytes} {bytes_per_sec}"),
    };
    bar.set_message(message.to_owned());
    bar
}

/// Creates a bar that counts time, in milliseconds.
pub fn timing(length: Duration, message: &str) -> ProgressBar {
    let bar = bar(length.as_millis() as u64, "{msg:<34} [{bar:30}] {percent:>3} %  {prefix}");
    bar.set_message(message.to_owned());
    bar
}
