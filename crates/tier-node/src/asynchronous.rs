//! Asynchronous operations (table 1): futures for any executor. Threads of their own carry the operations out, since an
//! operation waits by polling its completions.

use crate::any::{AnyLmr, AnyOperation};
use crate::error::{ListError, OperationError};
use crate::list::Outcomes;
use dunlin_fabric::{Host, Nanos, Signal, Task, nanos};
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

mod lists;

pub use lists::{OwnedOperations, RanList};

/// An operation on a region with a time of its own, by whichever way the tier is reached.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum TimedOperation<'a, L> {
    Read { offset: u64, into: &'a mut [u8] },
    Write { offset: u64, from: &'a [u8] },
    WriteNotify { offset: u64, from: &'a [u8], word_offset: u64, value: u64 },
    Memset { offset: u64, length: u64, value: u8 },
    Memcpy { offset: u64, length: u64, to: &'a L, target: u64 },
    FetchAdd { offset: u64, add: u64 },
    CompareSwap { offset: u64, expected: u64, swap: u64 },
}

/// A region whose operations may have a time of their own.
pub trait TimedLmr: AnyLmr + Sized {
    /// Carrier out an operation for at most `time`; returns the old value of a word that it changed, else 0.
    ///
    /// # Errors
    /// As the operation's own method.
    fn run_within(&self, time: Duration, operation: TimedOperation<'_, Self>) -> Result<u64, OperationError>;

    /// Runs a list, for at most `time` if it has one of its own.
    ///
    /// # Errors
    /// The list is refused as a whole.
    fn run_list(time: Option<Duration>, list: Vec<AnyOperation<'_, Self>>) -> Result<Outcomes, ListError>;
}

/// A region whose bytes are copied from and to registered memory in place.
pub trait InPlaceLmr: TimedLmr {
    /// The memory.
    type Buffer: Send + 'static;

    /// Reads into a range of a buffer, or writes from it, for at most `time`.
    ///
    /// # Errors
    /// As the operation's own method.
    fn run_in_place(
        &self,
        time: Duration,
        offset: u64,
        buffer: &mut Self::Buffer,
        range: Range<usize>,
        is_write: bool,
    ) -> Result<(), OperationError>;
}

/// Implements [`InPlaceLmr`] by the methods of the same names of a type, with these generics and this type of buffers.
#[macro_export]
macro_rules! in_place_lmr {
    ([$($generics:tt)*] $lmr:ty, $buffer:ty) => {
        impl<$($generics)*> $crate::InPlaceLmr for $lmr {
            type Buffer = $buffer;

            fn run_in_place(
                &self,
                time: std::time::Duration,
                offset: u64,
                buffer: &mut $buffer,
                range: std::ops::Range<usize>,
                is_write: bool,
            ) -> Result<(), $crate::OperationError> {
                match is_write {
                    true => self.within(time).write_from(offset, buffer, range),
                    false => self.within(time).read_into(offset, buffer, range),
                }
            }
        }
    };
}

/// Implements [`TimedLmr`] by the methods of the same names of a type and of its lists.
#[macro_export]
macro_rules! timed_lmr {
    ($lmr:ident, $fabric:path, $operations:ident) => {
        impl<F: $fabric> $crate::TimedLmr for $lmr<F> {
            fn run_list(
                time: Option<std::time::Duration>,
                list: Vec<$crate::AnyOperation<'_, Self>>,
            ) -> Result<$crate::Outcomes, $crate::ListError> {
                use $crate::AnyOperation::{CompareSwap, FetchAdd, Memcpy, Memset, Read, Write};
                let list = list.into_iter().fold($operations::new(), |all, one| match one {
                    Read { lmr, offset, into } => all.read(lmr, offset, into),
                    Write { lmr, offset, from } => all.write(lmr, offset, from),
                    FetchAdd { lmr, offset, add } => all.fetch_add(lmr, offset, add),
                    CompareSwap { lmr, offset, expected, swap } => {
                        all.compare_swap(lmr, offset, expected, swap)
                    }
                    Memset { lmr, offset, length, value } => all.memset(lmr, offset, length, value),
                    Memcpy { to, from, length } => all.memcpy(to, from, length),
                });
                time.into_iter().fold(list, $operations::within).run()
            }

            fn run_within(
                &self,
                time: std::time::Duration,
                operation: $crate::TimedOperation<'_, Self>,
            ) -> Result<u64, $crate::OperationError> {
                use $crate::TimedOperation::{
                    CompareSwap, FetchAdd, Memcpy, Memset, Read, Write, WriteNotify,
                };
                let within = self.within(time);
                match operation {
                    Read { offset, into } => within.read(offset, into).map(|()| 0),
                    Write { offset, from } => within.write(offset, from).map(|()| 0),
                    WriteNotify { offset, from, word_offset, value } => {
                        within.write_notify(offset, from, word_offset, value).map(|()| 0)
                    }
                    Memset { offset, length, value } => within.memset(offset, length, value).map(|()| 0),
                    Memcpy { offset, length, to, target } => {
                        within.copy(offset, length, to.at(target)).map(|()| 0)
                    }
                    FetchAdd { offset, add } => within.fetch_add(offset, add),
                    CompareSwap { offset, expected, swap } => within.compare_swap(offset, expected, swap),
                }
            }
        }
    };
}

/// Settings of asynchronous operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncConfig {
    /// Threads, and so operations that are carried out at the same time; 1 to 64. Default: 4.
    pub threads: u16,
    /// Operations that wait for a thread; further ones are refused. Default: 1024.
    pub queue: usize,
    /// The time of an operation, its wait for a thread included. Default: that of the tier's own operations.
    pub timeout: Option<Duration>,
}

impl Default for AsyncConfig {
    fn default() -> Self {
        AsyncConfig { threads: 4, queue: 1024, timeout: None }
    }
}

/// The most threads.
const MAX_THREADS: u16 = 64;

/// The permission to carry out an operation for so long, or the reason why it is not begun.
type Permit = Result<Duration, OperationError>;

/// An operation that waits for a thread.
struct Job {
    deadline: Nanos,
    run: Box<dyn FnOnce(Permit) + Send>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    /// The deadline for which the clock waits.
    watched: Nanos,
    is_over: bool,
}

/// The operations that have not ended, by their numbers, and the fences that wait for them.
#[derive(Default)]
struct Begun {
    next: u64,
    under_way: BTreeSet<u64>,
    /// In the order in which they were made: each waits for all operations with smaller numbers.
    fences: VecDeque<(u64, Arc<Slot<()>>)>,
}

#[derive(Default)]
struct Order(Mutex<Begun>);

impl Order {
    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation, which ends with the value.
    fn begin(self: &Arc<Self>) -> Ending {
        let mut begun = self.begun();
        let number = begun.next;
        begun.next += 1;
        begun.under_way.insert(number);
        Ending { order: Arc::clone(self), number }
    }

    fn fence(&self, slot: Arc<Slot<()>>) {
        let mut begun = self.begun();
        if begun.under_way.is_empty() {
            drop(begun);
            return slot.finish(());
        }
        let number = begun.next;
        begun.fences.push_back((number, slot));
    }
}

/// An operation that has not ended.
struct Ending {
    order: Arc<Order>,
    number: u64,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut passed = Vec::new();
        {
            let mut begun = self.order.begun();
            begun.under_way.remove(&self.number);
            let first = begun.under_way.first().copied().unwrap_or(u64::MAX);
            while begun.fences.front().is_some_and(|(number, _)| *number <= first) {
                passed.extend(begun.fences.pop_front().map(|(_, slot)| slot));
            }
        }
        passed.into_iter().for_each(|slot| slot.finish(()));
    }
}

struct Shared<H: Host> {
    host: H,
    order: Arc<Order>,
    queue: Mutex<Queue>,
    limit: usize,
    /// Raised for the threads.
    work: H::Signal,
    /// Raised for the clock.
    clock: H::Signal,
}

impl<H: Host> Shared<H> {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, time: Duration, run: Box<dyn FnOnce(Permit) + Send>) {
        let deadline = self.host.now().saturating_add(nanos(time));
        let mut queue = self.queue();
        let refused = if queue.is_over {
            OperationError::Ended
        } else if time.is_zero() {
            OperationError::Deadline { node: None, may_have_executed: false }
        } else if queue.jobs.len() >= self.limit {
            OperationError::QueueFull { limit: self.limit }
        } else {
            queue.jobs.push_back(Job { deadline, run });
            let (wakes, is_first) = (queue.idle > 0, deadline < queue.watched);
            if is_first {
                queue.watched = deadline;
            }
            drop(queue);
            if wakes {
                self.work.raise();
            }
            if is_first {
                self.clock.raise();
            }
            return;
        };
        drop(queue);
        run(Err(refused));
    }

    /// Carrier out operations until the end.
    fn work(&self) {
        loop {
            let seen = self.work.seen();
            let job = {
                let mut queue = self.queue();
                let job = queue.jobs.pop_front();
                if job.is_none() && queue.is_over {
                    return;
                }
                queue.idle += usize::from(job.is_none());
                job
            };
            let Some(Job { deadline, run }) = job else {
                self.work.wait(seen, Nanos::MAX);
                self.queue().idle -= 1;
                continue;
            };
            let left = Duration::from_nanos(deadline.saturating_sub(self.host.now()));
            run(if left.is_zero() { Err(expired()) } else { Ok(left) });
        }
    }

    /// Ends operations whose time is over before a thread took them.
    fn watch(&self) {
        loop {
            let seen = self.clock.seen();
            let now = self.host.now();
            let (mut late, mut until) = (Vec::new(), Nanos::MAX);
            {
                let mut queue = self.queue();
                if queue.is_over {
                    return;
                }
                let all = std::mem::take(&mut queue.jobs);
                for job in all {
                    if job.deadline <= now {
                        late.push(job);
                    } else {
                        until = until.min(job.deadline);
                        queue.jobs.push_back(job);
                    }
                }
                queue.watched = until;
            }
            late.into_iter().for_each(|job| (job.run)(Err(expired())));
            self.clock.wait(seen, until);
        }
    }
}

fn expired() -> OperationError {
    OperationError::Deadline { node: None, may_have_executed: false }
}

/// The threads. Dropping the value ends them.
struct Threads<H: Host> {
    shared: Arc<Shared<H>>,
    tasks: Vec<Task>,
}

impl<H: Host> Drop for Threads<H> {
    fn drop(&mut self) {
        let waiting = {
            let mut queue = self.shared.queue();
            queue.is_over = true;
            std::mem::take(&mut queue.jobs)
        };
        waiting.into_iter().for_each(|job| (job.run)(Err(OperationError::Ended)));
        self.shared.work.raise();
        self.shared.clock.raise();
        self.tasks.drain(..).for_each(Task::join);
    }
}

/// The result of a future, and the task that waits for it.
struct Place<T> {
    value: Option<T>,
    waker: Option<Waker>,
    /// The future was dropped.
    is_given_up: bool,
}

struct Slot<T>(Mutex<Place<T>>);

impl<T> Slot<T> {
    fn place(&self) -> MutexGuard<'_, Place<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, value: T) {
        let waker = {
            let mut place = self.place();
            place.value = Some(value);
            place.waker.take()
        };
        // Without the lock: a waker may poll at once.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The future of an operation. The operation is under way from the moment when the future is made.
///
/// Dropping it gives the operation up: it is not executed if no thread had begun it, else it goes on to its end. Its
/// buffer is dropped after that.
#[must_use = "the result of an operation is that of its future"]
pub struct Operation<T>(Arc<Slot<T>>);

impl<T> Future for Operation<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut place = self.0.place();
        match place.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                place.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Operation<T> {
    fn drop(&mut self) {
        let mut place = self.0.place();
        place.is_given_up = true;
        let unused = (place.waker.take(), place.value.take());
        drop(place);
        drop(unused);
    }
}

impl<T> std::fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation").field("is_ended", &self.0.place().value.is_some()).finish()
    }
}

/// The operation and its buffer, which comes back with the result.
pub type Transferred = (Vec<u8>, Result<(), OperationError>);

/// Asynchronous operations of a tier. Clones share its threads, which end with the last clone: operations that wait then
/// end with [`OperationError::Ended`], and the drop blocks until those under way have ended, by their deadlines.
///
/// The methods do not block. Operations have no order among each other; one that begins after a
/// [fence](Asynchronous::fence) was passed comes after those before it. Buffers are passed by value and come back with
/// the result, so memory that is in use cannot be touched or freed. An operation has one time from its begin to its end,
/// the wait for a thread included.
///
/// # Errors
/// Beside those of the operation's own method: [`OperationError::QueueFull`] at once if as many operations wait as
/// [`AsyncConfig::queue`] says; nothing of it was done.
pub struct Asynchronous<L, H: Host> {
    threads: Arc<Threads<H>>,
    time: Duration,
    regions: std::marker::PhantomData<fn(L)>,
}

impl<L, H: Host> Clone for Asynchronous<L, H> {
    fn clone(&self) -> Self {
        Asynchronous { threads: Arc::clone(&self.threads), ..*self }
    }
}

impl<L, H: Host> std::fmt::Debug for Asynchronous<L, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.threads.shared.queue().jobs.len();
        f.debug_struct("Asynchronous").field("time", &self.time).field("waiting", &waiting).finish()
    }
}

impl<L: TimedLmr, H: Host> Asynchronous<L, H> {
    /// Starts the threads. `time` is that of an operation unless the settings have another.
    ///
    /// # Errors
    /// A thread cannot be started, or their number is not 1 to 64.
    pub fn start(host: &H, config: AsyncConfig, time: Duration) -> std::io::Result<Self> {
        let AsyncConfig { threads, queue: limit, timeout } = config;
        if threads == 0 || threads > MAX_THREADS {
            let text = format!("asynchronous operations have 1 to {MAX_THREADS} threads, and not {threads}");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        let queue = Mutex::new(Queue { watched: Nanos::MAX, ..Queue::default() });
        let shared = Arc::new(Shared {
            host: host.clone(),
            order: Arc::default(),
            queue,
            limit,
            work: host.signal(),
            clock: host.signal(),
        });
        // From here on, dropping it ends the threads.
        let mut all = Threads { shared: Arc::clone(&shared), tasks: Vec::new() };
        for number in 0..threads {
            let shared = Arc::clone(&shared);
            all.tasks.push(host.spawn(&format!("tier-async-{number}"), Box::new(move || shared.work()))?);
        }
        all.tasks.push(host.spawn("tier-async-clock", Box::new(move || shared.watch()))?);
        let (time, regions) = (timeout.unwrap_or(time), std::marker::PhantomData);
        Ok(Asynchronous { threads: Arc::new(all), time, regions })
    }

    /// Returns the same operations with a time of their own.
    #[must_use]
    pub fn within(&self, time: Duration) -> Self {
        Asynchronous { time, ..self.clone() }
    }

    fn begin<T: Send + 'static>(&self, run: impl FnOnce(Permit) -> T + Send + 'static) -> Operation<T> {
        let place = Place { value: None, waker: None, is_given_up: false };
        let slot = Arc::new(Slot(Mutex::new(place)));
        let operation = Operation(Arc::clone(&slot));
        let ending = self.threads.shared.order.begin();
        let run = move |permit| {
            if !slot.place().is_given_up {
                slot.finish(run(permit));
            }
            drop(ending);
        };
        self.threads.shared.submit(self.time, Box::new(run));
        operation
    }

    fn change(
        &self,
        lmr: &Arc<L>,
        change: TimedOperation<'static, L>,
    ) -> Operation<Result<u64, OperationError>> {
        let lmr = Arc::clone(lmr);
        self.begin(move |permit| lmr.run_within(permit?, change))
    }

    /// Fills a buffer with the bytes at `offset`: [`Lmr::read`](crate::Lmr::read). After an error the buffer holds any
    /// bytes.
    pub fn read(&self, lmr: &Arc<L>, offset: u64, mut buffer: Vec<u8>) -> Operation<Transferred> {
        let lmr = Arc::clone(lmr);
        self.begin(move |permit| {
            let into = &mut buffer;
            let read = permit.and_then(|time| lmr.run_within(time, TimedOperation::Read { offset, into }));
            (buffer, read.map(drop))
        })
    }

    /// Writes a buffer at `offset`: [`Lmr::write`](crate::Lmr::write).
    pub fn write(&self, lmr: &Arc<L>, offset: u64, buffer: Vec<u8>) -> Operation<Transferred> {
        let lmr = Arc::clone(lmr);
        self.begin(move |permit| {
            let from = &buffer;
            let written =
                permit.and_then(|time| lmr.run_within(time, TimedOperation::Write { offset, from }));
            (buffer, written.map(drop))
        })
    }

    /// Writes a buffer at `offset`, and then the aligned word at `word_offset`:
    /// [`Lmr::write_notify`](crate::Lmr::write_notify).
    pub fn write_notify(
        &self,
        lmr: &Arc<L>,
        offset: u64,
        buffer: Vec<u8>,
        word_offset: u64,
        value: u64,
    ) -> Operation<Transferred> {
        let lmr = Arc::clone(lmr);
        self.begin(move |permit| {
            let notify = TimedOperation::WriteNotify { offset, from: &buffer, word_offset, value };
            let written = permit.and_then(|time| lmr.run_within(time, notify));
            (buffer, written.map(drop))
        })
    }

    /// Waits for all operations that this value and its clones have begun before: each has ended, in whatever way, or
    /// is given up and not executed. Operations that begin later are not waited for.
    ///
    /// The results are those of the operations' own futures. A write among them is placed when the fence is passed.
    pub fn fence(&self) -> Operation<()> {
        let slot = Arc::new(Slot(Mutex::new(Place { value: None, waker: None, is_given_up: false })));
        self.threads.shared.order.fence(Arc::clone(&slot));
        Operation(slot)
    }

    /// Sets bytes to a value: [`Lmr::memset`](crate::Lmr::memset).
    pub fn memset(
        &self,
        lmr: &Arc<L>,
        offset: u64,
        length: u64,
        value: u8,
    ) -> Operation<Result<(), OperationError>> {
        let lmr = Arc::clone(lmr);
        let set = TimedOperation::Memset { offset, length, value };
        self.begin(move |permit| lmr.run_within(permit?, set).map(drop))
    }

    /// Copies bytes from an offset in a region to one in another region, or in the same one:
    /// [`Tier::memcpy`](crate::Tier::memcpy).
    pub fn memcpy(
        &self,
        (to, target): (&Arc<L>, u64),
        (from, offset): (&Arc<L>, u64),
        length: u64,
    ) -> Operation<Result<(), OperationError>> {
        let (from, to) = (Arc::clone(from), Arc::clone(to));
        self.begin(move |permit| {
            let copy = TimedOperation::Memcpy { offset, length, to: &*to, target };
            from.run_within(permit?, copy).map(drop)
        })
    }

    /// Adds to a word: [`Lmr::fetch_add`](crate::Lmr::fetch_add).
    pub fn fetch_add(&self, lmr: &Arc<L>, offset: u64, add: u64) -> Operation<Result<u64, OperationError>> {
        self.change(lmr, TimedOperation::FetchAdd { offset, add })
    }

    /// Compares a word and swaps it: [`Lmr::compare_swap`](crate::Lmr::compare_swap).
    pub fn compare_swap(
        &self,
        lmr: &Arc<L>,
        offset: u64,
        expected: u64,
        swap: u64,
    ) -> Operation<Result<u64, OperationError>> {
        self.change(lmr, TimedOperation::CompareSwap { offset, expected, swap })
    }

    /// Sets a word that is 0 to 1: [`Lmr::test_set`](crate::Lmr::test_set).
    pub fn test_set(&self, lmr: &Arc<L>, offset: u64) -> Operation<Result<bool, OperationError>> {
        let (lmr, swap) = (Arc::clone(lmr), TimedOperation::CompareSwap { offset, expected: 0, swap: 1 });
        self.begin(move |permit| lmr.run_within(permit?, swap).map(|old| old == 0))
    }
}

#[cfg(test)]
mod tests;
