//! `bench throughput`: calls per second with a window of calls in flight, one call per message and in
//! batches.

use dunlin_fabric::WithSources;
use std::time::Duration;

use dunlin_rpc::{ClientConfig, CompletionMode, Plan};

use super::contest::{Contestant, contest};
use super::crowd::ConcurrentClients;
use super::flow::{Flow, Shape};
use super::peer::{Drive, ECHO, ServiceKind};
use super::session::Session;
use super::{Findings, MeasureError, progress_bar, protocols};
use dunlin_floor::{Floor, RING_WINDOW, compare};
use dunlin_report::Row;

/// Payload size of the ring floor, bytes.
const RING_SIZE: usize = 32;
/// Length of a slice with one client.
const SLICE: Duration = Duration::from_millis(2);
/// Length of a slice with several clients, which may share cores: several of the kernel's time slices.
const CROWD_SLICE: Duration = Duration::from_millis(40);

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct ThroughputOptions {
    /// Size of request and response in bytes, at most 4096. `bench latency` shows the bandwidth of larger
    /// ones.
    pub size: usize,
    /// Number of clients, each with its own thread and connection, all served by one worker.
    pub clients: usize,
    /// Calls in flight per client, one call per message.
    pub window: usize,
    /// Calls per message in the batched rows.
    pub batches: Vec<usize>,
    /// Calls in flight per client in the batched rows.
    pub batched_window: usize,
    /// Protocols by name. Empty selects all legal ones.
    pub protocols: Vec<String>,
    /// Alternations of floor and subject per row; `None` gives about a second.
    pub rounds: Option<usize>,
}

impl Default for ThroughputOptions {
    fn default() -> Self {
        Self {
            size: 32,
            clients: 1,
            window: 64,
            batches: vec![16, 32],
            batched_window: 256,
            protocols: Vec::new(),
            rounds: None,
        }
    }
}

impl ThroughputOptions {
    fn check(&self) -> Result<(), MeasureError> {
        let wrong = |text: String| Err(MeasureError::BadArgument(text));
        if self.size > 4096 {
            return wrong(format!(
                "throughput is measured up to 4096 bytes, not {}; see `bench latency`",
                self.size
            ));
        }
        if self.clients == 0 || self.clients > 1000 {
            return wrong(format!("1 to 1000 clients are possible, not {}", self.clients));
        }
        for window in [self.window, self.batched_window] {
            if window == 0 || window > 256 {
                return wrong(format!("a window is of 1 to 256 calls, not {window}"));
            }
        }
        match self.batches.iter().find(|batch| **batch < 2 || **batch > self.batched_window) {
            Some(batch) => wrong(format!("a batch is of 2 to {} calls, not {batch}", self.batched_window)),
            None => Ok(()),
        }
    }

    fn shapes(&self) -> Vec<Shape> {
        let single = Shape { window: self.window, batch: 1 };
        let batched = self.batches.iter().map(|batch| Shape { window: self.batched_window, batch: *batch });
        std::iter::once(single).chain(batched).collect()
    }
}

/// Measures each protocol with one call per message and in batches, alternating with the ring floor. Rows
/// have `protocol`, `size_bytes`, `clients`, `batch`, `window` and `throughput_ops`; for 32 bytes also
/// `floor_throughput_ops` and the `share` of it. Blocks for about a second per row.
///
/// # Errors
/// Any failure, except that a protocol not named in `options` cannot connect: a note reports that.
pub fn throughput(session: &mut Session, options: &ThroughputOptions) -> Result<Findings, MeasureError> {
    options.check()?;
    let mut findings = Findings::default();
    if options.size != RING_SIZE {
        findings.notes.push(format!(
            "the bare ring carries {RING_SIZE} bytes, so rows of {} have no floor and no share",
            options.size
        ));
    }
    let crowded = options.clients > 1;
    let rounds = options.rounds.unwrap_or(if crowded { 15 } else { 150 });
    let mut subjects = subjects(session, options, &mut findings)?;
    let progress = progress_bar(rounds * subjects.len());
    let mut contestants: Vec<Contestant<'_>> = subjects
        .iter_mut()
        .map(|subject| {
            let index = subject.index;
            let crowd = &mut subject.crowd;
            Contestant {
                name: format!("{}, {} in a message", subject.protocol, subject.shape.batch),
                floor: Floor::Ring { window: RING_WINDOW },
                floor_duration: SLICE,
                slice: Box::new(move |pair| {
                    let run = |pair: &mut _| {
                        if crowded { crowd.count(CROWD_SLICE) } else { crowd.count_here(pair, SLICE) }
                    };
                    Ok(pair.subject_slice(index, &[], run)?.0)
                }),
                found: Vec::new(),
            }
        })
        .collect();
    contest(&mut session.pair, &mut contestants, rounds, &progress)?;
    progress.finish_and_clear();
    let found: Vec<_> = contestants.into_iter().map(|one| one.found).collect();
    for (subject, found) in subjects.iter().zip(&found) {
        if !subject.crowd.is_right() {
            return Err(MeasureError::WrongData(subject.protocol.to_owned()));
        }
        for comparison in compare(found) {
            let mut row = Row::new()
                .with("protocol", subject.protocol)
                .with("size_bytes", options.size)
                .with("clients", options.clients)
                .with("batch", subject.shape.batch)
                .with("window", subject.shape.window)
                .with("throughput_ops", comparison.subject_throughput_ops.round());
            if options.size == RING_SIZE {
                row.set("floor_throughput_ops", comparison.floor_throughput_ops.round())
                    .set("share", comparison.throughput_ratio.map(dunlin_report::rounded));
            }
            comparison.set_common(&mut row);
            findings.rows.push(row);
        }
    }
    Ok(findings)
}

/// Clients of one shape with one protocol.
struct Subject {
    protocol: &'static str,
    shape: Shape,
    index: u8,
    crowd: ConcurrentClients,
}

fn subjects(
    session: &mut Session,
    options: &ThroughputOptions,
    findings: &mut Findings,
) -> Result<Vec<Subject>, MeasureError> {
    let mut subjects = Vec::new();
    for protocol in protocols(&session.fabric, &options.protocols, CompletionMode::Busy)? {
        let plan = protocol.plan(CompletionMode::Busy);
        if options.size > plan.rendezvous_above as usize && options.protocols.is_empty() {
            findings.notes.push(format!(
                "{} was not measured: payloads over {} bytes travel as its large ones do, which `bench latency` shows",
                protocol.name, plan.rendezvous_above
            ));
            continue;
        }
        for shape in options.shapes() {
            let connected = connect(session, plan, shape, options);
            match connected {
                Ok((index, crowd)) => {
                    subjects.push(Subject { protocol: protocol.name, shape, index, crowd });
                }
                Err(error @ (MeasureError::Connect { .. } | MeasureError::Call(_)))
                    if options.protocols.is_empty() =>
                {
                    findings.notes.push(format!(
                        "{} was not measured: {}",
                        protocol.name,
                        WithSources(&error)
                    ));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    if subjects.is_empty() {
        return Err(MeasureError::BadArgument(format!(
            "no protocol could be measured: {}",
            findings.notes.join("; ")
        )));
    }
    Ok(subjects)
}

/// Starts a server and connects its clients, each of which makes one call.
fn connect(
    session: &mut Session,
    plan: Plan,
    shape: Shape,
    options: &ThroughputOptions,
) -> Result<(u8, ConcurrentClients), MeasureError> {
    let served = session.serve(ServiceKind::Bytes, Drive::Busy)?;
    let config = ClientConfig {
        window: shape.window as u16,
        ring_bytes: ring_bytes(shape, options.size),
        ..ClientConfig::with_plan(plan)
    };
    let mut flows = Vec::with_capacity(options.clients);
    for _ in 0..options.clients {
        let mut client = session.connect(&served, &config)?;
        session.while_serving(&served, |_, _| Ok(client.call_on(0, ECHO, &[]).map(drop)?))?;
        flows.push(Flow::new(client, shape, options.size));
    }
    Ok((served.index, ConcurrentClients::new(flows, session)))
}

/// Returns the size of a ring that holds about the window; a larger ring only occupies more cache.
fn ring_bytes(shape: Shape, size: usize) -> u32 {
    let message = (size + 64).next_multiple_of(64);
    (2 * shape.window * message).next_power_of_two().clamp(16 * 1024, 64 * 1024) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_refused() {
        assert!(ThroughputOptions::default().check().is_ok());
        for wrong in [
            ThroughputOptions { size: 4097, ..Default::default() },
            ThroughputOptions { clients: 0, ..Default::default() },
            ThroughputOptions { window: 0, ..Default::default() },
            ThroughputOptions { batched_window: 257, ..Default::default() },
            ThroughputOptions { batches: vec![1], ..Default::default() },
            ThroughputOptions { batches: vec![300], ..Default::default() },
        ] {
            assert!(matches!(wrong.check(), Err(MeasureError::BadArgument(_))), "{wrong:?}");
        }
    }

    #[test]
    fn rings_have_a_size_that_clients_may_ask_for() {
        for (window, size) in [(1, 0), (64, 32), (256, 32), (256, 4096)] {
            let bytes = ring_bytes(Shape { window, batch: 1 }, size);
            assert!(bytes.is_power_of_two() && (16 * 1024..=64 * 1024).contains(&bytes), "{bytes}");
        }
    }
}
