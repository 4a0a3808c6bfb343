//! The server's end of a lane: its state for one client handle, and the sending of answers.

use super::clock::WorkerClock;
use super::config::ServerConfig;
use super::credited::LaneCredits;
use super::groups::LeasedLane;
use super::open;
use super::open_lanes::{Admission, Connection};
use super::seen::Seen;
use super::transfers::LaneTransfers;
use crate::grouped::Mark;
use crate::path::call_id::{is_newer, split_call};
use crate::path::credits::WrongAsk;
use crate::path::half::hybrid::{Asked, Published};
use crate::path::retransmit::ReplyCache;
use crate::path::{CONTROL_BYTES, Cx, MAX_MESSAGE, Rx, Tx, TxError, Violation};
use crate::plan::{Plan, Sharing};
use crate::service::NEVER;
use dunlin_fabric::{Fabric, Nanos, QueuePairId, ReceiveTarget, Region, RegionKey, copy};
use dunlin_wire::{BatchState, EntryMeta, Flags, Header, Kind, Status, TIME_OVER};
use std::sync::Arc;

/// An answer that found no room in the client's ring. At most one for each call of the window.
#[derive(Debug)]
pub(super) enum Waiting {
    Single { meta: EntryMeta, payload: Vec<u8> },
    Batch { state: BatchState, staging: Vec<u8>, asked: Asked },
}

/// The server's end of a lane. Fields that every call touches come first, so that they lie in few cache
/// lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ServerLane<F: Fabric> {
    /// Greater than 0 if recent polls found messages: such lanes are polled in each round.
    pub(crate) hot: u8,
    /// The last service stopped before all messages were taken, so that other lanes are served.
    pub(crate) more: bool,
    /// The worker counts this lane as one that waits for send completions.
    pub(crate) signaled: bool,
    /// No other mechanism belongs to the lane than a receiver and a sender: it publishes no results, has no credits and no
    /// lease that ends, and loses no message. Most calls test this flag only.
    is_plain: bool,
    /// The last service ended because no message was there.
    drained: bool,
    /// Messages arrive as completions, which the worker takes at the beginning of a round.
    by_completion: bool,
    /// The lane's index in the worker.
    pub(crate) index: u16,
    /// The state of the lease that the next answer carries.
    pub(crate) mark: Mark,
    /// A lower bound of the time at which the next message to be taken arrived, in units of 1024 ns.
    since: u32,
    pub(crate) rx: Rx<F>,
    pub(crate) tx: Tx<F>,
    /// The last call seen in each slot: a call id is executed once.
    seen: Seen,
    /// The session of the lane's connection.
    session: u64,
    /// Large payloads.
    pub(crate) transfers: LaneTransfers<F>,
    pub(crate) plan: Plan,
    pub(crate) queue_pair: QueuePairId,
    /// The published ring, where answers are fetched or written back.
    pub(crate) published: Option<Box<Published<F>>>,
    /// The state of a lane that may lose messages.
    pub(crate) lossy: Option<Box<LossyLane>>,
    /// The queue to which RECVs taken by its messages are posted again.
    pub(crate) receives: ReceiveTarget,
    /// The longest answer message, in bytes.
    max_answer: u32,
    /// Calls in the pool or with the application.
    pub(crate) in_service: u32,
    /// The account of calls that the client may send, if its threads share the lane by combining.
    pub(crate) credits: Option<Box<LaneCredits>>,
    /// The lane's keys, unless its leases end.
    keys: Option<Box<Keys>>,
    /// The state of leases, if they end.
    pub(crate) leased: Option<Box<LeasedLane<F>>>,
    /// The lane's place among those of its connection.
    admission: Admission,
}

/// The most regions that are granted with a lane: control lines, a ring of requests in a pool, and the published ring.
const MOST_GRANTS: usize = 3;

/// The keys of a lane whose lease does not end. Few messages need them.
#[derive(Debug)]
struct Keys {
    /// The client's inbound region with the control word for head reports.
    client: RegionKey,
    /// The memory granted with the lane. A place without a region has key 0.
    granted: [RegionKey; MOST_GRANTS],
}

/// The state of a lane that may lose messages.
#[derive(Debug)]
pub(crate) struct LossyLane {
    /// Kept answers for repeated requests.
    pub(crate) replies: ReplyCache,
    /// The lane's own queue pair beside its reliable connection, if any.
    pub(crate) beside: Option<QueuePairId>,
}

/// The parts of a lane.
pub(crate) struct LaneParts<F: Fabric> {
    pub(crate) index: u16,
    pub(crate) link: F::Link,
    pub(crate) plan: Plan,
    pub(crate) queue_pair: QueuePairId,
    /// The lane's own queue pair beside its reliable connection, if any.
    pub(crate) beside: Option<QueuePairId>,
    pub(crate) receives: ReceiveTarget,
    pub(crate) max_answer: usize,
    pub(crate) published: Option<Box<Published<F>>>,
    pub(crate) tx: Tx<F>,
    pub(crate) rx: Rx<F>,
    pub(crate) client_key: RegionKey,
    pub(crate) window: u16,
    pub(crate) config: Arc<ServerConfig>,
    /// The time, on the worker's clock.
    pub(crate) opened: Nanos,
    pub(crate) credits: Option<Box<LaneCredits>>,
    pub(crate) granted: Vec<RegionKey>,
    pub(crate) leased: Option<Box<LeasedLane<F>>>,
    pub(crate) admission: Admission,
}

impl<F: Fabric> ServerLane<F> {
    pub(crate) fn new(parts: LaneParts<F>) -> Self {
        let beside = parts.beside;
        let lossy = || Box::new(LossyLane { replies: ReplyCache::new(parts.window), beside });
        let keys = || {
            let mut keys = Keys { client: parts.client_key, granted: [RegionKey(0); MOST_GRANTS] };
            keys.granted.iter_mut().zip(&parts.granted).for_each(|(key, granted)| *key = *granted);
            Box::new(keys)
        };
        debug_assert!(parts.granted.len() <= MOST_GRANTS);
        let is_reliable = !parts.plan.is_lossy() && !parts.plan.response.facts().is_lossy();
        ServerLane {
            is_plain: is_reliable
                && parts.plan.sharing != Sharing::Combined
                && parts.published.is_none()
                && parts.leased.is_none(),
            lossy: parts.plan.is_lossy().then(lossy),
            keys: parts.leased.is_none().then(keys),
            transfers: LaneTransfers::new(parts.link, parts.config, parts.plan.large, parts.window),
            index: parts.index,
            plan: parts.plan,
            queue_pair: parts.queue_pair,
            receives: parts.receives,
            max_answer: parts.max_answer as u32,
            tx: parts.tx,
            rx: parts.rx,
            session: parts.admission.connection().session,
            seen: Seen::new(parts.window, coarse(parts.opened)),
            since: coarse(parts.opened),
            drained: false,
            by_completion: open::by_completion(&parts.plan),
            published: parts.published,
            in_service: 0,
            credits: parts.credits,
            mark: parts.leased.as_ref().map_or(Mark::default(), |leased| leased.member.mark(false)),
            leased: parts.leased,
            admission: parts.admission,
            hot: 1,
            more: false,
            signaled: false,
        }
    }

    /// Bytes at the start of a lane that hold all fields that every call touches.
    pub(crate) const HOT: usize = std::mem::offset_of!(Self, published);

    /// Returns whether the lane may have `credits`. The plan lies with the fields that every call touches.
    #[inline]
    pub(crate) fn is_credited(&self) -> bool {
        self.plan.sharing == Sharing::Combined
    }

    /// Returns whether the answers of all messages that wait leave in one message: threads combine.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        !self.is_plain && self.is_credited() && self.credits.is_some()
    }

    /// Returns whether the client asks for credits by immediate data.
    pub(crate) fn is_renewed_apart(&self) -> bool {
        self.credits.as_ref().is_some_and(|credits| credits.is_renewed_apart())
    }

    /// Takes immediate data that asks for credits.
    #[cold]
    pub(crate) fn on_renewal(&mut self, degree: u8) -> Result<(), Violation> {
        match &mut self.credits {
            Some(credits) => credits.on_immediate(degree),
            None => Err(WrongAsk::OtherWay.into()),
        }
    }

    /// Returns the bytes of the lane's rings and tables, without payloads and kept answers: those that it has from its
    /// opening on.
    pub(crate) fn opened_bytes(&self) -> u64 {
        let own = size_of::<Self>() + self.credits.as_ref().map_or(0, |credits| size_of_val(&**credits));
        let own = own + self.leased.as_ref().map_or(0, |leased| size_of_val(&**leased));
        let own = own + self.keys.as_ref().map_or(0, |keys| size_of_val(&**keys));
        let published = self.published.as_ref().map_or(0, |published| published.opened_bytes());
        let published = published + self.tx.published_bytes();
        // A lane under leases has one line of its region.
        let region = if self.leased.is_some() { CONTROL_BYTES } else { self.region().length() };
        (region + own + self.seen.bytes() + published) as u64
    }

    /// Returns the keys of the memory granted with the lane.
    pub(crate) fn granted(&self) -> impl Iterator<Item = RegionKey> {
        let lasting = self.keys.iter().flat_map(|keys| keys.granted).filter(|key| key.0 != 0);
        lasting.chain(self.leased.iter().flat_map(|leased| leased.granted))
    }

    /// Returns the key of the client's inbound region with the control word for head reports.
    pub(crate) fn client_key(&self) -> RegionKey {
        match (&self.keys, &self.leased) {
            (Some(keys), _) => keys.client,
            (None, leased) => leased.as_ref().map_or(RegionKey(0), |leased| leased.client),
        }
    }

    /// Returns the lane's inbound region; that of many control lines if leases end.
    pub(crate) fn region(&self) -> &Region<F::Memory> {
        self.tx.end.control()
    }

    /// Returns the connection to which the lane belongs.
    pub(crate) fn connection(&self) -> &Connection {
        self.admission.connection()
    }

    /// Returns the session of the lane's connection.
    #[inline]
    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    /// Distinguishes this lane from earlier ones at the same index.
    #[inline]
    pub(crate) fn serial(&self) -> u32 {
        self.admission.serial()
    }

    /// Returns the lane's own queue pair beside its reliable connection, if any.
    pub(crate) fn beside(&self) -> Option<QueuePairId> {
        self.lossy.as_ref()?.beside
    }

    /// Returns the control connection of the lane.
    pub(crate) fn link(&self) -> &F::Link {
        self.transfers.link()
    }

    /// Returns the lane's number in its connection.
    pub(crate) fn number(&self) -> u16 {
        self.admission.number()
    }

    /// Returns the longest answer message, in bytes.
    #[inline]
    pub(crate) fn max_answer(&self) -> usize {
        self.max_answer as usize
    }

    /// Prefetches memory outside the lane that every call touches.
    #[inline]
    pub(crate) fn warm_parts(&self) {
        self.rx.warm_region();
        copy::prefetch_to_write(self.seen.place());
    }

    /// Prefetches the next message.
    #[inline]
    pub(crate) fn warm_message(&self) {
        self.rx.warm();
    }

    /// Returns whether a request may be executed: its call id must be newer than all earlier ones of its
    /// slot. A slot outside the window is a protocol violation; a repeated id is refused.
    ///
    /// The client has sent the call after the answer of the slot's last one, and after all requests before
    /// it: so the bound of its arrival also holds for a lane that is never empty. `now` is a lower bound
    /// of the time.
    #[inline(always)]
    pub(crate) fn admit(&mut self, call: u32, function: u16, now: Nanos) -> Result<bool, Violation> {
        let (slot, generation) = split_call(call);
        let Some(last) = self.seen.last(slot) else { return Err(Violation::Call(call)) };
        let newer = is_newer(generation, last.generation());
        if newer {
            let now = coarse(now);
            let age = self.seen.take(slot, last, generation, now);
            self.since = now.wrapping_sub(now.wrapping_sub(self.since).min(age));
            if !self.is_plain {
                self.begin(call, function);
            }
        }
        Ok(newer)
    }

    /// Takes the head in a message's header, and the path that it asks for.
    #[inline(always)]
    pub(crate) fn on_header(&mut self, fabric: &F, header: &Header) -> Result<(), Violation> {
        if self.is_plain {
            return self.tx.end.on_head(header.head);
        }
        // A copy: a header whose address nobody takes stays in registers.
        let header = *header;
        self.on_full_header(fabric, &header)
    }

    #[inline(never)]
    fn on_full_header(&mut self, fabric: &F, header: &Header) -> Result<(), Violation> {
        if self.is_credited()
            && let Some(credits) = &mut self.credits
        {
            credits.on_header(header)?;
        }
        // Other messages do not select a ring; their head belongs to the ring of written answers.
        if let Some(published) = &mut self.published
            && matches!(header.kind, Kind::Request | Kind::RequestBatch)
        {
            published.on_request(fabric, header, self.rx.sequence());
            if !header.flags.contains(Flags::MODE) {
                return published.on_head(header.head);
            }
        }
        self.tx.end.on_head(header.head)
    }

    /// Begins a call where results are published, or on a lossy path. There the previous call of the slot ends: its client
    /// needs none of its data any more, although the `Release` of its large result may have been lost.
    #[inline]
    fn begin(&mut self, call: u32, function: u16) {
        if let Some(published) = &mut self.published {
            published.admit(call, function);
        }
        if let Some(lossy) = &mut self.lossy
            && let Some(before) = lossy.replies.begin(call)
            && self.transfers.are_exported()
        {
            self.transfers.release(std::iter::once(before));
        }
    }

    /// Keeps an answer for repeated requests.
    #[inline(always)]
    pub(crate) fn keep(&mut self, meta: EntryMeta, payload: &[u8]) {
        if !self.is_plain
            && let Some(lossy) = &mut self.lossy
        {
            let meta = EntryMeta { ..meta };
            lossy.replies.keep(&meta, payload);
        }
    }

    /// Returns the most messages that may wait for a blocked lane: more than a client within its window can
    /// have in flight.
    pub(crate) fn waiting_limit(&self) -> usize {
        2 * self.seen.window() + 64
    }

    /// Returns whether answers, or parts of large ones, wait for room. The lane takes no new requests
    /// meanwhile: a client that does not read its answers stops only itself.
    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        self.transfers.are_stuck()
    }

    /// Returns whether anything is waiting to be sent.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.transfers.are_pending()
    }

    /// Records whether all messages of the lane were taken: then the next one arrives later.
    #[inline]
    pub(crate) fn was_served(&mut self, drained: bool, clock: &WorkerClock) {
        self.drained = drained;
        if drained {
            let after = if self.by_completion { clock.before(true) } else { clock.last() };
            self.since = coarse(after);
        }
    }

    /// Records that the next message arrives later than `time`, on the worker's clock, which is at `now`.
    #[inline]
    pub(crate) fn arrives_after(&mut self, time: Nanos, now: Nanos) {
        self.since = coarse(exact(self.since, now).max(time));
    }

    /// Records that a message is found in this round. If the last one found none, it arrived in between.
    #[inline]
    pub(crate) fn is_found(&mut self, clock: &WorkerClock) {
        if self.drained {
            self.arrives_after(clock.before(self.by_completion), clock.last());
        }
    }

    /// Returns the deadline of a request that is taken now, with the time of its header or entry.
    #[inline]
    pub(crate) fn deadline(&self, time: u32, now: Nanos) -> Nanos {
        deadline(exact(self.since, now), time)
    }

    /// Returns whether requests arrive in a zone of a lease that ends.
    pub(crate) fn is_leased(&self) -> bool {
        self.leased.as_ref().is_some_and(|leased| leased.member.is_leased())
    }

    /// Returns whether requests that were READ wait for the slice of their group.
    pub(crate) fn has_read(&self) -> bool {
        self.leased.as_ref().is_some_and(|leased| leased.read.is_some())
    }

    /// Returns whether the lane has no work left.
    pub(crate) fn is_quiet(&self) -> bool {
        self.leased.as_ref().is_none_or(|leased| leased.read.is_none() && !leased.member.is_reading())
            && !self.has_pending()
            && self.in_service == 0
            && !self.transfers.are_arriving()
    }

    /// Sends an answer as a single message, or queues it until there is room.
    #[inline(always)]
    pub(crate) fn answer(
        &mut self,
        cx: &mut Cx<'_, F>,
        meta: EntryMeta,
        payload: &[u8],
        draining: bool,
    ) -> Result<(), TxError> {
        if !self.transfers.have_waiting() {
            match self.send_single(cx, meta, payload, draining) {
                Err(TxError::Full) => {}
                done => return done,
            }
        }
        self.queue(EntryMeta { ..meta }, payload);
        Ok(())
    }

    #[cold]
    fn queue(&mut self, meta: EntryMeta, payload: &[u8]) {
        self.transfers.make().waiting.push_back(Waiting::Single { meta, payload: payload.to_vec() });
    }

    #[inline(always)]
    fn send_single(
        &mut self,
        cx: &mut Cx<'_, F>,
        meta: EntryMeta,
        payload: &[u8],
        draining: bool,
    ) -> Result<(), TxError> {
        let header = Header {
            code: meta.function_or_status,
            flags: if draining { meta.flags | Flags::DRAINING } else { meta.flags },
            call: meta.call,
            thread: meta.thread,
            head: self.rx.head(),
            ..Header::new(Kind::Response)
        };
        if !self.is_plain {
            return self.send_full(cx, header, payload);
        }
        self.tx.single(cx, &header, payload)?;
        self.rx.told();
        Ok(())
    }

    /// As [`send_single`](ServerLane::send_single), on any lane.
    #[inline(never)]
    fn send_full(&mut self, cx: &mut Cx<'_, F>, mut header: Header, payload: &[u8]) -> Result<(), TxError> {
        header.flags = header.flags | self.mark.flags();
        (header.epoch, header.credits) = (self.mark.epoch, self.mark.zone);
        let mut written = true;
        if let Some(published) = &mut self.published {
            let asked = published.asked(header.call);
            (header.time, header.credits) = (published.time(cx.fabric, asked), published.mode(asked));
            if published.wants(asked) {
                written = published.publish(cx, &header, payload, asked)?;
            }
        } else if self.is_credited() {
            self.tell_credits(&mut header);
        }
        if !self.is_sure() {
            return self.send_unsure(cx, &header, payload);
        }
        if written {
            self.tx.single(cx, &header, payload)?;
        }
        self.mark.told();
        self.rx.told();
        if self.is_credited() {
            self.told_credits();
        }
        Ok(())
    }

    /// Sends an answer that may be lost. While other requests wait, it waits for their answers, to leave with them under
    /// one doorbell (FaSST section 4.2).
    #[inline(never)]
    fn send_unsure(&mut self, cx: &mut Cx<'_, F>, header: &Header, payload: &[u8]) -> Result<(), TxError> {
        if self.tx.gathers() {
            self.tx.hold(self.rx.is_waiting());
        }
        let sent = self.tx.single(cx, header, payload);
        self.tx.hold(false);
        sent?;
        self.mark.told();
        if self.is_credited() {
            self.told_credits();
        }
        Ok(())
    }

    #[inline(never)]
    fn tell_credits(&self, header: &mut Header) {
        if let Some(credits) = &self.credits {
            credits.tell(header);
        }
    }

    #[inline(never)]
    fn told_credits(&mut self) {
        if let Some(credits) = &mut self.credits {
            credits.told();
        }
    }

    /// Sends the client word about its credits that no answer has carried. Without room the next answer carries it.
    pub(crate) fn send_credits(&mut self, cx: &mut Cx<'_, F>) -> Result<(), TxError> {
        if self.transfers.have_waiting() || self.credits.as_ref().is_none_or(|credits| !credits.is_due()) {
            return Ok(());
        }
        let mut header = Header { head: self.rx.head(), ..Header::new(Kind::Credit) };
        self.tell_credits(&mut header);
        match self.tx.single(cx, &header, &[]) {
            Ok(()) => {
                self.told_credits();
                Ok(())
            }
            Err(TxError::Full) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns whether no answer is lost, so that a head that it carries arrives.
    #[inline]
    fn is_sure(&self) -> bool {
        self.is_plain || !self.plan.response.facts().is_lossy()
    }

    /// Records that an answer was sent elsewhere.
    pub(crate) fn answered(&mut self) {
        if self.is_sure() {
            self.rx.told();
        }
    }

    /// Sends a batch of answers built in `staging`, or queues it until there is room.
    #[inline]
    pub(crate) fn answer_batch(
        &mut self,
        cx: &mut Cx<'_, F>,
        state: BatchState,
        staging: &mut Vec<u8>,
        draining: bool,
    ) -> Result<(), TxError> {
        let asked = self.published.as_ref().map_or(Asked::default(), |published| published.current());
        if !self.transfers.have_waiting() {
            match self.send_batch(cx, (state, asked), staging, draining) {
                Err(TxError::Full) => {}
                done => return done,
            }
        }
        let staging = std::mem::replace(staging, vec![0; MAX_MESSAGE]);
        self.transfers.make().waiting.push_back(Waiting::Batch { state, staging, asked });
        Ok(())
    }

    #[inline]
    fn send_batch(
        &mut self,
        cx: &mut Cx<'_, F>,
        (state, asked): (BatchState, Asked),
        staging: &mut [u8],
        draining: bool,
    ) -> Result<(), TxError> {
        let mut header = Header {
            head: self.rx.head(),
            flags: if draining { Flags::DRAINING } else { Flags::NONE } | self.mark.flags(),
            epoch: self.mark.epoch,
            credits: self.mark.zone,
            ..Header::new(Kind::ResponseBatch)
        };
        if self.is_credited() {
            self.tell_credits(&mut header);
        }
        let mut send = |cx: &mut Cx<'_, F>, tx: &mut Tx<F>, header: &Header| {
            let tags = tx.begin(cx, state.total() as usize)?;
            let Ok(total) = state.finish_compact(staging, header, tags) else { return Err(TxError::Broken) };
            tx.post(cx, &[&staging[..total]], total)
        };
        match &mut self.published {
            None => send(cx, &mut self.tx, &header)?,
            Some(published) => {
                (header.time, header.credits) = (published.time(cx.fabric, asked), published.mode(asked));
                if published.wants(asked) {
                    send(cx, &mut published.tx, &header)?;
                }
                if !published.wants(asked) || published.has_changed(asked) {
                    send(cx, &mut self.tx, &header)?;
                }
            }
        }
        self.mark.told();
        if self.is_sure() {
            self.rx.told();
        }
        if self.is_credited() {
            self.told_credits();
        }
        Ok(())
    }

    /// Sends queued answers, then messages of large ones, as far as there is room. Returns whether large ones
    /// made progress.
    pub(crate) fn send_waiting(&mut self, cx: &mut Cx<'_, F>, draining: bool) -> Result<bool, TxError> {
        while let Some(mut waiting) = self.transfers.next_waiting() {
            let sent = match &mut waiting {
                Waiting::Single { meta, payload } => {
                    let (meta, payload) = (*meta, std::mem::take(payload));
                    let sent = self.send_single(cx, meta, &payload, draining);
                    waiting = Waiting::Single { meta, payload };
                    sent
                }
                Waiting::Batch { state, staging, asked } => {
                    self.send_batch(cx, (*state, *asked), staging, draining)
                }
            };
            match sent {
                Ok(()) => {}
                Err(error) => {
                    self.transfers.make().waiting.push_front(waiting);
                    return if error == TxError::Full { Ok(false) } else { Err(error) };
                }
            }
        }
        match self.transfers.made_mut() {
            Some(made) if !made.pending_transfers.is_empty() => {
                made.pending_transfers.run(cx, &mut self.tx, self.rx.head())
            }
            _ => Ok(false),
        }
    }
}

/// Returns a time in units of 1024 ns; wraps after 73 minutes.
#[inline]
fn coarse(time: Nanos) -> u32 {
    (time >> 10) as u32
}

/// Returns the latest time before `now` that is `at` in units of 1024 ns.
#[inline]
fn exact(at: u32, now: Nanos) -> Nanos {
    let age = coarse(now).wrapping_sub(at);
    (now >> 10).saturating_sub(age.into()) << 10
}

/// Returns the deadline of a request that arrived at `since`, with the time of its header or entry.
#[inline]
fn deadline(since: Nanos, time: u32) -> Nanos {
    match time {
        0 => NEVER,
        TIME_OVER => 0,
        micros => since.saturating_add(micros as Nanos * 1000),
    }
}

/// Builds the metadata of an answer.
#[inline]
pub(crate) fn answer_meta(call: u32, thread: u16, status: Status, flags: Flags) -> EntryMeta {
    EntryMeta { function_or_status: status.to_wire(), thread, call, flags, time: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric_sim::Sim;
    use std::mem::offset_of;

    #[test]
    fn times_are_exact_to_a_microsecond() {
        for now in [5_000, 77_000_000_000, 1 << 43] {
            for age in [0, 1, 4_000, 60_000_000_000] {
                let at = u64::saturating_sub(now, age);
                let found = exact(coarse(at), now);
                assert!(found <= at && at - found < 1024, "{now} {age} {found}");
            }
        }
        assert_eq!([deadline(7, 0), deadline(7, 2), deadline(7, TIME_OVER)], [NEVER, 2007, 0]);
    }

    /// The client's end has the same test.
    #[test]
    fn what_every_call_touches_lies_in_five_cache_lines() {
        let end = offset_of!(ServerLane<Sim>, published);
        assert!(end <= 5 * 64, "{end}");
    }
}
