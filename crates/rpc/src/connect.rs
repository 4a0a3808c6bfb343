//! How connections come to be: the handshake of both sides over the control connection, and when a client tries
//! again after one was lost.

pub(crate) mod accept;
pub(crate) mod backoff;
pub(crate) mod establish;
