//! Credits of a queue pair: how much a client may send before the server agrees again (FLOCK section 5.1,
//! credit renewal), as pure state machines of both ends.
//!
//! A credit is one request, so a message with several entries costs several. A queue pair starts with C
//! credits. The message that leaves half of C or less asks for C more, and reports the median number of
//! entries of the messages since the last request. The server grants, or declines: then the queue pair is
//! inactive until the server grants again by itself. The server still takes messages that were sent before
//! the client knew, because they are paid for. A client that knows sends only the message that it is building:
//! threads leave an inactive queue pair once their calls on it
//! have ended (section 5.2). The client keeps the credits that it has left, so both accounts always agree.
//!
//! | | client | server |
//! |---|---|---|
//! | spends, asks | [`Credits::spend`] | [`Allowance::take`] counts, [`Allowance::degree`] clips the report |
//! | grants | [`Credits::grant`] | [`Allowance::grant`] |
//! | declines | [`Credits::decline`] | [`Allowance::decline`] |
//!
//! One request for credits is under way at a time, so a client never has more than C and a half.

/// C of the paper: the credits of a new queue pair, and of each renewal.
pub(crate) const CREDITS: u16 = 32;

/// The largest C: a grant fits into six bits.
pub(crate) const MAX_CREDITS: u16 = 63;

/// The bit of [`Header::credits`](dunlin_wire::Header::credits) by which an answer grants C more.
/// [`Flags::CONTEXT_SWITCH`](dunlin_wire::Flags) declines.
pub(crate) const GRANTED: u8 = 0x80;

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
}

impl Credits {
    /// Creates the credits of a new queue pair, with C of 1 to [`MAX_CREDITS`].
    pub(crate) fn new(renewal: u16) -> Self {
        let renewal = renewal.clamp(1, MAX_CREDITS);
        Credits { renewal, left: renewal, has_asked: false, is_active: true, degrees: Degrees::NONE }
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
        (self.is_active, self.has_asked) = (true, false);
        self.left = (self.left + credits.min(self.renewal)).min(self.renewal + self.renewal / 2);
    }

    /// Takes the server's refusal: the queue pair is inactive, and nothing more is sent on it.
    pub(crate) fn decline(&mut self) {
        (self.is_active, self.has_asked) = (false, false);
    }
}

/// A message that the client had no credits for: it broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {entries} entries came with {left} credits left")]
pub(crate) struct Overdrawn {
    /// Entries of the message.
    pub(crate) entries: u16,
    /// Credits that the client had.
    pub(crate) left: u16,
}

/// The server's end of a queue pair's credits. The worker of the lane uses it. Any input of the peer is safe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Allowance {
    renewal: u16,
    /// Granted and not yet taken.
    left: u16,
    is_active: bool,
    /// Messages and entries since the last request for credits, and the most entries of one.
    messages: u32,
    entries: u32,
    most: u16,
}

impl Allowance {
    /// Creates the account of a new queue pair, with the same C as the client's.
    pub(crate) fn new(renewal: u16) -> Self {
        let renewal = renewal.clamp(1, MAX_CREDITS);
        Allowance { renewal, left: renewal, is_active: true, messages: 0, entries: 0, most: 0 }
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
        self.left -= entries;
        self.messages += 1;
        self.entries += u32::from(entries);
        self.most = self.most.max(entries);
        Ok(())
    }

    /// Returns the degree that a request for credits reports, clipped to the messages that came since the
    /// last one, and forgets these. At least half of them have the median or more, so a client cannot report
    /// more than it has sent. At least 1.
    pub(crate) fn degree(&mut self, reported: u16) -> u16 {
        let bound = u16::try_from(self.entries / (self.messages / 2 + 1)).unwrap_or(u16::MAX);
        let degree = reported.min(self.most).min(bound).max(1);
        (self.messages, self.entries, self.most) = (0, 0, 0);
        degree
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
        let mut credits = Credits::new(CREDITS);
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
        let mut credits = Credits::new(8);
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
        let mut credits = Credits::new(8);
        assert_eq!(credits.spend(3), Some(Ask::No));
        credits.unspend(3, Ask::No);
        assert_eq!(credits, Credits::new(8));
        let ask = credits.spend(5).unwrap();
        credits.unspend(5, ask);
        assert_eq!((credits.available(), credits.spend(6)), (8, Some(Ask::Renew { degree: 6 })));
    }

    #[test]
    fn a_peer_that_breaks_the_rules_gains_nothing() {
        let mut credits = Credits::new(8);
        (0..9).for_each(|_| credits.grant(u16::MAX));
        assert_eq!(credits.available(), 12);
        let mut allowance = Allowance::new(8);
        assert_eq!(allowance.take(9), Err(Overdrawn { entries: 9, left: 8 }));
        assert_eq!(allowance.take(0), Err(Overdrawn { entries: 0, left: 8 }));
        assert_eq!(allowance.grant(), 0, "nothing was spent");
        [1, 1, 3].iter().for_each(|entries| allowance.take(*entries).unwrap());
        assert_eq!(allowance.degree(u16::MAX), 2, "two of three messages cannot have had more");
        assert_eq!(allowance.degree(5), 1, "no message came");
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
        requests: VecDeque<(u16, Ask)>,
        words: VecDeque<Word>,
        /// Degrees of messages that the client sent since its last request.
        sent: Vec<u16>,
        /// A request that the server has taken and not answered.
        unanswered: bool,
    }

    impl World {
        /// All that the future depends on.
        fn key(&self) -> String {
            format!("{self:?}")
        }

        /// Every step that can come next, each with the world after it.
        fn steps(&self) -> Vec<World> {
            let mut next = Vec::new();
            // An inactive client may still send the message that it was building.
            for entries in 1..=self.client.left {
                let mut world = self.clone();
                let ask = world.client.spend(entries).unwrap();
                assert!(self.client.is_active() || ask == Ask::No);
                world.sent.push(entries);
                if let Ask::Renew { degree } = ask {
                    world.sent.sort_unstable();
                    assert_eq!(degree, world.sent[(world.sent.len() - 1) / 2]);
                    world.sent.clear();
                }
                world.requests.push_back((entries, ask));
                next.push(world);
            }
            if let Some((entries, ask)) = self.requests.front().copied() {
                let mut world = self.clone();
                world.requests.pop_front();
                assert_eq!(world.server.take(entries), Ok(()), "a client that keeps the rules overdraws");
                if let Ask::Renew { degree } = ask {
                    assert_eq!(world.server.degree(degree), degree, "a true report is not clipped");
                    assert!(!world.unanswered, "two requests are under way");
                    world.unanswered = true;
                }
                next.push(world);
            }
            if self.unanswered {
                let mut granted = self.clone();
                granted.unanswered = false;
                granted.words.push_back(Word::Grant(granted.server.grant()));
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
            let under_way: u16 = self.requests.iter().map(|(entries, _)| entries).sum();
            let granted = |word: &Word| if let Word::Grant(credits) = word { *credits } else { 0 };
            let granted: u16 = self.words.iter().map(granted).sum();
            assert_eq!(
                self.client.left + under_way + granted,
                self.server.left,
                "the accounts differ: {self:?}"
            );
            if self.words.is_empty() {
                assert_eq!(self.client.is_active(), self.server.is_active());
                let asks = self.requests.iter().filter(|(_, ask)| *ask != Ask::No).count();
                assert_eq!(asks + usize::from(self.unanswered), usize::from(self.client.has_asked));
            }
            // A client without credits always has an answer to wait for, or knows that it is inactive.
            assert!(!self.client.is_active() || self.client.available() > 0 || self.client.has_asked);
        }
    }

    /// Explores every order of messages, grants and refusals, for all C up to 5.
    #[test]
    fn both_ends_agree_in_every_order() {
        for renewal in 1..=5 {
            let first = World {
                client: Credits::new(renewal),
                server: Allowance::new(renewal),
                requests: VecDeque::new(),
                words: VecDeque::new(),
                sent: Vec::new(),
                unanswered: false,
            };
            let mut seen = BTreeSet::from([first.key()]);
            let mut open = vec![first];
            let mut declined = 0;
            while let Some(world) = open.pop() {
                world.check(renewal);
                declined += usize::from(!world.client.is_active());
                let next = world.steps();
                assert!(!next.is_empty(), "nothing can happen any more: {world:?}");
                for world in next {
                    if seen.insert(world.key()) {
                        open.push(world);
                    }
                }
            }
            assert!(seen.len() > usize::from(renewal) && declined > 0, "{} states", seen.len());
        }
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
            sizes in prop::collection::vec(1u16..=8, 1..8), reported in any::<u16>(),
        ) {
            let mut allowance = Allowance::new(MAX_CREDITS);
            sizes.iter().for_each(|entries| { let _ = allowance.take(*entries); });
            let degree = allowance.degree(reported);
            let most = sizes.iter().copied().max().unwrap_or(1);
            prop_assert!(degree >= 1 && degree <= most);
            prop_assert!(usize::from(degree) * (sizes.len() / 2 + 1) <= usize::from(sizes.iter().sum::<u16>()).max(1));
        }
    }
}
