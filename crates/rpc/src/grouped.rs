//! Leases: the memory of a server that clients use by turns (ScaleRPC sections 3.2 to 3.4), as pure state machines.
//!
//! | module | state of | paper |
//! |---|---|---|
//! | `grouped/schedule.rs` | a server: groups of clients, their slices, their priorities | 3.2 |
//! | `grouped/tenant.rs` | a client's end of a lane: CONNECT, WARMUP, PROCESS, IDLE | 3.4, figure 7 |
//! | `grouped/member.rs` | the server's end of a lane: the lease, the word, the announcements | 3.3, 3.4 |
//! | `grouped/zones.rs` | a message pool: which zones are free | 3.3 |
//! | `grouped/common_clock.rs` | the common clock of several servers | 4.2 |
//! | `grouped/leadership.rs` | which of several servers is their time server | 4.2 |
//! | `grouped/cycle.rs` | the schedule that several servers share, and their messages | 4.2 |
//!
//! The modules touch no memory, read no clock and post nothing. [`Word`] and [`Mark`] are all that the two ends tell
//! each other about leases.
//!
//! # A lane under leases
//!
//! The client builds each request once, in a ring of its own memory that the server may READ. The ring is the
//! request ring of other lanes, at the other end: the same arithmetic places messages in it, and the same heads free
//! them. A request reaches the server in one of two ways:
//!
//! * Without a lease the client WRITEs a [`Word`] with the ring's tail into its line at the server. The server READs
//!   the ring from its head to the tail into private memory.
//! * With a lease the client also WRITEs the request into its zone of the server's pool, at the offset that the
//!   request has in the ring. A zone has the size of the ring, so positions and heads hold across leases.
//!
//! Both ways take requests in sequence and advance one head, so a request is taken once, whatever arrives when. A
//! lease is never needed for progress: a server that has no free zone goes on with READs.

pub(crate) mod common_clock;
pub(crate) mod cycle;
pub(crate) mod leadership;
pub(crate) mod member;
pub(crate) mod schedule;
pub(crate) mod sorted;
pub(crate) mod tenant;
pub(crate) mod zones;

#[cfg(test)]
mod explore;

use dunlin_wire::Flags;

/// The right of a lane to a part of the server's memory, for one epoch of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Offset of the zone in the region of the pool.
    pub(crate) base: u64,
    /// The epoch of the lane. Tags of messages in the zone depend on it.
    pub(crate) epoch: u32,
}

/// The word that a client WRITEs into its line at the server: eight bytes, which become visible together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Word {
    /// Lines written to the client's ring since the beginning; wraps. The server may READ up to here.
    pub(crate) tail: u32,
    /// The epoch of the last lease of whose end the client has heard. The connection delivers the word behind
    /// everything that the client has written under that lease.
    pub(crate) heard: u32,
}

impl Word {
    pub(crate) const fn to_wire(self) -> u64 {
        self.tail as u64 | (self.heard as u64) << 32
    }

    /// Decodes a word. Memory that was never written holds the word of a client that has announced nothing.
    pub(crate) const fn from_wire(word: u64) -> Self {
        Word { tail: word as u32, heard: (word >> 32) as u32 }
    }
}

/// The part of an answer's header that concerns leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    /// The low bits of the lane's epoch, below [`Mark::IS_SET`]; 0 on a lane whose lease never ends.
    pub(crate) epoch: u8,
    /// The zone of the lease.
    pub(crate) zone: u8,
    /// The lease of this epoch ends with this message.
    pub(crate) ends: bool,
    /// No message has told the client of the lease of this epoch. Does not travel: an epoch that is one ahead tells it.
    pub(crate) begins: bool,
}

impl Mark {
    /// Distinguishes epoch 0 of a lane under leases from a lane without leases.
    pub(crate) const IS_SET: u8 = 0x80;

    pub(crate) const fn new(epoch: u32, zone: u8, ends: bool) -> Self {
        Mark { epoch: epoch as u8 | Self::IS_SET, zone, ends, begins: false }
    }

    /// Returns the mark of the first message of a lease.
    pub(crate) const fn of_new_lease(self) -> Self {
        Mark { begins: true, ..self }
    }

    /// Returns whether the client does not know something that the mark tells.
    pub(crate) const fn is_news(self) -> bool {
        self.begins || self.ends
    }

    /// Takes note that a message carries the mark.
    #[inline]
    pub(crate) const fn told(&mut self) {
        (self.begins, self.ends) = (false, false);
    }

    /// Returns the flags of a header with this mark.
    #[inline]
    pub(crate) const fn flags(self) -> Flags {
        if self.ends { Flags::CONTEXT_SWITCH } else { Flags::NONE }
    }

    /// Returns how many epochs the mark is ahead of `epoch`, within the number space of a mark.
    const fn ahead_of(self, epoch: u32) -> u8 {
        self.epoch.wrapping_sub(epoch as u8) & !Self::IS_SET
    }
}

/// A lie or a mistake of the peer about leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// A word about a lease that did not end, or ended long ago.
    Word,
    /// An announcement of more than the client's ring holds.
    Tail,
    /// A lease, or the end of one, at the wrong time.
    Mark,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_the_wire() {
        let word = Word { tail: 0x8000_0001, heard: u32::MAX };
        assert_eq!(Word::from_wire(word.to_wire()), word);
        assert_eq!(Word::from_wire(0), Word::default());
    }

    #[test]
    fn marks_are_set_in_every_epoch_and_wrap() {
        for epoch in [0, 1, 0x7f, 0x80, 0xff, u32::MAX] {
            let mark = Mark::new(epoch, 3, false);
            assert_ne!(mark.epoch, 0);
            assert_eq!(mark.ahead_of(epoch), 0);
            assert_eq!(Mark::new(epoch.wrapping_add(1), 3, false).ahead_of(epoch), 1);
        }
    }
}
