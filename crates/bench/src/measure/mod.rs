//! Measurements of the RPC engine and the store: one function per `dunlin bench` command, returning rows.
//!
//! All except [`idle()`] and [`tier_idle()`] run in one pinned process pair ([`Session`]). This process runs the clients, and
//! the floor's peer process hosts the servers ([`RpcSubject`]), so that floor and subject alternate in the
//! same two processes. The `main` function of the calling binary must first call [`serve_peer_if_asked`].

use std::io;

use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::{CallError, CompletionMode, ConnectError, PROTOCOLS, Protocol};
use indicatif::{ProgressBar, ProgressStyle};

use dunlin_floor::{FloorError, PEER_ARGUMENT, inherited_descriptor, serve_peer};
use dunlin_hints::nearest_protocol;
use dunlin_report::Row;

mod atb;
mod clients;
mod contest;
mod crowd;
mod event;
mod flow;
mod idle;
mod key_value;
mod latency;
mod peer;
mod process;
mod session;
mod systems;
mod threads;
mod throughput;
mod tier;
mod tier_bare;
mod tier_idle;
mod tuner;
mod typed;
mod ycsb;

pub use atb::{
    AtbLatencyOptions, AtbMixOptions, AtbThroughputOptions, LARGEST as ATB_LARGEST, Pace, Polling, Singles,
    Stop, atb_latency, atb_mix, atb_throughput,
};
pub use clients::{ClientsOptions, Shared, clients};
pub use event::{EventOptions, event};
pub use idle::{IdleOptions, idle};
pub use key_value::{KeyValueOptions, key_value};
pub use latency::{LatencyOptions, latency};
pub use peer::RpcSubject;
pub use session::Session;
pub use threads::{ThreadsOptions, threads};
pub use throughput::{ThroughputOptions, throughput};
pub use tier::{TierOptions, tier};
pub use tier_idle::{TierIdleOptions, tier_idle};
pub use tuner::{BatchTunerOptions, TunerGrid, batch_tuner, fetch_tuner};
pub use typed::{TypedOptions, typed};
pub use ycsb::{YcsbOptions, YcsbWorkload, ycsb};

/// The results of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The rows of the document.
    pub rows: Vec<Row>,
    /// Parts that were not measured, with the reason; for the terminal and for the document's parameters.
    pub notes: Vec<String>,
}

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// An error of the process pair.
    #[error(transparent)]
    Floor(#[from] FloorError),
    /// The fabric cannot be opened.
    #[error("cannot start the shared-memory fabric; `dunlin doctor` says what this machine lacks")]
    Fabric(#[source] io::Error),
    /// The connection to the server in the peer process failed.
    #[error("cannot connect by {protocol}")]
    Connect {
        /// The requested protocol.
        protocol: String,
        /// The cause.
        #[source]
        source: ConnectError,
    },
    /// The connection to a typed service in the peer process failed.
    #[error("cannot connect by {protocol}")]
    ConnectTyped {
        /// The contestant.
        protocol: String,
        /// The cause.
        #[source]
        source: dunlin::thrift::ConnectError,
    },
    /// A typed call failed outside a timed slice.
    #[error("a call by {protocol} failed: {reason}")]
    TypedCall {
        /// The contestant.
        protocol: String,
        /// The cause.
        reason: String,
    },
    /// A call failed outside a timed slice.
    #[error("a call failed")]
    Call(#[from] CallError),
    /// A response had the wrong bytes.
    #[error("{0} delivered wrong answers: this is a bug, please report it")]
    WrongData(String),
    /// A parameter is out of range.
    #[error("{0}")]
    BadArgument(String),
    /// The kernel's statistics of a process cannot be read.
    #[error("cannot read {path}; is /proc mounted?")]
    NoProc {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Serves as the peer process if this process was started as one. If it returns `true`, `main` must return.
///
/// Call it first in `main`: the peer's main thread is pinned and measured.
///
/// # Errors
/// The inherited descriptor is not a floor area, or the leader has ended.
pub fn serve_peer_if_asked() -> Result<bool, FloorError> {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    if first == tier_idle::MEMBER_ARGUMENT {
        tier_idle::serve_member(std::env::args().nth(2).unwrap_or_default().as_str());
        return Ok(true);
    }
    if first != PEER_ARGUMENT {
        return Ok(false);
    }
    serve_peer(inherited_descriptor()?, &mut RpcSubject::new())?;
    Ok(true)
}

/// Returns the named protocols, which must be legal. Without names, returns all protocols whose plan is
/// legal with both sides in completion mode `mode`.
fn protocols(
    fabric: &ShmFabric,
    names: &[String],
    mode: CompletionMode,
) -> Result<Vec<&'static Protocol>, MeasureError> {
    let capabilities = dunlin_fabric::Fabric::capabilities(fabric);
    if names.is_empty() {
        return Ok(PROTOCOLS
            .iter()
            .filter(|protocol| protocol.plan(mode).check(capabilities).is_ok())
            .collect());
    }
    names
        .iter()
        .map(|name| {
            let protocol = protocol_by_name(name)?;
            let checked = protocol.plan(mode).check(capabilities);
            checked.map_err(|illegal| MeasureError::BadArgument(format!("{name}: {illegal}")))?;
            Ok(protocol)
        })
        .collect()
}

/// Returns the protocol with the name that the user gave.
fn protocol_by_name(name: &str) -> Result<&'static Protocol, MeasureError> {
    Protocol::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
        let meant = nearest_protocol(name).map_or(String::new(), |name| format!("; did you mean '{name}'?"));
        MeasureError::BadArgument(format!(
            "there is no protocol '{name}'{meant}; there are {}",
            known.join(", ")
        ))
    })
}

fn fabric() -> Result<ShmFabric, MeasureError> {
    ShmFabric::new(ShmConfig::default()).map_err(MeasureError::Fabric)
}

/// Creates a bar of `steps` steps, drawn if standard error is a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
    let progress = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}") {
        progress.set_style(style);
    }
    progress
}
