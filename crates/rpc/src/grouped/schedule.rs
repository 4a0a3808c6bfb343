//! The clients of a server in groups, one of which is served at a time: ScaleRPC's connection grouping with its
//! priority scheduler (section 3.2), as a pure state machine.
//!
//! The priority of a client is its throughput in its last slice, divided by the mean size of its requests in that
//! slice. Clients of equal priority are served together, and busier groups have fewer members and longer slices. A
//! group is split or merged when its size leaves 1/2 to 3/2 of the default size.
//!
//! | case | the paper | here |
//! |---|---|---|
//! | "the same class of priority" | not defined | three levels: at least four times the median priority, at most a sixteenth of it, and all between |
//! | sizes and slices of busier groups | "fewer", "longer" | half the size and 3/2 of the slice |
//! | sizes and slices of less busy groups | not stated | the default size, which the caches of the NIC allow, and half the slice |
//! | who is together within a level | not stated | busier clients by their priority, the others as they connected: a priority also falls if connections displace each other in the NIC, and such clients must not be put together |
//! | the number of groups of a level | not stated | the one by which their sizes are nearest to the level's |
//! | when clients are grouped again | "dynamically" | at the end of a cycle in which a client had another level than its group, or a group another one than it was made for |
//! | a client that joins when all groups have the default size | the group grows to 3/2 of it | if there are several groups, all clients are grouped again at the end of the cycle |
//! | one group | not stated | its slice never ends |
//! | clients whose connections take no turns | not there | groups are smaller by their number, at least half of the default size |
//! | a client that was not served yet | not stated | the median class |

use super::cycle::CycleGroup;
use super::sorted::SortedMap;
use dunlin_fabric::Nanos;

/// Identifies a client, of which all lanes are in one group: the session of its connection; or where several servers share
/// a schedule, the identity of its hello.
pub(crate) type ClientId = u64;

/// The settings of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The default number of clients in a group; at least 1. The paper uses 40.
    pub(crate) size: usize,
    /// The default slice in nanoseconds; at least 1. The paper uses 100 us.
    pub(crate) slice: Nanos,
    /// Clients are grouped by priority. Without it groups keep their members and slices: the paper's "Static".
    pub(crate) by_priority: bool,
}

impl Settings {
    /// The settings of the paper (section 3.6).
    #[cfg(test)]
    pub(crate) const PAPER: Settings = Settings { size: 40, slice: 100_000, by_priority: true };

    /// Returns the largest legal group.
    const fn most(&self) -> usize {
        let most = self.size * 3 / 2;
        if most == 0 { 1 } else { most }
    }

    /// Returns the smallest legal group.
    const fn least(&self) -> usize {
        self.size.div_ceil(2)
    }
}

/// A class of priorities: their logarithm of base two, in units of 1 / [`OCTAVE`].
type Class = u16;
/// The classes of a factor of two. Whole powers of two would not do: two clients of nearly the same priority could be
/// one class apart, and two that are one class apart could differ by a factor of four.
const OCTAVE: Class = 8;
/// The classes by which busier clients are ahead of the median one: a factor of four.
const AHEAD: Class = 2 * OCTAVE;
/// The classes by which less busy clients are behind it: a factor of 16. Where connections displace each other in the NIC,
/// equal clients differ by a factor of up to seven.
const BEHIND: Class = 4 * OCTAVE;

/// The requests of a client, and its class. Each slice counts half as much as the next one, so that a client that was
/// late for one slice stays in its class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    /// Requests since the last slice that was classified, and their bytes.
    calls: u64,
    bytes: u64,
    past: Past,
    /// [`UNKNOWN`] before the first slice.
    class: Class,
    /// The client's lanes on this server; 0 if the client is known from another one.
    lanes: u16,
}

impl Usage {
    fn class(&self) -> Option<Class> {
        (self.class != UNKNOWN).then_some(self.class)
    }
}

/// The class of a client that was not served yet. Greater than any other, of which 2^16 / [`OCTAVE`] powers of two fit.
const UNKNOWN: Class = Class::MAX;

/// Requests of earlier slices, their bytes, and the time for which the client was served, in nanoseconds: at most those of
/// few default slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Past {
    calls: u32,
    bytes: u32,
    time: u32,
}

impl Past {
    /// Halves all numbers, as often as they need to fit.
    fn half(calls: u64, bytes: u64, time: Nanos) -> Past {
        let shift =
            (1..64).find(|shift| (calls.max(bytes).max(time) >> shift) <= u32::MAX.into()).unwrap_or(1);
        let part = |number: u64| (number >> shift) as u32;
        Past { calls: part(calls), bytes: part(bytes), time: part(time) }
    }
}

/// A slice counts for at most this number of default ones. The slice of a lone group lasts as long as the group is alone,
/// perhaps without a call.
const LONGEST: Nanos = 4;

/// Clients that are served together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    clients: Vec<ClientId>,
    slice: Nanos,
    level: Level,
}

/// How busy the clients of a group are, compared with all clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Less,
    #[default]
    Usual,
    More,
}

impl Level {
    /// Returns the slice of groups of this level.
    fn slice(self, default: Nanos) -> Nanos {
        match self {
            Level::More => default + default / 2,
            Level::Less => (default / 2).max(1),
            Level::Usual => default,
        }
    }

    /// Returns the level of clients of a class, compared with the median one; those that had a level keep it until half
    /// of the distance, as a logarithm, is left.
    fn of(class: Class, median: Class, before: Level) -> Level {
        let apart = |level, distance: Class| if before == level { distance / 2 } else { distance };
        if class >= median.saturating_add(apart(Level::More, AHEAD)) {
            Level::More
        } else if median >= class.saturating_add(apart(Level::Less, BEHIND)) {
            Level::Less
        } else {
            Level::Usual
        }
    }
}

/// The groups of a server.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    settings: Settings,
    usage: SortedMap<ClientId, Usage>,
    /// The number of clients with lanes on this server.
    own: usize,
    /// In the order in which they are served; never empty, and without empty groups unless there is only one.
    groups: Vec<Group>,
    running: usize,
    began: Nanos,
    /// The clients of the slice before, and its length. Workers count their requests when they see the switch, so the
    /// counts are complete one slice later.
    before: Option<(Vec<ClientId>, Nanos)>,
    /// A client has joined although all of several groups had the default size, or the default size has changed.
    has_grown: bool,
    /// The default size without other lanes that the NIC serves.
    whole: usize,
}

impl Schedule {
    pub(crate) fn new(settings: Settings) -> Self {
        let settings = Settings { size: settings.size.max(1), slice: settings.slice.max(1), ..settings };
        let groups = vec![Group { slice: settings.slice, ..Group::default() }];
        Schedule {
            whole: settings.size,
            settings,
            usage: SortedMap::default(),
            own: 0,
            groups,
            running: 0,
            began: 0,
            before: None,
            has_grown: false,
        }
    }

    /// Makes room in the NIC for `others`, clients whose connections take no turns: the default size is smaller by their
    /// number, and at least half of the setting.
    pub(crate) fn make_room(&mut self, others: usize) {
        let size = self.whole.saturating_sub(others).max(self.whole.div_ceil(2));
        self.has_grown |= size != self.settings.size;
        self.settings.size = size;
    }

    /// Returns the default slice.
    pub(crate) fn slice(&self) -> Nanos {
        self.settings.slice
    }

    /// Changes the default slice, and with it the slices of all groups.
    pub(crate) fn set_slice(&mut self, slice: Nanos) {
        self.settings.slice = slice.max(1);
        for group in &mut self.groups {
            group.slice = group.level.slice(self.settings.slice);
        }
    }

    /// Adds a client to the smallest group. A group that is too large then is split at the next switch. No effect on
    /// a client that is there already.
    pub(crate) fn join(&mut self, client: ClientId) {
        if self.usage.get(client).is_some() {
            return;
        }
        self.usage.insert(client, Usage { class: UNKNOWN, ..Usage::default() });
        let several = self.groups.len() > 1;
        if let Some(group) = self.groups.iter_mut().min_by_key(|group| group.clients.len()) {
            self.has_grown |= several && group.clients.len() >= self.settings.size;
            group.clients.push(client);
        }
    }

    /// Removes a client. A group that is too small then is merged at the next switch.
    pub(crate) fn leave(&mut self, client: ClientId) {
        let Some(usage) = self.usage.remove(client) else { return };
        self.own -= usize::from(usage.lanes > 0);
        self.groups.iter_mut().for_each(|group| group.clients.retain(|other| *other != client));
        if self.groups.len() > 1
            && let Some(empty) = self.groups.iter().position(|group| group.clients.is_empty())
        {
            self.groups.remove(empty);
            if empty < self.running || self.running == self.groups.len() {
                self.running = self.running.saturating_sub(1);
            }
        }
    }

    /// Adds a lane of a client of this server. Returns whether it is the first one.
    pub(crate) fn add_lane(&mut self, client: ClientId) -> bool {
        self.join(client);
        let Some(usage) = self.usage.get_mut(client) else { return false };
        usage.lanes += 1;
        self.own += usize::from(usage.lanes == 1);
        usage.lanes == 1
    }

    /// Removes a lane of a client, which stays a client. Returns whether it was the last one; `None` if it had none.
    pub(crate) fn remove_lane(&mut self, client: ClientId) -> Option<bool> {
        let usage = self.usage.get_mut(client).filter(|usage| usage.lanes > 0)?;
        usage.lanes -= 1;
        self.own -= usize::from(usage.lanes == 0);
        Some(usage.lanes == 0)
    }

    /// Returns whether a client has lanes on this server.
    pub(crate) fn has_lanes(&self, client: ClientId) -> bool {
        self.usage.get(client).is_some_and(|usage| usage.lanes > 0)
    }

    /// Returns the clients with lanes on this server, and their number.
    pub(crate) fn own(&self) -> impl Iterator<Item = ClientId> {
        self.usage.iter().filter(|(_, usage)| usage.lanes > 0).map(|(client, _)| client)
    }

    pub(crate) fn own_count(&self) -> usize {
        self.own
    }

    /// As [`own`](Schedule::own), from a client on.
    pub(crate) fn own_from(&self, client: ClientId) -> impl Iterator<Item = ClientId> {
        self.usage.from(client).filter(|(_, usage)| usage.lanes > 0).map(|(client, _)| client)
    }

    /// Counts requests of a client.
    pub(crate) fn count(&mut self, client: ClientId, calls: u64, bytes: u64) {
        if let Some(usage) = self.usage.get_mut(client) {
            (usage.calls, usage.bytes) =
                (usage.calls.saturating_add(calls), usage.bytes.saturating_add(bytes));
        }
    }

    /// Returns the clients that are served now.
    pub(crate) fn running(&self) -> &[ClientId] {
        self.groups.get(self.running).map_or(&[], |group| &group.clients)
    }

    /// Returns the clients that are served next, whose requests the server READs already; none if there is one group.
    pub(crate) fn warming(&self) -> &[ClientId] {
        match self.groups.len() {
            0 | 1 => &[],
            groups => &self.groups[(self.running + 1) % groups].clients,
        }
    }

    /// Returns when the running slice ends: at once where one group is too large, never where it is not.
    pub(crate) fn due(&self) -> Nanos {
        match self.groups.as_slice() {
            [] => Nanos::MAX,
            [only] if only.clients.len() <= self.settings.most() => Nanos::MAX,
            [_] => 0,
            groups => self.began.saturating_add(groups[self.running].slice),
        }
    }

    /// Returns the number of groups.
    #[cfg(test)]
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Ends the running slice and begins the next one. The caller may end a slice before it is due if its clients
    /// have nothing to do.
    pub(crate) fn switch(&mut self, now: Nanos) {
        if let Some((clients, length)) = self.before.take() {
            self.classify(&clients, length);
        }
        self.before = Some((self.running().to_vec(), now.saturating_sub(self.began).max(1)));
        self.running += 1;
        if self.running >= self.groups.len() {
            self.running = 0;
            // Requests of a group that were READ before it was changed are kept until their clients are served.
            self.regroup();
        }
        self.began = now;
    }

    /// Changes the groups if their clients have other priorities, or if there are too many or too few.
    fn regroup(&mut self) {
        if std::mem::take(&mut self.has_grown) || (self.settings.by_priority && self.has_moved()) {
            self.deal();
        } else {
            self.resize();
        }
    }

    /// Ends a time in which several cycles have passed, for a schedule that other servers share. Returns the groups of
    /// the next cycles with their slices.
    pub(crate) fn plan(&mut self, passed: Nanos) -> Vec<CycleGroup> {
        let groups = std::mem::take(&mut self.groups);
        let cycle: u128 = groups.iter().map(|group| u128::from(group.slice)).sum();
        for group in &groups {
            let served = u128::from(passed) * u128::from(group.slice) / cycle.max(1);
            self.classify(&group.clients, (served as Nanos).max(1));
        }
        (self.groups, self.running) = (groups, 0);
        self.regroup();
        let planned = |group: &Group| CycleGroup { slice: group.slice, clients: group.clients.clone() };
        self.groups.iter().map(planned).collect()
    }

    /// Takes the requests of a client that were counted, and their bytes.
    pub(crate) fn take_counts(&mut self, client: ClientId) -> (u64, u64) {
        let Some(usage) = self.usage.get_mut(client) else { return (0, 0) };
        (std::mem::take(&mut usage.calls), std::mem::take(&mut usage.bytes))
    }

    /// Sets the classes of the clients that were served for `length` nanoseconds.
    fn classify(&mut self, clients: &[ClientId], length: Nanos) {
        let most = self.settings.slice.saturating_mul(LONGEST).min(length);
        let scaled = |count: u64| (u128::from(count) * u128::from(most) / u128::from(length.max(1))) as u64;
        for client in clients {
            let Some(usage) = self.usage.get_mut(*client) else { continue };
            let calls = scaled(usage.calls).saturating_add(usage.past.calls.into());
            let bytes = scaled(usage.bytes).saturating_add(usage.past.bytes.into());
            let time = most.saturating_add(usage.past.time.into());
            let (past, class) = (Past::half(calls, bytes, time), class(calls, bytes, time));
            *usage = Usage { calls: 0, bytes: 0, past, class, ..*usage };
        }
    }

    fn class_of(&self, client: ClientId) -> Option<Class> {
        self.usage.get(client)?.class()
    }

    /// Returns the median class of clients, among those that were served.
    fn median(&self, clients: impl Iterator<Item = ClientId>) -> Option<Class> {
        let mut classes: Vec<Class> = clients.filter_map(|client| self.class_of(client)).collect();
        classes.sort_unstable();
        classes.get(classes.len() / 2).copied()
    }

    /// Returns whether a client has another level than its group, or a group another one than it was made for. A group
    /// of busier clients may have others, if there are too few.
    fn has_moved(&self) -> bool {
        let Some(all) = self.median(self.usage.iter().map(|(client, _)| client)) else { return false };
        self.groups.len() > 1
            && self.groups.iter().any(|group| {
                let Some(median) = self.median(group.clients.iter().copied()) else { return false };
                let mut classes = group.clients.iter().filter_map(|client| self.class_of(*client));
                Level::of(median, all, group.level) != group.level
                    || (group.level != Level::More
                        && classes.any(|class| Level::of(class, all, group.level) != group.level))
            })
    }

    /// Assigns every client to a group of its level.
    fn deal(&mut self) {
        let median = self.median(self.usage.iter().map(|(client, _)| client)).unwrap_or(0);
        let by_priority = self.settings.by_priority;
        let of = |usage: &Usage| usage.class().filter(|_| by_priority).unwrap_or(median);
        let mut sorted: Vec<(Level, Class, ClientId)> = (self.usage.iter())
            .map(|(client, usage)| (Level::of(of(usage), median, Level::Usual), of(usage), client))
            .collect();
        sorted.sort_unstable_by_key(|(level, class, client)| {
            let class = if *level == Level::More { *class } else { 0 };
            (std::cmp::Reverse((*level, class)), *client)
        });
        let (least, size, slice) = (self.settings.least(), self.settings.size, self.settings.slice);
        self.groups.clear();
        let mut left = sorted.as_slice();
        while let Some((level, ..)) = left.first().copied() {
            let size = if level == Level::More { least } else { size };
            let slice = level.slice(slice);
            let same = left.iter().take_while(|(other, ..)| *other == level).count();
            let groups = ((same + (size - 1) / 2) / size).max(1);
            let (group, rest) = left.split_at(same.div_ceil(groups).max(least).min(left.len()));
            let clients = group.iter().map(|(.., client)| *client).collect();
            self.groups.push(Group { clients, slice, level });
            left = rest;
        }
        self.resize();
    }

    /// Splits groups that are too large and merges those that are too small.
    fn resize(&mut self) {
        let (most, least) = (self.settings.most(), self.settings.least());
        let mut groups: Vec<Group> = Vec::with_capacity(self.groups.len());
        for group in self.groups.drain(..) {
            // A group that is too small joins its neighbour, and both are split evenly if they are too large together.
            match groups.last_mut() {
                Some(last) if last.clients.len() < least || group.clients.len() < least => {
                    if group.clients.len() > last.clients.len() {
                        (last.slice, last.level) = (group.slice, group.level);
                    }
                    last.clients.extend(group.clients);
                }
                _ => groups.push(group),
            }
            if let Some(last) = groups.last()
                && last.clients.len() > most
                && let Some(large) = groups.pop()
            {
                let (slice, level) = (large.slice, large.level);
                let mut clients = large.clients.as_slice();
                for parts in (1..=clients.len().div_ceil(most)).rev() {
                    let (part, rest) = clients.split_at(clients.len() / parts);
                    groups.push(Group { clients: part.to_vec(), slice, level });
                    clients = rest;
                }
            }
        }
        if groups.is_empty() {
            groups.push(Group { slice: self.settings.slice, ..Group::default() });
        }
        self.groups = groups;
    }
}

/// Returns the class of a client: the logarithm of its throughput divided by its mean request size.
fn class(calls: u64, bytes: u64, length: Nanos) -> Class {
    // Requests per second over bytes per request, in units of 2^-20, so that slow and large ones differ too.
    let calls = u128::from(calls.min(1 << 32));
    let priority = (calls * calls * 1_000_000_000) << 20;
    let priority = priority / (u128::from(bytes.max(1)) * u128::from(length.max(1)));
    let Some(power) = priority.checked_ilog2() else { return 0 };
    // The mantissa's first bits are the logarithm's fraction, near enough.
    let octave = OCTAVE.ilog2();
    let fraction = if power >= octave { priority >> (power - octave) } else { priority << (octave - power) };
    (power as Class + 1) * OCTAVE + (fraction as Class & (OCTAVE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule(size: usize, clients: u64) -> Schedule {
        let mut schedule = Schedule::new(Settings { size, ..Settings::PAPER });
        (0..clients).for_each(|client| schedule.join(client));
        schedule
    }

    fn sizes(schedule: &Schedule) -> Vec<usize> {
        schedule.groups.iter().map(|group| group.clients.len()).collect()
    }

    #[test]
    fn one_group_never_ends() {
        let mut schedule = schedule(40, 60);
        assert_eq!((schedule.due(), schedule.running().len(), schedule.warming().len()), (Nanos::MAX, 60, 0));
        schedule.join(60);
        assert_eq!(schedule.due(), 0, "61 clients are more than 3/2 of 40");
        schedule.switch(5);
        assert_eq!(sizes(&schedule), [30, 31]);
        assert_eq!(schedule.due(), 5 + 100_000);
        schedule.leave(3);
        for client in 40..54 {
            schedule.leave(client);
        }
        schedule.switch(schedule.due());
        schedule.switch(schedule.due());
        assert_eq!((sizes(&schedule), schedule.due()), (vec![46], Nanos::MAX), "one group is enough again");
    }

    #[test]
    fn groups_make_room_for_clients_that_take_no_turns() {
        let mut schedule = schedule(40, 60);
        schedule.make_room(10);
        assert_eq!(schedule.due(), 0, "60 clients are more than 3/2 of 30");
        schedule.switch(5);
        assert_eq!(sizes(&schedule), [30, 30]);
        schedule.make_room(1_000);
        (0..2).for_each(|_| schedule.switch(schedule.due()));
        assert_eq!(sizes(&schedule), [20, 20, 20], "half of the setting is left");
        schedule.make_room(0);
        (0..3).for_each(|_| schedule.switch(schedule.due()));
        assert_eq!((sizes(&schedule), schedule.due()), (vec![60], Nanos::MAX));
        schedule.make_room(0);
        assert!(!schedule.has_grown, "nothing has changed");
    }

    #[test]
    fn groups_are_served_in_turn() {
        let mut schedule = schedule(2, 9);
        schedule.switch(0);
        let groups = schedule.groups();
        let mut served = Vec::new();
        for _ in 0..groups {
            let next = schedule.warming().to_vec();
            served.extend_from_slice(schedule.running());
            schedule.switch(schedule.due());
            assert!(schedule.groups() != groups || schedule.running() == next);
        }
        served.sort_unstable();
        assert_eq!(served, (0..9).collect::<Vec<_>>());
    }

    /// Clients of one priority come together; busy groups have fewer members and longer slices.
    #[test]
    fn busy_clients_are_apart() {
        let mut schedule = schedule(8, 32);
        schedule.switch(0);
        for _ in 0..4 * schedule.groups() {
            for client in schedule.running().to_vec() {
                // Every fourth client is busy, every other fourth one sends little and long.
                let (calls, bytes) = [(400, 32), (20, 32), (20, 32), (2, 4096)][client as usize % 4];
                schedule.count(client, calls, calls * bytes);
            }
            schedule.switch(schedule.due());
        }
        assert_eq!(sizes(&schedule), [4, 4, 8, 8, 8]);
        let kinds: Vec<u64> = schedule.groups[0].clients.iter().map(|client| client % 4).collect();
        assert_eq!(kinds, [0; 4]);
        let slices: Vec<Nanos> = schedule.groups.iter().map(|group| group.slice).collect();
        assert_eq!(slices, [150_000, 150_000, 100_000, 100_000, 50_000]);
        assert!(schedule.groups[4].clients.iter().all(|client| client % 4 == 3));
    }

    /// Clients that differed only because some were measured before they made calls come together again.
    #[test]
    fn equal_clients_are_in_equal_groups() {
        let mut schedule = schedule(8, 40);
        schedule.switch(0);
        for round in 0..200 {
            for client in schedule.running().to_vec() {
                // Half of the clients begin later.
                let calls = if round < 20 && client < 20 { 0 } else { 25 };
                schedule.count(client, calls, calls * 32);
            }
            schedule.switch(schedule.due());
        }
        assert_eq!(sizes(&schedule), [8; 5]);
        assert!(schedule.groups.iter().all(|group| group.slice == 100_000));
    }

    #[test]
    fn a_static_schedule_keeps_its_groups() {
        let mut schedule = Schedule::new(Settings { size: 4, by_priority: false, ..Settings::PAPER });
        (0..8).for_each(|client| schedule.join(client));
        schedule.switch(0);
        let groups = schedule.groups.clone();
        for round in 0..8 {
            schedule.count(round % 8, 1000, 32);
            schedule.switch(schedule.due());
        }
        assert_eq!(schedule.groups, groups);
    }

    #[test]
    fn priority_is_throughput_over_size() {
        assert_eq!(class(100, 3200, 100_000), class(200, 12_800, 100_000), "twice as often, twice as long");
        // Twice the calls in half of the time.
        assert_eq!(class(100, 3200, 100_000) + 2 * OCTAVE, class(200, 6400, 50_000));
        assert!(class(0, 0, 1) == 0 && class(u64::MAX, 1, 1) < 128 * OCTAVE);
    }

    /// A little more than another is not another class, wherever the two lie.
    #[test]
    fn classes_tell_ratios() {
        for calls in [100, 127, 128, 1000, 1023, 1025] {
            let (one, other) =
                (class(calls, 32 * calls, 1_000_000), class(calls * 9 / 8, 36 * calls, 1_000_000));
            assert!((1..=2).contains(&(other - one)), "{calls}: {one} and {other}");
        }
    }

    /// A schedule that other servers share is made again at times, and not with each slice.
    #[test]
    fn a_plan_tells_busy_clients_apart() {
        let mut schedule = schedule(8, 32);
        for _ in 0..20 {
            let plan = schedule.plan(100_000_000);
            assert_eq!(plan.iter().map(|group| group.clients.len()).sum::<usize>(), 32);
            for client in 0..32 {
                let (calls, bytes) = if client % 4 == 0 { (40_000, 32) } else { (1_000, 32) };
                schedule.count(client, calls, calls * bytes);
            }
        }
        assert_eq!(schedule.take_counts(1), (1_000, 32_000));
        assert_eq!(schedule.take_counts(1), (0, 0));
        let kinds: Vec<u64> = schedule.groups[0].clients.iter().map(|client| client % 4).collect();
        assert_eq!((kinds, schedule.groups[0].slice), (vec![0; 4], 150_000));
        (0..32).for_each(|client| schedule.leave(client));
        assert_eq!(schedule.plan(1).len(), 1, "an empty group remains");
    }

    /// Clients of equal priority never become several kinds of groups, although slices and their first calls differ.
    #[test]
    fn equal_clients_are_dealt_evenly() {
        let mut schedule = schedule(40, 120);
        let mut now = 0;
        for round in 0..40u64 {
            // The server was idle at first; then clients of longer slices get more done, less the same loss.
            let length = match round {
                0 => 1_000_000_000,
                1..6 => 100_000,
                _ => schedule.due().saturating_sub(now).max(1),
            };
            for client in schedule.running().to_vec() {
                let calls = if round < 6 { 0 } else { length.saturating_sub(20_000) / 3_000 };
                schedule.count(client, calls, 64 * calls);
            }
            now += length;
            schedule.switch(now);
        }
        let sizes: Vec<(usize, Nanos)> =
            schedule.groups.iter().map(|group| (group.clients.len(), group.slice)).collect();
        assert_eq!(sizes, [(60, 100_000); 2]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Join(u64),
        Leave(u64),
        Count(u64, u64, u64),
        Switch(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u64..60).prop_map(Step::Join),
            1 => (0u64..60).prop_map(Step::Leave),
            3 => (0u64..60, 0u64..1000, 1u64..4096).prop_map(|(c, n, b)| Step::Count(c, n, n * b)),
            3 => any::<bool>().prop_map(Step::Switch),
        ]
    }

    proptest! {
        /// Every client is in one group, groups have legal sizes after each cycle, and every client is served within
        /// a bounded number of slices.
        #[test]
        fn every_client_has_its_turn(
            size in 1usize..9,
            by_priority: bool,
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut schedule = Schedule::new(Settings { size, by_priority, ..Settings::PAPER });
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Join(client) => schedule.join(client),
                    Step::Leave(client) => schedule.leave(client),
                    Step::Count(client, calls, bytes) => schedule.count(client, calls, bytes),
                    Step::Switch(early) => {
                        now = if early { now + 1 } else { schedule.due().min(now + 1_000_000).max(now) };
                        schedule.switch(now);
                    }
                }
                let mut clients: Vec<u64> =
                    schedule.groups.iter().flat_map(|group| group.clients.clone()).collect();
                clients.sort_unstable();
                prop_assert_eq!(&clients, &schedule.usage.iter().map(|(client, _)| client).collect::<Vec<_>>());
                prop_assert!(schedule.running < schedule.groups.len());
                prop_assert!(schedule.groups.len() == 1 || sizes(&schedule).iter().all(|size| *size > 0));
            }
            let mut waiting: Vec<u64> = schedule.usage.iter().map(|(client, _)| client).collect();
            // The cycle may be regrouped once, after which its order holds.
            let bound = 3 * (schedule.usage.len() + 1);
            for _ in 0..bound {
                waiting.retain(|client| !schedule.running().contains(client));
                schedule.switch(schedule.due().min(now + 1));
            }
            prop_assert!(waiting.is_empty(), "{waiting:?} never had a turn");
            let (least, most) = (schedule.settings.least(), schedule.settings.most());
            let legal = |size: &usize| (least..=most).contains(size);
            prop_assert!(schedule.groups.len() == 1 || sizes(&schedule).iter().all(legal), "{:?}", sizes(&schedule));
        }
    }
}
