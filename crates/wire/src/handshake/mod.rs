//! The records of the control connection: version negotiation, opening of lanes, grants and shutdown.
//!
//! A record travels in a frame: magic (4 bytes), frame version (2), type (2), length of the body (4), body.
//! The frame and the records Hello, HelloReply and Refused keep their format in all versions, so that two
//! incompatible builds can report the mismatch to each other. Everything else may change with the version
//! that Hello and HelloReply negotiate.
//!
//! Hello, HelloReply, OpenLane and LaneReady end with [`Extensions`]: optional parts that a peer skips or
//! refuses if it does not know them. Peers of version 3 and below refuse all bytes there, so a client repeats
//! a Hello that such a peer refused as malformed without extensions.
//!
//! A stream reader reads [`FRAME_HEADER_BYTES`], gets the length of the body (at most [`MAX_BODY_BYTES`])
//! from [`FrameHeader::decode`], reads the body, and passes it to [`Record::decode_body`]. Encoding and
//! decoding allocate, within the limits of the fields. They run when connecting, never during calls.

extern crate alloc;

mod codec;
mod error;
mod extensions;
mod frame;
mod records;

pub use error::HandshakeError;
pub use extensions::{Extension, Extensions, SKIPPABLE};
pub use frame::{FRAME_HEADER_BYTES, FRAME_VERSION, FrameHeader, MAGIC, MAX_BODY_BYTES, Record, RecordType};
pub use records::{
    Attach, Drained, Grant, Hello, HelloReply, LaneReady, LaneRefused, OpenLane, RefusalCode, Refused,
    Secret, Token,
};

/// The lowest version of messages and records that this build supports.
pub const MIN_VERSION: u16 = 4;
/// The highest version of messages and records that this build supports.
pub const MAX_VERSION: u16 = 4;
/// Longest service name, in bytes.
pub const MAX_SERVICE_BYTES: usize = 255;
/// Longest authentication token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 255;
/// Longest fabric endpoint, in bytes.
pub const MAX_ENDPOINT_BYTES: usize = 1024;
/// Largest number of region keys in a record.
pub const MAX_REGION_KEYS: usize = 8;
/// Largest number of extensions in a record.
pub const MAX_EXTENSIONS: usize = 8;
/// Longest value of an extension, in bytes.
pub const MAX_EXTENSION_BYTES: usize = 96;
/// Longest name of a client's program, in bytes.
pub const MAX_PROGRAM_BYTES: usize = 64;
/// Longest name of a region that a server exposes, in bytes.
pub const MAX_REGION_NAME_BYTES: usize = 255;
/// Longest text of a refusal, in bytes.
pub const MAX_TEXT_BYTES: usize = 512;

/// Returns the highest version that both sides support. `theirs` and `ours` are (lowest, highest).
///
/// # Errors
/// [`HandshakeError::NoCommonVersion`], which contains both ranges.
pub fn negotiate(theirs: (u16, u16), ours: (u16, u16)) -> Result<u16, HandshakeError> {
    let (lowest, highest) = (theirs.0.max(ours.0), theirs.1.min(ours.1));
    if lowest <= highest { Ok(highest) } else { Err(HandshakeError::NoCommonVersion { theirs, ours }) }
}

#[cfg(test)]
mod tests;
