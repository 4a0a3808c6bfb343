//! The strands of an asynchronous client whose clones share queue pairs (FLOCK sections 3 and 5), as the thread that
//! leads sees them.
//!
//! A strand is a connection with a lane to each worker: a route of the hub. All strands lie behind one lead, so the
//! leader alone decides which strand a call takes, and moves the clones. A clone moves when none of its calls is under
//! way on the old strand, and none is held for room there. Its later calls wait in a queue of the clone until then, so
//! that the order of its calls to each worker is kept.

use super::hub::Engine;
use super::ticket::{Extra, Tickets};
use crate::client::memory::request_bytes;
use crate::combine::places::Places;
use crate::combine::scheduling::Scheduling;
use crate::combine::threads::SizeCounts;
use crate::combine::tickets::{Side, TicketId};
use crate::limits::MAX_STRANDS;
use dunlin_fabric::Fabric;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The clone of a call whose client has one connection.
pub(super) const NO_CLONE: u32 = u32::MAX;
/// The route of a strand that was never opened.
const NO_ROUTE: u32 = u32::MAX;
/// The most clones of all clients of a hub that are scheduled.
const MAX_CLONES: usize = 0xffff;

/// The queue of calls that are held until a lane has room.
pub(super) const fn queue_of_lane(lane: u16) -> usize {
    2 * lane as usize
}

/// Returns whether a queue is one of a lane.
pub(super) const fn is_of_lane(queue: usize) -> bool {
    queue.is_multiple_of(2)
}

/// The queue of calls that wait until their clone moves.
pub(super) const fn queue_of_clone(clone: u32) -> usize {
    2 * place_of(clone) + 1
}

/// The place of a clone in the tables of the hub. The upper half of its number changes with each use of the place.
const fn place_of(clone: u32) -> usize {
    (clone & 0xffff) as usize
}

/// The strands of a client, and which of them each clone uses.
#[derive(Debug)]
pub(super) struct Strands {
    pub(super) places: Places,
    pub(super) scheduling: Scheduling,
    /// The routes of the strands.
    routes: Box<[AtomicU32]>,
}

impl Strands {
    pub(super) fn new(interval: Option<Duration>) -> Self {
        let routes = (0..MAX_STRANDS).map(|_| AtomicU32::new(NO_ROUTE)).collect();
        Strands { places: Places::new(), scheduling: Scheduling::new(interval), routes }
    }

    /// Enters the route of a strand.
    pub(super) fn enter(&self, strand: u16, route: u32) {
        if let Some(place) = self.routes.get(usize::from(strand)) {
            place.store(route, Ordering::Relaxed);
        }
    }

    /// Returns the route of a strand that was opened before.
    fn route(&self, strand: u16) -> Option<u32> {
        let route = self.routes.get(usize::from(strand))?.load(Ordering::Relaxed);
        (route != NO_ROUTE).then_some(route)
    }

    /// Returns the routes of the strands that are active, or of those that are not.
    pub(super) fn routes(&self, active: bool) -> impl Iterator<Item = u32> {
        (0..MAX_STRANDS)
            .filter(move |strand| self.places.is_active(*strand) == active)
            .filter_map(|strand| self.route(strand))
    }

    /// Returns the strand of a clone: the active one that it is assigned to, or the one with the fewest clones.
    pub(super) fn strand_of(&self, number: u16) -> u16 {
        let assigned = self.places.assigned(number).filter(|strand| self.places.is_active(*strand));
        assigned.or_else(|| self.places.emptiest()).unwrap_or_default()
    }

    /// Assigns a clone to an active strand, and returns the strand's route.
    fn place(&self, number: u16) -> Option<u32> {
        let strand = self.strand_of(number);
        if self.places.assigned(number) != Some(strand) {
            self.places.assign(number, Some(strand));
        }
        self.route(strand)
    }
}

/// The clones of all clients of a hub by number, for the leader. Locked for a few instructions, when clones come and go
/// and when the leader meets a new one.
#[derive(Debug, Default)]
pub(super) struct Clones(Mutex<CloneTable>);

#[derive(Debug, Default)]
struct CloneTable {
    places: Vec<Place>,
    vacant: Vec<u16>,
}

#[derive(Debug, Default)]
struct Place {
    uses: u16,
    /// The strands of the clone that has the place, and its number in its client.
    clone: Option<(Arc<Strands>, u16)>,
}

impl Clones {
    fn table(&self) -> MutexGuard<'_, CloneTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a clone a number in the hub; `None` if all are taken.
    pub(super) fn enter(&self, strands: &Arc<Strands>, number: u16) -> Option<u32> {
        let mut table = self.table();
        if table.vacant.is_empty() && table.places.len() < MAX_CLONES {
            let place = table.places.len() as u16;
            table.places.push(Place::default());
            table.vacant.push(place);
        }
        let place = table.vacant.pop()?;
        let taken = table.places.get_mut(usize::from(place))?;
        taken.uses = taken.uses.wrapping_add(1);
        taken.clone = Some((Arc::clone(strands), number));
        Some(u32::from(taken.uses) << 16 | u32::from(place))
    }

    /// Takes the number of a clone back, none of whose calls will be sent any more.
    pub(super) fn leave(&self, clone: u32) {
        let mut table = self.table();
        let left = table.places.get_mut(place_of(clone)).and_then(|place| place.clone.take());
        table.vacant.push(place_of(clone) as u16);
        drop(table);
        drop(left);
    }

    pub(super) fn get(&self, clone: u32) -> Option<(Arc<Strands>, u16)> {
        let table = self.table();
        let place = table.places.get(place_of(clone))?;
        place.clone.clone().filter(|_| u32::from(place.uses) == clone >> 16)
    }
}

/// A clone, as the leader knows it.
pub(super) struct Member {
    clone: u32,
    strands: Arc<Strands>,
    /// The number of the clone in its client.
    number: u16,
    /// Where the leader counts its requests.
    counts: Option<Arc<SizeCounts>>,
    /// The route that its calls take, and how often that was closed before.
    on: Option<(u32, u32)>,
    /// Its calls under way.
    sent: u32,
}

/// The clones that the leader has met, by place.
pub(super) type Members = Vec<Option<Member>>;

/// Returns the clone with a number, unless another one has its place now.
#[inline]
fn member(members: &mut Members, clone: u32) -> Option<&mut Member> {
    members.get_mut(place_of(clone))?.as_mut().filter(|member| member.clone == clone)
}

/// Notes that a call is not under way any more.
#[inline]
pub(super) fn ended<F: Fabric>(members: &mut Members, tickets: &Tickets<F>, ticket: TicketId) {
    if members.is_empty() {
        return;
    }
    let clone = tickets.extra(ticket).map_or(NO_CLONE, Extra::take_clone);
    if clone != NO_CLONE
        && let Some(member) = member(members, clone)
    {
        member.sent = member.sent.saturating_sub(1);
    }
}

/// The route of a clone's call.
pub(super) enum CloneRoute {
    /// The route of the clone's strand.
    Strand(u32),
    /// It waits in this queue until the clone moves.
    Queue(usize),
    /// The clone is gone, or has no strand yet.
    Unconnected,
}

impl<F: Fabric> Engine<F> {
    /// Returns the route of a clone's call that comes from a queue, and moves the clone if it has to and can move.
    pub(super) fn route_of_clone(&mut self, clone: u32, from: Option<usize>) -> CloneRoute {
        if member(&mut self.members, clone).is_none() && !self.admit(clone) {
            return CloneRoute::Unconnected;
        }
        let Engine { members, leader, routes, tickets, .. } = self;
        let Some(member) = member(members, clone) else { return CloneRoute::Unconnected };
        let own = queue_of_clone(clone);
        match from {
            // It was held for room before the clone had to move.
            Some(queue) if queue != own => {
                return member.on.map_or(CloneRoute::Unconnected, |(route, _)| CloneRoute::Strand(route));
            }
            None if leader.holds(own) => return CloneRoute::Queue(own),
            _ => {}
        }
        let Some(wanted) = member.strands.place(member.number) else { return CloneRoute::Unconnected };
        let Some(Some(route)) = routes.get(wanted as usize) else { return CloneRoute::Unconnected };
        if member.on != Some((wanted, route.closings)) {
            let old = member.on.and_then(|(route, _)| routes.get(route as usize)?.as_ref());
            let is_its = |ticket| tickets.extra(ticket).is_some_and(|extra| extra.to.clone_number() == clone);
            let lanes = old.map_or(&[][..], |route| route.lanes.all());
            if member.sent > 0 || lanes.iter().any(|lane| leader.any_held(queue_of_lane(*lane), is_its)) {
                return CloneRoute::Queue(own);
            }
            member.on = Some((wanted, route.closings));
        }
        CloneRoute::Strand(wanted)
    }

    /// Enters a clone that the leader has not met. Returns whether there is such a clone.
    #[cold]
    fn admit(&mut self, clone: u32) -> bool {
        let Some((strands, number)) = self.clones.get(clone) else { return false };
        let place = place_of(clone);
        if self.members.len() <= place {
            self.members.resize_with(place + 1, || None);
        }
        let counts = strands.scheduling.counts(number);
        self.members[place] = Some(Member { clone, strands, number, counts, on: None, sent: 0 });
        true
    }

    /// Notes that a clone's call is under way.
    #[inline]
    pub(super) fn sent_by(&mut self, clone: u32, (function, payload): (u16, &[u8])) {
        if let Some(member) = member(&mut self.members, clone) {
            member.sent += 1;
            if let Some(counts) = &member.counts {
                counts.count(request_bytes(function, payload));
            }
        }
    }

    /// Returns the route that a clone's calls take.
    #[cfg(test)]
    pub(super) fn route_of(&mut self, clone: u32) -> Option<u32> {
        member(&mut self.members, clone)?.on.map(|(route, _)| route)
    }

    /// Forgets the calls under way of all clones: a leader that panicked has lost them.
    pub(super) fn forget_sent(&mut self) {
        self.members.iter_mut().flatten().for_each(|member| member.sent = 0);
    }

    /// Returns whether the server has declined a strand's lane.
    #[inline]
    pub(super) fn is_declined(&mut self, lane: u16) -> bool {
        self.core.lane(lane).is_some_and(|lane| lane.is_declined())
    }

    /// Ends the use of a route's strand, unless it is the last active one of its client. Returns whether it did; not for
    /// a route that is no strand.
    #[cold]
    pub(super) fn retire_strand(&mut self, route: u32) -> bool {
        let Some(Some(of)) = self.routes.get(route as usize) else { return false };
        let is_retired = of.strand.as_ref().is_some_and(|(strands, number)| strands.places.retire(*number));
        if is_retired {
            self.close_lanes(route);
        }
        is_retired
    }

    /// Closes the strands of a client that are not active.
    pub(super) fn close_inactive(&mut self, strands: &Strands) {
        for route in strands.routes(false) {
            self.close_lanes(route);
        }
    }

    /// Takes the lanes of a route out of use. They end with their last calls. Calls that are held for them wait for
    /// their clones, before all that came later.
    pub(super) fn close_lanes(&mut self, route: u32) {
        let Some(Some(of)) = self.routes.get_mut(route as usize) else { return };
        let lanes = of.lanes.take();
        if lanes.is_empty() {
            return;
        }
        let is_strand = of.strand.is_some();
        of.closings += u32::from(is_strand);
        for lane in &lanes {
            if is_strand {
                self.return_to_clones(queue_of_lane(*lane));
            }
        }
        // May read control connections, which is allowed to the thread that leads.
        self.retiring.extend(lanes.into_iter().map(|lane| (route, lane)));
        self.end_retiring();
    }

    /// Moves the calls of a queue before those that wait for their clones.
    fn return_to_clones(&mut self, queue: usize) {
        let mut begun = Vec::new();
        while let Some(ticket) = self.leader.begin(Some(queue)) {
            begun.push(ticket);
        }
        for ticket in begun.into_iter().rev() {
            match self.tickets.extra(ticket).map_or(NO_CLONE, |extra| extra.to.clone_number()) {
                NO_CLONE => _ = self.leader.put_back(ticket),
                clone => _ = self.leader.hold(ticket, queue_of_clone(clone), Side::Front),
            }
        }
    }

    /// Removes the lanes that were taken out of use and whose calls have ended.
    #[cold]
    pub(super) fn end_retiring(&mut self) {
        let mut retiring = std::mem::take(&mut self.retiring);
        retiring.retain(|(_, lane)| !self.retire_lane(*lane));
        self.retiring = retiring;
    }
}
