//! `bench atb throughput` (HatRPC figure 12): 1 to 512 clients, each with one call under way.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::crowd::{self, Caller};
use super::hints::{Contestant, Singles};
use super::latency::named;
use super::service::{Call, Function};
use super::turns::{
    Compared, Entrant, Length, Metric, Rivals, Sample, Verdict, rows, set_latency, set_server_cpu,
    set_throughput, take_turns,
};
use super::{Findings, MeasureError, Servers, ServiceKind, Session, Sizes, Stop};
use super::{RENEWED_AFTER, all_stay, connect, progress_bar, service_hints, surroundings};
use crate::measure::session::Served;

/// How long many clients with large payloads call after they have connected, before they are measured: what a sender finds out while
/// others are silent is not how to fill its buffers in a crowd.
const SETTLING: Duration = Duration::from_millis(100);
/// The most clients of a point.
const MOST_CLIENTS: usize = 1024;

/// What to measure.
#[derive(Clone, Debug)]
pub struct AtbThroughputOptions {
    /// Numbers of clients, for each of which all sizes are measured.
    pub clients: Vec<usize>,
    /// Bytes of request and answer.
    pub sizes: Vec<usize>,
    /// Bytes of the request in the place of those.
    pub request: Option<usize>,
    /// Bytes of the answer in the place of those.
    pub answer: Option<usize>,
    /// The protocols that the hints compete with.
    pub singles: Singles,
    /// Slices of each contestant and point, and their length.
    pub pace: Pace,
    /// Ends the measurement early.
    pub stop: Stop,
}

/// How many slices a contestant has at a point, and how long they are; what is not given goes by the number of clients. Few
/// clients need no time to get going, and of many short slices the median shows none of the machine's other work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Slices.
    pub rounds: Option<usize>,
    /// Length of each.
    pub slice: Option<Duration>,
}

impl Pace {
    /// With so many clients.
    pub(super) fn of(self, clients: usize) -> (usize, Duration) {
        let (rounds, slice_ms) = if clients <= 16 { (40, 8) } else { (15, 25) };
        (self.rounds.unwrap_or(rounds), self.slice.unwrap_or(Duration::from_millis(slice_ms)))
    }
}

/// The longest that one point is measured.
const LONGEST: Duration = Duration::from_secs(60);

/// Checks a list of numbers of clients.
pub(in crate::measure) fn check_clients(clients: &[usize]) -> Result<(), MeasureError> {
    match clients.iter().find(|count| !(1..=MOST_CLIENTS).contains(*count)) {
        Some(count) => Err(MeasureError::BadArgument(format!("{count} clients are not 1 to {MOST_CLIENTS}"))),
        None => Ok(()),
    }
}

/// Measures calls per second of each contestant. Rows have `clients`, `request_bytes`, `response_bytes`, `protocol`, `plan`,
/// `throughput_ops`, the latency fields (of calls as one client sees them), `best` and `ratio` as in
/// [`atb_latency`](super::atb_latency).
///
/// Up to four clients are a thread each, which share all cores but the server's, so that on a small machine some are too many;
/// more clients share a thread for each such core.
///
/// # Errors
/// Anything that fails; protocols that the fabric cannot run are noted instead.
pub fn atb_throughput(
    session: &mut Session,
    options: &AtbThroughputOptions,
) -> Result<Findings, MeasureError> {
    check_clients(&options.clients)?;
    let sizes = Sizes::points(&options.sizes, options.request, options.answer)?;
    let points = sizes.iter().flat_map(|sizes| options.clients.iter().map(|clients| (*sizes, *clients)));
    let points: Vec<(Sizes, usize)> = points.collect();
    let fabric = session.fabric.clone();
    let mut findings = Findings::default();
    let mut verdicts = [Verdict::default()];
    let mut servers = Servers::default();
    let rounds: usize = points.iter().map(|(_, clients)| options.pace.of(*clients).0).sum();
    let progress = progress_bar(rounds * (options.singles.chosen()?.len() + 1));
    for (sizes, clients) in points {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        let (rounds, slice) = options.pace.of(clients);
        let idl = |more: &str| {
            service_hints(&format!(
                "hint: perf_goal = throughput, concurrency = {clients}{more}; {}",
                sizes.hints()
            ))
        };
        let around = surroundings(&fabric, session, clients);
        let mut contestants = vec![Contestant::hinted("hinted", &idl("")?, around)?];
        contestants.extend(options.singles.contestants(around, &mut findings.notes, idl)?);
        let stay = all_stay(contestants.len() * clients, sizes.request, sizes.answer);
        let mut entrants = Vec::new();
        for contestant in contestants {
            let served = servers.of(session, &contestant.name, ServiceKind::Atb)?;
            let shape = Shape { clients, sizes, functions: &[Function::Echo], slice, stay };
            entrants.push(entrant(contestant, served, shape, |call, _| Box::new(Echo(call))));
        }
        let length = Length { rounds, longest: LONGEST };
        take_turns(session, &mut entrants, length, &options.stop, &progress)
            .map_err(|error| named(error, &progress.message()))?;
        let head = sizes.row_with_clients(clients);
        let compared = [Compared { metric: Metric::Throughput(None), prefix: "", rivals: Rivals::All }];
        findings.rows.extend(rows(
            &mut entrants,
            &head,
            &compared,
            &|row, samples| {
                set_throughput(row, "throughput_ops", samples, None);
                set_latency(row, samples, 0);
                set_server_cpu(row, samples);
            },
            &mut verdicts,
        ));
    }
    progress.finish_and_clear();
    findings.notes.extend(verdicts[0].words("throughput by hints"));
    Ok(findings)
}

/// What the slices of a contestant with many clients are like.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) clients: usize,
    pub(super) sizes: Sizes,
    /// Those that are called, each of which is a kind of operation.
    pub(super) functions: &'static [Function],
    pub(super) slice: Duration,
    /// Whether connections stay open between slices.
    pub(super) stay: bool,
}

/// A contestant with many clients, each made of its connection and its number by `client`.
pub(super) fn entrant<'a>(
    contestant: Contestant,
    served: Served,
    shape: Shape,
    client: impl Fn(Call, usize) -> Box<dyn Caller> + 'a,
) -> Entrant<'a> {
    let (name, single, plan) = (contestant.name.clone(), contestant.single, contestant.plan());
    let mut callers: Vec<Box<dyn Caller>> = Vec::new();
    let mut taken = 0;
    let take = move |session: &mut Session| -> Result<Sample, MeasureError> {
        let Shape { clients, sizes, functions, slice, stay } = shape;
        if taken % RENEWED_AFTER == 0 || callers.is_empty() {
            session.disconnect(&served, std::mem::take(&mut callers))?;
            let calls = connect(session, &served, &contestant, clients, sizes, functions)?;
            callers.extend(calls.into_iter().enumerate().map(|(number, call)| client(call, number)));
            if clients > 1 && sizes.are_large() {
                crowd::slice(session, &served, &mut callers, functions.len(), SETTLING)?;
            }
        }
        taken += 1;
        let sample = crowd::slice(session, &served, &mut callers, functions.len(), slice)?;
        if !stay {
            session.disconnect(&served, std::mem::take(&mut callers))?;
        }
        Ok(sample)
    };
    Entrant::new(name, single, plan, Box::new(take))
}

struct Echo(Call);

impl Caller for Echo {
    fn start(&mut self) -> Result<(), String> {
        self.0.start(Function::Echo)
    }

    fn finish(&mut self) -> Result<usize, String> {
        self.0.finish().map(|_| 0)
    }
}
