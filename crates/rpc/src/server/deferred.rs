//! Calls that are answered later, by whoever has them: the pool's threads, or an application that pulls. One
//! mechanism for both: an owned request goes out, and a [`Deferred`] brings the answer to the worker's inbox.

use crate::server::inbox::{Command, Inbox};
use dunlin_fabric::{Fabric, Nanos, Signal};
use dunlin_wire::Status;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// A request that was taken off its worker.
#[derive(Debug)]
pub struct Incoming<F: Fabric> {
    /// The function id.
    pub function: u16,
    /// The payload.
    pub payload: Vec<u8>,
    /// When the call's deadline is, on the server's clock; `None` for no deadline.
    pub deadline: Option<Nanos>,
    /// The session of the caller.
    pub session: u64,
    deferred: Deferred<F>,
}

impl<F: Fabric> Incoming<F> {
    pub(crate) fn new(
        function: u16,
        payload: Vec<u8>,
        deadline: Option<Nanos>,
        session: u64,
        deferred: Deferred<F>,
    ) -> Self {
        Incoming { function, payload, deadline, session, deferred }
    }

    /// Answers with a result.
    pub fn reply(mut self, payload: Vec<u8>) {
        self.deferred.finish(Status::Ok, payload);
    }

    /// Answers with an error.
    pub fn refuse(mut self, status: Status) {
        self.deferred.finish(status, Vec::new());
    }

    /// The call is answered by other means.
    pub(crate) fn forget(mut self) {
        self.deferred.inbox = None;
    }

    pub(crate) fn finish(mut self, status: Status, payload: Vec<u8>) {
        self.deferred.finish(status, payload);
    }
}

/// The right and duty to answer one call. Dropped without an answer it answers that the handler failed.
#[derive(Debug)]
pub(crate) struct Deferred<F: Fabric> {
    inbox: Option<Arc<Inbox<F>>>,
    lane: u16,
    serial: u64,
    call: u32,
}

impl<F: Fabric> Deferred<F> {
    pub(crate) fn new(inbox: Arc<Inbox<F>>, lane: u16, serial: u64, call: u32) -> Self {
        Deferred { inbox: Some(inbox), lane, serial, call }
    }

    fn finish(&mut self, status: Status, payload: Vec<u8>) {
        if let Some(inbox) = self.inbox.take() {
            inbox.push(Command::Answer {
                lane: self.lane,
                serial: self.serial,
                call: self.call,
                status,
                payload,
            });
        }
    }
}

impl<F: Fabric> Drop for Deferred<F> {
    fn drop(&mut self) {
        self.finish(Status::HandlerPanicked, Vec::new());
    }
}

/// A bounded queue of owned requests.
#[derive(Debug)]
pub(crate) struct WaitingCalls<F: Fabric> {
    state: Mutex<(VecDeque<Incoming<F>>, bool)>,
    limit: usize,
    signal: <F::Host as dunlin_fabric::Host>::Signal,
}

impl<F: Fabric> WaitingCalls<F> {
    pub(crate) fn new(fabric: &F, limit: usize) -> Self {
        use dunlin_fabric::Host;
        WaitingCalls { state: Mutex::new((VecDeque::new(), false)), limit, signal: fabric.host().signal() }
    }

    /// Adds a request; gives it back when there are too many, or nobody takes them any more.
    pub(crate) fn push(&self, incoming: Incoming<F>) -> Result<(), Incoming<F>> {
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0.len() >= self.limit || state.1 {
                return Err(incoming);
            }
            state.0.push_back(incoming);
        }
        self.signal.raise();
        Ok(())
    }

    /// The next request; blocks until then at most. `None` when none came or the server ends.
    pub(crate) fn take(&self, until: Nanos) -> Option<Incoming<F>> {
        loop {
            let seen = self.signal.seen();
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(incoming) = state.0.pop_front() {
                    return Some(incoming);
                }
                if state.1 {
                    return None;
                }
            }
            if !self.signal.wait(seen, until) {
                return None;
            }
        }
    }

    /// Lets all takers go; what waits is dropped, and so answered.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.1 = true;
            std::mem::take(&mut state.0)
        };
        for incoming in waiting {
            incoming.refuse(Status::Draining);
        }
        self.signal.raise();
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}
