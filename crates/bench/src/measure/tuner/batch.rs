//! `bench batch-tuner`: the engine's adaptive batch size under a latency limit, compared with fixed batch
//! sizes (RF-RPC section 4.2, equation 3).

use std::time::Instant;

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{BatchCalls, Batching, Client, ClientConfig, ResponseHalf};

use super::{Callers, Contestant, Job, TunerGrid, WORK, collect, config, contest, ratio_of_kinds};
use crate::measure::atb::turns::{
    Compared, Kind, LatencyLimit, Metric, Rivals, Sample, Verdict, set_latency, set_throughput,
};
use crate::measure::{Findings, MeasureError, Session};
use dunlin_report::statistics::Latency;
use dunlin_report::{Row, rounded};
use std::time::Duration;

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct BatchTunerOptions {
    /// The cells.
    pub grid: TunerGrid,
    /// Latency limits of calls, in nanoseconds; each is a contestant.
    pub limits_ns: Vec<u64>,
    /// The fraction of calls that may exceed the limit.
    pub tolerance: f64,
}

/// The fixed sizes; from 2 on, each is at most 1.5 times the previous one.
const SIZES: [u16; 14] = [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128];
/// L of all contestants, large enough that the number of calls limits each batch.
const BATCH_BYTES: u32 = 8192;
/// Largest result in bytes: 128 of them stay well below a worker's buffer per connection.
const LARGEST_RESULT: u32 = 512;

/// The kinds counted in a slice: calls, and batches.
const CALLS: usize = 0;
const BATCHES: usize = 1;

/// Measures calls per second of each contestant in each cell of the grid; each client has one batch in
/// flight. Rows have `process_ns`, `result_bytes`, `clients`, `protocol` (`within 20us` or `batches of 8`),
/// `throughput_ops`, `calls_per_batch`, and the latency of calls, from the first call of the batch until
/// the result is seen. Contestants with adaptive size also have `best` (among the fixed sizes that keep the
/// limit), `ratio` to it with quartiles, `latest_ns` (only the tolerated fraction was slower) and its ratio
/// to the limit, `of_limit`. If no fixed size keeps a limit, there is no ratio. Blocks for some seconds per
/// cell.
///
/// # Errors
/// Options out of range, or any failure.
pub fn batch_tuner(session: &mut Session, options: &BatchTunerOptions) -> Result<Findings, MeasureError> {
    options.grid.check(LARGEST_RESULT)?;
    if !(0.0..1.0).contains(&options.tolerance) || options.limits_ns.contains(&0) {
        let words = "limits are over 0, and the tolerated share is from 0 to under 1";
        return Err(MeasureError::BadArgument(words.to_owned()));
    }
    let compared =
        [Compared { metric: Metric::Throughput(Some(CALLS)), prefix: "", rivals: Rivals::KeepLimit }];
    let describe = |row: &mut Row, samples: &[&Sample]| {
        set_throughput(row, "throughput_ops", samples, Some(CALLS));
        row.set("calls_per_batch", ratio_of_kinds(samples, CALLS, &[BATCHES]).map(rounded));
        set_latency(row, samples, CALLS);
    };
    let mut verdicts = [Verdict::new(5, "the best fixed size that keeps the limit")];
    let contestants = options.contestants();
    let rows =
        contest::<InBatches>(session, &options.grid, &contestants, &compared, &describe, &mut verdicts)?;
    let mut notes: Vec<String> =
        verdicts.iter().filter_map(|verdict| verdict.words("throughput, sizes found")).collect();
    let limited = rows.iter().filter_map(|row| Some((row, row.number("of_limit")?)));
    let late = limited.filter(|(row, _)| row.number("ratio").is_some()).map(|(_, late)| late);
    if let Some(late) = late.max_by(f64::total_cmp) {
        let share = (1.0 - options.tolerance) * 100.0;
        notes.push(format!("{share:.0}% of these calls were answered within {late:.3} of the limit at most"));
    }
    Ok(Findings { rows, notes })
}

impl BatchTunerOptions {
    fn contestants(&self) -> Vec<Contestant> {
        let of = |name: String, limit: Option<LatencyLimit>, calls| {
            let batching = Batching { calls, bytes: BATCH_BYTES, ..Batching::default() };
            let config = config(ResponseHalf::FetchOrWrite);
            let config = ClientConfig { window: SIZES[SIZES.len() - 1], batching: Some(batching), ..config };
            Contestant { name, single: limit.is_none(), limit, config }
        };
        let tolerance = self.tolerance;
        let found = self.limits_ns.iter().map(|limit| {
            let name = format!("within {}us", *limit as f64 / 1000.0);
            let calls = BatchCalls::WithinLatency { limit: Duration::from_nanos(*limit), tolerance };
            of(name, Some(LatencyLimit { nanoseconds: *limit, tolerance }), calls)
        });
        let fixed = SIZES.map(|size| of(format!("batches of {size}"), None, BatchCalls::Fixed(size)));
        found.chain(fixed).collect()
    }
}

/// Clients with one batch in flight each.
struct InBatches {
    clients: Vec<Client<ShmFabric>>,
    /// For each client: the start time of its batch, and the number of pending calls.
    under_way: Vec<(Instant, usize)>,
    stamp: u8,
    calls: Kind,
    batches: u64,
}

impl Callers for InBatches {
    fn new(clients: Vec<Client<ShmFabric>>) -> Self {
        let under_way = vec![(Instant::now(), 0); clients.len()];
        InBatches { clients, under_way, stamp: 0, calls: Kind::default(), batches: 0 }
    }

    fn into_clients(self) -> Vec<Client<ShmFabric>> {
        self.clients
    }

    fn turn(&mut self, job: Job) -> Result<u64, String> {
        self.stamp = self.stamp.wrapping_add(1);
        let work = job.work(self.stamp);
        let request = work.encode();
        let mut left = 0;
        // Rotate the order: the position in a turn affects a client's latency, at the same batch size.
        self.clients.rotate_left(1);
        for (client, (begin, open)) in self.clients.iter_mut().zip(&mut self.under_way) {
            let size = client.batch_calls().first().map_or(1, |size| usize::from(*size));
            *begin = Instant::now();
            for _ in 0..size {
                client.push_waiting_on(0, WORK, &request).map_err(|error| error.to_string())?;
            }
            client.flush_waiting().map_err(|error| error.to_string())?;
            *open = size;
            left += size;
        }
        let all = left as u64;
        let mut failed = None;
        while left > 0 {
            for (client, (begin, open)) in self.clients.iter_mut().zip(&mut self.under_way) {
                if *open == 0 {
                    continue;
                }
                let done = collect(client, work, &mut failed);
                if done > 0 {
                    self.calls.latency.record_many(begin.elapsed().as_nanos() as u64, done as u64);
                }
                *open -= done;
                left -= done;
            }
        }
        self.calls.operations += all;
        self.batches += self.clients.len() as u64;
        failed.map_or(Ok(all), Err)
    }

    fn count(&mut self, sample: &mut Sample) {
        let calls = std::mem::take(&mut self.calls);
        let batches = Kind { operations: std::mem::take(&mut self.batches), latency: Latency::new() };
        sample.kinds = vec![calls, batches];
    }
}
