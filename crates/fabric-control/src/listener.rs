//! Listeners for control connections, over any kind of socket.

use crate::backend::lock;
use crate::reactor::{Reactor, Watched};
use dunlin_fabric::door::{self, Visitors};
use dunlin_fabric::host::RealSignal;
use dunlin_fabric::inbox::{Inbox, InboxLimits, Nothing};
use dunlin_fabric::{AcceptError, Address, Host, Link, Listener, Nanos, RealHost};
use rustix::event::epoll::EventFlags;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};

/// Limits on the connections that wait to be accepted.
const WAITING: InboxLimits = InboxLimits { items: 1024, bytes: usize::MAX };
/// The maximum number of connections of a fabric that may be in their greeting at once.
const MAX_GREETINGS: usize = 256;
/// The rest, in nanoseconds, after an `accept` that found no room in the process.
const REST: Nanos = 20_000_000;

/// The state of a listener that the control thread and the handle share: `S` is its socket, `L` its connections.
#[derive(Debug)]
pub struct ListenerShared<S, L> {
    number: u64,
    reactor: Arc<Reactor>,
    /// `None` once it is closed. The kernel frees the address with the last descriptor, so this is the only one.
    socket: Mutex<Option<S>>,
    /// Connections with a complete greeting.
    waiting: Inbox<L>,
    /// The kinds of refused visitors that are logged already.
    visitors: Visitors,
}

impl<S: AsFd, L> ListenerShared<S, L> {
    /// Makes the state of a listener whose socket does not block.
    pub fn new(socket: S, reactor: &Arc<Reactor>) -> Arc<Self> {
        Arc::new(ListenerShared {
            number: reactor.next_number(),
            reactor: Arc::clone(reactor),
            socket: Mutex::new(Some(socket)),
            waiting: Inbox::new(WAITING),
            visitors: Visitors::default(),
        })
    }

    /// Calls a function with the socket, unless it is closed.
    fn with_socket<T>(&self, use_it: impl FnOnce(&S) -> T) -> Option<T> {
        lock(&self.socket).as_ref().map(use_it)
    }

    /// Lets the control thread call `owner` when connections arrive.
    pub fn watch(&self, owner: Arc<dyn Watched>) -> io::Result<()> {
        let added = self.with_socket(|socket| self.reactor.add(self.number, socket, EventFlags::IN, owner));
        added.unwrap_or(Err(Errno::BADF.into()))
    }

    /// Returns whether no further visitor may begin its greeting: too many are in theirs, or wait to be accepted.
    pub fn is_full(&self) -> bool {
        self.waiting.is_full() || self.reactor.timed() >= MAX_GREETINGS
    }

    /// Queues a connection with a complete greeting.
    pub fn arrived(&self, link: L) {
        self.waiting.push(link, 0);
    }

    /// Accepts all connections that have arrived, and gives each to `visit`. Called by the control thread.
    pub fn accept_each<C>(&self, accept: impl Fn(&S) -> io::Result<C>, mut visit: impl FnMut(C)) {
        loop {
            let Some(accepted) = self.with_socket(&accept) else { return };
            match accepted {
                Ok(connection) => visit(connection),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => {
                        tracing::warn!(%error, "cannot accept a control connection; raise `ulimit -n`?");
                        // Most likely out of descriptors. The socket stays readable, so rest instead of spinning.
                        RealHost.sleep(RealHost.now() + REST);
                        return;
                    }
                },
            }
        }
    }

    /// Logs a visitor that has sent `words`, which are no greeting of this fabric, the first of each kind as a
    /// warning. Returns `text` in the visitor's protocol, or nothing for a protocol without answers.
    pub fn refusal(&self, words: &[u8], (place, text): (&str, &str), peer: &dyn Debug) -> Vec<u8> {
        let visitor = door::described(words);
        if self.visitors.is_first(words) {
            tracing::warn!(?peer, "{visitor} came to {place} and is refused: {text}");
        } else {
            tracing::debug!(?peer, "{visitor} came to {place} and is refused");
        }
        door::refusal(words, text)
    }
}

/// Listens for control connections. Dropping it frees the address, and ends the connections that were not accepted.
#[derive(Debug)]
pub struct ControlListener<S: AsFd, L> {
    shared: Arc<ListenerShared<S, L>>,
    address: Address,
    /// Keeps the control thread running.
    _owner: Arc<dyn Debug + Send + Sync>,
}

impl<S: AsFd, L> ControlListener<S, L> {
    /// Makes the handle of a listener that the control thread watches. `owner` keeps that thread running.
    pub fn new(
        shared: Arc<ListenerShared<S, L>>,
        address: Address,
        owner: Arc<dyn Debug + Send + Sync>,
    ) -> Self {
        ControlListener { shared, address, _owner: owner }
    }
}

impl<S: AsFd, L> Drop for ControlListener<S, L> {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.with_socket(|socket| shared.reactor.remove(shared.number, socket));
        *lock(&shared.socket) = None;
        while shared.waiting.take(0, || {}).is_ok() {}
    }
}

impl<S, L> Listener for ControlListener<S, L>
where
    S: AsFd + Debug + Send + Sync + 'static,
    L: Link<Signal = RealSignal>,
{
    type Link = L;
    type Signal = RealSignal;

    fn accept(&self, until: Nanos) -> Result<L, AcceptError> {
        self.shared.waiting.take(until, || {}).map_err(|nothing| match nothing {
            Nothing::TimedOut => AcceptError::TimedOut,
            Nothing::Ended(_) => AcceptError::Closed,
        })
    }

    fn try_accept(&self) -> Result<Option<L>, AcceptError> {
        match self.accept(0) {
            Err(AcceptError::TimedOut) => Ok(None),
            other => other.map(Some),
        }
    }

    fn subscribe(&self, signal: RealSignal) {
        self.shared.waiting.subscribe(signal.into());
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}
