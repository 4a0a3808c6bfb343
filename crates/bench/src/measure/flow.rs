//! A client that keeps a window of calls in flight, with the same payload words as the ring floor.

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, CallId, Cause, Client};

use super::peer::ECHO;

/// Bytes of a stamp word.
pub(super) const WORD: usize = 8;

/// Writes `sequence`, `sequence + 1`, ... to the whole words of a payload, as the floors do.
#[inline]
pub(super) fn stamp(payload: &mut [u8], sequence: u64) {
    for (word, value) in payload.as_chunks_mut::<WORD>().0.iter_mut().zip(sequence..) {
        *word = value.to_le_bytes();
    }
}

/// Returns 0 if `answer` is `length` bytes with the stamp of `sequence`. Has no branch per word.
#[inline]
pub(super) fn difference(answer: &[u8], length: usize, sequence: u64) -> u64 {
    let wrong = answer.as_chunks::<WORD>().0.iter().zip(sequence..);
    let words = wrong.fold(0, |wrong, (word, value)| wrong | (u64::from_le_bytes(*word) ^ value));
    words | (answer.len() ^ length) as u64
}

/// Concurrency and batching of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Maximum number of calls in flight.
    pub(super) window: usize,
    /// Calls per message; 1 sends each call in its own message.
    pub(super) batch: usize,
}

/// A client under load.
pub(super) struct Flow {
    client: Client<ShmFabric>,
    shape: Shape,
    payload: Vec<u8>,
    sent: u64,
    done: u64,
    /// The sequence number of each call in flight, by call index.
    carried: Vec<u64>,
    /// Nonzero once a response was wrong.
    difference: u64,
}

impl Flow {
    pub(super) fn new(client: Client<ShmFabric>, shape: Shape, size: usize) -> Self {
        Self { client, shape, payload: vec![0; size], sent: 0, done: 0, carried: Vec::new(), difference: 0 }
    }

    /// Returns whether every response so far was right.
    pub(super) fn is_right(&self) -> bool {
        self.difference == 0
    }

    /// Fills the window, processes completed calls, and returns their number.
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
            // Send only whole batches: a batch for each arriving response would have one call.
            let batch = self.shape.batch as u64;
            while self.sent - self.done + batch <= window && self.push_batch(batch)? {}
        }
        self.collect()
    }

    /// Records the sequence number of a submitted call.
    #[inline]
    fn sent(&mut self, call: CallId) {
        if self.carried.len() <= call.index() {
            self.carried.resize(call.index() + 1, 0);
        }
        self.carried[call.index()] = self.sent;
        self.sent += 1;
    }

    /// Pushes and sends one batch. Returns whether all of it fit.
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
            // The batch stays open, and the next flush sends it.
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
                    // An unknown call counts as wrong.
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

    /// Completes all calls in flight, so that the server is idle between slices.
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

/// Accepts a full window or ring, which `progress` empties, and returns any other error.
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
