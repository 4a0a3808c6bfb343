//! Measures a fabric's rates, RF-RPC's one-time benchmark (section 3.2, figure 1): the number of READs that
//! a host serves per second, and the number of WRITEs that it issues per second, by size. The limits L, H
//! and N follow from them.
//!
//! The measured host calls [`measure`]. Peers (other processes, on this or another host) call [`serve`].
//! The measurement uses only the fabric's own operations and control connections, so it works on every
//! fabric, the simulator included:
//!
//! * *reads*: all peers READ from the host at the same time, each with a window of requests. The host's CPU
//!   is idle.
//! * *writes*: the host WRITEs to all peers at the same time, inline if possible, with few signaled
//!   requests, as the engine does.
//! * *read time*: one peer READs, one request at a time.
//! * *writes by connections*: the host WRITEs 32 bytes to all peers over 8 to 256 connections in turn (ScaleRPC
//!   figure 1(b)), which shows how many connections its NIC holds. Not where the initiator's CPU copies.
//!
//! Short slices of all sizes alternate, and the result is the median over rounds. On fabrics where the
//! initiator's CPU copies (shared memory), the location of the data in caches matters. There the host
//! writes the data just before it is READ, and the peer reads the target just before it is written, as
//! happens with results; and a slice passes over the memory only once.
//!
//! This crate holds that measurement. It knows nothing of RPC, and writes no files.

mod end;
mod messages;
mod spread;

use dunlin_fabric::WithSources;
use dunlin_fabric::{
    AcceptError, Access, Address, ArenaError, BadRates, CompletionStatus, ConnectionRow, CreateError,
    DialError, Fabric, GrantError, Host, LinkError, ListenError, Listener as _, Nanos, PostError, RateRow,
    RegisterError,
};
use dunlin_report::statistics::median;
use end::{End, Job, Kind, Slice, drive};
use messages::{Answer, Hello, Order, receive, send};
use spread::spread;
use thiserror::Error;

/// The default sizes, in bytes. The bounds of F, L and H, are two of them.
pub const SIZES: [u32; 9] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// The default numbers of connections.
pub const CONNECTIONS: [u32; 9] = [8, 16, 32, 48, 64, 96, 128, 192, 256];
/// The maximum number of connections.
pub const MOST_CONNECTIONS: u32 = 4096;
/// The largest size, in bytes.
pub const LARGEST: u32 = 64 * 1024;
/// The maximum number of peers.
pub const MOST_PEERS: usize = 64;
/// The maximum window of a peer.
pub const MOST_WINDOW: u32 = 64;

/// Timeout for a peer's part of a slice, and for its greeting.
const PATIENCE: Nanos = 20_000_000_000;
/// Interval at which a wait for peers calls `between`.
const LOOK: Nanos = 100_000_000;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct RatesOptions {
    /// Sizes of the transfers in bytes, ascending.
    pub sizes: Vec<u32>,
    /// Numbers of connections over which the host spreads its WRITEs, ascending; none for no such measurement. Without
    /// effect where the initiator's CPU copies.
    pub connections: Vec<u32>,
    /// Number of peers, each with its own connection.
    pub peers: usize,
    /// Threads of the host that WRITE, each to an equal share of the peers.
    pub threads: usize,
    /// READs in flight per peer.
    pub window: u32,
    /// Number of slices per size.
    pub rounds: usize,
    /// Length of a slice in nanoseconds, unless it ends after one pass over the memory.
    pub slice: Nanos,
}

impl Default for RatesOptions {
    fn default() -> Self {
        RatesOptions {
            sizes: SIZES.to_vec(),
            connections: CONNECTIONS.to_vec(),
            peers: 1,
            threads: 1,
            window: 16,
            rounds: 20,
            slice: 5_000_000,
        }
    }
}

/// The rates of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRates {
    /// Rates by size.
    pub rows: Vec<RateRow>,
    /// Rates by connections; none if they were not asked for, or if the initiator's CPU copies.
    pub connections: Vec<ConnectionRow>,
}

/// The progress of a measurement, reported to the caller between slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Peers can now dial this address.
    Listening(&'a Address),
    /// This number of peers is connected.
    Peers(usize),
    /// Number of completed slices, and the total.
    Slices(usize, usize),
}

/// The reason why rates could not be measured.
#[derive(Debug, Error)]
pub enum RatesError {
    /// The caller stopped the measurement.
    #[error("stopped before the end")]
    Stopped,
    /// An option is out of range.
    #[error("{0}")]
    Option(String),
    /// The queue pair cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The memory cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// There is no memory for a buffer.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The peer cannot be granted memory.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The connection to the measured host failed.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The host cannot listen for peers.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A connection from a peer cannot be accepted.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The other side closed the connection, or does not answer.
    #[error("the other side of the measurement is gone")]
    Link(#[from] LinkError),
    /// An operation was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An operation failed.
    #[error("{what} of {bytes} bytes failed: {status:?}")]
    Failed {
        /// READ or WRITE.
        what: &'static str,
        /// Size of the transfer, bytes.
        bytes: u32,
        /// The completion status.
        status: CompletionStatus,
    },
    /// The other side does not run this measurement, or runs another version.
    #[error("the other side does not speak as a measurement of this version does: {0}")]
    Foreign(String),
    /// The error reported by the other side.
    #[error("the other side of the measurement says: {0}")]
    Said(String),
    /// The results are inconsistent.
    #[error("the measured rates form no table")]
    Bad(#[from] BadRates),
}

impl RatesOptions {
    /// Checks the options.
    ///
    /// # Errors
    /// [`RatesError::Option`] for the first option out of range.
    pub fn check(&self) -> Result<(), RatesError> {
        let wrong = |what: String| Err(RatesError::Option(what));
        let growing = self.sizes.windows(2).all(|pair| pair[0] < pair[1]);
        let possible = self.sizes.iter().all(|size| (1..=LARGEST).contains(size));
        if !(2..=dunlin_fabric::rates::MAX_ROWS).contains(&self.sizes.len()) || !growing || !possible {
            return wrong(format!("sizes have to be at least two, growing, from 1 to {LARGEST} bytes"));
        }
        let growing = self.connections.windows(2).all(|pair| pair[0] < pair[1]);
        let possible = self.connections.iter().all(|count| (1..=MOST_CONNECTIONS).contains(count));
        let count = self.connections.len();
        if count == 1 || count > dunlin_fabric::rates::MAX_ROWS || !growing || !possible {
            return wrong(format!(
                "connections have to be none, or at least two numbers, growing, from 1 to {MOST_CONNECTIONS}"
            ));
        }
        if !(1..=MOST_PEERS).contains(&self.peers) || self.threads == 0 || self.threads > self.peers {
            return wrong(format!("there have to be 1 to {MOST_PEERS} peers, and as many threads at most"));
        }
        if !(1..=MOST_WINDOW).contains(&self.window) || self.rounds == 0 || self.slice == 0 {
            return wrong(format!("the window has to be 1 to {MOST_WINDOW}, rounds and slices more than 0"));
        }
        Ok(())
    }
}

/// A peer, from the view of the measured host.
struct Peer<F: Fabric> {
    link: F::Link,
    end: End<F>,
}

/// Measures this host: waits at `address` for the configured number of peers and runs the slices. `between`
/// receives the progress and returns whether to continue. Blocks for some seconds after all peers have
/// connected.
///
/// # Errors
/// Errors of the fabric or of a peer. No operation stays in flight.
pub fn measure<F: Fabric>(
    fabric: &F,
    address: &Address,
    options: &RatesOptions,
    between: &mut dyn FnMut(Step<'_>) -> bool,
) -> Result<MeasuredRates, RatesError> {
    options.check()?;
    let listener = fabric.listen(address)?;
    if !between(Step::Listening(&listener.address())) {
        return Err(RatesError::Stopped);
    }
    let mut peers = Vec::with_capacity(options.peers);
    while peers.len() < options.peers {
        if !between(Step::Peers(peers.len())) {
            return Err(RatesError::Stopped);
        }
        match listener.accept(fabric.host().now().saturating_add(LOOK)) {
            Ok(link) => peers.push(greet(fabric, link)?),
            Err(AcceptError::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut run = Run { fabric, options, peers };
    let outcome = run.all(between);
    // Also after an error, so that no peer keeps waiting. Ignore errors: a peer may have ended.
    run.peers.iter().for_each(|peer| drop(send(&peer.link, &Order::End)));
    outcome
}

/// Creates and connects the queue pair to a peer.
fn greet<F: Fabric>(fabric: &F, link: F::Link) -> Result<Peer<F>, RatesError> {
    let until = fabric.host().now().saturating_add(PATIENCE);
    let (mut end, hello) = End::new(fabric, &link, Access::READ)?;
    send(&link, &hello)?;
    let theirs: Hello = receive(&link, until)?;
    end.connect(&link, &theirs)?;
    Ok(Peer { link, end })
}

struct Run<'a, F: Fabric> {
    fabric: &'a F,
    options: &'a RatesOptions,
    peers: Vec<Peer<F>>,
}

/// Returns which part of `count` connections belongs to the peer at this place among `peers`.
fn part(count: u32, peers: usize, place: usize) -> usize {
    count as usize / peers + usize::from(place < count as usize % peers)
}

impl<F: Fabric> Run<'_, F> {
    fn all(&mut self, between: &mut dyn FnMut(Step<'_>) -> bool) -> Result<MeasuredRates, RatesError> {
        self.connect()?;
        let (sizes, connections) = (&self.options.sizes, self.connections().to_vec());
        let mut found = vec![[const { Vec::new() }; 3]; sizes.len()];
        let mut spread = vec![Vec::new(); connections.len()];
        let slices = self.options.rounds * (sizes.len() * 3 + connections.len());
        let mut done = 0;
        for _ in 0..self.options.rounds {
            for (bytes, [reads, writes, read_nanos]) in sizes.iter().zip(&mut found) {
                for what in 0..3 {
                    if !between(Step::Slices(done, slices)) {
                        return Err(RatesError::Stopped);
                    }
                    match what {
                        0 => reads.push(self.reads(*bytes, self.options.window, usize::MAX)?),
                        1 => writes.push(self.writes(*bytes)?),
                        _ => read_nanos.push(1e9 / self.reads(*bytes, 1, 1)?),
                    }
                    done += 1;
                }
            }
            for (count, rates) in connections.iter().zip(&mut spread) {
                if !between(Step::Slices(done, slices)) {
                    return Err(RatesError::Stopped);
                }
                rates.push(self.spread(*count)?);
                done += 1;
            }
        }
        between(Step::Slices(done, slices));
        let middle = |values: &Vec<f64>| median(values.iter().copied()).unwrap_or(0.0);
        let rows = sizes.iter().zip(&found).map(|(bytes, [reads, writes, read_nanos])| RateRow {
            bytes: *bytes,
            reads: middle(reads),
            writes: middle(writes),
            read_nanos: middle(read_nanos),
        });
        let by_connections = connections.iter().zip(&spread);
        let by_connections =
            by_connections.map(|(count, rates)| ConnectionRow { connections: *count, writes: middle(rates) });
        Ok(MeasuredRates { rows: rows.collect(), connections: by_connections.collect() })
    }

    /// Returns the numbers of connections to measure. Where the initiator's CPU copies, no device keeps contexts of
    /// connections.
    fn connections(&self) -> &[u32] {
        if self.copies() { &[] } else { &self.options.connections }
    }

    /// Makes the connections to all peers over which WRITEs are spread.
    fn connect(&mut self) -> Result<(), RatesError> {
        let Some(most) = self.connections().last().copied() else { return Ok(()) };
        let peers = self.peers.len();
        for (place, peer) in self.peers.iter_mut().enumerate() {
            let until = self.fabric.host().now().saturating_add(PATIENCE);
            let count = part(most, peers, place);
            peer.end.reserve(count as u32)?;
            send(&peer.link, &Order::Reserve { count: count as u32 })?;
            for _ in 0..count {
                let endpoint = peer.end.add(&peer.link)?;
                send(&peer.link, &Order::Connect { endpoint })?;
                match receive(&peer.link, until)? {
                    Answer::Created { endpoint } => peer.end.connect_added(&peer.link, endpoint)?,
                    Answer::Failed { why } => return Err(said(&why)),
                    Answer::Done { .. } => {
                        return Err(RatesError::Foreign("it answers another question".into()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Measures small WRITEs per second by all threads, over this number of connections.
    fn spread(&mut self, count: u32) -> Result<f64, RatesError> {
        let (host, slice, peers) = (self.fabric.host(), self.options.slice, self.peers.len());
        let mut ends: Vec<(&mut End<F>, usize)> = Vec::with_capacity(peers);
        for (place, peer) in self.peers.iter_mut().enumerate() {
            let used = part(count, peers, place);
            ends.extend((used > 0).then_some((&mut peer.end, used)));
        }
        let share = ends.len().div_ceil(self.options.threads);
        by_threads(ends.chunks_mut(share).collect(), |ends| spread(host, ends, slice))
    }

    /// Returns whether the initiator's CPU copies, so that caches matter.
    fn copies(&self) -> bool {
        self.fabric.capabilities().initiator_copies
    }

    /// Measures READs per second by the first `by` peers.
    fn reads(&mut self, bytes: u32, window: u32, by: usize) -> Result<f64, RatesError> {
        let once = self.copies();
        if once {
            self.peers.iter_mut().for_each(|peer| peer.end.rewrite());
        }
        let readers = &self.peers[..by.min(self.peers.len())];
        let order = Order::Read { bytes, window, slice: self.options.slice, once };
        readers.iter().try_for_each(|peer| send(&peer.link, &order))?;
        self.answers(readers).map(|slices| slices.iter().map(Slice::rate).sum())
    }

    /// Measures WRITEs per second by all threads.
    fn writes(&mut self, bytes: u32) -> Result<f64, RatesError> {
        let once = self.copies();
        if once {
            self.peers.iter().try_for_each(|peer| send(&peer.link, &Order::Look))?;
            self.answers(&self.peers)?;
        }
        let job = Job { kind: Kind::Write, bytes, window: MOST_WINDOW, slice: self.options.slice, once };
        let host = self.fabric.host();
        let mut ends: Vec<&mut End<F>> = self.peers.iter_mut().map(|peer| &mut peer.end).collect();
        let share = ends.len().div_ceil(self.options.threads);
        by_threads(ends.chunks_mut(share).collect(), |ends| drive(host, ends, job))
    }

    /// Receives the results of the peers' slices.
    fn answers(&self, of: &[Peer<F>]) -> Result<Vec<Slice>, RatesError> {
        let until = self.fabric.host().now().saturating_add(PATIENCE);
        of.iter()
            .map(|peer| match receive(&peer.link, until)? {
                Answer::Done { operations, nanos } => Ok(Slice { operations, nanos }),
                Answer::Created { .. } => Err(RatesError::Foreign("it answers another question".into())),
                Answer::Failed { why } => Err(said(&why)),
            })
            .collect()
    }
}

/// The error that the other side has reported.
fn said(why: &str) -> RatesError {
    RatesError::Said(why.escape_debug().take(300).collect())
}

/// Runs each share on a thread of its own, and returns the sum of the rates.
fn by_threads<T: Send>(
    mut shares: Vec<&mut [T]>,
    run: impl Fn(&mut [T]) -> Result<Slice, RatesError> + Sync,
) -> Result<f64, RatesError> {
    // A single share runs on this thread, which also works in the simulator.
    if let [all] = &mut shares[..] {
        return run(all).map(|slice| slice.rate());
    }
    let run = &run;
    let slices: Vec<Result<Slice, RatesError>> = std::thread::scope(|scope| {
        let started: Vec<_> = shares.into_iter().map(|share| scope.spawn(move || run(share))).collect();
        let ended = started.into_iter().map(|thread| thread.join());
        ended.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    slices.into_iter().map(|slice| slice.map(|slice| slice.rate())).sum()
}

/// Runs a peer: dials the measured host and executes its orders until the host ends the measurement. Blocks
/// throughout.
///
/// # Errors
/// The host cannot be reached or ends early; or an error of the fabric, which is also reported to the host.
pub fn serve<F: Fabric>(fabric: &F, address: &Address) -> Result<(), RatesError> {
    let host = fabric.host();
    let until = host.now().saturating_add(PATIENCE);
    let link = fabric.dial(address, until)?;
    let (mut end, hello) = End::new(fabric, &link, Access::WRITE)?;
    send(&link, &hello)?;
    let theirs: Hello = receive(&link, until)?;
    end.connect(&link, &theirs)?;
    let mut reserved = 0;
    loop {
        let slice = match receive(&link, Nanos::MAX)? {
            Order::End => return Ok(()),
            Order::Reserve { count } if count > MOST_CONNECTIONS => {
                return Err(RatesError::Foreign("it asks for too many connections".to_owned()));
            }
            Order::Reserve { count } => match end.reserve(count) {
                Ok(()) => {
                    reserved = count as usize;
                    continue;
                }
                Err(error) => Err(error),
            },
            Order::Connect { .. } if end.added() >= reserved => {
                return Err(RatesError::Foreign("it makes more connections than it said".to_owned()));
            }
            Order::Connect { endpoint } => match end.add(&link) {
                Ok(own) => {
                    // The other side connects when it knows the endpoint.
                    send(&link, &Answer::Created { endpoint: own })?;
                    end.connect_added(&link, endpoint)?;
                    continue;
                }
                Err(error) => Err(error),
            },
            Order::Look => {
                end.look();
                Ok(Slice { operations: 1, nanos: 1 })
            }
            Order::Read { bytes, window, slice, once } => {
                if bytes == 0
                    || bytes > LARGEST
                    || window == 0
                    || window > MOST_WINDOW
                    || slice > PATIENCE / 2
                {
                    return Err(RatesError::Foreign("it asks for what cannot be measured".to_owned()));
                }
                drive(host, &mut [&mut end], Job { kind: Kind::Read, bytes, window, slice, once })
            }
        };
        match slice {
            Ok(Slice { operations, nanos }) => send(&link, &Answer::Done { operations, nanos })?,
            Err(error) => {
                send(&link, &Answer::Failed { why: WithSources(&error).to_string() })?;
                return Err(error);
            }
        }
    }
}
