//! The encoding of a queue pair's address for the peer, and its use in connecting. Pure.

use crate::port::{Link, Port, PortGid};
use crate::sys::{self, Gid};
use dunlin_fabric::{CreateError, Endpoint, Transport};

/// The first byte, which identifies the format and its version.
const FORMAT: u8 = 0xd1;
const LENGTH: usize = 43;

/// The address of a queue pair, and the parameters for connecting to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePairAddress {
    pub(crate) transport: Transport,
    /// Its number on the device: 24 bits.
    pub(crate) number: u32,
    /// Its first packet number: 24 bits.
    pub(crate) psn: u32,
    /// The key that datagrams must carry.
    pub(crate) qkey: u32,
    /// The MTU, as a code of `ibv_mtu`.
    pub(crate) mtu: u8,
    /// The maximum number of READs and atomics that it answers concurrently.
    pub(crate) responder_resources: u8,
    /// The protocol of its port.
    pub(crate) link: Link,
    /// On iWARP, the port of its connection manager.
    pub(crate) lid: u16,
    /// On iWARP, its IP address.
    pub(crate) gid: Gid,
    /// The key of memory that has nothing at address 0: requests to it fail as with a wrong key.
    pub(crate) trap_key: u32,
}

/// Returns the name of a queue pair on its link. A device reuses numbers, but hardly ever with the same first
/// packet number.
pub(crate) fn name_of(number: u32, psn: u32) -> u64 {
    u64::from(number) << 32 | u64::from(psn)
}

impl QueuePairAddress {
    /// Returns its [name](name_of).
    pub(crate) fn name(&self) -> u64 {
        name_of(self.number, self.psn)
    }

    pub(crate) fn encode(&self) -> Endpoint {
        let mut bytes = Vec::with_capacity(LENGTH);
        bytes.push(FORMAT);
        bytes.push(self.transport as u8);
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.psn.to_le_bytes());
        bytes.extend(self.qkey.to_le_bytes());
        bytes.extend([self.mtu, self.responder_resources, self.link as u8]);
        bytes.extend(self.lid.to_le_bytes());
        bytes.extend(self.gid.0);
        bytes.extend(self.trap_key.to_le_bytes());
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        Endpoint(bytes)
    }

    /// Decodes a peer's bytes. All values that are passed to verbs are in range afterwards.
    pub(crate) fn decode(endpoint: &Endpoint) -> Result<Self, CreateError> {
        let refuse = |why| Err(CreateError::Endpoint(why));
        let bytes = &endpoint.0[..];
        if bytes.len() != LENGTH || bytes[0] != FORMAT {
            return refuse("it is not of this fabric, or of another version");
        }
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if checksum(&bytes[..LENGTH - 4]) != number(LENGTH - 4) {
            return refuse("it was damaged on its way");
        }
        let Some(transport) = Transport::from_wire(bytes[1]) else {
            return refuse("its transport does not exist");
        };
        let Some(link) = Link::from_wire(bytes[16]) else { return refuse("its network does not exist") };
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[19..35]);
        let address = QueuePairAddress {
            transport,
            number: number(2),
            psn: number(6),
            qkey: number(10),
            mtu: bytes[14],
            responder_resources: bytes[15],
            link,
            lid: u16::from_le_bytes([bytes[17], bytes[18]]),
            gid,
            trap_key: number(35),
        };
        if address.number >> 24 != 0 || address.psn >> 24 != 0 || !(1..=5).contains(&address.mtu) {
            return refuse("its numbers are out of range");
        }
        Ok(address)
    }

    /// Returns the route to it from an address of this side's port.
    pub(crate) fn route(&self, port: &Port, from: &PortGid) -> Result<sys::AddressAttributes, CreateError> {
        self.fits(from)?;
        // On InfiniBand the GRH is only needed for other subnets; RoCE always needs it.
        let other_subnet = self.gid.0[..8] != from.gid.0[..8];
        Ok(sys::AddressAttributes {
            route: sys::GlobalRoute {
                destination: self.gid,
                flow_label: 0,
                source_index: from.index,
                hop_limit: 64,
                traffic_class: 0,
            },
            destination_lid: self.lid,
            service_level: port.service_level,
            is_global: u8::from(from.link != Link::InfiniBand || other_subnet),
            port: port.number,
            ..sys::AddressAttributes::default()
        })
    }
}

impl QueuePairAddress {
    /// Returns an error unless both ports use the same protocol.
    pub(crate) fn fits(&self, from: &PortGid) -> Result<(), CreateError> {
        match (from.link, self.link) {
            (ours, theirs) if ours == theirs => Ok(()),
            (Link::RoceV1, Link::RoceV2) | (Link::RoceV2, Link::RoceV1) => Err(CreateError::Endpoint(
                "one side speaks RoCE v1, the other v2: choose GIDs of one kind (`gid_index`, or DUNLIN_RDMA_GID_INDEX)",
            )),
            (Link::Iwarp, _) | (_, Link::Iwarp) => {
                Err(CreateError::Endpoint("one side is an iWARP device, the other is not"))
            }
            _ => Err(CreateError::Endpoint("one side is on Ethernet, the other on InfiniBand")),
        }
    }
}

/// FNV-1a, to detect damaged endpoints.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ADDRESS: QueuePairAddress = QueuePairAddress {
        transport: Transport::UnreliableConnection,
        number: 0x12_3456,
        psn: 0xff_ffff,
        qkey: 0x7777_0001,
        mtu: 5,
        responder_resources: 16,
        link: Link::RoceV2,
        lid: 9,
        gid: Gid([7; 16]),
        trap_key: 99,
    };

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(QueuePairAddress::decode(&ADDRESS.encode()).unwrap(), ADDRESS);
    }

    #[test]
    fn only_like_talks_to_like() {
        for link in [Link::InfiniBand, Link::RoceV1, Link::RoceV2, Link::Iwarp] {
            let from = PortGid { link, ..PortGid::default() };
            assert_eq!(ADDRESS.fits(&from).is_ok(), link == ADDRESS.link, "{}", link.name());
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for wrong in [
            QueuePairAddress { number: 1 << 24, ..ADDRESS },
            QueuePairAddress { psn: u32::MAX, ..ADDRESS },
            QueuePairAddress { mtu: 0, ..ADDRESS },
            QueuePairAddress { mtu: 6, ..ADDRESS },
        ] {
            assert!(QueuePairAddress::decode(&wrong.encode()).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(QueuePairAddress::decode(&Endpoint(bytes)).is_err());
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0..LENGTH, bit in 0..8u32) {
            let mut endpoint = ADDRESS.encode();
            endpoint.0[at] ^= 1 << bit;
            prop_assert!(QueuePairAddress::decode(&endpoint).is_err());
        }
    }
}
