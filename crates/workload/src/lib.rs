//! The workload room: the loads of a key-value store. YCSB's workloads and their request distributions, the clients that run them,
//! and the loader of data files.
//!
//! Generators, drivers and parsers of data come in. Measurement of time beyond a histogram of latencies, reports and the command line's
//! options never do.

pub mod kv_driver;
pub mod loader;
pub mod random;
pub mod ycsb;
