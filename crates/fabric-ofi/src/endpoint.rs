//! A queue pair's address as the peer gets it. Pure.

use dunlin_fabric::{CreateError, Endpoint};

/// The first byte: changes when the rest does.
const FORMAT: u8 = 0x0f;
/// The longest name of a provider that is told.
const MAX_PROVIDER: usize = 32;
/// All but the provider's name.
const LENGTH: usize = 19;

/// Where a queue pair is, and what it is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuePairAddress {
    /// Its number on the device.
    pub(crate) number: u32,
    /// What who asks for the connection says, and each message for it.
    pub(crate) secret: u64,
    /// The port where the connection is asked for, on the host at the other end of the control connection; 0 of the side that
    /// asks.
    pub(crate) port: u16,
    /// Only like talks to like.
    pub(crate) provider: String,
}

impl QueuePairAddress {
    /// As it travels.
    pub(crate) fn encode(&self) -> Endpoint {
        let mut bytes = Vec::with_capacity(LENGTH + MAX_PROVIDER);
        bytes.push(FORMAT);
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.secret.to_le_bytes());
        bytes.extend(self.port.to_le_bytes());
        bytes.extend(self.provider.bytes().take(MAX_PROVIDER));
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        Endpoint(bytes)
    }

    /// Reads what a peer sent.
    pub(crate) fn decode(endpoint: &Endpoint) -> Result<Self, CreateError> {
        let refuse = |why| Err(CreateError::Endpoint(why));
        let bytes = &endpoint.0[..];
        if !(LENGTH..=LENGTH + MAX_PROVIDER).contains(&bytes.len()) || bytes[0] != FORMAT {
            return refuse("it is not of this fabric, or of another version");
        }
        let (bytes, sum) = bytes.split_at(bytes.len() - 4);
        if checksum(bytes).to_le_bytes() != sum {
            return refuse("it was damaged on its way");
        }
        let chunk = |at: usize| -> [u8; 8] { std::array::from_fn(|byte| bytes[at + byte]) };
        let [a, b, c, d, ..] = chunk(1);
        let Ok(provider) = std::str::from_utf8(&bytes[15..]) else {
            return refuse("its provider has no name");
        };
        Ok(QueuePairAddress {
            number: u32::from_le_bytes([a, b, c, d]),
            secret: u64::from_le_bytes(chunk(5)),
            port: u16::from_le_bytes([bytes[13], bytes[14]]),
            provider: provider.to_owned(),
        })
    }
}

/// FNV-1a: garbage in an endpoint should not become a queue pair's address.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> QueuePairAddress {
        QueuePairAddress { number: 0x12_3456, secret: u64::MAX - 7, port: 7000, provider: "tcp".into() }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(QueuePairAddress::decode(&address().encode()).unwrap(), address());
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..90)) {
            prop_assert!(QueuePairAddress::decode(&Endpoint(bytes)).is_err());
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0..LENGTH + 3, bit in 0..8u32) {
            let mut endpoint = address().encode();
            endpoint.0[at] ^= 1 << bit;
            prop_assert!(QueuePairAddress::decode(&endpoint).is_err());
        }
    }
}
