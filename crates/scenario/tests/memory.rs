//! Memory of a simulated client, as counted by the allocator: with all clients connected, and with half of
//! their calls made.

use dunlin_scenario::load::{Load, Network};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

/// Bytes that this process has allocated and not freed.
static LIVE: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator unchanged; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is also the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`; `pointer` came from the system allocator,
        // with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes per client: two rings of 16 KiB, the scratch memory of a client and a lane, and the state of both
/// ends of a connection. The stack, of which three pages are touched, is additional.
const BOUND: u64 = 68 * 1024;

#[test]
fn a_client_takes_less_than_68_kib_beside_its_stack() {
    const CLIENTS: u64 = 400;
    let before = LIVE.load(Ordering::Relaxed);
    let load = Load::bench(CLIENTS as usize, 20 * CLIENTS, Network::Rates);
    let outcome = load.run(1, || [LIVE.load(Ordering::Relaxed), 0]).expect("a load");
    let [connected, _, worked, _] = outcome.probes;
    for (when, live) in [("connected", connected), ("at work", worked)] {
        let each = (live - before) / CLIENTS;
        assert!(each < BOUND, "{each} bytes a client, {when}");
        // A lower value than the rings alone would mean that the count is wrong.
        assert!(each > 32 * 1024, "{each} bytes a client, {when}");
    }
}
