//! A server that goes and comes back: calls that fail at once, calls that wait for the connection, and a client
//! that is made before its server.
//!
//! `cargo run --release --example failures`

use dunlin::{
    Address, Client, ClientConfig, Fabrics, FunctionMode, Reply, Request, Server, ServerBuilder, Status,
};
use std::error::Error;
use std::time::Duration;

const UPPER: u16 = 1;

fn upper(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    Ok(reply.write(&request.payload.to_ascii_uppercase())?)
}

fn serve(fabrics: &Fabrics, address: &Address) -> Result<Server, Box<dyn Error + Send + Sync>> {
    let builder = ServerBuilder::new(fabrics).function(UPPER, FunctionMode::Worker);
    Ok(builder.serve(address, |_worker| Box::new(upper))?)
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let fabrics = Fabrics::default();
    let address: Address = format!("shm:example-failures-{}", std::process::id()).parse()?;

    // Without a connection a call fails at once. It was not executed.
    let lazy = ClientConfig { lazy: true, ..ClientConfig::default() };
    let mut hasty = Client::connect(&fabrics, &address, lazy.clone())?;
    if let Err(error) = hasty.call(UPPER, b"too early") {
        println!("{error}; {:?}", error.certainty());
    }

    // With `wait_for_ready` it waits for the server, here until that has started.
    let patient = ClientConfig { wait_for_ready: Duration::from_secs(30), ..lazy };
    let mut client = Client::connect(&fabrics, &address, patient)?;
    let starting = std::thread::spawn({
        let (fabrics, address) = (fabrics.clone(), address.clone());
        move || {
            std::thread::sleep(Duration::from_millis(50));
            serve(&fabrics, &address)
        }
    });
    println!("{}", String::from_utf8_lossy(&client.call(UPPER, b"in time")?));
    let server = starting.join().map_err(|_| "the server's thread panicked")??;

    // The server is replaced, as in an update. A drained server leaves no call in doubt.
    server.shutdown(1_000_000_000);
    let server = serve(&fabrics, &address)?;
    client.wait_ready(Duration::from_secs(30))?;
    println!("{}", String::from_utf8_lossy(&client.call(UPPER, b"again")?));
    println!("{}", client.plan_of(UPPER));
    server.shutdown(1_000_000_000);
    Ok(())
}
