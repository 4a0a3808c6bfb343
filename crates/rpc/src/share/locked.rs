//! A lock around one connection, taken for each submission and for each look at results: the baseline of FLOCK
//! (figure 9, threads that share a queue pair under a spin lock).

use super::strand::{Core, Entry, Policy, Strand};
use crate::client::config::ClientConfig;
use crate::client::core::CallId;
use crate::client::lane::SubmitError;
use crate::client::memory::is_memory;
use crate::client::synchronous::Client as Connection;
use crate::client::within::Time;
use crate::combine::vacant::Vacant;
use crate::error::{CallError, Cause};
use crate::limits::MAX_SEATS;
use dunlin_fabric::{Fabric, Host};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Nobody owns the call at this index.
const NOBODY: u16 = u16::MAX;
const ERA: u32 = 48;

/// The policy.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    /// Calls that their owners do not want any more, for the thread that leads. An owner that goes away does not wait
    /// for the lead: the thread that has it may be ending too.
    forgotten: Mutex<Vec<u64>>,
    has_forgotten: AtomicBool,
}

impl Locked {
    fn end_forgotten<F: Fabric>(&self, core: &mut Core<F, Self>) {
        if !self.has_forgotten.swap(false, Ordering::Relaxed) {
            return;
        }
        let calls = std::mem::take(&mut *self.forgotten.lock().unwrap_or_else(PoisonError::into_inner));
        for call in calls {
            if let Some(id) = core.policy.id(call) {
                core.policy.remove(id);
                core.client.forget(id);
            }
        }
    }
}

/// The owners of calls: whose thread to wake when the call has ended.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// The number of connections that panics have ended, which is part of call numbers: ids begin again.
    era: u16,
    /// By the index of the call's id.
    of: Vec<u16>,
    /// Calls that have ended, and whose results their owners have not taken.
    ended: Vec<(CallId, u16)>,
}

impl Owners {
    /// Returns the id of a call; `None` if its connection was given up.
    fn id(&self, call: u64) -> Option<CallId> {
        (call >> ERA == u64::from(self.era)).then(|| CallId::from_bits(call))
    }

    /// Returns the call's number.
    fn set(&mut self, id: CallId, owner: u16) -> u64 {
        if self.of.len() <= id.index() {
            self.of.resize(id.index() + 1, NOBODY);
        }
        self.of[id.index()] = owner;
        u64::from(self.era) << ERA | id.bits()
    }

    /// Takes note that a call has ended. Returns its owner.
    fn end(&mut self, id: CallId) -> Option<u16> {
        self.remove(id).inspect(|owner| self.ended.push((id, *owner)))
    }

    fn remove(&mut self, id: CallId) -> Option<u16> {
        self.ended.retain(|(other, _)| *other != id);
        let owner = std::mem::replace(self.of.get_mut(id.index())?, NOBODY);
        (owner != NOBODY).then_some(owner)
    }
}

impl<F: Fabric> Policy<F> for Locked {
    type Table = Vacant;
    /// The number of the seat.
    type Seat = u16;
    type Core = Owners;

    const MAX_STRANDS: u16 = 1;

    fn table(_: &ClientConfig) -> Vacant {
        Vacant::new(MAX_SEATS)
    }

    fn strand(_: &Vacant, _: u16) -> Option<(Self, Owners)> {
        Some(Default::default())
    }

    fn sit(table: &Vacant) -> Option<(u16, u16)> {
        table.take().map(|number| (number, number))
    }

    fn leave(table: &Vacant, number: u16, _: u16) {
        table.give_back(number);
    }

    fn submit(strand: &Strand<F, Self>, seat: &mut u16, entry: &Entry<'_>) -> Result<u64, CallError> {
        let host = strand.fabric.host();
        // A call's own time runs while it waits for the lock.
        let until = entry.time.is_own.then(|| entry.time.ends(host.now()));
        let mut lead = strand.lead_spinning().led_by(*seat);
        let time = until.map_or(entry.time, |until| entry.time.left(until, host.now()));
        if time.is_over() {
            return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
        }
        let Core { client, policy, .. } = lead.core();
        let to = (entry.worker, entry.function);
        let submit = |client: &mut Connection<F>, time: Time| match is_memory(to.1) {
            true => client.submit_memory((to.0, to.1.into()), entry.payload, time, true),
            false => client.try_submit(to, entry.payload, time),
        };
        let id = match submit(client, time) {
            Ok(id) => id,
            Err(SubmitError::Full) => return Err(CallError::NotExecuted(Cause::WindowFull)),
            Err(error) => client.retry_after_reconnect(to, time, error, submit)?,
        };
        Ok(policy.set(id, *seat))
    }

    fn lead(strand: &Strand<F, Self>, core: &mut Core<F, Self>) -> usize {
        strand.policy().end_forgotten(core);
        let Core { client, policy, .. } = core;
        let events = client.progress();
        // A thread that was woken for its result may have found the lead taken, and parked again.
        for (_, owner) in policy.ended.iter().filter(|(_, owner)| strand.is_parked(*owner)) {
            strand.wake(*owner);
        }
        while let Some(id) = client.next_done() {
            if let Some(owner) = policy.end(id) {
                strand.wake(owner);
            }
        }
        events
    }

    fn take(
        _: &mut u16,
        core: Option<&mut Core<F, Self>>,
        call: u64,
        with: impl FnOnce(Result<&[u8], CallError>),
    ) -> bool {
        let Some(Core { client, policy, .. }) = core else { return false };
        match policy.id(call) {
            None => with(Err(CallError::MaybeExecuted(Cause::ConnectionLost))),
            Some(id) if !client.is_done(id) => return false,
            Some(id) => {
                policy.remove(id);
                with(client.outcome(id));
                client.forget(id);
            }
        }
        true
    }

    fn expire(strand: &Strand<F, Self>, _: &mut u16, call: u64) -> Option<CallError> {
        let mut lead = strand.lead();
        let Core { client, policy, .. } = lead.core();
        let id = policy.id(call)?;
        if client.is_done(id) {
            return None;
        }
        policy.remove(id);
        client.forget(id);
        Some(CallError::MaybeExecuted(Cause::DeadlineExceeded))
    }

    fn forget(strand: &Strand<F, Self>, _: &mut u16, call: u64) {
        let locked = strand.policy();
        locked.forgotten.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        locked.has_forgotten.store(true, Ordering::Relaxed);
        // Otherwise the thread that leads sees it when it gives the lead back.
        if let Some(mut lead) = strand.try_lead() {
            locked.end_forgotten(lead.core());
        }
    }

    /// A panic may have left a lane between two states: the connection is closed, which ends all calls under way.
    #[cold]
    fn mend(strand: &Strand<F, Self>, core: &mut Core<F, Self>) {
        let Owners { era, of, ended } = &mut core.policy;
        *era = era.wrapping_add(1);
        let owners = of.drain(..).chain(ended.drain(..).map(|(_, owner)| owner));
        owners.filter(|owner| *owner != NOBODY).for_each(|owner| strand.wake(owner));
        core.client.close_now();
    }

    fn has_calls(&self) -> bool {
        self.has_forgotten.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use crate::client::config::ClientConfig;
    use crate::error::{CallError, Cause};
    use crate::plan::{CompletionMode, Protocol, Sharing};
    use crate::server::ServerBuilder;
    use crate::service::{FunctionMode, Reply, Request};
    use crate::share::{Client, Policy};
    use dunlin_fabric::{Address, Fabric, Host, Scheme, Task};
    use dunlin_fabric_sim::Sim;
    use std::time::Duration;

    /// A call's own time runs while another thread has the lock.
    #[test]
    fn a_call_that_waits_for_the_lock_has_its_time_and_no_more() {
        Sim::run(1, |fabric| {
            let address = Address::new(Scheme::Sim, "locked").unwrap();
            let handler = |request: &Request<'_>, reply: &mut Reply<'_>| {
                let left = request.time_left().map_or(0, |left| left.as_nanos() as u64);
                Ok(reply.write(&left.to_le_bytes())?)
            };
            let server = ServerBuilder::new(&fabric).function(1, FunctionMode::Worker);
            let server = server.serve(&address, move |_| Box::new(handler)).unwrap();
            let plan = Protocol::by_name("Direct-WriteIMM").unwrap().plan(CompletionMode::Event);
            let config = ClientConfig::with_plan(crate::Plan { sharing: Sharing::Locked, ..plan });
            let first = Client::connect(&fabric, &address, config).unwrap();
            let callers = [50, 200].map(|micros| {
                let mut other = first.another().unwrap();
                let body = move || match other.within(Duration::from_micros(micros)).call(1, b"") {
                    Ok(left) => {
                        let left = u64::from_le_bytes(*left.first_chunk().unwrap());
                        assert!(micros == 200 && (1..=100_000).contains(&left));
                    }
                    Err(error) => {
                        assert_eq!((micros, error), (50, CallError::NotExecuted(Cause::DeadlineExceeded)));
                    }
                };
                fabric.host().spawn("caller", Box::new(body)).unwrap()
            });
            let Policy::Locked(seat) = &first.policy else { unreachable!("the plan locks") };
            seat.with_lead(|_| fabric.host().sleep(fabric.host().now() + 100_000));
            callers.into_iter().for_each(Task::join);
            drop(first);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}
