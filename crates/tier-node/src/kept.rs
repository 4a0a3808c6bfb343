//! State of a node that outlives its process: the arena, and a ledger of all that others were told.
//!
//! A [`MemoryKeeper`] holds both. The guard of [`Node::state`] writes the changes of each critical section to the ledger,
//! so no answer leaves before its change is kept.

use crate::arena::{self, Arena};
use crate::config::TierConfig;
use crate::error::JoinError;
use crate::node::{Known, Node, State};
use dunlin_fabric::{Access, AnyMemory, Fabric, Host, KeeperError, Memory, MemoryKeeper, Region};
use dunlin_tier::ledger::{Entries as _, Ledger, LedgerError, LedgerMemory};
use dunlin_tier::{Directory, Handle, HandleTable, LmrId, Names, NodeId, Space};
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

mod entries;

pub(crate) use entries::{
    Decode, GIVEN, KeptGiven, KeptNumber, KeptProcess, PROCESS, PROCESS_DIRECT, PROCESS_HANDLE, SESSION,
    decode_session, life_value, session_key,
};
use entries::{FENCES, IDENTITY, KNOWN, SETTLING};

/// The length of a ledger's memory in bytes. Only what is written has pages. No huge page divides it, so none is reserved.
const LEDGER: u64 = (2 << 30) + 4096;

/// A ledger in the memory of any fabric.
pub(crate) type KeptLedger = Ledger<Box<dyn LedgerMemory + Send>>;

/// Registered memory as that of a ledger.
#[derive(Debug)]
struct InRegion<M: Memory>(Region<M>);

impl<M: Memory> LedgerMemory for InRegion<M> {
    fn length(&self) -> u64 {
        self.0.length() as u64
    }
    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.copy_in(at as usize, bytes);
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        self.0.copy_out(at as usize, into);
    }
    fn store(&self, at: u64, word: u64) {
        self.0.store(at as usize, word);
    }
    fn load(&self, at: u64) -> u64 {
        self.0.load(at as usize)
    }
}

/// Random numbers that all lives of a node with one keeper have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lineage {
    /// The number of the node's memory: other nodes lose their handles when it changes.
    pub(crate) memory: u64,
    /// The first generation of the node's records.
    pub(crate) generation: u64,
    /// Hides the ids of regions from processes.
    pub(crate) seed: u64,
}

/// The beginning of a node: its memory, new or that of an earlier life.
#[derive(Debug)]
pub(crate) struct Begun<F: Fabric> {
    pub(crate) arena: Arena<F>,
    pub(crate) lineage: Lineage,
    pub(crate) ledger: Option<KeptLedger>,
    /// The number of the earlier life.
    pub(crate) number: Option<NodeId>,
    pub(crate) keeper: Option<Box<dyn MemoryKeeper>>,
}

fn lost(config: &TierConfig, source: LedgerError) -> JoinError {
    JoinError::Ledger { node: config.node.clone(), source }
}

impl<F: Fabric> Begun<F> {
    /// Begins a node whose memory ends with it.
    pub(crate) fn alone(fabric: &F, config: &TierConfig) -> Result<Self, JoinError> {
        let host = fabric.host();
        let [memory, generation, seed] = [(); 3].map(|()| host.random());
        let lineage = Lineage { memory, generation, seed };
        let arena = Arena::new(fabric, config)?;
        Ok(Begun { arena, lineage, ledger: None, number: None, keeper: None })
    }

    /// Begins a node with the memory that a keeper holds, or has new memory kept.
    pub(crate) fn kept(
        fabric: &F,
        config: &TierConfig,
        mut keeper: Box<dyn MemoryKeeper>,
    ) -> Result<Self, JoinError> {
        if config.memory_source.is_none() && !fabric.capabilities().initiator_copies {
            return Err(KeeperError::Private.into());
        }
        let mut parts = keeper.kept()?.into_iter();
        let open = |ledger: AnyMemory| -> Result<Option<KeptLedger>, LedgerError> {
            Ledger::open(Box::new(InRegion(Region::new(ledger))) as Box<dyn LedgerMemory + Send>)
        };
        let ledger = parts.next().map(open).transpose().map_err(|source| lost(config, source))?.flatten();
        let Some(ledger) = ledger else {
            // The earlier life, if there was one, has told nobody of anything.
            keeper.forget()?;
            let mut begun = Begun::alone(fabric, config)?;
            // No NIC registers the ledger: only this process writes it.
            let made = arena::make(fabric, config, &[LEDGER], Access::READ.with(Access::WRITE))?;
            let [memory] = <[AnyMemory; 1]>::try_from(made).map_err(|_| KeeperError::Private)?;
            keeper.keep(&memory)?;
            for file in begun.arena.files() {
                keeper.keep(file)?;
            }
            let memory = InRegion(Region::new(memory));
            let ledger = Ledger::begin(Box::new(memory) as Box<dyn LedgerMemory + Send>);
            begun.ledger = Some(ledger.map_err(|source| lost(config, source))?);
            begun.keeper = Some(keeper);
            return Ok(begun);
        };
        let identity = ledger.table(IDENTITY).next().and_then(|(_, value)| entries::decode_identity(value));
        let damaged = || lost(config, LedgerError::Damaged("the identity of its node"));
        let (number, node, lineage, lengths) = identity.ok_or_else(damaged)?;
        let differs = |what, kept: String, now: String| Err(JoinError::Kept { what, kept, now });
        if node != config.node {
            return differs("the node", node, config.node.clone());
        }
        let extents: Vec<AnyMemory> = parts.collect();
        if !extents.iter().map(|extent| extent.length() as u64).eq(lengths.iter().copied()) {
            return Err(lost(config, LedgerError::Damaged("the lengths of its extents")));
        }
        let memory: u64 = lengths.iter().sum();
        if memory != config.memory {
            return differs("the memory", format!("{memory} bytes"), format!("{} bytes", config.memory));
        }
        let extent = config.extent.map(|extent| extent.min(config.memory));
        if let Some((now, kept)) = extent.zip(lengths.first().copied()).filter(|(now, kept)| now != kept) {
            return differs("the length of extents", format!("{kept} bytes"), format!("{now} bytes"));
        }
        let arena = Arena::of(fabric, extents)?;
        Ok(Begun { arena, lineage, ledger: Some(ledger), number: Some(number), keeper: Some(keeper) })
    }
}

/// The locked state of a node. Changes are in the ledger when it is dropped.
#[derive(Debug)]
pub(crate) struct StateGuard<'a>(pub(crate) MutexGuard<'a, State>);

impl Deref for StateGuard<'_> {
    type Target = State;
    #[inline]
    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for StateGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for StateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.ledger.is_some() {
            self.0.commit();
        }
    }
}

impl State {
    /// Writes all changes to the ledger.
    fn commit(&mut self) {
        let State { directory, names, handles, space, ledger, .. } = self;
        let Some(kept) = ledger else { return };
        directory.report(kept);
        names.report(kept);
        handles.report(kept);
        space.report(kept);
        if let Err(error) = kept.commit() {
            tracing::error!(target: "dunlin::tier", %error, "the node goes on, and its regions end with it");
            *ledger = None;
        }
    }

    /// Keeps an entry for the next life, if there is to be one.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        if let Some(ledger) = &mut self.ledger {
            ledger.put(key, value);
        }
    }

    /// Keeps an entry no longer.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        if let Some(ledger) = &mut self.ledger {
            ledger.remove(key);
        }
    }

    /// Notes what another node has said of itself.
    pub(crate) fn know(&mut self, node: NodeId, known: Option<Known>) {
        self.known[usize::from(node.0)] = known;
        let key = entries::node_key(KNOWN, node);
        match known {
            Some(known) => self.put(&key, &entries::known_value(known)),
            None => self.remove(&key),
        }
    }

    /// Counts a fence of a node.
    pub(crate) fn count_fence(&mut self, node: NodeId) {
        let Some(fences) = self.fences.get_mut(usize::from(node.0)) else { return };
        *fences += 1;
        let value = fences.to_le_bytes();
        self.put(&entries::node_key(FENCES, node), &value);
    }

    /// Memory of a region is to be taken back soon, or is.
    pub(crate) fn keep_settling(&mut self, owner: LmrId, settles: bool) {
        match settles {
            true => self.put(&entries::settling_key(owner), &[]),
            false => self.remove(&entries::settling_key(owner)),
        }
    }

    /// Takes the state of an earlier life out of its ledger.
    fn recover(&mut self, ledger: &KeptLedger) -> Result<(), LedgerError> {
        let damaged = |what| move |_| LedgerError::Damaged(what);
        for (key, value) in ledger.table(Directory::TABLE) {
            self.directory.recover(key, value).map_err(damaged("a record"))?;
        }
        for (key, value) in ledger.table(Names::TABLE) {
            self.names.recover(key, value).map_err(damaged("a name"))?;
        }
        for (key, value) in ledger.table(HandleTable::TABLE) {
            self.handles.recover(key, value).map_err(damaged("a handle"))?;
        }
        for table in Space::TABLES {
            for (key, value) in ledger.table(table) {
                self.space.recover(table, key, value).map_err(damaged("a block of memory"))?;
            }
        }
        for (key, value) in ledger.table(KNOWN) {
            let (node, known) = entries::decode_known(key, value).ok_or(LedgerError::Damaged("a node"))?;
            let place = self.known.get_mut(usize::from(node.0)).ok_or(LedgerError::Damaged("a node"))?;
            *place = Some(known);
        }
        for (key, value) in ledger.table(FENCES) {
            let (node, fences) = entries::decode_fences(key, value).ok_or(LedgerError::Damaged("a fence"))?;
            *self.fences.get_mut(usize::from(node.0)).ok_or(LedgerError::Damaged("a fence"))? = fences;
        }
        for (key, value) in ledger.table(GIVEN) {
            let given =
                KeptGiven::decode(key, value).ok_or(LedgerError::Damaged("an extent of a process"))?;
            self.space.hold(given.extent);
        }
        self.space.end_recovery();
        Ok(())
    }

    fn watch(&mut self) {
        self.directory.watch();
        self.names.watch();
        self.handles.watch();
        self.space.watch();
    }
}

impl<F: Fabric> Node<F> {
    /// Begins to keep the state in a ledger, after that of an earlier life was taken out of it.
    pub(crate) fn begin_keeping(
        &self,
        mut ledger: KeptLedger,
        number: Option<NodeId>,
        lineage: &Lineage,
    ) -> Result<(), JoinError> {
        let lost = |source| lost(&self.config, source);
        let mut state = self.state();
        let Some(number) = number else {
            let lengths = self.arena.registered().map(|(_, _, length)| length).collect::<Vec<_>>();
            let identity = entries::encode_identity(self.me, &self.config.node, lineage, &lengths);
            ledger.put(&[IDENTITY], &identity);
            ledger.commit().map_err(lost)?;
            state.watch();
            state.ledger = Some(ledger);
            return Ok(());
        };
        if number != self.me {
            let (kept, now) = (number.to_string(), self.me.to_string());
            return Err(JoinError::Kept { what: "the place in the list of nodes", kept, now });
        }
        state.recover(&ledger).map_err(lost)?;
        // Handles of the process that has ended, and not of one that may attach again.
        let mut claimed = BTreeSet::new();
        let mut stale = Vec::new();
        for table in [PROCESS_HANDLE, PROCESS_DIRECT] {
            for (key, value) in ledger.table(table) {
                let kept = KeptNumber::decode(key, value);
                let kept = kept.ok_or_else(|| lost(LedgerError::Damaged("a handle of a process")))?;
                match ledger.has(&KeptProcess::key(&kept.secret)) {
                    true => {
                        claimed.insert(kept.region);
                    }
                    false => stale.push(KeptNumber::key(table, &kept.secret, kept.number)),
                }
            }
        }
        stale.iter().for_each(|key| ledger.remove(key));
        let settling: Vec<LmrId> =
            ledger.table(SETTLING).filter_map(|(key, _)| entries::decode_settling(key)).collect();
        state.watch();
        state.ledger = Some(ledger);
        for owner in settling {
            state.space.release(owner);
            state.keep_settling(owner, false);
        }
        let State { space, directory, .. } = &mut *state;
        space.release_unknown(self.me, |id| directory.exists(id));
        let unclaimed: Vec<(Handle, LmrId)> =
            state.handles.handles().filter(|(handle, _)| !claimed.contains(&handle.number())).collect();
        let mut unmapped = Vec::new();
        for (handle, id) in unclaimed {
            let _ = state.handles.unmap(handle);
            // Handles on the node's own records are counted below.
            if id.node != self.me {
                unmapped.push(id);
            }
        }
        let own: Vec<LmrId> = state.handles.handles().map(|(_, id)| id).collect();
        let found = state.directory.end_recovery(own);
        state.directory.begin_leases(self.fabric.host().now());
        drop(state);
        let mut todo = self.todo();
        todo.unmapped.append(&mut unmapped);
        todo.records.extend(found.doubted);
        todo.left = found.left.into_iter().map(|id| (id, self.others())).collect();
        drop(todo);
        found.frees.into_iter().for_each(|ending| self.go_on(ending));
        Ok(())
    }

    /// Returns all nodes, this one included, of the view.
    fn others(&self) -> BTreeSet<NodeId> {
        self.roster.get().view.members.iter().map(|member| member.node).collect()
    }
}

#[cfg(test)]
mod tests;
