//! Arguments and results: the structs that Thrift makes of a function's parameter list and of what it gives back.

use crate::codec::{BinaryInput, BinaryOutput, Input, Output};
use crate::error::{CallError, Failure, Refusal};
use pilota::thrift::{
    Message, ProtocolExceptionKind, TInputProtocol, TLengthProtocol, TStructIdentifier, TType,
    ThriftException, new_protocol_exception,
};
use pilota::{AHashMap, AHashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

/// The name of the struct that Thrift makes of arguments; no encoding writes it.
pub static ARGUMENTS: TStructIdentifier = TStructIdentifier { name: "arguments" };

/// The arguments of a call, borrowed from the caller.
pub trait Arguments {
    /// Bytes of the encoding.
    fn size<P: TLengthProtocol>(&self, protocol: &mut P) -> usize;

    /// Writes them. What they borrow, the writer may too.
    fn encode<'s, P: Output<'s>>(&'s self, protocol: &mut P) -> Result<(), ThriftException>;

    /// Their bare form, if it lies there already: a single `binary` or `string`.
    #[inline]
    fn raw(&self) -> Option<&[u8]> {
        None
    }

    /// Bytes of the bare form. Functions without a [`Shape`](crate::Shape) have none, and are not asked.
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

/// What a function gives back: its value or one of the exceptions that it declares.
pub trait Outcome: Message {
    /// What it returns.
    type Value: std::fmt::Debug + Send;
    /// The exceptions that it declares; [`Never`](crate::Never) if none.
    type Exception: std::fmt::Debug + Send;

    /// Whether it declares any.
    const THROWS: bool;

    /// Of what a handler gave; the error is what the function does not declare.
    fn of(result: Result<Self::Value, Failure<Self::Exception>>) -> Result<Self, Refusal>;

    /// Parts the two.
    fn into_result(self) -> Result<Self::Value, Self::Exception>;

    /// The value, unless it is an exception.
    fn value(&self) -> Option<&Self::Value>;

    /// Bytes of a value's bare form.
    fn value_size(value: &Self::Value) -> usize;

    /// Writes the bare form of a value.
    fn encode_value(value: &Self::Value, output: &mut BinaryOutput<'_>) -> Result<(), ThriftException>;

    /// Reads the bare form of a value. It is made in the type that the caller gets, so that it need not be moved there: a text is
    /// stored in pieces, and to load them as a whole shortly after waits for the stores.
    fn decode_value(input: &mut BinaryInput<'_>) -> Result<Self::Value, CallError<Self::Exception>>;
}

/// Reads the fields of an argument list. `field` gets the id and type of each, reads what it knows and says whether it did;
/// what it does not know is skipped, as a newer client may send more.
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

/// The argument, or the refusal of a call that lacks it.
#[inline]
pub fn required<T>(argument: Option<T>, name: &'static str) -> Result<T, Refusal> {
    argument.ok_or_else(|| missing(name))
}

/// The refusal of a call that lacks an argument.
#[cold]
fn missing(name: &'static str) -> Refusal {
    Refusal::Malformed(new_protocol_exception(
        ProtocolExceptionKind::InvalidData,
        format!("the argument '{name}' is missing: was the client built from an older IDL?"),
    ))
}

/// The elements to make room for when a message says that it has `size` of them: what is read for certain grows, and what
/// is only said takes no memory.
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

/// Reads a set that is kept in order.
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

/// Reads a map that is kept in order.
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
