//! The end of the grants of a lane whose connection goes on.

use dunlin_fabric::{Host, Link, Nanos, RegionKey};

/// A peer that takes longer than this to accept the end of a grant does not read its connection, in nanoseconds.
const SLOW_PEER: Nanos = 100_000_000;

/// Ends grants on a connection. A peer that does not read its connection holds up the caller once, for a bounded
/// time: its connection is closed then.
pub(crate) fn end_grants<H: Host, L: Link>(host: &H, link: &L, keys: impl IntoIterator<Item = RegionKey>) {
    for key in keys {
        let began = host.now();
        link.revoke(key);
        if host.now().saturating_sub(began) > SLOW_PEER {
            return link.close();
        }
    }
}
