//! Shapes: the types of a function's arguments and value, down to the fields of nested structs. The bare form
//! requires equal shapes on both sides.
//!
//! A server sends the shape of each function as bytes ([`Shape::signature`]), and a client compares them with
//! its own when it connects. The comparison uses the whole signature, not a hash, so that different shapes
//! never compare equal. Signatures contain no names, since no encoding of Thrift does.

use crate::codec::{BinaryInput, BinaryOutput};
use pilota::thrift::{TType, ThriftException};

/// Bits of a signature's first byte: the function declares exceptions; the function has no bare form, or its
/// signature names inner structs without their fields.
const THROWS: u8 = 1;
pub(crate) const NOT_BARE: u8 = 2;

/// The longest signature, in bytes, because servers send signatures on each connection. A longer one is
/// shortened, and the function has no bare form.
const LONGEST: usize = 1024;

/// A shortened signature has the fields of structs down to less than this depth, as many as fit.
const SHORTENED: usize = 8;

/// Markers that begin a part other than a plain Thrift type in a signature. They lie beyond all type numbers.
pub(crate) const REST: u8 = 255;
pub(crate) const STRUCT: u8 = 254;
pub(crate) const LIST: u8 = 253;
pub(crate) const SET: u8 = 252;
pub(crate) const MAP: u8 = 251;
pub(crate) const LACKING: u8 = 250;

/// The bare form's type of an argument, value, field or element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Encoded as in Thrift's binary encoding: scalars, and structs with an id and type before each field.
    /// Such structs are unions, recursive structs and structs without fields.
    Whole(TType),
    /// A `binary` or `string` that extends to the end of the message.
    Rest,
    /// A struct of these fields in the order of the IDL, without headers. A bitmap of the optional fields
    /// that are present comes first, one bit each, lowest bit first.
    Struct(&'static [Field]),
    /// A list of these elements after Thrift's list header.
    List(&'static Part),
    /// A set of these elements after Thrift's set header.
    Set(&'static Part),
    /// A map of these keys and values after Thrift's map header.
    Map(&'static Part, &'static Part),
    /// An argument or field that a sender may leave out although the receiver takes a value: an optional
    /// argument, or one with a default.
    Lacking(&'static Part),
}

/// A field of a struct in the bare form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's id in the IDL.
    pub id: i16,
    /// Whether the field is optional.
    pub optional: bool,
    /// The field's type.
    pub part: Part,
}

/// The argument and value types of a function. The bare form is used if they are equal on both sides.
/// Different types of one field or of the value are refused when a client connects (`signature.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The ids and types of the arguments in the order of the IDL.
    pub arguments: &'static [(i16, Part)],
    /// The value's type; `Void` if the function returns nothing.
    pub value: Part,
    /// Whether the function declares exceptions.
    pub throws: bool,
    /// Whether the function has a bare form: all arguments are always present.
    pub bare: bool,
}

/// A struct that has a bare form.
pub trait Bare: Sized {
    /// The fields of the struct.
    const FIELDS: &'static [Field];

    /// Returns the size of the bare form in bytes.
    fn bare_size(&self) -> usize;

    /// Writes the bare form.
    fn encode_bare(&self, output: &mut BinaryOutput<'_>) -> Result<(), ThriftException>;

    /// Reads the bare form.
    fn decode_bare(input: &mut BinaryInput<'_>) -> Result<Self, ThriftException>;
}

impl Part {
    /// Appends the part to a signature, with the fields of structs down to a depth. Stops when the signature
    /// is already too long: nested structs that contain each struct twice would grow it exponentially.
    fn tell(self, bytes: &mut Vec<u8>, depth: usize) {
        if bytes.len() > LONGEST {
            return;
        }
        match self {
            Part::Whole(kind) => bytes.push(kind as u8),
            Part::Rest => bytes.push(REST),
            Part::Lacking(part) => {
                bytes.push(LACKING);
                part.tell(bytes, depth);
            }
            Part::Struct(_) if depth == 0 => bytes.push(TType::Struct as u8),
            Part::Struct(fields) => {
                bytes.push(STRUCT);
                // Ids go up to 32767.
                bytes.extend_from_slice(&(fields.len() as u16).to_le_bytes());
                for field in fields {
                    bytes.extend_from_slice(&field.id.to_le_bytes());
                    bytes.push(u8::from(field.optional));
                    field.part.tell(bytes, depth - 1);
                }
            }
            Part::List(element) => {
                bytes.push(LIST);
                element.tell(bytes, depth);
            }
            Part::Set(element) => {
                bytes.push(SET);
                element.tell(bytes, depth);
            }
            Part::Map(key, value) => {
                bytes.push(MAP);
                key.tell(bytes, depth);
                value.tell(bytes, depth);
            }
        }
    }
}

impl Shape {
    /// Returns the signature, which is equal for equal shapes. If it would be too long, inner structs are
    /// named without their fields; `None` if it is too long even so.
    pub fn signature(&self) -> Option<Vec<u8>> {
        let throws = if self.throws { THROWS } else { 0 };
        let bare = if self.bare { 0 } else { NOT_BARE };
        let shortened = (0..SHORTENED).rev().map(|depth| (depth, NOT_BARE));
        std::iter::once((usize::MAX, bare)).chain(shortened).find_map(|(depth, bare)| {
            let mut bytes = vec![throws | bare];
            self.value.tell(&mut bytes, depth);
            for (id, argument) in self.arguments {
                bytes.extend_from_slice(&id.to_le_bytes());
                argument.tell(&mut bytes, depth);
            }
            (bytes.len() <= LONGEST).then_some(bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::is_bare;
    use std::collections::HashSet;

    const NUMBER: Part = Part::Whole(TType::I32);
    const TEXT: Part = Part::Whole(TType::Binary);

    const fn field(id: i16, optional: bool, part: Part) -> Field {
        Field { id, optional, part }
    }

    fn signature(value: Part) -> Vec<u8> {
        Shape { arguments: &[], value, throws: false, bare: true }.signature().unwrap()
    }

    /// Any difference in the encoded bytes or in required fields changes the signature.
    #[test]
    fn what_differs_is_told_apart() {
        const PARTS: [Part; 20] = [
            Part::Lacking(&NUMBER),
            NUMBER,
            TEXT,
            Part::Rest,
            Part::Whole(TType::Struct),
            Part::Struct(&[field(1, false, NUMBER)]),
            Part::Struct(&[field(2, false, NUMBER)]),
            Part::Struct(&[field(1, true, NUMBER)]),
            Part::Struct(&[field(1, false, TEXT)]),
            Part::Struct(&[field(1, false, NUMBER), field(2, false, NUMBER)]),
            Part::Struct(&[field(2, false, NUMBER), field(1, false, NUMBER)]),
            Part::Struct(&[field(1, false, Part::Struct(&[field(1, false, NUMBER)]))]),
            Part::Struct(&[field(1, false, Part::Struct(&[field(1, true, NUMBER)]))]),
            Part::List(&NUMBER),
            Part::List(&TEXT),
            Part::List(&Part::List(&NUMBER)),
            Part::List(&Part::Struct(&[field(1, false, NUMBER)])),
            Part::Set(&NUMBER),
            Part::Map(&NUMBER, &TEXT),
            Part::Map(&TEXT, &NUMBER),
        ];
        let told: HashSet<_> = PARTS.into_iter().map(signature).collect();
        assert_eq!(told.len(), PARTS.len());
        let arguments = &[(1, NUMBER), (2, TEXT)];
        let shape = Shape { arguments, value: NUMBER, throws: false, bare: true };
        let other = Shape { throws: true, ..shape };
        let tagged = Shape { bare: false, ..shape };
        let fewer = Shape { arguments: &[(1, NUMBER)], ..shape };
        let ids = Shape { arguments: &[(2, NUMBER), (1, TEXT)], ..shape };
        let told = [shape, other, tagged, fewer, ids].map(|shape| shape.signature().unwrap());
        assert_eq!(told.each_ref().map(|told| is_bare(told)), [true, true, false, true, true]);
        assert_eq!(HashSet::from(told).len(), 5);
    }

    /// Each struct contains the previous one twice, so the whole signature would be 2^32 times as long.
    #[test]
    fn what_is_too_long_is_shortened() {
        let mut part = NUMBER;
        for _ in 0..32 {
            part = Part::Struct(Box::leak(Box::new([field(1, false, part), field(2, false, part)])));
        }
        let shape = Shape { arguments: &[], value: part, throws: false, bare: true };
        let told = shape.signature().unwrap();
        assert!(told.len() > 100 && told.len() <= LONGEST && !is_bare(&told), "{}", told.len());
        let arguments: Vec<_> = (1..1000).map(|id| (id, NUMBER)).collect();
        assert_eq!(Shape { arguments: arguments.leak(), ..shape }.signature(), None);
    }
}
