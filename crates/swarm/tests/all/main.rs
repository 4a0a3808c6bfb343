//! The integration tests of this crate that need no process of their own, as one program.

mod mutants;
mod swarm;
