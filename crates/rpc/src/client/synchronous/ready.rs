//! Connecting again: at once, or with back-off for as long as a call may wait.

use super::Client;
use crate::client::core::CallId;
use crate::client::lane::SubmitError;
use crate::client::patience::Patience;
use crate::client::within::Time;
use crate::error::{CallError, Cause, ConnectError};
use dunlin_fabric::WithSources;
use dunlin_fabric::{Fabric, Host, Nanos, nanos};
use std::time::Duration;

impl<F: Fabric> Client<F> {
    /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile.
    /// Returns at once if it is connected. Blocks. The log (target `dunlin::client`) has the reason of the
    /// first failed attempt.
    ///
    /// # Errors
    /// [`Cause::Disconnected`]: there is no connection yet. Later calls connect as before.
    pub(crate) fn wait_ready(&mut self, at_most: Duration) -> Result<(), CallError> {
        let usable = |client: &mut Self| {
            let Client { core, lanes, .. } = client;
            !lanes.all().is_empty() && lanes.all().iter().all(|lane| core.is_usable(*lane))
        };
        // A connection that just broke is noticed by this.
        self.core.progress_after_sleep();
        if usable(self) {
            return Ok(());
        }
        let until = self.core.fabric.host().now().saturating_add(nanos(at_most));
        self.reconnect_until(until, 0).map_err(|()| CallError::NotExecuted(Cause::Disconnected))
    }

    /// Makes sure that the client has lanes, as a call would, for callers that must know the number of workers
    /// before they choose one. Returns at once if it has. Blocks as a call does.
    pub(crate) fn ensure_connected(&mut self) -> Result<(), CallError> {
        self.ensure_connected_for(0, u16::MAX, self.usual_time())
    }

    /// Handles a failed submission: reconnects if the lane is unusable, and tries again.
    #[cold]
    pub(crate) fn retry_after_reconnect(
        &mut self,
        (worker, function): (usize, u16),
        time: Time,
        error: SubmitError,
        mut submit: impl FnMut(&mut Self, Time) -> Result<CallId, SubmitError>,
    ) -> Result<CallId, CallError> {
        let usable = self.lanes.of(worker, function).is_some_and(|lane| self.core.is_usable(lane));
        if usable {
            return self.map_submit_error(Err(error));
        }
        let began = self.core.fabric.host().now();
        let patience = self.patience(time, began);
        loop {
            self.reconnect(worker, time, patience)?;
            // The wait for the connection was part of the call's time.
            let left = match time.is_own || patience.is_some() {
                true => time.left(time.ends(began), self.core.fabric.host().now()),
                false => time,
            };
            if left.is_over() {
                return Err(CallError::NotExecuted(Cause::DeadlineExceeded));
            }
            match submit(self, left) {
                // The connection broke at once.
                Err(SubmitError::Broken) if patience.is_some() => {}
                submitted => return self.map_submit_error(submitted),
            }
        }
    }

    /// Makes sure that the worker's lane accepts calls: reconnects if it broke.
    #[inline]
    pub(super) fn ensure_connected_for(
        &mut self,
        worker: usize,
        function: u16,
        time: Time,
    ) -> Result<(), CallError> {
        if self.lanes.of(worker, function).is_some_and(|lane| self.core.is_usable(lane)) {
            return Ok(());
        }
        let patience = self.patience(time, self.core.fabric.host().now());
        self.reconnect(worker, time, patience)
    }

    fn patience(&self, time: Time, now: Nanos) -> Option<Patience> {
        Patience::new(self.target.config.wait_for_ready, time, now)
    }

    /// Reconnects: with patience until it ends, else once if the back-off allows it.
    #[cold]
    fn reconnect(&mut self, worker: usize, time: Time, patience: Option<Patience>) -> Result<(), CallError> {
        let no_such = |client: &Self| !client.lanes.all().is_empty() && worker >= client.lanes.workers();
        if no_such(self) {
            return Err(CallError::NotExecuted(Cause::NoSuchWorker));
        }
        match patience {
            Some(patience) => {
                self.reconnect_until(patience.until, time.least_to_connect())
                    .map_err(|()| CallError::NotExecuted(patience.cause))?;
            }
            None => {
                let now = self.core.fabric.host().now();
                let until = now.saturating_add(time.to_connect(nanos(self.target.config.connect_timeout)));
                if !self.target.backoff.is_due(now) || !self.attempt(until) {
                    return Err(CallError::NotExecuted(Cause::Disconnected));
                }
            }
        }
        match no_such(self) {
            true => Err(CallError::NotExecuted(Cause::NoSuchWorker)),
            false => Ok(()),
        }
    }

    /// Tries to connect with back-off until `until`. An attempt may take the time `least` at least.
    fn reconnect_until(&mut self, until: Nanos, least: Nanos) -> Result<(), ()> {
        let connect_timeout = nanos(self.target.config.connect_timeout);
        let host = self.core.fabric.host().clone();
        loop {
            let now = host.now();
            if now >= until {
                return Err(());
            }
            if !self.target.backoff.is_due(now) {
                host.sleep(self.target.backoff.not_before().min(until));
                // Answers on the lanes that still work.
                self.core.progress();
            } else if self.attempt(now.saturating_add(connect_timeout.min((until - now).max(least)))) {
                return Ok(());
            }
        }
    }

    /// Tries once to connect, until `until` at most. Returns whether the client is connected.
    fn attempt(&mut self, until: Nanos) -> bool {
        let host = self.core.fabric.host().clone();
        // The results of old lanes stay available. Lanes without results are removed.
        let lanes = self.lanes.take();
        for lane in &lanes {
            // Later flushes no longer reach its open batch.
            let _ = self.core.flush(*lane);
            self.core.retire(*lane);
        }
        self.old.extend(lanes);
        let core = &mut self.core;
        self.old.retain(|lane| {
            let spent = core.is_spent(*lane);
            if spent {
                core.remove(*lane);
            }
            !spent
        });
        let established = self.establish(until);
        self.target.has_no_queue_pair = matches!(established, Err(ConnectError::NoQueuePair));
        match established {
            Ok(()) => {
                self.target.backoff.succeeded();
                tracing::info!(target: "dunlin::client", address = %self.target.address, "connected again");
                true
            }
            Err(error) => {
                self.target.backoff.failed(host.now(), host.random());
                let (address, failures) = (&self.target.address, self.target.backoff.failures());
                // One line for each outage says why.
                match failures {
                    1 => {
                        tracing::warn!(target: "dunlin::client", %address, error = %WithSources(&error), "no connection; the client connects again with back-off")
                    }
                    _ => {
                        tracing::debug!(target: "dunlin::client", %address, error = %WithSources(&error), failures, "no connection")
                    }
                }
                false
            }
        }
    }
}
