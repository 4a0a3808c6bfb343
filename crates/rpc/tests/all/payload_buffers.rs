//! Buffers of large payloads are prepared as the fabric prefers: a NIC's stay as they are, and shared memory takes its
//! buffers back from the peer's cache.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use dunlin_fabric::{Address, Fabric, Scheme};
use dunlin_fabric_sim::Sim;
use dunlin_rpc::*;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CALLS: u64 = 40;
const LENGTH: usize = 100_000;
/// The content of a payload, whole.
const MARK: u8 = 7;

/// Buffers that a side was given to fill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Given {
    /// Their addresses.
    places: BTreeSet<usize>,
    /// Bytes of a buffer that were not as they were left by its last use.
    changed: usize,
}

impl Given {
    fn fill(&mut self, place: &mut [u8]) {
        if !self.places.insert(place.as_ptr() as usize) {
            self.changed += place.iter().filter(|byte| **byte != MARK).count();
        }
        place.fill(MARK);
    }
}

/// Makes calls one after the other with a large request and a large result. Returns the buffers of client and
/// server.
fn calls<F: Fabric>(fabric: &F, address: &Address, large: LargePayload) -> [Given; 2] {
    let results = Arc::new(Mutex::new(Given::default()));
    let made = Arc::clone(&results);
    let server = ServerBuilder::new(fabric)
        .function(ECHO, FunctionMode::Worker)
        .serve(address, move |_| {
            let made = Arc::clone(&made);
            Box::new(move |_: &Request<'_>, reply: &mut Reply<'_>| {
                let (place, telling) = reply.reserve_to_fill(LENGTH)?;
                made.lock().unwrap().fill(place);
                telling.into_iter().for_each(|telling| telling.filled(LENGTH));
                Ok(())
            })
        })
        .unwrap();
    let plan = Plan::new(RequestHalf::Write, ResponseHalf::Write).large(large, SMALL_LIMIT);
    let mut client = Client::connect(fabric, address, ClientConfig::with_plan(plan)).unwrap();
    let mut requests = Given::default();
    for _ in 0..CALLS {
        let mut request = client.filling_request_for(0, ECHO, LENGTH).unwrap();
        let (place, telling) = request.parts();
        requests.fill(place);
        telling.filled(LENGTH);
        let call = request.submit().unwrap();
        assert!(*client.wait(call).unwrap() == [MARK; LENGTH]);
    }
    server.shutdown(Duration::from_secs(1));
    let results = results.lock().unwrap().clone();
    [requests, results]
}

/// On a NIC no byte of a buffer is touched, and one buffer serves payloads one after the other.
#[test]
fn buffers_of_a_nic_are_used_again_as_they_are() {
    for large in [LargePayload::Read, LargePayload::Pipelined] {
        let counted = Arc::new(Mutex::new(None));
        let found = Arc::clone(&counted);
        let run = move |fabric: Sim| {
            let address = Address::new(Scheme::Sim, "buffers").unwrap();
            *found.lock().unwrap() = Some(calls(&fabric, &address, large));
        };
        Sim::run(1, run).unwrap();
        let [requests, results] = counted.lock().unwrap().take().unwrap();
        for (side, given) in [("client", requests), ("server", results)] {
            assert_eq!((given.places.len(), given.changed), (1, 0), "{side}, {}", large.name());
        }
    }
}

/// The same calls on shared memory: each buffer is zeroed, and the next one is prepared meanwhile.
#[test]
fn buffers_of_shared_memory_are_taken_back() {
    bounded(|| {
        let [requests, results] = calls(&fabric(), &unique("buffers"), LargePayload::Read);
        for (side, given) in [("client", requests), ("server", results)] {
            assert!(given.places.len() >= 2, "{side}: {}", given.places.len());
            assert_eq!(given.changed, (CALLS as usize - given.places.len()) * LENGTH, "{side}");
        }
    });
}
