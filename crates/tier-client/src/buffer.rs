//! Buffers of a process that the node of its host reads and writes in place.
//!
//! The bytes of a buffer are those of a region without a name, in memory of the node that the process has mapped. A
//! request names a place in it, and the node posts its requests from and into that place: no byte passes through a
//! request or an answer. The node, and processes of the same principal, can write the memory, so there is no slice of it.

use crate::attachment::{Attachment, Failed};
use crate::direct::Direct;
use crate::list::Operations;
use crate::lmr::Lmr;
use crate::tier::Tier;
use crate::within::{Within, after, nothing, parts};
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier::process::{BUFFER, MAX_CHANGED, Opened, ProcessRequest};
use dunlin_tier::{AccessError, Rights};
use dunlin_tier_node::{BufferError, OperationError, RequestError, range_within};
use std::ops::RangeBounds;
use std::sync::Arc;

/// Memory for [`Lmr::read_into`], [`Lmr::write_from`] and [`Tier::call_in_place`], made by [`Tier::buffer`]. Its bytes are zero at first.
///
/// A buffer is a region without a name, mapped as by [`Lmr::direct`]: it takes a handle of the process, and bytes of the
/// quota of the principal. Processes of the same principal that map regions directly can touch it. Make few buffers, and
/// keep them: each takes some requests to the node.
#[derive(Debug)]
pub struct Buffer {
    tier: Tier<ShmFabric>,
    /// `None` after a failure that left the memory to the node, when no other memory was to be had.
    held: Option<Held>,
}

/// The memory of a buffer.
#[derive(Debug)]
struct Held {
    // Dropped first.
    direct: Direct,
    region: Lmr<ShmFabric>,
}

impl Held {
    fn new(tier: &Tier<ShmFabric>, length: usize) -> Result<Held, RequestError> {
        let request = ProcessRequest::Buffer { length: length as u64 };
        let opened = tier.attachment().call(BUFFER, &request, Opened::parse)?;
        let region = Lmr::new(tier, opened, Rights::ALL);
        if region.len() != length as u64 {
            return Err(RequestError::Answer { node: tier.node().to_owned() });
        }
        Ok(Held { direct: region.direct()?, region })
    }

    fn len(&self) -> usize {
        self.region.len() as usize
    }
}

impl Buffer {
    /// Returns the length in bytes. It is zero after a failed operation that may still use the memory, if the node had
    /// no other memory.
    pub fn len(&self) -> usize {
        self.held.as_ref().map_or(0, Held::len)
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the attachment that it is of.
    pub(crate) fn attachment(&self) -> &Arc<Attachment<ShmFabric>> {
        self.tier.attachment()
    }

    /// Returns the handle of the memory, if it has some.
    pub(crate) fn handle(&self) -> Option<u64> {
        self.held.as_ref().map(|held| held.region.opened.handle)
    }

    fn held(&self, at: usize, length: usize) -> Result<&Held, AccessError> {
        let (offset, length) = (at as u64, length as u64);
        self.held.as_ref().ok_or(AccessError::OutOfBounds { offset, length, size: 0 })
    }

    /// Copies bytes at `at` out of the buffer. Does not block.
    ///
    /// # Errors
    /// The range leaves the buffer.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.held(at, into.len())?.direct.copy_out(at as u64, into)
    }

    /// Copies bytes into the buffer at `at`. Does not block.
    ///
    /// # Errors
    /// The range leaves the buffer.
    pub fn copy_in(&mut self, at: usize, from: &[u8]) -> Result<(), AccessError> {
        self.held(at, from.len())?.direct.copy_in(at as u64, from)
    }

    /// Loads the aligned word at `at`. Words are little-endian. Does not block.
    ///
    /// # Errors
    /// The word leaves the buffer, or is not aligned.
    pub fn load(&self, at: usize) -> Result<u64, AccessError> {
        self.held(at, 8)?.direct.load(at as u64)
    }

    /// Stores the aligned word at `at`. Does not block.
    ///
    /// # Errors
    /// As [`load`](Buffer::load).
    pub fn store(&mut self, at: usize, value: u64) -> Result<(), AccessError> {
        self.held(at, 8)?.direct.store(at as u64, value)
    }

    /// Leaves the memory to the node, which may still use it, and gets other memory with the same bytes. Without such,
    /// the buffer is empty.
    pub(crate) fn renew(&mut self) {
        let Some(old) = self.held.take() else { return };
        let renewed = Held::new(&self.tier, old.len()).and_then(|new| {
            let mut bytes = vec![0; old.len()];
            old.direct.copy_out(0, &mut bytes)?;
            new.direct.copy_in(0, &bytes)?;
            Ok(new)
        });
        match renewed {
            Ok(new) => self.held = Some(new),
            Err(error) => {
                tracing::warn!(target: "dunlin::tier", %error, "a buffer has lost its memory to a failed operation");
            }
        }
    }
}

impl Tier<ShmFabric> {
    /// Makes a buffer of `length` zeroed bytes in memory of the node. Blocks until
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most for each of three requests.
    ///
    /// # Errors
    /// The process has as many handles as the node allows, the quota of its principal is used up, or the node has no
    /// memory that it could give to this principal alone. [`RequestError::NoDirect`]: processes cannot map memory of the
    /// node.
    pub fn buffer(&self, length: usize) -> Result<Buffer, RequestError> {
        Ok(Buffer { tier: self.clone(), held: Some(Held::new(self, length)?) })
    }
}

/// Returns whether the node may still work on a request.
pub(crate) fn goes_on(failed: &Failed) -> bool {
    matches!(failed, Failed::Request(error) if error.may_have_executed())
}

impl Within<'_, ShmFabric> {
    /// As [`Lmr::read_into`].
    pub fn read_into(
        &self,
        offset: u64,
        into: &mut Buffer,
        range: impl RangeBounds<usize>,
    ) -> Result<(), OperationError> {
        let (priority, handle) = (self.priority, self.lmr.opened.handle);
        self.in_place(Rights::READ, offset, into, range, |offset, length, buffer, at| {
            ProcessRequest::ReadInto { priority, handle, offset, length, buffer, at }
        })
    }

    /// As [`Lmr::write_from`].
    pub fn write_from(
        &self,
        offset: u64,
        from: &mut Buffer,
        range: impl RangeBounds<usize>,
    ) -> Result<(), OperationError> {
        let (priority, handle) = (self.priority, self.lmr.opened.handle);
        self.in_place(Rights::WRITE, offset, from, range, |offset, length, buffer, at| {
            ProcessRequest::WriteFrom { priority, handle, offset, length, buffer, at }
        })
    }

    fn in_place(
        &self,
        needs: Rights,
        offset: u64,
        buffer: &mut Buffer,
        range: impl RangeBounds<usize>,
        request: impl Fn(u64, u32, u64, u64) -> ProcessRequest<'static>,
    ) -> Result<(), OperationError> {
        let attachment = &self.lmr.attachment;
        if !Arc::ptr_eq(attachment, buffer.attachment()) {
            return Err(BufferError::OtherTier.into());
        }
        let (start, length) = range_within(&range, buffer.len())?;
        self.lmr.check(needs, offset, length as u64)?;
        let (until, place) = (self.begin()?, buffer.handle());
        let place = place.unwrap_or_default();
        for (at, part) in parts(length as u64, MAX_CHANGED) {
            let request = request(offset + at, part, place, start as u64 + at);
            if let Err(failed) = attachment.call_until(request.function(), &request, until, nothing) {
                if goes_on(&failed) {
                    buffer.renew();
                }
                return Err(after(at, failed));
            }
        }
        Ok(())
    }
}

impl<'a> Operations<'a, ShmFabric> {
    fn in_place(
        mut self,
        buffer: &'a mut Buffer,
        parts: impl IntoIterator<Item = (&'a Lmr<ShmFabric>, u64, impl RangeBounds<usize>)>,
        is_write: bool,
    ) -> Self {
        for (lmr, offset, range) in parts {
            let is_own = Arc::ptr_eq(&lmr.attachment, buffer.attachment());
            let range = if is_own { range_within(&range, buffer.len()) } else { Err(BufferError::OtherTier) };
            self = match range {
                Ok((start, length)) => self.add_in_place(lmr, offset, (start, length), is_write),
                Err(error) => self.refuse(error.into()),
            };
        }
        self.lend(buffer)
    }
}

dunlin_tier_node::in_place_lists!('a, [] Operations<'a, ShmFabric>, Lmr<ShmFabric>, Buffer);

impl Lmr<ShmFabric> {
    /// Copies bytes at `offset` out of the region into a range of a buffer, as many as the range has: as
    /// [`read`](Lmr::read), and the node reads them into the buffer in place. Ranges of more than 4 MiB are several requests.
    ///
    /// # Errors
    /// As [`read`](Lmr::read). The buffer is of another attachment, or the range leaves it. After any other error, each
    /// byte of the range is an old or a new one. It does not change afterwards: if the node may still work on the request,
    /// the buffer gets other memory with the same bytes, which blocks as [`Tier::buffer`] does, or is empty if there is
    /// none.
    pub fn read_into(
        &self,
        offset: u64,
        into: &mut Buffer,
        range: impl RangeBounds<usize>,
    ) -> Result<(), OperationError> {
        self.usually().read_into(offset, into, range)
    }

    /// Copies the bytes of a range of a buffer into the region at `offset`: as [`write`](Lmr::write), and the node writes
    /// them from the buffer in place. Ranges of more than 4 MiB are several requests.
    ///
    /// # Errors
    /// As [`write`](Lmr::write). The buffer is of another attachment, or the range leaves it. If the node may still work
    /// on the request, the buffer changes its memory as after a failed [`read_into`](Lmr::read_into).
    pub fn write_from(
        &self,
        offset: u64,
        from: &mut Buffer,
        range: impl RangeBounds<usize>,
    ) -> Result<(), OperationError> {
        self.usually().write_from(offset, from, range)
    }
}

dunlin_tier_node::in_place_lmr!([] Lmr<ShmFabric>, Buffer);
