//! Readers that follow a log without changing it.

use crate::error::LogError;
use crate::layout::SLOT;
use crate::record::{Header, Transaction};
use crate::regions::{Pauses, Regions, SETTLE, nanos};
use crate::window::Window;
use dunlin_fabric::Host;
use dunlin_tier_node::{AnyTier, Rights};
use std::time::Duration;

/// Bytes of the ring that are read at a time.
const READ_AHEAD: u64 = 4096;

/// The position at which a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The oldest transaction that was not cleaned.
    Oldest,
    /// The next transaction that is reserved.
    Newest,
    /// A position that an earlier reader returned. Cleaned transactions can be read as long as nothing was written
    /// over them.
    At(u64),
}

/// A reader that follows a log.
#[derive(Debug)]
pub struct Tail<T: AnyTier> {
    regions: Regions<T>,
    window: Window,
    position: u64,
}

impl<T: AnyTier> Tail<T> {
    /// Opens a log for reading. Needs READ.
    ///
    /// # Errors
    /// There is no such log, it is damaged, no transaction can begin at the position, or the tier fails.
    pub fn open(tier: &T, name: &str, start: Start) -> Result<Self, LogError> {
        let regions = Regions::map(tier, name, Rights::READ, Rights::READ)?;
        let mut tail = Tail { regions, window: Window::new(READ_AHEAD), position: 0 };
        tail.seek(start)?;
        Ok(tail)
    }

    /// Goes to another position.
    ///
    /// # Errors
    /// No transaction can begin at the position, the log is damaged, or the tier fails.
    pub fn seek(&mut self, start: Start) -> Result<(), LogError> {
        let words = self.regions.words()?;
        let position = match start {
            Start::Oldest => words.head,
            Start::Newest => words.tail,
            Start::At(position) => position,
        };
        if !position.is_multiple_of(SLOT) || position > words.tail {
            return Err(LogError::BadPosition { position, tail: words.tail });
        }
        self.position = position;
        Ok(())
    }

    /// Returns the position of the next transaction, from which another reader can go on.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next transaction, or `None` if it is not there yet. Holes that a cleaner has closed are passed over.
    ///
    /// # Errors
    /// [`LogError::Behind`] if the log was cleaned and written over at this position; the log is damaged, or the tier
    /// fails.
    pub fn read(&mut self) -> Result<Option<Transaction<'_>>, LogError> {
        let found = self.find()?;
        Ok(found.map(|header| self.window.transaction(header)))
    }

    /// As [`read`](Tail::read), but waits for a transaction for the given time.
    ///
    /// # Errors
    /// As [`read`](Tail::read).
    pub fn read_within(&mut self, time: Duration) -> Result<Option<Transaction<'_>>, LogError> {
        let host = self.regions.host.clone();
        let mut pauses = Pauses::until(host.now().saturating_add(nanos(time)));
        let found = loop {
            match self.find()? {
                None if pauses.pause(&host) => {}
                found => break found,
            }
        };
        Ok(found.map(|header| self.window.transaction(header)))
    }

    /// Finds the next transaction in the window, and goes behind it.
    fn find(&mut self) -> Result<Option<Header>, LogError> {
        loop {
            let position = self.position;
            let ahead = position.saturating_add(READ_AHEAD);
            if let Some(header) = self.window.at(&self.regions, position, ahead)? {
                self.position += header.extent();
                if !header.is_void() {
                    return Ok(Some(header));
                }
                continue;
            }
            let head = self.regions.words()?.head;
            if head <= position {
                return Ok(None);
            }
            // The place was cleaned. It is a closed hole, if nothing was written over it.
            self.regions.sleep(SETTLE);
            let next = self.window.next_whole(&self.regions, position, head)?;
            let words = self.regions.words()?;
            if words.tail > position.saturating_add(self.regions.shape.capacity) {
                return Err(LogError::Behind { resume: words.head });
            }
            self.position = next;
        }
    }
}
