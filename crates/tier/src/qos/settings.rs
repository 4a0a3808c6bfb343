//! Policies, weights and limits, and their check.

use super::Priority;
use thiserror::Error;

/// The rule by which the operations of a node share its paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Paths serve all operations in order of arrival; priorities and weights have no effect.
    Arrival,
    /// Each priority has paths of its own (HW-Sep), in order of arrival. They stay unused while the other priority
    /// needs them.
    Reserved {
        /// The paths for operations of low priority, at least 1; the others, at least 1, are for high priority.
        low: u16,
    },
    /// Order of arrival, but an operation of low priority pauses first while many operations of high priority are under
    /// way, or while their round trips get longer (SW-Pri). Weights have no effect.
    Paced,
    /// Principals get bytes by their weights, and high priority more than low by [`HIGH_FACTOR`](super::HIGH_FACTOR).
    /// While the round trips of high priority get longer, low priority has fewer paths. A path is never left unused
    /// for the sake of a share that nobody wants. The default.
    #[default]
    Shares,
}

/// The most that a principal may do at a node in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Operations a second. Default: `u64::MAX`, no limit.
    pub operations: u64,
    /// Bytes a second. Default: `u64::MAX`, no limit.
    pub bytes: u64,
}

impl Limit {
    /// No limit.
    pub const NONE: Limit = Limit { operations: u64::MAX, bytes: u64::MAX };
}

impl Default for Limit {
    fn default() -> Self {
        Limit::NONE
    }
}

/// The part of a node that a principal may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The bytes of this principal relative to those of others, if both want more than there is: 1 to
    /// [`MAX_WEIGHT`]. Default: 1.
    pub weight: u16,
    /// The priority of the principal's operations, which a handle may lower and not raise. Default: high.
    pub priority: Priority,
    /// The most that the principal may do. Default: no limit.
    pub limit: Limit,
}

impl Default for Share {
    fn default() -> Self {
        Share { weight: 1, priority: Priority::High, limit: Limit::NONE }
    }
}

/// The largest weight.
pub const MAX_WEIGHT: u16 = 1000;

/// The reason why settings of the quality of service are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QosError {
    /// A weight is out of range.
    #[error("the weight of {principal} is {weight}, but must be 1 to {MAX_WEIGHT}")]
    Weight {
        /// The principal.
        principal: String,
        /// The weight.
        weight: u16,
    },
    /// A limit permits nothing.
    #[error(
        "the limit of {principal} is 0 {what} a second: revoke its rights instead, or leave the limit out"
    )]
    Limit {
        /// The principal.
        principal: String,
        /// `operations` or `bytes`.
        what: &'static str,
    },
    /// Reserved paths leave one priority without any.
    #[error("{low} of {paths} paths cannot be reserved for low priority: both priorities need at least one")]
    Paths {
        /// The reserved paths.
        low: u16,
        /// All paths.
        paths: u16,
    },
    /// The settings allow the principal only low priority.
    #[error("{principal} may not have high priority: change its share, or leave its priority low")]
    Priority {
        /// The principal.
        principal: String,
    },
}

/// Checks a policy for a node with `paths` paths, and the shares of principals.
pub fn check<'a>(
    policy: Policy,
    paths: u16,
    shares: impl Iterator<Item = (&'a str, Share)>,
) -> Result<(), QosError> {
    if let Policy::Reserved { low } = policy
        && (low == 0 || low >= paths)
    {
        return Err(QosError::Paths { low, paths });
    }
    for (name, share) in shares {
        let principal = || name.to_owned();
        if share.weight == 0 || share.weight > MAX_WEIGHT {
            return Err(QosError::Weight { principal: principal(), weight: share.weight });
        }
        for (what, rate) in [("operations", share.limit.operations), ("bytes", share.limit.bytes)] {
            if rate == 0 {
                return Err(QosError::Limit { principal: principal(), what });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_a_meaning_are_refused() {
        let share = Share::default();
        let of = |policy, shares: &[(&str, Share)]| check(policy, 4, shares.iter().copied());
        assert_eq!(of(Policy::Shares, &[("a", share), ("b", share)]), Ok(()));
        for weight in [0, MAX_WEIGHT + 1] {
            let refused = QosError::Weight { principal: "a".into(), weight };
            assert_eq!(of(Policy::Shares, &[("a", Share { weight, ..share })]), Err(refused));
        }
        let limit = Limit { bytes: 0, ..Limit::NONE };
        let refused = QosError::Limit { principal: "a".into(), what: "bytes" };
        assert_eq!(of(Policy::Arrival, &[("a", Share { limit, ..share })]), Err(refused));
        for (low, paths) in [(0, 4), (4, 4), (5, 4), (1, 1)] {
            let policy = Policy::Reserved { low };
            assert_eq!(check(policy, paths, [].into_iter()), Err(QosError::Paths { low, paths }));
        }
        assert_eq!(of(Policy::Reserved { low: 1 }, &[]), Ok(()));
    }
}
