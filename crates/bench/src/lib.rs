//! The bench room: what measurements need and no engine has. Workloads and their generators, data loading, statistics,
//! the report document with its table and plots, and the physical floors that results are compared with. Anything that
//! can be tested without a running RPC system may come in, and so may the commands' measurement loops. The engine, the
//! key-value store and the command line's own options never do, and nothing here is on the path of a call.

pub mod floor;
pub mod kv_driver;
pub mod loader;
pub mod random;
pub mod report;
pub mod statistics;
pub mod workload;
