//! The shortest program: a server and a client of one function, called by number.
//!
//! `cargo run --release --example first_call`

use dunlin::{Client, ClientConfig, Fabrics, FunctionMode, Reply, Request, ServerBuilder};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fabrics = Fabrics::default();
    let address = format!("shm:first-call-{}", std::process::id()).parse()?;
    let server =
        ServerBuilder::new(&fabrics).function(1, FunctionMode::Worker).serve(&address, |_worker| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
                reply.write(b"hello ")?;
                reply.write(request.payload)?;
                Ok(())
            })
        })?;
    let mut client = Client::connect(&fabrics, &address, ClientConfig::default())?;
    println!("{}", String::from_utf8_lossy(&client.call(1, b"world")?));
    server.shutdown(1_000_000_000);
    Ok(())
}
