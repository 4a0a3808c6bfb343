//! Many closed-loop clients, as in ATB and YCSB: each has its own connection and one call in flight. Up to
//! [`ALONE`] clients have a thread each. More clients share as many threads as there are client cores, and
//! each thread serves its clients round-robin. With hundreds of threads the measurement would show mostly
//! scheduling: on a shared core, one client runs at full speed for its time slice while the others wait for
//! seconds.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use super::turns::{Kind, Sample};
use crate::measure::Session;
use crate::measure::session::Served;
use dunlin_floor::{FloorError, FloorPair, Slice, TickClock};
use dunlin_report::statistics::Latency;

/// A connected client under load, with at most one call in flight. Errors are texts.
pub(in crate::measure) trait Caller: Send {
    /// Sends a call.
    fn start(&mut self) -> Result<(), String>;

    /// Waits for the call, checks its result, and returns the call's kind.
    fn finish(&mut self) -> Result<usize, String>;
}

/// Maximum number of clients with a thread each, whether or not there are enough cores.
const ALONE: usize = 4;

/// The phases of the threads.
const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const OVER: u8 = 2;

/// Number of retries of a slice without a completed call, each four times longer: the machine was busy with
/// other work.
const LONGER: u32 = 5;

/// Latency samples that a thread keeps per slice; further calls are only counted.
const SAMPLES: usize = 1 << 19;

/// The result of a thread: for each kind, latencies in ticks and the number of calls; and all calls,
/// warm-up included.
struct Found {
    kinds: Vec<(Vec<u32>, u64)>,
    total: u64,
}

/// Runs one slice of all clients against a server. The server has its core to itself; the clients share the
/// others.
pub(in crate::measure) fn slice(
    session: &mut Session,
    served: &Served,
    callers: &mut [Box<dyn Caller + '_>],
    kinds: usize,
    duration: Duration,
) -> Result<Sample, FloorError> {
    let mut cores = session.allowed;
    cores.unset(session.pair.cores().server as usize);
    let mut found = None;
    let run = |pair: &mut FloorPair| {
        let sample = with_calls(duration, |duration| run(callers, cores, pair.clock(), kinds, duration))?;
        let slice = Slice {
            latency: Latency::new(),
            operations: 0,
            elapsed_ns: sample.elapsed_ns,
            peer_cpu_ns: 0,
            total_operations: sample.total_operations,
            preemptions: 0,
        };
        found = Some(sample);
        Ok(slice)
    };
    let (slice, _) = session.pair.subject_slice(served.index, &[], run)?;
    let mut sample = found.unwrap_or_default();
    // The server's preemptions are ignored: its other threads share its core, so every slice of this length
    // has some.
    sample.peer_cpu_ns = slice.peer_cpu_ns;
    Ok(sample)
}

/// Repeats a slice, longer each time, until a call has completed in it.
fn with_calls(
    duration: Duration,
    mut take: impl FnMut(Duration) -> Result<Sample, FloorError>,
) -> Result<Sample, FloorError> {
    for longer in 0..=LONGER {
        let sample = take(duration * 4_u32.pow(longer))?;
        if sample.kinds.iter().any(|kind| kind.operations > 0) {
            return Ok(sample);
        }
    }
    let tried = duration * 4_u32.pow(LONGER);
    Err(FloorError::Subject(format!(
        "no call was finished in {} ms: is the machine overloaded?",
        tried.as_millis()
    )))
}

fn run(
    callers: &mut [Box<dyn Caller + '_>],
    cores: CpuSet,
    clock: TickClock,
    kinds: usize,
    duration: Duration,
) -> Result<Sample, FloorError> {
    let phase = AtomicU8::new(WARM_UP);
    let gate = Gate::default();
    let (outcomes, elapsed) = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut failed = None;
        let share = share_of_a_thread(callers.len(), cores.count() as usize);
        for callers in callers.chunks_mut(share) {
            let (phase, gate) = (&phase, &gate);
            let body = move || {
                let pinned = sched_setaffinity(None, &cores).map_err(|error| error.to_string());
                gate.wait();
                pinned.and_then(|()| drive(callers, phase, clock, kinds))
            };
            match std::thread::Builder::new().spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    failed = Some(format!("cannot start a client's thread: {error}; raise ulimit -u"));
                    break;
                }
            }
        }
        if failed.is_some() {
            phase.store(OVER, Ordering::Relaxed);
        }
        gate.open();
        let mut start = Instant::now();
        if failed.is_none() {
            std::thread::sleep(duration / 5);
            start = Instant::now();
            phase.store(MEASURE, Ordering::Relaxed);
            std::thread::sleep(duration);
        }
        phase.store(OVER, Ordering::Relaxed);
        let elapsed = start.elapsed();
        let mut outcomes: Vec<Result<Found, String>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a client's thread panicked".to_owned())))
            .collect();
        outcomes.extend(failed.map(Err));
        (outcomes, elapsed)
    });
    let mut sample = Sample {
        kinds: vec![Kind::default(); kinds],
        elapsed_ns: elapsed.as_nanos() as f64,
        ..Sample::default()
    };
    for outcome in outcomes {
        let found = outcome.map_err(FloorError::Subject)?;
        sample.total_operations += found.total;
        for (kind, (ticks, count)) in sample.kinds.iter_mut().zip(found.kinds) {
            kind.operations += count;
            for ticks in ticks {
                kind.latency.record_ns(clock.to_ns(u64::from(ticks)));
            }
        }
    }
    Ok(sample)
}

/// Returns the number of clients per thread.
fn share_of_a_thread(clients: usize, cores: usize) -> usize {
    if clients <= ALONE { 1 } else { clients.div_ceil(cores.max(1)) }
}

/// Holds all threads until the last has started, since running threads could delay the start of the others.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn wait(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(open, |open| !*open).unwrap_or_else(PoisonError::into_inner));
    }

    fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

/// Runs one thread's loop over its clients. A call counts in the phase in which it began.
fn drive(
    callers: &mut [Box<dyn Caller + '_>],
    phase: &AtomicU8,
    clock: TickClock,
    kinds: usize,
) -> Result<Found, String> {
    let mut found = Found { kinds: vec![(Vec::new(), 0); kinds], total: 0 };
    // Start time and phase of each client's call.
    let mut began = Vec::with_capacity(callers.len());
    for caller in callers.iter_mut() {
        began.push((clock.ticks(), phase.load(Ordering::Relaxed)));
        caller.start()?;
    }
    loop {
        let mut over = true;
        for (caller, began) in callers.iter_mut().zip(&mut began) {
            if began.1 == OVER {
                continue;
            }
            let kind = caller.finish()?;
            let now = clock.ticks();
            found.total += 1;
            if began.1 == MEASURE
                && let Some((latencies, count)) = found.kinds.get_mut(kind)
            {
                *count += 1;
                if latencies.len() < SAMPLES {
                    latencies.push(u32::try_from(now - began.0).unwrap_or(u32::MAX));
                }
            }
            *began = (now, phase.load(Ordering::Relaxed));
            if began.1 != OVER {
                over = false;
                caller.start()?;
            }
        }
        if over {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_clients_have_threads_and_many_share_the_cores() {
        for (clients, cores, share) in
            [(1, 1, 1), (4, 1, 1), (5, 1, 5), (512, 1, 512), (512, 3, 171), (5, 0, 5)]
        {
            assert_eq!(share_of_a_thread(clients, cores), share, "{clients} clients, {cores} cores");
        }
    }

    /// A caller that counts its calls; one of them fails.
    struct Counting {
        calls: u64,
        fails_at: u64,
    }

    impl Caller for Counting {
        fn start(&mut self) -> Result<(), String> {
            self.calls += 1;
            Ok(())
        }

        fn finish(&mut self) -> Result<usize, String> {
            if self.calls == self.fails_at {
                Err("as it should".to_owned())
            } else {
                Ok((self.calls % 2) as usize)
            }
        }
    }

    fn crowd(size: u64, fails_at: u64, slice: Duration) -> Result<Sample, FloorError> {
        let mut callers: Vec<Box<dyn Caller>> =
            (0..size).map(|_| Box::new(Counting { calls: 0, fails_at }) as Box<dyn Caller>).collect();
        let cores = rustix::thread::sched_getaffinity(None).expect("known");
        run(&mut callers, cores, TickClock::new(), 2, slice)
    }

    #[test]
    fn a_slice_without_a_call_is_taken_again_and_longer() {
        let slices = |with_calls_at: usize| {
            let mut taken = Vec::new();
            let found = with_calls(Duration::from_millis(1), |duration| {
                taken.push(duration.as_millis());
                let operations = u64::from(taken.len() == with_calls_at);
                let kinds = vec![Kind::default(), Kind { operations, ..Kind::default() }];
                Ok(Sample { kinds, ..Sample::default() })
            });
            (taken, found)
        };
        assert!(matches!(slices(1), (taken, Ok(_)) if taken == [1]));
        assert!(matches!(slices(3), (taken, Ok(_)) if taken == [1, 4, 16]));
        assert!(
            matches!(slices(7), (taken, Err(FloorError::Subject(why))) if taken.len() == 6 && why.contains("1024 ms"))
        );
    }

    #[test]
    fn calls_are_counted_by_kind_and_a_failure_ends_the_slice() {
        let short = Duration::from_millis(5);
        for size in [1, 3, 9] {
            // A preempted thread may have made no call in a short slice.
            let all_called = |sample: &Sample| {
                sample.kinds.iter().all(|kind| kind.operations > 0 && kind.latency.samples() > 0)
            };
            let slices = |fails_at| (0..10).map(move |longer| crowd(size, fails_at, short * (1 << longer)));
            let sample = slices(0)
                .map(|slice| slice.expect("no call fails"))
                .find(all_called)
                .expect("each kind is called in five seconds");
            let counted: u64 = sample.kinds.iter().map(|kind| kind.operations).sum();
            assert!(counted <= sample.total_operations && sample.elapsed_ns >= 5e6);
            let error = slices(2).find_map(Result::err).expect("the second call is made");
            assert!(matches!(error, FloorError::Subject(why) if why == "as it should"));
        }
    }
}
