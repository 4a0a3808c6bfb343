//! The integration tests of this crate that need no process of their own, as one program.

mod bench_atb;
mod fetch_table;
