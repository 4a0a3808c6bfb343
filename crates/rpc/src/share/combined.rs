//! Combining: threads that share a connection hand their calls to one of them, the leader, which sends them in
//! one message for each lane (FLOCK, SOSP'21, sections 4.1 to 4.3).
//!
//! | file | holds | paper |
//! |---|---|---|
//! | `tickets.rs` | the calls that are ready, as a lock-free list, and their states | section 4.2 |
//! | this file | the leader: sends the calls, takes the answers, delivers them | sections 4.1 to 4.3 |
//! | `combined/own.rs` | registered memory of the threads, from which larger requests leave | section 4.1 |
//! | `../combine/threads.rs` | which thread uses which queue pair | section 5.2, algorithm 1 |
//! | `../../path/credits.rs` | credits of a queue pair, at both ends | section 5.1 |

mod own;

use self::own::{OWN_MEMORY, OwnMemory, describe, described};
use super::strand::{Core, Entry, LeadGuard, Policy, Strand};
use crate::client::config::ClientConfig;
use crate::client::core::CallId;
use crate::client::lane::SubmitError;
use crate::client::slots::Sink;
use crate::client::synchronous::Client;
use crate::client::within::Time;
use crate::combine::lines::lines_of;
use crate::combine::tickets::{
    Capacity, Delivery, INLINE, Leader, PrepareError, Seat, Side, TicketId, Tickets, Withdrawal,
};
use crate::error::{CallError, Cause};
use crate::limits::{MAX_SEATS, MAX_STRANDS};
use crate::path::call_id::CallEnds;
use dunlin_fabric::{Fabric, Host, Nanos, Work};
use std::sync::Arc;

/// No ticket is under way at this index.
const NOTHING: u64 = u64::MAX;

/// The state that the strands of a handle share.
#[derive(Debug)]
pub(crate) struct Table<F: Fabric> {
    tickets: Arc<Tickets>,
    /// The payloads of tickets that lie in their threads' memory.
    own: OwnMemory<F>,
}

/// A strand's tickets: those on one list of the handle's table.
#[derive(Debug)]
pub(crate) struct Combined<F: Fabric> {
    table: Arc<Table<F>>,
    list: u16,
}

/// A thread's part.
#[derive(Debug)]
pub(crate) struct Place<F: Fabric> {
    seat: Seat,
    memory: own::Arenas<F>,
}

/// The leader's state.
#[derive(Debug)]
pub(crate) struct Led<F: Fabric> {
    table: Arc<Table<F>>,
    leader: Leader,
    /// The tickets of calls under way, by the index of the call's id.
    under_way: Vec<u64>,
    /// The ticket of the call that is being sent.
    in_hand: u64,
    payload: Vec<u8>,
    /// The threads with calls in open batches.
    open: Threads,
}

/// A set of threads.
#[derive(Clone, Copy, Debug, Default)]
struct Threads([u64; MAX_SEATS as usize / 64]);

impl Threads {
    #[inline]
    fn has(&self, thread: u16) -> bool {
        self.0.get(usize::from(thread / 64)).is_some_and(|word| word >> (thread % 64) & 1 != 0)
    }

    #[inline]
    fn add(&mut self, thread: u16) {
        if let Some(word) = self.0.get_mut(usize::from(thread / 64)) {
            *word |= 1 << (thread % 64);
        }
    }
}

impl<F: Fabric> Led<F> {
    /// Returns whether a thread waits for a call that is here.
    fn is_wanted(&self) -> bool {
        let mut under_way = self.under_way.iter().filter(|ticket| **ticket != NOTHING);
        self.leader.waiting() > 0
            || under_way.any(|ticket| self.leader.is_wanted(TicketId::from_bits(*ticket)))
    }

    /// Ends the calls under way, so that their tickets are free for other strands.
    fn end(&mut self) {
        for ticket in self.under_way.drain(..).filter(|ticket| *ticket != NOTHING) {
            let closed = Err(CallError::MaybeExecuted(Cause::Closed));
            self.leader.finish(TicketId::from_bits(ticket), closed);
        }
    }
}

impl<F: Fabric> Drop for Led<F> {
    fn drop(&mut self) {
        self.end();
    }
}

/// A call's worker and time in one word of a ticket: a time of its own as its end, modulo `OWN`.
#[derive(Clone, Copy)]
struct Tag(u64);

const NANOS_BITS: u32 = 47;
const OWN: u64 = 1 << NANOS_BITS;

impl Tag {
    /// Times of more than 19 hours become 19 hours. A worker's number that has no place becomes the largest, which
    /// no server has: workers are counted in 16 bits. Reads the clock only for a time of the call's own.
    fn new(worker: usize, time: Time, now: impl FnOnce() -> Nanos) -> Tag {
        let nanos = time.nanos.min(OWN / 2 - 1);
        let time = if time.is_own { OWN | (now().wrapping_add(nanos) % OWN) } else { nanos };
        Tag((worker.min(0xffff) as u64) << 48 | time)
    }

    fn worker(self) -> usize {
        (self.0 >> 48) as usize
    }

    /// Returns the time that is left.
    fn time(self, now: impl FnOnce() -> Nanos) -> Time {
        let nanos = self.0 % OWN;
        if self.0 & OWN == 0 {
            return Time { nanos, is_own: false };
        }
        let left = nanos.wrapping_sub(now()) % OWN;
        Time { nanos: if left < OWN / 2 { left } else { 0 }, is_own: true }
    }
}

/// Delivers results into the tickets of their calls.
struct Deliver<'a, F: Fabric> {
    strand: &'a Strand<F, Combined<F>>,
    leader: &'a mut Leader,
    under_way: &'a mut [u64],
}

impl<F: Fabric> Deliver<'_, F> {
    #[inline]
    fn deliver(&mut self, id: CallId, outcome: Result<&[u8], CallError>) {
        let Some(place) = self.under_way.get_mut(id.index()) else { return };
        let ticket = std::mem::replace(place, NOTHING);
        if ticket != NOTHING {
            finish(self.strand, self.leader, TicketId::from_bits(ticket), outcome);
        }
    }
}

impl<F: Fabric> Sink for Deliver<'_, F> {
    #[inline]
    fn offer(&mut self, lane: u16, call: u32, payload: &[u8]) -> bool {
        self.deliver(CallId { lane, call }, Ok(payload));
        true
    }
}

#[inline]
fn finish<F: Fabric>(
    strand: &Strand<F, Combined<F>>,
    leader: &mut Leader,
    ticket: TicketId,
    outcome: Result<&[u8], CallError>,
) {
    if leader.finish(ticket, outcome) == Delivery::Delivered {
        strand.wake(leader.tickets().thread(ticket));
    }
}

/// Ends the calls under way: their connection is gone.
#[cold]
fn lose<F: Fabric>(strand: &Strand<F, Combined<F>>, leader: &mut Leader, under_way: &mut Vec<u64>) {
    for ticket in under_way.drain(..).filter(|ticket| *ticket != NOTHING) {
        let lost = Err(CallError::MaybeExecuted(Cause::ConnectionLost));
        finish(strand, leader, TicketId::from_bits(ticket), lost);
    }
}

/// Gives the calls that wait back to their threads, which make them again on another strand.
#[cold]
fn give_back<F: Fabric>(strand: &Strand<F, Combined<F>>, leader: &mut Leader) {
    let tickets = Arc::clone(leader.tickets());
    leader.return_waiting(|ticket| strand.wake(tickets.thread(ticket)));
}

/// Writes a call into a ticket. A larger payload goes into registered memory of the thread, if there is some.
fn prepare<F: Fabric>(
    strand: &Strand<F, Combined<F>>,
    place: &mut Place<F>,
    entry: &Entry<'_>,
) -> Result<TicketId, CallError> {
    let tag = Tag::new(entry.worker, entry.time, || strand.fabric.host().now());
    let own = &strand.policy().table.own;
    let prepared = match own.fill(&strand.fabric, &mut place.memory, entry) {
        None => {
            charge_copy(strand, entry.payload);
            place.seat.prepare(entry.function, tag.0, entry.payload)
        }
        Some(buffer) => {
            let description = describe(entry.function, entry.payload.len());
            let prepared = place.seat.prepare(OWN_MEMORY, tag.0, &description);
            if let Ok(ticket) = prepared {
                own.keep(place.seat.slot_of(ticket), buffer);
            }
            prepared
        }
    };
    prepared.map_err(|error| {
        CallError::NotExecuted(match error {
            PrepareError::Full => Cause::WindowFull,
            PrepareError::TooLong { length, limit } => {
                Cause::TooLarge { length: length as u64, limit: limit.into() }
            }
        })
    })
}

/// Charges a copy of a payload that does not lie in the ticket itself.
#[inline]
fn charge_copy<F: Fabric>(strand: &Strand<F, Combined<F>>, payload: &[u8]) {
    if payload.len() > INLINE {
        strand.fabric.host().charge(Work::CopyBytes, payload.len() as u32);
    }
}

#[inline]
fn note(under_way: &mut Vec<u64>, id: CallId, ticket: TicketId) {
    if under_way.len() <= id.index() {
        under_way.resize(id.index() + 1, NOTHING);
    }
    under_way[id.index()] = ticket.bits();
}

impl<F: Fabric> Combined<F> {
    /// Makes a call of the thread that leads. If no other call waits, its payload goes straight into the message.
    #[inline]
    fn submit_leading(
        strand: &Strand<F, Self>,
        place: &mut Place<F>,
        entry: &Entry<'_>,
        mut lead: LeadGuard<'_, F, Self>,
    ) -> Result<u64, CallError> {
        let Core { client, policy: Led { leader, under_way, in_hand, .. }, .. } = lead.core();
        if leader.collect() > 0 {
            // The list.
            strand.fabric.host().charge(Work::TakeLine, 1);
        }
        if leader.is_next(entry.worker)
            && !strand.is_retired()
            && client.has_room_for(entry.worker, entry.function, place.seat.number())
            && let Some(ticket) = place.seat.begin(leader)
        {
            let to = (entry.worker, CallEnds { function: entry.function, thread: place.seat.number() });
            *in_hand = ticket.bits();
            let submitted = client.submit_with_others(to, entry.payload, entry.time, true);
            *in_hand = NOTHING;
            if let Ok(id) = submitted {
                note(under_way, id, ticket);
                return Ok(ticket.bits());
            }
            // No room, or a failure: it is handled as for calls that have waited.
            place.seat.undo(ticket);
        }
        let ticket = prepare(strand, place, entry)?;
        place.seat.push_to_own(ticket, leader);
        Combined::send(strand, lead.core());
        Ok(ticket.bits())
    }

    /// Sends the calls that threads have left: first those that were held for a worker without room.
    fn send(strand: &Strand<F, Self>, core: &mut Core<F, Self>) {
        let Core { client, policy: Led { leader, .. }, .. } = core;
        if strand.is_retired() {
            return give_back(strand, leader);
        }
        if leader.collect() > 0 {
            strand.fabric.host().charge(Work::TakeLine, 1);
        }
        if leader.waiting() == 0 {
            return;
        }
        // Without a bound the threads whose results have come would wait for those that call.
        let per_round = usize::from(client.config().most_per_round);
        let most = usize::from(client.config().most_together);
        let alone = leader.waiting() == 1 || most == 1;
        let mut begun = 0;
        for queue in leader.queues() {
            while begun < per_round
                && let Some(ticket) = core.policy.leader.begin(queue)
            {
                match Combined::send_one(strand, core, ticket, queue.is_some(), alone) {
                    Step::Begun => begun += 1,
                    Step::Held if queue.is_some() => break,
                    Step::Held => continue,
                    Step::Retired => return,
                }
                if !alone && begun % most == 0 {
                    Combined::send_batches(core);
                }
            }
        }
        if !alone {
            Combined::send_batches(core);
        }
    }

    fn send_batches(core: &mut Core<F, Self>) {
        if !core.client.send_batches() {
            core.policy.open = Threads::default();
        }
    }

    /// Sends or ends a call that was begun, or holds it while its worker has no room. `first` says that it comes
    /// before all calls that are held for its worker.
    #[inline]
    fn send_one(
        strand: &Strand<F, Self>,
        core: &mut Core<F, Self>,
        ticket: TicketId,
        first: bool,
        alone: bool,
    ) -> Step {
        let Core { client, policy: Led { table, leader, under_way, in_hand, payload, open }, last } = core;
        let host = strand.fabric.host();
        let read = leader.read(ticket, |entry| {
            let tag = Tag(entry.time);
            let is_behind = !first && leader.holds(tag.worker());
            if !is_behind {
                if entry.thread != *last {
                    // A message in the thread's memory is touched at both ends.
                    let is_own = entry.function == OWN_MEMORY;
                    let bytes = if is_own { usize::MAX } else { entry.payload.len() };
                    host.charge(Work::TakeLine, lines_of(bytes));
                }
                charge_copy(strand, entry.payload);
                payload.clear();
                payload.extend_from_slice(entry.payload);
            }
            (CallEnds { function: entry.function, thread: entry.thread }, tag, is_behind)
        });
        let Some((mut ends, tag, is_behind)) = read else { return Step::Begun };
        if is_behind {
            leader.hold(ticket, tag.worker(), Side::Back);
            return Step::Held;
        }
        let slot = leader.tickets().slot_of(ticket);
        let mut own = None;
        if ends.function == OWN_MEMORY {
            let (function, length) = described(payload);
            (ends.function, own) = (function, Some(table.own.take(slot, length)));
        }
        let (to, time) = ((tag.worker(), ends), tag.time(|| host.now()));
        if time.is_over() {
            finish(strand, leader, ticket, Err(CallError::NotExecuted(Cause::DeadlineExceeded)));
            return Step::Begun;
        }
        if !client.has_room_for(tag.worker(), ends.function, ends.thread) {
            // The missing answers may be here.
            client.collect_into(&mut Deliver { strand, leader, under_way }, |deliver, id, outcome| {
                deliver.deliver(id, outcome);
            });
            if !client.has_room_for(tag.worker(), ends.function, ends.thread) {
                // Calls of other threads do not wait behind it.
                finish(strand, leader, ticket, Err(CallError::NotExecuted(Cause::WindowFull)));
                return Step::Begun;
            }
        }
        let mut submit = |client: &mut Client<F>, time| match &mut own {
            None => client.submit_with_others(to, payload, time, alone),
            Some(own) => client.submit_own(to, own, time, (alone, open.has(ends.thread))),
        };
        *in_hand = ticket.bits();
        let submitted = match submit(client, time) {
            Ok(id) => Ok(id),
            Err(SubmitError::Full | SubmitError::Call(CallError::NotExecuted(Cause::WindowFull))) => {
                *in_hand = NOTHING;
                table.own.put_back(slot, own);
                leader.hold(ticket, tag.worker(), Side::Front);
                return Step::Held;
            }
            Err(error) => client.retry_after_reconnect((to.0, ends.function), time, error, submit),
        };
        *in_hand = NOTHING;
        match submitted {
            Ok(id) => {
                note(under_way, id, ticket);
                if !alone {
                    open.add(ends.thread);
                }
            }
            // The server has other strands of the handle.
            Err(_) if client.has_no_queue_pair() && strand.retire() => {
                table.own.put_back(slot, own);
                leader.put_back(ticket);
                give_back(strand, leader);
                return Step::Retired;
            }
            Err(error) => {
                finish(strand, leader, ticket, Err(error));
                if client.has_no_queue_pair() {
                    // The server refuses no client its first queue pair: lanes of this one that still stand have it.
                    client.close_now();
                    lose(strand, leader, under_way);
                }
            }
        }
        Step::Begun
    }
}

/// The fate of a call that a leader has taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is sent, or has ended.
    Begun,
    /// Its worker has no room.
    Held,
    /// The strand is retired, and all calls that waited are given back.
    Retired,
}

impl<F: Fabric> Policy<F> for Combined<F> {
    type Table = Arc<Table<F>>;
    type Seat = Place<F>;
    type Core = Led<F>;

    const MAX_STRANDS: u16 = MAX_STRANDS;

    fn table(config: &ClientConfig) -> Arc<Table<F>> {
        let (seats, window, lists) = (MAX_SEATS, config.most_of_a_thread(), MAX_STRANDS);
        let tickets = Tickets::new(Capacity { seats, window, lists, longest: u32::MAX });
        Arc::new(Table { tickets, own: OwnMemory::new(seats, window, config.own_memory_from) })
    }

    fn strand(table: &Arc<Table<F>>, number: u16) -> Option<(Self, Led<F>)> {
        let leader = table.tickets.leader(number)?;
        let led = Led {
            table: Arc::clone(table),
            leader,
            under_way: Vec::new(),
            in_hand: NOTHING,
            payload: Vec::new(),
            open: Threads::default(),
        };
        Some((Combined { table: Arc::clone(table), list: number }, led))
    }

    fn sit(table: &Arc<Table<F>>) -> Option<(u16, Place<F>)> {
        let seat = table.tickets.seat()?;
        Some((seat.number(), Place { seat, memory: own::Arenas::default() }))
    }

    fn leave(table: &Arc<Table<F>>, number: u16, place: Place<F>) {
        // Another thread may have the number as soon as the place is dropped.
        table.own.leave(number);
        drop(place);
    }

    #[inline]
    fn submit(strand: &Strand<F, Self>, place: &mut Place<F>, entry: &Entry<'_>) -> Result<u64, CallError> {
        if let Some(lead) = strand.try_lead() {
            let number = place.seat.number();
            return Combined::submit_leading(strand, place, entry, lead.led_by(number));
        }
        let ticket = prepare(strand, place, entry)?;
        let seat = &mut place.seat;
        seat.push(ticket, strand.number);
        strand.fabric.host().charge(Work::TakeLine, 1);
        // The thread that leads may have looked before the push. If this fails, it looks again.
        if let Some(lead) = strand.try_lead() {
            Combined::send(strand, lead.led_by(seat.number()).core());
        }
        Ok(ticket.bits())
    }

    fn lead(strand: &Strand<F, Self>, core: &mut Core<F, Self>) -> usize {
        Combined::send(strand, core);
        let Core { client, policy: Led { leader, under_way, .. }, .. } = core;
        let events =
            client.collect_into(&mut Deliver { strand, leader, under_way }, |deliver, id, outcome| {
                deliver.deliver(id, outcome);
            });
        if client.is_declined() && strand.retire() {
            give_back(strand, leader);
        }
        if leader.waiting() > 0 {
            // The answers have made room.
            Combined::send(strand, core);
        }
        if strand.is_retired() && !core.policy.is_wanted() {
            // Threads without calls may keep the strand; the server must not count it. Calls that were given up end.
            core.client.close_now();
            core.policy.end();
        }
        events
    }

    #[inline]
    fn take(
        place: &mut Place<F>,
        _: Option<&mut Core<F, Self>>,
        call: u64,
        with: impl FnOnce(Result<&[u8], CallError>),
    ) -> bool {
        place.seat.take_result(TicketId::from_bits(call), with).is_some()
    }

    /// Ends a call without the lead. One that no leader has taken was not executed.
    fn expire(strand: &Strand<F, Self>, place: &mut Place<F>, call: u64) -> Option<CallError> {
        let ticket = TicketId::from_bits(call);
        match place.seat.withdraw(ticket) {
            Withdrawal::Done => None,
            Withdrawal::Gone => Some(CallError::NotExecuted(Cause::DeadlineExceeded)),
            Withdrawal::NotExecuted => {
                strand.policy().table.own.release(place.seat.slot_of(ticket));
                Some(CallError::NotExecuted(Cause::DeadlineExceeded))
            }
            Withdrawal::MaybeExecuted => Some(CallError::MaybeExecuted(Cause::DeadlineExceeded)),
        }
    }

    fn forget(strand: &Strand<F, Self>, place: &mut Place<F>, call: u64) {
        let ticket = TicketId::from_bits(call);
        match place.seat.withdraw(ticket) {
            Withdrawal::Done => drop(place.seat.take_result(ticket, |_| ())),
            Withdrawal::NotExecuted => strand.policy().table.own.release(place.seat.slot_of(ticket)),
            Withdrawal::MaybeExecuted | Withdrawal::Gone => {}
        }
    }

    fn is_returned(place: &Place<F>, call: u64) -> bool {
        place.seat.is_returned(TicketId::from_bits(call))
    }

    fn submit_again(strand: &Strand<F, Self>, place: &mut Place<F>, call: u64) {
        place.seat.push(TicketId::from_bits(call), strand.number);
        if let Some(lead) = strand.try_lead() {
            Combined::send(strand, lead.led_by(place.seat.number()).core());
        }
    }

    /// A panic may have left a lane between two states. So the connection is closed, as if it had broken: calls under
    /// way end now and not at their deadlines, and the next call connects again.
    #[cold]
    fn mend(strand: &Strand<F, Self>, core: &mut Core<F, Self>) {
        let Core { client, policy: Led { leader, under_way, in_hand, open, .. }, .. } = core;
        *open = Threads::default();
        let in_hand = std::mem::replace(in_hand, NOTHING);
        if in_hand != NOTHING {
            let lost = Err(CallError::MaybeExecuted(Cause::ConnectionLost));
            finish(strand, leader, TicketId::from_bits(in_hand), lost);
        }
        lose(strand, leader, under_way);
        client.close_now();
    }

    #[inline]
    fn has_calls(&self) -> bool {
        !self.table.tickets.is_empty(self.list)
    }
}

#[cfg(test)]
mod meeting;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_keeps_worker_and_time() {
        let tag = Tag::new(65_535, Time { nanos: 10_000_000_000, is_own: false }, || unreachable!());
        let time = tag.time(|| unreachable!());
        assert_eq!((tag.worker(), time.nanos, time.is_own), (65_535, 10_000_000_000, false));
        let long = Time { nanos: u64::MAX, is_own: false };
        let tag = Tag::new(1 << 16, long, || unreachable!());
        assert_eq!((tag.worker(), tag.time(|| unreachable!()).nanos), (0xffff, OWN / 2 - 1));
    }

    /// The wait for the leader counts, whatever the clock says.
    #[test]
    fn a_time_of_its_own_runs_while_a_call_waits() {
        for now in [0, 5, OWN - 10, OWN, u64::MAX - OWN] {
            let tag = Tag::new(3, Time { nanos: 100, is_own: true }, || now);
            let left = |later| tag.time(|| now + later).nanos;
            assert_eq!((tag.worker(), left(0), left(99), left(100), left(5000)), (3, 100, 1, 0, 0), "{now}");
            assert!(tag.time(|| now).is_own);
        }
    }
}
