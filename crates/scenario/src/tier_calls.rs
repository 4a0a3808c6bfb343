//! Threads that call services through the memory tier's nodes: nodes in one process each, on machines of their own.

use crate::measured_run::{
    Counted, CourseError, MeasuredRun, Phase, cluster, cost_as, not_zero, record_with, spawn_at, thread,
};
use crate::random_values::{Sizes, Times};
use dunlin_fabric::{Fabric, Host, Nanos, Scheme, Signal, Task, WithSources};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rnic_model::{Prices, Profile};
use dunlin_tier_node::{Calls, Peer, ReceiveError, Tier, TierConfig};
use std::sync::Arc;
use std::time::Duration;

/// A load of calls. Each active node's threads call the services of the nodes after it, by turns.
#[derive(Clone, Debug)]
pub struct TierCalls {
    /// Profile of all machines.
    pub profile: String,
    /// Number of nodes, each on a machine of its own.
    pub nodes: usize,
    /// Nodes whose threads call; each calls all others.
    pub active: usize,
    /// Threads of an active node.
    pub threads: usize,
    /// Threads of each node that receive calls and answer them.
    pub receivers: usize,
    /// Threads of each node that take the calls of other nodes.
    pub workers: u16,
    /// Bytes of a request.
    pub request: Sizes,
    /// Bytes of an answer.
    pub answer: Sizes,
    /// Time between the due times of two calls of a thread, which sleeps until then; `None` for calls one after the other.
    pub gaps: Option<Times>,
    /// Calls of all threads before the measurement.
    pub warm_up: u64,
    /// Measured calls of all threads.
    pub measured: u64,
}

/// Virtual time after which a run is aborted, in nanoseconds.
const LIMIT: Nanos = 60_000_000_000;
/// Tasks of a node beside its calling and receiving threads, at most.
const TASKS: usize = 64;
/// The time after which a thread that receives looks whether the run is over.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The same where calls have due times: looking costs processor time, which counts.
const LOOK_SELDOM: Duration = Duration::from_secs(1);
const SERVICE: &str = "service";

impl TierCalls {
    /// Returns a load of one thread that sends 8 bytes to a thread of another node and gets 8 bytes.
    pub fn of(profile: &str) -> TierCalls {
        TierCalls {
            profile: profile.to_owned(),
            nodes: 2,
            active: 1,
            threads: 1,
            receivers: 1,
            workers: 1,
            request: Sizes::Fixed(8),
            answer: Sizes::Fixed(8),
            gaps: None,
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
            ("the number of active nodes", self.active as u64),
            ("the number of threads", self.threads as u64),
            ("the number of receiving threads", self.receivers as u64),
            ("the number of measured calls", self.measured),
            ("the number of other nodes", self.nodes.saturating_sub(1) as u64),
        ])?;
        let tasks = self.nodes * (self.threads + self.receivers + TASKS);
        let mut settings = cluster(self.nodes, tasks, LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        let between = Prices::of(&profile).verbs().benchmark_loop_ns as Nanos;
        cost_as(&mut settings, profile, 1);
        // Requests of several threads reach a NIC in order.
        settings.slack = 0;
        let load = self.clone();
        let play =
            move |sim: &Sim, course: &Arc<MeasuredRun<Counted>>| load.play(sim, (between, seed), course);
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    fn play(
        &self,
        sim: &Sim,
        (between, seed): (Nanos, u64),
        course: &Arc<MeasuredRun<Counted>>,
    ) -> Result<(), CourseError> {
        let names: Vec<String> = (0..self.nodes).map(|node| format!("node-{node}")).collect();
        let peers: Vec<Peer> = names
            .iter()
            .map(|name| Peer::named(Scheme::Sim, name).map_err(thread))
            .collect::<Result<_, _>>()?;
        let mut nodes: Vec<(Sim, Tier<Sim>)> = Vec::new();
        let mut receiving: Vec<Task> = Vec::new();
        for (machine, name) in names.iter().enumerate() {
            let sim = sim.process_on(machine);
            let config =
                TierConfig { memory: 1 << 20, workers: self.workers, ..TierConfig::new(peers.clone(), name) };
            let tier = Tier::within(&sim, config).map_err(thread)?;
            let calls = Arc::new(tier.register(SERVICE, 0).map_err(thread)?);
            for number in 0..self.receivers {
                let (calls, load, course) = (Arc::clone(&calls), self.clone(), Arc::clone(course));
                let random = Random::new(seed, 100 + (machine * self.receivers + number) as u64);
                let body = Box::new(move || course.ended(load.serve(&calls, random, &course)));
                receiving.push(sim.host().spawn("receiving", body).map_err(thread)?);
            }
            nodes.push((sim, tier));
        }
        let start = sim.host().signal();
        let mut tasks: Vec<Task> = Vec::new();
        for (node, (sim, tier)) in nodes.iter().enumerate().take(self.active) {
            for number in 0..self.threads {
                // Each thread begins with another node.
                let others: Vec<String> = (1..self.nodes)
                    .map(|after| {
                        names[(node + 1 + (number + after - 1) % (self.nodes - 1)) % self.nodes].clone()
                    })
                    .collect();
                let (load, own, tier, of_thread) =
                    (self.clone(), sim.clone(), tier.clone(), Arc::clone(course));
                let random = Random::new(seed, 100_000 + (node * self.threads + number) as u64);
                let body = move || load.call((&own, &tier), (&others, between), random, &of_thread);
                tasks.push(spawn_at(sim, &start, course, body)?);
            }
        }
        start.raise();
        tasks.into_iter().for_each(Task::join);
        course.end();
        receiving.into_iter().for_each(Task::join);
        Ok(())
    }

    /// Receives calls and answers them until the run is over.
    fn serve(
        &self,
        calls: &Calls<Sim>,
        mut random: Random,
        course: &MeasuredRun<Counted>,
    ) -> Result<(), CourseError> {
        let mut buffer = vec![0; self.request.largest() as usize];
        let answer = vec![7; self.answer.largest() as usize];
        let time = if self.gaps.is_some() { LOOK_SELDOM } else { LOOK_EVERY };
        while course.phase() != Phase::Over {
            match calls.receive_within(&mut buffer, time) {
                Ok(request) => request.reply(&answer[..self.answer.next(&mut random) as usize]),
                Err(ReceiveError::NoCall) => {}
                Err(error) => return Err(thread(error)),
            }
        }
        Ok(())
    }

    /// Calls until all threads together have called enough.
    fn call(
        &self,
        (sim, tier): (&Sim, &Tier<Sim>),
        (others, between): (&[String], Nanos),
        mut random: Random,
        course: &MeasuredRun<Counted>,
    ) -> Result<(), CourseError> {
        let request = vec![7; self.request.largest() as usize];
        let mut answer = vec![0; self.answer.largest() as usize];
        let host = sim.host();
        let processors = || (0..self.nodes).map(|machine| sim.processor_time(machine)).sum::<Nanos>();
        let mut due = sim.time();
        for to in others.iter().cycle() {
            if let Some(gaps) = self.gaps {
                due += gaps.next(&mut random);
                let left = due.saturating_sub(sim.time());
                if left > 0 {
                    host.sleep(host.now() + left);
                }
            }
            let since = sim.time();
            host.work(between);
            if course.phase() == Phase::Over {
                break;
            }
            let request = &request[..self.request.next(&mut random) as usize];
            match tier.call(to, SERVICE, 0, request, &mut answer) {
                Ok(_) => {}
                // Its server has ended.
                Err(_) if course.phase() == Phase::Over => break,
                Err(error) => return Err(thread(WithSources(&error))),
            }
            host.work(0);
            let counts = (self.warm_up, self.measured);
            if record_with(course, counts, (since, sim.time()), processors) {
                break;
            }
        }
        Ok(())
    }
}
