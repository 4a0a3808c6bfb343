//! `bench atb mix` (HatRPC figures 13 and 14): clients that call two functions, one hinted for latency and
//! the other for throughput. Both functions sum their payload.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::crowd::Caller;
use super::hints::{Contestant, Singles, rewritten};
use super::latency::named;
use super::service::{Call, Function, IDL};
use super::throughput::{Pace, Shape, check_clients, entrant};
use super::turns::{
    Compared, Length, Metric, Rivals, Verdict, rows, set_latency, set_server_cpu, set_throughput, take_turns,
};
use super::{Findings, MeasureError, Servers, ServiceKind, Session, Sizes, Stop};
use super::{all_stay, progress_bar, service_hints, surroundings};
use dunlin_workload::random::Random;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct AtbMixOptions {
    /// Numbers of clients; each is measured with all sizes.
    pub clients: Vec<usize>,
    /// Sizes of request and response of both functions, bytes.
    pub sizes: Vec<usize>,
    /// Size of the request in bytes, overriding `sizes`.
    pub request: Option<usize>,
    /// Size of the response in bytes, overriding `sizes`.
    pub answer: Option<usize>,
    /// Fraction of calls to the latency function, 0 to 1.
    pub latency_share: f64,
    /// The single protocols that compete with the hints.
    pub singles: Singles,
    /// Number and length of the slices per contestant and point.
    pub pace: Pace,
    /// Ends the measurement early.
    pub stop: Stop,
}

/// Time limit per point.
const LONGEST: Duration = Duration::from_secs(60);
/// The functions, in the order of their kind numbers.
const FUNCTIONS: [Function; 2] = [Function::Quick, Function::Bulk];
const QUICK: usize = 0;
const BULK: usize = 1;

/// Measures the mix. Contestants are `function hints` (each function with its own goal), `service hints`
/// (throughput for both), and each protocol for both functions, requested at the service. Rows have
/// `clients`, `request_bytes`, `response_bytes`, `protocol`, `plan`, the latency fields of the latency
/// function, `throughput_ops` of the other function, and for each metric the best single protocol and the
/// ratio to it: `latency_best`, `latency_ratio`, ..., `best`, `ratio`, ...
///
/// # Errors
/// Any failure; protocols that the fabric cannot run are reported in notes instead.
pub fn atb_mix(session: &mut Session, options: &AtbMixOptions) -> Result<Findings, MeasureError> {
    check_clients(&options.clients)?;
    let share = options.latency_share;
    if !(0.0..=1.0).contains(&share) {
        return Err(MeasureError::BadArgument(format!("a share of calls is 0 to 1, not {share}")));
    }
    let sizes = Sizes::points(&options.sizes, options.request, options.answer)?;
    let points = sizes.iter().flat_map(|sizes| options.clients.iter().map(|clients| (*sizes, *clients)));
    let points: Vec<(Sizes, usize)> = points.collect();
    let fabric = session.fabric.clone();
    let mut findings = Findings::default();
    let mut verdicts = [Verdict::default(), Verdict::default()];
    let mut servers = Servers::default();
    let rounds: usize = points.iter().map(|(_, clients)| options.pace.of(*clients).0).sum();
    let progress = progress_bar(rounds * (options.singles.chosen()?.len() + 2));
    for (sizes, clients) in points {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        let (rounds, slice) = options.pace.of(clients);
        let of_service = |more: &str| {
            format!("hint: perf_goal = throughput, concurrency = {clients}{more}; {}", sizes.hints())
        };
        let goals = [("quick", "latency"), ("bulk", "throughput"), ("echo", "throughput")]
            .map(|(function, goal)| (function, format!("hint: perf_goal = {goal};")));
        let around = surroundings(&fabric, session, clients);
        let by_function = rewritten(IDL, &of_service(""), &goals)?;
        let mut contestants = vec![
            Contestant::hinted("function hints", &by_function, around)?,
            Contestant::hinted("service hints", &service_hints(&of_service(""))?, around)?,
        ];
        let idl = |more: &str| service_hints(&of_service(more));
        contestants.extend(options.singles.contestants(around, &mut findings.notes, idl)?);
        let stay = all_stay(contestants.len() * clients, sizes.request, sizes.answer);
        let shape = Shape { clients, sizes, functions: &FUNCTIONS, slice, stay };
        let mut entrants = Vec::new();
        for contestant in contestants {
            let served = servers.of(session, &contestant.name, ServiceKind::Atb)?;
            let client = move |call, number: usize| -> Box<dyn Caller> {
                Box::new(Mixed { call, random: Random::new(number as u64), latency_share: share })
            };
            entrants.push(entrant(contestant, served, shape, client));
        }
        let length = Length { rounds, longest: LONGEST };
        take_turns(session, &mut entrants, length, &options.stop, &progress)
            .map_err(|error| named(error, &progress.message()))?;
        let compared = [
            Compared { metric: Metric::Latency(QUICK), prefix: "latency_", rivals: Rivals::All },
            Compared { metric: Metric::Throughput(Some(BULK)), prefix: "", rivals: Rivals::All },
        ];
        findings.rows.extend(rows(
            &mut entrants,
            &sizes.row_with_clients(clients),
            &compared,
            &|row, samples| {
                set_latency(row, samples, QUICK);
                set_throughput(row, "throughput_ops", samples, Some(BULK));
                set_server_cpu(row, samples);
            },
            &mut verdicts,
        ));
    }
    progress.finish_and_clear();
    let [latency, throughput] = &verdicts;
    findings.notes.extend(latency.words("latency of the one function, both kinds of hints"));
    findings.notes.extend(throughput.words("throughput of the other, both kinds of hints"));
    Ok(findings)
}

/// A client that chooses its next function at random.
struct Mixed {
    call: Call,
    random: Random,
    latency_share: f64,
}

impl Caller for Mixed {
    fn start(&mut self) -> Result<(), String> {
        let kind = if self.random.unit() < self.latency_share { QUICK } else { BULK };
        self.call.start(FUNCTIONS[kind])
    }

    fn finish(&mut self) -> Result<usize, String> {
        let called = self.call.finish()?;
        Ok(if called == FUNCTIONS[QUICK] { QUICK } else { BULK })
    }
}
