//! How many messages may go to a queue pair of reliable datagrams: as many as it has RECVs for. Pure.
//!
//! A provider keeps messages for which there is no RECV, in as much memory as it likes. So there are none: who receives tells
//! how many RECVs it has posted since the beginning, by a WRITE into a cell of the sender's memory; who sends counts. The first
//! such WRITE is also the greeting: the other end is there, and can be reached. A peer that sends more is found out by the
//! numbers of its messages.

/// Bytes of a cell.
pub(crate) const CELL: usize = 16;

/// The most RECVs that are believed to be there at once.
const MAX_AHEAD: u32 = 1 << 20;

/// What is written into a peer's cell. The second word says that the first was written in one piece, by who knows the secret.
pub(crate) fn encode(posted: u32, secret: u64) -> [u8; CELL] {
    let first = u64::from(posted) | GREETING;
    let mut bytes = [0; CELL];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&(first ^ secret).to_le_bytes());
    bytes
}

/// So that a greeting without any RECV is not what memory holds at first.
const GREETING: u64 = 1 << 32;

/// What a cell says; `None` before the first WRITE, in the middle of one, and for what none of ours has written.
pub(crate) fn decode(first: u64, second: u64, secret: u64) -> Option<u32> {
    (first ^ second == secret && first >> 32 == 1).then_some(first as u32)
}

/// The side that sends. Counts wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    sent: u32,
    /// RECVs that the other end has had in all.
    posted: u32,
}

impl Credit {
    /// The other end says how many RECVs it has posted. `false` if that cannot be.
    pub(crate) fn hear(&mut self, posted: u32) -> bool {
        let ahead = posted.wrapping_sub(self.sent);
        if ahead > MAX_AHEAD {
            // Less than was said before: an older WRITE, which an honest peer does not let land behind a newer one.
            return false;
        }
        self.posted = posted;
        true
    }

    /// Whether a message may go.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.sent != self.posted
    }

    /// One has gone.
    #[inline]
    pub(crate) fn sends(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }
}

/// The side that receives. Counts wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grantor {
    /// RECVs that the provider was given, without those that it was given again.
    posted: u32,
    /// How many of them the other end has been told of.
    told: u32,
    /// Messages of the other end that have arrived.
    arrived: u32,
}

impl Grantor {
    /// The provider has one more RECV.
    #[inline]
    pub(crate) fn posts(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// A message has used one. `false` if the other end had not been told of it.
    #[inline]
    pub(crate) fn arrives(&mut self) -> bool {
        let allowed = self.arrived != self.told;
        self.arrived = self.arrived.wrapping_add(1);
        allowed
    }

    /// What the other end is to be told now, if anything: when it knows of less than half of those that there are, so that
    /// WRITEs are few and it never waits for one that it is not sent.
    #[inline]
    pub(crate) fn news(&self) -> Option<u32> {
        let untold = self.posted.wrapping_sub(self.told);
        let known = self.told.wrapping_sub(self.arrived);
        (untold > 0 && untold >= known).then_some(self.posted)
    }

    /// What it knows if nothing was told yet.
    pub(crate) fn all(&self) -> u32 {
        self.posted
    }

    /// It is told of so many.
    pub(crate) fn tells(&mut self, posted: u32) {
        self.told = posted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cell_is_read_as_it_was_written() {
        for (posted, secret) in [(0, 0), (7, u64::MAX), (u32::MAX, 0x1234_5678_9abc_def0)] {
            let bytes = encode(posted, secret);
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(decode(word(0), word(8), secret), Some(posted));
            assert_eq!(decode(word(0), word(8), secret ^ 1), None, "another secret");
        }
        assert_eq!(decode(0, 0, 0), None, "untouched memory");
    }

    #[test]
    fn messages_wait_for_receives() {
        let mut credit = Credit::default();
        assert!(!credit.may_send());
        assert!(credit.hear(2));
        for _ in 0..2 {
            assert!(credit.may_send());
            credit.sends();
        }
        assert!(!credit.may_send());
        assert!(credit.hear(3) && credit.may_send());
    }

    #[test]
    fn nonsense_is_not_believed() {
        let mut credit = Credit::default();
        assert!(credit.hear(2));
        credit.sends();
        let before = credit;
        for nonsense in [0, u32::MAX, 1 + MAX_AHEAD + 1] {
            assert!(!credit.hear(nonsense));
            assert_eq!(credit, before);
        }
    }

    proptest! {
        /// Cut anywhere, a new value over an old one is read as one of them or not at all.
        #[test]
        fn a_torn_cell_is_no_third_value(
            old in any::<u32>(), new in any::<u32>(), secret in any::<u64>(), cut in 0..CELL,
        ) {
            let mut bytes = encode(old, secret);
            bytes[..cut].copy_from_slice(&encode(new, secret)[..cut]);
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            if let Some(read) = decode(word(0), word(8), secret) {
                prop_assert!(read == old || read == new);
            }
        }

        /// Whatever is posted, told and sent when: no message goes without a RECV, and all that have one get there.
        #[test]
        fn all_that_have_a_receive_arrive(
            start in any::<u32>(), steps in prop::collection::vec(0..4u8, 0..400), depth in 1..20u32,
        ) {
            let mut grantor = Grantor { posted: start, told: start, arrived: start };
            let mut credit = Credit { sent: start, posted: start };
            let mut under_way = None;
            let mut deliver = |grantor: &mut Grantor, credit: &mut Credit| {
                if let Some(posted) = under_way.take() {
                    assert!(credit.hear(posted));
                }
                if let Some(news) = grantor.news() {
                    grantor.tells(news);
                    under_way = Some(news);
                }
            };
            for step in steps {
                let waiting = grantor.posted.wrapping_sub(grantor.arrived);
                match step {
                    0 if waiting < depth => grantor.posts(),
                    1 | 2 if credit.may_send() => {
                        credit.sends();
                        prop_assert!(waiting > 0);
                        prop_assert!(grantor.arrives());
                    }
                    _ => deliver(&mut grantor, &mut credit),
                }
            }
            // With all news delivered, every RECV that is there can be used.
            let mut left = grantor.posted.wrapping_sub(grantor.arrived);
            while left > 0 {
                deliver(&mut grantor, &mut credit);
                deliver(&mut grantor, &mut credit);
                prop_assert!(credit.may_send(), "{left} RECVs are there and nobody knows");
                credit.sends();
                prop_assert!(grantor.arrives());
                left -= 1;
            }
            prop_assert!(!credit.may_send());
            // One too many is noticed.
            prop_assert!(!grantor.arrives());
        }
    }
}
