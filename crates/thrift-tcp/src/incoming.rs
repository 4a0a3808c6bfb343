//! Receive buffer: bytes that were received and not yet consumed.

use pilota::Bytes;
use rustix::buffer::spare_capacity;
use std::io;
use std::net::TcpStream;
use std::ops::Range;

/// The capacity that an empty buffer keeps, and the least number of bytes to receive at a time.
pub(crate) const STEP: usize = 64 << 10;

/// The maximum capacity that is reserved because the previous message was large.
const KEPT: usize = 1 << 20;

/// A queue of received bytes. Its memory grows with the bytes received, not with announced lengths.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    used: usize,
    /// The memory of a large message, which handlers may share. If it is no longer shared, the next message
    /// reuses it.
    lent: Option<Bytes>,
}

/// The shortest message whose memory is shared.
const LARGE: usize = 16 << 10;

impl Incoming {
    /// Returns the unconsumed bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// Returns whether the buffer holds the memory of a large message.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.capacity() > STEP || self.lent.is_some()
    }

    /// Returns whether the reader of all remaining bytes may share the memory: they are many, and fill most
    /// of it.
    fn is_lendable(&self, length: usize) -> bool {
        length >= LARGE && length >= self.bytes.capacity() / 2
    }

    /// Like [`take`](Incoming::take), for a message that is the whole content. `read` returns the number of
    /// consumed bytes.
    pub(crate) fn take_all(&mut self, read: impl FnOnce(&[u8], Option<&Bytes>) -> usize) {
        if !self.is_lendable(self.bytes().len()) {
            let done = read(self.bytes(), None);
            return self.consume(done);
        }
        let (memory, used) = self.hand_out();
        let done = read(&memory[used..], Some(&memory));
        self.bytes.extend_from_slice(&memory[used + done..]);
        self.lent = Some(memory);
    }

    /// Returns the content as shareable memory, with the number of its bytes that are already consumed.
    fn hand_out(&mut self) -> (Bytes, usize) {
        (Bytes::from(std::mem::take(&mut self.bytes)), std::mem::take(&mut self.used))
    }

    /// Passes the message to `read` and consumes all bytes up to its end. `read` may share the memory of a
    /// large message that fills most of it and is the last one in the buffer.
    pub(crate) fn take<T>(
        &mut self,
        message: Range<usize>,
        read: impl FnOnce(&[u8], Option<&Bytes>) -> T,
    ) -> T {
        if !self.is_lendable(message.len()) || self.used + message.end < self.bytes.len() {
            let result = read(&self.bytes()[message.clone()], None);
            self.consume(message.end);
            return result;
        }
        let (memory, used) = self.hand_out();
        let result = read(&memory[used..][message], Some(&memory));
        self.lent = Some(memory);
        result
    }

    /// Consumes bytes at the front.
    pub(crate) fn consume(&mut self, length: usize) {
        self.used += length;
        if self.is_empty() {
            self.bytes.clear();
            self.used = 0;
        }
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Frees memory of a large message if the buffer is empty and its capacity exceeds `keep` bytes.
    pub(crate) fn shrink(&mut self, keep: usize) {
        let capacity = self.bytes.capacity().max(self.lent.as_ref().map_or(0, Bytes::len));
        if self.is_empty() && capacity > keep {
            *self = Incoming::default();
        }
    }

    /// Receives once, about `wanted` bytes. Returns the number of bytes received and whether free room
    /// remained: 0 bytes with free room mean the end of the stream.
    pub(crate) fn receive(&mut self, stream: &TcpStream, wanted: usize) -> io::Result<(usize, bool)> {
        // Moving the rest costs at most as much as receiving the consumed bytes.
        if self.used > self.bytes.len() / 2 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        let length = self.bytes.len();
        // The length of the previous message if it was large.
        let mut before = 0;
        if let Some(memory) = self.lent.take_if(|_| length == 0) {
            before = memory.len();
            if let Ok(mut memory) = memory.try_into_mut() {
                // Cleared, so that the conversion to a vector moves no bytes.
                memory.clear();
                self.bytes = memory.into();
            }
        }
        if self.bytes.capacity() - length < wanted.min(STEP) {
            // At most twice the bytes received now or in the previous message, whatever length was announced.
            let most = if length == 0 { before.min(KEPT) } else { length };
            let least = if length == 0 { most.max(STEP) } else { STEP };
            self.bytes.reserve_exact(wanted.clamp(least, most.max(least)));
        }
        let received = receive(stream, &mut self.bytes)?;
        Ok((received, self.bytes.len() < self.bytes.capacity()))
    }
}

/// Receives once into the vector's spare capacity.
pub(crate) fn receive(stream: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<usize> {
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

    /// Receives these bytes over a connection into the buffer.
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
        // The memory is not shared, so the next message reuses it.
        let place = incoming.take(4..200_000, |message, memory| {
            assert_eq!((message, memory.map(|memory| memory.len())), (&bytes[4..], Some(200_000)));
            message.as_ptr() as usize
        });
        assert!(incoming.is_empty() && incoming.is_large());
        receive_all(&mut incoming, &bytes);
        assert_eq!(incoming.bytes().as_ptr() as usize + 4, place);
        let kept = incoming.take(4..200_000, |message, memory| memory.unwrap().slice_ref(message));
        assert_eq!((kept.as_ptr() as usize, incoming.bytes.capacity()), (place, 0));
        // The same capacity is reserved immediately, since the previous message was as long, but no more.
        receive_all(&mut incoming, b"x");
        assert_eq!(incoming.bytes.capacity(), 200_000);
        incoming.consume(1);
        let long = Bytes::from(vec![1; KEPT + 1]);
        incoming = Incoming { lent: Some(long.clone()), ..Incoming::default() };
        receive_all(&mut incoming, b"x");
        assert_eq!((incoming.bytes.capacity(), long.len()), (KEPT, KEPT + 1));
        assert_eq!(kept, bytes[4..]);
    }

    #[test]
    fn what_is_not_done_with_stays() {
        let mut incoming = Incoming::default();
        let bytes: Vec<u8> = (0..2 * LARGE).map(|i| i as u8).collect();
        incoming.extend(&bytes);
        let mut kept = None;
        incoming.take_all(|message, memory| {
            kept = memory.map(|memory| memory.slice_ref(&message[..LARGE]));
            LARGE
        });
        assert_eq!((kept.as_deref(), incoming.bytes()), (Some(&bytes[..LARGE]), &bytes[LARGE..]));
        incoming.take_all(|message, _| message.len());
        assert!(incoming.is_empty());
        incoming.extend(b"small");
        incoming.take_all(|message, memory| {
            assert!(memory.is_none(), "{message:?}");
            2
        });
        assert_eq!(incoming.bytes(), b"all");
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
