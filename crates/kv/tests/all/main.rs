//! The integration tests of this crate that need no process of their own, as one program.

mod bypass;
mod coming_back;
mod eviction;
mod model;
mod service;
