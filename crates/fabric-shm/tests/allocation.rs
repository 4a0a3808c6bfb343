//! The data path allocates nothing after warm-up.

mod common;

use common::{Pair, Side, local, receive, send, write};
use dunlin_fabric::{
    Access, Completion, CompletionStatus, Fabric, Link, ReceiveTarget, Region, RegionKey, ThreadDomain,
};
use dunlin_fabric_shm::ShmMemory;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    // Per thread: the test harness and the control thread have their own counts.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator; counting accesses no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn rounds(a: &mut Side, b: &mut Side, key: RegionKey, found: &mut Vec<Completion<ShmMemory>>, count: usize) {
    for _ in 0..count {
        a.post(write(1, key, 0, &[b"12345678"], false)).unwrap();
        a.post(send(2, &[&[1; 500]], Some(7), true)).unwrap();
        let mut left = 2;
        while left > 0 {
            b.domain.poll(b.queue, found, 16);
            a.domain.poll(a.queue, found, 16);
            for completion in found.drain(..) {
                assert_eq!(completion.status, CompletionStatus::Success);
                left -= 1;
                if let Some(buffer) = completion.buffer {
                    let target = ReceiveTarget::QueuePair(b.queue_pair);
                    b.domain.post_receive(target, completion.id, Some(buffer)).unwrap();
                }
            }
        }
    }
}

#[test]
fn ten_thousand_rounds_allocate_nothing() {
    let Pair { fabric, mut a, mut b } = Pair::new();
    let region = Region::new(fabric.register(4096, Access::WRITE).unwrap());
    let key = b.link.grant(region.memory(), Access::WRITE).unwrap();
    a.link.send(b"settle").unwrap();
    b.link.send(b"settle").unwrap();
    a.link.receive(common::soon()).unwrap();
    b.link.receive(common::soon()).unwrap();
    let arena = local(&fabric, 65536);
    for id in 0..8 {
        receive(&mut b, &arena, id, 512);
    }
    let mut found = Vec::with_capacity(64);
    rounds(&mut a, &mut b, key, &mut found, 100);
    assert!(ALLOCATIONS.with(Cell::get) > 0, "the counter counts");
    let before = ALLOCATIONS.with(Cell::get);
    rounds(&mut a, &mut b, key, &mut found, 10_000);
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
}
