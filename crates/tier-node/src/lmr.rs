//! The regions that an application has mapped.

use crate::error::{OperationError, RequestError};
use crate::qos::Class;
use crate::tier::Running;
use crate::within::Within;
use dunlin_fabric::{Fabric, nanos};
use dunlin_tier::message::{Reply, Request};
use dunlin_tier::qos::QosError;
use dunlin_tier::{AccessError, Grantee, Handle, LmrId, Principal, Priority, Rights};
use std::sync::Arc;
use std::time::Duration;

/// A memory region (LMR) that this node has mapped for a principal. May be shared by threads. Dropping it unmaps it.
///
/// Each operation is complete when its method returns: operations of one thread need no fence between them. To run
/// several at the same time, make a list of [`Operations`](crate::Operations).
#[derive(Debug)]
pub struct Lmr<F: Fabric> {
    pub(crate) running: Arc<Running<F>>,
    pub(crate) principal: Principal,
    pub(crate) class: Class,
    pub(crate) handle: Handle,
    pub(crate) id: LmrId,
    pub(crate) length: u64,
}

impl<F: Fabric> Lmr<F> {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether the length is zero, which no region has.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the rights of this handle.
    pub fn rights(&self) -> Result<Rights, AccessError> {
        Ok(self.running.node.state().handles.describe(self.handle)?.1)
    }

    /// Returns the priority of this handle's operations.
    pub fn priority(&self) -> Priority {
        self.class.priority
    }

    /// Sets the priority of this handle's operations (LITE section 6.2). It holds for reads, writes and atomics, which
    /// use this node's paths. A new handle has the priority of its [`Tier`](crate::Tier).
    ///
    /// # Errors
    /// The [`Share`](crate::Share) of the principal permits only low priority.
    pub fn set_priority(&mut self, priority: Priority) -> Result<(), QosError> {
        self.class = self.class.with_priority(priority)?;
        Ok(())
    }

    /// Returns a view for operations that take at most `time`, in place of
    /// [`TierConfig::timeout`](crate::TierConfig::timeout). The time of each operation begins with it, and is one for all
    /// of its parts. Without any time, nothing is posted.
    ///
    /// # Errors
    /// The operations fail with [`OperationError::Deadline`] once their time is over, or with the reason why they
    /// could not begin. [`OperationError::may_have_executed`] is right for both.
    pub fn within(&self, time: Duration) -> Within<'_, F> {
        Within { lmr: self, time: Some(nanos(time)), class: None }
    }

    /// Returns a view for operations of another priority than the handle's: [`Within::with_priority`].
    ///
    /// # Errors
    /// The [`Share`](crate::Share) of the principal permits only low priority.
    pub fn with_priority(&self, priority: Priority) -> Result<Within<'_, F>, QosError> {
        self.usually().with_priority(priority)
    }

    pub(crate) fn usually(&self) -> Within<'_, F> {
        Within { lmr: self, time: None, class: None }
    }

    /// Copies bytes at `offset` out of the region (`LT_read`). Blocks until they are there, or until
    /// [`TierConfig::timeout`](crate::TierConfig::timeout).
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        self.usually().read(offset, into)
    }

    /// As [`read`](Lmr::read), without waiting for other nodes: returns `false` if not all of the region's bytes are on
    /// this node, and nothing was read.
    pub fn read_here(&self, offset: u64, into: &mut [u8]) -> Result<bool, OperationError> {
        self.usually().read_here(offset, into)
    }

    /// As [`write`](Lmr::write), without waiting for other nodes: returns `false` if not all of the bytes are on this
    /// node, and nothing was written.
    pub fn write_here(&self, offset: u64, from: &[u8]) -> Result<bool, OperationError> {
        self.usually().write_here(offset, from)
    }

    /// Copies bytes into the region at `offset` (`LT_write`). Blocks until they are placed, or until
    /// [`TierConfig::timeout`](crate::TierConfig::timeout). Concurrent operations on the same bytes may interleave.
    ///
    /// Reads by other nodes see the bytes from then on. The node that stores them reads with its own processor, and may
    /// see them a few microseconds later: a completion does not say that the processor sees the data.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.usually().write(offset, from)
    }

    /// Writes bytes at `offset`, and then the aligned word at `word_offset`: a thread or a node that reads the word, and
    /// then the bytes, does not see the new word with old bytes. Words are little-endian. Blocks until both are placed, or
    /// until [`TierConfig::timeout`](crate::TierConfig::timeout).
    ///
    /// On a fabric that keeps the order of WRITEs, bytes and word on one node are under way together. Otherwise the word
    /// is written after the bytes are placed.
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

    /// Sets `length` bytes at `offset` to a value, by a command to the nodes that store them (section 7.1). The nodes
    /// carry it out one after the other. Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at most.
    pub fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError> {
        self.usually().memset(offset, length, value)
    }

    /// Grants rights to a principal. This handle needs MASTER, and its principal the rights. Blocks until
    /// [`TierConfig::timeout`](crate::TierConfig::timeout) at most.
    ///
    /// # Errors
    /// [`Refusal::Untold`](dunlin_tier::message::Refusal::Untold): the right is granted, and a node that keeps the record,
    /// too, has not heard of it.
    pub fn grant(&self, principal: &str, rights: Rights) -> Result<(), RequestError> {
        self.grant_to(Grantee::Principal(Principal::new(principal)?), rights)
    }

    /// Grants rights to every principal; as [`grant`](Lmr::grant).
    pub fn grant_anyone(&self, rights: Rights) -> Result<(), RequestError> {
        self.grant_to(Grantee::Anyone, rights)
    }

    pub(crate) fn grant_to(&self, to: Grantee, rights: Rights) -> Result<(), RequestError> {
        let node = &*self.running.node;
        self.check_master()?;
        let (id, by) = (self.id, self.principal.clone());
        node.ask_record(id, &Request::Grant { id, rights, by, to }, node.until())?;
        Ok(())
    }

    /// Takes rights away from a principal; returns those that it has left, for example by a grant for anyone. This
    /// handle needs MASTER. Rights that the principal does not have change nothing, so a revocation may be repeated.
    ///
    /// All handles of the principal that have a right which it has lost end, at every node, and those of this process,
    /// too, if it revokes its own: they fail with [`AccessError::Revoked`]. Map the name again with the rights that are
    /// left. Operations that were under way end first: none of them changes a byte after this method has returned. A
    /// node that does not say so within [`TierConfig::stop_timeout`](crate::TierConfig::stop_timeout) is fenced, as by
    /// a free. Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at most.
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

    pub(crate) fn revoke_from(&self, from: Grantee, rights: Rights) -> Result<Rights, RequestError> {
        let node = &*self.running.node;
        self.check_master()?;
        let (id, by) = (self.id, self.principal.clone());
        match node.ask_record(id, &Request::Revoke { id, rights, by, from }, node.until())? {
            Reply::Left(left) => Ok(left),
            _ => Err(node.misfit(id.node)),
        }
    }

    /// Gives the region, which has a name, a lease that begins now: it is freed when the lease runs out, as by
    /// [`free`](Lmr::free). `None` takes the lease away, and the region lives until it is freed. This handle needs
    /// MASTER. The time is that of the node that keeps the record; the next life of a node with a keeper counts each
    /// lease from its first moment. Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at most.
    ///
    /// A region that a process maps directly is freed when that process lets go, which it is asked for.
    ///
    /// # Errors
    /// [`RecordError::NoName`](dunlin_tier::RecordError::NoName): a region without a name ends with its last handle.
    pub fn lease(&self, lease: Option<Duration>) -> Result<(), RequestError> {
        self.lease_for(lease.map(nanos))
    }

    pub(crate) fn lease_for(&self, length: Option<u64>) -> Result<(), RequestError> {
        let node = &*self.running.node;
        self.check_master()?;
        let (id, by) = (self.id, self.principal.clone());
        node.ask_record(id, &Request::Lease { id, by, length }, node.until())?;
        Ok(())
    }

    pub(crate) fn check_master(&self) -> Result<(), AccessError> {
        let has = self.rights()?;
        if has.contains(Rights::MASTER) {
            Ok(())
        } else {
            Err(AccessError::Denied { needs: Rights::MASTER, has })
        }
    }

    /// Frees the region for all (`LT_free`). This handle needs MASTER. Returns when no node can touch the memory any
    /// more and it was taken back. Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at most.
    ///
    /// # Errors
    /// [`Refusal::Waits`](dunlin_tier::message::Refusal::Waits): the region is gone for all, and its memory is kept until
    /// the node of that number answers or ends.
    pub fn free(self) -> Result<(), RequestError> {
        self.free_shared()
    }

    /// As [`free`](Lmr::free), for a region that other threads use: their operations end or fail.
    pub(crate) fn free_shared(&self) -> Result<(), RequestError> {
        let node = &*self.running.node;
        self.check_master()?;
        let (id, by) = (self.id, self.principal.clone());
        node.ask_record(id, &Request::Free { id, by }, node.until())?;
        Ok(())
    }

    /// Moves the region, which has a name, to the memory of one node (section 4.1). This handle needs MASTER. All handles
    /// of the region, this one included, then fail with [`AccessError::Moved`]: map the name again. Operations that were
    /// under way end before the bytes are copied, so none is lost. A `map` meanwhile waits. A region that is there already
    /// stays.
    ///
    /// Blocks until [`TierConfig::timeout`](crate::TierConfig::timeout) at most; a move that takes longer goes on.
    ///
    /// # Errors
    /// [`Refusal::InUse`](dunlin_tier::message::Refusal::InUse) names a node that does not stop to use the region, and
    /// [`Refusal::OutOfMemory`](dunlin_tier::message::Refusal::OutOfMemory) says that the node has no room. Unless
    /// [`RequestError::may_have_executed`], the region stays where it is after an error.
    pub fn move_to(&self, node: &str) -> Result<(), RequestError> {
        let this = &*self.running.node;
        let to = this.roster.number_of(node).ok_or_else(|| RequestError::NoNode(node.to_owned()))?;
        self.check_master()?;
        let (id, by) = (self.id, self.principal.clone());
        this.ask_record(id, &Request::Move { id, by, to }, this.until())?;
        Ok(())
    }

    /// Unmaps the region and tells the record's node (`LT_unmap`). Dropping does the same in the background. Blocks
    /// until [`TierConfig::timeout`](crate::TierConfig::timeout) at most.
    pub fn unmap(self) -> Result<(), RequestError> {
        let node = &*self.running.node;
        let closed = node.state().handles.unmap(self.handle)?;
        if let Some(id) = closed {
            node.demand(id.node, Request::Unmap { id, mapper: node.me }, node.until())?;
        }
        Ok(())
    }
}

impl<F: Fabric> Drop for Lmr<F> {
    fn drop(&mut self) {
        // An unmapped handle is unknown, which is fine.
        let closed = self.running.node.state().handles.unmap(self.handle);
        if let Ok(Some(id)) = closed {
            self.running.node.report_unmapped(id);
        }
    }
}
