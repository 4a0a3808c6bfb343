//! The integration tests of this crate that need no process of their own, as one program.

mod addresses;
mod bare;
mod connecting;
mod doors;
mod engine;
mod errors;
mod forms;
mod numa;
mod plans;
mod sharing;
mod tasks;
mod timeouts;
mod values;
