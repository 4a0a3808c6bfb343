//! A client's operations on memory that the server exposes, under any policy (FLOCK section 6, table 2).

use super::{Client, Policy, each};
use crate::client::CallId;
use crate::client::memory::{MemoryOperation, RemoteRegion};
use crate::client::within::Time;
use crate::error::{CallError, Cause, MemoryError};
use dunlin_fabric::Fabric;

impl<F: Fabric> Client<F> {
    /// Attaches a region that the server exposes under a name
    /// ([`ServerBuilder::expose`](crate::ServerBuilder::expose)). Connects first if there is no connection. Blocks for
    /// at most [`ClientConfig::connect_timeout`](crate::ClientConfig::connect_timeout).
    ///
    /// # Errors
    /// [`MemoryError::NoSuchRegion`], also for a region that this client may not use.
    pub fn attach(&mut self, name: &str) -> Result<RemoteRegion, MemoryError> {
        each!(&mut self.policy, own => own.attach(name), seat => seat.with_lead(|core| core.client.attach(name)))
    }

    /// READs bytes of a region, without a handler on the server. Waits for the result, for at most
    /// [`ClientConfig::timeout`](crate::ClientConfig::timeout). Bytes that others write meanwhile may be torn, also
    /// within a word on some fabrics.
    pub fn read(&mut self, region: &RemoteRegion, offset: u64, into: &mut [u8]) -> Result<(), MemoryError> {
        let call = self.submit_read(region, offset, into.len())?;
        let result = self.wait(call)?;
        if result.len() != into.len() {
            return Err(CallError::MaybeExecuted(Cause::ProtocolViolation).into());
        }
        into.copy_from_slice(&result);
        Ok(())
    }

    /// WRITEs bytes to a region, without a handler on the server. Waits until the write is done, for at most
    /// [`ClientConfig::timeout`](crate::ClientConfig::timeout).
    pub fn write(&mut self, region: &RemoteRegion, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        let call = self.submit_write(region, offset, data)?;
        self.wait(call)?;
        Ok(())
    }

    /// Adds to 8 aligned bytes of a region, and returns their old value. Atomic among the operations of the server's
    /// device ([`Capabilities::atomics`](dunlin_fabric::Capabilities::atomics)).
    pub fn fetch_add(&mut self, region: &RemoteRegion, offset: u64, add: u64) -> Result<u64, MemoryError> {
        self.atomic(region, MemoryOperation::FetchAdd { offset, add })
    }

    /// Sets 8 aligned bytes of a region to `swap` if they are `expected`, and returns their old value. Atomic as
    /// [`fetch_add`](Client::fetch_add).
    pub fn compare_swap(
        &mut self,
        region: &RemoteRegion,
        offset: u64,
        expected: u64,
        swap: u64,
    ) -> Result<u64, MemoryError> {
        self.atomic(region, MemoryOperation::CompareSwap { offset, expected, swap })
    }

    fn atomic(&mut self, region: &RemoteRegion, operation: MemoryOperation<'_>) -> Result<u64, MemoryError> {
        let call = self.submit_memory(region, &operation)?;
        let result = self.wait(call)?;
        match result.first_chunk::<8>() {
            Some(value) => Ok(u64::from_le_bytes(*value)),
            None => Err(CallError::MaybeExecuted(Cause::ProtocolViolation).into()),
        }
    }

    /// Posts a READ and returns its id: its result is the bytes, taken as that of a call. Waits for room only.
    pub fn submit_read(
        &mut self,
        region: &RemoteRegion,
        offset: u64,
        length: usize,
    ) -> Result<CallId, MemoryError> {
        let too_long = MemoryError::OutOfBounds { offset, length: length as u64, limit: region.len() };
        let length = u32::try_from(length).map_err(|_| too_long)?;
        self.submit_memory(region, &MemoryOperation::Read { offset, length })
    }

    /// Posts a WRITE and returns its id: its result is empty, taken as that of a call. Waits for room only.
    pub fn submit_write(
        &mut self,
        region: &RemoteRegion,
        offset: u64,
        data: &[u8],
    ) -> Result<CallId, MemoryError> {
        self.submit_memory(region, &MemoryOperation::Write { offset, data })
    }

    fn submit_memory(
        &mut self,
        region: &RemoteRegion,
        operation: &MemoryOperation<'_>,
    ) -> Result<CallId, MemoryError> {
        operation.check(region, self.capabilities().atomics.exist())?;
        let mut payload = std::mem::take(&mut self.memory_payload);
        payload.clear();
        let function = operation.encode(region.number, &mut payload);
        let time: Time = each!(&self.policy, own => own.usual_time(), seat => seat.usual_time());
        let submitted = each!(
            &mut self.policy,
            own => own.submit_memory_waiting(function, &payload, time),
            seat => seat.submit_waiting((0, function), &payload, time)
        );
        self.memory_payload = payload;
        Ok(submitted?)
    }
}
