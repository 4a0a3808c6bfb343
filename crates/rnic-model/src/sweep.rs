//! Sweeps: raw-verb measurements in the columns of rdma_bench's swarm test, and the model's predictions of
//! them.
//!
//! In that test every machine runs the same number of threads. A thread has one queue pair to each machine
//! for each "virtual machine" (those to its own machine exist but are unused), picks one at random, and posts
//! to a random offset of a random peer's buffer. A machine issues and serves requests at the same rate.

use crate::driver::{Connection, Pick, Places, Signaling, Test, TestError, Thread, run};
use crate::network::Cluster;
use crate::profile::Profile;
use crate::request::{Opcode, Transport};

/// The columns, in their order.
pub const COLUMNS: [&str; 13] = [
    "cluster",
    "nic_from_memory",
    "machines",
    "threads_per_machine",
    "vms",
    "qps_per_nic",
    "op",
    "size_B",
    "window",
    "unsig_batch",
    "allsig",
    "mops_per_machine",
    "source_file",
];

/// Sweep names of clusters whose profile has another name.
const ALIASES: &[(&str, &str)] = &[("netapp", "connect-ib")];

/// Size of the buffer that a thread registers, in bytes.
pub const BUFFER: u64 = 2 << 20;
/// Machines of a quick run.
const QUICK_MACHINES: u32 = 3;
/// Limits of a row; a larger one was never measured, or would run for hours.
const MOST_MACHINES: u32 = 1000;
const MOST_QUEUE_PAIRS: u32 = 1_000_000;
const MOST_WINDOW: u32 = 65_536;

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Line of the file, from 1.
    pub line: usize,
    /// The cluster, as named in the file.
    pub cluster: String,
    /// Number of machines.
    pub machines: u32,
    /// Threads per machine.
    pub threads: u32,
    /// Queue pairs per NIC.
    pub queue_pairs: u32,
    /// The operation, as named in the file.
    pub operation: String,
    /// Operation of all work requests.
    pub opcode: Opcode,
    /// Transport of the queue pairs.
    pub transport: Transport,
    /// Whether payloads are inline in the work requests.
    pub inline: bool,
    /// Payload in bytes.
    pub bytes: u32,
    /// Outstanding work requests per thread.
    pub window: u32,
    /// Signaling.
    pub signaling: Signaling,
    /// Measured rate, in million operations per second and machine.
    pub mops: f64,
    /// Source of the measurement.
    pub source: String,
}

/// A file that is not a valid sweep.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SweepError {
    /// The file is empty.
    #[error("{file}: no rows; the first line names the columns: {}", COLUMNS.join(","))]
    Empty {
        /// The file.
        file: String,
    },
    /// The first line does not name the columns.
    #[error("{file}:1: column {number} is '{found}' and should be '{expected}'; the columns are {}", COLUMNS.join(","))]
    Columns {
        /// The file.
        file: String,
        /// The column, from 1.
        number: usize,
        /// The name found.
        found: String,
        /// The name expected.
        expected: &'static str,
    },
    /// A row is not a valid measurement.
    #[error("{file}:{line}: {problem}")]
    Row {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// A row cannot be run.
    #[error("line {line} cannot be run")]
    Run {
        /// The line, from 1.
        line: usize,
        /// The reason.
        source: TestError,
    },
}

/// Parses a sweep.
///
/// # Errors
/// Returns the first invalid line.
pub fn parse(file: &str, text: &str) -> Result<Vec<Row>, SweepError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let Some((_, head)) = lines.next() else {
        return Err(SweepError::Empty { file: file.to_owned() });
    };
    let found: Vec<&str> = head.trim().trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
    for (index, expected) in COLUMNS.into_iter().enumerate() {
        let found = found.get(index).copied().unwrap_or_default();
        if found != expected {
            return Err(SweepError::Columns {
                file: file.to_owned(),
                number: index + 1,
                found: found.to_owned(),
                expected,
            });
        }
    }
    let rows: Result<Vec<Row>, SweepError> = lines
        .map(|(index, line)| {
            row(index + 1, line).map_err(|problem| SweepError::Row {
                file: file.to_owned(),
                line: index + 1,
                problem,
            })
        })
        .collect();
    match rows {
        Ok(rows) if rows.is_empty() => Err(SweepError::Empty { file: file.to_owned() }),
        rows => rows,
    }
}

fn row(line: usize, text: &str) -> Result<Row, String> {
    let cells: Vec<&str> = text.split(',').map(str::trim).collect();
    if cells.len() != COLUMNS.len() {
        return Err(format!("{} columns where there should be {}", cells.len(), COLUMNS.len()));
    }
    let count = |column: usize, most: u32| {
        let cell = cells[column];
        match cell.parse::<u32>() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(format!("{} is '{cell}'; it must be a number from 1 to {most}", COLUMNS[column])),
        }
    };
    let cluster = cells[0];
    if profile_of(cluster).is_none() {
        return Err(format!(
            "unknown cluster '{cluster}'; known are {}",
            ALIASES
                .iter()
                .map(|(alias, _)| *alias)
                .chain(Profile::built_in_names())
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    let (opcode, transport, inline) = operation(cells[6])?;
    let machines = count(2, MOST_MACHINES)?;
    if machines < 2 {
        return Err("machines is 1; a test needs at least two".to_owned());
    }
    let threads = count(3, 4096)?;
    count(4, MOST_QUEUE_PAIRS)?;
    let queue_pairs = count(5, MOST_QUEUE_PAIRS)?;
    if !queue_pairs.is_multiple_of(threads) || queue_pairs / threads < machines {
        return Err(format!(
            "qps_per_nic is {queue_pairs}; it must be a multiple of {threads} threads, and each thread needs one for each of {machines} machines"
        ));
    }
    let every = count(9, MOST_WINDOW)?;
    let signaling = match cells[10] {
        "1" => Signaling::All,
        "0" if every == 1 => Signaling::All,
        "0" => Signaling::OneIn(every),
        other => return Err(format!("allsig is '{other}'; it must be 0 or 1")),
    };
    let mops: f64 = cells[11].parse().unwrap_or(0.0);
    if !(mops > 0.0 && mops.is_finite()) {
        return Err(format!("mops_per_machine is '{}'; it must be a positive number", cells[11]));
    }
    Ok(Row {
        line,
        cluster: cluster.to_owned(),
        machines,
        threads,
        queue_pairs,
        operation: cells[6].to_owned(),
        opcode,
        transport,
        inline,
        bytes: count(7, 1 << 20)?,
        window: count(8, MOST_WINDOW)?,
        signaling,
        mops,
        source: cells[12].to_owned(),
    })
}

fn operation(name: &str) -> Result<(Opcode, Transport, bool), String> {
    let (bare, inline) = match name.strip_suffix("_inline") {
        Some(bare) => (bare, true),
        None => (name, false),
    };
    let (opcode, transport) = match bare {
        "READ_RC" if !inline => (Opcode::Read, Transport::ReliableConnection),
        "WRITE_RC" => (Opcode::Write, Transport::ReliableConnection),
        "WRITE_UC" => (Opcode::Write, Transport::UnreliableConnection),
        _ => {
            return Err(format!(
                "unknown op '{name}'; known are READ_RC, WRITE_RC, WRITE_UC, the WRITEs also with _inline"
            ));
        }
    };
    Ok((opcode, transport, inline))
}

/// Returns the name of the built-in profile for a cluster's name in sweeps.
#[must_use]
pub fn profile_of(cluster: &str) -> Option<&'static str> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == cluster).map_or(cluster, |(_, name)| name);
    Profile::built_in_names().find(|known| *known == name)
}

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Long enough for rates to be steady to about a percent.
    Full,
    /// For searches: shorter, and with fewer machines. Each machine still has as many threads and queue
    /// pairs, and serves at the rate at which it issues, so its rate is nearly the same.
    Quick,
}

/// Returns the median of absolute relative errors, in percent; 0 without any. Pairs are (measured,
/// predicted).
#[must_use]
pub fn median_error_percent(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut errors: Vec<f64> =
        pairs.map(|(measured, predicted)| ((predicted - measured) / measured * 100.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    match errors.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => errors[odd / 2],
        even => (errors[even / 2 - 1] + errors[even / 2]) / 2.0,
    }
}

impl Row {
    /// Returns the measured test, on a cluster of the given profile.
    #[must_use]
    pub fn test<'a>(&self, profile: &'a Profile, effort: Effort) -> Test<'a> {
        let each = self.queue_pairs / self.threads;
        let (machines, scale) = match effort {
            Effort::Full => (self.machines, 3),
            Effort::Quick => (self.machines.min(QUICK_MACHINES), 1),
        };
        let mut threads = Vec::with_capacity((machines * self.threads) as usize);
        for host in 0..machines {
            for thread in 0..self.threads {
                let connections = (0..each).filter(|index| index % self.machines != host).map(|index| {
                    let other_end = index - index % self.machines + host;
                    let peer = match effort {
                        Effort::Full => index % self.machines,
                        // The same number of queue pairs, to fewer machines.
                        Effort::Quick => (host + 1 + index % self.machines % (machines - 1)) % machines,
                    };
                    Connection {
                        queue_pair: thread * each + index,
                        peer,
                        // The last group may be incomplete; then several queue pairs share an end.
                        peer_queue_pair: thread * each + other_end.min(each - 1),
                    }
                });
                threads.push(Thread {
                    host,
                    connections: connections.collect(),
                    region: thread,
                    remote: Places::Anywhere { first: 0, regions: self.threads, bytes: BUFFER },
                });
            }
        }
        let hosts = machines as usize;
        let machines = u64::from(machines);
        // The warm-up uses every context, and fills and drains every window.
        let filled = u64::from(self.queue_pairs) * 2 + u64::from(self.threads * self.window) * 2;
        // Where no window limits the outstanding requests, full send queues do.
        let queued = match self.signaling {
            Signaling::OneIn(every) if !self.opcode.answers_with_data() => self.queue_pairs * every * 2,
            _ => 0,
        };
        Test {
            cluster: Cluster::uniform(profile, hosts),
            threads,
            opcode: self.opcode,
            transport: self.transport,
            bytes: self.bytes,
            inline: self.inline,
            window: self.window,
            signaling: self.signaling,
            pick: Pick::Random,
            warm_up: machines * (filled + u64::from(queued) + 500),
            measured: machines * 1500 * scale,
        }
    }

    /// Predicts the measured rate, in million operations per second and machine.
    ///
    /// # Errors
    /// Returns an error if the row cannot be run.
    pub fn predict(&self, profile: &Profile, effort: Effort) -> Result<f64, SweepError> {
        let test = self.test(profile, effort);
        let outcome = run(&test).map_err(|source| SweepError::Run { line: self.line, source })?;
        Ok(outcome.rate / test.cluster.hosts.len() as f64 / 1e6)
    }
}
