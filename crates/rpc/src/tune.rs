//! Tuning of the engine at run time, as pure state machines: observations go in, choices come out. The state
//! machines read no clock and know no peer, and any input is safe.
//!
//! | file | chooses | paper |
//! |---|---|---|
//! | `tune/table.rs` | nothing; holds the rates of a fabric, measured once | RF-RPC section 3.2, figure 1 |
//! | `tune/fetch.rs` | R, the READs that may fail, and F, the bytes of a READ | RF-RPC section 3.2, equations 1 and 2 |
//! | `tune/shared.rs` | R and F of each function, once for all connections of a client | RF-RPC section 3.2 |
//! | `tune/batch.rs` | the number of calls in a batch, once for all connections of a client | RF-RPC section 4.2, equation 3 |
//! | `tune/batch_steps.rs` | the same by the paper's rule | RF-RPC section 4.2, equation 3 |
//! | `tune/wait.rs` | the time of the first READ for a result | beyond RF-RPC, which sends it at once |
//! | `tune/response_mode.rs` | for a server, the answer path with the highest call rate, by trials | beyond RF-RPC, which decides by R alone |
//! | `tune/response_modes.rs` | nothing; counts the calls of a server's workers for `tune/response_mode.rs` | none |
//! | `tune/grouping.rs` | the clients of a group and its slice | ScaleRPC sections 3.2 and 3.6.4 |
//! | `tune/mode.rs` | for each function, whether results are fetched or written back | RF-RPC section 3.2, "Discussion" |

pub(crate) mod batch;
pub(crate) mod batch_steps;
pub(crate) mod fetch;
pub mod grouping;
pub(crate) mod mode;
pub(crate) mod response_mode;
pub(crate) mod response_modes;
pub mod shared;
pub mod table;
pub mod wait;

use std::sync::Arc;

/// The choices that all connections of a client share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuners {
    /// R and F; `None` if no plan needs them.
    pub(crate) fetch: Option<Arc<shared::FetchTuner>>,
    /// The batch size; `None` if it is fixed or there are no batches.
    pub(crate) batch: Option<Arc<batch::BatchSize>>,
}

impl Tuners {
    /// Returns whether the rates rule out that fetching results ever pays.
    pub(crate) fn rules_out_fetching(&self) -> bool {
        self.fetch.as_ref().is_some_and(|fetch| fetch.rules_out_fetching())
    }
}
