//! Structs in the bare form: encoding and decoding are inverse, and malformed bytes are errors.

use dunlin::thrift::codec::{BinaryInput, BinaryOutput, Limits};
use dunlin::thrift::pilota::thrift::ProtocolExceptionKind;
use dunlin::thrift::{Bare, Bytes, FastStr, Message, Part, TType, ThriftException};
use dunlin_generated::forms::*;

/// Reproducible pseudo-random numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.next().is_multiple_of(2) { Some(value(self)) } else { None }
    }

    fn list<T>(&mut self, element: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| element(self)).collect()
    }

    /// Short strings have another representation than long ones.
    fn text(&mut self) -> FastStr {
        "ä".repeat(self.below(40)).into()
    }

    fn pair(&mut self) -> Pair {
        Pair { left: self.next() as i32, right: self.maybe(Self::text) }
    }

    fn kind(&mut self) -> Kind {
        Kind::from(self.below(7) as i32)
    }

    fn mixed(&mut self) -> Mixed {
        Mixed {
            truth: self.next().is_multiple_of(2),
            pair: self.pair(),
            pairs: self.list(Self::pair),
            couples: self.list(|noise| (noise.text(), Couple(noise.pair()))).into_iter().collect(),
            numbers: self.list(|noise| noise.next() as i64).into_iter().collect(),
            kind: self.kind(),
            choice: match self.below(2) {
                0 => Choice::Number(self.next() as i32),
                _ => Choice::Pair(self.pair()),
            },
            nothing: Nothing {},
            // An absent field is decoded as its default.
            weight: Some(self.next() as i32),
            name: self.maybe(|noise| Name(noise.text().into_bytes())),
            more: self.maybe(|noise| Pairs(noise.list(Self::pair))),
            tree: self.maybe(|noise| Tree {
                leaf: 1,
                branches: noise.maybe(|_| vec![Tree { leaf: 2, branches: None }]),
            }),
            key: self.maybe(|noise| [noise.next() as u8; 16]),
            small: self.maybe(|noise| noise.next() as i8),
            medium: self.maybe(|noise| noise.next() as i16),
            large: self.maybe(|noise| noise.next() as i64),
            by_kind: self.maybe(|noise| {
                noise.list(|noise| (noise.kind(), noise.list(Self::pair))).into_iter().collect()
            }),
        }
    }
}

fn encode<T: Bare>(value: &T) -> Vec<u8> {
    let mut bytes = vec![0xaa; value.bare_size()];
    let mut output = BinaryOutput::new(&mut bytes);
    value.encode_bare(&mut output).unwrap();
    assert_eq!(output.left(), 0, "the size is the size");
    bytes
}

fn decode<T: Bare>(bytes: &[u8]) -> Result<T, ThriftException> {
    let mut input = BinaryInput::bare(bytes);
    let value = T::decode_bare(&mut input)?;
    input.end()?;
    Ok(value)
}

fn kind_of<T: std::fmt::Debug>(result: Result<T, ThriftException>) -> ProtocolExceptionKind {
    match result {
        Err(ThriftException::Protocol(error)) => error.kind(),
        other => panic!("{other:?} is no protocol error"),
    }
}

#[test]
fn what_goes_in_comes_out() {
    let mut noise = Noise(3);
    for _ in 0..1000 {
        let mixed = noise.mixed();
        assert_eq!(decode::<Mixed>(&encode(&mixed)).unwrap(), mixed);
        let pair = noise.pair();
        assert_eq!(decode::<Pair>(&encode(&pair)).unwrap(), pair);
    }
}

/// The encoding is fixed, since peers rely on it: only the values, and one bit per optional field.
#[test]
fn nothing_stands_between() {
    assert_eq!(encode(&Pair { left: 0x0102_0304, right: None }), [0, 1, 2, 3, 4]);
    assert_eq!(encode(&Pair { left: -1, right: Some("ab".into()) }), b"\x01\xff\xff\xff\xff\0\0\0\x02ab");
    let mixed = Mixed { weight: None, small: Some(5), large: Some(6), ..Mixed::default() };
    let bytes = encode(&mixed);
    assert_eq!(bytes[..2], [0b1010_0000, 0], "which are there: the sixth and the eighth of nine");
    assert_eq!(bytes[bytes.len() - 9..], [5, 0, 0, 0, 0, 0, 0, 0, 6]);
    assert_eq!(decode::<Mixed>(&bytes).unwrap().weight, Some(7), "what is missing is read as its default");
}

#[test]
fn fields_are_told_as_they_are() {
    let optional: Vec<_> = Mixed::FIELDS.iter().map(|field| field.optional).collect();
    assert_eq!(optional, [[false; 8].as_slice(), &[true; 9]].concat());
    let part = |id: i16| Mixed::FIELDS.iter().find(|field| field.id == id).unwrap().part;
    assert_eq!(part(2), Part::Struct(Pair::FIELDS));
    assert_eq!(part(4), Part::Map(&Part::Whole(TType::Binary), &Part::Struct(Pair::FIELDS)));
    assert_eq!(part(6), Part::Whole(TType::I32));
    assert_eq!([7, 8, 12].map(part), [Part::Whole(TType::Struct); 3], "unions, empty and recursive ones");
    assert_eq!((part(10), part(11)), (Part::Whole(TType::Binary), Part::List(&Part::Struct(Pair::FIELDS))));
}

#[test]
fn what_is_cut_short_is_an_error_at_every_length() {
    let mut noise = Noise(4);
    for _ in 0..50 {
        let bytes = encode(&noise.mixed());
        for length in 0..bytes.len() {
            assert!(decode::<Mixed>(&bytes[..length]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(decode::<Mixed>(&longer).is_err());
    }
}

/// After any change, decoding returns an error or a valid value.
#[test]
fn no_change_is_a_panic() {
    let mut noise = Noise(5);
    let (mut values, mut errors) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = encode(&noise.mixed());
        for _ in 0..=noise.below(3) {
            let place = noise.below(bytes.len());
            bytes[place] = noise.next() as u8;
        }
        match decode::<Mixed>(&bytes) {
            Ok(value) => {
                values += 1;
                assert_eq!(decode::<Mixed>(&encode(&value)).unwrap(), value);
            }
            Err(_) => errors += 1,
        }
        let length = noise.below(60);
        let bytes: Vec<u8> = (0..length).map(|_| (noise.next() % 17) as u8).collect();
        let _ = decode::<Mixed>(&bytes);
        let _ = decode::<Pair>(&bytes);
    }
    assert!(values > 1000 && errors > 1000, "{values} values, {errors} errors");
}

#[test]
fn lies_take_no_memory() {
    // A list that claims 2^30 pairs in a few bytes.
    let mixed = Mixed { weight: None, ..Mixed::default() };
    let bytes = encode(&mixed);
    let list = 2 + 1 + 5;
    assert_eq!(bytes[list..list + 5], [TType::Struct as u8, 0, 0, 0, 0]);
    let mut lie = bytes.clone();
    lie[list + 1] = 0x40;
    assert_eq!(kind_of(decode::<Mixed>(&lie)), ProtocolExceptionKind::SizeLimit);
    lie[list + 1] = 0x80;
    assert_eq!(kind_of(decode::<Mixed>(&lie)), ProtocolExceptionKind::NegativeSize);
    // A string that extends past the end of the message.
    assert_eq!(kind_of(decode::<Pair>(b"\x01\0\0\0\0\x7f\0\0\0ab")), ProtocolExceptionKind::InvalidData);
    assert_eq!(
        kind_of(decode::<Pair>(b"\x01\0\0\0\0\0\0\0\x02\xc3\x28")),
        ProtocolExceptionKind::InvalidData
    );
    // Bits of fields that do not exist.
    assert_eq!(kind_of(decode::<Pair>(b"\x02\0\0\0\0")), ProtocolExceptionKind::InvalidData);
}

/// Structs are counted, however few bytes they take.
#[test]
fn structs_are_counted() {
    let pairs = vec![Pair { left: 1, right: None }; 5];
    let bytes = encode(&Mixed { pairs, ..Mixed::default() });
    let decode = |max_structs| {
        let limits = Limits { max_structs, ..Limits::DEFAULT };
        Mixed::decode_bare(&mut BinaryInput::with_limits(&bytes, limits))
    };
    // The outer struct, a pair, five more pairs, a union and an empty struct.
    assert!(decode(9).is_ok());
    assert_eq!(kind_of(decode(8)), ProtocolExceptionKind::SizeLimit);
}

/// Types without a bare form are encoded as Thrift does, within bare structs too.
#[test]
fn what_has_no_bare_form_is_tagged_within() {
    let tree = Tree { leaf: 9, branches: None };
    let mut tagged = vec![0; tree.size(&mut BinaryOutput::new(&mut []))];
    tree.encode(&mut BinaryOutput::new(&mut tagged)).unwrap();
    let bytes = encode(&Mixed { tree: Some(tree), ..Mixed::default() });
    assert!(bytes.ends_with(&tagged));
    assert_eq!(encode(&Refused { why: Bytes::from_static(b"w") }), b"\0\0\0\x01w");
}
