//! The requests of a path: those that wait for a doorbell, those under way, and those that are over. Requests of several
//! operations, of several processes too, leave as one list with one doorbell for each node (LITE section 6.1; FLOCK
//! section 6).

use dunlin_fabric::{
    Buffer, Completion, CompletionQueueId, CompletionStatus, Data, Fabric, Host, Operation, PostError,
    QueuePairId, RegionKey, ThreadDomain, Work, WorkId, WorkRequest,
};
use dunlin_tier::NodeId;

/// The most requests of a path that wait, are under way or are not looked at: of all operations on it.
pub(crate) const ROOM: usize = 32;
/// The longest bytes that wait for a doorbell beside their request, as the device takes them: longer ones wait in
/// registered memory.
pub(crate) const MAX_INLINE: usize = 256;

/// A part of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The number of the operation on its path.
    pub(crate) flight: u64,
    pub(crate) node: NodeId,
    /// The operation's place in its list.
    pub(crate) item: usize,
    /// The position in the caller's buffer, and the length.
    pub(crate) at: usize,
    pub(crate) length: usize,
}

/// The end of a request.
#[derive(Debug)]
pub(crate) enum End<F: Fabric> {
    /// With the old value of an atomic, and the buffer of a READ.
    Done(u64, Option<Buffer<F::Memory>>),
    Failed(CompletionStatus),
    Refused(PostError),
    /// Its connection was given up.
    Lost,
}

#[derive(Debug)]
struct Slot<F: Fabric> {
    part: Part,
    /// The number of the request: requests of one queue pair end in its order.
    number: u64,
    is_signaled: bool,
    end: Option<End<F>>,
}

/// The contents of a request that waits.
#[derive(Debug)]
enum Content<F: Fabric> {
    /// A WRITE of bytes that are kept here.
    Inline {
        key: RegionKey,
        offset: u64,
    },
    Whole(Operation<'static, F::Memory>),
}

#[derive(Debug)]
struct Waiting<F: Fabric> {
    slot: usize,
    content: Content<F>,
}

/// A set of slots.
#[derive(Clone, Copy, Debug)]
struct Places(u32);

impl Places {
    const ALL: Places = Places(u32::MAX);
    const NONE: Places = Places(0);

    fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    fn insert(&mut self, slot: usize) {
        self.0 |= 1 << slot;
    }

    fn remove(&mut self, slot: usize) {
        self.0 &= !(1 << slot);
    }

    fn without(self, other: Places) -> Places {
        Places(self.0 & !other.0)
    }
}

impl Iterator for Places {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.remove(first);
        Some(first)
    }
}

const _: () = assert!(ROOM == u32::BITS as usize);

#[derive(Debug)]
pub(crate) struct Posts<F: Fabric> {
    completions: CompletionQueueId,
    slots: Vec<Option<Slot<F>>>,
    /// Slots without a request, and those whose request is over.
    free: Places,
    over: Places,
    number: u64,
    /// Requests that wait, in their order; and those of one list.
    waiting: Vec<Waiting<F>>,
    list: Vec<Waiting<F>>,
    later: Vec<Waiting<F>>,
    /// The bytes of inline WRITEs that wait, by slot.
    bytes: Vec<u8>,
    found: Vec<Completion<F::Memory>>,
    /// Some request was posted unsignaled.
    has_unsignaled: bool,
}

impl<F: Fabric> Posts<F> {
    pub(crate) fn new(completions: CompletionQueueId) -> Self {
        Posts {
            completions,
            slots: (0..ROOM).map(|_| None).collect(),
            free: Places::ALL,
            over: Places::NONE,
            number: 0,
            waiting: Vec::with_capacity(ROOM),
            list: Vec::with_capacity(ROOM),
            later: Vec::with_capacity(ROOM),
            bytes: vec![0; ROOM * MAX_INLINE],
            found: Vec::with_capacity(ROOM),
            has_unsignaled: false,
        }
    }

    /// Returns how many more requests there is room for.
    pub(crate) fn room(&self) -> usize {
        self.free.0.count_ones() as usize
    }

    /// Returns the number of requests that wait for their doorbell.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of a flight's requests that are under way, or over and not [taken](Posts::take).
    pub(crate) fn of_flight(&self, flight: u64) -> usize {
        self.of(Places::ALL.without(self.free)).filter(|part| part.flight == flight).count()
    }

    /// Returns the parts of requests.
    fn of(&self, places: Places) -> impl Iterator<Item = Part> {
        places.filter_map(|place| self.slots[place].as_ref().map(|slot| slot.part))
    }

    fn enter(&mut self, part: Part, is_signaled: bool) -> Option<usize> {
        let at = self.free.first()?;
        self.free.remove(at);
        self.number += 1;
        self.slots[at] = Some(Slot { part, number: self.number, is_signaled, end: None });
        Some(at)
    }

    fn id(&self, slot: usize) -> WorkId {
        let number = self.slots[slot].as_ref().map_or(0, |slot| slot.number);
        WorkId(number << 8 | slot as u64)
    }

    /// Posts a request with a doorbell of its own.
    pub(crate) fn post(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        queue_pair: QueuePairId,
        part: Part,
        operation: Operation<'_, F::Memory>,
    ) -> Result<(), PostError> {
        let slot = self.enter(part, true).ok_or(PostError::QueueFull)?;
        fabric.host().charge(Work::PostWork, 1);
        let request = WorkRequest { id: self.id(slot), operation, signaled: true };
        domain.post(queue_pair, request).inspect_err(|_| {
            self.slots[slot] = None;
            self.free.insert(slot);
        })
    }

    /// Has a WRITE of at most [`MAX_INLINE`] bytes wait for its list.
    pub(crate) fn hold_inline(
        &mut self,
        part: Part,
        bytes: &[u8],
        (key, offset): (RegionKey, u64),
    ) -> Result<(), PostError> {
        let slot = self.enter(part, false).ok_or(PostError::QueueFull)?;
        self.bytes[slot * MAX_INLINE..][..bytes.len()].copy_from_slice(bytes);
        self.waiting.push(Waiting { slot, content: Content::Inline { key, offset } });
        Ok(())
    }

    /// Has a request wait for its list.
    pub(crate) fn hold(
        &mut self,
        part: Part,
        operation: Operation<'static, F::Memory>,
    ) -> Result<(), PostError> {
        let slot = self.enter(part, false).ok_or(PostError::QueueFull)?;
        self.waiting.push(Waiting { slot, content: Content::Whole(operation) });
        Ok(())
    }

    /// Posts the requests that wait for one node, the first one's, as one list with one doorbell, the last one signaled.
    /// Returns the node; `None` if none waits. Requests that cannot be posted are over, and the connection is of no use.
    pub(crate) fn ring(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        queue_pair_to: impl FnOnce(NodeId) -> Option<QueuePairId>,
    ) -> Option<(NodeId, Result<(), PostError>)> {
        let node_of = |slots: &[Option<Slot<F>>], waiting: &Waiting<F>| {
            slots[waiting.slot].as_ref().map(|slot| slot.part.node)
        };
        let to = self.waiting.first().and_then(|first| node_of(&self.slots, first))?;
        for waiting in self.waiting.drain(..) {
            match node_of(&self.slots, &waiting) == Some(to) {
                true => self.list.push(waiting),
                false => self.later.push(waiting),
            }
        }
        std::mem::swap(&mut self.waiting, &mut self.later);
        let Some(queue_pair) = queue_pair_to(to) else {
            self.list.clear();
            return Some((to, Err(PostError::NotConnected)));
        };
        let count = self.list.len();
        fabric.host().charge(Work::PostWork, count as u32);
        let mut places = [0; ROOM];
        let posted = {
            let mut parts: [[&[u8]; 1]; ROOM] = [[&[]]; ROOM];
            for (place, waiting) in self.list.iter().enumerate() {
                places[place] = waiting.slot;
                let length = self.slots[waiting.slot].as_ref().map_or(0, |slot| slot.part.length);
                if matches!(waiting.content, Content::Inline { .. }) {
                    parts[place] = [&self.bytes[waiting.slot * MAX_INLINE..][..length]];
                }
            }
            let mut requests: [Option<WorkRequest<'_, F::Memory>>; ROOM] = [const { None }; ROOM];
            for (place, waiting) in self.list.drain(..).enumerate() {
                let Some(slot) = self.slots[waiting.slot].as_mut() else { continue };
                let operation = match waiting.content {
                    Content::Whole(operation) => operation,
                    Content::Inline { key, offset } => {
                        let data = Data::Inline(&parts[place]);
                        Operation::Write { data, key, offset, immediate: None }
                    }
                };
                // Others than WRITEs always have completions.
                let is_write = matches!(operation, Operation::Write { .. });
                slot.is_signaled = !is_write || place + 1 == count;
                self.has_unsignaled |= !slot.is_signaled;
                let id = WorkId(slot.number << 8 | waiting.slot as u64);
                requests[place] = Some(WorkRequest { id, operation, signaled: slot.is_signaled });
            }
            domain.post_list(queue_pair, &mut requests[..count])
        };
        let refused = posted.err().map(|list| (list.posted, list.error));
        if let Some((posted, error)) = refused {
            for place in &places[posted..count] {
                if let Some(slot) = self.slots[*place].as_mut() {
                    slot.end = Some(End::Refused(error));
                    self.over.insert(*place);
                }
            }
        }
        Some((to, refused.map_or(Ok(()), |(_, error)| Err(error))))
    }

    /// The connection to a node is given up: its requests are over, as far as they were not before.
    pub(crate) fn lose(&mut self, to: NodeId) {
        let slots = &mut self.slots;
        self.waiting.retain(|waiting| slots[waiting.slot].as_ref().is_some_and(|slot| slot.part.node != to));
        for place in Places::ALL.without(self.free).without(self.over) {
            if let Some(slot) = slots[place].as_mut().filter(|slot| slot.part.node == to) {
                slot.end = Some(End::Lost);
                self.over.insert(place);
            }
        }
    }

    /// Takes the completions that are there.
    pub(crate) fn poll(&mut self, fabric: &F, domain: &mut F::Domain) {
        domain.poll(self.completions, &mut self.found, ROOM);
        for completion in self.found.drain(..) {
            let (number, at) = (completion.id.0 >> 8, (completion.id.0 & 0xff) as usize);
            let slot = self.slots.get_mut(at).and_then(Option::as_mut);
            let Some(slot) = slot.filter(|slot| slot.number == number && slot.end.is_none()) else {
                continue;
            };
            fabric.host().charge(Work::PollCompletion, 1);
            let to = slot.part.node;
            slot.end = Some(match completion.status {
                CompletionStatus::Success => End::Done(completion.value, completion.buffer),
                status => End::Failed(status),
            });
            self.over.insert(at);
            if completion.status != CompletionStatus::Success || !self.has_unsignaled {
                continue;
            }
            // Those before it on the queue pair are complete, too.
            for place in Places::ALL.without(self.free).without(self.over) {
                let Some(slot) = self.slots[place].as_mut() else { continue };
                if slot.part.node == to && slot.number < number && !slot.is_signaled {
                    slot.end = Some(End::Done(0, None));
                    self.over.insert(place);
                }
            }
        }
    }

    /// Takes a request of a flight that is over.
    pub(crate) fn take(&mut self, flight: u64) -> Option<(Part, End<F>)> {
        let is_of = |slot: &Option<Slot<F>>| slot.as_ref().is_some_and(|slot| slot.part.flight == flight);
        let place = { self.over }.find(|place| is_of(&self.slots[*place]))?;
        let slot = self.slots[place].take()?;
        self.over.remove(place);
        self.free.insert(place);
        slot.end.map(|end| (slot.part, end))
    }

    /// Returns the parts of a flight that are not over.
    pub(crate) fn under_way(&self, flight: u64) -> impl Iterator<Item = Part> {
        self.of(Places::ALL.without(self.free).without(self.over)).filter(move |part| part.flight == flight)
    }

    /// Returns the node of a request that is not over and for whose flight and node `wanted` holds.
    pub(crate) fn find(&self, wanted: impl Fn(u64, NodeId) -> bool) -> Option<NodeId> {
        let parts = self.of(Places::ALL.without(self.free).without(self.over));
        parts.filter(|part| wanted(part.flight, part.node)).map(|part| part.node).next()
    }
}
