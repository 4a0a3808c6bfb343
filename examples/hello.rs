//! The smallest typed service: server and client in one program, on the transport that the address selects.
//!
//! `cargo run --release --example hello [ADDRESS]`; with `RUST_LOG=dunlin=debug` it prints the log to standard error.

use dunlin::thrift::{ClientOptions, Context, Failure, FastStr, Never, ServerOptions, serve};
use dunlin::{Address, Fabrics};
use generated::hello::{Hello, HelloClient, HelloProcessor};
use tracing_subscriber::EnvFilter;

// The program does not use the asynchronous client.
#[allow(dead_code, unreachable_pub)]
mod generated {
    dunlin::include_service!("hello");
}

struct Greeter;

impl Hello for Greeter {
    fn greet(&self, _: &Context, name: &str) -> Result<FastStr, Failure<Never>> {
        Ok(format!("hello, {name}").into())
    }
}

fn greet_at(address: &Address) -> anyhow::Result<()> {
    let fabrics = Fabrics::default();
    let server = serve(&fabrics, address, HelloProcessor(Greeter), ServerOptions::default())?;
    let mut client = HelloClient::connect(&fabrics, server.address(), ClientOptions::default())?;
    println!("{}, over {}", client.greet("world")?, client.transport());
    server.shutdown(1_000_000_000);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let own = || format!("shm:example-hello-{}", std::process::id());
    greet_at(&std::env::args().nth(1).unwrap_or_else(own).parse()?)
}
