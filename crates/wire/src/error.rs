//! The reasons to reject a message, and the reasons why a message cannot be built.

use thiserror::Error;

/// The reason why bytes from a peer are not a valid message. The receiver closes the lane, because the
/// start of the next message cannot be trusted after a malformed one, and reports the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Reject {
    /// Byte 0 is not a message kind of this version.
    #[error("unknown message kind {0}: the peer speaks another version or its ring was overwritten")]
    UnknownKind(u8),
    /// A flag bit is unknown to this version.
    #[error("unknown flag bits {0:#04x}: the peer speaks another version or its ring was overwritten")]
    UnknownFlags(u8),
    /// The status of a response is unknown to this version.
    #[error("unknown status {0:#06x} in a response: the peer speaks another version")]
    UnknownStatus(u16),
    /// A field that this kind of message does not use is not zero.
    #[error("field `{0}` must be zero in this kind of message: the peer's encoder is faulty")]
    ReservedField(&'static str),
    /// A batch or a release list has no entries.
    #[error("an empty batch or release list: the peer must not send one")]
    EmptyBatch,
    /// The entry count and the body length contradict each other.
    #[error("{count} entries cannot have a body of {length} bytes: the peer's encoder is faulty")]
    BodyLength {
        /// The count in the header.
        count: u16,
        /// The body length in the header, in bytes.
        length: u32,
    },
    /// The message is longer than the ring or the receive buffer.
    #[error("a message of {total} bytes is over the limit of {limit}: send large payloads by rendezvous")]
    TooLong {
        /// Length of the whole message, in bytes.
        total: u64,
        /// The receiver's limit, in bytes.
        limit: usize,
    },
    /// The length of a rendezvous descriptor is wrong.
    #[error("a rendezvous descriptor has 24 bytes, this one {0}: the peer's encoder is faulty")]
    DescriptorLength(u32),
    /// The descriptor's range is longer than the receiver's limit, or wraps around the end of the address
    /// space.
    #[error(
        "a rendezvous of {length} bytes at offset {offset} is over the limit of {limit}: raise the limit or split it"
    )]
    DescriptorRange {
        /// Offset in the region, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        length: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The slice passed to the parser does not have the length that its first line announces.
    #[error("the message has {expected} bytes, {actual} were given: copy exactly the announced length")]
    WrongTotal {
        /// Announced length in bytes (64 if there is no first line).
        expected: usize,
        /// Length of the slice, in bytes.
        actual: usize,
    },
    /// Padding is not zero: in the first line, in an entry, or before the trailing tag.
    #[error("padding is not zero: the peer leaks stale memory or its ring was overwritten")]
    Padding,
    /// An entry extends beyond the body of its batch.
    #[error("entry {index} of the batch reaches beyond its body: the peer's lengths lie")]
    EntryBeyondBody {
        /// Index of the entry, from 0.
        index: u32,
    },
    /// An entry of a response has a time, or an entry repeats the time of the header.
    #[error("entry {index} of the batch has a time where none is allowed: the peer speaks another version")]
    EntryTime {
        /// Index of the entry, from 0.
        index: u32,
    },
    /// The number of entries in the body differs from the header's count.
    #[error("the header says {expected} entries, the body holds {actual}: the peer's count lies")]
    EntryCount {
        /// The header's count.
        expected: u16,
        /// The number of entries in the body.
        actual: u32,
    },
    /// The tag of the first line differs from the predicted one.
    #[error("the first tag is not the predicted one: stale, forged or replayed bytes")]
    FirstTag,
    /// The trailing tag differs from the predicted one.
    #[error("the trailing tag is not the predicted one: the message has not fully arrived or is forged")]
    TrailingTag,
}

impl Reject {
    /// Returns a short fixed name of the reason, for counters.
    pub const fn reason(&self) -> &'static str {
        match self {
            Reject::UnknownKind(_) => "unknown_kind",
            Reject::UnknownFlags(_) => "unknown_flags",
            Reject::UnknownStatus(_) => "unknown_status",
            Reject::ReservedField(_) => "reserved_field",
            Reject::EmptyBatch => "empty_batch",
            Reject::BodyLength { .. } => "body_length",
            Reject::TooLong { .. } => "too_long",
            Reject::DescriptorLength(_) => "descriptor_length",
            Reject::DescriptorRange { .. } => "descriptor_range",
            Reject::WrongTotal { .. } => "wrong_total",
            Reject::Padding => "padding",
            Reject::EntryBeyondBody { .. } => "entry_beyond_body",
            Reject::EntryTime { .. } => "entry_time",
            Reject::EntryCount { .. } => "entry_count",
            Reject::FirstTag => "first_tag",
            Reject::TrailingTag => "trailing_tag",
        }
    }
}

/// The reason why a message cannot be built. The buffer may have been written to; the builder's state is
/// unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The message does not fit the buffer.
    #[error(
        "the message needs {needed} bytes, the buffer has {available}: send what there is, or use rendezvous"
    )]
    Full {
        /// Length of the whole message, in bytes.
        needed: u64,
        /// Usable length of the buffer (whole lines), in bytes.
        available: usize,
    },
    /// The batch already has 65535 entries, the maximum.
    #[error("a batch holds at most 65535 entries: send it and begin another")]
    TooManyEntries,
    /// The batch has no entries.
    #[error("an empty batch cannot be sent: send a Credit message to piggyback heads and credits alone")]
    Empty,
    /// This function does not build messages of the header's kind.
    #[error(
        "this function does not build messages of that kind: batches from BatchState, all others from SingleLayout"
    )]
    WrongKind,
    /// The payload's length differs from the header's, or does not fit the first line.
    #[error("a payload of {actual} bytes does not go here: at most {expected} are possible")]
    PayloadLength {
        /// The length that the header, the reservation or the line allows, in bytes.
        expected: u64,
        /// The length of the payload, in bytes.
        actual: u64,
    },
}
