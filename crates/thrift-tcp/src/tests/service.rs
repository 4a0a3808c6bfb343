//! A service for tests. All its functions take and return a `binary`.

use crate::client::OfArguments;
use crate::head::{CALL, Head, append};
use crate::outgoing::Outgoing;
use dunlin_hints::FunctionHints;
use dunlin_rpc::Certainty;
use dunlin_thrift_core::codec::{BinaryInput, BinaryOutput, Input, Output};
use dunlin_thrift_core::{
    ARGUMENTS, Arguments, CallError, Context, Failure, Outcome, Processor, Refusal, Responder,
    ServiceDescriptor, Wire, read_arguments, read_list, required,
};
use pilota::Bytes;
use pilota::thrift::{
    ApplicationException, ApplicationExceptionKind, Message, TAsyncInputProtocol, TFieldIdentifier,
    TInputProtocol, TLengthProtocol, TOutputProtocol, TStructIdentifier, TType, ThriftException,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

static TOY: ServiceDescriptor = ServiceDescriptor {
    name: "Toy",
    extends: &[],
    functions: &[
        FunctionHints::new("echo"),
        FunctionHints::new("refuse"),
        FunctionHints::new("panic"),
        FunctionHints::new("tell").oneway(),
        FunctionHints::new("told"),
        FunctionHints::new("hold"),
        FunctionHints::new("many"),
    ],
    shapes: &[],
};

/// The handler.
#[derive(Debug, Default)]
pub(super) struct Toy {
    /// The number of calls whose arguments could be decoded.
    pub(super) executed: AtomicUsize,
    /// Large echoed payloads, which the handler keeps.
    pub(super) kept: Mutex<Vec<Bytes>>,
    /// The number of bytes received by `tell`.
    told: AtomicUsize,
    /// Whether holding calls may proceed, and how many are holding.
    held: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Toy {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(super) fn executed(&self) -> usize {
        self.executed.load(Ordering::SeqCst)
    }

    /// Waits until a call holds.
    pub(super) fn wait_until_held(&self) {
        drop(self.changed.wait_while(self.held.lock().unwrap(), |(_, held)| *held == 0).unwrap());
    }

    pub(super) fn release(&self) {
        self.held.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    fn call(&self, function: usize, payload: &[u8], context: &Context) -> Result<Answer, Refusal> {
        self.executed.fetch_add(1, Ordering::SeqCst);
        Ok(Answer::Value(match function {
            0 => {
                if payload.len() >= 1 << 16 {
                    self.kept.lock().unwrap().push(context.share(payload));
                }
                payload.to_vec()
            }
            1 => return Ok(Answer::Refused(payload.to_vec())),
            2 => panic!("as it was told"),
            3 => {
                self.told.fetch_add(payload.len(), Ordering::SeqCst);
                Vec::new()
            }
            4 => self.told.load(Ordering::SeqCst).to_string().into_bytes(),
            5 => {
                let mut held = self.held.lock().unwrap();
                held.1 += 1;
                self.changed.notify_all();
                drop(self.changed.wait_while(held, |(released, _)| !*released).unwrap());
                Vec::new()
            }
            _ => vec![7; std::str::from_utf8(payload).ok().and_then(|n| n.parse().ok()).unwrap_or(0)],
        }))
    }
}

impl Processor for Toy {
    fn service(&self) -> &'static ServiceDescriptor {
        &TOY
    }

    fn process<'a, I: Input<'a>, R: Responder>(
        &self,
        function: usize,
        input: &mut I,
        context: &Context,
        responder: R,
    ) -> R::Done {
        assert!(context.tcp && context.session >= 1 << 63);
        let mut payload = None;
        let read = read_arguments(input, |id, kind, input| {
            match (id, kind) {
                (1, TType::Binary) => payload = Some(input.read_slice()?),
                (2, TType::List) => drop(read_list(input, I::read_i64)?),
                _ => return Ok(false),
            }
            Ok(true)
        });
        let payload = read.map_err(Refusal::from).and_then(|()| required(payload, "payload"));
        responder.respond(payload.and_then(|payload| self.call(function, payload, context)))
    }
}

/// The arguments of all functions.
pub(super) struct Payload<'a>(pub(super) &'a [u8]);

impl Arguments for Payload<'_> {
    fn size<P: TLengthProtocol>(&self, protocol: &mut P) -> usize {
        protocol.field_begin_len(TType::Binary, Some(1))
            + protocol.bytes_len(self.0)
            + protocol.field_stop_len()
    }

    fn encode<'s, P: Output<'s>>(&'s self, protocol: &mut P) -> Result<(), ThriftException> {
        protocol.write_struct_begin(&ARGUMENTS)?;
        protocol.write_field_begin(TType::Binary, 1)?;
        protocol.write_slice(self.0)?;
        protocol.write_field_end()?;
        protocol.write_field_stop()?;
        protocol.write_struct_end()
    }
}

/// The result of all functions, which declare one exception.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Value(Vec<u8>),
    Refused(Vec<u8>),
}

impl Answer {
    fn field(&self) -> (i16, &[u8]) {
        match self {
            Answer::Value(bytes) => (0, bytes),
            Answer::Refused(bytes) => (1, bytes),
        }
    }
}

impl Message for Answer {
    fn encode<T: TOutputProtocol>(&self, protocol: &mut T) -> Result<(), ThriftException> {
        let (id, bytes) = self.field();
        protocol.write_struct_begin(&TStructIdentifier { name: "answer" })?;
        protocol.write_field_begin(TType::Binary, id)?;
        protocol.write_bytes_vec(bytes)?;
        protocol.write_field_end()?;
        protocol.write_field_stop()?;
        protocol.write_struct_end()
    }

    fn decode<T: TInputProtocol>(protocol: &mut T) -> Result<Self, ThriftException> {
        let mut answer = None;
        protocol.read_struct_begin()?;
        loop {
            match protocol.read_field_begin()? {
                TFieldIdentifier { field_type: TType::Stop, .. } => break,
                TFieldIdentifier { field_type: TType::Binary, id: Some(0), .. } => {
                    answer = Some(Answer::Value(protocol.read_bytes_vec()?));
                }
                TFieldIdentifier { field_type: TType::Binary, id: Some(1), .. } => {
                    answer = Some(Answer::Refused(protocol.read_bytes_vec()?));
                }
                other => drop(protocol.skip(other.field_type)?),
            }
            protocol.read_field_end()?;
        }
        protocol.read_struct_end()?;
        let missing = || ApplicationException::new(ApplicationExceptionKind::MISSING_RESULT, "no result");
        answer.ok_or_else(|| missing().into())
    }

    async fn decode_async<T: TAsyncInputProtocol>(_: &mut T) -> Result<Self, ThriftException> {
        Err(ApplicationException::new(ApplicationExceptionKind::UNKNOWN, "nothing is read so").into())
    }

    fn size<T: TLengthProtocol>(&self, protocol: &mut T) -> usize {
        let (id, bytes) = self.field();
        protocol.field_begin_len(TType::Binary, Some(id))
            + protocol.bytes_len(bytes)
            + protocol.field_stop_len()
    }
}

impl Outcome for Answer {
    type Value = Vec<u8>;
    type Exception = Vec<u8>;
    const THROWS: bool = true;

    fn of(result: Result<Vec<u8>, Failure<Vec<u8>>>) -> Result<Self, Refusal> {
        match result {
            Ok(bytes) => Ok(Answer::Value(bytes)),
            Err(Failure::Exception(bytes)) => Ok(Answer::Refused(bytes)),
            Err(Failure::Application(exception)) => Err(Refusal::Application(exception)),
        }
    }

    fn into_result(self) -> Result<Vec<u8>, Vec<u8>> {
        match self {
            Answer::Value(bytes) => Ok(bytes),
            Answer::Refused(bytes) => Err(bytes),
        }
    }

    fn value(&self) -> Option<&Vec<u8>> {
        match self {
            Answer::Value(bytes) => Some(bytes),
            Answer::Refused(_) => None,
        }
    }

    fn value_size(value: &Vec<u8>) -> usize {
        value.len()
    }

    fn encode_value(value: &Vec<u8>, output: &mut BinaryOutput<'_>) -> Result<(), ThriftException> {
        output.write_rest(value)
    }

    fn decode_value<E: From<CallError>>(input: &mut BinaryInput<'_>) -> Result<Vec<u8>, E> {
        Ok(input.read_rest().to_vec())
    }
}

/// The error of a call.
#[derive(Debug)]
pub(super) enum ToyError {
    Refused(Vec<u8>),
    Call(CallError),
}

impl ToyError {
    pub(super) fn certainty(&self) -> Certainty {
        match self {
            ToyError::Refused(_) => Certainty::Executed,
            ToyError::Call(error) => error.certainty(),
        }
    }
}

impl From<CallError> for ToyError {
    fn from(error: CallError) -> Self {
        ToyError::Call(error)
    }
}

impl From<Vec<u8>> for ToyError {
    fn from(why: Vec<u8>) -> Self {
        ToyError::Refused(why)
    }
}

impl std::fmt::Display for ToyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ToyError::Refused(why) => write!(f, "refused: {why:?}"),
            ToyError::Call(error) => write!(f, "{error}"),
        }
    }
}

/// Returns the bytes of a message.
pub(super) fn message(wire: Wire, head: Head<'_>, payload: &[u8]) -> Vec<u8> {
    let arguments = Payload(payload);
    let mut bytes = Outgoing::default();
    append(&mut bytes, wire, 1 << 30, &head, &OfArguments(&arguments)).unwrap();
    bytes.to_vec()
}

/// Returns the bytes of a call.
pub(super) fn call(wire: Wire, name: &str, sequence: i32, payload: &[u8]) -> Vec<u8> {
    message(wire, Head { name: name.as_bytes(), kind: CALL, sequence, old: false }, payload)
}
