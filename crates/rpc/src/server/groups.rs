//! Lanes whose leases end: the pools and groups of a worker (ScaleRPC sections 3.2 and 3.3).
//! `server/worker/grouped.rs` drives them, `server/turns.rs` has the schedule.

use super::lines::{ControlLine, ControlLines};
use super::open_lanes::Connection;
use super::turns::{GroupCounters, Turn, Turns};
use crate::grouped::Word;
use crate::grouped::member::Member;
use crate::grouped::schedule::ClientId;
use crate::grouped::sorted::SortedMap;
use crate::grouped::zones::{MAX_ZONES, Zones};
use crate::limits::RING_BYTES;
use crate::path::half::staged::WORD_AT;
use crate::tune::grouping::EARLY;
use dunlin_fabric::{Arena, Buffer, Fabric, Nanos, Region, RegionKey};
use std::sync::Arc;

/// Bytes of a zone, and of the ring of a client under leases: the smallest ring, so that a pool stays in the cache.
pub(crate) const ZONE_BYTES: u32 = *RING_BYTES.start();
const _: () =
    assert!(ZONE_BYTES as usize >= 2 * crate::path::MAX_MESSAGE, "a zone holds two of the longest messages");
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
    /// Since when lanes have found no free zone.
    pub(crate) short_since: Option<Nanos>,
}

/// The lanes of a worker whose leases end.
#[derive(Debug)]
pub(crate) struct Groups<F: Fabric> {
    pub(crate) pools: Vec<Pool<F>>,
    pub(crate) lines: ControlLines<F>,
    /// Memory into which announced requests are READ.
    pub(crate) arena: Arena<F::Memory>,
    /// The turn that the worker follows.
    turn: Arc<Turn>,
    /// The lanes of each client.
    lanes: SortedMap<(ClientId, u16), ()>,
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
    pub(crate) unreported: Vec<u16>,
    /// The worker took requests of the running group in its last round.
    has_taken: bool,
    /// Since when the worker has had no request of the running group.
    idle_since: Nanos,
    /// The worker has taken requests in this slice, so the next one ends a pause.
    took_before: bool,
    /// The worker is one of those that have requests.
    is_in_use: bool,
    /// The worker has had a request of the running group since the last change of the groups.
    uses_turn: bool,
    /// Requests of the next group wait.
    next_waits: bool,
    /// When the worker has something to do that no arrival tells of, before the slice ends.
    wakes_at: Nanos,
    /// When the first part of the slice ends; `None` if the slice does not end.
    early_until: Option<Nanos>,
}

impl<F: Fabric> Groups<F> {
    pub(crate) fn new(arena: Arena<F::Memory>) -> Self {
        Groups {
            pools: Vec::new(),
            lines: ControlLines::new(),
            arena,
            turn: Arc::default(),
            lanes: SortedMap::default(),
            running: Vec::new(),
            warming: Vec::new(),
            awaited: Vec::new(),
            counts: GroupCounters::default(),
            published: GroupCounters::default(),
            unreported: Vec::new(),
            has_taken: false,
            idle_since: 0,
            took_before: false,
            is_in_use: false,
            uses_turn: false,
            next_waits: false,
            wakes_at: Nanos::MAX,
            early_until: None,
        }
    }

    /// Adds a lane of a client.
    pub(crate) fn join(&mut self, turns: &Turns, client: ClientId, lane: u16) {
        self.lanes.insert((client, lane), ());
        turns.join(client);
    }

    /// Removes a lane of a client.
    pub(crate) fn leave(&mut self, turns: &Turns, client: ClientId, lane: u16) {
        self.lanes.remove((client, lane));
        if self.lanes.is_empty() {
            self.is_not_used(turns);
            tracing::debug!(target: "dunlin::server", counts = ?self.counts, "the last lane whose leases end is gone");
        }
        for list in [&mut self.running, &mut self.warming, &mut self.unreported] {
            list.retain(|other| *other != lane);
        }
        self.awaited.retain(|(other, _)| *other != lane);
        turns.leave(client);
    }

    /// Returns whether the groups have changed since the worker looked.
    pub(crate) fn is_behind(&self, turns: &Turns) -> bool {
        turns.are_past(&self.turn)
    }

    /// Follows the last turn. Returns the lanes that are not served any more.
    pub(crate) fn follow(&mut self, turns: &Turns, now: Nanos) -> Vec<u16> {
        let (turn, due) = turns.last(self.counts.since(self.published));
        self.published = self.counts;
        self.early_until = (due != Nanos::MAX).then(|| turn.began + due.saturating_sub(turn.began) / EARLY);
        let list = |clients: &[ClientId]| -> Vec<u16> {
            let lanes = |client: &ClientId| {
                let client = *client;
                let own = move |((other, _), ()): &((ClientId, u16), &())| *other == client;
                self.lanes.from((client, 0)).take_while(own)
            };
            clients.iter().flat_map(lanes).map(|((_, lane), ())| lane).collect()
        };
        let (running, warming) = (list(&turn.running), list(&turn.warming));
        self.counts.switches += u64::from(turn.began != self.turn.began);
        let before = std::mem::replace(&mut self.running, running);
        if turn.began != self.turn.began || self.has_taken {
            self.idle_since = now;
        }
        self.took_before &= turn.began == self.turn.began;
        self.uses_turn = false;
        (self.warming, self.turn) = (warming, turn);
        (self.has_taken, self.next_waits, self.wakes_at) = (false, false, Nanos::MAX);
        if self.early_until.is_none() {
            self.is_not_used(turns);
        }
        before.into_iter().filter(|lane| !self.running.contains(lane)).collect()
    }

    /// Ends the slice if it is due. While requests of the next group wait, a slice ends earlier if no worker has had a
    /// request of the group for the idle time, unless other servers share the schedule.
    pub(crate) fn end_slice(&mut self, turns: &Turns, now: Nanos) {
        if std::mem::take(&mut self.has_taken) {
            // Handlers have taken until now.
            self.idle_since = now;
        } else if now >= self.idle_from(turns) {
            self.is_not_used(turns);
        }
        let is_idle = self.next_waits && !turns.is_common() && turns.is_idle(&self.turn, now);
        if now >= turns.due() || is_idle {
            turns.switch(now, is_idle.then_some(&*self.turn));
        }
    }

    /// Records that the worker is about to take requests of the running group.
    pub(crate) fn is_used(&mut self, turns: &Turns) {
        if !self.uses_turn {
            self.uses_turn = true;
            self.turn.is_used();
        }
        if !self.is_in_use && self.early_until.is_some() {
            self.is_in_use = true;
            turns.count_use(true);
        }
    }

    /// Records that the worker has had no requests for the idle time.
    fn is_not_used(&mut self, turns: &Turns) {
        if std::mem::take(&mut self.is_in_use) {
            turns.count_use(false);
        }
    }

    /// Returns when the worker has had no request for the idle time.
    fn idle_from(&self, turns: &Turns) -> Nanos {
        self.idle_since.saturating_add(turns.idle_time(&self.turn))
    }

    /// Returns from when on READs of the next group delay nobody: near the end of the idle time.
    fn quiet_from(&self, turns: &Turns) -> Nanos {
        self.idle_since.saturating_add(turns.idle_time(&self.turn) / 8 * 7)
    }

    /// Counts requests of the running group, which the worker took in a round that began at `now`.
    pub(crate) fn took(&mut self, turns: &Turns, requests: usize, now: Nanos) {
        let Some(early_until) = self.early_until else { return };
        if std::mem::replace(&mut self.took_before, true) {
            turns.paused(now.saturating_sub(self.idle_since));
        }
        self.has_taken = true;
        let part = if now < early_until { &mut self.counts.early } else { &mut self.counts.later };
        *part += requests as u64;
    }

    /// Returns whether the worker looks at the next group, or for the end of the requests of the running one.
    pub(crate) fn looks_ahead(&self) -> bool {
        !self.warming.is_empty() || self.is_in_use
    }

    /// Returns for how many lanes of the next group announced requests may be READ, in the order of
    /// [`warming`](Groups::warming).
    ///
    /// The first answers of a group and the READs of the next one fetch the contexts of their connections into the
    /// NIC. READs at the beginning of a slice would delay those answers, and many READs at once would displace the
    /// contexts of the running group. They are therefore spread over the part of the slice from [`READS_FROM`] to
    /// [`READS_TO`], unless no worker has had a request in it, or this one has had none for most of the idle time.
    pub(crate) fn may_read(&self, turns: &Turns, now: Nanos) -> usize {
        let all = self.warming.len();
        let length = turns.due().saturating_sub(self.turn.began);
        let is_quiet = !self.turn.was_used() || !self.has_taken && now >= self.quiet_from(turns);
        if is_quiet || length == 0 {
            return all;
        }
        let (from, to) = (part(length, READS_FROM), part(length, READS_TO));
        let Some(since) = now.saturating_sub(self.turn.began).checked_sub(from) else { return 0 };
        let share = u128::from(since) * all as u128 / u128::from((to - from).max(1));
        (share as usize + 1).min(all)
    }

    /// Takes note of the requests of the next group: whether any wait, and whether READs are held back, of which
    /// `allowed` may have been posted.
    pub(crate) fn next_group(
        &mut self,
        turns: &Turns,
        now: Nanos,
        waits: bool,
        held_back: bool,
        allowed: usize,
    ) {
        (self.next_waits, self.wakes_at) = (waits, Nanos::MAX);
        if (waits || self.is_in_use) && !turns.is_common() {
            let (idle_from, quiet_from) = (self.idle_from(turns), self.quiet_from(turns));
            let times = [turns.unused_end(&self.turn), quiet_from, idle_from];
            let next = times.into_iter().filter(|time| *time > now).min();
            // Behind the idle time the worker looks whether others still have requests.
            self.wakes_at = next.unwrap_or_else(|| now.saturating_add(turns.idle_time(&self.turn)));
        }
        if held_back {
            let length = turns.due().saturating_sub(self.turn.began);
            let (from, to) = (part(length, READS_FROM), part(length, READS_TO));
            let each = (to - from) / self.warming.len().max(1) as Nanos;
            let read_at = self.turn.began.saturating_add(from + (each + 1) * allowed as Nanos);
            self.wakes_at = self.wakes_at.min(read_at);
        }
    }

    /// Returns when the worker has something to do for its groups that no arrival tells of.
    pub(crate) fn wakes_at(&self, turns: &Turns) -> Nanos {
        turns.due().min(self.wakes_at)
    }

    /// Counts requests of a client for its priority.
    pub(crate) fn count(&self, turns: &Turns, client: ClientId, messages: u64, bytes: u64) {
        turns.count(client, messages, bytes);
    }

    /// Returns the number of zones of a pool: two for each lane of the largest group, of which one is used, and the
    /// other waits for its last word.
    pub(crate) fn zones(turns: &Turns) -> usize {
        (3 * turns.size()).min(MAX_ZONES)
    }
}

/// A worker's memory for a lane whose leases end.
pub(crate) struct GroupMemory<F: Fabric> {
    /// The place of the pool among those of the worker.
    pub(crate) place: u16,
    pub(crate) pool: Region<F::Memory>,
    /// The key under which the pool is granted.
    pub(crate) key: RegionKey,
    pub(crate) line: ControlLine<F>,
}

/// The server's end of a lane whose leases end, beside the lane itself.
#[derive(Debug)]
pub(crate) struct LeasedLane<F: Fabric> {
    pub(crate) member: Member,
    /// The client's inbound region.
    pub(crate) client: RegionKey,
    /// The client's ring of requests.
    pub(crate) staged: RegionKey,
    /// The keys of the pool and of the control lines.
    pub(crate) granted: [RegionKey; 2],
    /// The pool's place among those of the worker.
    pool: u16,
    /// Offset of the line that the client writes, in the region of control lines.
    pub(crate) line: u16,
    /// How many bytes of `read` were executed.
    pub(crate) executed: u16,
    /// Requests that were READ.
    pub(crate) read: Option<Buffer<F::Memory>>,
    /// The messages and lines that the schedule has counted; both wrap.
    pub(crate) counted: (u32, u32),
}

const _: () = assert!(ZONE_BYTES <= 1 << 15, "places in requests that were READ fit two bytes");

impl<F: Fabric> LeasedLane<F> {
    pub(crate) fn new(
        (client, staged): (RegionKey, RegionKey),
        granted: [RegionKey; 2],
        pool: u16,
        line: u16,
    ) -> Self {
        let (member, executed, counted) = (Member::new(), 0, (0, 0));
        LeasedLane { member, client, staged, granted, pool, line, executed, read: None, counted }
    }

    /// Returns the client's word, which lies in the region of control lines.
    pub(crate) fn word(&self, lines: &Region<F::Memory>) -> Word {
        Word::from_wire(lines.load(usize::from(self.line) + WORD_AT))
    }

    /// Returns the pool's place among those of the worker.
    pub(crate) const fn pool(&self) -> usize {
        self.pool as usize
    }
}

/// Returns the client in whose group a lane is served: that which its identity names if several servers share a schedule.
pub(crate) fn client_of(connection: &Connection, is_deployed: bool) -> ClientId {
    if is_deployed { connection.client } else { connection.session }
}
