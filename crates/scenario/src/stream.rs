//! A stream of low priority beside an application of high priority, at the same nodes of the memory tier (LITE figure 15).

use crate::measured_run::{CourseError, MeasuredRun, thread};
use dunlin_fabric::{Fabric, Host, Nanos, Task, WithSources};
use dunlin_fabric_sim::Sim;
use dunlin_tier_node::{Lmr, Policy, Priority, Rights, Spec, Tier};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A stream beside an application: threads of each of the application's nodes, which write to all other nodes by turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The rule by which operations share the paths of a node.
    pub policy: Policy,
    /// Threads of the stream at each node of the application; without one the application is alone.
    pub threads: usize,
}

/// Bytes of a WRITE, and of the region of a node that the stream writes to.
const BYTES: usize = 4096;
const REGION: u64 = 1 << 20;

/// Memory that a node needs for the stream.
pub(crate) const MEMORY: u64 = 2 * REGION;

/// A stream that runs.
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    tasks: Vec<Task>,
}

impl Running {
    /// Ends it.
    pub(crate) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.into_iter().for_each(Task::join);
    }
}

impl Stream {
    /// Returns a tier by which the application's operations have high priority.
    pub(crate) fn application(tier: &Tier<Sim>) -> Result<Tier<Sim>, CourseError> {
        tier.with_priority(Priority::High).map_err(thread)
    }

    /// Starts the stream at the first `active` nodes. Each operation has `between` nanoseconds of its thread before it.
    pub(crate) fn start<T: Default + Send + 'static>(
        self,
        nodes: &[(Sim, Tier<Sim>)],
        active: usize,
        between: Nanos,
        course: &Arc<MeasuredRun<T>>,
    ) -> Result<Running, CourseError> {
        let name = |node: usize| format!("stream-{node}");
        for (number, (_, tier)) in nodes.iter().enumerate() {
            // A region with a name lives until it is freed.
            drop(tier.malloc(REGION, Spec::here().named(name(number))).map_err(thread)?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for (node, (sim, tier)) in nodes.iter().enumerate().take(active) {
            let low = tier.with_priority(Priority::Low).map_err(thread)?;
            for number in 0..self.threads {
                // Each thread begins with another node.
                let others = (1..nodes.len())
                    .map(|after| (node + 1 + (number + after - 1) % (nodes.len() - 1)) % nodes.len());
                let regions = others.map(|other| low.map(name(other), Rights::WRITE).map_err(thread));
                let regions = regions.collect::<Result<Vec<_>, _>>()?;
                let (own, stop, of_thread) = (sim.clone(), Arc::clone(&stop), Arc::clone(course));
                let body = move || of_thread.ended(write(&own, &regions, between, &stop));
                tasks.push(sim.host().spawn("stream", Box::new(body)).map_err(thread)?);
            }
        }
        Ok(Running { stop, tasks })
    }
}

fn write(sim: &Sim, regions: &[Lmr<Sim>], between: Nanos, stop: &AtomicBool) -> Result<(), CourseError> {
    let bytes = [7; BYTES];
    let mut offset = 0;
    for region in regions.iter().cycle() {
        sim.host().work(between);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        region.write(offset, &bytes).map_err(|error| thread(WithSources(&error)))?;
        offset = (offset + BYTES as u64) % REGION;
    }
    Ok(())
}
