//! Checks the content of a store after a machine crash, which `tests/guest/stop` causes.
//!
//! ```text
//! machine_stop write FOLDER durable|fast DISK    writes, prints `written`, and waits to be killed
//! machine_stop check FOLDER durable|fast         fails unless exactly the expected pairs exist
//! ```
//!
//! DISK is the file that backs the disk.

use dunlin_hatkv::{Durability, Options, Store};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of pairs written first, and of those written after the first are on disk, long before the next
/// sync.
const FIRST: u32 = 300;
const LATER: u32 = 100;
/// The sync interval until the first pairs are on disk, and the one after that, which is never reached.
const OFTEN: Duration = Duration::from_millis(50);
const RARELY: Duration = Duration::from_secs(24 * 60 * 60);
/// The timeout for data to reach the disk.
const PATIENCE: Duration = Duration::from_secs(120);

fn pair(number: u32) -> (Vec<u8>, Vec<u8>) {
    (format!("key {number}").into_bytes(), format!("value {number} ").repeat(20).into_bytes())
}

fn write(store: &Store, numbers: std::ops::Range<u32>) -> anyhow::Result<()> {
    for number in numbers {
        let (key, value) = pair(number);
        store.write([(&key[..], &value[..])])?;
    }
    Ok(())
}

/// Returns the number of these pairs that exist with their values.
fn count(store: &Store, numbers: std::ops::Range<u32>) -> anyhow::Result<u32> {
    let mut there = 0;
    for number in numbers {
        let (key, value) = pair(number);
        let mut found = None;
        store.read([&key[..]], |value| found = value.map(<[u8]>::to_vec))?;
        anyhow::ensure!(found.is_none() || found.as_ref() == Some(&value), "pair {number} has another value");
        there += u32::from(found.is_some());
    }
    Ok(there)
}

/// Waits until the value of this pair is on disk.
fn await_disk(disk: &Path, number: u32) -> anyhow::Result<()> {
    let (_, value) = pair(number);
    let until = Instant::now() + PATIENCE;
    while !std::fs::read(disk)?.windows(value.len()).any(|bytes| bytes == value) {
        anyhow::ensure!(Instant::now() < until, "the disk has not got what was written");
        std::thread::sleep(OFTEN);
    }
    Ok(())
}

fn open(folder: &Path, durability: Durability) -> anyhow::Result<Store> {
    Ok(Store::open(folder, Options { map_size: 16 << 20, max_readers: 4, durability })?)
}

fn run_write(folder: &Path, fast: bool, disk: &Path) -> anyhow::Result<()> {
    let store = open(folder, durability(fast, OFTEN))?;
    write(&store, 0..FIRST)?;
    if fast {
        await_disk(disk, FIRST - 1)?;
    }
    // Closing the store writes the remaining pages; the page that lists the used pages may be the last.
    drop(store);
    let store = open(folder, durability(fast, RARELY))?;
    write(&store, FIRST..FIRST + LATER)?;
    println!("written");
    loop {
        std::thread::park();
    }
}

fn run_check(folder: &Path, fast: bool) -> anyhow::Result<()> {
    let store = open(folder, durability(fast, RARELY))?;
    let (first, later) = (count(&store, 0..FIRST)?, count(&store, FIRST..FIRST + LATER)?);
    println!("{first} of {FIRST} and {later} of {LATER} are there");
    anyhow::ensure!(first == FIRST, "what the disk had is gone");
    // If the later pairs of the fast store existed, the machine would not have crashed, and the test would
    // prove nothing.
    anyhow::ensure!(later == if fast { 0 } else { LATER }, "{later} of the later ones");
    // The store remains usable.
    write(&store, 0..FIRST + LATER)?;
    anyhow::ensure!(
        count(&store, 0..FIRST + LATER)? == FIRST + LATER,
        "what is written after that is not there"
    );
    println!("as promised");
    Ok(())
}

fn durability(fast: bool, sync_every: Duration) -> Durability {
    if fast { Durability::Fast { sync_every } } else { Durability::Durable }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["write", folder, mode @ ("durable" | "fast"), disk] => {
            run_write(Path::new(folder), mode == "fast", Path::new(disk))
        }
        ["check", folder, mode @ ("durable" | "fast")] => run_check(Path::new(folder), mode == "fast"),
        _ => {
            Err(anyhow::anyhow!("machine_stop write FOLDER durable|fast DISK, or check FOLDER durable|fast"))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
