//! What both sides have to know alike for the bare form: the types of a function's arguments and value, down to the fields of
//! the structs in them.
//!
//! A server tells the shape of each function as bytes ([`Shape::signature`]), and a client compares them with its own when it
//! connects. They are compared whole and not by a hash, so that what differs is never taken for the same. Names are not in
//! them: no encoding of Thrift has names either.

use crate::codec::{BinaryInput, BinaryOutput};
use pilota::thrift::{TType, ThriftException};

/// The longest signature. A function with a longer one has no bare form: signatures are told each time that a client connects.
const LONGEST: usize = 1024;

/// What begins a part that is not a plain type of Thrift, in a signature; beyond all numbers of types.
const REST: u8 = 255;
const STRUCT: u8 = 254;
const LIST: u8 = 253;
const SET: u8 = 252;
const MAP: u8 = 251;

/// An argument, value, field or element as both sides have to know it for the bare form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Encoded as Thrift does: scalars; and structs with ids and types before their fields, which any other IDL can read: unions,
    /// structs that may be within themselves, and those without fields.
    Whole(TType),
    /// A `binary` or `string` that takes what is left of the message.
    Rest,
    /// A struct of these fields, in the order of the IDL, with nothing between them: which of the optional ones are there stands
    /// before all of them, a bit each, the lowest first.
    Struct(&'static [Field]),
    /// A list of these, behind Thrift's head of a list.
    List(&'static Part),
    /// A set of these, behind Thrift's head of a set.
    Set(&'static Part),
    /// A map of these keys and values, behind Thrift's head of a map.
    Map(&'static Part, &'static Part),
}

/// A field of a struct in the bare form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The id in the IDL.
    pub id: i16,
    /// Whether it may be missing.
    pub optional: bool,
    /// What it is.
    pub part: Part,
}

/// What a function takes and gives: where it is the same on both sides, the bare form is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The ids of the arguments, all of which are always there, and what they are; in the order of the IDL.
    pub arguments: &'static [(i16, Part)],
    /// The value; of type `Void` if there is none.
    pub value: Part,
    /// Whether exceptions are declared.
    pub throws: bool,
}

/// A struct that has a bare form.
pub trait Bare: Sized {
    /// Its fields.
    const FIELDS: &'static [Field];

    /// Bytes of the bare form.
    fn bare_size(&self) -> usize;

    /// Writes the bare form.
    fn encode_bare(&self, output: &mut BinaryOutput<'_>) -> Result<(), ThriftException>;

    /// Reads the bare form.
    fn decode_bare(input: &mut BinaryInput<'_>) -> Result<Self, ThriftException>;
}

impl Part {
    /// Appends it. Of what is too long anyhow not everything is told: a struct that has others twice, which have others twice,
    /// would be told for ever.
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
    /// The shape as servers tell it: bytes that are equal if the shapes are. `None` for one that is too long to be told.
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

    /// Whatever differs in what lies on the wire, or in what has to be there, is told apart.
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

    /// Each has the one before twice: told in full it would be 2 to the power of 32 times as long.
    #[test]
    fn what_is_too_long_is_not_told() {
        let mut part = NUMBER;
        for _ in 0..32 {
            part = Part::Struct(Box::leak(Box::new([field(1, false, part), field(2, false, part)])));
        }
        assert_eq!(Shape { arguments: &[], value: part, throws: false }.signature(), None);
    }
}
