//! Announcement: the message in which a server on several fabrics tells connecting clients its host and its
//! address on each fabric, or the reason why it does not use a fabric. Encoding and decoding are pure
//! functions.

use dunlin_fabric::door::AUTO_ANSWER as MAGIC;
use dunlin_fabric::{MAX_NAME, Scheme};

/// The longest announcement in bytes. Readers stop there.
pub(crate) const MAX_BYTES: usize = 2048;
/// The longest text, in bytes.
const MAX_REASON: usize = 400;
const VERSION: u8 = 1;

/// A server's address on one transport: the name of `shm:NAME`, the port of `rdma:HOST:PORT`, the provider
/// and port of `ofi:PROVIDER:HOST:PORT`, or the port of stock Thrift. The error is the reason why the server
/// is not on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    Shm(Result<String, String>),
    Rdma(Result<u16, String>),
    Ofi(Result<(String, u16), String>),
    Tcp(Result<u16, String>),
}

/// A decoded announcement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Identifies the server's host until its next boot; empty if unknown.
    pub(crate) host: String,
    pub(crate) offers: Vec<Offer>,
}

impl Offer {
    pub(crate) fn scheme(&self) -> Scheme {
        match self {
            Offer::Shm(_) => Scheme::Shm,
            Offer::Rdma(_) => Scheme::Rdma,
            Offer::Ofi(_) => Scheme::Ofi,
            Offer::Tcp(_) => Scheme::Tcp,
        }
    }
}

/// Tags of the offers in the encoding.
const SHM: u8 = 1;
const RDMA: u8 = 2;
const OFI: u8 = 3;
const TCP: u8 = 4;

impl Announcement {
    /// Encodes the announcement. It has no length: it ends with the connection.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        put(&mut bytes, &self.host);
        bytes.push(self.offers.len() as u8);
        for offer in &self.offers {
            let (kind, place) = match offer {
                Offer::Shm(place) => (SHM, place.clone()),
                Offer::Rdma(port) => (RDMA, port.clone().map(|port| port.to_string())),
                Offer::Tcp(port) => (TCP, port.clone().map(|port| port.to_string())),
                Offer::Ofi(place) => {
                    (OFI, place.clone().map(|(provider, port)| format!("{provider}:{port}")))
                }
            };
            bytes.extend([kind, u8::from(place.is_ok())]);
            put(&mut bytes, &place.unwrap_or_else(|why| why));
        }
        bytes
    }

    /// Decodes an announcement. The error describes the malformed part. Offers on fabrics unknown to this
    /// build are skipped.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "it ends too early";
        let rest = bytes.strip_prefix(&MAGIC).ok_or("it is no server of several fabrics")?;
        let (version, mut rest) = rest.split_first().ok_or(SHORT)?;
        if *version != VERSION {
            return Err("it speaks another version");
        }
        let host = take(&mut rest).ok_or(SHORT)?;
        let (count, mut rest) = rest.split_first().ok_or(SHORT)?;
        let mut offers = Vec::new();
        for _ in 0..*count {
            let ([kind, is_there], behind) = rest.split_first_chunk().ok_or(SHORT)?;
            rest = behind;
            let text = take(&mut rest).ok_or(SHORT)?;
            let place = if *is_there == 1 { Ok(text) } else { Err(text) };
            match (*kind, place) {
                (SHM, Ok(name)) if name.len() > MAX_NAME => return Err("a name is too long"),
                (SHM, place) => offers.push(Offer::Shm(place)),
                (RDMA, place) => offers.push(Offer::Rdma(port(place)?)),
                (TCP, place) => offers.push(Offer::Tcp(port(place)?)),
                (OFI, Ok(place)) => {
                    let (provider, port) = place.split_once(':').ok_or("a place is none")?;
                    let port = port.parse().map_err(|_| "a port is none")?;
                    offers.push(Offer::Ofi(Ok((provider.to_owned(), port))));
                }
                (OFI, Err(why)) => offers.push(Offer::Ofi(Err(why))),
                _ => {}
            }
        }
        if rest.is_empty() {
            Ok(Announcement { host, offers })
        } else {
            Err("it does not end where it should")
        }
    }
}

/// Parses the text of a port.
fn port(place: Result<String, String>) -> Result<Result<u16, String>, &'static str> {
    place
        .map(|port| port.parse().map_err(|_| "a port is none"))
        .map_or_else(|why| Ok(Err(why)), |port| port.map(Ok))
}

/// Appends a text after its length, truncated if it is too long.
fn put(bytes: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(MAX_REASON)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    bytes.extend((end as u16).to_le_bytes());
    bytes.extend(&text.as_bytes()[..end]);
}

/// Takes a text, with control characters replaced so that it can be printed.
fn take(rest: &mut &[u8]) -> Option<String> {
    let (length, behind) = rest.split_first_chunk()?;
    let (text, behind) = behind.split_at_checked(u16::from_le_bytes(*length).into())?;
    *rest = behind;
    let text = String::from_utf8_lossy(text);
    Some(text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer() -> impl Strategy<Value = Offer> {
        prop_oneof![
            "[!-~]{1,90}".prop_map(|name| Offer::Shm(Ok(name))),
            any::<u16>().prop_map(|port| Offer::Rdma(Ok(port))),
            any::<u16>().prop_map(|port| Offer::Tcp(Ok(port))),
            "[ -~]{0,300}".prop_map(|why| Offer::Tcp(Err(why))),
            ("[a-z;_]{1,20}", any::<u16>()).prop_map(|place| Offer::Ofi(Ok(place))),
            "[ -~]{0,300}".prop_map(|why| Offer::Ofi(Err(why))),
            "[ -~]{0,300}".prop_map(|why| Offer::Shm(Err(why))),
            "[ -~]{0,300}".prop_map(|why| Offer::Rdma(Err(why))),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn announcements_are_read_as_they_were_written(
            host in "[ -~]{0,60}",
            offers in proptest::collection::vec(offer(), 0..=4),
            more in any::<u8>(),
        ) {
            let said = Announcement { host, offers };
            let mut bytes = said.encode();
            prop_assert!(bytes.len() <= MAX_BYTES);
            prop_assert_eq!(Announcement::decode(&bytes), Ok(said));
            for end in 0..bytes.len() {
                prop_assert!(Announcement::decode(&bytes[..end]).is_err());
            }
            bytes.push(more);
            prop_assert!(Announcement::decode(&bytes).is_err());
        }

        #[test]
        fn no_bytes_do_harm(tail in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = [&MAGIC[..], &[VERSION], &tail].concat();
            if let Ok(said) = Announcement::decode(&bytes) {
                prop_assert!(said.offers.len() < 256 && !said.host.contains('\n'));
            }
        }
    }

    #[test]
    fn what_is_too_long_is_cut_and_what_is_unknown_is_passed_over() {
        let said = Announcement { host: "h".into(), offers: vec![Offer::Shm(Err("ä".repeat(1000)))] };
        let read = Announcement::decode(&said.encode()).expect("cut");
        assert_eq!(read.offers, [Offer::Shm(Err("ä".repeat(MAX_REASON / 2)))]);
        let mut bytes = Announcement { host: String::new(), offers: vec![Offer::Rdma(Ok(7))] }.encode();
        let kind = bytes.len() - 5;
        assert_eq!(bytes[kind], RDMA);
        bytes[kind] = 77;
        assert_eq!(Announcement::decode(&bytes), Ok(Announcement::default()));
    }
}
