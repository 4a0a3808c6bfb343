//! A queue pair with what is in flight on it.

use crate::LinkShared;
use crate::device::{Awaited, Open};
use crate::handles::Remote;
use crate::header::HEADER;
use crate::keeper::Kept;
use crate::memory::OfiMemory;
use dunlin_fabric::{
    Buffer, Completion, CompletionStatus, Gather, Nanos, Opcode, QueuePairConfig, QueuePairId,
    QueuePairState, RegionKey, WorkId,
};
use dunlin_fabric_control::{Flag, Mapping, RemoteRegion};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Places of equal length that the provider reads or writes; reached by pointers only.
#[derive(Debug)]
pub(crate) struct Places {
    mapping: Mapping,
    length: usize,
    mask: u32,
}

impl Places {
    /// Places for so many numbers in a row.
    pub(crate) fn new(count: u32, length: usize) -> io::Result<Self> {
        let count = count.max(1).next_power_of_two();
        let length = length.next_multiple_of(8);
        Ok(Places { mapping: Mapping::new(count as usize * length)?, length, mask: count - 1 })
    }

    /// The place of a number.
    #[inline]
    pub(crate) fn at(&self, number: u32) -> *mut u8 {
        let place = (number & self.mask) as usize * self.length;
        // SAFETY: within the mapping, which has as many places as there are numbers under the mask.
        unsafe { self.mapping.base().as_ptr().add(place) }
    }

    /// Copies bytes into a place.
    ///
    /// # Safety
    /// Nothing that was posted uses the place, and there is room behind `offset`.
    #[inline]
    pub(crate) unsafe fn put(&self, number: u32, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= self.length);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(number).add(offset), bytes.len()) }
    }

    /// The header in a place.
    ///
    /// # Safety
    /// What was posted there has completed.
    #[inline]
    pub(crate) unsafe fn header(&self, number: u32) -> [u8; HEADER] {
        // SAFETY: each place is as long as a header at least, and nobody writes there now.
        unsafe { self.at(number).cast::<[u8; HEADER]>().read_unaligned() }
    }
}

/// What a work request holds until it is done.
#[derive(Debug)]
pub(crate) enum Held {
    /// Nothing: inline data, in the place of its number.
    Nothing,
    /// A buffer that is sent.
    One(Buffer<OfiMemory>),
    /// Buffers that are sent.
    Several(Gather<OfiMemory>),
    /// Their bytes, where they are too many parts with the header.
    Copied(Box<[u8]>),
    /// A READ's destination, given back.
    Destination(Buffer<OfiMemory>),
}

/// What of a request is still to be handed to the provider.
pub(crate) const DATA: u8 = 1;
/// The message that tells of a WRITE.
pub(crate) const NOTICE: u8 = 2;

/// A work request in flight.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) id: WorkId,
    pub(crate) opcode: Opcode,
    pub(crate) bytes: u32,
    /// Whether its success is told.
    pub(crate) signaled: bool,
    pub(crate) held: Held,
    /// Bytes behind the header in its place.
    pub(crate) inline: u32,
    pub(crate) remote: Remote,
    pub(crate) to_post: u8,
    /// Handed to the provider and not completed.
    pub(crate) outstanding: u8,
    /// What went wrong.
    pub(crate) failed: Option<CompletionStatus>,
}

impl Sent {
    fn is_done(&self) -> bool {
        self.outstanding == 0 && (self.to_post == 0 || self.failed.is_some())
    }
}

/// Work requests in flight, numbered in the order in which they were posted. The provider completes them in any order (READs
/// later than what is behind them); they end in theirs.
#[derive(Debug)]
pub(crate) struct SendQueue {
    sent: VecDeque<Sent>,
    depth: usize,
    /// The number of the first of `sent`. Numbers wrap; there are never 2^31 at once.
    first: u32,
    /// How many of `sent` the provider has all of.
    posted: usize,
    /// How many of the first of `sent` have succeeded without anybody to be told: they keep their places until one ends of
    /// which somebody is.
    quiet: usize,
}

impl SendQueue {
    fn new(depth: u32) -> Self {
        let (sent, depth) = (VecDeque::with_capacity(depth as usize), depth as usize);
        SendQueue { sent, depth, first: 0, posted: 0, quiet: 0 }
    }

    /// How many more fit.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.depth - self.sent.len()
    }

    /// The number of the next.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.sent.len() as u32)
    }

    /// Adds one.
    #[inline]
    pub(crate) fn push(&mut self, sent: Sent) {
        self.sent.push_back(sent);
    }

    /// The next to hand to the provider, with its number.
    #[inline]
    pub(crate) fn unposted(&mut self) -> Option<(u32, &mut Sent)> {
        let number = self.first.wrapping_add(self.posted as u32);
        self.sent.get_mut(self.posted).map(|sent| (number, sent))
    }

    /// The provider has all of it.
    #[inline]
    pub(crate) fn is_posted(&mut self) {
        self.posted += 1;
    }

    /// A part of this one has completed. Says nothing of a number that is none of ours.
    #[inline]
    pub(crate) fn complete(&mut self, number: u32, failed: Option<CompletionStatus>) {
        let place = number.wrapping_sub(self.first) as usize;
        if let Some(sent) = self.sent.get_mut(place) {
            sent.outstanding = sent.outstanding.saturating_sub(1);
            sent.failed = sent.failed.or(failed);
        }
    }

    /// Everything that has not completed is flushed.
    fn flush(&mut self) {
        for sent in &mut self.sent {
            if sent.outstanding > 0 || sent.to_post != 0 {
                sent.outstanding = 0;
                sent.failed.get_or_insert(CompletionStatus::Flushed);
            }
            if sent.is_done() && !sent.signaled {
                // Nobody may ever ask for it.
                sent.held = Held::Nothing;
            }
        }
    }

    /// Takes the next of which somebody is to be told, if all before it have ended, and those with it.
    #[inline]
    fn take(&mut self) -> Option<Sent> {
        loop {
            let sent = self.sent.get(self.quiet).filter(|sent| sent.is_done())?;
            if sent.signaled || sent.failed.is_some() {
                break;
            }
            self.quiet += 1;
        }
        let ended = std::mem::take(&mut self.quiet) + 1;
        self.first = self.first.wrapping_add(ended as u32);
        self.posted = self.posted.saturating_sub(ended);
        self.sent.drain(..ended - 1);
        self.sent.pop_front()
    }
}

/// How a RECV ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) status: CompletionStatus,
    pub(crate) bytes: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) with_write: bool,
}

impl Received {
    /// It was not used.
    pub(crate) const FLUSHED: Received = Received::failed(CompletionStatus::Flushed);

    pub(crate) const fn failed(status: CompletionStatus) -> Self {
        Received { status, bytes: 0, immediate: None, with_write: false }
    }
}

/// A RECV that is posted.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) id: WorkId,
    pub(crate) buffer: Option<Buffer<OfiMemory>>,
}

impl Receive {
    /// The memory that it may fill: the header's place and the buffer. How many of the parts there are.
    pub(crate) fn parts(&mut self, place: *mut u8) -> ([libc::iovec; 2], usize) {
        let header = libc::iovec { iov_base: place.cast(), iov_len: HEADER };
        match &mut self.buffer {
            Some(buffer) if !buffer.is_empty() => {
                let body = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
                ([header, body], 2)
            }
            _ => ([header, header], 1),
        }
    }

    /// What its user learns.
    pub(crate) fn concluded(self, queue_pair: QueuePairId, how: Received) -> Completion<OfiMemory> {
        let Received { status, bytes, immediate, with_write } = how;
        let opcode = if with_write { Opcode::ReceiveWriteImmediate } else { Opcode::Receive };
        let Receive { id, buffer } = self;
        Completion { id, status, opcode, bytes, immediate, value: 0, queue_pair, buffer }
    }
}

/// RECVs of a queue pair, which end in the order in which they were posted.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    waiting: VecDeque<(Receive, Option<Received>)>,
    depth: usize,
    first: u32,
    posted: usize,
}

impl ReceiveQueue {
    fn new(depth: u32) -> Self {
        let (waiting, depth) = (VecDeque::with_capacity(depth as usize), depth as usize);
        ReceiveQueue { waiting, depth, first: 0, posted: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.depth
    }

    pub(crate) fn push(&mut self, receive: Receive) {
        self.waiting.push_back((receive, None));
    }

    /// The next to hand to the provider, with its number.
    pub(crate) fn unposted(&mut self) -> Option<(u32, &mut Receive)> {
        let number = self.first.wrapping_add(self.posted as u32);
        self.waiting.get_mut(self.posted).map(|(receive, _)| (number, receive))
    }

    /// The provider has it.
    pub(crate) fn is_posted(&mut self) {
        self.posted += 1;
    }

    /// This one has ended. Says nothing of a number that is none of ours.
    pub(crate) fn complete(&mut self, number: u32, how: Received) {
        let place = number.wrapping_sub(self.first) as usize;
        if let Some((_, ended)) = self.waiting.get_mut(place) {
            ended.get_or_insert(how);
        }
    }

    fn flush(&mut self) {
        self.waiting.iter_mut().for_each(|(_, ended)| {
            ended.get_or_insert(Received::FLUSHED);
        });
    }

    fn take(&mut self) -> Option<(Receive, Received)> {
        let how = self.waiting.front().and_then(|(_, ended)| *ended)?;
        self.first = self.first.wrapping_add(1);
        self.posted = self.posted.saturating_sub(1);
        self.waiting.pop_front().map(|(receive, _)| (receive, how))
    }
}

const KNOWN: usize = 8;

/// What a queue pair knows of its other end.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) number: u32,
    pub(crate) secret: u64,
    /// The regions used last, so that the data path takes no lock; each at the place that its key says.
    known: [Option<Arc<RemoteRegion>>; KNOWN],
}

impl Peer {
    pub(crate) fn new(number: u32, secret: u64) -> Self {
        Peer { number, secret, known: Default::default() }
    }
}

/// One queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    /// Taken, and closed, before anything else goes: the provider touches nothing after that.
    pub(crate) open: Option<Open>,
    /// Both ends have met: what is posted can go.
    pub(crate) met: bool,
    pub(crate) kept: Option<Kept>,
    /// The connection that the other end asks for.
    pub(crate) awaited: Option<Arc<Awaited>>,
    /// When the other end has to be there.
    pub(crate) meet_by: Nanos,
    pub(crate) id: QueuePairId,
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    /// On its device, and in its messages.
    pub(crate) number: u32,
    pub(crate) secret: u64,
    /// The link that its address went out on.
    pub(crate) link: Option<Arc<LinkShared>>,
    /// The other end is gone.
    pub(crate) closed: Arc<Flag>,
    pub(crate) peer: Option<Peer>,
    /// Listed among those that have something to hand to the provider.
    pub(crate) is_pending: bool,
    pub(crate) sends: SendQueue,
    pub(crate) receives: ReceiveQueue,
    /// Headers and inline data of what is sent.
    pub(crate) outgoing: Places,
    /// Headers of RECVs.
    pub(crate) incoming: Places,
}

impl QueuePair {
    pub(crate) fn new(
        id: QueuePairId,
        config: QueuePairConfig,
        (number, secret): (u32, u64),
        max_inline: u32,
    ) -> io::Result<Self> {
        Ok(QueuePair {
            open: None,
            met: false,
            kept: None,
            awaited: None,
            meet_by: Nanos::MAX,
            id,
            config,
            state: QueuePairState::Initialised,
            number,
            secret,
            link: None,
            closed: Arc::default(),
            peer: None,
            is_pending: false,
            sends: SendQueue::new(config.max_send),
            receives: ReceiveQueue::new(config.max_receive),
            outgoing: Places::new(config.max_send, HEADER + max_inline as usize)?,
            incoming: Places::new(config.max_receive, HEADER)?,
        })
    }

    /// Where a region of the peer's is. One that it has not granted is nowhere: the peer's provider refuses that, and ends the
    /// connection.
    #[inline]
    pub(crate) fn remote(&mut self, key: RegionKey, offset: u64) -> Remote {
        let nowhere = Remote { address: 0, key: 0 };
        let (Some(peer), Some(link)) = (&mut self.peer, &self.link) else { return nowhere };
        let place = &mut peer.known[key.0 as usize % KNOWN];
        if place.as_ref().is_none_or(|region| region.key != key || region.is_revoked()) {
            *place = link.import(key);
        }
        // Bounds are the peer's business: its registration ends where its grant does.
        place.as_ref().map_or(nowhere, |region| Remote {
            address: region.place.address.wrapping_add(offset),
            key: region.place.remote_key,
        })
    }

    /// Tells the other end that this one is of no use any more.
    pub(crate) fn tell_closed(&self) {
        if let (Some(peer), Some(link)) = (&self.peer, &self.link)
            && !self.closed.is_raised()
            && link.is_alive()
        {
            link.tell_closed(peer.number);
        }
    }

    /// Whether the other end is gone, as far as is known.
    pub(crate) fn is_orphan(&self) -> bool {
        self.closed.is_raised()
            || self.link.as_ref().is_some_and(|link| !link.is_alive())
            || self.open.as_ref().is_some_and(|open| open.connection.closed.is_raised())
    }

    /// Everything that has not ended is flushed. The endpoint is closed, and all that it completed was taken.
    pub(crate) fn flush(&mut self) {
        self.sends.flush();
        self.receives.flush();
    }

    /// The next request of the send queue that has ended and of which its user is to be told.
    #[inline]
    pub(crate) fn take_sent(&mut self) -> Option<Completion<OfiMemory>> {
        let sent = self.sends.take()?;
        let Sent { id, opcode, bytes, held, failed, .. } = sent;
        let buffer = match held {
            Held::Destination(buffer) => Some(buffer),
            Held::Nothing | Held::One(_) | Held::Several(_) | Held::Copied(_) => None,
        };
        Some(Completion {
            id,
            status: failed.unwrap_or(CompletionStatus::Success),
            opcode,
            bytes,
            immediate: None,
            value: 0,
            queue_pair: self.id,
            buffer,
        })
    }

    /// The next RECV that has ended.
    #[inline]
    pub(crate) fn take_received(&mut self) -> Option<Completion<OfiMemory>> {
        let (receive, how) = self.receives.take()?;
        Some(receive.concluded(self.id, how))
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // First the provider lets go, then the buffers return to their arenas.
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(id: u64, signaled: bool) -> Sent {
        Sent {
            id: WorkId(id),
            opcode: Opcode::Write,
            bytes: 0,
            signaled,
            held: Held::Nothing,
            inline: 0,
            remote: Remote::default(),
            to_post: 0,
            outstanding: 1,
            failed: None,
        }
    }

    #[test]
    fn requests_end_in_order_whatever_completes_first() {
        let mut queue = SendQueue::new(4);
        queue.first = u32::MAX - 1;
        for id in 0..4 {
            queue.push(sent(id, true));
            queue.is_posted();
        }
        assert_eq!((queue.room(), queue.next()), (0, 2));
        queue.complete(0, None);
        queue.complete(u32::MAX, None);
        assert!(queue.take().is_none(), "the first has not completed");
        for strange in [2, 77, u32::MAX - 2] {
            queue.complete(strange, None);
        }
        assert!(queue.take().is_none());
        queue.complete(u32::MAX - 1, None);
        let ended: Vec<u64> = std::iter::from_fn(|| queue.take()).map(|sent| sent.id.0).collect();
        assert_eq!((ended, queue.posted, queue.room()), (vec![0, 1, 2], 1, 3));
        queue.flush();
        assert_eq!(queue.take().and_then(|sent| sent.failed), Some(CompletionStatus::Flushed));
    }

    #[test]
    fn unsignaled_requests_keep_their_places_until_one_ends_that_is_told_of() {
        let mut queue = SendQueue::new(4);
        for id in 0..4 {
            queue.push(sent(id, id == 2));
            queue.is_posted();
        }
        for number in [0, 1] {
            queue.complete(number, None);
            assert!(queue.take().is_none());
        }
        assert_eq!(queue.room(), 0);
        queue.complete(2, None);
        assert_eq!(queue.take().map(|sent| sent.id), Some(WorkId(2)));
        assert_eq!((queue.room(), queue.posted, queue.first), (3, 1, 3));
        queue.complete(3, Some(CompletionStatus::TransportRetry));
        assert_eq!(queue.take().map(|sent| sent.id), Some(WorkId(3)), "a failure is always told of");
    }

    #[test]
    fn places_are_apart_and_come_again() {
        let places = Places::new(3, 20).unwrap();
        let at: Vec<usize> = (0..5).map(|number| places.at(number) as usize).collect();
        assert_eq!(at[4], at[0]);
        assert!(at.windows(2).take(3).all(|two| two[1] - two[0] == 24));
        assert_eq!(places.at(u32::MAX) as usize, at[3]);
    }

    #[test]
    fn receives_end_in_order() {
        let mut queue = ReceiveQueue::new(2);
        for id in 0..2 {
            queue.push(Receive { id: WorkId(id), buffer: None });
            queue.is_posted();
        }
        assert!(queue.is_full());
        queue.complete(1, Received::FLUSHED);
        assert!(queue.take().is_none());
        queue.complete(0, Received { status: CompletionStatus::Success, ..Received::FLUSHED });
        assert_eq!(queue.take().map(|(receive, _)| receive.id), Some(WorkId(0)));
        assert_eq!(queue.take().map(|(receive, _)| receive.id), Some(WorkId(1)));
    }
}
