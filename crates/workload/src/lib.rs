//! Workloads of key-value stores: YCSB's workloads and request distributions, the drivers that run them,
//! and the loader for data files.
//!
//! This crate contains generators, drivers and data parsers. It measures nothing but latency histograms,
//! and has neither reports nor command-line options.

pub mod kv_driver;
pub mod loader;
pub mod random;
pub mod ycsb;
