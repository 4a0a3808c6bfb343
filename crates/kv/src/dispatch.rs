//! Request dispatch: decodes a request, runs it on the owning partition, and encodes the response.

use crate::error::PutError;
use crate::hash::KeyHash;
use crate::partition::Partition;
use crate::protocol::{
    Function, MultiGetRequest, PUT_RESPONSE_BYTES, ProtocolError, PutRequest, Status, encode_put_response,
    encode_stats, multiget_entry, parse_key,
};

/// Error: the response has no room for the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response has no room for {needed} more bytes; ask for less at once")]
pub struct SinkFull {
    /// Bytes that were to be added.
    pub needed: usize,
}

/// The destination of a response payload: reserved space in a message, or a test's buffer.
pub trait ResponseSink {
    /// Appends `length` bytes for the caller to fill; their content is unspecified until then. An error
    /// appends nothing. Must not block.
    fn reserve(&mut self, length: usize) -> Result<&mut [u8], SinkFull>;

    /// Appends `bytes`. An error appends nothing.
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), SinkFull> {
        self.reserve(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}

/// Grows as needed: for tests and tools, since it allocates.
impl ResponseSink for Vec<u8> {
    fn reserve(&mut self, length: usize) -> Result<&mut [u8], SinkFull> {
        let start = self.len();
        self.resize(start + length, 0);
        Ok(&mut self[start..])
    }
}

/// A response written to the front of a borrowed buffer.
#[derive(Debug)]
pub struct SliceSink<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> SliceSink<'a> {
    /// Creates an empty response in `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0 }
    }

    /// Returns the written bytes.
    pub fn written(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl ResponseSink for SliceSink<'_> {
    #[inline]
    fn reserve(&mut self, length: usize) -> Result<&mut [u8], SinkFull> {
        let place = self.buffer[self.length..].get_mut(..length).ok_or(SinkFull { needed: length })?;
        self.length += length;
        Ok(place)
    }
}

/// Executes one request on the caller's partition and writes the response payload to `out`.
///
/// `Err` is the response's status; the caller must then discard the content of `out`. A request that fails
/// has changed no item, but keys that it looked up count as read. `request` may hold any bytes. Never blocks,
/// and allocates nothing unless `out` does.
pub fn handle(
    partition: &mut Partition,
    function: u16,
    request: &[u8],
    out: &mut impl ResponseSink,
) -> Result<(), Status> {
    match Function::from_id(function).ok_or(Status::UnknownFunction)? {
        Function::Get => {
            let key = parse_key(request)?;
            let value = partition.get_hashed(owned(partition, key)?, key).ok_or(Status::NotFound)?;
            out.write(value)?;
        }
        Function::Put => {
            let PutRequest { key, value } = PutRequest::parse(request)?;
            let hash = owned(partition, key)?;
            // Reserve the response first, so that a PUT is not executed and then reported as failed.
            let response = out.reserve(PUT_RESPONSE_BYTES)?;
            let outcome = partition.put_hashed(hash, key, value)?;
            response.copy_from_slice(&encode_put_response(outcome));
        }
        Function::Delete => {
            let key = parse_key(request)?;
            if !partition.delete_hashed(owned(partition, key)?, key) {
                return Err(Status::NotFound);
            }
        }
        Function::MultiGet => {
            let keys = MultiGetRequest::parse(request)?;
            let config = *partition.config();
            let mut misrouted = false;
            let hashed = keys.map(|key| {
                let hash = KeyHash::of(key);
                misrouted |= !config.owns(hash);
                (hash, key)
            });
            partition.multiget_hashed(hashed, |value| {
                out.write(&multiget_entry(value))?;
                out.write(value.unwrap_or_default())
            })?;
            if misrouted {
                return Err(Status::WrongPartition);
            }
        }
        Function::Stats => {
            if !request.is_empty() {
                return Err(Status::Malformed);
            }
            out.write(&encode_stats(&partition.stats()))?;
        }
    }
    Ok(())
}

/// Returns the key's hash if the partition owns the key. A misrouted PUT would store an item that no GET
/// finds.
#[inline]
fn owned(partition: &Partition, key: &[u8]) -> Result<KeyHash, Status> {
    let hash = KeyHash::of(key);
    if partition.config().owns(hash) { Ok(hash) } else { Err(Status::WrongPartition) }
}

impl From<ProtocolError> for Status {
    fn from(error: ProtocolError) -> Self {
        match error {
            ProtocolError::KeyLength { .. } => Self::KeyLength,
            _ => Self::Malformed,
        }
    }
}

impl From<PutError> for Status {
    fn from(error: PutError) -> Self {
        match error {
            PutError::KeyEmpty | PutError::KeyTooLarge { .. } => Self::KeyLength,
            PutError::ValueTooLarge { .. } => Self::ValueTooLarge,
            PutError::OutOfMemory { .. } => Self::OutOfMemory,
        }
    }
}

impl From<SinkFull> for Status {
    fn from(_: SinkFull) -> Self {
        Self::ResponseTooLarge
    }
}
