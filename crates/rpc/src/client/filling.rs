//! Large requests that are sent while they are being filled, for plans whose large payloads may leave early.

use super::core::{CallId, Core};
use super::lane::{ClientLane, SubmitError};
use crate::error::{CallError, Cause};
use crate::path::Cx;
use crate::path::call_id::CallEnds;
use crate::path::large::{EarlyPayload, PIECE, PayloadWriter};
use dunlin_fabric::{Buffer, Fabric, Nanos};
use dunlin_wire::Flags;

/// The state of a large request that is being filled.
#[derive(Debug)]
pub(crate) struct Progress<F: Fabric> {
    ends: CallEnds,
    timeout: Nanos,
    length: usize,
    payload: EarlyPayload<F>,
    /// The call id, after the request was announced.
    call: Option<u32>,
}

impl<F: Fabric> ClientLane<F> {
    /// Allocates a buffer for a large request that may be sent while it is filled.
    pub(crate) fn begin_filling(
        &mut self,
        fabric: &F,
        ends: impl Into<CallEnds>,
        length: usize,
        timeout: Nanos,
    ) -> Result<(Buffer<F::Memory>, Progress<F>), SubmitError> {
        let ends = ends.into();
        let progress = Progress { ends, timeout, length, payload: EarlyPayload::COMPLETE, call: None };
        if !self.large.facts().leaves_early(length) {
            return Ok((self.request_buffer(fabric, length)?, progress));
        }
        self.check_length(length)?;
        let reserved = EarlyPayload::reserve(&mut self.exports, fabric, length);
        let (buffer, payload) = reserved.map_err(|_| Self::out_of_memory())?;
        Ok((buffer, Progress { payload, ..progress }))
    }

    /// Records that the first `bytes` bytes are filled, and announces them. Without room a later report
    /// covers them.
    fn filled(
        &mut self,
        cx: &mut Cx<'_, F>,
        progress: &mut Progress<F>,
        bytes: usize,
    ) -> Result<(), SubmitError> {
        let Some(from) = progress.payload.filled(bytes) else { return Ok(()) };
        let call = match progress.call {
            Some(call) => call,
            None => {
                if self.pending_transfers.count() > self.slots.window() {
                    return Err(SubmitError::Full);
                }
                self.flush(cx)?;
                self.check_call(progress.length)?;
                let Progress { ends, timeout, .. } = *progress;
                let call = self.send_call(cx, ends, &from.encode(), Flags::RENDEZVOUS, timeout)?;
                progress.call = Some(call);
                progress.payload.announced();
                call
            }
        };
        if !self.pending_transfers.is_empty() {
            return Err(SubmitError::Full);
        }
        Ok(progress.payload.report(cx, &mut self.tx, (call, self.rx.head()), bytes)?)
    }

    /// Reports to the server that the first `bytes` bytes of a request are filled and that no report follows; 0 gives
    /// the request up.
    fn report_last(&mut self, cx: &mut Cx<'_, F>, call: u32, bytes: usize) {
        self.pending_transfers.filled(call, bytes as u32);
        // A broken lane also reaches the caller as the outcome of the call.
        let _ = self.advance_transfers(cx);
    }

    /// Sends the call of a completely filled request, or its last report if it was already announced. Returns
    /// the buffer if the call could not be sent.
    pub(crate) fn end_filling(
        &mut self,
        cx: &mut Cx<'_, F>,
        mut progress: Progress<F>,
        buffer: Buffer<F::Memory>,
    ) -> Result<u32, (SubmitError, Buffer<F::Memory>)> {
        progress.payload.end(&mut self.exports);
        let Some(call) = progress.call else {
            return self.submit_buffer(cx, progress.ends, buffer, progress.timeout);
        };
        self.report_last(cx, call, progress.length);
        self.slots.keep_request(call, buffer);
        Ok(call)
    }

    /// Gives up a request. If it was announced, the server is notified and its answer will be discarded.
    fn give_up_filling(&mut self, cx: &mut Cx<'_, F>, progress: &mut Progress<F>, buffer: Buffer<F::Memory>) {
        progress.payload.end(&mut self.exports);
        if let Some(call) = progress.call {
            self.report_last(cx, call, 0);
            self.slots.keep_request(call, buffer);
            self.slots.forget(call);
        }
    }

    /// Sends one call whose large payload is copied in pieces.
    pub(crate) fn submit_in_pieces(
        &mut self,
        cx: &mut Cx<'_, F>,
        ends: CallEnds,
        payload: &[u8],
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        let (mut buffer, mut progress) = self.begin_filling(cx.fabric, ends, payload.len(), timeout)?;
        let mut done = 0;
        while done < payload.len() {
            let piece = PIECE.min(payload.len() - done);
            progress.payload.copy(&mut buffer[done..done + piece], &payload[done..]);
            done += piece;
            match self.filled(cx, &mut progress, done) {
                Ok(()) | Err(SubmitError::Full) => {}
                // The call does not exist yet, and now it never will.
                Err(error) if progress.call.is_none() => {
                    progress.payload.end(&mut self.exports);
                    return Err(error);
                }
                Err(_) => break,
            }
        }
        self.end_filling(cx, progress, buffer).map_err(|(error, _)| error)
    }
}

/// A large request that is being filled, and may be sent in the meantime. If it is dropped before
/// [`submit`](FillingRequest::submit), or if that fails, either no call was made or the server is told to
/// discard it.
#[derive(Debug)]
pub(crate) struct FillingRequest<'a, F: Fabric> {
    /// `None` after the request was submitted.
    buffer: Option<Buffer<F::Memory>>,
    sender: Sender<'a, F>,
}

#[derive(Debug)]
struct Sender<'a, F: Fabric> {
    core: &'a mut Core<F>,
    lane: u16,
    progress: Progress<F>,
    /// The reason why the request cannot be announced.
    refused: Option<CallError>,
    broken: bool,
}

impl<F: Fabric> PayloadWriter for Sender<'_, F> {
    fn filled(&mut self, bytes: usize) {
        if self.broken || self.refused.is_some() {
            return;
        }
        let announced = self.progress.call.is_some();
        let progress = &mut self.progress;
        let told = self.core.with_lane(self.lane, |cx, lane| lane.filled(cx, progress, bytes).map(|()| 0));
        match told {
            Ok(_) | Err(SubmitError::Full) => {}
            Err(SubmitError::Call(error)) if !announced => self.refused = Some(error),
            Err(SubmitError::Broken | SubmitError::Call(_)) => self.broken = true,
        }
    }

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        self.progress.payload.copy(to, from);
    }
}

impl<'a, F: Fabric> FillingRequest<'a, F> {
    /// Wraps a buffer of the lane `lane`.
    pub(crate) fn new(core: &'a mut Core<F>, lane: u16, begun: (Buffer<F::Memory>, Progress<F>)) -> Self {
        let (buffer, progress) = begun;
        let sender = Sender { core, lane, progress, refused: None, broken: false };
        FillingRequest { buffer: Some(buffer), sender }
    }

    /// Returns the buffer to fill, whose content is undefined, and the sink to which the caller reports its
    /// progress.
    pub(crate) fn parts(&mut self) -> (&mut [u8], &mut dyn PayloadWriter) {
        (self.buffer.as_deref_mut().unwrap_or_default(), &mut self.sender)
    }

    /// Completes the request: sends the call, or the last progress report if it was already announced.
    ///
    /// # Errors
    /// Always "not executed".
    pub(crate) fn submit(self) -> Result<CallId, CallError> {
        self.end().map_err(|error| match error {
            SubmitError::Full => CallError::NotExecuted(Cause::WindowFull),
            SubmitError::Call(error) => error,
            SubmitError::Broken => CallError::NotExecuted(Cause::Disconnected),
        })
    }

    fn end(mut self) -> Result<CallId, SubmitError> {
        let Some(buffer) = self.buffer.take() else { return Err(SubmitError::Broken) };
        let Sender { core, lane, progress, refused, .. } = &mut self.sender;
        if let Some(error) = refused.take() {
            return Err(SubmitError::Call(error));
        }
        let progress = progress.take();
        if let Some(call) = progress.call
            && core.lane(*lane).is_none_or(|lane| lane.broken.is_some())
        {
            // The call already has its error as outcome.
            return Ok(CallId { lane: *lane, call });
        }
        core.with_lane(*lane, |cx, lane| lane.end_filling(cx, progress, buffer).map_err(|(error, _)| error))
    }
}

impl<F: Fabric> Progress<F> {
    /// Takes the state, and leaves one without a call behind.
    fn take(&mut self) -> Progress<F> {
        let none = Progress { call: None, payload: EarlyPayload::COMPLETE, ..*self };
        std::mem::replace(self, none)
    }
}

impl<F: Fabric> Drop for FillingRequest<'_, F> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let Sender { core, lane, progress, .. } = &mut self.sender;
        let given_up = core.with_lane(*lane, |cx, lane| {
            lane.give_up_filling(cx, progress, buffer);
            Ok(0)
        });
        // A lane that broke meanwhile has ended its calls. This one has no other owner to release it.
        if let (Err(_), Some(call)) = (given_up, progress.call) {
            core.forget(CallId { lane: *lane, call });
        }
    }
}
