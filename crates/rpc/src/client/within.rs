//! Calls with a time of their own.

use super::core::CallId;
use super::filling::FillingRequest;
use super::synchronous::{Client, LargeRequest, Response};
use crate::error::{CallError, Cause};
use dunlin_fabric::{Fabric, Nanos, nanos};
use std::time::Duration;

/// The least time for which a call with a time of its own may reconnect, in nanoseconds. A shorter one would
/// never succeed for a client that makes only short calls.
const LEAST_TO_CONNECT: Nanos = 100_000_000;

/// The time that a call may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// In nanoseconds. 0 for none, or for no time at all if it is the call's own.
    pub(crate) nanos: Nanos,
    /// Whether it was given with the call, and is not that of the settings.
    pub(crate) is_own: bool,
}

impl Time {
    /// Returns the time given with a call.
    #[inline]
    pub(crate) fn own(time: Duration) -> Time {
        Time { nanos: nanos(time), is_own: true }
    }

    /// Returns whether no time is left.
    #[inline]
    pub(crate) fn is_over(self) -> bool {
        self.is_own && self.nanos == 0
    }

    /// Returns when a call ends that begins now; never without a time.
    pub(crate) fn ends(self, now: Nanos) -> Nanos {
        if self.nanos == 0 && !self.is_own { Nanos::MAX } else { now.saturating_add(self.nanos) }
    }

    /// Returns what is left of a time that [`ends`](Time::ends) at `until`.
    pub(crate) fn left(self, until: Nanos, now: Nanos) -> Time {
        if self.nanos == 0 {
            return self;
        }
        let left = until.saturating_sub(now);
        Time { nanos: left, is_own: self.is_own || left == 0 }
    }

    /// Returns for how long a call may connect.
    pub(crate) fn to_connect(self, usual: Nanos) -> Nanos {
        if self.is_own { usual.min(self.nanos.max(LEAST_TO_CONNECT)) } else { usual }
    }

    /// Returns the least time that an attempt to connect may take, although less of the call's time is left.
    pub(crate) fn least_to_connect(self) -> Nanos {
        if self.is_own { LEAST_TO_CONNECT } else { 0 }
    }
}

/// A view of a [`Client`] for one call with a time of its own; see [`Client::within`]. Its methods are those
/// of the client.
#[derive(Debug)]
#[must_use = "the time is that of the call made with it"]
pub(crate) struct Within<'a, F: Fabric> {
    pub(super) client: &'a mut Client<F>,
    pub(super) time: Time,
}

impl<'a, F: Fabric> Within<'a, F> {
    /// As [`Client::call_on`].
    #[inline]
    pub(crate) fn call_on(
        self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<Response<'a, F>, CallError> {
        let Within { client, time } = self;
        let to = (worker, function);
        let submit = |client: &mut Client<F>, time| client.try_submit(to, payload, time);
        let id = client.submit_waiting(to, time, submit)?;
        client.wait_until_done(id, true);
        client.response(id)
    }

    /// As [`Client::submit_on`].
    #[inline(always)]
    pub(crate) fn submit_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        let Within { client, time } = self;
        client.submit((worker, function), payload, time)
    }

    /// As [`Client::submit_waiting_on`]; waits for at most the time of the call.
    #[inline]
    pub(crate) fn submit_waiting_on(
        self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        let to = (worker, function);
        self.client.submit_waiting(to, self.time, |client, time| client.try_submit(to, payload, time))
    }

    /// As [`Client::push_on`]. The time runs from here on, and each call of a batch has its own.
    #[inline(always)]
    pub(crate) fn push_on(self, worker: usize, function: u16, payload: &[u8]) -> Result<CallId, CallError> {
        let Within { client, time } = self;
        client.push((worker, function), payload, time)
    }

    /// As [`Client::push_waiting_on`]; waits for at most the time of the call.
    #[inline]
    pub(crate) fn push_waiting_on(
        self,
        worker: usize,
        function: u16,
        payload: &[u8],
    ) -> Result<CallId, CallError> {
        let to = (worker, function);
        self.client.submit_waiting(to, self.time, |client, time| client.try_push(to, payload, time))
    }

    /// As [`Client::submit_large`].
    pub(crate) fn submit_large(self, function: u16, request: LargeRequest<F>) -> Result<CallId, CallError> {
        Self::check(self.time)?;
        self.client.try_submit_large(function, request, self.time)
    }

    /// As [`Client::filling_request_for`]. The time begins when the first bytes are sent.
    pub(crate) fn filling_request_for(
        self,
        worker: usize,
        function: u16,
        length: usize,
    ) -> Result<FillingRequest<'a, F>, CallError> {
        Self::check(self.time)?;
        self.client.begin_filling((worker, function), length, self.time)
    }

    #[inline]
    fn check(time: Time) -> Result<(), CallError> {
        if time.is_over() { Err(CallError::NotExecuted(Cause::DeadlineExceeded)) } else { Ok(()) }
    }
}
