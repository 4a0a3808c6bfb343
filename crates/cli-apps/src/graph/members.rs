//! The members of a job in this process: on nodes of its own, or attached to the node of the host.

use super::{CommonArguments, failure};
use dunlin::fabric::Scheme;
use dunlin_app_graph::{
    Edges, GraphError, Job, Outcome, Program, Step, Watch, run as run_on_regions, run_in_memory, shared_pages,
};
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::Failure;
use dunlin_command::{progress, shared_memory};
use dunlin_tier_node::{AnyLists, AnyServices, Peer, Tier, TierConfig};
use indicatif::ProgressBar;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The time that the members have to end after a signal, or after another one has failed.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval at which the command checks for a signal.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);

/// The results of the members in this process, together.
pub(super) struct Ended<D> {
    /// The data of all vertices, if this process shows them.
    pub(super) data: Option<Vec<D>>,
    pub(super) steps: u32,
    pub(super) messages: u64,
    pub(super) gathered: u64,
    pub(super) building: Duration,
    pub(super) stepping: Duration,
}

/// Shows progress, and stops after a signal.
struct Progress {
    bar: ProgressBar,
    vertices: u64,
    stop: Arc<AtomicBool>,
}

impl Watch for Progress {
    fn step(&self, step: Step) {
        self.bar.set_message(format!("step {}: vertices at rest", step.number));
        self.bar.set_position(self.vertices.saturating_sub(step.scattering));
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The place of the messages.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Regions of the tier.
    Regions,
    /// A shared memory, mapped at an address or not.
    Memory(Option<u64>),
}

/// The address of a mapped memory: free in every process, as programs, heaps and stacks are far away.
const ADDRESS: u64 = 0x2000_0000_0000;

impl CommonArguments {
    fn place(&self) -> Place {
        match self.shared_memory {
            true => Place::Memory(self.mapped.then_some(ADDRESS)),
            false => Place::Regions,
        }
    }

    fn job(&self) -> Job {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get().min(64) as u16);
        let nodes = self.members.map_or(self.nodes, |_| 1);
        Job {
            members: self.members.unwrap_or(self.nodes),
            member: self.member.unwrap_or(0),
            threads: self.threads.unwrap_or((cores / nodes).max(1)),
            regions: self.regions,
            patience: self.wait,
            ..Job::new(self.job.as_deref().unwrap_or("graph"))
        }
    }

    /// Starts the nodes of this process.
    fn nodes(&self, job: &Job, memory: u64) -> Result<Vec<Tier<dunlin::fabric::ShmFabric>>, Failure> {
        let address = |node: u16| format!("graph-{}-{node}", std::process::id());
        let peers = (0..self.nodes).map(|node| Peer::named(Scheme::Shm, &address(node)));
        let peers = peers.collect::<Result<Vec<_>, _>>().map_err(Failure::new)?;
        let start = |peer: &Peer| {
            let config =
                TierConfig { memory, paths: job.threads, ..TierConfig::new(peers.clone(), &peer.name) };
            Tier::within(&shared_memory()?, config).map_err(Failure::new)
        };
        peers.iter().map(start).collect()
    }
}

/// Runs the members of this process; returns when they have ended, or soon after a signal.
pub(super) fn run<P: Program + Clone>(
    arguments: &CommonArguments,
    edges: Arc<Edges>,
    program: &P,
    interrupt: &Interrupt,
) -> Result<Ended<P::Data>, Failure> {
    let (job, place) = (arguments.job(), arguments.place());
    let bar = progress::counting(edges.vertices().into(), "building rows");
    let watch = Arc::new(Progress {
        bar: bar.clone(),
        vertices: edges.vertices().into(),
        stop: interrupt.shared_flag(),
    });
    let result = if arguments.members.is_some() {
        let collects = job.member == 0 || arguments.output.is_some();
        let tier = arguments.attach.attach()?;
        together(vec![(tier, Job { collects, ..job })], place, edges, program, watch, interrupt)
    } else {
        let memory = match place {
            Place::Regions => job.memory::<P>(edges.vertices()),
            // Pages of all members, and headers.
            Place::Memory(_) => (u64::from(shared_pages::<P>(job.members, edges.vertices())) * 8192)
                .next_power_of_two()
                .max(1 << 20),
        };
        let nodes = arguments.nodes(&job, memory)?;
        let members = nodes.into_iter().zip(0..).map(|(tier, member)| {
            let collects = member == 0;
            (tier, Job { member, collects, ..job.clone() })
        });
        together(members.collect(), place, edges, program, watch, interrupt)
    };
    bar.finish_and_clear();
    result
}

/// Runs members on threads, so that a signal is noticed while they wait for others.
fn together<T: AnyServices + AnyLists, P: Program + Clone>(
    members: Vec<(T, Job)>,
    place: Place,
    edges: Arc<Edges>,
    program: &P,
    watch: Arc<Progress>,
    interrupt: &Interrupt,
) -> Result<Ended<P::Data>, Failure> {
    let (sender, results) = channel();
    let mut left = members.len();
    let unused: Arc<dyn Watch> = Arc::new(Quiet(Arc::clone(&watch)));
    let mut kept = Vec::with_capacity(members.len());
    for (tier, job) in members {
        // A node ends with its last clone: not before all members have ended.
        kept.push(tier.clone());
        let watch: Arc<dyn Watch> = if kept.len() == 1 { watch.clone() } else { Arc::clone(&unused) };
        let (sender, edges, program) = (sender.clone(), Arc::clone(&edges), program.clone());
        let body = move || {
            let result = match place {
                Place::Regions => run_on_regions(&tier, &job, edges, program, watch),
                Place::Memory(address) => run_in_memory(&tier, address, &job, edges, program, watch),
            };
            // After a signal nobody receives.
            let _ = sender.send((job.collects, result));
        };
        thread::Builder::new().name("member".to_owned()).spawn(body).map_err(Failure::new)?;
    }
    drop((sender, edges));
    let (mut outcomes, mut error, mut ending) = (Vec::new(), None, None::<Instant>);
    while left > 0 {
        match results.recv_timeout(SIGNALS_EVERY) {
            Ok((collects, Ok(outcome))) => outcomes.push((collects, outcome)),
            // The first error is the cause of the others.
            Ok((_, Err(failed))) => {
                error.get_or_insert(failed);
            }
            Err(RecvTimeoutError::Timeout) => {
                let is_ending = error.is_some() || interrupt.received().is_some();
                if is_ending && ending.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    break;
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        left -= 1;
    }
    interrupt.check()?;
    match error {
        Some(error) => Err(failure(error)),
        None if left > 0 => Err(failure(GraphError::Panicked)),
        None => Ok(sum(outcomes)),
    }
}

/// The watch of further members of one process: the first one shows the progress.
struct Quiet(Arc<Progress>);

impl Watch for Quiet {
    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

fn sum<D>(outcomes: Vec<(bool, Outcome<D>)>) -> Ended<D> {
    let none = Duration::ZERO;
    let mut ended = Ended { data: None, steps: 0, messages: 0, gathered: 0, building: none, stepping: none };
    for (collects, outcome) in outcomes {
        ended.steps = outcome.steps;
        ended.messages = outcome.messages;
        ended.gathered += outcome.gathered;
        ended.building = ended.building.max(outcome.building);
        ended.stepping = ended.stepping.max(outcome.stepping);
        if collects {
            ended.data = Some(outcome.data);
        }
    }
    ended
}
