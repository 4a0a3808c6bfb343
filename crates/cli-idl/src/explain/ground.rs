//! On what plans are explained: a fabric, a simulated cluster, or what an address means from here.

use dunlin::{
    Address, Capabilities, ChosenFabric, Fabric, FetchTable, RatesSource, ResponseHalf, Scheme, on_fabric,
};
use dunlin_command::arguments::{DeviceArguments, On};
use dunlin_command::output::Failure;
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
    /// Whether these rule out that anything is fetched.
    pub(super) written: bool,
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
            written: false,
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
        let (rates, written) = rates.unwrap_or((RatesSource::BuiltIn, false));
        Ok(Ground {
            name: capabilities.name.to_owned(),
            capabilities: Some(capabilities),
            rates,
            written,
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
            let rates = RatesSource::BuiltIn;
            return Ok(Ground { capabilities: None, name, rates, written: false, auto });
        }
        let chosen: ChosenFabric = fabrics.choose(&resolved.address)?;
        let (rates, written) = on_fabric!(&chosen, fabric => rates(fabric));
        let capabilities = chosen.capabilities().clone();
        let name = capabilities.name.to_owned();
        Ok(Ground { name, capabilities: Some(capabilities), rates, written, auto })
    }

    /// By which rates a function's results travel; `None` where none are READ.
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

/// Where the rates of a client on this fabric come from, if the application gives none, and whether they rule fetching out.
fn rates<F: Fabric>(fabric: &F) -> (RatesSource, bool) {
    let table = fabric.rates().map_or_else(FetchTable::rf_rpc, FetchTable::of);
    (table.source().clone(), table.rules_out_fetching())
}
