//! Clients under load: a single one on the calling thread, several on a thread each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use super::flow::Flow;
use super::session::Session;
use dunlin_floor::{FloorError, FloorPair, Slice};
use dunlin_report::statistics::Latency;

/// Time limit for the first result of a slice with several clients.
const LONGEST: Duration = Duration::from_secs(10);

/// The clients of one server.
pub(super) struct ConcurrentClients {
    flows: Vec<Flow>,
    /// All cores except the server's.
    cores: CpuSet,
}

/// A counter in its own cache line, to avoid false sharing between clients.
#[derive(Default)]
#[repr(align(64))]
struct Done(AtomicU64);

impl ConcurrentClients {
    pub(super) fn new(flows: Vec<Flow>, session: &Session) -> Self {
        let mut cores = session.allowed;
        cores.unset(session.pair.cores().server as usize);
        Self { flows, cores }
    }

    /// Returns whether every result so far was right.
    pub(super) fn is_right(&self) -> bool {
        self.flows.iter().all(Flow::is_right)
    }

    /// Runs a slice of one client on the calling thread.
    pub(super) fn count_here(
        &mut self,
        pair: &mut FloorPair,
        duration: Duration,
    ) -> Result<Slice, FloorError> {
        let Some(flow) = self.flows.first_mut() else {
            return Err(FloorError::BadArgument("there is no client".to_owned()));
        };
        let slice = pair.count_subject(duration, || flow.turn())?;
        flow.drain().map_err(FloorError::Subject)?;
        Ok(slice)
    }

    /// Runs a slice of all clients, each on a thread. Counting starts after a tenth of `duration`; the
    /// calling thread sleeps.
    pub(super) fn count(&mut self, duration: Duration) -> Result<Slice, FloorError> {
        let counters: Vec<Done> = self.flows.iter().map(|_| Done::default()).collect();
        let over = AtomicBool::new(false);
        let cores = self.cores;
        let total = || counters.iter().map(|done| done.0.load(Ordering::Relaxed)).sum::<u64>();
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .flows
                .iter_mut()
                .zip(&counters)
                .map(|(flow, done)| {
                    let over = &over;
                    scope.spawn(move || -> Result<(), String> {
                        sched_setaffinity(None, &cores).map_err(|error| error.to_string())?;
                        while !over.load(Ordering::Relaxed) {
                            done.0.fetch_add(flow.turn()?, Ordering::Relaxed);
                        }
                        flow.drain()
                    })
                })
                .collect();
            std::thread::sleep(duration / 10);
            let (start, before) = (Instant::now(), total());
            let (elapsed, after) = loop {
                std::thread::sleep(duration);
                // If the machine was suspended, continue until a call has completed or a client has failed.
                let (elapsed, after) = (start.elapsed(), total());
                let failed = threads.iter().any(ScopedJoinHandle::is_finished);
                if after > before || failed || elapsed > LONGEST {
                    break (elapsed, after);
                }
            };
            over.store(true, Ordering::Relaxed);
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|_| Err("a client's thread panicked".to_owned()));
                ended.map_err(FloorError::Subject)?;
            }
            Ok(Slice {
                latency: Latency::new(),
                operations: after - before,
                elapsed_ns: elapsed.as_nanos() as f64,
                peer_cpu_ns: 0,
                total_operations: total(),
                preemptions: 0,
            })
        })
    }
}
