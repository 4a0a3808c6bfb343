//! The swarm: a seed determines a cluster, a workload and faults, and these invariants must hold:
//!
//! 1. Every call ends exactly once.
//! 2. No call is executed twice; a call reported as "not executed" is never executed; a call that succeeded
//!    was executed.
//! 3. No byte of a request or an answer is wrong.
//! 4. A call ends within its deadline and a bound. If nothing disturbs a run, calls of the usual time do not
//!    run out of time, no connection is lost, and a call by itself waits at most for the turns of all groups of
//!    clients.
//! 5. Once the faults have stopped, every client's calls are answered again.
//! 6. The calls of a thread that shares a connection as FLOCK does begin at each worker in the order in which it made
//!    them, if nothing disturbs the run.
//! 7. Once the calls have ended, nothing is left over: no call in flight, no slot of a window, and after the end no
//!    task, no queue pair, no registered memory.
//!
//! The servers of a deployment ([`play_deployment`]) serve the same group at the same time once the faults have stopped,
//! although their clocks are up to a second apart and drift.
//!
//! The nodes of the memory tier ([`play_tier`]) keep these:
//!
//! 1. A read returns bytes of completed writes to its region, or of later ones; never those of a write that was reported as
//!    not executed, of another region, or of one that was freed. Moves, and nodes that are killed or cut off, change nothing
//!    in that.
//! 2. A region whose nodes live is there in calm, with all completed writes and additions.
//! 3. After a free, and on handles from before a move or the end of a right, each operation fails. No handle has a
//!    right that was not granted, and none is used for more than its rights. After the end of a right to write, no byte
//!    that its owner wrote changes.
//! 4. Each operation ends once, within a bound; without disturbance, only for reasons that other threads give.
//! 5. In the end no memory of a node is in use, and as above nothing else is left over.
//!
//! Their calls, locks and barriers ([`play_coordination`]) keep these:
//!
//! 1. A call to a service is executed at most once; one that was reported as not executed never is. No byte of a request or
//!    an answer is wrong.
//! 2. One thread at a time has a lock. The next one has it beside a holder only if that one was killed, or is told that it
//!    is taken for dead; the next one finds the lock poisoned then. Fence numbers rise with each grant.
//! 3. The threads of a node get a lock in the order in which they asked for it, if nothing disturbs the run.
//! 4. A barrier lets a thread pass only if as many threads as it says are there at the same time.
//! 5. In calm each call is answered, each lock can be had, and a barrier of all nodes is passed.
//!
//! The same seed gives the same bytes on any machine.

mod asynchronous;
mod book;
mod client;
mod deployed;
mod draw;
mod executor;
mod play;
mod server;
mod tier;

use book::CallLedger;
use dunlin_fabric::Nanos;
use dunlin_fabric::WithSources;
use dunlin_fabric_sim::{History, RunError, Settings, Sim};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The first violation; `None` for success.
    pub failure: Option<String>,
    /// A short description of the run.
    pub what: String,
    /// Calls that were sent.
    pub calls: u64,
    /// Calls that ended with a result.
    pub answered: u64,
    /// Calls that ended as executed without a result or as maybe executed, expired deadlines and crashed
    /// callers included.
    pub maybe: u64,
    /// Calls that ended as not executed.
    pub not_executed: u64,
    /// Processes killed.
    pub kills: u64,
    /// Leases of lanes that clients use by turns.
    pub leases: u64,
    /// Switches between groups of such clients, counted by each worker.
    pub switches: u64,
    /// Events in the simulator.
    pub events: u64,
    /// Duration in virtual time, in nanoseconds.
    pub virtual_ns: Nanos,
    /// A hash over all events: equal for equal runs.
    pub trace_hash: u64,
}

/// Plays one seed. Records the latest events in `history` if given.
pub fn play(seed: u64, history: Option<History>) -> Outcome {
    let drawn = draw::Drawn::from_seed(seed, history);
    let (what, settings) = (drawn.to_string(), drawn.settings.clone());
    run(seed, what, settings, move |sim, book| play::root(sim, &drawn, book))
}

/// Plays one seed of a deployment: two or three servers that share a schedule, and clients that call all of them. The seeds
/// are others than those of [`play`]. Records the latest events in `history` if given.
pub fn play_deployment(seed: u64, history: Option<History>) -> Outcome {
    let drawn = draw::deployed::DrawnDeployment::from_seed(seed, history);
    let (what, settings) = (drawn.to_string(), drawn.settings.clone());
    run(seed, what, settings, move |sim, book| deployed::root(sim, &drawn, book))
}

/// Plays one seed of the memory tier: nodes whose threads make, map, read, write, move and free regions, while nodes are
/// killed and cut off from the others. Operations count as calls. The seeds are others than those of [`play`]. Records the
/// latest events in `history` if given.
pub fn play_tier(seed: u64, history: Option<History>) -> Outcome {
    let drawn = draw::tier::DrawnTier::of_memory(seed, history);
    let (what, settings) = (drawn.to_string(), drawn.settings.clone());
    run(seed, what, settings, move |sim, book| tier::root(sim, &drawn, book))
}

/// Plays one seed of the coordination of the memory tier: nodes whose threads call each other, take locks and meet at
/// barriers, while nodes are killed and cut off. Operations count as calls. The nodes and their disturbances are those of
/// [`play_tier`]. Records the latest events in `history` if given.
pub fn play_coordination(seed: u64, history: Option<History>) -> Outcome {
    let drawn = draw::tier::DrawnTier::from_seed(seed, history);
    let (what, settings) = (drawn.to_string(), drawn.settings.clone());
    run(seed, what, settings, move |sim, book| tier::coordination_root(sim, &drawn, book))
}

/// Plays one seed of membership: nodes whose views come from a directory call each other and read each other's regions,
/// while they join, leave, die and are cut off, and the directory ends and begins again. Calls count. The seeds are others
/// than those of [`play`]. Records the latest events in `history` if given.
pub fn play_membership(seed: u64, history: Option<History>) -> Outcome {
    let drawn = draw::members::DrawnMembers::from_seed(seed, history);
    let (what, settings) = (drawn.to_string(), drawn.tier.settings.clone());
    run(seed, what, settings, move |sim, book| tier::members_root(sim, &drawn, book))
}

/// Plays one seed of the coordination of nodes whose views come from a directory: their threads call each other, take locks
/// and meet at barriers, while they join, leave, die and are cut off, and the directory ends and begins again. Operations
/// count as calls. The seeds are others than those of [`play_coordination`]. Records the latest events in `history` if given.
pub fn play_coordination_of_views(seed: u64, history: Option<History>) -> Outcome {
    let drawn = draw::members::DrawnMembers::coordinating(seed, history);
    let (what, settings) = (drawn.to_string(), drawn.tier.settings.clone());
    run(seed, what, settings, move |sim, book| tier::coordination_of_views_root(sim, &drawn, book))
}

fn run(
    seed: u64,
    what: String,
    settings: Settings,
    root: impl FnOnce(&Sim, &CallLedger) + Send + 'static,
) -> Outcome {
    let book = CallLedger::new();
    let (start, played) = (settings.start, book.clone());
    let run =
        catch_unwind(AssertUnwindSafe(|| Sim::run_with(settings, seed, move |sim| root(&sim, &played))));
    let (report, error) = match run {
        Ok(Ok(report)) => (Some(report), None),
        Ok(Err(error)) => (None, Some(describe(&error))),
        Err(panic) => (None, Some(format!("the director panicked: {}", message(&*panic)))),
    };
    let failure = book.first_violation().or(error).or_else(|| book.check());
    let counts = book.counts();
    Outcome {
        seed,
        failure,
        what,
        calls: counts.sent,
        answered: counts.answered,
        maybe: counts.maybe,
        not_executed: counts.not_executed,
        kills: counts.kills,
        leases: counts.leases,
        switches: counts.switches,
        events: report.map_or(0, |report| report.events),
        virtual_ns: report.map_or(0, |report| report.end - start),
        trace_hash: report.map_or(0, |report| report.trace_hash),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Returns the text of a run's error, truncated.
fn describe(error: &RunError) -> String {
    let mut text = WithSources(error).to_string();
    if let Some((end, _)) = text.char_indices().nth(600) {
        text.truncate(end);
        text.push_str(" ...");
    }
    text
}
