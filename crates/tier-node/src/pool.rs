//! Values that one thread uses at a time, made when they are first needed and kept.

use dunlin_fabric::{Host, Nanos, Signal};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

#[derive(Debug)]
struct Idle<T> {
    values: Vec<T>,
    /// Values that are taken when there is no other, the one that was given first before the others.
    last: VecDeque<T>,
    /// The numbers of the values that are not made, the next one last.
    numbers: Vec<usize>,
    waiting: usize,
    /// Values that come back are dropped.
    is_closed: bool,
}

impl<T> Idle<T> {
    fn take_all(&mut self) -> Vec<T> {
        self.values.drain(..).chain(self.last.drain(..)).collect()
    }
}

/// A pool of a bounded number of values. No lock is held while a value is in use, so a simulated thread may wait with
/// one in hand.
#[derive(Debug)]
pub struct Pool<T, S> {
    idle: Mutex<Idle<T>>,
    signal: S,
}

/// A place in the pool.
#[derive(Debug)]
pub enum Taken<T> {
    /// A value.
    Value(T),
    /// There is room for another, with a number that no other has: make one, and [`give`](Pool::give) it, or report
    /// [`failed`](Pool::failed).
    Make(usize),
}

impl<T, S: Signal> Pool<T, S> {
    /// Makes a pool of at most `limit` values.
    pub fn new<H: Host<Signal = S>>(host: &H, limit: usize) -> Self {
        let numbers = (0..limit).rev().collect();
        let idle = Idle {
            values: Vec::with_capacity(limit),
            last: VecDeque::new(),
            numbers,
            waiting: 0,
            is_closed: false,
        };
        Pool { idle: Mutex::new(idle), signal: host.signal() }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle<T>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the value that was used last. Waits until `until` at most; then `None`.
    pub fn take<H: Host<Signal = S>>(&self, host: &H, until: Nanos) -> Option<Taken<T>> {
        let mut waited = false;
        loop {
            let seen = self.signal.seen();
            {
                let mut idle = self.idle();
                if std::mem::take(&mut waited) {
                    idle.waiting -= 1;
                }
                if let Some(value) = idle.values.pop() {
                    return Some(Taken::Value(value));
                }
                if let Some(number) = idle.numbers.pop() {
                    return Some(Taken::Make(number));
                }
                if let Some(value) = idle.last.pop_front() {
                    return Some(Taken::Value(value));
                }
                if host.now() >= until {
                    return None;
                }
                idle.waiting += 1;
                waited = true;
            }
            self.signal.wait(seen, until);
        }
    }

    /// Gives a value back, or a new one.
    pub fn give(&self, value: T) {
        self.put(value, |idle, value| idle.values.push(value));
    }

    /// As [`give`](Pool::give), for a value that is only taken when there is no other and no room for one.
    pub fn give_last(&self, value: T) {
        self.put(value, |idle, value| idle.last.push_back(value));
    }

    fn put(&self, value: T, put: impl FnOnce(&mut Idle<T>, T)) {
        let mut idle = self.idle();
        if idle.is_closed {
            drop(idle);
            return drop(value);
        }
        put(&mut idle, value);
        let wake = idle.waiting > 0;
        drop(idle);
        if wake {
            self.signal.raise();
        }
    }

    /// The value of this number could not be made.
    pub fn failed(&self, number: usize) {
        let mut idle = self.idle();
        idle.numbers.push(number);
        let wake = idle.waiting > 0;
        drop(idle);
        if wake {
            self.signal.raise();
        }
    }

    /// Drops the values that are not in use, whose peer has ended. New ones are made in their places, with numbers that
    /// others may have: for pools whose values do not keep their numbers.
    pub fn drain(&self) {
        let values: Vec<T> = {
            let mut idle = self.idle();
            let values: Vec<T> = idle.take_all();
            idle.numbers.extend(std::iter::repeat_n(0, values.len()));
            values
        };
        drop(values);
    }

    /// Drops all values, those in use when they come back: at the end.
    pub fn clear(&self) {
        let values = {
            let mut idle = self.idle();
            idle.is_closed = true;
            idle.take_all()
        };
        drop(values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::RealHost;
    use std::sync::Arc;

    #[test]
    fn a_pool_is_bounded_and_gives_values_on() {
        let pool = Arc::new(Pool::new(&RealHost, 1));
        assert!(matches!(pool.take(&RealHost, 0), Some(Taken::Make(0))));
        assert!(pool.take(&RealHost, 0).is_none());
        let other = Arc::clone(&pool);
        let waiting = std::thread::spawn(move || match other.take(&RealHost, Nanos::MAX) {
            Some(Taken::Value(value)) => value,
            _ => 0,
        });
        pool.give(7);
        assert_eq!(waiting.join().unwrap(), 7);
        pool.failed(0);
        assert!(matches!(pool.take(&RealHost, 0), Some(Taken::Make(0))));
        pool.give(8);
        pool.drain();
        assert!(matches!(pool.take(&RealHost, 0), Some(Taken::Make(_))));
        assert!(pool.take(&RealHost, 0).is_none(), "the limit stays");
    }

    #[test]
    fn a_value_that_is_given_last_is_taken_when_there_is_no_other() {
        let pool = Pool::new(&RealHost, 2);
        let number = |taken| match taken {
            Some(Taken::Make(number)) => number,
            _ => usize::MAX,
        };
        let value = |taken| match taken {
            Some(Taken::Value(value)) => value,
            _ => 0,
        };
        assert_eq!(number(pool.take(&RealHost, 0)), 0);
        pool.give_last(7);
        assert_eq!(number(pool.take(&RealHost, 0)), 1, "there is room for another");
        pool.give_last(8);
        assert_eq!(value(pool.take(&RealHost, 0)), 7);
        pool.give(7);
        assert_eq!([0; 2].map(|_| value(pool.take(&RealHost, 0))), [7, 8]);
        assert!(pool.take(&RealHost, 0).is_none());
        pool.give_last(7);
        pool.drain();
        assert_eq!(number(pool.take(&RealHost, 0)), 0);
    }
}
