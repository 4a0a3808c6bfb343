//! `bench event`: the latency of calls in which both sides sleep, compared with futex hand-over, and their
//! CPU cost on one core.

use dunlin_fabric::WithSources;
use std::time::Duration;

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, CallId, Client, ClientConfig, CompletionMode};

use super::contest::{Contestant, contest};
use super::flow::{difference, stamp};
use super::peer::{Drive, ECHO, ServiceKind};
use super::process::with_cpu_time;
use super::session::Session;
use super::{Findings, MeasureError, progress_bar, protocols};
use dunlin_floor::{Alternation, Floor, FloorError, FloorPair, Slice, compare};
use dunlin_report::statistics::ratio;
use dunlin_report::{Row, rounded};

/// Length of a slice: about 70 hand-overs across cores.
const SLICE: Duration = Duration::from_millis(4);
/// Size of request and response, bytes.
const SIZE: usize = 32;

/// The parameters of the measurement.
#[derive(Clone, Debug, Default)]
pub struct EventOptions {
    /// Protocols by name. Empty selects all in which both sides can sleep and 32 bytes are not a large
    /// payload.
    pub protocols: Vec<String>,
    /// Alternations of floor and subject per row; `None` for 100.
    pub rounds: Option<usize>,
}

/// Measures the round trip of 32 bytes while both sides sleep, alternating with the futex hand-over.
/// `cores` is `two cores`, or `one core` if both processes share a core; `cpu_ns_per_op` is then the CPU
/// time of both sides per call. The floor's CPU time is not measured: on one core, its round trip is all
/// CPU time. Blocks for a few seconds.
///
/// # Errors
/// Any failure, except that a protocol not named in `options` cannot connect: a note reports that.
pub fn event(session: &mut Session, options: &EventOptions) -> Result<Findings, MeasureError> {
    let mut findings = Findings::default();
    let mut sleepers = sleepers(session, options, &mut findings)?;
    let rounds = options.rounds.unwrap_or(100);
    let progress = progress_bar(2 * rounds * sleepers.len());
    let cores = session.pair.cores();
    for (label, server) in [("two cores", cores.server), ("one core", cores.client)] {
        for (_, sleeper) in &mut sleepers {
            (sleeper.cpu_ns, sleeper.calls) = (0, 0);
        }
        session.pair.set_server_core(server);
        let mut contestants: Vec<Contestant<'_>> = sleepers
            .iter_mut()
            .map(|(name, sleeper)| Contestant {
                name: format!("{name}, {label}"),
                floor: Floor::Futex,
                floor_duration: SLICE,
                slice: Box::new(move |pair| sleeper.slice(pair)),
                found: Vec::new(),
            })
            .collect();
        let done = contest(&mut session.pair, &mut contestants, rounds, &progress);
        let found: Vec<_> = contestants.into_iter().map(|one| one.found).collect();
        session.pair.set_server_core(cores.server);
        done?;
        for ((name, sleeper), found) in sleepers.iter().zip(found) {
            if sleeper.difference != 0 {
                return Err(MeasureError::WrongData((*name).to_owned()));
            }
            findings.rows.extend(rows(name, label, server == cores.client, sleeper, found));
        }
    }
    progress.finish_and_clear();
    Ok(findings)
}

fn rows(name: &str, label: &str, one_core: bool, sleeper: &Sleeper, mut found: Vec<Alternation>) -> Vec<Row> {
    if one_core {
        // On one core the two sides preempt each other by design, and the placement probe of a shared core
        // has no meaning.
        for one in &mut found {
            (one.floor.preemptions, one.subject.preemptions) = (0, 0);
        }
    }
    let comparisons = compare(&found);
    comparisons
        .iter()
        .map(|comparison| {
            let mut row = Row::new()
                .with("protocol", name)
                .with("size_bytes", SIZE)
                .with("completion", CompletionMode::Event.to_string())
                .with("cores", label);
            comparison.set_latency(&mut row);
            if one_core {
                let client = ratio(sleeper.cpu_ns as f64, sleeper.calls as f64).unwrap_or(0.0);
                row.set("client_cpu_ns_per_op", rounded(client))
                    .set("cpu_ns_per_op", rounded(client + comparison.server_cpu_ns_per_op))
                    .set("placement", "one core");
            }
            row
        })
        .collect()
}

fn sleepers(
    session: &mut Session,
    options: &EventOptions,
    findings: &mut Findings,
) -> Result<Vec<(&'static str, Sleeper)>, MeasureError> {
    let mut sleepers = Vec::new();
    for protocol in protocols(&session.fabric, &options.protocols, CompletionMode::Event)? {
        let plan = protocol.plan(CompletionMode::Event);
        if SIZE > plan.rendezvous_above as usize && options.protocols.is_empty() {
            continue;
        }
        match Sleeper::connect(session, &ClientConfig::with_plan(plan)) {
            Ok(sleeper) => sleepers.push((protocol.name, sleeper)),
            Err(error @ (MeasureError::Connect { .. } | MeasureError::Call(_)))
                if options.protocols.is_empty() =>
            {
                findings.notes.push(format!("{} was not measured: {}", protocol.name, WithSources(&error)));
            }
            Err(error) => return Err(error),
        }
    }
    if sleepers.is_empty() {
        return Err(MeasureError::BadArgument(format!(
            "no protocol could be measured: {}",
            findings.notes.join("; ")
        )));
    }
    Ok(sleepers)
}

/// A client that sleeps until its response arrives.
struct Sleeper {
    client: Client<ShmFabric>,
    subject: u8,
    sequence: u64,
    difference: u64,
    /// A call that only wakes the worker; its result is collected later.
    last: Option<CallId>,
    /// CPU time of this process in timed slices. `calls` counts the calls of the same slices.
    cpu_ns: u64,
    calls: u64,
}

impl Sleeper {
    fn connect(session: &mut Session, config: &ClientConfig) -> Result<Self, MeasureError> {
        let served = session.serve(ServiceKind::Bytes, Drive::Waiting)?;
        let client = session.connect(&served, config)?;
        let mut sleeper = Sleeper {
            client,
            subject: served.index,
            sequence: 0,
            difference: 0,
            last: None,
            cpu_ns: 0,
            calls: 0,
        };
        session.while_serving(&served, |_, _| {
            (0..16).try_for_each(|_| sleeper.call().map_err(MeasureError::from))
        })?;
        Ok(sleeper)
    }

    fn slice(&mut self, pair: &mut FloorPair) -> Result<Slice, FloorError> {
        let subject = self.subject;
        let (slice, _) = pair.subject_slice(subject, &[], |pair| {
            if let Some(last) = self.last.take() {
                self.client.wait(last).map_err(|error| FloorError::Subject(error.to_string()))?;
            }
            let (slice, cpu_ns) =
                with_cpu_time(|| pair.time_subject(SLICE, |_| self.call().map_err(|e| e.to_string())));
            let slice = slice?;
            self.cpu_ns += cpu_ns;
            self.calls += slice.total_operations;
            // Wake the sleeping worker at the end of the slice, rather than wait for the fabric to end its
            // sleep.
            self.last = self.client.submit_on(0, ECHO, b"over").ok();
            Ok(slice)
        })?;
        Ok(slice)
    }

    fn call(&mut self) -> Result<(), CallError> {
        self.sequence += 1;
        let mut request = [0; SIZE];
        stamp(&mut request, self.sequence);
        let answer = self.client.call_on(0, ECHO, &request)?;
        self.difference |= difference(&answer, SIZE, self.sequence);
        Ok(())
    }
}
