//! Detects whether the hypervisor currently runs our two virtual cores near or far from each other.

use std::fmt;

use serde::{Serialize, Serializer};

/// The distance between the two cores of a pair, judged by the median round trip of one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// Under 260 ns: the cores share a cache, at least the last level.
    Near,
    /// 260 ns or more: the cores share no cache.
    Far,
    /// The probes disagree.
    Unclear,
}

/// The boundary between cores that share a cache (measured: up to 235 ns, across a Xeon's mesh) and cores
/// that do not (290 ns and more), about half-way. A boundary within the range of one placement would split
/// its rows.
const FAR_FROM_NS: f64 = 260.0;

impl Placement {
    /// Classifies a median round trip of one cache line, ns.
    #[must_use]
    pub fn from_round_trip_ns(p50_ns: f64) -> Self {
        if p50_ns < FAR_FROM_NS { Self::Near } else { Self::Far }
    }

    /// Returns the name used in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
            Self::Unclear => "unclear",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl Serialize for Placement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_known_so_far_have_one_placement_each() {
        for near in [92.0, 190.0, 199.0, 225.0, 240.0] {
            assert_eq!(Placement::from_round_trip_ns(near), Placement::Near);
        }
        for far in [290.0, 332.0, 570.0] {
            assert_eq!(Placement::from_round_trip_ns(far), Placement::Far);
        }
    }
}
