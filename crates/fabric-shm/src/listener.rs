//! Where control connections arrive.

use crate::io::{Io, IoHandle};
use crate::link::{LinkShared, ShmLink};
use dunlin_fabric::host::RealSignal;
use dunlin_fabric::{AcceptError, Address, Host, Listener, Nanos, RealHost, Signal};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Connections that may wait to be accepted.
const WAITING: usize = 1024;

#[derive(Debug, Default)]
struct Waiting {
    links: VecDeque<Arc<LinkShared>>,
    signal: Option<RealSignal>,
}

/// What the control thread and the handle share of a listener.
#[derive(Debug)]
pub(crate) struct ListenerShared {
    number: u64,
    /// `None` once it is closed: the kernel frees the name with the last descriptor, so only one place has it.
    socket: Mutex<Option<OwnedFd>>,
    io: Arc<Io>,
    waiting: Mutex<Waiting>,
    came: Condvar,
}

impl ListenerShared {
    pub(crate) fn new(socket: OwnedFd, io: &Arc<Io>) -> Arc<Self> {
        Arc::new(ListenerShared {
            number: io.next_number(),
            socket: Mutex::new(Some(socket)),
            io: Arc::clone(io),
            waiting: Mutex::default(),
            came: Condvar::new(),
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Does something with the socket, unless it is closed.
    pub(crate) fn with_socket<T>(&self, use_it: impl FnOnce(&OwnedFd) -> T) -> Option<T> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(use_it)
    }

    fn close(&self) {
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn io(&self) -> &Arc<Io> {
        &self.io
    }

    pub(crate) fn is_full(&self) -> bool {
        self.waiting().links.len() >= WAITING
    }

    /// A greeted connection.
    pub(crate) fn arrived(&self, link: Arc<LinkShared>) {
        let signal = {
            let mut waiting = self.waiting();
            waiting.links.push_back(link);
            waiting.signal.clone()
        };
        self.came.notify_one();
        if let Some(signal) = signal {
            signal.raise();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens on an abstract Unix socket; nothing in a file system. Dropping it frees the name.
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
        self.io.io().drop_listener(&self.shared);
        self.shared.close();
        for link in std::mem::take(&mut self.shared.waiting().links) {
            self.io.io().drop_link(&link, "the listener was closed before it accepted");
        }
    }
}

impl Listener for ShmListener {
    type Link = ShmLink;
    type Signal = RealSignal;

    fn accept(&self, until: Nanos) -> Result<ShmLink, AcceptError> {
        let mut waiting = self.shared.waiting();
        loop {
            if let Some(link) = waiting.links.pop_front() {
                return Ok(ShmLink::new(link, Arc::clone(&self.io)));
            }
            let left = until.saturating_sub(RealHost.now());
            if left == 0 {
                return Err(AcceptError::TimedOut);
            }
            waiting = self
                .shared
                .came
                .wait_timeout(waiting, Duration::from_nanos(left))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn try_accept(&self) -> Result<Option<ShmLink>, AcceptError> {
        let link = self.shared.waiting().links.pop_front();
        Ok(link.map(|l| ShmLink::new(l, Arc::clone(&self.io))))
    }

    fn subscribe(&self, signal: RealSignal) {
        let news = {
            let mut waiting = self.shared.waiting();
            waiting.signal = Some(signal.clone());
            !waiting.links.is_empty()
        };
        if news {
            signal.raise();
        }
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}
