//! The encoding of a queue pair's address for the peer. Pure.

use crate::handles::{MAX_ADDRESS, Remote};
use dunlin_fabric::{CreateError, Endpoint};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first byte, which identifies the format and its version.
const FORMAT: u8 = 0x1f;
/// The longest encoded name of a provider.
const MAX_PROVIDER: usize = 32;

/// The address of a queue pair, and the data that identifies its peer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuePairAddress {
    /// Its device-wide number.
    pub(crate) number: u32,
    /// A secret that the connection request, each message to it, and each WRITE of credits contain.
    pub(crate) secret: u64,
    pub(crate) place: Whereabouts,
    /// The provider, which must be the same on both sides.
    pub(crate) provider: String,
}

/// The location of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// The port for connection requests, on the host at the other end of the control connection; 0 from the
    /// side that requests.
    Port(u16),
    /// A datagram endpoint.
    Datagrams {
        /// Its address in the provider's format.
        messages: Vec<u8>,
        /// The address of the endpoint for access to memory; empty if it is the same.
        memory: Vec<u8>,
        /// The cell for the number of RECVs.
        cell: Remote,
    },
}

impl QueuePairAddress {
    pub(crate) fn encode(&self) -> Endpoint {
        let mut bytes = vec![FORMAT];
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.secret.to_le_bytes());
        let text = |bytes: &mut Vec<u8>, text: &[u8], most: usize| {
            let text = &text[..text.len().min(most)];
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text);
        };
        match &self.place {
            Whereabouts::Port(port) => {
                bytes.push(0);
                bytes.extend(port.to_le_bytes());
            }
            Whereabouts::Datagrams { messages, memory, cell } => {
                bytes.push(1);
                bytes.extend(cell.key.to_le_bytes());
                bytes.extend(cell.address.to_le_bytes());
                text(&mut bytes, messages, MAX_ADDRESS);
                text(&mut bytes, memory, MAX_ADDRESS);
            }
        }
        text(&mut bytes, self.provider.as_bytes(), MAX_PROVIDER);
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        Endpoint(bytes)
    }

    /// Decodes a peer's bytes.
    pub(crate) fn decode(endpoint: &Endpoint) -> Result<Self, CreateError> {
        let refuse = |why| Err(CreateError::Endpoint(why));
        if endpoint.0.first() != Some(&FORMAT) {
            return refuse("it is not of this fabric, or of another version");
        }
        let Some((bytes, sum)) = endpoint.0.split_last_chunk() else { return refuse("it is cut") };
        if checksum(bytes).to_le_bytes() != *sum {
            return refuse("it was damaged on its way");
        }
        Self::read(&mut Reader(&bytes[1..])).map_or_else(|| refuse("it does not say where it is"), Ok)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let number = u32::from_le_bytes(reader.chunk()?);
        let secret = u64::from_le_bytes(reader.chunk()?);
        let place = match reader.chunk::<1>()? {
            [0] => Whereabouts::Port(u16::from_le_bytes(reader.chunk()?)),
            [1] => {
                let (key, address) =
                    (u64::from_le_bytes(reader.chunk()?), u64::from_le_bytes(reader.chunk()?));
                let (messages, memory) =
                    (reader.text(MAX_ADDRESS)?.to_vec(), reader.text(MAX_ADDRESS)?.to_vec());
                if messages.is_empty() {
                    return None;
                }
                Whereabouts::Datagrams { messages, memory, cell: Remote { key, address } }
            }
            _ => return None,
        };
        let provider = std::str::from_utf8(reader.text(MAX_PROVIDER)?).ok()?.to_owned();
        reader.0.is_empty().then_some(QueuePairAddress { number, secret, place, provider })
    }
}

/// Reads bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn text(&mut self, most: usize) -> Option<&'a [u8]> {
        let length = usize::from(u16::from_le_bytes(self.chunk()?));
        let (text, rest) = self.0.split_at_checked(length).filter(|_| length <= most)?;
        self.0 = rest;
        Some(text)
    }
}

/// Returns whether an Internet address in the provider's format (`sockaddr_in`, `sockaddr_in6`) names this
/// host, so that a peer cannot direct traffic to third parties. Addresses of other formats are valid only in
/// their own network and are not checked.
pub(crate) fn leads_to(address: &[u8], host: IpAddr) -> bool {
    let family = address.first_chunk().map(|family| i32::from(u16::from_ne_bytes(*family)));
    let ip = match (family, address.len()) {
        (Some(libc::AF_INET), 16) => {
            address[4..8].first_chunk::<4>().map(|bytes| IpAddr::from(Ipv4Addr::from(*bytes)))
        }
        (Some(libc::AF_INET6), 28) => {
            address[8..24].first_chunk::<16>().map(|bytes| IpAddr::from(Ipv6Addr::from(*bytes)))
        }
        _ => None,
    };
    let has_port = address.get(2..4).is_some_and(|port| port != [0, 0]);
    has_port && ip.is_some_and(|ip| ip.to_canonical() == host.to_canonical())
}

/// FNV-1a, to detect damaged endpoints.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses() -> [QueuePairAddress; 3] {
        let cell = Remote { key: u64::MAX - 9, address: 4096 };
        let places = [
            Whereabouts::Port(7000),
            Whereabouts::Datagrams { messages: vec![7; 16], memory: Vec::new(), cell },
            Whereabouts::Datagrams { messages: vec![7; MAX_ADDRESS], memory: vec![9; 32], cell },
        ];
        places.map(|place| QueuePairAddress {
            number: 0x12_3456,
            secret: u64::MAX - 7,
            place,
            provider: "tcp;ofi_rxm".into(),
        })
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for address in addresses() {
            assert_eq!(QueuePairAddress::decode(&address.encode()).unwrap(), address);
        }
    }

    #[test]
    fn what_is_cut_is_refused_also_with_a_good_checksum() {
        for address in addresses() {
            let Endpoint(bytes) = address.encode();
            for end in 0..bytes.len() - 4 {
                let mut bytes = bytes[..end].to_vec();
                assert!(QueuePairAddress::decode(&Endpoint(bytes.clone())).is_err());
                let sum = checksum(&bytes);
                bytes.extend(sum.to_le_bytes());
                assert!(QueuePairAddress::decode(&Endpoint(bytes)).is_err(), "{end}");
            }
        }
    }

    #[test]
    fn peers_cannot_send_us_elsewhere() {
        let host = IpAddr::from([10, 0, 0, 1]);
        let v4 = |ip: [u8; 4], port: u16| {
            let family = (libc::AF_INET as u16).to_ne_bytes();
            [&family[..], &port.to_be_bytes(), &ip, &[0; 8]].concat()
        };
        assert!(leads_to(&v4([10, 0, 0, 1], 7), host));
        assert!(!leads_to(&v4([10, 0, 0, 2], 7), host));
        assert!(!leads_to(&v4([10, 0, 0, 1], 0), host));
        assert!(!leads_to(&v4([10, 0, 0, 1], 7)[..15], host));
        let v6 = |ip: Ipv6Addr| {
            let family = (libc::AF_INET6 as u16).to_ne_bytes();
            [&family[..], &[0, 7, 0, 0, 0, 0], &ip.octets(), &[0; 4]].concat()
        };
        assert!(leads_to(&v6(Ipv6Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()));
        assert!(!leads_to(&v6(Ipv6Addr::LOCALHOST), host));
        assert!(leads_to(&v6(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped()), host));
        assert!(!leads_to(&[], host) && !leads_to(&[0xff; 28], host));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..90)) {
            prop_assert!(QueuePairAddress::decode(&Endpoint(bytes)).is_err());
        }

        #[test]
        fn a_changed_byte_is_noticed(which in 0..3usize, at in any::<prop::sample::Index>(), bit in 0..8u32) {
            let mut endpoint = addresses()[which].encode();
            let at = at.index(endpoint.0.len());
            endpoint.0[at] ^= 1 << bit;
            prop_assert!(QueuePairAddress::decode(&endpoint).is_err());
        }
    }
}
