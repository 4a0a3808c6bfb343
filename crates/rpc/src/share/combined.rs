//! Combining: threads that share a queue pair hand their calls to one of them, the leader, which sends them
//! in one message (FLOCK, SOSP'21, sections 4.2 and 5).
//!
//! | file | holds | paper |
//! |---|---|---|
//! | `tickets.rs` | the calls that are ready, as a lock-free list, and their states | section 4.2 |
//! | `lead.rs` | the right to send and to poll for all | section 4.2 |
//! | `threads.rs` | which thread uses which queue pair | section 5.2, algorithm 1 |
//! | `credits.rs` | credits of a queue pair, at both ends | section 5.1 |

// The client does not use these parts yet.
#[allow(dead_code)]
pub(crate) mod credits;
#[allow(dead_code)]
pub(crate) mod lead;
#[allow(dead_code)]
pub(crate) mod threads;
#[allow(dead_code)]
pub(crate) mod tickets;
