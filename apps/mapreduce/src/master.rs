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
use dunlin_tier_node::{AnyCalls, AnyTier, RequestError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest request of a worker, in bytes.
const MAX_REQUEST: usize = 4 << 20;

/// Runs the master of a job: gives tasks to workers of any node ([`work_for`]), and passes the results to `each` in the
/// ascending order of the keys, until it returns `false`. Blocks until the job has ended. All regions of the job are freed
/// in the end. Only workers of the own principal are heard.
///
/// # Errors
/// A task failed, there were no workers for the job's patience, the tier failed, or the job was stopped. Workers hear of
/// it, and end too.
pub fn lead<T: AnyTier>(
    tier: &T,
    job: &Job,
    program: &impl Program,
    input: &impl Input,
    watch: Arc<dyn Watch>,
    each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<Outcome, MapReduceError> {
    job.check()?;
    let exists = || MapReduceError::Exists { job: job.name.clone() };
    let name = service(&job.name);
    if !tier.servers(name.as_bytes()).map_err(|error| MapReduceError::Master(error.into()))?.is_empty() {
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
    let serving = {
        let (desk, stop, own) = (Arc::clone(&desk), Arc::clone(&stop), tier.principal().to_owned());
        let body = move || {
            let mut buffer = vec![0; MAX_REQUEST];
            while !stop.load(Ordering::Relaxed) {
                let answer = |caller: &str, bytes: &[u8]| {
                    let request = Request::parse(bytes).filter(|_| caller == own)?;
                    Some(desk.answer(&request).encode())
                };
                if let Err(error) = calls.serve_one(&mut buffer, answer) {
                    return desk.give_up(MapReduceError::Receive(error.into()));
                }
            }
        };
        tier.host().spawn("mapreduce-master", Box::new(body)).map_err(MapReduceError::Thread)?
    };
    let outcome = desk.lead(&cluster, each);
    stop.store(true, Ordering::Relaxed);
    // The thread looks at the flag after each request. Without a node it has ended.
    let _ = cluster.ask(&Request::Tick);
    Task::join(serving);
    outcome
}

/// Works for a job with several threads until it has ended. Looks for the master for the patience of the job. All
/// processes give the same program, input, name and number of partitions.
///
/// # Errors
/// There is no master, it has another program or input, it cannot be reached any more, or the job has failed.
pub fn work_for<T: AnyTier, P: Program, I: Input>(
    tier: &T,
    job: &Job,
    program: P,
    input: I,
    threads: u16,
    watch: Arc<dyn Watch>,
) -> Result<(), MapReduceError> {
    job.check()?;
    let agreement = job.agreement(&program, &input);
    let cluster = OverTier::of_worker(tier, job)?;
    work(&Arc::new(Crew { cluster, job: job.clone(), program, input, watch, agreement }), threads)
}
