//! Listeners for control connections.

use crate::backend::{Backend, lock};
use crate::io::{Control, Io};
use crate::link::{LinkShared, TcpLink};
use dunlin_fabric::door::Visitors;
use dunlin_fabric::host::RealSignal;
use dunlin_fabric::inbox::{Inbox, InboxLimits, Nothing};
use dunlin_fabric::{AcceptError, Address, Listener, Nanos};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// Limits on the connections that wait to be accepted.
const WAITING: InboxLimits = InboxLimits { items: 1024, bytes: usize::MAX };

/// The state of a listener that the control thread and the handle share.
#[derive(Debug)]
pub(crate) struct ListenerShared<B: Backend> {
    number: u64,
    /// `None` once it is closed. The kernel frees the port with the last descriptor, so this is the only one.
    socket: Mutex<Option<TcpListener>>,
    /// Connections with a complete greeting.
    waiting: Inbox<Arc<LinkShared<B>>>,
    /// The kinds of refused visitors that are logged already.
    visitors: Visitors,
}

impl<B: Backend> ListenerShared<B> {
    pub(crate) fn new(socket: TcpListener, io: &Io<B>) -> Arc<Self> {
        let (number, waiting) = (io.next_number(), Inbox::new(WAITING));
        let (socket, visitors) = (Mutex::new(Some(socket)), Visitors::default());
        Arc::new(ListenerShared { number, socket, waiting, visitors })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn visitors(&self) -> &Visitors {
        &self.visitors
    }

    /// Calls a function with the socket, unless it is closed.
    pub(crate) fn with_socket<T>(&self, use_it: impl FnOnce(&TcpListener) -> T) -> Option<T> {
        lock(&self.socket).as_ref().map(use_it)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting.is_full()
    }

    /// Queues a connection with a complete greeting.
    pub(crate) fn arrived(&self, link: Arc<LinkShared<B>>) {
        self.waiting.push(link, 0);
    }
}

/// Listens on a TCP port. Dropping it frees the port.
#[derive(Debug)]
pub struct TcpControlListener<B: Backend> {
    shared: Arc<ListenerShared<B>>,
    address: Address,
    io: Arc<Control<B>>,
}

impl<B: Backend> TcpControlListener<B> {
    pub(crate) fn new(shared: Arc<ListenerShared<B>>, address: Address, io: Arc<Control<B>>) -> Self {
        TcpControlListener { shared, address, io }
    }
}

impl<B: Backend> Drop for TcpControlListener<B> {
    fn drop(&mut self) {
        self.io.io().drop_listener(&self.shared);
        *lock(&self.shared.socket) = None;
        while let Ok(link) = self.shared.waiting.take(0, || {}) {
            self.io.io().drop_link(&link, "the listener was closed before it accepted");
        }
    }
}

impl<B: Backend> Listener for TcpControlListener<B> {
    type Link = TcpLink<B>;
    type Signal = RealSignal;

    fn accept(&self, until: Nanos) -> Result<TcpLink<B>, AcceptError> {
        match self.shared.waiting.take(until, || {}) {
            Ok(link) => Ok(TcpLink::new(link, Arc::clone(&self.io))),
            Err(Nothing::TimedOut) => Err(AcceptError::TimedOut),
            Err(Nothing::Ended(_)) => Err(AcceptError::Closed),
        }
    }

    fn try_accept(&self) -> Result<Option<TcpLink<B>>, AcceptError> {
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
