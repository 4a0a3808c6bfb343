//! Typed calls allocate nothing for arguments and decoding, except for values that the handler or the caller
//! owns.

use dunlin::hints::{FunctionHints, Hints};
use dunlin::plan::CompletionMode;
use dunlin::thrift::{Bytes, ClientOptions, Context, Failure, Never, ServerOptions, serve_with};
use dunlin_generated::quiet::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

/// The number of allocations by all threads of this process, including the server's.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of allocations by this thread.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; only counters are added, which are not
// allocated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        OWN.with(|own| own.set(own.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`, which is also the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Copy, Debug)]
struct Handler;

impl Quiet for Handler {
    fn nothing(&self, _: &Context) -> Result<(), Failure<Never>> {
        Ok(())
    }

    fn sum(&self, _: &Context, a: i64, b: i32, c: bool) -> Result<i64, Failure<Never>> {
        Ok(a + i64::from(b) + i64::from(c))
    }

    fn take(&self, _: &Context, data: &[u8]) -> Result<i64, Failure<Never>> {
        Ok(data.len() as i64)
    }

    fn join(&self, _: &Context, first: &[u8], second: &str, third: &[u8]) -> Result<i64, Failure<Never>> {
        Ok((first.len() + second.len() + third.len()) as i64)
    }

    fn swap(&self, _: &Context, pair: Pair) -> Result<Pair, Failure<Never>> {
        Ok(Pair { left: pair.right as i32, right: pair.left.into(), more: pair.more })
    }

    fn more(&self, _: &Context, pair: Pair) -> Result<i64, Failure<Never>> {
        Ok(pair.more.map_or(0, |more| more.len() as i64))
    }

    fn middle(&self, _: &Context, values: Vec<f64>) -> Result<f64, Failure<Never>> {
        Ok(values.iter().sum::<f64>() / values.len() as f64)
    }
}

const CALLS: usize = 400;
const SIZES: [usize; 5] = [32, 56, 200, 1024, 4096];

/// Returns the allocations of `CALLS` calls, in the process and on this thread: the least of three runs. One
/// run without allocations suffices, since a lane whose peer is briefly descheduled may run out of room and
/// copy incoming messages.
fn least(mut call: impl FnMut()) -> (u64, u64) {
    (0..100).for_each(|_| call());
    let mut least = (u64::MAX, u64::MAX);
    for _ in 0..3 {
        let before = (ALLOCATIONS.load(Ordering::SeqCst), OWN.get());
        (0..CALLS).for_each(|_| call());
        let after = (ALLOCATIONS.load(Ordering::SeqCst), OWN.get());
        least = (least.0.min(after.0 - before.0), least.1.min(after.1 - before.1));
        if least.0 == 0 {
            break;
        }
    }
    least
}

/// The only test in this file, since the counter belongs to the process.
#[test]
fn typed_calls_allocate_nothing() {
    assert!(
        least(|| drop(std::hint::black_box(vec![1u8; 100]))).1 >= CALLS as u64,
        "allocations are counted"
    );
    let fabric = dunlin::fabric::shm().unwrap();
    let address: dunlin::Address = format!("shm:quiet-{}", std::process::id()).parse().unwrap();
    let _server = serve_with(&fabric, &address, QuietProcessor(Handler), ServerOptions::default()).unwrap();
    let mut wrong = Vec::new();
    for polling in [CompletionMode::Busy, CompletionMode::Event] {
        let hints = Hints::NONE.polling(polling);
        let named =
            |function: &FunctionHints| FunctionHints { client: hints, server: hints, ..function.clone() };
        let hints = QUIET_SERVICE.functions.iter().map(named).collect();
        let options = ClientOptions { hints, ..ClientOptions::default() };
        let mut client = QuietClient::connect_with(&fabric, &address, options).unwrap();
        let mut note = |what: &str, size: usize, expected: bool| {
            if !expected {
                wrong.push(format!("{polling:?}, {what} of {size} bytes"));
            }
        };
        let none = (0, 0);
        note("nothing", 0, least(|| client.nothing().unwrap()) == none);
        note("sum", 0, least(|| assert_eq!(client.sum(1, 2, true).unwrap(), 4)) == none);
        let pair = Pair { left: 1, right: 2, more: None };
        note("swap", 0, least(|| assert_eq!(client.swap(&pair).unwrap().left, 2)) == none);
        for size in SIZES {
            let data = vec![1; size];
            note("take", size, least(|| assert_eq!(client.take(&data).unwrap(), size as i64)) == none);
            let text = "t".repeat(size / 2);
            let join =
                || assert_eq!(client.join(&data[..size / 4], &text, b"").unwrap(), (size / 4 * 3) as i64);
            note("join", size, least(join) == none);
            // The handler owns the contents of a struct or list; the caller's side allocates nothing.
            let pair = Pair { left: 1, right: 2, more: Some(Bytes::from(data.clone())) };
            let (all, own) = least(|| assert_eq!(client.more(&pair).unwrap(), size as i64));
            note("more", size, own == 0 && all <= 2 * CALLS as u64);
            let values = vec![0.5; size / 8];
            let (all, own) = least(|| assert_eq!(client.middle(&values).unwrap(), 0.5));
            note("middle", size, own == 0 && all <= CALLS as u64 * 8);
        }
    }
    assert!(wrong.is_empty(), "{CALLS} calls allocated: {wrong:#?}");
}
