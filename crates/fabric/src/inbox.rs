//! A queue from a control thread to waiting threads: messages of a control connection, or connections of a
//! listener.

use crate::host::RealSignal;
use crate::{Host, Nanos, RealHost, Subscription};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The fill limits from which the writer is asked to pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// The number of items.
    pub items: usize,
    /// The total size of the items, in bytes.
    pub bytes: usize,
}

/// The reason why no item was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// The deadline passed.
    TimedOut,
    /// The queue has ended, for this reason.
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

/// The queue. One side pushes and never blocks; any thread takes.
#[derive(Debug)]
pub struct Inbox<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    limits: InboxLimits,
}

impl<T> Inbox<T> {
    /// Makes an empty queue.
    pub fn new(limits: InboxLimits) -> Self {
        let state =
            State { items: VecDeque::new(), bytes: 0, paused: false, ended: None, subscription: None };
        Inbox { state: Mutex::new(state), changed: Condvar::new(), limits }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an item of `bytes` bytes, even beyond the limits, and notifies waiting threads.
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

    /// Returns whether a limit is reached.
    pub fn is_full(&self) -> bool {
        self.state().is_full(self.limits)
    }

    /// Returns whether the writer must pause before it reads on. If so, calls `pause` before any thread can
    /// take an item; the writer continues when a taker calls `resume`.
    pub fn pause_if_full(&self, pause: impl FnOnce()) -> bool {
        let mut state = self.state();
        if !state.paused && state.is_full(self.limits) {
            state.paused = true;
            pause();
        }
        state.paused
    }

    /// Ends the queue. Items in it can still be taken. Only the first reason is kept.
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

    /// Returns the reason why the queue ended, or `None` if it has not.
    pub fn ended(&self) -> Option<String> {
        self.state().ended.clone()
    }

    /// Takes the next item; blocks no longer than `until`. If a paused writer should continue, calls `resume`
    /// before anyone can push another item.
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

    /// Subscribes to each item and to the end. Notifies at once if one of them is already pending. A later
    /// subscription replaces an earlier one.
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
