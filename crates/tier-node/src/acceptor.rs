//! The passive ends of other nodes' paths: one thread accepts them, and destroys those of a node that is fenced. It
//! takes no part in operations.

use crate::arena;
use crate::connection::queue_pair_config;
use crate::error::ConnectError;
use crate::hello::{Hello, Offer, OfferedExtent};
use crate::kept::{SESSION, decode_session, life_value, session_key};
use crate::lives::{self, Life};
use crate::node::{Node, SignalOf};
use dunlin_fabric::{
    CompletionQueueId, CreateError, Endpoint, Fabric, Host, Link, Listener, Nanos, QueuePairId, ReadyList,
    Signal, Subscription, ThreadDomain, WithSources,
};
use dunlin_tier::{Epoch, LmrId, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The time that a new connection has for each message of its handshake, in nanoseconds.
const HANDSHAKE: Nanos = 5_000_000_000;
/// The longest sleep of the thread, in nanoseconds.
const LOOK_EVERY: Nanos = 200_000_000;
/// The most connections whose handshake is not complete.
const MAX_PENDING: usize = 1024;
/// The most fences that are remembered.
const MAX_FENCES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    Asked,
    /// The queue pairs are destroyed; processors of the fenced node may still be at a copy.
    Draining,
    Done,
}

/// The connections of a node that a fence concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    /// All that it has when the fence is asked for, since this region is freed.
    All(LmrId),
    /// Those of other lives of it than this one.
    Others(u64),
}

/// Fences that were asked for, by mapper.
#[derive(Debug)]
pub(crate) struct Fencing<S> {
    asked: Mutex<BTreeMap<(NodeId, Whose), Fence>>,
    pub(crate) signal: S,
}

impl<S: Signal> Fencing<S> {
    pub(crate) fn new(signal: S) -> Self {
        Fencing { asked: Mutex::default(), signal }
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<(NodeId, Whose), Fence>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a fence of the connections that `mapper` has now; returns whether it is complete. Repetitions for one
    /// region are one fence.
    pub(crate) fn ask(&self, mapper: NodeId, id: LmrId) -> bool {
        self.ask_for((mapper, Whose::All(id)))
    }

    /// Asks for the end of the connections that other lives of `mapper` than `life` have; returns whether nothing arrives
    /// over them any more.
    pub(crate) fn end_other_lives(&self, mapper: NodeId, life: u64) -> bool {
        self.ask_for((mapper, Whose::Others(life)))
    }

    fn ask_for(&self, wanted: (NodeId, Whose)) -> bool {
        let mut asked = self.asked();
        if asked.len() >= MAX_FENCES && !asked.contains_key(&wanted) {
            return false;
        }
        let fence = *asked.entry(wanted).or_insert(Fence::Asked);
        drop(asked);
        if fence != Fence::Done {
            self.signal.raise();
        }
        fence == Fence::Done
    }

    /// Forgets the fences of a region whose memory is taken back.
    pub(crate) fn forget(&self, id: LmrId) {
        self.asked().retain(|(_, whose), _| *whose != Whose::All(id));
    }

    /// Forgets the fences of other lives.
    pub(crate) fn forget_lives(&self) {
        self.asked().retain(|(_, whose), _| matches!(whose, Whose::All(_)));
    }
}

enum Stage {
    /// The first message is missing.
    Hello,
    /// The endpoint of the other side is missing.
    Endpoint,
    /// Operations arrive.
    Connected,
}

struct Session<F: Fabric> {
    link: F::Link,
    stage: Stage,
    until: Nanos,
    /// The node and its path, and the queue pair, after the first message.
    end: Option<(NodeId, u16, QueuePairId)>,
    /// The life of the node in its view.
    incarnation: Epoch,
    /// The number of the node's process.
    life: u64,
}

/// A connection of a node that was cut off, whose process may still be at a copy.
struct Draining<L> {
    node: NodeId,
    path: u16,
    life: u64,
    link: L,
}

pub(crate) struct Acceptor<F: Fabric> {
    node: Arc<Node<F>>,
    listener: F::Listener,
    domain: F::Domain,
    completions: CompletionQueueId,
    sessions: BTreeMap<u64, Session<F>>,
    /// Processes of paths to an earlier life of this node: they may still be at a copy.
    earlier: BTreeMap<(NodeId, u16), Life>,
    /// Connections of fenced nodes whose processes may still be at a copy.
    draining: Vec<Draining<F::Link>>,
    /// The view whose dead nodes have no connections any more.
    swept: Epoch,
}

impl<F: Fabric> Acceptor<F> {
    pub(crate) fn new(node: &Arc<Node<F>>, listener: F::Listener) -> Result<Self, CreateError> {
        let mut domain = node.fabric.domain()?;
        let completions = domain.create_completion_queue(64, false)?;
        let earlier = match &node.state().ledger {
            Some(ledger) => {
                ledger.table(SESSION).filter_map(|(key, value)| decode_session(key, value)).collect()
            }
            None => BTreeMap::new(),
        };
        Ok(Acceptor {
            node: Arc::clone(node),
            listener,
            domain,
            completions,
            sessions: BTreeMap::new(),
            earlier,
            draining: Vec::new(),
            swept: Epoch::default(),
        })
    }

    /// Runs until the node ends.
    pub(crate) fn run(mut self) {
        let node = Arc::clone(&self.node);
        let signal: SignalOf<F> = node.fencing.signal.clone();
        let (ready, mut next) = (ReadyList::new(), 0);
        self.listener.subscribe(signal.clone());
        while !node.is_over() {
            let seen = signal.seen();
            let now = node.fabric.host().now();
            while let Ok(Some(link)) = self.listener.try_accept() {
                let pending = self.sessions.values().filter(|one| !matches!(one.stage, Stage::Connected));
                if pending.count() >= MAX_PENDING {
                    link.close();
                    continue;
                }
                next += 1;
                let (until, end) = (now.saturating_add(HANDSHAKE), None);
                let (link_of, stage, incarnation, life) = (link.clone(), Stage::Hello, Epoch::default(), 0);
                self.sessions.insert(next, Session { link: link_of, stage, until, end, incarnation, life });
                link.subscribe(Subscription { signal: signal.clone(), mark: ready.mark(next) });
            }
            for number in ready.take() {
                self.hear(number, now);
            }
            let late: Vec<u64> = self
                .sessions
                .iter()
                .filter(|(_, session)| !matches!(session.stage, Stage::Connected) && now >= session.until)
                .map(|(number, _)| *number)
                .collect();
            late.into_iter().for_each(|number| self.end(number));
            self.sweep();
            self.fence();
            signal.wait(seen, node.fabric.host().now().saturating_add(LOOK_EVERY));
        }
        while let Some((&number, _)) = self.sessions.first_key_value() {
            self.end(number);
        }
    }

    fn end(&mut self, number: u64) {
        let Some(session) = self.sessions.remove(&number) else { return };
        if let Some((node, path, queue_pair)) = session.end {
            let _ = self.domain.destroy_queue_pair(queue_pair);
            self.note_path((node, path), None);
        }
        session.link.close();
    }

    /// Notes the process of a path, for the next life of this node.
    fn note_path(&self, (node, path): (NodeId, u16), process: Option<Life>) {
        let key = session_key(node, path);
        match process {
            Some(life) => self.node.state().put(&key, &life_value(life)),
            None => self.node.state().remove(&key),
        }
    }

    fn hear(&mut self, number: u64, now: Nanos) {
        loop {
            let Some(session) = self.sessions.get(&number) else { return };
            let message = match session.link.try_receive() {
                Ok(None) => return,
                Ok(Some(message)) => message,
                Err(_) => return self.end(number),
            };
            let taken = match session.stage {
                Stage::Hello => self.greet(number, &message, now),
                Stage::Endpoint => self.complete(number, message),
                Stage::Connected => Err(ConnectError::Offer("a message that nobody asked for")),
            };
            if let Err(error) = taken {
                let error = WithSources(&error);
                tracing::warn!(target: "dunlin::tier", error = %error, "a path of another node is refused");
                return self.end(number);
            }
        }
    }

    /// Answers the first message of a path. Its old connection ends first: the poster relies on that.
    fn greet(&mut self, number: u64, message: &[u8], now: Nanos) -> Result<(), ConnectError> {
        let hello = Hello::parse(message).map_err(ConnectError::Offer)?;
        let config = &self.node.config;
        let fences = self.node.state().fences.get(usize::from(hello.node.0)).copied();
        let Some(fences) = fences else {
            return Err(ConnectError::Offer("its node is not in the list of nodes"));
        };
        if hello.token != config.token {
            return Err(ConnectError::Offer("its token is not the cluster's"));
        }
        if !self.admits(hello.node, hello.incarnation) {
            return Err(ConnectError::Offer("this life of its node was declared dead"));
        }
        let same = |end: Option<(NodeId, u16, QueuePairId)>| {
            end.is_some_and(|(node, path, _)| (node, path) == (hello.node, hello.path))
        };
        let old = self.sessions.iter().find(|(_, session)| same(session.end)).map(|(number, _)| *number);
        old.into_iter().for_each(|old| self.end(old));
        self.draining.retain(|old| {
            let replaced = (old.node, old.path) == (hello.node, hello.path);
            if replaced {
                old.link.close();
            }
            !replaced
        });
        // No operation of its old connection to an earlier life is under way, either.
        let path = (hello.node, hello.path);
        self.earlier.remove(&path);
        let Some(session) = self.sessions.get(&number) else { return Ok(()) };
        if self.node.fabric.capabilities().initiator_copies {
            // Before it can map memory.
            self.note_path(path, session.link.peer().process.and_then(lives::life_of));
        }
        let Some(session) = self.sessions.get_mut(&number) else { return Ok(()) };
        let access = arena::access(self.node.fabric.capabilities());
        // One grant for each registration, which has one extent or all of them.
        let mut granted = None;
        let extents = self.node.arena.registered().map(|(registration, start, length)| {
            let memory = registration.memory();
            let key = match granted {
                Some((last, key)) if Arc::ptr_eq(last, memory) => key,
                _ => session.link.grant(memory, access).map_err(CreateError::from)?,
            };
            granted = Some((memory, key));
            Ok(OfferedExtent { key, start, length })
        });
        let extents = extents.collect::<Result<Vec<_>, CreateError>>()?;
        let queue_pair = self.domain.create_queue_pair(&queue_pair_config(self.completions))?;
        session.end = Some((hello.node, hello.path, queue_pair));
        session.incarnation = hello.incarnation;
        session.life = hello.life;
        session.stage = Stage::Endpoint;
        session.until = now.saturating_add(HANDSHAKE);
        let endpoint = self.domain.endpoint(queue_pair, &session.link)?;
        let incarnation = self.node.lineage.memory;
        session.link.send(&Offer { incarnation, fences, extents, endpoint }.encode())?;
        Ok(())
    }

    fn complete(&mut self, number: u64, message: Vec<u8>) -> Result<(), ConnectError> {
        let Some(session) = self.sessions.get_mut(&number) else { return Ok(()) };
        let Some((_, _, queue_pair)) = session.end else { return Ok(()) };
        self.domain.connect(queue_pair, &session.link, &Endpoint(message))?;
        session.stage = Stage::Connected;
        session.link.send(&[])?;
        Ok(())
    }

    /// Carries out the fences that were asked for.
    ///
    /// On a fabric whose initiator copies, a destroyed queue pair does not stop a copy that has begun: such a fence is
    /// complete when the fenced process has ended, or has connected the path again.
    fn fence(&mut self) {
        let node = Arc::clone(&self.node);
        let mut asked = node.fencing.asked();
        for (&(mapper, whose), fence) in asked.iter_mut() {
            if *fence == Fence::Asked {
                match whose {
                    Whose::All(_) => self.cut_off(mapper),
                    Whose::Others(life) => self.destroy(self.sessions_of(mapper, |of| of != life)),
                }
                *fence = Fence::Draining;
            }
        }
        if asked.values().all(|fence| *fence == Fence::Done) {
            return;
        }
        let mut ended = Vec::new();
        self.draining.retain(|old| {
            let is_alive = old.link.is_alive();
            if !is_alive {
                ended.push((old.node, old.path));
            }
            is_alive
        });
        self.earlier.retain(|path, life| {
            let lives = lives::lives(*life);
            if !lives {
                ended.push(*path);
            }
            lives
        });
        ended.into_iter().for_each(|path| self.note_path(path, None));
        for (&(mapper, whose), fence) in asked.iter_mut() {
            let concerns = |old: &&Draining<F::Link>| match whose {
                Whose::All(_) => true,
                Whose::Others(life) => old.life != life,
            };
            let drains = self.draining.iter().filter(concerns).map(|old| old.node);
            let mut drains = drains.chain(self.earlier.keys().map(|(node, _)| *node));
            if *fence == Fence::Draining && drains.all(|draining| draining != mapper) {
                *fence = Fence::Done;
            }
        }
    }

    /// Destroys the connections of lives that the view has ended.
    fn sweep(&mut self) {
        let epoch = self.node.roster.get().view.epoch;
        if !self.node.roster.is_dynamic || self.swept == epoch {
            return;
        }
        self.swept = epoch;
        let is_dead = |session: &Session<F>| {
            session.end.is_some_and(|(node, _, _)| !self.admits(node, session.incarnation))
        };
        let dead: Vec<(u64, NodeId)> = self
            .sessions
            .iter()
            .filter(|(_, session)| is_dead(session))
            .filter_map(|(number, session)| session.end.map(|(node, _, _)| (*number, node)))
            .collect();
        let nodes: BTreeSet<NodeId> = dead.iter().map(|(_, node)| *node).collect();
        for node in nodes {
            self.node.state().count_fence(node);
            tracing::warn!(target: "dunlin::tier", %node, epoch = %self.swept, "the connections of a dead node are destroyed");
        }
        self.destroy(dead.into_iter().map(|(number, _)| number).collect());
    }

    /// Returns whether a path of a node may connect, or stay connected. The paths of this node to itself may in any view: its
    /// own memory was never away for it, also while others take it for dead.
    fn admits(&self, node: NodeId, incarnation: Epoch) -> bool {
        node == self.node.me || self.node.roster.get().admits(node, incarnation)
    }

    fn cut_off(&mut self, mapper: NodeId) {
        self.node.state().count_fence(mapper);
        tracing::warn!(target: "dunlin::tier", node = %mapper, "a node is fenced: it may use memory that is taken back");
        self.destroy(self.sessions_of(mapper, |_| true));
    }

    /// Returns the connections of lives of a node.
    fn sessions_of(&self, mapper: NodeId, is_life: impl Fn(u64) -> bool) -> Vec<u64> {
        let is_theirs = |session: &Session<F>| {
            session.end.is_some_and(|(node, _, _)| node == mapper) && is_life(session.life)
        };
        self.sessions.iter().filter(|(_, one)| is_theirs(one)).map(|(number, _)| *number).collect()
    }

    /// Destroys queue pairs. Where the initiator copies, their links stay until nobody is at a copy any more.
    fn destroy(&mut self, numbers: Vec<u64>) {
        let lingers = self.node.fabric.capabilities().initiator_copies;
        for number in numbers {
            if !lingers {
                self.end(number);
                continue;
            }
            let Some(session) = self.sessions.remove(&number) else { continue };
            if let Some((node, path, queue_pair)) = session.end {
                let _ = self.domain.destroy_queue_pair(queue_pair);
                self.draining.push(Draining { node, path, life: session.life, link: session.link });
            }
        }
    }
}
