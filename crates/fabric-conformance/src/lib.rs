//! One conformance suite for every fabric: a registry of named [cases](cases::cases), each with the
//! capabilities that it needs and the actions of its one or two roles, and the runners that execute the roles
//! in threads of one process or in two processes. A back-end that fails a case is wrong.
//!
//! This crate may hold cases that use only the `dunlin-fabric` traits, runners, the [mod@reference] fabric on
//! which the suite itself is tested, and the counting of system calls ([trace]). It never holds anything that
//! knows a back-end. Cases never assert times (deadlines only end stuck cases), and never wait outside of the
//! fabric and its `Host`, which would exclude simulators.
//!
//! A back-end's own test, with `harness = false`:
//!
//! ```no_run
//! use dunlin_fabric::Scheme;
//! use dunlin_fabric_conformance::{Suite, reference::Reference};
//!
//! fn main() -> std::process::ExitCode {
//!     let suite = Suite { two_processes: false, ..Suite::new(Reference::new, Scheme::Sim, 126) };
//!     suite.main()
//! }
//! ```

pub mod case;
pub mod cases;
pub mod context;
pub mod failure;
pub mod reference;
pub mod run;
pub mod station;
pub mod trace;

pub use case::{Body, Case, Need, Role};
pub use cases::cases;
pub use context::{Context, MILLISECOND};
pub use failure::{Failure, Verdict};
pub use run::{
    Options, Outcome, Pair, Report, Row, SECOND_BY, Suite, Withheld, run_in_process, run_two_processes,
    serve_role,
};
pub use station::{Form, Station};
