//! The smallest typed service: an echo service optimized for latency, on the transport that an address
//! selects.
//!
//! `cargo run --release --example echo [shm:NAME|rdma:HOST:PORT|tcp:HOST:PORT|auto:HOST:PORT [CALLS]]`

use dunlin::Context;
use dunlin::thrift::{Bytes, Failure, Never};
use dunlin_examples::echo::{Echo, EchoClient, EchoProcessor};
use std::time::Instant;

struct Handler;

impl Echo for Handler {
    fn ping(&self, _: &Context, payload: &[u8]) -> Result<Bytes, Failure<Never>> {
        Ok(Bytes::copy_from_slice(payload))
    }
}

fn main() -> anyhow::Result<()> {
    let own = || format!("shm:example-echo-{}", std::process::id());
    let address = std::env::args().nth(1).unwrap_or_else(own);
    let calls: u32 = std::env::args().nth(2).map_or(Ok(10_000), |text| text.parse())?;
    // A single fabric instead of all saves a branch in each call; see `on_fabric!`.
    let server = dunlin::serve(address, EchoProcessor(Handler))?;
    let mut client = EchoClient::connect(server.address())?;
    println!("by {}", client.transport());
    assert_eq!(client.ping(b"hello")?, "hello");
    let start = Instant::now();
    for _ in 0..calls {
        client.ping(b"hello")?;
    }
    println!("{calls} calls, {:.2} us each", start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    Ok(())
}
