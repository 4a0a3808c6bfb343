//! A writer that was taken for dead, and comes to its WRITE after its hole was closed.

use crate::cluster::{LOG, created, in_virtual_time, sleep};
use crate::holes::until;
use crate::sim::{joined, spawn};
use dunlin_app_log::{Cleaner, LogError, Writer, evict, status};
use dunlin_fabric::{Host, Nanos};
use dunlin_tier_node::{AnyLmr, AnyTier, LockError, OperationError, RequestError, Rights, Spec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A tier whose next FETCH_ADD returns late.
#[derive(Clone)]
struct Late<T: AnyTier> {
    tier: T,
    pause: Arc<AtomicU64>,
}

struct LateLmr<T: AnyTier> {
    lmr: T::Lmr,
    late: Late<T>,
}

impl<T: AnyTier> AnyTier for Late<T> {
    type Lmr = LateLmr<T>;
    type Guard = T::Guard;
    type Host = T::Host;

    fn host(&self) -> &T::Host {
        self.tier.host()
    }
    fn node_name(&self) -> &str {
        self.tier.node_name()
    }
    fn node_names(&self) -> Result<Vec<String>, RequestError> {
        self.tier.node_names()
    }
    fn malloc(&self, length: u64, spec: Spec) -> Result<LateLmr<T>, RequestError> {
        Ok(LateLmr { lmr: self.tier.malloc(length, spec)?, late: self.clone() })
    }
    fn map(&self, name: &[u8], rights: Rights) -> Result<LateLmr<T>, RequestError> {
        Ok(LateLmr { lmr: self.tier.map(name, rights)?, late: self.clone() })
    }
    fn lock(&self, name: &[u8]) -> Result<T::Guard, LockError> {
        self.tier.lock(name)
    }
    fn lock_within(&self, name: &[u8], time: Duration) -> Result<T::Guard, LockError> {
        self.tier.lock_within(name, time)
    }
    fn try_lock(&self, name: &[u8]) -> Result<Option<T::Guard>, LockError> {
        self.tier.try_lock(name)
    }
    fn lock_home(&self, name: &[u8]) -> Result<String, RequestError> {
        self.tier.lock_home(name)
    }
    fn barrier(&self, name: &[u8], members: u16) -> Result<(), LockError> {
        self.tier.barrier(name, members)
    }
    fn barrier_within(&self, name: &[u8], members: u16, time: Duration) -> Result<(), LockError> {
        self.tier.barrier_within(name, members, time)
    }
}

impl<T: AnyTier> AnyLmr for LateLmr<T> {
    fn len(&self) -> u64 {
        self.lmr.len()
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        self.lmr.read(offset, into)
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.lmr.write(offset, from)
    }
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError> {
        let old = self.lmr.fetch_add(offset, add);
        let pause: Nanos = self.late.pause.swap(0, Ordering::Relaxed);
        let host = self.late.host();
        host.sleep(host.now() + pause);
        old
    }
    fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError> {
        self.lmr.compare_swap(offset, expected, swap)
    }
    fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError> {
        self.lmr.memset(offset, length, value)
    }
    fn grant_anyone(&self, rights: Rights) -> Result<(), RequestError> {
        self.lmr.grant_anyone(rights)
    }
    fn free(self) -> Result<(), RequestError> {
        self.lmr.free()
    }
}

/// Commits one entry, as a transaction of 1 KiB.
fn commit<T: AnyTier>(writer: &mut Writer<T>, value: u8) -> Result<u64, LogError> {
    writer.append(&[value; 1024 - 32 - 4])?;
    writer.commit()
}

#[test]
fn in_virtual_time_a_writer_that_was_evicted_meanwhile_does_not_write_late() {
    for seed in 500..504 {
        in_virtual_time(seed, |[alice, bob, carol]| {
            created(&alice);
            let late = spawn(&alice, |tier| {
                let late = Late { tier: tier.clone(), pause: Arc::default() };
                let mut writer = Writer::open(&late, LOG).unwrap();
                late.pause.store(1_000_000_000, Ordering::Relaxed);
                commit(&mut writer, 9)
            });
            while status(&bob, LOG).unwrap().tail == 0 {
                sleep(&bob, Duration::from_micros(100));
            }
            // As if its node had been cut off for long enough to count as dead.
            evict(&bob, LOG, status(&bob, LOG).unwrap().writers[0].id).unwrap();
            let mut cleaner = Cleaner::open(&bob, LOG).unwrap();
            assert_eq!(until(&bob, &mut cleaner, |cleaned| cleaned.closed > 0).0.closed, 1024);
            let mut writer = Writer::open(&carol, LOG).unwrap();
            let first: Vec<_> = (1..4).map(|value| commit(&mut writer, value).unwrap()).collect();
            let done = until(&bob, &mut cleaner, |cleaned| cleaned.transactions == 3);
            assert_eq!(done.1, first);
            let next: Vec<_> = (4..8).map(|value| commit(&mut writer, value).unwrap()).collect();
            let written = joined(late);
            assert!(matches!(written, Err(LogError::Evicted)), "{written:?}");
            // The ring is full, and the place of the late transaction has another one.
            assert_eq!(until(&bob, &mut cleaner, |cleaned| cleaned.bytes == 4096).1, next);
        });
    }
}
