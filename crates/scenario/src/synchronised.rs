//! Several servers whose clients call all of them in every step: with one schedule for all servers, or with a schedule of
//! each (ScaleRPC section 4.2).

use crate::measured_run::{CourseError, FOREVER, MeasuredRun, Phase, cluster, cost_as, not_zero, thread};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::Profile;
use dunlin_rpc::{
    Client, ClientConfig, Deployment, FunctionMode, Plan, Reply, Request, RunningSlice, Server,
    ServerBuilder, ServerConfig, Status,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A load of clients that call several servers in every step.
#[derive(Clone, Debug)]
pub struct Synchronised {
    /// Profile of all machines.
    pub profile: String,
    /// The servers, each on a machine of its own: how far the clock is ahead, in nanoseconds, and its drift in millionths.
    pub clocks: Vec<(Nanos, u64)>,
    /// Worker threads of each server.
    pub workers: u16,
    /// Machines of clients.
    pub client_hosts: usize,
    /// Client threads.
    pub clients: usize,
    /// Clients of a group.
    pub group: u16,
    /// Time for which a group is served, in nanoseconds.
    pub slice: Nanos,
    /// Bytes of a request and of its answer.
    pub bytes: usize,
    /// The servers share one schedule.
    pub is_common: bool,
    /// The plan of all calls.
    pub plan: Plan,
    /// Time from the first step to the measurement, in nanoseconds.
    pub warm_up: Nanos,
    /// Measured time, in nanoseconds.
    pub measured: Nanos,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Steps that ended in the measured time: each is a call to every server.
    pub steps: u64,
    /// The sum of their times, in nanoseconds.
    pub time: Nanos,
    /// For each slice of the common schedule: the time from the first server that began it to the last one, in
    /// nanoseconds, in order.
    pub apart: Vec<Nanos>,
}

impl Steps {
    /// Returns the time within which all servers begin this share of the slices, in nanoseconds; 0 without any.
    #[must_use]
    pub fn apart_at(&self, percent: usize) -> Nanos {
        let at = (self.apart.len() * percent).div_ceil(100).saturating_sub(1);
        self.apart.get(at).copied().unwrap_or_default()
    }
}

/// The id of the only function.
const FUNCTION: u16 = 1;
/// The time for which the servers agree on their clocks before clients connect, and that the time server has to make
/// groups of them, in nanoseconds.
const SETTLING: Nanos = 3_000_000_000;
const GROUPING: Nanos = 1_000_000_000;
/// Looks at the running slices of servers in each slice.
const LOOKS: Nanos = 4;
/// Virtual time after which a run is aborted, in nanoseconds.
const LIMIT: Nanos = 60_000_000_000;

/// Where a client waits for the beginning: when all are connected.
type Start = <<Sim as Fabric>::Host as Host>::Signal;

impl Synchronised {
    /// Runs the load. Returns a hash over all events, too.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<(Steps, u64), CourseError> {
        not_zero([
            ("the number of servers", self.clocks.len() as u64),
            ("the number of clients", self.clients as u64),
            ("the number of client hosts", self.client_hosts as u64),
            ("the measured time", self.measured),
        ])?;
        let servers = self.clocks.len();
        let threads = self.clients + servers * (8 + usize::from(self.workers)) + 16;
        let mut settings = cluster(servers + self.client_hosts, threads, LIMIT);
        for (machine, (offset, drift)) in settings.machines.iter_mut().zip(&self.clocks) {
            (machine.clock_offset, machine.clock_drift) = (*offset, *drift);
        }
        cost_as(&mut settings, Profile::built_in(&self.profile)?, 1);
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<Steps>>| load.play(sim, course);
        let (mut steps, hash) = MeasuredRun::run(settings, seed, play)?;
        steps.apart.sort_unstable();
        Ok((steps, hash))
    }

    fn addresses(&self) -> Result<Vec<Address>, CourseError> {
        let address = |number| Address::new(Scheme::Sim, &format!("server-{number}")).map_err(thread);
        (0..self.clocks.len()).map(address).collect()
    }

    fn serve(&self, root: &Sim, own: usize) -> Result<Server<Sim>, CourseError> {
        let (sim, addresses) = (root.process_on(own), self.addresses()?);
        let config = ServerConfig {
            workers: self.workers,
            max_connections: self.clients as u32 + 64,
            group_size: Some(self.group),
            group_slice: Some(Duration::from_nanos(self.slice)),
            max_payload: self.bytes.max(1 << 20) as u64,
            large_memory: 4 << 20,
            large_response_memory: 4 << 20,
            ..ServerConfig::default()
        };
        let mut builder = ServerBuilder::new(&sim).config(config).function(FUNCTION, FunctionMode::Worker);
        if self.is_common {
            builder = builder.deployment(Deployment::new(addresses.clone(), own as u16));
        }
        let echo = |request: &Request<'_>, reply: &mut Reply<'_>| -> Result<(), Status> {
            Ok(reply.write(request.payload)?)
        };
        builder.serve(&addresses[own], |_| Box::new(echo)).map_err(thread)
    }

    fn play(&self, sim: &Sim, course: &Arc<MeasuredRun<Steps>>) -> Result<(), CourseError> {
        let host = sim.host();
        let servers: Vec<Server<Sim>> =
            (0..self.clocks.len()).map(|own| self.serve(sim, own)).collect::<Result<_, _>>()?;
        host.sleep(host.now() + if self.is_common { SETTLING } else { 0 });
        let (start, news) = (host.signal(), host.signal());
        let clients: Vec<Sim> = (0..self.client_hosts).map(|at| sim.process_on(servers.len() + at)).collect();
        let mut tasks = Vec::new();
        for number in 0..self.clients {
            let (load, sim) = (self.clone(), clients[number % clients.len()].clone());
            let (start, news, course) = (start.clone(), news.clone(), Arc::clone(course));
            let host = sim.host().clone();
            let body = move || {
                let result = load.step(&sim, number, (&start, &news), &course);
                course.ended(result);
                news.raise();
            };
            tasks.push(host.spawn("client", Box::new(body)).map_err(thread)?);
        }
        loop {
            let seen = news.seen();
            if course.may_begin(self.clients) {
                break;
            }
            news.wait(seen, FOREVER);
        }
        host.sleep(host.now() + if self.is_common { GROUPING } else { 0 });
        start.raise();
        host.sleep(host.now() + self.warm_up);
        course.count();
        let slices = self.watch(sim, &servers, course);
        course.end();
        tasks.into_iter().for_each(Task::join);
        course.gathered().apart = self.apart(&slices);
        servers.into_iter().for_each(|server| server.shutdown(Duration::from_secs(1)));
        Ok(())
    }

    /// Returns the slices of each server that began in the measured time.
    fn watch(
        &self,
        sim: &Sim,
        servers: &[Server<Sim>],
        course: &MeasuredRun<Steps>,
    ) -> Vec<Vec<RunningSlice>> {
        let (host, mut slices) = (sim.host(), vec![Vec::<RunningSlice>::new(); servers.len()]);
        let until = host.now() + self.measured;
        while host.now() < until && course.phase() == Phase::Counting {
            for (server, slices) in servers.iter().zip(&mut slices) {
                let slice = server.running_slice();
                if slice.is_common && slices.last().is_none_or(|last| last.began != slice.began) {
                    slices.push(slice);
                }
            }
            host.sleep(host.now() + (self.slice / LOOKS).max(1));
        }
        slices
    }

    /// Returns for each slice of the first server the time from the first to the last beginning of it.
    fn apart(&self, slices: &[Vec<RunningSlice>]) -> Vec<Nanos> {
        // By the run's time, which no server knows.
        let began = |(at, slices): (usize, &Vec<RunningSlice>)| {
            let (offset, drift) = self.clocks[at];
            let began = |slice: &RunningSlice| {
                let shown = slice.began.saturating_sub(offset);
                let drifted = u128::from(shown) * u128::from(drift) / u128::from(1_000_000 + drift);
                (shown - drifted as Nanos, slice.group)
            };
            slices.iter().map(began).collect::<BTreeMap<Nanos, usize>>()
        };
        let began: Vec<_> = slices.iter().enumerate().map(began).collect();
        let Some((first, others)) = began.split_first() else { return Vec::new() };
        let mut apart = Vec::new();
        // The other servers may have begun the first and the last slice outside the measured time.
        for (&at, &group) in first.iter().skip(1).take(first.len().saturating_sub(2)) {
            let (mut least, mut most) = (at, at);
            for other in others {
                let near = other.range(at.saturating_sub(self.slice / 2)..at + self.slice / 2);
                let nearest = near.filter(|(_, of)| **of == group).map(|(began, _)| *began);
                // A server that does not serve the group is apart by a slice at least.
                let began = nearest.min_by_key(|began| began.abs_diff(at)).unwrap_or(at + self.slice);
                (least, most) = (least.min(began), most.max(began));
            }
            apart.push(most - least);
        }
        apart
    }

    /// Connects a client to all servers, and makes steps until the run is over.
    fn step(
        &self,
        sim: &Sim,
        number: usize,
        (start, news): (&Start, &Start),
        course: &MeasuredRun<Steps>,
    ) -> Result<(), CourseError> {
        let worker = (number % usize::from(self.workers.max(1))) as u16;
        let config = ClientConfig {
            identity: Some(1 + number as u64),
            worker: Some(worker),
            timeout: Duration::MAX,
            large_memory: 1 << 20,
            ..ClientConfig::with_plan(self.plan)
        };
        let connect = |address: &Address| Client::connect(sim, address, config.clone()).map_err(thread);
        let mut clients: Vec<Client<Sim>> =
            self.addresses()?.iter().map(connect).collect::<Result<_, _>>()?;
        let seen = start.seen();
        course.is_ready();
        news.raise();
        start.wait(seen, FOREVER);
        let (host, payload) = (sim.host(), vec![7; self.bytes]);
        while course.phase() != Phase::Over {
            let began = host.now();
            let mut calls = Vec::with_capacity(clients.len());
            for client in &mut clients {
                calls.push(client.submit_on(0, FUNCTION, &payload).map_err(thread)?);
            }
            for (client, call) in clients.iter_mut().zip(calls) {
                client.wait(call).map_err(thread)?;
            }
            if course.phase() == Phase::Counting {
                let mut steps = course.gathered();
                steps.steps += 1;
                steps.time += host.now().saturating_sub(began);
            }
        }
        Ok(())
    }
}
