//! A node of the memory tier that dies: the time until all others have the next view, until their callers have the right
//! errors, and until names that the node kept have new homes.

use crate::measured_run::{CourseError, MeasuredRun, cluster, cost_as, not_zero, thread};
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Task, WithSources, nanos};
use dunlin_fabric_sim::Sim;
use dunlin_rnic_model::Profile;
use dunlin_tier::membership::{Identity, MembershipEvent};
use dunlin_tier_node::{
    DirectoryClient, DirectoryConfig, DirectoryServer, Membership, MembershipError, OperationError, Own,
    Peer, Rights, Spec, Tier, TierConfig, View,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The way in which a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its process is killed, and its connections break.
    Killed,
    /// The directory hears nothing of it. Its memory is still there, and its connections stay.
    Silent,
}

/// Nodes of which one dies.
#[derive(Clone, Debug)]
pub struct MembershipLoad {
    /// Profile of all machines.
    pub profile: String,
    /// Number of nodes, each on a machine of its own; the directory has another one.
    pub nodes: usize,
    /// The way in which the last one dies.
    pub death: Death,
    /// A node that is not heard of for as long is declared dead.
    pub lease: Duration,
    /// The time between two reports of a node.
    pub beat: Duration,
    /// The part of a beat at which the node dies, in tenths.
    pub phase: u32,
}

/// The longest times of the nodes that live, from the death on, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MembershipTimes {
    /// Until they have a view without the node.
    pub view: Nanos,
    /// Until an operation on the node's memory ends with the error that names it and the view.
    pub status: Nanos,
    /// The longest operation of a caller since the death.
    pub operation: Nanos,
    /// Until a name that the node kept can be mapped again.
    pub name: Nanos,
}

const LIMIT: Nanos = 600_000_000_000;
/// Threads of a node.
const TASKS: usize = 32;
/// The pause between two operations of a caller, and between two looks at the view, in nanoseconds.
const PAUSE: Nanos = 200_000;

/// A client of the directory that is cut off from it once the flag is set.
struct CutOff(DirectoryClient<Sim>, Arc<AtomicBool>);

impl Membership for CutOff {
    fn period(&self) -> Option<Duration> {
        self.0.period()
    }
    fn renew(&mut self, until: Nanos) -> Result<MembershipEvent, MembershipError> {
        if self.1.load(Ordering::Relaxed) { Ok(MembershipEvent::Wait) } else { self.0.renew(until) }
    }
    fn view(&self) -> Arc<View> {
        self.0.view()
    }
    fn own(&self) -> Option<Own> {
        self.0.own()
    }
    fn leave(&mut self, until: Nanos) -> Result<(), MembershipError> {
        self.0.leave(until)
    }
}

impl MembershipLoad {
    /// Returns a load of ten nodes, of which one is killed, with the default settings of directory and nodes.
    pub fn of(profile: &str) -> MembershipLoad {
        MembershipLoad {
            profile: profile.to_owned(),
            nodes: 10,
            death: Death::Killed,
            lease: DirectoryConfig::default().lease,
            beat: Duration::from_millis(100),
            phase: 0,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Returns an error for an impossible load, or if the run does not end normally.
    pub fn run(&self, seed: u64) -> Result<MembershipTimes, CourseError> {
        not_zero([
            ("the number of nodes that live", self.nodes.saturating_sub(1) as u64),
            ("the time between reports", nanos(self.beat)),
        ])?;
        let mut settings = cluster(self.nodes + 1, (self.nodes + 1) * TASKS, LIMIT);
        cost_as(&mut settings, Profile::built_in(&self.profile)?, 1);
        let load = self.clone();
        let play = move |sim: &Sim, course: &Arc<MeasuredRun<MembershipTimes>>| load.play(sim, course);
        Ok(MeasuredRun::run(settings, seed, play)?.0)
    }

    fn play(&self, sim: &Sim, course: &Arc<MeasuredRun<MembershipTimes>>) -> Result<(), CourseError> {
        let host = sim.host();
        let sims: Vec<Sim> = (0..=self.nodes).map(|machine| sim.process_on(machine)).collect();
        let address = Address::new(Scheme::Sim, "directory").map_err(thread)?;
        let config = DirectoryConfig { lease: self.lease, gather: self.lease, ..DirectoryConfig::default() };
        let _directory = DirectoryServer::serve(&sims[self.nodes], &address, config).map_err(thread)?;
        let is_cut_off = Arc::new(AtomicBool::new(false));
        let tiers = self.start(&sims, &address, &is_cut_off)?;
        let victim = format!("node-{}", self.nodes - 1);
        while tiers.iter().any(|tier| tier.nodes().count() < self.nodes) {
            host.sleep(sim.time() + PAUSE);
        }
        let (last, others) = tiers.split_last().ok_or_else(|| thread("no nodes"))?;
        let kept = name_of(&others[0], &victim)?;
        let spec = Spec::here().named(&kept).grant_anyone(Rights::ALL);
        let _kept = others[0].malloc(4096, spec).map_err(thread)?;
        let spec = Spec::here().named("of the victim").grant_anyone(Rights::ALL);
        let theirs = last.malloc(4096, spec).map_err(thread)?;
        let views = others.iter().map(|tier| tier.map("of the victim", Rights::ALL).map_err(thread));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        // At a part of a beat.
        host.sleep(sim.time() + nanos(2 * self.beat) + nanos(self.beat) / 10 * u64::from(self.phase));
        match self.death {
            Death::Killed => sims[self.nodes - 1].kill(),
            Death::Silent => is_cut_off.store(true, Ordering::Relaxed),
        }
        let died = sim.time();
        let mut tasks: Vec<Task> = Vec::new();
        for ((tier, view), own) in others.iter().cloned().zip(views).zip(&sims) {
            let (of_task, own, kept) = (Arc::clone(course), own.clone(), kept.clone());
            let body = move || of_task.ended(watch(&own, &tier, &view, &kept, died, &of_task));
            tasks.push(sim.host().spawn("caller", Box::new(body)).map_err(thread)?);
        }
        tasks.into_iter().for_each(Task::join);
        if self.death == Death::Killed {
            // Nothing of a killed process runs any more.
            let _ = std::mem::ManuallyDrop::new(theirs);
            let mut tiers = tiers;
            let _ = std::mem::ManuallyDrop::new(tiers.pop());
        }
        Ok(())
    }

    /// Starts all nodes at the same time.
    fn start(
        &self,
        sims: &[Sim],
        address: &Address,
        is_cut_off: &Arc<AtomicBool>,
    ) -> Result<Vec<Tier<Sim>>, CourseError> {
        type Made = Vec<Option<Result<Tier<Sim>, CourseError>>>;
        let made: Arc<Mutex<Made>> = Arc::new(Mutex::new((0..self.nodes).map(|_| None).collect()));
        let mut tasks = Vec::new();
        for (at, own) in sims.iter().take(self.nodes).enumerate() {
            let name = format!("node-{at}");
            let peer = Peer::named(Scheme::Sim, &name).map_err(thread)?;
            let (calls, memory) = (peer.calls.to_string(), peer.memory.to_string());
            let identity = Identity { name: name.clone(), calls, memory, life: at as u64 + 1 };
            let mut config = TierConfig::new(vec![peer], &name);
            (config.memory, config.beat, config.max_nodes) = (1 << 16, self.beat, self.nodes as u16);
            let client = DirectoryClient::new(own, address.clone(), identity, self.beat, Vec::new());
            let is_last = at + 1 == self.nodes;
            let flag = if is_last { Arc::clone(is_cut_off) } else { Arc::default() };
            let (own, made) = (own.clone(), Arc::clone(&made));
            let body = move || {
                let client = Box::new(CutOff(client, flag));
                let tier = Tier::within_membership(&own, config, at as u64 + 1, client);
                let tier = tier.map_err(|error| thread(WithSources(&error)));
                made.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(tier);
            };
            tasks.push(sims[at].host().spawn("starter", Box::new(body)).map_err(thread)?);
        }
        tasks.into_iter().for_each(Task::join);
        let made = std::mem::take(&mut *made.lock().unwrap_or_else(PoisonError::into_inner));
        made.into_iter().map(|tier| tier.unwrap_or_else(|| Err(thread("a node did not start")))).collect()
    }
}

/// Returns a name whose home is that node.
fn name_of(tier: &Tier<Sim>, node: &str) -> Result<String, CourseError> {
    let names = (0..u16::MAX).map(|number| format!("name/{number}"));
    for name in names {
        if tier.home(&name).map_err(thread)? == node {
            return Ok(name);
        }
    }
    Err(thread("no name has this home"))
}

/// Operates on the memory of the dead node until the error names it, and maps a name that it kept.
fn watch(
    sim: &Sim,
    tier: &Tier<Sim>,
    view: &dunlin_tier_node::Lmr<Sim>,
    kept: &str,
    died: Nanos,
    course: &MeasuredRun<MembershipTimes>,
) -> Result<(), CourseError> {
    let (before, mut times) = (tier.nodes().count(), MembershipTimes::default());
    while times.view == 0 || times.status == 0 {
        let begun = sim.time();
        let outcome = view.write(0, &[7; 64]);
        times.operation = times.operation.max(sim.time() - begun);
        if matches!(outcome, Err(OperationError::Dead { .. })) && times.status == 0 {
            times.status = sim.time() - died;
        }
        if tier.nodes().count() < before && times.view == 0 {
            times.view = sim.time() - died;
        }
        sim.host().sleep(sim.time() + PAUSE);
    }
    let mapped = tier.map(kept, Rights::READ).map_err(|error| thread(WithSources(&error)))?;
    mapped.read(0, &mut [0; 64]).map_err(|error| thread(WithSources(&error)))?;
    times.name = sim.time() - died;
    let mut all = course.gathered();
    all.view = all.view.max(times.view);
    all.status = all.status.max(times.status);
    all.operation = all.operation.max(times.operation);
    all.name = all.name.max(times.name);
    Ok(())
}
