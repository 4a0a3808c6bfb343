//! The reason why a node refuses or fails a request of a process, as it travels.

use super::NoDirect;
use crate::access::AccessError;
use crate::codec::{Reader, Writer};
use crate::handles::TableError;
use crate::lock::message::{LockRefusal, LockReply};
use crate::message::{Malformed, Refusal, Reply};
use crate::name::Name;
use crate::qos::{Measure, QosError};

/// The reason why a request of a process has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The handle does not permit it.
    Access(AccessError),
    /// The process, or the node, cannot have another handle.
    Table(TableError),
    /// The process has as many handles as the node allows.
    Handles(u32),
    /// The process has as many requests under way as the node allows.
    Operations(u16),
    /// The process has as many connections as the node allows.
    Connections(u16),
    /// The connection is not attached, or its process has ended.
    NotAttached,
    /// The kernel does not say who the process is.
    Unknown,
    /// The request is longer than the node allows.
    TooLong {
        /// The bytes that were asked for.
        length: u64,
        /// The most bytes.
        limit: u32,
    },
    /// The request cannot be understood.
    Malformed,
    /// A node refuses.
    Refused {
        /// The name of the node.
        node: String,
        /// The reason.
        refusal: Refusal,
    },
    /// The list of nodes has no node of this name.
    NoNode(String),
    /// No region can have this length.
    Length(u64),
    /// Other requests used all connections to a node until the timeout.
    Busy,
    /// A node ended, or the connection to it broke, during an operation. It may have been executed.
    Unanswered(String),
    /// The time of an operation is over.
    Deadline {
        /// The name of the node that did not complete it; empty without one.
        node: String,
        /// Whether bytes may have been changed.
        may_have_executed: bool,
    },
    /// The connection to a node, whose name this is, failed before the operation of a list was posted.
    Skipped(String),
    /// An operation of a list is refused. Nothing of the list was executed.
    InList {
        /// The place of the operation.
        place: u16,
        /// The reason, which is not of this kind.
        problem: Box<Problem>,
    },
    /// A function of the service is registered at the node.
    Registered(Name),
    /// The process has as many registered functions as the node allows.
    Services(u16),
    /// The process has no such registration.
    NotRegistered,
    /// The time for a lock or a barrier is over. The text is the name of its owner.
    LockDeadline(String),
    /// The owner of a lock or a barrier refuses.
    LockRefused {
        /// The name of the owner.
        node: String,
        /// The reason.
        refusal: LockRefusal,
    },
    /// As many calls of the node wait for locks of an owner, whose name this is, as may.
    LockBusy(String),
    /// The process has, or waits for, as many locks and barriers as the node allows.
    Locks(u32),
    /// The process has as many buffers as the node allows.
    Buffers(u16),
    /// The buffers of the process would have more bytes than the node allows.
    BufferBytes(u64),
    /// The buffers of all processes of the principal would take more extents than the node allows.
    BufferExtents(u16),
    /// The process does not have the lock.
    NotHeld,
    /// The name belongs to another principal.
    OtherOwner(Name),
    /// A node is dead or has left, in the view of this number.
    Dead {
        /// The name of the node.
        node: String,
        /// The number of the view.
        epoch: u64,
        /// Whether bytes may have been changed.
        may_have_executed: bool,
    },
    /// The user of the process does not run the node.
    NotOperator,
    /// The region was made at another node, whose name this is.
    MadeAt(String),
    /// The region is not mapped directly.
    NotDirect(NoDirect),
    /// The share of a principal, whose name this is, permits only low priority.
    Priority(String),
    /// A principal has used up what its limit permits.
    OverLimit {
        /// The principal.
        principal: String,
        /// The limited quantity.
        measure: Measure,
        /// The limit a second.
        limit: u64,
        /// The time until the same would be admitted at once, in nanoseconds.
        retry_after: u64,
    },
    /// Another failure, in words.
    Other {
        /// The words, at most 255 bytes.
        text: String,
        /// Whether bytes or regions may have been changed.
        may_have_executed: bool,
    },
}

/// The kind of [`Problem::InList`], which does not nest.
const IN_LIST: u8 = 34;

/// The longest part of a text, in bytes, that ends between two characters.
fn cut(text: &str) -> &[u8] {
    let end = (0..=text.len().min(255)).rev().find(|at| text.is_char_boundary(*at));
    &text.as_bytes()[..end.unwrap_or_default()]
}

impl From<QosError> for Problem {
    fn from(error: QosError) -> Problem {
        match error {
            QosError::Priority { principal } => Problem::Priority(principal),
            // Settings of a node are checked when it starts.
            other => Problem::Other { text: other.to_string(), may_have_executed: false },
        }
    }
}

impl Problem {
    /// Encodes the problem in less than 600 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let kind = |kind: u8| Writer(vec![kind]);
        match self {
            Problem::Access(AccessError::NoHandle) => kind(1),
            Problem::Access(AccessError::Gone) => kind(2),
            Problem::Access(AccessError::Moved) => kind(37),
            Problem::Access(AccessError::Revoked) => kind(43),
            Problem::Access(AccessError::Denied { needs, has }) => kind(3).rights(*needs).rights(*has),
            Problem::Access(AccessError::OutOfBounds { offset, length, size }) => {
                kind(4).u64(*offset).u64(*length).u64(*size)
            }
            Problem::Access(AccessError::Misaligned(offset)) => kind(5).u64(*offset),
            Problem::Access(AccessError::TooManyOperations) => kind(6),
            Problem::Table(TableError::Full) => kind(7),
            Problem::Table(TableError::TooManyPending) => kind(8),
            Problem::Table(TableError::Freed) => kind(9),
            Problem::Table(TableError::Interrupted) => kind(10),
            Problem::Handles(limit) => kind(11).u32(*limit),
            Problem::Operations(limit) => kind(12).u16(*limit),
            Problem::Connections(limit) => kind(13).u16(*limit),
            Problem::NotAttached => kind(14),
            Problem::Unknown => kind(15),
            Problem::TooLong { length, limit } => kind(16).u64(*length).u32(*limit),
            Problem::Malformed => kind(17),
            Problem::Refused { node, refusal } => {
                let mut writer = kind(18).text(cut(node));
                writer.0.extend_from_slice(&Reply::Refused(*refusal).encode());
                writer
            }
            Problem::NoNode(node) => kind(19).text(cut(node)),
            Problem::Length(length) => kind(20).u64(*length),
            Problem::Busy => kind(21),
            Problem::Unanswered(node) => kind(22).text(cut(node)),
            Problem::Deadline { node, may_have_executed } => {
                kind(32).u8(u8::from(*may_have_executed)).text(cut(node))
            }
            Problem::Skipped(node) => kind(33).text(cut(node)),
            Problem::Dead { node, epoch, may_have_executed } => {
                kind(35).u64(*epoch).u8(u8::from(*may_have_executed)).text(cut(node))
            }
            Problem::InList { place, problem } => {
                let mut writer = kind(IN_LIST).u16(*place);
                writer.0.extend_from_slice(&problem.encode());
                writer
            }
            Problem::Registered(service) => kind(24).text(service.as_bytes()),
            Problem::OtherOwner(name) => kind(46).text(name.as_bytes()),
            Problem::Services(limit) => kind(25).u16(*limit),
            Problem::NotRegistered => kind(26),
            Problem::LockDeadline(node) => kind(27).text(cut(node)),
            Problem::LockRefused { node, refusal } => {
                let mut writer = kind(28).text(cut(node));
                writer.0.extend_from_slice(&LockReply::Refused(*refusal).encode());
                writer
            }
            Problem::LockBusy(node) => kind(29).text(cut(node)),
            Problem::Locks(limit) => kind(30).u32(*limit),
            Problem::Buffers(limit) => kind(40).u16(*limit),
            Problem::BufferBytes(limit) => kind(41).u64(*limit),
            Problem::BufferExtents(limit) => kind(42).u16(*limit),
            Problem::NotHeld => kind(31),
            Problem::NotOperator => kind(36),
            Problem::MadeAt(node) => kind(44).text(cut(node)),
            Problem::NotDirect(reason) => kind(38).u8(*reason as u8),
            Problem::Priority(principal) => kind(39).text(cut(principal)),
            Problem::OverLimit { principal, measure, limit, retry_after } => {
                let writer = kind(45).u8(u8::from(*measure == Measure::Bytes)).u64(*limit);
                writer.u64(*retry_after).text(cut(principal))
            }
            Problem::Other { text, may_have_executed } => {
                kind(23).u8(u8::from(*may_have_executed)).text(cut(text))
            }
        }
        .0
    }

    /// Parses a problem.
    pub fn parse(bytes: &[u8]) -> Result<Problem, Malformed> {
        let mut reader = Reader(bytes);
        let problem = match reader.u8()? {
            1 => Problem::Access(AccessError::NoHandle),
            2 => Problem::Access(AccessError::Gone),
            37 => Problem::Access(AccessError::Moved),
            43 => Problem::Access(AccessError::Revoked),
            3 => Problem::Access(AccessError::Denied { needs: reader.rights()?, has: reader.rights()? }),
            4 => {
                let (offset, length) = (reader.u64()?, reader.u64()?);
                Problem::Access(AccessError::OutOfBounds { offset, length, size: reader.u64()? })
            }
            5 => Problem::Access(AccessError::Misaligned(reader.u64()?)),
            6 => Problem::Access(AccessError::TooManyOperations),
            7 => Problem::Table(TableError::Full),
            8 => Problem::Table(TableError::TooManyPending),
            9 => Problem::Table(TableError::Freed),
            10 => Problem::Table(TableError::Interrupted),
            11 => Problem::Handles(reader.u32()?),
            12 => Problem::Operations(reader.u16()?),
            13 => Problem::Connections(reader.u16()?),
            14 => Problem::NotAttached,
            15 => Problem::Unknown,
            16 => Problem::TooLong { length: reader.u64()?, limit: reader.u32()? },
            17 => Problem::Malformed,
            18 => {
                let node = reader.string()?;
                let Ok(Reply::Refused(refusal)) = Reply::parse(reader.0) else { return Err(Malformed) };
                return Ok(Problem::Refused { node, refusal });
            }
            19 => Problem::NoNode(reader.string()?),
            20 => Problem::Length(reader.u64()?),
            21 => Problem::Busy,
            22 => Problem::Unanswered(reader.string()?),
            23 => {
                let may_have_executed = reader.flag()?;
                Problem::Other { text: reader.string()?, may_have_executed }
            }
            24 => Problem::Registered(reader.name()?),
            46 => Problem::OtherOwner(reader.name()?),
            25 => Problem::Services(reader.u16()?),
            26 => Problem::NotRegistered,
            27 => Problem::LockDeadline(reader.string()?),
            28 => {
                let node = reader.string()?;
                let Ok(LockReply::Refused(refusal)) = LockReply::parse(reader.0) else {
                    return Err(Malformed);
                };
                return Ok(Problem::LockRefused { node, refusal });
            }
            29 => Problem::LockBusy(reader.string()?),
            30 => Problem::Locks(reader.u32()?),
            40 => Problem::Buffers(reader.u16()?),
            41 => Problem::BufferBytes(reader.u64()?),
            42 => Problem::BufferExtents(reader.u16()?),
            31 => Problem::NotHeld,
            36 => Problem::NotOperator,
            44 => Problem::MadeAt(reader.string()?),
            38 => Problem::NotDirect(NoDirect::from_wire(reader.u8()?).ok_or(Malformed)?),
            39 => Problem::Priority(reader.string()?),
            45 => {
                let measure = if reader.flag()? { Measure::Bytes } else { Measure::Operations };
                let (limit, retry_after) = (reader.u64()?, reader.u64()?);
                Problem::OverLimit { principal: reader.string()?, measure, limit, retry_after }
            }
            32 => {
                let may_have_executed = reader.flag()?;
                Problem::Deadline { node: reader.string()?, may_have_executed }
            }
            33 => Problem::Skipped(reader.string()?),
            35 => {
                let (epoch, may_have_executed) = (reader.u64()?, reader.flag()?);
                Problem::Dead { node: reader.string()?, epoch, may_have_executed }
            }
            IN_LIST => {
                let place = reader.u16()?;
                if reader.0.first() == Some(&IN_LIST) {
                    return Err(Malformed);
                }
                return Ok(Problem::InList { place, problem: Box::new(Problem::parse(reader.0)?) });
            }
            _ => return Err(Malformed),
        };
        reader.end(problem)
    }
}
