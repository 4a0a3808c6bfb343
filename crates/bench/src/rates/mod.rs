//! RF-RPC's one-time benchmark of a fabric (section 3.2, figure 1): how many READs a host serves in a second and how many WRITEs it
//! makes, by size; from which L, H and N follow.
//!
//! The host that is measured calls [`measure`], and [`serve`] runs in peers: other processes of this host, or of others. All goes by
//! the fabric's own operations and its control connections, so it is the same on every fabric, the simulator included:
//!
//! * *reads*: all peers READ from the host at once, with a window each. The host's processors do nothing meanwhile.
//! * *writes*: the host WRITEs to all peers at once, inline where the fabric can, and waits for few completions, as the engine does.
//! * *read time*: one peer READs, one READ after the other.
//!
//! Each is taken in short slices, all sizes in turn, and the median of the rounds counts. Where the initiator's own processor copies
//! (shared memory) it matters in whose cache the bytes are: there what is READ was written by the host just before, and what is written
//! to was just read by the peer, as it is with results; and a slice goes over the memory once.

mod end;
mod messages;

use dunlin_fabric::{
    AcceptError, Access, Address, ArenaError, BadRates, CompletionStatus, CreateError, DialError, Fabric,
    GrantError, Host, LinkError, ListenError, Listener as _, Nanos, PostError, RateRow, RegisterError,
};
use dunlin_report::statistics::median;
use end::{End, Job, Kind, Slice, drive};
use messages::{Answer, Hello, Order, receive, send};
use thiserror::Error;

/// The sizes that are measured if no others are asked for: F is chosen between two of these.
pub const SIZES: [u32; 9] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// The largest size.
pub const LARGEST: u32 = 64 * 1024;
/// The most peers, and the largest window.
pub const MOST_PEERS: usize = 64;
/// See [`MOST_PEERS`].
pub const MOST_WINDOW: u32 = 64;

/// How long a peer may take for its part of a slice, or a greeting.
const PATIENCE: Nanos = 20_000_000_000;
/// How often a wait for peers looks up.
const LOOK: Nanos = 100_000_000;

/// How to measure.
#[derive(Clone, Debug)]
pub struct RatesOptions {
    /// Bytes of transfers, growing.
    pub sizes: Vec<u32>,
    /// Peers, each with a connection.
    pub peers: usize,
    /// Threads of the host that WRITE, each to its share of the peers.
    pub threads: usize,
    /// READs that a peer has under way.
    pub window: u32,
    /// How often each size is measured.
    pub rounds: usize,
    /// How long a slice is where it is not once over the memory, in nanoseconds.
    pub slice: Nanos,
}

impl Default for RatesOptions {
    fn default() -> Self {
        RatesOptions { sizes: SIZES.to_vec(), peers: 1, threads: 1, window: 16, rounds: 20, slice: 5_000_000 }
    }
}

/// What the caller is told, and says, between slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Peers can dial there.
    Listening(&'a Address),
    /// So many peers are there.
    Peers(usize),
    /// So many slices of so many are done.
    Slices(usize, usize),
}

/// Why there are no rates.
#[derive(Debug, Error)]
pub enum RatesError {
    /// The caller has asked for the end.
    #[error("stopped before the end")]
    Stopped,
    /// An option out of its range.
    #[error("{0}")]
    Option(String),
    /// No queue pair.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// No memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// No memory for a buffer.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The peer cannot be granted memory.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// No connection to the host that is measured.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// No place for peers to dial.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No connections from peers.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// The other side is gone, or silent.
    #[error("the other side of the measurement: {0}")]
    Link(#[from] LinkError),
    /// An operation was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An operation failed.
    #[error("{what} of {bytes} bytes failed: {status:?}")]
    Failed {
        /// READ or WRITE.
        what: &'static str,
        /// Its size.
        bytes: u32,
        /// How it ended.
        status: CompletionStatus,
    },
    /// The other side is no such measurement, or of another version.
    #[error("the other side does not speak as a measurement of this version does: {0}")]
    Foreign(String),
    /// The other side's own error.
    #[error("the other side of the measurement says: {0}")]
    Said(String),
    /// The results cannot be.
    #[error("what was measured is no table: {0}")]
    Bad(#[from] BadRates),
}

impl RatesOptions {
    /// Says what cannot be measured.
    ///
    /// # Errors
    /// [`RatesError::Option`].
    pub fn check(&self) -> Result<(), RatesError> {
        let wrong = |what: String| Err(RatesError::Option(what));
        let growing = self.sizes.windows(2).all(|pair| pair[0] < pair[1]);
        let possible = self.sizes.iter().all(|size| (1..=LARGEST).contains(size));
        if !(2..=dunlin_fabric::rates::MAX_ROWS).contains(&self.sizes.len()) || !growing || !possible {
            return wrong(format!("sizes have to be at least two, growing, from 1 to {LARGEST} bytes"));
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

/// A peer, as the host that is measured has it.
struct Peer<F: Fabric> {
    link: F::Link,
    end: End<F>,
}

/// Measures this host: waits at `address` for as many peers as the options say, and has them work. `between` is told how far it is
/// and says whether to go on. Blocks for some seconds from when all peers are there.
///
/// # Errors
/// What the fabric or a peer refuses; nothing is left under way.
pub fn measure<F: Fabric>(
    fabric: &F,
    address: &Address,
    options: &RatesOptions,
    between: &mut dyn FnMut(Step<'_>) -> bool,
) -> Result<Vec<RateRow>, RatesError> {
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
    // Also after an error, so that nobody waits for us; who is gone needs no word.
    run.peers.iter().for_each(|peer| drop(send(&peer.link, &Order::End)));
    outcome
}

/// Makes the queue pair with a peer.
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

impl<F: Fabric> Run<'_, F> {
    fn all(&mut self, between: &mut dyn FnMut(Step<'_>) -> bool) -> Result<Vec<RateRow>, RatesError> {
        let sizes = &self.options.sizes;
        let mut found = vec![[const { Vec::new() }; 3]; sizes.len()];
        let slices = self.options.rounds * sizes.len() * 3;
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
        }
        between(Step::Slices(done, slices));
        let middle = |values: &Vec<f64>| median(values.iter().copied()).unwrap_or(0.0);
        let rows = sizes.iter().zip(&found).map(|(bytes, [reads, writes, read_nanos])| RateRow {
            bytes: *bytes,
            reads: middle(reads),
            writes: middle(writes),
            read_nanos: middle(read_nanos),
        });
        Ok(rows.collect())
    }

    /// Whether the initiator's processor copies, so that caches matter.
    fn copies(&self) -> bool {
        self.fabric.capabilities().initiator_copies
    }

    /// READs a second by so many of the peers.
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

    /// WRITEs a second by all threads.
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
        let mut shares: Vec<&mut [&mut End<F>]> = ends.chunks_mut(share).collect();
        // One thread is this one: also where threads are simulated.
        if let [all] = &mut shares[..] {
            return drive(host, all, job).map(|slice| slice.rate());
        }
        let slices: Vec<Result<Slice, RatesError>> = std::thread::scope(|scope| {
            let started: Vec<_> =
                shares.into_iter().map(|share| scope.spawn(move || drive(host, share, job))).collect();
            let ended = started.into_iter().map(|thread| thread.join());
            ended.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        slices.into_iter().map(|slice| slice.map(|slice| slice.rate())).sum()
    }

    /// What peers say when they have done what they were asked.
    fn answers(&self, of: &[Peer<F>]) -> Result<Vec<Slice>, RatesError> {
        let until = self.fabric.host().now().saturating_add(PATIENCE);
        of.iter()
            .map(|peer| match receive(&peer.link, until)? {
                Answer::Done { operations, nanos } => Ok(Slice { operations, nanos }),
                Answer::Failed { why } => Err(RatesError::Said(why.escape_debug().take(300).collect())),
            })
            .collect()
    }
}

/// Is a peer: dials the host that is measured, and works for it until it says that it is done. Blocks for as long as that takes.
///
/// # Errors
/// Nobody there, or gone before it was done; what the fabric refuses, of which the host is told.
pub fn serve<F: Fabric>(fabric: &F, address: &Address) -> Result<(), RatesError> {
    let host = fabric.host();
    let until = host.now().saturating_add(PATIENCE);
    let link = fabric.dial(address, until)?;
    let (mut end, hello) = End::new(fabric, &link, Access::WRITE)?;
    send(&link, &hello)?;
    let theirs: Hello = receive(&link, until)?;
    end.connect(&link, &theirs)?;
    loop {
        let slice = match receive(&link, Nanos::MAX)? {
            Order::End => return Ok(()),
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
                send(&link, &Answer::Failed { why: error.to_string() })?;
                return Err(error);
            }
        }
    }
}
