//! `dunlin node` and `dunlin tier` as real processes.
#![allow(missing_docs, reason = "tests, named for what they hold")]

mod node;
mod scene;
mod top;
