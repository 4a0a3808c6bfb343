//! The integration tests of this crate that need no process of their own, as one program.

mod commands;
mod demo;
mod kv_bench;
mod ping;
mod store;
