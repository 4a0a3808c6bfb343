//! Which queue pairs of a server are active: FLOCK's receiver-side queue pair scheduling (section 5.1).
//!
//! More queue pairs than a NIC's cache holds make every message slower, so a server keeps only
//! [`ActivityConfig::max_active`] of them in use. Each interval it divides these among the clients by their
//! utilisation (equation 1): the sum of the coalescing degrees that their queue pairs reported when they asked
//! for credits. A queue pair that is not active gets no more credits (`path/credits.rs`).
//!
//! | rule | the paper | here |
//! |---|---|---|
//! | share of a functioning client | in proportion to its utilisation | the same; rounded by largest remainders, at least 1 |
//! | share above the client's number of queue pairs | not stated | the surplus goes to the others, in proportion |
//! | all open queue pairs together are at most the maximum | not stated | all are active |
//! | dormant client: nothing reported in the interval | one queue pair | the same, on top of the maximum |
//! | client that opens another queue pair | not stated | granted below its part by equation 1, or the maximum |
//! | new client | the average of the functioning ones | the same, until it has been there for a whole interval |
//! | queue pairs that a client keeps | not stated | the ones used most |
//! | reported degree | taken as reported | clipped to the messages that came (`Allowance::degree`) |
//!
//! [`share`] is the pure part. [`Activity`] shares it between workers as `server/ways.rs` does: a worker adds to
//! a counter of its queue pair and reads a flag of it, and the first worker that finds the interval over runs
//! the rest. Nothing blocks but opening a queue pair, and only opening one allocates.

use super::config::ServerConfig;
use dunlin_fabric::Nanos;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Settings of the queue pair scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActivityConfig {
    /// The paper's `MAX_AQP`: the queue pairs that the server keeps active, at least 1. The paper's NIC slows
    /// down beyond 256 (figure 2).
    pub(crate) max_active: u32,
    /// Time between two redistributions, in nanoseconds. The paper gives no value. A queue pair reports its use
    /// once in half of C entries, 16; in 1 ms, a queue pair with fewer than 16 000 entries a second may report
    /// nothing, and one is enough for a client like that. A shorter interval moves threads more often, and a
    /// thread that moves waits for its calls to end, some 10 microseconds.
    pub(crate) interval: Nanos,
    /// Redistributions that pass over a queue pair that has become inactive, before it can be active again. The
    /// paper gives no rule. One keeps a client whose share swings by one from moving the same threads in each
    /// interval.
    pub(crate) rest: u32,
}

impl Default for ActivityConfig {
    fn default() -> Self {
        ActivityConfig { max_active: 256, interval: 1_000_000, rest: 1 }
    }
}

/// A client in a redistribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    /// U of the paper: the sum of the reported degrees since the last redistribution.
    pub(crate) utilisation: u64,
    /// Open queue pairs: the most that can be active.
    pub(crate) queue_pairs: u32,
    /// Whether the client came since the last redistribution.
    pub(crate) is_new: bool,
}

/// Divides `max_active` queue pairs among the clients by equation 1. `shares` gets a number for each client:
/// at least 1 and at most its queue pairs. `order` is scratch memory.
///
/// Functioning clients get at most `max_active` in all, and one more for each whose part is less than one.
/// Nothing is left over while one of them has more queue pairs. Depends on the arguments only.
pub(crate) fn share(senders: &[Sender], max_active: u32, order: &mut Vec<u32>, shares: &mut Vec<u32>) {
    let open: u64 = senders.iter().map(|sender| u64::from(sender.queue_pairs)).sum();
    if open <= u64::from(max_active) {
        shares.clear();
        shares.extend(senders.iter().map(|sender| sender.queue_pairs));
        return;
    }
    let functioning = || senders.iter().filter(|sender| sender.utilisation > 0 && !sender.is_new);
    let count = functioning().count() as u128;
    let sum: u128 = functioning().map(|sender| u128::from(sender.utilisation)).sum();
    let average = if count > 0 { sum.div_ceil(count) } else { 1 };
    let utilisation = |index: &u32| -> u128 {
        let sender = &senders[*index as usize];
        let own = u128::from(sender.utilisation);
        if sender.is_new { own.max(average) } else { own }
    };
    let queue_pairs = |index: &u32| u128::from(senders[*index as usize].queue_pairs);

    shares.clear();
    shares.extend(senders.iter().map(|sender| sender.queue_pairs.min(1)));
    order.clear();
    order.extend(
        (0u32..).take(senders.len()).filter(|index| utilisation(index) > 0 && queue_pairs(index) > 0),
    );
    let mut left = u128::from(max_active.max(1));
    let mut sum: u128 = order.iter().map(utilisation).sum();

    // The clients with the fewest queue pairs for their utilisation come first: those that cannot use their
    // part take all that they have, which leaves more for the others.
    order.sort_unstable_by(|a, b| {
        let (a_has, b_has) = (queue_pairs(a) * utilisation(b), queue_pairs(b) * utilisation(a));
        a_has.cmp(&b_has).then(a.cmp(b))
    });
    let mut capped = 0;
    for index in order.iter() {
        if queue_pairs(index) * sum > left * utilisation(index) {
            break;
        }
        shares[*index as usize] = senders[*index as usize].queue_pairs;
        left -= queue_pairs(index);
        sum -= utilisation(index);
        capped += 1;
    }

    // Less than the client's queue pairs each, so one more fits.
    let part = |index: &u32| (left * utilisation(index) / sum) as u32;
    let others = &mut order[capped..];
    let mut used = 0;
    for index in others.iter() {
        shares[*index as usize] = part(index).max(1);
        used += u128::from(part(index).max(1));
    }
    // Rounding leaves fewer than there are clients with a part of at least one. The others are above their part
    // already.
    let rest = left.saturating_sub(used) as usize;
    if rest > 0 {
        others.sort_unstable_by_key(|index| {
            (part(index) == 0, Reverse(left * utilisation(index) % sum), *index)
        });
        for index in others.iter().take(rest) {
            shares[*index as usize] += 1;
        }
    }
}

/// The activity of a queue pair, shared by the worker of its lane and the scheduling.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct QueuePair {
    /// Sum of all degrees that were reported.
    used: AtomicU64,
    is_active: AtomicBool,
}

impl QueuePair {
    /// Counts a request for credits with the median degree of its messages, clipped by the caller.
    #[inline]
    pub(crate) fn renewed(&self, degree: u16) {
        self.used.fetch_add(u64::from(degree), Ordering::Relaxed);
    }

    /// Returns whether the queue pair gets credits.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }
}

/// An open queue pair in the table.
#[derive(Debug)]
struct Entry {
    /// The client's number.
    sender: u64,
    /// Counts queue pairs in the order in which they were opened.
    number: u64,
    shared: Arc<QueuePair>,
    /// `used` at the last redistribution.
    before: u64,
    /// Degrees since the last redistribution.
    recent: u64,
    /// Redistributions since it became inactive.
    rested: u32,
}

impl Entry {
    /// Sets the flag; returns whether the queue pair became active.
    fn set(&mut self, is_active: bool) -> bool {
        let was_active = self.shared.is_active.swap(is_active, Ordering::Relaxed);
        self.rested = if was_active || is_active { 0 } else { self.rested.saturating_add(1) };
        is_active && !was_active
    }
}

#[derive(Debug)]
struct Client {
    /// Open queue pairs.
    open: usize,
    /// The queue pairs that the client may open and use: its part by equation 1, whatever it has open.
    share: u32,
    is_functioning: bool,
    is_new: bool,
}

#[derive(Debug, Default)]
struct Table {
    opened: u64,
    clients: BTreeMap<u64, Client>,
    queue_pairs: Vec<Entry>,
    senders: Vec<Sender>,
    shares: Vec<u32>,
    order: Vec<u32>,
}

/// The queue pairs of a server, and which of them are active.
#[derive(Debug)]
pub(crate) struct Activity {
    config: ActivityConfig,
    next_look: AtomicU64,
    /// Redistributions in which a queue pair became active.
    activations: AtomicU64,
    table: Mutex<Table>,
}

impl Activity {
    /// Creates the table of a server. A connection of a combined client has a queue pair to each worker, and these
    /// are active together.
    pub(crate) fn of(config: &ServerConfig) -> Self {
        let max_active = (config.max_active_queue_pairs / u32::from(config.workers.max(1))).max(1);
        Activity::new(ActivityConfig { max_active, ..ActivityConfig::default() })
    }

    /// Creates an empty table.
    pub(crate) fn new(config: ActivityConfig) -> Self {
        let (next_look, activations) = (AtomicU64::new(0), AtomicU64::new(0));
        Activity { config, next_look, activations, table: Mutex::new(Table::default()) }
    }

    /// Adds a queue pair of a client, by any number that the client keeps. It is active if the client's share
    /// allows. It is in the table until the caller drops it. Allocates, and may wait for a redistribution.
    pub(crate) fn open(&self, sender: u64) -> Arc<QueuePair> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.drop_closed();
        let share = table.average_share().unwrap_or(self.config.max_active).max(1);
        let active =
            table.queue_pairs.iter().filter(|other| other.sender == sender && other.shared.is_active());
        let active = active.count();
        let all = table.queue_pairs.iter().filter(|other| other.shared.is_active()).count();
        let is_scarce = all >= self.config.max_active as usize;
        let new = || Client { open: 0, share, is_functioning: true, is_new: true };
        let client = table.clients.entry(sender).or_insert_with(new);
        client.open += 1;
        let has_room = active < client.share as usize || !is_scarce;
        let shared = Arc::new(QueuePair { used: AtomicU64::new(0), is_active: AtomicBool::new(has_room) });
        let number = table.opened;
        table.opened += 1;
        let rested = self.config.rest;
        table.queue_pairs.push(Entry {
            sender,
            number,
            shared: shared.clone(),
            before: 0,
            recent: 0,
            rested,
        });
        table.reserve();
        shared
    }

    /// Returns a number that changes when an inactive queue pair has become active. Its worker then sends it
    /// credits, since the client does not ask on it.
    #[inline]
    pub(crate) fn activations(&self) -> u64 {
        self.activations.load(Ordering::Acquire)
    }

    /// Redistributes if the interval is over at `now`, unless another worker does.
    #[inline]
    pub(crate) fn look(&self, now: Nanos) {
        if now >= self.next_look.load(Ordering::Relaxed) {
            self.look_closely(now);
        }
    }

    #[cold]
    fn look_closely(&self, now: Nanos) {
        let Ok(mut table) = self.table.try_lock() else { return };
        // Another worker may have been through since.
        if now < self.next_look.load(Ordering::Relaxed) {
            return;
        }
        self.next_look.store(now.saturating_add(self.config.interval), Ordering::Relaxed);
        if table.redistribute(&self.config) {
            self.activations.fetch_add(1, Ordering::Release);
        }
    }
}

impl Table {
    /// Removes queue pairs that nobody else has, and clients without queue pairs.
    fn drop_closed(&mut self) {
        let before = self.queue_pairs.len();
        let clients = &mut self.clients;
        self.queue_pairs.retain(|entry| {
            let is_open = Arc::strong_count(&entry.shared) > 1;
            if let Some(client) = clients.get_mut(&entry.sender).filter(|_| !is_open) {
                client.open -= 1;
            }
            is_open
        });
        if self.queue_pairs.len() < before {
            self.clients.retain(|_, client| client.open > 0);
        }
    }

    /// The average number of active queue pairs of the functioning clients.
    fn average_share(&self) -> Option<u32> {
        let functioning = || self.clients.iter().filter(|(_, client)| client.is_functioning);
        let active = self.queue_pairs.iter().filter(|entry| {
            entry.shared.is_active()
                && self.clients.get(&entry.sender).is_some_and(|client| client.is_functioning)
        });
        (active.count() as u32).checked_div(functioning().count() as u32)
    }

    /// Makes room for a redistribution, which does not allocate.
    fn reserve(&mut self) {
        let clients = self.clients.len();
        self.senders.clear();
        self.senders.reserve(clients);
        self.shares.clear();
        self.shares.reserve(clients);
        self.order.clear();
        self.order.reserve(clients);
    }

    /// Returns whether a queue pair became active.
    fn redistribute(&mut self, config: &ActivityConfig) -> bool {
        self.drop_closed();
        for entry in &mut self.queue_pairs {
            let used = entry.shared.used.load(Ordering::Relaxed);
            (entry.recent, entry.before) = (used.wrapping_sub(entry.before), used);
        }
        // By client, and within a client the ones to keep first: active, much used, old.
        self.queue_pairs.sort_unstable_by_key(|entry| {
            (entry.sender, !entry.shared.is_active(), Reverse(entry.recent), entry.number)
        });

        self.senders.clear();
        let groups = self.queue_pairs.chunk_by(|a, b| a.sender == b.sender);
        for (group, client) in groups.zip(self.clients.values()) {
            let utilisation = group.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.recent));
            let queue_pairs = u32::try_from(group.len()).unwrap_or(u32::MAX);
            self.senders.push(Sender { utilisation, queue_pairs, is_new: client.is_new });
        }
        share(&self.senders, config.max_active, &mut self.order, &mut self.shares);
        let sum: u128 = self.senders.iter().map(|sender| u128::from(sender.utilisation)).sum();

        let mut has_activated = false;
        let groups = self.queue_pairs.chunk_by_mut(|a, b| a.sender == b.sender);
        for (number, (group, client)) in groups.zip(self.clients.values_mut()).enumerate() {
            let mut room = self.shares[number];
            client.is_functioning = client.is_new || self.senders[number].utilisation > 0;
            let part = u128::from(config.max_active) * u128::from(self.senders[number].utilisation);
            let part = part.checked_div(sum).unwrap_or_default() as u32;
            (client.share, client.is_new) = (room.max(part), false);
            let has_active = group.iter().any(|entry| entry.shared.is_active());
            for (at, entry) in group.iter_mut().enumerate() {
                // A client without any active queue pair gets its first one without a rest.
                let is_allowed =
                    entry.shared.is_active() || entry.rested >= config.rest || (at == 0 && !has_active);
                let is_active = room > 0 && is_allowed;
                room -= u32::from(is_active);
                has_activated |= entry.set(is_active);
            }
        }
        has_activated
    }
}

#[cfg(test)]
mod tests;
