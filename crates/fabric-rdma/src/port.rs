//! The port of a device that is used, and its addresses. Pure.

use crate::device::DeviceChoice;
use crate::sys::{self, Gid};
use std::net::{IpAddr, Ipv6Addr};

/// The protocol of a port. Both ends of a connection must use the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Link {
    /// InfiniBand.
    #[default]
    InfiniBand = 0,
    /// RDMA over Ethernet frames, which cannot cross routers.
    RoceV1 = 1,
    /// RDMA over UDP.
    RoceV2 = 2,
    /// RDMA over TCP.
    Iwarp = 3,
}

dunlin_numbered::numbered!(Link: u8 {
    InfiniBand = "InfiniBand", RoceV1 = "RoCE v1", RoceV2 = "RoCE v2", Iwarp = "iWARP",
});

/// An address of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortGid {
    pub(crate) gid: Gid,
    pub(crate) index: u8,
    pub(crate) link: Link,
}

impl PortGid {
    fn address(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.gid.0)
    }

    /// Returns a key that orders addresses by preference: RoCE v2 before v1, IPv4 before IPv6, link-local
    /// addresses last, and of equals the first.
    fn rank(&self) -> impl Ord + use<> {
        let link_local = self.address().segments()[0] & 0xffc0 == 0xfe80;
        (self.link != Link::RoceV2, link_local, self.address().to_ipv4_mapped().is_none(), self.index)
    }
}

/// The properties of a port that are used.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    /// The MTU, as a code of `ibv_mtu`.
    pub(crate) mtu: u32,
    pub(crate) max_message: u32,
    /// The data rate in megabits per second; 0 if unknown.
    pub(crate) megabits: u32,
    /// The preferred address, or the requested one.
    pub(crate) gid: PortGid,
    /// The addresses to choose from; only one if it was requested.
    gids: Vec<PortGid>,
}

/// Returns a port's data rate in megabits per second, from verbs' codes of its width and of its lanes' speed;
/// 0 for unknown codes.
fn megabits(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 => 10_000,
        8 => 10_312,
        16 => 14_062,
        32 => 25_781,
        64 => 53_125,
        128 => 106_250,
        _ => 0,
    };
    lanes * lane
}

impl Port {
    /// Returns the properties of a port; `None` if it has no address, or not the requested one.
    pub(crate) fn new(
        number: u8,
        attributes: &sys::PortAttributes,
        table: &[sys::GidEntry],
        is_iwarp: bool,
        choice: &DeviceChoice,
    ) -> Option<Self> {
        let ethernet = attributes.link_layer == sys::LINK_LAYER_ETHERNET;
        let gids: Vec<PortGid> = table
            .iter()
            .filter(|entry| choice.gid_index.is_none_or(|index| index == entry.index))
            .filter_map(|entry| {
                let link = match entry.kind {
                    _ if is_iwarp => Link::Iwarp,
                    sys::GID_ROCE_V2 => Link::RoceV2,
                    _ if ethernet => Link::RoceV1,
                    _ => Link::InfiniBand,
                };
                Some(PortGid { gid: entry.gid, index: u8::try_from(entry.index).ok()?, link })
            })
            .collect();
        let wanted = choice.mtu.map_or(sys::MTU_4096, mtu_code);
        Some(Port {
            number,
            lid: attributes.lid,
            service_level: attributes.subnet_manager_service_level,
            mtu: attributes.active_mtu.min(wanted).clamp(1, sys::MTU_4096),
            max_message: attributes.max_message,
            megabits: megabits(attributes.active_width, attributes.active_speed),
            gid: *gids.iter().min_by_key(|gid| gid.rank())?,
            gids,
        })
    }

    /// Returns the payload of one packet, in bytes.
    pub(crate) fn mtu_bytes(&self) -> u32 {
        128 << self.mtu
    }

    /// Returns the GID for a connection whose control connection has this local address: the same address, if
    /// the port has it, so that both use one network.
    pub(crate) fn gid_for(&self, local: Option<IpAddr>) -> &PortGid {
        let local = local.map(|address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        });
        let same = self.gids.iter().filter(|gid| Some(gid.address()) == local);
        same.min_by_key(|gid| gid.rank()).unwrap_or(&self.gid)
    }
}

/// Returns the code of the largest MTU of at most `bytes` bytes.
fn mtu_code(bytes: u32) -> u32 {
    (1..=sys::MTU_4096).rev().find(|code| 128 << code <= bytes).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, kind: u32, address: &str) -> sys::GidEntry {
        let address: Ipv6Addr = address.parse().unwrap();
        sys::GidEntry { gid: Gid(address.octets()), index, port: 1, kind, interface: 0 }
    }

    fn table() -> [sys::GidEntry; 6] {
        [
            entry(0, sys::GID_ROCE_V1, "fe80::1"),
            entry(1, sys::GID_ROCE_V2, "fe80::1"),
            entry(2, sys::GID_ROCE_V1, "::ffff:10.0.0.1"),
            entry(3, sys::GID_ROCE_V2, "fd00::1"),
            entry(4, sys::GID_ROCE_V2, "::ffff:10.0.0.1"),
            entry(5, sys::GID_ROCE_V2, "::ffff:10.1.0.2"),
        ]
    }

    fn port(table: &[sys::GidEntry], choice: &DeviceChoice) -> Option<Port> {
        let mut attributes = sys::PortAttributes::default();
        (attributes.active_mtu, attributes.link_layer) = (5, sys::LINK_LAYER_ETHERNET);
        Port::new(1, &attributes, table, false, choice)
    }

    #[test]
    fn speeds() {
        // A port of 40 Gb/s (4 lanes of QDR), one of 100 Gb/s (4 of EDR), and two with unknown codes.
        assert_eq!(
            [megabits(2, 4), megabits(2, 32), megabits(2, 0), megabits(99, 4)],
            [40_000, 103_124, 0, 0]
        );
    }

    #[test]
    fn the_address_that_routes_best_is_chosen() {
        let table = table();
        let chosen = |table: &[sys::GidEntry], gid_index| {
            port(table, &DeviceChoice { gid_index, ..DeviceChoice::default() }).map(|port| port.gid.index)
        };
        assert_eq!(chosen(&table, None), Some(4));
        assert_eq!(chosen(&table[..4], None), Some(3));
        assert_eq!(chosen(&table[..3], None), Some(1));
        assert_eq!(chosen(&table[..1], None), Some(0));
        assert_eq!(chosen(&[], None), None);
        assert_eq!(chosen(&table, Some(2)), Some(2));
        assert_eq!(chosen(&table, Some(9)), None);
    }

    #[test]
    fn the_address_of_the_control_connection_comes_first() {
        let any = port(&table(), &DeviceChoice::default()).unwrap();
        let towards = |port: &Port, address: &str| port.gid_for(Some(address.parse().unwrap())).index;
        assert_eq!(towards(&any, "10.1.0.2"), 5);
        assert_eq!(towards(&any, "10.0.0.1"), 4);
        assert_eq!(towards(&any, "fd00::1"), 3);
        assert_eq!(towards(&any, "192.168.0.1"), 4);
        assert_eq!(any.gid_for(None).index, 4);
        let chosen = DeviceChoice { gid_index: Some(2), ..DeviceChoice::default() };
        assert_eq!(towards(&port(&table(), &chosen).unwrap(), "10.1.0.2"), 2);
    }

    #[test]
    fn the_mtu_is_what_was_asked_for_up_to_the_ports() {
        let of = |mtu| port(&table(), &DeviceChoice { mtu, ..DeviceChoice::default() }).unwrap().mtu_bytes();
        let wanted = [None, Some(1), Some(256), Some(1500), Some(4096), Some(9000)];
        assert_eq!(wanted.map(of), [4096, 256, 256, 1024, 4096, 4096]);
    }

    #[test]
    fn links_are_read_as_they_were_written() {
        for link in [Link::InfiniBand, Link::RoceV1, Link::RoceV2, Link::Iwarp] {
            assert_eq!(Link::from_wire(link as u8), Some(link));
        }
        assert_eq!(Link::from_wire(4), None);
    }
}
