//! Quality of service (LITE, SOSP 2017, section 6.2): whose operation uses a path next, and how fast.
//!
//! An operation belongs to a principal and has a priority. All machines of this module stand at the node that sends: it
//! sees every operation of its threads and processes, and the round trips tell it how loaded the others are.
//!
//! | policy | section 6.2 | machine |
//! |---|---|---|
//! | [`Policy::Arrival`] | no QoS | [`Turns`] in order of arrival |
//! | [`Policy::Reserved`] | HW-Sep | one [`Turns`] for each priority, with paths of its own |
//! | [`Policy::Paced`] | SW-Pri | [`Pacing`] in front of [`Turns`] in order of arrival |
//! | [`Policy::Shares`] | beyond the paper | [`Turns`] by weight, with SW-Pri's signals |
//!
//! Limits of a principal ([`Allowance`]) hold under every policy.

mod allowance;
mod pacing;
mod settings;
mod trips;
mod turns;

pub use allowance::{Allowance, BURST, Exceeded, Measure};
pub use pacing::{HEAVY_PAUSE, HIGH_LOAD, Pacing, SLOW_PAUSE};
pub use settings::{Limit, MAX_WEIGHT, Policy, QosError, Share, check};
pub use trips::{RISEN, RoundTrips, WINDOW};
pub use turns::{AHEAD, Entry, Flow, HIGH_FACTOR, MOST_AHEAD, Turns};

/// The priority of an operation. Operations of one priority are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// For work in the background: it uses the capacity that operations of high priority leave.
    Low,
    /// For work that somebody waits for. The default.
    #[default]
    High,
}

/// The share of the costs of an operation that does not depend on its length, in bytes: a WRITE of 64 bytes occupies a
/// path as long as 4 KiB more of a long one do (1.5 us, LITE figure 6).
pub const OPERATION_COST: u64 = 4096;

/// Returns the cost of an operation, in bytes.
pub const fn cost(bytes: u64) -> u64 {
    bytes.saturating_add(OPERATION_COST)
}
