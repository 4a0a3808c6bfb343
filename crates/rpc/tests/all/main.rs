//! The integration tests of this crate that need no process of their own, as one program.

#[path = "../common/mod.rs"]
mod common;

mod batching;
mod calls;
mod deadlines;
mod full_rings;
mod golden_counts;
mod head_reports;
mod isolation;
mod pieces;
mod reconnecting;
mod virtual_time;
mod worker;
