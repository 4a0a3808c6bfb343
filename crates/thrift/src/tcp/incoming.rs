//! Bytes that were received and not yet used up.

use rustix::buffer::spare_capacity;
use std::io;
use std::net::TcpStream;

/// Room that is kept while nothing is there, and the least that is asked for.
pub(super) const STEP: usize = 64 << 10;

/// A queue of bytes. Its memory follows what was received: what a peer announces is not made room for beforehand.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    used: usize,
}

impl Incoming {
    /// What is there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// Whether it has the memory of a large message.
    pub(super) fn is_large(&self) -> bool {
        self.bytes.capacity() > STEP
    }

    /// Takes bytes away from the front.
    pub(super) fn consume(&mut self, length: usize) {
        self.used += length;
        if self.is_empty() {
            self.bytes.clear();
            self.used = 0;
        }
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Gives memory over `keep` bytes back that a large message has left behind.
    pub(super) fn shrink(&mut self, keep: usize) {
        if self.is_empty() && self.bytes.capacity() > keep {
            *self = Incoming::default();
        }
    }

    /// Receives once, `wanted` bytes or somewhat more if they are there, and says how many and whether there was room for
    /// more: 0 and room is the end of the stream.
    pub(super) fn receive(&mut self, stream: &TcpStream, wanted: usize) -> io::Result<(usize, bool)> {
        // Moving what is left costs at most as much as what was used up.
        if self.used > self.bytes.len() / 2 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        let length = self.bytes.len();
        if self.bytes.capacity() - length < wanted.min(STEP) {
            // At most twice what has come, however much was announced.
            self.bytes.reserve_exact(wanted.clamp(STEP, length.max(STEP)));
        }
        let received = receive(stream, &mut self.bytes)?;
        Ok((received, self.bytes.len() < self.bytes.capacity()))
    }
}

/// Receives once into the vector's free room.
pub(super) fn receive(stream: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        match rustix::io::read(stream, spare_capacity(bytes)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}
