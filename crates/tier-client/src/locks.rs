//! Locks and barriers of a process (section 7.2). The node of this host takes them: its own threads, its processes and all
//! other nodes share them by name.

use crate::attachment::{Attachment, Failed};
use crate::tier::Tier;
use dunlin_fabric::{Fabric, Host, nanos};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{CallError, Cause};
use dunlin_tier::Name;
use dunlin_tier::message::Malformed;
use dunlin_tier::process::Problem;
use dunlin_tier::process::lock::{Granted, LockingRequest, parse_owner};
use dunlin_tier_node::{LockError, RequestError};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// The time of the request by which a call is given up, or a lock is given back for a guard that is dropped.
const GIVE_UP_TIME: Duration = Duration::from_secs(1);
/// The pause before a request is repeated of which the node has not heard.
const REPEAT_AFTER: Duration = Duration::from_millis(100);
/// The most requests of which the node has not heard. It allows a process fewer locks than that.
const MAX_OWED: usize = 4096;

fn nothing(answer: &[u8]) -> Result<(), Malformed> {
    if answer.is_empty() { Ok(()) } else { Err(Malformed) }
}

/// Returns whether the node may have executed a request of which this is the outcome, or the time is over.
fn is_uncertain(failed: &Failed) -> bool {
    match failed {
        Failed::Request(RequestError::Call { source, .. }) => {
            source.was_executed() != Some(false) || source.is_deadline()
        }
        Failed::Request(RequestError::Answer { .. }) => true,
        _ => false,
    }
}

/// Returns whether the node gave the outcome, or has no use for the request.
fn is_heard(failed: &Failed) -> bool {
    !matches!(failed, Failed::Request(_))
}

/// A lock that this process has. Dropping it gives the lock back: that is a request to the node, which blocks for 1 s at
/// most. If the process ends without it, in any way, the next holder gets the lock poisoned.
#[derive(Debug)]
#[must_use = "the lock is given back at once"]
pub struct Guard<P: Fabric = ShmFabric> {
    attachment: Arc<Attachment<P>>,
    granted: Granted,
    is_held: bool,
}

impl<P: Fabric> Guard<P> {
    /// Returns the number of the grant: each grant of a lock has a larger one than those before it, as long as the owner
    /// lives. Storage that keeps the largest number that it has seen can refuse what a dead holder still has under way.
    pub fn fence(&self) -> u64 {
        self.granted.fence
    }

    /// Returns whether the last holder died with the lock, as a process or with its node: what the lock protects may be
    /// half changed.
    pub fn is_poisoned(&self) -> bool {
        self.granted.poisoned
    }

    /// Gives the lock back. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    ///
    /// # Errors
    /// The node or the owner cannot be reached, or has restarted: the lock is not held any more, and another holder may
    /// have got it before.
    pub fn unlock(mut self) -> Result<(), LockError> {
        let time = self.attachment.config.timeout;
        self.give_back(time)
    }

    fn give_back(&mut self, time: Duration) -> Result<(), LockError> {
        if !std::mem::take(&mut self.is_held) {
            return Ok(());
        }
        let request = LockingRequest::Unlock { guard: self.granted.guard };
        self.attachment.unlock_call(&request, time, nothing).map_err(|failed| {
            if !is_heard(&failed) {
                self.attachment.owe(request.clone());
            }
            failed.into()
        })
    }
}

impl<P: Fabric> Drop for Guard<P> {
    fn drop(&mut self) {
        if let Err(error) = self.give_back(GIVE_UP_TIME) {
            tracing::warn!(target: "dunlin::tier", %error, "a lock could not be given back in time");
        }
    }
}

impl From<Failed> for LockError {
    fn from(failed: Failed) -> LockError {
        match failed {
            Failed::Problem(problem) => problem.into(),
            other => LockError::Request(other.into()),
        }
    }
}

impl<P: Fabric> Attachment<P> {
    /// Makes a call that waits, and gives it up if its outcome is not known. The node then says who the owner is.
    fn wait_for<T>(
        self: &Arc<Self>,
        request: &LockingRequest,
        (ticket, name): (u64, &Name),
        time: Duration,
        take: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, LockError> {
        let failed = match self.lock_call(request, time, take) {
            Ok(taken) => return Ok(taken),
            Err(failed) => failed,
        };
        let mut owner = None;
        if is_uncertain(&failed) {
            let give_up = LockingRequest::GiveUp { ticket, name: name.clone() };
            match self.unlock_call(&give_up, GIVE_UP_TIME, parse_owner) {
                Ok(node) => owner = Some(node),
                Err(failed) if is_heard(&failed) => {}
                Err(_) => self.owe(give_up),
            }
        }
        let node = || owner.unwrap_or_else(|| self.attached.node.clone());
        Err(match failed {
            Failed::Request(RequestError::Call {
                source:
                    CallError::NotExecuted(Cause::DeadlineExceeded)
                    | CallError::MaybeExecuted(Cause::DeadlineExceeded),
                ..
            }) => LockError::Deadline { node: node() },
            failed => failed.into(),
        })
    }

    fn lock(
        self: &Arc<Self>,
        name: &Name,
        waits: bool,
        time: Duration,
    ) -> Result<Option<Guard<P>>, LockError> {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let request = LockingRequest::Lock { ticket, name: name.clone(), waits };
        let granted = self.wait_for(&request, (ticket, name), time, |answer| {
            Granted::parse(answer)
                .and_then(|granted| if granted.is_none() && waits { Err(Malformed) } else { Ok(granted) })
        })?;
        Ok(granted.map(|granted| Guard { attachment: Arc::clone(self), granted, is_held: true }))
    }

    /// Has a thread repeat a request until the node has heard of it. Nobody else would: a lock that was granted too late
    /// would be held by nobody.
    fn owe(self: &Arc<Self>, request: LockingRequest) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if owed.requests.len() >= MAX_OWED {
            tracing::warn!(target: "dunlin::tier", "too many locks of a node that does not answer");
            return;
        }
        owed.requests.push(request);
        if std::mem::replace(&mut owed.is_told, true) {
            return;
        }
        drop(owed);
        let (attachment, host) = (Arc::downgrade(self), self.fabric.host().clone());
        let repeats = self.fabric.host().spawn("tier-owed", Box::new(move || repeat(&attachment, &host)));
        if let Err(error) = repeats {
            // The next request that the node does not answer tries again.
            self.owed.lock().unwrap_or_else(PoisonError::into_inner).is_told = false;
            tracing::warn!(target: "dunlin::tier", %error, "no thread to tell the node of locks");
        }
    }
}

/// Tells the node what it has to hear, until it has heard, or does not know this process any more. The attachment may end
/// meanwhile: the node takes its locks back, then.
fn repeat<P: Fabric>(attachment: &Weak<Attachment<P>>, host: &P::Host) {
    loop {
        host.sleep(host.now().saturating_add(nanos(REPEAT_AFTER)));
        let Some(attachment) = attachment.upgrade() else { return };
        let owed = || attachment.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let first = {
            let mut owed = owed();
            owed.is_told = !owed.requests.is_empty();
            match owed.requests.first() {
                Some(first) => first.clone(),
                None => return,
            }
        };
        match attachment.unlock_call(&first, GIVE_UP_TIME, |_| Ok(())) {
            Err(Failed::Problem(Problem::NotAttached)) => owed().requests.clear(),
            Err(failed) if !is_heard(&failed) => {}
            _ => drop(owed().requests.remove(0)),
        }
    }
}

/// Locks and barriers (section 7.2).
impl<P: Fabric> Tier<P> {
    /// Takes the lock of a name, which every node of the cluster knows by this name. Waits until
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most, behind those that asked before. The lock is given
    /// back when the guard is dropped.
    ///
    /// # Errors
    /// [`LockError::Deadline`] if the time is over; the lock is not held then. [`Guard::is_poisoned`] is no error.
    /// [`RequestError::Limit`] in [`LockError::Request`] if this process has, and waits for, as many locks and barriers as
    /// the node allows.
    pub fn lock(&self, name: impl AsRef<[u8]>) -> Result<Guard<P>, LockError> {
        self.lock_within(name, self.attachment().config.timeout)
    }

    /// As [`lock`](Tier::lock), and waits for at most `time`.
    pub fn lock_within(&self, name: impl AsRef<[u8]>, time: Duration) -> Result<Guard<P>, LockError> {
        let guard = self.attachment().lock(&Name::new(name)?, true, time)?;
        // An answer without a lock was refused.
        guard.ok_or(LockError::NotHeld)
    }

    /// Takes a lock if it is free; `None` if another thread, process or node has it. Waits for no holder. Blocks until
    /// [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    pub fn try_lock(&self, name: impl AsRef<[u8]>) -> Result<Option<Guard<P>>, LockError> {
        self.attachment().lock(&Name::new(name)?, false, self.attachment().config.timeout)
    }

    /// Returns the name of the node that owns the lock and the barrier of a name:
    /// [`dunlin_tier_node::Tier::lock_home`]. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at
    /// most.
    ///
    /// # Errors
    /// The name is invalid, or the node has ended, or does not answer.
    pub fn lock_home(&self, name: impl AsRef<[u8]>) -> Result<String, RequestError> {
        let (attachment, request) = (self.attachment(), LockingRequest::Home { name: Name::new(name)? });
        Ok(attachment.unlock_call(&request, attachment.config.timeout, parse_owner)?)
    }

    /// Waits at the barrier of a name until as many callers as `members` wait there, on any nodes; then all go on, and
    /// the barrier can be used again. Waits until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at most.
    ///
    /// # Errors
    /// [`LockError::Deadline`] if the time is over: the others still wait for as many callers.
    /// [`LockRefusal::Members`](dunlin_tier::lock::message::LockRefusal::Members) if callers name different numbers, and
    /// [`LockRefusal::Died`](dunlin_tier::lock::message::LockRefusal::Died) for all if the process or the node of one
    /// dies.
    pub fn barrier(&self, name: impl AsRef<[u8]>, members: u16) -> Result<(), LockError> {
        self.barrier_within(name, members, self.attachment().config.timeout)
    }

    /// As [`barrier`](Tier::barrier), and waits for at most `time`.
    pub fn barrier_within(
        &self,
        name: impl AsRef<[u8]>,
        members: u16,
        time: Duration,
    ) -> Result<(), LockError> {
        let (name, attachment) = (Name::new(name)?, self.attachment());
        let ticket = attachment.tickets.fetch_add(1, Ordering::Relaxed);
        let request = LockingRequest::Barrier { ticket, name: name.clone(), members };
        attachment.wait_for(&request, (ticket, &name), time, nothing)
    }
}

dunlin_tier_node::any_guard!(Guard, Fabric);
