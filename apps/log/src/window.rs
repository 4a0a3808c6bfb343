//! A private copy of a part of the ring, in which transactions are found.

use crate::error::LogError;
use crate::layout::SLOT;
use crate::record::{Found, HEADER, Header, Transaction, examine};
use crate::regions::Regions;
use dunlin_tier_node::{AnyLmr, AnyTier};

/// A copy of the ring from a position on.
#[derive(Debug)]
pub(crate) struct Window {
    bytes: Vec<u8>,
    /// The position of the first byte.
    base: u64,
    /// The number of valid bytes.
    filled: usize,
    /// Bytes that are read at a time, at least.
    ahead: u64,
}

impl Window {
    pub(crate) fn new(ahead: u64) -> Window {
        Window { bytes: Vec::new(), base: 0, filled: 0, ahead: ahead.max(SLOT) }
    }

    /// Reads bytes of the ring from a position on.
    fn fill<T: AnyTier>(&mut self, of: &Regions<T>, position: u64, length: u64) -> Result<(), LogError> {
        let place = of.shape.place(position);
        let length = length.min(of.shape.ring_bytes() - place) as usize;
        if self.bytes.len() < length {
            self.bytes.resize(length, 0);
        }
        self.filled = 0;
        of.ring.read(place, &mut self.bytes[..length])?;
        (self.base, self.filled) = (position, length);
        Ok(())
    }

    /// Examines the copy at a position.
    fn look<T: AnyTier>(&self, of: &Regions<T>, position: u64) -> Found {
        let at = position.wrapping_sub(self.base);
        let is_here = at < self.filled as u64 && of.shape.place(self.base) + at < of.shape.capacity;
        if is_here {
            examine(&self.bytes[at as usize..self.filled], &of.shape, position)
        } else {
            Found::Needs(HEADER)
        }
    }

    /// Returns the transaction at a position, if it is whole. Reads no further than `end` without need.
    pub(crate) fn at<T: AnyTier>(
        &mut self,
        of: &Regions<T>,
        position: u64,
        end: u64,
    ) -> Result<Option<Header>, LogError> {
        if let Found::Whole(header) = self.look(of, position) {
            return Ok(Some(header));
        }
        self.fill(of, position, self.ahead.min(end.saturating_sub(position).max(SLOT)))?;
        if let Found::Needs(length) = self.look(of, position) {
            self.fill(of, position, length as u64)?;
        }
        match self.look(of, position) {
            Found::Whole(header) => Ok(Some(header)),
            Found::Needs(_) | Found::Nothing => Ok(None),
        }
    }

    /// Returns the first position from `from` on, before `end`, at which a whole transaction begins, or `end`. Reads
    /// all of it again.
    pub(crate) fn next_whole<T: AnyTier>(
        &mut self,
        of: &Regions<T>,
        from: u64,
        end: u64,
    ) -> Result<u64, LogError> {
        let mut position = from;
        self.filled = 0;
        while position < end {
            let found = match self.look(of, position) {
                Found::Needs(_) => {
                    self.filled = 0;
                    self.at(of, position, end)?
                }
                Found::Whole(header) => Some(header),
                Found::Nothing => None,
            };
            if found.is_some() {
                return Ok(position);
            }
            position += SLOT;
        }
        Ok(end)
    }

    /// Returns a transaction that was found by the last call.
    pub(crate) fn transaction(&self, header: Header) -> Transaction<'_> {
        let at = (header.position - self.base) as usize + HEADER;
        let length = if header.is_void() { 0 } else { header.length as usize };
        Transaction { header, payload: &self.bytes[at..at + length] }
    }
}
