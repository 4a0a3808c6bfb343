//! Arguments and results: the structs that Thrift derives from a function's parameters and its return value.

use crate::codec::{BinaryInput, BinaryOutput, Input, Output};
use crate::error::{CallError, Failure, Refusal};
use pilota::thrift::{
    Message, ProtocolExceptionKind, TInputProtocol, TLengthProtocol, TStructIdentifier, TType,
    ThriftException, new_protocol_exception,
};
use pilota::{AHashMap, AHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;

/// The identifier of the struct that holds a call's arguments; no encoding writes its name.
pub static ARGUMENTS: TStructIdentifier = TStructIdentifier { name: "arguments" };

/// The arguments of a call, borrowed from the caller.
pub trait Arguments {
    /// Returns the encoded size in bytes.
    fn size<P: TLengthProtocol>(&self, protocol: &mut P) -> usize;

    /// Writes the arguments. The writer may keep references to the borrowed data for `'s`.
    fn encode<'s, P: Output<'s>>(&'s self, protocol: &mut P) -> Result<(), ThriftException>;

    /// Returns the bare form if it already exists in memory: the bytes of a single `binary` or `string`.
    #[inline]
    fn raw(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the size of the bare form in bytes. Not called for functions without a
    /// [`Shape`](crate::Shape).
    #[inline]
    fn bare_size(&self) -> usize {
        self.size(&mut BinaryOutput::new(&mut []))
    }

    /// Writes the bare form.
    #[inline]
    fn encode_bare(&self, output: &mut BinaryOutput<'_>) -> Result<(), ThriftException> {
        self.encode(output)
    }
}

/// The result of a function: its value or one of its declared exceptions.
pub trait Outcome: Message {
    /// The value's type.
    type Value: Debug + Send;
    /// The type of the declared exceptions, or [`Never`](crate::Never).
    type Exception: Debug + Send;

    /// Whether the function declares exceptions.
    const THROWS: bool;

    /// Converts a handler's result. The error is a failure that the function does not declare.
    fn of(result: Result<Self::Value, Failure<Self::Exception>>) -> Result<Self, Refusal>;

    /// Splits the outcome into the value or the exception.
    fn into_result(self) -> Result<Self::Value, Self::Exception>;

    /// Returns the value, or `None` for an exception.
    fn value(&self) -> Option<&Self::Value>;

    /// Returns the size of a value's bare form in bytes.
    fn value_size(value: &Self::Value) -> usize;

    /// Writes the bare form of a value.
    fn encode_value(value: &Self::Value, output: &mut BinaryOutput<'_>) -> Result<(), ThriftException>;

    /// Reads the bare form of a value. The value is built directly in the caller's result type: moving a
    /// freshly written string would stall on its partial stores.
    fn decode_value<E: From<CallError>>(input: &mut BinaryInput<'_>) -> Result<Self::Value, E>;
}

/// The error of the caller of a function with the outcome `R`: made from any failure of a call, and from the
/// function's declared exceptions. All suitable types implement it; generated code has one for each service.
pub trait ErrorOf<R: Outcome>: From<CallError> + From<R::Exception> + Debug + Send {}

impl<R: Outcome, E: From<CallError> + From<R::Exception> + Debug + Send> ErrorOf<R> for E {}

/// Reads the fields of an argument list. `field` gets the id and type of each field, reads it if it knows it,
/// and returns whether it did. Unknown fields are skipped, since a newer client may send more.
#[inline]
pub fn read_arguments<'a, I: Input<'a>>(
    input: &mut I,
    mut field: impl FnMut(i16, TType, &mut I) -> Result<bool, ThriftException>,
) -> Result<(), ThriftException> {
    input.read_struct_begin()?;
    loop {
        let header = input.read_field_begin()?;
        if header.field_type == TType::Stop {
            break;
        }
        let id = header.id.unwrap_or_default();
        match field(id, header.field_type, input) {
            Ok(true) => {}
            Ok(false) => drop(input.skip(header.field_type)?),
            Err(mut error) => {
                error.prepend_msg(&format!("argument {id}: "));
                return Err(error);
            }
        }
        input.read_field_end()?;
    }
    input.read_struct_end()
}

/// Returns the argument, or a refusal if it is missing.
#[inline]
pub fn required<T>(argument: Option<T>, name: &'static str) -> Result<T, Refusal> {
    argument.ok_or_else(|| missing(name))
}

/// Returns the refusal of a call with a missing argument.
#[cold]
fn missing(name: &'static str) -> Refusal {
    Refusal::Malformed(new_protocol_exception(
        ProtocolExceptionKind::InvalidData,
        format!("the argument '{name}' is missing: was the client built from an older IDL?"),
    ))
}

/// Returns the initial capacity for a container whose message claims `size` elements. It is bounded, because
/// the claim is untrusted; the container grows as elements are read.
#[inline]
pub fn room(size: usize) -> usize {
    size.min(1024)
}

/// Reads a list.
pub fn read_list<I: TInputProtocol, T>(
    input: &mut I,
    mut element: impl FnMut(&mut I) -> Result<T, ThriftException>,
) -> Result<Vec<T>, ThriftException> {
    let header = input.read_list_begin()?;
    let mut list = Vec::with_capacity(room(header.size));
    for _ in 0..header.size {
        list.push(element(input)?);
    }
    input.read_list_end()?;
    Ok(list)
}

/// Reads a set.
pub fn read_set<I: TInputProtocol, T: Eq + Hash>(
    input: &mut I,
    mut element: impl FnMut(&mut I) -> Result<T, ThriftException>,
) -> Result<AHashSet<T>, ThriftException> {
    let header = input.read_set_begin()?;
    let mut set = AHashSet::with_capacity(room(header.size));
    for _ in 0..header.size {
        set.insert(element(input)?);
    }
    input.read_set_end()?;
    Ok(set)
}

/// Reads a map.
pub fn read_map<I: TInputProtocol, K: Eq + Hash, V>(
    input: &mut I,
    mut key: impl FnMut(&mut I) -> Result<K, ThriftException>,
    mut value: impl FnMut(&mut I) -> Result<V, ThriftException>,
) -> Result<AHashMap<K, V>, ThriftException> {
    let header = input.read_map_begin()?;
    let mut map = AHashMap::with_capacity(room(header.size));
    for _ in 0..header.size {
        map.insert(key(input)?, value(input)?);
    }
    input.read_map_end()?;
    Ok(map)
}

/// Reads a set into a `BTreeSet`.
pub fn read_ordered_set<I: TInputProtocol, T: Ord>(
    input: &mut I,
    mut element: impl FnMut(&mut I) -> Result<T, ThriftException>,
) -> Result<BTreeSet<T>, ThriftException> {
    let header = input.read_set_begin()?;
    let mut set = BTreeSet::new();
    for _ in 0..header.size {
        set.insert(element(input)?);
    }
    input.read_set_end()?;
    Ok(set)
}

/// Reads a map into a `BTreeMap`.
pub fn read_ordered_map<I: TInputProtocol, K: Ord, V>(
    input: &mut I,
    mut key: impl FnMut(&mut I) -> Result<K, ThriftException>,
    mut value: impl FnMut(&mut I) -> Result<V, ThriftException>,
) -> Result<BTreeMap<K, V>, ThriftException> {
    let header = input.read_map_begin()?;
    let mut map = BTreeMap::new();
    for _ in 0..header.size {
        map.insert(key(input)?, value(input)?);
    }
    input.read_map_end()?;
    Ok(map)
}
