//! The shortest program with functions by number: a server and a client of one function.
//!
//! `cargo run --release --example first_call`

use dunlin::{Client, FunctionMode, Reply, Request, ServerBuilder};
use std::time::Duration;

fn main() -> Result<(), dunlin::Report> {
    let address = format!("shm:first-call-{}", std::process::id());
    let server = ServerBuilder::new().function(1, FunctionMode::Worker).serve(&address, |_worker| {
        Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
            reply.write(b"hello ")?;
            reply.write(request.payload)?;
            Ok(())
        })
    })?;
    let mut client = Client::connect(&address)?;
    println!("{}", String::from_utf8_lossy(&client.call(1, b"world")?));
    server.shutdown(Duration::from_secs(1));
    Ok(())
}
