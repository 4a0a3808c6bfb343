//! The smallest typed service: an echo for who wants its answer soon.
//!
//! `cargo run --release --example echo`

use dunlin::thrift::{Bytes, ClientOptions, Context, Failure, Never, ServerOptions, serve};
use dunlin_examples::echo::{Echo, EchoClient, EchoProcessor};
use std::time::Instant;

struct Handler;

impl Echo for Handler {
    fn ping(&self, _: &Context, payload: &[u8]) -> Result<Bytes, Failure<Never>> {
        Ok(Bytes::copy_from_slice(payload))
    }
}

fn main() -> anyhow::Result<()> {
    let fabric = dunlin::fabric()?;
    let address = format!("shm:example-echo-{}", std::process::id()).parse()?;
    let _server = serve(&fabric, &address, EchoProcessor(Handler), ServerOptions::default())?;
    let mut client = EchoClient::connect(&fabric, &address, ClientOptions::default())?;
    assert_eq!(client.ping(b"hello")?, "hello");
    let (calls, start) = (10_000, Instant::now());
    for _ in 0..calls {
        client.ping(b"hello")?;
    }
    println!("{calls} calls, {:.2} us each", start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    Ok(())
}
