//! WordCount by worker processes that are attached to a node, beside as many threads of one process without the tier.
//!
//! `cargo run --release -p dunlin-app-mapreduce --example measure_wordcount -- [MIB [WORKERS]]`

use dunlin_app_mapreduce::{Files, Job, Master, Outcome, WordCount, run_alone, work_for};
use dunlin_fabric::{Address, Fabric, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, Tier, TierConfig};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

type Failed = Box<dyn Error + Send + Sync>;

/// Measurements of each kind, which alternate.
const TIMES: usize = 5;
/// Different words; the Nth is about N times rarer than the first.
const WORDS: f64 = 200_000.0;

/// Removes the file in the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes lines of words.
fn generate(path: &Path, bytes: u64) -> Result<(), Failed> {
    let (mut out, mut written, mut state) = (BufWriter::new(File::create(path)?), 0, 1u64);
    for number in 1u64.. {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = (state >> 11) as f64 / (1u64 << 53) as f64;
        let word = format!("w{:x}{}", WORDS.powf(chance) as u64, if number % 12 == 0 { '\n' } else { ' ' });
        out.write_all(word.as_bytes())?;
        written += word.len() as u64;
        if written >= bytes {
            break;
        }
    }
    Ok(out.flush()?)
}

fn job() -> Job {
    Job::new("measure")
}

fn files(path: &Path) -> Result<Files, Failed> {
    Ok(Files::open([path.to_owned()], 4 << 20)?)
}

/// A worker process.
fn work(address: &str, path: &Path) -> Result<(), Failed> {
    let tier = dunlin_tier_client::Tier::attach(&address.parse()?)?;
    Ok(work_for(&tier, &job(), WordCount, files(path)?, 1, Arc::new(()))?)
}

fn total(outcome: &Outcome) -> Duration {
    outcome.mapping + outcome.reducing + outcome.merging
}

fn by_processes(
    tier: &dunlin_tier_client::Tier,
    address: &Address,
    path: &Path,
    workers: u16,
) -> Result<Outcome, Failed> {
    let master = Master::start(tier, &job(), &WordCount, &files(path)?, Arc::new(()))?;
    let start = |_| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--work").arg(address.to_string()).arg(path).spawn()
    };
    let children = (0..workers).map(start).collect::<Result<Vec<_>, _>>()?;
    let outcome = master.finish(|_, _| true);
    for mut child in children {
        child.wait()?;
    }
    Ok(outcome?)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Failed> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, address, path] = &words[..]
        && first == "--work"
    {
        return work(address, Path::new(path));
    }
    let mib: u64 = words.first().map_or(Ok(256), |word| word.parse())?;
    let workers: u16 = words.get(1).map_or(Ok(2), |word| word.parse())?;
    let text = Temporary(std::env::temp_dir().join(format!("dunlin-measure-{}.txt", std::process::id())));
    generate(&text.0, mib << 20)?;
    let fabric = ShmFabric::new(ShmConfig::default())?;
    let name = format!("measure-mapreduce-{}", std::process::id());
    let peer = Peer::named(Scheme::Shm, &name)?;
    let config = TierConfig { memory: 512 << 20, ..TierConfig::new(vec![peer], &name) };
    let tier = Tier::within(&fabric, config)?;
    let address = Address::new(Scheme::Shm, &format!("{name}-attach"))?;
    let _processes = ProcessServer::serve(&fabric, &tier, ProcessConfig::new(address.clone()))?;
    // As the workers do, so that both act for the same principal.
    let attached = dunlin_tier_client::Tier::attach(&address)?;

    let (mut alone, mut together) = (Vec::new(), Vec::new());
    println!("{mib} MiB of text; seconds to map, reduce and merge");
    for _ in 0..TIMES {
        for is_tier in [false, true] {
            let outcome = match is_tier {
                true => by_processes(&attached, &address, &text.0, workers)?,
                false => {
                    let input = files(&text.0)?;
                    run_alone(fabric.host(), &job(), WordCount, input, workers, Arc::new(()), |_, _| true)?
                }
            };
            let kind = if is_tier { "processes" } else { "threads" };
            let seconds = [outcome.mapping, outcome.reducing, outcome.merging].map(|time| time.as_secs_f64());
            println!("{workers} {kind:9} {:7.3} {:7.3} {:7.3}", seconds[0], seconds[1], seconds[2]);
            let times = if is_tier { &mut together } else { &mut alone };
            times.push(total(&outcome).as_secs_f64());
        }
    }
    let (alone, together) = (median(alone), median(together));
    let rate = |seconds: f64| mib as f64 / seconds;
    println!(
        "medians: threads {:.1} MiB/s, processes {:.1} MiB/s: {:.2}",
        rate(alone),
        rate(together),
        alone / together
    );
    Ok(())
}
