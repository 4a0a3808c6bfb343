//! Combining: threads that share a connection hand their calls to one of them, the leader, which sends them in
//! one message for each lane (FLOCK, SOSP'21, sections 4.1 to 4.3).
//!
//! | file | holds | paper |
//! |---|---|---|
//! | `tickets.rs` | the calls that are ready, as a lock-free list, and their states | section 4.2 |
//! | this file | the leader: sends the calls, takes the answers, delivers them | sections 4.1 to 4.3 |
//! | `threads.rs` | which thread uses which queue pair; not in use yet | section 5.2, algorithm 1 |
//! | `credits.rs` | credits of a queue pair, at both ends; not in use yet | section 5.1 |

// The client has one queue pair for each worker and plan, without credits.
#[allow(dead_code)]
pub(crate) mod credits;
#[allow(dead_code)]
pub(crate) mod threads;
pub(crate) mod tickets;

use self::tickets::{Capacity, Delivery, Leader, PrepareError, Seat, TicketId, Tickets, Withdrawal};
use super::handle::{Core, Entry, Handle, MAX_SEATS, Policy, lines_of};
use crate::client::config::ClientConfig;
use crate::client::core::CallId;
use crate::client::lane::SubmitError;
use crate::client::slots::Sink;
use crate::client::within::Time;
use crate::error::{CallError, Cause};
use crate::path::call_id::CallEnds;
use dunlin_fabric::{Fabric, Host, Work};
use std::sync::Arc;

/// The only list of the tickets: the connection's lanes have one leader.
const LIST: u16 = 0;
/// The most calls that a leader sends in one round. The paper bounds no round; without a bound the threads
/// whose answers have come would wait for those that call.
const MOST_AT_ONCE: usize = 64;
/// No ticket is under way at this index.
const NOTHING: u64 = u64::MAX;

/// The policy's state.
#[derive(Debug)]
pub(crate) struct Combined {
    tickets: Arc<Tickets>,
}

/// The leader's state.
#[derive(Debug)]
pub(crate) struct Led {
    leader: Leader,
    /// The tickets of calls under way, by the index of the call's id.
    under_way: Vec<u64>,
    payload: Vec<u8>,
}

/// A call's worker and time in one word of a ticket.
#[derive(Clone, Copy)]
struct Tag(u64);

const NANOS_BITS: u32 = 47;
const OWN: u64 = 1 << NANOS_BITS;

impl Tag {
    /// Times of more than 39 hours become 39 hours. A worker's number that has no place becomes the largest, which
    /// no server has: workers are counted in 16 bits.
    fn new(worker: usize, time: Time) -> Tag {
        let own = if time.is_own { OWN } else { 0 };
        Tag((worker.min(0xffff) as u64) << 48 | own | time.nanos.min(OWN - 1))
    }

    fn worker(self) -> usize {
        (self.0 >> 48) as usize
    }

    fn time(self) -> Time {
        Time { nanos: self.0 & (OWN - 1), is_own: self.0 & OWN != 0 }
    }
}

/// Delivers results into the tickets of their calls.
struct Deliver<'a, F: Fabric> {
    handle: &'a Handle<F, Combined>,
    leader: &'a mut Leader,
    under_way: &'a mut [u64],
}

impl<F: Fabric> Deliver<'_, F> {
    #[inline]
    fn deliver(&mut self, id: CallId, outcome: Result<&[u8], CallError>) {
        let Some(place) = self.under_way.get_mut(id.index()) else { return };
        let ticket = std::mem::replace(place, NOTHING);
        if ticket != NOTHING {
            finish(self.handle, self.leader, TicketId::from_bits(ticket), outcome);
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
    handle: &Handle<F, Combined>,
    leader: &mut Leader,
    ticket: TicketId,
    outcome: Result<&[u8], CallError>,
) {
    if leader.finish(ticket, outcome) == Delivery::Delivered {
        handle.wake(leader.tickets().thread(ticket));
    }
}

impl Combined {
    /// Sends the calls that threads have left.
    fn send<F: Fabric>(handle: &Handle<F, Self>, core: &mut Core<F, Self>) {
        let Core { client, policy: Led { leader, under_way, payload }, last } = core;
        let host = handle.fabric.host();
        if leader.collect() > 0 {
            // The list.
            host.charge(Work::TakeLine, 1);
        }
        if leader.waiting() == 0 {
            return;
        }
        let most = usize::from(client.config().most_together);
        let alone = leader.waiting() == 1 || most == 1;
        for count in 1..=MOST_AT_ONCE {
            let Some(ticket) = leader.begin_next() else { break };
            let read = leader.read(ticket, |entry| {
                if entry.thread != *last {
                    host.charge(Work::TakeLine, lines_of(entry.payload.len()));
                }
                payload.clear();
                payload.extend_from_slice(entry.payload);
                (CallEnds { function: entry.function, thread: entry.thread }, Tag(entry.time))
            });
            let Some((ends, tag)) = read else { continue };
            let to = (tag.worker(), ends);
            let submitted = match client.submit_with_others(to, payload, tag.time(), alone) {
                Ok(id) => Ok(id),
                Err(SubmitError::Full | SubmitError::Call(CallError::NotExecuted(Cause::WindowFull))) => {
                    leader.put_back(ticket);
                    break;
                }
                Err(error) => client.once_more((to.0, ends.function), tag.time(), error, |client, time| {
                    client.submit_with_others(to, payload, time, alone)
                }),
            };
            match submitted {
                Ok(id) => {
                    if under_way.len() <= id.index() {
                        under_way.resize(id.index() + 1, NOTHING);
                    }
                    under_way[id.index()] = ticket.bits();
                }
                Err(error) => finish(handle, leader, ticket, Err(error)),
            }
            if !alone && count % most == 0 {
                client.send_batches();
            }
        }
        if !alone {
            client.send_batches();
        }
    }
}

impl<F: Fabric> Policy<F> for Combined {
    type Seat = Seat;
    type Core = Led;

    fn new(config: &ClientConfig) -> (Self, Led) {
        let tickets =
            Tickets::new(Capacity { seats: MAX_SEATS, window: config.window, lists: 1, longest: u32::MAX });
        let leader = tickets.leader(LIST).unwrap_or_else(|| unreachable!("a new list has no leader"));
        let led = Led { leader, under_way: Vec::new(), payload: Vec::new() };
        (Combined { tickets }, led)
    }

    fn sit(&self) -> Option<(u16, Seat)> {
        let seat = self.tickets.seat()?;
        Some((seat.number(), seat))
    }

    fn leave(&self, _: u16, seat: Seat) {
        drop(seat);
    }

    #[inline]
    fn submit(handle: &Handle<F, Self>, seat: &mut Seat, entry: &Entry<'_>) -> Result<u64, CallError> {
        let tag = Tag::new(entry.worker, entry.time);
        let ticket = seat.prepare(entry.function, tag.0, entry.payload).map_err(|error| {
            CallError::NotExecuted(match error {
                PrepareError::Full => Cause::WindowFull,
                PrepareError::TooLong { length, limit } => {
                    Cause::TooLarge { length: length as u64, limit: limit.into() }
                }
            })
        })?;
        if let Some(lead) = handle.try_lead() {
            let mut lead = lead.led_by(seat.number());
            seat.push_to_own(ticket, &mut lead.core().policy.leader);
            Combined::send(handle, lead.core());
            return Ok(ticket.bits());
        }
        seat.push(ticket, LIST);
        handle.fabric.host().charge(Work::TakeLine, 1);
        // The thread that leads may have looked before the push. If this fails, it looks again.
        if let Some(lead) = handle.try_lead() {
            Combined::send(handle, lead.led_by(seat.number()).core());
        }
        Ok(ticket.bits())
    }

    fn lead(handle: &Handle<F, Self>, core: &mut Core<F, Self>) {
        Combined::send(handle, core);
        let Core { client, policy: Led { leader, under_way, .. }, .. } = core;
        client.collect_into(&mut Deliver { handle, leader, under_way }, |deliver, id, outcome| {
            deliver.deliver(id, outcome);
        });
        if leader.waiting() > 0 {
            // The answers have made room.
            Combined::send(handle, core);
        }
    }

    #[inline]
    fn take(
        seat: &mut Seat,
        _: Option<&mut Core<F, Self>>,
        call: u64,
        with: impl FnOnce(Result<&[u8], CallError>),
    ) -> bool {
        seat.take_result(TicketId::from_bits(call), with).is_some()
    }

    /// Ends a call without the lead. One that no leader has taken was not executed.
    fn expire(_: &Handle<F, Self>, seat: &mut Seat, call: u64) -> Option<CallError> {
        match seat.withdraw(TicketId::from_bits(call)) {
            Withdrawal::Done => None,
            Withdrawal::NotExecuted | Withdrawal::Gone => {
                Some(CallError::NotExecuted(Cause::DeadlineExceeded))
            }
            Withdrawal::MaybeExecuted => Some(CallError::MaybeExecuted(Cause::DeadlineExceeded)),
        }
    }

    fn forget(_: &Handle<F, Self>, seat: &mut Seat, call: u64) {
        let ticket = TicketId::from_bits(call);
        if seat.withdraw(ticket) == Withdrawal::Done {
            seat.take_result(ticket, |_| ());
        }
    }

    #[inline]
    fn has_calls(&self) -> bool {
        !self.tickets.is_empty(LIST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_keeps_worker_and_time() {
        for (worker, nanos, is_own) in [(0, 0, false), (65_535, 10_000_000_000, true), (3, OWN - 1, true)] {
            let tag = Tag::new(worker, Time { nanos, is_own });
            assert_eq!((tag.worker(), tag.time().nanos, tag.time().is_own), (worker, nanos, is_own));
        }
        assert_eq!(Tag::new(1 << 16, Time { nanos: 0, is_own: false }).worker(), 0xffff);
        assert_eq!(Tag::new(1, Time { nanos: u64::MAX, is_own: false }).time().nanos, OWN - 1);
    }
}
