//! Completions, errors, broken peers, and the wake-ups that they cause.

use crate::memory::{NAMELESS, SimMemory, Watchers};
use crate::network::receive_completion;
use crate::queues::{Entry, Kept, Outcome};
use crate::state::{Rare, State};
use crate::tasks::Waiter;
use dunlin_fabric::{Completion, CompletionStatus, Nanos, Opcode, QueuePairId, QueuePairState, WaitMode};

impl State {
    /// Ends the waits for WRITEs of the domains that watch this memory.
    #[inline(always)]
    pub(crate) fn landed(&mut self, watchers: Watchers) {
        match watchers {
            Watchers::Nobody => {}
            Watchers::One(one) => self.seen_by(one.domain(), one.name()),
            Watchers::Several(all) => all.into_iter().for_each(|(domain, name)| self.seen_by(domain, name)),
        }
    }

    #[inline(never)]
    fn seen_by(&mut self, domain: u32, name: u32) {
        let Some(state) = self.network.domains.get_mut(domain) else { return };
        if name != NAMELESS {
            state.note_active(name);
        }
        state.arrivals += 1;
        if let Some((waiter, mode @ (WaitMode::Busy | WaitMode::Write))) = state.waiting {
            state.waiting = None;
            self.wake_by_arrival(waiter, mode == WaitMode::Busy);
        }
    }

    #[inline]
    pub(crate) fn wake_by_arrival(&mut self, waiter: Waiter, busy: bool) {
        let at = self.now() + self.timing.notice(&mut self.chance, busy);
        self.wake(waiter, at);
    }

    /// Notifies a domain of an arrival: ends its wait, in mode `Event` only if the arrival is an event.
    pub(crate) fn notify(&mut self, domain: u32, event: bool) {
        let Some(state) = self.domain(domain) else { return };
        state.arrivals += 1;
        state.event_arrivals += u64::from(event);
        let other = if event { state.other.take() } else { None };
        if let Some((waiter, mode)) = state.waiting
            && (mode != WaitMode::Event || event)
        {
            state.waiting = None;
            self.wake_by_arrival(waiter, mode == WaitMode::Busy);
        }
        if let Some(other) = other {
            self.notify(other, true);
        }
    }

    /// Completes a work request at its initiator, and with it the unsignaled ones before it. Requests
    /// complete in posting order: an acknowledgement that overtakes the answer of an earlier READ waits for
    /// it.
    pub(crate) fn finish(&mut self, at: u32, serial: u64, outcome: Outcome) {
        self.finish_one(at, serial, outcome);
        while let Some((serial, outcome)) = self.take_early(at) {
            self.finish_one(at, serial, outcome);
        }
    }

    /// Takes the oldest outcome that arrived early, if all its predecessors are done.
    #[inline]
    fn take_early(&mut self, at: u32) -> Option<(u64, Outcome)> {
        let initiator = self.queue_pair(at)?;
        let index = (0..initiator.early.len()).min_by_key(|index| initiator.early[*index].0)?;
        let serial = initiator.early[index].0;
        initiator.retire_before(serial);
        let its_turn = initiator.sends.front().is_none_or(|oldest| oldest.serial >= serial);
        its_turn.then(|| initiator.early.swap_remove(index))
    }

    fn finish_one(&mut self, at: u32, serial: u64, outcome: Outcome) {
        let Some(initiator) = self.queue_pair(at) else { return };
        initiator.retire_before(serial);
        let Some(oldest) = initiator.sends.front() else { return };
        if oldest.serial < serial {
            initiator.early.push((serial, outcome));
            return;
        }
        if oldest.serial > serial {
            return; // The request has already ended in another manner.
        }
        if outcome.status != CompletionStatus::Success {
            return self.fail(at, outcome.status);
        }
        let Some(mut request) = initiator.retire_oldest() else { return };
        if !request.signaled {
            return;
        }
        match request.kept.as_deref_mut() {
            Some(Kept::Into(buffer)) => buffer[..outcome.read.len()].copy_from_slice(&outcome.read),
            Some(Kept::IntoRegion(range)) => {
                range.copy_in(&outcome.read);
            }
            Some(Kept::Data(_) | Kept::Region(_)) | None => {}
        }
        let completion = Completion {
            id: request.id,
            status: CompletionStatus::Success,
            opcode: request.opcode,
            bytes: outcome.read.len() as u32,
            immediate: None,
            value: outcome.value,
            queue_pair: QueuePairId(at),
            buffer: request.into_buffer(),
        };
        self.complete_send(at, completion);
    }

    fn complete_send(&mut self, at: u32, completion: Completion<SimMemory>) {
        let Some(queue_pair) = self.queue_pair(at) else { return };
        let retires = std::mem::take(&mut queue_pair.unretired);
        let held = std::mem::take(&mut queue_pair.unretired_held);
        let (domain, queue) = (queue_pair.domain, queue_pair.config.send_completions.0);
        self.complete(at, domain, queue, Entry { completion, retires, held });
    }

    pub(crate) fn complete_receive(&mut self, at: u32, completion: Completion<SimMemory>) {
        let Some(queue_pair) = self.queue_pair(at) else { return };
        let (domain, queue) = (queue_pair.domain, queue_pair.config.receive_completions.0);
        self.complete(at, domain, queue, Entry { completion, retires: 0, held: Vec::new() });
    }

    /// Adds a completion to its queue. If the queue overruns, the completion is lost and its queue pair
    /// breaks, as in verbs.
    fn complete(&mut self, at: u32, domain: u32, queue: u32, entry: Entry) {
        let Some(state) = self.domain(domain) else { return };
        let Some(queue) = state.completion_queues.get_mut(queue as usize) else { return };
        let event = queue.events;
        if queue.entries.len() < queue.depth as usize {
            queue.entries.push_back(entry);
            self.notify(domain, event);
        } else {
            drop(entry);
            self.tell(|_| format!("a completion queue of domain {domain} overruns; queue pair {at} breaks"));
            self.fail(at, CompletionStatus::Flushed);
        }
    }

    /// Breaks a queue pair: the oldest work request completes with `first`, all others are flushed, and the
    /// peer is notified.
    pub(crate) fn fail(&mut self, at: u32, first: CompletionStatus) {
        let Some(queue_pair) = self.queue_pair(at) else { return };
        if queue_pair.state == QueuePairState::Error {
            return;
        }
        queue_pair.state = QueuePairState::Error;
        queue_pair.retire_before(queue_pair.carried_out + 1);
        let inbound = std::mem::take(&mut queue_pair.inbound);
        let sends = queue_pair.sends.len();
        let receives = std::mem::take(&mut queue_pair.receives.posted);
        let (remote, last_arrival, domain) = (queue_pair.remote, queue_pair.last_arrival, queue_pair.domain);
        let machine = queue_pair.place.machine;
        let last_landing = queue_pair.last_landing;
        if let Some(domain) = self.domain(domain) {
            domain.broken += 1;
        }
        self.give_packets(inbound);
        self.tell(|_| format!("queue pair {at} breaks: {first:?}"));
        let mut status = first;
        for _ in 0..sends {
            let Some(request) = self.queue_pair(at).and_then(|q| q.retire_oldest()) else { break };
            let completion = Completion {
                id: request.id,
                status: std::mem::replace(&mut status, CompletionStatus::Flushed),
                opcode: request.opcode,
                bytes: 0,
                immediate: None,
                value: 0,
                queue_pair: QueuePairId(at),
                buffer: request.into_buffer(),
            };
            self.complete_send(at, completion);
        }
        // No later completion would return these buffers.
        let done = self.queue_pair(at).map(|queue_pair| std::mem::take(&mut queue_pair.unretired_held));
        drop(done);
        for receive in receives {
            let completion = receive_completion(at, receive, Opcode::Receive);
            let completion = Completion { status: CompletionStatus::Flushed, ..completion };
            // Flushed RECVs come after those that were consumed earlier and are not visible yet.
            if last_landing > self.now() {
                self.schedule(last_landing, Rare::Received { at, completion });
            } else {
                self.complete_receive(at, completion);
            }
        }
        if let Some(remote) = remote {
            self.tell_peer(remote, machine, last_arrival);
        }
        self.notify(domain, true);
    }

    /// Schedules the peer's notification of a queue pair on `machine` that is broken or destroyed, after earlier packets
    /// (`last_arrival`) and answers.
    fn tell_peer(&mut self, remote: u32, machine: u32, last_arrival: Nanos) {
        let peer = self.queue_pair(remote).map(|remote| (remote.last_done, remote.place.machine));
        let (answers, other) = peer.unwrap_or((0, machine));
        let left = self.now().max(self.cut_between(machine, other));
        let when = last_arrival.max(answers).max(left + self.travel());
        self.schedule(when, Rare::PeerBroke { at: remote });
    }

    /// Destroys a queue pair without completions; returns `false` if it does not exist.
    pub(crate) fn destroy(&mut self, at: u32) -> bool {
        let Some(gone) = self.network.queue_pairs.remove(at) else { return false };
        if let Some(domain) = self.domain(gone.domain) {
            domain.queue_pairs.retain(|number| *number != at);
            domain.broken -= u32::from(gone.state == QueuePairState::Error);
            domain.address_handles.remove_all(QueuePairId(at));
            for queue in &mut domain.completion_queues {
                queue.entries.retain(|entry| entry.completion.queue_pair.0 != at);
            }
        }
        if let Some(remote) = gone.remote {
            self.tell_peer(remote, gone.place.machine, gone.last_arrival);
        }
        let inbound: Vec<u32> = gone.inbound.iter().copied().collect();
        self.give_packets(inbound);
        true
    }

    /// Destroys a domain with all its queue pairs.
    pub(crate) fn destroy_domain(&mut self, domain: u32) {
        let numbers = self.domain(domain).map(|state| std::mem::take(&mut state.queue_pairs));
        for number in numbers.into_iter().flatten() {
            self.destroy(number);
        }
        self.network.domains.remove(domain);
    }
}
