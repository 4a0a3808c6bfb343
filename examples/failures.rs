//! A server that goes and comes back: calls that fail at once, calls that wait for the connection, and a client
//! that is made before its server.
//!
//! `cargo run --release --example failures`

use dunlin::{
    Certainty, Client, ClientConfig, Fabrics, FunctionMode, Reply, Request, Server, ServerBuilder, Status,
};
use std::error::Error;
use std::time::Duration;

const UPPER: u16 = 1;

fn upper(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    Ok(reply.write(&request.payload.to_ascii_uppercase())?)
}

fn serve(address: &str) -> Result<Server, Box<dyn Error + Send + Sync>> {
    let builder = ServerBuilder::new().function(UPPER, FunctionMode::Worker);
    Ok(builder.serve(address, |_worker| Box::new(upper))?)
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let address = format!("shm:example-failures-{}", std::process::id());

    // Without a connection a call fails at once. It was not executed.
    let lazy = ClientConfig { lazy: true, ..ClientConfig::default() };
    let mut hasty = Client::connect_with(Fabrics::global(), &address, lazy.clone())?;
    if let Err(error) = hasty.call(UPPER, b"too early") {
        println!("{error}; {:?}", error.certainty());
    }

    // With `wait_for_ready` it waits for the server, here until that has started.
    let patient = ClientConfig { wait_for_ready: Duration::from_secs(30), ..lazy };
    let mut client = Client::connect_with(Fabrics::global(), &address, patient)?;
    let starting = std::thread::spawn({
        let address = address.clone();
        move || {
            std::thread::sleep(Duration::from_millis(50));
            serve(&address)
        }
    });
    println!("{}", String::from_utf8_lossy(&client.call(UPPER, b"in time")?));
    let server = starting.join().map_err(|_| "the server's thread panicked")??;

    // The server is replaced, as in an update. A drained server leaves no call in doubt.
    server.shutdown(Duration::from_secs(1));
    let server = serve(&address)?;
    let again = loop {
        client.wait_ready(Duration::from_secs(30))?;
        match client.call(UPPER, b"again").map(|result| result.to_vec()) {
            // The client has heard of the end of its connection only now. The call was not executed: repeat it.
            Err(error) if error.certainty() == Certainty::NotExecuted => {}
            outcome => break outcome?,
        }
    };
    println!("{}", String::from_utf8_lossy(&again));
    println!("{}", client.plan_of(UPPER));
    server.shutdown(Duration::from_secs(1));
    Ok(())
}
