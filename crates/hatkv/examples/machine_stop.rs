//! What a store has after its machine has stopped, for `tests/guest/stop`, which stops one.
//!
//!     machine_stop write FOLDER durable|fast    writes, says `written`, and waits to be killed
//!     machine_stop check FOLDER durable|fast    fails unless what must be there is, and what must be lost

use dunlin_hatkv::{Durability, Options, Store};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Pairs that are written first, and those that are written when the disk has the first, long before it is to have these.
const FIRST: u32 = 300;
const LATER: u32 = 100;
/// A write to the disk takes its time in an emulated machine; the next one is far away when the later pairs are written.
const SYNC_EVERY: Duration = Duration::from_secs(4);
const UNTIL_SYNCED: Duration = Duration::from_secs(6);

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

/// How many of these pairs are there, as they were written.
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

fn run(act: &str, folder: &Path, durability: Durability) -> anyhow::Result<()> {
    let store = Store::open(folder, Options { map_size: 16 << 20, max_readers: 4, durability })?;
    let fast = durability != Durability::Durable;
    if act == "write" {
        write(&store, 0..FIRST)?;
        if fast {
            std::thread::sleep(UNTIL_SYNCED);
        }
        write(&store, FIRST..FIRST + LATER)?;
        println!("written");
        loop {
            std::thread::park();
        }
    }
    let (first, later) = (count(&store, 0..FIRST)?, count(&store, FIRST..FIRST + LATER)?);
    println!("{first} of {FIRST} and {later} of {LATER} are there");
    anyhow::ensure!(first == FIRST, "what the disk had is gone");
    // If the later ones of the fast store were there, the machine would not have stopped, and nothing would be shown.
    anyhow::ensure!(later == if fast { 0 } else { LATER }, "{later} of the later ones");
    // The store goes on.
    write(&store, 0..FIRST + LATER)?;
    anyhow::ensure!(
        count(&store, 0..FIRST + LATER)? == FIRST + LATER,
        "what is written after that is not there"
    );
    println!("as promised");
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (act, folder, durability) = match &arguments[..] {
        [act, folder, mode] if mode == "durable" => (act, folder, Durability::Durable),
        [act, folder, mode] if mode == "fast" => (act, folder, Durability::Fast { sync_every: SYNC_EVERY }),
        _ => {
            eprintln!("machine_stop write|check FOLDER durable|fast");
            return ExitCode::FAILURE;
        }
    };
    match run(act, Path::new(folder), durability) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
