//! The smallest typed service: an echo for who wants its answer soon, on the fabric that an address names.
//!
//! `cargo run --release --example echo [shm:NAME|rdma:HOST:PORT [CALLS]]`

use dunlin::thrift::{Bytes, ClientOptions, Context, Failure, Never, ServerOptions, serve};
use dunlin::{Address, Fabric, Fabrics, on_fabric};
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
    let address = std::env::args().nth(1).unwrap_or_else(own).parse()?;
    let calls = std::env::args().nth(2).map_or(Ok(10_000), |text| text.parse())?;
    let chosen = Fabrics::default().choose(&address)?;
    on_fabric!(&chosen, fabric => run(fabric, &address, calls))
}

fn run<F: Fabric>(fabric: &F, address: &Address, calls: u32) -> anyhow::Result<()> {
    let server = serve(fabric, address, EchoProcessor(Handler), ServerOptions::default())?;
    let mut client = EchoClient::connect(fabric, server.address(), ClientOptions::default())?;
    assert_eq!(client.ping(b"hello")?, "hello");
    let start = Instant::now();
    for _ in 0..calls {
        client.ping(b"hello")?;
    }
    println!("{calls} calls, {:.2} us each", start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    Ok(())
}
