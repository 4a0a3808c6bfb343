//! The integration tests of this crate that need no process of their own, as one program.

mod load;
mod membership;
mod raw_verbs;
mod replay;
mod sharing;
