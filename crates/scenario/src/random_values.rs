//! Random sizes, times and keys. Logarithms and powers come from `libm`, so results are the same bytes on
//! every machine.

use dunlin_fabric::Nanos;
use dunlin_fabric_sim::Random;

/// Returns a number in `0..1`.
fn unit(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// Draws from a generalized Pareto distribution by inversion; `k` is the shape.
fn pareto(random: &mut Random, location: f64, scale: f64, k: f64) -> f64 {
    location + scale * (libm::pow(1.0 - unit(random), -k) - 1.0) / k
}

/// Draws from the Gaussian distribution of mean 0 and standard deviation 1 (Box and Muller).
pub(crate) fn gaussian(random: &mut Random) -> f64 {
    let radius = libm::sqrt(-2.0 * libm::log(1.0 - unit(random)));
    radius * libm::cos(std::f64::consts::TAU * unit(random))
}

/// A distribution of payload sizes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// Constant.
    Fixed(u32),
    /// Uniform between the two, both included.
    Uniform(u32, u32),
    /// Values of Facebook's ETC pool (Atikoglu et al., SIGMETRICS 2012, section 5: generalized Pareto with
    /// scale 214.476 and shape 0.348238), at most 1 MiB; used by LITE figures 12 and 13.
    FacebookValues,
    /// Keys of the same pool (generalized extreme values with location 30.7984, scale 8.20449, shape
    /// 0.078688), 1 to 250.
    FacebookKeys,
}

impl Sizes {
    /// Draws a size.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u32 {
        if let Sizes::Fixed(size) = *self { size } else { self.draw(random) }
    }

    #[inline(never)]
    fn draw(&self, random: &mut Random) -> u32 {
        match *self {
            Sizes::Fixed(size) => size,
            Sizes::Uniform(low, high) => {
                let (low, high) = (low.min(high), low.max(high));
                low + random.below(u64::from(high - low) + 1) as u32
            }
            Sizes::FacebookValues => (pareto(random, 0.0, 214.476, 0.348_238) as u32).clamp(1, 1 << 20),
            Sizes::FacebookKeys => {
                let (location, scale, k) = (30.7984, 8.204_49, 0.078_688);
                let log = -libm::log(1.0 - unit(random));
                let size = location + scale * (libm::pow(log.max(1e-12), -k) - 1.0) / k;
                (size as u32).clamp(1, 250)
            }
        }
    }

    /// Returns the largest possible size.
    pub fn largest(&self) -> u32 {
        match *self {
            Sizes::Fixed(size) => size,
            Sizes::Uniform(low, high) => low.max(high),
            Sizes::FacebookValues => 1 << 20,
            Sizes::FacebookKeys => 250,
        }
    }
}

/// A distribution of times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Times {
    /// Constant; 0 for none.
    Fixed(Nanos),
    /// Exponential with this mean: a Poisson process.
    Exponential(f64),
    /// The first value; in one of the given number of cases the second.
    Bimodal(Nanos, Nanos, u32),
    /// Gaps between requests of Facebook's ETC pool (generalized Pareto with scale 16.0292 us and shape
    /// 0.154971), times a factor: LITE figure 13 stretches them by 1 to 8.
    FacebookGaps(f64),
}

impl Times {
    /// Draws a time.
    #[inline]
    pub fn next(&self, random: &mut Random) -> Nanos {
        if let Times::Fixed(time) = *self { time } else { self.draw(random) }
    }

    #[inline(never)]
    fn draw(&self, random: &mut Random) -> Nanos {
        match *self {
            Times::Fixed(time) => time,
            Times::Exponential(mean) => (-libm::log(1.0 - unit(random)) * mean) as Nanos,
            Times::Bimodal(mostly, seldom, one_of) => match random.below(one_of.max(1).into()) {
                0 => seldom,
                _ => mostly,
            },
            Times::FacebookGaps(factor) => (pareto(random, 0.0, 16_029.2, 0.154_971) * factor) as Nanos,
        }
    }
}

/// A distribution over numbered items.
#[derive(Clone, Debug)]
pub enum Skew {
    /// Uniform over this number of items.
    Uniform(u64),
    /// Item `i` in proportion to its weight, which is `1 / (i + 1)^theta` for [`zipfian`](Skew::zipfian).
    /// Holds cumulative weights.
    Zipfian(Vec<f64>),
}

impl Skew {
    /// Creates a Zipfian distribution over `things` items (at most a million are distinguished).
    pub fn zipfian(things: u64, theta: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=things.clamp(1, 1_000_000)).map(|i| {
            sum += libm::pow(i as f64, -theta);
            sum
        });
        Skew::Zipfian(weights.collect())
    }

    /// Creates a distribution over `things` items that own `keys` keys by hash; key `i` is requested in
    /// proportion to `1 / (i + 1)^theta`.
    pub fn of_keys(keys: u64, theta: f64, things: u64) -> Self {
        /// Keys treated individually; the weight of all rarer ones is spread evenly, as hashing spreads them.
        const APART: u64 = 100_000;
        let things = things.max(1);
        let apart = keys.clamp(1, APART);
        let mut weights = vec![0.0; things as usize];
        for key in 1..=apart {
            let owner = Random::new(key, 0).below(things) as usize;
            weights[owner] += libm::pow(key as f64, -theta);
        }
        // The integral of the law over the rest.
        let up_to = |key: u64| match 1.0 - theta {
            0.0 => libm::log(key as f64),
            power => libm::pow(key as f64, power) / power,
        };
        let rest = (up_to(keys.max(apart)) - up_to(apart)) / things as f64;
        let mut sum = 0.0;
        let sums = weights.into_iter().map(|weight| {
            sum += weight + rest;
            sum
        });
        Skew::Zipfian(sums.collect())
    }

    /// Draws an item.
    pub fn next(&self, random: &mut Random) -> u64 {
        match self {
            Skew::Uniform(things) => random.below((*things).max(1)),
            Skew::Zipfian(sums) => {
                let drawn = unit(random) * sums.last().copied().unwrap_or(0.0);
                sums.partition_point(|sum| *sum <= drawn).min(sums.len() - 1) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(mut draw: impl FnMut(&mut Random) -> f64) -> f64 {
        let mut random = Random::new(3, 3);
        (0..200_000).map(|_| draw(&mut random)).sum::<f64>() / 200_000.0
    }

    #[test]
    fn facebooks_pool_has_its_published_means() {
        // scale / (1 - shape), the mean of a generalized Pareto.
        let values = mean(|random| f64::from(Sizes::FacebookValues.next(random)));
        assert!((values - 329.0).abs() < 10.0, "{values}");
        let gaps = mean(|random| Times::FacebookGaps(1.0).next(random) as f64);
        assert!((gaps - 18_969.0).abs() < 300.0, "{gaps}");
        let keys = mean(|random| f64::from(Sizes::FacebookKeys.next(random)));
        assert!((30.0..42.0).contains(&keys), "{keys}");
    }

    #[test]
    fn exponential_and_uniform_have_their_means() {
        let times = mean(|random| Times::Exponential(1000.0).next(random) as f64);
        assert!((times - 1000.0).abs() < 15.0, "{times}");
        let sizes = mean(|random| f64::from(Sizes::Uniform(10, 20).next(random)));
        assert!((sizes - 15.0).abs() < 0.1, "{sizes}");
    }

    #[test]
    fn owners_of_skewed_keys_are_asked_for_by_their_keys() {
        let skew = Skew::of_keys(128_000_000, 0.99, 14);
        let mut counts = [0u32; 14];
        let mut random = Random::new(1, 1);
        for _ in 0..200_000 {
            counts[skew.next(&mut random) as usize] += 1;
        }
        // The most popular of 128 million keys gets about 5% of all requests; its owner also has the usual
        // share of the others.
        let (most, least) = (counts.iter().max(), counts.iter().min());
        let share = |count: Option<&u32>| f64::from(*count.unwrap()) / 200_000.0;
        assert!((0.10..0.14).contains(&share(most)) && (0.04..0.07).contains(&share(least)), "{counts:?}");
        // With a single key all requests go to its owner.
        let one = Skew::of_keys(1, 0.99, 14);
        let owner = one.next(&mut random);
        assert!((0..100).all(|_| one.next(&mut random) == owner));
    }

    #[test]
    fn zipfian_follows_its_law() {
        let skew = Skew::zipfian(100, 0.99);
        let mut counts = [0u32; 100];
        let mut random = Random::new(1, 1);
        for _ in 0..200_000 {
            counts[skew.next(&mut random) as usize] += 1;
        }
        let ratio = f64::from(counts[0]) / f64::from(counts[9]);
        assert!((ratio - libm::pow(10.0, 0.99)).abs() < 0.8, "{ratio}");
    }
}
