//! The schedule of a server, whose groups all its workers serve at the same time (ScaleRPC sections 3.2 and 4.2).

use crate::grouped::common_clock::Estimate;
use crate::grouped::cycle::{Count, Cycle, CycleGroup, MAX_CLIENTS, MAX_COUNTS};
use crate::grouped::schedule::{ClientId, Schedule, Settings};
use crate::tune::grouping::{GroupDefaults, SliceCounts, adjusted};
use dunlin_fabric::Nanos;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    /// Requests in the first eighth of slices, and in the rest: fewer than a seventh tell of time that switches lose.
    pub early: u64,
    /// Requests in the other seven eighths of slices.
    pub later: u64,
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
            early: self.early + other.early,
            later: self.later + other.later,
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
            early: self.early - earlier.early,
            later: self.later - earlier.later,
        }
    }
}

/// The groups that are served now, for all workers.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Grows with each change.
    number: u64,
    /// The clients that are served, in order.
    pub(super) running: Vec<ClientId>,
    /// The clients that are served next, in order.
    pub(super) warming: Vec<ClientId>,
    pub(super) began: Nanos,
    /// A worker has had a request of the group.
    is_used: AtomicBool,
}

impl Turn {
    /// Records that a worker has had a request of the group.
    pub(super) fn is_used(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Returns whether a worker has had a request of the group.
    pub(super) fn was_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }
}

/// The schedule of a server, which all its workers follow: a client of several workers is served by all of them at
/// the same time, and the NIC sees one group.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The number of the last turn.
    number: AtomicU64,
    /// When the running slice ends.
    due: AtomicU64,
    /// The number of workers that have requests, or had any until shortly before ([`idle_time`](Turns::idle_time)).
    /// A worker that ends while it is one of them leaves slices their full length.
    in_use: AtomicUsize,
    /// Learned from pauses between requests ([`idle_time`](Turns::idle_time)).
    patience: AtomicU64,
    settings: Settings,
    /// Nobody has set the slice, so it follows the counts.
    adjusts: bool,
    /// The groups are those of a cycle that several servers share.
    is_common: AtomicBool,
    state: Mutex<State>,
}

/// The slice that is served now: [`Server::running_slice`](crate::Server::running_slice).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningSlice {
    /// The number of the slice since the server's start; changes of the groups count too.
    pub number: u64,
    /// The place of the group in its cycle.
    pub group: usize,
    /// When the slice began, on the server's clock in nanoseconds.
    pub began: Nanos,
    /// The groups are those of a cycle that several servers share.
    pub is_common: bool,
}

/// The place of a server in the cycle that several servers share.
#[derive(Debug)]
struct InCycle {
    estimate: Estimate,
    cycle: Arc<Cycle>,
    /// The cycle that follows.
    next: Option<Arc<Cycle>>,
    /// The clients of this server, by group.
    groups: Vec<Vec<ClientId>>,
    running: usize,
    /// When the running slice ends, in common time.
    ends: Nanos,
}

/// The time in which clients that have their answers call again at the earliest, in nanoseconds.
const ROUND_TRIP: Nanos = 10_000;
/// Slices of which one waits for further requests as long as a slice may wait. It sees pauses that the others end.
const TRIES: u64 = 16;

/// Returns the longest time for which a slice waits for further requests.
const fn most_patience(slice: Nanos) -> Nanos {
    slice / 4 * 3
}

/// A slice begins earlier by up to this time, in nanoseconds, so that rounding does not begin the same one twice.
const ROUNDING: Nanos = 100;

impl InCycle {
    fn new(estimate: Estimate, cycle: Arc<Cycle>, clients: impl Iterator<Item = ClientId>) -> Self {
        let mut groups = vec![Vec::new(); cycle.groups().len()];
        clients.for_each(|client| groups[cycle.group_of(client)].push(client));
        InCycle { estimate, cycle, next: None, groups, running: 0, ends: 0 }
    }

    /// Moves on to the slice of a time on the own clock.
    fn advance(&mut self, now: Nanos, clients: impl Iterator<Item = ClientId>) {
        let common = self.estimate.common(now).wrapping_add(ROUNDING);
        let is_over = |next: &mut Arc<Cycle>| common.wrapping_sub(next.from) as i64 >= 0;
        if let Some(cycle) = self.next.take_if(is_over) {
            *self = InCycle::new(self.estimate, cycle, clients);
        }
        (self.running, self.ends) = self.cycle.at(common);
    }

    /// Returns when the running slice ends, on the own clock.
    fn due(&self) -> Nanos {
        let of_next = self.next.as_ref().map(|next| next.from);
        let ends = match of_next {
            Some(from) if self.groups.len() == 1 || self.ends.wrapping_sub(from) as i64 > 0 => from,
            None if self.groups.len() == 1 => return Nanos::MAX,
            _ => self.ends,
        };
        self.estimate.own(ends)
    }

    fn clients(&self, ahead: usize) -> &[ClientId] {
        match self.groups.len() {
            1 if ahead > 0 => &[],
            groups => &self.groups[(self.running + ahead) % groups],
        }
    }
}

#[derive(Debug)]
struct State {
    schedule: Schedule,
    common: Option<InCycle>,
    /// Clients of other servers that share the schedule, and when they were last heard of.
    others: BTreeMap<ClientId, Nanos>,
    /// The client whose requests were told to the time server last.
    told: ClientId,
    turn: Arc<Turn>,
    /// The number of lanes of all clients, on all workers.
    by_turns: usize,
    /// The number of lanes that take no turns, on all workers.
    lasting: usize,
    /// The counts of all workers until they last followed a turn.
    counts: GroupCounters,
    /// The counts when the slice was last adjusted.
    adjusted_at: GroupCounters,
}

impl State {
    /// Makes the groups smaller by as many clients as have the lanes that take no turns.
    fn make_room(&mut self) {
        let clients = (self.lasting * self.schedule.own_count()).div_ceil(self.by_turns.max(1));
        self.schedule.make_room(clients);
    }
}

impl Turns {
    /// Makes the schedule of a server without clients. If it `adjusts`, the slice follows the counts.
    pub(crate) fn new(settings: Settings, adjusts: bool) -> Self {
        let (schedule, turn) = (Schedule::new(settings), Arc::default());
        Turns {
            number: AtomicU64::new(0),
            due: AtomicU64::new(Nanos::MAX),
            in_use: AtomicUsize::new(0),
            patience: AtomicU64::new(most_patience(settings.slice)),
            settings,
            adjusts,
            is_common: AtomicBool::new(false),
            state: Mutex::new(State {
                schedule,
                common: None,
                others: BTreeMap::new(),
                told: 0,
                turn,
                by_turns: 0,
                lasting: 0,
                counts: GroupCounters::default(),
                adjusted_at: GroupCounters::default(),
            }),
        }
    }

    /// Returns the default slice of the server's start in nanoseconds.
    pub(crate) fn default_slice(&self) -> Nanos {
        self.settings.slice
    }

    /// Returns the size and the slice in effect.
    pub(crate) fn defaults(&self) -> GroupDefaults {
        let slice = Duration::from_nanos(self.lock().schedule.slice());
        GroupDefaults { size: self.settings.size as u16, slice }
    }

    /// Adjusts the slice to the counts, if there are enough.
    fn adjust(&self, state: &mut State) {
        let since = state.counts.since(state.adjusted_at);
        let counts = SliceCounts { slices: since.switches, early: since.early, later: since.later };
        if counts.are_enough() {
            state.adjusted_at = state.counts;
            let slice = adjusted(self.settings.slice, state.schedule.slice(), &counts);
            state.schedule.set_slice(slice);
        }
    }

    /// Returns the time without a request after which the group of a turn counts as idle.
    ///
    /// A pause is as long as clients need to call again, and at the beginning of a slice as long as the NIC needs for the
    /// contexts of their connections. Twice the longest pause that a request has ended is therefore waited for; less
    /// after each slice that waited for nothing. Where pauses became longer than the time that slices wait, one slice in
    /// [`TRIES`] still sees them.
    pub(super) fn idle_time(&self, turn: &Turn) -> Nanos {
        let most = most_patience(self.settings.slice);
        let time =
            if turn.number.is_multiple_of(TRIES) { most } else { self.patience.load(Ordering::Relaxed) };
        time.max(ROUND_TRIP)
    }

    /// Takes note of a pause between two requests of a slice.
    pub(super) fn paused(&self, pause: Nanos) {
        let wanted = (2 * pause).min(most_patience(self.settings.slice));
        if wanted > self.patience.load(Ordering::Relaxed) {
            self.patience.store(wanted, Ordering::Relaxed);
        }
    }

    /// Records that a worker begins to have requests, or that it has had none for the idle time.
    pub(super) fn count_use(&self, begins: bool) {
        if begins {
            self.in_use.fetch_add(1, Ordering::Relaxed);
        } else {
            self.in_use.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns whether the slice of a turn may end at this time because no worker has requests, or has had any for an
    /// eighth of the default slice.
    pub(super) fn is_idle(&self, turn: &Turn, now: Nanos) -> bool {
        if turn.was_used() { self.in_use.load(Ordering::Relaxed) == 0 } else { now >= self.unused_end(turn) }
    }

    /// Returns when a slice ends that nobody uses.
    pub(super) fn unused_end(&self, turn: &Turn) -> Nanos {
        turn.began.saturating_add(self.settings.slice / 8)
    }

    /// Returns the default size of groups.
    pub(crate) fn size(&self) -> usize {
        self.settings.size
    }

    /// Returns whether the groups have changed since a turn.
    pub(super) fn are_past(&self, turn: &Turn) -> bool {
        self.number.load(Ordering::Acquire) != turn.number
    }

    /// Returns the last turn, and when its slice ends. Adds to the counts of all workers.
    pub(super) fn last(&self, counts: GroupCounters) -> (Arc<Turn>, Nanos) {
        let mut state = self.lock();
        state.counts = state.counts.plus(counts);
        (Arc::clone(&state.turn), self.due())
    }

    /// Counts requests of a client for its priority.
    pub(super) fn count(&self, client: ClientId, messages: u64, bytes: u64) {
        self.lock().schedule.count(client, messages, bytes);
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
        let (running, warming, due) = match &state.common {
            Some(common) => (common.clients(0), common.clients(1), common.due()),
            None => (state.schedule.running(), state.schedule.warming(), state.schedule.due()),
        };
        state.turn = Arc::new(Turn {
            number: state.turn.number + 1,
            running: sorted(running),
            warming: sorted(warming),
            began: now.unwrap_or(state.turn.began),
            is_used: AtomicBool::new(now.is_none() && state.turn.was_used()),
        });
        self.due.store(due, Ordering::Relaxed);
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
    pub(super) fn join(&self, client: ClientId) {
        let mut state = self.lock();
        state.by_turns += 1;
        if state.schedule.add_lane(client)
            && let Some(common) = &mut state.common
        {
            let group = common.cycle.group_of(client);
            common.groups[group].push(client);
        }
        state.make_room();
        self.change(&mut state, None);
    }

    /// Counts a lane that takes no turns, when it opens or closes. Groups make room for it.
    pub(crate) fn count_lasting(&self, opens: bool) {
        let mut state = self.lock();
        state.lasting = if opens { state.lasting + 1 } else { state.lasting.saturating_sub(1) };
        if state.schedule.own_count() > 0 {
            state.make_room();
            self.change(&mut state, None);
        }
    }

    /// Removes a lane of a client.
    pub(super) fn leave(&self, client: ClientId) {
        let mut state = self.lock();
        let Some(is_gone) = state.schedule.remove_lane(client) else { return };
        state.by_turns = state.by_turns.saturating_sub(1);
        state.make_room();
        if is_gone {
            if let Some(common) = &mut state.common {
                common.groups.iter_mut().for_each(|group| group.retain(|other| *other != client));
            }
            if !state.others.contains_key(&client) {
                state.schedule.leave(client);
            }
            self.change(&mut state, None);
        }
    }

    /// Ends the slice if it is due, or if it is the slice of `idle` and no worker has requests.
    /// Another worker that holds the lock does the same.
    pub(super) fn switch(&self, now: Nanos, idle: Option<&Turn>) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        if state.common.is_some() {
            return now >= self.due() && self.advance(&mut state, now);
        }
        let is_idle = idle.is_some_and(|turn| turn.number == state.turn.number && self.is_idle(turn, now));
        let ends = now >= state.schedule.due() || is_idle;
        if is_idle {
            let patience = self.patience.load(Ordering::Relaxed);
            self.patience.store((patience / 4 * 3).max(ROUND_TRIP), Ordering::Relaxed);
        }
        if ends {
            if self.adjusts {
                self.adjust(&mut state);
            }
            state.schedule.switch(now);
            self.change(&mut state, Some(now));
        }
        ends
    }

    /// Begins the slice of the common cycle at this time.
    fn advance(&self, state: &mut State, now: Nanos) -> bool {
        let State { common: Some(common), schedule, .. } = state else { return false };
        common.advance(now, schedule.own());
        self.change(state, Some(now));
        true
    }

    /// Returns the slice that is served now.
    pub(crate) fn running_slice(&self) -> RunningSlice {
        let state = self.lock();
        let group = state.common.as_ref().map_or(0, |common| common.running);
        let Turn { number, began, .. } = *state.turn;
        RunningSlice { number, group, began, is_common: state.common.is_some() }
    }

    pub(super) fn is_common(&self) -> bool {
        self.is_common.load(Ordering::Relaxed)
    }

    /// Follows a cycle that several servers share, with an estimate of their common clock. Never before the cycle begins,
    /// unless it is the first one.
    pub(crate) fn follow(&self, estimate: Estimate, cycle: &Arc<Cycle>, now: Nanos) {
        let mut state = self.lock();
        let Some(common) = &mut state.common else {
            let common = InCycle::new(estimate, Arc::clone(cycle), state.schedule.own());
            state.common = Some(common);
            self.is_common.store(true, Ordering::Relaxed);
            self.advance(&mut state, now);
            return;
        };
        common.estimate = estimate;
        common.next = (common.cycle.number != cycle.number).then(|| Arc::clone(cycle));
        self.due.store(common.due(), Ordering::Relaxed);
    }

    /// Returns the requests of this server's clients that the time server has not heard of. Clients without requests are
    /// among them, so that it knows them.
    pub(crate) fn own_counts(&self) -> Vec<Count> {
        let mut state = self.lock();
        let State { schedule, told, .. } = &mut *state;
        let first = *told;
        let behind = first.checked_add(1).into_iter().flat_map(|from| schedule.own_from(from));
        let before = schedule.own().take_while(|client| *client <= first);
        let clients: Vec<ClientId> = behind.chain(before).take(MAX_COUNTS).collect();
        *told = clients.last().copied().unwrap_or(0);
        let count = |client| {
            let (calls, bytes) = schedule.take_counts(client);
            Count { client, calls: calls.min(u32::MAX.into()) as u32, bytes }
        };
        clients.into_iter().map(count).collect()
    }

    /// Counts the requests of another server's clients.
    pub(crate) fn count_others(&self, counts: &[Count], now: Nanos) {
        if counts.is_empty() {
            return;
        }
        let mut state = self.lock();
        for &Count { client, calls, bytes } in counts {
            if state.others.len() < MAX_CLIENTS || state.others.contains_key(&client) {
                state.others.insert(client, now);
                state.schedule.join(client);
                state.schedule.count(client, calls.into(), bytes);
            }
        }
    }

    /// Makes the groups of a cycle, from the counts of all servers in the time that has `passed`. Clients of others of
    /// which nobody has heard for `forgotten` nanoseconds are left out. `most` says how many clients a cycle of so many
    /// groups may name.
    pub(crate) fn plan(
        &self,
        passed: Nanos,
        now: Nanos,
        forgotten: Nanos,
        most: impl FnOnce(usize) -> usize,
    ) -> Vec<CycleGroup> {
        let mut state = self.lock();
        let State { schedule, others, .. } = &mut *state;
        others.retain(|client, heard| {
            let stays = now.saturating_sub(*heard) < forgotten;
            if !stays && !schedule.has_lanes(*client) {
                schedule.leave(*client);
            }
            stays
        });
        let mut groups = schedule.plan(passed.max(1));
        let mut left = most(groups.len());
        for group in &mut groups {
            group.clients.sort_unstable();
            group.clients.truncate(left);
            left -= group.clients.len();
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grouped::common_clock::{ClockFilter, Exchange};

    const SLICE: Nanos = 100_000;
    const SECOND: Nanos = 1_000_000_000;

    /// Returns the estimate of a clock that is ahead by two seconds and drifts by 200 millionths.
    fn estimate() -> Estimate {
        let mut filter = ClockFilter::new();
        let common = |own: Nanos| own + 2 * SECOND + own / 5_000;
        for number in 0..40 {
            let asked = SECOND + number * SECOND / 10;
            let (taken, answered, heard) = (common(asked + 1_000), common(asked + 2_000), asked + 3_000);
            filter.on_exchange(Exchange { asked, taken, answered, heard });
        }
        filter.estimate()
    }

    fn cycle(number: u64, from: Nanos, groups: &[&[ClientId]]) -> Arc<Cycle> {
        let group = |clients: &&[ClientId]| CycleGroup { slice: SLICE, clients: clients.to_vec() };
        Arc::new(Cycle::new(number, from, groups.iter().map(group).collect()).unwrap())
    }

    /// Returns the groups of the next slices, each with its time, as a worker that looks in time sees them.
    fn slices(turns: &Turns, now: &mut Nanos, count: usize) -> Vec<(Vec<ClientId>, Nanos)> {
        let next = |_| {
            let began = *now;
            let running = turns.lock().turn.running.clone();
            *now = turns.due();
            assert!(turns.switch(*now, None));
            (running, *now - began)
        };
        (0..count).map(next).collect()
    }

    /// Each slice begins once and lasts as long as the common clock says, which is faster than the own one here.
    #[test]
    fn slices_follow_the_common_time() {
        let (estimate, mut now) = (estimate(), 6 * SECOND);
        let turns = Turns::new(Settings::PAPER, false);
        [1, 2, 3].into_iter().for_each(|client| turns.join(client));
        let from = estimate.common(now);
        turns.follow(estimate, &cycle(1, from, &[&[1], &[2, 9], &[3]]), now);
        assert!(turns.is_common() && !turns.switch(now + 1, None), "nothing is due yet");
        for (at, (running, time)) in (0..).zip(slices(&turns, &mut now, 3_000)) {
            assert_eq!(running, [1 + at % 3]);
            let early = if at == 0 { 2 * ROUNDING } else { 2 };
            assert!((SLICE - 20 - early..=SLICE - 20 + 2).contains(&time), "slice {at} takes {time} ns");
        }
        // A client outside the cycle has the same group on all servers. A client that leaves has no group.
        turns.join(77);
        turns.leave(2);
        let state = turns.lock();
        let common = state.common.as_ref().unwrap();
        assert!(
            common.groups[common.cycle.group_of(77)].contains(&77)
                && common.groups[1].iter().all(|of| *of != 2)
        );
    }

    /// The next cycle begins at its time, also within a slice or while a lone group is served.
    #[test]
    fn the_next_cycle_begins_at_its_time() {
        for first in [&[&[1, 2][..]][..], &[&[1], &[2]]] {
            let (estimate, mut now) = (estimate(), 6 * SECOND);
            let turns = Turns::new(Settings::PAPER, false);
            [1, 2].into_iter().for_each(|client| turns.join(client));
            let from = estimate.common(now);
            turns.follow(estimate, &cycle(1, from, first), now);
            assert_eq!(turns.due() == Nanos::MAX, first.len() == 1);
            let begins = from + 10 * SLICE + SLICE / 2;
            turns.follow(estimate, &cycle(2, begins, &[&[2], &[1]]), now);
            while turns.lock().common.as_ref().unwrap().cycle.number == 1 {
                slices(&turns, &mut now, 1);
            }
            assert!(estimate.common(now).abs_diff(begins) <= ROUNDING);
            let next: Vec<_> = slices(&turns, &mut now, 3).into_iter().map(|(running, _)| running).collect();
            assert_eq!(next, [[2], [1], [2]]);
        }
    }

    /// A slice that nobody has set follows the time that switches lose; one that was set stays.
    #[test]
    fn a_slice_that_nobody_has_set_follows_the_counts() {
        for (adjusts, slices) in [(true, [125_000, 156_250, 117_188, 100_000]), (false, [SLICE; 4])] {
            let turns = Turns::new(Settings { size: 1, ..Settings::PAPER }, adjusts);
            [1, 2].into_iter().for_each(|client| turns.join(client));
            let mut now = 0;
            // The first eighth of slices is lost; then nothing is.
            let counts = [(0, 7_000), (0, 7_000), (1_000, 7_000), (1_000, 7_000)];
            for ((early, later), expected) in counts.into_iter().zip(slices) {
                {
                    let counts = &mut turns.lock().counts;
                    (counts.switches, counts.early, counts.later) =
                        (counts.switches + 16, counts.early + early, counts.later + later);
                }
                now = turns.due().max(now + 1);
                assert!(turns.switch(now, None));
                assert_eq!(turns.defaults().slice, Duration::from_nanos(expected));
                assert_eq!(turns.due() - now, expected, "the next slice has that length");
            }
            assert_eq!(turns.default_slice(), SLICE);
        }
    }

    /// Followers tell of all clients by turns, and the time server forgets those of which nobody tells.
    #[test]
    fn the_time_server_hears_of_all_clients() {
        let [leader, follower] = [0, 1].map(|_| Turns::new(Settings { size: 600, ..Settings::PAPER }, false));
        (1..=1500).for_each(|client| follower.join(client));
        leader.join(5_000);
        let plan = |now| {
            let groups = leader.plan(SECOND, now, 5 * SECOND, |_| MAX_CLIENTS);
            groups.iter().map(|group| group.clients.len()).sum::<usize>()
        };
        assert_eq!(plan(0), 1);
        leader.count_others(&follower.own_counts(), SECOND);
        assert_eq!(plan(SECOND), 1 + MAX_COUNTS);
        leader.count_others(&follower.own_counts(), 2 * SECOND);
        assert_eq!(plan(2 * SECOND), 1501);
        assert_eq!(plan(9 * SECOND), 1);
        let named = leader.plan(SECOND, 9 * SECOND, SECOND, |_| 0);
        assert!(named.iter().all(|group| group.clients.is_empty()), "no room for names");
    }
}
