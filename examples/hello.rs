//! The smallest typed service: server and client in one program, on the transport that the address selects.
//!
//! `cargo run --release --example hello [ADDRESS]`; with `RUST_LOG=dunlin=debug` it prints the log to standard error.

use dunlin::Context;
use dunlin::thrift::{Failure, FastStr, Never};
use hello::{Hello, HelloClient, HelloProcessor};
use std::time::Duration;
use tracing_subscriber::EnvFilter;

dunlin::include_service!("hello");

struct Greeter;

impl Hello for Greeter {
    fn greet(&self, _: &Context, name: &str) -> Result<FastStr, Failure<Never>> {
        Ok(format!("hello, {name}").into())
    }
}

fn greet_at(address: &str) -> anyhow::Result<()> {
    let server = dunlin::serve(address, HelloProcessor(Greeter))?;
    let mut client = HelloClient::connect(server.address())?;
    println!("{}, over {}", client.greet("world")?, client.transport());
    server.shutdown(Duration::from_secs(1));
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let own = || format!("shm:example-hello-{}", std::process::id());
    greet_at(&std::env::args().nth(1).unwrap_or_else(own))
}
