//! Counts the instructions of a call. Client and worker alternate on one thread, so that
//! `perf stat -e instructions:u` and `valgrind --tool=callgrind` measure the calls and no waiting.
//!
//! `steps CALLS [PROTOCOL] [SIZE] [BATCH] [RING] [SECONDS] [SHARING] [CLIENTS]`: with `BATCH` 1 the client sends 64 calls, each as a
//! message of its own, before the worker runs; with a larger `BATCH` it sends batches of that size. With 0 it makes one
//! call at a time. `RING` is the size of the rings in bytes. With `SECONDS` above 0 each call that is no part of a batch
//! has a time of its own. `SHARING` is `dedicated`, `locked` or `combined`: the price of a handle that other threads may
//! share and do not. With more than one of `CLIENTS` each sends what one client would, then the worker runs, and then each
//! collects: the time of a call is that with as many lanes, whose memory leaves the caches in between.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "an example is an application")]

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::{
    CallError, Client, ClientConfig, CompletionMode, FunctionMode, Protocol, Reply, Request, ServerBuilder,
    Sharing, Worker,
};
use std::error::Error;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).init();
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (calls, size, batch) = (number(1, 100_000)?, number(3, 32)?, number(4, 1)?);
    let name = arguments.get(2).map_or("Server-reply", String::as_str);
    let sharing = arguments.get(7).map_or("dedicated", String::as_str);
    let sharing = Sharing::ALL.into_iter().find(|one| one.name() == sharing).ok_or("no such sharing")?;
    let plan = Protocol::by_name(name).ok_or("no such protocol")?.plan(CompletionMode::Busy);
    let plan = plan.shared(sharing, plan.lease);

    let fabric = ShmFabric::new(ShmConfig::default())?;
    let address = Address::new(Scheme::Shm, &format!("steps-{}", std::process::id()))?;
    let (server, mut workers) =
        ServerBuilder::new(&fabric).function(1, FunctionMode::Worker).serve_with(&address, |_| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
                reply.write(request.payload)?;
                Ok(())
            })
        })?;
    let mut worker = workers.pop().ok_or("no worker")?;
    let clients = number(8, 1)?;
    let connecting = {
        let (fabric, address) = (fabric.clone(), address.clone());
        let config = ClientConfig {
            window: 256,
            ring_bytes: number(5, 65_536)? as u32,
            // Instruments are slow.
            connect_timeout: Duration::from_secs(600),
            ..ClientConfig::with_plan(plan)
        };
        let connect = move |_| Client::connect(&fabric, &address, config.clone());
        std::thread::spawn(move || (0..clients).map(connect).collect::<Result<Vec<_>, _>>())
    };
    while !connecting.is_finished() {
        worker.progress();
    }
    let clients = connecting.join().map_err(|_| "the connecting thread panicked")??;
    let time = Some(number(6, 0)? as u64).filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let mut both = Both { clients, worker, payload: vec![7; size], time };
    both.run(2_000, batch)?;
    let start = Instant::now();
    both.run(calls, batch)?;
    let elapsed = start.elapsed();
    println!(
        "{name}, {size} bytes, batch {batch}: {calls} calls, {:.1} ns each for both sides",
        elapsed.as_nanos() as f64 / calls as f64
    );
    drop(both);
    drop(server);
    Ok(())
}

struct Both {
    clients: Vec<Client<ShmFabric>>,
    worker: Worker<ShmFabric>,
    payload: Vec<u8>,
    time: Option<Duration>,
}

impl Both {
    #[inline(never)]
    fn run(&mut self, calls: usize, batch: usize) -> Result<(), CallError> {
        let round = if batch == 0 { 1 } else { 64 };
        let all = self.clients.len();
        for _ in 0..calls / (round * all) {
            (0..all).try_for_each(|client| self.submit(client, round, batch))?;
            self.serve();
            for client in 0..all {
                let mut done = 0;
                while done < round {
                    done += self.collect(client);
                    if done < round {
                        self.serve();
                    }
                }
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn submit(&mut self, client: usize, count: usize, batch: usize) -> Result<(), CallError> {
        let client = &mut self.clients[client];
        if batch <= 1 {
            return (0..count).try_for_each(|_| {
                let submitted = match self.time {
                    None => client.submit_on(0, 1, &self.payload),
                    Some(time) => client.within(time).submit_on(0, 1, &self.payload),
                };
                submitted.map(drop)
            });
        }
        for sent in 1..=count {
            client.push_on(0, 1, &self.payload)?;
            if sent % batch == 0 {
                client.flush()?;
            }
        }
        client.flush()
    }

    #[inline(never)]
    fn serve(&mut self) {
        self.worker.progress();
    }

    #[inline(never)]
    fn collect(&mut self, client: usize) -> usize {
        let length = self.payload.len();
        self.clients[client].collect(|_, outcome| assert_eq!(outcome.map(<[u8]>::len), Ok(length)))
    }
}
