//! A set-associative cache with least-recently-used replacement. Tags are in one flat array; no operation
//! allocates, and no seed is random.

/// Ways of the NIC's own caches.
const WAYS: usize = 8;

/// A key that is never used.
const NO_KEY: u64 = u64::MAX;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The tag was present.
    Hit,
    /// The tag was absent and took a free way.
    Filled,
    /// The tag was absent and evicted another.
    Evicted,
}

/// A cache of keys.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    /// `ways` tags per set, most recently used first; 0 is an empty way.
    tags: Vec<u32>,
    ways: usize,
    sets: usize,
    /// The key last passed to [`Cache::touch`]: it is present, and the most recently used.
    last: u64,
}

/// Spreads keys over sets and tags (the finaliser of SplitMix64).
pub(crate) fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Cache {
    /// Creates a cache of about `entries` entries (whole sets) that chooses sets by hashing.
    pub(crate) fn hashed(entries: usize) -> Cache {
        let ways = WAYS.min(entries.max(1));
        Cache::with_sets(entries.div_ceil(ways).max(1), ways)
    }

    /// Creates a cache whose sets the caller chooses.
    pub(crate) fn with_sets(sets: usize, ways: usize) -> Cache {
        Cache { tags: vec![0; sets * ways], ways, sets, last: NO_KEY }
    }

    /// Looks up a key and makes it the most recently used; returns whether it was present.
    pub(crate) fn touch(&mut self, key: u64) -> bool {
        if key == self.last {
            return true;
        }
        self.last = key;
        let hash = mix(key);
        let set = ((hash >> 32) * self.sets as u64) >> 32;
        self.touch_in(set as usize, (hash as u32) | 1, 0) == Found::Hit
    }

    /// Looks up a tag in a given set. An absent tag enters at `enters_at` in the order of use.
    pub(crate) fn touch_in(&mut self, set: usize, tag: u32, enters_at: usize) -> Found {
        let set = &mut self.tags[set * self.ways..][..self.ways];
        if enters_at == 0 {
            // One pass: each tag moves to the next place until the tag's own old place is reached.
            let mut carried = tag;
            for slot in set {
                std::mem::swap(slot, &mut carried);
                if carried == tag {
                    return Found::Hit;
                }
            }
            return if carried == 0 { Found::Filled } else { Found::Evicted };
        }
        if let Some(at) = set.iter().position(|known| *known == tag) {
            set[..=at].rotate_right(1);
            return Found::Hit;
        }
        let evicted = set[self.ways - 1] != 0;
        set[enters_at..].rotate_right(1);
        set[enters_at] = tag;
        if evicted { Found::Evicted } else { Found::Filled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays() {
        let mut cache = Cache::hashed(4096);
        (0..400).for_each(|key| {
            cache.touch(key);
        });
        let hits = (0..400).filter(|key| cache.touch(*key)).count();
        assert_eq!(hits, 400);
    }

    #[test]
    fn what_is_far_too_much_misses() {
        let mut cache = Cache::hashed(64);
        let hits = (0..4).flat_map(|_| 0..1000).filter(|key| cache.touch(*key)).count();
        assert_eq!(hits, 0, "a round through 1000 keys leaves nothing of the round before");
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Cache::with_sets(1, 2);
        for tag in [1, 2, 1, 3] {
            cache.touch_in(0, tag, 0);
        }
        assert_eq!(cache.touch_in(0, 1, 0), Found::Hit);
        assert_eq!(cache.touch_in(0, 2, 0), Found::Evicted);
    }

    #[test]
    fn a_late_entry_leaves_the_others_alone() {
        let mut cache = Cache::with_sets(1, 4);
        for tag in [1, 2, 3, 4] {
            cache.touch_in(0, tag, 0);
        }
        for tag in 10..20 {
            assert_ne!(cache.touch_in(0, tag, 3), Found::Hit);
        }
        for tag in [2, 3, 4] {
            assert_eq!(cache.touch_in(0, tag, 0), Found::Hit, "{tag}");
        }
    }
}
