//! Futures of operations, without an executor: a loop that polls all of them.

use crate::cluster::{assert_absent, assert_access, in_virtual_time, on_shared_memory};
use dunlin_fabric::{Fabric, Host, Nanos, Signal};
use dunlin_tier_node::{
    AccessError, AsyncConfig, Asynchronous, ListError, Lmr, OperationError, OwnedOperations, Rights, Spec,
    Tier,
};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

struct Raise<S: Signal>(S);

impl<S: Signal> Wake for Raise<S> {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }
}

/// Waits for all futures.
fn all<H: Host, T>(host: &H, futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    let signal = host.signal();
    let waker = Waker::from(Arc::new(Raise(signal.clone())));
    loop {
        let seen = signal.seen();
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(ended) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                *result = Some(ended);
            }
        }
        if results.iter().all(Option::is_some) {
            return results.into_iter().flatten().collect();
        }
        signal.wait(seen, Nanos::MAX);
    }
}

fn one<H: Host, T>(host: &H, future: impl Future<Output = T>) -> T {
    all(host, [future]).pop().unwrap()
}

fn lists_are_those_of_the_synchronous_ones<F: Fabric>(
    host: &F::Host,
    operations: &Asynchronous<Lmr<F>, F::Host>,
    region: &Arc<Lmr<F>>,
) {
    let list = (0..30).fold(OwnedOperations::new(), |list, at| {
        list.write(region, 15_000 + 100 * at, vec![at as u8; 100]).fetch_add(region, 24, 1)
    });
    let (buffers, outcomes) = one(host, operations.run(list));
    assert!((0..).zip(&buffers).all(|(at, buffer)| *buffer == [at; 100]) && buffers.len() == 30);
    let mut old: Vec<u64> = outcomes.unwrap().into_iter().filter_map(|done| done.unwrap().old()).collect();
    old.sort_unstable();
    assert!(old.into_iter().eq(0..30));
    let list =
        (0..30).fold(OwnedOperations::new(), |list, at| list.read(region, 15_000 + 100 * at, vec![0; 100]));
    let (buffers, outcomes) = one(host, operations.run(list));
    assert!(outcomes.unwrap().iter().all(Result::is_ok));
    assert!((0..).zip(&buffers).all(|(at, buffer)| *buffer == [at; 100]));
    // One that is refused refuses the list, and the buffers come back.
    let list = OwnedOperations::new().write(region, 15_000, vec![1; 100]).compare_swap(region, 12, 0, 1);
    let (buffers, refused) = one(host, operations.run(list));
    assert!(matches!(refused, Err(ListError::Refused { place: 1, .. })), "{refused:?}");
    assert_eq!(buffers, [vec![1; 100]]);
    let late = operations.within(Duration::ZERO).run(OwnedOperations::new().fetch_add(region, 24, 1));
    assert!(matches!(one(host, late).1, Err(ListError::NotBegun(error)) if error.is_deadline()));
    assert!(one(host, operations.run(OwnedOperations::new())).1.unwrap().is_empty());
}

fn operations_are_those_of_the_synchronous_ones<F: Fabric>([alice, bob, _]: &[Tier<F>; 3]) {
    const PART: u64 = 1000;
    let (host, operations) = (alice.fabric().host(), alice.asynchronous(AsyncConfig::default()).unwrap());
    let region = alice.malloc(40 * PART, Spec::spread(["bob", "alice", "carol"]).named("a/1")).unwrap();
    let region = Arc::new(region);
    // Many at the same time, and more than there are threads.
    let written = all(host, (0..40).map(|at| operations.write(&region, at * PART, vec![at as u8; 1000])));
    assert!(written.iter().zip(0..).all(|((buffer, result), at)| result.is_ok() && *buffer == [at; 1000]));
    let read = all(host, (0..40).map(|at| operations.read(&region, at * PART, vec![0; 1000])));
    assert!(read.iter().zip(0..).all(|((buffer, result), at)| result.is_ok() && *buffer == [at; 1000]));

    one(host, operations.memset(&region, 0, PART, 0)).unwrap();
    let mut old = all(host, (0..40).map(|_| operations.fetch_add(&region, 8, 1))).into_iter();
    let mut old: Vec<u64> = old.by_ref().map(Result::unwrap).collect();
    old.sort_unstable();
    assert!(old.into_iter().eq(0..40));
    // One of many finds the word free.
    let taken = all(host, (0..10).map(|_| operations.test_set(&region, 16)));
    assert_eq!(taken.into_iter().filter(|taken| *taken.as_ref().unwrap()).count(), 1);
    assert_eq!(one(host, operations.compare_swap(&region, 16, 1, 9)).unwrap(), 1);
    assert!(!region.test_set(16).unwrap());
    one(host, operations.memcpy((&region, 2 * PART), (&region, PART), 5 * PART)).unwrap();
    let (bytes, result) = one(host, operations.read(&region, 6 * PART, vec![0; 1000]));
    assert!(result.is_ok() && bytes == [5; 1000]);

    // Writes before a fence are placed when it is passed.
    let writes: Vec<_> = (7..12).map(|at| operations.write(&region, at * PART, vec![91; 1000])).collect();
    one(host, operations.fence());
    let mut found = vec![0; 5000];
    region.read(7 * PART, &mut found).unwrap();
    assert!(found == [91; 5000]);
    drop(writes);
    let (bytes, notified) =
        one(host, operations.write_notify(&region, 12 * PART, vec![92; 1000], 14 * PART, 77));
    assert!(notified.is_ok() && bytes == [92; 1000]);
    let (bytes, read) = one(host, operations.read(&region, 12 * PART, vec![0; 2008]));
    assert!(read.is_ok() && bytes[..1000] == [92; 1000] && bytes[2000..] == 77u64.to_le_bytes());

    lists_are_those_of_the_synchronous_ones(host, &operations, &region);
    // Buffers that the device reads and writes in place.
    let mut buffer = alice.buffer(1000).unwrap();
    buffer.fill(93);
    let (buffer, done) = one(host, operations.write_from(&region, 20 * PART, buffer, 100..900));
    done.unwrap();
    let mut found = alice.buffer(1000).unwrap();
    found.fill(1);
    let (found, done) = one(host, operations.read_into(&region, 20 * PART, found, 0..800));
    done.unwrap();
    assert!(found[..800] == [93; 800] && found[800..] == [1; 200]);
    let (_, refused) = one(host, operations.read_into(&region, 0, buffer, 300..1001));
    assert!(matches!(refused, Err(OperationError::Buffer(_))), "{refused:?}");

    // A refused operation gives its buffer back.
    let (bytes, refused) = one(host, operations.write(&region, 40 * PART - 1, vec![1; 2]));
    let error = AccessError::OutOfBounds { offset: 40 * PART - 1, length: 2, size: 40 * PART };
    assert_access(refused, error);
    assert_eq!(bytes, [1; 2]);
    let weak = alice.map("a/1", Rights::READ).map(Arc::new).unwrap();
    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
    assert_access(one(host, operations.test_set(&weak, 0)), denied);
    assert_access(one(host, operations.memcpy((&weak, 0), (&region, 0), 8)), denied);
    let late = one(host, operations.within(Duration::ZERO).fetch_add(&region, 8, 1));
    assert!(matches!(late, Err(OperationError::Deadline { may_have_executed: false, .. })), "{late:?}");

    // Futures that are dropped, of reads and of writes: the memory of each buffer lives as long as its operation.
    for at in 0..40 {
        drop(operations.read(&region, at * PART, vec![0; 1000]));
        drop(operations.write(&region, at * PART, vec![77; 1000]));
    }
    let last = one(host, operations.fetch_add(&region, 8, 0));
    assert!(last.is_ok(), "{last:?}");
    drop(operations);
    // No thread has the region any more.
    Arc::into_inner(region).unwrap().free().unwrap();
    assert_absent(bob.map("a/1", Rights::READ));
}

#[test]
fn operations_are_those_of_the_synchronous_ones_on_shared_memory() {
    on_shared_memory(operations_are_those_of_the_synchronous_ones);
}

#[test]
fn operations_are_those_of_the_synchronous_ones_in_virtual_time() {
    for (seed, atomics) in [(1, true), (2, false), (3, true)] {
        in_virtual_time(seed, atomics, operations_are_those_of_the_synchronous_ones);
    }
}
