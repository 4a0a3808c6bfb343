//! A service that remote READs and WRITEs alone could offer only with a specialized data structure: counters,
//! and minimum, maximum, mean and percentiles per key, updated and read by many clients. As an RPC service it
//! is a map behind a lock (RF-RPC section 1).
//!
//! `cargo run --release --example statistics [shm:NAME|rdma:HOST:PORT]`

use dunlin::fabric::Fabric;
use dunlin::thrift::{Failure, Never};
use dunlin::{Address, ClientOptions, Context, Fabrics, ServerOptions, on_fabric, serve_with};
use dunlin_examples::statistics::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// The values of a key: a histogram whose step width is an eighth of the value.
#[derive(Default)]
struct Values {
    steps: BTreeMap<i64, i64>,
    sum: i128,
    summary: Summary,
}

impl Values {
    fn record(&mut self, value: i64) {
        let shift = value.unsigned_abs().max(8).ilog2() - 3;
        *self.steps.entry(value >> shift << shift).or_default() += 1;
        self.sum += i128::from(value);
        let Summary { count, least, most, .. } = self.summary;
        let (count, least, most) = (count + 1, value.min(least), value.max(most));
        self.summary =
            Summary { count, least, most, mean: self.sum as f64 / count as f64, median: 0, p99: 0 };
    }

    /// Returns the step in which `percent` percent of the values are reached.
    fn percentile(&self, percent: i64) -> i64 {
        let mut left = self.summary.count * percent / 100;
        let reached = self.steps.iter().find(|(_, count)| {
            left -= **count;
            left <= 0
        });
        reached.map_or(self.summary.most, |(step, _)| *step)
    }
}

#[derive(Default)]
struct Book {
    counters: Mutex<HashMap<String, i64>>,
    keys: Mutex<HashMap<String, Values>>,
}

impl Statistics for Book {
    fn add(&self, _: &Context, counter: &str, by: i64) -> Result<i64, Failure<Never>> {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counters.entry(counter.to_owned()).or_default();
        *count = count.wrapping_add(by);
        Ok(*count)
    }

    fn record(&self, _: &Context, key: &str, value: i64) -> Result<(), Failure<Never>> {
        let summary = Summary { least: value, most: value, ..Summary::default() };
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.entry(key.to_owned()).or_insert(Values { summary, ..Values::default() }).record(value);
        Ok(())
    }

    fn summary(&self, _: &Context, key: &str) -> Result<Summary, Failure<StatisticsSummaryException>> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let values = keys.get(key).ok_or_else(|| NoSuchKey { key: key.to_owned().into() })?;
        Ok(Summary { median: values.percentile(50), p99: values.percentile(99), ..values.summary.clone() })
    }
}

fn main() -> anyhow::Result<()> {
    let own = || format!("shm:example-statistics-{}", std::process::id());
    let address: Address = std::env::args().nth(1).unwrap_or_else(own).parse()?;
    on_fabric!(&Fabrics::global().choose(&address)?, fabric => run(fabric, &address))
}

fn run<F: Fabric>(fabric: &F, address: &Address) -> anyhow::Result<()> {
    let server = serve_with(fabric, address, StatisticsProcessor(Book::default()), ServerOptions::default())?;
    let address = server.address();
    let connect = || StatisticsClient::connect_with(fabric, address, ClientOptions::default());
    // Four writers. Each records every fourth value, in batches.
    let write = |first: i64| -> anyhow::Result<i64> {
        let mut client = connect()?;
        for some in (first..10_000).step_by(4).collect::<Vec<_>>().chunks(16) {
            let sent = some.iter().map(|value| client.push_record("latency", *value));
            let sent: Vec<_> = sent.collect::<Result<_, _>>()?;
            client.flush()?;
            sent.into_iter().try_for_each(|call| client.wait(call))?;
        }
        Ok(client.add("writers", 1)?)
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4).map(|first| scope.spawn(move || write(first))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer panicked").map(drop))
    })?;
    let mut client = connect()?;
    println!("{:?} of {} writers", client.summary("latency")?, client.add("writers", 0)?);
    println!("and of nothing: {:?}", client.summary("nothing"));
    Ok(())
}
