//! Measurements of the RPC engine and the store: one function for each `dunlin bench` command, giving rows.
//!
//! All but [`idle()`] run in one pinned process pair ([`Session`]): this process has the clients, and the floor's peer
//! process hosts the servers ([`RpcSubject`]), so that floor and subject take turns in the same two processes. The
//! binary that calls these must hand its main function over to [`serve_peer_if_asked`] first.

use std::io;

use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::{CallError, CompletionMode, ConnectError, PROTOCOLS, Protocol};
use indicatif::{ProgressBar, ProgressStyle};

use dunlin_floor::{FloorError, PEER_ARGUMENT, inherited_descriptor, serve_peer};
use dunlin_report::Row;

mod atb;
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
mod throughput;
mod tuner;
mod typed;
mod ycsb;

pub use atb::{
    AtbLatencyOptions, AtbMixOptions, AtbThroughputOptions, LARGEST as ATB_LARGEST, Pace, Polling, Singles,
    Stop, atb_latency, atb_mix, atb_throughput,
};
pub use event::{EventOptions, event};
pub use idle::{IdleOptions, idle};
pub use key_value::{KeyValueOptions, key_value};
pub use latency::{LatencyOptions, latency};
pub use peer::RpcSubject;
pub use session::Session;
pub use throughput::{ThroughputOptions, throughput};
pub use tuner::{BatchTunerOptions, TunerGrid, batch_tuner, fetch_tuner};
pub use typed::{TypedOptions, typed};
pub use ycsb::{YcsbOptions, YcsbWorkload, ycsb};

/// What a measurement gives.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The rows of the document.
    pub rows: Vec<Row>,
    /// What was not measured, and why; for people, and for the document's parameters.
    pub notes: Vec<String>,
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The process pair.
    #[error(transparent)]
    Floor(#[from] FloorError),
    /// The fabric does not start.
    #[error("cannot start the shared-memory fabric: {0}; `dunlin doctor` says what this machine lacks")]
    Fabric(#[source] io::Error),
    /// No connection to the server in the peer process.
    #[error("cannot connect by {protocol}: {source}")]
    Connect {
        /// The protocol asked for.
        protocol: String,
        /// What went wrong.
        #[source]
        source: ConnectError,
    },
    /// No connection to a typed service in the peer process.
    #[error("cannot connect by {protocol}: {source}")]
    ConnectTyped {
        /// The contestant.
        protocol: String,
        /// What went wrong.
        #[source]
        source: dunlin::thrift::ConnectError,
    },
    /// A typed call failed outside a timed slice.
    #[error("a call by {protocol} failed: {reason}")]
    TypedCall {
        /// The contestant.
        protocol: String,
        /// What went wrong.
        reason: String,
    },
    /// A call failed outside a timed slice.
    #[error("a call failed: {0}")]
    Call(#[from] CallError),
    /// An answer had other bytes than it should.
    #[error("{0} delivered wrong answers: this is a bug, please report it")]
    WrongData(String),
    /// A parameter out of its range.
    #[error("{0}")]
    BadArgument(String),
    /// The kernel's account of a process cannot be read.
    #[error("cannot read {path}: {source}; is /proc mounted?")]
    NoProc {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Serves as the peer process if this process was started as one, and says so: then `main` must return.
///
/// Call it first thing in `main`: the peer's main thread is the one that gets pinned and measured.
///
/// # Errors
/// A descriptor that is no floor area, or a leader that is gone.
pub fn serve_peer_if_asked() -> Result<bool, FloorError> {
    if std::env::args_os().nth(1).is_none_or(|argument| argument != PEER_ARGUMENT) {
        return Ok(false);
    }
    serve_peer(inherited_descriptor()?, &mut RpcSubject::new())?;
    Ok(true)
}

/// The protocols that a measurement is asked for; of all that there are, those whose plan is legal with both sides
/// waiting by `mode`. A protocol asked for by name must be legal.
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

/// The protocol of a name that a user gave.
fn protocol_by_name(name: &str) -> Result<&'static Protocol, MeasureError> {
    Protocol::by_name(name).ok_or_else(|| {
        let known: Vec<&str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
        MeasureError::BadArgument(format!("there is no protocol '{name}'; there are {}", known.join(", ")))
    })
}

fn fabric() -> Result<ShmFabric, MeasureError> {
    ShmFabric::new(ShmConfig::default()).map_err(MeasureError::Fabric)
}

/// A bar of so many steps, drawn when standard error is a terminal.
fn progress_bar(steps: usize) -> ProgressBar {
    let progress = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}") {
        progress.set_style(style);
    }
    progress
}
