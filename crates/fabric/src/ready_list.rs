//! A list of the control connections that have events, so that one thread can serve thousands of connections
//! without polling each.

use crate::host::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The numbers of connections with events, each listed at most once. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct ReadyList(Arc<Mutex<Vec<Listed>>>);

/// The number of a connection, and whether it is currently listed.
#[derive(Clone, Debug)]
struct Listed {
    number: u64,
    listed: Arc<AtomicBool>,
}

impl ReadyList {
    /// Makes an empty list.
    pub fn new() -> Self {
        ReadyList::default()
    }

    /// Returns a mark that lists `number`.
    pub fn mark(&self, number: u64) -> Mark {
        Mark(Some((self.clone(), Listed { number, listed: Arc::default() })))
    }

    /// Takes all listed numbers, in the order in which they were listed. A later event lists its number
    /// again, so a thread that polls a connection after taking its number misses nothing.
    pub fn take(&self) -> Vec<u64> {
        let taken = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        taken
            .into_iter()
            .map(|place| {
                place.listed.store(false, Ordering::Release);
                place.number
            })
            .collect()
    }
}

/// Lists one number at an event. The default value lists nothing, for subscribers that only want a signal.
#[derive(Clone, Debug, Default)]
pub struct Mark(Option<(ReadyList, Listed)>);

impl Mark {
    /// Lists the number unless it is listed already. Does not block.
    pub fn set(&self) {
        let Some((list, place)) = &self.0 else { return };
        if !place.listed.swap(true, Ordering::AcqRel) {
            list.0.lock().unwrap_or_else(PoisonError::into_inner).push(place.clone());
        }
    }
}

/// The notification for events of a control connection: first the mark is set, then the signal is raised.
#[derive(Clone, Debug)]
pub struct Subscription<S> {
    /// The signal to raise.
    pub signal: S,
    /// The mark to set before the signal is raised.
    pub mark: Mark,
}

impl<S> From<S> for Subscription<S> {
    fn from(signal: S) -> Self {
        Subscription { signal, mark: Mark::default() }
    }
}

impl<S: Signal> Subscription<S> {
    /// Notifies the subscriber of an event. Does not block.
    pub fn raise(&self) {
        self.mark.set();
        self.signal.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_listed_once_until_it_is_taken() {
        let list = ReadyList::new();
        let (one, two) = (list.mark(1), list.mark(2));
        two.set();
        one.set();
        two.clone().set();
        assert_eq!(list.take(), [2, 1]);
        assert_eq!(list.take(), [0; 0]);
        two.set();
        assert_eq!(list.take(), [2]);
    }

    #[test]
    fn a_mark_of_nothing_lists_nothing() {
        Mark::default().set();
    }

    #[test]
    fn a_list_that_is_dropped_while_full_is_freed() {
        let list = ReadyList::new();
        let mark = list.mark(7);
        mark.set();
        let weak = Arc::downgrade(&list.0);
        drop((list, mark));
        assert!(weak.upgrade().is_none());
    }
}
