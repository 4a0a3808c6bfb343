//! The parts of connection setup that both sides use or that know no side: records on the control connection, and
//! the back-off of a client that reconnects. The client's side of the handshake is `client/establish.rs`, the
//! server's side is `server/accept.rs`.

pub(crate) mod backoff;
pub(crate) mod records;
