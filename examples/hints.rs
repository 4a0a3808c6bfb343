//! Hints end to end: a service in Thrift, the plans that its hints select, and blocking, batched and
//! asynchronous calls.
//!
//! `cargo run --release --example hints`

use anyhow::Context as _;
use dunlin::thrift::{Bytes, Failure, Never};
use dunlin::{ClientOptions, Context, ServerOptions, serve_with};
use dunlin_examples::kv::{
    KV_SERVICE, Kv, KvAsyncClient, KvClient, KvError, KvGetException, KvProcessor, Missing,
};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The handler, shared by all workers and by `main`, which reads its counter.
#[derive(Clone, Default)]
struct Store(Arc<Inner>);

#[derive(Default)]
struct Inner {
    pairs: Mutex<HashMap<Vec<u8>, Bytes>>,
    heartbeats: AtomicU64,
}

impl Store {
    fn find(&self, key: &[u8]) -> Option<Bytes> {
        self.0.pairs.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}

impl Kv for Store {
    fn get(&self, _: &Context, key: &[u8]) -> Result<Bytes, Failure<KvGetException>> {
        Ok(self.find(key).ok_or_else(|| Missing { key: Bytes::copy_from_slice(key) })?)
    }

    fn put(&self, _: &Context, key: &[u8], value: &[u8]) -> Result<(), Failure<Never>> {
        let mut pairs = self.0.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        pairs.insert(key.to_vec(), Bytes::copy_from_slice(value));
        Ok(())
    }

    fn multiget(&self, _: &Context, keys: Vec<Bytes>) -> Result<Vec<Bytes>, Failure<Never>> {
        Ok(keys.iter().map(|key| self.find(key).unwrap_or_default()).collect())
    }

    fn heartbeat(&self, _: &Context) -> Result<(), Failure<Never>> {
        self.0.heartbeats.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let fabric = dunlin::fabric::shm().context("shared memory")?;
    let address = format!("shm:example-hints-{}", std::process::id());
    let store = Store::default();
    let options = ServerOptions { tcp: Some("127.0.0.1:0".into()), ..ServerOptions::default() };
    let server = serve_with(&fabric, &address, KvProcessor(store.clone()), options)?;
    let mut client = KvClient::connect_with(&fabric, &address, ClientOptions::default())?;

    println!("The hints in examples/idl/kv.thrift select these plans here:");
    for (function, selection) in KV_SERVICE.functions.iter().zip(client.inner().selections()) {
        println!("  {:<10} {}", function.name, selection.protocol.unwrap_or("-"));
        for reason in &selection.reasons {
            println!("             {reason}");
        }
    }

    // One call at a time.
    client.put(b"wader", b"dunlin")?;
    println!("\nget(wader)    = {:?}", client.get(b"wader")?);
    match client.get(b"gull") {
        Err(KvError::Missing(missing)) => {
            println!("get(gull)     = Missing {:?}", missing.key)
        }
        other => anyhow::bail!("an exception was expected, not {other:?}"),
    }
    println!("multiget      = {:?}", client.multiget(&["wader".into(), "gull".into()])?);

    // Many calls at once, batched into few messages.
    let keys: Vec<String> = (0..32).map(|number| format!("key-{number}")).collect();
    let stored: Vec<_> =
        keys.iter().map(|key| client.push_put(key.as_bytes(), b"value")).collect::<Result<_, _>>()?;
    client.flush()?;
    for call in stored {
        client.wait(call)?;
    }
    println!(
        "32 puts in batches: {} pairs",
        store.0.pairs.lock().unwrap_or_else(PoisonError::into_inner).len()
    );

    // A oneway call. Its hint selects TCP, at the address that the server announced.
    client.heartbeat()?;

    // Futures, on any executor.
    let futures = KvAsyncClient::connect(&address)?;
    let (first, second) = (futures.get(b"key-7"), futures.get(b"wader"));
    println!("two futures   = {:?} {:?}", wait(first)?, wait(second)?);

    // A client of stock Thrift, such as Apache's libraries, reaches the same handler.
    let tcp = server.tcp_address().context("the server listens")?.to_string();
    let mut stock = KvClient::connect(format!("tcp:{tcp}"))?;
    println!("stock Thrift  = {:?}", stock.get(b"wader")?);

    server.shutdown(Duration::from_secs(1));
    println!("heartbeats    = {}", store.0.heartbeats.load(Ordering::Relaxed));
    Ok(())
}

/// A minimal executor that polls until the future is ready. Real programs use a better one.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
}
