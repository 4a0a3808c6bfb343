//! Connection setup: the handshake of both sides over the control connection, and the back-off of a client
//! that reconnects.

pub(crate) mod accept;
pub(crate) mod backoff;
pub(crate) mod establish;
