//! The host of a real machine.

use super::{BindError, Clock, Host, Nanos, RealParker, Signal, Site, Task, Topology, Work};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The machine on which this process runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealHost;

fn is_set(set: &CpuSet, core: u32) -> bool {
    (core as usize) < CpuSet::MAX_CPU && set.is_set(core as usize)
}

fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

impl Host for RealHost {
    type Signal = RealSignal;
    type Parker = RealParker;

    fn now(&self) -> Nanos {
        // The clock starts at one second, so subtracting a short time from "now" cannot underflow near the
        // start.
        origin().elapsed().as_nanos() as u64 + 1_000_000_000
    }

    fn clock(&self) -> Clock {
        Clock::REAL
    }

    #[inline(always)]
    fn charge(&self, _work: Work, _count: u32) {}

    #[inline(always)]
    fn checkpoint(&self, _site: Site) {}

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(got) => filled += got,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no random bytes: {error}"),
            }
        }
        u64::from_ne_bytes(bytes)
    }

    fn signal(&self) -> RealSignal {
        RealSignal::default()
    }

    fn parker(&self) -> RealParker {
        RealParker::default()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<Task> {
        let handle = std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Task::new(move || {
            let _ = handle.join();
        }))
    }

    fn topology(&self) -> Topology {
        let allowed = sched_getaffinity(None).ok();
        // If the affinity mask is not known, binding reports the error.
        let allowed = |core| allowed.as_ref().is_none_or(|set| is_set(set, core));
        Topology::read(Path::new("/sys/devices/system/node"), current_core(), allowed)
    }

    fn bind(&self, cores: &[u32]) -> Result<Vec<u32>, BindError> {
        let refused =
            |error: rustix::io::Errno| BindError::System { cores: cores.to_vec(), error: error.into() };
        let former = sched_getaffinity(None).map_err(refused)?;
        let mut set = CpuSet::new();
        cores
            .iter()
            .filter(|core| (**core as usize) < CpuSet::MAX_CPU)
            .for_each(|core| set.set(*core as usize));
        sched_setaffinity(None, &set).map_err(refused)?;
        Ok((0..CpuSet::MAX_CPU as u32).filter(|core| is_set(&former, *core)).collect())
    }

    fn sleep(&self, until: Nanos) {
        std::thread::sleep(Duration::from_nanos(until.saturating_sub(self.now())));
    }
}

/// Returns the core that runs this thread; 0 if the kernel does not tell. The system call for it is made through the
/// vDSO, without which (under valgrind, which counts the instructions of a call) it ends the process.
fn current_core() -> u32 {
    let core = |stat: String| processor(&stat);
    std::fs::read_to_string("/proc/thread-self/stat").ok().and_then(core).unwrap_or(0)
}

/// Finds field 39 of `/proc/PID/stat`. Field 2 is a name in parentheses, which may contain anything.
fn processor(stat: &str) -> Option<u32> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(39 - 3)?.parse().ok()
}

/// A counter under a mutex with a condition variable, for control paths only.
#[derive(Clone, Debug, Default)]
pub struct RealSignal(Arc<(Mutex<u64>, Condvar)>);

impl Signal for RealSignal {
    fn raise(&self) {
        let (count, changed) = &*self.0;
        *count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        changed.notify_all();
    }

    fn seen(&self) -> u64 {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, seen: u64, until: Nanos) -> bool {
        let (count, changed) = &*self.0;
        let mut now = count.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if *now != seen {
                return true;
            }
            let left = until.saturating_sub(RealHost.now());
            if left == 0 {
                return false;
            }
            now = changed
                .wait_timeout(now, Duration::from_nanos(left))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_stands_behind_any_name() {
        let fields: String = (3..=52).map(|field| format!(" {field}")).collect();
        assert_eq!(processor(&format!("7 (a) b (c){fields}\n")), Some(39));
        assert_eq!(processor("7 (short) R 1 2"), None);
        assert_eq!(processor(""), None);
    }

    #[test]
    fn a_bound_thread_runs_on_its_core() {
        let topology = RealHost.topology();
        let Some(core) =
            topology.nodes().filter_map(|node| topology.cores(node).ok()?.last().copied()).last()
        else {
            return;
        };
        let former = RealHost.bind(&[core]).unwrap();
        assert_eq!(current_core(), core);
        RealHost.bind(&former).unwrap();
    }

    #[test]
    fn a_signal_raised_before_the_wait_is_not_missed() {
        let signal = RealHost.signal();
        let seen = signal.seen();
        let other = signal.clone();
        RealHost.spawn("raiser", Box::new(move || other.raise())).unwrap().join();
        assert!(signal.wait(seen, u64::MAX));
        assert!(!signal.wait(signal.seen(), RealHost.now() + 1_000_000));
    }

    #[test]
    fn threads_are_bound_and_freed() {
        let body = || {
            let topology = RealHost.topology();
            let cores = topology.cores(topology.here()).unwrap().to_vec();
            let former = RealHost.bind(&cores[..1]).unwrap();
            assert!(former.contains(&cores[0]));
            assert_eq!(RealHost.bind(&former).unwrap(), cores[..1]);
            assert!(matches!(RealHost.bind(&[]), Err(BindError::System { .. })));
        };
        // Runs in its own thread, and a panic there fails this one.
        std::thread::scope(|scope| scope.spawn(body).join()).unwrap();
    }

    #[test]
    fn random_bits_differ() {
        assert_ne!(RealHost.random(), RealHost.random());
    }
}
