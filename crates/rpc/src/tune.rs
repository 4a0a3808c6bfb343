//! Choices that the engine makes by itself while it runs, as pure state machines: what they are told goes in, what they chose
//! comes out. They know no clock, no memory and no peer, and bear any number that they are fed.
//!
//! | file | chooses | paper |
//! |---|---|---|
//! | `tune/table.rs` | nothing; what the fabric does in a second, measured once | RF-RPC section 3.2, figure 1 |
//! | `tune/fetch.rs` | R, the READs that may fail, and F, the bytes that one READ brings | RF-RPC section 3.2, equations 1 and 2 |
//! | `tune/shared.rs` | the same for each function, once for all connections of a client | RF-RPC section 3.2 |
//! | `tune/batch.rs` | how many calls a batch has, once for all connections of a client | RF-RPC section 4.2, equation 3 |
//! | `tune/wait.rs` | when the first READ for a result is sent | beyond RF-RPC, which sends it at once |
//! | `tune/way.rs` | for a server, which way makes more calls, by trying | beyond RF-RPC, which goes by R alone |
//! | `tune/fill.rs` | how large payloads are filled that leave in pieces | none |
//! | `tune/turns.rs` | which buffer each of these is filled in, once for all lanes of a process | none |
//! | `tune/mode.rs` | for each function whether results are fetched or written back | RF-RPC section 3.2, "Discussion" |

pub(crate) mod batch;
pub(crate) mod fetch;
pub(crate) mod fill;
pub(crate) mod mode;
pub mod shared;
pub mod table;
pub(crate) mod turns;
pub mod wait;
pub(crate) mod way;

use crate::plan::Plan;
use std::sync::Arc;

/// What all connections of a client choose together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuners {
    /// R and F; none if no plan needs them.
    pub(crate) fetch: Option<Arc<shared::FetchTuner>>,
    /// The size of batches; none if it is fixed, or there are none.
    pub(crate) batch: Option<Arc<batch::BatchSize>>,
}

impl Tuners {
    /// The plan by which lanes are opened for calls that were to go by this one. Where fetching is ruled out a second way for results would
    /// only cost something.
    pub(crate) fn effective(&self, plan: Plan) -> Plan {
        match &self.fetch {
            Some(fetch) if fetch.rules_out_fetching() => plan.written_back(),
            _ => plan,
        }
    }
}
