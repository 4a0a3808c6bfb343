//! Calls whose payloads lie in buffers of the process: the node sends them from there, and puts them there (section 5.1).

use super::{Calls, Place, Request, invocation, of_call};
use crate::attachment::{Attachment, Failed};
use crate::buffer::Buffer;
use crate::tier::Tier;
use dunlin_fabric::{Nanos, nanos};
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier::call::MAX_CALL;
use dunlin_tier::message::Malformed;
use dunlin_tier::process::Problem;
use dunlin_tier::process::list::BufferPart;
use dunlin_tier::process::service::{Given, Outcome, Room};
use dunlin_tier_node::{BufferError, ReceiveError, RequestError, range_within};
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

impl Buffer {
    /// Returns a range of the buffer, as a request of an attachment names it.
    fn part(
        &self,
        attachment: &Arc<Attachment<ShmFabric>>,
        range: &impl RangeBounds<usize>,
    ) -> Result<BufferPart, BufferError> {
        if !Arc::ptr_eq(attachment, self.attachment()) {
            return Err(BufferError::OtherTier);
        }
        let (start, length) = range_within(range, self.len())?;
        // No request names more than it can have: longer ones are refused, and no room has to be longer.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Ok(BufferPart { length, buffer: self.handle().unwrap_or_default(), at: start as u64 })
    }

    /// Returns a range as room for a payload.
    fn room(
        &self,
        attachment: &Arc<Attachment<ShmFabric>>,
        range: &impl RangeBounds<usize>,
    ) -> Result<BufferPart, BufferError> {
        let part = self.part(attachment, range)?;
        Ok(BufferPart { length: part.length.min(MAX_CALL), ..part })
    }
}

/// Returns whether the node may still use the buffers of a request.
fn goes_on(error: &RequestError) -> bool {
    match error {
        // The node has answered.
        RequestError::Call { source, .. } => source.was_executed().is_none(),
        error => error.may_have_executed(),
    }
}

impl Tier<ShmFabric> {
    /// As [`call_within`](Tier::call_within), with the request in a range of a buffer, and the result into one of another
    /// buffer; returns the length of the result. The node takes a long request from there and puts a long result there, and
    /// neither passes through the connection to the node.
    ///
    /// # Errors
    /// As [`call`](Tier::call). [`RequestError::Buffer`]: a buffer is of another attachment, or a range leaves it. If the
    /// node may still work on the call, both buffers get other memory with the same bytes, which blocks as [`Tier::buffer`]
    /// does. A node without other memory leaves them empty.
    pub fn call_in_place(
        &self,
        time: Duration,
        (node, service, function): (&str, &[u8], u16),
        (request, from): (&mut Buffer, impl RangeBounds<usize>),
        (answer, into): (&mut Buffer, impl RangeBounds<usize>),
    ) -> Result<usize, RequestError> {
        let attachment = self.attachment();
        let (from, into) = (request.part(attachment, &from)?, answer.room(attachment, &into)?);
        let payloads = (Given::In(from), Room::In(into));
        let invoke = invocation((node, service, function), (false, self.priority()), payloads)?;
        let length = attachment.serve_call(&invoke, time, |length| {
            let length = u32::from_le_bytes(length.try_into().map_err(|_| Malformed)?);
            if length > into.length { Err(Malformed) } else { Ok(length as usize) }
        });
        length.map_err(|failed| {
            let error = match failed {
                Failed::Problem(Problem::TooLong { length, .. }) => {
                    RequestError::AnswerTooLong { length: length as usize, room: into.length as usize }
                }
                failed => of_call(failed, node),
            };
            if goes_on(&error) {
                request.renew();
                answer.renew();
            }
            error
        })
    }
}

impl Calls<ShmFabric> {
    /// As [`receive`](Calls::receive), into a range of a buffer: the node puts the request there.
    ///
    /// # Errors
    /// As [`receive`](Calls::receive). [`RequestError::Buffer`] in [`ReceiveError::Node`]: the buffer is of another
    /// attachment, or the range leaves it. If the node may still write the buffer, it gets other memory with the same bytes.
    /// A node without other memory leaves it empty.
    pub fn receive_into(
        &self,
        buffer: &mut Buffer,
        range: impl RangeBounds<usize>,
    ) -> Result<Request<'_, ShmFabric>, ReceiveError> {
        self.ask_in_place(buffer, &range, Nanos::MAX)
    }

    /// As [`receive_into`](Calls::receive_into), for `time` at most; then [`ReceiveError::NoCall`].
    pub fn receive_into_within(
        &self,
        buffer: &mut Buffer,
        range: impl RangeBounds<usize>,
        time: Duration,
    ) -> Result<Request<'_, ShmFabric>, ReceiveError> {
        self.ask_in_place(buffer, &range, nanos(time))
    }

    fn ask_in_place(
        &self,
        buffer: &mut Buffer,
        range: &impl RangeBounds<usize>,
        time: Nanos,
    ) -> Result<Request<'_, ShmFabric>, ReceiveError> {
        let part = buffer.room(&self.attachment, range).map_err(RequestError::from)?;
        let received = self.ask_into(&mut Place::Buffer(part), time);
        received.inspect_err(|error| renew_after(error, buffer))
    }
}

/// Gives the memory of a buffer up that the node may still write.
fn renew_after(error: &ReceiveError, buffer: &mut Buffer) {
    if let ReceiveError::Node(error) = error
        && goes_on(error)
    {
        buffer.renew();
    }
}

impl<'a> Request<'a, ShmFabric> {
    /// As [`reply`](Request::reply), with the answer in a range of a buffer, from which the node takes it.
    ///
    /// # Errors
    /// As [`reply`](Request::reply). [`RequestError::Buffer`]: the buffer is of another attachment, or the range leaves it;
    /// the caller hears that the call may have been executed. If the node may still read the buffer, it gets other memory
    /// with the same bytes. A node without other memory leaves it empty.
    pub fn reply_from(
        mut self,
        buffer: &mut Buffer,
        range: impl RangeBounds<usize>,
    ) -> Result<(), RequestError> {
        let part = self.answer_in(buffer, &range)?;
        let told = self.end_with(Outcome::Result, Given::In(part)).map_err(RequestError::from);
        told.inspect_err(|error| {
            if goes_on(error) {
                buffer.renew();
            }
        })
    }

    /// As [`reply_and_receive`](Request::reply_and_receive), with the answer in a range of a buffer, and the next request
    /// into one of another buffer.
    ///
    /// # Errors
    /// As [`reply_from`](Request::reply_from) and [`Calls::receive_into`].
    pub fn reply_from_and_receive_into(
        self,
        (answer, from): (&mut Buffer, impl RangeBounds<usize>),
        (buffer, range): (&mut Buffer, impl RangeBounds<usize>),
    ) -> Result<Request<'a, ShmFabric>, ReceiveError> {
        let part = self.answer_in(answer, &from)?;
        let room = buffer.room(&self.calls.attachment, &range).map_err(RequestError::from)?;
        let received = self.end_and_receive(Given::In(part), &mut Place::Buffer(room));
        received.inspect_err(|error| {
            renew_after(error, answer);
            renew_after(error, buffer);
        })
    }

    fn answer_in(
        &self,
        buffer: &Buffer,
        range: &impl RangeBounds<usize>,
    ) -> Result<BufferPart, RequestError> {
        let part = buffer.part(&self.calls.attachment, range)?;
        if part.length > MAX_CALL {
            return Err(RequestError::Limit { what: "bytes in one answer", limit: MAX_CALL.into() });
        }
        Ok(part)
    }
}
