//! The client as the threads that share it use it (`share/`): one of them at a time, each for itself or for all.

use super::Client;
use crate::client::core::CallId;
use crate::client::lane::SubmitError;
use crate::client::memory::is_memory;
use crate::client::slots::Sink;
use crate::client::within::Time;
use crate::error::{CallError, Cause};
use crate::path::call_id::CallEnds;
use crate::path::tx::OwnPayload;
use crate::wait::Sleep;
use dunlin_fabric::{Armed, Fabric, Nanos, ThreadDomain, WaitMode};

impl<F: Fabric> Client<F> {
    pub(crate) fn fabric(&self) -> &F {
        &self.core.fabric
    }

    /// Returns the waker of the client's domain.
    pub(crate) fn doorbell(&self) -> <F::Domain as ThreadDomain>::Waker {
        self.core.domain.waker()
    }

    /// Returns the number of the message with a live call.
    #[cfg(test)]
    pub(crate) fn sequence_of(&mut self, id: CallId) -> Option<u64> {
        self.core.lane(id.lane)?.slots.sequence_of(id.call)
    }

    /// Returns how a thread sleeps that waits for this client.
    pub(crate) fn sleep(&self) -> Sleep {
        let sleep = self.core.sleep();
        Sleep { gives_way: sleep.gives_way && self.core.domain.gives_way(), ..sleep }
    }

    pub(crate) fn is_fetching(&self) -> bool {
        self.core.is_fetching()
    }

    /// Returns whether a READ has to be posted at once. A wait would not end.
    pub(crate) fn has_read_to_post(&self) -> bool {
        self.core.has_read_to_post()
    }

    /// Returns the next time at which the client needs a look, whatever arrives.
    #[inline]
    pub(crate) fn due(&self) -> Nanos {
        let batch = if self.batches { self.core.batch_due() } else { Nanos::MAX };
        self.core.fetch_due().min(batch)
    }

    /// Returns whether a thread may have another call on the lane of a worker
    /// ([`ClientConfig::calls_per_thread`](crate::ClientConfig::calls_per_thread)).
    #[inline]
    pub(crate) fn has_room_for(&mut self, worker: usize, function: u16, thread: u16) -> bool {
        let Some(most) = self.target.config.calls_per_thread else { return true };
        let lane = self.lanes.of(worker, function).and_then(|lane| self.core.lane(lane));
        lane.is_none_or(|lane| lane.slots.has_room_for(thread, most))
    }

    /// Makes a call, as a message of its own if it is `alone`, else in the open batch of its lane, which
    /// [`send_batches`](Client::send_batches) sends. Does not wait for room.
    #[inline]
    pub(crate) fn submit_with_others(
        &mut self,
        (worker, ends): (usize, CallEnds),
        payload: &[u8],
        time: Time,
        alone: bool,
    ) -> Result<CallId, SubmitError> {
        if is_memory(ends.function) {
            return self.submit_memory((worker, ends), payload, time, alone);
        }
        let Some(lane) = self.lanes.of(worker, ends.function) else { return Err(SubmitError::Broken) };
        self.core.with_lane(lane, |cx, lane| {
            if lane.batching.is_some() {
                let call = lane.push(cx, ends, payload, time)?;
                // The call exists from here on. An error of the lane reaches it as its outcome.
                let _ = lane.flush_alone(cx);
                return Ok(call);
            }
            match alone {
                true => lane.submit(cx, ends, payload, time.nanos),
                false => lane.push(cx, ends, payload, time),
            }
        })
    }

    /// As [`submit_with_others`](Client::submit_with_others), from memory of the calling thread. The call comes before
    /// those of the open batch, unless one of them is of the same thread, as `behind` says. On an error the payload keeps
    /// its memory, unless the lane is broken.
    pub(crate) fn submit_own(
        &mut self,
        (worker, ends): (usize, CallEnds),
        own: &mut OwnPayload<F::Memory>,
        time: Time,
        (alone, behind): (bool, bool),
    ) -> Result<CallId, SubmitError> {
        if own.buffer.is_none() {
            return Err(SubmitError::Call(CallError::NotExecuted(Cause::Closed)));
        }
        let takes = self.lanes.of(worker, ends.function).and_then(|lane| self.core.lane(lane));
        if !takes.is_some_and(|lane| lane.takes_own()) {
            return self.submit_with_others((worker, ends), own.bytes(), time, alone);
        }
        let Some(lane) = self.lanes.of(worker, ends.function) else { return Err(SubmitError::Broken) };
        let mut is_open = false;
        let submitted = self.core.with_lane(lane, |cx, lane| {
            let call = lane.submit_own(cx, ends, own, time.nanos, (alone, behind))?;
            is_open = lane.has_open();
            Ok(call)
        });
        self.held_back |= alone && is_open;
        submitted
    }

    /// Sends the operations on memory that wait, and the open batches of all lanes that do not batch by themselves,
    /// each lane's with one doorbell. Those without room stay; returns whether there are any.
    pub(crate) fn send_batches(&mut self) -> bool {
        let mut stays = false;
        for at in 0..self.lanes.all().len() {
            let index = self.lanes.all()[at];
            if self.core.lane(index).is_some_and(|lane| lane.has_open()) {
                stays |= matches!(self.core.send_open(index), Err(SubmitError::Full));
            }
        }
        self.held_back |= stays;
        stays
    }

    /// Processes everything that has arrived, and passes each call that has ended to `sink`, which is the same
    /// as `each` for the outcomes that were kept. Returns the number of messages and completions.
    #[inline]
    pub(crate) fn collect_into<S: Sink>(
        &mut self,
        sink: &mut S,
        mut each: impl FnMut(&mut S, CallId, Result<&[u8], CallError>),
    ) -> usize {
        if self.held_back {
            self.held_back = self.core.flush_all();
        }
        let events = self.core.progress_into(sink);
        while let Some(id) = self.core.next_done() {
            each(sink, id, self.core.outcome(id));
            self.core.forget(id);
        }
        events
    }

    /// Returns whether the server has declined further credits on a lane.
    #[inline]
    pub(crate) fn is_declined(&mut self) -> bool {
        let Client { core, lanes, .. } = self;
        lanes.all().iter().any(|index| core.lane(*index).is_some_and(|lane| lane.is_declined()))
    }

    /// Returns whether the last attempt to connect failed because the server grants no queue pair.
    pub(crate) fn has_no_queue_pair(&self) -> bool {
        self.target.has_no_queue_pair
    }

    /// Closes the connection, and forgets all calls. The client connects again if it is used.
    pub(crate) fn close_now(&mut self) {
        self.core.close();
    }

    /// Ends calls past their deadline, and sends batches that wait for room.
    pub(crate) fn look_at_deadlines(&mut self) {
        self.before_waiting();
    }

    /// Ends calls past their deadline, and arms the domain for a wait by its waker. The caller looks once more
    /// for arrivals before it waits, and waits until [`wait_limit`](Client::wait_limit) at most.
    pub(crate) fn arm(&mut self, mode: WaitMode) -> Armed {
        self.before_waiting();
        if mode.sleeps() {
            self.core.check_soon();
        }
        self.core.domain.arm(mode)
    }

    /// Returns the time at which a wait has to end.
    pub(crate) fn wait_limit(&self) -> Nanos {
        self.earliest.min(self.due())
    }

    /// Cancels [`arm`](Client::arm).
    pub(crate) fn disarm(&mut self, armed: Armed) {
        self.core.domain.disarm(armed);
    }
}
