//! Short operations of high priority, alone and beside a stream of long ones of low priority (LITE section 6.2): 64
//! bytes on the other node's memory, read and written, beside writes of another process to the same node. Two nodes on
//! shared memory, each in a process of its own. The two conditions alternate.
//!
//! `cargo run --release -p dunlin-tier-client --example priority_latency [BYTES] [low|high]`: bytes of a write of the
//! stream, 1 MiB by default, and its priority, low by default

mod common;

use common::{Ended, attach, node, print, sample, start, wait};
use dunlin_tier_client::{Priority, Spec};
use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SLICES: usize = 40;
const ROUNDS: usize = 500;
const LONGEST: usize = 8 << 20;

/// Writes while the last line of the standard input is `go`.
fn stream(tag: &str, bytes: usize, priority: Priority) -> Result<(), Box<dyn Error>> {
    let tier = attach(tag, "one", |config| config.priority = Some(priority))?;
    let region = wait(|| tier.malloc(bytes as u64, Spec::on("two")));
    let payload = vec![1; bytes];
    let (goes, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                goes.store(line == "go", Ordering::Relaxed);
                if line == "end" {
                    let bytes = written.load(Ordering::Relaxed) * payload.len() as u64;
                    println!("the stream wrote {} MiB", bytes >> 20);
                    std::process::exit(0);
                }
            }
            std::process::exit(0);
        });
        loop {
            if goes.load(Ordering::Relaxed) {
                region.write(0, &payload)?;
                written.fetch_add(1, Ordering::Relaxed);
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    })
}

/// Nanoseconds for which the threads of processes were ready and had no core.
fn without_core(processes: &[u32]) -> u64 {
    let tasks = processes.iter().flat_map(|process| std::fs::read_dir(format!("/proc/{process}/task")));
    let of_task = |task: std::path::PathBuf| -> Option<u64> {
        std::fs::read_to_string(task.join("schedstat")).ok()?.split(' ').nth(1)?.parse().ok()
    };
    tasks.flatten().flatten().filter_map(|task| of_task(task.path())).sum()
}

fn tell(stream: &mut Ended, word: &str) -> std::io::Result<()> {
    if let Some(input) = &mut stream.0.stdin {
        writeln!(input, "{word}")?;
    }
    // It hears of it.
    std::thread::sleep(Duration::from_millis(5));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let priority = |word: &str| if word == "high" { Priority::High } else { Priority::Low };
    if let [tag, role] = &words[..]
        && tag.parse::<usize>().is_err()
    {
        return match role.split_once(' ') {
            Some((bytes, word)) => stream(tag, bytes.parse()?, priority(word)),
            None => node(tag, role),
        };
    }
    let bytes = words.first().map_or(Ok(1 << 20), |word| word.parse::<usize>())?;
    if !(1..=LONGEST).contains(&bytes) {
        return Err(format!("a write of the stream has 1 to {LONGEST} bytes here, not {bytes}").into());
    }
    let word = words.get(1).map_or("low", |word| word);
    let tag = format!("priority-{}", std::process::id());
    let nodes = [start(&tag, "one")?, start(&tag, "two")?];
    let mut other = start(&tag, &format!("{bytes} {word}"))?;
    let tier = attach(&tag, "one", |config| config.priority = Some(Priority::High))?;
    let region = wait(|| tier.malloc(4096, Spec::on("two")));
    region.write(0, &[7; 64])?;
    // The stream connects.
    tell(&mut other, "go")?;
    std::thread::sleep(Duration::from_secs(1));
    let mut times = [const { [const { Vec::new() }; 2] }; 2];
    // Of this process, and of the nodes.
    let mut waits = [[0; 2]; 2];
    for _ in 0..SLICES {
        for ((word, [read, written]), waits) in ["stop", "go"].into_iter().zip(&mut times).zip(&mut waits) {
            tell(&mut other, word)?;
            let both = || [&[std::process::id()][..], &[nodes[0].0.id()]].map(without_core);
            let before = both();
            sample(read, ROUNDS, || region.read(0, &mut [0; 64]))?;
            sample(written, ROUNDS, || region.write(0, &[7; 64]))?;
            (0..2).for_each(|at| waits[at] += both()[at] - before[at]);
        }
    }
    for (what, waits) in ["alone", "beside the stream"].into_iter().zip(waits) {
        let [own, node] = waits.map(|wait| wait as f64 / (2 * SLICES * ROUNDS) as f64 / 1e3);
        println!("{what:<52} {own:>9.2} us without a core for each, and {node:.2} us of the node's threads");
    }
    let [alone, beside] = &mut times;
    for (what, (alone, beside)) in
        ["read of 64 bytes", "write of 64 bytes"].into_iter().zip(alone.iter_mut().zip(beside))
    {
        let alone = print(&format!("{what}, alone"), alone);
        let beside = print(&format!("{what}, beside {bytes} bytes of {word} priority"), beside);
        let [median, late] = [0, 1].map(|at| beside[at].as_secs_f64() / alone[at].as_secs_f64());
        println!("{:52} {median:>9.2} times   {late:>9.2} times", "");
    }
    tell(&mut other, "end")?;
    other.0.wait()?;
    Ok(())
}
