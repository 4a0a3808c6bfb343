//! Prefetches of the memory that every call touches.

use dunlin_fabric::copy;
use dunlin_wire::LINE;

/// Prefetches the first `bytes` bytes of a value that will be changed soon.
#[inline]
pub(crate) fn warm_lines<T>(of: &T, bytes: usize) {
    let start: *const u8 = (&raw const *of).cast();
    (0..bytes).step_by(LINE).for_each(|at| copy::prefetch_to_write(start.wrapping_add(at)));
}
