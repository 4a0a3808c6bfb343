//! Buffers of the application in registered memory.

use crate::cluster::{NAMES, assert_access, config};
use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::{
    Access, Data, Fabric, Host, Link, Memory, Operation, PostError, QueuePairId, RegionRange, RegisterError,
    Scheme, ThreadDomain, WorkRequest,
};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{
    AccessError, BufferError, Lmr, OperationError, Operations, RequestError, Rights, Spec, Tier, TierConfig,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The local sides of posted requests: inline, in a buffer of the path, in a range of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sides {
    inline: u32,
    staged: u32,
    in_place: u32,
}

#[derive(Debug)]
struct Seen<M: Memory> {
    sides: Sides,
    /// Requests with a local range are not posted from here on, but kept: the NIC carries them out much later.
    keeps: bool,
    kept: Vec<RegionRange<M>>,
    /// No memory can be registered.
    is_full: bool,
}

/// Watches the requests of a node.
#[derive(Debug)]
struct Watch<M: Memory>(Arc<Mutex<Seen<M>>>);

impl<M: Memory> Clone for Watch<M> {
    fn clone(&self) -> Self {
        Watch(Arc::clone(&self.0))
    }
}

impl<M: Memory> Watch<M> {
    fn new() -> Self {
        let sides = Sides::default();
        Watch(Arc::new(Mutex::new(Seen { sides, keeps: false, kept: Vec::new(), is_full: false })))
    }

    fn change(&self, change: impl FnOnce(&mut Seen<M>)) {
        change(&mut self.0.lock().unwrap());
    }

    /// Returns the local sides of the requests that `run` posts.
    fn count(&self, run: impl FnOnce()) -> Sides {
        self.change(|seen| seen.sides = Sides::default());
        run();
        self.0.lock().unwrap().sides
    }
}

impl<F: Fabric> Hooks<F> for Watch<F::Memory> {
    type Domain = Self;
    type Link = Self;

    fn domain_hooks(&self) -> Self {
        self.clone()
    }

    fn link_hooks(&self) -> Self {
        self.clone()
    }

    fn register(&self, inner: &F, length: u64, access: Access) -> Result<F::Memory, RegisterError> {
        match self.0.lock().unwrap().is_full {
            true => Err(RegisterError::Foreign("a full device")),
            false => inner.register(length, access),
        }
    }
}

impl<L: Link> LinkHooks<L> for Watch<L::Memory> {}

impl<D: ThreadDomain> DomainHooks<D> for Watch<D::Memory> {
    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        let mut seen = self.0.lock().unwrap();
        match &request.operation {
            Operation::Write { data: Data::Inline(_), .. } => seen.sides.inline += 1,
            Operation::Write { data: Data::Buffer(_), .. } | Operation::Read { .. } => seen.sides.staged += 1,
            Operation::Write { data: Data::Region(range), .. } | Operation::ReadInto { into: range, .. } => {
                seen.sides.in_place += 1;
                if seen.keeps {
                    let range = range.clone();
                    seen.kept.push(range);
                    return Ok(());
                }
            }
            other => panic!("not a request of a path: {other:?}"),
        }
        drop(seen);
        inner.post(queue_pair, request)
    }
}

type Watched<F> = Interposed<F, Watch<<F as Fabric>::Memory>>;

fn settings(scheme: Scheme, tag: &str, name: &str) -> TierConfig {
    TierConfig { piece: 4096, step: 1000, ..config(scheme, tag, &NAMES, name) }
}

/// Runs `body` with three nodes on shared memory; the requests of the first are watched.
fn watched(body: impl FnOnce(&Watch<<ShmFabric as Fabric>::Memory>, &Tier<Watched<ShmFabric>>)) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("buffers-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (watch, fabric) = (Watch::new(), || ShmFabric::new(ShmConfig::default()).unwrap());
    let start = |name| Tier::within(&fabric(), settings(Scheme::Shm, &tag, name)).unwrap();
    let _others = [start("bob"), start("carol")];
    let fabric = Interposed::with_hooks(fabric(), watch.clone());
    let alice = Tier::within(&fabric, settings(Scheme::Shm, &tag, "alice")).unwrap();
    body(&watch, &alice);
}

/// Runs `body` with three nodes in virtual time; the requests of the first are watched.
fn watched_in_virtual_time(
    seed: u64,
    body: impl FnOnce(&Watch<<Sim as Fabric>::Memory>, &Tier<Watched<Sim>>) + Send + 'static,
) {
    let settings_of = Settings { machines: vec![MachineSettings::default(); 3], ..Settings::default() };
    Sim::run_with(settings_of, seed, move |sim| {
        let start = |at: usize| {
            let fabric = sim.process_on(at);
            Tier::within(&fabric, settings(Scheme::Sim, "b", NAMES[at])).unwrap()
        };
        let (_bob, _carol) = (start(1), start(2));
        let watch = Watch::new();
        let fabric = Interposed::with_hooks(sim.process_on(0), watch.clone());
        let alice = Tier::within(&fabric, settings(Scheme::Sim, "b", "alice")).unwrap();
        body(&watch, &alice);
    })
    .unwrap();
}

/// Reads into and writes from many ranges of a buffer, at many offsets of a region that is spread over all nodes, against
/// a model of both.
fn buffers_do_what_memory_does<F: Fabric>(alice: &Tier<F>, rounds: usize) {
    let length = 20_001;
    let region = alice.malloc(length as u64, Spec::spread(NAMES)).unwrap();
    let mut buffer = alice.buffer(length + 77).unwrap();
    assert!(buffer.len() == length + 77 && buffer.iter().all(|byte| *byte == 0));
    let (mut model, mut bytes) = (vec![0; length], vec![0; length + 77]);
    let mut draw = 12_345u64;
    let mut below = |limit: usize| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) as usize % limit
    };
    for round in 0..rounds {
        let offset = below(length);
        let most = [2, 100, 5000, length + 1][round % 4];
        let count = below(most).min(length - offset);
        let start = below(bytes.len() - count + 1);
        let range = start..start + count;
        if round % 2 == 0 {
            let fresh = (0..count).map(|at| (at * 31 + round) as u8);
            buffer[range.clone()].iter_mut().zip(fresh).for_each(|(byte, fresh)| *byte = fresh);
            bytes[range.clone()].copy_from_slice(&buffer[range.clone()]);
            region.write_from(offset as u64, &mut buffer, range.clone()).unwrap();
            model[offset..offset + count].copy_from_slice(&bytes[range]);
        } else {
            region.read_into(offset as u64, &mut buffer, range.clone()).unwrap();
            bytes[range].copy_from_slice(&model[offset..offset + count]);
        }
        assert_eq!(*buffer, bytes[..], "round {round}");
    }
    let mut found = vec![1; length];
    region.read(0, &mut found).unwrap();
    assert_eq!(found, model);
}

#[test]
fn buffers_on_shared_memory() {
    watched(|_, alice| buffers_do_what_memory_does(alice, 600));
}

#[test]
fn buffers_in_virtual_time() {
    for seed in 0..4 {
        watched_in_virtual_time(seed, |_, alice| buffers_do_what_memory_does(alice, 80));
    }
}

/// Each part of at most 1000 bytes within a piece is one request, whose local side is the buffer.
#[test]
fn nothing_is_staged() {
    let counts = |watch: &Watch<<ShmFabric as Fabric>::Memory>, alice: &Tier<Watched<ShmFabric>>| {
        let mut buffer = alice.buffer(10_000).unwrap();
        let region = alice.malloc(100_000, Spec::spread(["bob", "carol"])).unwrap();
        let local = alice.malloc(10_000, Spec::here()).unwrap();
        region.write_from(0, &mut buffer, ..).unwrap();
        region.write_from(4096, &mut buffer, ..1).unwrap();
        for (offset, length, parts) in [
            (0, 1, 1),
            (0, 64, 1),
            (7, 1000, 1),
            (7, 1001, 2),
            (0, 3000, 3),
            (4000, 1000, 2),
            (0, 10_000, 12),
        ] {
            let in_place = Sides { in_place: parts, ..Sides::default() };
            let written = watch.count(|| region.write_from(offset, &mut buffer, ..length).unwrap());
            assert_eq!(written, in_place, "WRITEs of {length} bytes at {offset}");
            let read = watch.count(|| region.read_into(offset, &mut buffer, ..length).unwrap());
            assert_eq!(read, in_place, "READs of {length} bytes at {offset}");
        }
        let copied = watch.count(|| {
            local.write_from(0, &mut buffer, ..).unwrap();
            local.read_into(0, &mut buffer, ..).unwrap();
            region.write_from(77, &mut buffer, 5..5).unwrap();
            region.read_into(77, &mut buffer, 10_000..).unwrap();
        });
        assert_eq!(copied, Sides::default(), "the processor copies bytes of the own node");
        // Other memory of the process is staged.
        let mut other = vec![0; 10_000];
        let staged = watch.count(|| region.read(0, &mut other).unwrap());
        assert_eq!(staged, Sides { staged: 12, ..Sides::default() });
        let staged = watch.count(|| region.write(0, &other[..3000]).unwrap());
        assert_eq!((staged.in_place, staged.inline + staged.staged), (0, 3));
    };
    watched(counts);
}

#[test]
fn ranges_and_buffers_that_do_not_fit_are_refused() {
    watched(|watch, alice| {
        let region = alice.malloc(1000, Spec::on("bob").named("r").grant("bob", Rights::READ)).unwrap();
        let weak = alice.acting_for("bob").unwrap().map("r", Rights::READ).unwrap();
        let mut buffer = alice.buffer(2000).unwrap();
        buffer.fill(7);
        region.write_from(0, &mut buffer, ..1000).unwrap();
        let posted = watch.count(|| {
            for (start, end) in
                [(0, 2001), (2001, 2001), (2000, 2001), (5, 4), (1, usize::MAX), (usize::MAX, 0)]
            {
                let outside = |result| match result {
                    Err(OperationError::Buffer(BufferError::Outside { start: s, end: e, size: 2000 })) => {
                        assert_eq!((s, e), (start, end));
                    }
                    other => panic!("{start} to {end}: {other:?}"),
                };
                outside(region.read_into(0, &mut buffer, start..end));
                outside(region.write_from(0, &mut buffer, start..end));
            }
            let error = AccessError::OutOfBounds { offset: 0, length: 1001, size: 1000 };
            assert_access(region.read_into(0, &mut buffer, ..1001), error);
            assert_access(region.write_from(0, &mut buffer, 999..), error);
            let error = AccessError::OutOfBounds { offset: 1001, length: 0, size: 1000 };
            assert_access(region.read_into(1001, &mut buffer, 0..0), error);
            let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
            assert_access(weak.write_from(0, &mut buffer, ..8), denied);
        });
        assert_eq!((posted, buffer.len()), (Sides::default(), 2000));
        assert!(buffer.iter().all(|byte| *byte == 7));
        weak.read_into(0, &mut buffer, ..8).unwrap();
        assert!(matches!(alice.buffer(0), Err(RequestError::Register(_))));
        assert!(matches!(alice.buffer(usize::MAX), Err(RequestError::Register(_))));
        watch.change(|seen| seen.is_full = true);
        assert!(matches!(alice.buffer(1), Err(RequestError::Register(RegisterError::Foreign(_)))));
        watch.change(|seen| seen.is_full = false);
        // Another node of the same process.
        watched(|_, other| {
            let mut foreign = other.buffer(8).unwrap();
            for refused in [region.read_into(0, &mut foreign, ..), region.write_from(0, &mut foreign, ..)] {
                assert!(
                    matches!(refused, Err(OperationError::Buffer(BufferError::OtherTier))),
                    "{refused:?}"
                );
            }
        });
    });
}

/// A buffer outlives its node, and is of no use for another one.
#[test]
fn a_buffer_outlives_its_node() {
    let mut left = None;
    watched(|_, alice| {
        let mut buffer = alice.buffer(100).unwrap();
        buffer.fill(5);
        left = Some(buffer);
    });
    let mut buffer = left.unwrap();
    assert_eq!(*buffer, [5; 100]);
    watched(|_, alice| {
        let region = alice.malloc(100, Spec::here()).unwrap();
        let refused = region.write_from(0, &mut buffer, ..);
        assert!(matches!(refused, Err(OperationError::Buffer(BufferError::OtherTier))), "{refused:?}");
    });
}

fn quick<F: Fabric>(region: &Lmr<F>, micros: u64) -> dunlin_tier_node::Within<'_, F> {
    region.within(Duration::from_micros(micros))
}

#[track_caller]
fn assert_late(outcome: Result<(), OperationError>) {
    let error = outcome.unwrap_err();
    assert!(error.is_deadline() && error.may_have_executed(), "{error}");
}

/// The NIC carries requests out long after the time of their operation is over. The bytes of a READ go to memory that the
/// buffer does not have any more, and those of a WRITE come from there.
#[test]
fn a_late_nic_does_not_reach_the_buffer() {
    watched_in_virtual_time(1, |watch, alice| {
        let region = alice.malloc(3000, Spec::on("bob")).unwrap();
        let mut buffer = alice.buffer(3000).unwrap();
        buffer.fill(1);
        region.write_from(0, &mut buffer, ..).unwrap();
        for is_full in [false, true] {
            for is_read in [true, false] {
                buffer.fill(2);
                watch.change(|seen| (seen.keeps, seen.is_full) = (true, is_full));
                assert_late(match is_read {
                    true => quick(&region, 50).read_into(0, &mut buffer, 100..2500),
                    false => quick(&region, 50).write_from(0, &mut buffer, 100..2500),
                });
                watch.change(|seen| seen.keeps = false);
                let late = std::mem::take(&mut watch.0.lock().unwrap().kept);
                let lengths: Vec<usize> = late.iter().map(RegionRange::length).collect();
                assert_eq!(lengths, [1000, 1000, 400]);
                assert_eq!(*buffer, [2; 3000]);
                late.iter().for_each(|range| assert_eq!(range.copy_in(&[3; 500]), 500.min(range.length())));
                assert_eq!(*buffer, [2; 3000]);
                buffer.fill(4);
                let mut found = [0; 400];
                late.iter().for_each(|range| assert_eq!(range.copy_out(0, &mut found), 400));
                assert_eq!(found, [3; 400]);
                // Without other memory, the buffer has its bytes and is refused; later it is good again.
                let next = region.write_from(0, &mut buffer, ..);
                match is_full {
                    true => assert!(
                        matches!(next, Err(OperationError::Buffer(BufferError::Register(_)))),
                        "{next:?}"
                    ),
                    false => next.unwrap(),
                }
                watch.change(|seen| seen.is_full = false);
                assert_eq!(*buffer, [4; 3000]);
                region.write_from(0, &mut buffer, ..).unwrap();
                buffer.fill(0);
                region.read_into(0, &mut buffer, ..).unwrap();
                assert_eq!(*buffer, [4; 3000]);
                late.iter().for_each(|range| assert_eq!(range.copy_out(0, &mut found), 400));
                assert_eq!(found, [3; 400]);
            }
        }
    });
}

/// The time is over with parts under way, at many places of an operation. Parts that arrive later change nothing.
#[test]
fn deadlines_in_the_middle_of_an_operation() {
    let outcomes = Arc::new([AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)]);
    let counted = Arc::clone(&outcomes);
    watched_in_virtual_time(2, move |_, alice| {
        let host = alice.fabric().host();
        let region = alice.malloc(60_000, Spec::spread(["bob", "carol"])).unwrap();
        let mut buffer = alice.buffer(60_000).unwrap();
        region.write(0, &vec![9; 60_000]).unwrap();
        for micros in 1..120 {
            buffer.fill(1);
            let read = quick(&region, micros).read_into(0, &mut buffer, ..);
            let seen = buffer.to_vec();
            let new = seen.iter().filter(|byte| **byte == 9).count();
            assert!(seen.iter().all(|byte| [1, 9].contains(byte)));
            let kind = match &read {
                Ok(()) => 2,
                Err(error) => {
                    assert!(error.is_deadline(), "{error}");
                    usize::from(new > 0)
                }
            };
            assert!(kind != 2 || new == 60_000);
            counted[kind].fetch_add(1, Ordering::Relaxed);
            host.sleep(host.now() + 100_000);
            assert_eq!(*buffer, seen[..], "after {micros} us");
            buffer.fill(2);
            let written = quick(&region, micros).write_from(0, &mut buffer, ..);
            buffer.fill(3);
            host.sleep(host.now() + 100_000);
            let mut found = vec![0; 60_000];
            region.read(0, &mut found).unwrap();
            assert!(found.iter().all(|byte| [2, 9].contains(byte)), "bytes of a later time");
            assert!(written.is_err() || found.iter().all(|byte| *byte == 2));
            region.write(0, &vec![9; 60_000]).unwrap();
        }
    });
    let counts = outcomes.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(counts.iter().all(|count| *count > 0), "nothing, a part, all: {counts:?}");
}

/// Operations from buffers, lists and plain operations of several threads share the paths of a node.
#[test]
fn buffers_of_several_threads() {
    watched(|_, alice| {
        let region = alice.malloc(4 * 8192, Spec::spread(NAMES)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let region = &region;
                scope.spawn(move || {
                    let (mut buffer, at) = (alice.buffer(8192).unwrap(), u64::from(thread) * 8192);
                    for round in 0..60u8 {
                        let mark = thread * 60 + round + 1;
                        buffer.fill(mark);
                        region.write_from(at, &mut buffer, ..).unwrap();
                        buffer.fill(0);
                        let mut found = [0; 100];
                        let list = Operations::new().read(region, at + 5000, &mut found);
                        assert!(list.run().unwrap().iter().all(Result::is_ok));
                        region.read_into(at, &mut buffer, ..).unwrap();
                        assert!(found == [mark; 100] && buffer.iter().all(|byte| *byte == mark));
                    }
                });
            }
        });
    });
}
