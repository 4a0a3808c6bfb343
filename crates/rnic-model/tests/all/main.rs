//! The integration tests of this crate that need no process of their own, as one program.

mod calibration;
mod mechanisms;
mod profiles;
mod sweep;
