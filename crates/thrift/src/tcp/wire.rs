//! Which of Thrift's transports and encodings a connection speaks, found out from its first bytes.

use crate::codec::Encoding;
use thiserror::Error;

/// How messages are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// `TFramedTransport`: each message behind its length, four bytes, the highest first.
    Framed,
    /// `TBufferedTransport` or the bare socket: messages follow each other.
    Unframed,
}

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wire {
    /// How messages are told apart.
    pub transport: Transport,
    /// How they are encoded.
    pub encoding: Encoding,
}

impl Wire {
    /// Framed, binary: what most servers take.
    pub const FRAMED_BINARY: Wire = Wire { transport: Transport::Framed, encoding: Encoding::Binary };
    /// Framed, compact.
    pub const FRAMED_COMPACT: Wire = Wire { transport: Transport::Framed, encoding: Encoding::Compact };
    /// Unframed, binary.
    pub const UNFRAMED_BINARY: Wire = Wire { transport: Transport::Unframed, encoding: Encoding::Binary };
    /// Unframed, compact.
    pub const UNFRAMED_COMPACT: Wire = Wire { transport: Transport::Unframed, encoding: Encoding::Compact };
    /// All of them.
    pub const ALL: [Wire; 4] =
        [Wire::FRAMED_BINARY, Wire::FRAMED_COMPACT, Wire::UNFRAMED_BINARY, Wire::UNFRAMED_COMPACT];
}

/// The bytes begin no Thrift that is spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NotThrift {
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

/// Finds out from a connection's first bytes; `None` while there are too few of them.
///
/// The first byte, by itself, is that of an unframed message: 0x82 compact, 0x80 (then 0x01) binary. Any other of 0x80 and
/// above is refused. Below it stand four bytes with a length, and the fifth tells of what:
///
/// | fifth byte | what it is |
/// |---|---|
/// | 0x82 | a frame, compact |
/// | 0x80, then 0x01 | a frame, binary |
/// | 0x00 | a frame, binary in the old form without a version: the highest byte of the name's length |
/// | a letter or `_` | no frame, binary in the old form: the name's first letter |
///
/// So an unframed message of the old form must name a function as IDL can name it, and the old form's names within frames are
/// below 16 MiB; neither is a loss. A length of 0, or over the limit, is refused, with which anything but Thrift (HTTP, TLS) is
/// refused at its fourth byte. Once a connection's wire is known it stays; binary messages may change between the two
/// forms, and each is answered in its own.
pub(super) fn detect(bytes: &[u8], limit: usize) -> Result<Option<Wire>, NotThrift> {
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
