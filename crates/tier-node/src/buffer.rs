//! Buffers of the application in registered memory: the NIC reads and writes them in place.

use crate::error::{BufferError, OperationError, RequestError};
use crate::item::Transfer;
use crate::lmr::Lmr;
use crate::node::Node;
use crate::tier::Tier;
use crate::within::Within;
use dunlin_fabric::{Fabric, Loan, LocalBuffer, RangeError, RegionRange};
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
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
    /// Lends a range to requests of a node.
    fn lend(
        &mut self,
        node: &Arc<Node<F>>,
        range: impl RangeBounds<usize>,
    ) -> Result<Loan<'_, F::Memory>, BufferError> {
        if !std::ptr::eq(self.node.as_ptr(), Arc::as_ptr(node)) {
            return Err(BufferError::OtherTier);
        }
        let size = self.memory.len();
        let (start, end) = bounds(&range, size);
        let outside = || BufferError::Outside { start, end, size };
        let length = end.checked_sub(start).filter(|_| end <= size).ok_or_else(outside)?;
        self.memory.lend(start, length).map_err(|error| match error {
            RangeError::Register(source) => BufferError::Register(source),
            _ => outside(),
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
