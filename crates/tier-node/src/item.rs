//! An operation on a path, and its caller's side.

use crate::error::OperationError;
use crate::node::Node;
use crate::path::Stop;
use dunlin_fabric::{Atomics, Fabric, Host, Memory, RegionRange, Work};
use dunlin_tier::{Cut, Cuts, Kind, Layout, NodeId};
use std::collections::BTreeSet;

/// The caller's side of an operation.
#[derive(Debug)]
pub(crate) enum Transfer<'a, M: Memory> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    /// A read into registered memory, in place.
    ReadInto(RegionRange<M>),
    /// A write from registered memory, in place.
    WriteFrom(RegionRange<M>),
    /// A read into memory of its own, which outlives the caller's turn.
    Keep(Vec<u8>),
    /// A write from memory of its own.
    Put(Vec<u8>),
    /// A change of a word, by the device.
    Change(Change),
}

impl<M: Memory> Transfer<'_, M> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Transfer::Read(into) => into.len(),
            Transfer::Keep(into) => into.len(),
            Transfer::Write(from) => from.len(),
            Transfer::Put(from) => from.len(),
            Transfer::ReadInto(range) | Transfer::WriteFrom(range) => range.length(),
            Transfer::Change(_) => 8,
        }
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Transfer::Read(_) | Transfer::Keep(_) | Transfer::ReadInto(_) => Kind::Read,
            Transfer::Write(_) | Transfer::Put(_) | Transfer::WriteFrom(_) => Kind::Write,
            Transfer::Change(_) => Kind::Atomic,
        }
    }

    /// Returns the memory of its own, and leaves none.
    pub(crate) fn take_kept(&mut self) -> Vec<u8> {
        if let Transfer::Keep(into) = self { std::mem::take(into) } else { Vec::new() }
    }

    /// Returns the bytes that are copied before they are written.
    #[inline]
    pub(crate) fn outgoing(&self) -> &[u8] {
        match self {
            Transfer::Write(from) => from,
            Transfer::Put(from) => from,
            _ => &[],
        }
    }

    /// Returns the memory for bytes that are copied after they were read.
    #[inline]
    pub(crate) fn incoming(&mut self) -> Option<&mut [u8]> {
        match self {
            Transfer::Read(into) => Some(into),
            Transfer::Keep(into) => Some(into),
            _ => None,
        }
    }

    /// Returns a part; `None` if it is not within.
    pub(crate) fn part(&mut self, at: usize, length: usize) -> Option<Transfer<'_, M>> {
        let range = at..at.checked_add(length)?;
        Some(match self {
            Transfer::Read(into) => Transfer::Read(into.get_mut(range)?),
            Transfer::Keep(into) => Transfer::Read(into.get_mut(range)?),
            Transfer::Write(from) => Transfer::Write(from.get(range)?),
            Transfer::Put(from) => Transfer::Write(from.get(range)?),
            Transfer::ReadInto(whole) => Transfer::ReadInto(whole.part(at, length)?),
            Transfer::WriteFrom(whole) => Transfer::WriteFrom(whole.part(at, length)?),
            Transfer::Change(_) => return None,
        })
    }

    #[inline]
    pub(crate) fn reborrow(&mut self) -> Transfer<'_, M> {
        match self {
            Transfer::Read(into) => Transfer::Read(into),
            Transfer::Keep(into) => Transfer::Read(into),
            Transfer::Write(from) => Transfer::Write(from),
            Transfer::Put(from) => Transfer::Write(from),
            Transfer::ReadInto(range) => Transfer::ReadInto(range.clone()),
            Transfer::WriteFrom(range) => Transfer::WriteFrom(range.clone()),
            Transfer::Change(change) => Transfer::Change(*change),
        }
    }
}

/// An operation on a path; the caller has checked its range.
#[derive(Debug)]
pub(crate) struct Item<'a, M: Memory> {
    /// `None` for one that was kept.
    layout: Option<&'a Layout>,
    offset: u64,
    pub(crate) transfer: Transfer<'a, M>,
    /// A part of it was posted, or copied.
    pub(crate) is_begun: bool,
    pub(crate) error: Option<OperationError>,
    /// Parts of it may still be under way at these nodes.
    pub(crate) uncertain: BTreeSet<NodeId>,
    /// The old value of the word that it changed.
    pub(crate) value: u64,
}

impl<'a, M: Memory> Item<'a, M> {
    #[inline]
    pub(crate) fn new(layout: &'a Layout, offset: u64, transfer: Transfer<'a, M>) -> Item<'a, M> {
        let uncertain = BTreeSet::new();
        Item { layout: Some(layout), offset, transfer, is_begun: false, error: None, uncertain, value: 0 }
    }

    /// Returns the parts of at most `step` bytes.
    #[inline]
    pub(crate) fn cuts(&self, step: u32) -> Cuts<'a> {
        match self.layout {
            Some(layout) => layout.cut(self.offset, self.transfer.len() as u64, step),
            None => Cuts::default(),
        }
    }

    /// Makes the operation independent of its caller's memory. It has no places then, until it gets some by
    /// [`place`](Item::place) because it was not posted.
    pub(crate) fn keep(self, is_posted: bool) -> Item<'static, M> {
        let Item { offset, is_begun, error, uncertain, value, .. } = self;
        let transfer = match self.transfer {
            Transfer::Read(into) => Transfer::Keep(into.to_vec()),
            Transfer::Keep(into) => Transfer::Keep(into),
            // The bytes are in staging memory, or left with the request.
            Transfer::Write(_) | Transfer::Put(_) if is_posted => Transfer::Write(&[]),
            Transfer::Write(from) => Transfer::Put(from.to_vec()),
            Transfer::Put(from) => Transfer::Put(from),
            Transfer::ReadInto(range) => Transfer::ReadInto(range),
            Transfer::WriteFrom(range) => Transfer::WriteFrom(range),
            Transfer::Change(change) => Transfer::Change(change),
        };
        Item { layout: None, offset, transfer, is_begun, error, uncertain, value }
    }

    /// Gives a kept operation its places.
    pub(crate) fn place(&mut self, layout: &'a Layout) {
        self.layout = Some(layout);
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the nodes of its bytes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<'a, M> {
        self.cuts(u32::MAX).map(|cut| cut.node)
    }

    /// Returns whether a path is needed: a part is on another node, or changed by the device.
    pub(crate) fn needs_path<F: Fabric<Memory = M>>(&self, node: &Node<F>) -> bool {
        self.nodes().any(|to| !self.is_here(node, to))
    }

    /// Returns whether the processor does the part at a node. Atomics of a device are not atomic with those of processors,
    /// so they go over a connection to this node.
    pub(crate) fn is_here<F: Fabric<Memory = M>>(&self, node: &Node<F>, to: NodeId) -> bool {
        let changes = matches!(self.transfer, Transfer::Change(_));
        to == node.me && (!changes || node.fabric.capabilities().atomics == Atomics::Processors)
    }

    pub(crate) fn fail(&mut self, error: OperationError) {
        self.error.get_or_insert(error);
    }

    /// Copies its bytes, all of which are on this node.
    pub(crate) fn copy_here<F: Fabric<Memory = M>>(&mut self, node: &Node<F>) {
        for cut in self.cuts(u32::MAX) {
            self.copy_part(node, &cut);
        }
    }

    /// Copies or changes a part that lies on this node. A place that does not exist is the operation's error.
    pub(crate) fn copy_part<F: Fabric<Memory = M>>(&mut self, node: &Node<F>, cut: &Cut) {
        let Some((memory, offset)) = node.arena.range(cut.extent, cut.offset, cut.length.into()) else {
            return self.fail(OperationError::Place { node: node.name_of(node.me) });
        };
        let (at, length) = (cut.at as usize, cut.length as usize);
        match &mut self.transfer {
            Transfer::Read(into) => memory.copy_out(offset, &mut into[at..at + length]),
            Transfer::Keep(into) => memory.copy_out(offset, &mut into[at..at + length]),
            Transfer::Write(from) => memory.copy_in(offset, &from[at..at + length]),
            Transfer::Put(from) => memory.copy_in(offset, &from[at..at + length]),
            Transfer::ReadInto(range) => {
                if let Some(part) = range.part(at, length) {
                    memory.copy_out_range(offset, &part);
                }
            }
            Transfer::WriteFrom(range) => {
                if let Some(part) = range.part(at, length) {
                    memory.copy_in_range(offset, &part);
                }
            }
            Transfer::Change(Change::Add(add)) => self.value = memory.fetch_add(offset, *add),
            Transfer::Change(Change::Swap { expected, swap }) => {
                self.value = memory.compare_swap(offset, *expected, *swap);
            }
        }
        node.fabric.host().charge(Work::CopyBytes, cut.length);
    }

    /// Returns the value, or the reason of the failure.
    pub(crate) fn finish(self) -> Result<u64, Stop> {
        match self.error {
            None => Ok(self.value),
            Some(error) => Err(Stop::Failed { error, uncertain: self.uncertain }),
        }
    }
}

/// A change of a word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Add(u64),
    Swap { expected: u64, swap: u64 },
}
