//! A lock around one connection, taken for each submission and for each look at results: the baseline of FLOCK
//! (figure 9, threads that share a queue pair under a spin lock).

use super::handle::{Core, Entry, Handle, MAX_SEATS, Policy};
use crate::client::config::ClientConfig;
use crate::client::core::CallId;
use crate::client::lane::SubmitError;
use crate::error::{CallError, Cause};
use dunlin_fabric::Fabric;
use std::sync::{Mutex, PoisonError};

/// Nobody owns the call at this index.
const NOBODY: u16 = u16::MAX;

/// The policy: it has no state of its own but the numbers of the seats.
#[derive(Debug)]
pub(crate) struct Locked {
    /// Numbers of seats without a thread.
    vacant: Mutex<Vec<u16>>,
}

/// The owners of calls, by the index of their id: whose thread to wake when the call has ended.
#[derive(Debug, Default)]
pub(crate) struct Owners(Vec<u16>);

impl Owners {
    fn set(&mut self, id: CallId, owner: u16) {
        if self.0.len() <= id.index() {
            self.0.resize(id.index() + 1, NOBODY);
        }
        self.0[id.index()] = owner;
    }

    fn take(&mut self, id: CallId) -> Option<u16> {
        let owner = std::mem::replace(self.0.get_mut(id.index())?, NOBODY);
        (owner != NOBODY).then_some(owner)
    }
}

impl<F: Fabric> Policy<F> for Locked {
    /// The number of the seat.
    type Seat = u16;
    type Core = Owners;

    fn new(_: &ClientConfig) -> (Self, Owners) {
        (Locked { vacant: Mutex::new((0..MAX_SEATS).rev().collect()) }, Owners::default())
    }

    fn sit(&self) -> Option<(u16, u16)> {
        let number = self.vacant.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some((number, number))
    }

    fn leave(&self, number: u16, _: u16) {
        self.vacant.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }

    fn submit(handle: &Handle<F, Self>, seat: &mut u16, entry: &Entry<'_>) -> Result<u64, CallError> {
        let mut lead = handle.lead_spinning().led_by(*seat);
        let Core { client, policy, .. } = lead.core();
        let to = (entry.worker, entry.function);
        let submit = |client: &mut crate::client::synchronous::Client<F>, time| {
            client.try_submit(to, entry.payload, time)
        };
        let id = match submit(client, entry.time) {
            Ok(id) => id,
            Err(SubmitError::Full) => return Err(CallError::NotExecuted(Cause::WindowFull)),
            Err(error) => client.once_more(to, entry.time, error, submit)?,
        };
        policy.set(id, *seat);
        Ok(id.bits())
    }

    fn lead(handle: &Handle<F, Self>, core: &mut Core<F, Self>) {
        let Core { client, policy, .. } = core;
        client.progress();
        while let Some(id) = client.next_done() {
            if let Some(owner) = policy.take(id) {
                handle.wake(owner);
            }
        }
    }

    fn take(
        _: &mut u16,
        core: Option<&mut Core<F, Self>>,
        call: u64,
        with: impl FnOnce(Result<&[u8], CallError>),
    ) -> bool {
        let Some(Core { client, .. }) = core else { return false };
        let id = CallId::from_bits(call);
        if !client.is_done(id) {
            return false;
        }
        with(client.outcome(id));
        client.forget(id);
        true
    }

    fn expire(handle: &Handle<F, Self>, _: &mut u16, call: u64) -> Option<CallError> {
        let mut lead = handle.lead();
        let Core { client, policy, .. } = lead.core();
        let id = CallId::from_bits(call);
        if client.is_done(id) {
            return None;
        }
        // Each call is a message of its own, so it was sent.
        policy.take(id);
        client.forget(id);
        Some(CallError::MaybeExecuted(Cause::DeadlineExceeded))
    }

    fn forget(handle: &Handle<F, Self>, _: &mut u16, call: u64) {
        let mut lead = handle.lead();
        let Core { client, policy, .. } = lead.core();
        let id = CallId::from_bits(call);
        policy.take(id);
        client.forget(id);
    }
}
