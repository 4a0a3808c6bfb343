//! Limits that a client and a server hold alike.

/// Upper bound (exclusive) of function ids.
pub const MAX_FUNCTIONS: u16 = 4096;

/// The most different plans of one client.
pub(crate) const MAX_PLANS: usize = 8;

/// The sizes that a ring may have, in bytes.
pub(crate) const RING_BYTES: std::ops::RangeInclusive<u32> = 16 * 1024..=1 << 20;

/// The sizes that a block of a ring may have, in bytes.
pub(crate) const BLOCK_BYTES: std::ops::RangeInclusive<u32> = dunlin_wire::LINE as u32..=4096;

/// The most calls in flight on a lane.
pub(crate) const MAX_WINDOW: u16 = 1024;

/// The most threads of one client that share connections.
pub(crate) const MAX_SEATS: u16 = 256;

/// The most connections that the threads of one client share.
pub(crate) const MAX_STRANDS: u16 = 64;
