//! Payload encodings of the key-value service. All integers are little-endian.
//!
//! | function | request | response |
//! |---|---|---|
//! | GET | the key: the whole payload | the value: the whole payload; absence is [`Status::NotFound`] |
//! | PUT | key length `u16`, key, value to the end | flags `u8`, items evicted for it `u32` |
//! | DELETE | the key: the whole payload | nothing; absence is [`Status::NotFound`] |
//! | MULTIGET | count `u16`, then per key: length `u16`, key | per key, in order: found `u8`, length `u32`, value |
//! | STATS | nothing | eleven `u64`, in the order of [`Stats`]'s fields |
//!
//! A GET of a 16-byte key and a 32-byte value has payloads of 16 and 32 bytes, which fit a line each. Parsing
//! accepts any bytes and returns a message or an error; it never panics. Nothing allocates.

use crate::partition::{MAX_KEY_LENGTH, PutOutcome, Stats};

/// Bytes of an encoded [`PutOutcome`].
pub const PUT_RESPONSE_BYTES: usize = 5;
/// Bytes of an encoded [`Stats`].
pub const STATS_RESPONSE_BYTES: usize = STATS_FIELDS * 8;
/// Bytes in front of each value of a MULTIGET response.
pub const MULTIGET_ENTRY_BYTES: usize = 5;

const STATS_FIELDS: usize = 11;
const REPLACED: u8 = 1;
const EVICTED_FROM_BUCKET: u8 = 2;

/// The service's functions; the numbers are the function ids on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Function {
    /// Read one value.
    Get = 1,
    /// Store one value.
    Put = 2,
    /// Remove one key.
    Delete = 3,
    /// Read many values.
    MultiGet = 4,
    /// Read the partition's counters.
    Stats = 5,
}

impl Function {
    /// Returns the function with this id; `None` for an unknown id.
    pub fn from_id(id: u16) -> Option<Self> {
        Some(match id {
            1 => Self::Get,
            2 => Self::Put,
            3 => Self::Delete,
            4 => Self::MultiGet,
            5 => Self::Stats,
            _ => return None,
        })
    }

    /// Returns the id on the wire.
    pub const fn id(self) -> u16 {
        self as u16
    }
}

/// The reason why a request failed or found nothing; the numbers are the codes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
#[non_exhaustive]
pub enum Status {
    /// GET or DELETE of a key that is not stored.
    #[error("the key is not stored")]
    NotFound = 1,
    /// The payload does not match the function's encoding.
    #[error("the request is malformed; client and server must speak the same version of the protocol")]
    Malformed = 2,
    /// The function id is not one of [`Function`].
    #[error("the server has no such function; it may be older than the client")]
    UnknownFunction = 3,
    /// The key is empty or longer than [`MAX_KEY_LENGTH`].
    #[error("keys have 1 to {MAX_KEY_LENGTH} bytes; shorten the key or store a hash of it")]
    KeyLength = 4,
    /// The value is longer than [`MAX_VALUE_LENGTH`](crate::MAX_VALUE_LENGTH).
    #[error("the value is over 1 MiB; split it over several keys")]
    ValueTooLarge = 5,
    /// No eviction could make room for the item.
    #[error(
        "the item is larger than a worker's value memory; raise the server's memory limit or use fewer workers"
    )]
    OutOfMemory = 6,
    /// The key belongs to another partition.
    #[error("the key belongs to another worker; route by the number of workers that the server announces")]
    WrongPartition = 7,
    /// The response does not fit; ask for fewer keys.
    #[error("the values do not fit one response; ask for fewer keys at once")]
    ResponseTooLarge = 8,
}

dunlin_numbered::numbered!(Status: u16 {
    NotFound, Malformed, UnknownFunction, KeyLength, ValueTooLarge, OutOfMemory, WrongPartition, ResponseTooLarge,
});

impl Status {
    /// Returns the code on the wire, never 0.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

/// The reason why a message could not be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The payload ends before the message does.
    #[error("the payload ends before the message does; the peer speaks another version or is broken")]
    Truncated,
    /// Bytes are left after the message.
    #[error("{bytes} bytes are left after the message; the peer speaks another version or is broken")]
    TrailingBytes {
        /// The number of these bytes.
        bytes: usize,
    },
    /// A key is empty or longer than [`MAX_KEY_LENGTH`].
    #[error("a key has {length} bytes; keys have 1 to {MAX_KEY_LENGTH}")]
    KeyLength {
        /// The key's length in bytes.
        length: usize,
    },
    /// A flag byte has an undefined value.
    #[error("flag byte {flag:#x} means nothing; the peer speaks another version or is broken")]
    UnknownFlag {
        /// The byte.
        flag: u8,
    },
    /// More keys than a MULTIGET can count.
    #[error("{count} keys in one MULTIGET; send at most 65535")]
    TooManyKeys {
        /// The number of keys.
        count: usize,
    },
    /// The buffer for the message is too small.
    #[error("the message needs {needed} bytes and the buffer has {available}")]
    BufferTooSmall {
        /// Bytes of the message.
        needed: usize,
        /// Bytes of the buffer.
        available: usize,
    },
}

/// Splits `N` bytes off the front.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], ProtocolError> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(ProtocolError::Truncated)?;
    *bytes = rest;
    Ok(*head)
}

/// Splits `length` bytes off the front.
fn take_slice<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], ProtocolError> {
    let (head, rest) = bytes.split_at_checked(length).ok_or(ProtocolError::Truncated)?;
    *bytes = rest;
    Ok(head)
}

fn no_rest(bytes: &[u8]) -> Result<(), ProtocolError> {
    match bytes.len() {
        0 => Ok(()),
        bytes => Err(ProtocolError::TrailingBytes { bytes }),
    }
}

fn check_key(key: &[u8]) -> Result<(), ProtocolError> {
    match key.len() {
        1..=MAX_KEY_LENGTH => Ok(()),
        length => Err(ProtocolError::KeyLength { length }),
    }
}

/// Splits a length-prefixed key off the front.
fn take_key<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], ProtocolError> {
    let length = usize::from(u16::from_le_bytes(take(bytes)?));
    if !(1..=MAX_KEY_LENGTH).contains(&length) {
        return Err(ProtocolError::KeyLength { length });
    }
    take_slice(bytes, length)
}

/// Appends to a buffer whose size was checked.
struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    fn new(buffer: &'a mut [u8], needed: usize) -> Result<Self, ProtocolError> {
        let available = buffer.len();
        let rest = buffer.get_mut(..needed).ok_or(ProtocolError::BufferTooSmall { needed, available })?;
        Ok(Self { rest })
    }

    fn put(&mut self, bytes: &[u8]) {
        let (head, rest) = std::mem::take(&mut self.rest).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.rest = rest;
    }

    fn put_key(&mut self, key: &[u8]) {
        self.put(&(key.len() as u16).to_le_bytes());
        self.put(key);
    }
}

/// Parses the key of a GET or DELETE request.
#[inline]
pub fn parse_key(payload: &[u8]) -> Result<&[u8], ProtocolError> {
    check_key(payload)?;
    Ok(payload)
}

/// A PUT request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutRequest<'a> {
    /// The key, of 1 to [`MAX_KEY_LENGTH`] bytes.
    pub key: &'a [u8],
    /// The value, of any length; the store checks the length.
    pub value: &'a [u8],
}

impl<'a> PutRequest<'a> {
    /// Parses the payload.
    #[inline]
    pub fn parse(mut payload: &'a [u8]) -> Result<Self, ProtocolError> {
        let key = take_key(&mut payload)?;
        Ok(Self { key, value: payload })
    }

    /// Returns the bytes of the encoding.
    pub fn encoded_length(&self) -> usize {
        2 + self.key.len() + self.value.len()
    }

    /// Writes the encoding to the front of `buffer`; returns its length.
    pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, ProtocolError> {
        check_key(self.key)?;
        let length = self.encoded_length();
        let mut writer = Writer::new(buffer, length)?;
        writer.put_key(self.key);
        writer.put(self.value);
        Ok(length)
    }
}

/// Encodes the response to a PUT.
pub fn encode_put_response(outcome: PutOutcome) -> [u8; PUT_RESPONSE_BYTES] {
    let replaced = if outcome.replaced { REPLACED } else { 0 };
    let evicted = if outcome.evicted_from_bucket { EVICTED_FROM_BUCKET } else { 0 };
    let [a, b, c, d] = outcome.evicted_for_memory.to_le_bytes();
    [replaced | evicted, a, b, c, d]
}

/// Parses the response to a PUT.
pub fn parse_put_response(mut payload: &[u8]) -> Result<PutOutcome, ProtocolError> {
    let [flag] = take(&mut payload)?;
    if flag & !(REPLACED | EVICTED_FROM_BUCKET) != 0 {
        return Err(ProtocolError::UnknownFlag { flag });
    }
    let evicted_for_memory = u32::from_le_bytes(take(&mut payload)?);
    no_rest(payload)?;
    Ok(PutOutcome {
        replaced: flag & REPLACED != 0,
        evicted_from_bucket: flag & EVICTED_FROM_BUCKET != 0,
        evicted_for_memory,
    })
}

/// A MULTIGET request, fully validated; an iterator over its keys in order.
#[derive(Clone, Copy, Debug)]
pub struct MultiGetRequest<'a> {
    count: u16,
    rest: &'a [u8],
}

impl<'a> MultiGetRequest<'a> {
    /// Parses the payload.
    pub fn parse(mut payload: &'a [u8]) -> Result<Self, ProtocolError> {
        let count = u16::from_le_bytes(take(&mut payload)?);
        let request = Self { count, rest: payload };
        for _ in 0..count {
            take_key(&mut payload)?;
        }
        no_rest(payload)?;
        Ok(request)
    }

    /// Returns the bytes of the encoded request for `keys`.
    pub fn encoded_length(keys: &[&[u8]]) -> usize {
        2 + keys.iter().map(|key| 2 + key.len()).sum::<usize>()
    }

    /// Writes a request for `keys` to the front of `buffer`; returns its length.
    pub fn encode(keys: &[&[u8]], buffer: &mut [u8]) -> Result<usize, ProtocolError> {
        let count =
            u16::try_from(keys.len()).map_err(|_| ProtocolError::TooManyKeys { count: keys.len() })?;
        keys.iter().try_for_each(|key| check_key(key))?;
        let length = Self::encoded_length(keys);
        let mut writer = Writer::new(buffer, length)?;
        writer.put(&count.to_le_bytes());
        for key in keys {
            writer.put_key(key);
        }
        Ok(length)
    }
}

impl<'a> Iterator for MultiGetRequest<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.count = self.count.checked_sub(1)?;
        take_key(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.count), Some(usize::from(self.count)))
    }
}

/// Encodes the bytes in front of a value, or of an absent one, in a MULTIGET response.
#[inline]
pub(crate) fn multiget_entry(value: Option<&[u8]>) -> [u8; MULTIGET_ENTRY_BYTES] {
    let [a, b, c, d] = (value.map_or(0, <[u8]>::len) as u32).to_le_bytes();
    [u8::from(value.is_some()), a, b, c, d]
}

/// A MULTIGET response, fully validated; an iterator over the value, or `None`, of each requested key in
/// order.
#[derive(Clone, Copy, Debug)]
pub struct MultiGetResponse<'a> {
    count: usize,
    rest: &'a [u8],
}

impl<'a> MultiGetResponse<'a> {
    /// Parses the response to a request for `count` keys.
    pub fn parse(mut payload: &'a [u8], count: usize) -> Result<Self, ProtocolError> {
        let response = Self { count, rest: payload };
        for _ in 0..count {
            take_entry(&mut payload)?;
        }
        no_rest(payload)?;
        Ok(response)
    }
}

impl<'a> Iterator for MultiGetResponse<'a> {
    type Item = Option<&'a [u8]>;

    #[inline]
    fn next(&mut self) -> Option<Option<&'a [u8]>> {
        self.count = self.count.checked_sub(1)?;
        take_entry(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

fn take_entry<'a>(bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, ProtocolError> {
    let [flag] = take(bytes)?;
    let length = u32::from_le_bytes(take(bytes)?) as usize;
    match (flag, length) {
        (0, 0) => Ok(None),
        (0, bytes) => Err(ProtocolError::TrailingBytes { bytes }),
        (1, length) => take_slice(bytes, length).map(Some),
        _ => Err(ProtocolError::UnknownFlag { flag }),
    }
}

/// Encodes the response to STATS.
pub fn encode_stats(stats: &Stats) -> [u8; STATS_RESPONSE_BYTES] {
    // Destructured by name, so that a new field cannot be forgotten.
    let Stats {
        items,
        item_bytes,
        used_bytes,
        reserved_bytes,
        memory_limit,
        hits,
        misses,
        puts,
        deletes,
        evicted_from_bucket,
        evicted_for_memory,
    } = *stats;
    let fields: [u64; STATS_FIELDS] = [
        items,
        item_bytes,
        used_bytes,
        reserved_bytes,
        memory_limit,
        hits,
        misses,
        puts,
        deletes,
        evicted_from_bucket,
        evicted_for_memory,
    ];
    let mut encoded = [0; STATS_RESPONSE_BYTES];
    for (place, field) in encoded.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
        *place = field.to_le_bytes();
    }
    encoded
}

/// Parses the response to STATS.
pub fn parse_stats(mut payload: &[u8]) -> Result<Stats, ProtocolError> {
    let mut next = || take(&mut payload).map(u64::from_le_bytes);
    let stats = Stats {
        items: next()?,
        item_bytes: next()?,
        used_bytes: next()?,
        reserved_bytes: next()?,
        memory_limit: next()?,
        hits: next()?,
        misses: next()?,
        puts: next()?,
        deletes: next()?,
        evicted_from_bucket: next()?,
        evicted_for_memory: next()?,
    };
    no_rest(payload)?;
    Ok(stats)
}
