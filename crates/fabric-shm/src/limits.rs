//! Limits of the fabric.

/// The limit for [`Data::Inline`](dunlin_fabric::Data::Inline), in bytes.
pub(crate) const MAX_INLINE: u32 = 8192;
/// The limit for one message, in bytes.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// The limit for one datagram, in bytes.
pub(crate) const MAX_DATAGRAM: u32 = 4096;
/// The maximum number of queue pairs in one domain.
pub(crate) const MAX_QUEUE_PAIRS: u32 = 1 << 16;
/// The maximum depth of a queue.
pub(crate) const MAX_QUEUE_DEPTH: u32 = 1 << 15;
