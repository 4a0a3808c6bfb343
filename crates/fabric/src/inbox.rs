//! A queue from a control thread to those who wait: messages of a control connection, or connections of a listener.

use crate::host::RealSignal;
use crate::{Host, Nanos, RealHost, Subscription};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How much may wait before the writer is asked to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Items.
    pub items: usize,
    /// Their bytes, all together.
    pub bytes: usize,
}

/// Why nothing came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// The time is over.
    TimedOut,
    /// Nothing will come any more: this is why.
    Ended(String),
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    paused: bool,
    ended: Option<String>,
    subscription: Option<Subscription<RealSignal>>,
}

/// The queue. One side pushes and never blocks, any thread takes.
#[derive(Debug)]
pub struct Inbox<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    limits: InboxLimits,
}

impl<T> Inbox<T> {
    /// An empty one.
    pub fn new(limits: InboxLimits) -> Self {
        let state =
            State { items: VecDeque::new(), bytes: 0, paused: false, ended: None, subscription: None };
        Inbox { state: Mutex::new(state), changed: Condvar::new(), limits }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item that counts for so many bytes, limits or not, and tells those who wait.
    pub fn push(&self, item: T, bytes: usize) {
        let subscription = {
            let mut state = self.state();
            state.bytes += bytes;
            state.items.push_back((item, bytes));
            state.subscription.clone()
        };
        self.changed.notify_all();
        if let Some(subscription) = subscription {
            subscription.raise();
        }
    }

    /// Whether the limits are reached.
    pub fn is_full(&self) -> bool {
        self.state().is_full(self.limits)
    }

    /// Before reading on: whether to pause, in which case `pause` is called, before anybody can take an item. It goes
    /// on when a taker calls `resume`.
    pub fn pause_if_full(&self, pause: impl FnOnce()) -> bool {
        let mut state = self.state();
        if !state.paused && state.is_full(self.limits) {
            state.paused = true;
            pause();
        }
        state.paused
    }

    /// Nothing will come any more. What is there can still be taken. Only the first reason counts.
    pub fn end(&self, reason: &str) {
        let subscription = {
            let mut state = self.state();
            state.ended.get_or_insert_with(|| reason.to_owned());
            state.subscription.clone()
        };
        self.changed.notify_all();
        if let Some(subscription) = subscription {
            subscription.raise();
        }
    }

    /// Why it ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.state().ended.clone()
    }

    /// The next item; blocks until then at most. `resume` is called, before anybody can push again, when a writer that
    /// paused should go on.
    pub fn take(&self, until: Nanos, resume: impl FnOnce()) -> Result<T, Nothing> {
        let mut state = self.state();
        loop {
            if let Some((item, bytes)) = state.items.pop_front() {
                state.bytes -= bytes;
                if state.paused && state.is_half_empty(self.limits) {
                    state.paused = false;
                    resume();
                }
                return Ok(item);
            }
            if let Some(reason) = &state.ended {
                return Err(Nothing::Ended(reason.clone()));
            }
            let left = until.saturating_sub(RealHost.now());
            if left == 0 {
                return Err(Nothing::TimedOut);
            }
            let waited = self.changed.wait_timeout(state, Duration::from_nanos(left));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has this side told of each item and of the end, and at once if there is such news already; a later subscription
    /// replaces it.
    pub fn subscribe(&self, subscription: Subscription<RealSignal>) {
        let news = {
            let mut state = self.state();
            state.subscription = Some(subscription.clone());
            state.ended.is_some() || !state.items.is_empty()
        };
        if news {
            subscription.raise();
        }
    }
}

impl<T> State<T> {
    fn is_full(&self, limits: InboxLimits) -> bool {
        self.items.len() >= limits.items || self.bytes >= limits.bytes
    }

    fn is_half_empty(&self, limits: InboxLimits) -> bool {
        self.items.len() <= limits.items / 2 && self.bytes <= limits.bytes / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Signal;
    use std::cell::Cell;

    const LIMITS: InboxLimits = InboxLimits { items: 4, bytes: 100 };

    #[test]
    fn what_goes_in_comes_out_in_order_and_before_the_end() {
        let inbox = Inbox::new(LIMITS);
        let signal = RealHost.signal();
        inbox.subscribe(signal.clone().into());
        let seen = signal.seen();
        inbox.push('a', 1);
        inbox.push('b', 1);
        inbox.end("over");
        inbox.end("later");
        assert!(signal.seen() != seen);
        assert_eq!(inbox.take(0, || {}), Ok('a'));
        assert_eq!(inbox.take(u64::MAX, || {}), Ok('b'));
        assert_eq!(inbox.take(u64::MAX, || {}), Err(Nothing::Ended("over".into())));
        assert_eq!(Inbox::<u8>::new(LIMITS).take(0, || {}), Err(Nothing::TimedOut));
    }

    #[test]
    fn a_writer_pauses_when_it_is_full_and_goes_on_when_half_of_it_is_taken() {
        let inbox = Inbox::new(LIMITS);
        let (paused, resumed) = (Cell::new(0), Cell::new(0));
        let pause = || paused.set(paused.get() + 1);
        for number in 0..4 {
            assert!(!inbox.pause_if_full(pause));
            inbox.push(number, 1);
        }
        assert!(inbox.pause_if_full(pause) && inbox.pause_if_full(pause) && inbox.is_full());
        for number in 0..4 {
            assert_eq!(inbox.take(0, || resumed.set(resumed.get() + 1)), Ok(number));
            assert_eq!(resumed.get(), i32::from(number > 0));
        }
        assert_eq!(paused.get(), 1);
        inbox.push(9, 1000);
        assert!(inbox.pause_if_full(pause), "bytes count too");
    }
}
