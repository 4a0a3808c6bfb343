//! LITE-Log (LITE, SOSP 2017, section 8.1): a global log in the memory tier. Creation, commits, cleaning and reading
//! are one-sided operations on two regions; no code of the log runs at the node that stores it.
//!
//! ```text
//! create, status, evict, destroy    the log as a whole                                  log.rs
//! Writer                            commits transactions                                writer.rs
//! Cleaner                           hands transactions on and gives room back           cleaner.rs
//! Tail                              follows the log without changing it                 tail.rs
//!   Regions                         the two mapped regions, and the words               regions.rs
//!   Window                          a private copy of a part of the ring                window.rs
//!     Shape, Words                  layout of the metadata, arithmetic of the ring      layout.rs
//!     Draft, examine, Transaction   layout of a transaction                             record.rs
//! ```
//!
//! # Commit
//!
//! A writer reserves with one FETCH_ADD of the tail, and WRITEs the whole transaction with one `write`. Positions are
//! bytes since the creation of the log; they never repeat. The ring is longer than its capacity by the longest
//! transaction, so that a transaction never wraps. A transaction carries its position, its length and a checksum over
//! all of it, seeded with the number of the log. So a reader has it whole or not at all: a torn transaction, an absent
//! one and one of an earlier lap are not mistaken for it, and the cleaner need not set memory to zero.
//!
//! A writer checks the room that it knows of before it reserves. Its reservation may end past the room all the same,
//! since others reserve at the same time. It stands, and the writer waits until the head has moved before it writes. If
//! the wait ends with [`LogError::Full`], the writer remembers the place and voids it before its next commit.
//!
//! # Cleaning
//!
//! One cleaner at a time hands transactions on in the order of their positions, and moves the head. It holds a lease:
//! a word with its number and a count that it raises. Another cleaner that sees the word unchanged for the lease's
//! time, by its own clock, takes over. The head moves by COMPARE_SWAP and not by the paper's FETCH_ADD, so that a
//! cleaner that lost its lease without noticing gives no room back twice. Each transaction is handed on exactly once,
//! unless a cleaner ends or loses its lease between handing on and moving the head: the next one hands the same
//! positions on again.
//!
//! # Holes
//!
//! A writer that dies between its FETCH_ADD and its WRITE leaves a hole. A slow writer looks the same, and its late
//! WRITE would land in a newer transaction. So the cleaner closes a hole only if no writer can own it. Writers
//! register in a table, and have one transaction under way at most. A registered writer does not own a hole if a
//! transaction of it stands behind the hole, or if it said so later: by [`Writer::keep_alive`], or while it waited
//! for room. A writer leaves the table when it is dropped. As long as it lives it has a lock of its row. A cleaner
//! that waits at a hole tries the locks of the writers that may own it, and takes a writer off the table whose process
//! or node has ended ([`Cleaned::ended`]). It closes the hole when it has stood for its time again, so that a WRITE that
//! the writer began lands before. A writer that is not known to have ended stays, until somebody who knows it calls
//! [`evict`]. Until then the cleaner waits, the log fills up, and [`Cleaned::hole`] names the writers that may own the
//! hole.
//!
//! A lock ends with the node that owns it, which its name decides. A writer therefore tries names, and its number says
//! which one it has taken:
//!
//! | owner of the lock | end of the writer's node |
//! |---|---|
//! | the node that stores the log, if it owns one of 256 names | noticed by the owner; the log ends with the owner |
//! | else a node that is not the writer's, if there is one | noticed by the owner |
//! | else the writer's node, and the number says so | the lock is free at its next owner, or in the next life |
//!
//! A node counts as ended when it has lost all its connections for 200 ms, and a directory decides by a lease. Such a
//! node may run on, and its writers with it. So a writer that has spent half of the hole's time since its reservation
//! reads its row before the WRITE, and does not write if it was taken off the table. The hole is closed a whole time
//! after that.
//!
//! # Limits
//!
//! * If the owner of a writer's lock ends and the log does not, nobody is told of a later end of the writer, and
//!   [`evict`] is an assertion of the caller: the node of the log was started again by its keeper, or it owns no lock.
//!   So it is for a writer to which the tier refused a lock.
//! * A writer that was taken off the table and runs on may damage a newer transaction if its WRITE is under way for
//!   half of the hole's time: its thread stood still after its look at the clock, or the NIC repeated the WRITE for so
//!   long. Readers find such damage by the checksum: it is a hole again.
//! * A failed WRITE may still be under way. Its writer refuses further commits, and stays in the table.
//! * Users with the right to write the regions can damage the log. Damage of the metadata is a typed error.
#![forbid(unsafe_code)]

mod cleaner;
mod error;
mod layout;
mod log;
mod record;
mod regions;
mod tail;
mod window;
mod writer;

pub use cleaner::{Cleaned, Cleaner, Hole};
pub use error::LogError;
pub use log::{LogConfig, Status, create, destroy, evict, status};
pub use record::{Entries, Transaction};
pub use regions::WriterInfo;
pub use tail::{Start, Tail};
pub use writer::Writer;
