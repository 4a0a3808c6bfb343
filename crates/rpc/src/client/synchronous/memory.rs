//! Operations on memory that the server exposes, and the keys of its regions on the present connection.

use super::Client;
use crate::client::core::CallId;
use crate::client::lane::SubmitError;
use crate::client::memory::{Attached, MemoryOperation, NOT_GRANTED, RemoteRegion};
use crate::client::within::Time;
use crate::connect::records::{receive, send};
use crate::error::{CallError, Cause, MemoryError};
use crate::path::call_id::CallEnds;
use dunlin_fabric::{Fabric, Host, Link, nanos};
use dunlin_wire::handshake::{Attach, Record};

impl<F: Fabric> Client<F> {
    /// Attaches a region that the server exposes under a name. Connects first if there is no connection. Blocks for
    /// at most [`ClientConfig::connect_timeout`](crate::ClientConfig::connect_timeout).
    pub(crate) fn attach(&mut self, name: &str) -> Result<RemoteRegion, MemoryError> {
        let (number, name) = self.target.regions.number(name)?;
        self.ensure_connected()?;
        let attached = self.attached(number).map_err(|error| match error {
            NOT_GRANTED => MemoryError::NoSuchRegion { name: (*name).to_owned() },
            error => error.into(),
        })?;
        Ok(attached.region(number, name))
    }

    /// Returns a region's key on the present connection. Asks the server for it the first time, and blocks then.
    fn attached(&mut self, number: u16) -> Result<Attached, CallError> {
        let at = usize::from(number);
        if let Some(Some(attached)) = self.target.attached.get(at)
            && attached.session == self.session
        {
            return Ok(*attached);
        }
        let name = self.target.regions.name(number).ok_or(NOT_GRANTED)?;
        let lost = CallError::NotExecuted(Cause::Disconnected);
        let lane = self.lanes.all().first().and_then(|lane| self.core.lane(*lane)).ok_or(lost.clone())?;
        let (link, connection) = (lane.link.clone(), lane.connection);
        let until = self.core.fabric.host().now().saturating_add(nanos(self.target.config.connect_timeout));
        let asked = send(&link, &Record::Attach(Attach { name: (*name).to_owned() }));
        let granted = asked.and_then(|()| {
            loop {
                match receive(&link, until)? {
                    Record::Grant(grant) => break Ok(grant),
                    record => self.core.on_record(connection, &record),
                }
            }
        });
        let Ok(grant) = granted else {
            // A late answer would be taken for that to the next question.
            link.close();
            return Err(lost);
        };
        let attached = Attached::of(self.session, grant).ok_or(NOT_GRANTED)?;
        if self.target.attached.len() <= at {
            self.target.attached.resize(at + 1, None);
        }
        self.target.attached[at] = Some(attached);
        Ok(attached)
    }

    /// Posts an operation, encoded as function and payload, on a lane to a worker: at once if it is `alone`, else with
    /// those of other threads by [`send_batches`](Client::send_batches). Does not wait for room. Blocks only to attach
    /// the region again after the connection was lost.
    pub(crate) fn submit_memory(
        &mut self,
        (worker, ends): (usize, CallEnds),
        payload: &[u8],
        time: Time,
        alone: bool,
    ) -> Result<CallId, SubmitError> {
        let refuse = |cause| SubmitError::Call(CallError::NotExecuted(cause));
        let Some((region, operation)) = MemoryOperation::decode(ends.function, payload) else {
            return Err(refuse(Cause::Closed));
        };
        let Some(lane) = self.lanes.of(worker, u16::MAX) else { return Err(SubmitError::Broken) };
        if !self.core.is_usable(lane) {
            return Err(SubmitError::Broken);
        }
        let attached = self.attached(region).map_err(SubmitError::Call)?;
        attached.check(&operation).map_err(SubmitError::Call)?;
        self.core.with_lane(lane, |cx, lane| lane.post_memory(cx, operation, attached.key, time.nanos, alone))
    }

    /// As [`submit_memory`](Client::submit_memory), and waits for room.
    pub(crate) fn submit_memory_waiting(
        &mut self,
        function: u16,
        payload: &[u8],
        time: Time,
    ) -> Result<CallId, CallError> {
        self.submit_waiting((0, u16::MAX), time, |client, time| {
            client.submit_memory((0, CallEnds::from(function)), payload, time, true)
        })
    }
}
