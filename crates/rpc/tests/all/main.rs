//! The integration tests of this crate that need no process of their own, as one program.

#[path = "../common/mod.rs"]
mod common;

mod async_memory;
mod batching;
mod calls;
mod clones;
mod deadlines;
mod deployment;
mod every_plan;
mod full_rings;
mod golden_counts;
mod grouped;
mod head_reports;
mod hostile_server;
mod idle;
mod isolation;
mod long_calls;
mod lost_cores;
mod memory;
mod observer;
mod panics;
mod payload_buffers;
mod pieces;
mod polled;
mod ready;
mod reconnecting;
mod renewal;
mod request_pool;
mod sharing;
mod slow;
mod strands;
mod takers;
mod tasks;
mod virtual_time;
mod worker;
