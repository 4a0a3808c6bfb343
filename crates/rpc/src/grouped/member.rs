//! The server's end of a lane under leases: the lease, the client's word, and the READs of announced requests.

use super::zones::Zones;
use super::{Lie, Mark, Word};

/// The zone of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hold {
    /// The lane has no zone.
    Nothing,
    /// The lane has a lease of the zone.
    Leased(u8),
    /// The lease has ended, and the client's word is awaited. Its WRITEs may still arrive.
    Ended(u8),
}

/// The server's end of a lane under leases.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    /// The epoch of the last lease; 0 before the first one.
    epoch: u32,
    hold: Hold,
    /// A READ of announced requests is in flight.
    reading: bool,
    #[cfg(test)]
    mistake: super::explore::Mistake,
}

impl Member {
    pub(crate) const fn new() -> Self {
        Member {
            epoch: 0,
            hold: Hold::Nothing,
            reading: false,
            #[cfg(test)]
            mistake: super::explore::Mistake::None,
        }
    }

    /// Returns the epoch of the last lease.
    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the mark of the lane's answers, which ends the lease if `ends`.
    pub(crate) const fn mark(&self, ends: bool) -> Mark {
        match self.hold {
            Hold::Leased(zone) => Mark::new(self.epoch, zone, ends),
            Hold::Nothing | Hold::Ended(_) => Mark::new(self.epoch, 0, ends),
        }
    }

    /// Returns whether requests arrive in a zone.
    pub(crate) const fn is_leased(&self) -> bool {
        matches!(self.hold, Hold::Leased(_))
    }

    /// Returns whether a READ of announced requests is in flight.
    pub(crate) const fn is_reading(&self) -> bool {
        self.reading
    }

    /// Returns the zone whose tenant has not said that it has heard of the end of its lease.
    pub(crate) const fn awaited(&self) -> Option<u8> {
        match self.hold {
            Hold::Ended(zone) => Some(zone),
            _ => None,
        }
    }

    /// Takes the client's word. Gives the zone of an ended lease back to `zones` when the client has heard of the
    /// end. Returns the number of lines that were announced, where the server's head in the client's ring of `lines`
    /// lines is `head`; 0 during a lease.
    pub(crate) fn on_word(
        &mut self,
        word: Word,
        head: u32,
        lines: u32,
        zones: &mut Zones,
    ) -> Result<u32, Lie> {
        let before = self.epoch.wrapping_sub(1);
        match self.hold {
            Hold::Nothing if word.heard == self.epoch || self.forgives_words() => {}
            Hold::Leased(_) | Hold::Ended(_) if word.heard == before => {}
            Hold::Ended(zone) if word.heard == self.epoch => {
                self.hold = Hold::Nothing;
                zones.give_back(zone);
            }
            _ => return Err(Lie::Word),
        }
        #[cfg(test)]
        self.take_any_word(zones);
        let announced = word.tail.wrapping_sub(head);
        match announced {
            // The requests of the last announcement were taken from the zone.
            0x8000_0000.. => Ok(0),
            _ if announced > lines => Err(Lie::Tail),
            _ if self.is_leased() && !self.may_read_under_lease() => Ok(0),
            _ => Ok(announced),
        }
    }

    /// Takes note that a READ of announced requests is posted. Must not be called during a lease: the client was
    /// told to write all further requests into its zone, and a request would arrive in both ways.
    pub(crate) fn begin_read(&mut self) {
        debug_assert!(!self.reading && (!self.is_leased() || self.may_read_under_lease()));
        self.reading = true;
    }

    /// Takes note that the READ has completed.
    pub(crate) fn end_read(&mut self) {
        self.reading = false;
    }

    /// Begins a lease if the lane can have one and a zone is free. Returns whether a lease has begun: the next answer
    /// tells the client, together with the head of all that was READ.
    ///
    /// No lease begins while a READ is in flight, because the answer could not tell whether the client has to write
    /// those requests.
    pub(crate) fn begin_lease(&mut self, zones: &mut Zones) -> bool {
        if self.hold != Hold::Nothing || self.reading {
            return false;
        }
        let Some(zone) = zones.take() else { return false };
        self.hold = Hold::Leased(zone);
        self.raise_epoch();
        true
    }

    /// Ends the lease, if there is one: the next message tells the client. Returns whether there was one.
    pub(crate) fn end_lease(&mut self, zones: &mut Zones) -> bool {
        let Hold::Leased(zone) = self.hold else { return false };
        self.hold = Hold::Ended(zone);
        #[cfg(test)]
        self.skip_word(zone, zones);
        let _ = zones;
        true
    }

    /// Gives back the zone of a lane whose queue pair is destroyed.
    pub(crate) fn gone(&mut self, zones: &mut Zones) {
        if let Hold::Leased(zone) | Hold::Ended(zone) = self.hold {
            zones.give_back(zone);
        }
        self.hold = Hold::Nothing;
    }

    #[cfg(not(test))]
    const fn may_read_under_lease(&self) -> bool {
        false
    }

    #[cfg(not(test))]
    const fn forgives_words(&self) -> bool {
        false
    }

    #[cfg(not(test))]
    fn raise_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }
}

/// The planted mistakes of the exploration.
#[cfg(test)]
impl Member {
    pub(super) fn with(mistake: super::explore::Mistake) -> Self {
        Member { mistake, ..Member::new() }
    }

    fn may_read_under_lease(&self) -> bool {
        self.mistake == super::explore::Mistake::ReadsUnderLease
    }

    /// A server that gives zones out too early would not check words either.
    fn forgives_words(&self) -> bool {
        matches!(self.mistake, super::explore::Mistake::NoWord | super::explore::Mistake::AnyWord)
    }

    fn raise_epoch(&mut self) {
        if self.mistake != super::explore::Mistake::SameEpoch {
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    fn skip_word(&mut self, zone: u8, zones: &mut Zones) {
        if self.mistake == super::explore::Mistake::NoWord {
            self.hold = Hold::Nothing;
            zones.give_back(zone);
        }
    }

    fn take_any_word(&mut self, zones: &mut Zones) {
        if self.mistake == super::explore::Mistake::AnyWord
            && let Hold::Ended(zone) = self.hold
        {
            self.hold = Hold::Nothing;
            zones.give_back(zone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: u32 = 8;

    fn word(tail: u32, heard: u32) -> Word {
        Word { tail, heard }
    }

    #[test]
    fn a_zone_waits_for_the_word_of_its_last_tenant() {
        let mut zones = Zones::new(1);
        let (mut first, mut second) = (Member::new(), Member::new());
        assert!(first.begin_lease(&mut zones));
        assert_eq!(first.mark(false), Mark::new(1, 0, false));
        assert!(!second.begin_lease(&mut zones), "there is one zone");
        assert!(first.end_lease(&mut zones) && first.awaited() == Some(0));
        assert!(!first.end_lease(&mut zones), "it ends once");
        assert_eq!(first.on_word(word(0, 0), 0, LINES, &mut zones), Ok(0), "an old word changes nothing");
        assert!(!second.begin_lease(&mut zones) && !first.begin_lease(&mut zones));
        assert_eq!(first.on_word(word(0, 1), 0, LINES, &mut zones), Ok(0));
        assert!(first.awaited().is_none() && second.begin_lease(&mut zones));
    }

    #[test]
    fn a_dead_tenant_leaves_its_zone() {
        let mut zones = Zones::new(1);
        for ended in [false, true] {
            let mut member = Member::new();
            assert!(member.begin_lease(&mut zones));
            assert!(!ended || member.end_lease(&mut zones));
            member.gone(&mut zones);
            member.gone(&mut zones);
            assert_eq!(zones.in_use(), 0);
        }
    }

    #[test]
    fn announcements_are_bounded_by_the_ring() {
        let (mut zones, mut member) = (Zones::new(1), Member::new());
        assert_eq!(member.on_word(word(3, 0), 1, LINES, &mut zones), Ok(2));
        assert_eq!(member.on_word(word(1, 0), 3, LINES, &mut zones), Ok(0), "it was taken already");
        assert_eq!(member.on_word(word(2, 0), u32::MAX, LINES, &mut zones), Ok(3), "heads wrap");
        assert_eq!(member.on_word(word(9, 0), 0, LINES, &mut zones), Err(Lie::Tail));
    }

    #[test]
    fn nothing_is_read_during_a_lease_and_no_lease_begins_during_a_read() {
        let (mut zones, mut member) = (Zones::new(1), Member::new());
        member.begin_read();
        assert!(!member.begin_lease(&mut zones) && member.is_reading());
        member.end_read();
        assert!(member.begin_lease(&mut zones));
        assert_eq!(member.on_word(word(4, 0), 0, LINES, &mut zones), Ok(0));
    }

    #[test]
    fn words_at_the_wrong_time_are_lies() {
        let (mut zones, mut member) = (Zones::new(1), Member::new());
        assert_eq!(member.on_word(word(0, 1), 0, LINES, &mut zones), Err(Lie::Word), "no lease has begun");
        member.begin_lease(&mut zones);
        assert_eq!(member.on_word(word(0, 1), 0, LINES, &mut zones), Err(Lie::Word), "it has not ended");
        member.end_lease(&mut zones);
        assert_eq!(member.on_word(word(0, 2), 0, LINES, &mut zones), Err(Lie::Word), "nor has the next");
        assert_eq!(zones.in_use(), 1);
    }
}
