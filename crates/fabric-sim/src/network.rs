//! The network and its RNICs: transports packets between queue pairs and executes them in memory. Runs as
//! events, never on a task's time, since the target's processor takes no part.

mod warm;

use crate::events::Event;
use crate::links::Links;
use crate::memory::{SimMemory, Watchers};
use crate::queues::{Action, DomainState, Outcome, Packet, PostedReceive, QueuePair};
use crate::state::{Network, Rare, State};
use crate::timing::{Arrived, Timing, model_opcode};
use dunlin_fabric::{
    Access, Completion, CompletionStatus, Nanos, Opcode, QueuePairId, QueuePairState, RegionKey, RnrRetry,
    Transport,
};
use dunlin_rnic_model::{Linked, Request, Touch};

/// Bytes of a cache line.
const LINE: usize = 64;
/// A responder's refusal of a packet.
pub(crate) struct Refused(CompletionStatus);

impl State {
    #[inline]
    pub(crate) fn queue_pair(&mut self, number: u32) -> Option<&mut QueuePair> {
        self.network.queue_pairs.get_mut(number)
    }

    #[inline]
    pub(crate) fn domain(&mut self, domain: u32) -> Option<&mut DomainState> {
        self.network.domains.get_mut(domain)
    }

    /// Returns a one-way delay for messages that are not timed individually.
    pub(crate) fn travel(&mut self) -> Nanos {
        self.timing.travel(&mut self.chance)
    }

    /// Schedules a rare event.
    pub(crate) fn schedule(&mut self, at: Nanos, rare: Rare) {
        let index = self.network.rare.put(Some(rare));
        self.put(at, Event::Rare { index });
    }

    /// Returns whether a fault occurs that has a chance of one in `one_in`.
    #[inline]
    pub(crate) fn breaks(&mut self, one_in: u64) -> bool {
        one_in != 0
            && (self.settings.faults.until == 0 || self.now() < self.settings.faults.until)
            && self.chance.one_in(one_in)
    }

    /// Executes a network event now.
    #[inline(always)]
    pub(crate) fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { packet } => self.arrive(packet),
            Event::Serve { queue_pair } => {
                self.note_at(2, queue_pair, 0);
                self.serve(queue_pair);
            }
            Event::Land { packet } => self.land_now(packet),
            Event::Done { queue_pair, serial } => {
                self.note_at(7, queue_pair, serial);
                self.finish(queue_pair, serial, Outcome::of(CompletionStatus::Success));
            }
            Event::Acknowledged { queue_pair, serial } => {
                self.answered(queue_pair, serial, Outcome::of(CompletionStatus::Success));
            }
            Event::Rare { index } => {
                if let Some(rare) = self.network.rare.remove(index) {
                    self.happen_rarely(rare);
                }
            }
            Event::Run { .. } | Event::Wake { .. } | Event::Timer { .. } | Event::Quantum { .. } => {
                debug_assert!(false, "an event of a task");
            }
        }
    }

    fn happen_rarely(&mut self, rare: Rare) {
        match rare {
            Rare::RetriesOver { at, packet, from, serial } => {
                self.note_at(3, at, serial);
                let Some(target) = self.queue_pair(at) else { return };
                if target.inbound.front() == Some(&packet) {
                    let inbound = std::mem::take(&mut target.inbound);
                    target.refusing = true;
                    self.give_packets(inbound);
                    self.tell(|_| format!("queue pair {at} has no RECV: {from} gives up"));
                    let outcome = Outcome::of(CompletionStatus::ReceiverNotReady);
                    self.answer(from, serial, true, None, outcome);
                }
            }
            Rare::Received { at, completion } => {
                self.note_at(5, at, completion.id.0);
                if self.queue_pair(at).is_some() {
                    self.complete_receive(at, completion);
                }
            }
            Rare::Sample { back_to, serial, region, offset, length, mut got, answer } => {
                let first = got.len();
                got.resize(length, 0);
                if let Some(memory) = self.network.links.held(&region) {
                    memory.copy_out(offset + first, &mut got[first..]);
                }
                self.network.links.release(region);
                self.note_bytes(6, &got);
                let outcome = Outcome { status: CompletionStatus::Success, value: 0, read: got };
                self.answer(back_to, serial, true, answer, outcome);
            }
            Rare::Outcome { at, serial, outcome } => {
                self.note_at(7, at, serial);
                self.finish(at, serial, outcome);
            }
            Rare::Answered { at, serial, outcome } => self.answered(at, serial, outcome),
            Rare::PeerBroke { at } => {
                self.note_at(8, at, 0);
                self.fail(at, CompletionStatus::TransportRetry);
            }
            Rare::Break { at } => {
                self.note_at(10, at, 0);
                self.tell(|_| format!("queue pair {at} breaks by itself"));
                self.fail(at, CompletionStatus::TransportRetry);
            }
            Rare::Link(event) => self.happen_on_link(event),
        }
    }

    #[inline]
    fn note_at(&mut self, kind: u64, at: u32, detail: u64) {
        self.trace.note_at(kind, at, detail);
    }

    #[inline]
    pub(crate) fn note_bytes(&mut self, kind: u64, bytes: &[u8]) {
        self.trace.note_bytes(kind, bytes);
    }

    pub(crate) fn give_packets(&mut self, packets: impl IntoIterator<Item = u32>) {
        for packet in packets {
            if let Some(held) = self.network.packets[packet].target.take() {
                self.network.links.release(held);
            }
            self.network.packets.give(packet);
        }
    }

    /// Completes an initiator's work request at `earliest`, or after its predecessors if that is later.
    pub(crate) fn done_at(&mut self, at: u32, serial: u64, earliest: Nanos, outcome: Outcome) {
        let Some(initiator) = self.queue_pair(at) else { return };
        initiator.last_done = initiator.last_done.max(earliest);
        let when = initiator.last_done;
        if outcome.is_plain() {
            self.put(when, Event::Done { queue_pair: at, serial });
        } else {
            self.schedule(when, Rare::Outcome { at, serial, outcome });
        }
    }

    /// Returns the outcome to an initiator that expects one. `answer` is its arrival at the initiator's NIC,
    /// if the model computes it.
    pub(crate) fn answer(
        &mut self,
        to: u32,
        serial: u64,
        signaled: bool,
        answer: Option<Nanos>,
        outcome: Outcome,
    ) {
        if outcome.is_plain() {
            return self.answer_plain(to, serial, signaled, answer);
        }
        let Some(initiator) = self.queue_pair(to) else { return };
        if initiator.transport != Transport::ReliableConnection {
            return;
        }
        match self.past_cut(to, answer) {
            Some(at) => self.schedule(at, Rare::Answered { at: to, serial, outcome }),
            None => self.answer_now(to, serial, outcome),
        }
    }

    /// [`answer`](State::answer) for a plain success.
    #[inline(always)]
    fn answer_plain(&mut self, to: u32, serial: u64, signaled: bool, answer: Option<Nanos>) {
        let answer = self.past_cut(to, answer);
        let Some(initiator) = self.queue_pair(to) else { return };
        if initiator.transport != Transport::ReliableConnection {
            return;
        }
        initiator.carried_out = initiator.carried_out.max(serial);
        match answer {
            Some(at) => self.put(at, Event::Acknowledged { queue_pair: to, serial }),
            None if !signaled => initiator.retire_before(serial + 1),
            None => self.answer_now(to, serial, Outcome::of(CompletionStatus::Success)),
        }
    }

    #[inline(never)]
    fn answer_now(&mut self, to: u32, serial: u64, outcome: Outcome) {
        let cut_until = self.cut_of_connected(to);
        if cut_until > 0 {
            self.give_up_behind_cut(to, cut_until);
        }
        let sent = self.now().max(cut_until);
        let arrives = self.timing.answer(&mut self.chance, sent);
        self.done_at(to, serial, arrives, outcome);
    }

    /// Handles an answer at its initiator's NIC.
    fn answered(&mut self, at: u32, serial: u64, outcome: Outcome) {
        let Some(request) = self.queue_pair(at).and_then(|q| q.in_flight(serial)) else { return };
        let (opcode, signaled, bytes, local) =
            (request.opcode, request.signaled, request.bytes, request.local);
        let Some((place, transport)) = self.queue_pair(at).map(|q| (q.place, q.transport)) else {
            return;
        };
        let request = Request {
            initiator: at,
            // The target's side is not used here.
            target: 0,
            opcode: model_opcode(opcode, false),
            transport,
            bytes,
            inline: false,
            signaled,
            linked: Linked::Alone,
            local,
            remote: Touch::default(),
        };
        let now = self.now();
        let visible = self.timing.complete(now, place, &request);
        if signaled || !outcome.is_plain() {
            self.done_at(at, serial, visible, outcome);
        } else if let Some(initiator) = self.queue_pair(at) {
            initiator.retire_before(serial + 1);
        }
    }

    /// Handles a packet at its target. An unobstructed WRITE, by far the most frequent packet, takes a fast
    /// path.
    #[inline(always)]
    fn arrive(&mut self, packet: u32) {
        let now = self.now();
        let Network { queue_pairs, packets, links, .. } = &mut self.network;
        let place = &mut packets[packet];
        let (from, to, serial, signaled) = (place.from, place.to, place.serial, place.signaled);
        self.trace.note_at(1, to, serial);
        let bytes = place.payload().len() as u32;
        if let Action::Write { key, offset, immediate: None } = place.action
            && bytes > 0
            && !self.timing.is_by_chance()
            && let Some(target) = queue_pairs.get_mut(to)
            && target.state == QueuePairState::Ready
            && target.is_next(now)
            && let Some(held) = links.hold_range(target.link, key, Access::WRITE, offset, bytes.into())
        {
            let region = Some(held.place());
            let machine = target.place.machine;
            let arrived = arrived(&mut self.timing, links, place, (to, machine), now, bytes, region);
            place.target = Some(held);
            target.last_landing = target.last_landing.max(arrived.visible);
            let visible = target.last_landing;
            self.put(visible, Event::Land { packet });
            return self.answer_plain(from, serial, signaled, arrived.answer);
        }
        self.arrive_otherwise(to, packet);
    }

    #[inline(never)]
    fn arrive_otherwise(&mut self, to: u32, packet: u32) {
        let now = self.now();
        let Some(target) = self.queue_pair(to).filter(|target| !target.refusing) else {
            return self.give_packets([packet]);
        };
        if target.state == QueuePairState::Ready && target.is_next(now) {
            if !self.carry_out(to, packet)
                && let Some(target) = self.queue_pair(to)
            {
                target.inbound.push_front(packet);
            }
            return;
        }
        target.inbound.push_back(packet);
        self.serve(to);
    }

    /// Makes a packet's bytes visible.
    #[inline(always)]
    fn land_now(&mut self, packet: u32) {
        let Network { packets, links, .. } = &mut self.network;
        let place = &mut packets[packet];
        let offset = if let Action::Write { offset, .. } = place.action { offset as usize } else { 0 };
        let mut watchers = Watchers::Nobody;
        let (target, bytes) = (place.target.take(), place.payload());
        let length = bytes.len();
        self.trace.note_bytes(4, bytes);
        if let Some(held) = target {
            links.release_with(held, |target| {
                target.copy_in(offset, bytes);
                // The reader of a ring checks the next slot after this message.
                target.prefetch(offset + length);
                watchers = target.memory().watchers();
            });
        }
        packets.give(packet);
        self.tell(|_| format!("{length} bytes at {offset} become visible"));
        self.landed(watchers);
    }

    /// Executes the inbound packets of a queue pair as far as possible.
    pub(crate) fn serve(&mut self, at: u32) {
        loop {
            let now = self.now();
            let Some(target) = self.queue_pair(at) else { return };
            match target.state {
                QueuePairState::Initialised => return,
                QueuePairState::Error => {
                    let inbound = std::mem::take(&mut target.inbound);
                    return self.give_packets(inbound);
                }
                QueuePairState::Ready => {}
            }
            if target.inbound.is_empty() {
                return;
            }
            if target.ready_at > now {
                let when = target.ready_at;
                return self.put(when, Event::Serve { queue_pair: at });
            }
            let Some(packet) = target.inbound.pop_front() else { return };
            if !self.carry_out(at, packet) {
                if let Some(target) = self.queue_pair(at) {
                    target.inbound.push_front(packet);
                }
                return;
            }
        }
    }

    /// Stalls a reliable packet that found no RECV: it stays first in the queue and is retried once a RECV is
    /// posted.
    fn stall(&mut self, at: u32, packet: u32) {
        let Packet { from, serial, retrying, .. } = self.network.packets[packet];
        let sender = self.queue_pair(from).map(|q| (q.config.rnr_retry, q.config.rnr_timer));
        if let (false, Some((RnrRetry::Count(tries), timer))) = (retrying, sender) {
            self.network.packets[packet].retrying = true;
            let over = self.now() + timer.max(1).saturating_mul(u64::from(tries) + 1);
            self.schedule(over, Rare::RetriesOver { at, packet, from, serial });
        }
    }

    /// Executes one packet; returns `false` if it must wait, for a RECV or for memory.
    fn carry_out(&mut self, at: u32, packet: u32) -> bool {
        let Some(target) = self.queue_pair(at) else {
            self.give_packets([packet]);
            return true;
        };
        let (reliable, machine) = (target.transport == Transport::ReliableConnection, target.place.machine);
        let place = &self.network.packets[packet];
        let Packet { from, serial, action, signaled, .. } = *place;
        let (length, bytes) = (place.payload().len(), place.bytes());
        let consumes = match action {
            Action::Send { .. } => true,
            Action::Write { immediate, .. } => immediate.is_some(),
            _ => false,
        };
        // A refused packet must not consume a RECV, so the range is checked first.
        let checked = self.check(at, &action, length as u64);
        if consumes && checked.is_ok() {
            if !self.has_receive(at) {
                if reliable && self.settings.capabilities.acknowledged {
                    self.stall(at, packet);
                    return false;
                }
                self.give_packets([packet]);
                if reliable {
                    self.tell(|_| {
                        format!("queue pair {at} has no RECV, for which nobody waits here: it breaks")
                    });
                    self.fail(at, CompletionStatus::Flushed);
                }
                return true;
            }
            let not_ready = self.settings.faults.not_ready;
            if reliable && self.breaks(not_ready) {
                let again = self.now() + 1 + self.chance.below(20_000);
                self.put(again, Event::Serve { queue_pair: at });
                return false;
            }
        }
        let now = self.now();
        // An atomic changes memory after the WRITEs before it have landed. By chance each packet waits for that.
        if matches!(action, Action::FetchAdd { .. } | Action::CompareSwap { .. })
            && !self.timing.is_by_chance()
            && let Some(target) = self.queue_pair(at)
            && target.last_landing >= now
        {
            let when = target.last_landing + 1;
            target.ready_at = target.ready_at.max(when);
            self.put(when, Event::Serve { queue_pair: at });
            return false;
        }
        let (place, links) = (&mut self.network.packets[packet], &self.network.links);
        let region = checked.as_ref().ok().copied().flatten();
        let arrived = arrived(&mut self.timing, links, place, (at, machine), now, bytes, region);
        let mut kept = false;
        let outcome = checked.and_then(|region| match action {
            Action::Nothing => Ok(None),
            Action::Send { immediate } => self.deliver(at, packet, immediate, arrived.receive),
            Action::Write { offset, immediate, .. } => {
                let visible = match region.filter(|_| length > 0) {
                    None => arrived.visible,
                    Some(region) if self.timing.is_by_chance() => {
                        self.land_in_pieces(at, packet, region, offset)
                    }
                    Some(region) => {
                        kept = true;
                        self.land(at, packet, region, arrived.visible)
                    }
                };
                let receive = immediate.and_then(|_| self.take_receive(at));
                if let Some(receive) = receive {
                    let completion = Completion {
                        immediate,
                        bytes: length as u32,
                        ..receive_completion(at, receive, Opcode::ReceiveWriteImmediate)
                    };
                    let seen = self.in_order(at, visible.max(arrived.receive));
                    self.schedule(seen, Rare::Received { at, completion });
                }
                Ok(Some(Outcome::of(CompletionStatus::Success)))
            }
            Action::Read { from: slice } => {
                if let Some(region) = region {
                    self.sample(at, from, serial, region, slice.offset, slice.length, arrived);
                }
                Ok(None)
            }
            Action::FetchAdd { offset, add, .. } => self.change(region, offset, |old| old.wrapping_add(add)),
            Action::CompareSwap { offset, expected, swap, .. } => {
                self.change(region, offset, |old| if old == expected { swap } else { old })
            }
        });
        if !kept {
            self.give_packets([packet]);
        }
        match outcome {
            Ok(Some(outcome)) => self.answer(from, serial, signaled, arrived.answer, outcome),
            Ok(None) => {}
            Err(Refused(status)) if reliable => {
                self.tell(|_| format!("queue pair {at} refuses message {serial} of {from}: {status:?}"));
                self.answer(from, serial, true, arrived.answer, Outcome::of(status));
                self.fail(at, CompletionStatus::Flushed);
            }
            // Unreliable transports drop the packet silently.
            Err(Refused(_)) => {}
        }
        true
    }

    /// Checks key, range, permission and alignment; returns the place of the grant, if the action names one.
    fn check(&mut self, at: u32, action: &Action, bytes: u64) -> Result<Option<u32>, Refused> {
        let (key, offset, length, wants) = match action {
            Action::Nothing | Action::Send { .. } => return Ok(None),
            Action::Write { key, offset, .. } => (*key, *offset, bytes, Access::WRITE),
            Action::Read { from } => (from.key, from.offset, u64::from(from.length), Access::READ),
            Action::FetchAdd { key, offset, .. } | Action::CompareSwap { key, offset, .. } => {
                (*key, *offset, 8, Access::ATOMIC)
            }
        };
        let link = self.queue_pair(at).and_then(|q| q.link);
        let place = self.network.links.range(link, key, wants, offset, length);
        let place = place.ok_or(Refused(CompletionStatus::RemoteAccess))?;
        if wants == Access::ATOMIC && !offset.is_multiple_of(8) {
            return Err(Refused(CompletionStatus::RemoteInvalidRequest));
        }
        Ok(Some(place))
    }

    fn receives(&mut self, at: u32) -> Option<&mut crate::queues::ReceiveQueue> {
        let queue_pair = self.network.queue_pairs.get_mut(at)?;
        match queue_pair.config.shared_receive {
            Some(shared) => {
                let domain = self.network.domains.get_mut(queue_pair.domain)?;
                domain.shared_receives.get_mut(shared.0 as usize)
            }
            None => Some(&mut queue_pair.receives),
        }
    }

    fn has_receive(&mut self, at: u32) -> bool {
        self.receives(at).is_some_and(|queue| !queue.posted.is_empty())
    }

    fn take_receive(&mut self, at: u32) -> Option<PostedReceive> {
        self.receives(at)?.posted.pop_front()
    }

    /// Matches a SEND with a RECV.
    fn deliver(
        &mut self,
        at: u32,
        packet: u32,
        immediate: Option<u32>,
        taken: Nanos,
    ) -> Result<Option<Outcome>, Refused> {
        let datagram = self.queue_pair(at).is_some_and(|q| q.transport == Transport::UnreliableDatagram);
        let headroom = if datagram { self.settings.capabilities.datagram_headroom as usize } else { 0 };
        let Some(mut receive) = self.take_receive(at) else { return Ok(None) };
        let bytes = self.network.packets[packet].take_payload();
        let whole = headroom + bytes.len();
        let fits = match &mut receive.buffer {
            Some(buffer) if buffer.len() >= whole => {
                buffer[headroom..whole].copy_from_slice(&bytes);
                true
            }
            Some(_) => false,
            None => whole == 0,
        };
        self.note_bytes(9, &bytes);
        self.network.packets[packet].give_payload(bytes);
        let completion = receive_completion(at, receive, Opcode::Receive);
        if !fits {
            let completion = Completion { status: CompletionStatus::LocalLength, ..completion };
            self.complete_receive(at, completion);
            return Err(Refused(CompletionStatus::RemoteOperation));
        }
        let completion = Completion { immediate, bytes: whole as u32, ..completion };
        // Under chance timing, packets already wait for each other before execution.
        let taken = if self.timing.is_by_chance() { taken } else { self.in_order(at, taken) };
        if taken > self.now() {
            self.schedule(taken, Rare::Received { at, completion });
        } else {
            self.complete_receive(at, completion);
        }
        Ok(Some(Outcome::of(CompletionStatus::Success)))
    }

    /// Returns when a WRITE or the completion of a RECV becomes visible: not before its predecessors on the
    /// queue pair.
    fn in_order(&mut self, at: u32, seen: Nanos) -> Nanos {
        let Some(target) = self.queue_pair(at) else { return seen };
        target.last_landing = target.last_landing.max(seen);
        target.last_landing
    }

    /// Schedules a WRITE to become visible as a whole, after its predecessors on the queue pair.
    fn land(&mut self, at: u32, packet: u32, region: u32, visible: Nanos) -> Nanos {
        let visible = self.in_order(at, visible);
        let held = self.network.links.hold(region);
        self.network.packets[packet].target = Some(held);
        self.put(visible, Event::Land { packet });
        visible
    }

    /// Schedules a WRITE in pieces; returns the time when all are visible. Pieces are runs of whole 64-byte
    /// lines of the target. The last line comes last if the fabric promises order; the others come in any
    /// order.
    fn land_in_pieces(&mut self, at: u32, packet: u32, region: u32, offset: u64) -> Nanos {
        let now = self.now();
        let Timing::Chance(crate::settings::ChanceTiming { landing, .. }) = self.timing else { return now };
        let bytes = self.network.packets[packet].take_payload();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        let last_line = start.max((end - 1) & !63);
        // A few cuts at line boundaries suffice to expose torn writes.
        let mut cuts: Vec<usize> = (0..self.chance.below(6))
            .map(|_| ((start as u64 + self.chance.below((end - start) as u64)) & !63) as usize)
            .filter(|cut| *cut > start && *cut < last_line)
            .collect();
        cuts.extend([start, last_line, end]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces: Vec<(usize, usize)> = cuts.windows(2).map(|w| (w[0], w[1])).collect();
        let movable = if self.settings.capabilities.in_order_write { pieces.len() - 1 } else { pieces.len() };
        for place in (1..movable).rev() {
            let other = self.chance.below(place as u64 + 1) as usize;
            pieces.swap(place, other);
        }
        let mut when = now;
        // With a chance of one in eight memory lags far behind, so that the initiator's completion comes
        // first.
        if self.chance.one_in(8) {
            when += self.chance.below(10 * landing + 1);
        }
        for (from, to) in pieces {
            when += self.chance.below(landing + 1);
            let (index, piece) = self.network.packets.take();
            piece.clear_payload();
            piece.add_to_payload(&bytes[from - start..to - start]);
            piece.target = Some(self.network.links.hold(region));
            piece.action = Action::Write { key: RegionKey(0), offset: from as u64, immediate: None };
            self.put(when, Event::Land { packet: index });
        }
        self.network.packets[packet].give_payload(bytes);
        self.busy_until(at, when);
        when
    }

    /// Delays the next packet until all events at `when` have happened.
    fn busy_until(&mut self, at: u32, when: Nanos) {
        if let Some(target) = self.queue_pair(at) {
            target.ready_at = target.ready_at.max(when + 1);
        }
    }

    /// Samples a READ in two parts, the first now and the rest later. The split is at a line boundary, or
    /// within a line on fabrics that read by software copies in increasing order.
    #[allow(clippy::too_many_arguments, reason = "the parts of a READ")]
    fn sample(
        &mut self,
        at: u32,
        back_to: u32,
        serial: u64,
        region: u32,
        offset: u64,
        length: u32,
        arrived: Arrived,
    ) {
        let (offset, length) = (offset as usize, length as usize);
        let Timing::Chance(crate::settings::ChanceTiming { landing, .. }) = self.timing else {
            // The model reads as a whole once the RNIC reaches the request, after earlier WRITEs.
            let taken = arrived.visible;
            let when = self.queue_pair(at).map_or(taken, |q| q.last_landing.max(taken));
            let region = self.network.links.hold(region);
            let (got, answer) = (Vec::new(), arrived.answer.map(|answer| answer.max(when)));
            let sample = Rare::Sample { back_to, serial, region, offset, length, got, answer };
            return self.schedule(when, sample);
        };
        let whole = if self.settings.capabilities.cache_line_atomic_reads { LINE } else { 8 };
        let parted = offset + self.chance.below(length as u64 + 1) as usize;
        let first = (parted / whole * whole).saturating_sub(offset);
        let mut got = vec![0; first];
        if let Some(memory) = self.network.links.memory(region) {
            memory.copy_out(offset, &mut got);
        }
        let region = self.network.links.hold(region);
        let when = self.now() + self.chance.below(landing + 1);
        self.busy_until(at, when);
        self.schedule(when, Rare::Sample { back_to, serial, region, offset, length, got, answer: None });
    }

    fn change(
        &mut self,
        region: Option<u32>,
        offset: u64,
        new: impl FnOnce(u64) -> u64,
    ) -> Result<Option<Outcome>, Refused> {
        let memory = region.and_then(|place| self.network.links.memory(place));
        let memory = memory.ok_or(Refused(CompletionStatus::RemoteAccess))?;
        let (old, watchers) = (memory.change(offset as usize, new), memory.memory().watchers());
        self.note(old);
        self.landed(watchers);
        Ok(Some(Outcome { status: CompletionStatus::Success, value: old, read: Vec::new() }))
    }
}

/// Returns the timing of a packet of `bytes` bytes at its target: queue pair `at` on `machine`, writing to
/// the grant at `region` if there is one.
#[inline(always)]
fn arrived(
    timing: &mut Timing,
    links: &Links,
    packet: &mut Packet,
    (at, machine): (u32, u32),
    now: Nanos,
    bytes: u32,
    region: Option<u32>,
) -> Arrived {
    match timing {
        Timing::Chance(_) => Arrived { visible: now, receive: now, answer: None },
        Timing::Fixed(fixed) => fixed.arrive(now, machine, bytes),
        Timing::Model(model) => {
            let region = region.and_then(|place| links.memory(place)).map(|memory| memory.memory().number());
            packet.message.request.remote.region = region.unwrap_or(u32::MAX - at);
            model.arrive(now, &packet.message)
        }
    }
}

pub(crate) fn receive_completion(at: u32, receive: PostedReceive, opcode: Opcode) -> Completion<SimMemory> {
    Completion {
        id: receive.id,
        status: CompletionStatus::Success,
        opcode,
        bytes: 0,
        immediate: None,
        value: 0,
        queue_pair: QueuePairId(at),
        buffer: receive.buffer,
    }
}
