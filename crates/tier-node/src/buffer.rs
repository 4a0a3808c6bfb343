//! Buffers of the application in registered memory: the NIC reads and writes them in place.

use crate::error::{BufferError, OperationError, RequestError};
use crate::item::Transfer;
use crate::lmr::Lmr;
use crate::node::Node;
use crate::operate::Target;
use crate::tier::Tier;
use crate::within::Within;
use dunlin_fabric::{Fabric, Host, Loan, LocalBuffer, RangeError, RegionRange, Work, nanos};
use dunlin_tier::process::NoDirect;
use dunlin_tier::{AccessError, Cut, Kind, Operation, Principal};
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::sync::{Arc, Weak};

/// Registered memory of this process for [`Lmr::read_into`] and [`Lmr::write_from`], made by [`Tier::buffer`].
/// Dereferences to a slice of its bytes, which are zero at first.
///
/// A buffer is a registration with the NIC, which takes longer than an operation: make few, and keep them. It may
/// outlive its node, but not be used with another one.
#[derive(Debug)]
pub struct Buffer<F: Fabric> {
    memory: LocalBuffer<F::Memory>,
    node: Weak<Node<F>>,
}

impl<F: Fabric> Buffer<F> {
    /// Checks a range, and that the buffer is of a node.
    pub(crate) fn range(
        &self,
        node: &Node<F>,
        range: &impl RangeBounds<usize>,
    ) -> Result<Range<usize>, BufferError> {
        if !std::ptr::eq(self.node.as_ptr(), node) {
            return Err(BufferError::OtherTier);
        }
        let (start, length) = range_within(range, self.memory.len())?;
        Ok(start..start + length)
    }

    /// Lends a range to requests of a node.
    pub(crate) fn lend(
        &mut self,
        node: &Node<F>,
        range: impl RangeBounds<usize>,
    ) -> Result<Loan<'_, F::Memory>, BufferError> {
        let size = self.memory.len();
        let Range { start, end } = self.range(node, &range)?;
        let length = end - start;
        self.memory.lend(start, length).map_err(|error| match error {
            RangeError::Register(source) => BufferError::Register(source),
            _ => BufferError::Outside { start, end: start + length, size },
        })
    }
}

/// Returns the first position of a range, and the one behind its last.
fn bounds(range: &impl RangeBounds<usize>, size: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => size,
    };
    (start, end)
}

/// Returns the first position and the length of a range of a buffer of `size` bytes.
///
/// # Errors
/// The range leaves the buffer, or ends before it starts.
pub fn range_within(range: &impl RangeBounds<usize>, size: usize) -> Result<(usize, usize), BufferError> {
    let (start, end) = bounds(range, size);
    match end.checked_sub(start) {
        Some(length) if end <= size => Ok((start, length)),
        _ => Err(BufferError::Outside { start, end, size }),
    }
}

impl<F: Fabric> Deref for Buffer<F> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl<F: Fabric> DerefMut for Buffer<F> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl<F: Fabric> Tier<F> {
    /// Registers a buffer of `length` zeroed bytes with the NIC of this node. Blocks as a registration does: its pages
    /// are pinned. May be called from any thread.
    ///
    /// # Errors
    /// The length is zero, or the memory cannot be had or registered.
    pub fn buffer(&self, length: usize) -> Result<Buffer<F>, RequestError> {
        let memory = LocalBuffer::new(self.fabric(), length)?;
        Ok(Buffer { memory, node: Arc::downgrade(self.node()) })
    }
}

impl<F: Fabric> Within<'_, F> {
    /// As [`Lmr::read_into`].
    pub fn read_into(
        &self,
        offset: u64,
        into: &mut Buffer<F>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), OperationError> {
        self.in_place(offset, into, range, Transfer::ReadInto)
    }

    /// As [`Lmr::write_from`].
    pub fn write_from(
        &self,
        offset: u64,
        from: &mut Buffer<F>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), OperationError> {
        self.in_place(offset, from, range, Transfer::WriteFrom)
    }
}

impl<F: Fabric> Within<'_, F> {
    fn in_place(
        &self,
        offset: u64,
        buffer: &mut Buffer<F>,
        range: impl RangeBounds<usize>,
        transfer: impl FnOnce(RegionRange<F::Memory>) -> Transfer<'static, F::Memory>,
    ) -> Result<(), OperationError> {
        let node = &self.lmr.running.node;
        // Requests that may be under way after a failure keep the memory: the end of the loan finds them.
        let loan = buffer.lend(node, range)?;
        node.transfer(self.target(), offset, transfer(loan.range().clone()))
    }
}

/// Bytes of a process's buffer: a region in extents of this node that belong to the process alone.
#[derive(Debug)]
pub(crate) struct Place<'a, F: Fabric> {
    pub(crate) region: &'a Lmr<F>,
    /// The user of the extents.
    pub(crate) tenant: &'a Principal,
    pub(crate) at: u64,
    pub(crate) length: u32,
}

/// Reads and writes for processes.
impl<F: Fabric> Within<'_, F> {
    /// Reads bytes at `offset` into a buffer, in place.
    pub(crate) fn read_into_place(&self, offset: u64, into: &Place<'_, F>) -> Result<(), OperationError> {
        self.with_place(offset, into, Kind::Write, Transfer::ReadInto)
    }

    /// Writes bytes of a buffer at `offset`, in place.
    pub(crate) fn write_from_place(&self, offset: u64, from: &Place<'_, F>) -> Result<(), OperationError> {
        self.with_place(offset, from, Kind::Read, Transfer::WriteFrom)
    }

    fn with_place(
        &self,
        offset: u64,
        place: &Place<'_, F>,
        kind: Kind,
        transfer: impl Fn(RegionRange<F::Memory>) -> Transfer<'static, F::Memory>,
    ) -> Result<(), OperationError> {
        let (node, length, size) = (&self.lmr.running.node, u64::from(place.length), self.lmr.length);
        if offset > size || length > size - offset {
            return Err(AccessError::OutOfBounds { offset, length, size }.into());
        }
        let time = self.time.unwrap_or_else(|| nanos(node.config.timeout));
        let until = node.fabric.host().now().saturating_add(time);
        let lent = place.lend(kind)?;
        for (at, range) in lent.parts() {
            let left = until.saturating_sub(node.fabric.host().now());
            let target = Target { time: Some(left), ..self.target() };
            let moved = node.transfer(target, offset + at, transfer(range));
            moved.map_err(|error| if at > 0 { error.after_parts() } else { error })?;
        }
        Ok(())
    }
}

/// The memory of a [`Place`] while operations use it. They count as one operation on the buffer's handle: its memory stays
/// until this value is dropped, and nothing uses it afterwards, since a path that gives a connection up destroys its queue
/// pair.
#[derive(Debug)]
pub(crate) struct Lent<F: Fabric> {
    node: Arc<Node<F>>,
    operation: Option<Operation>,
    parts: Vec<(u64, RegionRange<F::Memory>)>,
}

impl<F: Fabric> Lent<F> {
    /// Returns the parts of the memory, each with its offset in the place.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, RegionRange<F::Memory>)> {
        self.parts.iter().map(|(at, range)| (*at, range.clone()))
    }

    /// Returns the memory if it is in one part.
    pub(crate) fn only_part(&self) -> Option<RegionRange<F::Memory>> {
        if let [(_, range)] = &self.parts[..] { Some(range.clone()) } else { None }
    }

    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.parts.iter().map(|(_, range)| range.length()).sum()
    }

    /// Returns the parts of the first `length` bytes, each with its offset in the place.
    pub(crate) fn front(&self, length: usize) -> impl Iterator<Item = (usize, RegionRange<F::Memory>)> {
        self.parts().map_while(move |(at, range)| {
            let at = at as usize;
            let left = length.checked_sub(at).filter(|left| *left > 0)?;
            range.part(0, left.min(range.length())).map(|part| (at, part))
        })
    }

    /// Copies bytes to the front of the memory, as many as it has room for.
    pub(crate) fn copy_in(&self, from: &[u8]) {
        for (at, part) in self.front(from.len()) {
            part.copy_in(&from[at..]);
        }
        self.node.fabric.host().charge(Work::CopyBytes, from.len() as u32);
    }

    /// Copies the memory out.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length()];
        for (at, part) in self.parts() {
            part.copy_out(0, &mut bytes[at as usize..]);
        }
        self.node.fabric.host().charge(Work::CopyBytes, bytes.len() as u32);
        bytes
    }
}

impl<F: Fabric> Drop for Lent<F> {
    fn drop(&mut self) {
        self.parts.clear();
        if let Some(operation) = self.operation.take() {
            self.node.end(operation);
        }
    }
}

impl<F: Fabric> Place<'_, F> {
    /// Begins an operation on the buffer, of the kind of its own side.
    pub(crate) fn lend(&self, kind: Kind) -> Result<Lent<F>, OperationError> {
        let Place { region: buffer, tenant, at, length } = self;
        let (node, length) = (&buffer.running.node, u64::from(*length));
        let mut state = node.state();
        let begun = state.handles.begin(buffer.handle, kind, *at, length);
        let is_own = begun.as_ref().is_ok_and(|operation| {
            let mut parts = operation.layout.cut(*at, length, u32::MAX);
            parts.all(|part| part.node == node.me && state.space.tenant(part.extent) == Some(*tenant))
        });
        drop(state);
        let operation = begun.map_err(|error| node.refused(buffer.handle, error))?;
        let cuts: Vec<Cut> = operation.layout.cut(*at, length, u32::MAX).collect();
        // From here on, the operation ends with the value.
        let mut lent = Lent { node: Arc::clone(node), operation: Some(operation), parts: Vec::new() };
        if !is_own {
            return Err(Box::new(RequestError::NoDirect(NoDirect::Shared)).into());
        }
        for Cut { extent, offset, length, at, .. } in cuts {
            let place = node.arena.range(extent, offset, length.into());
            let range = place.map(|(memory, start)| memory.range(start as u64, length.into()));
            match range {
                Some(Ok(range)) => lent.parts.push((at, range)),
                Some(Err(RangeError::Register(source))) => return Err(BufferError::Register(source).into()),
                _ => return Err(OperationError::Place { node: node.name_of(node.me) }),
            }
        }
        Ok(lent)
    }
}

impl<F: Fabric> Lmr<F> {
    /// Copies bytes at `offset` out of the region into a range of a buffer, as many as the range has: as
    /// [`read`](Lmr::read), and the NIC writes them in place. Bytes on the own node are copied once, by the processor.
    ///
    /// # Errors
    /// As [`read`](Lmr::read). The buffer is of another node, or the range leaves it. After any other error, each byte of
    /// the range is an old or a new one. It does not change afterwards: if the NIC may still write, it keeps the memory,
    /// and the buffer gets other memory with the same bytes.
    pub fn read_into(
        &self,
        offset: u64,
        into: &mut Buffer<F>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), OperationError> {
        self.usually().read_into(offset, into, range)
    }

    /// Copies the bytes of a range of a buffer into the region at `offset`: as [`write`](Lmr::write), and the NIC reads
    /// them in place. Bytes on the own node are copied once, by the processor. The NIC sends short bytes of
    /// [`write`](Lmr::write) with the request, which is faster for them.
    ///
    /// The operation has the buffer to itself, since the memory may stay with the NIC.
    ///
    /// # Errors
    /// As [`write`](Lmr::write). The buffer is of another node, or the range leaves it. The buffer has its bytes after
    /// every error: if the NIC may still read, it keeps the memory, and the buffer gets other memory with the same bytes.
    pub fn write_from(
        &self,
        offset: u64,
        from: &mut Buffer<F>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), OperationError> {
        self.usually().write_from(offset, from, range)
    }
}

crate::in_place_lmr!([F: Fabric] Lmr<F>, Buffer<F>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_all_kinds_have_bounds() {
        assert_eq!(bounds(&(2..5), 10), (2, 5));
        assert_eq!(bounds(&(2..=5), 10), (2, 6));
        assert_eq!(bounds(&(3..), 10), (3, 10));
        assert_eq!(bounds(&.., 10), (0, 10));
        assert_eq!(bounds(&(..=usize::MAX), 10), (0, usize::MAX));
        assert_eq!(bounds(&(Bound::Excluded(usize::MAX), Bound::Unbounded), 10), (usize::MAX, 10));
    }
}
