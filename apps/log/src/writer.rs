//! Writers: entries are buffered here, and committed as one transaction.

use crate::error::LogError;
use crate::layout::{LABEL, ROW, TAIL, Words, damaged, row_at};
use crate::record::{Draft, void};
use crate::regions::{
    Pauses, Regions, WATCHED, choose_lock, has_died, life_name, locks_for, nanos, unwatched,
};
use dunlin_fabric::{Host, Nanos};
use dunlin_tier_node::{AnyLmr, AnyTier, Rights};
use std::mem::ManuallyDrop;
use std::time::Duration;

/// The time that [`Writer::commit`] waits for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// A writer of a log, for one thread at a time. Dropping it takes it off the table of writers, unless a WRITE may still
/// be under way.
pub struct Writer<T: AnyTier> {
    regions: Regions<T>,
    id: u64,
    /// The place of this writer's row.
    row: u64,
    draft: Draft,
    /// Known words, which may be old.
    head: u64,
    tail: u64,
    /// The published position before which this writer has nothing under way.
    watermark: u64,
    /// A reservation that was not written, by position and length.
    pending: Option<(u64, u64)>,
    /// A WRITE failed and may still be under way, or the writer was evicted.
    is_broken: bool,
    is_registered: bool,
    /// The lock of the row: others get it, poisoned, when this process or its node has ended.
    life: ManuallyDrop<Option<T::Guard>>,
}

impl<T: AnyTier> std::fmt::Debug for Writer<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Writer")
            .field("id", &self.id)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

impl<T: AnyTier> Writer<T> {
    /// Opens a log for writing, and registers a writer with the number of its process as its label. If all rows of the
    /// table are taken, the row of a writer whose process has ended is used again. Needs READ and WRITE.
    ///
    /// # Errors
    /// There is no such log, it is damaged or has all its writers, or the tier fails.
    pub fn open(tier: &T, name: &str) -> Result<Self, LogError> {
        Self::open_as(tier, name, &format!("process {}", tier.host().process_id()))
    }

    /// As [`open`](Writer::open), with a label by which people recognise the writer: its first 48 bytes.
    ///
    /// # Errors
    /// As [`open`](Writer::open).
    pub fn open_as(tier: &T, name: &str, label: &str) -> Result<Self, LogError> {
        let rights = Rights::READ.with(Rights::WRITE);
        let regions = Regions::map(tier, name, rights, Rights::WRITE)?;
        let unwatched = unwatched(regions.host.random());
        let table = regions.table()?;
        let number = |row: &usize| table[*row].as_ref().map_or(0, |writer| writer.id);
        // The first rows first: nodes keep the names of locks that were used. Then those of writers that may have ended.
        let free = (0..table.len()).filter(|row| number(row) == 0);
        let watched = (0..table.len()).filter(|row| number(row) & WATCHED != 0);
        for row in free.chain(watched) {
            let former = number(&row);
            let lock = choose_lock(tier, (name, row), &regions.shape, locks_for(former));
            // Before the row: of a row with a number in it, nobody else gets the lock as long as its writer lives.
            let life = match tier.try_lock(life_name(name, row, lock).as_bytes()) {
                Ok(Some(life)) if former == 0 || has_died(&life, former) => Some(life),
                Err(_) if former == 0 => None,
                // Another writer opens, or the writer runs on.
                Ok(_) | Err(_) => continue,
            };
            let id = if life.is_some() { unwatched | lock } else { unwatched };
            let row = row_at(row);
            if regions.metadata.compare_swap(row, former, id)? != former {
                continue;
            }
            let mut writer = Writer {
                regions,
                id,
                row,
                draft: Draft::new(),
                head: 0,
                tail: 0,
                watermark: 0,
                pending: None,
                is_broken: false,
                is_registered: true,
                life: ManuallyDrop::new(life),
            };
            let mut text = [0; LABEL];
            let length = label.len().min(LABEL);
            text[..length].copy_from_slice(&label.as_bytes()[..length]);
            writer.regions.metadata.write(row + (ROW - LABEL) as u64, &text)?;
            if former != 0 {
                // The row keeps a hole of the former writer open meanwhile, so that a WRITE that it began lands before.
                writer.regions.sleep(Duration::from_nanos(writer.regions.hole_time()));
            }
            writer.keep_alive()?;
            return Ok(writer);
        }
        Err(LogError::TooManyWriters { writers: regions.shape.writers })
    }

    /// Returns the number of this writer, which its transactions carry.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Adds an entry to the transaction.
    ///
    /// # Errors
    /// The transaction would be longer than the log permits; it is unchanged.
    pub fn append(&mut self, entry: &[u8]) -> Result<(), LogError> {
        let (length, longest) = (self.draft.length_with(entry), self.regions.shape.longest);
        if length > longest {
            return Err(LogError::TooLong { length, longest });
        }
        self.draft.push(entry);
        Ok(())
    }

    /// Forgets the entries that were appended since the last commit.
    pub fn discard(&mut self) {
        self.draft.clear();
    }

    /// Commits the buffered entries as one transaction; returns its position. Waits for room for 10 s at most.
    ///
    /// # Errors
    /// As [`commit_within`](Writer::commit_within).
    pub fn commit(&mut self) -> Result<u64, LogError> {
        self.commit_within(PATIENCE)
    }

    /// Commits the buffered entries as one transaction; returns its position. Waits for room for the given time.
    ///
    /// # Errors
    /// After [`LogError::Uncertain`] the transaction may have been committed, and the buffer is empty. After all other
    /// errors it was not, and its entries are still buffered.
    pub fn commit_within(&mut self, time: Duration) -> Result<u64, LogError> {
        if self.draft.is_empty() {
            return Err(LogError::Empty);
        }
        let until = self.regions.host.now().saturating_add(nanos(time));
        self.settle(time, until)?;
        let extent = self.draft.extent();
        if !self.regions.shape.has_room(self.head, self.tail.saturating_add(extent)) {
            self.await_room(|words| words.tail.saturating_add(extent), time, until)?;
        }
        let reserved = self.regions.host.now();
        let position = self.regions.metadata.fetch_add(TAIL, extent)?;
        let end = position.saturating_add(extent);
        self.regions.shape.check_words(Words { head: position, tail: position })?;
        if position < self.tail {
            return Err(damaged(format!("the tail went back from {} to {position}", self.tail)));
        }
        self.tail = end;
        let has_room = self.regions.shape.has_room(self.head, end);
        // A cleaner that takes this writer for dead closes the hole after the hole time at the earliest.
        if !has_room || self.regions.host.now() - reserved >= self.regions.hole_time() / 2 {
            self.pending = Some((position, extent));
            if !has_room {
                self.await_room(|_| end, time, until)?;
            }
            self.check_registered(position)?;
            self.pending = None;
        }
        let place = self.regions.shape.place(position);
        let bytes = self.draft.seal(&self.regions.shape, position, self.id);
        match self.regions.ring.write(place, bytes) {
            Ok(()) => {
                self.draft.clear();
                Ok(position)
            }
            Err(source) if source.may_have_executed() => {
                self.is_broken = true;
                self.draft.clear();
                Err(LogError::Uncertain { position, source })
            }
            Err(error) => {
                self.pending = Some((position, extent));
                Err(error.into())
            }
        }
    }

    /// Waits until there is room up to the position that `end` returns. Updates the known words.
    fn await_room(
        &mut self,
        end: impl Fn(Words) -> u64,
        waited: Duration,
        until: Nanos,
    ) -> Result<(), LogError> {
        let mut pauses = Pauses::until(until);
        loop {
            let words = self.regions.words()?;
            (self.head, self.tail) = (self.head.max(words.head), self.tail.max(words.tail));
            if self.regions.shape.has_room(words.head, end(words)) {
                return Ok(());
            }
            // The cleaner may wait for this writer in turn, at a hole that is not of this writer.
            self.publish(self.pending.map_or(words.tail, |(position, _)| position))?;
            if !pauses.pause(&self.regions.host) {
                return Err(LogError::Full { waited });
            }
        }
    }

    /// Checks, after a wait, that nobody has evicted this writer and closed its reservation at `position`.
    fn check_registered(&mut self, position: u64) -> Result<(), LogError> {
        // The device reads the word: a processor may see an old value.
        if self.regions.metadata.compare_swap(self.row, self.id, self.id)? != self.id {
            (self.is_broken, self.is_registered) = (true, false);
            return Err(LogError::Evicted);
        }
        if self.head > position {
            self.is_broken = true;
            return Err(damaged(format!("the head {} passed a reservation at {position}", self.head)));
        }
        Ok(())
    }

    /// Publishes that this writer has nothing under way before a position.
    fn publish(&mut self, watermark: u64) -> Result<(), LogError> {
        if watermark > self.watermark {
            self.regions.metadata.write(self.row + 8, &watermark.to_le_bytes())?;
            self.watermark = watermark;
        }
        Ok(())
    }

    /// Voids a reservation that was not written.
    fn settle(&mut self, waited: Duration, until: Nanos) -> Result<(), LogError> {
        if self.is_broken {
            return Err(if self.is_registered { LogError::Broken } else { LogError::Evicted });
        }
        let Some((position, extent)) = self.pending else { return Ok(()) };
        self.await_room(|_| position + extent, waited, until)?;
        self.check_registered(position)?;
        let bytes = void(&self.regions.shape, position, extent, self.id);
        match self.regions.ring.write(self.regions.shape.place(position), &bytes) {
            Ok(()) => {
                self.pending = None;
                Ok(())
            }
            Err(error) => {
                self.is_broken = error.may_have_executed();
                Err(error.into())
            }
        }
    }

    /// States that this writer has nothing under way, so that it does not keep a cleaner from closing a hole. A
    /// writer that commits rarely calls this from time to time.
    ///
    /// # Errors
    /// The writer was evicted or is broken, a reservation still waits for room, or the tier fails.
    pub fn keep_alive(&mut self) -> Result<(), LogError> {
        self.settle(Duration::ZERO, 0)?;
        let words = self.regions.words()?;
        self.check_registered(u64::MAX)?;
        (self.head, self.tail) = (self.head.max(words.head), self.tail.max(words.tail));
        self.publish(words.tail)
    }
}

impl<T: AnyTier> Drop for Writer<T> {
    fn drop(&mut self) {
        // A WRITE of a broken writer may still be under way. A writer that cannot leave stays in the table until it
        // is evicted.
        if self.is_registered && !self.is_broken {
            let _ = self.regions.strike(self.row, self.id);
            drop(self.life.take());
        }
        // The lock of another writer stays until the process ends: so a WRITE that is under way keeps the row.
    }
}
