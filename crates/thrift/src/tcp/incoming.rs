//! Bytes that were received and not yet used up.

use pilota::Bytes;
use rustix::buffer::spare_capacity;
use std::io;
use std::net::TcpStream;
use std::ops::Range;

/// Room that is kept while nothing is there, and the least that is asked for.
pub(super) const STEP: usize = 64 << 10;

/// The most that is made room for because a message before was as large.
const KEPT: usize = 1 << 20;

/// A queue of bytes. Its memory follows what was received: what a peer announces is not made room for beforehand.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    used: usize,
    /// Bytes that came for a large message whose memory was not given back: the next may be as large.
    before: usize,
}

/// The shortest message whose memory is handed out.
const LARGE: usize = 16 << 10;

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

    /// Shows the message that lies there, and takes all bytes to its end away. What reads it may keep the memory of a large one
    /// that is most of it and the last that is there.
    pub(super) fn take<T>(
        &mut self,
        message: Range<usize>,
        read: impl FnOnce(&[u8], Option<&Bytes>) -> T,
    ) -> T {
        let most = message.len() >= self.bytes.capacity() / 2;
        if message.len() < LARGE || !most || self.used + message.end < self.bytes.len() {
            let result = read(&self.bytes()[message.clone()], None);
            self.consume(message.end);
            return result;
        }
        let memory = Bytes::from(std::mem::take(&mut self.bytes));
        let used = std::mem::take(&mut self.used);
        let result = read(&memory[used..][message], Some(&memory));
        match memory.try_into_mut() {
            Ok(memory) => {
                self.bytes = memory.into();
                self.bytes.clear();
            }
            Err(memory) => self.before = memory.len(),
        }
        result
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
            // At most twice what has come, now or for a message before, however much was announced.
            let most = if length == 0 { self.before.min(KEPT) } else { length };
            let least = if length == 0 { most.max(STEP) } else { STEP };
            self.bytes.reserve_exact(wanted.clamp(least, most.max(least)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// Has a buffer receive these bytes and what it has more.
    fn receive_all(incoming: &mut Incoming, bytes: &[u8]) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        std::thread::scope(|scope| {
            scope.spawn(move || sender.write_all(bytes).unwrap());
            let length = incoming.bytes().len() + bytes.len();
            while incoming.bytes().len() < length {
                let wanted = length - incoming.bytes().len();
                assert_ne!(incoming.receive(&stream, wanted).unwrap().0, 0);
            }
        });
    }

    #[test]
    fn memory_of_large_messages_is_handed_out() {
        let mut incoming = Incoming::default();
        let bytes: Vec<u8> = (0..200_000).map(|i| i as u8).collect();
        receive_all(&mut incoming, &bytes);
        // Nobody keeps it: the next message comes into the same memory.
        let place = incoming.take(4..200_000, |message, memory| {
            assert_eq!((message, memory.map(|memory| memory.len())), (&bytes[4..], Some(200_000)));
            message.as_ptr() as usize
        });
        assert!(incoming.is_empty() && incoming.is_large());
        receive_all(&mut incoming, &bytes);
        assert_eq!(incoming.bytes().as_ptr() as usize + 4, place);
        let kept = incoming.take(4..200_000, |message, memory| memory.unwrap().slice_ref(message));
        assert_eq!((kept.as_ptr() as usize, incoming.bytes.capacity()), (place, 0));
        // As much room at once, since as much has come before; and no more than that.
        incoming.before = usize::MAX;
        receive_all(&mut incoming, b"x");
        assert_eq!(incoming.bytes.capacity(), KEPT);
        assert_eq!(kept, bytes[4..]);
    }

    #[test]
    fn other_messages_are_shown_where_they_lie() {
        let mut incoming = Incoming::default();
        let whole = |_: &[u8], memory: Option<&Bytes>| memory.is_some();
        incoming.extend(&[1; LARGE + 1]);
        assert!(!incoming.take(0..LARGE, whole), "there is more behind it");
        assert!(!incoming.take(0..1, whole), "it is small");
        assert!(incoming.is_empty());
        incoming.bytes.reserve_exact(4 * LARGE);
        incoming.extend(&[1; LARGE]);
        assert!(!incoming.take(0..LARGE, whole), "it is a small part of the memory");
    }
}
