//! Measures a mapped shared memory of two processes, each a node of its own, beside bare page faults and copies.
//!
//! `cargo run --release -p dunlin-app-memory --example measure_memory -- [ROUNDS [bound]]`
//!
//! With `bound` the threads that answer faults run on one core, and the thread that faults runs on the same core and on
//! another one by turns.

use dunlin_app_memory::{Memory, MemoryConfig, PAGE};
use dunlin_fabric::{Host, RealHost, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_page_faults::{Fault, FaultMemory};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::error::Error;
use std::hint::black_box;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Failed = Box<dyn Error + Send + Sync>;
type Shared = Memory<Tier<ShmFabric>>;

const MEMBERS: u16 = 2;
/// Pages of the memory: half of them at home at the other process.
const PAGES: u32 = 2000;
const HERE: u64 = PAGE as u64;

fn open(tag: &str, member: u16) -> Result<Shared, Failed> {
    let names = ["one", "two"].map(|name| Peer::named(Scheme::Shm, &format!("measure-memory-{tag}-{name}")));
    let peers = names.into_iter().collect::<Result<Vec<_>, _>>()?;
    let me = peers[usize::from(member)].name.clone();
    let tier = TierConfig { memory: 32 << 20, ..TierConfig::new(peers, &me) };
    let tier = Tier::within(&ShmFabric::new(ShmConfig::default())?, tier)?;
    let config = MemoryConfig::new("measured", PAGES, MEMBERS, member);
    Ok(Memory::open(&tier, &MemoryConfig { address: Some(0x5f00_0000_0000), ..config })?)
}

/// Returns the time of each page in microseconds.
fn timed(pages: u64, body: impl FnOnce() -> Result<(), Failed>) -> Result<f64, Failed> {
    let begin = Instant::now();
    body()?;
    Ok(begin.elapsed().as_secs_f64() * 1e6 / pages as f64)
}

/// Loads a word of each page.
fn load(words: &[std::sync::atomic::AtomicU64], pages: impl Iterator<Item = u64>) {
    for page in pages {
        black_box(words[page as usize * PAGE / 8].load(Ordering::Relaxed));
    }
}

/// Faults that another thread answers with a copy of a page of this process.
fn bare(pages: u64, core: Option<u32>) -> Result<f64, Failed> {
    let memory = FaultMemory::new(None, pages as usize)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| -> Result<(), Failed> {
            bind(core)?;
            while !is_over.load(Ordering::Relaxed) {
                if let Some(Fault::Absent(page)) = memory.next(Duration::from_millis(20))? {
                    memory.place(page, &[7; PAGE], true)?;
                }
            }
            Ok(())
        });
        let time = timed(pages, || {
            load(memory.words(), 0..pages);
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        answers.join().expect("no panic")?;
        time
    })
}

/// Binds this thread to a core.
fn bind(core: Option<u32>) -> Result<(), Failed> {
    if let Some(core) = core {
        RealHost.bind(&[core])?;
    }
    Ok(())
}

/// The times of a round, by name, with threads that answer faults on a core.
fn round(memory: &Shared, core: Option<u32>) -> Result<Vec<(&'static str, f64)>, Failed> {
    let words = memory.words().ok_or("the memory is mapped")?;
    let remote = || (0..u64::from(PAGES)).filter(|page| page % 2 == 1);
    let count = u64::from(PAGES / 2);
    let mut times = vec![("a bare fault", bare(count, core)?)];
    memory.forget(0..memory.size())?;
    let faults = || {
        load(words, remote());
        Ok(())
    };
    times.push(("a fault that reads a remote page", timed(count, faults)?));
    memory.forget(0..memory.size())?;
    let read = || {
        let mut page = [0; PAGE];
        for at in remote() {
            memory.read(at * HERE, &mut page)?;
        }
        Ok(())
    };
    times.push(("a call that reads a remote page", timed(count, read)?));
    memory.forget(0..memory.size())?;
    times.push(("a page, prefetched", timed(PAGES.into(), || Ok(memory.prefetch(0..memory.size())?))?));
    let (from, mut to) = (vec![1u8; PAGES as usize * PAGE], vec![0u8; PAGES as usize * PAGE]);
    to.fill(2);
    let copy = || {
        for (from, to) in from.chunks(PAGE).zip(to.chunks_mut(PAGE)) {
            to.copy_from_slice(black_box(from));
            black_box(to);
        }
        Ok(())
    };
    times.push(("a copy of a page", timed(PAGES.into(), copy)?));
    let first = 0..10 * HERE;
    let mut acquired = None;
    let acquire = || {
        acquired = Some(memory.acquire(first)?);
        Ok(())
    };
    times.push(("acquire of 10 pages", timed(1, acquire)?));
    for word in words[..10 * PAGE / 8].iter().step_by(64) {
        word.fetch_add(1, Ordering::Relaxed);
    }
    let release = || Ok(acquired.as_mut().map_or(Ok(()), |acquired| acquired.release())?);
    times.push(("release of 10 pages, an eighth of the words changed", timed(1, release)?));
    Ok(times)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, tag] = &*arguments
        && word == "member"
    {
        return Ok(open(tag, 1)?.close()?);
    }
    let rounds: usize = arguments.get(1).map_or(Ok(11), |rounds| rounds.parse())?;
    let tag = std::process::id().to_string();
    let mut other = Killed(Command::new(std::env::current_exe()?).args(["member", &tag]).spawn()?);
    let topology = RealHost.topology();
    // The core of the threads that answer faults, and the cores of this thread, with a name of each.
    let (answering, cores) = match arguments.get(2).map(String::as_str) {
        None => (None, vec![(None, "")]),
        Some("bound") => match *topology.cores(topology.here())? {
            [one, other, ..] => {
                (Some(one), vec![(Some(one), ", same core"), (Some(other), ", another core")])
            }
            _ => return Err("this process may use one core only".into()),
        },
        Some(word) => return Err(format!("{word} is neither absent nor 'bound'").into()),
    };
    // Threads that the memory starts stay on the core.
    bind(answering)?;
    let memory = open(&tag, 0)?;
    let mut all = vec![Vec::new(); cores.len()];
    for _ in 0..rounds.max(1) {
        for ((core, _), all) in cores.iter().zip(&mut all) {
            bind(*core)?;
            all.push(round(&memory, answering)?);
        }
    }
    for (place, (name, _)) in all[0][0].iter().enumerate() {
        for ((_, core), all) in cores.iter().zip(&all) {
            let mut times: Vec<f64> = all.iter().map(|times| times[place].1).collect();
            times.sort_by(f64::total_cmp);
            println!("{:66} {:8.2} us", format!("{name}{core}"), times[times.len() / 2]);
        }
    }
    memory.close()?;
    other.0.wait()?;
    Ok(())
}
