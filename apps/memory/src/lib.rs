//! LITE-DSM (LITE, SOSP 2017, section 8.4): a distributed shared memory. The same pages are at several members, which are
//! processes or nodes; a page has many readers or one writer, and changes are seen after their release.
//!
//! ```text
//! Memory                  opening, reading, writing                                   memory.rs
//! Acquired                pages for writing: acquisition and release                  acquired.rs
//!   Shared                a member: messages, reads and writes of pages               shared.rs
//!     Home, Pages         the protocol of homes and of members, without I/O           core/
//!     Cache               copies and twins, in the heap or mapped                     cache.rs
//!     Request             messages of members                                         message.rs
//! MemoryConfig            settings, places of pages                                   config.rs
//! ```
//!
//! # Protocol
//!
//! Page N is at home at member N modulo the number of members, in a region on its node. A member reads a page that it has
//! no copy of by one READ; no processor of the home is involved. It acquires pages by one call to each home, all at the same
//! time, and writes its copies. A release has three steps, each at all members at the same time:
//!
//! 1. *Push.* WRITEs of the bytes that changed to the homes.
//! 2. *Tell.* Calls to members that may have copies, which drop them.
//! 3. *Give back.* Calls to the homes, each of which gives the pages to the next claim that waits.
//!
//! A home does not hear of READs, so either all members are told, or a reader sets its bit in a word of the page before it
//! reads, and a releaser takes the bits ([`Told`]). A READ that meets a release is repeated.
//!
//! # Failures
//!
//! Each member holds a lock of the tier as long as it lives. A claim that waits looks at the lock of the holder. The pages
//! of a holder that has ended are given on with their last release, and the next writer hears of it
//! ([`Acquired::lost`]). If the home of a page has ended, nobody can acquire the page any more; copies, and the page itself
//! while its node lives, can be read.
//!
//! # Trust
//!
//! Members act for one principal: their services hear no other, and regions have no grants for others. Messages are
//! checked all the same: a member that breaks the protocol can damage the bytes of pages and keep others waiting, no more.
#![forbid(unsafe_code)]

mod acquired;
mod cache;
mod config;
mod core;
mod error;
mod memory;
mod message;
mod shared;

pub use acquired::{Acquired, Lost};
pub use config::{MemoryConfig, PAGE, Push, Told};
pub use error::MemoryError;
pub use memory::Memory;
pub use shared::Counts;
