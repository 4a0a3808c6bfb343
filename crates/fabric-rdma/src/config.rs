//! Settings of a fabric, and how the environment gives them.

use crate::device::DeviceChoice;
use thiserror::Error;

/// Settings of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Which device, port and address.
    pub device: DeviceChoice,
    /// Whether a WRITE's bytes become visible in order, where you know it of your NIC. If not said: of mlx4, mlx5 and
    /// Soft-RoCE it is known.
    pub in_order_write: Option<bool>,
    /// The longest inline message asked for, in bytes; a device that takes less decides. Send queues need room for it.
    pub max_inline: u32,
    /// The most regions one link's side may have granted at once.
    pub max_grants_per_link: usize,
    /// The time in nanoseconds until a packet without an acknowledgement is sent again; rounded up to a power of two of
    /// 4.096 us. With [`retries`](RdmaConfig::retries) it bounds how long a peer that answers nothing is taken for alive,
    /// and a live one may be silent.
    pub acknowledgement_timeout: u64,
    /// How often it is sent again, at most 7.
    pub retries: u8,
    /// How long, in nanoseconds, the port may be down before all links end with
    /// [`LinkError::Device`](dunlin_fabric::LinkError::Device).
    pub port_patience: u64,
    /// How long, in nanoseconds, who has connected to a listener may take for its greeting.
    pub greeting_patience: u64,
}

/// A setting in the environment cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}={value} cannot be used: {wanted}")]
pub struct SettingError {
    /// The variable.
    pub name: &'static str,
    /// What it holds.
    pub value: String,
    /// What it may hold.
    pub wanted: &'static str,
}

impl RdmaConfig {
    /// The usual settings, with what the environment says: `DUNLIN_RDMA_DEVICE` (a name), `DUNLIN_RDMA_PORT`,
    /// `DUNLIN_RDMA_GID_INDEX`, `DUNLIN_RDMA_MTU` (bytes), `DUNLIN_RDMA_TIMEOUT` (milliseconds until a packet is sent
    /// again), `DUNLIN_RDMA_RETRIES` (0 to 7).
    pub fn from_environment() -> Result<Self, SettingError> {
        Self::from_variables(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    fn from_variables(get: impl Fn(&'static str) -> Option<String>) -> Result<Self, SettingError> {
        let number = |name, most: u64, wanted| {
            get(name)
                .map(|value| match value.parse::<u64>() {
                    Ok(number) if number <= most => Ok(number),
                    _ => Err(SettingError { name, value, wanted }),
                })
                .transpose()
        };
        let mut config = RdmaConfig::default();
        let choice = &mut config.device;
        choice.device = get("DUNLIN_RDMA_DEVICE");
        choice.port = number("DUNLIN_RDMA_PORT", 255, "the number of a port")?.map(|port| port as u8);
        let index = number("DUNLIN_RDMA_GID_INDEX", 255, "an index of the table of GIDs, 0 to 255")?;
        choice.gid_index = index.map(|index| index as u32);
        let mtu = number("DUNLIN_RDMA_MTU", 65_536, "bytes: 256, 512, 1024, 2048 or 4096")?;
        choice.mtu = mtu.map(|mtu| mtu as u32);
        if let Some(timeout) = number("DUNLIN_RDMA_TIMEOUT", 60_000, "milliseconds, at most 60000")? {
            config.acknowledgement_timeout = timeout * 1_000_000;
        }
        if let Some(retries) = number("DUNLIN_RDMA_RETRIES", 7, "a number from 0 to 7")? {
            config.retries = retries as u8;
        }
        Ok(config)
    }
}

impl Default for RdmaConfig {
    fn default() -> Self {
        RdmaConfig {
            device: DeviceChoice::default(),
            in_order_write: None,
            max_inline: 256,
            max_grants_per_link: 1024,
            acknowledgement_timeout: 250_000_000,
            retries: 7,
            port_patience: 2_000_000_000,
            greeting_patience: 5_000_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_overrides() {
        let set = |pairs: &'static [(&'static str, &'static str)]| {
            RdmaConfig::from_variables(move |wanted| {
                pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(set(&[]).unwrap(), RdmaConfig::default());
        let config = set(&[
            ("DUNLIN_RDMA_DEVICE", "mlx5_1"),
            ("DUNLIN_RDMA_PORT", "2"),
            ("DUNLIN_RDMA_GID_INDEX", "3"),
            ("DUNLIN_RDMA_MTU", "1024"),
            ("DUNLIN_RDMA_TIMEOUT", "100"),
            ("DUNLIN_RDMA_RETRIES", "3"),
        ])
        .unwrap();
        let device = DeviceChoice {
            device: Some("mlx5_1".into()),
            port: Some(2),
            gid_index: Some(3),
            mtu: Some(1024),
        };
        assert_eq!((config.device, config.acknowledgement_timeout, config.retries), (device, 100_000_000, 3));
        for (name, value) in
            [("DUNLIN_RDMA_RETRIES", "8"), ("DUNLIN_RDMA_PORT", "one"), ("DUNLIN_RDMA_GID_INDEX", "-1")]
        {
            let error =
                RdmaConfig::from_variables(|wanted| (wanted == name).then(|| value.to_owned())).unwrap_err();
            assert_eq!((error.name, error.value.as_str()), (name, value));
        }
    }
}
