//! The connection of an asynchronous client: connecting, connecting again, closing.

use super::AsyncHub;
use super::hub::Dropped;
use super::route::Route;
use crate::client::config::ClientConfig;
use crate::client::establish::{greet, negotiate};
use crate::client::lanes::Lanes;
use crate::client::memory::{Attached, RegionNames};
use crate::connect::backoff::Backoff;
use crate::connect::records::{receive, send};
use crate::error::ConnectError;
use crate::plan::{CompletionMode, Occupancy};
use crate::tune::Tuners;
use dunlin_fabric::{Address, Fabric, Host, Nanos, WithSources, nanos};
use dunlin_wire::handshake::{Attach, Grant, Record};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of the attempts to connect. Its lock is held for a few instructions, and not taken by calls that have a
/// connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    /// Lanes that were replaced and still have calls.
    old: Vec<u16>,
    pub(super) backoff: Backoff,
    /// A thread is connecting.
    pub(super) connecting: bool,
    /// The threads and cores of the server's host when the client connected, if the server stated them.
    pub(super) occupancy: Option<Occupancy>,
}

#[derive(Debug)]
pub(super) struct Connection<F: Fabric> {
    pub(super) hub: AsyncHub<F>,
    address: Address,
    pub(super) config: ClientConfig,
    /// [`ClientConfig::timeout`] in nanoseconds; 0 for none.
    pub(super) timeout: Nanos,
    /// The tuners shared by all connections.
    pub(super) tuners: Tuners,
    /// Futures wake themselves because the plan is busy.
    pub(super) busy: bool,
    /// The number of the connection in its hub.
    pub(super) number: u32,
    pub(super) workers: AtomicUsize,
    /// The attempts to connect that have ended.
    pub(super) attempts: AtomicU64,
    /// The regions of the server that its clients have attached.
    pub(super) regions: RegionNames,
    /// Reused for operations on memory.
    pub(super) payload: Mutex<Vec<u8>>,
    state: Mutex<ConnectionState>,
}

impl<F: Fabric> Connection<F> {
    /// Makes a connection without lanes.
    pub(super) fn new(hub: &AsyncHub<F>, address: &Address, config: ClientConfig) -> Self {
        let state = ConnectionState {
            old: Vec::new(),
            backoff: Backoff::new(config.backoff),
            connecting: false,
            occupancy: None,
        };
        let inner = hub.inner();
        let number = {
            let mut lead = inner.lead();
            let route = Some(Route::new(Lanes::new(&config)));
            match lead.routes.iter().position(Option::is_none) {
                Some(number) => {
                    lead.routes[number] = route;
                    number
                }
                None => {
                    lead.routes.push(route);
                    lead.routes.len() - 1
                }
            }
        };
        Connection {
            hub: hub.clone(),
            address: address.clone(),
            busy: config.mode() == CompletionMode::Busy,
            tuners: config.tuners(&inner.fabric),
            timeout: config.call_nanos(),
            config,
            number: number as u32,
            workers: AtomicUsize::new(0),
            attempts: AtomicU64::new(0),
            regions: RegionNames::default(),
            payload: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects. Blocks, but has the lead only during the short steps.
    pub(super) fn establish(&self) -> Result<(), ConnectError> {
        let inner = self.hub.inner();
        let until = inner.fabric.host().now().saturating_add(nanos(self.config.connect_timeout));
        let greeting = greet(&inner.fabric, &self.address, &self.config, until)?;
        let prepared = inner.lead().core.prepare(&greeting, &self.config, &self.tuners)?;
        match negotiate(&greeting, &prepared, until) {
            Ok(ready) => {
                let mut others = Vec::new();
                let grants = match self.attach_again(&greeting.link, &mut others, until) {
                    Ok(grants) => grants,
                    Err(error) => {
                        inner.lead().core.discard(prepared);
                        return Err(error);
                    }
                };
                let mut lead = inner.lead();
                let lanes = lead.core.install(&greeting, &self.config, prepared, &ready, &self.tuners)?;
                let connection =
                    lanes.first().and_then(|lane| lead.core.lane(*lane)).map(|lane| lane.connection);
                let session = connection.unwrap_or_default();
                others.iter().for_each(|record| lead.core.on_record(session, record));
                if let Some(Some(route)) = lead.routes.get_mut(self.number as usize) {
                    route.attached.clear();
                    for (region, grant) in (0..).zip(grants) {
                        route.attach(region, Attached::of(session.into(), grant));
                    }
                    route.lanes.set(lanes, self.config.plans().len());
                    self.workers.store(route.workers(), Ordering::Relaxed);
                }
                drop(lead);
                self.state().occupancy = greeting.occupancy();
                Ok(())
            }
            Err(error) => {
                inner.lead().core.discard(prepared);
                Err(error)
            }
        }
    }

    /// Attaches the regions of earlier connections, on one whose records nobody else receives yet. Adds the records about
    /// lanes to `others`.
    fn attach_again(
        &self,
        link: &F::Link,
        others: &mut Vec<Record>,
        until: Nanos,
    ) -> Result<Vec<Grant>, ConnectError> {
        let names = self.regions.all();
        for name in &names {
            send(link, &Record::Attach(Attach { name: (**name).to_owned() }))?;
        }
        let mut grants = Vec::with_capacity(names.len());
        while grants.len() < names.len() {
            match receive(link, until)? {
                Record::Grant(grant) => grants.push(grant),
                other => others.push(other),
            }
        }
        Ok(grants)
    }

    /// Takes the lanes out of use that a new connection replaces. Returns whether it is needed: not if another thread
    /// has connected since, unless the connection is `drained`.
    fn retire(&self, drained: bool) -> bool {
        let mut lead = self.hub.inner().lead();
        if !drained && lead.is_connected(self.number) {
            return false;
        }
        let mut old = std::mem::take(&mut self.state().old);
        if let Some(Some(route)) = lead.routes.get_mut(self.number as usize) {
            old.append(&mut route.lanes.take());
        }
        self.workers.store(0, Ordering::Relaxed);
        // May read control connections, which is allowed to the thread that leads.
        old.retain(|lane| !lead.retire_lane(*lane));
        lead.send();
        drop(lead);
        self.state().old = old;
        true
    }

    /// Starts to reconnect on a new thread if `lost`, unless one is already connecting, the back-off forbids it, or
    /// another thread has connected since this one found no connection.
    pub(super) fn reconnect_if(self: &Arc<Self>, lost: bool) {
        if lost {
            self.reconnect(false);
        }
    }

    /// As [`reconnect_if`](Connection::reconnect_if); also replaces a connection that accepts calls, if it is `drained`.
    #[cold]
    pub(super) fn reconnect(self: &Arc<Self>, drained: bool) {
        let host = self.hub.inner().fabric.host();
        {
            let mut state = self.state();
            if state.connecting || !state.backoff.is_due(host.now()) {
                return;
            }
            state.connecting = true;
        }
        let connection = Arc::clone(self);
        let body = Box::new(move || connection.connect_again(drained));
        if let Err(error) = host.spawn("dunlin-connect", body) {
            tracing::error!(target: "dunlin::client", %error, "no thread to connect again");
            self.state().connecting = false;
        }
    }

    /// The body of the thread that connects again.
    fn connect_again(&self, drained: bool) {
        let inner = self.hub.inner();
        if self.retire(drained) {
            let established = self.establish();
            let host = inner.fabric.host();
            let mut state = self.state();
            match established {
                Ok(()) => state.backoff.succeeded(),
                Err(error) => {
                    state.backoff.failed(host.now(), host.random());
                    let (address, failures) = (&self.address, state.backoff.failures());
                    // One line for each outage says why.
                    match failures {
                        1 => {
                            tracing::warn!(target: "dunlin::client", %address, error = %WithSources(&error), "no connection; the client connects again with back-off")
                        }
                        _ => {
                            tracing::debug!(target: "dunlin::client", %address, error = %WithSources(&error), failures, "no connection")
                        }
                    }
                }
            }
        }
        self.state().connecting = false;
        self.attempts.fetch_add(1, Ordering::SeqCst);
        inner.tell_unready();
    }
}

impl<F: Fabric> Drop for Connection<F> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (number, old) = (self.number, std::mem::take(&mut state.old));
        self.hub.inner().close(Dropped { number, old });
    }
}
