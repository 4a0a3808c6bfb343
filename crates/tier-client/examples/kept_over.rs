//! Nodes on a network whose memory is shared memory of their hosts: processes map it, and a keeper holds it while a node
//! is killed and starts again. A test that `tests/ofi/suite` and `tests/guest/suite` run, with the command `dunlin`.
//!
//! `kept_over PREFIX [DUNLIN]`: PREFIX is an address without its port, for example `ofi:tcp:127.0.0.1`; ports 7160 and
//! 7170 follow.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_tier_client::{AttachConfig, Lmr, Rights, Spec, Tier};
use std::error::Error;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Nothing takes so long, in a guest without KVM either.
const HANG: Duration = Duration::from_secs(120);
const LENGTH: usize = 100_000;
/// Five of eight extents.
const WIDE: usize = 19 << 20;

/// A process that ends with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repeats an attempt until it gives a value.
fn wait<T>(what: &str, mut attempt: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if begin.elapsed() > HANG => return Err(format!("{what}: {error}").into()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The two nodes, their keeper, and the commands that start them.
struct Cluster {
    dunlin: PathBuf,
    tag: String,
    peers: PathBuf,
}

impl Cluster {
    fn attach_name(&self, node: &str) -> String {
        format!("shm:kept-over-{}-{node}", self.tag)
    }

    fn start(&self, words: &[&str]) -> Outcome<Ended> {
        let child = Command::new(&self.dunlin).arg("node").args(words).stdout(Stdio::null()).spawn();
        Ok(Ended(child.map_err(|error| format!("{}: {error}", self.dunlin.display()))?))
    }

    fn node(&self, node: &str, keeper: Option<&str>) -> Outcome<Ended> {
        let (peers, attach) = (self.peers.display().to_string(), self.attach_name(node));
        let mut words = vec!["run", "--peers", &peers, "--name", node, "--attach", &attach];
        words.extend(["--memory", "32MiB"]);
        words.extend(keeper.map(|keeper| ["--keeper", keeper]).into_iter().flatten());
        self.start(&words)
    }

    fn attach(&self, node: &str) -> Outcome<Tier> {
        let fabric = ShmFabric::new(ShmConfig::default())?;
        let address: Address = self.attach_name(node).parse()?;
        assert_eq!(address.scheme(), Scheme::Shm);
        let config = AttachConfig { timeout: HANG, ..AttachConfig::new(address) };
        wait("a node", || Ok(Tier::attach_with(&fabric, config.clone())?))
    }
}

/// Waits until a region has these bytes from `offset` on. The first operation after a restart meets the end of the
/// connection, and a processor sees the bytes of a WRITE a little after its completion.
fn has(region: &Lmr, offset: u64, expected: &[u8]) -> Outcome {
    let mut bytes = vec![0; expected.len()];
    wait("the bytes of a region", || {
        region.read(offset, &mut bytes)?;
        match bytes.iter().zip(expected).position(|(one, other)| one != other) {
            Some(place) => Err(format!("byte {place} is {}, not {}", bytes[place], expected[place]).into()),
            None => Ok(()),
        }
    })
}

fn is_filled(region: &Lmr, byte: u8) -> Outcome {
    has(region, 0, &[byte; LENGTH])
}

fn run(cluster: &Cluster) -> Outcome {
    let keeper = format!("shm:kept-over-{}-keeper", cluster.tag);
    let _keeper = cluster.start(&["keep", &keeper])?;
    let _two = cluster.node("two", None)?;
    // The keeper may not listen yet.
    let mut one = cluster.node("one", Some(&keeper))?;
    let here = wait("a node with a keeper", || {
        if one.0.try_wait()?.is_some() {
            one = cluster.node("one", Some(&keeper))?;
        }
        Ok(Tier::attach(&cluster.attach_name("one").parse()?)?)
    })?;
    let there = cluster.attach("two")?;
    for tier in [&here, &there] {
        let status = tier.status()?;
        assert_eq!((status.extents, status.registrations), (8, 1), "an RNIC registers the whole memory once");
    }

    // Bytes of several extents in one registration.
    let wide = here.malloc(WIDE as u64, Spec::here().named("kept/wide").grant_anyone(Rights::ALL))?;
    let wide_view = there.map("kept/wide", Rights::ALL)?;
    let bytes: Vec<u8> = (0..WIDE).map(|at| (at / 4093) as u8).collect();
    wide_view.write(0, &bytes)?;
    has(&wide, 0, &bytes)?;

    // A buffer of this process, from which the network card of its node writes, and into which it reads.
    let mut buffer = there.buffer(LENGTH)?;
    buffer.copy_in(0, &[3; LENGTH])?;
    wide_view.write_from(7, &mut buffer, ..)?;
    has(&wide, 7, &[3; LENGTH])?;
    wide.write(0, &bytes)?;
    wait("bytes in the buffer", || {
        wide_view.read_into(7, &mut buffer, ..)?;
        let mut found = vec![0; LENGTH];
        buffer.copy_out(0, &mut found)?;
        if found == bytes[7..7 + LENGTH] { Ok(()) } else { Err("other bytes".into()) }
    })?;

    // A region that this process maps, and that the network card of the other node writes.
    let spec = Spec::here().named("kept/over").direct().grant_anyone(Rights::ALL);
    let region = here.malloc(LENGTH as u64, spec)?;
    let direct = region.direct()?;
    let view = there.map("kept/over", Rights::ALL)?;
    view.write(0, &[5; LENGTH])?;
    is_filled(&region, 5)?;
    wait("bytes of the network in the mapping", || match direct.load(64)? {
        0x0505_0505_0505_0505 => Ok(()),
        other => Err(format!("{other:x}").into()),
    })?;
    direct.store(64, 0x0606_0606_0606_0606)?;
    let mut word = [0; 8];
    view.read(64, &mut word)?;
    assert_eq!(word, [6; 8], "a READ of the network sees a store of a process");
    direct.store(64, 0x0505_0505_0505_0505)?;

    for life in 0..3u8 {
        one.0.kill()?;
        one.0.wait()?;
        assert_eq!(direct.load(64)?, 0x0505_0505_0505_0505, "the mapping outlives the node");
        one = cluster.node("one", Some(&keeper))?;
        // Handles of the process and of the other node, and the name.
        is_filled(&region, 5)?;
        is_filled(&view, 5)?;
        has(&wide, 0, &bytes)?;
        has(&wide_view, 0, &bytes)?;
        is_filled(&wait("the name", || Ok(there.map("kept/over", Rights::READ)?))?, 5)?;
        // The new registration is of the same memory.
        wait("a WRITE", || Ok(view.write(LENGTH as u64 - 1, &[life])?))?;
        has(&region, LENGTH as u64 - 1, &[life])?;
        view.write(LENGTH as u64 - 1, &[5])?;
        // libfabric completes a WRITE before it arrives, and the next kill would lose it.
        has(&region, LENGTH as u64 - 1, &[5])?;
        println!("life {life}: the same regions, handles and mappings");
    }
    drop(direct);
    wait("a free", || Ok(there.map("kept/over", Rights::ALL)?.free()?))
}

fn main() -> Outcome {
    let mut words = std::env::args().skip(1);
    let prefix = words.next().ok_or("give an address without its port")?;
    let dunlin = words.next().map_or_else(|| PathBuf::from("dunlin"), PathBuf::from);
    let tag = std::process::id().to_string();
    let peers = std::env::temp_dir().join(format!("kept-over-{tag}"));
    std::fs::write(&peers, format!("one {prefix}:7160\ntwo {prefix}:7170\n"))?;
    let cluster = Cluster { dunlin, tag, peers };
    let outcome = run(&cluster);
    std::fs::remove_file(&cluster.peers)?;
    outcome
}
