//! On what plans are explained: a fabric, a simulated cluster, or what an address means from here.

use crate::arguments::{DeviceArguments, On};
use crate::output::Failure;
use dunlin::{Address, Capabilities, ChosenFabric, Fabric, RatesSource, ResponseHalf, Scheme, on_fabric};
use dunlin_scenario::advice::Cluster;

/// What plans are chosen for, and what is to be told of it.
#[derive(Debug)]
pub(super) struct Ground {
    /// What the fabric can do; `None` where all calls go by TCP.
    pub(super) capabilities: Option<Capabilities>,
    /// Its name.
    pub(super) name: String,
    /// By which rates clients there choose between fetching and having results written back.
    pub(super) rates: RatesSource,
    /// What `auto:` means, in a line.
    pub(super) auto: Option<String>,
}

impl Ground {
    /// A simulated cluster, whose clients go by the model's rates.
    pub(super) fn simulated(cluster: &Cluster) -> Self {
        Ground {
            capabilities: Some(cluster.capabilities.clone()),
            name: cluster.profile.clone(),
            rates: RatesSource::Modelled { profile: cluster.profile.clone() },
            auto: None,
        }
    }

    /// A fabric, and what `auto:` may come to from this machine.
    pub(super) fn on(on: On, device: &DeviceArguments) -> Result<Self, Failure> {
        let fabrics = device.fabrics(false);
        let rates = match on {
            On::Shm => fabrics.shm().ok().as_ref().map(rates),
            On::Rdma => fabrics.rdma().ok().as_ref().map(rates),
            // No device is known of these.
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
        Ok(Ground {
            name: capabilities.name.to_owned(),
            capabilities: Some(capabilities),
            rates: rates.unwrap_or(RatesSource::BuiltIn),
            auto: Some(format!("auto: takes from here {takes}, as far as the server has it{not}")),
        })
    }

    /// What the address of a server means from here; it is asked, if the address is of `auto:`.
    pub(super) fn at(address: &Address, device: &DeviceArguments) -> Result<Self, Failure> {
        let fabrics = device.fabrics(false);
        let resolved = fabrics.resolve_typed(address)?;
        let auto = Some(format!("{address} is {resolved}"));
        if resolved.address.scheme() == Scheme::Tcp {
            let name = Scheme::Tcp.as_str().to_owned();
            return Ok(Ground { capabilities: None, name, rates: RatesSource::BuiltIn, auto });
        }
        let chosen: ChosenFabric = fabrics.choose(&resolved.address)?;
        let rates = on_fabric!(&chosen, fabric => rates(fabric));
        let capabilities = chosen.capabilities().clone();
        Ok(Ground { name: capabilities.name.to_owned(), capabilities: Some(capabilities), rates, auto })
    }

    /// By which rates a function's results travel; `None` where none are READ.
    pub(super) fn told_of_rates(&self, response: ResponseHalf) -> Option<String> {
        match response {
            ResponseHalf::FetchOrWrite | ResponseHalf::FetchOrWriteImm => {
                let how = match self.rates {
                    RatesSource::BuiltIn => "; `dunlin bench fetch-table` measures this device's",
                    _ => "",
                };
                Some(format!(
                    "rates by which results are fetched or written back: {}{how} (ClientConfig::fetch_table gives others)",
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

/// Where the rates of a client on this fabric come from, if the application gives none.
fn rates<F: Fabric>(fabric: &F) -> RatesSource {
    fabric.rates().map_or(RatesSource::BuiltIn, |rates| rates.source().clone())
}
