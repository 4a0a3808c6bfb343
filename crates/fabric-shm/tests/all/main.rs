//! The integration tests of this crate that need no process of their own, as one program.

#[path = "../common/mod.rs"]
mod common;

mod memory;
mod processes;
mod send;
mod waiting;
mod write;
