//! Dunlin's side.

use crate::{CONNECTIONS, SPAN, Seen, median};
use anyhow::Result;
use dunlin::thrift::tcp::{Connection, ConnectionOptions, Server, ServerOptions};
use dunlin::thrift::{Bytes, Context, Failure, Never};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

mod idl {
    #![allow(unused, unreachable_pub)]
    dunlin::include_service!("echo");
}
use idl::echo::*;

struct Handler;

impl Echo for Handler {
    fn echo(&self, context: &Context, payload: &[u8]) -> Result<Bytes, Failure<Never>> {
        Ok(context.share(payload))
    }
}

pub fn serve(threads: Option<usize>) -> Result<()> {
    let options = ServerOptions::default();
    let options = ServerOptions { threads: threads.unwrap_or(options.threads), ..options };
    let server = Server::bind("127.0.0.1:0", Arc::new(EchoProcessor(Handler)), options)?;
    println!("port {}", server.address().port());
    loop {
        thread::park();
    }
}

/// Calls for a while on one connection; gives the times in nanoseconds.
fn call(port: u16, size: usize) -> Result<Vec<u64>> {
    let mut client = Connection::connect(&format!("127.0.0.1:{port}"), ConnectionOptions::default())?;
    let payload = vec![7; size];
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < SPAN {
        let start = Instant::now();
        client.call::<_, EchoEchoOutcome>("echo", &EchoEchoArguments { payload: &payload })?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

pub fn measure(port: u16, size: usize) -> Result<Seen> {
    let latency = median(&mut call(port, size)?);
    let threads: Vec<_> = (0..CONNECTIONS).map(|_| thread::spawn(move || call(port, size))).collect();
    let mut calls = 0;
    for thread in threads {
        calls += thread.join().expect("a client")?.len();
    }
    Ok(Seen { latency, rate: (calls as f64 / SPAN.as_secs_f64()) as u64 })
}
