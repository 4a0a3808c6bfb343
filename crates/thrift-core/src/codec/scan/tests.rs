use super::*;
use crate::codec::tests::{binary, compact};
use crate::codec::{BinaryInput, CompactInput};
use pilota::thrift::TInputProtocol;
use proptest::prelude::*;

/// Returns the struct's end as the reader finds it.
fn read(encoding: Encoding, bytes: &[u8]) -> Option<usize> {
    let rest = match encoding {
        Encoding::Binary => {
            let mut input = BinaryInput::new(bytes);
            input.skip(TType::Struct).ok().map(|_| input.rest().len())
        }
        Encoding::Compact => {
            let mut input = CompactInput::new(bytes);
            input.skip(TType::Struct).ok().map(|_| input.rest().len())
        }
    };
    rest.map(|rest| bytes.len() - rest)
}

/// Returns the struct's end as the scanner finds it when the bytes arrive in these pieces.
fn scan(encoding: Encoding, limit: usize, bytes: &[u8], pieces: &[usize]) -> Result<Option<usize>, String> {
    let mut scanner = Scanner::new(encoding, limit);
    let (mut seen, mut come) = (0, 0);
    let mut pieces = pieces.iter();
    loop {
        come = pieces.next().map_or(bytes.len(), |piece| (come + piece).min(bytes.len()));
        match scanner.scan(&bytes[seen..come]) {
            Ok(Scanned::Whole(length)) => return Ok(Some(seen + length)),
            Ok(Scanned::Part { seen: more, wanted }) => {
                assert!(wanted > 0, "something is wanted");
                seen += more;
                // At most a field header and a value header, with a ten-byte number in each, are shown again.
                // Scanning thus takes linear time for any message.
                assert!(come - seen <= 22, "{} bytes are to be shown again", come - seen);
                if come == bytes.len() {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error.message().to_string()),
        }
    }
}

fn example(encoding: Encoding) -> Vec<u8> {
    match encoding {
        Encoding::Binary => binary(),
        Encoding::Compact => compact(),
    }
}

const BOTH: [Encoding; 2] = [Encoding::Binary, Encoding::Compact];

#[test]
fn the_end_is_found_in_pieces_of_any_length() {
    for encoding in BOTH {
        let mut bytes = example(encoding);
        let length = bytes.len();
        bytes.extend_from_slice(b"and the next message");
        for size in 1..=length + 1 {
            let pieces = vec![size; length / size + 1];
            assert_eq!(scan(encoding, 1 << 20, &bytes, &pieces), Ok(Some(length)), "{encoding:?} by {size}");
        }
    }
}

#[test]
fn a_part_has_no_end() {
    for encoding in BOTH {
        let bytes = example(encoding);
        for length in 0..bytes.len() {
            assert_eq!(scan(encoding, 1 << 20, &bytes[..length], &[]), Ok(None), "{encoding:?} {length}");
        }
    }
}

#[test]
fn the_limit_is_one_of_bytes() {
    for encoding in BOTH {
        let bytes = example(encoding);
        assert_eq!(scan(encoding, bytes.len(), &bytes, &[]), Ok(Some(bytes.len())));
        for limit in 0..bytes.len() {
            assert!(scan(encoding, limit, &bytes, &[]).is_err(), "{encoding:?} {limit}");
            assert!(scan(encoding, limit, &bytes, &vec![1; bytes.len()]).is_err(), "{encoding:?} {limit}");
        }
    }
}

#[test]
fn counts_that_cannot_be_are_refused_at_once() {
    // Field 1: a list of 2^30 numbers.
    let binary = [15, 0, 1, 10, 0x40, 0, 0, 0];
    assert!(scan(Encoding::Binary, 64 << 20, &binary, &[]).unwrap_err().contains("1073741824"));
    let compact = [0x19, 0xf6, 0x80, 0x80, 0x80, 0x80, 0x04];
    assert!(scan(Encoding::Compact, 64 << 20, &compact, &[]).is_err());
    // A negative length, and one of more than 64 bits.
    assert!(scan(Encoding::Binary, 64 << 20, &[11, 0, 1, 0xff, 0xff, 0xff, 0xff], &[]).is_err());
    assert!(scan(Encoding::Compact, 64 << 20, &[[0x18].as_slice(), &[0xff; 11]].concat(), &[]).is_err());
}

#[test]
fn nesting_has_an_end() {
    let deep = [12, 0, 1].repeat(10_000);
    assert!(scan(Encoding::Binary, 64 << 20, &deep, &[]).unwrap_err().contains("nested"));
    assert!(scan(Encoding::Compact, 64 << 20, &[0x1c].repeat(10_000), &[]).unwrap_err().contains("nested"));
}

/// The bytes of a valid message with a few changes, or random bytes.
fn hostile(encoding: Encoding) -> impl Strategy<Value = Vec<u8>> {
    let message = example(encoding);
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5);
    let mutated = changes.prop_map(move |changes| {
        let mut bytes = message.clone();
        for (place, byte) in changes {
            *place.get_mut(&mut bytes) = byte;
        }
        bytes
    });
    prop_oneof![3 => mutated, 1 => proptest::collection::vec(any::<u8>(), 0..100)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn it_agrees_with_the_reader_and_with_itself(
        (encoding, bytes) in prop_oneof![Just(BOTH[0]), Just(BOTH[1])].prop_flat_map(|e| (Just(e), hostile(e))),
        pieces in proptest::collection::vec(1usize..40, 0..40),
    ) {
        let whole = scan(encoding, 4096, &bytes, &[]);
        prop_assert_eq!(&scan(encoding, 4096, &bytes, &pieces), &whole);
        if let Some(end) = read(encoding, &bytes) {
            prop_assert_eq!(whole, Ok(Some(end)));
        }
    }
}
