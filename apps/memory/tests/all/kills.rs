//! Members of a memory in processes of their own, and a node with its member, are killed at random points, many times.
//! Each member counts its releases in words of its own; a plain count of acknowledged releases says their values.
//! `DUNLIN_APPS_KILLS` is the number of kills.

use crate::cluster::{bytes, config};
use crate::processes::{HANG, Killed, attach, serve, shape};
use dunlin_app_memory::{Memory, MemoryError, PAGE};
use dunlin_fabric::{Host as _, RealHost};
use dunlin_tier_client::Tier;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PAGE_BYTES: u64 = PAGE as u64;
const ROLE: &str = "MEMORY_KILLS_ROLE";
const TAG: &str = "MEMORY_KILLS_TAG";
const SHAPE: &str = "MEMORY_KILLS_SHAPE";
/// The pages in which members count: two of each home.
const PAGES: u64 = 6;
/// The node of each member.
const PLACES: [&str; 3] = ["one", "one", "two"];

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Adds 1 to a member's word of a page, and releases it.
fn add(memory: &Memory<Tier>, page: u64, member: usize) -> Result<(), MemoryError> {
    let at = page * PAGE_BYTES + 8 * member as u64;
    let mut held = memory.acquire(at..at + 8)?;
    let mut word = [0; 8];
    memory.read(at, &mut word)?;
    memory.write(at, &(u64::from_le_bytes(word) + 1).to_le_bytes())?;
    held.release()
}

/// A child: the second node, or a member that counts until its standard input ends, and is there until it is killed.
#[test]
fn child() {
    let (Some(role), Some(tag)) = (variable(ROLE), variable(TAG)) else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    let input = std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        raised.store(true, Ordering::Relaxed);
    });
    if role == "node" {
        let _serving = serve(&tag, "two");
        println!("\nserves");
        input.join().unwrap();
        return;
    }
    let member: usize = role.parse().unwrap();
    let shape = shape(variable(SHAPE).unwrap().parse().unwrap());
    let memory = Memory::open(&attach(&tag, PLACES[member]), &config("m", shape, member as u16)).unwrap();
    println!();
    let mut round = member as u64;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        match add(&memory, round % PAGES, member) {
            Ok(()) => println!("released {}", round % PAGES),
            // A release that finds its home dead while it pushes bytes says so.
            Err(MemoryError::HomeEnded { home } | MemoryError::Operation { home, .. }) => {
                println!("failed {home}");
            }
            Err(error) => return println!("error {error:?}"),
        }
    }
    // The pages whose home it is stay until it is killed.
    println!("stopped");
    std::thread::sleep(Duration::from_secs(600));
}

/// A child that runs, with the lines of its output.
struct Running {
    child: Killed,
    lines: Receiver<String>,
    /// The acknowledged releases of each page.
    released: [u64; PAGES as usize],
    /// The homes that have failed, as bits.
    failed: u64,
    error: Option<String>,
    has_stopped: bool,
}

impl Running {
    fn start(tag: &str, role: &str, shape: usize) -> Running {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["kills::child", "--exact", "--nocapture", "--test-threads=1"])
            .envs([(TAG, tag), (ROLE, role), (SHAPE, &shape.to_string())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Running {
            child: Killed(child),
            lines,
            released: [0; PAGES as usize],
            failed: 0,
            error: None,
            has_stopped: false,
        }
    }

    /// Reads a line; returns whether there was one within a time. A closed output ends it.
    fn read(&mut self, time: Duration) -> Result<bool, ()> {
        match self.lines.recv_timeout(time) {
            Ok(line) => {
                if let Some(page) = line.strip_prefix("released ") {
                    self.released[page.parse::<usize>().unwrap()] += 1;
                } else if let Some(home) = line.strip_prefix("failed ") {
                    self.failed |= 1 << home.parse::<u64>().unwrap();
                } else if line.starts_with("error ") {
                    self.error = Some(line);
                } else {
                    self.has_stopped |= line == "stopped";
                }
                Ok(true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(()),
        }
    }

    fn await_release(&mut self) {
        let begin = Instant::now();
        while self.released == [0; PAGES as usize] {
            assert!(begin.elapsed() < HANG && self.read(HANG) == Ok(true), "it does not count");
        }
    }

    /// Has it stop to count, and reads what is left. It ends by itself after an error only.
    fn stop(&mut self) {
        drop(self.child.0.stdin.take());
        while !self.has_stopped
            && self.read(HANG).inspect(|is_read| assert!(is_read, "it does not stop")).is_ok()
        {}
    }

    /// Kills it, and reads what is left.
    fn kill(&mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
        while self.read(HANG).inspect(|is_read| assert!(is_read, "its output does not end")).is_ok() {}
    }
}

/// Kills member 1, member 2, or the node of member 2.
fn round(number: u32, victim: u64) {
    let (tag, shape_number) = (format!("{}-kills-{number}", std::process::id()), number as usize % 4);
    let _one = serve(&tag, "one");
    let mut node = Running::start(&tag, "node", shape_number);
    while node.lines.recv_timeout(HANG).unwrap() != "serves" {}
    let mut members = ["1", "2"].map(|role| Running::start(&tag, role, shape_number));
    let memory = Memory::open(&attach(&tag, "one"), &config("m", shape(shape_number), 0)).unwrap();
    let mut own = [0; PAGES as usize];
    let mut failed = [0; PAGES as usize];
    let mut add_here = |page: u64| match add(&memory, page, 0) {
        Ok(()) => own[page as usize] += 1,
        Err(MemoryError::HomeEnded { .. } | MemoryError::Operation { .. }) => failed[page as usize] += 1,
        Err(error) => panic!("victim {victim}: {error:?}"),
    };
    members.iter_mut().for_each(Running::await_release);
    let end = Instant::now() + Duration::from_micros(RealHost.random() % 30_000);
    let mut page = 0;
    while page < 3 || Instant::now() < end {
        add_here(page % PAGES);
        page += 1;
    }
    let dead = if victim == 0 { 1 } else { 2 };
    match victim {
        0 | 1 => members[victim as usize].kill(),
        _ => {
            node.kill();
            // Its member has no node any more.
            while members[1].error.is_none() {
                assert_eq!(members[1].read(HANG), Ok(true), "a member without a node goes on");
            }
        }
    }
    for page in 0..4 * PAGES {
        add_here(page % PAGES);
    }
    let alive = &mut members[2 - dead];
    alive.stop();
    assert!(alive.has_stopped && alive.failed & !(1 << dead) == 0, "{:b}, {:?}", alive.failed, alive.error);
    for page in 0..PAGES {
        let at = page * PAGE_BYTES;
        let is_home_dead = page % 3 == dead as u64;
        match memory.acquire(at..at + 24) {
            Ok(mut held) => {
                assert!(!is_home_dead);
                held.release().unwrap();
            }
            Err(MemoryError::HomeEnded { home }) => assert!(is_home_dead && home == dead as u16),
            Err(error) => panic!("{error:?}"),
        }
        assert_eq!(failed[page as usize] > 0, is_home_dead);
        memory.forget(at..at + 24).unwrap();
        if is_home_dead && victim == 2 {
            assert!(memory.read(at, &mut [0; 24]).is_err(), "the pages of a dead node");
            continue;
        }
        let words = bytes::<_, 24>(&memory, at);
        let words: Vec<u64> =
            words.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let known = [own, members[0].released, members[1].released].map(|counts| counts[page as usize]);
        for (member, (found, known)) in words.iter().zip(known).enumerate() {
            // The release under way may be there: of the dead member, and of any member to a home that died.
            let most = known + u64::from(member == dead || is_home_dead);
            assert!(
                (known..=most).contains(found),
                "round {number}, victim {victim}, page {page}, member {member}: {found}, and {known} to {most} released"
            );
        }
    }
}

#[test]
fn kills_at_random_points_lose_no_release() {
    if variable(ROLE).is_some() {
        return;
    }
    let name = "DUNLIN_APPS_KILLS";
    let kills = variable(name).map_or(3, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")));
    let mut counts = [0; 3];
    for number in 0..kills {
        let victim = RealHost.random() % 3;
        round(number, victim);
        counts[victim as usize] += 1;
    }
    println!("killed: members {}, nodes with a member {}", counts[0] + counts[1], counts[2]);
}
