//! The integration tests of this crate that need no process of their own, as one program.

mod figures;
mod lite_figures;
mod load;
mod membership;
mod mutants;
mod raw_verbs;
mod replay;
mod sharing;
mod swarm;
