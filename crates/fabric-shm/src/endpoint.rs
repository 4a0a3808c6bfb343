//! The content of an [`Endpoint`](dunlin_fabric::Endpoint) of this fabric. Pure.

use crate::frame::QueuePairName;
use dunlin_fabric::{CreateError, Endpoint, RegionKey, Transport};

const VERSION: u8 = 1;
const LENGTH: usize = 26;
/// Stands for no ring; no grant has this key.
pub(crate) const NO_RING: RegionKey = RegionKey(0);

/// The address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The queue pair's transport.
    pub(crate) transport: Transport,
    /// The queue pair's name in its process.
    pub(crate) name: QueuePairName,
    /// The key of its inbound ring, granted on the same link. For datagrams, the ring of the first address
    /// handle made from the endpoint, or [`NO_RING`]; each further handle requests a ring.
    pub(crate) ring: RegionKey,
    /// The key of its domain's doorbell, granted on the same link.
    pub(crate) doorbell: RegionKey,
}

impl Address {
    pub(crate) fn encode(&self) -> Endpoint {
        let mut bytes = Vec::with_capacity(LENGTH);
        bytes.extend([VERSION, self.transport as u8]);
        bytes.extend(self.name.domain.to_le_bytes());
        bytes.extend(self.name.queue_pair.to_le_bytes());
        bytes.extend(self.ring.0.to_le_bytes());
        bytes.extend(self.doorbell.0.to_le_bytes());
        Endpoint(bytes)
    }

    /// Decodes an address from a peer's bytes.
    pub(crate) fn decode(endpoint: &Endpoint) -> Result<Self, CreateError> {
        let bytes: &[u8; LENGTH] =
            endpoint.0.as_slice().try_into().map_err(|_| CreateError::Endpoint("its length is wrong"))?;
        if bytes[0] != VERSION {
            return Err(CreateError::Endpoint("it is of another version"));
        }
        let transport =
            Transport::from_wire(bytes[1]).ok_or(CreateError::Endpoint("its transport is unknown"))?;
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Address {
            transport,
            name: QueuePairName { domain: half(2), queue_pair: half(6) },
            ring: RegionKey(word(10)),
            doorbell: RegionKey(word(18)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..40), length in 20usize..30) {
            let mut bytes = bytes;
            bytes.resize(length, 0);
            bytes[0] = VERSION;
            bytes[1] %= 4;
            let endpoint = Endpoint(bytes);
            if let Ok(address) = Address::decode(&endpoint) {
                prop_assert_eq!(address.encode(), endpoint);
            }
        }
    }
}
