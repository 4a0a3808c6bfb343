//! Control connections: messages in order, grants of memory, and the news of the peer's end.

use crate::host::SimSignal;
use crate::memory::Target;
use crate::network::NetworkEvent;
use crate::queues::{LinkSide, QueuePairRef};
use crate::scheduler::{Reason, Shared, State, Waiter};
use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
use dunlin_fabric::{
    AcceptError, Access, Address, CompletionStatus, DialError, GrantError, Link, LinkError, ListenError,
    Listener, Memory, Nanos, PeerIdentity, RegionKey, Scheme,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What a system call of the control path costs.
const SYSTEM_CALL: Nanos = 1_000;
/// What a look for a message costs.
const LOOK: Nanos = 100;
/// Messages that a side has not read, above which the sender is told of a backlog.
const MAX_BACKLOG: usize = 1024;
/// Connections that nobody has accepted yet, above which dialling waits in vain.
const MAX_UNACCEPTED: usize = 1024;
/// Grants of one side of one link.
const MAX_GRANTS: usize = 1 << 16;

/// All links and listeners of a run.
#[derive(Default)]
pub(crate) struct Links {
    links: BTreeMap<u32, [Side; 2]>,
    next_link: u32,
    listeners: BTreeMap<String, ListenerState>,
}

impl Links {
    pub(crate) fn side(&self, at: LinkSide) -> Option<&Side> {
        self.links.get(&at.link)?.get(at.side)
    }

    fn side_mut(&mut self, at: LinkSide) -> Option<&mut Side> {
        self.links.get_mut(&at.link)?.get_mut(at.side)
    }
}

#[derive(Default)]
struct ListenerState {
    unaccepted: VecDeque<u32>,
    signal: Option<u64>,
    waiters: Vec<Waiter>,
}

/// One side of a link.
#[derive(Default)]
pub(crate) struct Side {
    inbox: VecDeque<Vec<u8>>,
    on_the_way: usize,
    last_arrival: Nanos,
    /// Nobody holds it any more.
    dropped: bool,
    /// Why nothing more comes: the peer's end, or our own.
    ended: Option<&'static str>,
    signal: Option<u64>,
    waiters: Vec<Waiter>,
    /// What this side has granted to the other.
    pub(crate) grants: BTreeMap<u64, Grant>,
    next_slot: u64,
    /// This side's queue pairs that are connected over the link.
    pub(crate) queue_pairs: Vec<QueuePairRef>,
}

impl Side {
    fn is_alive(&self) -> bool {
        self.ended.is_none()
    }
}

pub(crate) struct Grant {
    pub(crate) memory: Target,
    pub(crate) access: Access,
}

/// What can happen on a link.
pub(crate) enum LinkEvent {
    /// A message reaches a side.
    Message { at: LinkSide, message: Vec<u8> },
    /// A side learns that the other has ended.
    End { at: LinkSide },
    /// A new link reaches its listener.
    Connection { name: String, link: u32 },
}

fn other(at: LinkSide) -> LinkSide {
    LinkSide { link: at.link, side: 1 - at.side }
}

impl State {
    pub(crate) fn happen_on_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Message { at, message } => {
                self.note_bytes(20, &message);
                let Some(side) = self.network.links.side_mut(at) else { return };
                side.on_the_way -= 1;
                if side.is_alive() {
                    side.inbox.push_back(message);
                    self.news(at);
                }
            }
            LinkEvent::End { at } => {
                self.note(21 << 56 | u64::from(at.link) << 1 | at.side as u64);
                self.end_side(at, "it closed the connection", CompletionStatus::TransportRetry);
            }
            LinkEvent::Connection { name, link } => {
                self.note(22 << 56 | u64::from(link));
                let Some(listener) = self.network.links.listeners.get_mut(&name) else {
                    return self.drop_side(LinkSide { link, side: 1 });
                };
                listener.unaccepted.push_back(link);
                let mut waiters = std::mem::take(&mut listener.waiters);
                let signal = listener.signal;
                self.wake_all(&mut waiters);
                if let Some(signal) = signal {
                    self.raise(signal);
                }
            }
        }
    }

    /// Tells those who listen to a side that there is news.
    fn news(&mut self, at: LinkSide) {
        let Some(side) = self.network.links.side_mut(at) else { return };
        let mut waiters = std::mem::take(&mut side.waiters);
        let signal = side.signal;
        self.wake_all(&mut waiters);
        if let Some(signal) = signal {
            self.raise(signal);
        }
    }

    /// Ends one side: its queue pairs break, their oldest request with `first`.
    fn end_side(&mut self, at: LinkSide, why: &'static str, first: CompletionStatus) {
        let Some(side) = self.network.links.side_mut(at) else { return };
        if side.ended.is_some() {
            return;
        }
        side.ended = Some(why);
        for queue_pair in std::mem::take(&mut side.queue_pairs) {
            self.fail(queue_pair, first);
        }
        self.news(at);
    }

    /// Notes that a queue pair lives by this side; `false` if the side has ended.
    pub(crate) fn connected_over(&mut self, at: LinkSide, queue_pair: QueuePairRef) -> bool {
        let Some(side) = self.network.links.side_mut(at).filter(|side| side.is_alive()) else { return false };
        side.queue_pairs.push(queue_pair);
        true
    }

    /// Closes a link from one side; the other learns of it behind what was sent before.
    fn close_link(&mut self, at: LinkSide) {
        if self.network.links.side(at).is_none_or(|side| side.ended.is_some()) {
            return;
        }
        self.end_side(at, "this side closed the connection", CompletionStatus::Flushed);
        let when = self.link_arrival(other(at));
        self.schedule(when, NetworkEvent::Link(LinkEvent::End { at: other(at) }));
    }

    /// The last handle to a side is gone, or there never will be one.
    fn drop_side(&mut self, at: LinkSide) {
        self.close_link(at);
        if let Some(side) = self.network.links.side_mut(at) {
            side.dropped = true;
        }
        if self.network.links.side(other(at)).is_some_and(|side| side.dropped) {
            self.network.links.links.remove(&at.link);
        }
    }

    /// When what is sent now reaches a side: behind what was sent before.
    fn link_arrival(&mut self, to: LinkSide) -> Nanos {
        let earliest = self.now() + 10 * self.travel();
        let Some(side) = self.network.links.side_mut(to) else { return earliest };
        side.last_arrival = side.last_arrival.max(earliest);
        side.last_arrival
    }
}

/// A control connection of a sim fabric.
#[derive(Clone, Debug)]
pub struct SimLink(Arc<LinkHandle>);

#[derive(Debug)]
struct LinkHandle {
    shared: Arc<Shared>,
    at: LinkSide,
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        self.shared.lock().drop_side(self.at);
    }
}

impl SimLink {
    fn new(shared: &Arc<Shared>, link: u32, side: usize) -> Self {
        SimLink(Arc::new(LinkHandle { shared: Arc::clone(shared), at: LinkSide { link, side } }))
    }

    pub(crate) fn at(&self) -> LinkSide {
        self.0.at
    }

    /// Whether it belongs to the same run.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }

    /// The next message, or why there is none and will be none; `None` if there may be one later.
    fn take(&self, state: &mut State) -> Option<Result<Vec<u8>, LinkError>> {
        let gone = |why: &str| Some(Err(LinkError::PeerGone(why.to_owned())));
        let Some(side) = state.network.links.side_mut(self.0.at) else { return gone("the run is over") };
        match (side.inbox.pop_front(), side.ended) {
            (Some(message), _) => Some(Ok(message)),
            (None, Some(why)) => gone(why),
            (None, None) => None,
        }
    }
}

impl Link for SimLink {
    type Memory = HeapMemory;
    type Signal = SimSignal;

    fn send(&self, message: &[u8]) -> Result<(), LinkError> {
        if message.len() > MAX_CONTROL_MESSAGE {
            return Err(LinkError::TooLong { length: message.len(), limit: MAX_CONTROL_MESSAGE });
        }
        let mut state = self.0.shared.enter(SYSTEM_CALL);
        let at = self.0.at;
        match state.network.links.side(at) {
            None => return Err(LinkError::PeerGone("the run is over".to_owned())),
            Some(Side { ended: Some(why), .. }) => return Err(LinkError::PeerGone((*why).to_owned())),
            Some(_) => {}
        }
        if let Some(peer) = state.network.links.side_mut(other(at)) {
            if peer.inbox.len() + peer.on_the_way >= MAX_BACKLOG {
                return Err(LinkError::Backlog);
            }
            peer.on_the_way += 1;
        }
        let when = state.link_arrival(other(at));
        let message = message.to_vec();
        state.schedule(when, NetworkEvent::Link(LinkEvent::Message { at: other(at), message }));
        Ok(())
    }

    fn receive(&self, until: Nanos) -> Result<Vec<u8>, LinkError> {
        let mut state = self.0.shared.enter(SYSTEM_CALL);
        loop {
            if let Some(got) = self.take(&mut state) {
                return got;
            }
            if state.now() >= until || state.stopping() {
                return Err(LinkError::TimedOut);
            }
            let waiter = state.stay(Reason::Message { link: self.0.at.link });
            if let Some(side) = state.network.links.side_mut(self.0.at) {
                side.waiters.push(waiter);
            }
            state = self.0.shared.park(state, waiter, until, false).0;
            if let Some(side) = state.network.links.side_mut(self.0.at) {
                side.waiters.retain(|one| *one != waiter);
            }
        }
    }

    fn try_receive(&self) -> Result<Option<Vec<u8>>, LinkError> {
        self.take(&mut self.0.shared.pass(LOOK)).transpose()
    }

    fn grant(&self, memory: &Arc<HeapMemory>, access: Access) -> Result<RegionKey, GrantError> {
        if !memory.access().contains(access) {
            return Err(GrantError::Access);
        }
        let mut state = self.0.shared.enter(SYSTEM_CALL);
        let generation = state.chance.next() >> 32;
        let Some(side) = state.network.links.side_mut(self.0.at) else {
            return Err(LinkError::PeerGone("the run is over".to_owned()).into());
        };
        if let Some(why) = side.ended {
            return Err(LinkError::PeerGone(why.to_owned()).into());
        }
        if side.grants.len() >= MAX_GRANTS {
            return Err(GrantError::TooMany(side.grants.len()));
        }
        let key = generation << 32 | side.next_slot;
        side.next_slot += 1;
        side.grants.insert(key, Grant { memory: Target::new(memory), access });
        Ok(RegionKey(key))
    }

    fn revoke(&self, key: RegionKey) {
        let mut state = self.0.shared.enter(SYSTEM_CALL);
        if let Some(side) = state.network.links.side_mut(self.0.at) {
            side.grants.remove(&key.0);
        }
    }

    fn is_alive(&self) -> bool {
        self.0.shared.pass(LOOK).network.links.side(self.0.at).is_some_and(Side::is_alive)
    }

    fn peer(&self) -> PeerIdentity {
        PeerIdentity::default()
    }

    fn subscribe(&self, signal: SimSignal) {
        let mut state = self.0.shared.enter(SYSTEM_CALL);
        if let Some(side) = state.network.links.side_mut(self.0.at) {
            side.signal = Some(signal.id());
        }
    }

    fn close(&self) {
        self.0.shared.pass(SYSTEM_CALL).close_link(self.0.at);
    }
}

/// Where control connections to one name of a sim fabric arrive.
#[derive(Debug)]
pub struct SimListener {
    shared: Arc<Shared>,
    address: Address,
}

impl SimListener {
    /// Opens a listener.
    pub(crate) fn open(shared: &Arc<Shared>, address: &Address) -> Result<Self, ListenError> {
        if address.scheme() != Scheme::Sim {
            return Err(ListenError::WrongScheme(address.clone()));
        }
        let mut state = shared.enter(SYSTEM_CALL);
        let listeners = &mut state.network.links.listeners;
        if listeners.contains_key(address.name()) {
            return Err(ListenError::InUse { address: address.clone() });
        }
        listeners.insert(address.name().to_owned(), ListenerState::default());
        drop(state);
        Ok(SimListener { shared: Arc::clone(shared), address: address.clone() })
    }

    fn take(&self, state: &mut State) -> Option<SimLink> {
        let listener = state.network.links.listeners.get_mut(self.address.name())?;
        Some(SimLink::new(&self.shared, listener.unaccepted.pop_front()?, 1))
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let Some(mut gone) = state.network.links.listeners.remove(self.address.name()) else { return };
        for link in gone.unaccepted.drain(..) {
            state.drop_side(LinkSide { link, side: 1 });
        }
        state.wake_all(&mut gone.waiters);
    }
}

impl Listener for SimListener {
    type Link = SimLink;
    type Signal = SimSignal;

    fn accept(&self, until: Nanos) -> Result<SimLink, AcceptError> {
        let mut state = self.shared.enter(SYSTEM_CALL);
        loop {
            if let Some(link) = self.take(&mut state) {
                return Ok(link);
            }
            if state.stopping() {
                return Err(AcceptError::Closed);
            }
            if state.now() >= until {
                return Err(AcceptError::TimedOut);
            }
            let waiter = state.stay(Reason::Connection { address: self.address.to_string() });
            if let Some(listener) = state.network.links.listeners.get_mut(self.address.name()) {
                listener.waiters.push(waiter);
            }
            state = self.shared.park(state, waiter, until, false).0;
            if let Some(listener) = state.network.links.listeners.get_mut(self.address.name()) {
                listener.waiters.retain(|one| *one != waiter);
            }
        }
    }

    fn try_accept(&self) -> Result<Option<SimLink>, AcceptError> {
        Ok(self.take(&mut self.shared.pass(LOOK)))
    }

    fn subscribe(&self, signal: SimSignal) {
        let mut state = self.shared.enter(SYSTEM_CALL);
        if let Some(listener) = state.network.links.listeners.get_mut(self.address.name()) {
            listener.signal = Some(signal.id());
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

/// Opens a control connection.
pub(crate) fn dial(shared: &Arc<Shared>, address: &Address, until: Nanos) -> Result<SimLink, DialError> {
    if address.scheme() != Scheme::Sim {
        return Err(DialError::WrongScheme(address.clone()));
    }
    let mut state = shared.enter(SYSTEM_CALL);
    if state.stopping() {
        return Err(DialError::TimedOut { address: address.clone() });
    }
    let Some(listener) = state.network.links.listeners.get(address.name()) else {
        return Err(DialError::NobodyListens { address: address.clone() });
    };
    let full = listener.unaccepted.len() >= MAX_UNACCEPTED;
    let answered = state.now() + 20 * state.travel();
    if full || answered > until {
        let waiter = state.stay(Reason::Answer { address: address.to_string() });
        drop(shared.park(state, waiter, until, false));
        return Err(DialError::TimedOut { address: address.clone() });
    }
    let link = state.network.links.next_link;
    state.network.links.next_link += 1;
    state.network.links.links.insert(link, Default::default());
    let handle = SimLink::new(shared, link, 0);
    let arrives = state.link_arrival(LinkSide { link, side: 1 });
    let name = address.name().to_owned();
    state.schedule(arrives, NetworkEvent::Link(LinkEvent::Connection { name, link }));
    let waiter = state.stay(Reason::Answer { address: address.to_string() });
    drop(shared.park(state, waiter, answered, false));
    Ok(handle)
}
