//! Request distributions, as YCSB's generators have them.

use crate::random::Random;

/// YCSB's skew of the zipfian distribution.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// Terms of zeta that are summed one by one; later ones by the Euler-Maclaurin formula, whose error is then below 1e-12.
const EXACT_TERMS: u64 = 100_000;
/// YCSB's scrambled generator draws from so many items and hashes the draw onto those there are.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// The 64-bit FNV-1a hash of a number's eight bytes, lowest first, without its sign: YCSB's `Utils.hash`.
#[inline]
#[must_use]
pub fn fnv_hash(value: u64) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in value.to_le_bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).unsigned_abs()
}

/// Item 0 most often, item `i` in proportion to `1 / (i + 1)^0.99` (Gray et al., "Quickly Generating Billion-Record
/// Synthetic Databases", SIGMOD 1994). The number of items may grow; zeta is then carried on, not summed anew.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta_two: f64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    /// A distribution over `items` items (at least one) with YCSB's skew.
    #[must_use]
    pub fn new(items: u64) -> Self {
        let theta = ZIPFIAN_CONSTANT;
        let mut zipfian = Self {
            items: 0,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta_two: zeta(0, 0.0, 2, theta),
            zeta: 0.0,
            eta: 0.0,
        };
        zipfian.set_items(items);
        zipfian
    }

    /// Changes the number of items. Cheap when it grows a little, at most 100 000 powers otherwise.
    pub fn set_items(&mut self, items: u64) {
        let items = items.max(1);
        if items == self.items {
            return;
        }
        self.zeta = if items > self.items {
            zeta(self.items, self.zeta, items, self.theta)
        } else {
            zeta(0, 0.0, items, self.theta)
        };
        self.items = items;
        self.eta = (1.0 - (2.0 / items as f64).powf(1.0 - self.theta)) / (1.0 - self.zeta_two / self.zeta);
    }

    /// Number of items.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// An item, 0 to `items - 1`.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 || self.items == 1 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let item = self.items as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (item as u64).min(self.items - 1)
    }
}

/// Carries on `sum`, the zeta of `from` terms, to `to` terms.
fn zeta(from: u64, sum: f64, to: u64, theta: f64) -> f64 {
    let term = |index: u64| (index as f64).powf(-theta);
    // The formula is good from a large first term on, and pays for many terms only.
    let exact_to = if to - from > EXACT_TERMS { EXACT_TERMS.max(from) } else { to };
    let sum = ((from + 1)..=exact_to).fold(sum, |sum, index| sum + term(index));
    if exact_to == to {
        return sum;
    }
    let integral = |index: u64| (index as f64).powf(1.0 - theta) / (1.0 - theta);
    let slope = |index: u64| -theta * (index as f64).powf(-theta - 1.0);
    sum + integral(to) - integral(exact_to)
        + (term(to) - term(exact_to)) / 2.0
        + (slope(to) - slope(exact_to)) / 12.0
}

/// Zipfian popularity, spread over all records by a hash, so that hot records are not neighbours.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    zipfian: Zipfian,
    items: u64,
}

impl ScrambledZipfian {
    /// A distribution over `items` items (at least one). As in YCSB, the popularity is that of ten thousand million
    /// items, so it does not change with the number there are.
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self { zipfian: Zipfian::new(SCRAMBLED_ITEMS), items: items.max(1) }
    }

    /// An item, 0 to `items - 1`.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        fnv_hash(self.zipfian.next(random)) % self.items
    }
}

/// The newest item most often.
#[derive(Clone, Debug)]
pub struct SkewedLatest {
    zipfian: Zipfian,
}

impl SkewedLatest {
    /// A distribution over `items` items (at least one).
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self { zipfian: Zipfian::new(items) }
    }

    /// An item, 0 to `items - 1`, where `items` is what there is now.
    #[inline]
    pub fn next(&mut self, items: u64, random: &mut Random) -> u64 {
        self.zipfian.set_items(items);
        self.zipfian.items() - 1 - self.zipfian.next(random)
    }
}

/// A share of the requests goes to a share of the items, the rest to the others; uniform within each.
#[derive(Clone, Copy, Debug)]
pub struct HotSpot {
    hot_items: u64,
    items: u64,
    hot_requests: f64,
}

impl HotSpot {
    /// The first `data_share` (0 to 1) of `items` gets `request_share` (0 to 1) of the requests.
    #[must_use]
    pub fn new(items: u64, data_share: f64, request_share: f64) -> Self {
        let items = items.max(1);
        let hot_items = ((items as f64 * data_share.clamp(0.0, 1.0)) as u64).min(items);
        Self { hot_items, items, hot_requests: request_share.clamp(0.0, 1.0) }
    }

    /// An item, 0 to `items - 1`.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        let cold_items = self.items - self.hot_items;
        let hot = random.unit() < self.hot_requests;
        if cold_items == 0 || (hot && self.hot_items > 0) {
            random.below(self.hot_items)
        } else {
            self.hot_items + random.below(cold_items)
        }
    }
}

/// Exponentially fewer requests the older an item is.
#[derive(Clone, Copy, Debug)]
pub struct Exponential {
    rate: f64,
}

impl Exponential {
    /// `percentile` (0 to 100) of the requests fall on the newest `range` items.
    #[must_use]
    pub fn new(percentile: f64, range: f64) -> Self {
        Self { rate: -(1.0 - percentile / 100.0).ln() / range }
    }

    /// An item, 0 to `items - 1`, the newest being the last.
    #[inline]
    pub fn next(&self, items: u64, random: &mut Random) -> u64 {
        let items = items.max(1);
        // Inverse of the distribution cut at `items`: the same as drawing again until the age fits, in one draw.
        let covered = -(-self.rate * items as f64).exp_m1();
        let age = -(-random.unit() * covered).ln_1p() / self.rate;
        items - 1 - (age as u64).min(items - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_matches_the_plain_sum_and_the_published_constant() {
        let plain: f64 = (1..=300_000u64).map(|index| (index as f64).powf(-0.99)).sum();
        assert!((zeta(0, 0.0, 300_000, 0.99) - plain).abs() < 1e-9);
        // The constant that YCSB ships for ten thousand million items.
        assert!((zeta(0, 0.0, SCRAMBLED_ITEMS, 0.99) - 26.469_028_201_783_02).abs() < 1e-6);
    }

    #[test]
    fn growing_is_the_same_as_starting_larger() {
        let mut grown = Zipfian::new(10);
        for items in [11, 500, 200_000, 200_001, 5_000_000] {
            grown.set_items(items);
            let fresh = Zipfian::new(items);
            assert!((grown.zeta - fresh.zeta).abs() < 1e-9, "{items}");
            assert!((grown.eta - fresh.eta).abs() < 1e-9, "{items}");
        }
        grown.set_items(10);
        assert!((grown.zeta - Zipfian::new(10).zeta).abs() < 1e-12);
    }

    #[test]
    fn zipfian_follows_its_law() {
        let zipfian = Zipfian::new(1000);
        let mut random = Random::new(1);
        let mut counts = vec![0u32; 1000];
        let draws = 500_000;
        for _ in 0..draws {
            counts[zipfian.next(&mut random) as usize] += 1;
        }
        // The first two items are exact in Gray's method; the others approximate the law, item 2 to 10 up to 9% high.
        for item in [0usize, 1] {
            let expected = (item as f64 + 1.0).powf(-0.99) / zipfian.zeta;
            let found = f64::from(counts[item]) / f64::from(draws);
            assert!((found - expected).abs() < 0.003, "item {item}: {found} and {expected}");
        }
        for (from, to) in [(2, 10), (10, 100), (100, 1000)] {
            let expected: f64 =
                (from..to).map(|item| (item as f64 + 1.0).powf(-0.99)).sum::<f64>() / zipfian.zeta;
            let found =
                counts[from..to].iter().map(|count| f64::from(*count)).sum::<f64>() / f64::from(draws);
            assert!((found / expected - 1.0).abs() < 0.11, "items {from} to {to}: {found} and {expected}");
        }
    }

    #[test]
    fn one_item_is_always_that() {
        let mut random = Random::new(2);
        for _ in 0..100 {
            assert_eq!(Zipfian::new(1).next(&mut random), 0);
            assert_eq!(Zipfian::new(0).next(&mut random), 0);
            assert!(Zipfian::new(2).next(&mut random) < 2);
            assert_eq!(SkewedLatest::new(1).next(1, &mut random), 0);
            assert_eq!(HotSpot::new(1, 0.2, 0.8).next(&mut random), 0);
            assert_eq!(Exponential::new(95.0, 10.0).next(1, &mut random), 0);
        }
    }

    #[test]
    fn scrambled_is_skewed_but_not_at_the_start() {
        let scrambled = ScrambledZipfian::new(1000);
        let mut random = Random::new(3);
        let mut counts = vec![0u32; 1000];
        for _ in 0..200_000 {
            counts[scrambled.next(&mut random) as usize] += 1;
        }
        let hottest = (0..1000).max_by_key(|item| counts[*item]).expect("items");
        assert_eq!(hottest as u64, fnv_hash(0) % 1000);
        // 1 / 26.469 of the requests, and what hashes there besides.
        let share = f64::from(counts[hottest]) / 200_000.0;
        assert!((0.036..0.05).contains(&share), "{share}");
        assert!(counts.iter().all(|count| *count > 0));
    }

    #[test]
    fn latest_prefers_the_newest_and_follows_growth() {
        let mut latest = SkewedLatest::new(100);
        let mut random = Random::new(4);
        let mut newest = 0;
        for items in 100..20_100u64 {
            let item = latest.next(items, &mut random);
            assert!(item < items);
            newest += u64::from(item >= items - 10);
        }
        assert!(newest > 20_000 / 4, "{newest}");
    }

    #[test]
    fn hot_spot_and_exponential_shares() {
        let mut random = Random::new(5);
        let spot = HotSpot::new(1000, 0.2, 0.8);
        let hot = (0..100_000).filter(|_| spot.next(&mut random) < 200).count();
        assert!((79_000..81_000).contains(&hot), "{hot}");
        let exponential = Exponential::new(95.0, 1000.0);
        let newest = (0..100_000).filter(|_| exponential.next(1_000_000, &mut random) >= 999_000).count();
        assert!((94_500..95_500).contains(&newest), "{newest}");
    }

    #[test]
    fn hash_is_ycsbs() {
        // FNV-1a over eight zero bytes, sign dropped.
        let mut expected: u64 = 0xcbf2_9ce4_8422_2325;
        for _ in 0..8 {
            expected = expected.wrapping_mul(0x0000_0100_0000_01b3);
        }
        assert_eq!(fnv_hash(0), (expected as i64).unsigned_abs());
        assert!((0..1000).all(|value| fnv_hash(value) <= i64::MAX as u64 + 1));
    }
}
