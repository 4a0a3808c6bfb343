//! The reasons to reject a record, and the reasons why a record cannot be encoded.

use super::frame::RecordType;
use thiserror::Error;

/// The reason why a frame or a record is invalid. The receiver closes the control connection, and sends
/// [`super::Refused`] first where that is still possible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The first four bytes are not Dunlin's magic number.
    #[error("not a Dunlin peer: the frame begins with {0:#010x}; check the address")]
    Magic(u32),
    /// The peer uses another version of the frame format.
    #[error(
        "the peer frames records in version {theirs}, this build in version {ours}: run builds of one release"
    )]
    FrameVersion {
        /// The peer's frame version.
        theirs: u16,
        /// This build's frame version.
        ours: u16,
    },
    /// The version ranges of peer and build do not overlap.
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
    /// The lowest version of the range exceeds the highest.
    #[error("version range {lowest} to {highest} is empty: the peer's Hello is faulty")]
    VersionRange {
        /// The lowest version.
        lowest: u16,
        /// The highest version.
        highest: u16,
    },
    /// The record type is unknown to this version.
    #[error("unknown record type {0}: the peer speaks another version")]
    UnknownRecord(u16),
    /// The body is longer than the longest record.
    #[error("a record of {length} bytes is over the limit of {limit}: the peer is faulty or hostile")]
    BodyTooLong {
        /// The length that the frame announces, in bytes.
        length: u32,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The bytes end before the field is complete.
    #[error("the record ends inside of `{field}`: the peer's encoder is faulty")]
    Truncated {
        /// Name of the field.
        field: &'static str,
    },
    /// Bytes follow the last field.
    #[error("{count} bytes follow the record's last field: the peer speaks another version")]
    TrailingBytes {
        /// Number of extra bytes.
        count: usize,
    },
    /// A text field is not UTF-8.
    #[error("`{field}` is not UTF-8: the peer's encoder is faulty")]
    NotUtf8 {
        /// Name of the field.
        field: &'static str,
    },
    /// A field exceeds its limit. Encoding reports this too, before anything is sent.
    #[error("`{field}` has {length} bytes or items, at most {limit} are possible: shorten it")]
    FieldTooLong {
        /// Name of the field.
        field: &'static str,
        /// Its length: bytes, or items of a list.
        length: usize,
        /// The limit, in the same unit.
        limit: usize,
    },
    /// The size of a ring is not a whole number of lines.
    #[error("a ring of {0} bytes is not a whole number of 64-byte lines: the peer's configuration is faulty")]
    RingBytes(u32),
    /// The record has an extension that this build does not know and must not skip.
    #[error(
        "extension {number:#06x} of {record:?} is unknown here and must not be skipped: upgrade this build, or do not ask for it"
    )]
    UnknownExtension {
        /// The number of the extension.
        number: u16,
        /// The record.
        record: RecordType,
        /// The lane that an `OpenLane` asks for: the lane can be refused, and the connection goes on.
        lane: Option<u16>,
    },
    /// The record has the same extension twice.
    #[error("extension {number:#06x} stands in the record twice: the peer's encoder is faulty")]
    RepeatedExtension {
        /// The number of the extension.
        number: u16,
    },
    /// The extension does not belong in this record.
    #[error("extension {number:#06x} has no place in {record:?}: the peer's encoder is faulty")]
    MisplacedExtension {
        /// The number of the extension.
        number: u16,
        /// The record.
        record: RecordType,
    },
    /// The value of a known extension is too short or too long.
    #[error("the value of extension {number:#06x} cannot have {length} bytes: the peer's encoder is faulty")]
    ExtensionLength {
        /// The number of the extension.
        number: u16,
        /// Length of the value, in bytes.
        length: usize,
    },
}

impl HandshakeError {
    /// Names the lane of the record in which an extension is unknown.
    pub(super) fn of_lane(self, lane: u16) -> HandshakeError {
        match self {
            HandshakeError::UnknownExtension { number, record, .. } => {
                HandshakeError::UnknownExtension { number, record, lane: Some(lane) }
            }
            other => other,
        }
    }

    /// Returns a short fixed name of the reason, for counters.
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
            HandshakeError::UnknownExtension { .. } => "unknown_extension",
            HandshakeError::RepeatedExtension { .. } => "repeated_extension",
            HandshakeError::MisplacedExtension { .. } => "misplaced_extension",
            HandshakeError::ExtensionLength { .. } => "extension_length",
        }
    }
}
