//! conformance
pub mod reference;
