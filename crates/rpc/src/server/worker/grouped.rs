//! The lanes whose leases end, in the rounds of a worker: ScaleRPC's warm-up and context switch (sections 3.3, 3.4).
//!
//! In each round the worker looks at the words of the running and the next group, READs what they announce, and
//! serves the lanes of the running group: first the requests that were READ, then those in the zone. A word is looked
//! at in one round of 64 during a lease, in which it announces nothing. When the slice ends, each lane of the group
//! gets a last look and loses its lease.

use super::{HEALTH_EVERY, Worker};
use crate::error::ConnectError;
use crate::grouped::zones::Zones;
use crate::grouped::{Lease, Mark};
use crate::path::{Cx, MAX_MESSAGE, TxError, Violation, route};
use crate::server::groups::{GroupMemory, Groups, Pool, READ_BYTES, ZONE_BYTES, client_of};
use crate::server::lane::ServerLane;
use crate::server::lines::ControlLine;
use dunlin_fabric::{
    Access, Arena, Buffer, Fabric, Host, Link, Nanos, Operation, PostError, Region, RemoteSlice,
    ThreadDomain, Work, WorkRequest,
};
use dunlin_wire::{BatchState, Header, Kind, LINE, parse_line};

/// A client that has not said for this time that it has heard of the end of its lease is given up if zones are short,
/// in nanoseconds: its zone is free when its queue pair is destroyed. A program that makes no calls says nothing, so
/// it keeps its connection as long as there are other zones.
const PATIENCE: Nanos = 1_000_000_000;
/// Time for which zones have to be short, in nanoseconds: clients of a program that goes on after a pause say their words.
const SHORTAGE: Nanos = 5_000_000;
/// Turns of a lane in the last look at its zone. Requests that remain are announced again.
const LAST_TURNS: usize = 8;

impl<F: Fabric> Worker<F> {
    /// Returns the pool for the clients of a connection, granted to the connection, and a line for one of its lanes,
    /// which goes back by [`ControlLines::give_back`](crate::server::lines::ControlLines::give_back).
    pub(crate) fn memory_for(&mut self, link: &F::Link) -> Result<GroupMemory<F>, ConnectError> {
        let fabric = self.fabric.clone();
        let count = Groups::<F>::zones(&self.shared().turns);
        let groups = match &mut self.groups {
            Some(groups) => groups,
            none => {
                let arena = Arena::with_unit(fabric.register(READ_BYTES, Access::LOCAL)?, LINE);
                let arena = arena.map_err(|error| ConnectError::Handshake(error.to_string()))?;
                none.insert(Box::new(Groups::new(arena)))
            }
        };
        let user = link.peer().user;
        let place = match groups.pools.iter().position(|pool| pool.user == user) {
            Some(place) => place,
            None => {
                let bytes = count as u64 * u64::from(ZONE_BYTES);
                let region = Region::new(fabric.register(bytes, Access::WRITE)?);
                // No name of a region would say which lane was written to: the lanes of a group are few, and polled.
                self.domain.watch(&region);
                groups.pools.push(Pool { user, region, zones: Zones::new(count), short_since: None });
                groups.pools.len() - 1
            }
        };
        let pool = groups.pools[place].region.clone();
        // Lanes keep the place in two bytes.
        let place = u16::try_from(place).map_err(|_| ConnectError::Handshake("too many users".into()))?;
        let key = link.grant(pool.memory(), Access::WRITE)?;
        let line = groups.lines.take(&mut Cx::of(&fabric, &mut self.domain), user)?;
        Ok(GroupMemory { place, pool, key, line })
    }

    /// Gives the line of a lane back that could not be opened.
    pub(crate) fn give_back_line(&mut self, line: &ControlLine<F>) {
        if let Some(groups) = &mut self.groups {
            groups.lines.give_back(&line.region, line.at);
        }
    }

    /// Adds a lane to the groups, if its leases end; else they make room for it.
    pub(super) fn join_group(&mut self, index: u16) {
        let shared = &self.dispatcher.shared;
        let Some(Some(lane)) = self.lanes.get(usize::from(index)) else { return };
        match (&mut self.groups, &lane.leased) {
            (Some(groups), Some(_)) => {
                groups.join(&shared.turns, client_of(lane.connection(), shared.is_deployed), index);
            }
            (_, None) => shared.turns.count_lasting(true),
            (None, Some(_)) => {}
        }
    }

    /// Removes a lane from the groups. Its queue pair must be destroyed: nothing of it arrives in its zone any more.
    pub(super) fn leave_group(&mut self, lane: &mut ServerLane<F>) {
        let shared = &self.dispatcher.shared;
        let client = client_of(lane.connection(), shared.is_deployed);
        if let (Some(groups), Some(leased)) = (&mut self.groups, &mut lane.leased) {
            self.reading = self.reading.saturating_sub(usize::from(leased.member.is_reading()));
            leased.member.gone(&mut groups.pools[leased.pool()].zones);
            groups.lines.give_back(lane.tx.end.control(), leased.line);
            groups.leave(&shared.turns, client, lane.index);
        } else if lane.leased.is_none() {
            shared.turns.count_lasting(false);
        }
    }

    /// Returns when the running slice ends, or earlier if the worker has something else to do for its groups.
    pub(super) fn groups_wake_at(&self) -> Nanos {
        self.groups.as_ref().map_or(Nanos::MAX, |groups| groups.wakes_at(&self.dispatcher.shared.turns))
    }

    /// Serves the lanes whose leases end. Returns the number of messages.
    pub(super) fn run_groups(&mut self) -> usize {
        let mut handled = 0;
        let awaits = self.groups.as_ref().is_some_and(|groups| !groups.awaited.is_empty());
        let mut now = 0;
        if awaits || self.groups_wake_at() != Nanos::MAX {
            now = self.fabric.host().now();
            self.look_for_words(now);
            if let Some(groups) = &mut self.groups {
                groups.end_slice(&self.dispatcher.shared.turns, now);
            }
        }
        if self.groups.as_ref().is_some_and(|groups| groups.is_behind(&self.dispatcher.shared.turns)) {
            handled += self.follow_turn();
        }
        while let Some(index) = self.groups.as_mut().and_then(|groups| groups.unreported.pop()) {
            if !self.tell_lease(index) {
                break;
            }
        }
        let (mut at, mut served) = (0, 0);
        while let Some(index) = self.groups.as_ref().and_then(|groups| groups.running.get(at).copied()) {
            served += self.serve_member(index, true);
            at += 1;
        }
        if served > 0
            && let Some(groups) = &mut self.groups
        {
            groups.took(&self.dispatcher.shared.turns, served, now);
        }
        self.look_at_next_group(now);
        handled + served
    }

    /// Looks at the words of the next group, and READs the requests of as many clients as may be READ now.
    fn look_at_next_group(&mut self, now: Nanos) {
        let turns = &self.dispatcher.shared.turns;
        let allowed = match &self.groups {
            Some(groups) if groups.looks_ahead() => groups.may_read(turns, now),
            _ => return,
        };
        let (mut at, mut waits, mut held_back) = (0, false, false);
        while let Some(index) = self.groups.as_ref().and_then(|groups| groups.warming.get(at).copied()) {
            let is_announced = self.look_at(index, at < allowed);
            let lane = self.lanes.get(usize::from(index)).and_then(Option::as_ref);
            waits |= is_announced || lane.is_some_and(ServerLane::has_read);
            held_back |= is_announced && at >= allowed;
            at += 1;
        }
        if let Some(groups) = &mut self.groups {
            groups.next_group(&self.dispatcher.shared.turns, now, waits, held_back, allowed);
        }
    }

    /// Looks for the words of clients whose leases have ended, and gives up those that stay silent.
    fn look_for_words(&mut self, now: Nanos) {
        let mut at = 0;
        while let Some((index, since)) =
            self.groups.as_ref().and_then(|groups| groups.awaited.get(at).copied())
        {
            // Its requests are READ when its group is the next one.
            self.look_at(index, false);
            let lane = self.lanes.get(usize::from(index)).and_then(Option::as_ref);
            let awaited = lane.and_then(|lane| lane.leased.as_ref()?.member.awaited());
            if awaited.is_some() && now >= since.saturating_add(PATIENCE) && self.is_zone_wanted(index, now) {
                self.give_up(index);
            } else if awaited.is_some() {
                at += 1;
            } else if let Some(groups) = &mut self.groups {
                groups.awaited.retain(|(other, _)| *other != index);
            }
        }
    }

    /// Returns whether the pool of a lane has been short of zones for a while.
    fn is_zone_wanted(&self, index: u16, now: Nanos) -> bool {
        let Some(Some(lane)) = self.lanes.get(usize::from(index)) else { return false };
        let (Some(groups), Some(leased)) = (&self.groups, &lane.leased) else { return false };
        let pool = &groups.pools[leased.pool()];
        let is_long = |since: Nanos| now >= since.saturating_add(SHORTAGE);
        pool.short_since.is_some_and(is_long) && pool.zones.is_used_up()
    }

    /// Ends the connection of a client that keeps a zone.
    #[cold]
    fn give_up(&mut self, index: u16) {
        let Some(Some(lane)) = self.lanes.get(usize::from(index)) else { return };
        let link = lane.link().clone();
        tracing::debug!(target: "dunlin::server", worker = self.number, lane = index, session = lane.session(), "a client that makes no calls loses its connection: its zone is needed");
        self.remove(index);
        link.close();
    }

    /// Serves a lane of the running group. A lease may begin if `may_lease`.
    fn serve_member(&mut self, index: u16, may_lease: bool) -> usize {
        // A second line for each lane would make the round longer, in which a request waits. Only lies are found later.
        let is_leased =
            self.lanes.get(usize::from(index)).and_then(Option::as_ref).is_some_and(ServerLane::is_leased);
        if !is_leased || self.ticks.is_multiple_of(HEALTH_EVERY) {
            self.look_at(index, true);
        }
        if let (Some(groups), Some(Some(lane))) = (&mut self.groups, self.lanes.get(usize::from(index)))
            && (lane.has_read() || lane.is_leased() && lane.rx.is_waiting())
        {
            groups.is_used(&self.dispatcher.shared.turns);
        }
        let handled = self.serve_read(index, may_lease);
        let Some(Some(lane)) = self.lanes.get_mut(usize::from(index)) else { return handled };
        let (is_leased, has_pending) = (lane.is_leased(), lane.has_pending());
        if is_leased && lane.rx.is_waiting() {
            // The worker may have slept since the last look.
            lane.is_found(&self.dispatcher.clock);
        }
        let handled =
            if is_leased || has_pending { handled + self.serve_lane(usize::from(index)) } else { handled };
        // Nothing answers the release of a large result, and calls outside the worker are answered later. The client
        // announces its next requests, which are not READ during a lease.
        let lane = self.lanes.get(usize::from(index)).and_then(Option::as_ref);
        if lane.is_some_and(|lane| lane.mark.begins) {
            self.tell_lease(index);
        }
        handled
    }

    /// Looks at a client's word. If `may_read`, READs the requests that it announces. Returns whether it announces any
    /// that were not READ.
    fn look_at(&mut self, index: u16, may_read: bool) -> bool {
        let (Some(groups), Some(Some(lane))) = (&mut self.groups, self.lanes.get_mut(usize::from(index)))
        else {
            return false;
        };
        let Some(leased) = &mut lane.leased else { return false };
        self.fabric.host().charge(Work::PollMiss, 1);
        let word = leased.word(lane.tx.end.control());
        let zones = &mut groups.pools[leased.pool()].zones;
        let announced = leased.member.on_word(word, lane.rx.head(), ZONE_BYTES / LINE as u32, zones);
        let Ok(announced) = announced else {
            self.violated(index, Violation::Lease);
            return false;
        };
        let waits = announced > 0 && !leased.member.is_reading() && leased.read.is_none();
        if !may_read || !waits {
            return waits;
        }
        // A READ ends at the end of the ring; the next one begins at its start.
        let to_end = lane.rx.lines_to_end();
        let length = announced.min(to_end) * LINE as u32;
        let Ok(into) = groups.arena.reserve(length as usize) else { return true };
        let offset = u64::from(ZONE_BYTES - to_end * LINE as u32);
        let from = RemoteSlice { key: leased.staged, offset, length };
        self.fabric.host().charge(Work::PostWork, 1);
        let operation = Operation::Read { from, into };
        let request = WorkRequest { id: route::fetch(index), operation, signaled: true };
        match self.domain.post(lane.queue_pair, request) {
            Ok(()) => {
                leased.member.begin_read();
                groups.counts.reads += 1;
                self.reading += 1;
                // The requests came before this time, which their deadlines may count from.
                let now = self.dispatcher.clock.last();
                lane.arrives_after(now, now);
            }
            Err(PostError::QueueFull) => return true,
            Err(_) => self.violated(index, Violation::Broken),
        }
        false
    }

    /// Keeps requests that were READ until the lane's group is served.
    pub(super) fn on_announced(&mut self, index: u16, buffer: Option<Buffer<F::Memory>>) {
        let Some(Some(lane)) = self.lanes.get_mut(usize::from(index)) else { return };
        let (Some(leased), Some(buffer)) = (&mut lane.leased, buffer) else { return };
        leased.member.end_read();
        self.reading = self.reading.saturating_sub(1);
        lane.rx.was_read((buffer.len() / LINE) as u32);
        (leased.read, leased.executed) = (Some(buffer), 0);
    }

    /// Executes the requests that were READ. If `may_lease`, a lease begins with the first of them, which its answer
    /// tells.
    fn serve_read(&mut self, index: u16, may_lease: bool) -> usize {
        let mut handled = 0;
        loop {
            let (Some(groups), Some(Some(lane))) = (&mut self.groups, self.lanes.get_mut(usize::from(index)))
            else {
                return handled;
            };
            if lane.is_blocked() {
                // It sends its answers in later rounds, also outside its slice.
                self.list(index);
                return handled;
            }
            let Some(leased) = &mut lane.leased else { return handled };
            let Some(buffer) = leased.read.take() else { return handled };
            let at = usize::from(leased.executed);
            let pool = &mut groups.pools[leased.pool()];
            // A lease begins with a message: nothing answers a `Skip`, so its client would not hear of the lease.
            let may_lease = may_lease && matches!(message_at(&buffer, at), Ok(Some(_)));
            if may_lease && leased.member.begin_lease(&mut pool.zones) {
                groups.counts.leases += 1;
                pool.short_since = None;
                lane.mark = leased.member.mark(false).of_new_lease();
                let base = u64::from(lane.mark.zone) * u64::from(ZONE_BYTES);
                lane.rx.renew(&Lease { base, epoch: leased.member.epoch() });
            } else if may_lease && pool.zones.is_used_up() && !leased.member.is_leased() {
                pool.short_since.get_or_insert_with(|| self.fabric.host().now());
                groups.counts.without_zone += 1;
            }
            lane.rx.took_read();
            let served = match message_at(&buffer, at) {
                Ok(None) => Ok(buffer.len()),
                Ok(Some(message)) => {
                    handled += 1;
                    let end = at + message.len();
                    let mut own = BatchState::new();
                    self.dispatcher
                        .on_message(&mut Cx::of(&self.fabric, &mut self.domain), lane, message, &mut own)
                        .map(|()| end)
                }
                Err(violation) => Err(violation),
            };
            match served {
                Ok(end) if end < buffer.len() => {
                    if let Some(leased) = &mut lane.leased {
                        (leased.read, leased.executed) = (Some(buffer), end as u16);
                    }
                }
                Ok(_) => {}
                Err(violation) => {
                    self.violated(index, violation);
                    return handled;
                }
            }
        }
    }

    /// Follows a change of the groups: lanes that are not served any more get a last look, and lose their leases.
    #[cold]
    fn follow_turn(&mut self) -> usize {
        let mut handled = 0;
        let now = self.fabric.host().now();
        let Some(groups) = &mut self.groups else { return 0 };
        for index in groups.follow(&self.dispatcher.shared.turns, now) {
            let mut told = false;
            for _ in 0..LAST_TURNS {
                let marked = self.mark_last(index);
                let served = self.serve_member(index, false);
                handled += served;
                told = marked && self.is_told(index);
                if served == 0 || told {
                    break;
                }
            }
            self.end_lease(index, now, told);
            self.count_usage(index);
        }
        handled
    }

    /// Lets the answer of the next request tell the client that its lease has ended, if no other request waits.
    fn mark_last(&mut self, index: u16) -> bool {
        let Some(Some(lane)) = self.lanes.get_mut(usize::from(index)) else { return false };
        let is_last = lane.is_leased() && lane.rx.is_waiting() && !lane.rx.waits_beyond();
        lane.mark.ends |= is_last;
        is_last
    }

    /// Returns whether an answer has told the client that its lease has ended. If the call is answered later, the
    /// mark is taken back.
    fn is_told(&mut self, index: u16) -> bool {
        let Some(Some(lane)) = self.lanes.get_mut(usize::from(index)) else { return false };
        !std::mem::take(&mut lane.mark.ends)
    }

    /// Ends the lease of a lane, and tells its client unless an answer has `told` it.
    fn end_lease(&mut self, index: u16, now: Nanos, told: bool) {
        let (Some(groups), Some(Some(lane))) = (&mut self.groups, self.lanes.get_mut(usize::from(index)))
        else {
            return;
        };
        let Some(leased) = &mut lane.leased else { return };
        if !leased.member.end_lease(&mut groups.pools[leased.pool()].zones) {
            return;
        }
        lane.rx.suspend();
        // An answer that waits for room tells it first.
        lane.mark = leased.member.mark(!told);
        groups.awaited.push((index, now));
        self.tell_lease(index);
    }

    /// Tells a client that its lease has begun or ended, unless an answer did. Returns `false` if there is no room.
    fn tell_lease(&mut self, index: u16) -> bool {
        let Some(Some(lane)) = self.lanes.get_mut(usize::from(index)) else { return true };
        if !lane.mark.is_news() {
            return true;
        }
        let Mark { epoch, zone, ends, .. } = lane.mark;
        let header = Header {
            flags: lane.mark.flags(),
            head: lane.rx.head(),
            epoch,
            credits: zone,
            ..Header::new(Kind::Credit)
        };
        let mut cx = Cx::of(&self.fabric, &mut self.domain);
        match lane.tx.single(&mut cx, &header, &[]) {
            Ok(()) => {
                lane.mark.told();
                if let Some(groups) = &mut self.groups {
                    groups.counts.told_alone += u64::from(ends);
                }
                true
            }
            Err(TxError::Full) => {
                // A lease that begins is told in the next round.
                if let Some(groups) = self.groups.as_mut().filter(|_| ends) {
                    groups.unreported.push(index);
                }
                false
            }
            Err(TxError::Broken) => {
                self.violated(index, Violation::Broken);
                true
            }
        }
    }

    /// Tells the schedule how many messages of a lane were taken in its slice, and their bytes.
    fn count_usage(&mut self, index: u16) {
        let (Some(groups), Some(Some(lane))) = (&mut self.groups, self.lanes.get_mut(usize::from(index)))
        else {
            return;
        };
        let Some(leased) = &mut lane.leased else { return };
        let taken = (lane.rx.sequence() as u32, lane.rx.head());
        let messages = taken.0.wrapping_sub(leased.counted.0);
        let lines = taken.1.wrapping_sub(leased.counted.1);
        leased.counted = taken;
        let bytes = u64::from(lines) * LINE as u64;
        let shared = &self.dispatcher.shared;
        let client = client_of(lane.connection(), shared.is_deployed);
        groups.count(&shared.turns, client, messages.into(), bytes);
    }
}

#[cfg(test)]
mod ends;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod idle;
#[cfg(test)]
mod starvation;
#[cfg(test)]
mod tests;

/// Returns the message that begins at `at` of requests that were READ; `None` for a `Skip`, behind which the rest of
/// the ring is unused.
fn message_at(bytes: &[u8], at: usize) -> Result<Option<&[u8]>, Violation> {
    let rest = &bytes[at..];
    let Some(line) = rest.first_chunk::<LINE>() else {
        return Err(Violation::Transfer("announced requests end within a line"));
    };
    let first = parse_line(line, rest.len().min(MAX_MESSAGE))?;
    Ok((first.header().kind != Kind::Skip).then(|| &rest[..first.total()]))
}
