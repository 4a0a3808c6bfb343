//! Processes of an application, and a node, are killed at random points, many times. Results are compared with those of
//! plain programs. `DUNLIN_APPS_KILLS` is the number of kills of each application. A process that ended before its kill
//! does not count.

mod graph;
mod log;
mod mapreduce;

use dunlin_command_testing::{Ended, Folder, HANG, Patience, Running, dunlin, unique};
use dunlin_fabric::{Host as _, RealHost};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A machine that does not run a thread for so long stands still. The limits of the programs are of seconds, and run out
/// then.
const STILL: Duration = Duration::from_secs(2);

/// Returns the number of kills.
fn kills() -> u32 {
    let variable = "DUNLIN_APPS_KILLS";
    std::env::var(variable).map_or(4, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// Returns a random number below `end`.
fn below(end: u64) -> u64 {
    RealHost.random() % end
}

/// Lets a random part of a time pass.
fn pass_part_of(time: Duration) {
    std::thread::sleep(Duration::from_micros(below(time.as_micros() as u64 + 1)));
}

/// Sends SIGKILL, and waits for the end. Returns the end, and whether the process ran until then.
fn kill(mut running: Running) -> (Ended, bool) {
    let was_running = running.is_running();
    if was_running {
        running.signal("KILL");
    }
    let ended = running.end();
    let is_killed = ended.code().is_none();
    assert!(is_killed || was_running || ended.code() == Some(0), "{}", ended.errors);
    (ended, is_killed)
}

/// Waits until an attempt gives a value.
#[track_caller]
fn wait<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut patience = Patience::new(HANG);
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(patience.look(), "no end of waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Counts how often the machine has stood still, until it is dropped.
struct Standstills(Arc<AtomicU32>);

impl Standstills {
    fn watch() -> Standstills {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::downgrade(&count);
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while let Some(count) = counted.upgrade() {
                let now = Instant::now();
                count.fetch_add(u32::from(now - last > STILL), Ordering::Relaxed);
                last = now;
                drop(count);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Standstills(count)
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs rounds, each of which returns whether its kill came in time, until as many kills did as are wanted. A round that
/// failed while the machine stood still proves nothing: its kill is drawn again.
fn until_killed(mut round: impl FnMut(u32) -> bool) {
    let (wanted, standstills) = (kills(), Standstills::watch());
    let (mut killed, mut rounds) = (0, 0);
    while killed < wanted {
        assert!(rounds < 3 * wanted + 10, "{killed} of {rounds} kills came in time");
        rounds += 1;
        let before = standstills.count();
        match catch_unwind(AssertUnwindSafe(|| round(rounds))) {
            Ok(is_killed) => killed += u32::from(is_killed),
            // The watcher has looked since, if the machine goes on.
            Err(_)
                if {
                    std::thread::sleep(STILL / 10);
                    standstills.count() > before
                } =>
            {
                println!("round {rounds}: the machine stood still");
            }
            Err(panic) => resume_unwind(panic),
        }
    }
    println!("{killed} processes were killed in {rounds} rounds");
}

/// Checks that a process of a job that lost another one ended by itself: well, or with an error that a user can read.
#[track_caller]
fn check_survivor(ended: &Ended) {
    assert!(matches!(ended.code(), Some(0 | 1)), "{:?}\n{}", ended.status, ended.errors);
    assert!(!ended.errors.contains("panicked"), "{}", ended.errors);
    assert!(ended.code() == Some(0) || ended.errors.contains("error"), "{}", ended.errors);
}

/// Two nodes, each with a process of its own.
struct Nodes {
    _folder: Folder,
    attach: [String; 2],
    running: [Option<Running>; 2],
}

impl Nodes {
    fn start() -> Nodes {
        let folder = Folder::new("kills");
        let lines: String = ["one", "two"].map(|name| format!("{name} {}\n", unique(name))).concat();
        let peers = folder.write("nodes.txt", lines);
        let attach = ["one", "two"].map(|name| unique(&format!("{name}-attach")));
        let start = |at: usize| {
            let name = ["one", "two"][at];
            let words = [
                "node",
                "run",
                "--peers",
                &peers,
                "--name",
                name,
                "--attach",
                &attach[at],
                "--memory",
                "32MiB",
            ];
            let running = Running::start(words);
            running.line_with("listening on");
            Some(running)
        };
        let running = [0, 1].map(start);
        Nodes { _folder: folder, attach, running }
    }

    /// Adds the node that a command attaches to.
    fn words<'a>(&'a self, at: usize, words: &[&'a str]) -> Vec<&'a str> {
        [words, &["--node", &self.attach[at]]].concat()
    }

    fn run(&self, at: usize, words: &[&str]) -> Ended {
        dunlin(self.words(at, words))
    }

    fn spawn(&self, at: usize, words: &[&str]) -> Running {
        Running::start(self.words(at, words))
    }

    fn kill(&mut self, at: usize) {
        let (_, is_killed) = kill(self.running[at].take().expect("it runs"));
        assert!(is_killed, "a node ended by itself");
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for running in self.running.iter_mut().filter_map(Option::take) {
            running.signal("KILL");
            running.end();
        }
    }
}
