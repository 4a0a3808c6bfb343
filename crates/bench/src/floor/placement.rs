//! Near or far: how the host has placed our two virtual cores right now.

use std::fmt;

use serde::{Serialize, Serializer};

/// Where the two cores of a pair lie towards each other, judged by the median round trip of one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// Under 200 ns: the cores share a cache.
    Near,
    /// Over 240 ns: they do not.
    Far,
    /// Between, or two probes that disagree.
    Unclear,
}

impl Placement {
    /// Judges the median round trip of one cache line, ns.
    #[must_use]
    pub fn from_round_trip_ns(p50_ns: f64) -> Self {
        if p50_ns < 200.0 {
            Self::Near
        } else if p50_ns > 240.0 {
            Self::Far
        } else {
            Self::Unclear
        }
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
    fn thresholds() {
        assert_eq!(Placement::from_round_trip_ns(92.0), Placement::Near);
        assert_eq!(Placement::from_round_trip_ns(200.0), Placement::Unclear);
        assert_eq!(Placement::from_round_trip_ns(240.0), Placement::Unclear);
        assert_eq!(Placement::from_round_trip_ns(332.0), Placement::Far);
    }
}
