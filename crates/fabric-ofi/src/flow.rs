//! Flow control for reliable datagrams: a queue pair may receive only as many messages as it has RECVs. Pure.
//!
//! A provider buffers messages without a RECV in unbounded memory, so there must be none. The receiver
//! announces the total number of RECVs that it has posted, by a WRITE into a cell in the sender's memory; the
//! sender counts its messages. The first such WRITE is also the greeting: the other end exists and is
//! reachable. The sequence numbers of messages expose a peer that sends too many.

/// The size of a cell, in bytes.
pub(crate) const CELL: usize = 16;

/// The maximum number of RECVs that are believed to be posted at once.
const MAX_AHEAD: u32 = 1 << 20;

/// Encodes a value for the peer's cell. The second word proves that the first is not torn, and that the
/// writer knows the secret.
pub(crate) fn encode(posted: u32, secret: u64) -> [u8; CELL] {
    let first = u64::from(posted) | GREETING;
    let mut bytes = [0; CELL];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&(first ^ secret).to_le_bytes());
    bytes
}

/// Distinguishes a greeting with zero RECVs from untouched memory.
const GREETING: u64 = 1 << 32;

/// Decodes a cell; returns `None` before the first WRITE, during a WRITE, and for values without the secret.
pub(crate) fn decode(first: u64, second: u64, secret: u64) -> Option<u32> {
    (first ^ second == secret && first >> 32 == 1).then_some(first as u32)
}

/// The sender's side. Counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credit {
    sent: u32,
    /// The total number of RECVs that the other end has announced.
    posted: u32,
}

impl Credit {
    /// Processes an announcement; returns `false` if the number is impossible.
    pub(crate) fn hear(&mut self, posted: u32) -> bool {
        let ahead = posted.wrapping_sub(self.sent);
        if ahead > MAX_AHEAD {
            // Less than before: an older WRITE, which a correct peer does not let land after a newer one.
            return false;
        }
        self.posted = posted;
        true
    }

    /// Returns whether a message may be sent.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.sent != self.posted
    }

    /// Counts a message that was sent.
    #[inline]
    pub(crate) fn sends(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }
}

/// The receiver's side. Counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grantor {
    /// RECVs given to the provider, without those that were posted again.
    posted: u32,
    /// The number of them that was announced.
    told: u32,
    /// Messages of the other end that have arrived.
    arrived: u32,
}

impl Grantor {
    /// Counts a RECV that was given to the provider.
    #[inline]
    pub(crate) fn posts(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// Counts a message that has used a RECV; returns `false` if that RECV was not announced.
    #[inline]
    pub(crate) fn arrives(&mut self) -> bool {
        let allowed = self.arrived != self.told;
        self.arrived = self.arrived.wrapping_add(1);
        allowed
    }

    /// Returns the number to announce now, if any: due when at least half of the posted RECVs are
    /// unannounced. WRITEs are thus few, and the sender never waits for an announcement that is not made.
    #[inline]
    pub(crate) fn news(&self) -> Option<u32> {
        let untold = self.posted.wrapping_sub(self.told);
        let known = self.told.wrapping_sub(self.arrived);
        (untold > 0 && untold >= known).then_some(self.posted)
    }

    /// Returns the number to announce in the greeting.
    pub(crate) fn all(&self) -> u32 {
        self.posted
    }

    /// Records that a number was announced.
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
        /// A new value over an old one, torn at any byte, decodes as one of them or not at all.
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

        /// Whatever is posted, announced and sent at any time: no message is sent without a RECV, and each
        /// RECV can be used.
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
            // With all announcements delivered, every posted RECV can be used.
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
            // One message too many is detected.
            prop_assert!(!grantor.arrives());
        }
    }
}
