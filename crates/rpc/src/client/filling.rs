//! Large requests that leave while they are being filled, where the plan's large payloads travel in pieces.

use super::core::{CallId, Core};
use super::lane::{ClientLane, SubmitError};
use crate::error::{CallError, Cause};
use crate::path::pieces::{Filling, PIECE, copy_into};
use crate::plan::LargePayload;
use crate::tune::turns::Past;
use dunlin_fabric::{Buffer, Fabric, Host, Nanos};
use dunlin_wire::{Descriptor, Flags, Header, Kind};

/// How far a large request is.
#[derive(Debug)]
pub(crate) struct Progress {
    function: u16,
    timeout: Nanos,
    length: usize,
    /// Where the server READs it, if it is to leave before all of it is there.
    from: Option<Descriptor>,
    /// Whether it goes past the caches.
    streams: bool,
    /// What became of its buffer before.
    past: Past,
    /// When that was had, until the first piece is there.
    began: Option<Nanos>,
    /// The call, once it was announced.
    call: Option<u32>,
    /// Bytes that the server knows of.
    told: usize,
}

impl<F: Fabric> ClientLane<F> {
    /// A buffer for a large request that may leave while it is filled.
    pub(crate) fn begin_filling(
        &mut self,
        fabric: &F,
        function: u16,
        length: usize,
        timeout: Nanos,
    ) -> Result<(Buffer<F::Memory>, Progress), SubmitError> {
        let progress = Progress {
            function,
            timeout,
            length,
            from: None,
            streams: false,
            past: Past::New,
            began: None,
            call: None,
            told: 0,
        };
        if self.large != LargePayload::Pieces || length <= PIECE {
            return Ok((self.request_buffer(fabric, length)?, progress));
        }
        self.check_length(length)?;
        let slow_lately = self.fill.is_slow_lately();
        let (buffer, past) =
            self.exports.reserve_in_turn(fabric, length, slow_lately).map_err(|_| Self::out_of_memory())?;
        let from = self.exports.descriptor(&buffer);
        let began = (past != Past::New).then(|| fabric.host().now());
        Ok((buffer, Progress { from, streams: self.fill.begin(past), past, began, ..progress }))
    }

    /// The first so many bytes are there. What finds no room is told later.
    fn filled(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        progress: &mut Progress,
        bytes: usize,
    ) -> Result<(), SubmitError> {
        let bytes = bytes.min(progress.length);
        let Some(from) = progress.from.filter(|_| bytes >= PIECE) else { return Ok(()) };
        if let Some(began) = progress.began.take() {
            let took = fabric.host().now().saturating_sub(began);
            progress.streams = self.fill.began(progress.past, progress.streams, bytes, took);
        }
        let call = match progress.call {
            Some(call) => call,
            None => {
                if self.errands.count() > self.slots.window() {
                    return Err(SubmitError::Full);
                }
                self.flush(fabric, domain)?;
                self.check_call(progress.length)?;
                let Progress { function, timeout, .. } = *progress;
                let payload = from.encode();
                let call = self.send_call(fabric, domain, function, &payload, Flags::RENDEZVOUS, timeout)?;
                (progress.call, progress.told) = (Some(call), PIECE);
                call
            }
        };
        // That it is all there is told last, since it cannot be given up then.
        if bytes >= progress.told + PIECE && bytes < progress.length {
            self.tell_filled(fabric, domain, call, bytes as u32)?;
            progress.told = bytes;
        }
        Ok(())
    }

    /// Tells the server how much of a request there is.
    fn tell_filled(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        call: u32,
        bytes: u32,
    ) -> Result<(), SubmitError> {
        if !self.errands.is_empty() {
            return Err(SubmitError::Full);
        }
        let header = Header { call, time: bytes, head: self.rx.head(), ..Header::new(Kind::Filled) };
        Ok(self.tx.single(fabric, domain, &header, &[])?)
    }

    /// As [`tell_filled`](ClientLane::tell_filled), as soon as there is room.
    pub(crate) fn tell_at_last(&mut self, fabric: &F, domain: &mut F::Domain, call: u32, bytes: u32) {
        if self.tell_filled(fabric, domain, call, bytes).is_err() {
            // What broke is found by who looks for the answer.
            self.errands.filled(call, bytes);
        }
    }

    /// All of a request is there: sends the call, unless it has left already. Gives the buffer back if it could not be sent.
    pub(crate) fn end_filling(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        progress: Progress,
        buffer: Buffer<F::Memory>,
    ) -> Result<u32, (SubmitError, Buffer<F::Memory>)> {
        let Some(call) = progress.call else {
            return self.submit_buffer(fabric, domain, progress.function, buffer, progress.timeout);
        };
        self.tell_at_last(fabric, domain, call, progress.length as u32);
        self.slots.keep_request(call, buffer);
        Ok(call)
    }

    /// A request will not be filled: if it was announced, the server is told, and its answer is nobody's.
    fn give_up_filling(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        progress: &Progress,
        buffer: Buffer<F::Memory>,
    ) {
        if let Some(call) = progress.call {
            self.tell_at_last(fabric, domain, call, 0);
            self.slots.keep_request(call, buffer);
            self.slots.forget(call);
        }
    }

    /// Sends one call whose large payload is copied in pieces.
    pub(crate) fn submit_in_pieces(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        function: u16,
        payload: &[u8],
        timeout: Nanos,
    ) -> Result<u32, SubmitError> {
        let (mut buffer, mut progress) = self.begin_filling(fabric, function, payload.len(), timeout)?;
        let mut done = 0;
        while done < payload.len() {
            let piece = PIECE.min(payload.len() - done);
            copy_into(progress.streams, &mut buffer[done..done + piece], &payload[done..]);
            done += piece;
            match self.filled(fabric, domain, &mut progress, done) {
                Ok(()) | Err(SubmitError::Full) => {}
                // There is no call yet, and there will be none.
                Err(error) if progress.call.is_none() => return Err(error),
                Err(_) => break,
            }
        }
        self.end_filling(fabric, domain, progress, buffer).map_err(|(error, _)| error)
    }
}

/// A large request that is being filled, and may leave meanwhile. If it is dropped before its
/// [`submit`](FillingRequest::submit), or that failed, there was no call, or the server has been told that there is none.
#[derive(Debug)]
pub struct FillingRequest<'a, F: Fabric> {
    /// `None` when it has left.
    buffer: Option<Buffer<F::Memory>>,
    sender: Sender<'a, F>,
}

#[derive(Debug)]
struct Sender<'a, F: Fabric> {
    core: &'a mut Core<F>,
    lane: u16,
    progress: Progress,
    /// Why it cannot be announced.
    refused: Option<CallError>,
    broken: bool,
}

impl<F: Fabric> Filling for Sender<'_, F> {
    fn filled(&mut self, bytes: usize) {
        if self.broken || self.refused.is_some() {
            return;
        }
        let announced = self.progress.call.is_some();
        let progress = &mut self.progress;
        let told = self.core.with_lane(self.lane, |fabric, domain, lane| {
            lane.filled(fabric, domain, progress, bytes).map(|()| 0)
        });
        match told {
            Ok(_) | Err(SubmitError::Full) => {}
            Err(SubmitError::Call(error)) if !announced => self.refused = Some(error),
            Err(SubmitError::Broken | SubmitError::Call(_)) => self.broken = true,
        }
    }

    fn copy(&self, to: &mut [u8], from: &[u8]) {
        copy_into(self.progress.streams, to, from);
    }
}

impl<'a, F: Fabric> FillingRequest<'a, F> {
    /// In a buffer of a lane's.
    pub(crate) fn new(core: &'a mut Core<F>, lane: u16, begun: (Buffer<F::Memory>, Progress)) -> Self {
        let (buffer, progress) = begun;
        let sender = Sender { core, lane, progress, refused: None, broken: false };
        FillingRequest { buffer: Some(buffer), sender }
    }

    /// Where to put the payload, and whom to tell how far it is. What is in it is undefined.
    pub fn parts(&mut self) -> (&mut [u8], &mut dyn Filling) {
        (self.buffer.as_deref_mut().unwrap_or_default(), &mut self.sender)
    }

    /// All of it is there: sends the call, unless it has left already.
    ///
    /// # Errors
    /// Always "not executed".
    pub fn submit(self) -> Result<CallId, CallError> {
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
            // It has its error already.
            return Ok(CallId { lane: *lane, call });
        }
        core.with_lane(*lane, |fabric, domain, lane| {
            lane.end_filling(fabric, domain, progress, buffer).map_err(|(error, _)| error)
        })
    }
}

impl Progress {
    /// Leaves none behind.
    fn take(&mut self) -> Progress {
        let none = Progress { call: None, from: None, ..*self };
        std::mem::replace(self, none)
    }
}

impl<F: Fabric> Drop for FillingRequest<'_, F> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let Sender { core, lane, progress, .. } = &mut self.sender;
        let given_up = core.with_lane(*lane, |fabric, domain, lane| {
            lane.give_up_filling(fabric, domain, progress, buffer);
            Ok(0)
        });
        // A lane that broke meanwhile has ended its calls; this one is nobody's.
        if let (Err(_), Some(call)) = (given_up, progress.call) {
            core.forget(CallId { lane: *lane, call });
        }
    }
}
