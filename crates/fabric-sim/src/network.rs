//! The network and the RNICs at its ends: carries packets between queue pairs, carries them out in memory, and
//! brings the outcome back. Runs as events of the scheduler, never on a task's own time: the target's
//! processor has no part in it.

use crate::link::{LinkEvent, Links};
use crate::memory::Target;
use crate::queues::{
    Action, DomainState, Entry, LinkSide, Outcome, Packet, PostedReceive, QueuePair, QueuePairRef,
};
use crate::scheduler::State;
use dunlin_fabric::memory::HeapMemory;
use dunlin_fabric::{
    Access, Buffer, Completion, CompletionStatus, Nanos, Opcode, QueuePairId, QueuePairState, RegionKey,
    RnrRetry, Transport, WaitMode,
};
use std::collections::BTreeMap;

/// Everything that is not a task.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) links: Links,
    pub(crate) domains: BTreeMap<u32, DomainState>,
    pub(crate) next_domain: u32,
    /// Which domains look at which memory, by the memory's first byte. Only ever looked up, never walked, so
    /// addresses decide nothing about order; the watchers of one memory stand in the order in which they came.
    pub(crate) watchers: BTreeMap<usize, Vec<Watcher>>,
}

/// A domain's watch; holds the memory, so that its address is not used again meanwhile.
pub(crate) struct Watcher {
    pub(crate) domain: u32,
    pub(crate) _memory: Target,
}

/// What can happen in the network.
pub(crate) enum NetworkEvent {
    /// A packet reaches its target.
    Arrive { to: QueuePairRef, packet: Packet },
    /// A target looks at its inbound packets again.
    Serve { at: QueuePairRef },
    /// The retries of a packet that found no RECV are used up.
    RetriesOver { at: QueuePairRef, from: QueuePairRef, serial: u64 },
    /// Bytes become visible in memory.
    Land { region: Target, offset: usize, bytes: Vec<u8> },
    /// A RECV completes, its message being visible.
    Received { at: QueuePairRef, completion: Completion<HeapMemory> },
    /// The second part of a READ is sampled, `got` being the first.
    Sample { back_to: QueuePairRef, serial: u64, region: Target, offset: usize, length: usize, got: Vec<u8> },
    /// The outcome of a work request is back at its initiator.
    Done { at: QueuePairRef, serial: u64, outcome: Outcome },
    /// A queue pair learns that its peer is broken or gone.
    PeerBroke { at: QueuePairRef },
    /// Something on a control connection.
    Link(LinkEvent),
}

/// A responder's no to a packet.
struct Refused(CompletionStatus);

impl State {
    pub(crate) fn queue_pair(&mut self, at: QueuePairRef) -> Option<&mut QueuePair> {
        self.network.domains.get_mut(&at.domain)?.queue_pairs.get_mut(&at.number)
    }

    /// One way through the network.
    pub(crate) fn travel(&mut self) -> Nanos {
        self.settings.latency + self.chance.below(self.settings.jitter + 1)
    }

    /// Lets a network event happen now.
    pub(crate) fn happen(&mut self, event: NetworkEvent) {
        match event {
            NetworkEvent::Arrive { to, packet } => {
                self.note_at(1, to, packet.serial);
                if let Some(target) = self.queue_pair(to)
                    && !target.refusing
                {
                    target.inbound.push_back(packet);
                    self.serve(to);
                }
            }
            NetworkEvent::Serve { at } => {
                self.note_at(2, at, 0);
                self.serve(at);
            }
            NetworkEvent::RetriesOver { at, from, serial } => {
                self.note_at(3, at, serial);
                let Some(target) = self.queue_pair(at) else { return };
                if target.inbound.front().is_some_and(|p| p.from == from && p.serial == serial) {
                    target.inbound.clear();
                    target.refusing = true;
                    self.answer(from, serial, Outcome::of(CompletionStatus::ReceiverNotReady));
                }
            }
            NetworkEvent::Land { region, offset, bytes } => {
                self.note_bytes(4, &bytes);
                region.copy_in(offset, &bytes);
                self.landed(&region);
            }
            NetworkEvent::Received { at, completion } => {
                self.note_at(5, at, completion.id.0);
                if self.queue_pair(at).is_some() {
                    self.complete_receive(at, completion);
                }
            }
            NetworkEvent::Sample { back_to, serial, region, offset, length, mut got } => {
                let first = got.len();
                got.resize(length, 0);
                region.copy_out(offset + first, &mut got[first..]);
                self.note_bytes(6, &got);
                self.answer(
                    back_to,
                    serial,
                    Outcome { status: CompletionStatus::Success, value: 0, read: got },
                );
            }
            NetworkEvent::Done { at, serial, outcome } => {
                self.note_at(7, at, serial);
                self.finish(at, serial, outcome);
            }
            NetworkEvent::PeerBroke { at } => {
                self.note_at(8, at, 0);
                self.fail(at, CompletionStatus::TransportRetry);
            }
            NetworkEvent::Link(event) => self.happen_on_link(event),
        }
    }

    fn note_at(&mut self, kind: u64, at: QueuePairRef, detail: u64) {
        self.note(kind << 56 | u64::from(at.domain) << 28 | u64::from(at.number));
        self.note(detail);
    }

    pub(crate) fn note_bytes(&mut self, kind: u64, bytes: &[u8]) {
        self.note(kind << 56 | bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.note(u64::from_le_bytes(word));
        }
    }

    /// Puts a packet on the wire behind those of the same queue pair.
    pub(crate) fn transmit(&mut self, from: QueuePairRef, to: QueuePairRef, serial: u64, action: Action) {
        let travel = self.travel();
        let earliest = self.now() + travel;
        let Some(sender) = self.queue_pair(from) else { return };
        sender.last_arrival = sender.last_arrival.max(earliest);
        let (at, transport) = (sender.last_arrival, sender.config.transport);
        if transport != Transport::ReliableConnection {
            // Nobody acknowledges: it is done when it has left.
            let left = self.now() + 100 + self.chance.below(200);
            self.done_at(from, serial, left, Outcome::of(CompletionStatus::Success));
            if self.settings.loss != 0 {
                let one_in = self.settings.loss;
                if self.chance.one_in(one_in) {
                    return;
                }
            }
        }
        let packet = Packet { from, serial, action, retrying: false };
        self.schedule(at, NetworkEvent::Arrive { to, packet });
    }

    /// Has an initiator's work request end at a time, behind those before it.
    pub(crate) fn done_at(&mut self, at: QueuePairRef, serial: u64, earliest: Nanos, outcome: Outcome) {
        let Some(initiator) = self.queue_pair(at) else { return };
        initiator.last_done = initiator.last_done.max(earliest);
        let when = initiator.last_done;
        self.schedule(when, NetworkEvent::Done { at, serial, outcome });
    }

    /// Sends the outcome back to an initiator that waits for one.
    fn answer(&mut self, to: QueuePairRef, serial: u64, outcome: Outcome) {
        let reliable =
            self.queue_pair(to).is_some_and(|q| q.config.transport == Transport::ReliableConnection);
        if reliable {
            let arrives = self.now() + self.travel();
            self.done_at(to, serial, arrives, outcome);
        }
    }

    /// Carries out what has arrived at a queue pair, as far as it can be now.
    pub(crate) fn serve(&mut self, at: QueuePairRef) {
        loop {
            let now = self.now();
            let Some(target) = self.queue_pair(at) else { return };
            match target.state {
                QueuePairState::Initialised => return,
                QueuePairState::Error => {
                    target.inbound.clear();
                    return;
                }
                QueuePairState::Ready => {}
            }
            if target.inbound.is_empty() {
                return;
            }
            if target.ready_at > now {
                let when = target.ready_at;
                return self.schedule(when, NetworkEvent::Serve { at });
            }
            let Some(packet) = target.inbound.pop_front() else { return };
            if let Some(stalled) = self.carry_out(at, packet) {
                return self.stall(at, stalled);
            }
        }
    }

    /// A reliable packet found no RECV: it stays the first in the queue and is tried again when one is posted.
    fn stall(&mut self, at: QueuePairRef, mut packet: Packet) {
        let sender = self.queue_pair(packet.from).map(|q| (q.config.rnr_retry, q.config.rnr_timer));
        if let (false, Some((RnrRetry::Count(tries), timer))) = (packet.retrying, sender) {
            packet.retrying = true;
            let over = self.now() + timer.max(1).saturating_mul(u64::from(tries) + 1);
            let (from, serial) = (packet.from, packet.serial);
            self.schedule(over, NetworkEvent::RetriesOver { at, from, serial });
        }
        if let Some(target) = self.queue_pair(at) {
            target.inbound.push_front(packet);
        }
    }

    /// Carries out one packet; gives it back if it has to wait for a RECV.
    fn carry_out(&mut self, at: QueuePairRef, packet: Packet) -> Option<Packet> {
        let reliable =
            self.queue_pair(at).is_some_and(|q| q.config.transport == Transport::ReliableConnection);
        let (from, serial) = (packet.from, packet.serial);
        let consumes = match &packet.action {
            Action::Send { .. } => true,
            Action::Write { immediate, .. } => immediate.is_some(),
            _ => false,
        };
        // A packet that is refused must not consume a RECV, so the range is looked at first.
        let checked = self.check(at, &packet.action);
        if consumes && checked.is_ok() && !self.has_receive(at) {
            return reliable.then_some(packet);
        }
        let outcome = checked.and_then(|region| match packet.action {
            Action::Send { bytes, immediate } => self.deliver(at, &bytes, immediate),
            Action::Write { bytes, offset, immediate, .. } => {
                let length = bytes.len() as u32;
                let visible = self.land(at, region, offset, bytes);
                let receive = immediate.and_then(|_| self.take_receive(at));
                if let Some(receive) = receive {
                    let completion = Completion {
                        immediate,
                        bytes: length,
                        ..receive_completion(at, receive, Opcode::ReceiveWriteImmediate)
                    };
                    self.schedule(visible, NetworkEvent::Received { at, completion });
                }
                Ok(Some(Outcome::of(CompletionStatus::Success)))
            }
            Action::Read { from: slice } => {
                self.sample(at, from, serial, region, slice.offset, slice.length);
                Ok(None)
            }
            Action::FetchAdd { offset, add, .. } => self.change(region, offset, |old| old.wrapping_add(add)),
            Action::CompareSwap { offset, expected, swap, .. } => {
                self.change(region, offset, |old| if old == expected { swap } else { old })
            }
        });
        match outcome {
            Ok(Some(outcome)) => self.answer(from, serial, outcome),
            Ok(None) => {}
            Err(Refused(status)) if reliable => {
                self.answer(from, serial, Outcome::of(status));
                self.fail(at, CompletionStatus::Flushed);
            }
            // Unreliable: dropped without a word.
            Err(Refused(_)) => {}
        }
        None
    }

    /// Checks key, range, permission and alignment; gives the memory, if the action names any.
    fn check(&mut self, at: QueuePairRef, action: &Action) -> Result<Option<Target>, Refused> {
        let (key, offset, length, wants) = match action {
            Action::Send { .. } => return Ok(None),
            Action::Write { bytes, key, offset, .. } => (*key, *offset, bytes.len() as u64, Access::WRITE),
            Action::Read { from } => (from.key, from.offset, u64::from(from.length), Access::READ),
            Action::FetchAdd { key, offset, .. } | Action::CompareSwap { key, offset, .. } => {
                (*key, *offset, 8, Access::ATOMIC)
            }
        };
        let link = self.queue_pair(at).and_then(|q| q.link);
        let region = link
            .and_then(|link| self.granted(link, key, wants))
            .ok_or(Refused(CompletionStatus::RemoteAccess))?;
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > region.length() as u64) {
            return Err(Refused(CompletionStatus::RemoteAccess));
        }
        if wants == Access::ATOMIC && !offset.is_multiple_of(8) {
            return Err(Refused(CompletionStatus::RemoteInvalidRequest));
        }
        Ok(Some(region))
    }

    fn granted(&self, link: LinkSide, key: RegionKey, wants: Access) -> Option<Target> {
        let grant = self.network.links.side(link)?.grants.get(&key.0)?;
        grant.access.contains(wants).then(|| grant.memory.clone())
    }

    fn receives(&mut self, at: QueuePairRef) -> Option<&mut crate::queues::ReceiveQueue> {
        let domain = self.network.domains.get_mut(&at.domain)?;
        let queue_pair = domain.queue_pairs.get_mut(&at.number)?;
        match queue_pair.config.shared_receive {
            Some(shared) => domain.shared_receives.get_mut(shared.0 as usize),
            None => Some(&mut queue_pair.receives),
        }
    }

    fn has_receive(&mut self, at: QueuePairRef) -> bool {
        self.receives(at).is_some_and(|queue| !queue.posted.is_empty())
    }

    fn take_receive(&mut self, at: QueuePairRef) -> Option<PostedReceive> {
        self.receives(at)?.posted.pop_front()
    }

    /// A SEND meets its RECV.
    fn deliver(
        &mut self,
        at: QueuePairRef,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Result<Option<Outcome>, Refused> {
        let datagram =
            self.queue_pair(at).is_some_and(|q| q.config.transport == Transport::UnreliableDatagram);
        let headroom = if datagram { self.settings.capabilities.datagram_headroom as usize } else { 0 };
        let Some(mut receive) = self.take_receive(at) else { return Ok(None) };
        let whole = headroom + bytes.len();
        let fits = match &mut receive.buffer {
            Some(buffer) if buffer.len() >= whole => {
                buffer[headroom..whole].copy_from_slice(bytes);
                true
            }
            Some(_) => false,
            None => whole == 0,
        };
        let completion = receive_completion(at, receive, Opcode::Receive);
        if !fits {
            let completion = Completion { status: CompletionStatus::LocalLength, ..completion };
            self.complete_receive(at, completion);
            return Err(Refused(CompletionStatus::RemoteOperation));
        }
        self.note_bytes(9, bytes);
        self.complete_receive(at, Completion { immediate, bytes: whole as u32, ..completion });
        Ok(Some(Outcome::of(CompletionStatus::Success)))
    }

    /// Schedules a WRITE's pieces; gives the time when all are visible. Pieces are runs of whole 64-byte lines
    /// of the target; the last line comes last if the fabric promises order, the others in any order.
    fn land(&mut self, at: QueuePairRef, region: Option<Target>, offset: u64, bytes: Vec<u8>) -> Nanos {
        let now = self.now();
        let Some(region) = region.filter(|_| !bytes.is_empty()) else { return now };
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        let last_line = start.max((end - 1) & !63);
        // Cut where lines begin, into a few pieces only: enough to be seen torn.
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
        // Now and then memory is far behind, so that the initiator's completion comes first.
        if self.chance.one_in(8) {
            when += self.chance.below(10 * self.settings.landing + 1);
        }
        for (from, to) in pieces {
            when += self.chance.below(self.settings.landing + 1);
            let bytes = bytes[from - start..to - start].to_vec();
            self.schedule(when, NetworkEvent::Land { region: region.clone(), offset: from, bytes });
        }
        self.busy_until(at, when);
        when
    }

    /// The next packet is carried out only when everything of this instant has happened.
    fn busy_until(&mut self, at: QueuePairRef, when: Nanos) {
        if let Some(target) = self.queue_pair(at) {
            target.ready_at = target.ready_at.max(when + 1);
        }
    }

    /// Reads a first part of the range now, the rest a little later.
    fn sample(
        &mut self,
        at: QueuePairRef,
        back_to: QueuePairRef,
        serial: u64,
        region: Option<Target>,
        offset: u64,
        length: u32,
    ) {
        let Some(region) = region else { return };
        let (offset, length) = (offset as usize, length as usize);
        let first = (self.chance.below(length as u64 + 1) & !63) as usize;
        let mut got = vec![0; first];
        region.copy_out(offset, &mut got);
        let when = self.now() + self.chance.below(self.settings.landing + 1);
        self.busy_until(at, when);
        self.schedule(when, NetworkEvent::Sample { back_to, serial, region, offset, length, got });
    }

    fn change(
        &mut self,
        region: Option<Target>,
        offset: u64,
        new: impl FnOnce(u64) -> u64,
    ) -> Result<Option<Outcome>, Refused> {
        let region = region.ok_or(Refused(CompletionStatus::RemoteAccess))?;
        let old = region.change(offset as usize, new);
        self.note(old);
        self.landed(&region);
        Ok(Some(Outcome { status: CompletionStatus::Success, value: old, read: Vec::new() }))
    }

    /// Ends the busy waits of those who look at this memory.
    fn landed(&mut self, region: &Target) {
        let watchers = self.network.watchers.get(&region.address());
        let domains: Vec<u32> = watchers.into_iter().flatten().map(|w| w.domain).collect();
        for domain in domains {
            self.notify(domain, false);
        }
    }

    /// Something concerns a domain: ends its wait, in event mode only if it is an event.
    pub(crate) fn notify(&mut self, domain: u32, event: bool) {
        let Some(state) = self.network.domains.get_mut(&domain) else { return };
        state.arrivals += 1;
        state.event_arrivals += u64::from(event);
        let Some((waiter, mode)) = state.waiting else { return };
        if mode == WaitMode::Busy || event {
            state.waiting = None;
            // A poller sees a line within its loop; a sleeper has to be woken.
            let delay = if mode == WaitMode::Busy {
                20 + self.chance.below(60)
            } else {
                1000 + self.chance.below(2000)
            };
            let at = self.now() + delay;
            self.wake(waiter, at);
        }
    }

    /// An initiator learns how its oldest work request ended.
    fn finish(&mut self, at: QueuePairRef, serial: u64, mut outcome: Outcome) {
        let Some(initiator) = self.queue_pair(at) else { return };
        let Some(oldest) = initiator.sends.front() else { return };
        assert!(oldest.serial >= serial, "work request {serial} ended before {}", oldest.serial);
        if oldest.serial > serial {
            return; // It ended otherwise meanwhile.
        }
        if outcome.status != CompletionStatus::Success {
            return self.fail(at, outcome.status);
        }
        let Some(mut request) = initiator.sends.pop_front() else { return };
        initiator.unretired += 1;
        initiator.unretired_held.push(request.held);
        if !request.signaled {
            return;
        }
        if let Some(buffer) = &mut request.into {
            buffer[..outcome.read.len()].copy_from_slice(&outcome.read);
        }
        let completion = Completion {
            id: request.id,
            status: CompletionStatus::Success,
            opcode: request.opcode,
            bytes: outcome.read.len() as u32,
            immediate: None,
            value: std::mem::take(&mut outcome.value),
            queue_pair: QueuePairId(at.number),
            buffer: request.into,
        };
        self.complete_send(at, completion);
    }

    fn complete_send(&mut self, at: QueuePairRef, completion: Completion<HeapMemory>) {
        let Some(queue_pair) = self.queue_pair(at) else { return };
        let retires = std::mem::take(&mut queue_pair.unretired);
        let held = std::mem::take(&mut queue_pair.unretired_held);
        let queue = queue_pair.config.send_completions.0;
        self.complete(at, queue, Entry { completion, retires, held });
    }

    fn complete_receive(&mut self, at: QueuePairRef, completion: Completion<HeapMemory>) {
        let Some(queue_pair) = self.queue_pair(at) else { return };
        let queue = queue_pair.config.receive_completions.0;
        self.complete(at, queue, Entry { completion, retires: 0, held: Vec::new() });
    }

    /// Puts a completion into its queue. One that does not fit is lost, and its queue pair with it, as verbs
    /// has it for a completion queue that overruns.
    fn complete(&mut self, at: QueuePairRef, queue: u32, entry: Entry) {
        let Some(domain) = self.network.domains.get_mut(&at.domain) else { return };
        let Some(queue) = domain.completion_queues.get_mut(queue as usize) else { return };
        let event = queue.events;
        if queue.entries.len() < queue.depth as usize {
            queue.entries.push_back(entry);
            self.notify(at.domain, event);
        } else {
            drop(entry);
            self.fail(at, CompletionStatus::Flushed);
        }
    }

    /// Breaks a queue pair: the oldest work request ends with `first`, everything else is flushed, and the peer
    /// learns of it.
    pub(crate) fn fail(&mut self, at: QueuePairRef, first: CompletionStatus) {
        let Some(queue_pair) = self.queue_pair(at) else { return };
        if queue_pair.state == QueuePairState::Error {
            return;
        }
        queue_pair.state = QueuePairState::Error;
        queue_pair.inbound.clear();
        let sends = std::mem::take(&mut queue_pair.sends);
        let receives = std::mem::take(&mut queue_pair.receives.posted);
        let (remote, last_arrival) = (queue_pair.remote, queue_pair.last_arrival);
        let mut status = first;
        for request in sends {
            if let Some(queue_pair) = self.queue_pair(at) {
                queue_pair.unretired += 1;
                queue_pair.unretired_held.push(request.held);
            }
            let completion = Completion {
                id: request.id,
                status: std::mem::replace(&mut status, CompletionStatus::Flushed),
                opcode: request.opcode,
                bytes: 0,
                immediate: None,
                value: 0,
                queue_pair: QueuePairId(at.number),
                buffer: request.into,
            };
            self.complete_send(at, completion);
        }
        // Nothing later will give these back.
        let done = self.queue_pair(at).map(|queue_pair| std::mem::take(&mut queue_pair.unretired_held));
        drop(done);
        for receive in receives {
            let completion = receive_completion(at, receive, Opcode::Receive);
            self.complete_receive(at, Completion { status: CompletionStatus::Flushed, ..completion });
        }
        if let Some(remote) = remote {
            self.tell_peer(remote, last_arrival);
        }
        self.notify(at.domain, true);
    }

    /// Has a queue pair learn that its peer is broken or gone, behind what left before: packets
    /// (`last_arrival`) and answers.
    fn tell_peer(&mut self, remote: QueuePairRef, last_arrival: Nanos) {
        let answers = self.queue_pair(remote).map_or(0, |remote| remote.last_done);
        let when = last_arrival.max(answers).max(self.now() + self.travel());
        self.schedule(when, NetworkEvent::PeerBroke { at: remote });
    }

    /// Destroys a queue pair without completions; `false` if there is none.
    pub(crate) fn destroy(&mut self, at: QueuePairRef) -> bool {
        let Some(domain) = self.network.domains.get_mut(&at.domain) else { return false };
        let Some(gone) = domain.queue_pairs.remove(&at.number) else { return false };
        for queue in &mut domain.completion_queues {
            queue.entries.retain(|entry| entry.completion.queue_pair.0 != at.number);
        }
        if let Some(remote) = gone.remote {
            self.tell_peer(remote, gone.last_arrival);
        }
        true
    }
}

fn receive_completion(at: QueuePairRef, receive: PostedReceive, opcode: Opcode) -> Completion<HeapMemory> {
    let buffer: Option<Buffer<HeapMemory>> = receive.buffer;
    Completion {
        id: receive.id,
        status: CompletionStatus::Success,
        opcode,
        bytes: 0,
        immediate: None,
        value: 0,
        queue_pair: QueuePairId(at.number),
        buffer,
    }
}
