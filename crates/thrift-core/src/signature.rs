//! The comparison of a function's signatures ([`Shape::signature`](crate::Shape::signature)) on both sides
//! when a client connects. Compatible changes of an IDL pass: more optional fields, fields of which the other
//! side knows nothing, other names. A field, argument or value with another type is refused, and so is a
//! required one that the sender does not have: no call of such a function could be understood.

use crate::shape::{LACKING, LIST, MAP, NOT_BARE, REST, SET, STRUCT};
use pilota::thrift::TType;

/// The deepest nesting that is compared. Deeper signatures are accepted without a comparison.
const DEEPEST: usize = 64;

/// A type in a signature.
#[derive(Debug, PartialEq, Eq)]
enum Type {
    /// A type by its number in Thrift. A struct may stand here without its fields.
    Plain(u8),
    Struct(Vec<Field>),
    List(Box<Type>),
    Set(Box<Type>),
    Map(Box<Type>, Box<Type>),
}

/// An argument, or a field of a struct.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    id: i16,
    /// Whether a receiver refuses a message without it.
    required: bool,
    ty: Type,
}

#[derive(Debug, PartialEq, Eq)]
struct Signature {
    value: Type,
    arguments: Vec<Field>,
}

/// Reads a signature. Returns `None` if a part of it is malformed or unknown to this build.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    /// Returns a type, and whether a value of it may be missing.
    fn ty(&mut self, depth: usize) -> Option<(Type, bool)> {
        let inner = |reader: &mut Self| Some(Box::new(reader.ty(depth.checked_sub(1)?)?.0));
        let ty = match self.byte()? {
            REST => Type::Plain(TType::Binary as u8),
            LACKING => return Some((self.ty(depth.checked_sub(1)?)?.0, true)),
            LIST => Type::List(inner(self)?),
            SET => Type::Set(inner(self)?),
            MAP => Type::Map(inner(self)?, inner(self)?),
            STRUCT => {
                // No capacity is reserved, because the count is untrusted.
                let mut fields = Vec::new();
                for _ in 0..self.number()? {
                    let (id, optional) = (self.number()? as i16, self.byte()? != 0);
                    let (ty, lacking) = self.ty(depth.checked_sub(1)?)?;
                    fields.push(Field { id, required: !optional && !lacking, ty });
                }
                Type::Struct(fields)
            }
            plain if plain <= TType::Uuid as u8 => Type::Plain(plain),
            _ => return None,
        };
        Some((ty, false))
    }

    fn signature(mut self) -> Option<Signature> {
        let _throws = self.byte()?;
        let value = self.ty(DEEPEST)?.0;
        let mut arguments = Vec::new();
        while !self.0.is_empty() {
            let id = self.number()? as i16;
            let (ty, lacking) = self.ty(DEEPEST)?;
            arguments.push(Field { id, required: !lacking, ty });
        }
        Some(Signature { value, arguments })
    }
}

impl Type {
    fn name(&self) -> String {
        let plain = |number: u8| {
            const NAMES: [(TType, &str); 13] = [
                (TType::Void, "void"),
                (TType::Bool, "bool"),
                (TType::I8, "i8"),
                (TType::Double, "double"),
                (TType::I16, "i16"),
                (TType::I32, "i32 or an enum"),
                (TType::I64, "i64"),
                (TType::Binary, "string or binary"),
                (TType::Struct, "a struct"),
                (TType::Map, "a map"),
                (TType::Set, "a set"),
                (TType::List, "a list"),
                (TType::Uuid, "uuid"),
            ];
            let name = NAMES.iter().find(|(ty, _)| *ty as u8 == number).map(|(_, name)| (*name).to_owned());
            name.unwrap_or_else(|| format!("type {number}"))
        };
        match self {
            Type::Plain(number) => plain(*number),
            Type::Struct(_) => plain(TType::Struct as u8),
            Type::List(_) => plain(TType::List as u8),
            Type::Set(_) => plain(TType::Set as u8),
            Type::Map(..) => plain(TType::Map as u8),
        }
    }

    /// Returns the type's number in Thrift.
    fn number(&self) -> u8 {
        match self {
            Type::Plain(number) => *number,
            Type::Struct(_) => TType::Struct as u8,
            Type::List(_) => TType::List as u8,
            Type::Set(_) => TType::Set as u8,
            Type::Map(..) => TType::Map as u8,
        }
    }
}

/// The side that sends a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Client,
    Server,
}

/// Returns the first difference between the types of a value in which it cannot be understood. `place` names
/// the value.
fn differs(client: &Type, server: &Type, sender: Sender, place: &str) -> Option<String> {
    match (client, server) {
        (Type::Struct(ours), Type::Struct(theirs)) => fields_differ(ours, theirs, sender, place, "field"),
        (Type::List(ours), Type::List(theirs)) | (Type::Set(ours), Type::Set(theirs)) => {
            differs(ours, theirs, sender, &format!("{place}, element"))
        }
        (Type::Map(our_key, our_value), Type::Map(their_key, their_value)) => {
            differs(our_key, their_key, sender, &format!("{place}, key"))
                .or_else(|| differs(our_value, their_value, sender, &format!("{place}, value")))
        }
        _ if client.number() == server.number() => None,
        _ => Some(format!("{place} is {} here and {} on the server", client.name(), server.name())),
    }
}

fn fields_differ(
    client: &[Field],
    server: &[Field],
    sender: Sender,
    place: &str,
    kind: &str,
) -> Option<String> {
    let named = |id: i16| match place {
        "" => format!("{kind} {id}"),
        place => format!("{place}, {kind} {id}"),
    };
    let other = client.iter().find_map(|ours| {
        let theirs = server.iter().find(|theirs| theirs.id == ours.id)?;
        differs(&ours.ty, &theirs.ty, sender, &named(ours.id))
    });
    let (sent, received, receiver) = match sender {
        Sender::Client => (client, server, "the server"),
        Sender::Server => (server, client, "this client"),
    };
    let lacking = || {
        let lacks = |field: &&Field| field.required && sent.iter().all(|other| other.id != field.id);
        let field = received.iter().find(lacks)?;
        Some(format!("{} is required by {receiver} and is not sent", named(field.id)))
    };
    other.or_else(lacking)
}

/// Returns whether a function with this signature has a bare form.
pub fn is_bare(signature: &[u8]) -> bool {
    signature.first().is_some_and(|first| first & NOT_BARE == 0)
}

/// Returns the first difference between a client's and a server's signature of a function because of which
/// no call could be understood. `None` if they do not differ, or if a signature is missing or not known to this
/// build.
pub fn difference(client: &[u8], server: &[u8]) -> Option<String> {
    if client == server {
        return None;
    }
    let (client, server) = (Reader(client).signature()?, Reader(server).signature()?);
    fields_differ(&client.arguments, &server.arguments, Sender::Client, "", "argument")
        .or_else(|| differs(&client.value, &server.value, Sender::Server, "the result"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Field as ShapeField, Part, Shape};
    use proptest::prelude::*;

    const NUMBER: Part = Part::Whole(TType::I32);
    const LONG: Part = Part::Whole(TType::I64);
    const TEXT: Part = Part::Whole(TType::Binary);
    const NOTHING: Part = Part::Whole(TType::Void);

    fn required(id: i16, part: Part) -> ShapeField {
        ShapeField { id, optional: false, part }
    }

    fn optional(id: i16, part: Part) -> ShapeField {
        ShapeField { id, optional: true, part }
    }

    fn part(fields: &[ShapeField]) -> Part {
        Part::Struct(fields.to_vec().leak())
    }

    fn shape(arguments: &[(i16, Part)], value: Part) -> Vec<u8> {
        let arguments: &'static [(i16, Part)] = arguments.to_vec().leak();
        Shape { arguments, value, throws: false, bare: true }.signature().unwrap()
    }

    #[test]
    fn compatible_changes_pass_in_both_directions() {
        let pair = part(&[required(1, NUMBER), optional(2, TEXT)]);
        let longer = part(&[required(1, NUMBER), optional(2, TEXT), optional(3, LONG)]);
        for (one, other) in [
            (shape(&[(1, NUMBER)], TEXT), shape(&[(1, NUMBER), (2, Part::Lacking(&TEXT))], TEXT)),
            (shape(&[(1, pair)], longer), shape(&[(1, longer)], pair)),
            (shape(&[(1, TEXT)], TEXT), shape(&[(1, Part::Rest)], Part::Rest)),
            (shape(&[(1, Part::Whole(TType::Struct))], NOTHING), shape(&[(1, pair)], NOTHING)),
            (shape(&[], part(&[required(1, NUMBER)])), shape(&[], part(&[optional(1, NUMBER)]))),
            (shape(&[], NOTHING), Vec::new()),
            // A part that a later build may define.
            (shape(&[], NOTHING), vec![0, 200]),
        ] {
            assert_eq!((difference(&one, &other), difference(&other, &one)), (None, None));
        }
        // An argument of which the server knows nothing.
        assert_eq!(difference(&shape(&[(1, NUMBER), (2, TEXT)], TEXT), &shape(&[(1, NUMBER)], TEXT)), None);
    }

    #[test]
    fn incompatible_changes_are_named() {
        let differ = |client: &[u8], server: &[u8]| difference(client, server).expect("they differ");
        let one = shape(&[(1, NUMBER)], NOTHING);
        assert_eq!(
            differ(&one, &shape(&[(1, TEXT)], NOTHING)),
            "argument 1 is i32 or an enum here and string or binary on the server"
        );
        assert_eq!(
            differ(&one, &shape(&[(1, NUMBER)], LONG)),
            "the result is void here and i64 on the server"
        );
        assert_eq!(
            differ(&one, &shape(&[(1, NUMBER), (2, TEXT)], NOTHING)),
            "argument 2 is required by the server and is not sent"
        );
        let list = |inner: Part| Part::List(Box::leak(Box::new(inner)));
        let (pair, other) = (part(&[required(1, NUMBER)]), part(&[required(1, list(NUMBER))]));
        assert_eq!(
            differ(&shape(&[(3, list(pair))], NOTHING), &shape(&[(3, list(other))], NOTHING)),
            "argument 3, element, field 1 is i32 or an enum here and a list on the server"
        );
        let stricter = part(&[required(1, NUMBER), required(2, TEXT)]);
        assert_eq!(
            differ(&shape(&[], stricter), &shape(&[], pair)),
            "the result, field 2 is required by this client and is not sent"
        );
        assert_eq!(difference(&shape(&[], pair), &shape(&[], stricter)), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_do_harm(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 248u8..=255, 0u8..20], 0..300),
            other in prop::collection::vec(prop_oneof![any::<u8>(), 248u8..=255, 0u8..20], 0..300),
        ) {
            let _ = difference(&bytes, &other);
        }
    }

    #[test]
    fn nesting_is_bounded() {
        for marker in [LIST, SET, MAP, LACKING] {
            let deep = vec![marker; u16::MAX.into()];
            assert_eq!(difference(&deep, &shape(&[], NOTHING)), None);
        }
    }
}
