//! The two regions of a log as one user has mapped them, and the words and rows of the metadata.

use crate::error::LogError;
use crate::layout::{FIXED, HEAD, LABEL, ROW, Shape, TABLE, TAIL, Words, damaged, hash, word};
use dunlin_fabric::{Host, Nanos};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_node::{AnyGuard, AnyLmr, AnyTier, OperationError, RequestError, Rights};
use std::ops::Range;
use std::time::Duration;

/// Bytes that another node has written are visible to the storing node's processor after this time.
pub(crate) const SETTLE: Duration = Duration::from_millis(2);
/// Reads of words that do not fit together, before they count as damage: the two are not read at one instant.
const READS: u32 = 4;
/// The first and the longest pause of a wait.
const PAUSES: (Nanos, Nanos) = (2_000, 500_000);

/// The mapped regions of a log.
pub(crate) struct Regions<T: AnyTier> {
    pub(crate) host: T::Host,
    pub(crate) metadata: T::Lmr,
    pub(crate) ring: T::Lmr,
    pub(crate) shape: Shape,
}

impl<T: AnyTier> std::fmt::Debug for Regions<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Regions").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// A registered writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterInfo {
    /// The number of the writer, which its transactions carry.
    pub id: u64,
    /// The label that it gave itself.
    pub label: String,
    /// The writer has a lock, by which a cleaner notices its end. If not, the tier refused one.
    pub is_watched: bool,
    /// The writer has nothing under way before this position.
    pub watermark: u64,
}

/// The bit of a writer's number that says that it has the lock of its row.
pub(crate) const WATCHED: u64 = 2;

/// The bit of a writer's number that says that the writer's own node owned the lock of its row.
const OWN: u64 = 4;
/// The place of the lock in a writer's number.
const LOCK_SHIFT: u32 = 3;
/// The locks of a row, of which its writer has one.
const LOCKS: u64 = 256;

/// Returns the number of a writer with these random bits, which has no lock.
pub(crate) fn unwatched(random: u64) -> u64 {
    random & !(WATCHED | OWN | ((LOCKS - 1) << LOCK_SHIFT)) | 1
}

/// Returns the locks that the next writer of a row may take: any, or that of the writer before.
pub(crate) fn locks_for(former: u64) -> Range<u64> {
    let lock = former >> LOCK_SHIFT & (LOCKS - 1);
    if former == 0 { 0..LOCKS } else { lock..lock + 1 }
}

/// Returns the name of the lock that the writer with this number has as long as it lives.
pub(crate) fn life_name(name: &str, row: usize, id: u64) -> String {
    match locks_for(id).start {
        0 => format!("{name}/writer/{row}"),
        lock => format!("{name}/writer/{row}/{lock}"),
    }
}

/// Returns whether a writer has ended, for the lock of its row that somebody else has got. A lock that is free without
/// a death of its holder proves nothing: its owner may have started again. If its owner was the writer's node, this node
/// has ended, and the writer with it.
pub(crate) fn has_died(life: &impl AnyGuard, id: u64) -> bool {
    life.is_poisoned() || id & OWN != 0
}

/// Returns the bits of a writer's number for a lock of its row: one that the node of the log owns if there is one, else
/// one that another node than the writer's owns. So no other node's end, and not that of the writer's node, hides the
/// writer's end.
pub(crate) fn choose_lock<T: AnyTier>(
    tier: &T,
    (name, row): (&str, usize),
    shape: &Shape,
    locks: Range<u64>,
) -> u64 {
    let first = WATCHED | locks.start << LOCK_SHIFT;
    let (mut other, mut own) = (None, 0);
    for lock in locks {
        let id = WATCHED | lock << LOCK_SHIFT;
        // A lock that has no owner now is refused later.
        let Ok(owner) = tier.lock_home(life_name(name, row, id).as_bytes()) else { break };
        let is_own = owner == tier.node_name();
        if hash(&owner) == shape.store {
            return if is_own { id | OWN } else { id };
        }
        if is_own {
            own = OWN;
        } else {
            other = other.or(Some(id));
        }
    }
    other.unwrap_or(first | own)
}

pub(crate) fn ring_name(name: &str) -> String {
    format!("{name}/ring")
}

/// Returns the error for a region of the log that could not be made or mapped.
pub(crate) fn named(name: &str, error: RequestError) -> LogError {
    let name = name.to_owned();
    match error {
        RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. } => {
            LogError::NoSuch { name }
        }
        RequestError::Refused { source: Refusal::Record(RecordError::Taken), .. } => {
            LogError::Exists { name }
        }
        error => LogError::Request(error),
    }
}

impl<T: AnyTier> Regions<T> {
    /// Maps the regions of a log and checks that they belong together.
    pub(crate) fn map(tier: &T, name: &str, metadata: Rights, ring: Rights) -> Result<Self, LogError> {
        let region = ring_name(name);
        let metadata = tier.map(name.as_bytes(), metadata).map_err(|error| named(name, error))?;
        if metadata.len() <= FIXED as u64 {
            return Err(damaged(format!("the region {name} has {} bytes, so it is no log", metadata.len())));
        }
        let mut fixed = [0; FIXED];
        metadata.read(0, &mut fixed)?;
        let shape = Shape::parse(&fixed, name)?;
        let ring = tier.map(region.as_bytes(), ring).map_err(|error| named(name, error))?;
        let sizes = [
            (name.to_owned(), metadata.len(), shape.metadata_bytes()),
            (region, ring.len(), shape.ring_bytes()),
        ];
        if let Some((region, found, expected)) = sizes.into_iter().find(|(_, found, wanted)| found != wanted)
        {
            return Err(LogError::WrongSize { region, found, expected });
        }
        Ok(Regions { host: tier.host().clone(), metadata, ring, shape })
    }

    /// Reads and checks the head and the tail.
    pub(crate) fn words(&self) -> Result<Words, LogError> {
        let mut bytes = [0; (HEAD + 8 - TAIL) as usize];
        let mut reads = 1;
        loop {
            self.metadata.read(TAIL, &mut bytes)?;
            let words = Words { tail: word(&bytes, 0), head: word(&bytes, (HEAD - TAIL) as usize) };
            match self.shape.check_words(words) {
                Ok(()) => return Ok(words),
                Err(error) if reads == READS => return Err(error),
                Err(_) => self.sleep(SETTLE),
            }
            reads += 1;
        }
    }

    /// Reads the table of writers; empty rows are `None`.
    pub(crate) fn table(&self) -> Result<Vec<Option<WriterInfo>>, LogError> {
        let mut bytes = vec![0; self.shape.writers as usize * ROW];
        self.metadata.read(TABLE, &mut bytes)?;
        let row = |row: &[u8]| {
            let label = row[ROW - LABEL..].split(|byte| *byte == 0).next().unwrap_or_default();
            let label = String::from_utf8_lossy(label).chars().filter(|c| !c.is_control()).collect();
            let (id, watermark) = (word(row, 0), word(row, 8));
            (id != 0).then_some(WriterInfo { id, label, is_watched: id & WATCHED != 0, watermark })
        };
        Ok(bytes.chunks_exact(ROW).map(row).collect())
    }

    /// Takes a writer off the table; returns whether it was there.
    pub(crate) fn strike(&self, row: u64, id: u64) -> Result<bool, OperationError> {
        Ok(self.metadata.compare_swap(row, id, 0)? == id)
    }

    pub(crate) fn sleep(&self, time: Duration) {
        self.host.sleep(self.host.now().saturating_add(nanos(time)));
    }

    pub(crate) fn lease(&self) -> Nanos {
        Nanos::from(self.shape.lease_ms) * 1_000_000
    }

    pub(crate) fn hole_time(&self) -> Nanos {
        Nanos::from(self.shape.hole_ms) * 1_000_000
    }
}

pub(crate) fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

/// The pauses of a wait, each twice as long as the one before.
pub(crate) struct Pauses {
    next: Nanos,
    until: Nanos,
}

impl Pauses {
    pub(crate) fn until(until: Nanos) -> Pauses {
        Pauses { next: PAUSES.0, until }
    }

    /// Sleeps; returns `false` without sleeping if the time is over.
    pub(crate) fn pause<H: Host>(&mut self, host: &H) -> bool {
        let now = host.now();
        if now >= self.until {
            return false;
        }
        host.sleep(now.saturating_add(self.next).min(self.until));
        self.next = (self.next * 2).min(PAUSES.1);
        true
    }
}
