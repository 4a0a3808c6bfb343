//! `dunlin apps` as real processes.
#![allow(missing_docs, reason = "tests, named for what they hold")]

mod demo;
mod graph;
mod kills;
mod log;
mod mapreduce;
mod memory;
