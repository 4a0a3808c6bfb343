//! Settings of a fabric, and the environment variables that supply missing ones.

use crate::device::DeviceChoice;
use std::time::Duration;
use thiserror::Error;

/// Settings of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaConfig {
    /// The device, port and address. Default: the first usable device, and its first active port.
    pub device: DeviceChoice,
    /// Whether the bytes of a WRITE become visible in order. `None`, the default: the fabric decides, and
    /// knows it of mlx4, mlx5, Soft-RoCE and Soft-iWARP.
    pub in_order_write: Option<bool>,
    /// The limit for inline messages that is requested, in bytes; the device may allow less. Send queues need
    /// memory for it. Default: 256.
    pub max_inline: u32,
    /// The maximum number of concurrent grants by one side of a link. Default: 1024.
    pub max_grants_per_link: usize,
    /// The time until an unacknowledged packet is sent again. Rounded up to 4.096 us times a power of two.
    /// With [`retries`](RdmaConfig::retries) it bounds the time until a silent peer counts as dead, and thus
    /// the time that a live one may be silent. `None`, the default: `DUNLIN_RDMA_TIMEOUT`, or 250 ms.
    pub acknowledgement_timeout: Option<Duration>,
    /// The number of times that a packet is sent again, at most 7. `None`, the default:
    /// `DUNLIN_RDMA_RETRIES`, or 7.
    pub retries: Option<u8>,
    /// The time that the port may be down before all links end with
    /// [`LinkError::Device`](dunlin_fabric::LinkError::Device). Default: 2 s.
    pub port_patience: Duration,
    /// The time that a new connection has to send its greeting. Default: 5 s.
    pub greeting_patience: Duration,
}

/// A setting in the environment that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}={value} cannot be used: {wanted}")]
pub struct SettingError {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// The values allowed.
    pub wanted: &'static str,
}

impl RdmaConfig {
    /// Supplies missing settings of the device and of time-outs from environment variables:
    /// `DUNLIN_RDMA_DEVICE` (a name), `DUNLIN_RDMA_PORT`, `DUNLIN_RDMA_GID_INDEX`, `DUNLIN_RDMA_MTU` (bytes),
    /// `DUNLIN_RDMA_TIMEOUT` (milliseconds until a packet is sent again), `DUNLIN_RDMA_RETRIES` (0 to 7).
    /// [`RdmaFabric::new`](crate::RdmaFabric::new) calls it, so users need not.
    pub fn completed(self) -> Result<Self, SettingError> {
        self.completed_by(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn completed_by(self, get: impl Fn(&'static str) -> Option<String>) -> Result<Self, SettingError> {
        let number = |name, most: u64, wanted| {
            get(name)
                .map(|value| match value.parse::<u64>() {
                    Ok(number) if number <= most => Ok(number),
                    _ => Err(SettingError { name, value, wanted }),
                })
                .transpose()
        };
        let port = number("DUNLIN_RDMA_PORT", 255, "the number of a port")?;
        let index = number("DUNLIN_RDMA_GID_INDEX", 255, "an index of the table of GIDs, 0 to 255")?;
        let mtu = number("DUNLIN_RDMA_MTU", 65_536, "bytes: 256, 512, 1024, 2048 or 4096")?;
        let timeout = number("DUNLIN_RDMA_TIMEOUT", 60_000, "milliseconds, at most 60000")?;
        let retries = number("DUNLIN_RDMA_RETRIES", 7, "a number from 0 to 7")?;
        let DeviceChoice { device, .. } = self.device;
        let device = DeviceChoice {
            device: device.or_else(|| get("DUNLIN_RDMA_DEVICE")),
            port: self.device.port.or(port.map(|port| port as u8)),
            gid_index: self.device.gid_index.or(index.map(|index| index as u32)),
            mtu: self.device.mtu.or(mtu.map(|mtu| mtu as u32)),
        };
        let acknowledgement_timeout = self.acknowledgement_timeout.or(timeout.map(Duration::from_millis));
        let retries = self.retries.or(retries.map(|retries| retries as u8));
        Ok(RdmaConfig { device, acknowledgement_timeout, retries, ..self })
    }
}

impl Default for RdmaConfig {
    fn default() -> Self {
        RdmaConfig {
            device: DeviceChoice::default(),
            in_order_write: None,
            max_inline: 256,
            max_grants_per_link: 1024,
            acknowledgement_timeout: None,
            retries: None,
            port_patience: Duration::from_secs(2),
            greeting_patience: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_what_settings_leave_open() {
        let set = |config: RdmaConfig, pairs: &'static [(&'static str, &'static str)]| {
            config.completed_by(move |wanted| {
                pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(set(RdmaConfig::default(), &[]).unwrap(), RdmaConfig::default());
        const ALL: &[(&str, &str)] = &[
            ("DUNLIN_RDMA_DEVICE", "mlx5_1"),
            ("DUNLIN_RDMA_PORT", "2"),
            ("DUNLIN_RDMA_GID_INDEX", "3"),
            ("DUNLIN_RDMA_MTU", "1024"),
            ("DUNLIN_RDMA_TIMEOUT", "100"),
            ("DUNLIN_RDMA_RETRIES", "3"),
        ];
        let said = RdmaConfig {
            device: DeviceChoice {
                device: Some("mlx5_1".into()),
                port: Some(2),
                gid_index: Some(3),
                mtu: Some(1024),
            },
            acknowledgement_timeout: Some(Duration::from_millis(100)),
            retries: Some(3),
            ..RdmaConfig::default()
        };
        assert_eq!(set(RdmaConfig::default(), ALL).unwrap(), said);
        // Settings of the program take precedence.
        let device = DeviceChoice { device: Some("rxe0".into()), ..DeviceChoice::default() };
        let own = RdmaConfig { device, retries: Some(0), ..RdmaConfig::default() };
        let completed = set(own, ALL).unwrap();
        assert_eq!((completed.device.device.as_deref(), completed.retries), (Some("rxe0"), Some(0)));
        let timeout = Some(Duration::from_millis(100));
        assert_eq!((completed.device.port, completed.acknowledgement_timeout), (Some(2), timeout));
        for (name, value) in
            [("DUNLIN_RDMA_RETRIES", "8"), ("DUNLIN_RDMA_PORT", "one"), ("DUNLIN_RDMA_GID_INDEX", "-1")]
        {
            let get = |wanted| (wanted == name).then(|| value.to_owned());
            let error = RdmaConfig::default().completed_by(get).unwrap_err();
            assert_eq!((error.name, error.value.as_str()), (name, value));
        }
    }
}
