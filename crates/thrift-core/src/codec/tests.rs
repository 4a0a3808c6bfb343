use super::{BinaryInput, BinaryOutput, CompactInput, CompactOutput, Input, Limits, read_owned_rest};
use crate::CallError;
use pilota::thrift::{
    ProtocolExceptionKind, TFieldIdentifier, TInputProtocol, TListIdentifier, TMapIdentifier,
    TMessageIdentifier, TMessageType, TOutputProtocol, TSetIdentifier, TStructIdentifier, TType,
    ThriftException,
};
use proptest::prelude::*;

const STRUCT: TStructIdentifier = TStructIdentifier { name: "test" };

fn kind_of<T: std::fmt::Debug>(result: Result<T, ThriftException>) -> ProtocolExceptionKind {
    match result {
        Err(ThriftException::Protocol(error)) => error.kind(),
        other => panic!("{other:?} is no protocol error"),
    }
}

/// A struct with one value of each type, including a nested struct and containers.
fn write_everything<P: TOutputProtocol>(out: &mut P) -> Result<(), ThriftException> {
    out.write_struct_begin(&STRUCT)?;
    let field = |out: &mut P, kind, id, write: &dyn Fn(&mut P) -> Result<(), ThriftException>| {
        out.write_field_begin(kind, id)?;
        write(out)?;
        out.write_field_end()
    };
    field(out, TType::Bool, 1, &|out| out.write_bool(true))?;
    field(out, TType::Bool, 2, &|out| out.write_bool(false))?;
    field(out, TType::I8, 3, &|out| out.write_i8(-3))?;
    field(out, TType::I16, 40, &|out| out.write_i16(i16::MIN))?;
    field(out, TType::I32, 5, &|out| out.write_i32(i32::MIN))?;
    field(out, TType::I64, 6, &|out| out.write_i64(i64::MAX))?;
    field(out, TType::Double, 7, &|out| out.write_double(-0.125))?;
    field(out, TType::Binary, 8, &|out| out.write_string("Löffler"))?;
    field(out, TType::Uuid, 9, &|out| out.write_uuid([7; 16]))?;
    field(out, TType::List, 10, &|out| {
        out.write_list_begin(TListIdentifier { element_type: TType::Bool, size: 20 })?;
        (0..20).try_for_each(|i| out.write_bool(i % 3 == 0))?;
        out.write_list_end()
    })?;
    field(out, TType::Set, 11, &|out| {
        out.write_set_begin(TSetIdentifier { element_type: TType::I16, size: 2 })?;
        out.write_i16(1)?;
        out.write_i16(-1)?;
        out.write_set_end()
    })?;
    field(out, TType::Map, 12, &|out| {
        out.write_map_begin(TMapIdentifier { key_type: TType::Binary, value_type: TType::Struct, size: 1 })?;
        out.write_string("k")?;
        out.write_struct_begin(&STRUCT)?;
        out.write_field_begin(TType::Bool, 3)?;
        out.write_bool(true)?;
        out.write_field_end()?;
        out.write_field_stop()?;
        out.write_struct_end()?;
        out.write_map_end()
    })?;
    field(out, TType::Map, 13, &|out| {
        out.write_map_begin(TMapIdentifier { key_type: TType::I32, value_type: TType::I32, size: 0 })?;
        out.write_map_end()
    })?;
    out.write_field_stop()?;
    out.write_struct_end()
}

fn read_everything<'a, I: Input<'a>>(input: &mut I) -> Result<(), ThriftException> {
    input.read_struct_begin()?;
    let field = |input: &mut I, kind, id| {
        let TFieldIdentifier { field_type, id: read, .. } = input.read_field_begin()?;
        assert_eq!((field_type, read), (kind, Some(id)));
        Ok::<_, ThriftException>(())
    };
    field(input, TType::Bool, 1)?;
    assert!(input.read_bool()?);
    field(input, TType::Bool, 2)?;
    assert!(!input.read_bool()?);
    field(input, TType::I8, 3)?;
    assert_eq!(input.read_i8()?, -3);
    field(input, TType::I16, 40)?;
    assert_eq!(input.read_i16()?, i16::MIN);
    field(input, TType::I32, 5)?;
    assert_eq!(input.read_i32()?, i32::MIN);
    field(input, TType::I64, 6)?;
    assert_eq!(input.read_i64()?, i64::MAX);
    field(input, TType::Double, 7)?;
    assert_eq!(input.read_double()?, -0.125);
    field(input, TType::Binary, 8)?;
    assert_eq!(input.read_str()?, "Löffler");
    field(input, TType::Uuid, 9)?;
    assert_eq!(input.read_uuid()?, [7; 16]);
    field(input, TType::List, 10)?;
    let list = input.read_list_begin()?;
    assert_eq!((list.element_type, list.size), (TType::Bool, 20));
    for i in 0..20 {
        assert_eq!(input.read_bool()?, i % 3 == 0);
    }
    field(input, TType::Set, 11)?;
    assert_eq!(input.read_set_begin()?.size, 2);
    assert_eq!((input.read_i16()?, input.read_i16()?), (1, -1));
    field(input, TType::Map, 12)?;
    let map = input.read_map_begin()?;
    assert_eq!((map.key_type, map.value_type, map.size), (TType::Binary, TType::Struct, 1));
    assert_eq!(input.read_faststr()?, "k");
    input.read_struct_begin()?;
    field(input, TType::Bool, 3)?;
    assert!(input.read_bool()?);
    field(input, TType::Stop, 0)?;
    input.read_struct_end()?;
    field(input, TType::Map, 13)?;
    assert_eq!(input.read_map_begin()?.size, 0);
    field(input, TType::Stop, 0)?;
    input.read_struct_end()
}

pub(super) fn binary() -> Vec<u8> {
    let mut place = vec![0; 1000];
    let mut out = BinaryOutput::new(&mut place);
    write_everything(&mut out).unwrap();
    let length = 1000 - out.left();
    place.truncate(length);
    place
}

pub(super) fn compact() -> Vec<u8> {
    let mut bytes = Vec::new();
    write_everything(&mut CompactOutput::new(&mut bytes)).unwrap();
    bytes
}

#[test]
fn every_type_comes_out_as_it_went_in() {
    let mut theirs = pilota::BytesMut::new();
    write_everything(&mut pilota::thrift::binary::TBinaryProtocol::new(&mut theirs, false)).unwrap();
    assert_eq!(binary(), theirs, "the encoding is the one that pilota writes");
    let whole = binary();
    let mut input = BinaryInput::new(&whole);
    read_everything(&mut input).unwrap();
    assert!(input.rest().is_empty());
    let whole = compact();
    let mut input = CompactInput::new(&whole);
    read_everything(&mut input).unwrap();
    assert!(input.rest().is_empty());
}

#[test]
fn what_is_skipped_is_skipped_whole() {
    let whole = binary();
    let mut input = BinaryInput::new(&whole);
    input.skip(TType::Struct).unwrap();
    assert!(input.rest().is_empty());
    let whole = compact();
    let mut input = CompactInput::new(&whole);
    input.skip(TType::Struct).unwrap();
    assert!(input.rest().is_empty());
}

#[test]
fn a_message_that_is_cut_short_is_an_error_at_every_length() {
    for whole in [binary(), compact()] {
        for length in 0..whole.len() {
            assert!(BinaryInput::new(&whole[..length]).skip(TType::Struct).is_err());
            assert!(CompactInput::new(&whole[..length]).skip(TType::Struct).is_err());
        }
    }
}

/// Headers that claim a gibibyte of elements are refused before any memory is allocated.
#[test]
fn sizes_that_lie_are_refused() {
    let binary_list = |kind: TType, size: i32| {
        let mut bytes = vec![kind as u8];
        bytes.extend_from_slice(&size.to_be_bytes());
        bytes.extend_from_slice(&[0; 11]);
        bytes
    };
    for kind in [TType::Bool, TType::I64, TType::Binary, TType::Struct, TType::List, TType::Map, TType::Uuid]
    {
        assert_eq!(
            kind_of(BinaryInput::new(&binary_list(kind, 1 << 30)).read_list_begin()),
            ProtocolExceptionKind::SizeLimit
        );
        assert_eq!(
            kind_of(BinaryInput::new(&binary_list(kind, -1)).read_set_begin()),
            ProtocolExceptionKind::NegativeSize
        );
    }
    assert_eq!(BinaryInput::new(&binary_list(TType::I8, 11)).read_list_begin().unwrap().size, 11);
    assert_eq!(
        kind_of(BinaryInput::new(&binary_list(TType::I8, 12)).read_list_begin()),
        ProtocolExceptionKind::SizeLimit
    );
    let map = [8, 11, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(kind_of(BinaryInput::new(&map).read_map_begin()), ProtocolExceptionKind::SizeLimit);
    // 15 in the upper half: the size follows as a varint.
    let compact = [0xf0 | 12, 0xff, 0xff, 0xff, 0xff, 0x03, 0, 0, 0];
    assert_eq!(kind_of(CompactInput::new(&compact).read_list_begin()), ProtocolExceptionKind::SizeLimit);
    assert!(BinaryInput::new(&[0x7f, 0xff, 0xff, 0xff, 1]).read_slice().is_err());
    assert!(BinaryInput::new(&[0xff, 0xff, 0xff, 0xff, 1]).read_bytes().is_err());
    assert!(CompactInput::new(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1]).read_slice().is_err());
}

/// A struct of one byte may take hundreds in memory, so structs are counted, whatever size a container
/// claims.
#[test]
fn structs_are_counted() {
    let limits = Limits { max_structs: 3, ..Limits::DEFAULT };
    let list = [TType::Struct as u8, 0, 0, 0, 4, 0, 0, 0, 0];
    let mut input = BinaryInput::with_limits(&list, limits);
    assert_eq!(kind_of(input.skip(TType::List)), ProtocolExceptionKind::SizeLimit);
    let list = [TType::Struct as u8, 0, 0, 0, 3, 0, 0, 0];
    BinaryInput::with_limits(&list, limits).skip(TType::List).unwrap();
    let mut input = CompactInput::with_limits(&[0x4c, 0, 0, 0, 0], limits);
    assert_eq!(kind_of(input.skip(TType::List)), ProtocolExceptionKind::SizeLimit);
}

#[test]
fn nesting_has_an_end() {
    // Endlessly nested structs: field 1 is a struct.
    let binary = [12, 0, 1].repeat(1000);
    assert_eq!(kind_of(BinaryInput::new(&binary).skip(TType::Struct)), ProtocolExceptionKind::DepthLimit);
    let compact = vec![0x1c; 1000];
    assert_eq!(kind_of(CompactInput::new(&compact).skip(TType::Struct)), ProtocolExceptionKind::DepthLimit);
    let mut input = BinaryInput::with_limits(&binary, Limits { max_depth: 3, ..Limits::DEFAULT });
    for _ in 0..3 {
        input.read_struct_begin().unwrap();
    }
    assert_eq!(kind_of(input.read_struct_begin()), ProtocolExceptionKind::DepthLimit);
    input.read_struct_end().unwrap();
    input.read_struct_begin().unwrap();
}

#[test]
fn text_is_text() {
    let not_utf8 = [0, 0, 0, 2, 0xc3, 0x28];
    assert_eq!(kind_of(BinaryInput::new(&not_utf8).read_faststr()), ProtocolExceptionKind::InvalidData);
    assert_eq!(kind_of(BinaryInput::new(&not_utf8).read_string()), ProtocolExceptionKind::InvalidData);
    assert_eq!(BinaryInput::new(&not_utf8).read_slice().unwrap(), [0xc3, 0x28]);
    assert!(CompactInput::new(&[2, 0xc3, 0x28]).read_faststr().is_err());
}

#[test]
fn numbers_of_too_many_bits_are_refused() {
    assert_eq!(CompactInput::new(&[0xff, 0xff, 0xff, 0xff, 0x0f]).read_i32().unwrap(), i32::MIN);
    assert!(CompactInput::new(&[0xff, 0xff, 0xff, 0xff, 0x1f]).read_i32().is_err());
    assert!(CompactInput::new(&[0x80; 20]).read_i64().is_err());
    assert!(CompactInput::new(&[0xff, 0xff, 0x07]).read_i16().is_err());
    assert_eq!(CompactInput::new(&[0xff, 0xff, 0x03]).read_i16().unwrap(), i16::MIN);
    // Field ids beyond 32767: 32767 and an increment of one.
    let mut input = CompactInput::new(&[0x05, 0xfe, 0xff, 0x03, 0, 0x15, 0]);
    input.read_struct_begin().unwrap();
    assert_eq!(input.read_field_begin().unwrap().id, Some(32767));
    input.read_i32().unwrap();
    assert!(input.read_field_begin().is_err());
}

#[test]
fn messages_begin_in_the_known_ways() {
    let name = TMessageIdentifier::new("get".into(), TMessageType::Call, -7);
    let mut place = [0; 15];
    BinaryOutput::new(&mut place).write_message_begin(&name).unwrap();
    assert_eq!(BinaryInput::new(&place).read_message_begin().unwrap(), name);
    // A message without a version, as old clients write it.
    let old = [0, 0, 0, 3, b'g', b'e', b't', 1, 0xff, 0xff, 0xff, 0xf9];
    assert_eq!(BinaryInput::new(&old).read_message_begin().unwrap(), name);
    let mut other = place;
    other[1] = 2;
    assert_eq!(kind_of(BinaryInput::new(&other).read_message_begin()), ProtocolExceptionKind::BadVersion);
    let mut bytes = Vec::new();
    CompactOutput::new(&mut bytes).write_message_begin(&name).unwrap();
    assert_eq!(CompactInput::new(&bytes).read_message_begin().unwrap(), name);
    assert_eq!(kind_of(CompactInput::new(&place).read_message_begin()), ProtocolExceptionKind::BadVersion);
}

#[test]
fn a_place_that_is_too_small_is_an_error() {
    let mut place = [0; 5];
    let mut out = BinaryOutput::new(&mut place);
    out.write_i32(1).unwrap();
    assert_eq!(kind_of(out.write_i16(1)), ProtocolExceptionKind::SizeLimit);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..17) {
        if let Ok(kind) = TType::try_from(kind) {
            let _ = BinaryInput::new(&bytes).skip(kind);
            let _ = CompactInput::new(&bytes).skip(kind);
        }
        let _ = BinaryInput::new(&bytes).read_message_begin();
        let _ = CompactInput::new(&bytes).read_message_begin();
    }

    /// Valid messages with a few changed bytes exercise more code than random bytes do.
    #[test]
    fn no_mutation_is_a_panic(changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..6)) {
        for whole in [binary(), compact()] {
            let mut bytes = whole;
            for (place, byte) in &changes {
                let length = bytes.len();
                bytes[place % length] = *byte;
            }
            let _ = BinaryInput::new(&bytes).skip(TType::Struct);
            let _ = CompactInput::new(&bytes).skip(TType::Struct);
        }
    }
}

#[test]
fn large_values_share_the_memory_that_they_are_most_of() {
    let encoded = |lengths: &[usize]| {
        let mut bytes = vec![0; lengths.iter().map(|length| 4 + length).sum()];
        let mut out = BinaryOutput::new(&mut bytes);
        lengths.iter().for_each(|length| out.write_bytes(vec![7; *length].into()).unwrap());
        pilota::Bytes::from(bytes)
    };
    let memory = encoded(&[20_000, 50_000, 3]);
    let mut input = BinaryInput::within(&memory, Some(&memory));
    let lies_within = |value: &[u8]| memory.as_ptr_range().contains(&value.as_ptr());
    let values = [(); 3].map(|()| input.read_bytes().unwrap());
    assert_eq!(values.each_ref().map(|value| value.len()), [20_000, 50_000, 3]);
    assert_eq!(values.each_ref().map(|value| lies_within(value)), [false, true, false]);
    let mut input = BinaryInput::within(&memory, Some(&memory));
    let texts = [(); 3].map(|()| input.read_faststr().unwrap());
    assert_eq!(texts.each_ref().map(|text| lies_within(text.as_bytes())), [false, true, false]);
    assert_eq!(texts.map(|text| text.into_bytes()), values);
    let mut no_text = encoded(&[50_000]).to_vec();
    no_text[30_000] = 0xff;
    let no_text = pilota::Bytes::from(no_text);
    assert!(BinaryInput::within(&no_text, Some(&no_text)).read_faststr().is_err());
    let memory = encoded(&[100]);
    let value = BinaryInput::within(&memory, Some(&memory)).read_bytes().unwrap();
    assert_ne!(value.as_ptr(), memory[4..].as_ptr());
}

/// Short texts are checked for ASCII first; an invalid byte is found at any position.
#[test]
fn texts_are_utf8_whatever_their_length() {
    for length in [0, 1, 31, 32, 127, 128, 129, 400] {
        let ascii = "x".repeat(length);
        assert_eq!(BinaryInput::bare(ascii.as_bytes()).read_rest_str().unwrap(), ascii);
        let other = ascii.clone() + "é";
        assert_eq!(BinaryInput::bare(other.as_bytes()).read_rest_str().unwrap(), other);
        assert_eq!(read_owned_rest::<CallError>(&mut BinaryInput::bare(other.as_bytes())).unwrap(), other);
        for at in 0..length {
            let mut broken = ascii.clone().into_bytes();
            broken[at] = 0xff;
            let error = BinaryInput::bare(&broken).read_rest_str().unwrap_err();
            assert!(error.message().contains(&format!("from index {at}")), "{error:?}");
            let read = read_owned_rest::<CallError>(&mut BinaryInput::bare(&broken));
            assert!(matches!(read, Err(CallError::Decode(_))));
        }
    }
}
