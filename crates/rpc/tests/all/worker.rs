//! A worker that is run step by step: the behavior of one lane costs the others nothing.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::SIZED;
use crate::common::raw::{RawClient, call};
use crate::common::*;
use dunlin_fabric::{Access, Link, Region};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::*;
use dunlin_wire::{Descriptor, Flags, Header, Kind, LINE, TAG_OFFSET};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

struct Stepped {
    fabric: ShmFabric,
    server: Server<ShmFabric>,
    worker: Worker<ShmFabric>,
}

impl Stepped {
    fn new() -> Stepped {
        let (fabric, executed) = (fabric(), Arc::new(AtomicU64::new(0)));
        let (server, mut workers) = process::test_server(&fabric, &executed)
            .serve_with(&unique("stepped"), |_| process::test_service(Arc::clone(&executed)))
            .unwrap();
        Stepped { fabric, server, worker: workers.remove(0) }
    }

    /// Runs the worker while a client connects.
    fn connect<T: Send>(
        &mut self,
        connect: impl FnOnce(&ShmFabric, &dunlin_fabric::Address) -> T + Send,
    ) -> T {
        let (fabric, address) = (self.fabric.clone(), self.server.address().clone());
        std::thread::scope(|scope| {
            let connecting = scope.spawn(move || connect(&fabric, &address));
            while !connecting.is_finished() {
                self.worker.progress();
            }
            connecting.join().unwrap()
        })
    }
}

/// One lane breaks the protocol in the same poll in which it made the worker READ a large request. Another
/// lane's READ is in flight at that time, and must be processed when it completes, not at the next full poll.
#[test]
fn a_lane_that_breaks_takes_no_reads_of_others_with_it() {
    bounded(|| {
        let plan = Plan::new(RequestHalf::Write, ResponseHalf::Write);
        let mut stepped = Stepped::new();
        let mut others = Vec::new();
        // A full poll would hide the error, so several rounds make a coincidence unlikely.
        for round in 1..4 {
            let config = ClientConfig { timeout: Duration::MAX, ..ClientConfig::with_plan(plan) };
            let mut honest =
                stepped.connect(move |fabric, address| Client::connect(fabric, address, config).unwrap());
            let mut raw = stepped.connect(move |fabric, address| RawClient::connect(fabric, address, plan));
            let payload = pattern(10_000, round);
            let id = honest.submit_on(0, ECHO, &payload).unwrap();

            let granted =
                Region::new(dunlin_fabric::Fabric::register(&raw.fabric, 8192, Access::READ).unwrap());
            let key = raw.half.link.grant(granted.memory(), Access::READ).unwrap();
            let descriptor = Descriptor { key: key.0, offset: 0, length: 5000 };
            let header = Header {
                code: ECHO,
                call: call(0, 1),
                flags: Flags::RENDEZVOUS,
                ..Header::new(Kind::Request)
            };
            let bytes = raw.message(&header, &descriptor.encode());
            raw.deliver(&bytes);
            let mut garbage = vec![0xee; LINE];
            garbage[TAG_OFFSET..].copy_from_slice(&raw.tags.first(0, 1).to_le_bytes());
            raw.deliver(&garbage);

            stepped.worker.progress();
            for _ in 0..4 {
                honest.progress();
            }
            assert!(honest.is_done(id), "round {round}");
            assert_eq!(honest.outcome(id).unwrap(), payload);
            raw.expect_closed();
            others.push(honest);
        }
    });
}

/// Clients that send, read no answer, and leave the worker with messages that it cannot process yet.
#[test]
fn blocked_lanes_keep_no_receives_from_others() {
    bounded(|| {
        let plan = Plan::new(RequestHalf::Send, ResponseHalf::Send);
        let mut stepped = Stepped::new();
        let mut deaf = Vec::new();
        for _ in 0..8 {
            let mut raw =
                stepped.connect(move |fabric, address| RawClient::connect_deaf(fabric, address, plan));
            for number in 0..380u32 {
                raw.request(SIZED, call(number % 64, number / 64 + 1), &4096u32.to_le_bytes());
                raw.position = 0;
            }
            for _ in 0..64 {
                raw.poll();
                stepped.worker.progress();
            }
            assert!(!raw.is_closed(), "it has only sent more than it reads");
            deaf.push(raw);
        }
        let mut honest = stepped.connect(move |fabric, address| {
            Client::connect(
                fabric,
                address,
                ClientConfig { timeout: Duration::MAX, ..ClientConfig::with_plan(plan) },
            )
            .unwrap()
        });
        // One poll processes as many calls as the worker's budget for a lane, so all of them have found
        // RECVs.
        let calls: Vec<_> = (0..32u64).map(|n| honest.submit_on(0, ECHO, &pattern(24, n)).unwrap()).collect();
        assert_eq!(stepped.worker.progress(), calls.len());
        honest.progress();
        for (number, id) in calls.into_iter().enumerate() {
            assert_eq!(honest.outcome(id).unwrap(), pattern(24, number as u64));
        }
    });
}

/// Many payloads of one size, followed by one that needs the memory of all of them, at every end with such
/// memory.
#[test]
fn memory_for_large_payloads_serves_every_size_in_turn() {
    bounded(|| {
        const MEBI: usize = 1 << 20;
        let (fabric, executed) = (fabric(), Arc::new(AtomicU64::new(0)));
        let memory = 8 * MEBI as u64;
        let config =
            ServerConfig { large_memory: memory, large_response_memory: memory, ..ServerConfig::default() };
        let server = process::test_server(&fabric, &executed)
            .config(config)
            .serve(&unique("sizes"), |_| process::test_service(Arc::clone(&executed)))
            .unwrap();
        let config = ClientConfig { large_memory: memory, ..ClientConfig::with_plan(any_plan()) };
        let mut client = Client::connect(&fabric, server.address(), config).unwrap();
        for round in 0..3 {
            for size in [MEBI, 5 * MEBI, 2 * MEBI, 8 * MEBI, 3 * MEBI] {
                let payload = pattern(size, round);
                let calls: Vec<_> = (0..memory as usize / size.next_power_of_two())
                    .map(|_| client.submit_on(0, ECHO, &payload).unwrap())
                    .collect();
                for call in calls {
                    assert!(*client.wait(call).unwrap() == *payload, "{size} bytes in round {round}");
                }
            }
        }
    });
}
