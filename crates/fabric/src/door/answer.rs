//! Refusals in the protocol of the visitor, where that is cheap: one line of text for HTTP and SSH, an
//! exception for Thrift, an alert for TLS, and words for clients of Dunlin.

use super::{Door, Look, recognise};

/// The first bytes of a refusal in words, for clients of Dunlin.
pub const REFUSAL: [u8; 8] = *b"DunlinNO";
/// The longest refusal in words, in bytes.
pub const MAX_REFUSAL: usize = 8 + 2 + MAX_TEXT;
/// The longest text of a refusal in bytes.
const MAX_TEXT: usize = 400;

/// The answer to a visitor that speaks TLS: a fatal alert, handshake_failure.
pub(crate) const ALERT: [u8; 7] = [0x15, 3, 1, 0, 2, 2, 40];

/// The longest function name that a refusal repeats, in bytes.
const MAX_FUNCTION: usize = 128;

/// Returns the bytes with which a listener refuses a visitor that has sent `bytes` first. `text` is one
/// line that says where the visitor is and which address it should use. Empty if the visitor's protocol is
/// not known; the listener then closes the connection.
pub fn refusal(bytes: &[u8], text: &str) -> Vec<u8> {
    let text = cut(text);
    match recognise(bytes) {
        Look::Is(door) => match door {
            Door::HttpClient => format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}\n",
                text.len() + 1
            )
            .into_bytes(),
            Door::Thrift => exception(bytes, text),
            Door::Tls => ALERT.to_vec(),
            // RFC 4253 section 4.2 allows lines of text before the banner of a server.
            Door::Ssh => format!("{text}\r\n").into_bytes(),
            Door::AutoClient | Door::Rdma | Door::Ofi | Door::Control => words(text),
            Door::AutoServer | Door::Shm | Door::Refusal | Door::HttpServer => Vec::new(),
        },
        Look::Short | Look::Unknown => Vec::new(),
    }
}

/// Returns the longest prefix of a text that fits into a refusal.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

fn words(text: &str) -> Vec<u8> {
    [&REFUSAL[..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// Returns the text of a refusal in words, with control characters replaced. `None` if the bytes are no
/// complete refusal.
pub fn refusal_text(bytes: &[u8]) -> Option<String> {
    let (length, rest) = bytes.strip_prefix(&REFUSAL)?.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    let text = String::from_utf8_lossy(rest.get(..length).filter(|_| length <= MAX_TEXT)?);
    Some(text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect())
}

/// The head of a Thrift call, as far as its bytes go.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call<'a> {
    framed: bool,
    compact: bool,
    name: &'a [u8],
    sequence: u32,
}

impl<'a> Call<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let framed = !matches!(bytes, [0x80 | 0x82, ..] | [0, 0, _, _, b'_' | b'a'..=b'z' | b'A'..=b'Z', ..]);
        let message = if framed { bytes.get(4..).unwrap_or_default() } else { bytes };
        let compact = message.first() == Some(&0x82);
        let parsed = match message {
            [0x82, _, rest @ ..] => Self::compact(rest),
            [0x80, 0x01, _, _, rest @ ..] => Self::binary(rest),
            // The old form has the message's type between name and sequence number.
            [0, 0, _, _, ..] => name(message).and_then(|(name, rest)| {
                let (sequence, _) = rest.get(1..)?.split_first_chunk()?;
                Some((name, u32::from_be_bytes(*sequence)))
            }),
            _ => None,
        };
        let (name, sequence) = parsed.unwrap_or_default();
        Call { framed, compact, name, sequence }
    }

    fn binary(rest: &[u8]) -> Option<(&[u8], u32)> {
        let (name, rest) = name(rest)?;
        let (sequence, _) = rest.split_first_chunk()?;
        Some((name, u32::from_be_bytes(*sequence)))
    }

    fn compact(mut rest: &[u8]) -> Option<(&[u8], u32)> {
        let sequence = varint(&mut rest)?;
        let length = usize::try_from(varint(&mut rest)?).ok().filter(|length| *length <= MAX_FUNCTION)?;
        Some((rest.get(..length)?, sequence))
    }
}

/// Takes a name after its length in the binary encoding.
fn name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length =
        usize::try_from(u32::from_be_bytes(*length)).ok().filter(|length| *length <= MAX_FUNCTION)?;
    rest.split_at_checked(length)
}

fn varint(rest: &mut &[u8]) -> Option<u32> {
    let mut value = 0u64;
    for shift in (0..35).step_by(7) {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(value).ok();
        }
    }
    None
}

fn push_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns an exception of Thrift's kind PROTOCOL_ERROR that answers the call in `bytes`.
fn exception(bytes: &[u8], text: &str) -> Vec<u8> {
    /// `TApplicationException::PROTOCOL_ERROR`: the call was not executed.
    const PROTOCOL_ERROR: u8 = 7;
    let Call { framed, compact, name, sequence } = Call::of(bytes);
    let (name_length, length) = (name.len() as u32, text.len() as u32);
    let mut out = vec![0; if framed { 4 } else { 0 }];
    if compact {
        // Version 1 and the message type EXCEPTION, then fields 1 (binary) and 2 (i32).
        out.extend([0x82, 3 << 5 | 1]);
        push_varint(&mut out, sequence);
        push_varint(&mut out, name_length);
        out.extend(name);
        out.push(0x18);
        push_varint(&mut out, length);
        out.extend(text.as_bytes());
        out.extend([0x15, PROTOCOL_ERROR << 1, 0]);
    } else {
        out.extend(0x8001_0003u32.to_be_bytes());
        out.extend(name_length.to_be_bytes());
        out.extend(name);
        out.extend(sequence.to_be_bytes());
        out.extend([11, 0, 1]);
        out.extend(length.to_be_bytes());
        out.extend(text.as_bytes());
        out.extend([8, 0, 2, 0, 0, 0, PROTOCOL_ERROR, 0]);
    }
    if framed {
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_be_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calls_are_read_in_every_form() {
        let call = |framed, compact| Call { framed, compact, name: b"echo", sequence: 5 };
        for (bytes, expected) in [
            (&b"\x80\x01\0\x01\0\0\0\x04echo\0\0\0\x05"[..], call(false, false)),
            (b"\0\0\0\x20\x80\x01\0\x01\0\0\0\x04echo\0\0\0\x05", call(true, false)),
            (b"\x82\x21\x05\x04echo", call(false, true)),
            (b"\0\0\0\x20\x82\x21\x05\x04echo", call(true, true)),
            (b"\0\0\0\x04echo\x01\0\0\0\x05", call(false, false)),
            (b"\0\0\0\x20\0\0\0\x04echo\x01\0\0\0\x05", call(true, false)),
        ] {
            assert_eq!(Call::of(bytes), expected, "{}", bytes.escape_ascii());
        }
        let cut = Call::of(b"\0\0\0\x20\x80\x01\0\x01\0\0\0\x04ec");
        assert_eq!(cut, Call { framed: true, ..Call::default() });
    }

    #[test]
    fn each_visitor_is_refused_in_its_own_protocol() {
        let refused = |bytes: &[u8]| refusal(bytes, "use auto:h:1");
        let http = String::from_utf8(refused(b"GET / HTTP/1.1\r\n")).expect("text");
        assert!(http.starts_with("HTTP/1.1 400 ") && http.ends_with("\r\n\r\nuse auto:h:1\n"), "{http}");
        assert!(http.contains("Content-Length: 13\r\n"), "{http}");
        assert_eq!(refused(b"SSH-2.0-x\r\n"), b"use auto:h:1\r\n");
        assert_eq!(recognise(&refused(b"\x16\x03\x01")), Look::Is(Door::Tls));
        assert_eq!(refused(b"hello"), b"");
        for bytes in [&b"DunlinAQ"[..], b"\x0b\0\0\0\x01DunlinRD\x03\0", b"\x0b\0\0\0\x01DunlinOF\x03\0"] {
            assert_eq!(refusal_text(&refused(bytes)).as_deref(), Some("use auto:h:1"));
        }
        assert_eq!(
            refused(b"\0\0\0\x20\x80\x01\0\x01\0\0\0\x04echo\0\0\0\x05"),
            b"\0\0\0\x2b\x80\x01\0\x03\0\0\0\x04echo\0\0\0\x05\x0b\0\x01\0\0\0\x0cuse auto:h:1\x08\0\x02\0\0\0\x07\0"
        );
        assert_eq!(refused(b"\x82\x21\x05\x04echo"), b"\x82\x61\x05\x04echo\x18\x0cuse auto:h:1\x15\x0e\0");
    }

    #[test]
    fn words_are_bounded_and_printable() {
        let long = refusal(b"DunlinAQ", &"ä".repeat(1000));
        assert_eq!(long.len(), MAX_REFUSAL);
        assert_eq!(refusal_text(&long), Some("ä".repeat(MAX_TEXT / 2)));
        assert_eq!(refusal_text(b"DunlinNO\x02\0a\n"), Some("a\u{fffd}".into()));
        assert_eq!(refusal_text(b"DunlinNO\xff\xffab"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..80), text in ".{0,500}") {
            let refused = refusal(&bytes, &text);
            prop_assert!(refused.len() <= MAX_TEXT + 256);
            let _ = (refusal_text(&bytes), exception(&bytes, cut(&text)));
        }

        #[test]
        fn calls_with_any_head_are_answered(name in "[a-z_]{1,40}", sequence in any::<u32>(), framed in any::<bool>()) {
            let head = [&0x8001_0001u32.to_be_bytes()[..], &(name.len() as u32).to_be_bytes(), name.as_bytes(), &sequence.to_be_bytes()].concat();
            let bytes = if framed { [&(head.len() as u32).to_be_bytes()[..], &head].concat() } else { head };
            let call = Call::of(&bytes);
            prop_assert_eq!((call.name, call.sequence, call.framed), (name.as_bytes(), sequence, framed));
        }
    }
}
