//! A queue pair and its requests in flight.

use crate::QueuePairBinding;
use crate::datagram::Datagram;
use crate::device::{Awaited, Open};
use crate::features::Features;
use crate::handles::Remote;
use crate::header::HEADER;
use crate::memory::OfiMemory;
use crate::order::{self, Next, Piece};
use crate::places::Places;
use crate::progress_thread::Kept;
use crate::receives::{Arrivals, Receive, Received, Receives};
use dunlin_fabric::queue_pair_table::Identified;
use dunlin_fabric::{
    Buffer, Completion, CompletionStatus, Gather, Nanos, Opcode, QueuePairConfig, QueuePairId,
    QueuePairState, RegionKey, RegionRange, WorkId,
};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The memory that a work request holds until it is done.
#[derive(Debug)]
pub(crate) enum Held {
    /// None: inline data, in the place of the request's number.
    Nothing,
    /// A buffer to send.
    One(Buffer<OfiMemory>),
    /// Buffers to send.
    Several(Gather<OfiMemory>),
    /// A copy of the bytes, if the buffers and the header are too many parts.
    Copied(Box<[u8]>),
    /// A copy of the header and the bytes, for providers that accept only one part.
    Whole(Box<[u8]>),
    /// A range of a region to send.
    Region(RegionRange<OfiMemory>),
    /// A READ's destination, which the completion returns.
    Destination(Buffer<OfiMemory>),
    /// A READ's destination in a region.
    RegionDestination(RegionRange<OfiMemory>),
}

impl Held {
    /// Returns the number of parts of a message.
    pub(crate) fn parts(&self) -> usize {
        match self {
            Held::Nothing => 0,
            Held::One(buffer) | Held::Destination(buffer) => usize::from(!buffer.is_empty()),
            Held::Several(gather) => gather.iter().filter(|buffer| !buffer.is_empty()).count(),
            Held::Copied(_) | Held::Whole(_) => 1,
            Held::Region(range) | Held::RegionDestination(range) => usize::from(range.length() > 0),
        }
    }

    /// Returns a copy of its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Held::Nothing => Vec::new(),
            Held::One(buffer) | Held::Destination(buffer) => buffer.to_vec(),
            Held::Several(gather) => gather.iter().flat_map(|buffer| buffer.iter().copied()).collect(),
            Held::Copied(bytes) | Held::Whole(bytes) => bytes.to_vec(),
            Held::Region(range) | Held::RegionDestination(range) => {
                let mut bytes = vec![0; range.length()];
                range.copy_out(0, &mut bytes);
                bytes
            }
        }
    }
}

/// Step of a request to give to the provider: the data.
pub(crate) const DATA: u8 = 1;
/// Step of a request to give to the provider: the notice of a WRITE.
pub(crate) const NOTICE: u8 = 2;

/// A work request in flight.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) id: WorkId,
    pub(crate) opcode: Opcode,
    pub(crate) bytes: u32,
    /// Whether its success makes a completion.
    pub(crate) signaled: bool,
    pub(crate) held: Held,
    /// The number of bytes after the header in its place.
    pub(crate) inline: u32,
    pub(crate) remote: Remote,
    pub(crate) to_post: u8,
    /// The number of steps given to the provider and not completed.
    pub(crate) outstanding: u8,
    /// Whether it is a WRITE in flight that must be delivered before operations that see it are posted.
    pub(crate) writing: bool,
    /// The error, if it failed.
    pub(crate) failed: Option<CompletionStatus>,
}

impl Sent {
    /// Returns the range that a WRITE changes.
    pub(crate) fn piece(&self) -> Piece {
        Piece { remote: self.remote, bytes: self.bytes }
    }

    fn is_done(&self) -> bool {
        self.outstanding == 0 && (self.to_post == 0 || self.failed.is_some())
    }
}

/// The way in which the provider holds a posted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// Copied: the provider needs no memory of it any more, and reports it only if it fails.
    Copied,
    /// The provider reports when it no longer needs the memory.
    Told,
    /// As `Told`, for a WRITE that other operations have to wait for.
    Awaited,
}

/// Work requests in flight, numbered in posting order. The provider completes them in any order (READs later
/// than requests after them); they end in posting order.
#[derive(Debug)]
pub(crate) struct SendQueue {
    sent: VecDeque<Sent>,
    depth: usize,
    /// The number of the first of `sent`. Numbers wrap; there are never 2^31 at once.
    first: u32,
    /// How many of `sent` have been given to the provider completely.
    posted: usize,
    /// The number of WRITEs in flight that other operations have to wait for.
    writing: u32,
    /// How many of the first of `sent` have succeeded unsignaled. They keep their places until a request ends
    /// that makes a completion.
    quiet: usize,
}

impl SendQueue {
    fn new(depth: u32) -> Self {
        let (sent, depth) = (VecDeque::with_capacity(depth as usize), depth as usize);
        SendQueue { sent, depth, first: 0, posted: 0, writing: 0, quiet: 0 }
    }

    /// Returns the number of free places.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.depth - self.sent.len()
    }

    /// Returns the number of the next request.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.first.wrapping_add(self.sent.len() as u32)
    }

    #[inline]
    pub(crate) fn push(&mut self, sent: Sent) {
        self.sent.push_back(sent);
    }

    /// Returns the next request to give to the provider, with its number.
    #[inline]
    pub(crate) fn unposted(&self) -> Option<(u32, &Sent)> {
        let number = self.first.wrapping_add(self.posted as u32);
        self.sent.get(self.posted).map(|sent| (number, sent))
    }

    /// Records that the provider has this step of the next request ([`DATA`] or [`NOTICE`]; 0 if there is
    /// nothing to post).
    #[inline]
    pub(crate) fn is_posted(&mut self, step: u8, how: Posted) {
        let Some(sent) = self.sent.get_mut(self.posted) else { return };
        let writing = how == Posted::Awaited;
        sent.to_post &= !step;
        sent.outstanding += u8::from(how != Posted::Copied);
        sent.writing |= writing;
        self.writing += u32::from(writing);
        self.posted += usize::from(sent.to_post == 0);
    }

    /// Returns whether an operation must wait for WRITEs in flight.
    #[inline]
    pub(crate) fn must_wait(&self, next: Next) -> bool {
        let under_way = || self.sent.iter().take(self.posted + 1).filter(|sent| sent.writing);
        self.writing > 0 && order::must_wait(next, under_way().map(Sent::piece))
    }

    /// Records the completion of one step of a request. Ignores numbers that are not in flight.
    #[inline]
    pub(crate) fn complete(&mut self, number: u32, failed: Option<CompletionStatus>) {
        let place = number.wrapping_sub(self.first) as usize;
        if let Some(sent) = self.sent.get_mut(place) {
            sent.outstanding = sent.outstanding.saturating_sub(1);
            if std::mem::take(&mut sent.writing) {
                self.writing -= 1;
            }
            sent.failed = sent.failed.or(failed);
        }
    }

    /// Marks all requests that have not completed as flushed.
    fn flush(&mut self) {
        self.writing = 0;
        for sent in &mut self.sent {
            sent.writing = false;
            if sent.outstanding > 0 || sent.to_post != 0 {
                sent.outstanding = 0;
                sent.failed.get_or_insert(CompletionStatus::Flushed);
            }
            if sent.is_done() && !sent.signaled {
                // No one may ever take an unsignaled request out.
                sent.held = Held::Nothing;
            }
        }
    }

    /// Takes the next request that makes a completion, if all requests before it have ended. Removes those
    /// too.
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

/// The number and secret that identify this side to the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) number: u32,
    pub(crate) secret: u64,
}

/// One queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    /// Taken, and closed, before anything else is dropped: after that the provider accesses no memory.
    pub(crate) open: Option<Open>,
    /// Whether both ends have met, so that requests can be sent.
    pub(crate) met: bool,
    pub(crate) kept: Option<Kept>,
    /// The connection that the other end requests.
    pub(crate) awaited: Option<Arc<Awaited>>,
    /// The deadline for meeting the other end.
    pub(crate) meet_by: Nanos,
    pub(crate) id: QueuePairId,
    pub(crate) config: QueuePairConfig,
    pub(crate) state: QueuePairState,
    /// The device-wide number, which messages contain.
    pub(crate) number: u32,
    pub(crate) secret: u64,
    /// The bond to the link that carried its address, and to its other end.
    pub(crate) bond: QueuePairBinding,
    pub(crate) peer: Option<Peer>,
    /// Whether it is in the list of queue pairs with requests to give to the provider.
    pub(crate) is_pending: bool,
    /// The provider's features.
    pub(crate) features: Features,
    pub(crate) sends: SendQueue,
    /// The number of the next message.
    pub(crate) sequence: u32,
    pub(crate) receives: Receives,
    pub(crate) arrivals: Arrivals<(Receive, Received)>,
    /// RECVs that ended without a message. They complete after all messages that have arrived.
    pub(crate) ended: VecDeque<(Receive, Received)>,
    /// Headers and inline data of outgoing messages.
    pub(crate) outgoing: Places,
    /// For reliable datagrams, once the endpoint is open.
    pub(crate) datagram: Option<Datagram>,
}

impl Identified for QueuePair {
    #[inline]
    fn id(&self) -> QueuePairId {
        self.id
    }
}

impl QueuePair {
    pub(crate) fn new(
        id: QueuePairId,
        config: QueuePairConfig,
        (number, secret): (u32, u64),
        max_inline: u32,
        features: &Features,
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
            bond: QueuePairBinding::default(),
            peer: None,
            is_pending: false,
            features: *features,
            sends: SendQueue::new(config.max_send),
            sequence: 0,
            receives: Receives::new(config.max_receive, features.receive_parts)?,
            arrivals: Arrivals::default(),
            ended: VecDeque::new(),
            outgoing: Places::new(config.max_send, HEADER + max_inline as usize)?,
            datagram: None,
        })
    }

    /// Returns the remote address of a region of the peer. For a region that is not granted, returns an
    /// invalid address: the peer's provider refuses it and ends the connection.
    #[inline]
    pub(crate) fn remote(&mut self, key: RegionKey, offset: u64) -> Remote {
        let nowhere = Remote { address: 0, key: 0 };
        // The peer checks the bounds: its registration is exactly as long as its grant.
        self.bond.region(key).map_or(nowhere, |region| Remote {
            address: region.place.address.wrapping_add(offset),
            key: region.place.remote_key,
        })
    }

    /// Returns whether the other end is known to be gone.
    pub(crate) fn is_orphan(&self) -> bool {
        self.bond.is_orphan() || self.open.as_ref().is_some_and(|open| open.connection.closed.is_raised())
    }

    /// Flushes all requests that have not ended. Call after the endpoint is closed and all its completions
    /// were taken.
    pub(crate) fn flush(&mut self) {
        self.sends.flush();
        while let Some(arrived) = self.arrivals.take() {
            self.ended.push_back(arrived);
        }
        let gone = self.arrivals.drain().map(|(receive, _)| receive).chain(self.receives.drain());
        self.ended.extend(gone.map(|receive| (receive, Received::FLUSHED)));
    }

    /// Returns the next completion of the send queue.
    #[inline]
    pub(crate) fn take_sent(&mut self) -> Option<Completion<OfiMemory>> {
        let sent = self.sends.take()?;
        let Sent { id, opcode, bytes, held, failed, .. } = sent;
        let buffer = match held {
            Held::Destination(buffer) => Some(buffer),
            Held::Nothing | Held::One(_) | Held::Several(_) | Held::Copied(_) | Held::Whole(_) => None,
            Held::Region(_) | Held::RegionDestination(_) => None,
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

    /// Returns the next completion of a RECV.
    #[inline]
    pub(crate) fn take_received(&mut self) -> Option<Completion<OfiMemory>> {
        let (receive, how) = self.arrivals.take().or_else(|| self.ended.pop_front())?;
        Some(receive.concluded(self.id, how))
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // The endpoint is closed first; then the buffers return to their arenas.
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
            to_post: DATA,
            outstanding: 0,
            writing: false,
            failed: None,
        }
    }

    #[test]
    fn requests_end_in_order_whatever_completes_first() {
        let mut queue = SendQueue::new(4);
        queue.first = u32::MAX - 1;
        for id in 0..4 {
            queue.push(sent(id, true));
            queue.is_posted(DATA, Posted::Told);
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
            queue.is_posted(DATA, Posted::Told);
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
    fn what_sees_a_write_waits_until_it_is_delivered() {
        let mut queue = SendQueue::new(4);
        let written = |id, address| Sent { remote: Remote { address, key: 1 }, bytes: 8, ..sent(id, true) };
        queue.push(written(0, 64));
        assert!(!queue.must_wait(Next::Write(queue.unposted().unwrap().1.piece())));
        queue.is_posted(DATA, Posted::Awaited);
        queue.push(written(1, 128));
        let far = queue.unposted().unwrap().1.piece();
        assert!(!queue.must_wait(Next::Write(far)), "elsewhere");
        assert!(queue.must_wait(Next::Write(Piece { bytes: 100, remote: Remote { address: 0, key: 1 } })));
        assert!(queue.must_wait(Next::Sees));
        queue.is_posted(DATA, Posted::Awaited);
        queue.complete(0, None);
        assert!(queue.must_wait(Next::Sees), "the second is under way");
        queue.complete(1, None);
        assert!(!queue.must_wait(Next::Sees));
    }

    #[test]
    fn the_news_of_a_write_waits_for_the_write_itself() {
        let mut queue = SendQueue::new(2);
        queue.push(Sent { to_post: DATA | NOTICE, bytes: 8, ..sent(0, true) });
        queue.is_posted(DATA, Posted::Awaited);
        assert!(queue.unposted().is_some_and(|(number, sent)| number == 0 && sent.to_post == NOTICE));
        assert!(queue.must_wait(Next::Sees));
        queue.complete(0, None);
        assert!(queue.take().is_none(), "its news is not posted");
        assert!(!queue.must_wait(Next::Sees));
        queue.is_posted(NOTICE, Posted::Told);
        assert!(queue.unposted().is_none());
        queue.complete(0, None);
        assert!(queue.take().is_some());
    }
}
