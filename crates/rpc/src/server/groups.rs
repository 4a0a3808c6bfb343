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

/// Counters of a worker's leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) leases: u64,
    /// READs of announced requests.
    pub(crate) reads: u64,
    /// Context switches.
    pub(crate) switches: u64,
    /// Messages that only told a client of the end of its lease.
    pub(crate) told_alone: u64,
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
}

impl Turns {
    pub(crate) fn new(settings: Settings) -> Self {
        let (schedule, turn) = (Schedule::new(settings), Arc::default());
        Turns {
            number: AtomicU64::new(0),
            due: AtomicU64::new(Nanos::MAX),
            settings,
            state: Mutex::new(State { schedule, turn, lanes: BTreeMap::new() }),
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
    pub(crate) counts: Counts,
    /// Lanes whose clients have not been told of the end of their lease, for want of room.
    pub(crate) untold: Vec<u16>,
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
            counts: Counts::default(),
            untold: Vec::new(),
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
        let turn = Arc::clone(&turns.lock().turn);
        let list = |clients: &[ClientId]| -> Vec<u16> {
            clients.iter().filter_map(|client| self.lanes.get(client)).flatten().copied().collect()
        };
        let (running, warming) = (list(&turn.running), list(&turn.warming));
        self.counts.switches += u64::from(turn.began != self.turn.began);
        let before = std::mem::replace(&mut self.running, running);
        (self.warming, self.turn) = (warming, turn);
        before.into_iter().filter(|lane| !self.running.contains(lane)).collect()
    }

    /// Records that a lane of the running group has something to do.
    pub(crate) fn is_used(&self) {
        self.turn.is_used.store(true, Ordering::Relaxed);
    }

    /// Ends the slice if it is due. With `next_waits`, requests of the next group wait: a slice that nobody has used
    /// ends after an eighth of the default length.
    pub(crate) fn end_slice(&self, turns: &Turns, now: Nanos, next_waits: bool) {
        let is_idle = next_waits
            && !self.turn.is_used.load(Ordering::Relaxed)
            && now >= self.turn.began.saturating_add(turns.settings.slice / 8);
        if now >= turns.due() || is_idle {
            turns.switch(now, is_idle.then_some(&*self.turn));
        }
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
