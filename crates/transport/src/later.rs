//! Asynchronous clients that are made without their server and connect when a call needs it: at `auto:`
//! addresses, whose server decides the fabric, and typed ones, whose calls are encoded as the server's
//! functions demand.
//!
//! Attempts to connect run on the threads of `connecting.rs`. While tasks wait, one thread of the client keeps
//! their deadlines and the back-off.

use crate::attempts::{AttemptError, Missing, Times, Wait, log};
use crate::connecting::start;
use dunlin_fabric::{Address, Host, Nanos, RealHost};
use dunlin_rpc::{Backoff, Cause, ClientConfig};
use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Connect<T, E> = Box<dyn Fn() -> Result<T, E> + Send + Sync>;

/// A client that connects when it is needed. Clones share the connection, and each becomes a clone of the client.
pub(crate) struct Later<T, E> {
    inner: Arc<Inner<T, E>>,
    /// This one's clone of the client.
    own: Arc<OnceLock<T>>,
}

struct Inner<T, E> {
    address: Address,
    times: Times,
    connect: Connect<T, E>,
    made: OnceLock<T>,
    state: Mutex<State<E>>,
    /// Tells the thread of the waiting tasks that the state has changed.
    changed: Condvar,
}

struct State<E> {
    backoff: Backoff,
    /// An attempt is under way.
    connecting: bool,
    /// The number of attempts that have ended.
    ended: u64,
    /// The number of the last attempt, if it found a server that the client cannot use, and its error.
    refused: Option<(u64, Arc<E>)>,
    /// The thread of the waiting tasks runs.
    attended: bool,
    /// The waiting tasks, each with the time at which it has to be woken.
    waiting: BTreeMap<u64, (Nanos, Waker)>,
    next_number: u64,
}

impl<T, E> Clone for Later<T, E> {
    fn clone(&self) -> Self {
        Later { inner: Arc::clone(&self.inner), own: Arc::default() }
    }
}

impl<T, E> fmt::Debug for Later<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.inner.made.get().is_some();
        f.debug_struct("Later")
            .field("address", &self.inner.address)
            .field("connected", &connected)
            .finish_non_exhaustive()
    }
}

impl<T, E> Inner<T, E> {
    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone + Send + Sync + 'static, E: AttemptError + Send + Sync> Later<T, E> {
    /// Returns a client that `connect`, which may block, will make.
    pub(crate) fn new(
        address: Address,
        config: &ClientConfig,
        connect: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            backoff: Backoff::new(config.backoff),
            connecting: false,
            ended: 0,
            refused: None,
            attended: false,
            waiting: BTreeMap::new(),
            next_number: 0,
        };
        let (connect, times) = (Box::new(connect), Times::new(config));
        let (made, state, changed) = (OnceLock::new(), Mutex::new(state), Condvar::new());
        let inner = Arc::new(Inner { address, times, connect, made, state, changed });
        Later { inner, own: Arc::default() }
    }

    /// Returns the client, if it has connected.
    pub(crate) fn made(&self) -> Option<&T> {
        self.inner.made.get().map(|made| self.own.get_or_init(|| made.clone()))
    }

    /// Returns the same clone once more.
    fn same(&self) -> Self {
        Later { inner: Arc::clone(&self.inner), own: Arc::clone(&self.own) }
    }

    /// Waits for the connection on behalf of a call that begins now with a time of its own, or that of the
    /// settings. Starts an attempt at once.
    pub(crate) fn for_call(&self, time: Option<Duration>) -> Ready<T, E> {
        let now = RealHost.now();
        let deadline = self.inner.times.deadline(now, time);
        let wait = match deadline <= now {
            true => Wait { until: now, cause: Cause::DeadlineExceeded },
            false => self.inner.times.wait(now, time),
        };
        self.wait(wait, deadline)
    }

    /// Waits for the connection for at most `at_most`. Starts an attempt at once.
    pub(crate) fn for_ready(&self, at_most: Duration) -> Ready<T, E> {
        let until = RealHost.now().saturating_add(dunlin_fabric::nanos(at_most));
        self.wait(Wait { until, cause: Cause::Disconnected }, Nanos::MAX)
    }

    fn wait(&self, wait: Wait, deadline: Nanos) -> Ready<T, E> {
        let mut state = self.inner.state();
        state.next_number += 1;
        let (number, since) = (state.next_number, state.ended);
        drop(state);
        if wait.cause != Cause::DeadlineExceeded || wait.until > RealHost.now() {
            self.attempt();
        }
        Ready { later: self.same(), number, since, wait, deadline }
    }

    /// Starts an attempt, unless there is a client, one is under way, or the back-off forbids it.
    fn attempt(&self) {
        let mut state = self.inner.state();
        let due = state.backoff.is_due(RealHost.now());
        if state.connecting || !due || self.made().is_some() {
            return;
        }
        state.connecting = true;
        drop(state);
        let this = self.same();
        if let Err(error) = start(Box::new(move || this.connect())) {
            tracing::error!(target: "dunlin::client", %error, "no thread to connect");
            let mut state = self.inner.state();
            state.connecting = false;
            state.backoff.failed(RealHost.now(), RealHost.random());
        }
    }

    /// Makes an attempt. Blocks.
    fn connect(&self) {
        // An attempt that panics has failed, and the panic has been printed.
        let attempt = std::panic::AssertUnwindSafe(|| (self.inner.connect)());
        let outcome = std::panic::catch_unwind(attempt);
        let mut state = self.inner.state();
        state.connecting = false;
        state.ended += 1;
        state.refused = None;
        let is_over = match outcome {
            Ok(Ok(made)) => {
                // Only one attempt is under way at a time.
                let _ = self.inner.made.set(made);
                true
            }
            Ok(Err(error)) => {
                state.backoff.failed(RealHost.now(), RealHost.random());
                log(&self.inner.address, state.backoff.failures(), &error);
                let refused = !error.may_pass();
                state.refused = refused.then(|| (state.ended, Arc::new(error)));
                refused
            }
            Err(_) => {
                state.backoff.failed(RealHost.now(), RealHost.random());
                false
            }
        };
        let woken = if is_over { std::mem::take(&mut state.waiting) } else { BTreeMap::new() };
        drop(state);
        self.inner.changed.notify_all();
        woken.into_values().for_each(|(_, waker)| waker.wake());
    }

    /// Registers a task that waits, and starts the thread that attends to it. Returns whether it can wait.
    fn register(&self, number: u64, until: Nanos, waker: &Waker) -> bool {
        let mut state = self.inner.state();
        let replaced = state.waiting.insert(number, (until, waker.clone()));
        let start = !std::mem::replace(&mut state.attended, true);
        drop(state);
        drop(replaced);
        self.inner.changed.notify_all();
        if !start {
            return true;
        }
        let this = self.same();
        let thread = std::thread::Builder::new().name("dunlin-connect".to_owned());
        let started = thread.spawn(move || this.attend());
        if let Err(error) = &started {
            tracing::error!(target: "dunlin::client", %error, "no thread for tasks that wait for a connection");
            self.inner.state().attended = false;
        }
        started.is_ok()
    }

    /// Wakes waiting tasks at their times and starts attempts, until no task waits.
    fn attend(&self) {
        let mut state = self.inner.state();
        loop {
            if self.made().is_some() {
                let woken = std::mem::take(&mut state.waiting);
                state.attended = false;
                drop(state);
                woken.into_values().for_each(|(_, waker)| waker.wake());
                return;
            }
            let now = RealHost.now();
            let late: Vec<u64> =
                state.waiting.iter().filter(|(_, (until, _))| *until <= now).map(|(n, _)| *n).collect();
            if !late.is_empty() {
                let woken: Vec<_> = late.iter().filter_map(|number| state.waiting.remove(number)).collect();
                drop(state);
                woken.into_iter().for_each(|(_, waker)| waker.wake());
                state = self.inner.state();
                continue;
            }
            let Some(next) = state.waiting.values().map(|(until, _)| *until).min() else {
                state.attended = false;
                return;
            };
            if !state.connecting && state.backoff.is_due(now) {
                drop(state);
                self.attempt();
                state = self.inner.state();
                continue;
            }
            let next = if state.connecting { next } else { next.min(state.backoff.not_before()) };
            let left = Duration::from_nanos(next.saturating_sub(now));
            state = self.inner.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A wait for the connection. It ends when the client has connected, or with the reason why it has not.
#[must_use = "a future does nothing unless it is polled"]
pub(crate) struct Ready<T, E> {
    later: Later<T, E>,
    number: u64,
    /// The number of attempts that had ended when the wait began.
    since: u64,
    wait: Wait,
    deadline: Nanos,
}

impl<T, E> fmt::Debug for Ready<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("later", &self.later).field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl<T: Clone + Send + Sync + 'static, E: AttemptError + Send + Sync> Ready<T, E> {
    /// Returns the client that the wait has ended with.
    pub(crate) fn made(&self) -> Option<&T> {
        self.later.made()
    }

    /// Returns the time until the call's deadline; `None` for a call without a deadline.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = || Duration::from_nanos(self.deadline.saturating_sub(RealHost.now()));
        (self.deadline < Nanos::MAX).then(left)
    }
}

impl<T: Clone + Send + Sync + 'static, E: AttemptError + Send + Sync> Future for Ready<T, E> {
    type Output = Result<(), Missing<Arc<E>>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let now = RealHost.now();
            if this.deadline <= now {
                let cause =
                    if this.wait.until < this.deadline { this.wait.cause } else { Cause::DeadlineExceeded };
                return Poll::Ready(Err(Missing::Cause(cause)));
            }
            if this.made().is_some() {
                return Poll::Ready(Ok(()));
            }
            let refused = this.later.inner.state().refused.clone();
            // A call that does not wait learns the reason of the last attempt.
            let waits = this.wait.until > now;
            if let Some((_, error)) = refused.filter(|(attempt, _)| *attempt > this.since || !waits) {
                return Poll::Ready(Err(Missing::Refused(error)));
            }
            if !waits || !this.later.register(this.number, this.wait.until, context.waker()) {
                return Poll::Ready(Err(Missing::Cause(this.wait.cause)));
            }
            // An attempt that ended before the task was registered has not woken it.
            let state = this.later.inner.state();
            let refused = state.refused.as_ref().is_some_and(|(attempt, _)| *attempt > this.since);
            drop(state);
            if this.made().is_none() && !refused {
                return Poll::Pending;
            }
        }
    }
}

impl<T, E> Drop for Ready<T, E> {
    fn drop(&mut self) {
        // Dropping a waker may run any code: not under the lock.
        let waiting = self.later.inner.state().waiting.remove(&self.number);
        drop(waiting);
        self.later.inner.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug, thiserror::Error)]
    #[error("nobody is there")]
    struct Nobody;

    impl AttemptError for Nobody {
        fn may_pass(&self) -> bool {
            true
        }
    }

    /// A client whose clones have numbers.
    #[derive(Debug)]
    struct Numbered(u64, Arc<AtomicU64>);

    impl Clone for Numbered {
        fn clone(&self) -> Self {
            Numbered(1 + self.1.fetch_add(1, Ordering::Relaxed), Arc::clone(&self.1))
        }
    }

    struct Unpark(std::thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn each_clone_has_a_clone_of_the_client() {
        let address: Address = "auto:127.0.0.1:1".parse().expect("an address");
        let config = ClientConfig { connect_timeout: Duration::from_secs(60), ..ClientConfig::default() };
        let clones = Arc::new(AtomicU64::new(0));
        let made = Arc::clone(&clones);
        let first = Later::new(address, &config, move || Ok::<_, Nobody>(Numbered(0, Arc::clone(&made))));
        let before = first.clone();
        assert!(first.made().is_none() && before.made().is_none());
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut ready = first.for_ready(Duration::from_secs(60));
        while Pin::new(&mut ready)
            .poll(&mut Context::from_waker(&waker))
            .map(|made| made.expect("made"))
            .is_pending()
        {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let after = first.clone();
        // The first is that of the wait.
        assert_eq!(ready.made().map(|own| own.0), Some(1));
        let numbers: Vec<_> =
            [&first, &before, &after, &first].map(|later| later.made().map(|own| own.0)).into();
        assert_eq!(numbers, [Some(1), Some(2), Some(3), Some(1)]);
        assert_eq!(clones.load(Ordering::Relaxed), 3);
    }
}
