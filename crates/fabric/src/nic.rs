//! Known RNICs: the queue pairs that a NIC holds in its cache, and drivers that only emulate a NIC.

use crate::rates::DeviceIdentity;

/// A kind of NIC, found by the vendor and the part number that its driver reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nic {
    /// A NIC of hardware.
    Hardware {
        /// The name of its generation.
        name: &'static str,
        /// The queue pairs for requests that its cache holds. With more of them, requests wait for their contexts.
        queue_pairs: u32,
    },
    /// A driver of the kernel emulates the NIC: the host's processors execute all requests.
    Emulated {
        /// The name of the driver.
        name: &'static str,
    },
}

/// The vendor of ConnectX, as in `ibv_query_device`.
pub const MELLANOX: u32 = 0x02c9;
/// The vendor that Soft-RoCE reports.
pub const SOFT_ROCE: u32 = 0xff_ffff;
/// The vendor that Soft-iWARP reports.
pub const SOFT_IWARP: u32 = 0x62_6d74;

/// Generations of ConnectX by their part numbers, which are their PCI device ids. The queue pairs are those of the
/// simulator's profiles, which state the sources: fitted to published curves for ConnectX-3, assumed for ConnectX-4, and
/// for ConnectX-5 those of its receiving side, which FLOCK's figure 2(a) shows. Later ones hold no fewer.
const CONNECT_X: [(u32, &str, u32); 10] = [
    (4099, "ConnectX-3", 72),
    (4103, "ConnectX-3 Pro", 72),
    (4115, "ConnectX-4", 512),
    (4117, "ConnectX-4 Lx", 512),
    (4119, "ConnectX-5", 896),
    (4121, "ConnectX-5 Ex", 896),
    (4123, "ConnectX-6", 896),
    (4125, "ConnectX-6 Dx", 896),
    (4127, "ConnectX-6 Lx", 896),
    (4129, "ConnectX-7", 896),
];

impl Nic {
    /// Returns the kind of a NIC by the numbers of its driver; `None` for one that is not known.
    pub fn by_part(vendor: u32, part: u32) -> Option<Nic> {
        match vendor {
            MELLANOX => CONNECT_X
                .iter()
                .find(|known| known.0 == part)
                .map(|(_, name, queue_pairs)| Nic::Hardware { name, queue_pairs: *queue_pairs }),
            SOFT_ROCE => Some(Nic::Emulated { name: "Soft-RoCE" }),
            SOFT_IWARP => Some(Nic::Emulated { name: "Soft-iWARP" }),
            _ => None,
        }
    }

    /// Returns the kind of the device with this identity, which names `vendor` (hexadecimal) and `part`.
    pub fn of(device: &DeviceIdentity) -> Option<Nic> {
        let property = |name| {
            device.properties.iter().find(|property| property.0 == name).map(|property| property.1.as_str())
        };
        let vendor = u32::from_str_radix(property("vendor")?.strip_prefix("0x")?, 16).ok()?;
        Nic::by_part(vendor, property("part")?.parse().ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_is_known_by_vendor_and_part() {
        let device = |vendor: &str, part: &str| {
            DeviceIdentity::of("rdma").with("device", "mlx").with("vendor", vendor).with("part", part)
        };
        let found = |vendor, part| Nic::of(&device(vendor, part));
        assert_eq!(found("0x2c9", "4099"), Some(Nic::Hardware { name: "ConnectX-3", queue_pairs: 72 }));
        assert_eq!(found("0x2c9", "4121"), Some(Nic::Hardware { name: "ConnectX-5 Ex", queue_pairs: 896 }));
        assert_eq!(found("0xffffff", "0"), Some(Nic::Emulated { name: "Soft-RoCE" }));
        assert_eq!(found("0x626d74", "0"), Some(Nic::Emulated { name: "Soft-iWARP" }));
        for (vendor, part) in [("0x2c9", "1"), ("0x8086", "4099"), ("2c9", "4099"), ("0x2c9", "x"), ("", "")]
        {
            assert_eq!(found(vendor, part), None, "{vendor} {part}");
        }
        assert_eq!(Nic::of(&DeviceIdentity::of("sim")), None);
    }
}
