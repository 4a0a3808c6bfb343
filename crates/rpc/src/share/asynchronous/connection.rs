//! The connection of an asynchronous client: connecting, connecting again, closing.

use super::AsyncHub;
use super::hub::Dropped;
use super::route::Route;
use super::strands::Strands;
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
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of the attempts to connect. Its lock is held for a few instructions, and not taken by calls that have a
/// connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    pub(super) backoff: Backoff,
    /// A thread is connecting.
    pub(super) connecting: bool,
    /// The threads and cores of the server's host when the client connected, if the server stated them.
    pub(super) occupancy: Option<Occupancy>,
}

/// The address and the settings that all connections of a client have.
#[derive(Clone, Debug)]
pub(super) struct Target {
    address: Address,
    pub(super) config: ClientConfig,
    /// The tuners shared by all connections.
    pub(super) tuners: Tuners,
    /// The regions of the server that its clients have attached.
    pub(super) regions: RegionNames,
}

impl Target {
    pub(super) fn new<F: Fabric>(fabric: &F, address: &Address, config: ClientConfig) -> Self {
        let (address, tuners) = (address.clone(), config.tuners(fabric));
        Target { address, config, tuners, regions: RegionNames::default() }
    }
}

#[derive(Debug)]
pub(super) struct Connection<F: Fabric> {
    pub(super) hub: AsyncHub<F>,
    target: Target,
    /// [`ClientConfig::timeout`] in nanoseconds; 0 for none.
    pub(super) timeout: Nanos,
    /// Futures wake themselves because the plan is busy.
    pub(super) busy: bool,
    /// The number of the connection in its hub.
    pub(super) number: u32,
    pub(super) workers: AtomicUsize,
    /// The attempts to connect that have ended.
    pub(super) attempts: AtomicU64,
    /// Reused for operations on memory.
    pub(super) payload: Mutex<Vec<u8>>,
    state: Mutex<ConnectionState>,
}

impl<F: Fabric> Deref for Connection<F> {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.target
    }
}

impl<F: Fabric> Connection<F> {
    /// Makes a connection without lanes: of a client with one connection, or a strand.
    pub(super) fn new(hub: &AsyncHub<F>, target: Target, strand: Option<(Arc<Strands>, u16)>) -> Self {
        let state = ConnectionState {
            backoff: Backoff::new(target.config.backoff),
            connecting: false,
            occupancy: None,
        };
        let inner = hub.inner();
        let number = {
            let mut lead = inner.lead();
            let route = Some(Route::new(Lanes::new(&target.config), strand.clone()));
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
        if let Some((strands, strand)) = strand {
            strands.enter(strand, number as u32);
        }
        Connection {
            hub: hub.clone(),
            busy: target.config.mode() == CompletionMode::Busy,
            timeout: target.config.call_nanos(),
            target,
            number: number as u32,
            workers: AtomicUsize::new(0),
            attempts: AtomicU64::new(0),
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
                let (mut grants, mut others) = (Vec::new(), Vec::new());
                let mut lead = loop {
                    if let Err(error) = self.attach_again(&greeting.link, &mut grants, &mut others, until) {
                        inner.lead().core.discard(prepared);
                        return Err(error);
                    }
                    let lead = inner.lead();
                    // From here on a task that attaches a region finds this connection.
                    if grants.len() >= self.regions.all().len() {
                        break lead;
                    }
                };
                lead.close_lanes(self.number);
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
                    if let Some((strands, strand)) = &route.strand {
                        strands.places.activate(*strand);
                    }
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

    /// Attaches the regions of earlier connections beyond those in `grants`, on one whose records nobody else receives
    /// yet. Adds the records about lanes to `others`.
    fn attach_again(
        &self,
        link: &F::Link,
        grants: &mut Vec<Grant>,
        others: &mut Vec<Record>,
        until: Nanos,
    ) -> Result<(), ConnectError> {
        let names = self.regions.all();
        for name in names.iter().skip(grants.len()) {
            send(link, &Record::Attach(Attach { name: (**name).to_owned() }))?;
        }
        while grants.len() < names.len() {
            match receive(link, until)? {
                Record::Grant(grant) => grants.push(grant),
                other => others.push(other),
            }
        }
        Ok(())
    }

    /// Takes the lanes out of use that a new connection replaces. Returns whether it is needed: not if another thread
    /// has connected since, unless the connection is `drained`.
    fn retire(&self, drained: bool) -> bool {
        let mut lead = self.hub.inner().lead();
        if !drained && lead.is_connected(self.number) {
            return false;
        }
        self.workers.store(0, Ordering::Relaxed);
        lead.close_lanes(self.number);
        lead.send();
        true
    }

    /// Returns the target of a further connection of the same client.
    pub(super) fn further(&self) -> Target {
        self.target.clone()
    }

    /// Notes that a thread connects. Returns false if another one does.
    pub(super) fn begin_to_connect(&self) -> bool {
        !std::mem::replace(&mut self.state().connecting, true)
    }

    /// Notes that the thread has connected, or failed.
    pub(super) fn end_to_connect(&self) {
        self.state().connecting = false;
        self.attempts.fetch_add(1, Ordering::SeqCst);
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
        self.end_to_connect();
        inner.tell_unready();
    }
}

impl<F: Fabric> Drop for Connection<F> {
    fn drop(&mut self) {
        self.hub.inner().close(Dropped::Connection(self.number));
    }
}
