//! Raw verbs of RF-RPC's clients on its server, in addition to those of figure 1 to which the model is
//! fitted.

use super::{Effort, FigureError};
use dunlin_rnic_model::driver::{Connection, Pick, Places, Signaling, Test, Thread, run};
use dunlin_rnic_model::{Cluster, Opcode, Profile, Transport};

/// Profile of the cluster.
pub(super) const PROFILE: &str = "rf-rpc";
/// Client machines (RF-RPC 5.1).
const HOSTS: u32 = 7;
/// Payload, and size of the accessed memory: as in the tests to which the model is fitted.
const BYTES: u32 = 32;
const BUFFER: u64 = 1 << 16;
/// First number of the regions for local buffers.
const LOCAL: u32 = 1 << 20;
/// Interpretation of "several" requests per signaled one, where the paper gives no number.
const SEVERAL: u32 = 16;

/// Clients that post one request at a time, each with its own thread and connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clients {
    pub(super) number: u32,
    pub(super) opcode: Opcode,
    /// Whether payloads are inline in the work requests.
    pub(super) inline: bool,
    /// Whether each request is signaled and waited for.
    pub(super) signaled: bool,
    pub(super) effort: Effort,
}

impl Clients {
    /// Returns the requests per second, in millions.
    pub(super) fn run(&self) -> Result<f64, FigureError> {
        let profile = Profile::built_in(PROFILE)?;
        let threads = (0..self.number).map(|number| Thread {
            host: 1 + number % HOSTS,
            connections: vec![Connection { queue_pair: number, peer: 0, peer_queue_pair: number }],
            region: LOCAL + number,
            remote: Places::Anywhere { first: 0, regions: 1, bytes: BUFFER },
        });
        let outcome = run(&Test {
            cluster: Cluster::uniform(&profile, 1 + HOSTS as usize),
            threads: threads.collect(),
            opcode: self.opcode,
            transport: Transport::ReliableConnection,
            bytes: BYTES,
            inline: self.inline,
            window: 1,
            signaling: if self.signaled { Signaling::All } else { Signaling::OneIn(SEVERAL) },
            pick: Pick::InTurn,
            warm_up: 4_000,
            measured: match self.effort {
                Effort::Full => 30_000,
                Effort::Quick => 10_000,
            },
        })?;
        Ok(outcome.rate / 1e6)
    }
}
