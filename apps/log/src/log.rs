//! A log as a whole: its creation, its state and its end.

use crate::error::LogError;
use crate::layout::{CLEANER, FIXED, MOST_LONGEST, SLOT, Shape, hash, row_at};
use crate::regions::{Regions, WriterInfo, named, ring_name};
use dunlin_fabric::Host;
use dunlin_tier_node::{AnyLmr, AnyTier, Rights, Spec};
use std::time::Duration;

/// Settings of a log to create.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Bytes that the log holds, rounded up to a multiple of 64. Default: 1 MiB.
    pub capacity: u64,
    /// The longest transaction in bytes, with 32 bytes of its own and 4 of each entry. Default: an eighth of the
    /// capacity, at most 1 MiB.
    pub longest: Option<u64>,
    /// The most writers at the same time. Default: 256.
    pub writers: u32,
    /// The time after which another cleaner may take over from one that does nothing. Default: 2 s.
    pub lease: Duration,
    /// The time for which a hole stands before a cleaner examines whether somebody can still write it. Default: 1 s.
    pub hole_time: Duration,
    /// The nodes that store the log, and the grants of its regions. A writer and a cleaner need READ and WRITE, a
    /// reader needs READ. Default: this node, no grants.
    pub place: Spec,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            capacity: 1 << 20,
            longest: None,
            writers: 256,
            lease: Duration::from_secs(2),
            hole_time: Duration::from_secs(1),
            place: Spec::here(),
        }
    }
}

impl LogConfig {
    fn shape(&self, id: u64, own_node: &str) -> Result<Shape, LogError> {
        let slots = |bytes: u64| bytes.checked_next_multiple_of(SLOT).unwrap_or(u64::MAX);
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let longest = self.longest.unwrap_or((self.capacity / 8).clamp(SLOT, MOST_LONGEST.min(1 << 20)));
        let shape = Shape {
            id,
            capacity: slots(self.capacity),
            longest: slots(longest),
            writers: self.writers,
            lease_ms: ms(self.lease),
            hole_ms: ms(self.hole_time),
            store: hash(self.place.nodes().next().unwrap_or(own_node)),
        };
        shape.check()?;
        Ok(shape)
    }
}

/// The state of a log.
#[derive(Clone, Debug)]
pub struct Status {
    /// Bytes that the log holds.
    pub capacity: u64,
    /// The longest transaction in bytes.
    pub longest: u64,
    /// Everything before this position was cleaned.
    pub head: u64,
    /// The end of all reservations.
    pub tail: u64,
    /// The number of the cleaner, if there is one.
    pub cleaner: Option<u32>,
    /// The registered writers.
    pub writers: Vec<WriterInfo>,
}

/// Creates a log, as two regions: `NAME` and `NAME/ring`. It lives until it is destroyed.
///
/// # Errors
/// A setting is out of range, the name is taken, or the tier refuses. Nothing is left then, as far as the tier answers.
pub fn create<T: AnyTier>(tier: &T, name: &str, config: &LogConfig) -> Result<(), LogError> {
    let shape = config.shape(tier.host().random() | 1, tier.node_name())?;
    let place = || config.place.clone();
    let ring = tier.malloc(shape.ring_bytes(), place().named(ring_name(name)));
    let ring = ring.map_err(|error| named(name, error))?;
    let written =
        tier.malloc(shape.metadata_bytes(), place().named(name)).map_err(|error| named(name, error));
    let written = written.and_then(|metadata| {
        // The magic number comes last: nobody finds half of the settings.
        let fixed = shape.encode();
        let written = metadata.write(8, &fixed[8..]).and_then(|()| metadata.write(0, &fixed[..8]));
        if written.is_err() {
            metadata.free()?;
        }
        Ok(written?)
    });
    if written.is_err() {
        ring.free()?;
    }
    written
}

/// Returns the state of a log. Needs READ.
///
/// # Errors
/// There is no such log, it is damaged, or the tier fails.
pub fn status<T: AnyTier>(tier: &T, name: &str) -> Result<Status, LogError> {
    let regions = Regions::map(tier, name, Rights::READ, Rights::READ)?;
    let words = regions.words()?;
    let mut lease = [0; 8];
    regions.metadata.read(CLEANER, &mut lease)?;
    let owner = (u64::from_le_bytes(lease) >> 32) as u32;
    Ok(Status {
        capacity: regions.shape.capacity,
        longest: regions.shape.longest,
        head: words.head,
        tail: words.tail,
        cleaner: (owner != 0).then_some(owner),
        writers: regions.table()?.into_iter().flatten().collect(),
    })
}

/// Declares that a writer has ended, so that a cleaner may close the hole that it left. The caller must know that its
/// process has ended: a late WRITE of a writer that runs on may damage a newer transaction.
///
/// # Errors
/// There is no such writer or no such log, the log is damaged, or the tier fails.
pub fn evict<T: AnyTier>(tier: &T, name: &str, id: u64) -> Result<(), LogError> {
    let regions = Regions::map(tier, name, Rights::READ.with(Rights::WRITE), Rights::READ)?;
    let row = regions.table()?.iter().position(|row| row.as_ref().is_some_and(|row| row.id == id));
    match regions.strike(row_at(row.ok_or(LogError::NoWriter { id })?), id)? {
        true => Ok(()),
        false => Err(LogError::NoWriter { id }),
    }
}

/// Frees the regions of a log, also of a damaged one, and of one whose creator has not finished. Needs MASTER.
///
/// # Errors
/// There is neither region, or the tier refuses.
pub fn destroy<T: AnyTier>(tier: &T, name: &str) -> Result<(), LogError> {
    let mut found = false;
    let ring = ring_name(name);
    for region in [name, &ring] {
        match tier.map(region.as_bytes(), Rights::MASTER).map_err(|error| named(name, error)) {
            Ok(region) => {
                region.free()?;
                found = true;
            }
            Err(LogError::NoSuch { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if found { Ok(()) } else { Err(LogError::NoSuch { name: name.to_owned() }) }
}

const _: () = assert!(FIXED as u64 <= crate::layout::TAIL);
