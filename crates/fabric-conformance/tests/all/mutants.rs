//! Proof that the suite can fail. The reference fabric is made wrong in one respect after another; the cases
//! that concern it have to fail, and an unrelated case has to pass.

use dunlin_fabric::Atomics;
use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::*;
use dunlin_fabric_conformance::reference::{Reference, ReferenceDomain, ReferenceLink};
use dunlin_fabric_conformance::{Case, MILLISECOND, Options, Pair, run_in_process};
use std::sync::{Arc, Mutex};

type HeapMemory = dunlin_fabric::memory::HeapMemory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    LosesSendCompletions,
    DoublesSendCompletions,
    SwapsReceives,
    SwapsSendCompletions,
    SignalsEverything,
    HidesFailures,
    LosesFlushes,
    KeepsFlushedBuffers,
    KeepsReadBuffers,
    ForgetsImmediates,
    ForgetsLengths,
    ChangesALastByte,
    ChangesBytesBehind,
    ShortensWrites,
    SaysAnotherStatus,
    StaysReady,
    AcceptsPostsInError,
    AcceptsTooLongInline,
    AcceptsWrongTransport,
    ReturnsNewValues,
    IgnoresPermissions,
    IgnoresRevocation,
    GrantsMoreThanRegistered,
    GivesUpWaitingForReceives,
    NeverGivesUp,
    HasOneSlotMore,
    WritesBehindTheirSend,
    WritesTagsFirst,
    ForgetsArrivalsBeforeTheWait,
    WakesForNothing,
    SleepsThrough,
    WakesNoOther,
    KeepsOthersArmed,
    ArmsTheFirstWaker,
    LinkLivesForEver,
    LinkTruncates,
    LinkIsSilent,
    DialLies,
    RegistersDirtyMemory,
    TurnsListsRound,
    ForgetsEndsOfLists,
    PostsPartsOfLists,
    GoesOnBehindRefusals,
    MovesSentRanges,
    MovesReadRanges,
}

#[derive(Clone, Copy, Debug)]
struct WrongHooks(Wrong);

#[derive(Debug)]
struct WrongDomain {
    wrong: Wrong,
    count: u64,
    held: Option<(QueuePairId, WorkId, Buffer<HeapMemory>, RegionKey, u64)>,
    unsignaled: Vec<(QueuePairId, WorkId)>,
    /// The first waker of another domain.
    first: Option<AnyWaker>,
}

impl WrongHooks {
    fn is(&self, wrong: Wrong) -> bool {
        self.0 == wrong
    }
}

impl Hooks<Reference> for WrongHooks {
    type Domain = WrongDomain;
    type Link = WrongHooks;

    fn domain_hooks(&self) -> WrongDomain {
        WrongDomain { wrong: self.0, count: 0, held: None, unsignaled: Vec::new(), first: None }
    }

    fn link_hooks(&self) -> WrongHooks {
        *self
    }

    fn register(&self, inner: &Reference, length: u64, access: Access) -> Result<HeapMemory, RegisterError> {
        let mut registered = access;
        if self.is(Wrong::GrantsMoreThanRegistered) && access.changes() {
            registered = registered.with(Access::READ);
        }
        let memory = inner.register(length, registered)?;
        if self.is(Wrong::RegistersDirtyMemory) {
            // SAFETY: the first byte of memory that no other code has access to yet.
            unsafe { memory.base().as_ptr().write(1) };
        }
        Ok(memory)
    }

    fn dial(&self, inner: &Reference, address: &Address, until: Nanos) -> Result<ReferenceLink, DialError> {
        match inner.dial(address, until) {
            Err(DialError::NobodyListens { address })
                if self.is(Wrong::DialLies) && address.name().contains("nobody") =>
            {
                Err(DialError::TimedOut { address, after: std::time::Duration::ZERO })
            }
            result => result,
        }
    }
}

impl LinkHooks<ReferenceLink> for WrongHooks {
    fn send(&self, inner: &ReferenceLink, message: &[u8]) -> Result<(), LinkError> {
        let truncates = self.is(Wrong::LinkTruncates) && message.len() <= verbs::MAX_CONTROL_MESSAGE;
        inner.send(if truncates { &message[..message.len().min(8192)] } else { message })
    }

    fn grant(
        &self,
        inner: &ReferenceLink,
        memory: &Arc<HeapMemory>,
        access: Access,
    ) -> Result<RegionKey, GrantError> {
        let ignores = self.is(Wrong::IgnoresPermissions) && memory.access().contains(access);
        inner.grant(memory, if ignores { memory.access() } else { access })
    }

    fn revoke(&self, inner: &ReferenceLink, key: RegionKey) {
        if !self.is(Wrong::IgnoresRevocation) {
            inner.revoke(key);
        }
    }

    fn is_alive(&self, inner: &ReferenceLink) -> bool {
        self.is(Wrong::LinkLivesForEver) || inner.is_alive()
    }

    fn subscribe(&self, inner: &ReferenceLink, subscription: Subscription<<ReferenceLink as Link>::Signal>) {
        if !self.is(Wrong::LinkIsSilent) {
            inner.subscribe(subscription);
        }
    }
}

impl WrongDomain {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }

    /// Returns true at every `so_many`-th call, if this mutant is active.
    fn every(&mut self, wrong: Wrong, so_many: u64) -> bool {
        self.is(wrong) && {
            self.count += 1;
            self.count.is_multiple_of(so_many)
        }
    }

    fn spoil(&mut self, mut completion: Completion<HeapMemory>, into: &mut Vec<Completion<HeapMemory>>) {
        use CompletionStatus::{Flushed, RemoteAccess, RemoteInvalidRequest, Success};
        let (success, flushed) = (completion.status == Success, completion.status == Flushed);
        let receive = matches!(completion.opcode, Opcode::Receive | Opcode::ReceiveWriteImmediate);
        if flushed && self.is(Wrong::KeepsFlushedBuffers)
            || self.is(Wrong::KeepsReadBuffers) && completion.opcode == Opcode::Read
        {
            completion.buffer = None;
        }
        if self.is(Wrong::ForgetsImmediates) {
            completion.immediate = None;
        }
        if self.is(Wrong::ForgetsLengths) {
            completion.bytes = 0;
        }
        if self.is(Wrong::SaysAnotherStatus) && completion.status == RemoteAccess {
            completion.status = RemoteInvalidRequest;
        }
        if self.is(Wrong::ReturnsNewValues) && completion.opcode == Opcode::FetchAdd {
            completion.value += 1;
        }
        let (bytes, behind) = (completion.bytes as usize, self.is(Wrong::ChangesBytesBehind));
        if receive
            && success
            && bytes >= 31
            && let Some(buffer) = &mut completion.buffer
        {
            if self.is(Wrong::ChangesALastByte) {
                buffer[bytes - 1] ^= 1;
            }
            if behind && let Some(byte) = buffer.get_mut(bytes) {
                *byte ^= 1;
            }
        }
        let hidden = self.is(Wrong::HidesFailures)
            && !success
            && self.unsignaled.contains(&(completion.queue_pair, completion.id));
        let lost = flushed && self.is(Wrong::LosesFlushes)
            || !receive && success && self.every(Wrong::LosesSendCompletions, 3);
        if hidden || lost {
            return;
        }
        if !receive && success && self.is(Wrong::DoublesSendCompletions) {
            into.push(Completion { buffer: None, ..completion });
        }
        into.push(completion);
    }
}

impl DomainHooks<ReferenceDomain> for WrongDomain {
    fn create_queue_pair(
        &mut self,
        inner: &mut ReferenceDomain,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, CreateError> {
        let mut config = *config;
        match (self.wrong, config.rnr_retry) {
            (Wrong::GivesUpWaitingForReceives, RnrRetry::Forever) => config.rnr_retry = RnrRetry::Count(1),
            (Wrong::NeverGivesUp, RnrRetry::Count(_)) => config.rnr_retry = RnrRetry::Forever,
            (Wrong::HasOneSlotMore, _) => config.max_send += 1,
            _ => {}
        }
        inner.create_queue_pair(&config)
    }

    fn state(&self, inner: &ReferenceDomain, queue_pair: QueuePairId) -> Option<QueuePairState> {
        match inner.state(queue_pair) {
            Some(QueuePairState::Error) if self.is(Wrong::StaysReady) => Some(QueuePairState::Ready),
            state => state,
        }
    }

    fn post(
        &mut self,
        inner: &mut ReferenceDomain,
        queue_pair: QueuePairId,
        mut request: WorkRequest<'_, HeapMemory>,
    ) -> Result<(), PostError> {
        if !request.signaled && self.is(Wrong::HidesFailures) {
            self.unsignaled.push((queue_pair, request.id));
        }
        request.signaled |= self.is(Wrong::SignalsEverything);
        if let Operation::Write { data: Data::Buffer(buffer), key, offset, immediate: None } =
            &mut request.operation
        {
            if self.is(Wrong::ShortensWrites) && buffer.len() > 64 {
                let length = buffer.len() - 1;
                buffer.set_length(length);
            }
            if self.is(Wrong::WritesTagsFirst) && buffer.len() > 64 {
                let at = buffer.len() - 8;
                let operation = Operation::Write {
                    data: Data::Inline(&[&buffer[at..]]),
                    key: *key,
                    offset: *offset + at as u64,
                    immediate: None,
                };
                inner.post(queue_pair, WorkRequest { id: request.id, operation, signaled: false })?;
                RealHost.sleep(RealHost.now() + MILLISECOND);
            }
        }
        match &mut request.operation {
            Operation::Send { data: Data::Region(range), .. }
            | Operation::Write { data: Data::Region(range), .. }
                if self.is(Wrong::MovesSentRanges) =>
            {
                move_back(range);
            }
            Operation::ReadInto { into, .. } if self.is(Wrong::MovesReadRanges) => move_back(into),
            _ => {}
        }
        if self.is(Wrong::WritesBehindTheirSend) && !request.signaled {
            request = match request {
                WorkRequest {
                    id,
                    operation: Operation::Write { data: Data::Buffer(buffer), key, offset, immediate: None },
                    signaled: _,
                } => {
                    self.held = Some((queue_pair, id, buffer, key, offset));
                    return Ok(());
                }
                other => other,
            };
        }
        let result = inner.post(queue_pair, request);
        if let Some((queue_pair, id, buffer, key, offset)) = self.held.take() {
            RealHost.sleep(RealHost.now() + 2 * MILLISECOND);
            let operation = Operation::Write { data: Data::Buffer(buffer), key, offset, immediate: None };
            inner.post(queue_pair, WorkRequest { id, operation, signaled: false })?;
        }
        match result {
            Err(PostError::QueuePairError) if self.is(Wrong::AcceptsPostsInError) => Ok(()),
            Err(PostError::Inline { .. }) if self.is(Wrong::AcceptsTooLongInline) => Ok(()),
            Err(PostError::Transport(_)) if self.is(Wrong::AcceptsWrongTransport) => Ok(()),
            result => result,
        }
    }

    fn post_list(
        &mut self,
        inner: &mut ReferenceDomain,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, HeapMemory>>],
    ) -> Result<(), ListError> {
        match (self.wrong, requests) {
            (Wrong::TurnsListsRound, requests) => {
                requests.reverse();
                inner.post_list(queue_pair, requests)
            }
            (Wrong::ForgetsEndsOfLists, [first @ .., last]) if !first.is_empty() => {
                *last = None;
                inner.post_list(queue_pair, first)
            }
            (Wrong::PostsPartsOfLists, requests) => {
                for (posted, request) in requests.iter_mut().filter_map(Option::take).enumerate() {
                    inner.post(queue_pair, request).map_err(|error| ListError { posted, error })?;
                }
                Ok(())
            }
            (Wrong::GoesOnBehindRefusals, requests) => {
                let result = inner.post_list(queue_pair, requests);
                let _ = inner.post_list(queue_pair, requests);
                result
            }
            (_, requests) => inner.post_list(queue_pair, requests),
        }
    }

    fn poll(
        &mut self,
        inner: &mut ReferenceDomain,
        queue: CompletionQueueId,
        into: &mut Vec<Completion<HeapMemory>>,
        limit: usize,
    ) -> usize {
        let mut polled = Vec::new();
        inner.poll(queue, &mut polled, limit);
        let receive = |completion: &Completion<HeapMemory>| completion.opcode == Opcode::Receive;
        let swaps = match self.wrong {
            Wrong::SwapsReceives => polled.iter().all(receive),
            Wrong::SwapsSendCompletions => !polled.iter().any(receive),
            _ => false,
        };
        if swaps && polled.len() > 1 {
            polled.swap(0, 1);
        }
        let before = into.len();
        for completion in polled {
            self.spoil(completion, into);
        }
        into.len() - before
    }

    fn wait(&mut self, inner: &mut ReferenceDomain, armed: Armed, until: Nanos) -> Wake {
        let event = armed.mode == WaitMode::Event;
        match self.wrong {
            Wrong::WakesForNothing if event => {
                inner.disarm(armed);
                Wake::Arrived
            }
            Wrong::ForgetsArrivalsBeforeTheWait if event => {
                let later = inner.arm(WaitMode::Event);
                inner.wait(later, until)
            }
            Wrong::SleepsThrough if event => {
                inner.disarm(armed);
                RealHost.sleep(until.min(RealHost.now() + 2 * MILLISECOND));
                Wake::TimedOut
            }
            _ => inner.wait(armed, until),
        }
    }

    fn arm_other(&mut self, inner: &mut ReferenceDomain, other: &AnyWaker) -> Nanos {
        let first = self.first.get_or_insert_with(|| other.clone());
        match self.wrong {
            Wrong::WakesNoOther => Nanos::MAX,
            Wrong::ArmsTheFirstWaker => inner.arm_other(first),
            _ => inner.arm_other(other),
        }
    }

    fn disarm_other(&mut self, inner: &mut ReferenceDomain) {
        if !self.is(Wrong::KeepsOthersArmed) {
            inner.disarm_other();
        }
    }
}

/// Moves a range back by one byte, unless its region starts with it.
fn move_back(range: &mut RegionRange<HeapMemory>) {
    let before = range.offset().checked_sub(1);
    if let Some(Ok(moved)) = before.map(|offset| range.region().range(offset, range.length() as u64)) {
        *range = moved;
    }
}

/// A case that no mutant affects.
const CONTROL: &str = "listen_twice";

/// Each mutant, and the cases that have to fail on it.
const MUTANTS: &[(Wrong, &[&str])] = &[
    (Wrong::LosesSendCompletions, &["rc_send", "sends_complete_in_order"]),
    (Wrong::DoublesSendCompletions, &["rc_write", "rc_fetch_add"]),
    (Wrong::SwapsReceives, &["receives_complete_in_order", "long_run_of_messages"]),
    (Wrong::SwapsSendCompletions, &["sends_complete_in_order"]),
    (Wrong::SignalsEverything, &["unsignaled_success_makes_no_completion"]),
    (Wrong::HidesFailures, &["unsignaled_failure_completes", "bad_key_write"]),
    (Wrong::LosesFlushes, &["bad_key_read", "peer_dies_quiet", "queue_pair_destroyed_by_the_peer"]),
    (Wrong::KeepsFlushedBuffers, &["write_past_the_end", "link_closed_by_the_peer"]),
    (Wrong::KeepsReadBuffers, &["rc_read", "bad_key_read"]),
    (Wrong::ForgetsImmediates, &["rc_send_immediate", "uc_write_immediate", "ud_send_immediate"]),
    (Wrong::ForgetsLengths, &["rc_send", "rc_write_immediate", "rc_read"]),
    (Wrong::ChangesALastByte, &["rc_send", "uc_send", "ud_send", "two_hundred_queue_pairs"]),
    (Wrong::ChangesBytesBehind, &["rc_send"]),
    (Wrong::ShortensWrites, &["rc_write", "read_sees_the_write_before_it"]),
    (Wrong::SaysAnotherStatus, &["bad_key_fetch_add", "write_offset_overflows", "revoked_key"]),
    (Wrong::StaysReady, &["receiver_not_ready_counted", "a_new_queue_pair_after_an_error"]),
    (Wrong::AcceptsPostsInError, &["bad_key_compare_swap", "receive_too_short"]),
    (Wrong::AcceptsTooLongInline, &["inline_over_the_limit"]),
    (Wrong::AcceptsWrongTransport, &["wrong_transport_uc", "wrong_transport_ud", "address_handle_on_rc"]),
    (Wrong::ReturnsNewValues, &["rc_fetch_add", "atomics_from_two_peers"]),
    (
        Wrong::IgnoresPermissions,
        &["write_without_permission", "read_without_permission", "atomic_without_permission"],
    ),
    (Wrong::IgnoresRevocation, &["revoked_key"]),
    (Wrong::GrantsMoreThanRegistered, &["granted_for_more_than_registered"]),
    (Wrong::GivesUpWaitingForReceives, &["receiver_not_ready_for_ever"]),
    (Wrong::NeverGivesUp, &["receiver_not_ready_counted"]),
    (Wrong::HasOneSlotMore, &["unsignaled_requests_fill_the_send_queue", "send_queue_overflow"]),
    (Wrong::WritesBehindTheirSend, &["write_is_there_when_the_send_behind_it_arrives"]),
    (Wrong::WritesTagsFirst, &["tag_of_a_long_write_is_last"]),
    (Wrong::ForgetsArrivalsBeforeTheWait, &["arrival_between_arm_and_wait_is_not_lost"]),
    (Wrong::WakesForNothing, &["plain_write_does_not_wake"]),
    (Wrong::SleepsThrough, &["event_wakes_on_waker", "waker_before_the_wait_is_not_lost"]),
    (Wrong::WakesNoOther, &["end_of_a_connection_wakes_another"]),
    (Wrong::KeepsOthersArmed, &["disarmed_domain_wakes_no_other"]),
    (Wrong::ArmsTheFirstWaker, &["later_waker_replaces_the_earlier"]),
    (Wrong::LinkLivesForEver, &["peer_dies_quiet", "link_closed_by_the_peer"]),
    (Wrong::LinkTruncates, &["link_message_of_the_longest_length"]),
    (Wrong::LinkIsSilent, &["link_signal_is_raised_by_a_message", "peer_dies_quiet"]),
    (Wrong::DialLies, &["dial_to_nobody"]),
    (Wrong::RegistersDirtyMemory, &["registered_memory_is_zeroed"]),
    (Wrong::TurnsListsRound, &["sends_of_a_list_arrive_in_order", "operations_of_a_list_run_in_order"]),
    (Wrong::ForgetsEndsOfLists, &["lists_of_several_lengths"]),
    (
        Wrong::PostsPartsOfLists,
        &["a_list_is_taken_whole_or_not_at_all", "a_list_that_cannot_be_posted_keeps_its_requests"],
    ),
    (Wrong::GoesOnBehindRefusals, &["a_list_stops_at_the_request_that_is_refused"]),
    (
        Wrong::MovesSentRanges,
        &["rc_send", "uc_write", "ranges_whose_region_is_dropped", "a_range_that_the_peer_writes_meanwhile"],
    ),
    (Wrong::MovesReadRanges, &["rc_read_into_a_region", "reads_into_memory_that_the_peer_writes_meanwhile"]),
];

/// Runs the named cases on one mutant; returns those that failed.
fn failed(wrong: Wrong, cases: &[&str]) -> Vec<&'static str> {
    let only = cases.iter().map(|case| (*case).to_owned()).collect();
    let options = Options { limit: 1500 * MILLISECOND, only, ..Options::default() };
    let make = |case: &Case<Interposed<Reference, WrongHooks>>| {
        let fabric = Interposed::with_hooks(Reference::new(), WrongHooks(wrong));
        Pair { first: fabric.clone(), second: fabric, address: Address::new(Scheme::Sim, case.name).unwrap() }
    };
    run_in_process(&options, make, |_| ()).failed()
}

#[test]
fn every_wrong_is_found() {
    let left = Mutex::new(MUTANTS.iter());
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        // These threads mostly wait for events that never occur.
        for _ in 0..6 {
            scope.spawn(|| {
                loop {
                    let Some((wrong, cases)) = left.lock().unwrap().next() else { return };
                    let found = failed(*wrong, &[cases, &[CONTROL][..]].concat());
                    for case in *cases {
                        if !found.contains(case) {
                            missed.lock().unwrap().push(format!("{wrong:?} is not found by {case}"));
                        }
                    }
                    if found.contains(&CONTROL) {
                        missed
                            .lock()
                            .unwrap()
                            .push(format!("{wrong:?} makes {CONTROL} fail, which it cannot"));
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn capabilities_decide_what_applies() {
    let without = Reference::new().with_capabilities(|c| {
        c.atomics = Atomics::None;
        c.transports = TransportSet::NONE.with(Transport::ReliableConnection);
        c.shared_receive_queue = false;
    });
    let make = |case: &Case<Reference>| {
        let address = Address::new(Scheme::Sim, case.name).unwrap();
        Pair { first: without.clone(), second: without.clone(), address }
    };
    let mut told = 0;
    let report = run_in_process(&Options::default(), make, |_| told += 1);
    assert!(report.failed().is_empty(), "{:#?}", report.failed());
    assert_eq!(told, report.rows.len());
    let skipped: Vec<_> = report
        .rows
        .iter()
        .filter_map(|row| match &row.outcome {
            dunlin_fabric_conformance::Outcome::NotApplicable(need) => Some((row.name, need.as_str())),
            _ => None,
        })
        .collect();
    assert!(skipped.contains(&("rc_fetch_add", "atomics")), "{skipped:?}");
    assert!(skipped.contains(&("uc_write", "transports: UC")), "{skipped:?}");
    assert!(skipped.contains(&("ud_to_several_peers", "transports: UD")), "{skipped:?}");
    assert!(skipped.contains(&("shared_receive_queue", "shared_receive_queue")), "{skipped:?}");
    // 13 with atomics, 7 with UC, 6 with UD, 4 with shared receive queues, 2 with WRITEs that end a sleep, 1 with memory of
    // another fabric.
    assert_eq!((skipped.len(), report.passed().len()), (33, report.rows.len() - 33), "{skipped:#?}");
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = dunlin_fabric_conformance::cases::<Reference>().iter().map(|c| c.name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}
