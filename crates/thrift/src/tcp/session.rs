//! What a client says on one connection, and what it is answered, in order. It knows no socket.

use super::answer::Service;
use super::outgoing::Outgoing;
use super::split::{Next, Splitter};
use super::wire::{NotThrift, detect};
use crate::server::Processor;
use pilota::Bytes;
use pilota::thrift::ThriftException;
use thiserror::Error;

/// A connection's side of the protocol.
#[derive(Debug)]
pub(super) struct Session {
    number: u64,
    /// None before the first bytes have told.
    splitter: Option<Splitter>,
}

/// What came of some bytes.
#[derive(Debug)]
pub(super) struct Taken {
    /// Bytes at the front that are done with.
    pub(super) bytes: usize,
    /// Messages in them.
    pub(super) messages: usize,
    pub(super) then: Then,
}

/// Why no more was taken.
#[derive(Debug)]
pub(super) enum Then {
    /// At least so many more bytes are wanted behind those left.
    Wanted(usize),
    /// The answers are as long as they may be: show the rest again once they have gone out.
    OutputFull,
    /// The connection ends when the answers have gone out.
    Broken(Broken),
}

/// The stream of a client cannot be read on.
#[derive(Debug, Error)]
pub(super) enum Broken {
    #[error("no Thrift client: {0}")]
    NotThrift(NotThrift),
    #[error("{}", .0.message())]
    Malformed(ThriftException),
}

impl Session {
    pub(super) fn new(number: u64) -> Self {
        Session { number, splitter: None }
    }

    /// Whether these bytes are one message in a frame, whole.
    pub(super) fn is_one_frame(&self, bytes: &[u8]) -> bool {
        self.splitter.as_ref().is_some_and(|splitter| splitter.is_one_frame(bytes))
    }

    /// Answers the messages at the front of `bytes`, until `output_limit` bytes of answers wait. Handlers may keep the `memory` that
    /// they lie in, if it is given.
    pub(super) fn take<P: Processor>(
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
                Err(error) => {
                    taken.then = Then::Broken(Broken::NotThrift(error));
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
                    if splitter.wire().transport == super::Transport::Unframed {
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
