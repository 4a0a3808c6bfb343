//! One partition of the store, owned by one worker.

use crate::bucket::{BUCKET_BYTES, Buckets, SLOTS, SlotSet};
use crate::error::{PartitionError, PutError};
use crate::hash::KeyHash;
use crate::heap::{
    ALIGNMENT_SLACK, HEADER_BYTES, Heap, HeapMemory, Location, MAX_PAGES, PAGE_STATE_BYTES, ValuePlace,
};
use crate::memory::{advise_huge_pages, zeroed};
use crate::page_map::PageMap;
use crate::size_class::{Footprint, PAGE_BYTES, SLAB_PAGES};

/// Longest key, in bytes: the limit of memcached, with which Jakiro is compared.
pub const MAX_KEY_LENGTH: usize = 250;
/// Longest value, in bytes: 1 MiB.
pub const MAX_VALUE_LENGTH: usize = 1 << 20;

/// Keys that [`Partition::multiget`] looks up together, so that their cache misses overlap.
const GROUP: usize = 16;
/// Memory blocks that a partition allocates.
const BLOCKS: usize = 4;
/// Overhead of the allocator per block: its header, and rounding up to a page.
const BLOCK_OVERHEAD: usize = 4096 + 64;
/// Default value memory per item, for the size of the index: an item of the paper's workload (16-byte key,
/// 32-byte value, 8-byte header) in its chunk.
const DEFAULT_ITEM_BYTES: usize = 64;
/// Mean occupancy of a bucket for the size of the index: half full, so that few buckets overflow.
const ITEMS_PER_BUCKET: usize = SLOTS / 2;

/// Settings of a [`Partition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionConfig {
    /// All memory that the partition may ever hold, in bytes: index, value memory, tables, the allocator's
    /// overhead and the struct itself. No default: [`PartitionConfig::new`] takes it.
    pub memory_limit: usize,
    /// Expected items, for the size of the index at half-full buckets. `None` assumes the paper's small items
    /// (64 bytes of value memory each) and spends a fifth of the limit; give the number if items are larger.
    /// Default: `None`.
    pub expected_items: Option<usize>,
    /// The partition's index, in `0..count`; [`dispatch::handle`](crate::dispatch::handle) checks each key
    /// against it. Default: 0.
    pub index: usize,
    /// Partitions of the store. Default: 1.
    pub count: usize,
    /// Asks for transparent huge pages for index and values (Linux; the system may ignore the hint). GETs
    /// over more than a few MiB then take about half the time. In return memory becomes resident in steps of
    /// 2 MiB, and the randomly accessed index almost at once. Default: true.
    pub huge_pages: bool,
}

impl PartitionConfig {
    /// Returns the settings of a store's only partition, within `memory_limit` bytes, sized for small items.
    pub fn new(memory_limit: usize) -> Self {
        Self { memory_limit, expected_items: None, index: 0, count: 1, huge_pages: true }
    }

    /// Returns whether a key with this hash belongs to the partition.
    #[inline]
    pub fn owns(&self, hash: KeyHash) -> bool {
        hash.partition(self.count) == self.index
    }
}

/// The effects of a successful PUT, apart from storing the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOutcome {
    /// The key was there before, and its old value was replaced.
    pub replaced: bool,
    /// The bucket was full, and its least recently used item was evicted.
    pub evicted_from_bucket: bool,
    /// Items evicted for their memory.
    pub evicted_for_memory: u32,
}

/// Counters of a partition since its creation, and its current size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items stored now.
    pub items: u64,
    /// Bytes of their keys and values.
    pub item_bytes: u64,
    /// Memory in use now, in bytes: all fixed memory and the pages that hold items. Never above
    /// `memory_limit`.
    pub used_bytes: u64,
    /// Memory allocated at creation, in bytes; constant, never above `memory_limit`.
    pub reserved_bytes: u64,
    /// The configured limit, in bytes.
    pub memory_limit: u64,
    /// Keys found by GET and MULTIGET.
    pub hits: u64,
    /// Keys not found by GET and MULTIGET.
    pub misses: u64,
    /// Successful PUTs.
    pub puts: u64,
    /// Items removed by DELETE.
    pub deletes: u64,
    /// Items evicted from full buckets (strict LRU).
    pub evicted_from_bucket: u64,
    /// Items evicted for their memory.
    pub evicted_for_memory: u64,
}

/// One partition of the store (RF-RPC section 5.1), with an exclusive owner.
///
/// Every operation takes `&mut self`, so exactly one worker reads and writes a partition (EREW). It may be
/// moved to another thread. No operation blocks, and after creation no operation allocates memory.
///
/// # Index
/// Buckets of eight slots, 64 bytes each, with a 16-bit tag per slot: a GET of a small item touches two cache
/// lines, the bucket and the item. A PUT into a full bucket evicts that bucket's least recently used item
/// (strict LRU).
///
/// # Memory
/// All memory is allocated at creation, after a check against the limit. The system zeroes it lazily, so
/// untouched memory is not resident. When the value memory is full, a PUT evicts:
/// * for a small item (up to 8 KiB with its 8-byte header and key), one item of its size class, by a clock
///   that gives items a second chance if they were read or replaced since its last pass. Once per 16 KiB of
///   such evictions the class also takes over 16 KiB at a hand that rotates over all pages, so that memory
///   follows a change of sizes;
/// * for a larger item, which takes consecutive 4 KiB pages, all items in the next such window at that hand.
///
/// A value is always one contiguous slice. A PUT of an item larger than the whole value memory fails; any
/// other PUT finds room.
pub struct Partition {
    buckets: Buckets,
    heap: Heap,
    config: PartitionConfig,
    counters: Counters,
    /// Bytes in use independent of the stored items: everything except the value pages.
    fixed_bytes: usize,
}

#[derive(Default)]
struct Counters {
    items: u64,
    item_bytes: u64,
    hits: u64,
    misses: u64,
    puts: u64,
    deletes: u64,
    evicted_from_bucket: u64,
    evicted_for_memory: u64,
}

/// The place of a key that was found.
#[derive(Clone, Copy)]
struct Found {
    bucket: usize,
    slot: usize,
    location: Location,
    value: ValuePlace,
}

impl Partition {
    /// Creates the only partition of its store, sized for small items. See [`Partition::with_config`].
    pub fn new(memory_limit: usize) -> Result<Self, PartitionError> {
        Self::with_config(PartitionConfig::new(memory_limit))
    }

    /// Creates a partition and allocates all its memory, without touching it. Fails if the limit is too small
    /// or too large, the index is not below the count, or the system refuses the memory.
    pub fn with_config(config: PartitionConfig) -> Result<Self, PartitionError> {
        let PartitionConfig { memory_limit: limit, expected_items, index, count, huge_pages } = config;
        if index >= count {
            return Err(PartitionError::NoSuchPartition { index, count });
        }
        let fixed = size_of::<Self>() + BLOCKS * BLOCK_OVERHEAD + BUCKET_BYTES + ALIGNMENT_SLACK + 8;
        let smallest_heap = SLAB_PAGES * (PAGE_BYTES + PAGE_STATE_BYTES) + 8;
        let items = expected_items.unwrap_or_else(|| {
            limit.saturating_sub(fixed) / (DEFAULT_ITEM_BYTES + BUCKET_BYTES / ITEMS_PER_BUCKET)
        });
        let wanted_buckets = items.div_ceil(ITEMS_PER_BUCKET).max(1);
        let minimum = wanted_buckets.saturating_mul(BUCKET_BYTES).saturating_add(fixed + smallest_heap);
        if minimum > limit {
            let minimum = match expected_items {
                Some(_) => minimum,
                // The default index takes a fifth of the limit, rounded up to whole buckets.
                None => fixed + (smallest_heap + BUCKET_BYTES) * 5 / 4 + BUCKET_BYTES,
            };
            return Err(PartitionError::LimitTooSmall { limit, minimum });
        }
        // In bits per page: 8 for each byte of page and state, and 1 in the bitmap.
        let room = limit - fixed - wanted_buckets * BUCKET_BYTES;
        let pages = (room as u128 * 8 / ((PAGE_BYTES + PAGE_STATE_BYTES) as u128 * 8 + 1)) as usize;
        let bucket_count = u32::try_from(wanted_buckets).ok();
        let (Some(bucket_count), true) = (bucket_count, pages <= MAX_PAGES) else {
            let maximum = MAX_PAGES * PAGE_BYTES;
            return Err(PartitionError::LimitTooLarge { limit, maximum });
        };

        let mut words = zeroed::<u32>(Buckets::words_for(bucket_count))?;
        let mut memory = HeapMemory {
            bytes: zeroed::<u8>(pages * PAGE_BYTES + ALIGNMENT_SLACK)?,
            map: zeroed::<u64>(PageMap::words_for(pages))?,
        };
        if huge_pages {
            advise_huge_pages(&mut words);
            advise_huge_pages(&mut memory.bytes);
        }
        let buckets = Buckets::new(words, bucket_count);
        let heap = Heap::new(memory, pages).map_err(|bytes| PartitionError::AllocationFailed { bytes })?;
        let fixed_bytes =
            fixed + wanted_buckets * BUCKET_BYTES + pages * PAGE_STATE_BYTES + pages.div_ceil(8);
        debug_assert!(fixed_bytes + heap.capacity() <= limit);
        Ok(Self { buckets, heap, config, counters: Counters::default(), fixed_bytes })
    }

    /// Returns the settings.
    #[inline]
    pub fn config(&self) -> &PartitionConfig {
        &self.config
    }

    /// Returns the value of `key`, borrowed from the store. Makes it the most recently used item of its
    /// bucket.
    #[inline]
    pub fn get(&mut self, key: &[u8]) -> Option<&[u8]> {
        self.get_hashed(KeyHash::of(key), key)
    }

    /// Like [`Partition::get`], for a caller that has the key's hash.
    #[inline]
    pub fn get_hashed(&mut self, hash: KeyHash, key: &[u8]) -> Option<&[u8]> {
        match self.find(hash, key) {
            Some(found) => {
                self.note_hit(found);
                Some(self.heap.value(found.value))
            }
            None => {
                self.counters.misses += 1;
                None
            }
        }
    }

    /// Prefetches the bucket of a key, for a worker that sees several requests at once. Changes nothing and
    /// does not wait.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.buckets.prefetch(hash.bucket(self.buckets.count()));
    }

    /// Prefetches the item to which a key's bucket points, if any; waits for the bucket. Changes nothing.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        let bucket = hash.bucket(self.buckets.count());
        self.prefetch_first(bucket, self.buckets.matching(bucket, hash.tag()));
    }

    /// Prefetches the item of the first of these slots, most likely the requested one.
    #[inline]
    fn prefetch_first(&self, bucket: usize, mut slots: SlotSet) {
        if let Some(slot) = slots.next() {
            self.heap.prefetch(self.buckets.location(bucket, slot));
        }
    }

    /// Returns whether `key` is stored. Does not count as a use: recency, hits and misses stay the same.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.find(KeyHash::of(key), key).is_some()
    }

    /// Looks up many keys and passes each value, or `None`, to `visit` in the order of the keys; stops at its
    /// first error. Equivalent to a GET of each key, but groups of keys are looked up together so that their
    /// cache misses overlap. No PUT or DELETE can intervene, since the partition stays borrowed.
    pub fn multiget<'k, E>(
        &mut self,
        keys: impl IntoIterator<Item = &'k [u8]>,
        visit: impl FnMut(Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.multiget_hashed(keys.into_iter().map(|key| (KeyHash::of(key), key)), visit)
    }

    /// Like [`Partition::multiget`], for a caller that has the keys' hashes.
    pub fn multiget_hashed<'k, E>(
        &mut self,
        keys: impl IntoIterator<Item = (KeyHash, &'k [u8])>,
        mut visit: impl FnMut(Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut keys = keys.into_iter();
        let mut group: [&[u8]; GROUP] = [&[]; GROUP];
        let mut probes = [(0, 0, SlotSet::default()); GROUP];
        loop {
            let mut length = 0;
            // No pass waits for its own loads, so that all the group's cache misses overlap.
            for ((place, probe), (hash, key)) in group.iter_mut().zip(&mut probes).zip(&mut keys) {
                let bucket = hash.bucket(self.buckets.count());
                self.buckets.prefetch(bucket);
                *place = key;
                *probe = (bucket, hash.tag(), SlotSet::default());
                length += 1;
            }
            for (bucket, tag, slots) in &mut probes[..length] {
                *slots = self.buckets.matching(*bucket, *tag);
                self.prefetch_first(*bucket, *slots);
            }
            let mut found = [None; GROUP];
            for ((found, key), (bucket, _, slots)) in found.iter_mut().zip(&group[..length]).zip(probes) {
                *found = self.find_among(bucket, slots, key);
            }
            for found in &found[..length] {
                match *found {
                    Some(found) => {
                        self.note_hit(found);
                        visit(Some(self.heap.value(found.value)))?;
                    }
                    None => {
                        self.counters.misses += 1;
                        visit(None)?;
                    }
                }
            }
            if length < GROUP {
                return Ok(());
            }
        }
    }

    /// Stores `value` under `key`, replaces an earlier value, and makes the item the most recently used of
    /// its bucket. An error leaves the partition unchanged.
    #[inline]
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, PutError> {
        self.put_hashed(KeyHash::of(key), key, value)
    }

    /// Like [`Partition::put`], for a caller that has the key's hash.
    pub fn put_hashed(&mut self, hash: KeyHash, key: &[u8], value: &[u8]) -> Result<PutOutcome, PutError> {
        if key.is_empty() {
            return Err(PutError::KeyEmpty);
        }
        if key.len() > MAX_KEY_LENGTH {
            return Err(PutError::KeyTooLarge { length: key.len() });
        }
        if value.len() > MAX_VALUE_LENGTH {
            return Err(PutError::ValueTooLarge { length: value.len() });
        }
        let footprint = Footprint::of(HEADER_BYTES + key.len() + value.len());
        if !self.heap.can_ever_hold(footprint) {
            let needed = footprint.pages() * PAGE_BYTES;
            return Err(PutError::OutOfMemory { needed, capacity: self.heap.capacity() });
        }

        let mut outcome = PutOutcome::default();
        if let Some(found) = self.find(hash, key) {
            outcome.replaced = true;
            if self.heap.footprint(found.location) == footprint {
                let (_, old_length) = self.heap.item(found.location);
                self.heap.write(found.location, key, value);
                self.heap.mark_referenced(found.location);
                self.buckets.touch(found.bucket, found.slot);
                self.counters.item_bytes -= old_length as u64;
                self.counters.item_bytes += value.len() as u64;
                self.counters.puts += 1;
                return Ok(outcome);
            }
            self.remove(found);
        }

        let bucket = hash.bucket(self.buckets.count());
        if self.buckets.matching(bucket, 0).next().is_none() {
            self.evict_least_recent(bucket);
            outcome.evicted_from_bucket = true;
        }
        let location = {
            let Self { buckets, heap, counters, .. } = self;
            heap.allocate(footprint, |victim| {
                let hash = KeyHash::of(victim.key);
                let bucket = hash.bucket(buckets.count());
                let slot = buckets.slot_at(bucket, victim.location, hash.tag());
                buckets.clear(bucket, slot.expect("every item in memory has its slot"));
                counters.forget(victim.key.len() + victim.value_length);
                counters.evicted_for_memory += 1;
                outcome.evicted_for_memory += 1;
            })
        };
        self.heap.write(location, key, value);
        if outcome.replaced {
            // A rewritten key counts as used, like one that is read.
            self.heap.mark_referenced(location);
        }
        let slot = self.buckets.matching(bucket, 0).next().expect("a slot was made free above");
        self.buckets.set(bucket, slot, hash.tag(), location);
        self.buckets.touch(bucket, slot);
        self.counters.items += 1;
        self.counters.item_bytes += (key.len() + value.len()) as u64;
        self.counters.puts += 1;
        Ok(outcome)
    }

    /// Removes `key`; returns whether it was there.
    #[inline]
    pub fn delete(&mut self, key: &[u8]) -> bool {
        self.delete_hashed(KeyHash::of(key), key)
    }

    /// Like [`Partition::delete`], for a caller that has the key's hash.
    pub fn delete_hashed(&mut self, hash: KeyHash, key: &[u8]) -> bool {
        let found = self.find(hash, key);
        if let Some(found) = found {
            self.remove(found);
            self.counters.deletes += 1;
        }
        found.is_some()
    }

    /// Returns the current counters and sizes.
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            items: counters.items,
            item_bytes: counters.item_bytes,
            used_bytes: (self.fixed_bytes + self.heap.taken_bytes()) as u64,
            reserved_bytes: (self.fixed_bytes + self.heap.capacity()) as u64,
            memory_limit: self.config.memory_limit as u64,
            hits: counters.hits,
            misses: counters.misses,
            puts: counters.puts,
            deletes: counters.deletes,
            evicted_from_bucket: counters.evicted_from_bucket,
            evicted_for_memory: counters.evicted_for_memory,
        }
    }

    #[inline]
    fn find(&self, hash: KeyHash, key: &[u8]) -> Option<Found> {
        let bucket = hash.bucket(self.buckets.count());
        self.find_among(bucket, self.buckets.matching(bucket, hash.tag()), key)
    }

    #[inline]
    fn find_among(&self, bucket: usize, slots: SlotSet, key: &[u8]) -> Option<Found> {
        for slot in slots {
            let location = self.buckets.location(bucket, slot);
            if let Some(value) = self.heap.find(location, key) {
                return Some(Found { bucket, slot, location, value });
            }
        }
        None
    }

    #[inline]
    fn note_hit(&mut self, found: Found) {
        self.buckets.touch(found.bucket, found.slot);
        self.heap.mark_referenced(found.location);
        self.counters.hits += 1;
    }

    fn remove(&mut self, found: Found) {
        let (key, value_length) = self.heap.item(found.location);
        self.counters.forget(key.len() + value_length);
        self.buckets.clear(found.bucket, found.slot);
        self.heap.release(found.location);
    }

    fn evict_least_recent(&mut self, bucket: usize) {
        let slot = self.buckets.least_recent(bucket);
        let location = self.buckets.location(bucket, slot);
        let (key, value_length) = self.heap.item(location);
        self.counters.forget(key.len() + value_length);
        self.counters.evicted_from_bucket += 1;
        self.buckets.clear(bucket, slot);
        self.heap.release(location);
    }
}

impl Counters {
    fn forget(&mut self, item_bytes: usize) {
        self.items -= 1;
        self.item_bytes -= item_bytes as u64;
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Partition")
            .field("config", &self.config)
            .field("stats", &self.stats())
            .finish()
    }
}
