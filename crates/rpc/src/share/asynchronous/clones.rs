//! The clones of an asynchronous client that share queue pairs: their places, and when a further queue pair is opened
//! (FLOCK section 3, table 2).
//!
//! A clone takes its place when it is made, and counts as a thread of the client from its first look at the clock on,
//! some thousand requests later. So a program that clones the client for each call opens no queue pairs by it.

use super::connection::Connection;
use super::hub::Dropped;
use super::strands::Strands;
use crate::combine::growth::Growth;
use crate::limits::{MAX_SEATS, MAX_STRANDS};
use crate::share::most_strands;
use dunlin_fabric::{Fabric, Host, Nanos, WithSources};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The state that the clones of a client share.
#[derive(Debug)]
pub(super) struct Handle<F: Fabric> {
    strands: Arc<Strands>,
    /// The connection of each strand, from the first time on that it is opened.
    connections: Box<[OnceLock<Arc<Connection<F>>>]>,
    /// The clones that count as threads.
    counted: AtomicUsize,
    state: Mutex<State>,
}

/// Locked when clones come and go, and when a strand is opened.
#[derive(Debug)]
struct State {
    vacant: Vec<u16>,
    growth: Growth,
}

/// A clone's place. The calls of the clone hold it, too.
#[derive(Debug)]
pub(super) struct Seat<F: Fabric> {
    handle: Arc<Handle<F>>,
    /// Its number in the client.
    number: u16,
    /// Its number in the hub.
    pub(super) clone: u32,
    is_counted: AtomicBool,
    /// Requests until the next look at the clock.
    until_look: AtomicU32,
}

impl<F: Fabric> Handle<F> {
    /// Makes the handle of a client with its first strand, which is active from the start.
    pub(super) fn new(first: &Arc<Connection<F>>, strands: Arc<Strands>) -> Self {
        let connections: Box<[_]> = (0..MAX_STRANDS).map(|_| OnceLock::new()).collect();
        if let Some(place) = connections.first() {
            place.get_or_init(|| Arc::clone(first));
        }
        strands.places.activate(0);
        let state = State { vacant: (0..MAX_SEATS).rev().collect(), growth: Growth::new() };
        Handle { strands, connections, counted: AtomicUsize::new(0), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self, strand: u16) -> Option<&Arc<Connection<F>>> {
        self.connections.get(usize::from(strand))?.get()
    }

    /// Returns the first connection, by which the client is named.
    fn first(&self) -> &Arc<Connection<F>> {
        match self.connection(0) {
            Some(first) => first,
            None => unreachable!("a handle is made of its first connection"),
        }
    }

    /// Gives a clone its place; `None` if all are taken.
    pub(super) fn sit(self: &Arc<Self>) -> Option<Seat<F>> {
        let number = self.state().vacant.pop()?;
        let Some(clone) = self.first().hub.inner().clones.enter(&self.strands, number) else {
            self.state().vacant.push(number);
            return None;
        };
        self.strands.places.assign(number, Some(self.strands.places.emptiest().unwrap_or_default()));
        let until_look = AtomicU32::new(self.strands.scheduling.look_every());
        Some(Seat { handle: Arc::clone(self), number, clone, is_counted: AtomicBool::new(false), until_look })
    }

    /// Opens a further strand on a thread of its own, if more clones count than there are strands, and one is due.
    fn grow(self: &Arc<Self>, now: Nanos) {
        let first = self.first();
        let most = most_strands::<F>(&first.config);
        let counted = self.counted.load(Ordering::Relaxed).min(usize::from(most)) as u16;
        let active = self.strands.places.active().count();
        let mut state = self.state();
        if !state.growth.is_due(active, counted, now) {
            return;
        }
        let is_vacant = |strand: &u16| {
            !self.strands.places.is_active(*strand)
                && self.connection(*strand).is_none_or(|connection| connection.begin_to_connect())
        };
        let Some(strand) = (0..most).find(is_vacant) else { return };
        state.growth.begin();
        drop(state);
        // The thread holds neither the handle nor its first connection, which close with the last clone.
        let (handle, known) = (Arc::downgrade(self), self.connection(strand).map(Arc::clone));
        let (further, strands, hub) = (first.further(), Arc::clone(&self.strands), first.hub.clone());
        let connect = move || {
            let connection =
                known.unwrap_or_else(|| Arc::new(Connection::new(&hub, further, Some((strands, strand)))));
            let established = connection.establish();
            connection.end_to_connect();
            if let Some(handle) = handle.upgrade() {
                if let Some(place) = handle.connections.get(usize::from(strand)) {
                    place.get_or_init(|| connection);
                }
                let mut state = handle.state();
                match established {
                    Ok(()) => state.growth.granted(),
                    Err(error) => {
                        tracing::debug!(target: "dunlin::client", error = %WithSources(&error), "no further queue pair is granted");
                        state.growth.refused(hub.fabric().host().now());
                    }
                }
            }
            // Tasks that wait for a broken strand have another one.
            hub.inner().tell_unready();
        };
        if let Err(error) = first.hub.fabric().host().spawn("dunlin-strand", Box::new(connect)) {
            tracing::warn!(target: "dunlin::client", %error, "no thread connects a further queue pair");
            self.connection(strand).into_iter().for_each(|connection| connection.end_to_connect());
            self.state().growth.refused(now);
        }
    }
}

impl<F: Fabric> Seat<F> {
    /// Returns the place of another clone: this one's, if all others are taken.
    pub(super) fn another(self: &Arc<Self>) -> Arc<Self> {
        self.handle.sit().map_or_else(|| Arc::clone(self), Arc::new)
    }

    /// Returns the connection of the clone's strand; `None` while it is being opened.
    pub(super) fn connection(&self) -> Option<&Arc<Connection<F>>> {
        self.handle.connection(self.handle.strands.strand_of(self.number))
    }

    #[cfg(test)]
    pub(super) fn strands(&self) -> &Strands {
        &self.handle.strands
    }

    /// Assigns the clone to another active strand than its own, and puts off the next scheduling.
    #[cfg(test)]
    pub(super) fn move_by_hand(&self) {
        let places = &self.handle.strands.places;
        self.until_look.store(u32::MAX, Ordering::Relaxed);
        let other = places.active().find(|strand| Some(*strand) != places.assigned(self.number));
        places.assign(self.number, other);
    }

    /// Counts a request. Once in some requests, schedules the clones at the end of an interval, and opens a further
    /// strand if one is due. Does not block.
    #[inline]
    pub(super) fn requested(&self) {
        // Of threads that use one clone together, some may look twice.
        if self.until_look.fetch_sub(1, Ordering::Relaxed) <= 1 {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        let (handle, strands) = (&self.handle, &self.handle.strands);
        self.until_look.store(strands.scheduling.look_every(), Ordering::Relaxed);
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            handle.counted.fetch_add(1, Ordering::Relaxed);
        }
        let host = handle.first().hub.fabric().host();
        let now = host.now();
        if strands.scheduling.is_due(now) {
            handle.grow(now);
            strands.scheduling.run(&strands.places, now, || host.random());
        }
    }
}

impl<F: Fabric> Drop for Seat<F> {
    fn drop(&mut self) {
        let (handle, strands) = (&self.handle, &self.handle.strands);
        let inner = handle.first().hub.inner();
        strands.places.assign(self.number, None);
        inner.clones.leave(self.clone);
        let own = usize::from(*self.is_counted.get_mut());
        let counted = handle.counted.fetch_sub(own, Ordering::Relaxed).saturating_sub(own);
        let before = strands.places.active().count();
        strands.places.retire_empty(counted.max(1));
        if strands.places.active().count() < before {
            inner.close(Dropped::Strands(Arc::clone(strands)));
        }
        handle.state().vacant.push(self.number);
    }
}
