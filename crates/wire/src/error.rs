//! Why a message was not accepted, and why one could not be built.

use thiserror::Error;

/// Why the bytes of a peer are not a message. The receiver drops the connection's lane (nothing after a malformed
/// message can be trusted to start where it seems to) and reports the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Reject {
    /// Byte 0 names no kind of this version.
    #[error("unknown message kind {0}: the peer speaks another version or its ring was overwritten")]
    UnknownKind(u8),
    /// A flag bit that this version does not know.
    #[error("unknown flag bits {0:#04x}: the peer speaks another version or its ring was overwritten")]
    UnknownFlags(u8),
    /// A status of a response that this version does not know.
    #[error("unknown status {0:#06x} in a response: the peer speaks another version")]
    UnknownStatus(u16),
    /// A field that this kind of message does not use is not zero.
    #[error("field `{0}` must be zero in this kind of message: the peer's encoder is faulty")]
    ReservedField(&'static str),
    /// A batch or a release list without entries.
    #[error("an empty batch or release list: the peer must not send one")]
    EmptyBatch,
    /// The count and the length of the body cannot belong together.
    #[error("{count} entries cannot have a body of {length} bytes: the peer's encoder is faulty")]
    BodyLength {
        /// The count of the header.
        count: u16,
        /// The body length of the header, in bytes.
        length: u32,
    },
    /// The message is longer than the ring or the receive buffer.
    #[error("a message of {total} bytes is over the limit of {limit}: send large payloads by rendezvous")]
    TooLong {
        /// Bytes of the whole message.
        total: u64,
        /// The limit that the receiver gave.
        limit: usize,
    },
    /// A rendezvous descriptor has a length of its own.
    #[error("a rendezvous descriptor has 24 bytes, this one {0}: the peer's encoder is faulty")]
    DescriptorLength(u32),
    /// The descriptor names more bytes than the receiver takes, or wraps around the end of the address space.
    #[error(
        "a rendezvous of {length} bytes at offset {offset} is over the limit of {limit}: raise the limit or split it"
    )]
    DescriptorRange {
        /// The offset in the region.
        offset: u64,
        /// The length in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The slice handed to the parser is not the message that its first line announces.
    #[error("the message has {expected} bytes, {actual} were given: copy exactly the announced length")]
    WrongTotal {
        /// Bytes that the first line announces (64, if there is no first line).
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// Padding, of the first line, of an entry or before the trailing tag, is not zero.
    #[error("padding is not zero: the peer leaks stale memory or its ring was overwritten")]
    Padding,
    /// An entry reaches beyond the body of its batch.
    #[error("entry {index} of the batch reaches beyond its body: the peer's lengths lie")]
    EntryBeyondBody {
        /// Index of the entry, from 0.
        index: u32,
    },
    /// A reserved field of an entry is not zero.
    #[error(
        "entry {index} of the batch has a reserved field that is not zero: the peer speaks another version"
    )]
    EntryReserved {
        /// Index of the entry, from 0.
        index: u32,
    },
    /// The body holds another number of entries than the header says.
    #[error("the header says {expected} entries, the body holds {actual}: the peer's count lies")]
    EntryCount {
        /// What the header says.
        expected: u16,
        /// What the body holds.
        actual: u32,
    },
    /// The tag of the first line is not the predicted one.
    #[error("the first tag is not the predicted one: stale, forged or replayed bytes")]
    FirstTag,
    /// The trailing tag is not the predicted one.
    #[error("the trailing tag is not the predicted one: the message has not fully arrived or is forged")]
    TrailingTag,
}

impl Reject {
    /// A short fixed name of the reason, for counters.
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
            Reject::EntryReserved { .. } => "entry_reserved",
            Reject::EntryCount { .. } => "entry_count",
            Reject::FirstTag => "first_tag",
            Reject::TrailingTag => "trailing_tag",
        }
    }
}

/// Why a message could not be built. The buffer may have been written to, the builder's state is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BuildError {
    /// The buffer has no room for it.
    #[error(
        "the message needs {needed} bytes, the buffer has {available}: send what there is, or use rendezvous"
    )]
    Full {
        /// Bytes that the whole message would have.
        needed: u64,
        /// Bytes of whole lines in the buffer.
        available: usize,
    },
    /// A batch has at most 65535 entries.
    #[error("a batch holds at most 65535 entries: send it and begin another")]
    TooManyEntries,
    /// A batch without entries is not sent.
    #[error("an empty batch cannot be sent: send a Credit message to piggyback heads and credits alone")]
    Empty,
    /// The kind of the header does not go with this function.
    #[error(
        "this function does not build messages of that kind: batches from BatchState, all others from SingleLayout"
    )]
    WrongKind,
    /// The payload does not have the length that the header says, or does not fit the first line.
    #[error("a payload of {actual} bytes does not go here: at most {expected} are possible")]
    PayloadLength {
        /// What the header, the reservation or the line allows.
        expected: u64,
        /// What was given.
        actual: u64,
    },
}
