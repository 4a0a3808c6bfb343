//! Near or far: how the host has placed our two virtual cores right now.

use std::fmt;

use serde::{Serialize, Serializer};

/// Where the two cores of a pair lie towards each other, judged by the median round trip of one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// Under 260 ns: the cores share a cache, be it only the last level's.
    Near,
    /// 260 ns or more: they do not.
    Far,
    /// Probes that disagree.
    Unclear,
}

/// Lies between what was found for cores with a common cache (92 ns for one complex of a Zen 4; 190 to 235 ns across the
/// mesh of a Xeon, where it moves within one run) and without one (290 ns and more), with as much room on either side as there is:
/// a boundary among the values that one placement takes would tear its rows apart.
const FAR_FROM_NS: f64 = 260.0;

impl Placement {
    /// Judges the median round trip of one cache line, ns.
    #[must_use]
    pub fn from_round_trip_ns(p50_ns: f64) -> Self {
        if p50_ns < FAR_FROM_NS { Self::Near } else { Self::Far }
    }

    /// The word in reports.
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
