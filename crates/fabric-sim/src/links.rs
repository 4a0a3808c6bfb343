//! Links, listeners and grants of a run: their data. The code that changes them is in `link`.

use crate::memory::Target;
use crate::tasks::Waiter;
use dunlin_fabric::{Access, Mark, Nanos, RegionKey, copy};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

/// One side of a link: 0 dialled, 1 accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkSide {
    pub(crate) link: u32,
    pub(crate) side: u32,
}

/// All links and listeners of a run.
#[derive(Default)]
pub(crate) struct Links {
    /// By number; numbers are not reused.
    pub(crate) links: Vec<Option<Box<[Side; 2]>>>,
    /// By link and side: whether there is a message to receive or an end to report. Polling thousands of idle
    /// links reads only this.
    pub(crate) news: Vec<bool>,
    /// By number; numbers are not reused.
    pub(crate) listeners: Vec<Option<ListenerState>>,
    pub(crate) grants: Grants,
    pub(crate) by_name: BTreeMap<String, u32>,
}

impl Links {
    #[inline]
    pub(crate) fn side(&self, at: LinkSide) -> Option<&Side> {
        self.links.get(at.link as usize)?.as_ref()?.get(at.side as usize)
    }

    /// Returns the place of a key's grant, if the side has granted it with the access.
    #[inline]
    pub(crate) fn granted(&self, by: LinkSide, key: RegionKey, wants: Access) -> Option<u32> {
        let place = key.0 as u32;
        let grant = self.grants.places.get(place as usize)?.as_ref()?;
        grant.allows(by, key, wants).then_some(place)
    }

    /// Returns the place of a key's grant, if the range lies within it and the access is allowed.
    #[inline]
    pub(crate) fn range(
        &self,
        by: Option<LinkSide>,
        key: RegionKey,
        wants: Access,
        offset: u64,
        length: u64,
    ) -> Option<u32> {
        let place = self.granted(by?, key, wants)?;
        let whole = self.grants.places.get(place as usize)?.as_ref()?.length as u64;
        let end = offset.checked_add(length)?;
        (end <= whole).then_some(place)
    }

    /// Returns the memory of a grant, by a place from [`granted`](Links::granted).
    #[inline]
    pub(crate) fn memory(&self, place: u32) -> Option<&Target> {
        Some(&self.grants.places.get(place as usize)?.as_ref()?.memory)
    }

    /// Prefetches the grant at a place.
    #[inline]
    pub(crate) fn warm(&self, place: u32) {
        if let Some(place) = self.grants.places.get(place as usize) {
            copy::prefetch_to_write((&raw const *place).cast());
        }
    }

    /// Keeps the memory of a grant alive until [`release`](Links::release).
    #[inline]
    pub(crate) fn hold(&mut self, place: u32) -> Held {
        if let Some(Some(grant)) = self.grants.places.get_mut(place as usize) {
            grant.held += 1;
        }
        // Places start at 0; the largest number is never assigned.
        Held(NonZeroU32::MIN.saturating_add(place))
    }

    /// Does [`range`](Links::range) and [`hold`](Links::hold) in one step.
    #[inline(always)]
    pub(crate) fn hold_range(
        &mut self,
        by: Option<LinkSide>,
        key: RegionKey,
        wants: Access,
        offset: u64,
        length: u64,
    ) -> Option<Held> {
        let place = key.0 as u32;
        let grant = self.grants.places.get_mut(place as usize)?.as_mut()?;
        let end = offset.checked_add(length)?;
        if !grant.allows(by?, key, wants) || end > grant.length as u64 {
            return None;
        }
        grant.held += 1;
        Some(Held(NonZeroU32::MIN.saturating_add(place)))
    }

    /// Releases a held grant after a last access to its memory.
    #[inline(always)]
    #[allow(clippy::needless_pass_by_value, reason = "it is used up")]
    pub(crate) fn release_with(&mut self, held: Held, look: impl FnOnce(&Target)) {
        let place = held.place();
        if let Some(Some(grant)) = self.grants.places.get_mut(place as usize) {
            look(&grant.memory);
            grant.held -= 1;
            if grant.ended {
                self.grants.free_if_unused(place);
            }
        }
    }

    /// Returns the memory that is held.
    #[inline]
    pub(crate) fn held(&self, held: &Held) -> Option<&Target> {
        self.memory(held.place())
    }

    /// Releases a held grant.
    #[inline]
    #[allow(clippy::needless_pass_by_value, reason = "it is used up")]
    pub(crate) fn release(&mut self, held: Held) {
        self.release_with(held, |_| {});
    }

    pub(crate) fn side_mut(&mut self, at: LinkSide) -> Option<&mut Side> {
        self.links.get_mut(at.link as usize)?.as_mut()?.get_mut(at.side as usize)
    }

    pub(crate) fn has_news(&self, at: LinkSide) -> bool {
        self.news.get(at.link as usize * 2 + at.side as usize).copied().unwrap_or(true)
    }

    pub(crate) fn set_news(&mut self, at: LinkSide) {
        let place = at.link as usize * 2 + at.side as usize;
        if self.news.len() <= place {
            self.news.resize(place | 1, false);
            self.news.push(false);
        }
        let news = self.side(at).is_none_or(|side| side.ended.is_some() || !side.inbox.is_empty());
        self.news[place] = news;
    }

    pub(crate) fn listener(&mut self, number: u32) -> Option<&mut ListenerState> {
        self.listeners.get_mut(number as usize)?.as_mut()
    }

    pub(crate) fn listener_name(&self, number: u32) -> &str {
        self.listeners.get(number as usize).and_then(|l| Some(l.as_ref()?.name.as_str())).unwrap_or("nobody")
    }
}

pub(crate) struct ListenerState {
    pub(crate) name: String,
    pub(crate) process: u32,
    pub(crate) unaccepted: VecDeque<u32>,
    /// Connections in transit to this listener.
    pub(crate) coming: usize,
    /// Dialling tasks that wait for room.
    pub(crate) dialling: VecDeque<Waiter>,
    pub(crate) signal: Option<u64>,
    pub(crate) waiters: Vec<Waiter>,
}

/// One side of a link.
#[derive(Default)]
pub(crate) struct Side {
    pub(crate) process: u32,
    pub(crate) inbox: VecDeque<Vec<u8>>,
    pub(crate) on_the_way: usize,
    pub(crate) last_arrival: Nanos,
    /// No handle to this side is left.
    pub(crate) dropped: bool,
    /// Why this side has ended, either locally or by the peer.
    pub(crate) ended: Option<&'static str>,
    /// The signal to raise and the mark to set first when something arrives.
    pub(crate) subscription: Option<(u64, Mark)>,
    pub(crate) waiters: Vec<Waiter>,
    /// Grants of this side to the other: places in [`Grants`].
    pub(crate) grants: BTreeSet<u32>,
    /// This side's queue pairs that are connected over the link.
    pub(crate) queue_pairs: Vec<u32>,
}

impl Side {
    pub(crate) fn is_alive(&self) -> bool {
        self.ended.is_none()
    }
}

/// A grant. Two of them share a cache line.
pub(crate) struct Grant {
    pub(crate) memory: Target,
    /// Bytes of the memory.
    pub(crate) length: usize,
    /// The high half of the key.
    pub(crate) generation: u32,
    /// The granting link and side.
    pub(crate) link: u32,
    pub(crate) side: u8,
    pub(crate) access: Access,
    /// Number of packets in flight to the memory.
    pub(crate) held: u32,
    /// The key is no longer valid.
    pub(crate) ended: bool,
}

impl Grant {
    #[inline]
    pub(crate) fn by(&self) -> LinkSide {
        LinkSide { link: self.link, side: self.side.into() }
    }

    /// Returns whether a side's key names this grant and allows the access.
    #[inline(always)]
    pub(crate) fn allows(&self, by: LinkSide, key: RegionKey, wants: Access) -> bool {
        self.generation == (key.0 >> 32) as u32
            && self.by() == by
            && !self.ended
            && self.access.contains(wants)
    }
}

/// All grants of a run in one table, since every message looks one up. The low half of a key is the place,
/// the high half distinguishes the present grant from earlier ones at that place.
///
/// A packet in flight to granted memory holds the place, so that the memory outlives the end of the grant
/// until the packet has landed. A count replaces another `Arc` handle, which would cost two locked
/// instructions per message.
#[derive(Default)]
pub(crate) struct Grants {
    pub(crate) places: Vec<Option<Grant>>,
    pub(crate) free: Vec<u32>,
}

/// Holds the place of a grant; return it to [`Links::release`].
#[derive(Debug)]
pub(crate) struct Held(NonZeroU32);

impl Held {
    #[inline]
    pub(crate) fn place(&self) -> u32 {
        self.0.get() - 1
    }
}

impl Grants {
    /// Ends a grant.
    pub(crate) fn end(&mut self, place: u32) {
        if let Some(Some(grant)) = self.places.get_mut(place as usize) {
            grant.ended = true;
            self.free_if_unused(place);
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn free_if_unused(&mut self, place: u32) {
        let Some(grant) = self.places.get_mut(place as usize) else { return };
        if grant.as_ref().is_some_and(|grant| grant.ended && grant.held == 0) {
            *grant = None;
            self.free.push(place);
        }
    }
}

/// An event on a link.
pub(crate) enum LinkEvent {
    /// A message reaches a side.
    Message { at: LinkSide, message: Vec<u8> },
    /// A side learns that the other side has ended.
    End { at: LinkSide },
    /// A new link reaches its listener.
    Connection { listener: u32, link: u32 },
}

pub(crate) fn other(at: LinkSide) -> LinkSide {
    LinkSide { link: at.link, side: 1 - at.side }
}
