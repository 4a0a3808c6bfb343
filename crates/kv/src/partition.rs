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

/// Longest key, in bytes (memcached's limit, which Jakiro is measured against).
pub const MAX_KEY_LENGTH: usize = 250;
/// Longest value, in bytes: 1 MiB.
pub const MAX_VALUE_LENGTH: usize = 1 << 20;

/// Keys looked up together by [`Partition::multiget`], so that their cache misses overlap.
const GROUP: usize = 16;
/// Blocks of memory a partition asks the allocator for.
const BLOCKS: usize = 4;
/// What the allocator may add to each block: its own header, and rounding up to a page.
const BLOCK_OVERHEAD: usize = 4096 + 64;
/// Value memory per item that the index is sized for unless told otherwise: an item of the paper's
/// workload (16-byte key, 32-byte value, 8-byte header) in its chunk.
const DEFAULT_ITEM_BYTES: usize = 64;
/// Mean occupancy of a bucket that the index is sized for: half full, so that few buckets overflow.
const ITEMS_PER_BUCKET: usize = SLOTS / 2;

/// How to make a [`Partition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionConfig {
    /// Every byte the partition may ever hold: index, value memory, tables, the allocator's overhead and the
    /// struct itself.
    pub memory_limit: usize,
    /// Items the index is sized for, at half-full buckets. `None`: as many as the memory holds of the paper's small
    /// items (64 bytes of value memory each), which costs a fifth of the limit; give the number when items are larger.
    pub expected_items: Option<usize>,
    /// Which partition this is, in `0..count`; checked against each key by [`dispatch::handle`](crate::dispatch::handle).
    pub index: usize,
    /// How many partitions the store has.
    pub count: usize,
    /// Ask for transparent huge pages under index and values (Linux; advice that the system may ignore). GETs over
    /// more than a few MiB take about half the time, but memory becomes resident in steps of 2 MiB, and the index,
    /// which is used at random, nearly at once.
    pub huge_pages: bool,
}

impl PartitionConfig {
    /// The only partition of its store, within `memory_limit` bytes, sized for small items.
    pub fn new(memory_limit: usize) -> Self {
        Self { memory_limit, expected_items: None, index: 0, count: 1, huge_pages: true }
    }

    /// Whether a key of this hash belongs to the partition.
    #[inline]
    pub fn owns(&self, hash: KeyHash) -> bool {
        hash.partition(self.count) == self.index
    }
}

/// What a successful PUT did besides storing the item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOutcome {
    /// The key was there before; its old value is gone.
    pub replaced: bool,
    /// The bucket was full, and its least recently used item went.
    pub evicted_from_bucket: bool,
    /// Items that went because their memory was wanted.
    pub evicted_for_memory: u32,
}

/// Counters of a partition since it was made, and its size now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items stored now.
    pub items: u64,
    /// Bytes of their keys and values.
    pub item_bytes: u64,
    /// Memory in use now, in bytes: everything fixed plus the pages that hold items. Never above `memory_limit`.
    pub used_bytes: u64,
    /// Memory set aside when the partition was made, in bytes; constant, never above `memory_limit`.
    pub reserved_bytes: u64,
    /// The limit given.
    pub memory_limit: u64,
    /// Keys found by GET and MULTIGET.
    pub hits: u64,
    /// Keys not found by GET and MULTIGET.
    pub misses: u64,
    /// Successful PUTs.
    pub puts: u64,
    /// Items removed by DELETE.
    pub deletes: u64,
    /// Items evicted from a full bucket (strict LRU).
    pub evicted_from_bucket: u64,
    /// Items evicted because their memory was wanted.
    pub evicted_for_memory: u64,
}

/// One partition of the store (RF-RPC section 5.1), exclusively owned: every operation takes `&mut self`, so
/// exactly one worker reads and writes it (EREW). It may be moved to another thread, nothing in it blocks, and after
/// it is made no operation allocates memory.
///
/// # Index
/// Buckets of eight slots, 64 bytes each, with a 16-bit tag per slot: a GET of a small item touches two cache lines, the
/// bucket and the item. A PUT into a full bucket evicts that bucket's least recently used item, strictly.
///
/// # Memory
/// All memory is set aside when the partition is made, and counted against the limit before it is; it is
/// zeroed lazily by the system, so untouched memory is not resident. When the value memory is full, a PUT evicts:
/// * a small item (up to 8 KiB with its 8-byte header and key) evicts one item of its size class, by a clock with a
///   second chance for items read or replaced meanwhile. Once per 16 KiB of such evictions the class also takes over 16 KiB
///   from the memory under a hand that goes round all pages, so memory follows a change of sizes;
/// * a larger item takes consecutive 4 KiB pages, and evicts whatever lies in the next such window under that hand.
///
/// A value is always one contiguous slice of the store. An item larger than the whole value memory is refused; any other
/// PUT finds room.
pub struct Partition {
    buckets: Buckets,
    heap: Heap,
    config: PartitionConfig,
    counters: Counters,
    /// Bytes that are in use whatever is stored: everything but the value pages.
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

/// A key that was found.
#[derive(Clone, Copy)]
struct Found {
    bucket: usize,
    slot: usize,
    location: Location,
    value: ValuePlace,
}

impl Partition {
    /// The only partition of its store, sized for small items. See [`Partition::with_config`].
    pub fn new(memory_limit: usize) -> Result<Self, PartitionError> {
        Self::with_config(PartitionConfig::new(memory_limit))
    }

    /// Sets all memory aside. Asks the operating system for memory, does not touch it.
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
                // A fifth of the limit goes to the default index, rounded up to whole buckets.
                None => fixed + (smallest_heap + BUCKET_BYTES) * 5 / 4 + BUCKET_BYTES,
            };
            return Err(PartitionError::LimitTooSmall { limit, minimum });
        }
        // Bits, not bytes, per page: 8 for each byte of page and state, and 1 in the bitmap.
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

    /// How it was made.
    #[inline]
    pub fn config(&self) -> &PartitionConfig {
        &self.config
    }

    /// The value of `key`, borrowed from the store. Makes it the most recently used item of its bucket.
    #[inline]
    pub fn get(&mut self, key: &[u8]) -> Option<&[u8]> {
        self.get_hashed(KeyHash::of(key), key)
    }

    /// [`Partition::get`] for a caller who has the key's hash.
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

    /// Starts to load the bucket of a key that will be asked for soon, without waiting: for a worker that sees several
    /// requests at once. Changes nothing.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.buckets.prefetch(hash.bucket(self.buckets.count()));
    }

    /// Starts to load the item that a key's bucket names, if it names one; waits for the bucket. Changes nothing.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        let bucket = hash.bucket(self.buckets.count());
        self.prefetch_first(bucket, self.buckets.matching(bucket, hash.tag()));
    }

    /// Starts to load the item of the first of these slots, which most likely is the one that is asked for.
    #[inline]
    fn prefetch_first(&self, bucket: usize, mut slots: SlotSet) {
        if let Some(slot) = slots.next() {
            self.heap.prefetch(self.buckets.location(bucket, slot));
        }
    }

    /// Whether `key` is stored. Counts as no use of it: neither recency nor hits and misses change.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.find(KeyHash::of(key), key).is_some()
    }

    /// Looks up many keys and hands each value, or `None`, to `visit` in the order of the keys; stops at its first
    /// error. The same as a GET of each, but groups of keys are looked up together so that their cache misses
    /// overlap. A PUT or DELETE cannot come between, since the partition stays borrowed.
    pub fn multiget<'k, E>(
        &mut self,
        keys: impl IntoIterator<Item = &'k [u8]>,
        visit: impl FnMut(Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.multiget_hashed(keys.into_iter().map(|key| (KeyHash::of(key), key)), visit)
    }

    /// [`Partition::multiget`] for a caller who has the keys' hashes.
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
            // Each pass waits for nothing that it started itself: all the group's cache misses are under way at once.
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

    /// Stores `value` under `key`, in place of an earlier value if there is one, and makes it the most recently used
    /// item of its bucket. On an error nothing has changed.
    #[inline]
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, PutError> {
        self.put_hashed(KeyHash::of(key), key, value)
    }

    /// [`Partition::put`] for a caller who has the key's hash.
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
            // A key that is written again is in use as much as one that is read.
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

    /// Removes `key`; says whether it was there.
    #[inline]
    pub fn delete(&mut self, key: &[u8]) -> bool {
        self.delete_hashed(KeyHash::of(key), key)
    }

    /// [`Partition::delete`] for a caller who has the key's hash.
    pub fn delete_hashed(&mut self, hash: KeyHash, key: &[u8]) -> bool {
        let found = self.find(hash, key);
        if let Some(found) = found {
            self.remove(found);
            self.counters.deletes += 1;
        }
        found.is_some()
    }

    /// The counters and sizes now.
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
