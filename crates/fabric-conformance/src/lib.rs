//! One conformance suite for every fabric: a registry of named [cases](cases::cases), each with the capability it
//! needs and what its one or two roles do, and the runners that play the roles on threads of one process or in
//! two processes. A back-end passes the suite, or is wrong.
//!
//! What may come in: cases in terms of the `dunlin-fabric` traits alone, runners, the [mod@reference] fabric that
//! the suite itself is tested on, and the counting of system calls ([trace]). What never does: anything that knows a back-end, times that a case asserts
//! (deadlines only end what is stuck), and waiting outside of the fabric and its `Host`, which would shut out
//! simulators.
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
    Options, Outcome, Pair, Report, Row, SECOND_BY, Suite, run_in_process, run_two_processes, serve_role,
};
pub use station::{Form, Station};
