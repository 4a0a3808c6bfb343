//! Listeners for control connections.

use crate::io::{Io, IoHandle, Watched};
use crate::link::{LinkShared, ShmLink};
use dunlin_fabric::door::Visitors;
use dunlin_fabric::host::RealSignal;
use dunlin_fabric::inbox::{Inbox, InboxLimits, Nothing};
use dunlin_fabric::{AcceptError, Address, Listener, Nanos};
use rustix::event::epoll::EventFlags;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Limits on the connections that wait to be accepted.
const WAITING: InboxLimits = InboxLimits { items: 1024, bytes: usize::MAX };

/// The state of a listener that the control thread and the handle share.
#[derive(Debug)]
pub(crate) struct ListenerShared {
    number: u64,
    /// `None` once it is closed. The kernel frees the name with the last descriptor, so this is the only one.
    socket: Mutex<Option<OwnedFd>>,
    io: Arc<Io>,
    /// Connections with a complete greeting.
    waiting: Inbox<Arc<LinkShared>>,
    /// The kinds of refused visitors that are logged already.
    visitors: Visitors,
}

impl ListenerShared {
    pub(crate) fn new(socket: OwnedFd, io: &Arc<Io>) -> Arc<Self> {
        Arc::new(ListenerShared {
            number: io.next_number(),
            socket: Mutex::new(Some(socket)),
            io: Arc::clone(io),
            waiting: Inbox::new(WAITING),
            visitors: Visitors::default(),
        })
    }

    pub(crate) fn visitors(&self) -> &Visitors {
        &self.visitors
    }

    /// Calls a function with the socket, unless it is closed.
    pub(crate) fn with_socket<T>(&self, use_it: impl FnOnce(&OwnedFd) -> T) -> Option<T> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(use_it)
    }

    /// Lets the control thread call `owner` when connections arrive.
    pub(crate) fn watch(&self, owner: Arc<dyn Watched>) -> io::Result<()> {
        let added = self.with_socket(|socket| self.io.add(self.number, socket, EventFlags::IN, owner));
        added.unwrap_or(Err(Errno::BADF.into()))
    }

    fn close(&self) {
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn io(&self) -> &Arc<Io> {
        &self.io
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting.is_full()
    }

    /// Queues a connection with a complete greeting.
    pub(crate) fn arrived(&self, link: Arc<LinkShared>) {
        self.waiting.push(link, 0);
    }
}

/// Listens on an abstract Unix socket, which has no name in a file system. Dropping it frees the name.
#[derive(Debug)]
pub struct ShmListener {
    shared: Arc<ListenerShared>,
    address: Address,
    io: Arc<IoHandle>,
}

impl ShmListener {
    pub(crate) fn new(shared: Arc<ListenerShared>, address: Address, io: Arc<IoHandle>) -> Self {
        ShmListener { shared, address, io }
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        self.shared.with_socket(|socket| self.shared.io.remove(self.shared.number, socket));
        self.shared.close();
        while let Ok(link) = self.shared.waiting.take(0, || {}) {
            link.close("the listener was closed before it accepted");
        }
    }
}

impl Listener for ShmListener {
    type Link = ShmLink;
    type Signal = RealSignal;

    fn accept(&self, until: Nanos) -> Result<ShmLink, AcceptError> {
        match self.shared.waiting.take(until, || {}) {
            Ok(link) => Ok(ShmLink::new(link, Arc::clone(&self.io))),
            Err(Nothing::TimedOut) => Err(AcceptError::TimedOut),
            Err(Nothing::Ended(_)) => Err(AcceptError::Closed),
        }
    }

    fn try_accept(&self) -> Result<Option<ShmLink>, AcceptError> {
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
