//! The execution of a call on its worker, and the answer with its result.

use super::dispatch::{Call, Dispatcher, broken};
use super::exported::Exported;
use super::lane::{ServerLane, answer_meta};
use super::pipelined_reply::{PipelinedReply, Told};
use crate::error::{HANDLER_RAN, end_of, failure};
use crate::path::Cx;
use crate::path::Violation;
use crate::service::{Reply, Request};
use dunlin_fabric::{Buffer, Fabric, Host, Nanos, Site, Work};
use dunlin_wire::{BatchState, EntryMeta, Flags, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a handler has ended.
#[derive(Clone, Copy)]
struct Ran {
    /// The status with which it failed; none if it panicked.
    outcome: Result<(), Option<Status>>,
    /// Bytes of its result.
    length: usize,
    /// The longest result that an answer carries itself, in bytes.
    small_limit: usize,
    /// A small result lies in the batch of answers.
    in_place: bool,
    /// When it began, if it is timed.
    timed: Option<Nanos>,
}

impl<F: Fabric> Dispatcher<F> {
    #[inline(always)]
    pub(super) fn execute(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        payload: &[u8],
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        cx.fabric.host().charge(Work::Dispatch, 1);
        cx.fabric.host().checkpoint(Site::BeforeDispatch);
        let request = Request {
            function: call.function,
            payload,
            session: lane.session(),
            deadline: call.deadline,
            clock: &self.now,
        };
        let small_limit = (lane.plan.rendezvous_above as usize).min(self.reply.len());
        let max_answer = lane.max_answer();
        // Answers that wait for room precede this one.
        let leaves_early = lane.plan.large.facts().is_early() && batch.is_none() && !lane.has_pending();
        let mut large = Exported::new(cx.fabric, &mut lane.transfers);
        if leaves_early {
            large.pipelined = Some(PipelinedReply {
                cx: Cx { fabric: cx.fabric, domain: &mut *cx.domain },
                tx: &mut lane.tx,
                head: lane.rx.head(),
                flags: if self.out.draining {
                    Flags::RENDEZVOUS | Flags::DRAINING
                } else {
                    Flags::RENDEZVOUS
                },
                call,
                told: Told::NOTHING,
            });
        }
        // A result in a batch is written directly into the message if there is room for the longest result.
        let place = match &batch {
            Some(batch) => batch.reserve(&mut self.out.staging[..max_answer], small_limit).ok(),
            None => None,
        };
        let in_place = place.is_some();
        let mut reply = Reply {
            small: place.unwrap_or(&mut self.reply),
            length: 0,
            small_limit,
            limit: self.shared.config.max_response as usize,
            large: &mut large,
        };
        let service = &mut self.service;
        let timed = self.sampling.is_due().then(|| cx.fabric.host().glance());
        let outcome = end_of(catch_unwind(AssertUnwindSafe(|| service.call(&request, &mut reply))));
        self.clock.ran(call.function);
        let length = if outcome.is_ok() { reply.length } else { reply.shorten() };
        // Values whose address is passed on are built where that happens, so that others stay in registers.
        let ran = || Ran { outcome, length, small_limit, in_place, timed };
        if outcome.is_err() || length > small_limit || large.buffer.is_some() {
            let (buffer, announced) = (large.buffer, large.pipelined.and_then(PipelinedReply::end));
            return self.answer_otherwise(cx, lane, Call { ..call }, ran(), (buffer, announced), batch);
        }
        if let Some(began) = timed {
            self.timed(cx.fabric.host(), call.function, began);
        }
        let meta = answer_meta(call.call, call.thread, Status::Ok, Flags::NONE);
        if let Some(batch) = batch {
            return self.put(cx, lane, meta, ran(), batch);
        }
        lane.keep(meta, &self.reply[..length]);
        lane.answer(cx, meta, &self.reply[..length], self.out.draining).map_err(broken)
    }

    /// Answers a call that failed or whose result is large.
    #[inline(never)]
    fn answer_otherwise(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        ran: Ran,
        (mut buffer, announced): (Option<Buffer<F::Memory>>, Option<Told<F>>),
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        let Ran { outcome, length, small_limit, timed, .. } = ran;
        if let Some(began) = timed {
            self.timed(cx.fabric.host(), call.function, began);
        }
        if let Some(announced) = announced
            && let Some(buffer) = buffer.take()
        {
            let whole = outcome.is_ok() && length == buffer.len();
            Self::keep_announced(lane, call, buffer, (announced, whole))?;
            if whole {
                lane.answered();
                return self.send_pending(cx, lane).map(drop);
            }
            // An error answer gives the announced result up.
            if outcome.is_ok() {
                return self.answer_small(cx, lane, call, Status::HandlerPanicked, HANDLER_RAN);
            }
        }
        let (status, length) = match outcome {
            Ok(()) if length > small_limit => {
                return self.export(cx, lane, call, buffer, batch);
            }
            Ok(()) => (Status::Ok, length),
            Err(failed) => match failure(failed, length) {
                Ok(answer) => answer,
                Err(status) => return self.refuse_executed(cx, lane, call, status, batch),
            },
        };
        let meta = answer_meta(call.call, call.thread, status, Flags::NONE);
        match batch {
            Some(batch) => self.put(cx, lane, meta, Ran { length, ..ran }, batch),
            None => self.out.put_answer(cx, lane, meta, &self.reply[..length], None),
        }
    }

    /// Adds an answer to a batch, in which its result may lie already.
    #[inline(always)]
    fn put(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        meta: EntryMeta,
        Ran { length, in_place, .. }: Ran,
        batch: &mut BatchState,
    ) -> Result<(), Violation> {
        if !in_place {
            return self.out.put_answer(cx, lane, meta, &self.reply[..length], Some(batch));
        }
        let staging = &mut self.out.staging[..lane.max_answer()];
        if let Some(lossy) = &mut lane.lossy
            && let Ok(payload) = batch.reserve(staging, length)
        {
            lossy.replies.keep(&meta, payload);
        }
        let committed = batch.commit(staging, &meta, length);
        committed.map_err(|_| Violation::Transfer("an answer is longer than a message"))
    }

    /// Sends the descriptor of a large result, which is kept until the client has read it.
    #[inline(never)]
    pub(super) fn export(
        &mut self,
        cx: &mut Cx<'_, F>,
        lane: &mut ServerLane<F>,
        call: Call,
        buffer: Option<Buffer<F::Memory>>,
        batch: Option<&mut BatchState>,
    ) -> Result<(), Violation> {
        let described = buffer.and_then(|buffer| {
            let descriptor = lane.plan.large.announcement(&lane.transfers.make().exports, &buffer)?;
            Some((descriptor, buffer))
        });
        let Some((descriptor, buffer)) = described else {
            return self.refuse_executed(cx, lane, call, Status::TooLarge, batch);
        };
        let length = buffer.len();
        // Queued messages leave after the answer, even if that waits for room.
        let queue = &mut lane.transfers.make().pending_transfers;
        if let Some(kept) = lane.plan.large.sender().announced(queue, call.call, buffer) {
            lane.transfers.keep_exported(call.call, kept);
        }
        let meta = answer_meta(call.call, call.thread, Status::Ok, Flags::RENDEZVOUS);
        let put = self.out.put_answer(cx, lane, meta, &descriptor.encode(), batch);
        if !lane.plan.large.facts().leaves_early(length) {
            lane.transfers.make().exports.sent(cx.fabric, length);
        }
        put
    }

    /// Keeps a result that was announced while it was filled, until the client has read the announced bytes;
    /// `whole` says whether the result is complete.
    #[inline(never)]
    fn keep_announced(
        lane: &mut ServerLane<F>,
        call: Call,
        buffer: Buffer<F::Memory>,
        (mut announced, whole): (Told<F>, bool),
    ) -> Result<(), Violation> {
        if announced.broken {
            return Err(Violation::Broken);
        }
        let length = buffer.len();
        announced.payload.end(&mut lane.transfers.make().exports);
        lane.transfers.keep_exported(call.call, buffer);
        if whole {
            lane.transfers.make().pending_transfers.filled(call.call, length as u32);
        }
        Ok(())
    }
}
