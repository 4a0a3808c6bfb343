//! Control connections: ordered messages, memory grants, and notification of the peer's end.

use crate::host::SimSignal;
use crate::links::{Grant, LinkEvent, LinkSide, ListenerState, Side, other};
use crate::memory::{SimMemory, Target};
use crate::shared::Shared;
use crate::state::{Rare, State};
use crate::tasks::Reason;
use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
use dunlin_fabric::{
    AcceptError, Access, Address, CompletionStatus, DialError, GrantError, Link, LinkError, ListenError,
    Listener, Memory, Nanos, PeerIdentity, RegionKey, Scheme, Subscription,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Unread messages of a side above which the sender gets a backlog error.
const MAX_BACKLOG: usize = 1024;
/// Unaccepted connections of a listener above which a dialling task waits.
const MAX_UNACCEPTED: usize = 1024;
/// Most grants of one side of one link.
const MAX_GRANTS: usize = 1 << 16;

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
                self.note(21 << 56 | u64::from(at.link) << 1 | u64::from(at.side));
                self.end_side(at, "it closed the connection", CompletionStatus::TransportRetry);
            }
            LinkEvent::Connection { listener, link } => {
                self.note(22 << 56 | u64::from(link));
                let Some(listener) = self.network.links.listener(listener) else {
                    return self.drop_side(LinkSide { link, side: 1 });
                };
                listener.coming -= 1;
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

    /// Notifies the waiters and the subscriber of a side.
    fn news(&mut self, at: LinkSide) {
        self.network.links.set_news(at);
        let Some(side) = self.network.links.side_mut(at) else { return };
        let mut waiters = std::mem::take(&mut side.waiters);
        let signal = side.subscription.as_ref().map(|(signal, mark)| {
            mark.set();
            *signal
        });
        self.wake_all(&mut waiters);
        if let Some(signal) = signal {
            self.raise(signal);
        }
    }

    /// Ends one side: its queue pairs break, and the oldest request of each completes with `first`.
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

    /// Registers a queue pair with this side; returns `false` if the side has ended.
    pub(crate) fn connected_over(&mut self, at: LinkSide, queue_pair: u32) -> bool {
        let Some(side) = self.network.links.side_mut(at).filter(|side| side.is_alive()) else { return false };
        side.queue_pairs.push(queue_pair);
        true
    }

    /// Closes a link from one side. The other side learns of it after all earlier messages.
    fn close_link(&mut self, at: LinkSide) {
        if self.network.links.side(at).is_none_or(|side| side.ended.is_some()) {
            return;
        }
        self.end_side(at, "this side closed the connection", CompletionStatus::Flushed);
        let when = self.link_arrival(other(at));
        self.schedule(when, Rare::Link(LinkEvent::End { at: other(at) }));
    }

    /// Closes and drops a side: its last handle is gone, or none will ever exist.
    fn drop_side(&mut self, at: LinkSide) {
        self.close_link(at);
        if let Some(side) = self.network.links.side_mut(at) {
            side.dropped = true;
        }
        if self.network.links.side(other(at)).is_some_and(|side| side.dropped) {
            let gone = self.network.links.links[at.link as usize].take();
            for place in gone.into_iter().flat_map(|sides| sides.into_iter()).flat_map(|side| side.grants) {
                self.network.links.grants.end(place);
            }
        }
    }

    /// Returns the arrival time at a side of a message sent now, after all earlier messages.
    fn link_arrival(&mut self, to: LinkSide) -> Nanos {
        let earliest = self.now().max(self.cut_of_link(to)) + 10 * self.travel();
        let Some(side) = self.network.links.side_mut(to) else { return earliest };
        side.last_arrival = side.last_arrival.max(earliest);
        side.last_arrival
    }
}

impl State {
    /// Closes the listeners of a process that has ended.
    pub(crate) fn close_listeners_of(&mut self, process: u32) {
        for number in 0..self.network.links.listeners.len() as u32 {
            if self.network.links.listener(number).is_some_and(|listener| listener.process == process) {
                self.close_listener(number);
            }
        }
    }

    fn close_listener(&mut self, number: u32) {
        let place = self.network.links.listeners.get_mut(number as usize);
        let Some(mut gone) = place.and_then(Option::take) else { return };
        if self.network.links.by_name.get(&gone.name) == Some(&number) {
            self.network.links.by_name.remove(&gone.name);
        }
        for link in gone.unaccepted.drain(..) {
            self.drop_side(LinkSide { link, side: 1 });
        }
        self.wake_all(&mut gone.waiters);
        self.wake_all(&mut gone.dialling.into());
    }

    /// Closes the links of a process that has ended.
    pub(crate) fn close_links_of(&mut self, process: u32) {
        for link in 0..self.network.links.links.len() as u32 {
            for side in 0..2 {
                let at = LinkSide { link, side };
                if self.network.links.side(at).is_some_and(|side| side.process == process) {
                    self.close_link(at);
                }
            }
        }
    }
}

/// A control connection of a simulated fabric.
#[derive(Clone, Debug)]
pub struct SimLink(Arc<LinkHandle>);

#[derive(Debug)]
struct LinkHandle {
    shared: Arc<Shared>,
    at: LinkSide,
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        if let Some(mut state) = self.shared.try_lock() {
            state.drop_side(self.at);
        }
    }
}

impl SimLink {
    fn new(shared: &Arc<Shared>, link: u32, side: u32) -> Self {
        SimLink(Arc::new(LinkHandle { shared: Arc::clone(shared), at: LinkSide { link, side } }))
    }

    pub(crate) fn at(&self) -> LinkSide {
        self.0.at
    }

    /// Returns whether the link belongs to the same run.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.0.shared, shared)
    }

    /// Takes the next message, or the error if the link has ended; `None` if a message may still arrive.
    fn take(&self, state: &mut State) -> Option<Result<Vec<u8>, LinkError>> {
        let gone = |why: &str| Some(Err(LinkError::PeerGone(why.to_owned())));
        let Some(side) = state.network.links.side_mut(self.0.at) else { return gone("the run is over") };
        let taken = match (side.inbox.pop_front(), side.ended) {
            (Some(message), _) => Some(Ok(message)),
            (None, Some(why)) => gone(why),
            (None, None) => None,
        };
        state.network.links.set_news(self.0.at);
        taken
    }
}

impl Link for SimLink {
    type Memory = SimMemory;
    type Signal = SimSignal;

    fn send(&self, message: &[u8]) -> Result<(), LinkError> {
        if message.len() > MAX_CONTROL_MESSAGE {
            return Err(LinkError::TooLong { length: message.len(), limit: MAX_CONTROL_MESSAGE });
        }
        let mut state = self.0.shared.system_call();
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
        state.schedule(when, Rare::Link(LinkEvent::Message { at: other(at), message }));
        Ok(())
    }

    fn receive(&self, until: Nanos) -> Result<Vec<u8>, LinkError> {
        let mut state = self.0.shared.blocking_call();
        let until = state.time_here(until);
        loop {
            if let Some(got) = self.take(&mut state) {
                return got;
            }
            if state.now() >= until || state.over() {
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
        let mut state = self.0.shared.pass_at(|prices| 10 * prices.look);
        if !state.network.links.has_news(self.0.at) {
            return Ok(None);
        }
        self.take(&mut state).transpose()
    }

    fn grant(&self, memory: &Arc<SimMemory>, access: Access) -> Result<RegionKey, GrantError> {
        if !memory.access().contains(access) {
            return Err(GrantError::Access);
        }
        let mut state = self.0.shared.system_call();
        let generation = state.chance.next() >> 32;
        let by = self.0.at;
        let links = &mut state.network.links;
        let fresh = links.grants.places.len() as u32;
        let place = links.grants.free.last().copied().unwrap_or(fresh);
        let Some(side) = links.side_mut(by) else {
            return Err(LinkError::PeerGone("the run is over".to_owned()).into());
        };
        if let Some(why) = side.ended {
            return Err(LinkError::PeerGone(why.to_owned()).into());
        }
        if side.grants.len() >= MAX_GRANTS {
            return Err(GrantError::TooMany(side.grants.len()));
        }
        side.grants.insert(place);
        let key = generation << 32 | u64::from(place);
        let (length, generation) = (memory.length(), generation as u32);
        let (link, side) = (by.link, by.side as u8);
        let memory = Target::new(memory);
        let grant = Some(Grant { memory, length, generation, link, side, access, held: 0, ended: false });
        if place == fresh {
            links.grants.places.push(grant);
        } else {
            links.grants.free.pop();
            links.grants.places[place as usize] = grant;
        }
        Ok(RegionKey(key))
    }

    fn revoke(&self, key: RegionKey) {
        let mut state = self.0.shared.system_call();
        let links = &mut state.network.links;
        if let Some(place) = links.granted(self.0.at, key, Access::LOCAL) {
            links.grants.end(place);
            if let Some(side) = links.side_mut(self.0.at) {
                side.grants.remove(&place);
            }
        }
    }

    fn is_alive(&self) -> bool {
        self.0
            .shared
            .pass_at(|prices| 10 * prices.look)
            .network
            .links
            .side(self.0.at)
            .is_some_and(Side::is_alive)
    }

    fn peer(&self) -> PeerIdentity {
        // All processes of a machine belong to one user. None has an id of the operating system.
        let Some(state) = self.0.shared.try_lock() else { return PeerIdentity::default() };
        let machine = |at| {
            let side = state.network.links.side(at)?;
            state.processes.get(side.process as usize).map(|process| process.machine)
        };
        let own = machine(self.0.at);
        let is_near = own.is_some() && own == machine(other(self.0.at));
        PeerIdentity { process: None, user: is_near.then_some(0) }
    }

    fn subscribe(&self, subscription: Subscription<SimSignal>) {
        let mut state = self.0.shared.system_call();
        if let Some(side) = state.network.links.side_mut(self.0.at) {
            side.subscription = Some((subscription.signal.id(), subscription.mark));
            if state.network.links.has_news(self.0.at) {
                state.news(self.0.at);
            }
        }
    }

    fn close(&self) {
        self.0.shared.system_call().close_link(self.0.at);
    }
}

/// A listener for control connections to one name of a simulated fabric.
#[derive(Debug)]
pub struct SimListener {
    shared: Arc<Shared>,
    number: u32,
    address: Address,
}

impl SimListener {
    /// Opens a listener.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        process: u32,
        (address, name): (&Address, &str),
    ) -> Result<Self, ListenError> {
        if address.scheme() != Scheme::Sim {
            return Err(ListenError::WrongScheme(address.clone()));
        }
        let mut state = shared.blocking_call();
        let links = &mut state.network.links;
        if links.by_name.contains_key(name) {
            return Err(ListenError::InUse { address: address.clone() });
        }
        let number = links.listeners.len() as u32;
        let name = name.to_owned();
        links.by_name.insert(name.clone(), number);
        links.listeners.push(Some(ListenerState {
            name,
            process,
            unaccepted: VecDeque::new(),
            coming: 0,
            dialling: VecDeque::new(),
            signal: None,
            waiters: Vec::new(),
        }));
        drop(state);
        Ok(SimListener { shared: Arc::clone(shared), number, address: address.clone() })
    }

    fn take(&self, state: &mut State) -> Option<SimLink> {
        let listener = state.network.links.listener(self.number)?;
        let link = listener.unaccepted.pop_front()?;
        // The accepted connection frees a place for one dialling task.
        while let Some(waiter) = state.network.links.listener(self.number)?.dialling.pop_front() {
            if state.waits(waiter) {
                state.wake_all(&mut vec![waiter]);
                break;
            }
        }
        Some(SimLink::new(&self.shared, link, 1))
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        if let Some(mut state) = self.shared.try_lock() {
            state.close_listener(self.number);
        }
    }
}

impl Listener for SimListener {
    type Link = SimLink;
    type Signal = SimSignal;

    fn accept(&self, until: Nanos) -> Result<SimLink, AcceptError> {
        let mut state = self.shared.blocking_call();
        let until = state.time_here(until);
        loop {
            if let Some(link) = self.take(&mut state) {
                return Ok(link);
            }
            if state.over() || state.network.links.listener(self.number).is_none() {
                return Err(AcceptError::Closed);
            }
            if state.now() >= until {
                return Err(AcceptError::TimedOut);
            }
            let waiter = state.stay(Reason::Connection(self.number));
            if let Some(listener) = state.network.links.listener(self.number) {
                listener.waiters.push(waiter);
            }
            state = self.shared.park(state, waiter, until, false).0;
            if let Some(listener) = state.network.links.listener(self.number) {
                listener.waiters.retain(|one| *one != waiter);
            }
        }
    }

    fn try_accept(&self) -> Result<Option<SimLink>, AcceptError> {
        Ok(self.take(&mut self.shared.pass_at(|prices| 10 * prices.look)))
    }

    fn subscribe(&self, signal: SimSignal) {
        let mut state = self.shared.system_call();
        if let Some(listener) = state.network.links.listener(self.number) {
            listener.signal = Some(signal.id());
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

/// Opens a control connection.
pub(crate) fn dial(
    shared: &Arc<Shared>,
    process: u32,
    (address, name): (&Address, &str),
    until: Nanos,
) -> Result<SimLink, DialError> {
    if address.scheme() != Scheme::Sim {
        return Err(DialError::WrongScheme(address.clone()));
    }
    let mut state = shared.blocking_call();
    let until = state.time_here(until);
    let start = state.now();
    let timed_out = |now: Nanos| DialError::TimedOut {
        address: address.clone(),
        after: Duration::from_nanos(now.saturating_sub(start)),
    };
    if state.over() {
        return Err(timed_out(start));
    }
    let (number, accepts_for, answered) = loop {
        let links = &mut state.network.links;
        let number = links.by_name.get(name).copied();
        let Some((number, listener)) = number.and_then(|number| Some((number, links.listener(number)?)))
        else {
            return Err(DialError::NobodyListens { address: address.clone() });
        };
        let full = listener.unaccepted.len() + listener.coming >= MAX_UNACCEPTED;
        let accepts_for = listener.process;
        let answered = state.now().max(state.cut_of_processes(process, accepts_for)) + 20 * state.travel();
        if !full && answered <= until {
            break (number, accepts_for, answered);
        }
        let waiter = state.stay(Reason::Answer);
        if full && let Some(listener) = state.network.links.listener(number) {
            listener.dialling.push_back(waiter);
        }
        state = shared.park(state, waiter, until, false).0;
        if state.now() >= until || state.over() {
            if let Some(listener) = state.network.links.listener(number) {
                listener.dialling.retain(|one| *one != waiter);
            }
            return Err(timed_out(state.now()));
        }
    };
    if let Some(listener) = state.network.links.listener(number) {
        listener.coming += 1;
    }
    let links = &mut state.network.links.links;
    let link = links.len() as u32;
    links.push(Some(Box::new([
        Side { process, ..Side::default() },
        Side { process: accepts_for, ..Side::default() },
    ])));
    for side in 0..2 {
        state.network.links.set_news(LinkSide { link, side });
    }
    let handle = SimLink::new(shared, link, 0);
    let arrives = state.link_arrival(LinkSide { link, side: 1 });
    state.schedule(arrives, Rare::Link(LinkEvent::Connection { listener: number, link }));
    let waiter = state.stay(Reason::Answer);
    drop(shared.park(state, waiter, answered, false));
    Ok(handle)
}
