//! The regions that a process has mapped.

use crate::attachment::Attachment;
use crate::list::Operations;
use crate::tier::Tier;
use crate::within::{Within, nothing};
use dunlin_fabric::{Fabric, nanos};
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier::message::Malformed;
use dunlin_tier::process::{FREE, GRANT, LEASE, MOVE, Opened, ProcessRequest, REVOKE, UNMAP};
use dunlin_tier::qos::QosError;
use dunlin_tier::{AccessError, Grantee, Principal, Priority, Rights};
use dunlin_tier_node::{OperationError, RequestError};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The time of the request by which a dropped region is unmapped.
pub(crate) const UNMAP_TIME: Duration = Duration::from_secs(1);

/// A memory region (LMR) that this process has mapped. May be shared by threads. Dropping it unmaps it: that is a
/// request to the node, which blocks for 1 s at most.
///
/// Reads and writes longer than 64 KiB, or 256 KiB if bytes are on other nodes, are several requests. If a later one
/// fails, earlier ones have been executed: [`OperationError::may_have_executed`] says so. Each operation is complete when
/// its method returns: operations of one thread need no fence between them.
#[derive(Debug)]
pub struct Lmr<P: Fabric = ShmFabric> {
    pub(crate) attachment: Arc<Attachment<P>>,
    pub(crate) opened: Opened,
    rights: Rights,
    priority: Priority,
    /// Not all bytes are on the node of this host.
    pub(crate) elsewhere: AtomicBool,
    /// The node still has the handle.
    is_open: bool,
}

impl<P: Fabric> Lmr<P> {
    pub(crate) fn new(tier: &Tier<P>, opened: Opened, rights: Rights) -> Self {
        let (attachment, elsewhere) = (Arc::clone(tier.attachment()), AtomicBool::new(false));
        Lmr { attachment, opened, rights, priority: tier.priority(), elsewhere, is_open: true }
    }

    /// Returns the priority of this handle's operations.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// Sets the priority of this handle's operations (LITE section 6.2), in place of that of its [`Tier`]. It holds for
    /// reads, writes and atomics, which use the paths of this host's node.
    ///
    /// # Errors
    /// The share of the principal permits only low priority.
    pub fn set_priority(&mut self, priority: Priority) -> Result<(), QosError> {
        self.attachment.check_priority(priority)?;
        self.priority = priority;
        Ok(())
    }

    /// Returns a view for operations of another priority than the handle's: [`Within::with_priority`].
    ///
    /// # Errors
    /// The share of the principal permits only low priority.
    pub fn with_priority(&self, priority: Priority) -> Result<Within<'_, P>, QosError> {
        self.usually().with_priority(priority)
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
    pub(crate) fn check(&self, needs: Rights, offset: u64, length: u64) -> Result<(), AccessError> {
        let (has, size) = (self.rights, self.opened.length);
        if !has.contains(needs) {
            return Err(AccessError::Denied { needs, has });
        }
        if offset > size || length > size - offset {
            return Err(AccessError::OutOfBounds { offset, length, size });
        }
        Ok(())
    }

    /// Returns a view for operations that take at most `time`, in place of
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout). The time of each operation begins with it, and is one for
    /// all of its requests. The node gives a request no more than its own timeout.
    ///
    /// # Errors
    /// The operations fail with [`OperationError::Deadline`] once their time is over, or with the reason why they
    /// could not begin. [`OperationError::may_have_executed`] is right for both.
    pub fn within(&self, time: Duration) -> Within<'_, P> {
        Within { lmr: self, time: Some(time), priority: self.priority }
    }

    pub(crate) fn usually(&self) -> Within<'_, P> {
        Within { lmr: self, time: None, priority: self.priority }
    }

    /// Copies bytes at `offset` out of the region (`LT_read`). Blocks until they are there, or until
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout).
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        self.usually().read(offset, into)
    }

    /// Copies bytes into the region at `offset` (`LT_write`). Blocks until they are placed, or until
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout). Concurrent operations on the same bytes may interleave.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.usually().write(offset, from)
    }

    /// Writes at most 4 MiB at `offset`, and then the aligned word at `word_offset`: a process or a node that reads the
    /// word, and then the bytes, does not see the new word with old bytes. Words are little-endian.
    ///
    /// # Errors
    /// With [`OperationError::may_have_executed`], the bytes may have been written with or without the word.
    pub fn write_notify(
        &self,
        offset: u64,
        bytes: &[u8],
        word_offset: u64,
        value: u64,
    ) -> Result<(), OperationError> {
        self.usually().write_notify(offset, bytes, word_offset, value)
    }

    /// Adds to the aligned word at `offset` and returns its old value (`LT_fetch-add`). Words are little-endian.
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError> {
        self.usually().fetch_add(offset, add)
    }

    /// Stores `swap` in the aligned word at `offset` if it is `expected`, and returns the old value.
    pub fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError> {
        self.usually().compare_swap(offset, expected, swap)
    }

    /// Sets the aligned word at `offset` to 1 if it is 0 (`LT_test-set`); returns whether it was.
    pub fn test_set(&self, offset: u64) -> Result<bool, OperationError> {
        self.usually().test_set(offset)
    }

    /// Sets `length` bytes at `offset` to a value, by commands to the nodes that store them (section 7.1).
    pub fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError> {
        self.usually().memset(offset, length, value)
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

    /// Takes rights away from a principal; returns those that it has left, for example by a grant for anyone. This
    /// handle needs MASTER. Handles of the principal that have a right which it has lost end, at every node, and fail
    /// with [`AccessError::Revoked`]; operations that were under way end first. As [`dunlin_tier_node::Lmr::revoke`].
    /// Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    ///
    /// # Errors
    /// [`GrantError::LastMaster`](dunlin_tier::GrantError::LastMaster) if the region would have no master, and nothing
    /// is changed. [`Refusal::Drains`](dunlin_tier::message::Refusal::Drains): the right is revoked, and operations
    /// that had begun at the node of that number may go on until it answers or ends.
    pub fn revoke(&self, principal: &str, rights: Rights) -> Result<Rights, RequestError> {
        self.revoke_from(Grantee::Principal(Principal::new(principal)?), rights)
    }

    /// Takes rights away that every principal has; as [`revoke`](Lmr::revoke). Principals keep those of grants of their
    /// own.
    pub fn revoke_anyone(&self, rights: Rights) -> Result<Rights, RequestError> {
        self.revoke_from(Grantee::Anyone, rights)
    }

    fn revoke_from(&self, from: Grantee, rights: Rights) -> Result<Rights, RequestError> {
        let request = ProcessRequest::Revoke { handle: self.opened.handle, from, rights };
        Ok(self.attachment.call(REVOKE, &request, |answer| match answer {
            [bits] => Rights::from_bits(*bits).ok_or(Malformed),
            _ => Err(Malformed),
        })?)
    }

    /// Gives the region, which has a name, a lease that begins now: it is freed when the lease runs out. `None` takes the
    /// lease away. This handle needs MASTER. As [`dunlin_tier_node::Lmr::lease`].
    pub fn lease(&self, lease: Option<Duration>) -> Result<(), RequestError> {
        let request = ProcessRequest::Lease { handle: self.opened.handle, length: lease.map(nanos) };
        Ok(self.attachment.call(LEASE, &request, nothing)?)
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

    /// Moves the region, which has a name, to the memory of one node. This handle needs MASTER. All handles of the region,
    /// this one included, then fail with [`AccessError::Moved`]: map the name again. As
    /// [`dunlin_tier_node::Lmr::move_to`]. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    ///
    /// # Errors
    /// A node does not stop to use the region, or has no room for it. Unless [`RequestError::may_have_executed`], the
    /// region stays where it is.
    pub fn move_to(&self, node: &str) -> Result<(), RequestError> {
        if node.len() > 255 {
            return Err(RequestError::NoNode(node.to_owned()));
        }
        let request = ProcessRequest::Move { handle: self.opened.handle, node: node.to_owned() };
        Ok(self.attachment.call(MOVE, &request, nothing)?)
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
        if let Err(failed) =
            self.attachment.call_until(UNMAP, &request, self.attachment.until(UNMAP_TIME), nothing)
        {
            let error = RequestError::from(failed);
            // The node closes it when this process ends.
            tracing::debug!(target: "dunlin::tier", %error, "a region could not be unmapped");
        }
    }
}

dunlin_tier_node::any_lmr!(Lmr, Fabric);
dunlin_tier_node::timed_lmr!(Lmr, Fabric, Operations);
