//! volo-thrift's side.

use crate::{CONNECTIONS, SPAN, Seen, median};
use anyhow::{Result, anyhow};
use pilota::Bytes;
use std::net::{SocketAddr, TcpListener};
use std::time::Instant;
use tokio::runtime::Builder;
use volo_thrift::codec::default::DefaultMakeCodec;

mod idl {
    #![allow(unused, unreachable_pub)]
    include!(concat!(env!("OUT_DIR"), "/volo_gen.rs"));
}
use idl::volo_gen::echo::*;

struct Handler;

impl Echo for Handler {
    async fn echo(&self, payload: Bytes) -> Result<Bytes, volo_thrift::ServerError> {
        Ok(payload)
    }
}

pub fn serve() -> Result<()> {
    Builder::new_multi_thread().enable_all().build()?.block_on(async {
        // It does not say its port: one that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let server = EchoServer::new(Handler).make_codec(DefaultMakeCodec::framed());
        println!("port {}", address.port());
        server.run(volo::net::Address::from(address)).await.map_err(|error| anyhow!("{error}"))
    })
}

async fn call(port: u16, size: usize) -> Result<Vec<u64>> {
    let client = EchoClientBuilder::new("echo")
        .address(SocketAddr::from(([127, 0, 0, 1], port)))
        .make_codec(DefaultMakeCodec::framed())
        .build();
    let payload = Bytes::from(vec![7; size]);
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < SPAN {
        let start = Instant::now();
        client.echo(payload.clone()).await.map_err(|error| anyhow!("{error}"))?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

pub fn measure(port: u16, size: usize) -> Result<Seen> {
    // One task is fastest where it wakes nobody else.
    let mut latency =
        Builder::new_current_thread().enable_all().build()?.block_on(async { call(port, size).await })?;
    let calls = Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let tasks: Vec<_> = (0..CONNECTIONS).map(|_| tokio::spawn(call(port, size))).collect();
        let mut calls = 0;
        for task in tasks {
            calls += task.await??.len();
        }
        anyhow::Ok(calls)
    })?;
    Ok(Seen { latency: median(&mut latency), rate: (calls as f64 / SPAN.as_secs_f64()) as u64 })
}
