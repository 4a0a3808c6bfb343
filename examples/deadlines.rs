//! Deadlines: each call can have a time of its own, blocking, batched or as a future. A server does not begin
//! a call whose time ran out while it waited.
//!
//! `cargo run --release --example deadlines`

use dunlin::thrift::{Bytes, Failure, Never};
use dunlin::{Context, Fabrics, ServerOptions, serve_with};
use dunlin_examples::kv::{Kv, KvClient, KvGetException, KvProcessor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A store whose `multiget` is slow.
#[derive(Clone, Default)]
struct Slow {
    gets: Arc<AtomicUsize>,
    began: Arc<AtomicBool>,
}

impl Kv for Slow {
    fn get(&self, context: &Context, _: &[u8]) -> Result<Bytes, Failure<KvGetException>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        // The time that is left now, not when the call was sent.
        let left = context.time_left().ok_or_else(|| Failure::internal("every call has a deadline"))?;
        Ok(format!("{} s left", left.as_secs()).into())
    }

    fn put(&self, _: &Context, _: &[u8], _: &[u8]) -> Result<(), Failure<Never>> {
        Ok(())
    }

    fn multiget(&self, _: &Context, _: Vec<Bytes>) -> Result<Vec<Bytes>, Failure<Never>> {
        self.began.store(true, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(50));
        Ok(Vec::new())
    }

    fn heartbeat(&self, _: &Context) -> Result<(), Failure<Never>> {
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let address = format!("shm:example-deadlines-{}", std::process::id());
    let slow = Slow::default();
    let options = ServerOptions { tcp: Some("127.0.0.1:0".into()), ..ServerOptions::default() };
    let server = serve_with(Fabrics::global(), &address, KvProcessor(slow.clone()), options)?;
    let mut client = KvClient::connect(&address)?;

    let answer = client.within(Duration::from_secs(60)).get(b"key")?;
    println!("with a minute: {}", String::from_utf8_lossy(&answer));

    // One worker serves both: the second call waits behind 50 ms of work.
    let work = client.push_multiget(&[])?;
    client.flush()?;
    while !slow.began.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = client.within(Duration::from_millis(5)).get(b"key").map(drop).unwrap_err();
    println!("with 5 ms behind 50 ms of work: {error}");
    client.wait(work)?;

    match client.within(Duration::ZERO).get(b"key") {
        Err(error) if error.is_deadline() => println!("with no time: {error}"),
        other => println!("{other:?}"),
    }
    let answer = client.get(b"key")?;
    println!("as the options say: {}", String::from_utf8_lossy(&answer));
    println!("{} of 4 calls were executed", slow.gets.load(Ordering::Relaxed));
    server.shutdown(Duration::from_secs(1));
    Ok(())
}
