//! Direct mappings of processes: the control connections over which they get memory, and the extents that they have.
//!
//! A process gets whole extents, of which all bytes belong to its user. An extent that a process was given stays that
//! user's until the process has ended: a process may keep the memory mapped, whatever it says to the node.

use super::registry::{Process, Registry};
use crate::direct::{Ask, Hold};
use crate::kept::{KeptGiven, KeptNumber, PROCESS_DIRECT};
use crate::lives::{self, Life};
use crate::lmr::Lmr;
use crate::node::{Node, SignalOf};
use dunlin_fabric::{
    Access, AnyMemory, Fabric, Host, Link, Listener, Nanos, ReadyList, RegionKey, Signal, Subscription,
};
use dunlin_tier::process::{DirectPart, Directed, NoDirect, Problem, Secret};
use dunlin_tier::{Layout, Rights};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The time that a new connection has for its first message, in nanoseconds.
const GREETING: Nanos = 5_000_000_000;
/// The longest sleep of the thread: it looks then for processes that have ended. In nanoseconds.
const LOOK_EVERY: Nanos = 200_000_000;
/// The most connections that have not said which process they belong to.
const MAX_PENDING: usize = 256;

/// The extents that processes were given.
#[derive(Debug, Default)]
pub(super) struct Given(pub(super) Mutex<BTreeMap<Life, BTreeSet<u16>>>);

/// The connection over which a process gets memory.
#[derive(Debug)]
struct Line<L> {
    link: L,
    /// By extent, and whether the process may write.
    keys: BTreeMap<(u16, bool), RegionKey>,
    /// The mappings that were wanted back over this connection.
    asked: BTreeSet<u64>,
}

/// Mappings by number, each with its handle of the node.
type Held<F> = BTreeMap<u64, (Hold, Arc<Lmr<F>>)>;

/// The direct mappings of a process.
#[derive(Debug)]
pub(super) struct Directs<F: Fabric, P: Fabric> {
    secret: Secret,
    line: Arc<Mutex<Option<Line<P::Link>>>>,
    /// `None` once the process has ended.
    held: Mutex<Option<Held<F>>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Fabric, P: Fabric> Directs<F, P> {
    /// Makes the mappings of a process: none.
    pub(super) fn new(secret: Secret) -> Self {
        Directs { secret, line: Arc::default(), held: Mutex::new(Some(BTreeMap::new())) }
    }

    /// Returns a function that asks the process to let go, once over each connection.
    fn ask(&self) -> Ask {
        let line = Arc::clone(&self.line);
        Ask::new(move |mapping: u64| {
            let mut line = lock(&line);
            // A process that does not listen keeps the region, and is named as its holder.
            if let Some(line) = line.as_mut().filter(|line| line.link.is_alive())
                && line.asked.insert(mapping)
            {
                let _ = line.link.send(&mapping.to_le_bytes());
            }
        })
    }

    /// Goes on with a mapping of an earlier life of the node.
    pub(super) fn recover(&self, node: &Node<F>, process: u32, number: u64, region: Arc<Lmr<F>>) {
        let key = KeptNumber::key(PROCESS_DIRECT, &self.secret, number);
        match (node.hold_again(region.handle, process, self.ask(), number), lock(&self.held).as_mut()) {
            (Some(hold), Some(held)) => drop(held.insert(number, (hold, region))),
            (Some(hold), None) => node.let_go(hold),
            (None, _) => node.state().remove(&key),
        }
    }

    /// Returns the number of mappings.
    pub(super) fn len(&self) -> usize {
        lock(&self.held).as_ref().map_or(0, BTreeMap::len)
    }

    /// Ends one mapping.
    pub(super) fn let_go(&self, node: &Node<F>, number: u64) -> Result<(), Problem> {
        let found = lock(&self.held).as_mut().and_then(|held| held.remove(&number));
        let (hold, region) = found.ok_or(Problem::Access(dunlin_tier::AccessError::NoHandle))?;
        node.let_go(hold);
        node.state().remove(&KeptNumber::key(PROCESS_DIRECT, &self.secret, number));
        // Unmaps, perhaps, so no lock is held.
        drop(region);
        Ok(())
    }

    /// Ends all mappings; there will be no other.
    pub(super) fn end(&self, node: &Node<F>) {
        let held = lock(&self.held).take();
        for (number, (hold, region)) in held.into_iter().flatten() {
            node.let_go(hold);
            node.state().remove(&KeptNumber::key(PROCESS_DIRECT, &self.secret, number));
            drop(region);
        }
        *lock(&self.line) = None;
    }

    fn grant(&self, node: &Node<F>, layout: &Layout, rights: Rights) -> Result<Vec<DirectPart>, Problem> {
        let writes = rights.contains(Rights::WRITE);
        let access = if writes { Access::READ.with(Access::WRITE) } else { Access::READ };
        let mut line = lock(&self.line);
        let line = line.as_mut().ok_or(Problem::NotDirect(NoDirect::Line))?;
        let mut parts: Vec<DirectPart> = Vec::new();
        for piece in layout.pieces() {
            let key = match line.keys.get(&(piece.extent, writes)) {
                Some(key) => *key,
                None => {
                    let file = node.arena.files().nth(piece.extent.into());
                    let memory = file.and_then(AnyMemory::downcast::<P::Memory>);
                    let memory = memory.ok_or(Problem::NotDirect(NoDirect::Fabric))?;
                    let key = line.link.grant(&memory, access).map_err(|error| {
                        tracing::warn!(target: "dunlin::tier", %error, "memory could not be given to a process");
                        Problem::NotDirect(NoDirect::Line)
                    })?;
                    line.keys.insert((piece.extent, writes), key);
                    key
                }
            };
            let (offset, length) = (piece.offset, u64::from(piece.length));
            match parts.last_mut() {
                Some(last) if last.key == key.0 && last.offset + last.length == offset => {
                    last.length += length
                }
                _ => parts.push(DirectPart { key: key.0, offset, length }),
            }
        }
        Ok(parts)
    }
}

impl<F: Fabric, P: Fabric> Registry<F, P> {
    /// Maps a region directly for a process.
    pub(super) fn direct(&self, process: &Process<F, P>, handle: u64) -> Result<Directed, Problem> {
        let region = process.region(handle)?;
        let no = Problem::NotDirect;
        if !lock(&process.directs.line).as_ref().is_some_and(|line| line.link.is_alive()) {
            return Err(no(NoDirect::Line));
        }
        let number = process.peer.process.filter(|number| *number != 0).ok_or(no(NoDirect::Process))?;
        let life = lives::life_of(number).ok_or(no(NoDirect::Process))?;
        let ask = process.directs.ask();
        let (node, principal) = (self.tier.node(), process.tier.caller());
        let limit = self.config.limits.handles;
        if process.directs.len() >= limit as usize {
            return Err(Problem::Handles(limit));
        }
        let mut given = lock(&self.given.0);
        let (hold, rights) = node
            .hold(region.handle, number, ask, |state, layout| {
                let extents: BTreeSet<u16> = layout.pieces().iter().map(|piece| piece.extent).collect();
                let users = [Some(principal), Some(&process.buffers.tenant)];
                if extents.iter().any(|extent| !users.contains(&state.space.tenant(*extent))) {
                    return Err(NoDirect::Shared);
                }
                let has = given.entry(life).or_default();
                for extent in extents {
                    if has.insert(extent) {
                        state.space.hold(extent);
                        state.put(&KeptGiven { life, extent }.key(), &[]);
                    }
                }
                Ok(())
            })
            .map_err(Problem::from)?;
        drop(given);
        let granted = process.directs.grant(node, &hold.operation.layout, rights);
        let number = hold.number;
        let mut held = lock(&process.directs.held);
        match (granted, held.as_mut()) {
            (Ok(parts), Some(held)) => {
                let key = KeptNumber::key(PROCESS_DIRECT, &process.secret, number);
                node.state().put(&key, &region.handle.number().to_le_bytes());
                held.insert(number, (hold, region));
                Ok(Directed { number, rights, parts })
            }
            (granted, _) => {
                drop(held);
                node.let_go(hold);
                Err(granted.err().unwrap_or(Problem::NotAttached))
            }
        }
    }

    /// Gives back the extents of processes that have ended.
    fn sweep(&self) {
        let mut given = lock(&self.given.0);
        given.retain(|life, extents| {
            let lives = lives::lives(*life);
            if !lives {
                let mut state = self.tier.node().state();
                for extent in extents.iter().copied() {
                    state.space.let_go(extent);
                    state.remove(&KeptGiven { life: *life, extent }.key());
                }
            }
            lives
        });
    }

    /// Joins a connection to the process that has a secret.
    fn greet(&self, link: &P::Link, message: &[u8]) -> bool {
        let Some(process) = message.try_into().ok().and_then(|secret| self.process_of(secret, &link.peer()))
        else {
            return false;
        };
        *lock(&process.directs.line) =
            Some(Line { link: link.clone(), keys: BTreeMap::new(), asked: BTreeSet::new() });
        link.send(&[]).is_ok()
    }

    /// Takes the connections of processes until the service ends.
    pub(super) fn serve_direct(
        &self,
        fabric: &P,
        listener: &P::Listener,
        signal: &SignalOf<P>,
        over: &AtomicBool,
    ) {
        let host = fabric.host();
        let (ready, mut next) = (ReadyList::new(), 0);
        let mut pending: Vec<(P::Link, Nanos)> = Vec::new();
        listener.subscribe(signal.clone());
        while !over.load(Ordering::Acquire) {
            let (seen, now) = (signal.seen(), host.now());
            while let Ok(Some(link)) = listener.try_accept() {
                if pending.len() >= MAX_PENDING {
                    link.close();
                    continue;
                }
                next += 1;
                link.subscribe(Subscription { signal: signal.clone(), mark: ready.mark(next) });
                pending.push((link, now.saturating_add(GREETING)));
            }
            ready.take();
            pending.retain(|(link, until)| match link.try_receive() {
                Ok(None) if now < *until => true,
                Ok(Some(message)) => {
                    if !self.greet(link, &message) {
                        link.close();
                    }
                    false
                }
                _ => {
                    link.close();
                    false
                }
            });
            self.sweep();
            self.end_absent();
            signal.wait(seen, host.now().saturating_add(LOOK_EVERY));
        }
    }
}
