//! The programs that come with the engine.

use crate::program::{Plain, Program, Vertex};

/// The share of a rank that comes over edges.
const DAMPING: f64 = 0.85;

/// PageRank until no rank changes by more than a tolerance, with delta caching as in PowerGraph: a rank is `0.15 + 0.85 *`
/// the sum of `rank / degree` of the vertices with an edge to it, so the mean is 1 without sinks. A vertex without
/// edges that leave it (a sink) passes no rank on.
///
/// A vertex scatters when its rank differs from the one that its neighbours know by more than the tolerance, so a rank
/// may differ from the exact one by 0.85 / 0.15 times the tolerance in the mean.
#[derive(Clone, Copy, Debug)]
pub struct PageRank {
    /// The largest change of a rank that is not passed on; at least 0.
    pub tolerance: f64,
}

impl Default for PageRank {
    /// A tolerance of 0.001.
    fn default() -> Self {
        PageRank { tolerance: 1e-3 }
    }
}

/// A rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    /// The rank.
    pub rank: f64,
    /// The rank as the neighbours know it.
    pub told: f64,
}

impl Plain for Rank {
    const BYTES: usize = 16;

    fn put(self, bytes: &mut [u8]) {
        self.rank.put(&mut bytes[..8]);
        self.told.put(&mut bytes[8..]);
    }

    fn take(bytes: &[u8]) -> Self {
        Rank { rank: f64::take(&bytes[..8]), told: f64::take(&bytes[8..]) }
    }
}

impl Program for PageRank {
    type Data = Rank;
    type Message = f64;
    const NONE: f64 = 0.0;
    const CACHES: bool = true;
    const NAME: &'static str = "pagerank";

    fn start(&self, _: Vertex) -> Rank {
        Rank { rank: 1.0 - DAMPING, told: 0.0 }
    }

    fn gather(&self, message: f64) -> f64 {
        message
    }

    fn sum(&self, one: f64, other: f64) -> f64 {
        one + other
    }

    fn apply(&self, _: Vertex, gathered: f64, data: &mut Rank) {
        data.rank = (1.0 - DAMPING) + DAMPING * gathered;
    }

    fn scatter(&self, vertex: Vertex, data: &mut Rank) -> f64 {
        let change = data.rank - data.told;
        if vertex.degree == 0 || change.abs() <= self.tolerance || change.is_nan() {
            return 0.0;
        }
        data.told = data.rank;
        change / f64::from(vertex.degree)
    }

    fn settings(&self) -> u64 {
        self.tolerance.to_bits()
    }
}

/// PageRank by a number of rounds, each over all edges, from ranks of 1. The ranks are, bit for bit, those of a loop that
/// adds `rank / degree` in the order of the sources.
#[derive(Clone, Copy, Debug)]
pub struct PageRankRounds {
    /// The number of rounds.
    pub rounds: u32,
}

impl Program for PageRankRounds {
    type Data = f64;
    type Message = f64;
    const NONE: f64 = 0.0;
    const CACHES: bool = false;
    const NAME: &'static str = "pagerank-rounds";

    fn start(&self, _: Vertex) -> f64 {
        1.0
    }

    fn gather(&self, message: f64) -> f64 {
        message
    }

    fn sum(&self, one: f64, other: f64) -> f64 {
        one + other
    }

    fn apply(&self, _: Vertex, gathered: f64, data: &mut f64) {
        *data = (1.0 - DAMPING) + DAMPING * gathered;
    }

    fn scatter(&self, vertex: Vertex, data: &mut f64) -> f64 {
        if vertex.degree == 0 { 0.0 } else { *data / f64::from(vertex.degree) }
    }

    fn steps(&self) -> Option<u32> {
        Some(self.rounds)
    }

    fn settings(&self) -> u64 {
        self.rounds.into()
    }
}

/// A label or a distance, and the one that the neighbours know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Least {
    /// The least value so far.
    pub value: u32,
    /// The value as the neighbours know it.
    pub told: u32,
}

impl Least {
    /// Returns the value if the neighbours do not know it.
    fn tell(&mut self) -> u32 {
        if self.value == self.told {
            return u32::MAX;
        }
        self.told = self.value;
        self.value
    }
}

impl Plain for Least {
    const BYTES: usize = 8;

    fn put(self, bytes: &mut [u8]) {
        self.value.put(&mut bytes[..4]);
        self.told.put(&mut bytes[4..]);
    }

    fn take(bytes: &[u8]) -> Self {
        Least { value: u32::take(&bytes[..4]), told: u32::take(&bytes[4..]) }
    }
}

/// Connected components: each vertex gets the least number of its component. Edges count in both directions if the graph
/// has them in both ([`Edges::both_ways`](crate::Edges::both_ways)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Components;

impl Program for Components {
    type Data = Least;
    type Message = u32;
    const NONE: u32 = u32::MAX;
    const CACHES: bool = true;
    const NAME: &'static str = "components";

    fn start(&self, vertex: Vertex) -> Least {
        Least { value: vertex.id, told: u32::MAX }
    }

    fn gather(&self, message: u32) -> u32 {
        message
    }

    fn sum(&self, one: u32, other: u32) -> u32 {
        one.min(other)
    }

    fn apply(&self, _: Vertex, gathered: u32, data: &mut Least) {
        data.value = data.value.min(gathered);
    }

    fn scatter(&self, _: Vertex, data: &mut Least) -> u32 {
        data.tell()
    }
}

/// Shortest paths from one vertex by the number of edges; `u32::MAX` for vertices that it does not reach.
#[derive(Clone, Copy, Debug)]
pub struct Paths {
    /// The vertex where all paths begin.
    pub from: u32,
}

impl Program for Paths {
    type Data = Least;
    type Message = u32;
    const NONE: u32 = u32::MAX;
    const CACHES: bool = true;
    const NAME: &'static str = "paths";

    fn start(&self, vertex: Vertex) -> Least {
        Least { value: if vertex.id == self.from { 0 } else { u32::MAX }, told: u32::MAX }
    }

    fn gather(&self, message: u32) -> u32 {
        message.saturating_add(1)
    }

    fn sum(&self, one: u32, other: u32) -> u32 {
        one.min(other)
    }

    fn apply(&self, _: Vertex, gathered: u32, data: &mut Least) {
        data.value = data.value.min(gathered);
    }

    fn scatter(&self, _: Vertex, data: &mut Least) -> u32 {
        data.tell()
    }

    fn settings(&self) -> u64 {
        self.from.into()
    }
}
