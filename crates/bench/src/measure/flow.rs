//! A client that keeps a window of calls in flight, and what it sends: the same words that the bare ring carries.

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, CallId, Cause, Client};

use super::peer::ECHO;

/// Bytes of a word of the stamp.
pub(super) const WORD: usize = 8;

/// Writes every whole word of a payload, as the floors do: `sequence`, `sequence + 1`, ...
#[inline]
pub(super) fn stamp(payload: &mut [u8], sequence: u64) {
    for (word, value) in payload.as_chunks_mut::<WORD>().0.iter_mut().zip(sequence..) {
        *word = value.to_le_bytes();
    }
}

/// 0 if `answer` is the stamp of `sequence` in `length` bytes; sums up without a branch for each word.
#[inline]
pub(super) fn difference(answer: &[u8], length: usize, sequence: u64) -> u64 {
    let wrong = answer.as_chunks::<WORD>().0.iter().zip(sequence..);
    let words = wrong.fold(0, |wrong, (word, value)| wrong | (u64::from_le_bytes(*word) ^ value));
    words | (answer.len() ^ length) as u64
}

/// How calls are put in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Calls in flight at most.
    pub(super) window: usize,
    /// Calls in a message; 1 for a message of its own for each.
    pub(super) batch: usize,
}

/// A client under load.
pub(super) struct Flow {
    client: Client<ShmFabric>,
    shape: Shape,
    payload: Vec<u8>,
    sent: u64,
    done: u64,
    /// What each call in flight carries, by its index.
    carried: Vec<u64>,
    /// Not 0 once an answer was wrong.
    difference: u64,
}

impl Flow {
    pub(super) fn new(client: Client<ShmFabric>, shape: Shape, size: usize) -> Self {
        Self { client, shape, payload: vec![0; size], sent: 0, done: 0, carried: Vec::new(), difference: 0 }
    }

    /// Whether every answer was right so far.
    pub(super) fn is_right(&self) -> bool {
        self.difference == 0
    }

    /// Fills the window, takes what is done, and says how many calls that were.
    #[inline]
    pub(super) fn turn(&mut self) -> Result<u64, String> {
        let window = self.shape.window as u64;
        if self.shape.batch <= 1 {
            while self.sent - self.done < window {
                stamp(&mut self.payload, self.sent);
                match self.client.submit_on(0, ECHO, &self.payload) {
                    Ok(call) => self.sent(call),
                    Err(error) => {
                        full(error)?;
                        break;
                    }
                }
            }
        } else {
            // Whole batches only: a batch for each answer that has come would be a batch of one.
            let batch = self.shape.batch as u64;
            while self.sent - self.done + batch <= window && self.push_batch(batch)? {}
        }
        self.collect()
    }

    /// Notes what a call carries that was made.
    #[inline]
    fn sent(&mut self, call: CallId) {
        if self.carried.len() <= call.index() {
            self.carried.resize(call.index() + 1, 0);
        }
        self.carried[call.index()] = self.sent;
        self.sent += 1;
    }

    /// Pushes one batch and sends it; says whether there was room for all of it.
    #[inline]
    fn push_batch(&mut self, batch: u64) -> Result<bool, String> {
        for _ in 0..batch {
            stamp(&mut self.payload, self.sent);
            match self.client.push_on(0, ECHO, &self.payload) {
                Ok(call) => self.sent(call),
                Err(error) => {
                    full(error)?;
                    return Ok(false);
                }
            }
        }
        match self.client.flush() {
            Ok(()) => Ok(true),
            // It stays open and goes out with the next flush.
            Err(error) => full(error).map(|()| false),
        }
    }

    #[inline]
    fn collect(&mut self) -> Result<u64, String> {
        let Self { client, payload, done, carried, difference: wrong, .. } = self;
        let mut failed = None;
        let count = client.collect(|call, outcome| {
            match outcome {
                Ok(answer) => {
                    // One that was never made is none of ours, and wrong.
                    let carried = carried.get(call.index()).copied().unwrap_or(u64::MAX);
                    *wrong |= difference(answer, payload.len(), carried);
                }
                Err(error) => failed = Some(error),
            }
            *done += 1;
        });
        match failed {
            Some(error) => Err(error.to_string()),
            None => Ok(count as u64),
        }
    }

    /// Takes all that is in flight, so that the server can rest between slices.
    pub(super) fn drain(&mut self) -> Result<(), String> {
        while self.done < self.sent {
            if let Err(error) = self.client.flush() {
                full(error)?;
            }
            self.collect()?;
        }
        Ok(())
    }
}

/// A full window or ring is no error here: progress makes room.
pub(super) fn full(error: CallError) -> Result<(), String> {
    match error {
        CallError::NotExecuted(Cause::WindowFull) => Ok(()),
        other => Err(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_recognised_and_nothing_else_is() {
        for length in [0, 7, 8, 32, 100] {
            let mut payload = vec![0; length];
            stamp(&mut payload, 77);
            assert_eq!(difference(&payload, length, 77), 0);
            assert_ne!(difference(&payload, length + 1, 77), 0);
            if length >= 8 {
                assert_ne!(difference(&payload, length, 78), 0);
                payload[3] ^= 1;
                assert_ne!(difference(&payload, length, 77), 0);
            }
        }
    }
}
