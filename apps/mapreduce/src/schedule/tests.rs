use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const LEASE: Nanos = 1000;

/// The contents of a piece: for each partition the splits whose results are in it, as often as they are.
type Contents = Vec<(u32, u32)>;

/// Workers, and the memory of their nodes.
struct World {
    schedule: Schedule,
    partitions: u32,
    now: Nanos,
    /// Numbers, requests so far, splits in memory, pieces made, and the report that comes next.
    workers: Vec<Model>,
    pieces: BTreeMap<Piece, Contents>,
}

struct Model {
    number: u32,
    requests: u64,
    held: Vec<u32>,
    made: u32,
    report: Report,
    is_dead: bool,
    /// A master that was not heard answers the same request again.
    forgets: bool,
}

impl World {
    fn new(splits: u32, partitions: u32, workers: u32) -> World {
        let mut world = World {
            schedule: Schedule::new(splits, partitions, LEASE),
            partitions,
            now: 0,
            workers: Vec::new(),
            pieces: BTreeMap::new(),
        };
        (0..workers).for_each(|_| world.join());
        world
    }

    fn join(&mut self) {
        let number = self.schedule.join(self.now).unwrap();
        self.workers.push(Model {
            number,
            requests: 0,
            held: Vec::new(),
            made: 0,
            report: Report::Nothing,
            is_dead: false,
            forgets: false,
        });
    }

    fn make(&mut self, worker: usize, contents: Contents) -> Piece {
        let model = &mut self.workers[worker];
        let piece = Piece::new(model.number, model.made);
        model.made += 1;
        self.pieces.insert(piece, contents);
        piece
    }

    /// A worker asks, and does what it is told. Returns whether it has to do with the job still.
    fn step(&mut self, worker: usize, is_full: bool) -> bool {
        let model = &mut self.workers[worker];
        if model.is_dead {
            return false;
        }
        let (number, request, report) = (model.number, model.requests, model.report.clone());
        let mut assignment = self.schedule.ask(number, request, &report, self.now);
        if std::mem::take(&mut self.workers[worker].forgets) {
            let again = self.schedule.ask(number, request, &report, self.now);
            assert_eq!(again, assignment, "the same answer to the same request");
            assignment = again;
        }
        self.workers[worker].requests += 1;
        let report = match assignment {
            Assignment::Map { split } => {
                self.workers[worker].held.push(split);
                Report::Mapped { split, is_full }
            }
            Assignment::Flush => {
                let held = std::mem::take(&mut self.workers[worker].held);
                assert!(!held.is_empty());
                let contents = held
                    .iter()
                    .flat_map(|split| (0..self.partitions).map(move |partition| (partition, *split)))
                    .collect();
                Report::Flushed { piece: self.make(worker, contents) }
            }
            Assignment::Reduce { output, pieces } => match self.read(&pieces) {
                Ok(all) => {
                    let of = all.into_iter().filter(|(partition, _)| *partition == output).collect();
                    Report::Made { output, piece: self.make(worker, of) }
                }
                Err(piece) => Report::Lost { piece },
            },
            Assignment::Merge { output, pieces } => match self.read(&pieces) {
                Ok(all) => Report::Made { output, piece: self.make(worker, all) },
                Err(piece) => Report::Lost { piece },
            },
            Assignment::Wait => Report::Nothing,
            Assignment::End => return false,
            Assignment::Failed(text) => panic!("{text}"),
            Assignment::Gone => {
                self.workers[worker].is_dead = true;
                return false;
            }
        };
        self.workers[worker].report = report;
        true
    }

    fn read(&self, pieces: &[Piece]) -> Result<Contents, Piece> {
        let mut all = Vec::new();
        for piece in pieces {
            all.extend(self.pieces.get(piece).ok_or(*piece)?);
        }
        Ok(all)
    }

    /// Lets one worker that lives finish the job; checks the result.
    fn finish(&mut self, splits: u32) {
        self.join();
        let last = self.workers.len() - 1;
        for _ in 0..10_000 {
            self.now += 1;
            self.schedule.alive(self.workers[last].number, self.now);
            self.step(last, false);
            if let Some(piece) = self.schedule.result() {
                if !self.pieces.contains_key(&piece) {
                    self.schedule.lost_result();
                    continue;
                }
                let mut found = self.pieces[&piece].clone();
                found.sort_unstable();
                let all = (0..self.partitions)
                    .flat_map(|partition| (0..splits).map(move |split| (partition, split)));
                assert_eq!(found, all.collect::<Vec<_>>(), "each result once");
                let known: BTreeSet<Piece> = self.schedule.pieces().collect();
                assert!(
                    self.pieces.keys().all(|piece| known.contains(piece)),
                    "all pieces are freed in the end"
                );
                return;
            }
        }
        panic!("no end: {:?}", self.schedule);
    }
}

#[derive(Clone, Debug)]
enum Event {
    Step { worker: usize, is_full: bool },
    Forget { worker: usize },
    Die { worker: usize },
    Join,
    Silence,
    Lose { piece: usize },
}

fn events() -> impl Strategy<Value = Event> {
    let worker = || 0usize..6;
    prop_oneof![
        20 => (worker(), any::<bool>()).prop_map(|(worker, is_full)| Event::Step { worker, is_full }),
        1 => worker().prop_map(|worker| Event::Forget { worker }),
        1 => worker().prop_map(|worker| Event::Die { worker }),
        1 => Just(Event::Join),
        1 => Just(Event::Silence),
        1 => any::<usize>().prop_map(|piece| Event::Lose { piece }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn each_result_counts_once_whoever_dies_and_whatever_is_lost(
        splits in 0u32..8, partitions in 1u32..6, events in proptest::collection::vec(events(), 0..120),
    ) {
        let mut world = World::new(splits, partitions, 3);
        let mut losses = 0;
        for event in events {
            world.now += 10;
            let known = |worker: usize| worker % world.workers.len();
            match event {
                Event::Step { worker, is_full } => {
                    let worker = known(worker);
                    world.step(worker, is_full);
                }
                Event::Forget { worker } => {
                    let worker = known(worker);
                    world.workers[worker].forgets = true;
                }
                Event::Die { worker } => {
                    let worker = known(worker);
                    world.workers[worker].is_dead = true;
                }
                Event::Join => world.join(),
                // All who are not heard of for long are given up, also those that live.
                Event::Silence => world.now += 3 * LEASE,
                // A task is begun 16 times at most.
                Event::Lose { piece } if losses < 6 && !world.pieces.is_empty() => {
                    losses += 1;
                    let piece = *world.pieces.keys().nth(piece % world.pieces.len()).unwrap();
                    world.pieces.remove(&piece);
                }
                Event::Lose { .. } => {}
            }
        }
        world.now += 3 * LEASE;
        world.finish(splits);
    }
}

#[test]
fn merges_are_of_neighbours_in_rounds() {
    assert_eq!(pairs(1), Vec::<[u32; 2]>::new());
    assert_eq!(pairs(2), [[0, 1]]);
    assert_eq!(pairs(5), [[0, 1], [2, 3], [5, 6], [7, 4]]);
}

#[test]
fn a_task_that_fails_again_and_again_ends_the_job() {
    let mut schedule = Schedule::new(1, 1, LEASE);
    let mut now = 0;
    for _ in 0..MAX_ATTEMPTS {
        let worker = schedule.join(now).unwrap();
        assert_eq!(schedule.ask(worker, 0, &Report::Nothing, now), Assignment::Map { split: 0 });
        now += 2 * LEASE;
    }
    let worker = schedule.join(now).unwrap();
    assert!(matches!(schedule.ask(worker, 0, &Report::Nothing, now), Assignment::Failed(_)));
    assert!(schedule.failure().unwrap().contains("split 0"));
    schedule.end();
    let other = schedule.join(now).unwrap();
    assert!(matches!(schedule.ask(other, 0, &Report::Nothing, now), Assignment::Failed(_)));
    assert!(schedule.has_nobody());
}

#[test]
fn a_worker_that_leaves_has_its_tasks_done_again_at_once() {
    let mut schedule = Schedule::new(1, 1, LEASE);
    let [one, other] = [0, 0].map(|now| schedule.join(now).unwrap());
    assert_eq!(schedule.ask(one, 0, &Report::Nothing, 0), Assignment::Map { split: 0 });
    assert_eq!(schedule.ask(other, 0, &Report::Nothing, 0), Assignment::Wait);
    schedule.leave(one);
    schedule.leave(7);
    assert_eq!(schedule.ask(other, 1, &Report::Nothing, 0), Assignment::Map { split: 0 });
    assert_eq!(schedule.ask(one, 1, &Report::Nothing, 0), Assignment::Gone);
    schedule.leave(other);
    assert!(schedule.has_nobody());
}

#[test]
fn strangers_and_forged_reports_change_nothing() {
    let mut schedule = Schedule::new(2, 2, LEASE);
    assert_eq!(schedule.ask(0, 0, &Report::Nothing, 0), Assignment::Gone);
    let [one, other] = [0, 0].map(|now| schedule.join(now).unwrap());
    let reports = [
        Report::Mapped { split: 7, is_full: true },
        Report::Mapped { split: 0, is_full: true },
        Report::Made { output: 0, piece: Piece::new(one, 0) },
        Report::Made { output: 99, piece: Piece::new(other, 0) },
        Report::Flushed { piece: Piece::new(9, 9) },
        Report::Lost { piece: Piece::new(9, 9) },
    ];
    assert_eq!(schedule.ask(one, 0, &Report::Nothing, 0), Assignment::Map { split: 0 });
    assert_eq!(schedule.ask(other, 0, &reports[0], 0), Assignment::Map { split: 1 });
    for (number, report) in reports.iter().enumerate() {
        let next = schedule.ask(other, 1 + number as u64, report, 0);
        assert_eq!(next, Assignment::Wait, "{report:?}");
    }
    assert_eq!(schedule.ask(other, 0, &Report::Nothing, 0), Assignment::Gone, "an old number");
    assert_eq!(schedule.phase(), Phase::Map);
    assert_eq!(schedule.progress(), (0, 5));
}
