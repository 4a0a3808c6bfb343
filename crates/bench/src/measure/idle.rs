//! `bench idle`: the cost of a server with many idle connections: CPU time, and memory per connection.

use std::time::Duration;

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{Client, ClientConfig, CompletionMode, Protocol};

use super::peer::{Drive, ECHO, ServiceKind};
use super::process::ProcessCost;
use super::session::{Served, Session};
use super::{Findings, MeasureError, progress_bar, protocols};
use dunlin_report::statistics::ratio;
use dunlin_report::{Row, rounded};

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct IdleOptions {
    /// Number of idle connections.
    pub connections: usize,
    /// Duration of the CPU time measurement.
    pub watched: Duration,
    /// The protocol; `None` for the default plan's.
    pub protocol: Option<String>,
    /// Completion mode of both sides.
    pub completion: CompletionMode,
}

impl Default for IdleOptions {
    fn default() -> Self {
        Self {
            connections: 100,
            watched: Duration::from_secs(5),
            protocol: None,
            completion: CompletionMode::Adaptive,
        }
    }
}

/// Starts a server with a worker on its own thread, as an application does, connects the clients, each of
/// which makes one call, and measures. The one row has `server_cpu_share` of one core while all are idle,
/// and two figures of memory growth per connection: resident memory
/// (`server_resident_bytes_per_connection`, shared pages counted in full) and proportional set size
/// (`server_proportional_bytes_per_connection`). Blocks for the given time, plus connecting.
///
/// # Errors
/// Any failure.
pub fn idle(session: &mut Session, options: &IdleOptions) -> Result<Findings, MeasureError> {
    if options.connections == 0 || options.connections > 10_000 {
        return Err(MeasureError::BadArgument(format!(
            "1 to 10000 connections are possible, not {}",
            options.connections
        )));
    }
    let name = options.protocol.clone().unwrap_or_else(|| {
        dunlin_rpc::Plan::default().protocol().map_or("", |protocol: &Protocol| protocol.name).to_owned()
    });
    let protocol = protocols(&session.fabric, &[name], options.completion)?[0];
    let config = ClientConfig::with_plan(protocol.plan(options.completion));
    let served = session.serve(ServiceKind::Bytes, Drive::Thread)?;
    // The first client makes the server allocate its one-time resources.
    let mut clients = vec![quiet_client(session, &served, &config)?];
    let before = report(session, &served, Duration::ZERO)?;
    let progress = progress_bar(options.connections);
    progress.set_message("connecting");
    session.while_serving(&served, |fabric, address| {
        for _ in 0..options.connections {
            clients.push(quiet(fabric, address, &config)?);
            progress.inc(1);
        }
        Ok(())
    })?;
    let after = report(session, &served, Duration::ZERO)?;
    progress.set_message("watching");
    let watched = report(session, &served, options.watched)?;
    progress.finish_and_clear();
    let each = |before: u64, after: u64| (after as f64 - before as f64).max(0.0) / options.connections as f64;
    let row = Row::new()
        .with("protocol", protocol.name)
        .with("completion", options.completion.to_string())
        .with("connections", options.connections)
        .with("seconds", rounded(watched.wall_ns as f64 / 1e9))
        .with("server_cpu_share", ratio(watched.cpu_ns as f64, watched.wall_ns as f64).map(rounded))
        .with(
            "server_resident_bytes_per_connection",
            each(before.resident_bytes, after.resident_bytes).round(),
        )
        .with(
            "server_proportional_bytes_per_connection",
            each(before.proportional_bytes, after.proportional_bytes).round(),
        );
    drop(clients);
    Ok(Findings { rows: vec![row], notes: Vec::new() })
}

fn quiet_client(
    session: &mut Session,
    served: &Served,
    config: &ClientConfig,
) -> Result<Client<ShmFabric>, MeasureError> {
    session.while_serving(served, |fabric, address| quiet(fabric, address, config))
}

/// Connects a client that makes one call and is then idle.
fn quiet(
    fabric: &ShmFabric,
    address: &dunlin_fabric::Address,
    config: &ClientConfig,
) -> Result<Client<ShmFabric>, MeasureError> {
    let mut client = Session::connect_to(fabric, address, config)?;
    client.call_on(0, ECHO, b"here")?;
    Ok(client)
}

/// Returns the cost of the server's process over a period without calls, and its memory at the end.
fn report(session: &mut Session, served: &Served, time: Duration) -> Result<ProcessCost, MeasureError> {
    session.pair.begin_subject(served.index, &[])?;
    std::thread::sleep(time);
    let (_, bytes) = session.pair.end_subject()?;
    serde_json::from_slice(&bytes)
        .map_err(|error| MeasureError::BadArgument(format!("the peer's report cannot be read: {error}")))
}
