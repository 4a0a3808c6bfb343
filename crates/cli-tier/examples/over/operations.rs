//! All operations of the tier, each checked by bytes, between three nodes: by nodes of one process, and by processes that
//! are attached to nodes. Both have the same words, so one text is compiled for both.

use crate::over::{HANG, Outcome};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// The names of the nodes.
pub(crate) const NAMES: [&str; 3] = ["one", "two", "three"];
/// The length of a region: a block of the arena, so that its neighbours begin at its bounds.
pub(crate) const LENGTH: usize = 256 << 10;
/// The byte of the neighbours.
pub(crate) const CANARY: u8 = 0xc5;
/// Lengths of writes, by which a fabric chooses between inline, staged and cut ones.
pub(crate) const LENGTHS: [usize; 11] = [1, 7, 8, 64, 255, 256, 257, 4096, 16_389, 65_536, 150_001];

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future.
pub(crate) fn ended<T>(what: &str, operation: impl Future<Output = T>) -> Outcome<T> {
    let (mut operation, begin) = (pin!(operation), Instant::now());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    while begin.elapsed() < HANG {
        if let Poll::Ready(ended) = operation.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Ok(ended);
        }
        std::thread::park_timeout(HANG);
    }
    Err(format!("{what} does not end").into())
}

/// Bytes that differ at each place, and from those of other numbers.
pub(crate) fn pattern(number: usize, length: usize) -> Vec<u8> {
    let word = |at: usize| (at ^ number << 20).wrapping_mul(2_654_435_761);
    (0..length).map(|at| (word(at) >> 13) as u8).collect()
}

/// Makes a module with all operations of the tiers of a crate.
macro_rules! operations {
    ($module:ident, $crate_name:ident) => {
        pub(crate) mod $module {
            use super::{CANARY, LENGTH, LENGTHS, NAMES, ended, pattern};
            use crate::over::{Outcome, same, wait};
            use dunlin_fabric::Fabric;
            use dunlin_tier_client::{AccessError, AsyncConfig, OperationError, Published, Rights, Spec};
            use std::sync::Arc;
            use $crate_name::{Lmr, Operations, Tier};

            /// A region of one node, with the handles of all nodes and its neighbours.
            pub(crate) struct Shared<F: Fabric> {
                pub(crate) views: [Lmr<F>; 3],
                neighbours: [Lmr<F>; 2],
                /// The bytes that it has to have.
                pub(crate) model: Vec<u8>,
            }

            /// Waits until a region has these bytes: a processor sees the bytes of a WRITE a little after its completion.
            fn has<F: Fabric>(region: &Lmr<F>, offset: usize, expected: &[u8]) -> Outcome {
                let mut bytes = vec![0; expected.len()];
                wait("the bytes of a region", || {
                    region.read(offset as u64, &mut bytes)?;
                    same(&bytes, expected)
                })
            }

            fn is_access<T>(result: Result<T, OperationError>, expected: &AccessError) -> Outcome {
                match result {
                    Err(OperationError::Access(found)) if found == *expected => Ok(()),
                    Err(other) => Err(format!("not {expected:?}: {other:?}").into()),
                    Ok(_) => Err(format!("not {expected:?}, but done").into()),
                }
            }

            impl<F: Fabric> Shared<F> {
                /// Makes a region on node `store`, by node `maker`.
                pub(crate) fn new(tiers: [&Tier<F>; 3], maker: usize, store: usize) -> Outcome<Shared<F>> {
                    let node = NAMES[store];
                    let name = format!("over/{}/{node}", NAMES[maker]);
                    let canary = || -> Outcome<Lmr<F>> {
                        let canary = tiers[maker].malloc(LENGTH as u64, Spec::on(node))?;
                        canary.write(0, &[CANARY; LENGTH])?;
                        has(&canary, 0, &[CANARY; LENGTH])?;
                        Ok(canary)
                    };
                    let before = canary()?;
                    let spec = Spec::on(node).named(&name).grant_anyone(Rights::ALL);
                    let made = tiers[maker].malloc(LENGTH as u64, spec)?;
                    let neighbours = [before, canary()?];
                    let view = |at: usize| tiers[at].map(&name, Rights::ALL);
                    let mut views = [view(0)?, view(1)?, view(2)?];
                    views[maker] = made;
                    let model = vec![0; LENGTH];
                    has(&views[store], 0, &model)?;
                    Ok(Shared { views, neighbours, model })
                }

                /// Checks each byte by each node, and the neighbours.
                pub(crate) fn check(&self) -> Outcome {
                    self.views.iter().try_for_each(|view| has(view, 0, &self.model))?;
                    let mut bytes = vec![0; LENGTH];
                    self.neighbours.iter().try_for_each(|neighbour| {
                        neighbour.read(0, &mut bytes)?;
                        same(&bytes, &[CANARY; LENGTH])
                    })
                }

                /// Notes a write.
                pub(crate) fn set(&mut self, offset: usize, bytes: &[u8]) {
                    self.model[offset..offset + bytes.len()].copy_from_slice(bytes);
                }

                fn word(&mut self, offset: usize, value: u64) {
                    self.set(offset, &value.to_le_bytes());
                }

                /// Reads and writes of many lengths at odd places, to the bounds of the region.
                fn reads_and_writes(&mut self) -> Outcome {
                    for (at, length) in LENGTHS.into_iter().enumerate() {
                        for (user, offset) in [(0, 0), (1, 1 + 4099 * at), (2, LENGTH - length)] {
                            let bytes = pattern(3 * at + user, length);
                            self.views[user].write(offset as u64, &bytes)?;
                            self.set(offset, &bytes);
                            // Its own bytes, by the same path.
                            has(&self.views[user], offset, &bytes)?;
                        }
                    }
                    for view in &self.views {
                        let outside = AccessError::OutOfBounds {
                            offset: LENGTH as u64 - 3,
                            length: 4,
                            size: LENGTH as u64,
                        };
                        is_access(view.write(LENGTH as u64 - 3, &[1; 4]), &outside)?;
                    }
                    self.check()
                }

                /// Atomics of all nodes at the same time, on one word.
                fn atomics(&mut self) -> Outcome {
                    let word = 4096;
                    self.views[0].write(word, &[0; 32])?;
                    has(&self.views[1], word as usize, &[0; 32])?;
                    has(&self.views[2], word as usize, &[0; 32])?;
                    let adds = |view: &Lmr<F>| (0..40).try_for_each(|_| view.fetch_add(word, 3).map(drop));
                    std::thread::scope(|scope| {
                        let threads = self.views.each_ref().map(|view| scope.spawn(move || adds(view)));
                        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
                    })?;
                    let sum = self.views[1].fetch_add(word, 0)?;
                    let first = [0, 1, 2].map(|at| self.views[at].test_set(word + 8));
                    let [first, second, third] = first;
                    let swapped = self.views[2].compare_swap(word + 16, 0, 77)?;
                    let refused = self.views[0].compare_swap(word + 16, 0, 78)?;
                    let found = (sum, first?, second?, third?, swapped, refused);
                    if found != (3 * 40 * 3, true, false, false, 0, 77) {
                        return Err(format!("the atomics gave {found:?}").into());
                    }
                    is_access(self.views[0].fetch_add(word + 1, 1), &AccessError::Misaligned(word + 1))?;
                    self.set(word as usize, &[0; 32]);
                    [(0, sum), (8, 1), (16, 77)]
                        .into_iter()
                        .for_each(|(at, value)| self.word(word as usize + at, value));
                    self.check()
                }

                /// A list of scattered writes and an atomic by each node, and one of scattered reads.
                fn lists(&mut self) -> Outcome {
                    const WORD: usize = 200_000;
                    self.views[0].write(WORD as u64, &[0; 8])?;
                    self.word(WORD, 0);
                    self.check()?;
                    let length = 777;
                    for user in 0..3 {
                        let writes: Vec<(usize, Vec<u8>)> =
                            (0..20).map(|at| (user * 1000 + at * 5003, pattern(at + user, length))).collect();
                        let mut list = Operations::new();
                        for (offset, bytes) in &writes {
                            list = list.write(&self.views[user], *offset as u64, bytes);
                        }
                        let outcomes = list.fetch_add(&self.views[user], WORD as u64, 5).run()?;
                        let outcomes: Vec<_> = outcomes.into_iter().collect::<Result<_, _>>()?;
                        let old = outcomes.last().and_then(|done| done.old());
                        if old != Some(5 * user as u64) {
                            return Err(format!("the word of the list was {old:?}").into());
                        }
                        writes.iter().for_each(|(offset, bytes)| self.set(*offset, bytes));
                    }
                    self.word(WORD, 15);
                    self.check()?;
                    for view in &self.views {
                        let mut parts = vec![vec![0; length]; 20];
                        let mut list = Operations::new();
                        for (at, part) in parts.iter_mut().enumerate() {
                            list = list.read(view, at as u64 * 5003, part);
                        }
                        list.run()?.into_iter().try_for_each(|outcome| outcome.map(drop))?;
                        for (at, part) in parts.iter().enumerate() {
                            same(part, &self.model[at * 5003..at * 5003 + length])?;
                        }
                    }
                    Ok(())
                }

                /// `memset`, copies to another region and within this one, forwards and backwards.
                fn copies(&mut self, tiers: [&Tier<F>; 3], other: &mut Shared<F>) -> Outcome {
                    self.views[0].memset(1000, 70_001, 0x11)?;
                    self.model[1000..71_001].fill(0x11);
                    for user in 0..3 {
                        let (to, from, length) = (10_001 * (user + 1), 90_000 * user + 3, 30_007);
                        let target = other.views[user].at(to as u64);
                        tiers[user].memcpy(target, self.views[user].at(from as u64), length as u64)?;
                        let bytes = self.model[from..from + length].to_vec();
                        other.set(to, &bytes);
                        other.check()?;
                        for (to, from) in [(5000, 3000), (100_000, 110_001)] {
                            let view = &self.views[user];
                            tiers[user].memcpy(view.at(to), view.at(from), 100_000)?;
                            self.model.copy_within(from as usize..from as usize + 100_000, to as usize);
                            self.check()?;
                        }
                    }
                    Ok(())
                }

                /// A word that is never seen before the bytes that it announces.
                fn notifications(&mut self) -> Outcome {
                    let (word, length) = (240_000, 5000);
                    for round in 1..=20u64 {
                        let (writer, reader) = (round as usize % 3, (round as usize + 1) % 3);
                        let bytes = vec![round as u8; length];
                        self.views[writer].write_notify(100, &bytes, word, round)?;
                        wait("the word", || {
                            let mut found = [0; 8];
                            self.views[reader].read(word, &mut found)?;
                            same(&found, &round.to_le_bytes())
                        })?;
                        let mut found = vec![0; length];
                        self.views[reader].read(100, &mut found)?;
                        same(&found, &bytes)?;
                        self.set(100, &bytes);
                        self.word(word as usize, round);
                    }
                    self.check()
                }

                /// Operations as futures, with a fence.
                fn futures(mut self, tiers: [&Tier<F>; 3]) -> Outcome<Shared<F>> {
                    for user in 0..3 {
                        let operations =
                            tiers[user].asynchronous(AsyncConfig { threads: 3, ..AsyncConfig::default() })?;
                        let name = format!("over/{}/{}", NAMES[1], NAMES[2]);
                        let view = Arc::new(tiers[user].map(&name, Rights::ALL)?);
                        let writes: Vec<_> = (0..12)
                            .map(|at| {
                                operations.write(&view, at * 10_000, pattern(at as usize + user, 10_000))
                            })
                            .collect();
                        ended("the fence", operations.fence())?;
                        for (at, write) in (0..).zip(writes) {
                            let (bytes, written) = ended("a write", write)?;
                            written?;
                            self.set(at * 10_000, &bytes);
                        }
                        self.check()?;
                        let (bytes, read) = ended("a read", operations.read(&view, 5000, vec![0; 50_000]))?;
                        read?;
                        same(&bytes, &self.model[5000..55_000])?;
                        let (_, notified) =
                            ended("a notification", operations.write_notify(&view, 0, vec![9; 100], 104, 9))?;
                        notified?;
                        self.set(0, &[9; 100]);
                        self.word(104, 9);
                        self.check()?;
                        let old = ended("an addition", operations.fetch_add(&view, 104, 1))??;
                        ended("a memset", operations.memset(&view, 150_000, 100, 4))??;
                        ended("a copy", operations.memcpy((&view, 160_000), (&view, 150_000), 50))??;
                        if old != 9 {
                            return Err(format!("the future of an addition gave {old}").into());
                        }
                        self.word(104, 10);
                        self.set(150_000, &[4; 100]);
                        self.set(160_000, &[4; 50]);
                        self.check()?;
                    }
                    Ok(self)
                }

                /// Handles with fewer rights, and a right that is taken away from everybody, in a region of its own.
                fn rights(tiers: [&Tier<F>; 3]) -> Outcome {
                    let (mut shared, name) = (Shared::new(tiers, 0, 0)?, "over/one/one");
                    let bytes = pattern(5, LENGTH);
                    shared.views[1].write(0, &bytes)?;
                    shared.set(0, &bytes);
                    shared.check()?;
                    let reader = tiers[2].map(name, Rights::READ)?;
                    let denied = AccessError::Denied { needs: Rights::WRITE, has: Rights::READ };
                    is_access(reader.write(0, &[1]), &denied)?;
                    is_access(reader.fetch_add(0, 1), &denied)?;
                    is_access(reader.memset(0, 1, 1), &denied)?;
                    // A handle without the right that it takes away stays.
                    let master = tiers[0].map(name, Rights::MASTER)?;
                    master.revoke_anyone(Rights::ALL)?;
                    master.revoke(tiers[0].principal(), Rights::WRITE)?;
                    for view in &shared.views {
                        is_access(view.write(0, &[1]), &AccessError::Revoked)?;
                    }
                    for tier in tiers {
                        if tier.map(name, Rights::WRITE).is_ok() {
                            return Err("a right that was revoked is given".into());
                        }
                        has(&tier.map(name, Rights::READ)?, 0, &shared.model)?;
                    }
                    has(&reader, 0, &shared.model)?;
                    Ok(master.free()?)
                }

                /// Moves the region over all nodes.
                fn moves(&mut self, tiers: [&Tier<F>; 3], name: &str) -> Outcome {
                    for to in [2, 0, 1] {
                        self.views[to].move_to(NAMES[to])?;
                        is_access(self.views[1].write(0, &[1]), &AccessError::Moved)?;
                        for (view, tier) in self.views.iter_mut().zip(tiers) {
                            *view = tier.map(name, Rights::ALL)?;
                        }
                        self.check()?;
                        let bytes = pattern(to, 5000);
                        self.views[(to + 1) % 3].write(1234, &bytes)?;
                        self.set(1234, &bytes);
                        self.check()?;
                    }
                    Ok(())
                }

                /// Frees the region while others have it mapped, and use it.
                fn free(self, tiers: [&Tier<F>; 3], (maker, name): (usize, &str)) -> Outcome {
                    let [mut views, neighbours] =
                        [self.views.into(), self.neighbours.into()].map(|list: Vec<_>| list);
                    let master = views.remove(maker);
                    std::thread::scope(|scope| {
                        let used = views.iter().map(|view| {
                            scope.spawn(move || {
                                let mut bytes = [0; 3000];
                                loop {
                                    if let Err(error) =
                                        view.write(7, &[1; 3000]).and_then(|()| view.read(7, &mut bytes))
                                    {
                                        return error.to_string();
                                    }
                                }
                            })
                        });
                        let used: Vec<_> = used.collect();
                        let freed = master.free();
                        used.into_iter().for_each(|thread| drop(thread.join()));
                        freed
                    })?;
                    for view in &views {
                        is_access(view.read(0, &mut [0; 8]), &AccessError::Gone)?;
                    }
                    if tiers.iter().any(|tier| tier.map(name, Rights::READ).is_ok()) {
                        return Err("the name of a freed region leads to one".into());
                    }
                    for neighbour in neighbours {
                        has(&neighbour, 0, &[CANARY; LENGTH])?;
                    }
                    Ok(())
                }
            }

            /// Bytes that get a name, in place and by a copy.
            fn publications<F: Fabric>(tiers: [&Tier<F>; 3]) -> Outcome {
                let bytes = pattern(8, 30_000);
                let region = tiers[0].malloc(30_000, Spec::on(NAMES[1]))?;
                region.write(0, &bytes)?;
                has(&region, 0, &bytes)?;
                let spec = |name: &str, node: &str| Spec::on(node).named(name).grant_anyone(Rights::READ);
                let there = tiers[0].publish(&region, spec("over/there", NAMES[1]))?;
                let copied = tiers[0].publish(&bytes[..], spec("over/copied", NAMES[2]))?;
                if !matches!((&there, &copied), (Published::InPlace, Published::Copied(_))) {
                    return Err("a publication was copied, or was not".into());
                }
                for tier in tiers {
                    for name in ["over/there", "over/copied"] {
                        has(&tier.map(name, Rights::READ)?, 0, &bytes)?;
                    }
                }
                Ok(())
            }

            /// A region of several pieces on all nodes, used at their bounds.
            fn spreads<F: Fabric>(tiers: [&Tier<F>; 3]) -> Outcome {
                const PIECE: usize = 4 << 20;
                let spec = Spec::spread(NAMES).named("over/spread").grant_anyone(Rights::ALL);
                let _made = tiers[0].malloc(2 * PIECE as u64 + 50_000, spec)?;
                let view = |tier: &Tier<F>| tier.map("over/spread", Rights::ALL);
                let views = [view(tiers[0])?, view(tiers[1])?, view(tiers[2])?];
                for (at, offset) in [PIECE - 20_001, 2 * PIECE - 20_001].into_iter().enumerate() {
                    let bytes = pattern(at, 40_003);
                    views[at].write(offset as u64, &bytes)?;
                    views.iter().try_for_each(|view| has(view, offset, &bytes))?;
                    views[2].memset(offset as u64 + 10, 39_000, 3)?;
                    views.iter().try_for_each(|view| has(view, offset + 10, &[3; 39_000]))?;
                }
                // From two pieces to the other bound.
                let (to, from) = (2 * PIECE as u64 - 5000, PIECE as u64 - 20_001);
                let mut bytes = vec![0; 40_003];
                has(&views[1], from as usize + 10, &[3; 39_000])?;
                views[1].read(from, &mut bytes)?;
                tiers[1].memcpy(views[1].at(to), views[1].at(from), 40_003)?;
                views.iter().try_for_each(|view| has(view, to as usize, &bytes))
            }

            /// Runs all operations but those with buffers, which the caller runs on the first region.
            pub(crate) fn run<F: Fabric>(
                tiers: [&Tier<F>; 3],
                buffers: impl Fn(&mut Shared<F>) -> Outcome,
            ) -> Outcome {
                let said = |step: &str| println!("{} {step}: right", stringify!($module));
                let (mut first, mut second) = (Shared::new(tiers, 0, 1)?, Shared::new(tiers, 1, 2)?);
                let mut third = Shared::new(tiers, 2, 2)?;
                let name = "over/one/two";
                for shared in [&mut first, &mut second, &mut third] {
                    shared.reads_and_writes()?;
                    shared.atomics()?;
                    shared.lists()?;
                    shared.notifications()?;
                }
                said("reads, writes, atomics, lists and notifications");
                buffers(&mut first)?;
                first.check()?;
                said("buffers");
                first.copies(tiers, &mut second)?;
                second.copies(tiers, &mut third)?;
                said("copies within a node and between nodes");
                second = second.futures(tiers)?;
                said("operations as futures");
                publications(tiers)?;
                said("publications");
                spreads(tiers)?;
                said("a region on all nodes");
                Shared::rights(tiers)?;
                said("rights");
                first.moves(tiers, name)?;
                said("moves");
                [&first, &second, &third].into_iter().try_for_each(Shared::check)?;
                first.free(tiers, (0, name))?;
                second.free(tiers, (1, "over/two/three"))?;
                said("frees under use");
                third.check()
            }
        }
    };
}

operations!(nodes, dunlin_tier_node);
operations!(processes, dunlin_tier_client);
