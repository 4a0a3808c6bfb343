//! Direct mapping: loads and stores of a region's bytes on the own node, without a request.
//!
//! A direct mapping counts as an operation in flight on its handle. So memory is not used again before the mapping ends,
//! whatever else happens: a free, a move, the end of the handle. Before a free or a move begins, the holders are asked to
//! let go.

use crate::error::RequestError;
use crate::lmr::Lmr;
use crate::node::Node;
use crate::tier::Running;
use dunlin_fabric::{Fabric, Host, Memory, Nanos, Region, nanos};
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::process::NoDirect;
use dunlin_tier::{
    AccessError, Handle, Holder, Holders, Kind, Layout, LmrId, NodeId, Operation, Principal, Rights,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The shortest and the longest pause between two questions whether the holders have let go, in nanoseconds.
const PAUSES: [Nanos; 2] = [20_000, 10_000_000];
/// The time for one question to another node, in nanoseconds.
const QUESTION: Nanos = 500_000_000;

/// Memory that is loaded and stored in place. Other processes may change it at any time. Offsets out of the memory may
/// panic: [`Bytes`] checks them.
pub trait DirectMemory {
    /// Copies bytes out of the memory.
    fn copy_out(&self, offset: usize, into: &mut [u8]);
    /// Copies bytes into the memory.
    fn copy_in(&self, offset: usize, from: &[u8]);
    /// Loads an aligned little-endian word with acquire order.
    fn load(&self, offset: usize) -> u64;
    /// Stores an aligned little-endian word with release order.
    fn store(&self, offset: usize, value: u64);
}

impl<M: Memory> DirectMemory for Region<M> {
    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        self.copy_out(offset, into);
    }
    fn copy_in(&self, offset: usize, from: &[u8]) {
        self.copy_in(offset, from);
    }
    fn load(&self, offset: usize) -> u64 {
        self.load(offset)
    }
    fn store(&self, offset: usize, value: u64) {
        self.store(offset, value);
    }
}

#[derive(Debug)]
struct Part<M> {
    /// The offset of the part's first byte in the region.
    begin: u64,
    length: u64,
    memory: M,
    /// The offset of that byte in the memory.
    offset: u64,
}

/// The bytes of a region, in the memory where they lie. Rights and bounds are checked at each access.
#[derive(Debug)]
pub struct Bytes<M> {
    parts: Vec<Part<M>>,
    length: u64,
    rights: Rights,
}

impl<M: DirectMemory> Bytes<M> {
    /// Puts a region together from its parts in order: memory, offset in it, and length in bytes.
    pub fn new(parts: impl IntoIterator<Item = (M, u64, u64)>, rights: Rights) -> Bytes<M> {
        let mut begin = 0;
        let part = |(memory, offset, length)| {
            let part = Part { begin, length, memory, offset };
            begin += length;
            part
        };
        let parts = parts.into_iter().map(part).collect();
        Bytes { parts, length: begin, rights }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the length is zero, which no region has.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    #[inline]
    fn check(&self, needs: Rights, offset: u64, length: u64) -> Result<(), AccessError> {
        let (has, size) = (self.rights, self.length);
        if !has.contains(needs) {
            return Err(AccessError::Denied { needs, has });
        }
        if offset > size || length > size - offset {
            return Err(AccessError::OutOfBounds { offset, length, size });
        }
        Ok(())
    }

    /// Returns the number of the part that has a byte.
    #[inline]
    fn part_at(&self, offset: u64) -> usize {
        match self.parts.len() {
            1 => 0,
            _ => self.parts.partition_point(|part| part.begin <= offset) - 1,
        }
    }

    /// Copies bytes at `offset` out of the region. Other processes may write meanwhile.
    ///
    /// # Errors
    /// This mapping lacks READ, or the range is not within the region.
    pub fn copy_out(&self, offset: u64, mut into: &mut [u8]) -> Result<(), AccessError> {
        self.check(Rights::READ, offset, into.len() as u64)?;
        let mut at = offset;
        while !into.is_empty() {
            let part = &self.parts[self.part_at(at)];
            let within = at - part.begin;
            let length = (part.length - within).min(into.len() as u64) as usize;
            let (now, rest) = into.split_at_mut(length);
            part.memory.copy_out((part.offset + within) as usize, now);
            (into, at) = (rest, at + length as u64);
        }
        Ok(())
    }

    /// Copies bytes into the region at `offset`. Other processes may read and write meanwhile.
    ///
    /// # Errors
    /// This mapping lacks WRITE, or the range is not within the region.
    pub fn copy_in(&self, offset: u64, mut from: &[u8]) -> Result<(), AccessError> {
        self.check(Rights::WRITE, offset, from.len() as u64)?;
        let mut at = offset;
        while !from.is_empty() {
            let part = &self.parts[self.part_at(at)];
            let within = at - part.begin;
            let length = (part.length - within).min(from.len() as u64) as usize;
            let (now, rest) = from.split_at(length);
            part.memory.copy_in((part.offset + within) as usize, now);
            (from, at) = (rest, at + length as u64);
        }
        Ok(())
    }

    #[inline]
    fn word(&self, needs: Rights, offset: u64) -> Result<(&M, usize), AccessError> {
        self.check(needs, offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(AccessError::Misaligned(offset));
        }
        // Parts begin and end at multiples of 64 bytes, except the end of the region.
        let part = &self.parts[self.part_at(offset)];
        Ok((&part.memory, (part.offset + offset - part.begin) as usize))
    }

    /// Loads the aligned word at `offset` with acquire order. Words are little-endian.
    ///
    /// # Errors
    /// As [`copy_out`](Bytes::copy_out), or the word is not aligned.
    #[inline]
    pub fn load(&self, offset: u64) -> Result<u64, AccessError> {
        let (memory, at) = self.word(Rights::READ, offset)?;
        Ok(memory.load(at))
    }

    /// Stores the aligned word at `offset` with release order. It is not atomic with
    /// [`fetch_add`](Lmr::fetch_add) and [`compare_swap`](Lmr::compare_swap) of a device.
    ///
    /// # Errors
    /// As [`copy_in`](Bytes::copy_in), or the word is not aligned.
    #[inline]
    pub fn store(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        let (memory, at) = self.word(Rights::WRITE, offset)?;
        memory.store(at, value);
        Ok(())
    }
}

/// Asks a holder to let go. Does not wait.
#[derive(Clone)]
pub(crate) struct Ask(Arc<dyn Fn(u64) + Send + Sync>);

impl Ask {
    pub(crate) fn new(ask: impl Fn(u64) + Send + Sync + 'static) -> Ask {
        Ask(Arc::new(ask))
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ask")
    }
}

/// The direct mappings of a node: by the id that owns the memory, and a number.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    held: BTreeMap<(LmrId, u64), (u32, Handle, Ask)>,
    last: u64,
}

/// A direct mapping. Ends by [`Node::let_go`] only.
#[derive(Debug)]
#[must_use = "memory is kept until Node::let_go"]
pub(crate) struct Hold {
    pub(crate) operation: Operation,
    id: LmrId,
    /// The number by which the holder is asked to let go.
    pub(crate) number: u64,
}

impl<F: Fabric> Node<F> {
    /// Begins a direct mapping of all bytes of a handle, for a process of the host, or 0 for this one. `check` looks at
    /// the places with the lock held. The rights are those of the handle.
    pub(crate) fn hold(
        &self,
        handle: Handle,
        process: u32,
        ask: Ask,
        check: impl FnOnce(&mut crate::node::State, &Layout) -> Result<(), NoDirect>,
    ) -> Result<(Hold, Rights), RequestError> {
        let mut state = self.state();
        let (id, rights, length) = state.handles.describe(handle)?;
        let operation = state.handles.begin(handle, Kind::Read, 0, length)?;
        let here = operation.layout.pieces().iter().all(|piece| piece.node == self.me);
        let checked = if here { check(&mut state, &operation.layout) } else { Err(NoDirect::Elsewhere) };
        if let Err(reason) = checked {
            drop(state);
            self.end(operation);
            return Err(RequestError::NoDirect(reason));
        }
        state.holds.last += 1;
        let number = state.holds.last;
        state.holds.held.insert((id, number), (process, handle, ask));
        Ok((Hold { operation, id, number }, rights))
    }

    /// Goes on with a direct mapping that began in an earlier life of the node; `None` if the handle is not live.
    pub(crate) fn hold_again(&self, handle: Handle, process: u32, ask: Ask, number: u64) -> Option<Hold> {
        let mut state = self.state();
        let (id, _, length) = state.handles.describe(handle).ok()?;
        let operation = state.handles.begin(handle, Kind::Read, 0, length).ok()?;
        state.holds.last = state.holds.last.max(number);
        state.holds.held.insert((id, number), (process, handle, ask));
        Some(Hold { operation, id, number })
    }

    /// Ends a direct mapping.
    pub(crate) fn let_go(&self, hold: Hold) {
        self.state().holds.held.remove(&(hold.id, hold.number));
        self.end(hold.operation);
    }

    /// Asks the holders of memory on this node to let go; returns those that have not.
    pub(crate) fn ask_holders(&self, id: LmrId) -> Holders {
        let held: Vec<(u64, u32, Ask)> = {
            let state = self.state();
            let range = state.holds.held.range((id, 0)..=(id, u64::MAX));
            range.map(|((_, number), (process, _, ask))| (*number, *process, ask.clone())).collect()
        };
        held.iter().for_each(|(number, _, Ask(ask))| ask(*number));
        held.iter().map(|(_, process, _)| Holder { node: self.me, process: *process }).collect()
    }

    /// Asks those holders of memory on this node to let go that map it by one of these handles.
    pub(crate) fn ask_holders_of(&self, id: LmrId, handles: &[Handle]) {
        let held: Vec<(u64, Ask)> = {
            let state = self.state();
            let range = state.holds.held.range((id, 0)..=(id, u64::MAX));
            let held = range.filter(|(_, (_, handle, _))| handles.contains(handle));
            held.map(|((_, number), (_, _, ask))| (*number, ask.clone())).collect()
        };
        held.iter().for_each(|(number, Ask(ask))| ask(*number));
    }

    /// Asks the holders of a region whose record this node keeps to let go, in the name of a master or of a node, and
    /// waits for them for the time that a node has to stop.
    pub(crate) fn clear_holders(&self, id: LmrId, by: Option<&Principal>) -> Result<(), Refusal> {
        let users = self.state().directory.users(id, by)?;
        let (host, mut pause) = (self.fabric.host(), PAUSES[0]);
        let until = host.now().saturating_add(nanos(self.config.stop_timeout));
        loop {
            let holders = self.ask_users(&users);
            if holders.is_empty() {
                return Ok(());
            }
            if host.now() >= until || self.is_over() {
                return Err(Refusal::InUse(holders));
            }
            host.sleep(host.now().saturating_add(pause).min(until));
            pause = (2 * pause).min(PAUSES[1]);
        }
    }

    /// Asks the holders of a region whose record this node keeps to let go, once, in the name of the node; returns those that
    /// have not.
    pub(crate) fn users_in_place(&self, id: LmrId) -> Result<Holders, Refusal> {
        let users = self.state().directory.users(id, None)?;
        Ok(self.ask_users(&users))
    }

    fn ask_users(&self, (memory, mappers, stores): &(LmrId, Vec<NodeId>, Vec<NodeId>)) -> Holders {
        // A direct mapping has all bytes on its own node.
        let store = match stores[..] {
            [store] if mappers.contains(&store) => store,
            _ => return Holders::default(),
        };
        if store == self.me {
            return self.ask_holders(*memory);
        }
        if self.roster.dead_in(store).is_some() {
            return Holders::default();
        }
        let until = self.fabric.host().now().saturating_add(QUESTION);
        match self.ask(store, Request::LetGo { id: *memory }, until) {
            Ok(Reply::Held(holders)) => holders,
            // The free or the move stops this node, or fences it.
            _ => Holders::default(),
        }
    }
}

/// A region on this process's own node, mapped directly: loads, stores and copies without a request. Other threads,
/// processes and nodes may use the region at the same time. Made by [`Lmr::direct`].
///
/// As long as this value lives, the region cannot be moved or freed: drop it when [`is_wanted_back`](Direct::is_wanted_back)
/// says so.
#[derive(Debug)]
pub struct Direct<F: Fabric> {
    running: Arc<Running<F>>,
    hold: Option<Hold>,
    bytes: Bytes<Region<F::Memory>>,
    is_wanted_back: Arc<AtomicBool>,
}

impl<F: Fabric> std::ops::Deref for Direct<F> {
    type Target = Bytes<Region<F::Memory>>;
    fn deref(&self) -> &Self::Target {
        &self.bytes
    }
}

impl<F: Fabric> Direct<F> {
    /// Returns whether somebody frees or moves the region, and waits for the end of this value. Costs one load.
    pub fn is_wanted_back(&self) -> bool {
        self.is_wanted_back.load(Ordering::Relaxed)
    }
}

impl<F: Fabric> Drop for Direct<F> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.running.node.let_go(hold);
        }
    }
}

impl<F: Fabric> Lmr<F> {
    /// Maps the region directly: its bytes are loaded and stored in place. This handle needs READ; with WRITE, bytes can be
    /// stored. Does not block.
    ///
    /// # Errors
    /// [`RequestError::NoDirect`]: not all bytes are on this process's own node.
    pub fn direct(&self) -> Result<Direct<F>, RequestError> {
        let node = &self.running.node;
        let is_wanted_back = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&is_wanted_back);
        let ask = Ask::new(move |_| asked.store(true, Ordering::Relaxed));
        let (hold, rights) = node.hold(self.handle, 0, ask, |_, _| Ok(()))?;
        let part = |piece: &dunlin_tier::Piece| {
            let (memory, at) = node.arena.range(piece.extent, piece.offset, piece.length.into())?;
            Some((memory.clone(), at as u64, u64::from(piece.length)))
        };
        let Some(parts) = hold.operation.layout.pieces().iter().map(part).collect::<Option<Vec<_>>>() else {
            node.let_go(hold);
            return Err(RequestError::NoDirect(NoDirect::Elsewhere));
        };
        let bytes = Bytes::new(parts, rights);
        Ok(Direct { running: Arc::clone(&self.running), hold: Some(hold), bytes, is_wanted_back })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::Access;
    use dunlin_fabric::memory::HeapMemory;
    use proptest::prelude::*;

    fn memory(length: u64) -> Region<HeapMemory> {
        Region::new(HeapMemory::new(length as usize, Access::WRITE).unwrap())
    }

    proptest! {
        /// Any parts do what one array of bytes does.
        #[test]
        fn parts_do_what_one_array_does(
            lengths in prop::collection::vec((1u64..5, 0u64..3), 1..6),
            steps in prop::collection::vec((0u64..1500, prop::collection::vec(any::<u8>(), 0..700), any::<bool>()), 1..30),
        ) {
            let parts: Vec<_> = lengths
                .iter()
                .map(|(lines, skip)| (memory((lines + skip) * 64), skip * 64, lines * 64))
                .collect();
            let bytes = Bytes::new(parts, Rights::READ.with(Rights::WRITE));
            let mut model = vec![0u8; bytes.len() as usize];
            for (offset, data, writes) in steps {
                let end = offset as usize + data.len();
                if writes {
                    let written = bytes.copy_in(offset, &data);
                    prop_assert_eq!(written.is_ok(), end <= model.len());
                    if written.is_ok() {
                        model[offset as usize..end].copy_from_slice(&data);
                    }
                } else {
                    let mut into = vec![0; data.len()];
                    let read = bytes.copy_out(offset, &mut into);
                    prop_assert_eq!(read.is_ok(), end <= model.len());
                    if read.is_ok() {
                        prop_assert_eq!(&into, &model[offset as usize..end]);
                    }
                }
                let word = offset / 8 * 8;
                if let Some(eight) = model.get(word as usize..word as usize + 8) {
                    let expected = u64::from_le_bytes(eight.try_into().unwrap());
                    prop_assert_eq!(bytes.load(word), Ok(expected));
                    bytes.store(word, expected + 1).unwrap();
                    model[word as usize..][..8].copy_from_slice(&(expected + 1).to_le_bytes());
                }
            }
        }
    }

    #[test]
    fn rights_bounds_and_alignment_are_checked() {
        let bytes = Bytes::new([(memory(64), 0, 64)], Rights::READ);
        let denied = |needs| AccessError::Denied { needs, has: Rights::READ };
        assert_eq!(bytes.store(0, 1), Err(denied(Rights::WRITE)));
        assert_eq!(bytes.copy_in(0, &[1]), Err(denied(Rights::WRITE)));
        assert_eq!(bytes.load(4), Err(AccessError::Misaligned(4)));
        for (offset, length) in [(64, 1), (57, 8), (u64::MAX, 1), (0, 65)] {
            let error = AccessError::OutOfBounds { offset, length, size: 64 };
            assert_eq!(bytes.copy_out(offset, &mut vec![0; length as usize]), Err(error));
        }
        assert_eq!(
            bytes.load(u64::MAX - 7),
            Err(AccessError::OutOfBounds { offset: u64::MAX - 7, length: 8, size: 64 })
        );
        assert_eq!((bytes.load(56), bytes.copy_out(64, &mut [])), (Ok(0), Ok(())));
        let write_only = Bytes::new([(memory(64), 0, 64)], Rights::WRITE);
        assert!(write_only.load(0).is_err() && write_only.store(0, 1).is_ok());
    }
}
