//! Group commit. The first of several concurrent writers becomes the leader and includes the others' writes
//! in its transaction. All of them thus need only one commit and one wait for the disk.

use crate::store::{Store, StoreError, check};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Keys with their values.
type Pairs = Vec<(Box<[u8]>, Box<[u8]>)>;

/// The concurrent writes of a store.
#[derive(Debug, Default)]
pub(crate) struct Group {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a leader is collecting writes for a transaction.
    led: bool,
    next: u64,
    waiting: Vec<Waiting>,
    /// Results of writes done by a leader, until their callers fetch them.
    done: Vec<(u64, Result<(), StoreError>)>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    pairs: Pairs,
}

impl Waiting {
    fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.pairs.iter().map(|(key, value)| (&key[..], &value[..]))
    }
}

impl Group {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores all pairs or none, in this thread's transaction or in a leader's.
    pub(crate) fn write<'p>(
        &self,
        store: &Store,
        pairs: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone,
    ) -> Result<(), StoreError> {
        pairs.clone().try_for_each(|(key, _)| check(key))?;
        let mut state = self.state();
        if !state.led {
            state.led = true;
            drop(state);
            return self.lead(store, pairs);
        }
        let ticket = state.next;
        state.next += 1;
        // Another thread writes the pairs, so they must outlive this call.
        let pairs = pairs.map(|(key, value)| (key.into(), value.into())).collect();
        state.waiting.push(Waiting { ticket, pairs });
        loop {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = state.done.iter().position(|(done, _)| *done == ticket) {
                return state.done.swap_remove(at).1;
            }
            // The leader had taken its writes before this one arrived: a waiting thread leads the next
            // transaction.
            if !state.led
                && let Some(at) = state.waiting.iter().position(|waiting| waiting.ticket == ticket)
            {
                state.led = true;
                let own = state.waiting.swap_remove(at);
                drop(state);
                return self.lead(store, own.pairs());
            }
        }
    }

    /// Writes the pairs, and those of all writers that wait when the transaction begins.
    fn lead<'p>(
        &self,
        store: &Store,
        own: impl Iterator<Item = (&'p [u8], &'p [u8])> + Clone,
    ) -> Result<(), StoreError> {
        let mut taken = Vec::new();
        let together = store.transact(|transaction| {
            taken = std::mem::take(&mut self.state().waiting);
            store.put(transaction, own.clone())?;
            taken.iter().try_for_each(|waiting| store.put(transaction, waiting.pairs()))
        });
        let (result, done) = match together {
            Err(error) if taken.is_empty() => (Err(error), Vec::new()),
            Ok(()) => (Ok(()), taken.iter().map(|waiting| (waiting.ticket, Ok(()))).collect()),
            // Each write is retried separately, so that one failure does not affect others.
            Err(_) => {
                let result = store.write(own);
                let each = |waiting: &Waiting| (waiting.ticket, store.write(waiting.pairs()));
                (result, taken.iter().map(each).collect::<Vec<_>>())
            }
        };
        let mut state = self.state();
        state.done.extend(done);
        state.led = false;
        drop(state);
        self.changed.notify_all();
        result
    }

    /// Returns the number of writes that wait for a leader.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }
}
