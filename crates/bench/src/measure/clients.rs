//! `bench clients`: up to thousands of connections on one worker, by how they share it: dedicated, by turns (ScaleRPC), or
//! combined (FLOCK).

use std::time::{Duration, Instant};

use dunlin_fabric_shm::ShmFabric;
use dunlin_report::statistics::{Latency, median};
use dunlin_report::{Row, rounded};
use dunlin_rpc::{
    CallError, CallId, Cause, Client, ClientConfig, CompletionMode, Lease, Plan, Protocol, Sharing,
};

use super::flow::{difference, stamp};
use super::peer::{Drive, ECHO, ServiceKind};
use super::session::{Served, Session};
use super::{Findings, MeasureError, progress_bar, protocol_by_name};

/// Length of a slice. All groups of 2 000 clients have had their turns in it.
const SLICE: Duration = Duration::from_millis(60);
/// Clients that share a connection where connections are combined, as the threads of one program do.
const TOGETHER: usize = 16;
/// The most clients.
const MOST: usize = 4096;

/// How the clients of a row share the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// A connection for each client.
    Dedicated,
    /// A connection for each client, which take turns (ScaleRPC section 3).
    Grouped,
    /// A connection for 16 clients (FLOCK section 4).
    Combined,
}

impl Shared {
    /// All values, in the order of their rows.
    pub const ALL: [Shared; 3] = [Shared::Dedicated, Shared::Grouped, Shared::Combined];

    /// Returns the word of the hint `sharing`.
    pub const fn name(self) -> &'static str {
        match self {
            Shared::Dedicated => "dedicated",
            Shared::Grouped => "grouped",
            Shared::Combined => "combined",
        }
    }

    fn on(self, plan: Plan) -> Plan {
        match self {
            Shared::Dedicated => plan,
            Shared::Grouped => plan.shared(Sharing::Dedicated, Lease::Slice),
            Shared::Combined => plan.shared(Sharing::Combined, Lease::Forever),
        }
    }
}

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct ClientsOptions {
    /// Size of request and response in bytes, at most 4096.
    pub size: usize,
    /// Numbers of clients, each with one call in flight.
    pub clients: Vec<usize>,
    /// How they share the worker.
    pub sharing: Vec<Shared>,
    /// The protocol. Turns need requests by `write` or `write_imm`.
    pub protocol: String,
    /// Slices of each row, taken in turn; `None` gives 9.
    pub rounds: Option<usize>,
}

impl Default for ClientsOptions {
    fn default() -> Self {
        ClientsOptions {
            size: 32,
            clients: vec![1, 10, 40, 200, 1000, 2000],
            sharing: Shared::ALL.to_vec(),
            protocol: "Server-reply".to_owned(),
            rounds: None,
        }
    }
}

impl ClientsOptions {
    fn check(&self) -> Result<&'static Protocol, MeasureError> {
        let wrong = |text: String| Err(MeasureError::BadArgument(text));
        if self.size > 4096 {
            return wrong(format!("clients are measured with up to 4096 bytes, not {}", self.size));
        }
        if let Some(clients) = self.clients.iter().find(|clients| !(1..=MOST).contains(*clients)) {
            return wrong(format!("1 to {MOST} clients are measured, not {clients}"));
        }
        protocol_by_name(&self.protocol)
    }
}

/// Measures each number of clients under each sharing, in alternating slices of one server with one worker. One thread
/// makes the calls of all clients, one in flight of each. Both sides are busy. Rows have `sharing`, `clients`,
/// `throughput_ops` (the median of the slices), `median_ns` and `p99_ns`. Blocks for about two seconds per row.
///
/// # Errors
/// Any failure.
pub fn clients(session: &mut Session, options: &ClientsOptions) -> Result<Findings, MeasureError> {
    let protocol = options.check()?;
    let rounds = options.rounds.unwrap_or(9);
    let mut findings = Findings::default();
    let progress = progress_bar(options.clients.len() * options.sharing.len() * rounds);
    for &count in &options.clients {
        // A server for each sharing: lanes that take no turns would take their part of the groups.
        let mut subjects = Vec::new();
        for &shared in &options.sharing {
            let served = session.serve(ServiceKind::Bytes, Drive::Thread)?;
            progress.set_message(format!("connecting {count} clients, {}", shared.name()));
            let plan = shared.on(protocol.plan(CompletionMode::Busy));
            let config = ClientConfig { window: 32, ring_bytes: 16 * 1024, ..ClientConfig::with_plan(plan) };
            let users = connect(session, &served, &config, (count, shared), options.size)?;
            subjects.push(Subject { shared, served, users, rates: Vec::new(), latency: Latency::new() });
        }
        for _ in 0..rounds {
            for subject in &mut subjects {
                progress.set_message(format!("{count} clients, {}", subject.shared.name()));
                let Subject { served, users, rates, latency, .. } = subject;
                rates.push(session.while_serving(served, |_, _| slice(users, latency))?);
                progress.inc(1);
            }
        }
        for Subject { shared, served, users, rates, latency } in subjects {
            findings.rows.push(
                Row::new()
                    .with("sharing", shared.name())
                    .with("clients", count)
                    .with("throughput_ops", median(rates.iter().copied()).map(f64::round))
                    .with("median_ns", rounded(latency.p50_ns()))
                    .with("p99_ns", rounded(latency.p99_ns()))
                    .with("samples", latency.samples()),
            );
            session.disconnect(&served, users)?;
        }
    }
    progress.finish_and_clear();
    Ok(findings)
}

/// The clients of one server.
struct Subject {
    shared: Shared,
    served: Served,
    users: Vec<User>,
    rates: Vec<f64>,
    latency: Latency,
}

/// A client with one call in flight.
struct User {
    client: Client<ShmFabric>,
    payload: Vec<u8>,
    sent: u64,
    open: Option<(CallId, Instant)>,
}

fn connect(
    session: &mut Session,
    served: &Served,
    config: &ClientConfig,
    (count, shared): (usize, Shared),
    size: usize,
) -> Result<Vec<User>, MeasureError> {
    session.while_serving(served, |fabric, address| {
        let mut users: Vec<User> = Vec::with_capacity(count);
        for number in 0..count {
            let client = match users.last() {
                Some(last) if shared == Shared::Combined && number % TOGETHER != 0 => {
                    last.client.another().map_err(|source| MeasureError::Connect {
                        protocol: shared.name().to_owned(),
                        source,
                    })?
                }
                _ => Session::connect_to(fabric, address, config)?,
            };
            users.push(User { client, payload: vec![0; size], sent: number as u64, open: None });
        }
        Ok(users)
    })
}

/// Lets all clients make calls for the length of a slice. Returns the calls a second.
fn slice(users: &mut [User], latency: &mut Latency) -> Result<f64, MeasureError> {
    let failed = |reason: String| MeasureError::TypedCall { protocol: "clients".to_owned(), reason };
    let start = Instant::now();
    let mut calls = 0_u64;
    while start.elapsed() < SLICE {
        for user in &mut *users {
            calls += user.turn(Some(&mut *latency)).map_err(failed)?;
        }
    }
    let elapsed = start.elapsed();
    // Calls in flight end before the next sharing has its slice.
    let until = start + Duration::from_secs(10);
    while users.iter().any(|user| user.open.is_some()) {
        if Instant::now() > until {
            return Err(failed("calls have not ended after 10 s".to_owned()));
        }
        for user in &mut *users {
            user.turn(None).map_err(failed)?;
        }
    }
    Ok(calls as f64 / elapsed.as_secs_f64())
}

impl User {
    /// Takes the answer if it is there, and records its latency; begins the next call then, unless nothing is measured.
    /// Returns the number of calls that ended.
    fn turn(&mut self, latency: Option<&mut Latency>) -> Result<u64, String> {
        let mut ended = 0;
        if let Some((call, start)) = self.open {
            self.client.progress();
            if !self.client.is_done(call) {
                return Ok(0);
            }
            let answer = self.client.outcome(call).map_err(|error| error.to_string())?;
            if difference(answer, self.payload.len(), self.sent) != 0 {
                return Err("a response has wrong bytes".to_owned());
            }
            self.client.forget(call);
            (self.open, ended) = (None, 1);
            if let Some(latency) = latency {
                latency.record(start.elapsed().as_nanos() as u64);
                self.begin()?;
            }
        } else if latency.is_some() {
            self.begin()?;
        }
        Ok(ended)
    }

    fn begin(&mut self) -> Result<(), String> {
        self.sent += 1;
        stamp(&mut self.payload, self.sent);
        let start = Instant::now();
        match self.client.submit_on(0, ECHO, &self.payload) {
            Ok(call) => self.open = Some((call, start)),
            // The connection that it shares has no room now.
            Err(CallError::NotExecuted(Cause::WindowFull)) => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_refused() {
        assert!(ClientsOptions::default().check().is_ok());
        for wrong in [
            ClientsOptions { size: 4097, ..Default::default() },
            ClientsOptions { clients: vec![0], ..Default::default() },
            ClientsOptions { clients: vec![MOST + 1], ..Default::default() },
            ClientsOptions { protocol: "none".to_owned(), ..Default::default() },
        ] {
            assert!(matches!(wrong.check(), Err(MeasureError::BadArgument(_))), "{wrong:?}");
        }
    }
}
