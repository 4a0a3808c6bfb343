//! Splits a byte stream into messages. Independent of sockets.

use crate::head::Head;
use dunlin_thrift_core::codec::{Scanned, Scanner};
use dunlin_thrift_core::{Transport, Wire};
use pilota::thrift::{ProtocolExceptionKind, ThriftException, new_protocol_exception};
use std::ops::Range;

/// The next element of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A message without its frame. The next one begins at the range's end.
    Message(Range<usize>),
    /// At least this number of further bytes is needed.
    Wanted(usize),
}

/// Finds messages. It keeps the state of a partial message, so that a message in many pieces costs no more
/// than one in one piece.
#[derive(Debug)]
pub(crate) struct Splitter {
    wire: Wire,
    limit: usize,
    /// The number of bytes of an unframed message already scanned.
    seen: usize,
    scanner: Scanner,
}

impl Splitter {
    /// Creates a splitter for messages of at most `limit` bytes.
    pub(crate) fn new(wire: Wire, limit: usize) -> Self {
        Splitter { wire, limit, seen: 0, scanner: Scanner::new(wire.encoding, limit) }
    }

    pub(crate) fn wire(&self) -> Wire {
        self.wire
    }

    /// Returns the message at the beginning of `bytes`. After `Wanted`, `bytes` must begin with the same
    /// bytes as before. After an error the stream is unusable.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<Next, ThriftException> {
        match self.wire.transport {
            Transport::Framed => self.framed(bytes),
            Transport::Unframed => self.unframed(bytes),
        }
    }

    /// Returns whether these bytes are exactly one framed message.
    pub(crate) fn is_one_frame(&self, bytes: &[u8]) -> bool {
        let length = bytes.first_chunk::<4>().map(|length| i32::from_be_bytes(*length));
        self.wire.transport == Transport::Framed
            && length.is_some_and(|length| usize::try_from(length) == Ok(bytes.len() - 4))
    }

    fn framed(&self, bytes: &[u8]) -> Result<Next, ThriftException> {
        let Some(length) = bytes.first_chunk::<4>() else {
            return Ok(Next::Wanted(4 - bytes.len()));
        };
        let length = i32::from_be_bytes(*length);
        let Some(length) = usize::try_from(length).ok().filter(|length| (1..=self.limit).contains(length))
        else {
            let text = format!("a frame is said to have {length} bytes; 1 to {} are taken", self.limit);
            return Err(new_protocol_exception(ProtocolExceptionKind::SizeLimit, text));
        };
        let end = 4 + length;
        Ok(if bytes.len() < end { Next::Wanted(end - bytes.len()) } else { Next::Message(4..end) })
    }

    fn unframed(&mut self, bytes: &[u8]) -> Result<Next, ThriftException> {
        if self.seen == 0 {
            let Some((_, length)) = Head::read(self.wire.encoding, bytes)? else {
                return Ok(Next::Wanted(1));
            };
            self.seen = length;
            self.scanner.restart(self.limit.saturating_sub(length));
        }
        match self.scanner.scan(&bytes[self.seen..])? {
            Scanned::Whole(length) => {
                let end = std::mem::take(&mut self.seen) + length;
                Ok(Next::Message(0..end))
            }
            Scanned::Part { seen, wanted } => {
                self.seen += seen;
                Ok(Next::Wanted(self.seen + wanted - bytes.len()))
            }
        }
    }
}
