//! The server-side contract: the traits between generated code and the servers of each transport.

use crate::arguments::Outcome;
use crate::codec::{Input, part};
use crate::descriptor::ServiceDescriptor;
use crate::error::{Failure, Refusal};
use dunlin_fabric::{Clock, Nanos};
use pilota::Bytes;
use std::time::Duration;

/// Facts about a call that a handler may use besides the arguments.
#[derive(Clone, Debug)]
pub struct Context {
    /// The deadline on the server's clock, if the call has one.
    deadline: Option<(Nanos, Clock)>,
    /// The number of the caller's connection, the same for all its calls.
    pub session: u64,
    /// Whether the call came through stock Thrift over TCP.
    pub tcp: bool,
    /// The memory of the message, if it may be shared.
    memory: Option<Bytes>,
}

impl Context {
    /// Describes a call through the engine. `deadline` is on the given clock of the server.
    #[inline]
    pub fn on_engine(session: u64, deadline: Option<(Nanos, Clock)>) -> Self {
        Context { deadline, session, tcp: false, memory: None }
    }

    /// Describes a call over TCP. `memory` contains the message if handlers may keep parts of it.
    #[inline]
    pub fn on_tcp(session: u64, memory: Option<Bytes>) -> Self {
        Context { deadline: None, session, tcp: true, memory }
    }

    /// Returns the time that is left now until the call's deadline: zero if it has passed, `None` without a
    /// deadline, and for calls over TCP, which do not carry it. Reads the clock.
    pub fn time_left(&self) -> Option<Duration> {
        let (deadline, clock) = self.deadline.as_ref()?;
        Some(Duration::from_nanos(deadline.saturating_sub(clock.now())))
    }

    /// Returns the bytes of an argument as `Bytes`, to be kept or returned.
    ///
    /// They share the message's memory without a copy if the argument is large, fills most of the message,
    /// and came over TCP in a framed message of the binary encoding. Otherwise they are copied.
    pub fn share(&self, argument: &[u8]) -> Bytes {
        let shared = self.memory.as_ref().and_then(|memory| part(memory, argument));
        shared.unwrap_or_else(|| Bytes::copy_from_slice(argument))
    }
}

/// The destination of a call's result.
pub trait Responder {
    /// The return value of the answering methods.
    type Done;

    /// Answers with an outcome. Oneway calls are answered too; their answers are discarded.
    fn respond<R: Outcome>(self, outcome: Result<R, Refusal>) -> Self::Done;

    /// Answers with the handler's result.
    #[inline]
    fn answer<R: Outcome>(self, result: Result<R::Value, Failure<R::Exception>>) -> Self::Done
    where
        Self: Sized,
    {
        self.respond(R::of(result))
    }

    /// Answers a call of an unknown function.
    fn refuse(self, refusal: Refusal) -> Self::Done;
}

/// A service with its handler: reads the arguments, calls the handler and answers. Generated code implements
/// it.
pub trait Processor: Send + Sync + 'static {
    /// Returns the service's descriptor.
    fn service(&self) -> &'static ServiceDescriptor;

    /// Executes one call of the function with this index in the service's descriptor.
    fn process<'a, I: Input<'a>, R: Responder>(
        &self,
        function: usize,
        input: &mut I,
        context: &Context,
        responder: R,
    ) -> R::Done;
}
