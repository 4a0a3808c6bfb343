//! Frees: the node that keeps a region's record drives the machine of `dunlin_tier::retire` until all memory is taken
//! back. The caller's thread drives for a while, then the keeper goes on.

use crate::node::Node;
use dunlin_fabric::{Fabric, Host, Nanos, Signal, nanos};
use dunlin_tier::message::{Refusal, Reply, Request};
use dunlin_tier::{Command, LmrId, Name, NodeId, Principal, Retirement};

/// The shortest and the longest pause between two rounds of requests, in nanoseconds.
const PAUSES: [Nanos; 2] = [20_000, 10_000_000];
/// The time for one request of a free, in nanoseconds.
const REQUEST: Nanos = 500_000_000;

/// A free that is under way.
#[derive(Debug)]
pub(crate) struct Free {
    pub(crate) id: LmrId,
    machine: Retirement,
    /// The name that its home has to forget.
    name: Option<Name>,
    /// Mappers that have not drained by then are fenced.
    silent_at: Nanos,
}

impl Free {
    /// Returns a node that the free waits for.
    fn waits_for(&self, node: NodeId) -> NodeId {
        self.machine.waits_for().into_iter().next().unwrap_or(node)
    }
}

impl<F: Fabric> Node<F> {
    /// Frees a region whose record this node keeps, in the name of a principal. Blocks for a little more than the time
    /// that mappers have to stop; a free that takes longer goes on by itself.
    pub(crate) fn free(&self, id: LmrId, by: Option<&Principal>) -> Result<(), Refusal> {
        let mut free = self.begin_free(id, by)?;
        let until = self.fabric.host().now().saturating_add(2 * nanos(self.config.stop_timeout));
        if self.drive(&mut free, until) {
            return Ok(());
        }
        let waits = free.waits_for(self.me);
        self.leave_to_keeper(free);
        Err(Refusal::Waits(waits))
    }

    /// Begins to free a region without a name, whose last handle is closed. The keeper drives.
    pub(crate) fn free_unused(&self, id: LmrId) {
        if let Ok(free) = self.begin_free(id, None) {
            self.leave_to_keeper(free);
        }
    }

    fn leave_to_keeper(&self, free: Free) {
        self.todo().frees.push(free);
        self.keeper.raise();
    }

    fn begin_free(&self, id: LmrId, by: Option<&Principal>) -> Result<Free, Refusal> {
        let (machine, name) = self.state().directory.begin_free(id, by)?;
        let silent_at = self.fabric.host().now().saturating_add(nanos(self.config.stop_timeout));
        Ok(Free { id, machine, name, silent_at })
    }

    /// Sends the requests of a free until it is done, or until `until`; returns whether it is done.
    pub(crate) fn drive(&self, free: &mut Free, until: Nanos) -> bool {
        let (host, mut pause) = (self.fabric.host(), PAUSES[0]);
        loop {
            if let Some(name) = free.name.take() {
                // A home that cannot be reached gives the name away later: it asks whether the region exists.
                let (home, id) = (self.home_of(&name), free.id);
                if let Err(error) = self.ask(home, Request::Forget { name, id }, host.now() + REQUEST) {
                    tracing::debug!(target: "dunlin::tier", %error, "a name is not forgotten yet");
                }
            }
            let commands = free.machine.commands();
            for command in &commands {
                self.carry_out(free, *command);
            }
            if free.machine.is_done() {
                self.state().directory.forget(free.id);
                return true;
            }
            let now = host.now();
            if now >= until || self.is_over() {
                return false;
            }
            if free.machine.commands() == commands {
                host.sleep(now.saturating_add(pause).min(until));
                pause = (2 * pause).min(PAUSES[1]);
            }
        }
    }

    fn carry_out(&self, free: &mut Free, command: Command) {
        let (id, host) = (free.id, self.fabric.host());
        let until = host.now().saturating_add(REQUEST);
        match command {
            // It had operations in flight, perhaps: the stores fence it.
            Command::Stop { mapper } if self.roster.dead_in(mapper).is_some() => free.machine.silent(mapper),
            // Its memory is out of reach for good: it comes back with another incarnation, and nobody maps this region.
            Command::Fence { store, .. } | Command::Release { store }
                if self.roster.dead_in(store).is_some() =>
            {
                free.machine.lost(store);
            }
            Command::Stop { mapper } => match self.ask(mapper, Request::Stop { id }, until) {
                Ok(Reply::Flag(true)) => free.machine.stopped(mapper),
                // This node's own operations always end, and no fence concerns them.
                _ if mapper == self.me => {}
                Ok(Reply::Flag(false)) if host.now() < free.silent_at => {}
                _ => free.machine.silent(mapper),
            },
            Command::Fence { store, mapper } => {
                let fenced = self.ask(store, Request::Fence { id, mapper }, until);
                if matches!(fenced, Ok(Reply::Flag(true))) {
                    free.machine.fenced(store, mapper);
                }
            }
            Command::Release { store } => {
                // A node that restarted knows of no memory of this region, which is as good.
                let released = self.ask(store, Request::Release { owner: id }, until);
                if matches!(released, Ok(Reply::Done)) {
                    free.machine.released(store);
                }
            }
        }
    }
}
