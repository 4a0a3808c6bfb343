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
//! | client with a queue pair to each of several workers | not stated | a connection's queue pairs are active together, and all count |
//! | new client | the average of the functioning ones | the same, until it has been there for a whole interval |
//! | queue pairs that a client keeps | not stated | the ones used most |
//! | reported degree | taken as reported | clipped to the messages that came (`Allowance::degree`) |
//!
//! [`share`] is the pure part. [`Activity`] shares it between workers as `tune/response_modes.rs` does: a worker adds to
//! a counter of its queue pair and reads a flag of it, and the first worker that finds the interval over runs
//! the rest. Nothing blocks but opening a queue pair, and only opening one allocates.

use super::config::ServerConfig;
use dunlin_fabric::{Nanos, nanos};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A client's use of its queue pairs with credits: [`Server::queue_pair_use`](crate::Server::queue_pair_use).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairUse {
    /// The client's identity, as in [`ConnectedClient::client`](crate::ConnectedClient::client); the session id of a
    /// client that gave none.
    pub client: u64,
    /// Its queue pairs that are active now: those that the server grants credits to.
    pub granted: u64,
    /// The sum of the degrees that it has reported since it came, up to the last redistribution: U of FLOCK's equation 1
    /// is the increase in one [`ServerConfig::activity_interval`](crate::ServerConfig::activity_interval).
    pub utilisation: u64,
}

/// Settings of the queue pair scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActivityConfig {
    /// The paper's `MAX_AQP`: the queue pairs that the server keeps active, at least 1. The paper's NIC slows
    /// down beyond 256 (figure 2).
    pub(crate) max_active: u32,
    /// Time between two redistributions, in nanoseconds. A queue pair reports its use once in half of C entries, 16; in
    /// 1 ms, the default, a queue pair with fewer than 16 000 entries a second may report nothing, and one is enough for
    /// a client like that. A shorter interval moves threads more often, and a thread that moves waits for its calls to
    /// end, some 10 microseconds.
    pub(crate) interval: Nanos,
    /// Redistributions that pass over a queue pair that has become inactive, before it can be active again.
    pub(crate) rest: u32,
}

/// A client in a redistribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    /// U of the paper: the sum of the reported degrees since the last redistribution.
    pub(crate) utilisation: u64,
    /// Open strands: the most that can be active. A strand is a connection, with a queue pair to each worker that
    /// the client uses.
    pub(crate) strands: u32,
    /// Queue pairs of a strand, at least 1.
    pub(crate) width: u32,
    /// Whether the client came since the last redistribution.
    pub(crate) is_new: bool,
}

/// Divides `max_active` queue pairs among the clients by equation 1. `shares` gets a number of strands for each
/// client: at least 1 and at most those that it has. `order` is scratch memory.
///
/// Functioning clients get at most `max_active` queue pairs in all, and one more strand for each whose part is less
/// than one. No strand that fits is left over while one of them has more. Depends on the arguments only.
pub(crate) fn share(senders: &[Sender], max_active: u32, order: &mut Vec<u32>, shares: &mut Vec<u32>) {
    let open: u128 = senders.iter().map(|sender| u128::from(sender.strands) * width(sender)).sum();
    if open <= u128::from(max_active) {
        shares.clear();
        shares.extend(senders.iter().map(|sender| sender.strands));
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
    let width = |index: &u32| width(&senders[*index as usize]);
    let strands = |index: &u32| senders[*index as usize].strands;
    let queue_pairs = |index: &u32| u128::from(strands(index)) * width(index);

    shares.clear();
    shares.extend(senders.iter().map(|sender| sender.strands.min(1)));
    order.clear();
    order.extend((0u32..).take(senders.len()).filter(|index| utilisation(index) > 0 && strands(index) > 0));
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
        shares[*index as usize] = strands(index);
        left -= queue_pairs(index);
        sum -= utilisation(index);
        capped += 1;
    }

    // Less than the client's strands each, so one more fits.
    let part = |index: &u32| (left * utilisation(index) / (sum * width(index))) as u32;
    let others = &mut order[capped..];
    let mut used = 0;
    for index in others.iter() {
        shares[*index as usize] = part(index).max(1);
        used += u128::from(part(index).max(1)) * width(index);
    }
    let mut rest = left.saturating_sub(used);
    if rest == 0 {
        return;
    }
    // The largest remainder first. Clients with a part of less than one are above their part already.
    let remainder = |index: &u32| left * utilisation(index) % (sum * width(index));
    others.sort_unstable_by(|a, b| {
        let (of_a, of_b) = (remainder(a) * width(b), remainder(b) * width(a));
        (part(a) == 0).cmp(&(part(b) == 0)).then(of_b.cmp(&of_a)).then(a.cmp(b))
    });
    for index in others.iter() {
        if width(index) <= rest && shares[*index as usize] < strands(index) {
            shares[*index as usize] += 1;
            rest -= width(index);
        }
    }
    // Wide strands may not have fitted. With equal widths nothing is left.
    for index in others.iter() {
        let more = (rest / width(index)).min(u128::from(strands(index) - shares[*index as usize]));
        shares[*index as usize] += more as u32;
        rest -= more * width(index);
    }
}

/// Bounded, so that no product above overflows. No strand is that wide.
fn width(sender: &Sender) -> u128 {
    u128::from(sender.width.clamp(1, 1 << 16))
}

/// The activity of a strand: of the queue pairs that a connection has to several workers. The workers of its lanes and
/// the scheduling share it. Each holder but the table is one queue pair.
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

    /// Returns the sum of all degrees that were reported.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether the queue pair gets credits.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }
}

/// An open strand in the table.
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
    /// Returns the number of its queue pairs; 0 if it is closed.
    fn width(&self) -> u32 {
        u32::try_from(Arc::strong_count(&self.shared) - 1).unwrap_or(u32::MAX)
    }

    /// Sets the flag; returns whether the queue pair became active.
    fn set(&mut self, is_active: bool) -> bool {
        let was_active = self.shared.is_active.swap(is_active, Ordering::Relaxed);
        self.rested = if was_active || is_active { 0 } else { self.rested.saturating_add(1) };
        is_active && !was_active
    }
}

#[derive(Debug)]
struct Client {
    /// Open strands.
    open: usize,
    /// The queue pairs that the client may open and use: its part by equation 1, whatever it has open.
    share: u64,
    /// The sum of the degrees that were reported before the last redistribution.
    utilisation: u64,
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
    /// Creates the table of a server.
    pub(crate) fn of(config: &ServerConfig) -> Self {
        Activity::new(ActivityConfig {
            max_active: config.max_active_queue_pairs.max(1),
            interval: nanos(config.activity_interval).max(1),
            rest: config.activity_rest,
        })
    }

    /// Creates an empty table.
    pub(crate) fn new(config: ActivityConfig) -> Self {
        let (next_look, activations) = (AtomicU64::new(0), AtomicU64::new(0));
        Activity { config, next_look, activations, table: Mutex::new(Table::default()) }
    }

    /// Adds a strand of a client, by any number that the client keeps, with its first queue pair. It is active if
    /// the client's share allows, or the maximum; a strand is expected to become as wide as the client's others. It is
    /// in the table until the caller drops it. Allocates, and may wait for a redistribution.
    pub(crate) fn open(&self, sender: u64) -> Arc<QueuePair> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.drop_closed();
        let share = table.average_share().unwrap_or(self.config.max_active.into()).max(1);
        let own = table.queue_pairs.iter().filter(|entry| entry.sender == sender);
        let width = own.map(Entry::width).max().unwrap_or(1);
        let new = || Client { open: 0, share, utilisation: 0, is_functioning: true, is_new: true };
        let client = table.clients.entry(sender).or_insert_with(new);
        client.open += 1;
        let has_room = table.has_room(sender, width.into(), self.config.max_active);
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

    /// Returns another holder of a client's strand, for a queue pair to another worker; `None` if the strand would
    /// become too wide for the client's share and the maximum. The client's only active strand never does. May wait
    /// for a redistribution.
    pub(crate) fn widen(&self, sender: u64, strand: &Weak<QueuePair>) -> Option<Arc<QueuePair>> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.drop_closed();
        // Before the strand is held once more, which would count.
        let has_room = table.has_room(sender, 1, self.config.max_active);
        let strand = strand.upgrade()?;
        let mut others = table.queue_pairs.iter().filter(|entry| !Arc::ptr_eq(&entry.shared, &strand));
        let is_only = !others.any(|entry| entry.sender == sender && entry.shared.is_active());
        (has_room || is_only).then_some(strand)
    }

    /// Returns a number that changes when an inactive queue pair has become active. Its worker then sends it
    /// credits, since the client does not ask on it.
    #[inline]
    pub(crate) fn activations(&self) -> u64 {
        self.activations.load(Ordering::Acquire)
    }

    /// Returns the use that each client with open queue pairs makes of them. May wait for a redistribution.
    pub(crate) fn uses(&self) -> Vec<QueuePairUse> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.drop_closed();
        let uses = table.clients.iter().map(|(number, client)| QueuePairUse {
            client: *number,
            granted: table.active(|entry| entry.sender == *number),
            utilisation: client.utilisation,
        });
        uses.collect()
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
    fn average_share(&self) -> Option<u64> {
        let functioning = self.clients.values().filter(|client| client.is_functioning).count() as u64;
        let is_functioning =
            |entry: &Entry| self.clients.get(&entry.sender).is_some_and(|client| client.is_functioning);
        self.active(is_functioning).checked_div(functioning)
    }

    /// Returns the number of active queue pairs of some strands.
    fn active(&self, is_meant: impl Fn(&Entry) -> bool) -> u64 {
        let active = self.queue_pairs.iter().filter(|entry| entry.shared.is_active() && is_meant(entry));
        active.map(|entry| u64::from(entry.width())).sum()
    }

    /// Returns whether a client may use this many more queue pairs: its first one always, and more within its share or
    /// the maximum.
    fn has_room(&self, sender: u64, more: u64, max_active: u32) -> bool {
        let share = self.clients.get(&sender).map_or(0, |client| client.share);
        let own = self.active(|entry| entry.sender == sender);
        own == 0 || own + more <= share || self.active(|_| true) + more <= u64::from(max_active)
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
            let strands = u32::try_from(group.len()).unwrap_or(u32::MAX);
            let width = group.iter().map(Entry::width).max().unwrap_or(1).max(1);
            self.senders.push(Sender { utilisation, strands, width, is_new: client.is_new });
        }
        share(&self.senders, config.max_active, &mut self.order, &mut self.shares);
        let sum: u128 = self.senders.iter().map(|sender| u128::from(sender.utilisation)).sum();

        let mut has_activated = false;
        let groups = self.queue_pairs.chunk_by_mut(|a, b| a.sender == b.sender);
        for (number, (group, client)) in groups.zip(self.clients.values_mut()).enumerate() {
            let mut room = self.shares[number];
            client.utilisation = client.utilisation.saturating_add(self.senders[number].utilisation);
            client.is_functioning = client.is_new || self.senders[number].utilisation > 0;
            let part = u128::from(config.max_active) * u128::from(self.senders[number].utilisation);
            let part = part.checked_div(sum).unwrap_or_default() as u64;
            let used = u64::from(room) * u64::from(self.senders[number].width);
            (client.share, client.is_new) = (used.max(part), false);
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
