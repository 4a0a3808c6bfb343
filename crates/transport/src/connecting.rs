//! Connecting without blocking the caller: each connect under way blocks a thread of its own, and a future
//! waits for it. The threads of the process are bounded; further connects wait in a queue.

use crate::fabrics::Fabrics;
use dunlin_fabric::CreateError;
use dunlin_rpc::ConnectError;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The most threads that connect at the same time.
const MOST_THREADS: usize = 32;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The threads that connect, and the connects that wait for one.
struct Threads {
    running: usize,
    waiting: VecDeque<(u64, Job)>,
    next_number: u64,
}

static THREADS: Mutex<Threads> = Mutex::new(Threads { running: 0, waiting: VecDeque::new(), next_number: 0 });

fn threads() -> MutexGuard<'static, Threads> {
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a job on a thread, or puts it into the queue. Returns its number in the queue.
pub(crate) fn start(job: Job) -> std::io::Result<Option<u64>> {
    let mut threads = threads();
    if threads.running >= MOST_THREADS {
        threads.next_number += 1;
        let number = threads.next_number;
        threads.waiting.push_back((number, job));
        return Ok(Some(number));
    }
    std::thread::Builder::new().name("dunlin-connect".to_owned()).spawn(move || run(job))?;
    threads.running += 1;
    Ok(None)
}

/// Runs jobs until none waits.
fn run(job: Job) {
    let mut next = Some(job);
    while let Some(job) = next {
        job();
        let mut threads = threads();
        next = threads.waiting.pop_front().map(|(_, job)| job);
        if next.is_none() {
            threads.running -= 1;
        }
    }
}

type Outcome<T, E> = Result<Result<T, E>, Box<dyn Any + Send>>;

/// The state that a future and its thread share.
enum Slot<T, E> {
    /// Not connected yet; with the waker of the task that waits.
    UnderWay(Option<Waker>),
    /// Connected, failed, or panicked.
    Over(Outcome<T, E>),
    /// The outcome was taken, or the future was dropped.
    Done,
}

fn lock<T, E>(slot: &Mutex<Slot<T, E>>) -> MutexGuard<'_, Slot<T, E>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connect under way: a future for any executor, made by `connect_async` of the asynchronous clients.
///
/// The connect begins at once. Dropping the future gives it up: its thread ends with the attempt, at the
/// latest after [`ClientConfig::connect_timeout`](dunlin_rpc::ClientConfig::connect_timeout), and the client
/// that it may have made is dropped.
#[must_use = "a connect that is dropped is given up"]
pub struct Connecting<T, E> {
    slot: Arc<Mutex<Slot<T, E>>>,
    /// The number in the queue.
    queued: Option<u64>,
}

impl<T, E> fmt::Debug for Connecting<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("queued", &self.queued).finish_non_exhaustive()
    }
}

impl Fabrics {
    /// Runs `connect`, which may block, on a thread of its own, and returns a future of its result. At most 32
    /// such threads run in a process; further connects wait.
    ///
    /// # Errors
    /// The future ends with [`ConnectError::Create`] if no thread can be started.
    pub fn connecting<T, E>(
        &self,
        connect: impl FnOnce(&Fabrics) -> Result<T, E> + Send + 'static,
    ) -> Connecting<T, E>
    where
        T: Send + 'static,
        E: From<ConnectError> + Send + 'static,
    {
        let (fabrics, slot) = (self.clone(), Arc::new(Mutex::new(Slot::UnderWay(None))));
        let theirs = Arc::clone(&slot);
        let job = move || {
            if matches!(*lock(&theirs), Slot::Done) {
                return;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| connect(&fabrics)));
            let mut slot = lock(&theirs);
            // The waker and a client that nobody wants are dropped without the lock.
            let unwanted = match &mut *slot {
                Slot::UnderWay(waker) => {
                    let waker = waker.take();
                    *slot = Slot::Over(outcome);
                    drop(slot);
                    waker.into_iter().for_each(Waker::wake);
                    None
                }
                _ => {
                    drop(slot);
                    Some(outcome)
                }
            };
            drop(unwanted);
        };
        let queued = start(Box::new(job)).unwrap_or_else(|error| {
            let error = ConnectError::from(CreateError::system("a thread that connects")(error));
            *lock(&slot) = Slot::Over(Ok(Err(error.into())));
            None
        });
        Connecting { slot, queued }
    }
}

impl<T, E> Future for Connecting<T, E> {
    type Output = Result<T, E>;

    /// # Panics
    /// Panics when polled again after it returned `Ready`, and with the panic of the connect.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let mut slot = lock(&self.slot);
        match &mut *slot {
            Slot::UnderWay(waker) => {
                let former = waker.replace(context.waker().clone());
                drop(slot);
                drop(former);
                return Poll::Pending;
            }
            Slot::Over(_) => {}
            Slot::Done => panic!("the connect was polled after it was ready"),
        }
        let over = std::mem::replace(&mut *slot, Slot::Done);
        drop(slot);
        match over {
            Slot::Over(Ok(result)) => Poll::Ready(result),
            Slot::Over(Err(panic)) => resume_unwind(panic),
            _ => Poll::Pending,
        }
    }
}

impl<T, E> Drop for Connecting<T, E> {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *lock(&self.slot), Slot::Done);
        drop(left);
        if let Some(number) = self.queued {
            let mut threads = threads();
            let job = threads.waiting.iter().position(|(of, _)| *of == number);
            let job = job.and_then(|at| threads.waiting.remove(at));
            drop(threads);
            drop(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::task::Wake;
    use std::thread::{self, Thread};

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<T, E>(mut future: Connecting<T, E>) -> Result<T, E> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut future).poll(&mut context) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// More connects than threads: the bound holds, each ends, and one that is given up while it waits for a
    /// thread never runs.
    #[test]
    fn threads_are_bounded_and_every_connect_ends() {
        let fabrics = Fabrics::default();
        let (running, most, ran) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::default());
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock().unwrap();
        let connect = |number: usize| {
            let (running, most, gate) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&gate));
            let ran: Arc<AtomicUsize> = Arc::clone(&ran);
            fabrics.connecting(move |_| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                drop(gate.lock());
                running.fetch_sub(1, Ordering::SeqCst);
                ran.fetch_add(1, Ordering::SeqCst);
                Ok::<_, ConnectError>(number)
            })
        };
        let wanted: Vec<_> = (0..2 * MOST_THREADS).map(connect).collect();
        let given_up: Vec<_> = (0..10).map(connect).collect();
        assert!(given_up.iter().all(|future| future.queued.is_some()));
        drop(given_up);
        drop(held);
        for (number, future) in wanted.into_iter().enumerate() {
            assert_eq!(block_on(future).unwrap(), number);
        }
        assert!(most.load(Ordering::SeqCst) <= MOST_THREADS);
        assert_eq!(ran.load(Ordering::SeqCst), 2 * MOST_THREADS);
    }

    #[test]
    fn a_client_that_nobody_wants_is_dropped() {
        struct Client(std::sync::mpsc::Sender<()>);
        impl Drop for Client {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let (begin, begun) = channel();
        let (dropped, drops) = channel();
        let (start, started) = channel();
        let future = Fabrics::default().connecting(move |_| {
            start.send(()).unwrap();
            begun.recv().unwrap();
            Ok::<_, ConnectError>(Client(dropped))
        });
        started.recv().unwrap();
        drop(future);
        begin.send(()).unwrap();
        drops.recv().expect("the client is dropped");
    }

    #[test]
    fn a_panic_reaches_the_task() {
        let future = Fabrics::default().connecting(|_| -> Result<(), ConnectError> { panic!("on purpose") });
        let caught = catch_unwind(AssertUnwindSafe(|| block_on(future))).unwrap_err();
        assert_eq!(caught.downcast_ref(), Some(&"on purpose"));
    }
}
