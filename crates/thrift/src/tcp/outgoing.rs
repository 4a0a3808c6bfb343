//! Bytes that wait to be sent.

use std::ops::Range;

/// A buffer that messages are written into. Memory that was written once is not cleared for the next message: for large ones
/// that would take as long as writing them.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// What waits, and behind it what once did.
    bytes: Vec<u8>,
    end: usize,
}

impl Outgoing {
    /// What waits.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    pub(super) fn len(&self) -> usize {
        self.end
    }

    /// Makes room for so many bytes more; what is in it must be written over.
    pub(super) fn room(&mut self, length: usize) -> &mut [u8] {
        let begin = self.end;
        self.end += length;
        if self.bytes.len() < self.end {
            self.bytes.resize(self.end, 0);
        }
        &mut self.bytes[begin..self.end]
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Lets something be appended whose length is not known beforehand.
    pub(super) fn append_with<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.bytes.truncate(self.end);
        let appended = append(&mut self.bytes);
        self.end = self.bytes.len();
        appended
    }

    /// What waits at a place, to be written over.
    pub(super) fn at(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[..self.end][range]
    }

    /// Takes back what was appended last.
    pub(super) fn truncate(&mut self, length: usize) {
        self.end = self.end.min(length);
    }

    /// Takes away what has been sent.
    pub(super) fn consume(&mut self, length: usize) {
        self.bytes.copy_within(length..self.end, 0);
        self.end -= length;
    }

    /// Gives memory over `keep` bytes back, if nothing waits.
    pub(super) fn shrink(&mut self, keep: usize) {
        if self.end == 0 && self.bytes.capacity() > keep {
            *self = Outgoing::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_bytes_do_not_come_back() {
        let mut outgoing = Outgoing::default();
        outgoing.extend(b"first message");
        outgoing.consume(6);
        assert_eq!(outgoing.bytes(), b"message");
        outgoing.truncate(1);
        outgoing.append_with(|bytes| bytes.extend_from_slice(b"ore"));
        assert_eq!(outgoing.bytes(), b"more");
        outgoing.at(0..1)[0] = b'b';
        outgoing.room(1).fill(b'd');
        assert_eq!((outgoing.bytes(), outgoing.len()), (&b"bored"[..], 5));
        outgoing.truncate(0);
        outgoing.shrink(0);
        assert_eq!((outgoing.bytes.capacity(), outgoing.bytes()), (0, &b""[..]));
    }
}
