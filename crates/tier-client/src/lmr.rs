//! The regions that a process has mapped.

use crate::attachment::{Attachment, Failed};
use dunlin_fabric::Fabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier::message::Malformed;
use dunlin_tier::process::{
    COMPARE_SWAP, COPY, FETCH_ADD, FREE, GRANT, MAX_CHANGED, MAX_HERE, MAX_MOVED, MEMSET, Opened,
    ProcessRequest, READ, READ_HERE, UNMAP, WRITE, WRITE_HERE,
};
use dunlin_tier::{AccessError, Grantee, Principal, Rights};
use dunlin_tier_node::{OperationError, RequestError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time of the request by which a dropped region is unmapped.
const UNMAP_TIME: Duration = Duration::from_secs(1);

/// A memory region (LMR) that this process has mapped. May be shared by threads. Dropping it unmaps it: that is a
/// request to the node, which blocks for 1 s at most.
///
/// Reads and writes longer than 64 KiB, or 256 KiB if bytes are on other nodes, are several requests. If a later one
/// fails, earlier ones have been executed: [`OperationError::may_have_executed`] says so.
#[derive(Debug)]
pub struct Lmr<P: Fabric = ShmFabric> {
    attachment: Arc<Attachment<P>>,
    opened: Opened,
    rights: Rights,
    /// Not all bytes are on the node of this host.
    elsewhere: AtomicBool,
    /// The node still has the handle.
    is_open: bool,
}

/// The ranges of an operation, each with its offset in the operation.
fn parts(length: u64, most: u32) -> impl DoubleEndedIterator<Item = (u64, u32)> {
    let most = u64::from(most);
    (0..length.div_ceil(most)).map(move |part| (part * most, (length - part * most).min(most) as u32))
}

/// Returns the old value of a word.
fn word(answer: &[u8]) -> Result<u64, Malformed> {
    answer.try_into().map(u64::from_le_bytes).map_err(|_| Malformed)
}

fn nothing(answer: &[u8]) -> Result<(), Malformed> {
    if answer.is_empty() { Ok(()) } else { Err(Malformed) }
}

/// The error of an operation of which `done` bytes were executed before.
fn after(done: u64, failed: impl Into<OperationError>) -> OperationError {
    let error = failed.into();
    if done == 0 || error.may_have_executed() {
        return error;
    }
    let text = format!("after {done} bytes: {error}");
    OperationError::Request(Box::new(RequestError::Reported { text, may_have_executed: true }))
}

impl<P: Fabric> Lmr<P> {
    pub(crate) fn new(attachment: &Arc<Attachment<P>>, opened: Opened, rights: Rights) -> Self {
        let (attachment, elsewhere) = (Arc::clone(attachment), AtomicBool::new(false));
        Lmr { attachment, opened, rights, elsewhere, is_open: true }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.opened.length
    }

    /// Returns whether the length is zero, which no region has.
    pub fn is_empty(&self) -> bool {
        self.opened.length == 0
    }

    /// Returns the rights of this handle.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Checks the whole of an operation, of which the node sees the parts.
    fn check(&self, needs: Rights, offset: u64, length: u64) -> Result<(), AccessError> {
        let (has, size) = (self.rights, self.opened.length);
        if !has.contains(needs) {
            return Err(AccessError::Denied { needs, has });
        }
        if offset > size || length > size - offset {
            return Err(AccessError::OutOfBounds { offset, length, size });
        }
        Ok(())
    }

    /// Runs one part of a read or a write; returns `false` if it has to be asked for again, because bytes are on other
    /// nodes.
    fn part(&self, run: impl FnOnce() -> Result<(), Failed>) -> Result<bool, Failed> {
        match run() {
            Ok(()) => Ok(true),
            Err(Failed::Elsewhere) => {
                self.elsewhere.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(failed) => Err(failed),
        }
    }

    /// Returns the function for the next part of an operation and the longest part.
    fn function(&self, here: u16, anywhere: u16) -> (u16, u32) {
        if self.elsewhere.load(Ordering::Relaxed) { (anywhere, MAX_MOVED) } else { (here, MAX_HERE) }
    }

    /// Copies bytes at `offset` out of the region (`LT_read`). Blocks until they are there, or until
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout) for each part.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        self.check(Rights::READ, offset, into.len() as u64)?;
        let mut at = 0;
        while at < into.len() {
            let (function, most) = self.function(READ_HERE, READ);
            let end = into.len().min(at + most as usize);
            let place = &mut into[at..end];
            let (handle, length) = (self.opened.handle, place.len() as u32);
            let request = ProcessRequest::Read { handle, offset: offset + at as u64, length };
            let read = self.part(|| {
                self.attachment.call(function, &request, |answer| {
                    if answer.len() != place.len() {
                        return Err(Malformed);
                    }
                    place.copy_from_slice(answer);
                    Ok(())
                })
            });
            if read? {
                at = end;
            }
        }
        Ok(())
    }

    /// Copies bytes into the region at `offset` (`LT_write`). Blocks until they are placed, or until
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout) for each part. Concurrent operations on the same bytes may
    /// interleave.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.check(Rights::WRITE, offset, from.len() as u64)?;
        let mut at = 0;
        while at < from.len() {
            let (function, most) = self.function(WRITE_HERE, WRITE);
            let end = from.len().min(at + most as usize);
            let (handle, bytes) = (self.opened.handle, &from[at..end]);
            let request = ProcessRequest::Write { handle, offset: offset + at as u64, bytes };
            let written = self.part(|| self.attachment.call(function, &request, nothing));
            if written.map_err(|failed| after(at as u64, failed))? {
                at = end;
            }
        }
        Ok(())
    }

    /// Adds to the aligned word at `offset` and returns its old value (`LT_fetch-add`). Words are little-endian.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError> {
        let request = ProcessRequest::FetchAdd { handle: self.opened.handle, offset, add };
        Ok(self.attachment.call(FETCH_ADD, &request, word)?)
    }

    /// Stores `swap` in the aligned word at `offset` if it is `expected`, and returns the old value.
    pub fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError> {
        let request = ProcessRequest::CompareSwap { handle: self.opened.handle, offset, expected, swap };
        Ok(self.attachment.call(COMPARE_SWAP, &request, word)?)
    }

    /// Sets `length` bytes at `offset` to a value, by commands to the nodes that store them (section 7.1).
    pub fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError> {
        self.check(Rights::WRITE, offset, length)?;
        for (at, part) in parts(length, MAX_CHANGED) {
            let handle = self.opened.handle;
            let request = ProcessRequest::Set { handle, offset: offset + at, length: part, value };
            self.attachment.call(MEMSET, &request, nothing).map_err(|failed| after(at, failed))?;
        }
        Ok(())
    }

    /// Copies `length` bytes at `offset` to `target` of another region or of the same one (`LT_memcpy`, `LT_memmove`), by
    /// commands to the nodes that store the source (section 7.1). Overlapping ranges of one region are right. This handle
    /// needs READ, the other WRITE, and this process's principal both.
    pub fn copy(&self, offset: u64, length: u64, to: &Lmr<P>, target: u64) -> Result<(), OperationError> {
        self.check(Rights::READ, offset, length)?;
        to.check(Rights::WRITE, target, length)?;
        let copy = |(at, part): (u64, u32), done: u64| {
            let (handle, to) = (self.opened.handle, to.opened.handle);
            let request =
                ProcessRequest::Copy { handle, offset: offset + at, length: part, to, target: target + at };
            let copied = self.attachment.call(COPY, &request, nothing);
            copied.map(|()| done + u64::from(part)).map_err(|failed| after(done, failed))
        };
        let backwards = self.opened.region == to.opened.region && target > offset;
        let mut cuts = parts(length, MAX_CHANGED);
        let copied = if backwards {
            cuts.rev().try_fold(0, |done, part| copy(part, done))
        } else {
            cuts.try_fold(0, |done, part| copy(part, done))
        };
        copied.map(drop)
    }

    /// Grants rights to a principal. This handle needs MASTER, and its principal the rights.
    pub fn grant(&self, principal: &str, rights: Rights) -> Result<(), RequestError> {
        self.grant_to(Grantee::Principal(Principal::new(principal)?), rights)
    }

    /// Grants rights to every principal; as [`grant`](Lmr::grant).
    pub fn grant_anyone(&self, rights: Rights) -> Result<(), RequestError> {
        self.grant_to(Grantee::Anyone, rights)
    }

    fn grant_to(&self, to: Grantee, rights: Rights) -> Result<(), RequestError> {
        let request = ProcessRequest::Grant { handle: self.opened.handle, to, rights };
        Ok(self.attachment.call(GRANT, &request, nothing)?)
    }

    /// Frees the region for all (`LT_free`). This handle needs MASTER. Returns when no node can touch the memory any
    /// more and it was taken back.
    ///
    /// # Errors
    /// [`Refusal::Waits`](dunlin_tier::message::Refusal::Waits): the region is gone for all, and its memory is kept until
    /// the node of that number answers or ends.
    pub fn free(self) -> Result<(), RequestError> {
        let handle = self.opened.handle;
        self.close(FREE, &ProcessRequest::Free { handle })
    }

    /// Unmaps the region (`LT_unmap`). Dropping does the same.
    pub fn unmap(self) -> Result<(), RequestError> {
        let handle = self.opened.handle;
        self.close(UNMAP, &ProcessRequest::Unmap { handle })
    }

    fn close(mut self, function: u16, request: &ProcessRequest<'_>) -> Result<(), RequestError> {
        let closed = self.attachment.call(function, request, nothing);
        self.is_open = closed.is_err() && function == FREE;
        Ok(closed?)
    }
}

impl<P: Fabric> Drop for Lmr<P> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let request = ProcessRequest::Unmap { handle: self.opened.handle };
        if let Err(failed) = self.attachment.call_within(UNMAP, &request, UNMAP_TIME, nothing) {
            let error = RequestError::from(failed);
            // The node closes it when this process ends.
            tracing::debug!(target: "dunlin::tier", %error, "a region could not be unmapped");
        }
    }
}

dunlin_tier_node::any_lmr!(Lmr, Fabric);
