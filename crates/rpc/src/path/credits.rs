//! Credits of a queue pair: how much a client may send before the server agrees again (FLOCK section 5.1,
//! credit renewal), as pure state machines of both ends.
//!
//! A credit is one request, so a message with several entries costs several. A queue pair starts with C
//! credits. The message that leaves half of C or less asks for C more, and reports the median number of
//! entries of the messages since the last request. The request travels in the message's header, or, as in the
//! paper (section 7), in the immediate data of a WRITE behind the message. The server may see that before the
//! message or long after it: it answers once it has both. It grants, or declines: then the queue pair is
//! inactive until the server grants again by itself. The server still takes messages that were sent before
//! the client knew, because they are paid for. A client that knows sends only the message that it is building:
//! threads leave an inactive queue pair once their calls on it
//! have ended (section 5.2). The client keeps the credits that it has left, so both accounts always agree.
//!
//! | | client | server |
//! |---|---|---|
//! | spends, asks | [`Credits::spend`], [`Credits::owed`] | [`Allowance::take`] counts, [`Allowance::ask`] |
//! | operations on memory | [`Credits::operated`], [`Credits::operations`] | [`Allowance::take_operations`] |
//! | | | [`Allowance::renewal_due`] clips the report |
//! | grants | [`Credits::grant`] | [`Allowance::grant`] |
//! | declines | [`Credits::decline`] | [`Allowance::decline`] |
//!
//! An operation on the server's memory costs a credit, too, and counts as a message with one entry. The server does
//! not see it. The client tells the number of operations with its next request, in a message of its own: until then
//! the server's account has more left than the client's. A client that tells fewer gains nothing that its queue pair
//! does not bound anyway: one-sided operations take the server's NIC only, and as many as the send queue holds.
//!
//! One request for credits is under way at a time, so a client never has more than C and a half.

/// C of the paper: the credits of a new queue pair, and of each renewal.
pub(crate) const CREDITS: u16 = 32;

/// The largest C: a grant fits into six bits.
pub(crate) const MAX_CREDITS: u16 = 63;

/// The bit of [`Header::credits`](dunlin_wire::Header::credits) by which an answer grants C more.
/// [`Flags::CONTEXT_SWITCH`](dunlin_wire::Flags) declines.
pub(crate) const GRANTED: u8 = 0x80;

/// Immediate data that asks for credits. The degree is in the low byte. No lane has such a number, and reports of
/// heads have all bits.
const RENEWAL: u32 = 0x4352_0000;

/// RECVs that the server posts for such requests, for each lane. A client that keeps the rules has one request
/// under way; another one waits for its own RECVs only.
pub(crate) const RENEWAL_RECEIVES: u32 = 3;

/// Returns the immediate data that asks for credits.
pub(crate) fn renewal_immediate(degree: u16) -> u32 {
    RENEWAL | u32::from(degree.min(MAX_CREDITS))
}

/// Returns the degree in immediate data that asks for credits, not checked; `None` for other immediate data.
pub(crate) const fn degree_of(immediate: u32) -> Option<u8> {
    if immediate & !0xff == RENEWAL { Some(immediate as u8) } else { None }
}

/// Counts of messages by their number of entries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Degrees {
    /// Messages with 1 to [`MAX_CREDITS`] entries; longer ones count as these.
    counts: [u16; MAX_CREDITS as usize],
    messages: u16,
}

impl Degrees {
    const NONE: Degrees = Degrees { counts: [0; MAX_CREDITS as usize], messages: 0 };

    fn add(&mut self, entries: u16) {
        if let Some(count) = self.counts.get_mut(usize::from(entries.clamp(1, MAX_CREDITS) - 1)) {
            *count = count.saturating_add(1);
            self.messages = self.messages.saturating_add(1);
        }
    }

    fn remove(&mut self, entries: u16) {
        if let Some(count) = self.counts.get_mut(usize::from(entries.clamp(1, MAX_CREDITS) - 1)) {
            *count = count.saturating_sub(1);
            self.messages = self.messages.saturating_sub(1);
        }
    }

    /// The lower median; 0 without messages.
    fn median(&self) -> u16 {
        let (half, mut below) = (self.messages.div_ceil(2), 0);
        for (degree, count) in (1..).zip(self.counts) {
            below += count;
            if below >= half && half > 0 {
                return degree;
            }
        }
        0
    }
}

/// The part of a message's header that concerns credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    /// The client has enough.
    No,
    /// The client asks for C more. The median number of entries of the messages since the last request is 1 to
    /// [`MAX_CREDITS`], and not zero: in the header zero stands for no request.
    Renew {
        /// The median coalescing degree.
        degree: u16,
    },
}

/// The client's end of a queue pair's credits. The thread that leads the queue pair uses it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Credits {
    /// C of this queue pair.
    renewal: u16,
    left: u16,
    has_asked: bool,
    is_active: bool,
    degrees: Degrees,
    /// Requests travel apart from messages.
    is_apart: bool,
    /// The degree of a request that has to be sent apart, behind the message that caused it.
    owed: Option<u16>,
    /// Operations on memory that the server was not told of.
    operations: u16,
}

impl Credits {
    /// Creates the credits of a new queue pair, with C of 1 to [`MAX_CREDITS`].
    pub(crate) fn new(renewal: u16, is_apart: bool) -> Self {
        let renewal = renewal.clamp(1, MAX_CREDITS);
        let (left, degrees) = (renewal, Degrees::NONE);
        Credits {
            renewal,
            left,
            has_asked: false,
            is_active: true,
            degrees,
            is_apart,
            owed: None,
            operations: 0,
        }
    }

    /// Returns the number that asks for credits in the message's header; 0 if nothing does.
    pub(crate) fn in_header(&self, ask: Ask) -> u8 {
        match ask {
            Ask::Renew { degree } if !self.has_to_ask_apart() => degree.min(MAX_CREDITS) as u8,
            _ => 0,
        }
    }

    /// Records that a message was sent. A request that it did not carry is owed from now on.
    #[inline]
    pub(crate) fn sent(&mut self, ask: Ask) {
        if let Ask::Renew { degree } = ask
            && self.has_to_ask_apart()
        {
            self.owed = Some(degree);
        }
    }

    /// Returns whether a request cannot travel in the message that causes it.
    fn has_to_ask_apart(&self) -> bool {
        self.is_apart || self.operations > 0
    }

    /// Records that an operation on memory, whose credit was [spent](Credits::spend), is posted or will be.
    #[inline]
    pub(crate) fn operated(&mut self, ask: Ask) {
        self.operations += 1;
        self.sent(ask);
    }

    /// Returns the number of operations that the next request has to tell. With any, it is a message.
    #[inline]
    pub(crate) fn operations(&self) -> u16 {
        self.operations
    }

    /// Returns the degree of the request that has to be sent apart.
    #[inline]
    pub(crate) fn owed(&self) -> Option<u16> {
        self.owed
    }

    /// Records that this request was sent, with the number of operations.
    pub(crate) fn paid(&mut self) {
        (self.owed, self.operations) = (None, 0);
    }

    /// The largest number of entries that the next message may have; 0 while the queue pair waits for a grant
    /// or is inactive.
    #[inline]
    pub(crate) fn available(&self) -> u16 {
        if self.is_active { self.left } else { 0 }
    }

    /// Returns whether the server lets this queue pair be used. Threads of an inactive one move to others.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Returns whether the server has to answer a request, or to make the queue pair active again.
    #[inline]
    pub(crate) fn awaits_word(&self) -> bool {
        self.has_asked || !self.is_active
    }

    /// Spends the credits of a message that is about to be sent, and returns the request that its header has
    /// to carry. `None` if there are not enough; then nothing is spent and the message is not sent. A message
    /// that was being built when the queue pair became inactive is still paid for.
    #[inline]
    pub(crate) fn spend(&mut self, entries: u16) -> Option<Ask> {
        if entries == 0 || entries > self.left {
            return None;
        }
        self.left -= entries;
        self.degrees.add(entries);
        if !self.is_active || self.has_asked || self.left > self.renewal / 2 {
            return Some(Ask::No);
        }
        self.has_asked = true;
        let degree = self.degrees.median();
        self.degrees = Degrees::NONE;
        Some(Ask::Renew { degree })
    }

    /// Takes back the credits of a message that found no room, with the request that it would have carried.
    #[cold]
    pub(crate) fn unspend(&mut self, entries: u16, ask: Ask) {
        self.left += entries;
        match ask {
            Ask::No => self.degrees.remove(entries),
            // The next request reports the messages after this one.
            Ask::Renew { .. } => self.has_asked = false,
        }
    }

    /// Returns C.
    pub(crate) fn renewal(&self) -> u16 {
        self.renewal
    }

    /// Takes a grant: the answer to a request, or, on an inactive queue pair, the server's word that it is
    /// active again. More than a server may grant is clipped: at most C a grant, and C and a half in all.
    #[inline]
    pub(crate) fn grant(&mut self, credits: u16) {
        if credits == 0 {
            return;
        }
        (self.is_active, self.has_asked, self.owed) = (true, false, None);
        self.left = (self.left + credits.min(self.renewal)).min(self.renewal + self.renewal / 2);
    }

    /// Takes the server's refusal: the queue pair is inactive, and nothing more is sent on it.
    pub(crate) fn decline(&mut self) {
        (self.is_active, self.has_asked, self.owed) = (false, false, None);
    }
}

/// A message that the client had no credits for: it broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {entries} entries or operations came with {left} credits left")]
pub(crate) struct Overdrawn {
    /// Entries of the message.
    pub(crate) entries: u16,
    /// Credits that the client had.
    pub(crate) left: u16,
}

/// A request for credits that the client had no right to: it broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WrongAsk {
    /// The client's last request is not answered, or it has more than half of C.
    #[error("it asked for credits more often than it spent half of them")]
    TooOften,
    /// A request by immediate data where they travel in messages, or the other way round.
    #[error("it asked for credits in another way than the lane was opened for")]
    OtherWay,
    /// The degree is none that a message can have.
    #[error("it reported a degree of {0}")]
    Degree(u8),
}

/// The server's end of a queue pair's credits. The worker of the lane uses it. Any input of the peer is safe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Allowance {
    renewal: u16,
    /// Granted and not yet taken.
    left: u16,
    is_active: bool,
    /// Messages and entries since the message that last left half of C or less, and the most entries of one.
    messages: u32,
    entries: u32,
    most: u16,
    /// A message has left half of C or less, and the request for more is not answered: the largest degree that the
    /// client can report.
    bound: Option<u16>,
    /// The degree of a request that came before that message was taken.
    asked: Option<u16>,
}

impl Allowance {
    /// Creates the account of a new queue pair, with the same C as the client's.
    pub(crate) fn new(renewal: u16) -> Self {
        let renewal = renewal.clamp(1, MAX_CREDITS);
        let (left, messages, entries, most) = (renewal, 0, 0, 0);
        Allowance { renewal, left, is_active: true, messages, entries, most, bound: None, asked: None }
    }

    /// Returns whether the queue pair is active. A request for credits on an inactive one is declined.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Counts a message that is taken.
    #[inline]
    pub(crate) fn take(&mut self, entries: u16) -> Result<(), Overdrawn> {
        if entries == 0 || entries > self.left {
            return Err(Overdrawn { entries, left: self.left });
        }
        let had_enough = self.left > self.renewal / 2;
        self.left -= entries;
        self.messages += 1;
        self.entries += u32::from(entries);
        self.most = self.most.max(entries);
        if had_enough && self.left <= self.renewal / 2 {
            // At least half of the messages have the median or more, so a client cannot report more than it has sent.
            let bound = u16::try_from(self.entries / (self.messages / 2 + 1)).unwrap_or(u16::MAX);
            self.bound = Some(bound.min(self.most).max(1));
            (self.messages, self.entries, self.most) = (0, 0, 0);
        }
        Ok(())
    }

    /// Counts operations on memory, of which the client tells with a request.
    pub(crate) fn take_operations(&mut self, operations: u16) -> Result<(), Overdrawn> {
        if operations > self.left {
            return Err(Overdrawn { entries: operations, left: self.left });
        }
        (0..operations).try_for_each(|_| self.take(1))
    }

    /// Takes a request for credits, which reports a degree. It may come before the message that caused it is taken; a
    /// second one may not.
    pub(crate) fn ask(&mut self, degree: u8) -> Result<(), WrongAsk> {
        if !(1..=MAX_CREDITS).contains(&degree.into()) {
            return Err(WrongAsk::Degree(degree));
        }
        if self.asked.is_some() {
            return Err(WrongAsk::TooOften);
        }
        self.asked = Some(degree.into());
        Ok(())
    }

    /// Returns the degree of a request that has to be answered now: both the request and the message that caused it
    /// have come. The degree is at least 1, and at most the largest that fits the messages.
    #[inline]
    pub(crate) fn renewal_due(&mut self) -> Option<u16> {
        let (bound, asked) = (self.bound?, self.asked?);
        (self.bound, self.asked) = (None, None);
        Some(asked.min(bound))
    }

    /// Grants C credits, in answer to a request or to make the queue pair active, and returns their number. 0 if
    /// the client has more than half of C: it has not asked.
    pub(crate) fn grant(&mut self) -> u16 {
        if self.left > self.renewal / 2 {
            return 0;
        }
        self.is_active = true;
        self.left += self.renewal;
        self.renewal
    }

    /// Declines a request for credits: the queue pair is inactive from now on.
    pub(crate) fn decline(&mut self) {
        self.is_active = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};

    #[test]
    fn a_queue_pair_asks_at_half() {
        let mut credits = Credits::new(CREDITS, false);
        for _ in 0..15 {
            assert_eq!(credits.spend(1), Some(Ask::No));
        }
        assert_eq!(credits.spend(1), Some(Ask::Renew { degree: 1 }));
        assert_eq!(credits.available(), 16);
        assert_eq!(credits.spend(5), Some(Ask::No), "asked once");
        assert_eq!(credits.spend(12), None, "more than there are");
        assert_eq!(credits.spend(11), Some(Ask::No));
        assert_eq!((credits.available(), credits.spend(1)), (0, None));
        credits.grant(CREDITS);
        assert_eq!(credits.available(), 32);
        // The median is of all messages since the last request: 5, 11, 3, 13.
        assert_eq!(credits.spend(3), Some(Ask::No));
        assert_eq!(credits.spend(13), Some(Ask::Renew { degree: 5 }));
        credits.grant(CREDITS);
        assert_eq!(credits.spend(32), Some(Ask::Renew { degree: 32 }));
    }

    #[test]
    fn a_declined_queue_pair_is_not_used_until_it_is_granted_again() {
        let mut credits = Credits::new(8, false);
        assert_eq!(credits.spend(5), Some(Ask::Renew { degree: 5 }));
        credits.decline();
        assert_eq!((credits.is_active(), credits.available()), (false, 0));
        assert_eq!(credits.spend(4), None);
        assert_eq!(credits.spend(1), Some(Ask::No), "the message was being built");
        credits.grant(0);
        assert!(!credits.is_active());
        credits.grant(8);
        assert_eq!((credits.is_active(), credits.available()), (true, 10));
        assert_eq!(credits.spend(6), Some(Ask::Renew { degree: 1 }));
    }

    #[test]
    fn a_message_without_room_costs_nothing() {
        let mut credits = Credits::new(8, false);
        assert_eq!(credits.spend(3), Some(Ask::No));
        credits.unspend(3, Ask::No);
        assert_eq!(credits, Credits::new(8, false));
        let ask = credits.spend(5).unwrap();
        credits.unspend(5, ask);
        assert_eq!((credits.available(), credits.spend(6)), (8, Some(Ask::Renew { degree: 6 })));
    }

    #[test]
    fn a_peer_that_breaks_the_rules_gains_nothing() {
        let mut credits = Credits::new(8, false);
        (0..9).for_each(|_| credits.grant(u16::MAX));
        assert_eq!(credits.available(), 12);
        let mut allowance = Allowance::new(8);
        assert_eq!(allowance.take(9), Err(Overdrawn { entries: 9, left: 8 }));
        assert_eq!(allowance.take(0), Err(Overdrawn { entries: 0, left: 8 }));
        assert_eq!(allowance.grant(), 0, "nothing was spent");
        assert_eq!(allowance.ask(0), Err(WrongAsk::Degree(0)));
        assert_eq!(allowance.ask(64), Err(WrongAsk::Degree(64)));
        assert_eq!(allowance.ask(63), Ok(()), "a request may come before its message");
        assert_eq!(allowance.ask(1), Err(WrongAsk::TooOften));
        [1, 1].iter().for_each(|entries| allowance.take(*entries).unwrap());
        assert_eq!(allowance.renewal_due(), None);
        allowance.take(3).unwrap();
        assert_eq!(allowance.renewal_due(), Some(2), "two of three messages cannot have had more");
        assert_eq!(allowance.ask(5), Ok(()));
        assert_eq!(allowance.renewal_due(), None, "nothing was spent");
        assert_eq!(allowance.ask(5), Err(WrongAsk::TooOften));
        assert_eq!(allowance.grant(), 8);
        allowance.decline();
        assert_eq!(allowance.take(11), Ok(()), "sent before the client knew");
        assert_eq!(allowance.take(1), Err(Overdrawn { entries: 1, left: 0 }));
    }

    /// A message of the server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Word {
        Grant(u16),
        Decline,
    }

    /// Both ends, and the messages between them. The degrees of the client's messages since its last request
    /// are kept beside, to judge what it reports.
    #[derive(Clone, Debug)]
    struct World {
        client: Credits,
        server: Allowance,
        requests: VecDeque<(u16, u16, Ask)>,
        /// The client operates on memory, too.
        operates: bool,
        /// A request for credits that travels apart: nothing says when the server sees it.
        apart: Option<u16>,
        words: VecDeque<Word>,
        /// Degrees of messages that the client sent since its last request.
        sent: Vec<u16>,
        /// The degree of the client's last request.
        reported: u16,
        /// A request that the server has to answer.
        unanswered: bool,
    }

    impl World {
        fn new(renewal: u16, is_apart: bool, operates: bool) -> World {
            World {
                operates,
                client: Credits::new(renewal, is_apart),
                server: Allowance::new(renewal),
                requests: VecDeque::new(),
                apart: None,
                words: VecDeque::new(),
                sent: Vec::new(),
                reported: 0,
                unanswered: false,
            }
        }

        /// All that the future depends on.
        fn key(&self) -> String {
            format!("{self:?}")
        }

        /// The server looks whether it has to answer a request.
        fn look(&mut self) {
            if let Some(degree) = self.server.renewal_due() {
                // Messages between an operation and the word of it may shift the bound.
                assert!(
                    degree == self.reported || self.operates && degree < self.reported,
                    "a true report is not clipped"
                );
                assert!(!self.unanswered, "two requests are under way");
                self.unanswered = true;
            }
        }

        /// Every step that can come next, each with the world after it.
        fn steps(&self) -> Vec<World> {
            let mut next = Vec::new();
            // An inactive client may still send the message that it was building.
            for entries in 1..=self.client.left {
                let mut world = self.clone();
                let ask = world.client.spend(entries).unwrap();
                assert!(self.client.is_active() || ask == Ask::No);
                world.client.sent(ask);
                world.sent.push(entries);
                if let Ask::Renew { degree } = ask {
                    world.sent.sort_unstable();
                    assert_eq!(degree, world.sent[(world.sent.len() - 1) / 2]);
                    world.sent.clear();
                    world.reported = degree;
                }
                let in_message = if world.client.in_header(ask) != 0 { ask } else { Ask::No };
                world.requests.push_back((entries, 0, in_message));
                next.push(world);
            }
            if self.operates && self.client.left > 0 {
                let mut world = self.clone();
                let ask = world.client.spend(1).unwrap();
                world.client.operated(ask);
                world.sent.push(1);
                if let Ask::Renew { degree } = ask {
                    world.sent.clear();
                    world.reported = degree;
                }
                next.push(world);
            }
            if let Some(degree) = self.client.owed() {
                let mut world = self.clone();
                match world.client.operations() {
                    0 => assert_eq!(world.apart.replace(degree), None, "two requests are under way"),
                    operations => world.requests.push_back((0, operations, Ask::Renew { degree })),
                }
                world.client.paid();
                next.push(world);
            }
            if let Some(degree) = self.apart {
                let mut world = self.clone();
                world.apart = None;
                assert_eq!(
                    world.server.ask(degree as u8),
                    Ok(()),
                    "a client that keeps the rules asks too often"
                );
                world.look();
                next.push(world);
            }
            if let Some((entries, operations, ask)) = self.requests.front().copied() {
                let mut world = self.clone();
                world.requests.pop_front();
                let taken = match operations {
                    0 => world.server.take(entries),
                    operations => world.server.take_operations(operations),
                };
                assert_eq!(taken, Ok(()), "a client that keeps the rules overdraws");
                if let Ask::Renew { degree } = ask {
                    assert_eq!(world.server.ask(degree as u8), Ok(()));
                }
                world.look();
                assert!(ask == Ask::No || world.unanswered, "a request in a message is answered at once");
                next.push(world);
            }
            if self.unanswered {
                let mut granted = self.clone();
                granted.unanswered = false;
                let credits = granted.server.grant();
                assert!(credits > 0, "a client that keeps the rules asks too early");
                granted.words.push_back(Word::Grant(credits));
                next.push(granted);
                let mut declined = self.clone();
                declined.unanswered = false;
                declined.server.decline();
                declined.words.push_back(Word::Decline);
                next.push(declined);
            }
            // The server makes a queue pair active again, maybe before the client knows that it was not.
            if !self.server.is_active() {
                let mut world = self.clone();
                let granted = world.server.grant();
                assert!(granted > 0);
                world.words.push_back(Word::Grant(granted));
                next.push(world);
            }
            if let Some(word) = self.words.front().copied() {
                let mut world = self.clone();
                world.words.pop_front();
                match word {
                    Word::Grant(credits) => world.client.grant(credits),
                    Word::Decline => world.client.decline(),
                }
                next.push(world);
            }
            next
        }

        fn check(&self, renewal: u16) {
            assert!(self.client.available() <= renewal + renewal / 2);
            let under_way: u16 =
                self.requests.iter().map(|(entries, operations, _)| entries + operations).sum();
            let granted = |word: &Word| if let Word::Grant(credits) = word { *credits } else { 0 };
            let granted: u16 = self.words.iter().map(granted).sum();
            assert_eq!(
                self.client.left + self.client.operations() + under_way + granted,
                self.server.left,
                "the accounts differ: {self:?}"
            );
            if self.words.is_empty() {
                assert_eq!(self.client.is_active(), self.server.is_active());
                let asks = self.requests.iter().filter(|(_, _, ask)| *ask != Ask::No).count()
                    + usize::from(self.client.owed().is_some())
                    + usize::from(self.apart.is_some())
                    + usize::from(self.server.asked.is_some())
                    + usize::from(self.unanswered);
                assert_eq!(asks, usize::from(self.client.has_asked), "{self:?}");
            }
            // A client without credits always has an answer to wait for, or knows that it is inactive.
            assert!(self.client.available() > 0 || self.client.awaits_word());
        }
    }

    /// Explores every order of messages, operations, requests for credits, grants and refusals, for all C up to 5 (with
    /// operations up to 3), with requests in messages and apart.
    #[test]
    fn both_ends_agree_in_every_order() {
        let worlds = (1..=5).flat_map(|renewal| [false, true].map(|is_apart| (renewal, is_apart)));
        let worlds = worlds.flat_map(|(renewal, is_apart)| {
            let operates = (renewal <= 3).then_some((renewal, is_apart, true));
            [(renewal, is_apart, false)].into_iter().chain(operates)
        });
        for (renewal, is_apart, operates) in worlds {
            let first = World::new(renewal, is_apart, operates);
            let mut seen = BTreeSet::from([first.key()]);
            let mut open = vec![first];
            let (mut declined, mut early, mut late) = (0, 0, 0);
            while let Some(world) = open.pop() {
                world.check(renewal);
                declined += usize::from(!world.client.is_active());
                early += usize::from(world.server.asked.is_some());
                late += usize::from(world.server.bound.is_some());
                let next = world.steps();
                assert!(!next.is_empty(), "nothing can happen any more: {world:?}");
                for world in next {
                    if seen.insert(world.key()) {
                        open.push(world);
                    }
                }
            }
            assert!(seen.len() > usize::from(renewal) && declined > 0, "{} states", seen.len());
            let both = (early > 0, late > 0);
            assert!(operates || both == (is_apart, is_apart), "requests before and after their message");
        }
    }

    /// Operations cost credits, and the request that they cause tells their number.
    #[test]
    fn operations_are_told_with_a_request() {
        let (mut credits, mut allowance) = (Credits::new(8, false), Allowance::new(8));
        for _ in 0..3 {
            let ask = credits.spend(1).unwrap();
            credits.operated(ask);
        }
        assert_eq!((credits.available(), credits.owed(), credits.operations()), (5, None, 3));
        // The message leaves half of C: it cannot say how many operations came before.
        let ask = credits.spend(1).unwrap();
        assert_eq!((ask, credits.in_header(ask)), (Ask::Renew { degree: 1 }, 0));
        credits.sent(ask);
        assert_eq!((credits.owed(), credits.operations()), (Some(1), 3));
        credits.paid();
        assert_eq!((credits.owed(), credits.operations()), (None, 0));
        allowance.take(1).unwrap();
        assert_eq!(allowance.take_operations(8), Err(Overdrawn { entries: 8, left: 7 }));
        allowance.take_operations(3).unwrap();
        allowance.ask(1).unwrap();
        assert_eq!((allowance.renewal_due(), allowance.grant()), (Some(1), 8));
        credits.grant(8);
        assert_eq!((credits.available(), allowance.left), (12, 12));
        // Nothing is left, and nothing was told: operations wait for the grant.
        for _ in 0..12 {
            let ask = credits.spend(1).unwrap();
            credits.operated(ask);
        }
        assert_eq!((credits.spend(1), credits.owed(), credits.awaits_word()), (None, Some(1), true));
    }

    /// A request that travels apart is owed until it is sent, and not asked twice.
    #[test]
    fn a_request_apart_is_owed_until_it_is_sent() {
        let mut credits = Credits::new(8, true);
        let ask = credits.spend(4).unwrap();
        assert_eq!((ask, credits.in_header(ask), credits.owed()), (Ask::Renew { degree: 4 }, 0, None));
        credits.unspend(4, ask);
        assert_eq!(credits.owed(), None, "the message found no room");
        let ask = credits.spend(5).unwrap();
        credits.sent(ask);
        assert_eq!(credits.owed(), Some(5));
        assert_eq!(credits.spend(1), Some(Ask::No));
        credits.paid();
        assert_eq!(credits.owed(), None);
        credits.grant(8);
        let ask = credits.spend(6).unwrap();
        credits.sent(ask);
        credits.grant(8);
        assert_eq!(credits.owed(), None, "a grant that nobody asked for");
        assert_eq!(degree_of(renewal_immediate(7)), Some(7));
        assert_eq!(degree_of(renewal_immediate(u16::MAX)), Some(63));
        assert_eq!((degree_of(0), degree_of(u32::from(u16::MAX)), degree_of(u32::MAX)), (None, None, None));
    }

    proptest! {
        /// The median of the histogram is the lower median of the messages.
        #[test]
        fn the_degree_is_the_median(mut sizes in prop::collection::vec(1u16..=MAX_CREDITS, 1..40)) {
            let mut degrees = Degrees::NONE;
            sizes.iter().for_each(|entries| degrees.add(*entries));
            sizes.sort_unstable();
            prop_assert_eq!(degrees.median(), sizes[(sizes.len() - 1) / 2]);
        }

        /// The server never counts a degree that the messages cannot have had.
        #[test]
        fn a_report_is_bounded_by_the_messages(
            sizes in prop::collection::vec(1u16..=8, 1..8), reported in 1..=MAX_CREDITS as u8,
        ) {
            let mut allowance = Allowance::new(MAX_CREDITS);
            allowance.ask(reported).unwrap();
            let mut taken = Vec::new();
            let degree = loop {
                let entries = sizes[taken.len() % sizes.len()];
                taken.push(entries);
                allowance.take(entries).unwrap();
                if let Some(degree) = allowance.renewal_due() {
                    break degree;
                }
            };
            let most = taken.iter().copied().max().unwrap_or(1);
            prop_assert!(degree >= 1 && degree <= most && degree <= reported.into());
            prop_assert!(usize::from(degree) * (taken.len() / 2 + 1) <= usize::from(taken.iter().sum::<u16>()));
        }
    }
}
