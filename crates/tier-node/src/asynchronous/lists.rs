//! Lists of operations, and operations on buffers that the device reads and writes in place, as futures.

use super::{Asynchronous, InPlaceLmr, Operation, TimedLmr};
use crate::any::AnyOperation;
use crate::error::{ListError, OperationError};
use crate::list::Outcomes;
use crate::memcpy::Position;
use dunlin_fabric::Host;
use std::ops::Range;
use std::sync::Arc;

/// An operation of a list that owns its region and its buffer.
#[derive(Debug)]
enum OwnedOperation<L> {
    Read { lmr: Arc<L>, offset: u64, buffer: Vec<u8> },
    Write { lmr: Arc<L>, offset: u64, buffer: Vec<u8> },
    FetchAdd { lmr: Arc<L>, offset: u64, add: u64 },
    CompareSwap { lmr: Arc<L>, offset: u64, expected: u64, swap: u64 },
    Memset { lmr: Arc<L>, offset: u64, length: u64, value: u8 },
    Memcpy { to: (Arc<L>, u64), from: (Arc<L>, u64), length: u64 },
}

impl<L> OwnedOperation<L> {
    fn lend(&mut self) -> AnyOperation<'_, L> {
        match self {
            OwnedOperation::Read { lmr, offset, buffer } => {
                AnyOperation::Read { lmr, offset: *offset, into: buffer }
            }
            OwnedOperation::Write { lmr, offset, buffer } => {
                AnyOperation::Write { lmr, offset: *offset, from: buffer }
            }
            OwnedOperation::FetchAdd { lmr, offset, add } => {
                AnyOperation::FetchAdd { lmr, offset: *offset, add: *add }
            }
            OwnedOperation::CompareSwap { lmr, offset, expected, swap } => {
                AnyOperation::CompareSwap { lmr, offset: *offset, expected: *expected, swap: *swap }
            }
            OwnedOperation::Memset { lmr, offset, length, value } => {
                AnyOperation::Memset { lmr, offset: *offset, length: *length, value: *value }
            }
            OwnedOperation::Memcpy { to, from, length } => {
                let [to, from] = [to, from].map(|(lmr, offset)| Position { lmr: &**lmr, offset: *offset });
                AnyOperation::Memcpy { to, from, length: *length }
            }
        }
    }
}

/// A list of operations for [`Asynchronous::run`], with their buffers: as [`Operations`](crate::Operations), with the
/// same bounds.
#[derive(Debug)]
#[must_use = "a list does nothing until Asynchronous::run"]
pub struct OwnedOperations<L>(Vec<OwnedOperation<L>>);

impl<L> Default for OwnedOperations<L> {
    fn default() -> Self {
        OwnedOperations(Vec::new())
    }
}

impl<L> OwnedOperations<L> {
    /// Makes an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    fn add(mut self, operation: OwnedOperation<L>) -> Self {
        self.0.push(operation);
        self
    }

    /// Adds a read of as many bytes at `offset` as the buffer has.
    pub fn read(self, lmr: &Arc<L>, offset: u64, buffer: Vec<u8>) -> Self {
        self.add(OwnedOperation::Read { lmr: Arc::clone(lmr), offset, buffer })
    }

    /// Adds a write of a buffer at `offset`.
    pub fn write(self, lmr: &Arc<L>, offset: u64, buffer: Vec<u8>) -> Self {
        self.add(OwnedOperation::Write { lmr: Arc::clone(lmr), offset, buffer })
    }

    /// Adds an addition to the word at `offset`.
    pub fn fetch_add(self, lmr: &Arc<L>, offset: u64, add: u64) -> Self {
        self.add(OwnedOperation::FetchAdd { lmr: Arc::clone(lmr), offset, add })
    }

    /// Adds a swap of the word at `offset`.
    pub fn compare_swap(self, lmr: &Arc<L>, offset: u64, expected: u64, swap: u64) -> Self {
        self.add(OwnedOperation::CompareSwap { lmr: Arc::clone(lmr), offset, expected, swap })
    }

    /// Adds a setting of `length` bytes at `offset` to a value.
    pub fn memset(self, lmr: &Arc<L>, offset: u64, length: u64, value: u8) -> Self {
        self.add(OwnedOperation::Memset { lmr: Arc::clone(lmr), offset, length, value })
    }

    /// Adds a copy of `length` bytes to an offset of a region from one of another region, or of the same one.
    pub fn memcpy(self, to: (&Arc<L>, u64), from: (&Arc<L>, u64), length: u64) -> Self {
        let [to, from] = [to, from].map(|(lmr, offset)| (Arc::clone(lmr), offset));
        self.add(OwnedOperation::Memcpy { to, from, length })
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The buffers of a list's reads and writes, in their order, and the outcomes of all operations.
pub type RanList = (Vec<Vec<u8>>, Result<Outcomes, ListError>);

impl<L: TimedLmr, H: Host> Asynchronous<L, H> {
    /// Runs a list: [`Operations::run`](crate::Operations::run). It is one operation of the queue, and of one thread.
    pub fn run(&self, mut list: OwnedOperations<L>) -> Operation<RanList> {
        self.begin(move |permit| {
            let ran = match permit {
                Ok(time) => L::run_list(Some(time), list.0.iter_mut().map(OwnedOperation::lend).collect()),
                Err(error) => Err(ListError::NotBegun(error)),
            };
            let buffers = list.0.into_iter().filter_map(|operation| match operation {
                OwnedOperation::Read { buffer, .. } | OwnedOperation::Write { buffer, .. } => Some(buffer),
                _ => None,
            });
            (buffers.collect(), ran)
        })
    }
}

impl<L: InPlaceLmr, H: Host> Asynchronous<L, H> {
    /// Copies bytes at `offset` into a range of a buffer, in place: [`Lmr::read_into`](crate::Lmr::read_into).
    pub fn read_into(
        &self,
        lmr: &Arc<L>,
        offset: u64,
        buffer: L::Buffer,
        range: Range<usize>,
    ) -> Operation<(L::Buffer, Result<(), OperationError>)> {
        self.in_place(lmr, offset, buffer, range, false)
    }

    /// Copies the bytes of a range of a buffer to `offset`, in place: [`Lmr::write_from`](crate::Lmr::write_from).
    pub fn write_from(
        &self,
        lmr: &Arc<L>,
        offset: u64,
        buffer: L::Buffer,
        range: Range<usize>,
    ) -> Operation<(L::Buffer, Result<(), OperationError>)> {
        self.in_place(lmr, offset, buffer, range, true)
    }

    fn in_place(
        &self,
        lmr: &Arc<L>,
        offset: u64,
        mut buffer: L::Buffer,
        range: Range<usize>,
        is_write: bool,
    ) -> Operation<(L::Buffer, Result<(), OperationError>)> {
        let lmr = Arc::clone(lmr);
        self.begin(move |permit| {
            let done = permit.and_then(|time| lmr.run_in_place(time, offset, &mut buffer, range, is_write));
            (buffer, done)
        })
    }
}
