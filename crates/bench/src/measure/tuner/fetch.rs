//! `bench fetch-tuner`: RF-RPC with the engine's own choice of response mode, R and F, compared with fixed
//! R and F and with plain replies (RF-RPC section 3.2).

use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallId, Client, ClientConfig, FetchChoice, ResponseHalf, SMALL_LIMIT};

use super::{
    Callers, Contestant, Job, TunerGrid, WORK, check_answer, collect, config, contest, ratio_of_kinds,
};
use crate::measure::atb::turns::{Compared, Kind, Metric, Rivals, Sample, Verdict, set_throughput};
use crate::measure::{Findings, MeasureError, Session};
use dunlin_report::{Row, rounded};

/// Name of the contestant in which the engine chooses.
const TUNED: &str = "tuned";
const PLAIN: &str = "plain reply";
/// The fixed values of R.
const RETRIES: [u32; 3] = [1, 5, 16];
const FETCH_BYTES: [u32; 3] = [256, 1024, 8192];

/// The kinds counted in a slice: calls; and, where results can be either, those fetched and those written
/// back.
const CALLS: usize = 0;
const FETCHED: usize = 1;
const WRITTEN: usize = 2;

/// Measures calls per second of each contestant in each cell of the grid; each client has one call in
/// flight. Rows have `process_ns`, `result_bytes`, `clients`, `protocol`, `plan`, `throughput_ops`, `best`
/// (among fixed R and F, and plain replies), `ratio` to it and `plain_ratio` to plain replies (medians over
/// rounds, with quartiles), and `fetched_share` of the results, if they can be fetched or written back.
/// Blocks for a second or two per cell.
///
/// # Errors
/// A grid out of range, or any failure.
pub fn fetch_tuner(session: &mut Session, grid: &TunerGrid) -> Result<Findings, MeasureError> {
    grid.check(SMALL_LIMIT)?;
    let mut verdicts =
        [Verdict::new(5, "the best of fixed R and F and plain replies"), Verdict::new(3, "plain replies")];
    let metric = Metric::Throughput(Some(CALLS));
    let compared = [
        Compared { metric, prefix: "", rivals: Rivals::All },
        Compared { metric, prefix: "plain_", rivals: Rivals::Named(PLAIN) },
    ];
    let describe = |row: &mut Row, samples: &[&Sample]| {
        set_throughput(row, "throughput_ops", samples, Some(CALLS));
        row.set("fetched_share", ratio_of_kinds(samples, FETCHED, &[FETCHED, WRITTEN]).map(rounded));
    };
    let rows = contest::<Alone>(session, grid, &contestants(), &compared, &describe, &mut verdicts)?;
    let notes = verdicts.iter().filter_map(|verdict| verdict.words("throughput, tuned")).collect();
    Ok(Findings { rows, notes })
}

fn contestants() -> Vec<Contestant> {
    let of = |name: String, config| Contestant { single: name != TUNED, name, limit: None, config };
    let tuned = of(TUNED.to_owned(), config(ResponseHalf::FetchOrWrite));
    let plain = of(PLAIN.to_owned(), config(ResponseHalf::Write));
    let fixed = RETRIES.into_iter().flat_map(|retries| FETCH_BYTES.map(|bytes| (retries, bytes)));
    let fixed = fixed.map(|(retries, bytes)| {
        let fetch_choice = FetchChoice::Fixed { retries, bytes };
        of(
            format!("R {retries}, F {bytes}"),
            ClientConfig { fetch_choice, ..config(ResponseHalf::FetchOrWrite) },
        )
    });
    [tuned, plain].into_iter().chain(fixed).collect()
}

/// Clients with one call in flight each.
struct Alone {
    clients: Vec<Client<ShmFabric>>,
    stamp: u8,
    /// Numbers of results at the last count.
    counted: [u64; 2],
}

impl Callers for Alone {
    fn new(clients: Vec<Client<ShmFabric>>) -> Self {
        Alone { clients, stamp: 0, counted: [0; 2] }
    }

    fn into_clients(self) -> Vec<Client<ShmFabric>> {
        self.clients
    }

    fn turn(&mut self, job: Job) -> Result<u64, String> {
        self.stamp = self.stamp.wrapping_add(1);
        let work = job.work(self.stamp);
        let request = work.encode();
        if let [client] = &mut self.clients[..] {
            let answer = client.call_on(0, WORK, &request).map_err(|error| error.to_string())?;
            return check_answer(work, &answer).map(|()| 1);
        }
        for client in &mut self.clients {
            let _: CallId = client.submit_on(0, WORK, &request).map_err(|error| error.to_string())?;
        }
        let mut failed = None;
        let mut done = 0;
        while done < self.clients.len() {
            for client in &mut self.clients {
                done += collect(client, work, &mut failed);
            }
        }
        failed.map_or(Ok(done as u64), Err)
    }

    fn count(&mut self, sample: &mut Sample) {
        let results = self.clients.iter_mut().flat_map(|client| client.tuning()).map(|tuning| tuning.results);
        let [fetched, written] = results.fold([0, 0], |sum, of| [sum[0] + of.0, sum[1] + of.1]);
        let operations = [fetched - self.counted[0], written - self.counted[1]];
        sample.kinds.extend(operations.map(|operations| Kind { operations, ..Kind::default() }));
        self.counted = [fetched, written];
    }
}
