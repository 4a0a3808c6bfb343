//! Shapes: the types of a function's arguments and value, down to the fields of nested structs. The bare form
//! requires equal shapes on both sides.
//!
//! A server sends the shape of each function as bytes ([`Shape::signature`]), and a client compares them with
//! its own when it connects. The comparison uses the whole signature, not a hash, so that different shapes
//! never compare equal. Signatures contain no names, since no encoding of Thrift does.

use crate::codec::{BinaryInput, BinaryOutput};
use pilota::thrift::{TType, ThriftException};

/// The longest signature, in bytes. A function with a longer one has no bare form, because servers send
/// signatures on each connection.
const LONGEST: usize = 1024;

/// Markers that begin a part other than a plain Thrift type in a signature. They lie beyond all type numbers.
const REST: u8 = 255;
const STRUCT: u8 = 254;
const LIST: u8 = 253;
const SET: u8 = 252;
const MAP: u8 = 251;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The ids and types of the arguments in the order of the IDL. All arguments are always present.
    pub arguments: &'static [(i16, Part)],
    /// The value's type; `Void` if the function returns nothing.
    pub value: Part,
    /// Whether the function declares exceptions.
    pub throws: bool,
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
    /// Appends the part to a signature. Stops when the signature is already too long: nested structs that
    /// contain each struct twice would grow it exponentially.
    fn tell(self, bytes: &mut Vec<u8>) {
        if bytes.len() > LONGEST {
            return;
        }
        match self {
            Part::Whole(kind) => bytes.push(kind as u8),
            Part::Rest => bytes.push(REST),
            Part::Struct(fields) => {
                bytes.push(STRUCT);
                // Ids go up to 32767.
                bytes.extend_from_slice(&(fields.len() as u16).to_le_bytes());
                for field in fields {
                    bytes.extend_from_slice(&field.id.to_le_bytes());
                    bytes.push(u8::from(field.optional));
                    field.part.tell(bytes);
                }
            }
            Part::List(element) => {
                bytes.push(LIST);
                element.tell(bytes);
            }
            Part::Set(element) => {
                bytes.push(SET);
                element.tell(bytes);
            }
            Part::Map(key, value) => {
                bytes.push(MAP);
                key.tell(bytes);
                value.tell(bytes);
            }
        }
    }
}

impl Shape {
    /// Returns the signature, which is equal for equal shapes; `None` if it would be too long.
    pub(crate) fn signature(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![u8::from(self.throws)];
        self.value.tell(&mut bytes);
        for (id, argument) in self.arguments {
            bytes.extend_from_slice(&id.to_le_bytes());
            argument.tell(&mut bytes);
        }
        (bytes.len() <= LONGEST).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const NUMBER: Part = Part::Whole(TType::I32);
    const TEXT: Part = Part::Whole(TType::Binary);

    const fn field(id: i16, optional: bool, part: Part) -> Field {
        Field { id, optional, part }
    }

    fn signature(value: Part) -> Vec<u8> {
        Shape { arguments: &[], value, throws: false }.signature().unwrap()
    }

    /// Any difference in the encoded bytes or in required fields changes the signature.
    #[test]
    fn what_differs_is_told_apart() {
        const PARTS: [Part; 19] = [
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
        let shape = Shape { arguments: &[(1, NUMBER), (2, TEXT)], value: NUMBER, throws: false };
        let other = Shape { throws: true, ..shape };
        let fewer = Shape { arguments: &[(1, NUMBER)], ..shape };
        let ids = Shape { arguments: &[(2, NUMBER), (1, TEXT)], ..shape };
        let told: HashSet<_> = [shape, other, fewer, ids].map(|shape| shape.signature().unwrap()).into();
        assert_eq!(told.len(), 4);
    }

    /// Each struct contains the previous one twice, so the whole signature would be 2^32 times as long.
    #[test]
    fn what_is_too_long_is_not_told() {
        let mut part = NUMBER;
        for _ in 0..32 {
            part = Part::Struct(Box::leak(Box::new([field(1, false, part), field(2, false, part)])));
        }
        assert_eq!(Shape { arguments: &[], value: part, throws: false }.signature(), None);
    }
}
