//! Doors: recognition of a protocol by the first bytes that its side of a connection sends. Every listener
//! and every dialler asks this module about bytes that it does not understand, so that a wrong address gets
//! an error with the right one. Pure functions. Bytes of a peer are only compared and bounded.
//!
//! `answer.rs` has the refusals that a listener sends in the protocol of its visitor.

mod answer;

pub(crate) use answer::ALERT;
pub use answer::{MAX_REFUSAL, REFUSAL, refusal, refusal_text};

use std::sync::atomic::{AtomicU32, Ordering};

/// The question with which a client asks a server at an `auto:` address for its fabrics.
pub const AUTO_QUESTION: [u8; 8] = *b"DunlinAQ";
/// The first bytes of the answer of a server at an `auto:` address.
pub const AUTO_ANSWER: [u8; 8] = *b"DunlinAU";

/// A greeting of TLS 1.2 without extensions (RFC 5246, section 7.4.1.2), which every server of TLS answers with
/// its own greeting or an alert. Its random bytes end lines, so that a web server answers too.
pub const TLS_HELLO: [u8; 68] = *b"\x16\x03\x01\0\x3f\x01\0\0\x3b\x03\x03\
    Dunlin asks who is here...  \r\n\r\n\
    \0\0\x14\xc0\x2b\xc0\x2f\xc0\x2c\xc0\x30\0\x9e\0\x9c\0\x9d\0\x2f\0\x35\0\xff\x01\0";

/// The most bytes that [`recognise`] needs.
pub const ENOUGH: usize = 13;

/// The longest Thrift frame that is taken for one, in bytes. ASCII letters give lengths above it.
const LONGEST_FRAME: u32 = 1 << 28;
/// The longest function name in a Thrift message of the old form, in bytes.
const LONGEST_NAME: u16 = 4096;

/// A protocol, known by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Door {
    /// A client asks for the fabrics of an `auto:` address.
    AutoClient,
    /// A server at an `auto:` address.
    AutoServer,
    /// A control connection of RDMA; both sides begin it alike.
    Rdma,
    /// A control connection of libfabric; both sides begin it alike.
    Ofi,
    /// A control connection of a fabric that this build does not know.
    Control,
    /// A control connection of shared memory; both sides begin it alike.
    Shm,
    /// A listener of Dunlin refuses in words ([`refusal_text`]).
    Refusal,
    /// A Thrift message, framed or not, binary or compact.
    Thrift,
    /// An HTTP request.
    HttpClient,
    /// An HTTP response.
    HttpServer,
    /// A TLS record.
    Tls,
    /// An SSH banner.
    Ssh,
}

/// The result of [`recognise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The bytes begin this protocol. More bytes never change that.
    Is(Door),
    /// The bytes are too few to tell.
    Short,
    /// The bytes begin no known protocol. More bytes never change that.
    Unknown,
}

impl Look {
    /// Returns the protocol, if it is known.
    pub fn door(self) -> Option<Door> {
        match self {
            Look::Is(door) => Some(door),
            Look::Short | Look::Unknown => None,
        }
    }
}

/// Prefixes and the protocols that they begin. None extends another one.
const PREFIXES: [(&[u8], Door); 23] = [
    (&AUTO_QUESTION, Door::AutoClient),
    (&AUTO_ANSWER, Door::AutoServer),
    (&REFUSAL, Door::Refusal),
    (b"\x0b\0\0\0\x01DunlinRD", Door::Rdma),
    (b"\x0b\0\0\0\x01DunlinOF", Door::Ofi),
    (b"\x01\0\0\0\x02", Door::Control),
    (b"\x01DunlinSM", Door::Shm),
    (b"\x02DunlinSM", Door::Shm),
    (b"GET ", Door::HttpClient),
    (b"PUT ", Door::HttpClient),
    (b"PRI ", Door::HttpClient),
    (b"POST ", Door::HttpClient),
    (b"HEAD ", Door::HttpClient),
    (b"PATCH ", Door::HttpClient),
    (b"TRACE ", Door::HttpClient),
    (b"DELETE ", Door::HttpClient),
    (b"OPTIONS ", Door::HttpClient),
    (b"CONNECT ", Door::HttpClient),
    (b"HTTP/", Door::HttpServer),
    // The page without a status line by which a server refuses a line that it takes for HTTP/0.9.
    (b"<!DO", Door::HttpServer),
    // Handshake and alert records of SSL 3.0 and every TLS.
    (&[0x16, 3], Door::Tls),
    (&[0x15, 3], Door::Tls),
    (b"SSH-", Door::Ssh),
];

/// The beginning of a control connection over TCP; two more bytes name the fabric.
const CONTROL: &[u8] = b"\x0b\0\0\0\x01Dunlin";

/// Recognises a protocol by the first bytes of one side. Looks at no more than [`ENOUGH`] bytes.
pub fn recognise(bytes: &[u8]) -> Look {
    let mut short = false;
    for (prefix, door) in PREFIXES {
        if bytes.starts_with(prefix) {
            return Look::Is(door);
        }
        short |= prefix.starts_with(bytes);
    }
    if bytes.starts_with(CONTROL) {
        return if bytes.len() < CONTROL.len() + 2 { Look::Short } else { Look::Is(Door::Control) };
    }
    match thrift(bytes) {
        Look::Unknown if short => Look::Short,
        look => look,
    }
}

/// Recognises a Thrift message, with or without the length of a frame before it.
fn thrift(bytes: &[u8]) -> Look {
    let framed = match bytes.split_first_chunk::<4>() {
        None if may_be_length(bytes) => Look::Short,
        Some((length, rest)) if (1..=LONGEST_FRAME).contains(&u32::from_be_bytes(*length)) => match rest {
            [0x0f] => Look::Short,
            // THeader, which has a frame too.
            [0x0f, 0xff, ..] => Look::Is(Door::Thrift),
            rest => message(rest),
        },
        _ => Look::Unknown,
    };
    match (framed, message(bytes)) {
        (Look::Is(door), _) | (_, Look::Is(door)) => Look::Is(door),
        (Look::Short, _) | (_, Look::Short) => Look::Short,
        _ => Look::Unknown,
    }
}

/// Returns whether these first bytes of a number may be those of a frame's length.
fn may_be_length(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|first| u32::from(*first) <= LONGEST_FRAME >> 24)
}

/// Recognises the head of a Thrift message.
fn message(bytes: &[u8]) -> Look {
    match *bytes {
        // Compact: version 1 and a message type.
        [0x82, second, ..] if second & 0x1f == 1 && (1..=4).contains(&(second >> 5)) => {
            Look::Is(Door::Thrift)
        }
        // Binary: version 1 and a message type.
        [0x80, 0x01, _, 1..=4, ..] => Look::Is(Door::Thrift),
        // Binary of the old form: the name's length and its first letter.
        [0, 0, high, low, letter, ..]
            if (1..=LONGEST_NAME).contains(&u16::from_be_bytes([high, low]))
                && (letter == b'_' || letter.is_ascii_alphabetic()) =>
        {
            Look::Is(Door::Thrift)
        }
        [] | [0x82] | [0x80] | [0x80, 0x01] | [0x80, 0x01, _] | [0] | [0, 0] | [0, 0, _] => Look::Short,
        [0, 0, high, low] if (1..=LONGEST_NAME).contains(&u16::from_be_bytes([high, low])) => Look::Short,
        _ => Look::Unknown,
    }
}

impl Door {
    /// Returns a name for a peer that was dialled and answered so.
    pub fn as_server(self) -> &'static str {
        match self {
            Door::AutoClient | Door::AutoServer => "an auto: address of a Dunlin server",
            Door::Rdma => "the control port of a Dunlin server on RDMA",
            Door::Ofi => "the control port of a Dunlin server on libfabric",
            Door::Control => "the control port of a Dunlin server on another fabric",
            Door::Shm => "a Dunlin server on shared memory",
            Door::Refusal => "a Dunlin server of another kind",
            Door::Thrift => "a server of stock Thrift",
            Door::HttpClient | Door::HttpServer => "a web server (HTTP)",
            Door::Tls => "a server of TLS",
            Door::Ssh => "an SSH server",
        }
    }

    /// Returns a name for a peer that has connected to a listener and spoke so.
    pub fn as_client(self) -> &'static str {
        match self {
            Door::AutoClient | Door::AutoServer => "a client of an auto: address",
            Door::Rdma => "a client of an rdma: address",
            Door::Ofi => "a client of an ofi: address",
            Door::Control => "a client of another fabric of Dunlin",
            Door::Shm => "a client of a shm: address",
            Door::Refusal => "a Dunlin server",
            Door::Thrift => "a client of stock Thrift",
            Door::HttpClient | Door::HttpServer => "a web client (HTTP)",
            Door::Tls => "a client of TLS",
            Door::Ssh => "an SSH client",
        }
    }

    /// Returns the sentence for a user who dialled this peer at `place` (HOST:PORT) with another scheme: the
    /// peer's kind, and the address to use instead.
    pub fn found_at(self, place: &str) -> String {
        let instead = match self {
            Door::AutoClient | Door::AutoServer => format!("use auto:{place}"),
            Door::Rdma => format!("use rdma:{place}, or the server's auto: address"),
            Door::Ofi => format!("use ofi:PROVIDER:{place}, or the server's auto: address"),
            Door::Thrift => format!("use tcp:{place} with a typed client"),
            Door::Shm => "use shm:NAME".to_owned(),
            Door::Control | Door::Refusal => "use the address that the server prints".to_owned(),
            Door::HttpClient | Door::HttpServer | Door::Tls | Door::Ssh => {
                format!("use the address of a Dunlin server: look at host and port of {place}")
            }
        };
        format!("this is {}; {instead}", self.as_server())
    }
}

/// Returns the sentence for the first bytes of a dialled peer at `place`: its own words if it is a listener
/// of Dunlin, else the name of its protocol and the address to use. `None` if the protocol is not known.
pub fn found(bytes: &[u8], place: &str) -> Option<String> {
    let door = recognise(bytes).door()?;
    Some(refusal_text(bytes).unwrap_or_else(|| door.found_at(place)))
}

/// Returns a peer's first bytes for a log: its protocol, or at most 16 bytes, escaped.
pub fn described(bytes: &[u8]) -> String {
    match recognise(bytes) {
        Look::Is(door) => door.as_client().to_owned(),
        _ if bytes.is_empty() => "nothing".to_owned(),
        _ => format!("bytes of no known protocol: \"{}\"", bytes[..bytes.len().min(16)].escape_ascii()),
    }
}

/// The kinds of visitors that a listener has logged, so that each is logged once.
#[derive(Debug, Default)]
pub struct Visitors(AtomicU32);

impl Visitors {
    /// Returns whether these are the first bytes of their kind.
    pub fn is_first(&self, bytes: &[u8]) -> bool {
        let bit = 1 << recognise(bytes).door().map_or(31, |door| door as u32);
        self.0.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: [(&[u8], Door); 26] = [
        (b"DunlinAQ", Door::AutoClient),
        (b"DunlinAU\x01\0\0", Door::AutoServer),
        (b"DunlinNO\x02\0hi", Door::Refusal),
        (b"\x0b\0\0\0\x01DunlinRD\x03\0", Door::Rdma),
        (b"\x0b\0\0\0\x01DunlinOF\x03\0", Door::Ofi),
        (b"\x0b\0\0\0\x01DunlinXX\x03\0", Door::Control),
        (b"\x01\0\0\0\x02", Door::Control),
        (b"\x01DunlinSM\x01\0", Door::Shm),
        (b"\x02DunlinSM\x03\0\0\0\0", Door::Shm),
        (b"GET / HTTP/1.1\r\n", Door::HttpClient),
        (b"OPTIONS * HTTP/1.1\r\n", Door::HttpClient),
        (b"PRI * HTTP/2.0\r\n", Door::HttpClient),
        (b"HTTP/1.1 400 Bad Request\r\n", Door::HttpServer),
        (b"<!DOCTYPE HTML>\n<html lang=\"en\">", Door::HttpServer),
        (b"\x16\x03\x01\x02\0\x01", Door::Tls),
        (b"\x15\x03\x03\0\x02\x02\x28", Door::Tls),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Door::Ssh),
        (b"\x80\x01\0\x01\0\0\0\x04echo", Door::Thrift),
        (b"\0\0\0\x20\x80\x01\0\x01\0\0\0\x04echo", Door::Thrift),
        (b"\0\0\0\x20\x80\x01\0\x03\0\0\0\x04echo", Door::Thrift),
        (b"\x82\x21\0\x04echo", Door::Thrift),
        (b"\0\0\x10\0\x82\x21\0\x04echo", Door::Thrift),
        (b"\0\0\0\x04echo\x01\0\0\0\0", Door::Thrift),
        (b"\0\0\0\x20\0\0\0\x04echo\x01", Door::Thrift),
        (b"\0\0\0\x20\x0f\xff\0\0", Door::Thrift),
        (b"\x01\0\0\0\x82\x21\0\x04echo", Door::Thrift),
    ];

    #[test]
    fn each_protocol_is_known_by_few_bytes_and_not_guessed_before() {
        for (bytes, door) in KNOWN {
            assert_eq!(recognise(bytes), Look::Is(door), "{}", bytes.escape_ascii());
            assert_eq!(recognise(&bytes[..bytes.len().min(ENOUGH)]), Look::Is(door));
            for end in 0..bytes.len() {
                let look = recognise(&bytes[..end]);
                assert!([Look::Short, Look::Is(door)].contains(&look), "{end} of {}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn other_bytes_are_not_known() {
        let zeros = [0; 1 << 20];
        for bytes in
            [&zeros[..], b"\xff\xff\xff\xff", b"hello", b"*1\r\n$4\r\nPING", b"DunlinZZ", b"\x80\x02\0\x01"]
        {
            assert_eq!(recognise(bytes), Look::Unknown, "{}", bytes[..4].escape_ascii());
        }
        assert_eq!(recognise(b""), Look::Short);
        assert_eq!(described(b"\x01\"hello\n"), r#"bytes of no known protocol: "\x01\"hello\n""#);
        assert_eq!((described(b""), described(b"GET / ")), ("nothing".into(), "a web client (HTTP)".into()));
    }

    #[test]
    fn a_kind_is_logged_once() {
        let visitors = Visitors::default();
        for bytes in [&b"GET / "[..], b"SSH-2", b"hello", b"\x16\x03\x01"] {
            assert!(visitors.is_first(bytes));
            assert!(!visitors.is_first(bytes));
        }
        assert!(!visitors.is_first(b"POST /"));
    }

    #[test]
    fn what_is_found_names_the_address_to_use() {
        let found = |bytes: &[u8]| found(bytes, "node-7:7000").expect("known");
        assert_eq!(
            found(b"DunlinAU\x01"),
            "this is an auto: address of a Dunlin server; use auto:node-7:7000"
        );
        assert!(found(b"\x80\x01\0\x03").contains("use tcp:node-7:7000"));
        assert!(found(b"\x0b\0\0\0\x01DunlinRD").contains("use rdma:node-7:7000"));
        assert!(found(b"HTTP/1.1 400").starts_with("this is a web server (HTTP); "));
        assert_eq!(super::found(b"hello", "node-7:7000"), None);
    }

    fn first_bytes() -> impl Strategy<Value = Vec<u8>> {
        let known = (0..KNOWN.len(), any::<u8>(), 0usize..20).prop_map(|(index, byte, at)| {
            let mut bytes = KNOWN[index].0.to_vec();
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            bytes
        });
        let few = prop::sample::select(&[0u8, 1, 2, 3, 0x0b, 0x0f, 0x16, 0x80, 0x82, b'D', b'G', 0xff][..]);
        prop_oneof![known, prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(few, 0..16)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A decision stays the same when more bytes arrive, and no byte beyond [`ENOUGH`] matters.
        #[test]
        fn more_bytes_never_change_an_opinion(bytes in first_bytes()) {
            let mut before = Look::Short;
            for end in 0..=bytes.len() {
                let look = recognise(&bytes[..end]);
                if before != Look::Short {
                    prop_assert_eq!(look, before, "at {} of {}", end, bytes.escape_ascii());
                }
                before = look;
            }
            let enough = &bytes[..bytes.len().min(ENOUGH)];
            prop_assert_eq!(recognise(enough), before);
            if bytes.len() >= ENOUGH {
                prop_assert_ne!(before, Look::Short);
            }
            let _ = (described(&bytes), found(&bytes, "h:1"));
        }
    }
}
