//! A job over the memory tier: its master, and the workers of a process.

use crate::cluster::Cluster;
use crate::desk::Desk;
use crate::error::MapReduceError;
use crate::input::Input;
use crate::job::{Job, Outcome, Watch};
use crate::message::Request;
use crate::over_tier::{FUNCTION, OverTier, service};
use crate::program::Program;
use crate::worker::{Crew, work};
use dunlin_fabric::{Host, Task};
use dunlin_tier_node::{AnyCalls, AnyServices, RequestError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest request of a worker, in bytes.
const MAX_REQUEST: usize = 4 << 20;

/// The master of a job: gives tasks to workers of any node ([`work_for`]), from its start on. Only workers of the own
/// principal are heard. Dropping it ends the job: workers hear that it was stopped, and its regions stay at their nodes.
pub struct Master<T: AnyServices> {
    cluster: OverTier<T>,
    desk: Arc<Desk<T::Host>>,
    stop: Arc<AtomicBool>,
    /// None once it is joined.
    serving: Option<Task>,
}

impl<T: AnyServices> std::fmt::Debug for Master<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Master").finish_non_exhaustive()
    }
}

impl<T: AnyServices> Master<T> {
    /// Starts the master of a job at this node. Blocks as a few requests to nodes do.
    ///
    /// # Errors
    /// A setting makes no sense, a master of that name runs already, or the tier fails.
    pub fn start(
        tier: &T,
        job: &Job,
        program: &impl Program,
        input: &impl Input,
        watch: Arc<dyn Watch>,
    ) -> Result<Self, MapReduceError> {
        job.check()?;
        let exists = || MapReduceError::Exists { job: job.name.clone() };
        let name = service(&job.name);
        let found = tier.servers(name.as_bytes()).map_err(|error| MapReduceError::Master(error.into()))?;
        if !found.is_empty() {
            return Err(exists());
        }
        let calls = tier.register(name.as_bytes(), FUNCTION).map_err(|error| match error {
            RequestError::Registered { .. } => exists(),
            error => MapReduceError::Master(error.into()),
        })?;
        let cluster = OverTier::of_master(tier, job)?;
        let agreement = job.agreement(program, input);
        let desk = Arc::new(Desk::new(tier.host(), job, input.splits(), agreement, watch));
        let stop = Arc::new(AtomicBool::new(false));
        let (own, stopped, principal) = (Arc::clone(&desk), Arc::clone(&stop), tier.principal().to_owned());
        let body = move || {
            let mut buffer = vec![0; MAX_REQUEST];
            while !stopped.load(Ordering::Relaxed) {
                let answer = |caller: &str, bytes: &[u8]| {
                    let request = Request::parse(bytes).filter(|_| caller == principal)?;
                    Some(own.answer(&request).encode())
                };
                if let Err(error) = calls.serve_one(&mut buffer, answer) {
                    return own.give_up(MapReduceError::Receive(error.into()));
                }
            }
        };
        let serving =
            tier.host().spawn("mapreduce-master", Box::new(body)).map_err(MapReduceError::Thread)?;
        Ok(Master { cluster, desk, stop, serving: Some(serving) })
    }

    /// Waits for the workers' result, and passes it to `each` in the ascending order of the keys, until it returns
    /// `false`. Blocks until the job has ended and the workers know it. All regions of the job are freed in the end.
    ///
    /// # Errors
    /// A task failed, there were no workers for the job's patience, the tier failed, or the job was stopped. Workers hear
    /// of it, and end too.
    pub fn finish(self, each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<Outcome, MapReduceError> {
        self.desk.lead(&self.cluster, each)
    }
}

impl<T: AnyServices> Drop for Master<T> {
    fn drop(&mut self) {
        // Without effect if the job has ended.
        self.desk.give_up(MapReduceError::Stopped);
        self.stop.store(true, Ordering::Relaxed);
        // The thread looks at the flag after each request. If the node has ended, so has the thread.
        let _ = self.cluster.ask(&Request::Tick);
        self.serving.take().into_iter().for_each(Task::join);
    }
}

/// Works for a job with several threads until it has ended. Looks for the master for the patience of the job. All
/// processes give the same program, input, name and number of partitions.
///
/// # Errors
/// There is no master, it has another program or input, it cannot be reached any more, or the job has failed.
pub fn work_for<T: AnyServices, P: Program, I: Input>(
    tier: &T,
    job: &Job,
    program: P,
    input: I,
    threads: u16,
    watch: Arc<dyn Watch>,
) -> Result<(), MapReduceError> {
    job.check()?;
    let agreement = job.agreement(&program, &input);
    let cluster = OverTier::of_worker(tier, job, &*watch)?;
    work(&Arc::new(Crew { cluster, job: job.clone(), program, input, watch, agreement }), threads)
}
