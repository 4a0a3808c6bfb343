//! Allocations of a partition: all at creation, within the limit, and none later.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use dunlin_kv::{Partition, PartitionConfig};

struct Counting;

thread_local! {
    // Counters per thread, so that the test harness and other tests do not count.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    CALLS.set(CALLS.get() + 1);
    HELD.set(HELD.get() + bytes);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: every call goes to the system allocator unchanged; only counters are added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above; `pointer` came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn number_key(number: u32) -> [u8; 16] {
    let mut key = *b"0000000000000000";
    for (place, digit) in key.iter_mut().rev().enumerate() {
        *digit += (number / 10u32.pow(place.min(9) as u32) % 10) as u8;
    }
    key
}

#[test]
fn operations_allocate_nothing() {
    let mut partition = Partition::new(2 << 20).unwrap();
    let value = vec![5u8; 1 << 20];
    let keys: Vec<[u8; 16]> = (0..40_000).map(number_key).collect();
    let before = CALLS.get();
    assert!(before > 0, "the counting allocator is in place");
    let mut found = 0;
    for (turn, key) in keys.iter().enumerate() {
        // Mostly small values, some medium, a few large: all kinds of eviction, and replacement in place and
        // elsewhere.
        let length = if turn % 997 == 0 {
            900_000
        } else if turn % 31 == 0 {
            9000
        } else {
            turn % 3 * 16 + 16
        };
        partition.put(key, &value[..length]).unwrap();
        partition.put(key, &value[..turn % 64]).unwrap();
        found += usize::from(partition.get(&keys[turn / 2]).is_some());
        if turn % 7 == 0 {
            partition.delete(&keys[turn / 3]);
        }
        if turn % 64 == 63 {
            let group = keys[turn - 63..=turn].iter().map(<[u8; 16]>::as_slice);
            let visited: Result<(), ()> = partition.multiget(group, |value| {
                found += usize::from(value.is_some());
                Ok(())
            });
            visited.unwrap();
        }
    }
    assert_eq!(CALLS.get(), before);
    let stats = partition.stats();
    assert!(
        found > 10_000 && stats.evicted_for_memory > 10_000 && stats.evicted_from_bucket > 0,
        "{stats:?}"
    );
}

#[test]
fn what_it_holds_is_within_the_limit() {
    for limit in [64 << 10, 1_000_003, 16 << 20, (16 << 20) + 4095] {
        for expected_items in [None, Some(1), Some(500)] {
            let held = HELD.get();
            PEAK.set(held);
            let config = PartitionConfig { expected_items, ..PartitionConfig::new(limit) };
            let partition = Partition::with_config(config).unwrap();
            let peak = (PEAK.get() - held) as usize + size_of::<Partition>();
            let reserved = partition.stats().reserved_bytes as usize;
            assert!(peak <= reserved && reserved <= limit, "{peak} {reserved} {limit}");
            assert!(reserved > limit - 2 * 4096, "{reserved} of {limit} is used");
        }
    }
}

/// Returns the resident bytes of this process.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_resident_only_once_used() {
    let before = resident_bytes();
    let advised = Partition::new(1 << 30).unwrap();
    let config = PartitionConfig { huge_pages: false, ..PartitionConfig::new(1 << 30) };
    let mut partition = Partition::with_config(config).unwrap();
    for number in 0..1000 {
        partition.put(&number_key(number), &[1; 32]).unwrap();
    }
    let grown = resident_bytes().saturating_sub(before);
    // A thousand buckets on a page each, at most, and the items together.
    assert!(grown < 32 << 20, "{grown} bytes became resident");
    assert_eq!((partition.stats().items, advised.stats().items), (1000, 0));
}
