//! The interposers of `dunlin-fabric`, around the reference fabric: both ends in one thread.

use dunlin_fabric::interpose::{CompletionFault, Delay, FaultCounts, When};
use dunlin_fabric::*;
use dunlin_fabric_conformance::reference::Reference;
use std::sync::{Arc, Mutex, PoisonError};

struct End<F: Fabric> {
    domain: F::Domain,
    queue: CompletionQueueId,
    pair: QueuePairId,
    link: F::Link,
    arena: Arena<F::Memory>,
}

impl<F: Fabric> End<F> {
    fn poll(&mut self) -> Vec<Completion<F::Memory>> {
        let mut into = Vec::new();
        self.domain.poll(self.queue, &mut into, 128);
        into
    }

    fn send(&mut self, id: u64, signaled: bool) -> Result<(), PostError> {
        let operation = Operation::Send { data: Data::Inline(&[b"hello"]), immediate: None, to: None };
        self.domain.post(self.pair, WorkRequest { id: WorkId(id), operation, signaled })
    }

    fn receive(&mut self, id: u64) -> Result<(), PostError> {
        let buffer = self.arena.reserve(64).unwrap();
        self.domain.post_receive(ReceiveTarget::QueuePair(self.pair), WorkId(id), Some(buffer))
    }
}

/// Makes two connected ends: the first on `fabric`, the second on the fabric below it.
fn ends<F: Fabric>(fabric: &F, below: &Reference, transport: Transport) -> (End<F>, End<Reference>) {
    ends_of_depth(fabric, below, transport, 8)
}

/// As `ends`, with `max_send` slots in each send queue.
fn ends_of_depth<F: Fabric>(
    fabric: &F,
    below: &Reference,
    transport: Transport,
    max_send: u32,
) -> (End<F>, End<Reference>) {
    fn end<F: Fabric>(fabric: &F, link: F::Link, transport: Transport, max_send: u32) -> (End<F>, Endpoint) {
        let mut domain = fabric.domain().unwrap();
        let queue = domain.create_completion_queue(max_send.max(64), true).unwrap();
        let config = QueuePairConfig { transport, max_send, ..QueuePairConfig::reliable(queue, queue) };
        let pair = domain.create_queue_pair(&config).unwrap();
        let endpoint = domain.endpoint(pair, &link).unwrap();
        let arena = Arena::new(fabric.register(1 << 16, Access::READ).unwrap()).unwrap();
        (End { domain, queue, pair, link, arena }, endpoint)
    }
    let address: Address = format!("sim:{}", fabric.host().random()).parse().unwrap();
    let listener = below.listen(&address).unwrap();
    let link = fabric.dial(&address, u64::MAX).unwrap();
    let (mut first, first_endpoint) = end(fabric, link, transport, max_send);
    let (mut second, second_endpoint) = end(below, listener.accept(u64::MAX).unwrap(), transport, max_send);
    first.domain.connect(first.pair, &first.link, &second_endpoint).unwrap();
    second.domain.connect(second.pair, &second.link, &first_endpoint).unwrap();
    (first, second)
}

const RC: Transport = Transport::ReliableConnection;
const UC: Transport = Transport::UnreliableConnection;

fn ids<M: Memory>(completions: &[Completion<M>]) -> Vec<u64> {
    completions.iter().map(|c| c.id.0).collect()
}

#[test]
fn counts_what_went_through() {
    let below = Reference::new();
    let fabric = Count::new(below.clone());
    let (mut first, mut second) = ends(&fabric, &below, RC);
    let before = fabric.counts();
    second.receive(1).unwrap();
    first.send(7, false).unwrap();
    let region = Region::new(below.register(64, Access::WRITE.with(Access::ATOMIC)).unwrap());
    let key = second.link.grant(region.memory(), Access::WRITE.with(Access::ATOMIC)).unwrap();
    let operation = Operation::FetchAdd { key, offset: 8, add: 2 };
    first.domain.post(first.pair, WorkRequest { id: WorkId(8), operation, signaled: false }).unwrap();
    assert_eq!(first.poll().len(), 1);
    assert_eq!(first.poll().len(), 0);
    let armed = first.domain.arm(WaitMode::Event);
    let _ = first.domain.wait(armed, fabric.host().now());
    let counts = fabric.counters().snapshot() - before;
    let expected = interpose::CountSnapshot {
        posted_send: 1,
        posted_fetch_add: 1,
        posted_signaled: 1,
        posted_inline: 1,
        doorbells: 2,
        bytes_posted: 13,
        completed_fetch_add: 1,
        polls: 2,
        empty_polls: 1,
        waits_event: 1,
        ..Default::default()
    };
    assert_eq!(counts, expected);
    assert_eq!((counts.posts(), counts.completions()), (2, 1));
    assert!(counts.to_string().contains("posted_fetch_add"));
}

/// A list rings once, for the requests before the first that is refused.
#[test]
fn counts_a_list_as_one_doorbell() {
    let below = Reference::new();
    let fabric = Count::new(below.clone());
    let (mut first, second) = ends_of_depth(&fabric, &below, RC, 100);
    let region = Region::new(below.register(64, Access::WRITE).unwrap());
    let key = second.link.grant(region.memory(), Access::WRITE).unwrap();
    let too_long = vec![0; below.capabilities().max_inline as usize + 1];
    let (good, bad): (&[&[u8]], &[&[u8]]) = (&[&[1; 8]], &[&too_long]);
    for (length, refused_at) in
        [(1, None), (2, None), (8, None), (100, None), (100, Some(70)), (4, Some(2)), (4, Some(0))]
    {
        let before = fabric.counts();
        let mut list: Vec<_> = (0..length)
            .map(|place| {
                let data = Data::Inline(if refused_at == Some(place) { bad } else { good });
                let operation = Operation::Write { data, key, offset: 0, immediate: None };
                Some(WorkRequest { id: WorkId(place), operation, signaled: true })
            })
            .collect();
        let result = first.domain.post_list(first.pair, &mut list);
        let posted = refused_at.unwrap_or(length);
        assert_eq!(result.map_err(|error| error.posted as u64).err(), refused_at);
        let counts = fabric.counts() - before;
        assert_eq!(
            (counts.posted_write, counts.doorbells),
            (posted, posted.min(1)),
            "{length} {refused_at:?}"
        );
        assert_eq!(counts.refused, length - posted);
        assert_eq!(first.poll().len() as u64, posted);
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == interpose::trace::TARGET
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Held by each test with a `Trace`: `tracing` may keep a place of an event silent for ever if one thread
/// reaches it first while another one installs a subscriber.
static TRACED: Mutex<()> = Mutex::new(());

#[test]
fn traces_posts_completions_and_refusals() {
    let _alone = TRACED.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let below = Reference::new();
        let (mut first, mut second) = ends(&Trace::new(below.clone()), &below, RC);
        second.receive(1).unwrap();
        first.send(7, true).unwrap();
        assert_eq!(first.poll().len(), 1);
        second.link.close();
        assert_eq!(first.send(8, true), Err(PostError::QueuePairError));
    });
    let lines = lines.0.lock().unwrap();
    let has = |parts: &[&str]| lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&["TRACE", "message=post", "id=7", "operation=\"SEND\"", "bytes=5"]), "{lines:#?}");
    assert!(has(&["TRACE", "message=completion", "id=7", "opcode=Send", "status=\"success\""]), "{lines:#?}");
    assert!(has(&["WARN", "message=post refused", "id=8"]), "{lines:#?}");
}

#[test]
fn an_error_completion_breaks_the_queue_pair_and_gives_buffers_back() {
    let below = Reference::new();
    let when = When::Nth(3);
    let status = CompletionStatus::ReceiverNotReady;
    let plan = FaultPlan { completion_error: Some(CompletionFault { when, status }), ..FaultPlan::default() };
    let fabric = Fault::new(below.clone(), plan);
    let (mut first, mut second) = ends(&fabric, &below, RC);
    first.receive(100).unwrap();
    for id in 0..3 {
        second.receive(id).unwrap();
    }
    for id in 0..3 {
        first.send(id, id == 1).unwrap();
    }
    assert_eq!(first.send(3, true), Err(PostError::QueuePairError), "as soon as it is known");
    let completions = first.poll();
    let seen: Vec<_> = completions.iter().map(|c| (c.id.0, c.status, c.opcode)).collect();
    let expected = [
        (1, CompletionStatus::Success, Opcode::Send),
        (2, status, Opcode::Send),
        (100, CompletionStatus::Flushed, Opcode::Receive),
    ];
    assert_eq!(seen, expected);
    assert!(completions[2].buffer.is_some());
    assert_eq!(first.domain.state(first.pair), Some(QueuePairState::Error));
    assert_eq!(second.domain.state(second.pair), Some(QueuePairState::Error));
    let got: Vec<_> = second.poll().iter().map(|c| c.status).collect();
    use CompletionStatus::{Flushed, Success};
    assert_eq!(got, [Success, Success, Flushed], "the failed SEND never arrived");
    assert_eq!(fabric.injected(), FaultCounts { completion_errors: 1, ..FaultCounts::default() });
}

#[test]
fn a_queue_pair_broken_at_a_post_stays_broken() {
    let below = Reference::new();
    let plan = FaultPlan { queue_pair_error: When::Nth(2), ..FaultPlan::default() };
    let (mut first, mut second) = ends(&Fault::new(below.clone(), plan), &below, RC);
    second.receive(1).unwrap();
    first.receive(100).unwrap();
    first.send(1, true).unwrap();
    for _ in 0..3 {
        assert_eq!(first.send(2, true), Err(PostError::QueuePairError));
        assert_eq!(first.receive(3), Err(PostError::QueuePairError));
    }
    assert_eq!(first.domain.state(first.pair), Some(QueuePairState::Error));
    let completions = first.poll();
    assert_eq!(ids(&completions), [1, 100], "no trace of what broke it");
    assert_eq!(completions[1].status, CompletionStatus::Flushed);
    assert_eq!(second.domain.state(second.pair), Some(QueuePairState::Error));
}

#[test]
fn a_read_that_fails_gives_its_buffer_back() {
    let below = Reference::new();
    let status = CompletionStatus::TransportRetry;
    let completion_error = Some(CompletionFault { when: When::Every(1), status });
    let plan = FaultPlan { completion_error, ..FaultPlan::default() };
    let (mut first, second) = ends(&Fault::new(below.clone(), plan), &below, RC);
    let region = Region::new(below.register(64, Access::READ).unwrap());
    let key = second.link.grant(region.memory(), Access::READ).unwrap();
    let into = first.arena.reserve(64).unwrap();
    let operation = Operation::Read { from: RemoteSlice { key, offset: 0, length: 64 }, into };
    first.domain.post(first.pair, WorkRequest { id: WorkId(5), operation, signaled: true }).unwrap();
    let completions = first.poll();
    assert_eq!((completions[0].status, completions[0].opcode), (status, Opcode::Read));
    assert!(completions[0].buffer.is_some());
}

#[test]
fn lost_messages_complete_in_their_turn_and_never_arrive() {
    let below = Reference::new();
    let plan = FaultPlan { drop: When::Every(3), ..FaultPlan::default() };
    let fabric = Fault::new(below.clone(), plan);
    let (mut first, mut second) = ends(&fabric, &below, UC);
    for id in 0..9 {
        second.receive(id).unwrap();
    }
    let mut completed = Vec::new();
    // Eight slots, and only every third request signaled, which is the lost one.
    for id in 1..=9 {
        while first.send(id, id % 3 == 0) == Err(PostError::QueueFull) {
            completed.extend(ids(&first.poll()));
        }
    }
    completed.extend(ids(&first.poll()));
    assert_eq!(completed, [3, 6, 9]);
    assert_eq!(second.poll().len(), 6);
    assert_eq!(fabric.injected().dropped, 3);
}

#[test]
fn a_lost_signaled_message_does_not_lock_the_send_queue() {
    let below = Reference::new();
    let plan = FaultPlan { drop: When::Every(8), ..FaultPlan::default() };
    let (mut first, _second) = ends(&Fault::new(below.clone(), plan), &below, UC);
    let mut completed = Vec::new();
    for id in 1..=64 {
        let mut tries = 0;
        while first.send(id, id % 8 == 0) == Err(PostError::QueueFull) {
            completed.extend(ids(&first.poll()));
            tries += 1;
            assert!(tries < 100, "the send queue is locked at {id}");
        }
    }
    completed.extend(ids(&first.poll()));
    assert_eq!(completed, [8, 16, 24, 32, 40, 48, 56, 64]);
}

#[test]
fn delayed_completions_keep_their_order() {
    let below = Reference::new();
    let delay = Some(Delay { when: When::Every(2), polls: 3 });
    let fabric = Fault::new(below.clone(), FaultPlan { delay, ..FaultPlan::default() });
    let (mut first, mut second) = ends(&fabric, &below, RC);
    for id in 0..4 {
        second.receive(id).unwrap();
        first.send(id, true).unwrap();
    }
    let polls: Vec<_> = (0..8).map(|_| ids(&first.poll())).collect();
    assert_eq!(polls.concat(), [0, 1, 2, 3]);
    assert_eq!(polls[0], [0], "the second is held back, and all behind it");
    assert!(polls[3].starts_with(&[1]), "{polls:?}");
    let armed = first.domain.arm(WaitMode::Event);
    assert_eq!(first.domain.wait(armed, fabric.host().now() + 1_000_000), Wake::TimedOut);
}

#[test]
fn refused_posts_registrations_dials_and_dead_links() {
    let below = Reference::new();
    let plan = FaultPlan {
        post_error: When::Nth(1),
        register_failure: When::Nth(2),
        dial_failure: When::Nth(2),
        link_death: When::Nth(3),
        ..FaultPlan::default()
    };
    let fabric = Fault::new(below.clone(), plan);
    let (mut first, mut second) = ends(&fabric, &below, RC);
    second.receive(1).unwrap();
    assert_eq!(first.send(1, true), Err(PostError::QueueFull));
    first.send(1, true).unwrap();
    assert_eq!(ids(&first.poll()), [1]);
    assert!(matches!(fabric.register(64, Access::LOCAL), Err(RegisterError::OutOfMemory { .. })));
    fabric.register(64, Access::LOCAL).unwrap();
    let address: Address = "sim:twice".parse().unwrap();
    let _listener = below.listen(&address).unwrap();
    assert!(matches!(fabric.dial(&address, u64::MAX), Err(DialError::TimedOut { .. })));
    first.link.send(b"1").unwrap();
    first.link.send(b"2").unwrap();
    assert!(matches!(first.link.send(b"3"), Err(LinkError::PeerGone(_))));
    assert!(!first.link.is_alive() && !second.link.is_alive());
    assert_eq!(first.domain.state(first.pair), Some(QueuePairState::Error));
    let expected = FaultCounts {
        post_errors: 1,
        register_failures: 1,
        dial_failures: 1,
        link_deaths: 1,
        ..FaultCounts::default()
    };
    assert_eq!(fabric.injected(), expected);
}

#[test]
fn they_stack() {
    let _alone = TRACED.lock().unwrap_or_else(PoisonError::into_inner);
    let below = Reference::new();
    let fabric = Count::new(Trace::new(Fault::new(below.clone(), FaultPlan::default())));
    let (mut first, mut second) = ends(&fabric, &below, RC);
    second.receive(1).unwrap();
    first.send(1, true).unwrap();
    assert_eq!(ids(&first.poll()), [1]);
    assert_eq!(fabric.counts().posted_send, 1);
}

/// Runs once with random faults; returns the completions.
fn run(seed: u64) -> Vec<(u64, CompletionStatus)> {
    let below = Reference::new();
    let completion_error =
        Some(CompletionFault { when: When::PerMillion(10_000), status: CompletionStatus::RemoteAccess });
    let delay = Some(Delay { when: When::PerMillion(300_000), polls: 2 });
    let post_error = When::PerMillion(100_000);
    let plan = FaultPlan { seed, completion_error, delay, post_error, ..FaultPlan::default() };
    let (mut first, mut second) = ends(&Fault::new(below.clone(), plan), &below, RC);
    let mut told = Vec::new();
    for id in 0..200 {
        if second.receive(id).is_err() {
            break;
        }
        if let Err(error) = first.send(id, true) {
            told.push((id + 1000 * (error == PostError::QueueFull) as u64, CompletionStatus::LocalLength));
        }
        told.extend(first.poll().iter().map(|c| (c.id.0, c.status)));
        second.poll();
    }
    told
}

#[test]
fn a_seed_replays() {
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
