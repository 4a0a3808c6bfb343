//! Steps a client and a worker in one thread: instructions and time of a call without any waiting.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, missing_docs)]
use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
fn main() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = Address::new(Scheme::Shm, &format!("quick-{}", std::process::id())).unwrap();
    let calls: u64 = std::env::args().nth(1).map_or(1_000_000, |n| n.parse().unwrap());
    let (_server, mut workers) = ServerBuilder::new(&fabric)
        .function(1, FunctionMode::Worker)
        .serve_with(&address, |_| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
                reply.write(request.payload)?;
                Ok(())
            })
        })
        .unwrap();
    let mut worker = workers.pop().unwrap();
    let name = std::env::args().nth(2).unwrap_or("Server-reply".into());
    let connected = AtomicBool::new(false);
    let plan = Protocol::by_name(&name).unwrap().plan(CompletionMode::Busy);
    let mut client = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let client = Client::connect(
                &fabric,
                &address,
                ClientConfig { window: 256, ..ClientConfig::with_plan(plan) },
            );
            connected.store(true, Ordering::Release);
            client.unwrap()
        });
        while !connected.load(Ordering::Acquire) {
            worker.progress();
        }
        thread.join().unwrap()
    });
    let payload = [7u8; 32];
    for _ in 0..3 {
        let t = Instant::now();
        for _ in 0..if std::env::args().nth(3).is_some() { 0 } else { calls } {
            let id = client.submit_on(0, 1, &payload).unwrap();
            worker.progress();
            client.progress();
            while client.next_done() != Some(id) {
                worker.progress();
                client.progress();
            }
            client.forget(id);
        }
        let one = t.elapsed().as_nanos() as f64 / calls as f64;
        let (mut sub, mut srv, mut cli) = (vec![], vec![], vec![]);
        let tsc = || unsafe { std::arch::x86_64::_rdtsc() };
        for _ in 0..calls / 64 {
            let a = tsc();
            for i in 0..64 {
                if let Err(e) = client.submit_on(0, 1, &payload) {
                    panic!("{e} at {i} in flight {} room {}", client.in_flight(), client.room(0));
                }
            }
            let b = tsc();
            let h = (worker.progress(), worker.progress(), worker.progress());
            let c = tsc();
            let g = client.progress();
            let mut n = 0;
            while let Some(id) = client.next_done() {
                client.forget(id);
                n += 1;
            }
            assert_eq!(n, 64, "{h:?} {g}");
            let d = tsc();
            sub.push(b - a);
            srv.push(c - b);
            cli.push(d - c);
        }
        let per = |mut x: Vec<u64>| {
            x.sort();
            x[x.len() / 10] as f64 / 2.1 / 64.0
        };
        println!(
            "{name}: one by one {one:.1} ns; of 64: submit {:.1} serve {:.1} complete {:.1} ns",
            per(sub),
            per(srv),
            per(cli)
        );
    }
}
