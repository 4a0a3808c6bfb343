//! Measures the physical floors alone, and prints the table of `bench limit`. Also the peer process of its
//! own measurement and of this crate's integration tests.

use std::error::Error as _;
use std::process::ExitCode;

use dunlin_floor::{
    Cores, FloorPair, LimitOptions, NoSubject, PEER_ARGUMENT, inherited_descriptor, limit, serve_peer,
};
use dunlin_report::table;

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        Some(PEER_ARGUMENT) => {
            inherited_descriptor().and_then(|descriptor| serve_peer(descriptor, &mut NoSubject))
        }
        Some(_) => {
            eprintln!("usage: dunlin-floor (it takes no arguments)");
            return ExitCode::from(2);
        }
        None => Cores::first_two()
            .and_then(FloorPair::spawn_self)
            .and_then(|mut pair| limit(&mut pair, LimitOptions::default()))
            .map(|rows| print!("{}", table(&rows))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let source = error.source().map_or(String::new(), |source| format!(": {source}"));
            eprintln!("dunlin-floor: {error}{source}");
            ExitCode::FAILURE
        }
    }
}
