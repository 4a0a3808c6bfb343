//! The integration tests of this crate that need no process of their own, as one program.

mod conformance;
mod partition;
mod small_engine;
mod stacks;
mod verbs;
