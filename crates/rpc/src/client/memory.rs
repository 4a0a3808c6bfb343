//! Operations on memory that the server exposes: READ, WRITE, FETCH_ADD and CMP_SWAP on the queue pair of a lane
//! (FLOCK section 6). They are calls without a message: a call id, a deadline and a certainty, but no handler runs.
//!
//! An operation travels from the thread that makes it to the thread that posts it like a request: its kind in the
//! place of the function's number, the rest in the payload.

use super::lane::{ClientLane, SubmitError};
use super::slots::NO_MESSAGE;
use crate::error::{CallError, Cause, MemoryError};
use crate::path::listed::MAX_KEPT;
use crate::path::{Cx, TxError, route};
use dunlin_fabric::{
    Access, Completion, Data, Fabric, Nanos, Opcode, Operation, PostError, RegionKey, RemoteSlice,
    ThreadDomain, WorkRequest,
};
use dunlin_wire::Status;
use dunlin_wire::handshake::{Grant, MAX_REGION_NAME_BYTES};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// The most regions that a client attaches.
const MAX_REGIONS: usize = 256;

/// Function numbers from here on name operations: no service has functions with these.
const KINDS: u16 = 0xfff0;
const READ: u16 = KINDS;
const WRITE: u16 = KINDS + 1;
const FETCH_ADD: u16 = KINDS + 2;
const COMPARE_SWAP: u16 = KINDS + 3;

/// Results up to this length are copied into the slot of their call; the memory of longer ones is kept.
const COPIED: usize = 4096;

/// A region of the server's memory that a client has attached. Cheap to clone, and valid for all clients that come
/// from the same one by [`another`](crate::Client::another), also after they have connected again.
#[derive(Clone, Debug)]
pub struct RemoteRegion {
    pub(crate) number: u16,
    name: Arc<str>,
    length: u64,
    access: Access,
}

impl RemoteRegion {
    /// Returns the region's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the region's length in bytes.
    #[allow(clippy::len_without_is_empty)] // No region is empty.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns the access that the server grants.
    pub fn access(&self) -> Access {
        self.access
    }
}

/// The names of the regions that a client and its [others](crate::Client::another) have attached, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegionNames(Arc<Mutex<Vec<Arc<str>>>>);

impl RegionNames {
    /// Returns the names so far.
    pub(crate) fn all(&self) -> Vec<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of a name.
    ///
    /// # Errors
    /// No region can have the name, or there are [`MAX_REGIONS`] others.
    pub(crate) fn number(&self, name: &str) -> Result<(u16, Arc<str>), MemoryError> {
        if name.is_empty() || name.len() > MAX_REGION_NAME_BYTES {
            return Err(MemoryError::NoSuchRegion { name: name.to_owned() });
        }
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = names.iter().position(|known| **known == *name).unwrap_or(names.len());
        if at == names.len() {
            if at == MAX_REGIONS {
                return Err(MemoryError::TooMany);
            }
            names.push(name.into());
        }
        Ok((at as u16, Arc::clone(&names[at])))
    }

    /// Returns the name with a number.
    pub(crate) fn name(&self, number: u16) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(usize::from(number)).cloned()
    }
}

/// The key of a region on one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attached {
    /// The session of the connection that granted it.
    pub(crate) session: u64,
    pub(crate) key: RegionKey,
    pub(crate) length: u64,
    pub(crate) access: Access,
}

impl Attached {
    /// Returns what a grant gives; `None` if it refuses.
    pub(crate) fn of(session: u64, grant: Grant) -> Option<Attached> {
        let access = Access::from_bits(grant.purpose).filter(|_| grant.length > 0)?;
        Some(Attached { session, key: RegionKey(grant.key), length: grant.length, access })
    }

    pub(crate) fn region(self, number: u16, name: Arc<str>) -> RemoteRegion {
        RemoteRegion { number, name, length: self.length, access: self.access }
    }

    /// Checks an operation against the grant: a server that came back may expose less.
    pub(crate) fn check(&self, operation: &MemoryOperation<'_>) -> Result<(), CallError> {
        let (length, limit) = (operation.end(), self.length);
        if length > limit || !self.access.contains(operation.needs()) {
            return Err(CallError::NotExecuted(Cause::TooLarge { length, limit }));
        }
        Ok(())
    }
}

/// The error of an operation on a region that the server does not grant any more.
pub(crate) const NOT_GRANTED: CallError = CallError::NotExecuted(Cause::Refused(Status::Unauthorised));

/// Requests for regions whose answers come with the other records of a connection, in the order of the requests.
#[derive(Debug, Default)]
pub(crate) struct Attaching {
    /// The connection of each request, and the number of its region.
    asked: VecDeque<(u32, u16)>,
    granted: Vec<(u32, u16, Grant)>,
}

impl Attaching {
    /// Notes a request. Returns false if that is under way already.
    pub(crate) fn ask(&mut self, connection: u32, region: u16) -> bool {
        let is_new = !self.asked.contains(&(connection, region));
        if is_new {
            self.asked.push_back((connection, region));
        }
        is_new
    }

    /// Takes the answer to the oldest request of a connection. Returns false if no request waits.
    pub(crate) fn answer(&mut self, connection: u32, grant: Grant) -> bool {
        let Some(at) = self.asked.iter().position(|(of, _)| *of == connection) else { return false };
        let (_, region) = self.asked.remove(at).unwrap_or_default();
        self.granted.push((connection, region, grant));
        true
    }

    /// Takes the answers for a connection. Those of connections that are gone are dropped.
    pub(crate) fn take(
        &mut self,
        connection: u32,
        is_open: impl Fn(u32) -> bool,
        mut each: impl FnMut(u16, Grant),
    ) {
        self.asked.retain(|(of, _)| is_open(*of));
        self.granted.retain(|(of, region, grant)| {
            if *of == connection {
                each(*region, *grant);
            }
            *of != connection && is_open(*of)
        });
    }
}

/// An operation as it is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryOperation<'a> {
    Read { offset: u64, length: u32 },
    Write { offset: u64, data: &'a [u8] },
    FetchAdd { offset: u64, add: u64 },
    CompareSwap { offset: u64, expected: u64, swap: u64 },
}

impl<'a> MemoryOperation<'a> {
    /// Returns the access that the operation needs.
    pub(crate) const fn needs(&self) -> Access {
        match self {
            MemoryOperation::Read { .. } => Access::READ,
            MemoryOperation::Write { .. } => Access::WRITE,
            MemoryOperation::FetchAdd { .. } | MemoryOperation::CompareSwap { .. } => Access::ATOMIC,
        }
    }

    /// Returns offset and length.
    const fn range(&self) -> (u64, u64) {
        match self {
            MemoryOperation::Read { offset, length } => (*offset, *length as u64),
            MemoryOperation::Write { offset, data } => (*offset, data.len() as u64),
            MemoryOperation::FetchAdd { offset, .. } | MemoryOperation::CompareSwap { offset, .. } => {
                (*offset, 8)
            }
        }
    }

    /// Returns the offset of the end; the largest number on overflow.
    pub(crate) const fn end(&self) -> u64 {
        let (offset, length) = self.range();
        offset.saturating_add(length)
    }

    /// Checks an operation against its region, before anything is sent.
    pub(crate) fn check(&self, region: &RemoteRegion, atomics: bool) -> Result<(), MemoryError> {
        let (needs, (offset, length)) = (self.needs(), self.range());
        if !region.access.contains(needs) {
            return Err(MemoryError::NotPermitted { region: region.name().to_owned() });
        }
        if offset.checked_add(length).is_none_or(|end| end > region.length) || length > u64::from(u32::MAX) {
            return Err(MemoryError::OutOfBounds { offset, length, limit: region.length });
        }
        if needs == Access::ATOMIC {
            if !offset.is_multiple_of(8) {
                return Err(MemoryError::Misaligned { offset });
            }
            if !atomics {
                return Err(MemoryError::NoAtomics);
            }
        }
        Ok(())
    }

    /// Encodes the operation as function and payload, behind what `into` has.
    pub(crate) fn encode(&self, region: u16, into: &mut Vec<u8>) -> u16 {
        into.extend_from_slice(&region.to_le_bytes());
        let mut put =
            |words: &[u64]| words.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
        match *self {
            MemoryOperation::Read { offset, length } => {
                put(&[offset, length.into()]);
                READ
            }
            MemoryOperation::Write { offset, data } => {
                put(&[offset]);
                into.extend_from_slice(data);
                WRITE
            }
            MemoryOperation::FetchAdd { offset, add } => {
                put(&[offset, add]);
                FETCH_ADD
            }
            MemoryOperation::CompareSwap { offset, expected, swap } => {
                put(&[offset, expected, swap]);
                COMPARE_SWAP
            }
        }
    }

    /// Decodes [`encode`](MemoryOperation::encode); `None` for a function that names no operation.
    pub(crate) fn decode(function: u16, payload: &'a [u8]) -> Option<(u16, MemoryOperation<'a>)> {
        let (region, rest) = payload.split_first_chunk::<2>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let offset = u64::from_le_bytes(*offset);
        let word = |at: usize| Some(u64::from_le_bytes(*rest.get(8 * at..)?.first_chunk::<8>()?));
        let operation = match function {
            READ => MemoryOperation::Read { offset, length: word(0)? as u32 },
            WRITE => MemoryOperation::Write { offset, data: rest },
            FETCH_ADD => MemoryOperation::FetchAdd { offset, add: word(0)? },
            COMPARE_SWAP => MemoryOperation::CompareSwap { offset, expected: word(0)?, swap: word(1)? },
            _ => return None,
        };
        Some((u16::from_le_bytes(*region), operation))
    }
}

/// Returns whether a function number names an operation on memory.
#[inline]
pub(crate) const fn is_memory(function: u16) -> bool {
    function >= KINDS
}

/// Returns the length of a request as its thread counts it: for an operation on memory, that of the operation.
#[inline]
pub(crate) fn request_bytes(function: u16, payload: &[u8]) -> u32 {
    if is_memory(function) { operation_bytes(function, payload) } else { payload.len() as u32 }
}

fn operation_bytes(function: u16, payload: &[u8]) -> u32 {
    // Bytes that decode to no operation are refused when they are to be posted.
    MemoryOperation::decode(function, payload).map_or(0, |(_, operation)| operation.range().1 as u32)
}

impl<F: Fabric> ClientLane<F> {
    /// Posts an operation on the server's memory under a call id, at once if it is `alone`. Otherwise it leaves with
    /// the next request of the lane, under one doorbell with it, or by [`send_open`](ClientLane::send_open). Its result
    /// is the bytes that were READ, the old value of an atomic, or nothing.
    pub(crate) fn post_memory(
        &mut self,
        cx: &mut Cx<'_, F>,
        operation: MemoryOperation<'_>,
        key: RegionKey,
        timeout: Nanos,
        alone: bool,
    ) -> Result<u32, SubmitError> {
        if self.draining {
            return self.check_call(0).map(|()| 0);
        }
        let Some(call) = self.slots.next_call() else {
            return Err(SubmitError::Call(CallError::NotExecuted(Cause::WindowFull)));
        };
        // Where this processor copies the bytes itself, there is no doorbell to share.
        let linked = !alone && !cx.fabric.capabilities().initiator_copies;
        let max_inline = cx.fabric.capabilities().max_inline as usize;
        let max_inline = if linked { max_inline.min(MAX_KEPT) } else { max_inline };
        let mut buffer =
            |length: usize| self.imports.reserve(cx.fabric, length).map_err(|_| Self::out_of_memory());
        let parts;
        let operation = match operation {
            MemoryOperation::Read { offset, length } => {
                Operation::Read { from: RemoteSlice { key, offset, length }, into: buffer(length as usize)? }
            }
            MemoryOperation::Write { offset, data } if data.len() <= max_inline => {
                parts = [data];
                Operation::Write { data: Data::Inline(&parts), key, offset, immediate: None }
            }
            MemoryOperation::Write { offset, data } => {
                let mut buffer = buffer(data.len())?;
                buffer.copy_from_slice(data);
                Operation::Write { data: Data::Buffer(buffer), key, offset, immediate: None }
            }
            MemoryOperation::FetchAdd { offset, add } => Operation::FetchAdd { key, offset, add },
            MemoryOperation::CompareSwap { offset, expected, swap } => {
                Operation::CompareSwap { key, offset, expected, swap }
            }
        };
        let request = WorkRequest { id: route::memory(self.index, call), operation, signaled: true };
        // The calls of the open batch will be paid for.
        let ask = if self.has_credit() { self.spend(1) } else { None };
        let Some(ask) = ask else { return Err(SubmitError::Full) };
        let of_tx = |error| match error {
            TxError::Full => PostError::QueueFull,
            TxError::Broken => PostError::QueuePairError,
        };
        let posted = if linked {
            self.tx.end.list(cx.domain, request).map_err(of_tx)
        } else {
            let before = self.tx.end.post_listed(cx.domain).map_err(of_tx);
            before.and_then(|()| cx.domain.post(self.queue_pair, request))
        };
        match posted {
            Ok(()) => {}
            Err(PostError::QueueFull) => {
                self.unspend(1, ask);
                return Err(SubmitError::Full);
            }
            Err(PostError::QueuePairError) => return Err(SubmitError::Broken),
            Err(error) => {
                tracing::debug!(target: "dunlin::client", lane = self.index, %error, "an operation on memory could not be posted");
                return Err(SubmitError::Broken);
            }
        }
        self.slots.take(call, timeout, NO_MESSAGE);
        self.memory += 1;
        self.operated(cx, ask);
        Ok(call)
    }

    /// Returns whether something waits for [`send_open`](ClientLane::send_open).
    pub(super) fn has_open(&self) -> bool {
        self.tx.end.has_listed() || self.batching.is_none() && !self.batch.is_empty()
    }

    /// Sends what waits for the end of a leader's round, with one doorbell: the operations on memory, and the open batch
    /// unless the lane batches by itself.
    pub(super) fn send_open(&mut self, cx: &mut Cx<'_, F>) -> Result<(), SubmitError> {
        match self.batching {
            None => self.flush(cx),
            Some(_) => Ok(self.tx.end.post_listed(cx.domain)?),
        }
    }

    /// Ends an operation that has completed.
    pub(super) fn on_memory(&mut self, call: u32, completion: Completion<F::Memory>) {
        self.memory = self.memory.saturating_sub(1);
        // A call that was given up ignores the result.
        match (completion.opcode, completion.buffer) {
            (Opcode::Read, Some(buffer)) if buffer.len() <= COPIED => {
                self.slots.answer(call, &buffer, None);
            }
            (Opcode::Read, Some(buffer)) => {
                self.slots.answer_large(call, Ok(buffer));
            }
            (Opcode::FetchAdd | Opcode::CompareSwap, _) => {
                self.slots.answer(call, &completion.value.to_le_bytes(), None);
            }
            _ => {
                self.slots.answer(call, &[], None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(length: u64, access: Access) -> RemoteRegion {
        RemoteRegion { number: 3, name: "r".into(), length, access }
    }

    const ALL: Access = Access::READ.with(Access::WRITE).with(Access::ATOMIC);

    #[test]
    fn bounds_rights_and_alignment_are_checked_before_anything_is_sent() {
        let all = region(64, ALL);
        let read = |offset, length| MemoryOperation::Read { offset, length };
        let add = |offset| MemoryOperation::FetchAdd { offset, add: 1 };
        assert!(read(0, 64).check(&all, true).is_ok() && read(64, 0).check(&all, true).is_ok());
        for (offset, length) in [(0, 65), (64, 1), (65, 0), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            let refused = read(offset, length).check(&all, true);
            assert!(matches!(refused, Err(MemoryError::OutOfBounds { .. })), "{offset} {length}");
            let data = vec![0; length as usize];
            let refused = MemoryOperation::Write { offset, data: &data }.check(&all, true);
            assert!(matches!(refused, Err(MemoryError::OutOfBounds { .. })), "{offset} {length}");
        }
        assert!(add(56).check(&all, true).is_ok());
        assert!(matches!(add(57).check(&all, true), Err(MemoryError::OutOfBounds { .. })));
        assert!(matches!(add(12).check(&all, true), Err(MemoryError::Misaligned { offset: 12 })));
        assert!(matches!(add(8).check(&all, false), Err(MemoryError::NoAtomics)));
        let operations = [read(0, 1), MemoryOperation::Write { offset: 0, data: &[1] }, add(0)];
        for (at, operation) in operations.iter().enumerate() {
            for (right, access) in [Access::READ, Access::WRITE, Access::ATOMIC].into_iter().enumerate() {
                let checked = operation.check(&region(64, access), true);
                assert_eq!(checked.is_ok(), at == right);
                assert!(checked.is_ok() || matches!(checked, Err(MemoryError::NotPermitted { .. })));
            }
        }
    }

    /// Answers have no name: they belong to the requests of their connection in order.
    #[test]
    fn grants_belong_to_the_requests_of_their_connection() {
        let grant = |key| Grant { key, length: 8, purpose: Access::READ.bits() };
        let mut attaching = Attaching::default();
        assert!(!attaching.answer(1, grant(0)), "nobody has asked");
        assert!([(1, 5), (2, 7), (1, 6)].iter().all(|(of, region)| attaching.ask(*of, *region)));
        assert!(!attaching.ask(1, 6), "it is under way");
        assert!(
            attaching.answer(1, grant(10))
                && attaching.answer(2, grant(11))
                && attaching.answer(1, grant(12))
        );
        assert!(!attaching.answer(1, grant(13)));
        let mut taken = Vec::new();
        attaching.take(1, |_| true, |region, grant| taken.push((region, grant.key)));
        assert_eq!(taken, [(5, 10), (6, 12)]);
        // Connection 2 is gone.
        assert!(attaching.ask(2, 8));
        attaching.take(1, |of| of == 1, |_, _| panic!("nothing is left"));
        assert!(attaching.asked.is_empty() && attaching.granted.is_empty());
    }

    #[test]
    fn names_have_numbers_and_there_is_a_limit() {
        let names = RegionNames::default();
        for round in 0..2 {
            for number in 0..MAX_REGIONS {
                let (found, name) = names.number(&format!("region-{number}")).unwrap();
                assert_eq!((usize::from(found), &*name), (number, &*format!("region-{number}")), "{round}");
            }
        }
        assert_eq!(names.number("one more"), Err(MemoryError::TooMany));
        assert_eq!((names.name(7).as_deref(), names.name(256)), (Some("region-7"), None));
    }

    proptest! {
        #[test]
        fn an_operation_comes_out_as_it_went_in(
            kind in 0..4, region in any::<u16>(), offset in any::<u64>(), a in any::<u64>(), b in any::<u64>(),
            data in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let operation = match kind {
                0 => MemoryOperation::Read { offset, length: a as u32 },
                1 => MemoryOperation::Write { offset, data: &data },
                2 => MemoryOperation::FetchAdd { offset, add: a },
                _ => MemoryOperation::CompareSwap { offset, expected: a, swap: b },
            };
            let mut payload = Vec::new();
            let function = operation.encode(region, &mut payload);
            prop_assert!(is_memory(function));
            prop_assert_eq!(MemoryOperation::decode(function, &payload), Some((region, operation)));
        }

        #[test]
        fn any_bytes_are_safe(function in any::<u16>(), payload in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = MemoryOperation::decode(function, &payload);
        }
    }
}
