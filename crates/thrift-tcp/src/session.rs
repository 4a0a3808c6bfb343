//! The server's protocol state of one connection: reads calls and answers them in order. Independent of
//! sockets.

use crate::answer::Service;
use crate::detect::detect;
use crate::outgoing::Outgoing;
use crate::split::{Next, Splitter};
use dunlin_fabric::door::{self, Look};
use dunlin_thrift_core::{Processor, Transport};
use pilota::Bytes;
use pilota::thrift::ThriftException;
use thiserror::Error;

/// The protocol state of a connection.
#[derive(Debug)]
pub(crate) struct Session {
    number: u64,
    /// `None` until the wire has been detected.
    splitter: Option<Splitter>,
}

/// The result of processing some bytes.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The number of consumed bytes.
    pub(crate) bytes: usize,
    /// The number of messages in them.
    pub(crate) messages: usize,
    pub(crate) then: Then,
}

/// The reason why processing stopped.
#[derive(Debug)]
pub(crate) enum Then {
    /// At least this number of further bytes is needed after the unconsumed ones.
    Wanted(usize),
    /// The answers have reached their size limit. Pass the rest again once they have been sent.
    OutputFull,
    /// The connection must be closed after the answers have been sent.
    Broken(Broken),
}

/// An unrecoverable error in a client's byte stream.
#[derive(Debug, Error)]
pub(crate) enum Broken {
    #[error("{visitor} came to a port of stock Thrift and is refused: {why}")]
    NotThrift {
        /// The visitor's protocol, or its first bytes.
        visitor: String,
        why: String,
        /// Whether it is the first of its kind on this server.
        first: bool,
    },
    #[error("{}", .0.message())]
    Malformed(ThriftException),
}

impl Session {
    pub(crate) fn new(number: u64) -> Self {
        Session { number, splitter: None }
    }

    /// Returns whether these bytes are exactly one framed message.
    pub(crate) fn is_one_frame(&self, bytes: &[u8]) -> bool {
        self.splitter.as_ref().is_some_and(|splitter| splitter.is_one_frame(bytes))
    }

    /// Answers the messages at the front of `bytes` until `output_limit` bytes of answers are pending.
    /// Handlers may keep parts of `memory`, which contains the messages, if it is given.
    pub(crate) fn take<P: Processor>(
        &mut self,
        service: &Service<P>,
        bytes: &[u8],
        memory: Option<&Bytes>,
        output: &mut Outgoing<'_>,
        output_limit: usize,
    ) -> Taken {
        let mut taken = Taken { bytes: 0, messages: 0, then: Then::Wanted(1) };
        let splitter = match &mut self.splitter {
            Some(splitter) => splitter,
            none => match detect(bytes, service.message_limit) {
                Ok(Some(wire)) => none.insert(Splitter::new(wire, service.message_limit)),
                Ok(None) => return taken,
                // A few bytes more tell what it is.
                Err(_) if door::recognise(bytes) == Look::Short => return taken,
                Err(error) => {
                    taken.then = Then::Broken(service.turn_away(bytes, &error, output));
                    return taken;
                }
            },
        };
        while taken.bytes < bytes.len() {
            if output.len() >= output_limit {
                taken.then = Then::OutputFull;
                return taken;
            }
            let rest = &bytes[taken.bytes..];
            let answered = match splitter.next(rest) {
                Ok(Next::Wanted(wanted)) => {
                    taken.then = Then::Wanted(wanted);
                    return taken;
                }
                Ok(Next::Message(range)) => {
                    taken.bytes += range.end;
                    taken.messages += 1;
                    service.answer(splitter.wire(), self.number, (&rest[range], memory), output)
                }
                Err(error) => {
                    if splitter.wire().transport == Transport::Unframed {
                        service.refuse(splitter.wire(), rest, &error, output);
                    }
                    Err(error)
                }
            };
            if let Err(error) = answered {
                taken.then = Then::Broken(Broken::Malformed(error));
                return taken;
            }
        }
        taken
    }
}
