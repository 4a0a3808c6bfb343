//! Connection setup: the handshake of both sides over the control connection, and the back-off of a client
//! that reconnects.

pub(crate) mod accept;
pub(crate) mod backoff;
pub(crate) mod establish;

/// Replaces the control characters of a peer's text, so that it can be printed.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
