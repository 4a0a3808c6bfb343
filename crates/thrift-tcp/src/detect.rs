//! Detection of a connection's transport and encoding from its first bytes.

use dunlin_thrift_core::Wire;
use thiserror::Error;

/// The bytes do not begin a supported Thrift message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotThrift {
    #[error(
        "it begins with {0:02x?}, which is neither a message nor the length of a frame of at most {1} bytes"
    )]
    Unknown([u8; 4], usize),
    #[error("a frame that begins with {0:#04x} has no binary or compact message in it")]
    UnknownFrame(u8),
    #[error(
        "it speaks THeader: let the client speak framed or buffered, with the binary or compact protocol"
    )]
    Header,
}

/// Detects the wire from a connection's first bytes. Returns `None` while there are too few of them.
///
/// A first byte of 0x80 or more begins an unframed message: 0x82 compact, 0x80 followed by 0x01 binary. Other
/// such bytes are refused. Otherwise the first four bytes are a length, and the fifth byte identifies its
/// meaning:
///
/// | fifth byte | meaning |
/// |---|---|
/// | 0x82 | framed, compact |
/// | 0x80, then 0x01 | framed, binary |
/// | 0x00 | framed, binary in the old form without a version: the highest byte of the name's length |
/// | a letter or `_` | unframed, binary in the old form: the name's first letter |
///
/// Unframed messages of the old form must therefore name a function that is valid in IDL, and names of the
/// old form within frames must be shorter than 16 MiB. A length of 0 or over the limit is refused, so other
/// protocols (HTTP, TLS) are refused at the fourth byte. A connection's wire never changes, but its binary
/// messages may alternate between the two forms; each answer uses the form of its call.
pub(crate) fn detect(bytes: &[u8], limit: usize) -> Result<Option<Wire>, NotThrift> {
    match bytes {
        [0x82, ..] => return Ok(Some(Wire::UNFRAMED_COMPACT)),
        [0x80, 0x01, ..] => return Ok(Some(Wire::UNFRAMED_BINARY)),
        [] | [0x80] => return Ok(None),
        _ => {}
    }
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let fits = usize::try_from(i32::from_be_bytes(*length)).is_ok_and(|length| (1..=limit).contains(&length));
    if !fits {
        return Err(NotThrift::Unknown(*length, limit));
    }
    match rest {
        [] | [0x80] => Ok(None),
        [0x82, ..] => Ok(Some(Wire::FRAMED_COMPACT)),
        [0x80, 0x01, ..] | [0x00, ..] => Ok(Some(Wire::FRAMED_BINARY)),
        [b'_' | b'a'..=b'z' | b'A'..=b'Z', ..] => Ok(Some(Wire::UNFRAMED_BINARY)),
        [0x0f, ..] => Err(NotThrift::Header),
        [other, ..] => Err(NotThrift::UnknownFrame(*other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Result<Option<Wire>, NotThrift> {
        detect(bytes, 1 << 20)
    }

    #[test]
    fn each_wire_is_known_by_its_first_bytes_and_not_before() {
        let cases: [(&[u8], usize, Wire); 6] = [
            (b"\x82\x21\x00", 1, Wire::UNFRAMED_COMPACT),
            (b"\x80\x01\x00\x01", 2, Wire::UNFRAMED_BINARY),
            (b"\x00\x00\x00\x20\x82\x21", 5, Wire::FRAMED_COMPACT),
            (b"\x00\x00\x00\x20\x80\x01\x00\x01", 6, Wire::FRAMED_BINARY),
            (b"\x00\x00\x00\x20\x00\x00\x00\x04echo", 5, Wire::FRAMED_BINARY),
            (b"\x00\x00\x00\x04echo\x01", 5, Wire::UNFRAMED_BINARY),
        ];
        for (bytes, decided, wire) in cases {
            for length in 0..bytes.len() {
                let expected = if length < decided { None } else { Some(wire) };
                assert_eq!(of(&bytes[..length]), Ok(expected), "{length} bytes of {bytes:?}");
            }
        }
    }

    #[test]
    fn what_is_not_thrift_is_refused() {
        assert_eq!(of(b"GET / HTTP/1.1"), Err(NotThrift::Unknown(*b"GET ", 1 << 20)));
        assert_eq!(of(b"\x16\x03\x01\x02"), Err(NotThrift::Unknown(*b"\x16\x03\x01\x02", 1 << 20)));
        assert_eq!(of(b"\x00\x00\x00\x00\x80"), Err(NotThrift::Unknown([0; 4], 1 << 20)));
        assert_eq!(of(b"\x80\x02\x00\x01"), Err(NotThrift::Unknown([0x80, 2, 0, 1], 1 << 20)));
        assert_eq!(of(b"\xff\xff\xff\xff"), Err(NotThrift::Unknown([0xff; 4], 1 << 20)));
        assert_eq!(of(b"\x00\x00\x00\x20\x0f\xff"), Err(NotThrift::Header));
        assert_eq!(of(b"\x00\x00\x00\x20 "), Err(NotThrift::UnknownFrame(b' ')));
    }
}
