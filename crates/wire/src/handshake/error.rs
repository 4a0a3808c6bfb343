//! Why a record was not accepted, or could not be encoded.

use thiserror::Error;

/// What is wrong with a frame or a record. The control connection is closed after it, with [`super::Refused`] where that
/// can still be said.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// The first bytes are not Dunlin's.
    #[error("not a Dunlin peer: the frame begins with {0:#010x}; check the address")]
    Magic(u32),
    /// The peer frames its records in another way.
    #[error(
        "the peer frames records in version {theirs}, this build in version {ours}: run builds of one release"
    )]
    FrameVersion {
        /// What came.
        theirs: u16,
        /// What this build speaks.
        ours: u16,
    },
    /// No version is spoken by both.
    #[error(
        "the peer speaks versions {} to {}, this build {} to {}: upgrade the older one",
        theirs.0, theirs.1, ours.0, ours.1
    )]
    NoCommonVersion {
        /// Lowest and highest version of the peer.
        theirs: (u16, u16),
        /// Lowest and highest version of this build.
        ours: (u16, u16),
    },
    /// The lowest version is higher than the highest.
    #[error("version range {lowest} to {highest} is empty: the peer's Hello is faulty")]
    VersionRange {
        /// The lowest.
        lowest: u16,
        /// The highest.
        highest: u16,
    },
    /// A type of record that this version does not know.
    #[error("unknown record type {0}: the peer speaks another version")]
    UnknownRecord(u16),
    /// The body is longer than any record.
    #[error("a record of {length} bytes is over the limit of {limit}: the peer is faulty or hostile")]
    BodyTooLong {
        /// The length that the frame announces.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// The bytes end before the field does.
    #[error("the record ends inside of `{field}`: the peer's encoder is faulty")]
    Truncated {
        /// The field.
        field: &'static str,
    },
    /// There are bytes after the last field.
    #[error("{count} bytes follow the record's last field: the peer speaks another version")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// Text that is not UTF-8.
    #[error("`{field}` is not UTF-8: the peer's encoder is faulty")]
    NotUtf8 {
        /// The field.
        field: &'static str,
    },
    /// A field that is longer than it may be. Encoding says so as well, before anything is sent.
    #[error("`{field}` has {length} bytes or items, at most {limit} are possible: shorten it")]
    FieldTooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A ring has a whole number of lines.
    #[error("a ring of {0} bytes is not a whole number of 64-byte lines: the peer's configuration is faulty")]
    RingBytes(u32),
}

impl HandshakeError {
    /// A short fixed name of the reason, for counters.
    pub const fn reason(&self) -> &'static str {
        match self {
            HandshakeError::Magic(_) => "magic",
            HandshakeError::FrameVersion { .. } => "frame_version",
            HandshakeError::NoCommonVersion { .. } => "no_common_version",
            HandshakeError::VersionRange { .. } => "version_range",
            HandshakeError::UnknownRecord(_) => "unknown_record",
            HandshakeError::BodyTooLong { .. } => "body_too_long",
            HandshakeError::Truncated { .. } => "truncated",
            HandshakeError::TrailingBytes { .. } => "trailing_bytes",
            HandshakeError::NotUtf8 { .. } => "not_utf8",
            HandshakeError::FieldTooLong { .. } => "field_too_long",
            HandshakeError::RingBytes(_) => "ring_bytes",
        }
    }
}
