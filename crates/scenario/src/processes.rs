//! Processes of several hosts that all call each other: through the nodes of their hosts, or over a connection for each pair
//! of processes.

use crate::measured_run::{
    Counted, CourseError, MeasuredRun, Phase, cluster, cost_as, not_zero, record_with, spawn_at, thread,
};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task, WithSources};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::{Prices, Profile};
use dunlin_rpc::{Client, ClientConfig, FunctionMode, Plan, Reply, Request, Server, ServerBuilder};
use dunlin_tier_client::{AttachConfig, Calls, ReceiveError};
use dunlin_tier_node::{Peer, ProcessConfig, ProcessLimits, ProcessServer, Tier, TierConfig};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The way of a call from process to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through the nodes of both hosts, to which the processes attach.
    Nodes,
    /// Over a connection of the engine for each pair of processes.
    Pairs,
}

/// A load of calls. Each process has a thread that calls the processes of all other hosts by turns, one call after the other,
/// and a thread that answers.
#[derive(Clone, Debug)]
pub struct ProcessCalls {
    /// Profile of all hosts.
    pub profile: String,
    /// Number of hosts.
    pub hosts: usize,
    /// Processes of a host.
    pub processes: usize,
    /// The way of the calls.
    pub way: Way,
    /// Threads of a node that serve the processes of its host.
    pub workers: u16,
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of an answer.
    pub answer: usize,
    /// Calls of all processes before the measurement.
    pub warm_up: u64,
    /// Measured calls of all processes.
    pub measured: u64,
}

/// Virtual time after which a run is aborted, in nanoseconds.
const LIMIT: Nanos = 120_000_000_000;
/// Tasks of a host beside those of its processes, and of a process, at most.
const TASKS: [usize; 2] = [96, 8];
/// The time after which a thread that receives looks whether the run is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The time of a call: some wait until a connection is made.
const TIME: Duration = Duration::from_secs(30);
const FUNCTION: u16 = 1;
/// Paths of a node to another one (LITE section 6.1: 1 to 4).
const PATHS: u16 = 4;
/// The most threads of a node for calls of others.
const WORKERS: u16 = 2;

/// A process that calls.
enum Caller {
    Node(Box<dunlin_tier_client::Tier<Sim>>),
    Pairs(Vec<Client<Sim>>),
}

/// The parts that end after the calls.
#[derive(Default)]
struct Served {
    receiving: Vec<Task>,
    servers: Vec<Server<Sim>>,
    processes: Vec<ProcessServer<Sim>>,
    nodes: Vec<Tier<Sim>>,
}

impl ProcessCalls {
    /// Returns a load of one process of each of two hosts: 64 bytes there, 8 bytes back.
    pub fn of(profile: &str, way: Way) -> ProcessCalls {
        ProcessCalls {
            profile: profile.to_owned(),
            hosts: 2,
            processes: 1,
            way,
            workers: 1,
            request: 64,
            answer: 8,
            warm_up: 200,
            measured: 3_000,
        }
    }

    /// Runs the load; returns the measured calls with their times.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<Counted, CourseError> {
        not_zero([
            ("the number of processes", self.processes as u64),
            ("the number of measured calls", self.measured),
            ("the number of other hosts", self.hosts.saturating_sub(1) as u64),
        ])?;
        let tasks = self.hosts * (TASKS[0] + self.processes * TASKS[1]);
        let mut settings = cluster(self.hosts, tasks, LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        let between = Prices::of(&profile).verbs().benchmark_loop_ns as Nanos;
        cost_as(&mut settings, profile, 1);
        // Requests of several threads reach a NIC in order.
        settings.slack = 0;
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<Counted>>| load.play(sim, between, course);
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    fn play(&self, sim: &Sim, between: Nanos, course: &Arc<MeasuredRun<Counted>>) -> Result<(), CourseError> {
        let names: Vec<String> = (0..self.hosts).map(|host| format!("host-{host}")).collect();
        let mut served = Served::default();
        let mut processes: Vec<(usize, usize, Sim)> = Vec::new();
        let mut attached = Vec::new();
        for host in 0..self.hosts {
            if self.way == Way::Nodes {
                self.start_node(sim, &names, host, &mut served)?;
            }
            for number in 0..self.processes {
                let process = sim.process_on(host);
                match self.way {
                    Way::Nodes => attached.push(self.attach(&process, number, course, &mut served)?),
                    Way::Pairs => served.servers.push(self.serve(&process, host, number)?),
                }
                processes.push((host, number, process));
            }
        }
        let start = sim.host().signal();
        let mut attached = attached.into_iter();
        let mut tasks = Vec::new();
        for (host, number, process) in &processes {
            let caller = match self.way {
                Way::Nodes => Caller::Node(Box::new(attached.next().ok_or_else(|| thread("no process"))?)),
                Way::Pairs => Caller::Pairs(self.connect(process, *host)?),
            };
            let (load, names, sim, of_thread) =
                (self.clone(), names.clone(), process.clone(), Arc::clone(course));
            // Each process begins with another one.
            let from = (*host, *host * self.processes + number);
            let body = move || load.call((&sim, &names), from, caller, between, &of_thread);
            tasks.push(spawn_at(process, &start, course, body)?);
        }
        start.raise();
        tasks.into_iter().for_each(Task::join);
        course.end();
        served.receiving.into_iter().for_each(Task::join);
        Ok(())
    }

    /// Starts the node of a host, and its service for processes.
    fn start_node(
        &self,
        sim: &Sim,
        names: &[String],
        host: usize,
        served: &mut Served,
    ) -> Result<(), CourseError> {
        let peer = |name: &String| Peer::named(Scheme::Sim, name).map_err(thread);
        let peers = names.iter().map(peer).collect::<Result<Vec<_>, _>>()?;
        let of_node = sim.process_on(host);
        let config = TierConfig {
            memory: 4 << 20,
            paths: PATHS,
            workers: WORKERS,
            ..TierConfig::new(peers, names[host].as_str())
        };
        let tier = Tier::within(&of_node, config).map_err(thread)?;
        // Simulated processes have no ids, so those of a host share the limits of one.
        let (defaults, processes) = (ProcessLimits::default(), self.processes as u16);
        let limits = ProcessLimits {
            operations: defaults.operations.max(processes),
            connections: defaults.connections.max(4 * processes),
            services: defaults.services.max(processes),
            ..defaults
        };
        let users = BTreeMap::from([(0, "all".to_owned())]);
        let config =
            ProcessConfig { users, limits, workers: self.workers, ..ProcessConfig::new(attach_address()?) };
        let server = ProcessServer::serve(&of_node.within_machine(), &tier, config).map_err(thread)?;
        served.processes.push(server);
        served.nodes.push(tier);
        Ok(())
    }

    /// Attaches a process to the node of its host, and starts its thread that answers.
    fn attach(
        &self,
        process: &Sim,
        number: usize,
        course: &Arc<MeasuredRun<Counted>>,
        served: &mut Served,
    ) -> Result<dunlin_tier_client::Tier<Sim>, CourseError> {
        // The plan of the published figures.
        let plan = Some(Plan::default());
        let config = AttachConfig { plan, timeout: TIME, ..AttachConfig::new(attach_address()?) };
        let attached = dunlin_tier_client::Tier::attach_with(&process.within_machine(), config);
        let attached = attached.map_err(thread)?;
        let calls = attached.register(service(number), FUNCTION).map_err(thread)?;
        let (load, course) = (self.clone(), Arc::clone(course));
        let body = Box::new(move || course.ended(load.answer(&calls, &course)));
        served.receiving.push(process.host().spawn("receiving", body).map_err(thread)?);
        Ok(attached)
    }

    /// Answers calls until the run is over.
    fn answer(&self, calls: &Calls<Sim>, course: &MeasuredRun<Counted>) -> Result<(), CourseError> {
        let (mut buffer, answer) = (vec![0; self.request], vec![7; self.answer]);
        let mut received = None;
        while course.phase() != Phase::Over {
            received = match received {
                None => match calls.receive_within(&mut buffer, LOOK_EVERY) {
                    Ok(request) => Some(request),
                    Err(ReceiveError::NoCall) => None,
                    Err(error) => return Err(thread(WithSources(&error))),
                },
                Some(request) => {
                    let request: dunlin_tier_client::Request<'_, Sim> = request;
                    request.reply(&answer).map_err(|error| thread(WithSources(&error)))?;
                    None
                }
            };
        }
        Ok(())
    }

    /// Starts the server of a process.
    fn serve(&self, process: &Sim, host: usize, number: usize) -> Result<Server<Sim>, CourseError> {
        let answer = vec![7; self.answer];
        let handler = move |_: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(&answer)?);
        let builder = ServerBuilder::new(process).function(FUNCTION, FunctionMode::Worker);
        builder.serve(&pair_address(host, number)?, move |_| Box::new(handler.clone())).map_err(thread)
    }

    /// Makes the clients of a process: of all processes of other hosts. They connect with their first calls.
    fn connect(&self, process: &Sim, host: usize) -> Result<Vec<Client<Sim>>, CourseError> {
        let others = (0..self.hosts).filter(|other| *other != host);
        let of_host = |other| (0..self.processes).map(move |number| (other, number));
        others
            .flat_map(of_host)
            .map(|(other, number)| {
                let config = ClientConfig { window: 2, timeout: TIME, lazy: true, ..ClientConfig::default() };
                Client::connect(process, &pair_address(other, number)?, config).map_err(thread)
            })
            .collect()
    }

    /// Calls until all processes together have called enough.
    fn call(
        &self,
        (sim, names): (&Sim, &[String]),
        (own, first): (usize, usize),
        mut caller: Caller,
        between: Nanos,
        course: &MeasuredRun<Counted>,
    ) -> Result<(), CourseError> {
        let (request, mut answer) = (vec![7; self.request], vec![0; self.answer]);
        let host = sim.host();
        let count = (self.hosts - 1) * self.processes;
        for turn in first.. {
            let (since, to) = (sim.time(), turn % count);
            host.work(between);
            if course.phase() == Phase::Over {
                break;
            }
            let called = match &mut caller {
                Caller::Pairs(clients) => clients[to]
                    .call(FUNCTION, &request)
                    .map(drop)
                    .map_err(|error| thread(WithSources(&error))),
                Caller::Node(tier) => {
                    let other = to / self.processes;
                    let node = &names[other + usize::from(other >= own)];
                    let function = service(to % self.processes);
                    let called = tier.call(node, function, FUNCTION, &request, &mut answer);
                    called.map(drop).map_err(|error| thread(WithSources(&error)))
                }
            };
            match called {
                Ok(()) => {}
                // The other process has ended.
                Err(_) if course.phase() == Phase::Over => break,
                Err(error) => return Err(error),
            }
            host.work(0);
            if record_with(course, (self.warm_up, self.measured), (since, sim.time()), || 0) {
                break;
            }
        }
        Ok(())
    }
}

fn service(number: usize) -> String {
    format!("process-{number}")
}

fn attach_address() -> Result<Address, CourseError> {
    Address::new(Scheme::Sim, "attach").map_err(thread)
}

fn pair_address(host: usize, number: usize) -> Result<Address, CourseError> {
    Address::new(Scheme::Sim, &format!("process-{host}-{number}")).map_err(thread)
}
