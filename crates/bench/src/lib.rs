//! The bench room: what measurements need and no engine has. Workloads and their generators, data loading, statistics,
//! the report document with its table and plots, the physical floors that results are compared with, and the
//! measurements themselves. The mechanism of engine and store and the command line's own options never come in, and
//! nothing here is on the path of a call.

pub mod floor;
pub mod kv_driver;
pub mod loader;
pub mod measure;
pub mod random;
pub mod rates;
pub mod report;
pub mod statistics;
pub mod typed_service;
pub mod workload;

// The service of `measure::atb_latency` and its likes.
dunlin::include_service!("atb");
