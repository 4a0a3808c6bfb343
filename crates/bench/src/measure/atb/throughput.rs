//! `bench atb throughput` (HatRPC figure 12): 1 to 512 clients, each with one call in flight.

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

/// Warm-up time of several clients with large payloads after connecting. The senders adapt how they fill
/// their buffers, and the best choice depends on the load of all clients.
const SETTLING: Duration = Duration::from_millis(100);
/// Maximum number of clients of a point.
const MOST_CLIENTS: usize = 1024;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct AtbThroughputOptions {
    /// Numbers of clients; each is measured with all sizes.
    pub clients: Vec<usize>,
    /// Sizes of request and response, bytes.
    pub sizes: Vec<usize>,
    /// Size of the request in bytes, overriding `sizes`.
    pub request: Option<usize>,
    /// Size of the response in bytes, overriding `sizes`.
    pub answer: Option<usize>,
    /// The single protocols that compete with the hints.
    pub singles: Singles,
    /// Number and length of the slices per contestant and point.
    pub pace: Pace,
    /// Ends the measurement early.
    pub stop: Stop,
}

/// Number and length of the slices per contestant and point. Defaults depend on the number of clients: a
/// few clients get many short slices, whose median hides other work of the machine; many clients need
/// longer slices to reach a steady state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Number of slices.
    pub rounds: Option<usize>,
    /// Length of a slice.
    pub slice: Option<Duration>,
}

impl Pace {
    /// Returns number and length of the slices for `clients` clients.
    pub(super) fn of(self, clients: usize) -> (usize, Duration) {
        let (rounds, slice_ms) = if clients <= 16 { (40, 8) } else { (15, 25) };
        (self.rounds.unwrap_or(rounds), self.slice.unwrap_or(Duration::from_millis(slice_ms)))
    }
}

/// Time limit per point.
const LONGEST: Duration = Duration::from_secs(60);

/// Checks a list of client numbers.
pub(in crate::measure) fn check_clients(clients: &[usize]) -> Result<(), MeasureError> {
    match clients.iter().find(|count| !(1..=MOST_CLIENTS).contains(*count)) {
        Some(count) => Err(MeasureError::BadArgument(format!("{count} clients are not 1 to {MOST_CLIENTS}"))),
        None => Ok(()),
    }
}

/// Measures calls per second of each contestant. Rows have `clients`, `request_bytes`, `response_bytes`,
/// `protocol`, `plan`, `throughput_ops`, the latency fields (as seen by one client), and `best` and `ratio`
/// as in [`atb_latency`](super::atb_latency).
///
/// Up to four clients have a thread each. These threads share all cores except the server's, so on a small
/// machine there may be more threads than cores. More clients share one thread per such core.
///
/// # Errors
/// Any failure; protocols that the fabric cannot run are reported in notes instead.
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

/// The slice parameters of a contestant with many clients.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) clients: usize,
    pub(super) sizes: Sizes,
    /// The called functions; each is a kind of operation.
    pub(super) functions: &'static [Function],
    pub(super) slice: Duration,
    /// Whether connections stay open between slices.
    pub(super) stay: bool,
}

/// Creates the entrant of a contestant with many clients. `client` makes a caller from each connection and
/// its index.
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
