//! Advice on a function's hints: simulates every protocol under the function's hinted load and compares it
//! with the one that the selection table picks. The table follows HatRPC figure 6, measured on one cluster;
//! another NIC may reverse the order.

use dunlin_fabric::{Capabilities, Nanos};
use dunlin_fabric_sim::Settings;
use dunlin_hints::{Environment, FunctionHints, PerfGoal, ProcessTime, Selection, Sharing, Value, select};
use dunlin_rnic_model::{Parameter, Profile, ProfileError};
use dunlin_rpc::{PROTOCOLS, Plan};
use dunlin_scenario::load::{Extent, Function, Load, LoadError, Network};
use dunlin_scenario::random_values::{Sizes, Times};
use std::fmt;
use thiserror::Error;

/// Payload bytes without a size hint.
const USUAL_BYTES: u64 = 32;
/// Handler time assumed for `process_time = long`; `short` or no hint means none.
const LONG: Nanos = 20_000;
/// Most clients that are simulated.
pub const MOST_CLIENTS: u32 = 512;
/// Smallest ratio at which another protocol is reported as better: above the model's resolution.
const WORTH_TELLING: f64 = 1.03;

/// A cluster for which calls are forecast.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Name of its profile.
    pub profile: String,
    /// Hash of the profile.
    pub hash: u64,
    /// Its NIC.
    pub nic: String,
    /// Cores per host.
    pub cores: u32,
    /// Capabilities of its NICs.
    pub capabilities: Capabilities,
}

impl Cluster {
    /// Returns the cluster of a built-in profile.
    ///
    /// # Errors
    /// Returns an error for an unknown profile, with the nearest name.
    pub fn built_in(name: &str) -> Result<Self, ProfileError> {
        let profile = Profile::built_in(name)?;
        let max_inline = profile.number(Parameter::InlineLimit) as u32;
        Ok(Cluster {
            profile: name.to_owned(),
            hash: profile.hash(),
            nic: profile.nic().to_owned(),
            cores: profile.number(Parameter::Cores) as u32,
            capabilities: Capabilities { max_inline, ..Settings::default().capabilities },
        })
    }
}

/// One function under one plan, ready to simulate.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The plan's protocol; `None` if its halves belong to two.
    pub protocol: Option<&'static str>,
    /// The plan.
    pub plan: Plan,
    load: Load,
}

/// The simulated performance of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Mean latency of a call, in microseconds.
    pub mean_us: f64,
    /// Calls of all clients per second.
    pub throughput_ops: f64,
}

impl Candidate {
    /// Simulates the candidate on the calling thread, for about a second.
    ///
    /// # Errors
    /// Returns an error if the simulation does not come to its end.
    pub fn run(&self) -> Result<Forecast, LoadError> {
        let outcome = self.load.run(1, || [0, 0])?;
        Ok(Forecast { mean_us: outcome.all.mean_ns / 1e3, throughput_ops: outcome.throughput() })
    }
}

/// The reason why the model gives no advice on a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unasked {
    /// The function uses TCP.
    #[error("its calls go by TCP")]
    Tcp,
    /// The function's goal is `res_util`.
    #[error("its goal is res_util, and the model prices no memory")]
    ResUtil,
}

/// Returns the candidates of a function: first its selected plan, then the plan that the same hints select
/// with each other protocol named, also if the hints name one.
///
/// # Errors
/// Returns the reason if the model cannot advise on this function.
pub fn candidates(
    hints: &FunctionHints,
    selection: &Selection,
    environment: &Environment<'_>,
    cluster: &Cluster,
) -> Result<Vec<Candidate>, Unasked> {
    let Some(selected) = selection.plan else { return Err(Unasked::Tcp) };
    if goal(hints) == Some(PerfGoal::ResUtil) {
        return Err(Unasked::ResUtil);
    }
    let of = |protocol, plan| Candidate { protocol, plan, load: load(hints, plan, environment, cluster) };
    let mut all = vec![of(selection.protocol, selected)];
    for protocol in PROTOCOLS {
        let mut named = hints.clone();
        named.client.protocol = Some(protocol.name);
        named.server.protocol = Some(protocol.name);
        let plan = select(&named, environment).ok().and_then(|selection| selection.plan);
        if let Some(plan) = plan
            && all.iter().all(|other| other.plan != plan)
        {
            all.push(of(Some(protocol.name), plan));
        }
    }
    Ok(all)
}

/// Returns the goal: the server's, or else the client's.
fn goal(hints: &FunctionHints) -> Option<PerfGoal> {
    hints.server.perf_goal.or(hints.client.perf_goal)
}

/// Returns whether throughput is the metric; otherwise latency is.
#[must_use]
pub fn by_throughput(hints: &FunctionHints) -> bool {
    goal(hints) == Some(PerfGoal::Throughput)
}

/// Returns the candidate that the model prefers to the first, and the factor by which it is better; `None` if
/// no candidate is noticeably better.
#[must_use]
pub fn better(hints: &FunctionHints, forecasts: &[Forecast]) -> Option<(usize, f64)> {
    let score = |forecast: &Forecast| {
        if by_throughput(hints) { forecast.throughput_ops } else { 1.0 / forecast.mean_us.max(1e-9) }
    };
    let first = score(forecasts.first()?);
    let best = (1..forecasts.len())
        .max_by(|one, other| score(&forecasts[*one]).total_cmp(&score(&forecasts[*other])))?;
    let factor = score(&forecasts[best]) / first;
    (factor > WORTH_TELLING).then_some((best, factor))
}

/// The assumptions of a forecast. `Display` writes them in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumptions {
    /// The NIC of all hosts.
    pub nic: String,
    /// Client threads, spread over as many hosts as their cores require.
    pub clients: usize,
    /// Hosts of clients.
    pub client_hosts: usize,
    /// Server threads, all on one host.
    pub workers: u16,
    /// Cores of each host.
    pub cores: u32,
    /// Time of a handler, in nanoseconds.
    pub handler_ns: u64,
    /// Bytes of requests and of results.
    pub bytes: (u32, u32),
}

impl fmt::Display for Assumptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Assumptions { nic, clients, client_hosts, workers, cores, handler_ns, bytes } = self;
        let many =
            |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        write!(
            f,
            "{nic}; {} on {} of {cores} cores, {} on one host; handlers of {}; requests of {} B, results of {} B",
            many(*clients, "client"),
            many(*client_hosts, "host"),
            many(usize::from(*workers), "worker"),
            Value::ProcessTime(ProcessTime::Nanos(*handler_ns)),
            bytes.0,
            bytes.1
        )
    }
}

/// Returns the assumptions of the forecasts of a function.
#[must_use]
pub fn assumptions(hints: &FunctionHints, environment: &Environment<'_>, cluster: &Cluster) -> Assumptions {
    // The plan changes none of them.
    let load = load(hints, Plan::default(), environment, cluster);
    let function = &load.functions[0];
    Assumptions {
        nic: cluster.nic.clone(),
        clients: load.clients,
        client_hosts: load.client_hosts,
        workers: load.workers,
        cores: cluster.cores,
        handler_ns: handler_time(hints),
        bytes: (function.requests.largest(), function.results.largest()),
    }
}

/// Returns the time of the function's handler, in nanoseconds.
fn handler_time(hints: &FunctionHints) -> Nanos {
    match hints.server.process_time.or(hints.client.process_time) {
        None | Some(ProcessTime::Short) => 0,
        Some(ProcessTime::Long) => LONG,
        Some(ProcessTime::Nanos(time)) => time,
    }
}

/// Returns the load of the function: the hinted number of clients, and one server thread per client up to the
/// number of cores.
fn load(hints: &FunctionHints, plan: Plan, environment: &Environment<'_>, cluster: &Cluster) -> Load {
    let hinted = hints.server.concurrency.or(hints.client.concurrency);
    let clients = environment.clients.or(hinted).unwrap_or(1).clamp(1, MOST_CLIENTS);
    let bytes = |size: Option<u64>| Sizes::Fixed(size.unwrap_or(USUAL_BYTES).min(1 << 20) as u32);
    let results = if hints.oneway { Sizes::Fixed(0) } else { bytes(hints.server.payload_size) };
    let service = handler_time(hints);
    // Each client has one thread, so none has another one to share with.
    let plan = Sharing::Dedicated.on(plan);
    let function = Function {
        service: Times::Fixed(service),
        ..Function::new(plan, bytes(hints.client.payload_size), results)
    };
    let mut load = Load::bench(clients as usize, 1, Network::Modelled(cluster.profile.clone()));
    load.functions = vec![function];
    load.client_hosts = clients.div_ceil(cluster.cores) as usize;
    load.workers = clients.min(environment.cores) as u16;
    (load.server_cores, load.client_cores) = (Some(environment.cores), Some(cluster.cores));
    // Long enough for several calls of each client.
    let measured = 5_000_000 + 20 * service;
    load.extent = Extent::Time { warm_up: measured / 2, measured };
    load.limit = 100_000_000_000 + 1_000 * service;
    load
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_hints::{Hints, Transport};

    fn advised(hints: &FunctionHints) -> (Result<Vec<Candidate>, Unasked>, Cluster) {
        let cluster = Cluster::built_in("hatrpc").expect("a profile");
        let environment = Environment::new(&cluster.capabilities, cluster.cores);
        let selection = select(hints, &environment).expect("a plan");
        (candidates(hints, &selection, &environment, &cluster), cluster.clone())
    }

    #[test]
    fn the_selected_plan_comes_first_and_every_other_protocol_after_it() {
        let hints = FunctionHints::new("get").both(Hints::NONE.perf_goal(PerfGoal::Latency));
        let all = advised(&hints).0.expect("candidates");
        assert_eq!(all[0].protocol, Some("Direct-WriteIMM"));
        assert_eq!(all.len(), PROTOCOLS.len(), "{all:#?}");
        let forecast = all[0].run().expect("a forecast");
        assert!((1.0..10.0).contains(&forecast.mean_us), "{forecast:?}");
        assert_eq!(all[0].run().expect("a forecast"), forecast, "the same each time");
    }

    #[test]
    fn a_named_protocol_is_compared_with_all_others() {
        let named = Hints::NONE.perf_goal(PerfGoal::Latency).protocol("Eager-SendRecv");
        let (all, cluster) = advised(&FunctionHints::new("get").both(named));
        let all = all.expect("candidates");
        assert_eq!((all[0].protocol, all.len()), (Some("Eager-SendRecv"), PROTOCOLS.len()), "{all:#?}");
        let hints = FunctionHints::new("get").both(named.process_time(ProcessTime::Long).concurrency(64));
        let environment = Environment::new(&cluster.capabilities, cluster.cores);
        let told = assumptions(&hints, &environment, &cluster).to_string();
        assert_eq!(
            told,
            format!(
                "{}; 64 clients on 3 hosts of 28 cores, 28 workers on one host; handlers of 20us; requests of 32 B, results of 32 B",
                cluster.nic
            )
        );
    }

    #[test]
    fn nothing_is_said_where_nobody_can_decide() {
        for (hints, why) in [
            (Hints::NONE.perf_goal(PerfGoal::ResUtil), Unasked::ResUtil),
            (Hints::NONE.transport(Transport::Tcp), Unasked::Tcp),
        ] {
            assert_eq!(advised(&FunctionHints::new("get").both(hints)).0.err(), Some(why), "{hints:?}");
        }
    }

    #[test]
    fn the_better_one_is_that_of_the_goal() {
        let forecast = |mean_us, throughput_ops| Forecast { mean_us, throughput_ops };
        let all = [forecast(10.0, 1000.0), forecast(8.0, 900.0), forecast(12.0, 1500.0)];
        let of = |goal| FunctionHints::new("get").both(Hints::NONE.perf_goal(goal));
        assert_eq!(better(&of(PerfGoal::Latency), &all), Some((1, 1.25)));
        assert_eq!(better(&of(PerfGoal::Throughput), &all), Some((2, 1.5)));
        assert_eq!(better(&of(PerfGoal::Latency), &[all[0], forecast(9.9, 0.0)]), None, "within the margin");
        assert_eq!(better(&of(PerfGoal::Latency), &[]), None);
    }

    #[test]
    fn clients_and_times_are_those_that_are_hinted() {
        let hints = Hints::NONE
            .perf_goal(PerfGoal::Throughput)
            .concurrency(2_000_000)
            .payload_size(1 << 40)
            .process_time(ProcessTime::Nanos(7_000));
        let (all, cluster) = advised(&FunctionHints::new("get").both(hints));
        let all = all.expect("candidates");
        let load = &all[0].load;
        assert_eq!((load.clients, u32::from(load.workers)), (MOST_CLIENTS as usize, cluster.cores));
        assert_eq!(load.functions[0].service, Times::Fixed(7_000));
        assert_eq!(load.functions[0].requests.largest(), 1 << 20);
    }
}
