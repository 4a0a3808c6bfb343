//! Threads of high and of low priority that share the paths of one node of the memory tier (LITE figure 16).

use crate::measured_run::{CourseError, MeasuredRun, Phase, cluster, cost_as, not_zero, spawn_at, thread};
use dunlin_fabric::{Fabric, Host, Nanos, Scheme, Signal, Task};
use dunlin_fabric_sim::{Pages, Random, Sim};
use dunlin_rnic_model::{Prices, Profile};
use dunlin_tier_node::{Lmr, Peer, Policy, Priority, Rights, Spec, Tier, TierConfig};
use std::sync::Arc;

/// The operations of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// READs, or else WRITEs.
    pub reads: bool,
    /// Bytes of each.
    pub bytes: u32,
}

/// Threads of one node that read and write on another node: those of low priority from the beginning, those of high
/// priority after a while. Some of the latter pause when they have ended, and begin again.
#[derive(Clone, Debug)]
pub struct Priorities {
    /// Profile of both machines.
    pub profile: String,
    /// Paths of the node (K).
    pub paths: u16,
    /// The rule by which operations share the paths.
    pub policy: Policy,
    /// Threads of low priority, and the operations of each.
    pub low: Vec<Requests>,
    /// The number of operations of a thread of low priority.
    pub low_requests: u64,
    /// Threads of high priority, and the operations of each.
    pub high: Vec<Requests>,
    /// The number of operations of a thread of high priority.
    pub high_requests: u64,
    /// Threads of high priority that begin again, evenly among all.
    pub again: usize,
    /// The number of their further operations.
    pub again_requests: u64,
    /// Time from the beginning to the threads of high priority, and of the pause of those that begin again, in
    /// nanoseconds.
    pub pause: Nanos,
    /// Length of the stretches of [`Ended::timeline`], in nanoseconds.
    pub stretch: Nanos,
}

/// Ended bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bytes {
    /// Of high priority.
    pub high: u64,
    /// Of low priority.
    pub low: u64,
}

impl Bytes {
    fn add(&mut self, priority: Priority, bytes: u32) {
        match priority {
            Priority::High => self.high += u64::from(bytes),
            Priority::Low => self.low += u64::from(bytes),
        }
    }
}

/// The moments at which the load changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    FirstEnd,
    LastEnd,
    FirstAgain,
    LastAgain,
    FirstEndAgain,
    LastEndAgain,
}

/// A period of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Period {
    /// Ended bytes.
    pub bytes: Bytes,
    /// Length in nanoseconds.
    pub time: Nanos,
}

/// The number of periods of a run.
pub const PERIODS: usize = 4;

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended {
    /// Ended bytes in each stretch of time.
    pub timeline: Vec<Bytes>,
    /// The whole run, until the last operation of high priority.
    pub whole: Period,
    /// Low priority alone; both; low alone while high pauses; both again with the threads that begin again. Periods are
    /// without the times at which only some threads of high priority run.
    pub periods: [Period; PERIODS],
}

/// The counts of all threads together.
#[derive(Debug, Default)]
struct Counts {
    began: Nanos,
    /// By moment.
    moments: [Nanos; 6],
    /// All operations: the time of their end, since the beginning, with the bytes.
    ended: Vec<(Nanos, Priority, u32)>,
    /// Threads of high priority that have not ended.
    left: usize,
}

impl Counts {
    /// Notes a moment: the first ones keep their first time, the last ones their last.
    fn note(&mut self, first: Moment, last: Moment, now: Nanos) {
        let at = &mut self.moments[first as usize];
        if *at == 0 {
            *at = now;
        }
        self.moments[last as usize] = now;
    }

    fn period(&self, from: Nanos, to: Nanos) -> Period {
        let mut bytes = Bytes::default();
        for (at, priority, length) in &self.ended {
            if (from..to).contains(at) {
                bytes.add(*priority, *length);
            }
        }
        Period { bytes, time: to.saturating_sub(from) }
    }
}

/// Bytes of the region.
const REGION: u64 = 16 << 20;
/// Virtual time after which a run is aborted, in nanoseconds.
const LIMIT: Nanos = 600_000_000_000;
/// Tasks of the nodes beside the loading threads, at most.
const TASKS: usize = 128;

impl Priorities {
    /// Returns the load of LITE's figure 16 with all times and numbers of requests divided by `scale`.
    pub fn of(profile: &str, policy: Policy, scale: u64) -> Priorities {
        let requests = |reads, bytes, threads| vec![Requests { reads, bytes }; threads];
        Priorities {
            profile: profile.to_owned(),
            paths: 4,
            policy,
            low: [requests(false, 4096, 5), requests(false, 8192, 5), requests(true, 4096, 10)].concat(),
            low_requests: 600_000 / scale,
            high: [requests(false, 4096, 10), requests(true, 4096, 10)].concat(),
            high_requests: 200_000 / scale,
            again: 8,
            again_requests: 100_000 / scale,
            pause: 2_000_000_000 / scale,
            stretch: 200_000_000 / scale,
        }
    }

    /// Runs the load.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<Ended, CourseError> {
        not_zero([
            ("the number of threads of high priority", self.high.len() as u64),
            ("the number of their requests", self.high_requests),
            ("the number of paths", self.paths.into()),
            ("the pause", self.pause),
            ("the length of a stretch", self.stretch),
        ])?;
        let mut settings = cluster(2, self.low.len() + self.high.len() + TASKS, LIMIT);
        let profile = Profile::built_in(&self.profile)?;
        let between = Prices::of(&profile).verbs().benchmark_loop_ns as Nanos;
        cost_as(&mut settings, profile, 1);
        // Requests of several threads reach a NIC in order.
        settings.slack = 0;
        let load = self.clone();
        let play =
            move |sim: &Sim, course: &Arc<MeasuredRun<Counts>>| load.play(sim, (seed, between), course);
        let counts = MeasuredRun::run(settings, seed, play)?.0;
        Ok(self.evaluate(&counts))
    }

    fn evaluate(&self, counts: &Counts) -> Ended {
        let at = |moment: Moment| counts.moments[moment as usize];
        let whole = counts.period(0, at(Moment::LastEnd).max(at(Moment::LastEndAgain)));
        let stretches = whole.time.div_ceil(self.stretch) as usize;
        let mut timeline = vec![Bytes::default(); stretches];
        for (at, priority, bytes) in &counts.ended {
            if let Some(stretch) = timeline.get_mut((at / self.stretch) as usize) {
                stretch.add(*priority, *bytes);
            }
        }
        // The beginning, when all connect, is left out, and the end: the clock of the machine, by which high priority
        // begins, is not the one of the run.
        let periods = [
            counts.period(self.pause / 4, self.pause - self.pause / 50),
            counts.period(self.pause + self.pause / 50, at(Moment::FirstEnd)),
            counts.period(at(Moment::LastEnd), at(Moment::FirstAgain)),
            counts.period(at(Moment::LastAgain), at(Moment::FirstEndAgain)),
        ];
        Ended { timeline, whole, periods }
    }

    fn play(
        &self,
        sim: &Sim,
        (seed, between): (u64, Nanos),
        course: &Arc<MeasuredRun<Counts>>,
    ) -> Result<(), CourseError> {
        let names = ["node-0", "node-1"];
        let peers: Vec<Peer> = names
            .iter()
            .map(|name| Peer::named(Scheme::Sim, name).map_err(thread))
            .collect::<Result<_, _>>()?;
        let mut nodes: Vec<(Sim, Tier<Sim>)> = Vec::new();
        for (machine, name) in names.iter().enumerate() {
            let sim = sim.process_on(machine).with_pages(Pages::Bytes(2 << 20));
            let mut config = TierConfig::new(peers.clone(), name);
            (config.memory, config.paths, config.qos.policy) = (REGION, self.paths, self.policy);
            let tier = Tier::within(&sim, config).map_err(thread)?;
            nodes.push((sim, tier));
        }
        let (sim, tier) = &nodes[0];
        let low = tier.with_priority(Priority::Low).map_err(thread)?;
        let low = low.malloc(REGION, Spec::on("node-1").named("shared")).map_err(thread)?;
        let high = tier.with_priority(Priority::High).map_err(thread)?;
        let high = high.map("shared", Rights::ALL).map_err(thread)?;
        let regions = [Arc::new(low), Arc::new(high)];
        course.gathered().left = self.high.len();
        let start = sim.host().signal();
        let mut tasks: Vec<Task> = Vec::new();
        for (number, requests) in self.low.iter().chain(&self.high).enumerate() {
            let high = number.checked_sub(self.low.len());
            let worker = Worker {
                load: self.clone(),
                requests: *requests,
                sim: sim.clone(),
                region: Arc::clone(&regions[usize::from(high.is_some())]),
                random: Random::new(seed, 1000 + number as u64),
                between,
                course: Arc::clone(course),
            };
            tasks.push(match high {
                None => spawn_at(sim, &start, course, move || worker.low()),
                Some(number) => spawn_at(sim, &start, course, move || worker.high(number)),
            }?);
        }
        course.gathered().began = sim.time();
        start.raise();
        tasks.into_iter().for_each(Task::join);
        Ok(())
    }
}

struct Worker {
    load: Priorities,
    requests: Requests,
    sim: Sim,
    region: Arc<Lmr<Sim>>,
    random: Random,
    /// Processor time between two operations, in nanoseconds.
    between: Nanos,
    course: Arc<MeasuredRun<Counts>>,
}

impl Worker {
    fn low(mut self) -> Result<(), CourseError> {
        self.operate(self.load.low_requests)
    }

    fn high(mut self, number: usize) -> Result<(), CourseError> {
        self.sleep();
        self.operate(self.load.high_requests)?;
        self.note(Moment::FirstEnd, Moment::LastEnd);
        let (again, all) = (self.load.again, self.load.high.len());
        // The threads that begin again are spread evenly over all.
        if (number * again / all) != ((number + 1) * again / all) {
            self.sleep();
            self.note(Moment::FirstAgain, Moment::LastAgain);
            self.operate(self.load.again_requests)?;
            self.note(Moment::FirstEndAgain, Moment::LastEndAgain);
        }
        let mut counts = self.course.gathered();
        counts.left -= 1;
        let is_last = counts.left == 0;
        drop(counts);
        if is_last {
            self.course.end();
        }
        Ok(())
    }

    fn sleep(&self) {
        let host = self.sim.host();
        host.sleep(host.now().saturating_add(self.load.pause));
    }

    fn note(&self, first: Moment, last: Moment) {
        let now = self.sim.time();
        let mut counts = self.course.gathered();
        let since = now.saturating_sub(counts.began);
        counts.note(first, last, since);
    }

    /// Carrier out a number of operations, or as many as there is time for.
    fn operate(&mut self, requests: u64) -> Result<(), CourseError> {
        let length = self.requests.bytes as usize;
        let mut bytes = vec![7; length];
        for _ in 0..requests {
            self.sim.host().work(self.between);
            if self.course.phase() == Phase::Over {
                return Ok(());
            }
            let offset = self.random.below(REGION - length as u64 + 1);
            match self.requests.reads {
                true => self.region.read(offset, &mut bytes),
                false => self.region.write(offset, &bytes),
            }
            .map_err(thread)?;
            self.sim.host().work(0);
            let now = self.sim.time();
            let mut counts = self.course.gathered();
            let since = now.saturating_sub(counts.began);
            counts.ended.push((since, self.region.priority(), self.requests.bytes));
        }
        Ok(())
    }
}
