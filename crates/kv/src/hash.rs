//! The hash of a key: selects the partition and the bucket, and distinguishes slots.

use xxhash_rust::xxh3::xxh3_64;

/// The hash of a key, computed once per operation and passed along.
///
/// The hash is XXH3-64 with seed 0: a specified, portable function, so that every client process, of any
/// version or language, sends a key to the same worker. It is not keyed: a writer can choose keys that share
/// a bucket, but thereby only evicts other keys of that bucket.
///
/// Each use has its own bits, so that the uses are independent: the top bits select the partition, bits 32 to
/// 47 are the slot's tag, and the low 32 bits select the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hashes `key`. Never blocks, never allocates.
    #[inline]
    pub fn of(key: &[u8]) -> Self {
        Self(xxh3_64(key))
    }

    /// Returns the index of the partition that owns the key, in `0..partitions` (0 if `partitions` is 0).
    ///
    /// Uniform for up to about 2^16 partitions; beyond that it shares bits with the slot tags.
    #[inline]
    pub fn partition(self, partitions: usize) -> usize {
        ((u128::from(self.0 >> 32) * partitions as u128) >> 32) as usize
    }

    /// Returns the bucket within the owning partition, in `0..buckets`.
    #[inline]
    pub(crate) fn bucket(self, buckets: u32) -> usize {
        (((self.0 & 0xffff_ffff) * u64::from(buckets)) >> 32) as usize
    }

    /// Returns the slot tag, never 0: 0 marks an empty slot.
    #[inline]
    pub(crate) fn tag(self) -> u16 {
        ((self.0 >> 32) as u16).max(1)
    }
}

/// Returns the index of the partition that owns `key`, in `0..partitions` (RF-RPC section 5.1: the key's hash
/// distributes data to the partitions). The same in every process and every release.
#[inline]
pub fn partition_of(key: &[u8], partitions: usize) -> usize {
    KeyHash::of(key).partition(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing_is_fixed_for_ever() {
        // Known answers of XXH3-64 with seed 0; with another hash, mixed deployments would not find stored
        // keys.
        assert_eq!(KeyHash::of(b"").0, 0x2d06_8005_38d3_94c2);
        let key = b"user000000000001";
        assert_eq!(partition_of(key, 1), 0);
        assert_eq!(partition_of(key, 8), (KeyHash::of(key).0 >> 61) as usize);
    }

    #[test]
    fn partitions_buckets_and_tags_spread_independently() {
        const PARTITIONS: usize = 4;
        const BUCKETS: u32 = 16;
        let mut per_bucket = [[0u32; BUCKETS as usize]; PARTITIONS];
        let mut tags = std::collections::HashSet::new();
        for number in 0..64_000u32 {
            let hash = KeyHash::of(format!("key{number}").as_bytes());
            per_bucket[hash.partition(PARTITIONS)][hash.bucket(BUCKETS)] += 1;
            if hash.partition(PARTITIONS) == 2 && hash.bucket(BUCKETS) == 5 {
                tags.insert(hash.tag());
            }
        }
        for count in per_bucket.iter().flatten() {
            assert!((800..1200).contains(count), "{per_bucket:?}");
        }
        assert!(tags.len() > 900, "{}", tags.len());
    }

    #[test]
    fn no_partitions_is_not_a_panic() {
        assert_eq!(partition_of(b"key", 0), 0);
        assert!(partition_of(b"key", usize::MAX >> 33) < usize::MAX >> 33);
    }
}
