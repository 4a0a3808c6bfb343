//! Posted RECVs, by place. The provider completes them in any order, and a RECV is posted again if its
//! message came from elsewhere. Also the reordering of messages that have arrived into the order in which
//! they were sent.

use crate::header::HEADER;
use crate::memory::OfiMemory;
use crate::places::Places;
use dunlin_fabric::{Buffer, Completion, CompletionStatus, Opcode, QueuePairId, WorkId};
use dunlin_fabric_control::Mapping;
use std::collections::VecDeque;
use std::io;

/// The result of a RECV.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) status: CompletionStatus,
    pub(crate) bytes: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) with_write: bool,
}

impl Received {
    /// The RECV was not used.
    pub(crate) const FLUSHED: Received = Received::failed(CompletionStatus::Flushed);

    pub(crate) const fn failed(status: CompletionStatus) -> Self {
        Received { status, bytes: 0, immediate: None, with_write: false }
    }

    /// Returns the number of bytes after the header, which is 0 for the notice of a WRITE.
    pub(crate) fn carried(&self) -> usize {
        if self.with_write { 0 } else { self.bytes as usize }
    }
}

/// A posted RECV.
#[derive(Debug)]
pub(crate) struct Receive {
    id: WorkId,
    buffer: Option<Buffer<OfiMemory>>,
    /// Increases from one posted RECV to the next.
    order: u64,
    /// Whether the provider has had it before.
    again: bool,
}

impl Receive {
    /// Returns the completion for the user.
    pub(crate) fn concluded(self, queue_pair: QueuePairId, how: Received) -> Completion<OfiMemory> {
        let Received { status, bytes, immediate, with_write } = how;
        let opcode = if with_write { Opcode::ReceiveWriteImmediate } else { Opcode::Receive };
        let Receive { id, buffer, .. } = self;
        Completion { id, status, opcode, bytes, immediate, value: 0, queue_pair, buffer }
    }
}

/// The posted RECVs of one queue.
#[derive(Debug)]
pub(crate) struct Receives {
    posted: Vec<Option<Receive>>,
    free: Vec<u32>,
    /// Places of RECVs that the provider does not have, in order.
    unposted: VecDeque<u32>,
    /// Memory for headers.
    headers: Places,
    /// Memory for header and message, by place, for providers that accept only one part. Allocated at first
    /// use.
    landings: Option<Vec<Option<Mapping>>>,
    next: u64,
}

impl Receives {
    /// Makes a queue for `depth` RECVs; the provider accepts `parts` parts of each.
    pub(crate) fn new(depth: u32, parts: usize) -> io::Result<Self> {
        let empty = || (0..depth).map(|_| None);
        Ok(Receives {
            posted: empty().collect(),
            free: (0..depth).rev().collect(),
            unposted: VecDeque::with_capacity(depth as usize),
            headers: Places::new(depth, HEADER)?,
            landings: (parts < 2).then(|| (0..depth).map(|_| None).collect()),
            next: 0,
        })
    }

    /// Adds a RECV; returns `false` if there is no room.
    pub(crate) fn push(&mut self, id: WorkId, buffer: Option<Buffer<OfiMemory>>) -> bool {
        let Some(place) = self.free.pop() else { return false };
        self.posted[place as usize] = Some(Receive { id, buffer, order: self.next, again: false });
        self.next += 1;
        self.unposted.push_back(place);
        true
    }

    /// Returns whether some RECVs are still to be given to the provider.
    pub(crate) fn has_unposted(&self) -> bool {
        !self.unposted.is_empty()
    }

    /// Gives RECVs to the provider through `post`, which gets the parts and the place, until it returns
    /// `WouldBlock` or another error. Returns the number given for the first time.
    ///
    /// The memory may be written until the place has [completed](Self::take) or the endpoint is closed.
    pub(crate) fn hand_over(
        &mut self,
        mut post: impl FnMut(&[libc::iovec], u32) -> io::Result<()>,
    ) -> (u32, io::Result<()>) {
        let mut count = 0;
        while let Some(place) = self.unposted.front().copied() {
            let posted = self.parts(place).and_then(|(parts, count)| post(&parts[..count], place));
            match posted {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return (count, Err(error)),
            }
            self.unposted.pop_front();
            if let Some(receive) = self.posted.get_mut(place as usize).and_then(Option::as_mut)
                && !std::mem::replace(&mut receive.again, true)
            {
                count += 1;
            }
        }
        (count, Ok(()))
    }

    /// Returns the memory that a RECV may fill, and the number of valid parts.
    fn parts(&mut self, place: u32) -> io::Result<([libc::iovec; 2], usize)> {
        // SAFETY: the provider does not have the RECV at this place.
        unsafe { self.headers.put(place, 0, &[0; HEADER]) };
        let header = libc::iovec { iov_base: self.headers.at(place).cast(), iov_len: HEADER };
        let receive = self.posted.get_mut(place as usize).and_then(Option::as_mut);
        let buffer = receive.and_then(|receive| receive.buffer.as_mut()).filter(|buffer| !buffer.is_empty());
        let Some(buffer) = buffer else { return Ok(([header, header], 1)) };
        let Some(landings) = &mut self.landings else {
            let body = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            return Ok(([header, body], 2));
        };
        let length = HEADER + buffer.len();
        let landing = &mut landings[place as usize];
        let mapping = match landing {
            Some(known) if known.length() >= length => known,
            _ => landing.insert(Mapping::new(length)?),
        };
        // SAFETY: the mapping is longer than a header, and the provider does not have it.
        unsafe { mapping.base().cast::<[u8; HEADER]>().write([0; HEADER]) };
        let all = libc::iovec { iov_base: mapping.base().as_ptr().cast(), iov_len: length };
        Ok(([all, all], 1))
    }

    /// Returns the bytes where the header of a message lands: zeros if none has arrived.
    ///
    /// # Safety
    /// The provider must have completed the RECV at this place.
    pub(crate) unsafe fn header(&self, place: u32) -> [u8; HEADER] {
        let receive = self.posted.get(place as usize).and_then(Option::as_ref);
        let has_body =
            receive.and_then(|receive| receive.buffer.as_ref()).is_some_and(|buffer| !buffer.is_empty());
        match self.landing(place).filter(|_| has_body) {
            // SAFETY: the caller's contract; a landing is longer than a header.
            Some(landing) => unsafe { landing.base().cast::<[u8; HEADER]>().read() },
            // SAFETY: the caller's contract.
            None => unsafe { self.headers.header(place) },
        }
    }

    fn landing(&self, place: u32) -> Option<&Mapping> {
        self.landings.as_ref()?.get(place as usize)?.as_ref()
    }

    /// Schedules a RECV again whose message came from elsewhere.
    pub(crate) fn post_again(&mut self, place: u32) {
        if self.posted.get(place as usize).is_some_and(Option::is_some) {
            self.unposted.push_back(place);
        }
    }

    /// Removes a RECV that has received a message with `bytes` bytes after its header.
    ///
    /// # Safety
    /// The provider must have completed the RECV at this place.
    pub(crate) unsafe fn take(&mut self, place: u32, bytes: usize) -> Option<Receive> {
        let mut receive = self.posted.get_mut(place as usize)?.take()?;
        if let Some(landing) = self.landing(place)
            && let Some(buffer) = &mut receive.buffer
        {
            let bytes = bytes.min(buffer.len()).min(landing.length().saturating_sub(HEADER));
            // SAFETY: the landing is long enough, the provider is done with it, and the buffer is exclusively
            // owned.
            unsafe {
                let from = landing.base().as_ptr().add(HEADER);
                std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), bytes);
            }
        }
        self.free.push(place);
        Some(receive)
    }

    /// Removes all RECVs, in posting order. Call after the endpoint is closed.
    pub(crate) fn drain(&mut self) -> Vec<Receive> {
        self.unposted.clear();
        let mut left: Vec<Receive> = Vec::new();
        for (place, receive) in self.posted.iter_mut().enumerate() {
            if let Some(receive) = receive.take() {
                self.free.push(place as u32);
                left.push(receive);
            }
        }
        left.sort_unstable_by_key(|receive| receive.order);
        left
    }
}

/// Messages that have arrived on a queue pair, put in the order of their numbers: providers complete long
/// messages late.
#[derive(Debug)]
pub(crate) struct Arrivals<T> {
    /// The number of the first of `waiting`.
    next: u32,
    waiting: VecDeque<Option<T>>,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Arrivals { next: 0, waiting: VecDeque::new() }
    }
}

/// Mask of a queue pair's message numbers.
pub(crate) const SEQUENCE: u32 = (1 << 30) - 1;

impl<T> Arrivals<T> {
    /// Adds the message with this number; returns `false` if it is not among the next `window`, or was there
    /// before.
    pub(crate) fn arrive(&mut self, sequence: u32, window: u32, arrived: T) -> bool {
        let place = sequence.wrapping_sub(self.next) & SEQUENCE;
        if place >= window {
            return false;
        }
        let place = place as usize;
        while self.waiting.len() <= place {
            self.waiting.push_back(None);
        }
        let free = self.waiting[place].is_none();
        if free {
            self.waiting[place] = Some(arrived);
        }
        free
    }

    /// Removes the next message in order.
    pub(crate) fn take(&mut self) -> Option<T> {
        let arrived = self.waiting.front_mut()?.take()?;
        self.waiting.pop_front();
        self.next = self.next.wrapping_add(1) & SEQUENCE;
        Some(arrived)
    }

    /// Removes all messages that wait for earlier ones.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.waiting.drain(..).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(receives: &mut Receives) -> (Vec<u32>, u32) {
        let mut places = Vec::new();
        let (first, result) = receives.hand_over(|parts, place| {
            assert_eq!((parts.len(), parts[0].iov_len), (1, HEADER));
            places.push(place);
            Ok(())
        });
        result.unwrap();
        (places, first)
    }

    #[test]
    fn receives_have_places_until_they_are_taken() {
        let mut receives = Receives::new(2, 4).unwrap();
        assert!(receives.push(WorkId(1), None) && receives.push(WorkId(2), None));
        assert!(!receives.push(WorkId(3), None), "it is full");
        let (places, first) = posted(&mut receives);
        assert_eq!((places.len(), first), (2, 2));
        // SAFETY: there is no provider.
        let taken = unsafe { receives.take(places[1], 0) };
        assert_eq!(taken.map(|receive| receive.id), Some(WorkId(2)));
        // SAFETY: there is no provider.
        assert!(unsafe { receives.take(places[1], 0) }.is_none());
        assert!(receives.push(WorkId(4), None));
        let left: Vec<u64> = receives.drain().iter().map(|receive| receive.id.0).collect();
        assert_eq!(left, [1, 4]);
    }

    #[test]
    fn what_was_not_for_us_has_its_receive_posted_again_and_not_counted() {
        let mut receives = Receives::new(2, 1).unwrap();
        receives.push(WorkId(1), None);
        let (places, first) = posted(&mut receives);
        assert_eq!(first, 1);
        receives.post_again(places[0]);
        receives.post_again(77);
        assert!(receives.has_unposted());
        assert_eq!(posted(&mut receives), (places, 0));
    }

    #[test]
    fn a_provider_without_room_is_asked_again() {
        let mut receives = Receives::new(2, 4).unwrap();
        receives.push(WorkId(1), None);
        let (count, result) = receives.hand_over(|_, _| Err(io::ErrorKind::WouldBlock.into()));
        assert!(count == 0 && result.is_ok() && receives.has_unposted());
        let (count, result) = receives.hand_over(|_, _| Err(io::ErrorKind::Other.into()));
        assert!(count == 0 && result.is_err());
        assert_eq!(posted(&mut receives).1, 1);
    }

    #[test]
    fn arrivals_are_told_in_order() {
        let mut arrivals = Arrivals { next: SEQUENCE, ..Arrivals::default() };
        assert!(arrivals.arrive(0, 4, 'b'));
        assert_eq!(arrivals.take(), None);
        assert!(arrivals.arrive(2, 4, 'd'));
        assert!(!arrivals.arrive(0, 4, 'x'), "it was there before");
        assert!(!arrivals.arrive(3, 4, 'x'), "it is beyond the window");
        assert!(!arrivals.arrive(SEQUENCE - 1, 4, 'x'), "it is of the past");
        assert!(arrivals.arrive(SEQUENCE, 4, 'a'));
        assert_eq!((arrivals.take(), arrivals.take(), arrivals.take()), (Some('a'), Some('b'), None));
        assert_eq!(arrivals.drain().collect::<String>(), "d");
    }
}
