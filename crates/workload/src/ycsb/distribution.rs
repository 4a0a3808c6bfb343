//! Request distributions, equivalent to YCSB's generators.

use crate::random::Random;

/// Default skew of YCSB's zipfian distribution.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// Number of zeta terms summed exactly. The Euler-Maclaurin formula adds the rest, with an error below
/// 1e-12.
const EXACT_TERMS: u64 = 100_000;
/// Number of items that YCSB's scrambled generator draws from; the draw is then hashed onto the existing
/// items.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// Returns YCSB's `Utils.hash`: the 64-bit FNV-1a hash of the number's eight bytes, lowest first, without
/// its sign.
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

/// A zipfian distribution: item 0 is the most frequent, item `i` in proportion to `1 / (i + 1)^0.99` (Gray
/// et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994). When the number of items
/// grows, zeta is updated incrementally.
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
    /// Creates a distribution over `items` items (at least one) with YCSB's skew.
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

    /// Changes the number of items. Cheap for small growth, otherwise it computes at most 100 000 powers.
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

    /// Returns the number of items.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Draws an item, 0 to `items - 1`.
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

/// Extends `sum`, the zeta of `from` terms, to `to` terms.
fn zeta(from: u64, sum: f64, to: u64, theta: f64) -> f64 {
    let term = |index: u64| (index as f64).powf(-theta);
    // The formula is accurate only from a large first term on, and pays off only for many terms.
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

/// Zipfian popularity, hashed over all records, so that popular records are not adjacent.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    zipfian: Zipfian,
    items: u64,
}

impl ScrambledZipfian {
    /// Creates a distribution over `items` items (at least one). As in YCSB, the popularity is that of ten
    /// thousand million items, independent of `items`.
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self { zipfian: Zipfian::new(SCRAMBLED_ITEMS), items: items.max(1) }
    }

    /// Draws an item, 0 to `items - 1`.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        fnv_hash(self.zipfian.next(random)) % self.items
    }
}

/// A zipfian distribution by age: the newest item is the most frequent.
#[derive(Clone, Debug)]
pub struct SkewedLatest {
    zipfian: Zipfian,
}

impl SkewedLatest {
    /// Creates a distribution over `items` items (at least one).
    #[must_use]
    pub fn new(items: u64) -> Self {
        Self { zipfian: Zipfian::new(items) }
    }

    /// Draws an item, 0 to `items - 1`, where `items` is the current number.
    #[inline]
    pub fn next(&mut self, items: u64, random: &mut Random) -> u64 {
        self.zipfian.set_items(items);
        self.zipfian.items() - 1 - self.zipfian.next(random)
    }
}

/// A share of the requests goes to a share of the items, the rest to the other items; uniform within each.
#[derive(Clone, Copy, Debug)]
pub struct HotSpot {
    hot_items: u64,
    items: u64,
    hot_requests: f64,
}

impl HotSpot {
    /// Creates a distribution in which the first `data_share` (0 to 1) of `items` gets `request_share` (0
    /// to 1) of the requests.
    #[must_use]
    pub fn new(items: u64, data_share: f64, request_share: f64) -> Self {
        let items = items.max(1);
        let hot_items = ((items as f64 * data_share.clamp(0.0, 1.0)) as u64).min(items);
        Self { hot_items, items, hot_requests: request_share.clamp(0.0, 1.0) }
    }

    /// Draws an item, 0 to `items - 1`.
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

/// The frequency decreases exponentially with the age of the item.
#[derive(Clone, Copy, Debug)]
pub struct Exponential {
    rate: f64,
}

impl Exponential {
    /// Creates a distribution in which `percentile` (0 to 100) of the requests go to the newest `range`
    /// items.
    #[must_use]
    pub fn new(percentile: f64, range: f64) -> Self {
        Self { rate: -(1.0 - percentile / 100.0).ln() / range }
    }

    /// Draws an item, 0 to `items - 1`, where the last is the newest.
    #[inline]
    pub fn next(&self, items: u64, random: &mut Random) -> u64 {
        let items = items.max(1);
        // Invert the distribution truncated at `items`: equivalent to drawing until the age fits, in one
        // draw.
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
        // The constant in YCSB's source for ten thousand million items.
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
        // In Gray's method the first two items are exact; the others approximate the law, items 2 to 10 up
        // to 9% high.
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
        // 1 / 26.469 of the requests, plus other items that hash to the same record.
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
        // FNV-1a over eight zero bytes, without the sign.
        let mut expected: u64 = 0xcbf2_9ce4_8422_2325;
        for _ in 0..8 {
            expected = expected.wrapping_mul(0x0000_0100_0000_01b3);
        }
        assert_eq!(fnv_hash(0), (expected as i64).unsigned_abs());
        assert!((0..1000).all(|value| fnv_hash(value) <= i64::MAX as u64 + 1));
    }
}
