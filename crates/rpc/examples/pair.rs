//! Scratch: two pinned threads, one message per request, 64 in flight.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, missing_docs)]
use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::*;
use std::time::Instant;
fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}
fn main() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = Address::new(Scheme::Shm, &format!("quick-{}", std::process::id())).unwrap();
    let (server, mut workers) = ServerBuilder::new(&fabric)
        .function(1, FunctionMode::Worker)
        .serve_with(&address, |_| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
                reply.write(request.payload)?;
                Ok(())
            })
        })
        .unwrap();
    let worker = workers.pop().unwrap();
    let thread = std::thread::spawn(move || {
        pin(1);
        worker.run()
    });
    pin(0);
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let mut client =
        Client::connect(&fabric, &address, ClientConfig { window: 256, ..ClientConfig::with_plan(plan) })
            .unwrap();
    let payload = [7u8; 32];
    let mut rates = [Vec::new(), Vec::new()];
    for slice in 0..3000 {
        let batched = slice % 2;
        let t = Instant::now();
        let (mut sent, mut done) = (0u64, 0u64);
        let total = 5_000;
        while done < total {
            if batched == 0 {
                while sent < total && sent - done < 64 {
                    if client.submit_on(0, 1, &payload).is_err() {
                        break;
                    }
                    sent += 1;
                }
            } else {
                while sent < total && sent - done < 128 {
                    if client.push_on(0, 1, &payload).is_err() {
                        break;
                    }
                    sent += 1;
                    if sent % 32 == 0 {
                        let _ = client.flush();
                    }
                }
                let _ = client.flush();
            }
            client.progress();
            while let Some(id) = client.next_done() {
                assert_eq!(client.outcome(id).unwrap().len(), 32);
                client.forget(id);
                done += 1;
            }
        }
        rates[batched].push(total as f64 / t.elapsed().as_secs_f64() / 1e6);
    }
    let mut rtt = Vec::new();
    for _ in 0..100_000 {
        let t = unsafe { std::arch::x86_64::_rdtsc() };
        client.call_on(0, 1, &payload).unwrap();
        rtt.push(unsafe { std::arch::x86_64::_rdtsc() } - t);
    }
    rtt.sort();
    for r in &mut rates {
        r.sort_by(|a, b| a.total_cmp(b));
    }
    let q = |r: &Vec<f64>| (r[r.len() / 2], r[r.len() * 9 / 10], r[r.len() - 5]);
    println!(
        "rtt {:.0} ns, w64 {:.2?} M/s, batch {:.2?} M/s",
        rtt[rtt.len() / 2] as f64 / 2.1,
        q(&rates[0]),
        q(&rates[1])
    );
    drop(client);
    drop(server);
    thread.join().unwrap();
}
