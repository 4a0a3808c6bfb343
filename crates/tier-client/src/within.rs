//! Operations of a process with a time of their own, cut into requests.

use crate::attachment::Failed;
use crate::lmr::Lmr;
use dunlin_fabric::{Fabric, Nanos};
use dunlin_tier::message::Malformed;
use dunlin_tier::process::{
    COMPARE_SWAP, FETCH_ADD, MAX_CHANGED, MAX_HERE, MAX_MOVED, MEMSET, ProcessRequest, READ, READ_HERE,
    WRITE, WRITE_HERE, WRITE_NOTIFY,
};
use dunlin_tier::qos::QosError;
use dunlin_tier::{Priority, Rights};
use dunlin_tier_node::{OperationError, RequestError};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The ranges of an operation, each with its offset in the operation.
pub(crate) fn parts(length: u64, most: u32) -> impl DoubleEndedIterator<Item = (u64, u32)> {
    let most = u64::from(most);
    (0..length.div_ceil(most)).map(move |part| (part * most, (length - part * most).min(most) as u32))
}

/// Returns the old value of a word.
fn word(answer: &[u8]) -> Result<u64, Malformed> {
    answer.try_into().map(u64::from_le_bytes).map_err(|_| Malformed)
}

pub(crate) fn nothing(answer: &[u8]) -> Result<(), Malformed> {
    if answer.is_empty() { Ok(()) } else { Err(Malformed) }
}

/// The error of an operation of which `done` bytes were executed before.
pub(crate) fn after(done: u64, failed: impl Into<OperationError>) -> OperationError {
    let error = failed.into();
    if done == 0 || error.may_have_executed() {
        return error;
    }
    if error.is_deadline() {
        return error.after_parts();
    }
    let text = format!("after {done} bytes: {error}");
    OperationError::Request(Box::new(RequestError::Reported { text, may_have_executed: true }))
}

/// A view of an [`Lmr`] for operations with a time or a priority of their own; see [`Lmr::within`] and
/// [`Lmr::with_priority`]. Its methods are those of the
/// region.
#[derive(Debug)]
#[must_use = "the time and the priority are those of the operations made with it"]
pub struct Within<'a, P: Fabric> {
    pub(crate) lmr: &'a Lmr<P>,
    /// `None` for the time of the settings.
    pub(crate) time: Option<Duration>,
    pub(crate) priority: Priority,
}

impl<P: Fabric> Within<'_, P> {
    /// Sets the priority of the operations, in place of that of the handle: it goes before the handle's, as that goes
    /// before the process's.
    ///
    /// # Errors
    /// The share of the principal permits only low priority.
    pub fn with_priority(self, priority: Priority) -> Result<Self, QosError> {
        self.lmr.attachment.check_priority(priority)?;
        Ok(Within { priority, ..self })
    }

    /// Begins the time of an operation.
    pub(crate) fn begin(&self) -> Result<Nanos, OperationError> {
        self.lmr.attachment.begin(self.time)
    }

    /// Runs one part of a read or a write; returns `false` if it has to be asked for again, because bytes are on other
    /// nodes.
    fn part(&self, run: impl FnOnce() -> Result<(), Failed>) -> Result<bool, Failed> {
        match run() {
            Ok(()) => Ok(true),
            Err(Failed::Elsewhere) => {
                self.lmr.elsewhere.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(failed) => Err(failed),
        }
    }

    /// Returns the function for the next part of an operation and the longest part.
    fn function(&self, here: u16, anywhere: u16) -> (u16, u32) {
        if self.lmr.elsewhere.load(Ordering::Relaxed) { (anywhere, MAX_MOVED) } else { (here, MAX_HERE) }
    }

    /// As [`Lmr::read`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        self.lmr.check(Rights::READ, offset, into.len() as u64)?;
        let until = self.begin()?;
        let mut at = 0;
        while at < into.len() {
            let (function, most) = self.function(READ_HERE, READ);
            let end = into.len().min(at + most as usize);
            let place = &mut into[at..end];
            let (handle, length) = (self.lmr.opened.handle, place.len() as u32);
            let (priority, offset) = (self.priority, offset + at as u64);
            let request = ProcessRequest::Read { priority, handle, offset, length };
            let read = self.part(|| {
                self.lmr.attachment.call_until(function, &request, until, |answer| {
                    if answer.len() != place.len() {
                        return Err(Malformed);
                    }
                    place.copy_from_slice(answer);
                    Ok(())
                })
            });
            if read? {
                at = end;
            }
        }
        Ok(())
    }

    /// As [`Lmr::write`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.lmr.check(Rights::WRITE, offset, from.len() as u64)?;
        let until = self.begin()?;
        let mut at = 0;
        while at < from.len() {
            let (function, most) = self.function(WRITE_HERE, WRITE);
            let end = from.len().min(at + most as usize);
            let (handle, bytes) = (self.lmr.opened.handle, &from[at..end]);
            let (priority, offset) = (self.priority, offset + at as u64);
            let request = ProcessRequest::Write { priority, handle, offset, bytes };
            let written = self.part(|| self.lmr.attachment.call_until(function, &request, until, nothing));
            if written.map_err(|failed| after(at as u64, failed))? {
                at = end;
            }
        }
        Ok(())
    }

    /// As [`Lmr::write_notify`].
    pub fn write_notify(
        &self,
        offset: u64,
        bytes: &[u8],
        word_offset: u64,
        value: u64,
    ) -> Result<(), OperationError> {
        self.lmr.check(Rights::WRITE, offset, bytes.len() as u64)?;
        self.lmr.check(Rights::WRITE, word_offset, 8)?;
        if bytes.len() > MAX_CHANGED as usize {
            let (what, limit) = ("bytes in one write_notify", MAX_CHANGED.into());
            return Err(Box::new(RequestError::Limit { what, limit }).into());
        }
        let (priority, handle) = (self.priority, self.lmr.opened.handle);
        let request = ProcessRequest::WriteNotify { priority, handle, offset, word_offset, value, bytes };
        Ok(self.lmr.attachment.call_until(WRITE_NOTIFY, &request, self.begin()?, nothing)?)
    }

    /// As [`Lmr::fetch_add`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OperationError> {
        let (priority, handle) = (self.priority, self.lmr.opened.handle);
        let request = ProcessRequest::FetchAdd { priority, handle, offset, add };
        Ok(self.lmr.attachment.call_until(FETCH_ADD, &request, self.begin()?, word)?)
    }

    /// As [`Lmr::compare_swap`].
    pub fn compare_swap(&self, offset: u64, expected: u64, swap: u64) -> Result<u64, OperationError> {
        let (priority, handle) = (self.priority, self.lmr.opened.handle);
        let request = ProcessRequest::CompareSwap { priority, handle, offset, expected, swap };
        Ok(self.lmr.attachment.call_until(COMPARE_SWAP, &request, self.begin()?, word)?)
    }

    /// As [`Lmr::test_set`].
    pub fn test_set(&self, offset: u64) -> Result<bool, OperationError> {
        self.compare_swap(offset, 0, 1).map(|old| old == 0)
    }

    /// As [`Lmr::memset`].
    pub fn memset(&self, offset: u64, length: u64, value: u8) -> Result<(), OperationError> {
        self.lmr.check(Rights::WRITE, offset, length)?;
        let until = self.begin()?;
        for (at, part) in parts(length, MAX_CHANGED) {
            let handle = self.lmr.opened.handle;
            let request = ProcessRequest::Set { handle, offset: offset + at, length: part, value };
            let set = self.lmr.attachment.call_until(MEMSET, &request, until, nothing);
            set.map_err(|failed| after(at, failed))?;
        }
        Ok(())
    }
}
