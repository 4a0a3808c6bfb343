//! The two forms of arguments and results on the engine.
//!
//! *Tagged* is a Thrift struct in the binary encoding, which any other IDL's side can read: each field has type and id
//! before it. *Bare* is for a client and a server that agree on a function's arguments and value, field by field: the
//! arguments follow each other with nothing between them, so do the fields of structs ([`Bare`](crate::Bare)), and a `binary`
//! or `string` that comes last takes what is left of the message. So 32 bytes of data take 32 bytes, which is what the first
//! line of a message has room for. Who agrees is found out when the client connects ([`introduction`](crate::introduction)),
//! by the function's [`Shape`](crate::Shape); each form has a function id of its own.
//!
//! A bare result is the value, in the same way. Where exceptions are declared, a result of more than
//! [`SHORT`] bytes says in its last byte what it is: 0, and the value stands before it; 1, and a tagged result
//! does, which is an exception. Shorter ones are values: exceptions are filled up with zeros.

use crate::arguments::{Arguments, Outcome};
use crate::codec::{BinaryInput, BinaryOutput};
use crate::error::CallError;
use dunlin_rpc::Filling;
use pilota::thrift::{ProtocolExceptionKind, ThriftException, new_protocol_exception};

/// The longest bare result of a function with exceptions that does not say what it is: what the first line of a message
/// has room for.
const SHORT: usize = 32;
/// The last byte of a longer one: a value.
const VALUE: u8 = 0;
/// The last byte of a longer one: a tagged result.
const TAGGED: u8 = 1;

/// Where something is encoded, and who is told of large payloads of it while that goes on.
pub(crate) type Place<'a> = (&'a mut [u8], Option<&'a mut dyn Filling>);

/// How a call's arguments and result are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As Thrift structs.
    Tagged,
    /// Without anything that both sides know.
    Bare,
}

impl Form {
    /// The arguments as they lie with the caller, if that is what is sent.
    #[inline]
    pub(crate) fn raw<A: Arguments>(self, arguments: &A) -> Option<&[u8]> {
        match self {
            Form::Bare => arguments.raw(),
            Form::Tagged => None,
        }
    }

    /// Bytes of the arguments.
    #[inline]
    pub(crate) fn size<A: Arguments>(self, arguments: &A) -> usize {
        match self {
            Form::Bare => arguments.bare_size(),
            Form::Tagged => arguments.size(&mut BinaryOutput::new(&mut [])),
        }
    }

    /// Writes the arguments into a place of just their size.
    #[inline]
    pub(crate) fn encode<A: Arguments>(self, arguments: &A, place: &mut [u8]) -> Result<(), ThriftException> {
        self.encode_filling(arguments, (place, None))
    }

    /// As [`encode`](Form::encode), telling how far it is.
    #[inline]
    pub(crate) fn encode_filling<A: Arguments>(
        self,
        arguments: &A,
        (place, filling): Place<'_>,
    ) -> Result<(), ThriftException> {
        let mut output = BinaryOutput::filling(place, filling);
        match self {
            Form::Bare => arguments.encode_bare(&mut output),
            Form::Tagged => arguments.encode(&mut output),
        }
    }

    /// Bytes of a result.
    #[inline]
    pub(crate) fn result_size<R: Outcome>(self, result: &R) -> usize {
        match (self, result.value()) {
            (Form::Tagged, _) => result.size(&mut BinaryOutput::new(&mut [])),
            (Form::Bare, Some(value)) => bare_size::<R>(value),
            (Form::Bare, None) => result.size(&mut BinaryOutput::new(&mut [])).max(SHORT) + 1,
        }
    }

    /// Writes a result into a place of just its size.
    #[inline]
    pub(crate) fn encode_result<R: Outcome>(
        self,
        result: &R,
        (place, filling): Place<'_>,
    ) -> Result<(), ThriftException> {
        match (self, result.value()) {
            (Form::Tagged, _) => result.encode(&mut BinaryOutput::filling(place, filling)),
            (Form::Bare, Some(value)) => encode_bare::<R>(value, (place, filling)),
            (Form::Bare, None) => {
                // What is longer than the exception stays zero.
                place.fill(0);
                if let Some(last) = place.last_mut() {
                    *last = TAGGED;
                }
                result.encode(&mut BinaryOutput::new(place))
            }
        }
    }

    /// Reads a result.
    #[inline]
    pub(crate) fn decode<R: Outcome>(self, bytes: &[u8]) -> Result<R::Value, CallError<R::Exception>> {
        match self {
            Form::Bare => decode_bare::<R>(bytes),
            Form::Tagged => decode_tagged::<R>(bytes),
        }
    }
}

/// Bytes of a value's bare form in a result.
#[inline]
pub(crate) fn bare_size<R: Outcome>(value: &R::Value) -> usize {
    let size = R::value_size(value);
    size + usize::from(R::THROWS && size > SHORT)
}

/// Writes a value's bare form into a place of just its size.
#[inline]
pub(crate) fn encode_bare<R: Outcome>(
    value: &R::Value,
    (place, filling): Place<'_>,
) -> Result<(), ThriftException> {
    let says = R::THROWS && place.len() > SHORT;
    let (place, last) = place.split_at_mut(place.len() - usize::from(says));
    last.fill(VALUE);
    R::encode_value(value, &mut BinaryOutput::filling(place, filling))
}

#[inline]
fn decode_bare<R: Outcome>(bytes: &[u8]) -> Result<R::Value, CallError<R::Exception>> {
    let bytes = match bytes.split_last() {
        Some((last, bytes)) if R::THROWS && bytes.len() >= SHORT => match *last {
            VALUE => bytes,
            TAGGED => return decode_tagged::<R>(bytes),
            other => return Err(CallError::Decode(unknown(other))),
        },
        _ => bytes,
    };
    let mut input = BinaryInput::bare(bytes);
    let mut result = R::decode_value(&mut input);
    if let (Ok(_), Err(error)) = (&result, input.end()) {
        result = Err(CallError::Decode(error));
    }
    result
}

#[inline]
fn decode_tagged<R: Outcome>(bytes: &[u8]) -> Result<R::Value, CallError<R::Exception>> {
    match R::decode(&mut BinaryInput::new(bytes)) {
        Ok(outcome) => outcome.into_result().map_err(CallError::Exception),
        Err(error) => Err(CallError::Decode(error)),
    }
}

#[cold]
fn unknown(what: u8) -> ThriftException {
    new_protocol_exception(
        ProtocolExceptionKind::InvalidData,
        format!("a result is said to be of kind {what}, and there are 0 and 1"),
    )
}
