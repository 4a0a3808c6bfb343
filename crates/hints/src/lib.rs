//! Hints: a user's description of a function's needs (HatRPC section 4.1), and the selection of a plan from
//! them.
//!
//! This crate holds keys, values with their words and units, and the rules from hints to plans. It never
//! holds file access, IDL parsing (`dunlin-idl`) or communication. Generated code and the runtime link
//! against it, so it is small, and a table of hints is a constant:
//!
//! ```
//! use dunlin_hints::{FunctionHints, Hints, PerfGoal};
//!
//! static GET: FunctionHints = FunctionHints::new("get")
//!     .client(Hints::NONE.perf_goal(PerfGoal::Latency).payload_size(1024))
//!     .server(Hints::NONE.perf_goal(PerfGoal::Latency).payload_size(1024));
//! assert_eq!(GET.client.payload_size, Some(1024));
//! ```
#![forbid(unsafe_code)]

mod hints;
mod key;
mod legal;
mod nearest;
mod runs;
mod select;
mod select_error;
mod selection;
mod sharing;
mod value;

pub use dunlin_fabric::Capabilities;
pub use dunlin_rpc::{CompletionMode, Occupancy, Plan, Protocol, ServerConnections};
pub use hints::{FunctionHints, Hints, Level, Origin, Place};
pub use key::{Key, Side};
pub use nearest::nearest;
pub use runs::{RunsBy, runs};
pub use select::select;
pub use select_error::SelectError;
pub use selection::{
    ACTIVE_QUEUE_PAIRS, Because, Environment, NumaBinding, Reason, SMALL, Selection, Subject, Subscription,
};
pub use sharing::unify_sharing;
pub use value::{
    LONG_FROM, MAX_CONCURRENCY, MAX_PAYLOAD, Numa, PerfGoal, Priority, ProcessTime, Sharing, Transport,
    Value, ValueError, nearest_protocol, protocol_names,
};
