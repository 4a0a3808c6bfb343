//! The integration tests of this crate that need no process of their own, as one program.

mod conformance;
mod partition;
mod processor_time;
mod small_engine;
mod stacks;
mod verbs;
