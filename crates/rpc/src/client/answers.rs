//! Processing of the server's messages: matches answers to calls, fetches large results and feeds the tuners.

use super::lane::ClientLane;
use super::slots::{Answered, Sink};
use crate::error::{CallError, Cause};
use crate::grouped::Mark;
use crate::path::large::{Begun, Inward, Received, Receiver};
use crate::path::{Cx, MAX_MESSAGE, Violation};
use dunlin_fabric::{Buffer, Fabric, Host, Work};
use dunlin_wire::{Descriptor, Entry, Flags, Header, Kind, LINE, Message, ShortMessage, Status};

/// The most calls named in one release message: as many as fit its first line.
const RELEASES_AT_ONCE: usize = 8;

/// The outcome of a call for whose large result there is no memory.
const LOST: CallError = CallError::Executed(Cause::OutOfMemory);

impl<F: Fabric> ClientLane<F> {
    /// Processes a response of one line, the most frequent message.
    #[inline(always)]
    pub(super) fn on_short(
        &mut self,
        cx: &mut Cx<'_, F>,
        response: ShortMessage<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        let header = &response.header();
        cx.fabric.host().charge(Work::ParseMessage, 1);
        self.tx.end.on_head(header.head)?;
        if header.epoch != 0 {
            // A copy, here and below: a header whose address nobody takes stays in registers.
            let header = *header;
            self.on_mark(cx, &header)?;
        }
        self.draining |= header.flags.contains(Flags::DRAINING);
        if !self.is_plain {
            let header = *header;
            self.on_full_header(&header);
        }
        self.on_answer(cx, &response.entry(), sink)
    }

    /// Takes the header of a response of one line on a lane that is not plain.
    #[inline(never)]
    fn on_full_header(&mut self, header: &Header) {
        if self.is_combined {
            self.on_credits(header);
        }
        self.on_mode(header, header.call, LINE);
    }

    /// Takes the mode that the server asks for where results are fetched or written back, and the time in which it has
    /// processed a message of `bytes` bytes, whose first call is `call`.
    fn on_mode(&mut self, header: &Header, call: u32, bytes: usize) {
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.asked_for(call, header.credits);
            if header.time != 0 {
                hybrid.timed(call, header.time, bytes);
            }
        }
    }

    #[inline(never)]
    pub(super) fn on_message(
        &mut self,
        cx: &mut Cx<'_, F>,
        bytes: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        cx.fabric.host().charge(Work::ParseMessage, 1);
        let message = Message::parse(bytes, MAX_MESSAGE)?;
        let header = message.header();
        self.tx.end.on_head(header.head)?;
        if header.epoch != 0 {
            self.on_mark(cx, header)?;
        }
        if header.flags.contains(Flags::DRAINING) {
            self.draining = true;
        }
        if self.is_combined {
            self.on_credits(header);
        }
        match header.kind {
            Kind::Response | Kind::ResponseBatch => {
                if let Some(first) = message.entries().next() {
                    self.on_mode(header, first.call, bytes.len());
                }
                for entry in message.entries() {
                    self.on_answer(cx, &entry, sink)?;
                }
                Ok(())
            }
            Kind::Credit => Ok(()),
            Kind::Drain => {
                self.draining = true;
                Ok(())
            }
            Kind::ClearToSend => {
                let Some(request) = self.slots.take_request(header.call) else {
                    return Err(Violation::Call(header.call));
                };
                self.large.sender().place_named(
                    &mut self.pending_transfers,
                    header.call,
                    request,
                    message.body(),
                )
            }
            Kind::Filled | Kind::Written | Kind::Fragment => {
                let (inbound, mut inward) = self.inward(cx, header.call);
                match inbound.on_message(&mut inward, header, message.body())? {
                    Received::Part | Received::Nothing => Ok(()),
                    Received::Whole(buffer) => {
                        self.slots.answer_large(header.call, Ok(buffer));
                        Ok(())
                    }
                    Received::Lost => {
                        self.slots.answer_large(header.call, Err(LOST));
                        Ok(())
                    }
                    // A server gives a result up by a second answer.
                    Received::GivenUp => Err(Violation::Kind(header.kind)),
                }
            }
            kind => Err(Violation::Kind(kind)),
        }
    }

    /// Takes what a message of a lane under leases says about them.
    #[inline(never)]
    fn on_mark(&mut self, cx: &mut Cx<'_, F>, header: &Header) -> Result<(), Violation> {
        let ends = header.flags.contains(Flags::CONTEXT_SWITCH);
        let mark = Mark { epoch: header.epoch, zone: header.credits, ends, begins: false };
        self.tx.on_mark(cx, mark)
    }

    #[inline(always)]
    fn on_answer(
        &mut self,
        cx: &mut Cx<'_, F>,
        entry: &Entry<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        cx.fabric.host().charge(Work::ParseEntry, 1);
        if !self.is_plain && self.is_combined && !self.slots.is_of_thread(entry.call, entry.thread) {
            return Err(Violation::Thread(entry.thread));
        }
        let answered = if entry.function_or_status == 0 && entry.flags == Flags::NONE {
            self.slots.result(self.index, entry.call, entry.payload, sink)
        } else if entry.flags.contains(Flags::RENDEZVOUS) {
            let entry = *entry;
            return self.on_descriptor(cx, &entry);
        } else {
            let entry = *entry;
            self.on_status(&entry)
        };
        match answered {
            Some(_) => {
                if !self.is_plain && (self.hybrid.is_some() || self.batching.is_some()) {
                    self.was_answered(cx, entry.call);
                }
                Ok(())
            }
            None => self.on_unexpected(entry.call, entry.function_or_status),
        }
    }

    /// Tells the tuners of a lane of an answer.
    #[inline(never)]
    fn was_answered(&mut self, cx: &mut Cx<'_, F>, call: u32) {
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.answered(call);
        }
        if let Some(batching) = &mut self.batching {
            batching.answered(call, || cx.fabric.host().now());
        }
    }

    /// Processes an answer to a call that expects none.
    #[cold]
    fn on_unexpected(&mut self, call: u32, status: u16) -> Result<(), Violation> {
        // An early announcement may have arrived when its call was already given up; now the server gives up too.
        match self.may_come_twice() || (self.large.facts().is_early() && status != 0) {
            true => Ok(()),
            false => Err(Violation::Call(call)),
        }
    }

    /// Processes an answer that may be an error, also for a call whose announced large result the server
    /// gives up.
    #[inline(never)]
    fn on_status(&mut self, entry: &Entry<'_>) -> Option<Answered> {
        if self.inbound.get_mut().give_up(entry.call) {
            self.end_pull(entry.call);
        }
        let error = entry.status().and_then(|status| CallError::from_status(status, entry.payload));
        self.slots.answer(entry.call, entry.payload, error)
    }

    /// Whether a call may be answered twice: after it was sent again, or after the mode changed while its
    /// answer was in flight.
    fn may_come_twice(&mut self) -> bool {
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.answered_again();
            return true;
        }
        self.retransmit.is_some()
    }

    /// Starts the transfer of a large result, or releases it if the call was given up.
    #[inline(never)]
    fn on_descriptor(&mut self, cx: &mut Cx<'_, F>, entry: &Entry<'_>) -> Result<(), Violation> {
        let call = entry.call;
        if !self.slots.expects(call) && self.may_come_twice() {
            return Ok(());
        }
        if !self.slots.expects(call) || self.inbound.get().expects(call) {
            return Err(Violation::Call(call));
        }
        self.was_answered(cx, call);
        let descriptor = Descriptor::decode(entry.payload, self.max_response)?;
        let status = entry.status().unwrap_or(Status::Ok);
        if status != Status::Ok {
            return Err(Violation::Transfer("a large payload with an error status"));
        }
        self.slots.announced(call);
        let wanted = self.slots.wanted(call);
        let (inbound, mut inward) = self.inward(cx, call);
        match inbound.begin(&mut inward, descriptor, wanted)? {
            Begun::Arriving => {}
            Begun::Reading { whole } => {
                self.reading += 1;
                // Otherwise the call stays in flight and so subject to its deadline: the server may take any time to
                // fill the result.
                if whole {
                    self.slots.reading(call);
                }
            }
            Begun::Refused => {
                if self.large.facts().is_kept() {
                    self.releases.push(call);
                }
                if wanted {
                    self.slots.answer_large(call, Err(LOST));
                } else {
                    self.slots.answer(call, &[], None);
                }
            }
        }
        Ok(())
    }

    /// Returns the receiving end for large results, and its means.
    fn inward<'a>(
        &'a mut self,
        cx: &'a mut Cx<'_, F>,
        call: u32,
    ) -> (&'a mut dyn Receiver<F>, Inward<'a, F>) {
        let at = (self.queue_pair, self.index);
        let (private, queue) = (&mut self.imports, &mut self.pending_transfers);
        (self.inbound.get_mut(), Inward { cx: Cx::of(cx.fabric, cx.domain), call, at, private, queue })
    }

    /// Ends the READs of a large result and releases it.
    fn end_pull(&mut self, call: u32) {
        self.reading = self.reading.saturating_sub(1);
        self.releases.push(call);
    }

    /// Processes the completion of a READ of a large result.
    pub(crate) fn on_read(
        &mut self,
        cx: &mut Cx<'_, F>,
        call: u32,
        buffer: Buffer<F::Memory>,
    ) -> Result<(), Violation> {
        match self.inbound.get_mut().on_read(cx.domain, (self.queue_pair, self.index), call, buffer)? {
            Received::Part => return Ok(()),
            Received::Whole(buffer) => {
                self.end_pull(call);
                self.slots.answer_large(call, Ok(buffer));
            }
            Received::GivenUp | Received::Lost | Received::Nothing => self.end_pull(call),
        }
        self.send_releases(cx);
        Ok(())
    }

    /// Informs the server which large results it may release. Without room the rest is sent later.
    pub(super) fn send_releases(&mut self, cx: &mut Cx<'_, F>) {
        while !self.releases.is_empty() {
            let count = self.releases.len().min(RELEASES_AT_ONCE);
            let mut payload = [0; RELEASES_AT_ONCE * 4];
            for (place, call) in payload.as_chunks_mut::<4>().0.iter_mut().zip(&self.releases[..count]) {
                *place = call.to_le_bytes();
            }
            let header = Header { code: count as u16, head: self.rx.head(), ..Header::new(Kind::Release) };
            if self.tx.single(cx, &header, &payload[..count * 4]).is_err() {
                return;
            }
            self.releases.drain(..count);
        }
    }
}
