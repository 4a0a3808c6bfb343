//! Values of options: sizes, times, protocols, completion modes.

use crate::output::Failure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use dunlin::Fabrics;
use dunlin::fabric::{
    AllowPolicy, Capabilities, DeviceChoice, Fabric as _, FabricsConfig, RdmaConfig, Scheme, ShmConfig,
};
use dunlin::plan::{CompletionMode, PROTOCOLS, Plan, Protocol, Sharing};
use dunlin_hints::nearest_protocol;
use std::time::Duration;

/// Parses a number of bytes, such as `4096`, `64KiB` or `1g`.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim().to_ascii_lowercase());
    let factor: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => {
            return Err(format!("'{unit}' is not a unit of size; write for example 4096, 64KiB, 512m or 1g"));
        }
    };
    let wrong = || format!("'{text}' is not a size; write for example 4096, 64KiB, 512m or 1g");
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(factor),
        Err(_) => {
            let number: f64 = number.parse().map_err(|_| wrong())?;
            let bytes = number * factor as f64;
            (bytes < u64::MAX as f64).then_some(bytes as u64)
        }
    };
    bytes.ok_or_else(|| format!("'{text}' is more than any machine has"))
}

/// Parses a time in seconds or with a unit, such as `2`, `0.5`, `100ms` or `1m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let factor = match &text[digits..] {
        "" | "s" => 1.0,
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        unit => return Err(format!("'{unit}' is not a unit of time; write for example 2, 0.5, 100ms or 1m")),
    };
    let wrong = || format!("'{text}' is not a time; write for example 2, 0.5, 100ms or 1m");
    let seconds: f64 = text[..digits].parse().map_err(|_| wrong())?;
    let seconds = seconds * factor;
    if seconds > 1e8 {
        return Err(format!("'{text}' is over three years"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// Parses a time as [`duration`] does, and rejects zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// Parses the name of a protocol.
pub fn protocol(text: &str) -> Result<&'static Protocol, String> {
    Protocol::by_name(text).ok_or_else(|| {
        let names: Vec<&str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
        let meant = nearest_protocol(text).map_or(String::new(), |name| format!("; did you mean '{name}'?"));
        format!("'{text}' is not a protocol{meant}; there are {}", names.join(", "))
    })
}

/// Selects the RDMA device for rdma: addresses; unset options are chosen automatically.
#[derive(Args, Clone, Debug, Default)]
pub struct DeviceArguments {
    /// Use this RDMA device, as named by 'rdma link' [default: the first usable one]
    #[arg(long, value_name = "NAME")]
    rdma_device: Option<String>,
    /// Use this port of the device [default: the first active one]
    #[arg(long, value_name = "N")]
    rdma_port: Option<u8>,
    /// Use this index of the port's GID table [default: RoCE v2 before v1, IPv4 before IPv6]
    #[arg(long, value_name = "N")]
    gid_index: Option<u32>,
    /// Limit packets to this size in bytes: 256, 512, 1024, 2048 or 4096 [default: the port's MTU]
    #[arg(long, value_name = "BYTES")]
    rdma_mtu: Option<u32>,
    /// Disable this transport, for auto: addresses too; may be repeated
    #[arg(long, value_enum, value_name = "TRANSPORT")]
    without: Vec<Without>,
}

/// A transport to disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Without {
    /// Shared memory
    Shm,
    /// RDMA verbs
    Rdma,
    /// libfabric
    Ofi,
    /// Stock Thrift over TCP, for typed services
    Tcp,
}

impl Without {
    fn scheme(self) -> Scheme {
        match self {
            Without::Shm => Scheme::Shm,
            Without::Rdma => Scheme::Rdma,
            Without::Ofi => Scheme::Ofi,
            Without::Tcp => Scheme::Tcp,
        }
    }
}

/// The fabric whose capabilities are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// Shared memory, as in this build
    Shm,
    /// An RNIC with all capabilities
    Rnic,
    /// An iWARP NIC: reliable connections only, no immediate data, no atomics
    Iwarp,
    /// libfabric on a host without RDMA: reliable connections only, no atomics, no order of WRITEs
    Ofi,
    /// This machine's RDMA device; set DUNLIN_RDMA_DEVICE to select one of several
    Rdma,
}

impl On {
    /// Returns the capabilities of the fabric.
    pub fn capabilities(self, device: &DeviceArguments) -> Result<Capabilities, Failure> {
        Ok(match self {
            On::Shm => crate::shared_memory()?.capabilities().clone(),
            On::Rnic => Capabilities { name: "rnic", ..Capabilities::EVERYTHING },
            On::Iwarp => Capabilities::IWARP,
            On::Ofi => Capabilities::OFI,
            On::Rdma => {
                let fabric = device.fabrics(false).rdma();
                fabric.map_err(Failure::new)?.capabilities().clone()
            }
        })
    }
}

impl DeviceArguments {
    /// Returns these options as words, for a process that must use the same device.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut say = |option: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("--{option}={value}")));
        };
        say("rdma-device", self.rdma_device.clone());
        say("rdma-port", self.rdma_port.map(|port| port.to_string()));
        say("gid-index", self.gid_index.map(|index| index.to_string()));
        say("rdma-mtu", self.rdma_mtu.map(|mtu| mtu.to_string()));
        for without in &self.without {
            say("without", Some(without.scheme().as_str().to_owned()));
        }
        words
    }

    /// Opens the fabrics of this process. `anyone` lets clients of other users connect to shared memory.
    /// Unset options come from the environment (`DUNLIN_RDMA_DEVICE` and similar).
    pub fn fabrics(&self, anyone: bool) -> Fabrics {
        let device = DeviceChoice {
            device: self.rdma_device.clone(),
            port: self.rdma_port,
            gid_index: self.gid_index,
            mtu: self.rdma_mtu,
        };
        let rdma = RdmaConfig { device, ..RdmaConfig::default() };
        let disabled = self.without.iter().map(|without| without.scheme()).collect();
        let allow = if anyone { AllowPolicy::Anyone } else { AllowPolicy::default() };
        let shm = ShmConfig { allow, ..ShmConfig::default() };
        Fabrics::new(FabricsConfig { shm, rdma, disabled, ..FabricsConfig::default() })
    }
}

/// The completion mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Completion {
    /// Spin: lowest latency, one whole core on each side
    Busy,
    /// Sleep until an event: lowest CPU use
    Event,
    /// Spin for 20 us, then sleep
    Adaptive,
}

impl From<Completion> for CompletionMode {
    fn from(completion: Completion) -> Self {
        match completion {
            Completion::Busy => CompletionMode::Busy,
            Completion::Event => CompletionMode::Event,
            Completion::Adaptive => CompletionMode::Adaptive,
        }
    }
}

/// Returns the parser of a policy by which threads share connections.
pub fn sharing() -> impl TypedValueParser<Value = Sharing> {
    let values = Sharing::ALL.map(|policy| PossibleValue::new(policy.name()).help(policy.about()));
    PossibleValuesParser::new(values).try_map(|name| Sharing::by_name(&name).ok_or("there is no such policy"))
}

/// Options that select the plan of a client's calls.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct PlanArguments {
    /// Use this protocol; 'dunlin protocols' lists them [default: Direct-WriteIMM; on iWARP AR-gRPC, by
    /// SEND]
    #[arg(long, short = 'p', value_name = "NAME", value_parser = protocol)]
    pub protocol: Option<&'static Protocol>,
    /// Let both sides wait in this mode [default: adaptive if the protocol can sleep, else busy]
    #[arg(long, short = 'c', value_name = "MODE")]
    pub completion: Option<Completion>,
    /// Let the threads of this process share connections in this way [default: dedicated]
    #[arg(long, value_name = "POLICY", value_parser = sharing())]
    pub sharing: Option<Sharing>,
}

impl PlanArguments {
    /// Returns the plan. The default plan is legal; any other plan is checked when connecting.
    pub fn plan(&self, capabilities: &Capabilities) -> Plan {
        let default = Plan::default_for(capabilities);
        let sharing = self.sharing.unwrap_or(default.sharing);
        let plan_of = |mode| match self.protocol {
            Some(protocol) => Plan { sharing, ..protocol.plan(mode) },
            None => Plan { sharing, ..default.completion(mode, mode) },
        };
        match self.completion {
            Some(completion) => plan_of(completion.into()),
            None => {
                let adaptive = plan_of(CompletionMode::Adaptive);
                if adaptive.check(capabilities).is_ok() { adaptive } else { plan_of(CompletionMode::Busy) }
            }
        }
    }
}

/// Returns the name of a plan's protocol, as shown in results and headlines.
pub fn plan_name(plan: &Plan) -> &'static str {
    plan.protocol().map_or("unnamed", |protocol| protocol.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65536),
            ("1g", 1 << 30),
            ("1.5k", 1536),
            ("2 MiB", 2 << 20),
            ("3kb", 3000),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "x", "-1", "1q", "1.2.3", "20000000000000000000", "1e3", "99999999999t"] {
            assert!(size(text).is_err(), "{text}: {:?}", size(text));
        }
    }

    #[test]
    fn the_sharing_is_part_of_each_plan() {
        let capabilities = Capabilities::EVERYTHING;
        assert_eq!(PlanArguments::default().plan(&capabilities).sharing, Sharing::Dedicated);
        for sharing in Sharing::ALL {
            for protocol in [None, Protocol::by_name("Server-reply")] {
                let arguments = PlanArguments { protocol, completion: None, sharing: Some(sharing) };
                let plan = arguments.plan(&capabilities);
                let alone = PlanArguments { sharing: None, ..arguments }.plan(&capabilities);
                assert_eq!(plan, Plan { sharing, ..alone });
            }
        }
    }

    #[test]
    fn times() {
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("500ns"), Ok(Duration::from_nanos(500)));
        assert_eq!(duration("1m"), Ok(Duration::from_secs(60)));
        for text in ["", "x", "-1", "1d", "nan", "inf", "999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0").is_err());
    }

    #[test]
    fn an_unknown_protocol_is_told_what_there_is() {
        assert!(protocol("eager_sendrecv").is_ok());
        assert!(protocol("pigeon").unwrap_err().contains("not a protocol; there are "));
        for (word, meant) in [("RFRPC", "RF-RPC"), ("server-repl", "Server-reply"), ("rfp", "Remote-fetch")] {
            assert!(protocol(word).unwrap_err().contains(&format!("did you mean '{meant}'?")), "{word}");
        }
    }
}
