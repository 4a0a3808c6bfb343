//! Sharing policies of lanes: several threads of a client use one queue pair.
//!
//! | module | policy | paper |
//! |---|---|---|
//! | `share/combined.rs` | threads hand their calls to one of them, which sends them together | FLOCK sections 4 to 6 |

pub(crate) mod combined;
