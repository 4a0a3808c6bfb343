//! Reads, writes and atomics on another node's region allocate nothing after the first ones.

#![allow(missing_docs)]

use dunlin_fabric::Scheme;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Lmr, Peer, Spec, Tier, TierConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    // A counter per thread, so that the nodes' other threads do not count.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn operations(region: &Lmr<ShmFabric>, rounds: u64) {
    let mut bytes = [7; 5000];
    for round in 0..rounds {
        let offset = round * 4093 % 100_000;
        region.write(offset, &bytes[..64]).unwrap();
        region.write(offset, &bytes).unwrap();
        region.read(offset, &mut bytes).unwrap();
        region.fetch_add(offset & !7, 1).unwrap();
    }
}

#[test]
fn operations_allocate_nothing() {
    let peer =
        |name: &str| Peer::named(Scheme::Shm, &format!("alloc-{}-{name}", std::process::id())).unwrap();
    let nodes = vec![peer("a"), peer("b")];
    let start = |at: usize| {
        let mut config = TierConfig::new(nodes.clone(), &nodes[at].name);
        config.memory = 1 << 20;
        config.piece = 4096;
        Tier::within(&ShmFabric::new(ShmConfig::default()).unwrap(), config).unwrap()
    };
    let (here, _there) = (start(0), start(1));
    let (remote, local) = (
        here.malloc(200_000, Spec::on(&nodes[1].name)).unwrap(),
        here.malloc(200_000, Spec::here()).unwrap(),
    );
    for region in [&remote, &local] {
        operations(region, 100);
        let before = CALLS.get();
        operations(region, 2500);
        assert_eq!(CALLS.get() - before, 0, "allocations of 10 000 operations");
    }
    let before = CALLS.get();
    drop(Box::new(CALLS.get()));
    assert_eq!(CALLS.get() - before, 1, "the counter counts");
}
