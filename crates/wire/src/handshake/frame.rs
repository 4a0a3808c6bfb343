//! The frame around every record, and the dispatch on the record's type.

use super::alloc::vec::Vec;
use super::codec::{Reader, Writer};
use super::error::HandshakeError;
use super::records::{
    Attach, Drained, Grant, Hello, HelloReply, LaneReady, LaneRefused, OpenLane, Refused, read_lane,
    write_lane,
};
use crate::bytes;

/// The first four bytes of every frame: `DNLN`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"DNLN");
/// The version of the frame format, which is independent of the version of messages.
pub const FRAME_VERSION: u16 = 1;
/// Bytes of a frame before the body.
pub const FRAME_HEADER_BYTES: usize = 12;
/// Longest allowed body, in bytes; every record is shorter.
pub const MAX_BODY_BYTES: u32 = 4096;

/// The type of a record; two bytes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum RecordType {
    /// See [`Hello`].
    Hello = 1,
    /// See [`HelloReply`].
    HelloReply = 2,
    /// See [`Refused`].
    Refused = 3,
    /// See [`OpenLane`].
    OpenLane = 4,
    /// See [`LaneReady`].
    LaneReady = 5,
    /// See [`LaneRefused`].
    LaneRefused = 6,
    /// See [`Grant`].
    Grant = 7,
    /// See [`Record::Drain`].
    Drain = 8,
    /// See [`Drained`].
    Drained = 9,
    /// See [`Record::CloseLane`].
    CloseLane = 10,
    /// See [`Record::Goodbye`].
    Goodbye = 11,
    /// See [`Attach`].
    Attach = 12,
}

dunlin_numbered::numbered!(RecordType: u16 {
    Hello,
    HelloReply,
    Refused,
    OpenLane,
    LaneReady,
    LaneRefused,
    Grant,
    Drain,
    Drained,
    CloseLane,
    Goodbye,
    Attach,
});

/// The checked header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Type of the record in the body.
    pub record_type: RecordType,
    /// Length of the body in bytes, at most [`MAX_BODY_BYTES`].
    pub length: u32,
}

impl FrameHeader {
    /// Decodes and checks the 12 bytes before a body.
    ///
    /// # Errors
    /// [`HandshakeError::Magic`], [`HandshakeError::FrameVersion`], [`HandshakeError::UnknownRecord`],
    /// [`HandshakeError::BodyTooLong`].
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<FrameHeader, HandshakeError> {
        let magic = u32::from_le_bytes(bytes::get::<0, 4, FRAME_HEADER_BYTES>(bytes));
        if magic != MAGIC {
            return Err(HandshakeError::Magic(magic));
        }
        let version = u16::from_le_bytes(bytes::get::<4, 2, FRAME_HEADER_BYTES>(bytes));
        if version != FRAME_VERSION {
            return Err(HandshakeError::FrameVersion { theirs: version, ours: FRAME_VERSION });
        }
        let number = u16::from_le_bytes(bytes::get::<6, 2, FRAME_HEADER_BYTES>(bytes));
        let record_type = RecordType::from_wire(number).ok_or(HandshakeError::UnknownRecord(number))?;
        let length = u32::from_le_bytes(bytes::get::<8, 4, FRAME_HEADER_BYTES>(bytes));
        if length > MAX_BODY_BYTES {
            return Err(HandshakeError::BodyTooLong { length, limit: MAX_BODY_BYTES });
        }
        Ok(FrameHeader { record_type, length })
    }
}

/// A record of the control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The client's first record.
    Hello(Hello),
    /// The server's answer to a Hello.
    HelloReply(HelloReply),
    /// Either side refuses to continue the connection.
    Refused(Refused),
    /// The client requests a lane.
    OpenLane(OpenLane),
    /// The server's parameters of a lane that it has opened.
    LaneReady(LaneReady),
    /// The server refuses a lane. The connection continues.
    LaneRefused(LaneRefused),
    /// Either side grants a region beyond those of the lanes.
    Grant(Grant),
    /// The server accepts no new requests: the client should complete its calls and close.
    Drain,
    /// The server's final position in one lane before it closes.
    Drained(Drained),
    /// Either side closes a lane.
    CloseLane {
        /// The lane.
        lane: u16,
    },
    /// Either side ends the connection in an orderly manner.
    Goodbye,
    /// The client asks for a region that the server exposes by name; the answer is a [`Grant`].
    Attach(Attach),
}

impl Record {
    /// Returns the type of the record.
    pub fn record_type(&self) -> RecordType {
        match self {
            Record::Hello(_) => RecordType::Hello,
            Record::HelloReply(_) => RecordType::HelloReply,
            Record::Refused(_) => RecordType::Refused,
            Record::OpenLane(_) => RecordType::OpenLane,
            Record::LaneReady(_) => RecordType::LaneReady,
            Record::LaneRefused(_) => RecordType::LaneRefused,
            Record::Grant(_) => RecordType::Grant,
            Record::Drain => RecordType::Drain,
            Record::Drained(_) => RecordType::Drained,
            Record::CloseLane { .. } => RecordType::CloseLane,
            Record::Goodbye => RecordType::Goodbye,
            Record::Attach(_) => RecordType::Attach,
        }
    }

    /// Encodes the whole frame, header and body.
    ///
    /// # Errors
    /// The errors that [`Record::decode`] would report: [`HandshakeError::FieldTooLong`],
    /// [`HandshakeError::VersionRange`], [`HandshakeError::RingBytes`], and those of extensions.
    pub fn encode(&self) -> Result<Vec<u8>, HandshakeError> {
        let body = self.encode_body()?;
        let limit = MAX_BODY_BYTES;
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if length > limit {
            return Err(HandshakeError::BodyTooLong { length, limit });
        }
        let mut writer = Writer::new();
        writer.u32(MAGIC);
        writer.u16(FRAME_VERSION);
        writer.u16(self.record_type() as u16);
        writer.u32(length);
        writer.raw(&body);
        Ok(writer.finish())
    }

    fn encode_body(&self) -> Result<Vec<u8>, HandshakeError> {
        let mut writer = Writer::new();
        match self {
            Record::Hello(record) => record.write(&mut writer)?,
            Record::HelloReply(record) => record.write(&mut writer)?,
            Record::Refused(record) => record.write(&mut writer)?,
            Record::OpenLane(record) => record.write(&mut writer)?,
            Record::LaneReady(record) => record.write(&mut writer)?,
            Record::LaneRefused(record) => record.write(&mut writer)?,
            Record::Grant(record) => record.write(&mut writer),
            Record::Drained(record) => record.write(&mut writer),
            Record::CloseLane { lane } => write_lane(*lane, &mut writer),
            Record::Attach(record) => record.write(&mut writer)?,
            Record::Drain | Record::Goodbye => {}
        }
        Ok(writer.finish())
    }

    /// Decodes exactly one whole frame.
    ///
    /// # Errors
    /// The [`HandshakeError`] of the first violation.
    pub fn decode(frame: &[u8]) -> Result<Record, HandshakeError> {
        let truncated = HandshakeError::Truncated { field: "frame header" };
        let (header, body) = frame.split_first_chunk::<FRAME_HEADER_BYTES>().ok_or(truncated)?;
        let header = FrameHeader::decode(header)?;
        let length = header.length as usize;
        if body.len() < length {
            return Err(HandshakeError::Truncated { field: "frame body" });
        }
        if body.len() > length {
            return Err(HandshakeError::TrailingBytes { count: body.len() - length });
        }
        Record::decode_body(header.record_type, body)
    }

    /// Decodes the body of a frame; all bytes must belong to the record.
    ///
    /// # Errors
    /// The [`HandshakeError`] of the first violation.
    pub fn decode_body(record_type: RecordType, body: &[u8]) -> Result<Record, HandshakeError> {
        let mut reader = Reader::new(body);
        let record = match record_type {
            RecordType::Hello => Record::Hello(Hello::read(&mut reader)?),
            RecordType::HelloReply => Record::HelloReply(HelloReply::read(&mut reader)?),
            RecordType::Refused => Record::Refused(Refused::read(&mut reader)?),
            RecordType::OpenLane => Record::OpenLane(OpenLane::read(&mut reader)?),
            RecordType::LaneReady => Record::LaneReady(LaneReady::read(&mut reader)?),
            RecordType::LaneRefused => Record::LaneRefused(LaneRefused::read(&mut reader)?),
            RecordType::Grant => Record::Grant(Grant::read(&mut reader)?),
            RecordType::Drain => Record::Drain,
            RecordType::Drained => Record::Drained(Drained::read(&mut reader)?),
            RecordType::CloseLane => Record::CloseLane { lane: read_lane(&mut reader)? },
            RecordType::Goodbye => Record::Goodbye,
            RecordType::Attach => Record::Attach(Attach::read(&mut reader)?),
        };
        reader.finish()?;
        Ok(record)
    }
}
