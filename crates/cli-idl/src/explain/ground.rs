//! The target of an explanation: a fabric, a simulated cluster, or the transport for an address.

use dunlin::errors::WithSources;
use dunlin::fabric::{Capabilities, ChosenFabric, Fabric, Nanos, Scheme};
use dunlin::plan::{Lease, Plan, ResponseHalf};
use dunlin::thrift::{ServerDescription, describe};
use dunlin::tune::{FetchTable, GroupDefaults, RatesSource};
use dunlin::{Address, ClientConfig, on_fabric};
use dunlin_advice::Cluster;
use dunlin_command::arguments::{DeviceArguments, On};
use dunlin_command::output::Failure;
use dunlin_hints::ServerConnections;
use dunlin_scenario::rates::modelled_rates;
use std::time::Duration;

/// The target of plan selection, with the facts to show about it.
#[derive(Debug)]
pub(super) struct FabricContext {
    /// The fabric's capabilities; `None` if all calls use TCP.
    pub(super) capabilities: Option<Capabilities>,
    /// Name of the target.
    pub(super) name: String,
    /// The source of the rates from which clients choose between fetched and written-back results.
    pub(super) rates: RatesSource,
    /// Whether these rates rule out fetching.
    pub(super) written: bool,
    /// The groups of clients by these rates; `None` for a simulated cluster, of which they are computed when needed.
    groups: Option<GroupDefaults>,
    /// The resolution of `auto:`, in one line.
    pub(super) auto: Option<String>,
    /// The server's answer to the question for its functions, if one was asked.
    pub(super) server: Option<Result<ServerDescription, String>>,
}

/// The time limit of asking a server, for connecting and for its answer.
const PATIENCE: Nanos = 5_000_000_000;

impl FabricContext {
    /// Returns a simulated cluster, whose clients use the model's rates.
    pub(super) fn simulated(cluster: &Cluster) -> Self {
        FabricContext {
            capabilities: Some(cluster.capabilities.clone()),
            name: cluster.profile.clone(),
            rates: RatesSource::Modelled { profile: cluster.profile.clone() },
            written: false,
            groups: None,
            auto: None,
            server: None,
        }
    }

    /// Returns a fabric, with the possible resolutions of `auto:` on this machine.
    pub(super) fn on(on: On, device: &DeviceArguments) -> Result<Self, Failure> {
        let fabrics = device.fabrics(false);
        let rates = match on {
            On::Shm => fabrics.shm().ok().as_ref().map(rates),
            On::Rdma => fabrics.rdma().ok().as_ref().map(rates),
            // No device is known for these fabrics.
            On::Rnic | On::Iwarp | On::Ofi => None,
        };
        let (mut takes, mut not) = (Vec::new(), String::new());
        for (scheme, usable) in fabrics.usable() {
            match (scheme, usable) {
                (Scheme::Shm, Ok(name)) => takes.push(format!("{name} to a server on this host")),
                (Scheme::Tcp, Ok(name)) => takes.push(format!("{name} (typed services only)")),
                (_, Ok(name)) => takes.push(name.to_owned()),
                (scheme, Err(why)) => not.push_str(&format!("; not {}: {why}", scheme.as_str())),
            }
        }
        let takes = if takes.is_empty() { "nothing".to_owned() } else { takes.join(", else ") };
        let capabilities = on.capabilities(device)?;
        let (rates, written, groups) = rates.unwrap_or((RatesSource::BuiltIn, false, GroupDefaults::PAPER));
        Ok(FabricContext {
            name: capabilities.name.to_owned(),
            capabilities: Some(capabilities),
            rates,
            written,
            groups: Some(groups),
            auto: Some(format!("auto: takes from here {takes}, as far as the server has it{not}")),
            server: None,
        })
    }

    /// Returns the transport for a server's address. Queries the server if it is an `auto:` address.
    pub(super) fn at(address: &Address, device: &DeviceArguments) -> Result<Self, Failure> {
        let fabrics = device.fabrics(false);
        let resolved = fabrics.resolve_typed(address)?;
        let auto = Some(format!("{address} is {resolved}"));
        if resolved.address.scheme() == Scheme::Tcp {
            let name = Scheme::Tcp.as_str().to_owned();
            let rates = RatesSource::BuiltIn;
            let groups = Some(GroupDefaults::PAPER);
            return Ok(FabricContext {
                capabilities: None,
                name,
                rates,
                written: false,
                groups,
                auto,
                server: None,
            });
        }
        let chosen: ChosenFabric = fabrics.choose(&resolved.address)?;
        let (rates, written, groups) = on_fabric!(&chosen, fabric => rates(fabric));
        let capabilities = chosen.capabilities().clone();
        let name = capabilities.name.to_owned();
        let config = ClientConfig {
            timeout: Duration::from_nanos(PATIENCE),
            connect_timeout: Duration::from_nanos(PATIENCE),
            ..ClientConfig::default()
        };
        let server = on_fabric!(&chosen, fabric => describe(fabric, &resolved.address, config));
        let server = Some(server.map_err(|error| WithSources(&error).to_string()));
        let (capabilities, groups) = (Some(capabilities), Some(groups));
        Ok(FabricContext { name, capabilities, rates, written, groups, auto, server })
    }

    /// Returns the connections of the server, if it was asked.
    pub(super) fn connections(&self) -> ServerConnections {
        let server = self.server.as_ref().and_then(|server| server.as_ref().ok());
        server.map(|server| server.connections).unwrap_or_default()
    }

    /// Describes the groups of a plan whose lease is a slice; `None` for other plans.
    pub(super) fn told_of_groups(&self, plan: &Plan) -> Option<String> {
        if plan.lease != Lease::Slice {
            return None;
        }
        let modelled = || Some(GroupDefaults::of(Some(&*modelled_rates(&self.name).ok()?)));
        let GroupDefaults { size, slice } = self.groups.or_else(modelled).unwrap_or(GroupDefaults::PAPER);
        Some(format!(
            "groups of {size} clients, each served for {slice:?}, unless the server sets group_size or group_slice \
             (`dunlin bench fetch-table` measures the rates by connections that they depend on)"
        ))
    }

    /// Describes the rates that decide how a function's results travel; `None` if they are never READ.
    pub(super) fn told_of_rates(&self, response: ResponseHalf) -> Option<String> {
        match response {
            ResponseHalf::FetchOrWrite | ResponseHalf::FetchOrWriteImm => {
                let how = match self.rates {
                    RatesSource::BuiltIn | RatesSource::Typical => {
                        "; `dunlin bench fetch-table` measures this device's"
                    }
                    _ => "",
                };
                let so =
                    if self.written { ", by which all are written back: no READ is cheaper" } else { "" };
                Some(format!(
                    "rates by which results are fetched or written back: {}{so}{how} (ClientConfig::fetch_table gives others)",
                    self.rates
                ))
            }
            ResponseHalf::Fetch | ResponseHalf::FetchIndexed | ResponseHalf::FetchIndexedTwice => {
                Some("results are always fetched, whatever the rates".to_owned())
            }
            _ => None,
        }
    }
}

/// Returns the default source of rates for a client on this fabric, whether these rates rule out fetching, and the groups
/// of a server on it.
fn rates<F: Fabric>(fabric: &F) -> (RatesSource, bool, GroupDefaults) {
    let table = fabric.rates().map_or_else(FetchTable::rf_rpc, FetchTable::of);
    (table.source().clone(), table.rules_out_fetching(), GroupDefaults::of(Some(table.rates())))
}
