//! Calls over what may lose a request or an answer. The client keeps each request until its answer has come, and sends it
//! again after a time: [`Requests`]. The server keeps the answer of the last call of each slot, and gives it again to who asks
//! again, without executing anything: [`Replies`]. So the server needs no clock and no acknowledgements: a call with a newer id
//! in the same slot says that the answer before has come.
//!
//! Pure: no clock is read here, and nothing is sent.

use crate::path::call_id::split_call;
use dunlin_fabric::Nanos;
use dunlin_wire::{EntryMeta, Flags};

/// How long a client waits before it sends a call again for the first time. Far longer than a round trip, since a server
/// may be busy with others; eRPC (NSDI'19, section 5.3) takes as much. Each further time it waits twice as long.
pub(crate) const FIRST_WAIT: Nanos = 5_000_000;
/// But not longer than this.
const LONGEST_WAIT: Nanos = 80_000_000;
/// Calls are looked through for those that are due this often at most.
const LOOK_EVERY: Nanos = 1_000_000;
/// What found no room is tried again after this.
const ROOM_WAIT: Nanos = 100_000;
/// Calls sent again at a time: who has lost many does not flood the server with them.
const AT_ONCE: usize = 16;
/// A server counts as silent only after so many times that something was sent again: a client that was not running for long
/// has heard nothing either.
const LEAST_ROUNDS: u32 = 8;

/// Where a call stands, as far as sending it again is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It lies in a batch that was not sent yet.
    Unsent,
    /// It waits for its answer.
    Waits,
    /// It has ended.
    Over,
}

/// What became of sending a call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    Yes,
    /// There was no room now.
    NoRoom,
}

/// A server has not answered anything for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silent;

/// A request as it is sent again.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) call: u32,
    pub(crate) function: u16,
    pub(crate) flags: Flags,
    pub(crate) payload: Vec<u8>,
    /// How often it was sent again.
    pub(crate) tries: u32,
    /// When it is to be sent again; 0 until the first look after it was sent: no clock is read to send.
    due: Nanos,
    open: bool,
}

/// What a client may have to send again: at most a request for each slot of its window.
#[derive(Debug)]
pub(crate) struct Requests {
    requests: Vec<Request>,
    /// A request was kept since the last look.
    fresh: bool,
    looked: Nanos,
    /// None of those seen with the last look is due before.
    next: Nanos,
    /// Since when something was sent again and nothing was heard; 0 if something was.
    silent_since: Nanos,
    rounds: u32,
    patience: Nanos,
}

impl Requests {
    /// For a window; a server may be silent for `patience`.
    pub(crate) fn new(window: u16, patience: Nanos) -> Self {
        let request = |_| Request {
            call: 0,
            function: 0,
            flags: Flags::NONE,
            payload: Vec::with_capacity(64),
            tries: 0,
            due: 0,
            open: false,
        };
        Requests {
            requests: (0..window).map(request).collect(),
            fresh: false,
            looked: 0,
            next: Nanos::MAX,
            silent_since: 0,
            rounds: 0,
            patience,
        }
    }

    /// Keeps a request that is about to be sent. Allocates only for a payload that is longer than all before in its slot.
    #[inline]
    pub(crate) fn keep(&mut self, call: u32, function: u16, flags: Flags, payload: &[u8]) {
        let Some(request) = self.requests.get_mut(split_call(call).0) else { return };
        request.payload.clear();
        request.payload.extend_from_slice(payload);
        *request = Request {
            call,
            function,
            flags,
            payload: std::mem::take(&mut request.payload),
            tries: 0,
            due: 0,
            open: true,
        };
        self.fresh = true;
    }

    /// The server has said something.
    #[inline]
    pub(crate) fn heard(&mut self) {
        self.silent_since = 0;
    }

    /// Has those sent again that are due, by `again`; answers when to look next.
    pub(crate) fn look<E: From<Silent>>(
        &mut self,
        now: Nanos,
        mut standing: impl FnMut(u32) -> Standing,
        mut again: impl FnMut(&Request) -> Result<Sent, E>,
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
                let room = sent < AT_ONCE && again(request)? == Sent::Yes;
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

    fn count_round(&mut self, now: Nanos) -> Result<(), Silent> {
        if self.silent_since == 0 {
            (self.silent_since, self.rounds) = (now.max(1), 0);
        }
        self.rounds += 1;
        let silent = self.rounds >= LEAST_ROUNDS && now - self.silent_since >= self.patience;
        if silent { Err(Silent) } else { Ok(()) }
    }
}

/// The last answer of a slot.
#[derive(Debug, Default)]
struct Reply {
    /// The call of which something was heard last.
    call: u32,
    known: bool,
    /// `None` while it is being worked on.
    meta: Option<EntryMeta>,
    payload: Vec<u8>,
}

/// What a server says to a call that comes again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// The same as before.
    Reply(EntryMeta, Vec<u8>),
    /// That it is at work.
    Working,
    /// Nothing: its client has heard the answer, since it has used the slot again.
    Old,
}

/// The answers that a server keeps for a lane: at most one for each slot of its window.
#[derive(Debug)]
pub(crate) struct Replies(Vec<Reply>);

impl Replies {
    pub(crate) fn new(window: u16) -> Self {
        Replies((0..window).map(|_| Reply { payload: Vec::with_capacity(64), ..Reply::default() }).collect())
    }

    /// A new call has come; answers the one that its slot had before, which is over.
    #[inline]
    pub(crate) fn begin(&mut self, call: u32) -> Option<u32> {
        let reply = self.0.get_mut(split_call(call).0)?;
        let before = reply.known.then_some(reply.call);
        (reply.call, reply.known, reply.meta) = (call, true, None);
        before
    }

    /// Keeps the answer of a call. Allocates only for one that is longer than all before in its slot.
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

    /// What is said to a call that came before. A payload is lent: [`give_back`](Replies::give_back) it.
    #[cold]
    pub(crate) fn again(&mut self, call: u32) -> Repeated {
        match self.0.get_mut(split_call(call).0) {
            Some(reply) if reply.known && reply.call == call => match reply.meta {
                Some(meta) => Repeated::Reply(meta, std::mem::take(&mut reply.payload)),
                None => Repeated::Working,
            },
            _ => Repeated::Old,
        }
    }

    /// Gives a payload back.
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

    fn due(requests: &mut Requests, now: Nanos) -> Result<(Vec<u32>, Nanos), Silent> {
        let mut again = Vec::new();
        let next = requests.look::<Silent>(
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
        let mut requests = Requests::new(4, 10_000 * MS);
        requests.keep(call(1, 1), 7, Flags::NONE, b"x");
        let mut now = 100 * MS;
        assert_eq!(due(&mut requests, now).unwrap(), (vec![], now + FIRST_WAIT));
        for wait in [5, 10, 20, 40, 80, 80, 80] {
            assert_eq!(due(&mut requests, now + wait * MS - 1).unwrap().0, []);
            now += wait * MS;
            assert_eq!(due(&mut requests, now).unwrap().0, [call(1, 1)]);
        }
        // The answer came: the slot's next call begins anew.
        requests.keep(call(1, 2), 7, Flags::NONE, b"y");
        assert_eq!(due(&mut requests, now + MS).unwrap(), (vec![], now + MS + FIRST_WAIT));
    }

    #[test]
    fn calls_that_are_over_or_not_sent_are_not_sent_again() {
        let mut requests = Requests::new(4, 10_000 * MS);
        for slot in 0..3 {
            requests.keep(call(slot, 1), 7, Flags::NONE, &[]);
        }
        let mut look = |now| {
            let standing = |call| [Standing::Over, Standing::Unsent, Standing::Waits][call as usize & 3];
            let mut again = Vec::new();
            let sent = |request: &Request| {
                again.push(request.call);
                Ok::<_, Silent>(Sent::Yes)
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
        let mut requests = Requests::new(4, 10_000 * MS);
        requests.keep(call(0, 1), 7, Flags::NONE, &[]);
        let mut look = |now, sent| requests.look::<Silent>(now, |_| Standing::Waits, |_| Ok(sent)).unwrap();
        look(10 * MS, Sent::Yes);
        assert_eq!(look(20 * MS, Sent::NoRoom), 20 * MS + ROOM_WAIT);
        assert_eq!(look(21 * MS, Sent::Yes), 21 * MS + 2 * FIRST_WAIT);
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up_and_one_that_says_something_is_not() {
        for heard in [false, true] {
            let mut requests = Requests::new(4, 1000 * MS);
            requests.keep(call(0, 1), 7, Flags::NONE, &[]);
            let mut ended = None;
            for now in (1..5000).map(|ms| ms * MS) {
                if heard && now % (900 * MS) == 0 {
                    requests.heard();
                }
                if due(&mut requests, now) == Err(Silent) {
                    ended = Some(now / MS);
                    break;
                }
            }
            match ended {
                None => assert!(heard),
                Some(ms) => assert!(!heard && (1000..1200).contains(&ms), "{ms}"),
            }
        }
        // Nobody is silent for a client that has not looked for long.
        let mut requests = Requests::new(4, 1000 * MS);
        requests.keep(call(0, 1), 7, Flags::NONE, &[]);
        for now in [1, 10, 3000, 6000] {
            assert!(due(&mut requests, now * MS).is_ok());
        }
    }

    #[test]
    fn only_the_last_answer_of_a_slot_is_kept() {
        let mut replies = Replies::new(2);
        let meta = |call| EntryMeta { call, ..EntryMeta::default() };
        assert_eq!(replies.again(call(0, 1)), Repeated::Old);
        assert_eq!(replies.begin(call(0, 1)), None);
        assert_eq!(replies.again(call(0, 1)), Repeated::Working);
        replies.keep(&meta(call(0, 1)), b"one");
        let Repeated::Reply(kept, payload) = replies.again(call(0, 1)) else { panic!() };
        assert_eq!((kept, &payload[..]), (meta(call(0, 1)), &b"one"[..]));
        replies.give_back(call(0, 1), payload);
        assert!(matches!(replies.again(call(0, 1)), Repeated::Reply(..)));
        assert_eq!(replies.begin(call(0, 2)), Some(call(0, 1)));
        assert_eq!(replies.again(call(0, 1)), Repeated::Old);
        // A late answer of a call that is over changes nothing.
        replies.keep(&meta(call(0, 1)), b"late");
        assert_eq!(replies.again(call(0, 2)), Repeated::Working);
        for outside in [call(2, 1), call(4095, 3)] {
            assert_eq!((replies.begin(outside), replies.again(outside)), (None, Repeated::Old));
        }
    }

    /// A message on its way: the call, and its answer's bytes.
    #[derive(Clone, Debug)]
    enum Message {
        Request(u32),
        Answer(u32, Vec<u8>),
    }

    proptest! {
        /// A client and a server with a network between them that loses, doubles and reorders: each call is answered with what
        /// its one execution gave.
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
            let (mut requests, mut replies) = (Requests::new(window as u16, Nanos::MAX), Replies::new(window as u16));
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
                requests.look::<Silent>(now, standing, |request| {
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
                        } else if let Repeated::Reply(meta, payload) = replies.again(id) {
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
