//! The master and the workers in this process: on nodes of its own, attached to the node of the host, or without nodes.

use super::{CommonArguments, failure};
use dunlin::fabric::{Scheme, ShmFabric};
use dunlin_app_mapreduce::{
    Files, Job, MapReduceError, Master, Outcome, Phase, Program, Progress, Watch, run_alone, work_for,
};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::Failure;
use dunlin_command::{progress, shared_memory};
use dunlin_fabric::Fabric as _;
use dunlin_tier_node::{AnyServices, Peer, Tier, TierConfig};
use indicatif::ProgressBar;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The memory of a node of this process beside twice the files.
const NODE_MEMORY: u64 = 64 << 20;

/// Shows progress, and stops after a signal.
struct Shows {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Watch for Shows {
    fn progress(&self, progress: Progress) {
        let phase = match progress.phase {
            Phase::Map => "mapping",
            Phase::Reduce => "reducing",
            Phase::Merge => "merging",
            Phase::Done => "reading the result",
        };
        self.bar.set_message(phase);
        self.bar.set_length(progress.tasks.into());
        self.bar.set_position(progress.done.into());
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl CommonArguments {
    fn threads(&self) -> u16 {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get().min(64) as u16);
        self.threads.unwrap_or(cores)
    }

    /// Starts the nodes of this process.
    fn nodes(&self, bytes: u64) -> Result<Vec<Tier<ShmFabric>>, Failure> {
        let address = |node: u16| format!("mapreduce-{}-{node}", std::process::id());
        let peers = (0..self.nodes).map(|node| Peer::named(Scheme::Shm, &address(node)));
        let peers = peers.collect::<Result<Vec<_>, _>>().map_err(Failure::new)?;
        let memory = self.node_memory.unwrap_or(bytes.saturating_mul(2).saturating_add(NODE_MEMORY));
        let start = |peer: &Peer| {
            let paths = self.threads().max(1);
            let config = TierConfig { memory, paths, ..TierConfig::new(peers.clone(), &peer.name) };
            Tier::within(&shared_memory()?, config).map_err(Failure::new)
        };
        peers.iter().map(start).collect()
    }
}

/// Runs the job as its master, with workers in this process; returns the outcome and the bytes of the input.
pub(super) fn lead<P: Program + Clone>(
    arguments: &CommonArguments,
    program: &P,
    interrupt: &Interrupt,
    each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(Outcome, u64), Failure> {
    let (job, input) = (arguments.description(), arguments.input()?);
    let bytes = input.bytes();
    let bar = progress::counting(1, "starting");
    let watch: Arc<dyn Watch> = Arc::new(Shows { bar: bar.clone(), stop: interrupt.shared_flag() });
    let threads = arguments.threads();
    let outcome = if arguments.plain {
        let fabric = shared_memory()?;
        run_alone(fabric.host(), &job, program.clone(), input, threads, watch, each).map_err(failure)
    } else if arguments.job.is_some() {
        let tier = arguments.attach.attach()?;
        together(vec![(tier, threads)], arguments, &job, program, watch, each)
    } else {
        let nodes = arguments.nodes(bytes)?;
        let count = nodes.len() as u16;
        let share = |at: u16| (threads / count + u16::from(at < threads % count)).max(1);
        let members = nodes.into_iter().zip(0..).map(|(node, at)| (node, share(at))).collect();
        together(members, arguments, &job, program, watch, each)
    };
    bar.finish_and_clear();
    Ok((outcome?, bytes))
}

/// Runs the master on this thread, and workers on others.
fn together<T: AnyServices, P: Program + Clone>(
    members: Vec<(T, u16)>,
    arguments: &CommonArguments,
    job: &Job,
    program: &P,
    watch: Arc<dyn Watch>,
    each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<Outcome, Failure> {
    let Some((first, _)) = members.first() else { return Err(Failure::new("a job has a node")) };
    let master = Master::start(first, job, program, &arguments.input()?, watch).map_err(failure)?;
    let mut workers = Vec::with_capacity(members.len());
    for (tier, threads) in members {
        let (job, program) = (job.clone(), program.clone());
        let (paths, split) = (arguments.files.clone(), arguments.split);
        // After a pause of this process, the master has given its own workers up, and there may be no others.
        let body = move || loop {
            let files = Files::open(paths.iter().cloned(), split);
            let ended =
                files.and_then(|files| work_for(&tier, &job, program.clone(), files, threads, Arc::new(())));
            if !matches!(ended, Err(MapReduceError::GivenUp)) {
                break ended;
            }
        };
        workers.push(thread::Builder::new().name("workers".to_owned()).spawn(body).map_err(Failure::new)?);
    }
    // Workers hear of the end from the master.
    let outcome = master.finish(each);
    let ended: Vec<_> = workers.into_iter().map(thread::JoinHandle::join).collect();
    let outcome = outcome.map_err(failure)?;
    for end in ended {
        match end {
            // A worker that came late finds no master.
            Ok(Ok(()) | Err(MapReduceError::NoMaster { .. } | MapReduceError::Master(_))) => {}
            Ok(Err(error)) => return Err(failure(error)),
            Err(_) => return Err(Failure::new("a worker of this process has panicked")),
        }
    }
    Ok(outcome)
}

/// Works for the master of a job until the job has ended.
pub(super) fn work<P: Program + Clone>(
    arguments: &CommonArguments,
    program: &P,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let (job, input): (Job, Files) = (arguments.description(), arguments.input()?);
    let tier = arguments.attach.attach()?;
    let watch = Arc::new(Shows { bar: ProgressBar::hidden(), stop: interrupt.shared_flag() });
    let ended = work_for(&tier, &job, program.clone(), input, arguments.threads(), watch);
    interrupt.check()?;
    ended.map_err(failure)
}
