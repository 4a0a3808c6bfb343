//! The server's end of a lane: what it knows of one client handle, and how its answers go out.

use super::held::HeldLane;
use crate::path::again::Replies;
use crate::path::call_id::{is_newer, split_call};
use crate::path::hybrid::{Asked, Published};
use crate::path::large::{Arrivals, Errands};
use crate::path::pieces::Pulls;
use crate::path::rendezvous::Pool;
use crate::path::{MAX_MESSAGE, Rx, Tx, TxError, Violation};
use crate::plan::Plan;
use crate::tune::fill::{FillTuner, News};
use dunlin_fabric::{Buffer, Fabric, Nanos, QueuePairId, ReceiveTarget, Region, RegionKey, copy};
use dunlin_wire::{BatchState, EntryMeta, Flags, Header, Kind, Status};
use std::collections::VecDeque;
use std::sync::Arc;

/// An answer that found no room in the client's ring. At most one for each call of the window.
#[derive(Debug)]
enum Waiting {
    Single { meta: EntryMeta, payload: Vec<u8> },
    Batch { state: BatchState, staging: Vec<u8>, asked: Asked },
}

/// A large request that is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) call: u32,
    pub(crate) function: u16,
    pub(crate) thread: u16,
    pub(crate) time: u32,
}

/// The server's end of a lane. What every call touches comes first, so that it lies in few cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ServerLane<F: Fabric> {
    /// The last look at this lane found a message: it is looked at each time.
    pub(crate) hot: u8,
    /// The last look did not take all that was there: others had to have their turn.
    pub(crate) more: bool,
    /// Counted by the worker as one that waits for completions of what it has sent.
    pub(crate) signaled: bool,
    /// Whether what an answer carries along is sure to come.
    sure: bool,
    /// Its place among the worker's lanes.
    pub(crate) index: u16,
    pub(crate) rx: Rx<F>,
    pub(crate) tx: Tx<F>,
    /// The generation last seen of each slot: a call id is executed once.
    generations: Box<[u32]>,
    waiting: VecDeque<Waiting>,
    /// What the client fetches, where answers are fetched or written back.
    pub(crate) published: Option<Box<Published<F>>>,
    /// Answers that are kept for clients that ask again, where requests or answers may be lost.
    pub(crate) replies: Option<Box<Replies>>,
    /// What is still to be sent of large results, or said of large requests.
    pub(crate) errands: Errands<F>,
    /// Large requests that are being READ.
    pub(crate) reading: Vec<Reading>,
    pub(crate) session: u64,
    pub(crate) plan: Plan,
    pub(crate) number: u16,
    /// Tells this lane from earlier ones at the same index.
    pub(crate) serial: u64,
    pub(crate) link: F::Link,
    pub(crate) queue_pair: QueuePairId,
    /// The unreliable connection that requests are written over, if they are.
    pub(crate) unreliable: Option<QueuePairId>,
    /// Where RECVs go that its messages have taken.
    pub(crate) receives: ReceiveTarget,
    /// The longest message that an answer may be.
    pub(crate) max_answer: usize,
    pub(crate) region: Region<F::Memory>,
    /// The client's control word, where we may report a head.
    pub(crate) client_key: RegionKey,
    /// Large results that the client has not read yet, or not said where to write.
    pub(crate) exported: Vec<(u32, Buffer<F::Memory>)>,
    pub(crate) exports: Pool<F>,
    /// Large requests that the client writes or sends.
    pub(crate) arriving: Vec<Reading>,
    pub(crate) arrivals: Arrivals<F>,
    /// Large requests that are READ in pieces.
    pub(crate) pulls: Pulls<F>,
    /// How large results are filled that leave in pieces.
    pub(crate) fill: FillTuner,
    /// Calls in the pool or with the application.
    pub(crate) in_service: usize,
    /// Calls that who runs the worker takes by itself.
    pub(crate) held: Option<Box<HeldLane>>,
}

/// What a lane is made of.
pub(crate) struct LaneParts<F: Fabric> {
    pub(crate) index: u16,
    pub(crate) session: u64,
    pub(crate) number: u16,
    pub(crate) serial: u64,
    pub(crate) link: F::Link,
    pub(crate) plan: Plan,
    pub(crate) queue_pair: QueuePairId,
    pub(crate) unreliable: Option<QueuePairId>,
    pub(crate) receives: ReceiveTarget,
    pub(crate) max_answer: usize,
    pub(crate) published: Option<Box<Published<F>>>,
    pub(crate) tx: Tx<F>,
    pub(crate) rx: Rx<F>,
    pub(crate) region: Region<F::Memory>,
    pub(crate) client_key: RegionKey,
    pub(crate) window: u16,
    pub(crate) large_response_memory: u64,
    pub(crate) large_request_memory: u64,
    pub(crate) news: Arc<News>,
}

impl<F: Fabric> ServerLane<F> {
    pub(crate) fn new(parts: LaneParts<F>) -> Self {
        ServerLane {
            exports: Pool::new(
                parts.plan.large.is_read().then(|| parts.link.clone()),
                parts.large_response_memory,
            ),
            arrivals: Arrivals::new(
                parts.link.clone(),
                parts.plan.large,
                parts.large_request_memory,
                parts.window,
            ),
            arriving: Vec::new(),
            pulls: Pulls::new(parts.window),
            fill: FillTuner::new(parts.news),
            errands: Errands::new(parts.plan.large, parts.window),
            index: parts.index,
            session: parts.session,
            number: parts.number,
            serial: parts.serial,
            link: parts.link,
            plan: parts.plan,
            queue_pair: parts.queue_pair,
            unreliable: parts.unreliable,
            receives: parts.receives,
            max_answer: parts.max_answer,
            replies: parts.plan.is_lossy().then(|| Box::new(Replies::new(parts.window))),
            sure: !parts.tx.is_lossy(),
            tx: parts.tx,
            rx: parts.rx,
            region: parts.region,
            client_key: parts.client_key,
            generations: vec![0; parts.window as usize].into(),
            waiting: VecDeque::new(),
            published: parts.published,
            exported: Vec::with_capacity(parts.window as usize),
            reading: Vec::with_capacity(parts.window as usize),
            in_service: 0,
            held: None,
            hot: 1,
            more: false,
            signaled: false,
        }
    }

    /// What every call touches lies in so many bytes at the beginning.
    pub(crate) const HOT: usize = std::mem::offset_of!(Self, number);

    /// Asks for what every call touches that lies elsewhere.
    #[inline]
    pub(crate) fn warm_parts(&self) {
        self.rx.warm_region();
        copy::prefetch_to_write(self.generations.as_ptr().cast());
    }

    /// Asks for the next message.
    #[inline]
    pub(crate) fn warm_message(&self) {
        self.rx.warm();
    }

    /// Whether a request may be executed: its slot is in the window, and its call id is newer than all before.
    /// A client outside its window has broken the protocol; an id that comes twice is refused.
    #[inline]
    pub(crate) fn admit(&mut self, call: u32, function: u16) -> Result<bool, Violation> {
        let (slot, generation) = split_call(call);
        let Some(last) = self.generations.get_mut(slot) else { return Err(Violation::Call(call)) };
        let newer = is_newer(generation, *last);
        if newer {
            *last = generation;
            if let Some(published) = &mut self.published {
                published.admit(call, function);
            }
            self.begin(call);
        }
        Ok(newer)
    }

    /// Takes what the header of a message says of the ring of answers, and how they are wanted.
    #[inline]
    pub(crate) fn on_header(&mut self, fabric: &F, header: &Header) -> Result<(), Violation> {
        // Other messages do not say which ring they mean, and speak of that of written answers.
        if let Some(published) = &mut self.published
            && matches!(header.kind, Kind::Request | Kind::RequestBatch)
        {
            published.on_request(fabric, header, self.rx.sequence());
            if !header.flags.contains(Flags::MODE) {
                return published.on_head(header.head);
            }
        }
        self.tx.on_head(header.head)
    }

    /// Where answers are kept: the call that the slot had before is over, and the client needs nothing of it any more. Its word
    /// that it has read a large result may have been lost.
    #[inline]
    fn begin(&mut self, call: u32) {
        if let Some(replies) = &mut self.replies
            && let Some(before) = replies.begin(call)
            && !self.exported.is_empty()
        {
            self.release(std::iter::once(before));
        }
    }

    /// Keeps an answer for a client that asks again.
    #[inline]
    pub(crate) fn keep(&mut self, meta: &EntryMeta, payload: &[u8]) {
        if let Some(replies) = &mut self.replies {
            replies.keep(meta, payload);
        }
    }

    /// How many messages may wait until the lane can take them: a client that keeps to its window never has so many
    /// under way.
    pub(crate) fn waiting_limit(&self) -> usize {
        2 * self.generations.len() + 64
    }

    /// Whether answers, or parts of large ones, wait for room. New requests are not taken meanwhile: a client that never reads its
    /// answers stops itself, and nobody else.
    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty() || self.errands.is_stuck()
    }

    /// Whether there is something to be sent.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.waiting.is_empty() || !self.errands.is_empty()
    }

    /// Whether nothing is left to do for this lane.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.has_pending() && self.in_service == 0 && self.reading.is_empty() && self.arriving.is_empty()
    }

    /// Sends one answer as a message of its own, or keeps it until there is room.
    #[inline]
    pub(crate) fn answer(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        meta: EntryMeta,
        payload: &[u8],
        draining: bool,
    ) -> Result<(), TxError> {
        if self.waiting.is_empty() {
            match self.send_single(fabric, domain, &meta, payload, draining) {
                Err(TxError::Full) => {}
                done => return done,
            }
        }
        self.waiting.push_back(Waiting::Single { meta, payload: payload.to_vec() });
        Ok(())
    }

    #[inline]
    fn send_single(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        meta: &EntryMeta,
        payload: &[u8],
        draining: bool,
    ) -> Result<(), TxError> {
        let flags = if draining { meta.flags | Flags::DRAINING } else { meta.flags };
        let mut header = Header {
            code: meta.function_or_status,
            flags,
            call: meta.call,
            thread: meta.thread,
            head: self.rx.head(),
            ..Header::new(Kind::Response)
        };
        let mut written = true;
        if let Some(published) = &mut self.published {
            let asked = published.asked(meta.call);
            (header.time, header.credits) = (published.time(fabric, asked), published.way(asked));
            if published.wants(asked) {
                written = published.publish(fabric, domain, &header, payload, asked)?;
            }
        }
        if written {
            self.tx.single(fabric, domain, &header, payload)?;
        }
        if self.sure {
            self.rx.told();
        }
        Ok(())
    }

    /// An answer has left otherwise.
    pub(crate) fn answered(&mut self) {
        if self.sure {
            self.rx.told();
        }
    }

    /// Sends a batch of answers that was built in `staging`, or keeps it until there is room.
    #[inline]
    pub(crate) fn answer_batch(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        state: BatchState,
        staging: &mut Vec<u8>,
        draining: bool,
    ) -> Result<(), TxError> {
        let asked = self.published.as_ref().map_or(Asked::default(), |published| published.current());
        if self.waiting.is_empty() {
            match self.send_batch(fabric, domain, (state, asked), staging, draining) {
                Err(TxError::Full) => {}
                done => return done,
            }
        }
        let staging = std::mem::replace(staging, vec![0; MAX_MESSAGE]);
        self.waiting.push_back(Waiting::Batch { state, staging, asked });
        Ok(())
    }

    #[inline]
    fn send_batch(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        (state, asked): (BatchState, Asked),
        staging: &mut [u8],
        draining: bool,
    ) -> Result<(), TxError> {
        let mut header = Header {
            head: self.rx.head(),
            flags: if draining { Flags::DRAINING } else { Flags::NONE },
            ..Header::new(Kind::ResponseBatch)
        };
        let mut send = |tx: &mut Tx<F>, header: &Header| {
            let tags = tx.begin(fabric, domain, state.total() as usize)?;
            let Ok(total) = state.finish_compact(staging, header, tags) else { return Err(TxError::Broken) };
            tx.post(fabric, domain, &[&staging[..total]], total)
        };
        match &mut self.published {
            None => send(&mut self.tx, &header)?,
            Some(published) => {
                (header.time, header.credits) = (published.time(fabric, asked), published.way(asked));
                if published.wants(asked) {
                    send(&mut published.tx, &header)?;
                }
                if !published.wants(asked) || published.has_changed(asked) {
                    send(&mut self.tx, &header)?;
                }
            }
        }
        if self.sure {
            self.rx.told();
        }
        Ok(())
    }

    /// Sends answers that wait, and then what belongs to large ones, as far as there is room now; says whether large ones got
    /// anywhere.
    pub(crate) fn send_waiting(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        draining: bool,
    ) -> Result<bool, TxError> {
        while let Some(mut waiting) = self.waiting.pop_front() {
            let sent = match &mut waiting {
                Waiting::Single { meta, payload } => {
                    let (meta, payload) = (*meta, std::mem::take(payload));
                    let sent = self.send_single(fabric, domain, &meta, &payload, draining);
                    waiting = Waiting::Single { meta, payload };
                    sent
                }
                Waiting::Batch { state, staging, asked } => {
                    self.send_batch(fabric, domain, (*state, *asked), staging, draining)
                }
            };
            match sent {
                Ok(()) => {}
                Err(error) => {
                    self.waiting.push_front(waiting);
                    return if error == TxError::Full { Ok(false) } else { Err(error) };
                }
            }
        }
        if self.errands.is_empty() {
            return Ok(false);
        }
        self.errands.run(fabric, domain, &mut self.tx, self.rx.head())
    }

    /// Takes a large result that waits for the client's word.
    pub(crate) fn take_exported(&mut self, call: u32) -> Option<Buffer<F::Memory>> {
        let at = self.exported.iter().position(|(exported, _)| *exported == call)?;
        Some(self.exported.swap_remove(at).1)
    }

    /// The client has read these large results.
    pub(crate) fn release(&mut self, calls: impl Iterator<Item = u32>) {
        for call in calls {
            self.exported.retain(|(exported, _)| *exported != call);
        }
    }
}

/// What is left of a deadline, in nanoseconds.
pub(crate) fn time_left(micros: u32) -> Option<Nanos> {
    (micros != 0).then(|| micros as Nanos * 1000)
}

/// The metadata of an answer.
#[inline]
pub(crate) fn answer_meta(call: u32, thread: u16, status: Status, flags: Flags) -> EntryMeta {
    EntryMeta { function_or_status: status.to_wire(), thread, call, flags }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric_sim::Sim;
    use std::mem::offset_of;

    /// As with the client's end.
    #[test]
    fn what_every_call_touches_lies_in_six_cache_lines() {
        let end = offset_of!(ServerLane<Sim>, number);
        assert!(end <= 6 * 64, "{end}");
    }
}
