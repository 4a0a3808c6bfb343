//! The connection handle of a client (FLOCK section 3, table 2): its threads, and the strands that they share.
//!
//! A *strand* (`strand.rs`) is a connection with a lane, and so a queue pair, to each worker of the server: the
//! paper's queue pair. A handle opens one for each thread as long as the server grants them, and threads share
//! strands beyond that. The server ends the use of a strand by declining credits (section 5.1). Its threads then
//! move to others: a thread moves when its calls on the old strand have ended, or were given back unsent, so the
//! order of its calls is kept. A strand closes when its last thread has left.

use super::strand::{ParkerOf, Policy, Strand, Unparkers};
use crate::client::config::ClientConfig;
use crate::client::synchronous::{Client, Connector};
use crate::combine::growth::Growth;
use crate::combine::places::Places;
use crate::combine::scheduling::Scheduling;
use crate::combine::threads::SizeCounts;
use crate::error::ConnectError;
use crate::limits::MAX_SEATS;
use dunlin_fabric::{Fabric, Host, Parker, WithSources};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The threads of a client and their strands.
#[derive(Debug)]
pub(crate) struct Handle<F: Fabric, P: Policy<F>> {
    pub(crate) fabric: F,
    pub(crate) config: ClientConfig,
    connector: Connector<F>,
    table: P::Table,
    places: Arc<Places>,
    scheduling: Scheduling,
    unparkers: Arc<Unparkers<F>>,
    strands: Mutex<Strands<F, P>>,
    /// The parkers of seats that nobody has.
    parkers: Mutex<Vec<(u16, ParkerOf<F>)>>,
}

/// The strands by number. Locked when threads come, move and leave.
#[derive(Debug)]
struct Strands<F: Fabric, P: Policy<F>> {
    open: Vec<Option<Arc<Strand<F, P>>>>,
    seats: u16,
    growth: Growth,
}

/// A thread's place at a handle.
pub(crate) struct Place<F: Fabric, P: Policy<F>> {
    pub(crate) number: u16,
    pub(crate) seat: P::Seat,
    pub(crate) parker: ParkerOf<F>,
    pub(crate) strand: Arc<Strand<F, P>>,
}

impl<F: Fabric, P: Policy<F>> Handle<F, P> {
    /// Makes a handle of a connection, its first strand.
    pub(crate) fn new(client: Client<F>) -> Self {
        let (config, fabric) = (client.config().clone(), client.fabric().clone());
        let scheduling = Scheduling::new(config.thread_scheduling);
        let (table, places) = (P::table(&config), Arc::new(Places::new()));
        let unparkers: Arc<Unparkers<F>> = (0..MAX_SEATS).map(|_| OnceLock::new()).collect();
        let connector = client.connector();
        let first = P::strand(&table, 0).map(|policy| {
            Arc::new(Strand::new(client, policy, 0, (Arc::clone(&places), Arc::clone(&unparkers))))
        });
        places.activate(0);
        let strands = Strands { open: vec![first], seats: 0, growth: Growth::new() };
        Handle {
            fabric,
            config,
            connector,
            table,
            places,
            scheduling,
            unparkers,
            strands: Mutex::new(strands),
            parkers: Mutex::default(),
        }
    }

    fn strands(&self) -> MutexGuard<'_, Strands<F, P>> {
        self.strands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn parkers(&self) -> MutexGuard<'_, Vec<(u16, ParkerOf<F>)>> {
        self.parkers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that changes when a thread may have to move: [`move_on`](Handle::move_on).
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.places.epoch()
    }

    /// Returns the place where a thread counts its requests.
    pub(crate) fn counts(&self, seat: u16) -> Option<Arc<SizeCounts>> {
        self.scheduling.counts(seat)
    }

    /// Returns the number of requests between two calls of [`look`](Handle::look) by a thread.
    pub(crate) fn look_every(&self) -> u32 {
        self.scheduling.look_every()
    }

    /// Schedules the threads at the end of an interval, and lets a thread connect another strand if one is due. A thread
    /// calls this once in some requests, within a call. Does not block.
    #[cold]
    pub(crate) fn look(self: &Arc<Self>) {
        let host = self.fabric.host();
        let now = host.now();
        if P::MAX_STRANDS > 1 && self.scheduling.is_due(now) {
            self.grow_apart();
            self.scheduling.run(&self.places, now, || host.random());
        }
    }

    /// Returns whether a thread has to use another strand than `strand`.
    pub(crate) fn has_to_move(&self, seat: u16, strand: &Strand<F, P>) -> bool {
        strand.is_retired() || self.places.assigned(seat) != Some(strand.number)
    }

    /// Gives a thread a seat. May connect another strand for it, and then blocks for at most
    /// [`ClientConfig::connect_timeout`].
    ///
    /// # Errors
    /// All [`MAX_SEATS`] seats are taken.
    pub(crate) fn sit(&self) -> Result<Place<F, P>, ConnectError> {
        let Some((number, seat)) = P::sit(&self.table) else {
            let must = "at most 256 for one connection: connect another client";
            return Err(ConnectError::Setting { what: "the number of threads", value: 257, must });
        };
        let parker = {
            let mut parkers = self.parkers();
            match parkers.iter().position(|(of, _)| *of == number) {
                Some(place) => parkers.swap_remove(place).1,
                None => self.fabric.host().parker(),
            }
        };
        if let Some(place) = self.unparkers.get(usize::from(number)) {
            place.get_or_init(|| parker.unparker());
        }
        self.strands().seats += 1;
        if !self.config.lazy {
            self.grow();
        }
        let strand = self.place(number);
        Ok(Place { number, seat, parker, strand })
    }

    /// Takes back what [`sit`](Handle::sit) gave. Closes strands that no thread is left for.
    pub(crate) fn leave(&self, Place { number, seat, parker, strand }: Place<F, P>) {
        self.places.assign(number, None);
        let seats = {
            let mut strands = self.strands();
            strands.seats -= 1;
            usize::from(strands.seats)
        };
        self.places.retire_empty(seats);
        drop(strand);
        self.sweep();
        self.parkers().push((number, parker));
        P::leave(&self.table, number, seat);
    }

    /// Moves a thread, none of whose calls is under way, to the strand that it is assigned to.
    pub(crate) fn move_on(&self, seat: u16) -> Arc<Strand<F, P>> {
        let strand = self.place(seat);
        self.sweep();
        strand
    }

    /// Returns the strand that a thread is assigned to. A thread whose strand is not active gets the one with the
    /// fewest threads.
    fn place(&self, seat: u16) -> Arc<Strand<F, P>> {
        let strands = self.strands();
        let active = |strand: &u16| self.places.is_active(*strand);
        let assigned = self.places.assigned(seat).filter(active).or_else(|| self.places.emptiest());
        let number = assigned.unwrap_or_default();
        self.places.assign(seat, Some(number));
        match strands.open.get(usize::from(number)) {
            Some(Some(strand)) => Arc::clone(strand),
            _ => unreachable!("an active strand is in the table"),
        }
    }

    /// Closes the strands that are not active and that no thread uses.
    fn sweep(&self) {
        let mut closed = Vec::new();
        let mut strands = self.strands();
        for (number, place) in (0u16..).zip(&mut strands.open) {
            if place.is_some() && !self.places.is_active(number) {
                closed.extend(place.take());
            }
        }
        drop(strands);
        // The last holder of a strand closes its connection, here or when the last thread leaves it.
        drop(closed);
    }

    /// Connects another strand, if one is due. Blocks for at most [`ClientConfig::connect_timeout`].
    fn grow(&self) {
        if let Some(next) = self.next_strand() {
            // The lock is not held meanwhile: in virtual time all tasks share one system thread.
            let connected = self.connector.connect_now();
            self.connected(next, connected);
        }
    }

    /// Connects another strand on a thread that ends with it, if one is due: within a call, others wait for their ends.
    /// The thread holds no handle, which may be gone when the connection is there or has failed.
    fn grow_apart(self: &Arc<Self>) {
        let Some(next) = self.next_strand() else { return };
        let (handle, connector) = (Arc::downgrade(self), self.connector.clone());
        let connect = move || {
            let connected = connector.connect_now();
            if let Some(handle) = handle.upgrade() {
                handle.connected(next, connected);
            }
        };
        if let Err(error) = self.fabric.host().spawn("dunlin-strand", Box::new(connect)) {
            tracing::warn!(target: "dunlin::client", %error, "no thread connects a further queue pair");
            self.strands().growth.refused(self.fabric.host().now());
        }
    }

    /// Returns the number and the policy of a strand to connect, if there are more threads than strands, unless the
    /// server has refused one lately or one is being connected.
    fn next_strand(&self) -> Option<(u16, (P, P::Core))> {
        let now = self.fabric.host().now();
        let most = P::most_strands(&self.config);
        let mut strands = self.strands();
        let active = self.places.active().count();
        if !strands.growth.is_due(active, strands.seats.min(most), now) {
            return None;
        }
        let vacant = |number: &u16| !matches!(strands.open.get(usize::from(*number)), Some(Some(_)));
        let free = (0..most).filter(vacant).find_map(|n| Some((n, P::strand(&self.table, n)?)));
        if free.is_some() {
            strands.growth.begin();
        }
        free
    }

    /// Adds a strand, over which the threads that are there are spread, or waits before another one is asked for.
    fn connected(&self, (number, policy): (u16, (P, P::Core)), connected: Result<Client<F>, ConnectError>) {
        let mut strands = self.strands();
        match connected {
            Ok(client) => {
                let shared = (Arc::clone(&self.places), Arc::clone(&self.unparkers));
                let strand = Arc::new(Strand::new(client, policy, number, shared));
                if strands.open.len() <= usize::from(number) {
                    strands.open.resize_with(usize::from(number) + 1, || None);
                }
                strands.open[usize::from(number)] = Some(strand);
                strands.growth.granted();
                self.places.activate(number);
            }
            Err(error) => {
                tracing::debug!(target: "dunlin::client", error = %WithSources(&error), "no further queue pair is granted");
                strands.growth.refused(self.fabric.host().now());
            }
        }
    }
}
