//! Lists of operations: the request [`RUN`](super::RUN) and its answer.
//!
//! The answer begins with the bytes of all reads in the order of the list, also of those that failed. The outcome of
//! each operation follows: one byte, then for an atomic its old value, and for a failed operation a [`Problem`].

use super::{MAX_CHANGED, MAX_MOVED, Problem};
use crate::access::Kind;
use crate::codec::{Reader, Writer};
use crate::message::Malformed;

/// The most operations of a list.
pub const MAX_LISTED: usize = 1024;
/// The most bytes that the operations of a list move, set and copy together. A process's list of more than [`MAX_MOVED`]
/// bytes to read or to write, or of more than [`MAX_CHANGED`] to set, to copy or to move in place, is several requests.
pub const MAX_LISTED_BYTES: u64 = 64 << 20;

/// The bytes of the shortest operation, a read.
const SHORTEST: usize = 1 + 8 + 8 + 4;
const DONE: u8 = 0;
const FAILED: u8 = 1;

/// The action of an operation of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedChange<'a> {
    /// Reads this number of bytes.
    Read(u32),
    /// Writes bytes.
    Write(&'a [u8]),
    /// Adds to a word.
    Add(u64),
    /// Stores `swap` in a word if it is `expected`.
    Swap {
        /// The expected value.
        expected: u64,
        /// The new value.
        swap: u64,
    },
    /// Sets bytes to a value.
    Set {
        /// The number of bytes.
        length: u32,
        /// The value.
        value: u8,
    },
    /// Copies bytes to another region.
    Copy {
        /// The number of bytes.
        length: u32,
        /// The handle of the target.
        to: u64,
        /// The offset in the target, in bytes.
        target: u64,
    },
    /// Reads bytes into a buffer of the process.
    ReadInto(BufferPart),
    /// Writes bytes from a buffer of the process.
    WriteFrom(BufferPart),
}

/// A part of a buffer of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPart {
    /// The number of bytes.
    pub length: u32,
    /// The handle of the buffer.
    pub buffer: u64,
    /// The offset in the buffer, in bytes.
    pub at: u64,
}

/// An operation of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedOperation<'a> {
    /// The handle.
    pub handle: u64,
    /// The offset in bytes.
    pub offset: u64,
    /// The operation.
    pub change: ListedChange<'a>,
}

impl ListedOperation<'_> {
    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        match self.change {
            ListedChange::Read(_) | ListedChange::Copy { .. } | ListedChange::ReadInto(_) => Kind::Read,
            ListedChange::Write(_) | ListedChange::Set { .. } | ListedChange::WriteFrom(_) => Kind::Write,
            ListedChange::Add(_) | ListedChange::Swap { .. } => Kind::Atomic,
        }
    }

    /// Returns whether the request or its answer has the bytes, or the word: the worker of a node may run the operation.
    pub fn carries_bytes(&self) -> bool {
        matches!(
            self.change,
            ListedChange::Read(_) | ListedChange::Write(_) | ListedChange::Add(_) | ListedChange::Swap { .. }
        )
    }

    /// Returns the number of bytes that it reads, copies or changes.
    pub fn moves(&self) -> u64 {
        match self.change {
            ListedChange::Read(length) => length.into(),
            ListedChange::Write(bytes) => bytes.len() as u64,
            ListedChange::Add(_) | ListedChange::Swap { .. } => 8,
            ListedChange::Set { length, .. } | ListedChange::Copy { length, .. } => length.into(),
            ListedChange::ReadInto(part) | ListedChange::WriteFrom(part) => part.length.into(),
        }
    }

    /// Returns the number of bytes that the answer has of it.
    pub fn read_length(&self) -> usize {
        if let ListedChange::Read(length) = self.change { length as usize } else { 0 }
    }
}

pub(super) fn write(mut writer: Writer, operations: &[ListedOperation<'_>]) -> Writer {
    writer = writer.u16(operations.len() as u16);
    for ListedOperation { handle, offset, change } in operations {
        let kind = match change {
            ListedChange::Read(_) => 0,
            ListedChange::Write(_) => 1,
            ListedChange::Add(_) => 2,
            ListedChange::Swap { .. } => 3,
            ListedChange::Set { .. } => 4,
            ListedChange::Copy { .. } => 5,
            ListedChange::ReadInto(_) => 6,
            ListedChange::WriteFrom(_) => 7,
        };
        writer = writer.u8(kind).u64(*handle).u64(*offset);
        writer = match change {
            ListedChange::Read(length) => writer.u32(*length),
            ListedChange::Write(bytes) => {
                writer = writer.u32(bytes.len() as u32);
                writer.0.extend_from_slice(bytes);
                writer
            }
            ListedChange::Add(add) => writer.u64(*add),
            ListedChange::Swap { expected, swap } => writer.u64(*expected).u64(*swap),
            ListedChange::Set { length, value } => writer.u32(*length).u8(*value),
            ListedChange::Copy { length, to, target } => writer.u32(*length).u64(*to).u64(*target),
            ListedChange::ReadInto(BufferPart { length, buffer, at })
            | ListedChange::WriteFrom(BufferPart { length, buffer, at }) => {
                writer.u32(*length).u64(*buffer).u64(*at)
            }
        };
    }
    writer
}

/// Parses a list whose reads and whose writes have at most [`MAX_MOVED`] bytes each, and whose other operations have
/// [`MAX_CHANGED`].
pub(super) fn read<'a>(reader: &mut Reader<'a>) -> Result<Vec<ListedOperation<'a>>, Malformed> {
    let count = usize::from(reader.u16()?);
    if count > MAX_LISTED || count > reader.0.len() / SHORTEST {
        return Err(Malformed);
    }
    let mut operations = Vec::with_capacity(count);
    // At most 1024 times 4 GiB, so the sums do not overflow.
    let (mut read, mut written, mut changed) = (0u64, 0u64, 0u64);
    for _ in 0..count {
        let (kind, handle, offset) = (reader.u8()?, reader.u64()?, reader.u64()?);
        let change = match kind {
            0 => {
                let length = reader.u32()?;
                read += u64::from(length);
                ListedChange::Read(length)
            }
            1 => {
                let length = reader.u32()?;
                written += u64::from(length);
                let (bytes, rest) = reader.0.split_at_checked(length as usize).ok_or(Malformed)?;
                reader.0 = rest;
                ListedChange::Write(bytes)
            }
            2 => ListedChange::Add(reader.u64()?),
            3 => ListedChange::Swap { expected: reader.u64()?, swap: reader.u64()? },
            4..=7 => {
                let length = reader.u32()?;
                changed += u64::from(length);
                match kind {
                    4 => ListedChange::Set { length, value: reader.u8()? },
                    5 => ListedChange::Copy { length, to: reader.u64()?, target: reader.u64()? },
                    _ => {
                        let part = BufferPart { length, buffer: reader.u64()?, at: reader.u64()? };
                        if kind == 6 { ListedChange::ReadInto(part) } else { ListedChange::WriteFrom(part) }
                    }
                }
            }
            _ => return Err(Malformed),
        };
        operations.push(ListedOperation { handle, offset, change });
    }
    let is_bounded = read.max(written) <= MAX_MOVED.into() && changed <= MAX_CHANGED.into();
    if is_bounded { Ok(operations) } else { Err(Malformed) }
}

/// Encodes the outcomes of a list behind the bytes that it read.
pub fn encode_outcomes<'a>(
    read: Vec<u8>,
    outcomes: impl Iterator<Item = Result<Option<u64>, &'a Problem>>,
) -> Vec<u8> {
    let mut writer = Writer(read);
    for outcome in outcomes {
        writer = match outcome {
            Ok(None) => writer.u8(DONE),
            Ok(Some(old)) => writer.u8(DONE).u64(old),
            Err(problem) => {
                let problem = problem.encode();
                let mut writer = writer.u8(FAILED).u16(problem.len() as u16);
                writer.0.extend_from_slice(&problem);
                writer
            }
        };
    }
    writer.0
}

/// The outcomes of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcomes<'a> {
    /// The bytes of all reads.
    pub read: &'a [u8],
    /// The outcome of each operation: the old value of the word of an atomic.
    pub outcomes: Vec<Result<Option<u64>, Problem>>,
}

impl<'a> Outcomes<'a> {
    /// Parses the answer to a list of these operations.
    pub fn parse(bytes: &'a [u8], operations: &[ListedOperation<'_>]) -> Result<Self, Malformed> {
        let length = operations.iter().map(ListedOperation::read_length).sum();
        let (read, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
        let mut reader = Reader(rest);
        let mut outcomes = Vec::with_capacity(operations.len());
        for operation in operations {
            outcomes.push(match reader.u8()? {
                DONE if operation.kind() == Kind::Atomic => Ok(Some(reader.u64()?)),
                DONE => Ok(None),
                FAILED => {
                    let length = usize::from(reader.u16()?);
                    let (problem, rest) = reader.0.split_at_checked(length).ok_or(Malformed)?;
                    reader.0 = rest;
                    Err(Problem::parse(problem)?)
                }
                _ => return Err(Malformed),
            });
        }
        reader.end(Outcomes { read, outcomes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessError;
    use crate::process::{ProcessRequest, RUN};
    use crate::qos::Priority;
    use proptest::prelude::*;

    fn operation() -> impl Strategy<Value = ListedOperation<'static>> {
        const BYTES: &[u8] = &[9; 200];
        let change = prop_oneof![
            (0u32..200).prop_map(ListedChange::Read),
            (0..BYTES.len()).prop_map(|length| ListedChange::Write(&BYTES[..length])),
            any::<u64>().prop_map(ListedChange::Add),
            any::<[u64; 2]>().prop_map(|[expected, swap]| ListedChange::Swap { expected, swap }),
            (0u32..100_000, any::<u8>()).prop_map(|(length, value)| ListedChange::Set { length, value }),
            (0u32..100_000, any::<[u64; 2]>()).prop_map(|(length, [to, target])| ListedChange::Copy {
                length,
                to,
                target
            }),
            (0u32..100_000, any::<[u64; 2]>(), any::<bool>()).prop_map(|(length, [buffer, at], reads)| {
                let part = BufferPart { length, buffer, at };
                if reads { ListedChange::ReadInto(part) } else { ListedChange::WriteFrom(part) }
            }),
        ];
        (any::<u64>(), any::<u64>(), change).prop_map(|(handle, offset, change)| ListedOperation {
            handle,
            offset,
            change,
        })
    }

    fn encoded(operations: Vec<ListedOperation<'_>>) -> Vec<u8> {
        let mut bytes = Vec::new();
        ProcessRequest::Run { priority: Priority::High, operations }.encode_into(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn lists_come_back_whole_and_any_bytes_are_survived(
            operations in prop::collection::vec(operation(), 0..30), noise in prop::collection::vec(any::<u8>(), 0..300),
            cut in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut bytes = encoded(operations.clone());
            let parsed = ProcessRequest::parse(RUN, &bytes);
            prop_assert_eq!(parsed, Ok(ProcessRequest::Run { priority: Priority::High, operations: operations.clone() }));
            prop_assert!(ProcessRequest::parse(RUN, &bytes[..cut.index(bytes.len())]).is_err());
            prop_assert!(ProcessRequest::parse(RUN, &[&bytes[..], &[0]].concat()).is_err());
            let _ = (ProcessRequest::parse(RUN, &noise), Outcomes::parse(&noise, &operations));
            let at = place.index(bytes.len());
            bytes[at] = byte;
            let _ = ProcessRequest::parse(RUN, &bytes);
        }

        #[test]
        fn outcomes_come_back_whole(
            operations in prop::collection::vec((operation(), any::<u64>(), any::<bool>()), 0..30),
            cut in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let problem = Problem::Access(AccessError::Gone);
            let outcomes: Vec<Result<Option<u64>, Problem>> = operations.iter().map(|(operation, old, fails)| {
                let old = (operation.kind() == Kind::Atomic).then_some(*old);
                if *fails { Err(problem.clone()) } else { Ok(old) }
            }).collect();
            let operations: Vec<_> = operations.into_iter().map(|(operation, ..)| operation).collect();
            let read = vec![5; operations.iter().map(ListedOperation::read_length).sum()];
            let each = outcomes.iter().map(|outcome| outcome.as_ref().map(|old| *old));
            let mut bytes = encode_outcomes(read.clone(), each);
            prop_assert_eq!(Outcomes::parse(&bytes, &operations), Ok(Outcomes { read: &read, outcomes }));
            prop_assert!(Outcomes::parse(&[&bytes[..], &[0]].concat(), &operations).is_err());
            if !bytes.is_empty() {
                prop_assert!(Outcomes::parse(&bytes[..cut.index(bytes.len())], &operations).is_err());
                let at = place.index(bytes.len());
                bytes[at] = byte;
                let _ = Outcomes::parse(&bytes, &operations);
            }
        }
    }

    #[test]
    fn counts_and_lengths_that_lie_are_refused() {
        let read = |length| ListedOperation { handle: 1, offset: 0, change: ListedChange::Read(length) };
        let refused = |operations| ProcessRequest::parse(RUN, &encoded(operations)).is_err();
        assert!(!refused(vec![read(MAX_MOVED)]) && !refused(vec![read(256); MAX_LISTED]));
        assert!(refused(vec![read(0); MAX_LISTED + 1]));
        assert!(refused(vec![read(MAX_MOVED), read(1)]));
        assert!(refused(vec![read(u32::MAX); MAX_LISTED]));
        let part = |length| BufferPart { length, buffer: 2, at: 0 };
        let changes = |length| {
            [
                ListedChange::Set { length, value: 1 },
                ListedChange::Copy { length, to: 2, target: 0 },
                ListedChange::ReadInto(part(length)),
                ListedChange::WriteFrom(part(length)),
            ]
            .map(|change| ListedOperation { change, ..read(0) })
        };
        assert!(!refused(changes(MAX_CHANGED / 4).to_vec()));
        assert!(refused([&changes(MAX_CHANGED / 4)[..], &changes(1)[..1]].concat()));
        assert!(changes(u32::MAX).iter().all(|change| refused(vec![*change; 1024])));
        // A kind that does not exist.
        let mut bytes = encoded(vec![read(1)]);
        assert_eq!(bytes[3], 0);
        bytes[3] = 8;
        assert!(ProcessRequest::parse(RUN, &bytes).is_err());
        // A count, and the length of a write, beyond the end of the message.
        let mut bytes = encoded(Vec::new());
        assert!(ProcessRequest::parse(RUN, &bytes).is_ok());
        bytes[1] = 1;
        assert!(ProcessRequest::parse(RUN, &bytes).is_err());
        let mut bytes = encoded(vec![ListedOperation { change: ListedChange::Write(b"x"), ..read(0) }]);
        bytes[3 + 17..3 + 21].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(ProcessRequest::parse(RUN, &bytes).is_err());
    }
}
