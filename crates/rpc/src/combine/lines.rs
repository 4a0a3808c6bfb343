//! The cache lines that move between cores where threads meet at a connection: `Work::TakeLine`, in virtual time.

/// The misses of a thread that leads after another, one after the other: the lock, the lane, the queue pair.
pub(crate) const HANDED_OVER: u32 = 3;
/// The longest payload that lies in the first line of a ticket.
const FIRST_LINE: usize = 40;

/// Returns the misses of a thread that takes a payload from another one, one after the other: the ticket, and
/// the memory of a longer payload.
#[inline]
pub(crate) fn lines_of(payload: usize) -> u32 {
    1 + u32::from(payload > FIRST_LINE)
}
