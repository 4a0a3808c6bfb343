//! A server's description of its functions: where each runs, and the plan that the server's own hints select.
//! It is the tail of the introduction.
//!
//! For each function, in the order of the introduction: the place `u8` (1 worker, 2 pool, 3 tasks; others are
//! unknown) and its number of threads or tasks `u32`; the reason as a text; the kind of plan `u8` (0 none, 1 a
//! plan, 2 TCP). After 0 the reason follows as a text; after 1 the numbers of the request half, the response
//! half, the two waiting modes and the treatment of large payloads, a `u8` each, and the largest small payload
//! `u32`.

use crate::introduction::{clip, take, text};
use dunlin_hints::{Environment, FunctionHints, RunsBy, runs, select};
use dunlin_rpc::{CompletionMode, LargePayload, Plan, RequestHalf, ResponseHalf, RunsIn, ServerConnections};

/// A function as its server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionOnServer {
    /// The function's name.
    pub name: String,
    /// Where it runs.
    pub runs: RunsIn,
    /// The reason, in words.
    pub why: String,
    /// The plan that the server's own hints select, for the fabric over which it was asked. A client's hints
    /// decide for its calls.
    pub plan: PlanOnServer,
}

/// The plan that a server's hints select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanOnServer {
    /// This plan.
    Plan(Plan),
    /// Stock Thrift over TCP.
    Tcp,
    /// None, for this reason.
    None(String),
}

/// A typed server as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerDescription {
    /// The service's name.
    pub service: String,
    /// Its functions.
    pub functions: Vec<FunctionOnServer>,
    /// Its address for stock Thrift (`host:port`).
    pub tcp: Option<String>,
    /// Its connections, as it says in the handshake.
    pub connections: ServerConnections,
}

/// The part of a [`FunctionOnServer`] that travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnServer {
    pub(crate) runs: RunsIn,
    pub(crate) why: String,
    pub(crate) plan: PlanOnServer,
}

/// The functions that the settings of a server send to the pool, and the size of the pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// The functions' indices in the service's descriptor.
    pub(crate) pooled: Vec<usize>,
}

impl Placement {
    /// Returns whether a function runs in the pool, and the reason.
    pub(crate) fn of(&self, number: usize, function: &FunctionHints) -> (bool, String) {
        let RunsBy { pool, text, .. } = runs(function);
        match self.pooled.contains(&number) {
            true if !pool => (true, "ServerOptions::pool".to_owned()),
            _ => (pool, text),
        }
    }
}

impl OnServer {
    /// Describes a function of this server.
    pub(crate) fn new(
        number: usize,
        function: &FunctionHints,
        placement: &Placement,
        pool_threads: u16,
        environment: &Environment<'_>,
    ) -> Self {
        let (pool, why) = placement.of(number, function);
        let runs = if pool { RunsIn::Pool { threads: pool_threads } } else { RunsIn::Worker };
        let plan = match select(function, environment) {
            Ok(selection) => selection.plan.map_or(PlanOnServer::Tcp, PlanOnServer::Plan),
            Err(error) => PlanOnServer::None(error.without_places()),
        };
        OnServer { runs, why, plan }
    }

    /// Describes a function of a server that does not say where it runs.
    pub(crate) fn unknown() -> Self {
        let plan = PlanOnServer::None("the server does not state it".to_owned());
        OnServer { runs: RunsIn::Unknown, why: String::new(), plan }
    }

    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let text = |bytes: &mut Vec<u8>, text: &str| {
            let text = clip(text);
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        };
        let (place, number) = match self.runs {
            RunsIn::Unknown => (0, 0),
            RunsIn::Worker => (1, 0),
            RunsIn::Pool { threads } => (2, threads.into()),
            RunsIn::Tasks { most } => (3, most),
        };
        bytes.push(place);
        bytes.extend_from_slice(&u32::to_le_bytes(number));
        text(bytes, &self.why);
        match &self.plan {
            PlanOnServer::None(why) => {
                bytes.push(0);
                text(bytes, why);
            }
            PlanOnServer::Plan(plan) => {
                let halves = [plan.request as u8, plan.response as u8];
                bytes.push(1);
                bytes.extend_from_slice(&halves);
                bytes.extend_from_slice(&[plan.client as u8, plan.server as u8, plan.large as u8]);
                bytes.extend_from_slice(&plan.rendezvous_above.to_le_bytes());
            }
            PlanOnServer::Tcp => bytes.push(2),
        }
    }

    pub(crate) fn parse(bytes: &mut &[u8]) -> Result<Self, &'static str> {
        let place = byte(bytes)?;
        let number = number(bytes)?;
        let runs = match place {
            1 => RunsIn::Worker,
            2 => RunsIn::Pool { threads: u16::try_from(number).unwrap_or(u16::MAX) },
            3 => RunsIn::Tasks { most: number },
            _ => RunsIn::Unknown,
        };
        let why = printable(&text(bytes)?);
        let plan = match byte(bytes)? {
            0 => PlanOnServer::None(printable(&text(bytes)?)),
            1 => {
                let [request, response, client, server, large] =
                    [byte(bytes)?, byte(bytes)?, byte(bytes)?, byte(bytes)?, byte(bytes)?];
                let above = self::number(bytes)?;
                let plan = || {
                    let plan =
                        Plan::new(RequestHalf::from_wire(request)?, ResponseHalf::from_wire(response)?);
                    let (client, server) =
                        (CompletionMode::from_wire(client)?, CompletionMode::from_wire(server)?);
                    Some(plan.completion(client, server).large(LargePayload::from_wire(large)?, above))
                };
                plan().map_or_else(
                    || PlanOnServer::None("it is of a later version".to_owned()),
                    PlanOnServer::Plan,
                )
            }
            2 => PlanOnServer::Tcp,
            _ => return Err("a plan is of an unknown kind"),
        };
        Ok(OnServer { runs, why, plan })
    }
}

fn byte(bytes: &mut &[u8]) -> Result<u8, &'static str> {
    Ok(take(bytes, 1)?[0])
}

fn number(bytes: &mut &[u8]) -> Result<u32, &'static str> {
    let (number, rest) = bytes.split_first_chunk().ok_or("it ends too early")?;
    *bytes = rest;
    Ok(u32::from_le_bytes(*number))
}

/// Replaces control characters: the text is a peer's, and may be printed.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::Fabric;
    use dunlin_fabric_shm::{ShmConfig, ShmFabric};
    use dunlin_hints::{Hints, PerfGoal, ProcessTime, Transport};
    use dunlin_rpc::PROTOCOLS;
    use proptest::prelude::*;

    fn examples() -> Vec<OnServer> {
        let plans = PROTOCOLS.iter().map(|protocol| PlanOnServer::Plan(protocol.plan(CompletionMode::Event)));
        let others = [PlanOnServer::Tcp, PlanOnServer::None("no\tplan".into())];
        let places =
            [RunsIn::Unknown, RunsIn::Worker, RunsIn::Pool { threads: 7 }, RunsIn::Tasks { most: 70_000 }];
        let all = plans.chain(others).enumerate();
        all.map(|(at, plan)| OnServer { runs: places[at % 4], why: "a".repeat(at), plan }).collect()
    }

    #[test]
    fn reads_what_it_writes() {
        for mut example in examples() {
            let mut bytes = Vec::new();
            example.encode(&mut bytes);
            let mut rest = &bytes[..];
            if let PlanOnServer::None(why) = &mut example.plan {
                *why = why.replace('\t', "?");
            }
            assert_eq!(OnServer::parse(&mut rest), Ok(example));
            assert!(rest.is_empty());
            for length in 0..bytes.len() {
                assert!(OnServer::parse(&mut &bytes[..length]).is_err(), "{length} of {bytes:?}");
            }
        }
    }

    #[test]
    fn hints_and_settings_place_a_function() {
        let long = FunctionHints::new("scan").server(Hints::NONE.process_time(ProcessTime::Long));
        let quick = FunctionHints::new("get").both(Hints::NONE.perf_goal(PerfGoal::Latency));
        let tcp = FunctionHints::new("old").both(Hints::NONE.transport(Transport::Tcp));
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        let environment = Environment::new(fabric.capabilities(), 8);
        let placement = Placement { pooled: vec![0, 2] };
        let of = |number, function| OnServer::new(number, function, &placement, 3, &environment);
        let pool = RunsIn::Pool { threads: 3 };
        let said = |on: &OnServer| (on.runs, on.why.clone());
        assert_eq!(said(&of(0, &long)), (pool, "process_time = long".into()));
        assert_eq!(said(&of(2, &quick)), (pool, "ServerOptions::pool".into()));
        assert_eq!(of(1, &quick).runs, RunsIn::Worker);
        assert_eq!(of(1, &tcp).plan, PlanOnServer::Tcp);
        assert!(matches!(of(1, &quick).plan, PlanOnServer::Plan(_)));
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = OnServer::parse(&mut &bytes[..]);
        }
    }
}
