//! Calls over connections that may lose a request or an answer.
//!
//! The client keeps each request until its answer has arrived, and retransmits it after a timeout:
//! [`RetransmitQueue`]. The server keeps the answer of the last call of each slot, and repeats it for a repeated
//! request without executing the call again: [`ReplyCache`]. The server needs no clock and no acknowledgements:
//! a call with a newer id in the same slot proves that the previous answer has arrived.
//!
//! This module reads no clock and posts nothing.

use crate::path::call_id::{CallEnds, split_call};
use dunlin_fabric::Nanos;
use dunlin_wire::{EntryMeta, Flags};

/// Timeout of the first retransmission, in nanoseconds. It is far longer than a round trip, since the server
/// may be busy with other clients; eRPC (NSDI'19, section 5.3) uses the same value. It doubles with each
/// retransmission.
pub(crate) const FIRST_WAIT: Nanos = 5_000_000;
/// The longest timeout, in nanoseconds.
const LONGEST_WAIT: Nanos = 80_000_000;
/// Shortest time between two scans for due calls, in nanoseconds.
const LOOK_EVERY: Nanos = 1_000_000;
/// Delay before a call that found no room is tried again, in nanoseconds.
const ROOM_WAIT: Nanos = 100_000;
/// Retransmissions in one scan, so that a client that has lost many calls does not flood the server.
const AT_ONCE: usize = 16;
/// A server counts as silent only after this many rounds of retransmissions: a client that did not run for a
/// long time has not received anything either.
const LEAST_ROUNDS: u32 = 8;

/// The state of a call with respect to retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In a batch that is not sent yet.
    Unsent,
    /// Waiting for its answer.
    Waits,
    /// Ended.
    Over,
}

/// The result of a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The request is in flight.
    Yes,
    /// There was no room.
    NoRoom,
}

/// Error: the server has not answered anything for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerUnresponsive;

/// A request that is kept for retransmission.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) call: u32,
    pub(crate) ends: CallEnds,
    pub(crate) flags: Flags,
    pub(crate) payload: Vec<u8>,
    /// Number of retransmissions so far.
    pub(crate) tries: u32,
    /// Time of the next retransmission; 0 until the first scan after the request was sent, so that sending
    /// reads no clock.
    due: Nanos,
    open: bool,
}

/// The requests that a client may have to retransmit: at most one for each slot of its window.
#[derive(Debug)]
pub(crate) struct RetransmitQueue {
    requests: Vec<Request>,
    /// A request was kept since the last scan.
    fresh: bool,
    looked: Nanos,
    /// The earliest due time of the requests that the last scan saw.
    next: Nanos,
    /// Time of the first retransmission since the server was last heard; 0 if there was none.
    silent_since: Nanos,
    rounds: u32,
    patience: Nanos,
}

impl RetransmitQueue {
    /// Creates the table for a window; a server may be silent for `patience` nanoseconds.
    pub(crate) fn new(window: u16, patience: Nanos) -> Self {
        let request = |_| Request {
            call: 0,
            ends: CallEnds::from(0),
            flags: Flags::NONE,
            payload: Vec::with_capacity(64),
            tries: 0,
            due: 0,
            open: false,
        };
        RetransmitQueue {
            requests: (0..window).map(request).collect(),
            fresh: false,
            looked: 0,
            next: Nanos::MAX,
            silent_since: 0,
            rounds: 0,
            patience,
        }
    }

    /// Keeps a request that is about to be sent. Allocates only if the payload is longer than all earlier
    /// ones of its slot.
    #[inline]
    pub(crate) fn keep(&mut self, call: u32, ends: impl Into<CallEnds>, flags: Flags, payload: &[u8]) {
        let Some(request) = self.requests.get_mut(split_call(call).0) else { return };
        request.payload.clear();
        request.payload.extend_from_slice(payload);
        *request = Request {
            call,
            ends: ends.into(),
            flags,
            payload: std::mem::take(&mut request.payload),
            tries: 0,
            due: 0,
            open: true,
        };
        self.fresh = true;
    }

    /// Records that the server has sent something.
    #[inline]
    pub(crate) fn heard(&mut self) {
        self.silent_since = 0;
    }

    /// Retransmits due requests with `again`; returns the time of the next scan. Fails with [`PeerUnresponsive`] if the
    /// server was silent for too long.
    pub(crate) fn look<E: From<PeerUnresponsive>>(
        &mut self,
        now: Nanos,
        mut standing: impl FnMut(u32) -> Standing,
        mut resend: impl FnMut(&Request) -> Result<Sent, E>,
    ) -> Result<Nanos, E> {
        let at = if self.fresh { self.next.min(self.looked + LOOK_EVERY) } else { self.next };
        if now < at {
            return Ok(at);
        }
        (self.fresh, self.looked, self.next) = (false, now, Nanos::MAX);
        let mut sent = 0;
        for request in self.requests.iter_mut().filter(|request| request.open) {
            match standing(request.call) {
                Standing::Waits => {}
                Standing::Unsent => {
                    self.fresh = true;
                    continue;
                }
                Standing::Over => {
                    request.open = false;
                    continue;
                }
            }
            if request.due == 0 {
                request.due = now + FIRST_WAIT;
            } else if request.due <= now {
                let room = sent < AT_ONCE && resend(request)? == Sent::Yes;
                if room {
                    sent += 1;
                    request.tries += 1;
                    request.due = now + (FIRST_WAIT << request.tries.min(8)).min(LONGEST_WAIT);
                } else {
                    sent = AT_ONCE;
                    self.next = self.next.min(now + ROOM_WAIT);
                    continue;
                }
            }
            self.next = self.next.min(request.due);
        }
        if sent > 0 {
            self.count_round(now)?;
        }
        Ok(self.next)
    }

    fn count_round(&mut self, now: Nanos) -> Result<(), PeerUnresponsive> {
        if self.silent_since == 0 {
            (self.silent_since, self.rounds) = (now.max(1), 0);
        }
        self.rounds += 1;
        let silent = self.rounds >= LEAST_ROUNDS && now - self.silent_since >= self.patience;
        if silent { Err(PeerUnresponsive) } else { Ok(()) }
    }
}

/// The last answer of a slot.
#[derive(Debug, Default)]
struct Reply {
    /// The last call seen in the slot.
    call: u32,
    known: bool,
    /// `None` while the call is being executed.
    meta: Option<EntryMeta>,
    payload: Vec<u8>,
}

/// The server's response to a repeated call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// The kept answer.
    Reply(EntryMeta, Vec<u8>),
    /// The call is still being executed.
    Working,
    /// No response: the client has the answer, since it has reused the slot.
    Old,
}

/// The answers that a server keeps for a lane: at most one for each slot of its window.
#[derive(Debug)]
pub(crate) struct ReplyCache(Vec<Reply>);

impl ReplyCache {
    pub(crate) fn new(window: u16) -> Self {
        ReplyCache(
            (0..window).map(|_| Reply { payload: Vec::with_capacity(64), ..Reply::default() }).collect(),
        )
    }

    /// Records a new call; returns the previous call of its slot, which is over.
    #[inline]
    pub(crate) fn begin(&mut self, call: u32) -> Option<u32> {
        let reply = self.0.get_mut(split_call(call).0)?;
        let before = reply.known.then_some(reply.call);
        (reply.call, reply.known, reply.meta) = (call, true, None);
        before
    }

    /// Keeps the answer of a call. Allocates only if the payload is longer than all earlier ones of its slot.
    #[inline]
    pub(crate) fn keep(&mut self, meta: &EntryMeta, payload: &[u8]) {
        if let Some(reply) = self.0.get_mut(split_call(meta.call).0)
            && reply.known
            && reply.call == meta.call
        {
            reply.meta = Some(*meta);
            reply.payload.clear();
            reply.payload.extend_from_slice(payload);
        }
    }

    /// Returns the response to a repeated call. A payload is lent: return it with
    /// [`give_back`](ReplyCache::give_back).
    #[cold]
    pub(crate) fn repeated(&mut self, call: u32) -> Repeated {
        match self.0.get_mut(split_call(call).0) {
            Some(reply) if reply.known && reply.call == call => match reply.meta {
                Some(meta) => Repeated::Reply(meta, std::mem::take(&mut reply.payload)),
                None => Repeated::Working,
            },
            _ => Repeated::Old,
        }
    }

    /// Takes a lent payload back.
    pub(crate) fn give_back(&mut self, call: u32, payload: Vec<u8>) {
        if let Some(reply) = self.0.get_mut(split_call(call).0) {
            reply.payload = payload;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::call_id::SLOT_BITS;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    const MS: Nanos = 1_000_000;

    fn call(slot: u32, generation: u32) -> u32 {
        generation << SLOT_BITS | slot
    }

    fn due(requests: &mut RetransmitQueue, now: Nanos) -> Result<(Vec<u32>, Nanos), PeerUnresponsive> {
        let mut again = Vec::new();
        let next = requests.look::<PeerUnresponsive>(
            now,
            |_| Standing::Waits,
            |request| {
                again.push(request.call);
                Ok(Sent::Yes)
            },
        )?;
        Ok((again, next))
    }

    #[test]
    fn a_request_is_sent_again_after_a_time_and_then_less_and_less_often() {
        let mut requests = RetransmitQueue::new(4, 10_000 * MS);
        requests.keep(call(1, 1), 7, Flags::NONE, b"x");
        let mut now = 100 * MS;
        assert_eq!(due(&mut requests, now).unwrap(), (vec![], now + FIRST_WAIT));
        for wait in [5, 10, 20, 40, 80, 80, 80] {
            assert_eq!(due(&mut requests, now + wait * MS - 1).unwrap().0, []);
            now += wait * MS;
            assert_eq!(due(&mut requests, now).unwrap().0, [call(1, 1)]);
        }
        // The answer came: the slot's next call starts over.
        requests.keep(call(1, 2), 7, Flags::NONE, b"y");
        assert_eq!(due(&mut requests, now + MS).unwrap(), (vec![], now + MS + FIRST_WAIT));
    }

    #[test]
    fn calls_that_are_over_or_not_sent_are_not_sent_again() {
        let mut requests = RetransmitQueue::new(4, 10_000 * MS);
        for slot in 0..3 {
            requests.keep(call(slot, 1), 7, Flags::NONE, &[]);
        }
        let mut look = |now| {
            let standing = |call| [Standing::Over, Standing::Unsent, Standing::Waits][call as usize & 3];
            let mut again = Vec::new();
            let sent = |request: &Request| {
                again.push(request.call);
                Ok::<_, PeerUnresponsive>(Sent::Yes)
            };
            requests.look(now, standing, sent).unwrap();
            again
        };
        assert_eq!(look(10 * MS), []);
        assert_eq!(look(20 * MS), [call(2, 1)]);
        assert_eq!(look(30 * MS), [call(2, 1)]);
    }

    #[test]
    fn what_finds_no_room_is_tried_again_soon() {
        let mut requests = RetransmitQueue::new(4, 10_000 * MS);
        requests.keep(call(0, 1), 7, Flags::NONE, &[]);
        let mut look =
            |now, sent| requests.look::<PeerUnresponsive>(now, |_| Standing::Waits, |_| Ok(sent)).unwrap();
        look(10 * MS, Sent::Yes);
        assert_eq!(look(20 * MS, Sent::NoRoom), 20 * MS + ROOM_WAIT);
        assert_eq!(look(21 * MS, Sent::Yes), 21 * MS + 2 * FIRST_WAIT);
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up_and_one_that_says_something_is_not() {
        for heard in [false, true] {
            let mut requests = RetransmitQueue::new(4, 1000 * MS);
            requests.keep(call(0, 1), 7, Flags::NONE, &[]);
            let mut ended = None;
            for now in (1..5000).map(|ms| ms * MS) {
                if heard && now % (900 * MS) == 0 {
                    requests.heard();
                }
                if due(&mut requests, now) == Err(PeerUnresponsive) {
                    ended = Some(now / MS);
                    break;
                }
            }
            match ended {
                None => assert!(heard),
                Some(ms) => assert!(!heard && (1000..1200).contains(&ms), "{ms}"),
            }
        }
        // A server does not count as silent if the client has not scanned for a long time.
        let mut requests = RetransmitQueue::new(4, 1000 * MS);
        requests.keep(call(0, 1), 7, Flags::NONE, &[]);
        for now in [1, 10, 3000, 6000] {
            assert!(due(&mut requests, now * MS).is_ok());
        }
    }

    #[test]
    fn only_the_last_answer_of_a_slot_is_kept() {
        let mut replies = ReplyCache::new(2);
        let meta = |call| EntryMeta { call, thread: !(call as u16), ..EntryMeta::default() };
        assert_eq!(replies.repeated(call(0, 1)), Repeated::Old);
        assert_eq!(replies.begin(call(0, 1)), None);
        assert_eq!(replies.repeated(call(0, 1)), Repeated::Working);
        replies.keep(&meta(call(0, 1)), b"one");
        let Repeated::Reply(kept, payload) = replies.repeated(call(0, 1)) else { panic!() };
        assert_eq!((kept, &payload[..]), (meta(call(0, 1)), &b"one"[..]));
        replies.give_back(call(0, 1), payload);
        assert!(matches!(replies.repeated(call(0, 1)), Repeated::Reply(..)));
        assert_eq!(replies.begin(call(0, 2)), Some(call(0, 1)));
        assert_eq!(replies.repeated(call(0, 1)), Repeated::Old);
        // A late answer of a call that is over has no effect.
        replies.keep(&meta(call(0, 1)), b"late");
        assert_eq!(replies.repeated(call(0, 2)), Repeated::Working);
        for outside in [call(2, 1), call(4095, 3)] {
            assert_eq!((replies.begin(outside), replies.repeated(outside)), (None, Repeated::Old));
        }
    }

    /// A message in flight: the call, and the bytes of its answer.
    #[derive(Clone, Debug)]
    enum Message {
        Request(u32),
        Answer(u32, Vec<u8>),
    }

    proptest! {
        /// A client and a server with a network that loses, duplicates and reorders messages: each call is
        /// answered with the result of its single execution.
        #[test]
        fn each_call_is_executed_once_and_answered(
            seed: u64,
            window in 1u32..5,
            loss in 0u64..60,
        ) {
            const CALLS: u32 = 20;
            let mut state = seed;
            let mut chance = |below: u64| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 33) % below
            };
            let (mut requests, mut replies) = (RetransmitQueue::new(window as u16, Nanos::MAX), ReplyCache::new(window as u16));
            let mut generations = vec![0; window as usize];
            let mut waits: BTreeMap<u32, u32> = BTreeMap::new();
            let mut executed: BTreeMap<u32, u32> = BTreeMap::new();
            let mut network: VecDeque<Message> = VecDeque::new();
            let (mut made, mut answered, mut now) = (0, 0, MS);
            let mut steps = 0;
            while answered < CALLS {
                steps += 1;
                prop_assert!(steps < 200_000, "{answered} of {CALLS}");
                now += MS / 2;
                for slot in 0..window {
                    if made < CALLS && !waits.contains_key(&slot) {
                        generations[slot as usize] += 1;
                        let id = call(slot, generations[slot as usize]);
                        requests.keep(id, 1, Flags::NONE, &id.to_le_bytes());
                        network.push_back(Message::Request(id));
                        waits.insert(slot, id);
                        made += 1;
                    }
                }
                let standing = |id: u32| {
                    let waits = waits.get(&(id & 0xfff)) == Some(&id);
                    if waits { Standing::Waits } else { Standing::Over }
                };
                requests.look::<PeerUnresponsive>(now, standing, |request| {
                    assert_eq!(request.payload, request.call.to_le_bytes());
                    network.push_back(Message::Request(request.call));
                    Ok(Sent::Yes)
                }).unwrap();
                if network.is_empty() {
                    continue;
                }
                let fate = chance(100);
                let at = chance(network.len() as u64) as usize;
                let Some(message) = network.remove(at) else { break };
                if fate < loss {
                    continue;
                }
                if fate > 95 && network.len() < 100 {
                    network.push_back(message.clone());
                }
                match message {
                    Message::Request(id) => {
                        let newer = executed.keys().all(|done| done & 0xfff != id & 0xfff || *done < id);
                        if newer {
                            replies.begin(id);
                            *executed.entry(id).or_default() += 1;
                            let meta = EntryMeta { call: id, ..EntryMeta::default() };
                            let answer = [&id.to_le_bytes()[..], b"!"].concat();
                            replies.keep(&meta, &answer);
                            network.push_back(Message::Answer(id, answer));
                        } else if let Repeated::Reply(meta, payload) = replies.repeated(id) {
                            network.push_back(Message::Answer(meta.call, payload.clone()));
                            replies.give_back(id, payload);
                        }
                    }
                    Message::Answer(id, answer) => {
                        requests.heard();
                        if waits.get(&(id & 0xfff)) == Some(&id) {
                            prop_assert_eq!(answer, [&id.to_le_bytes()[..], b"!"].concat());
                            waits.remove(&(id & 0xfff));
                            answered += 1;
                        }
                    }
                }
            }
            prop_assert!(executed.values().all(|times| *times == 1), "{:?}", executed);
            prop_assert_eq!(executed.len(), CALLS as usize);
        }
    }
}
