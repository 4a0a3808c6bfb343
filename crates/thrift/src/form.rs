//! The two encoding forms of arguments and results on the engine.
//!
//! *Tagged*: a Thrift struct in the binary encoding, with type and id before each field. A peer built from a
//! different version of the IDL can read it.
//!
//! *Bare*: for a client and a server that agree on the function's arguments and value, field by field. The
//! arguments follow each other without headers, and so do the fields of structs ([`Bare`](crate::Bare)). A
//! trailing `binary` or `string` has no length: it extends to the end of the message. 32 bytes of data thus
//! take 32 bytes, which fit in the first cache line of a message. The two sides compare the function's
//! [`Shape`](crate::Shape) when the client connects ([`introduction`](crate::introduction)). Each form has
//! its own function id.
//!
//! A bare result is the encoded value. If the function declares exceptions, a result longer than [`SHORT`]
//! bytes ends with a kind byte: 0 after a value, 1 after a tagged result, which holds an exception. Shorter
//! results are always values: the encoding pads exceptions with zeros to exceed [`SHORT`].

use dunlin_rpc::PayloadWriter;
use dunlin_thrift_core::codec::{BinaryInput, BinaryOutput};
use dunlin_thrift_core::{Arguments, CallError, ErrorOf, Outcome};
use pilota::thrift::{ProtocolExceptionKind, ThriftException, new_protocol_exception};

/// The longest bare result without a kind byte, for functions that declare exceptions: the payload capacity
/// of a message's first cache line.
const SHORT: usize = 32;
/// Kind byte of a longer result: a value.
const VALUE: u8 = 0;
/// Kind byte of a longer result: a tagged result.
const TAGGED: u8 = 1;

/// The destination of an encoding, and the observer that is notified of large payloads as they are copied.
pub(crate) type Place<'a> = (&'a mut [u8], Option<&'a mut dyn PayloadWriter>);

/// The encoding of a call's arguments and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Thrift structs, with types and field ids.
    Tagged,
    /// Values without types and field ids, which both sides know.
    Bare,
}

impl Form {
    /// Returns the caller's own bytes if they already are the encoded arguments.
    #[inline]
    pub(crate) fn raw<A: Arguments>(self, arguments: &A) -> Option<&[u8]> {
        match self {
            Form::Bare => arguments.raw(),
            Form::Tagged => None,
        }
    }

    /// Returns the encoded size of the arguments in bytes.
    #[inline]
    pub(crate) fn size<A: Arguments>(self, arguments: &A) -> usize {
        match self {
            Form::Bare => arguments.bare_size(),
            Form::Tagged => arguments.size(&mut BinaryOutput::new(&mut [])),
        }
    }

    /// Encodes the arguments into `place`, whose length must be their exact size.
    #[inline]
    pub(crate) fn encode<A: Arguments>(self, arguments: &A, place: &mut [u8]) -> Result<(), ThriftException> {
        self.encode_filling(arguments, (place, None))
    }

    /// Encodes as [`encode`](Form::encode) does and reports progress to the observer.
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

    /// Returns the encoded size of a result in bytes.
    #[inline]
    pub(crate) fn result_size<R: Outcome>(self, result: &R) -> usize {
        match (self, result.value()) {
            (Form::Tagged, _) => result.size(&mut BinaryOutput::new(&mut [])),
            (Form::Bare, Some(value)) => bare_size::<R>(value),
            (Form::Bare, None) => result.size(&mut BinaryOutput::new(&mut [])).max(SHORT) + 1,
        }
    }

    /// Encodes a result into `place`, whose length must be its exact size.
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
                // The padding after the exception stays zero.
                place.fill(0);
                if let Some(last) = place.last_mut() {
                    *last = TAGGED;
                }
                result.encode(&mut BinaryOutput::new(place))
            }
        }
    }

    /// Decodes a result.
    #[inline]
    pub(crate) fn decode<R: Outcome, E: ErrorOf<R>>(self, bytes: &[u8]) -> Result<R::Value, E> {
        match self {
            Form::Bare => decode_bare::<R, E>(bytes),
            Form::Tagged => decode_tagged::<R, E>(bytes),
        }
    }
}

/// Returns the size of a value's bare form in a result, in bytes.
#[inline]
pub(crate) fn bare_size<R: Outcome>(value: &R::Value) -> usize {
    let size = R::value_size(value);
    size + usize::from(R::THROWS && size > SHORT)
}

/// Encodes a value's bare form into `place`, whose length must be its exact size.
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
fn decode_bare<R: Outcome, E: ErrorOf<R>>(bytes: &[u8]) -> Result<R::Value, E> {
    let bytes = match bytes.split_last() {
        Some((last, bytes)) if R::THROWS && bytes.len() >= SHORT => match *last {
            VALUE => bytes,
            TAGGED => return decode_tagged::<R, E>(bytes),
            other => return Err(CallError::Decode(unknown(other)).into()),
        },
        _ => bytes,
    };
    let mut input = BinaryInput::bare(bytes);
    let mut result = R::decode_value(&mut input);
    if let (Ok(_), Err(error)) = (&result, input.end()) {
        result = Err(CallError::Decode(error).into());
    }
    result
}

#[inline]
fn decode_tagged<R: Outcome, E: ErrorOf<R>>(bytes: &[u8]) -> Result<R::Value, E> {
    match R::decode(&mut BinaryInput::new(bytes)) {
        Ok(outcome) => outcome.into_result().map_err(E::from),
        Err(error) => Err(CallError::Decode(error).into()),
    }
}

#[cold]
fn unknown(what: u8) -> ThriftException {
    new_protocol_exception(
        ProtocolExceptionKind::InvalidData,
        format!("a result is said to be of kind {what}, and there are 0 and 1"),
    )
}
