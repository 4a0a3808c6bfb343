//! Operations on a region with a time of their own.

use crate::attempt::Attempted;
use crate::carriers::Carriers;
use crate::command::failed;
use crate::error::OperationError;
use crate::item::{Change, Item, Transfer};
use crate::lmr::Lmr;
use crate::operate::Target;
use crate::path::Stop;
use crate::qos::Class;
use dunlin_fabric::{Fabric, Nanos};
use dunlin_tier::message::Request;
use dunlin_tier::qos::QosError;
use dunlin_tier::{AccessError, Cut, Kind, Priority};

/// A view of an [`Lmr`] for operations with a time or a priority of their own; see [`Lmr::within`] and
/// [`Lmr::with_priority`]. Its methods are those of the
/// region.
#[derive(Debug)]
#[must_use = "the time and the priority are those of the operations made with it"]
pub struct Within<'a, F: Fabric> {
    pub(crate) lmr: &'a Lmr<F>,
    /// In nanoseconds; `None` for the time of the settings.
    pub(crate) time: Option<Nanos>,
    /// `None` for that of the handle.
    pub(crate) class: Option<Class>,
}

impl<F: Fabric> Within<'_, F> {
    /// Sets the priority of the operations, in place of that of the handle: it goes before the handle's, as that goes
    /// before its [`Tier`](crate::Tier)'s.
    ///
    /// # Errors
    /// The [`Share`](crate::Share) of the principal permits only low priority.
    pub fn with_priority(self, priority: Priority) -> Result<Self, QosError> {
        let own = &self.lmr.class;
        let class = if priority == own.priority { None } else { Some(own.with_priority(priority)?) };
        Ok(Within { class, ..self })
    }

    pub(crate) fn target(&self) -> Target<'_> {
        let class = self.class.as_ref().unwrap_or(&self.lmr.class);
        Target { time: self.time, ..Target::new(self.lmr.handle, class) }
    }

    /// As [`Lmr::read_here`].
    pub fn read_here(&self, offset: u64, into: &mut [u8]) -> Result<bool, OperationError> {
        self.lmr.running.node.transfer_here(self.target(), offset, Transfer::Read(into))
    }

    /// As [`Lmr::write_here`].
    pub fn write_here(&self, offset: u64, from: &[u8]) -> Result<bool, OperationError> {
        self.lmr.running.node.transfer_here(self.target(), offset, Transfer::Write(from))
    }

    /// As [`Lmr::read`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        self.lmr.running.node.transfer(self.target(), offset, Transfer::Read(into))
    }

    /// As [`Lmr::write`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.lmr.running.node.transfer(self.target(), offset, Transfer::Write(from))
    }

    /// As [`Lmr::fetch_add`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError> {
        self.change(offset, Change::Add(add))
    }

    /// As [`Lmr::compare_swap`].
    pub fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError> {
        self.change(offset, Change::Swap { expected, swap })
    }

    /// As [`Lmr::test_set`].
    pub fn test_set(&self, offset: u64) -> Result<bool, OperationError> {
        self.compare_swap(offset, 0, 1).map(|old| old == 0)
    }

    fn change(&self, offset: u64, change: Change) -> Result<u64, OperationError> {
        self.lmr.running.node.change_word(self.target(), self.lmr.id, offset, change)
    }

    /// Reads, writes or changes bytes without a wait.
    pub(crate) fn attempt(
        &self,
        carriers: &mut Carriers<F>,
        offset: u64,
        transfer: Transfer<'_, F::Memory>,
    ) -> Attempted<F, Result<u64, OperationError>> {
        self.lmr.running.node.attempt(carriers, self.target(), self.lmr.id, offset, transfer)
    }

    /// As [`write_notify`](Within::write_notify), without a wait.
    pub(crate) fn attempt_notify(
        &self,
        carriers: &mut Carriers<F>,
        offset: u64,
        bytes: &[u8],
        word_offset: u64,
        value: u64,
    ) -> Attempted<F, Result<u64, OperationError>> {
        if let Err(error) = self.check_word(word_offset) {
            return Attempted::Done(Err(error.into()));
        }
        let (node, word) = (&self.lmr.running.node, value.to_le_bytes());
        node.attempt_notify(carriers, self.target(), self.lmr.id, (offset, bytes), (word_offset, &word))
    }

    /// Checks the place of a word.
    fn check_word(&self, offset: u64) -> Result<(), AccessError> {
        let size = self.lmr.length;
        if offset > size || size - offset < 8 {
            return Err(AccessError::OutOfBounds { offset, length: 8, size });
        }
        if offset.is_multiple_of(8) { Ok(()) } else { Err(AccessError::Misaligned(offset)) }
    }

    /// As [`Lmr::write_notify`].
    pub fn write_notify(
        &self,
        offset: u64,
        bytes: &[u8],
        word_offset: u64,
        value: u64,
    ) -> Result<(), OperationError> {
        let (node, word) = (&*self.lmr.running.node, value.to_le_bytes());
        self.check_word(word_offset)?;
        let length = bytes.len() as u64;
        node.operate(self.target(), Kind::Write, (offset, length), |path, layout, deadline| {
            let Some(at) = layout.word(word_offset) else {
                return Err(Stop::failed(AccessError::Misaligned(word_offset)));
            };
            if let Some(path) = path {
                return path.notify(node, layout, (offset, bytes), (word_offset, &word), deadline).map(Some);
            }
            if at.node != node.me || layout.cut(offset, length, u32::MAX).any(|cut| cut.node != node.me) {
                return Ok(None);
            }
            for (offset, bytes) in [(offset, bytes), (word_offset, &word)] {
                let mut item = Item::new(layout, offset, Transfer::Write(bytes));
                item.copy_here(node);
                if let Some(error) = item.error {
                    return Err(Stop::failed(error));
                }
            }
            Ok(Some(()))
        })
    }

    /// As [`Lmr::memset`].
    pub fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError> {
        let (node, owner) = (&*self.lmr.running.node, self.lmr.id);
        node.command(self.target(), Kind::Write, (offset, length), |layout, until| {
            for cut in layout.cut(offset, length, u32::MAX) {
                let Cut { extent, offset, length, .. } = cut;
                let request = Request::Set { owner, extent, offset, length, value };
                node.demand(cut.node, request, until).map_err(|error| failed(cut.at > 0, error))?;
            }
            Ok(())
        })
    }
}
