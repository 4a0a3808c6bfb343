//! Calls of several threads: one blocking client for each thread, against clones of one asynchronous client.
//!
//! `cargo run --release --example threads_today [THREADS [SECONDS]]` prints both rates.

use dunlin::Context;
use dunlin::thrift::{Bytes, Failure, Never};
use dunlin_examples::echo::{Echo, EchoAsyncClient, EchoClient, EchoProcessor};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

struct Handler;

impl Echo for Handler {
    fn ping(&self, _: &Context, payload: &[u8]) -> Result<Bytes, Failure<Never>> {
        Ok(Bytes::copy_from_slice(payload))
    }
}

/// Wakes the thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(waker: &Waker, mut future: impl Future<Output = T> + Unpin) -> T {
    loop {
        match Pin::new(&mut future).poll(&mut std::task::Context::from_waker(waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Runs a client on each thread until the time is over, and returns the calls in a second.
fn rate<C: Send>(
    clients: Vec<C>,
    time: Duration,
    call: impl Fn(&mut C, &Waker) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<f64> {
    let (start, call) = (Instant::now(), &call);
    let count = thread::scope(|scope| -> anyhow::Result<u64> {
        let body = |mut client: C| {
            move || -> anyhow::Result<u64> {
                let (waker, mut calls) = (Waker::from(Arc::new(Unpark(thread::current()))), 0);
                while start.elapsed() < time {
                    call(&mut client, &waker)?;
                    calls += 1;
                }
                Ok(calls)
            }
        };
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(body(client))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).sum()
    })?;
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let threads: usize = arguments.next().map_or(Ok(4), |text| text.parse())?;
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let time = Duration::from_secs_f64(seconds);
    let address = format!("shm:example-threads-{}", std::process::id());
    let _server = dunlin::serve(&address, EchoProcessor(Handler))?;

    let first = EchoClient::connect(&address)?;
    let mut clients = (1..threads).map(|_| first.another()).collect::<Result<Vec<_>, _>>()?;
    clients.push(first);
    let blocking = rate(clients, time, |client, _| Ok(client.ping(b"hello").map(drop)?))?;
    println!("{threads} threads, a blocking client each: {blocking:.0} calls a second");

    let shared = vec![EchoAsyncClient::connect(&address)?; threads];
    let futures = rate(shared, time, |client, waker| Ok(wait(waker, client.ping(b"hello")).map(drop)?))?;
    println!("{threads} threads, clones of one asynchronous client: {futures:.0} calls a second");
    Ok(())
}
