//! Lanes whose leases end: the schedule of a server, and the pools and groups of a worker (ScaleRPC sections 3.2 and
//! 3.3). `server/worker/grouped.rs` drives them.

use crate::grouped::member::Member;
use crate::grouped::schedule::{ClientId, Schedule, Settings};
use crate::grouped::zones::{MAX_ZONES, Zones};
use crate::limits::RING_BYTES;
use dunlin_fabric::{Arena, Buffer, Fabric, Nanos, Region, RegionKey};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a zone, and of the ring of a client under leases: the smallest ring, so that a pool stays in the cache.
pub(crate) const ZONE_BYTES: u32 = *RING_BYTES.start();
/// Bytes into which a worker READs announced requests. A READ that finds no room is posted later.
pub(crate) const READ_BYTES: u64 = 1 << 20;

/// The part of a slice in which the requests of the next group are READ, in eighths.
const READS_FROM: Nanos = 2;
const READS_TO: Nanos = 7;

/// Returns a number of eighths of a slice.
const fn part(length: Nanos, eighths: Nanos) -> Nanos {
    length / 8 * eighths
}

/// The pool of the clients of one principal: memory that all of them may write.
#[derive(Debug)]
pub(crate) struct Pool<F: Fabric> {
    /// The user on this host; `None` for the clients of other hosts, which have the server's token.
    pub(crate) user: Option<u32>,
    pub(crate) region: Region<F::Memory>,
    pub(crate) zones: Zones,
    /// A lane found no free zone since the last client was given up.
    pub(crate) is_short: bool,
}

/// Counters of a server's leases ([`crate::Server::group_counters`]), or of one worker's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Leases that have begun.
    pub leases: u64,
    /// READs of announced requests.
    pub reads: u64,
    /// Context switches, counted by each worker.
    pub switches: u64,
    /// Messages that only told a client of the end of its lease.
    pub told_alone: u64,
    /// Leases that could not begin because no zone was free.
    pub without_zone: u64,
}

impl GroupCounters {
    /// Returns the counts of both.
    pub(crate) fn plus(self, other: GroupCounters) -> GroupCounters {
        GroupCounters {
            leases: self.leases + other.leases,
            reads: self.reads + other.reads,
            switches: self.switches + other.switches,
            told_alone: self.told_alone + other.told_alone,
            without_zone: self.without_zone + other.without_zone,
        }
    }

    /// Returns the counts since an earlier time.
    #[must_use]
    pub fn since(self, earlier: GroupCounters) -> GroupCounters {
        GroupCounters {
            leases: self.leases - earlier.leases,
            reads: self.reads - earlier.reads,
            switches: self.switches - earlier.switches,
            told_alone: self.told_alone - earlier.told_alone,
            without_zone: self.without_zone - earlier.without_zone,
        }
    }
}

/// The groups that are served now, for all workers.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Grows with each change.
    number: u64,
    /// The clients that are served, in order.
    running: Vec<ClientId>,
    /// The clients that are served next, in order.
    warming: Vec<ClientId>,
    began: Nanos,
    /// A worker has had something to do for a client of the group.
    is_used: AtomicBool,
}

/// The schedule of a server, which all its workers follow: a client of several workers is served by all of them at
/// the same time, and the NIC sees one group.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The number of the last turn.
    number: AtomicU64,
    /// When the running slice ends.
    due: AtomicU64,
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    schedule: Schedule,
    turn: Arc<Turn>,
    /// The number of lanes of each client, on all workers.
    lanes: BTreeMap<ClientId, usize>,
    /// The counts of all workers until they last followed a turn.
    counts: GroupCounters,
}

impl Turns {
    pub(crate) fn new(settings: Settings) -> Self {
        let (schedule, turn) = (Schedule::new(settings), Arc::default());
        Turns {
            number: AtomicU64::new(0),
            due: AtomicU64::new(Nanos::MAX),
            settings,
            state: Mutex::new(State {
                schedule,
                turn,
                lanes: BTreeMap::new(),
                counts: GroupCounters::default(),
            }),
        }
    }

    /// Returns when the running slice ends.
    pub(crate) fn due(&self) -> Nanos {
        self.due.load(Ordering::Relaxed)
    }

    /// Changes the schedule, and shows all workers the result.
    fn change(&self, state: &mut State, now: Option<Nanos>) {
        let sorted = |clients: &[ClientId]| {
            let mut clients = clients.to_vec();
            clients.sort_unstable();
            clients
        };
        state.turn = Arc::new(Turn {
            number: state.turn.number + 1,
            running: sorted(state.schedule.running()),
            warming: sorted(state.schedule.warming()),
            began: now.unwrap_or(state.turn.began),
            is_used: AtomicBool::new(now.is_none()),
        });
        self.due.store(state.schedule.due(), Ordering::Relaxed);
        self.number.store(state.turn.number, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of all workers, each until it last followed a change of the groups.
    pub(crate) fn counts(&self) -> GroupCounters {
        self.lock().counts
    }

    /// Adds a lane of a client.
    fn join(&self, client: ClientId) {
        let mut state = self.lock();
        *state.lanes.entry(client).or_default() += 1;
        state.schedule.join(client);
        self.change(&mut state, None);
    }

    /// Removes a lane of a client.
    fn leave(&self, client: ClientId) {
        let mut state = self.lock();
        let Some(lanes) = state.lanes.get_mut(&client) else { return };
        *lanes -= 1;
        if *lanes == 0 {
            state.lanes.remove(&client);
            state.schedule.leave(client);
            self.change(&mut state, None);
        }
    }

    /// Ends the slice if it is due, or if it is the slice of `unused` and nobody has used it. Another worker that
    /// holds the lock does the same.
    fn switch(&self, now: Nanos, unused: Option<&Turn>) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        let is_unused = unused
            .is_some_and(|turn| turn.number == state.turn.number && !turn.is_used.load(Ordering::Relaxed));
        let ends = now >= state.schedule.due() || is_unused;
        if ends {
            state.schedule.switch(now);
            self.change(&mut state, Some(now));
        }
        ends
    }
}

/// The lanes of a worker whose leases end.
#[derive(Debug)]
pub(crate) struct Groups<F: Fabric> {
    pub(crate) pools: Vec<Pool<F>>,
    /// Memory into which announced requests are READ.
    pub(crate) arena: Arena<F::Memory>,
    /// The turn that the worker follows.
    turn: Arc<Turn>,
    /// The lanes of each client.
    lanes: BTreeMap<ClientId, Vec<u16>>,
    /// The lanes of the group that is served.
    pub(crate) running: Vec<u16>,
    /// The lanes of the next group.
    pub(crate) warming: Vec<u16>,
    /// Lanes whose lease has ended: since when their client's word is awaited.
    pub(crate) awaited: Vec<(u16, Nanos)>,
    pub(crate) counts: GroupCounters,
    /// The part of the counts that the server has.
    published: GroupCounters,
    /// Lanes whose clients have not been told of the end of their lease, for want of room.
    pub(crate) untold: Vec<u16>,
    /// Requests of the next group wait.
    next_waits: bool,
    /// When the worker has something to do that no arrival tells of, before the slice ends.
    wakes_at: Nanos,
}

impl<F: Fabric> Groups<F> {
    pub(crate) fn new(arena: Arena<F::Memory>) -> Self {
        Groups {
            pools: Vec::new(),
            arena,
            turn: Arc::default(),
            lanes: BTreeMap::new(),
            running: Vec::new(),
            warming: Vec::new(),
            awaited: Vec::new(),
            counts: GroupCounters::default(),
            published: GroupCounters::default(),
            untold: Vec::new(),
            next_waits: false,
            wakes_at: Nanos::MAX,
        }
    }

    /// Adds a lane of a client.
    pub(crate) fn join(&mut self, turns: &Turns, client: ClientId, lane: u16) {
        self.lanes.entry(client).or_default().push(lane);
        turns.join(client);
    }

    /// Removes a lane of a client.
    pub(crate) fn leave(&mut self, turns: &Turns, client: ClientId, lane: u16) {
        if let Some(lanes) = self.lanes.get_mut(&client) {
            lanes.retain(|other| *other != lane);
            if lanes.is_empty() {
                self.lanes.remove(&client);
            }
        }
        if self.lanes.is_empty() {
            tracing::debug!(target: "dunlin::server", counts = ?self.counts, "the last lane whose leases end is gone");
        }
        for list in [&mut self.running, &mut self.warming, &mut self.untold] {
            list.retain(|other| *other != lane);
        }
        self.awaited.retain(|(other, _)| *other != lane);
        turns.leave(client);
    }

    /// Returns whether the groups have changed since the worker looked.
    pub(crate) fn is_behind(&self, turns: &Turns) -> bool {
        turns.number.load(Ordering::Acquire) != self.turn.number
    }

    /// Follows the last turn. Returns the lanes that are not served any more.
    pub(crate) fn follow(&mut self, turns: &Turns) -> Vec<u16> {
        let turn = {
            let mut state = turns.lock();
            state.counts = state.counts.plus(self.counts.since(self.published));
            self.published = self.counts;
            Arc::clone(&state.turn)
        };
        let list = |clients: &[ClientId]| -> Vec<u16> {
            clients.iter().filter_map(|client| self.lanes.get(client)).flatten().copied().collect()
        };
        let (running, warming) = (list(&turn.running), list(&turn.warming));
        self.counts.switches += u64::from(turn.began != self.turn.began);
        let before = std::mem::replace(&mut self.running, running);
        (self.warming, self.turn) = (warming, turn);
        (self.next_waits, self.wakes_at) = (false, Nanos::MAX);
        before.into_iter().filter(|lane| !self.running.contains(lane)).collect()
    }

    /// Records that a lane of the running group has something to do.
    pub(crate) fn is_used(&self) {
        self.turn.is_used.store(true, Ordering::Relaxed);
    }

    /// Ends the slice if it is due. A slice that nobody has used, while requests of the next group wait, ends after an
    /// eighth of the default length.
    pub(crate) fn end_slice(&self, turns: &Turns, now: Nanos) {
        let is_idle = self.next_waits && !self.was_used() && now >= self.idle_end(turns);
        if now >= turns.due() || is_idle {
            turns.switch(now, is_idle.then_some(&*self.turn));
        }
    }

    fn was_used(&self) -> bool {
        self.turn.is_used.load(Ordering::Relaxed)
    }

    /// Returns when the slice ends if nobody uses it.
    fn idle_end(&self, turns: &Turns) -> Nanos {
        self.turn.began.saturating_add(turns.settings.slice / 8)
    }

    /// Returns for how many lanes of the next group announced requests may be READ, in the order of
    /// [`warming`](Groups::warming).
    ///
    /// The first answers of a group and the READs of the next one fetch the contexts of their connections into the
    /// NIC. READs at the beginning of a slice would delay those answers, and many READs at once would displace the
    /// contexts of the running group. They are therefore spread over the part of the slice from [`READS_FROM`] to
    /// [`READS_TO`], unless nobody uses the slice.
    pub(crate) fn may_read(&self, turns: &Turns, now: Nanos) -> usize {
        let all = self.warming.len();
        let length = turns.due().saturating_sub(self.turn.began);
        if !self.was_used() || length == 0 {
            return all;
        }
        let (from, to) = (part(length, READS_FROM), part(length, READS_TO));
        let Some(since) = now.saturating_sub(self.turn.began).checked_sub(from) else { return 0 };
        let share = u128::from(since) * all as u128 / u128::from((to - from).max(1));
        (share as usize + 1).min(all)
    }

    /// Takes note of the requests of the next group: whether any wait, and whether READs are held back, of which
    /// `allowed` may have been posted.
    pub(crate) fn next_group(&mut self, turns: &Turns, waits: bool, held_back: bool, allowed: usize) {
        (self.next_waits, self.wakes_at) = (waits, Nanos::MAX);
        if held_back {
            let length = turns.due().saturating_sub(self.turn.began);
            let (from, to) = (part(length, READS_FROM), part(length, READS_TO));
            let each = (to - from) / self.warming.len().max(1) as Nanos;
            self.wakes_at = self.turn.began.saturating_add(from + (each + 1) * allowed as Nanos);
        } else if waits && !self.was_used() {
            self.wakes_at = self.idle_end(turns);
        }
    }

    /// Returns when the worker has something to do for its groups that no arrival tells of.
    pub(crate) fn wakes_at(&self, turns: &Turns) -> Nanos {
        turns.due().min(self.wakes_at)
    }

    /// Counts requests of a client for its priority.
    pub(crate) fn count(&self, turns: &Turns, client: ClientId, messages: u64, bytes: u64) {
        turns.lock().schedule.count(client, messages, bytes);
    }

    /// Returns the number of zones of a pool: two for each lane of the largest group, of which one is used, and the
    /// other waits for its last word.
    pub(crate) fn zones(turns: &Turns) -> usize {
        (3 * turns.settings.size).min(MAX_ZONES)
    }
}

/// The server's end of a lane whose leases end, beside the lane itself.
#[derive(Debug)]
pub(crate) struct LeasedLane<F: Fabric> {
    pub(crate) member: Member,
    /// The client's ring of requests.
    pub(crate) staged: RegionKey,
    /// The pool's place among those of the worker.
    pub(crate) pool: usize,
    /// Requests that were READ, and how many of their bytes were executed.
    pub(crate) read: Option<(Buffer<F::Memory>, usize)>,
    /// The messages and lines that the schedule has counted.
    pub(crate) counted: (u64, u32),
}

impl<F: Fabric> LeasedLane<F> {
    pub(crate) fn new(staged: RegionKey, pool: usize) -> Self {
        LeasedLane { member: Member::new(), staged, pool, read: None, counted: (0, 0) }
    }
}
