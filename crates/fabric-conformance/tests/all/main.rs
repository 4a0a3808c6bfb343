//! The integration tests of this crate that need no process of their own, as one program.

mod interpose;
mod mutants;
mod wrong_payloads;
