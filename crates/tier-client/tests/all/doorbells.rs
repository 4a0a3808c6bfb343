//! The requests of several operations, of several processes, leave with one doorbell (LITE section 6.1), in virtual time.

use crate::turns::{NODES, node_on, spawn};
use dunlin_fabric::interpose::{DomainHooks, Hooks, Interposed, LinkHooks};
use dunlin_fabric::{Fabric, Host, Link, ListError, PostError, QueuePairId, ThreadDomain, WorkRequest};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_client::{AttachConfig, Lmr, Operations, Rights, Spec, Tier};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The requests of a node's paths, its doorbells, and the successes that make completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Posted {
    requests: u32,
    doorbells: u32,
    signaled: u32,
}

/// Counts one-sided requests, and refuses some.
#[derive(Clone, Debug, Default)]
struct Watch {
    posted: Arc<Mutex<Posted>>,
    /// The period of refusals: each list whose number is a multiple of it is refused after its first request. No list is
    /// refused with 0.
    refuses: Arc<AtomicU32>,
}

impl Watch {
    fn take(&self) -> Posted {
        std::mem::take(&mut *self.posted.lock().unwrap())
    }

    fn note<M: dunlin_fabric::Memory>(&self, request: &WorkRequest<'_, M>) {
        let mut posted = self.posted.lock().unwrap();
        posted.requests += 1;
        posted.signaled += u32::from(request.signaled);
    }
}

impl<F: Fabric> Hooks<F> for Watch {
    type Domain = Self;
    type Link = Self;

    fn domain_hooks(&self) -> Self {
        self.clone()
    }

    fn link_hooks(&self) -> Self {
        self.clone()
    }
}

impl<L: Link> LinkHooks<L> for Watch {}

/// Requests between nodes are WRITEs with inline lines of the engine, which have methods of their own.
impl<D: ThreadDomain> DomainHooks<D> for Watch {
    fn post(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        request: WorkRequest<'_, D::Memory>,
    ) -> Result<(), PostError> {
        self.note(&request);
        self.posted.lock().unwrap().doorbells += 1;
        inner.post(queue_pair, request)
    }

    fn post_list(
        &mut self,
        inner: &mut D,
        queue_pair: QueuePairId,
        requests: &mut [Option<WorkRequest<'_, D::Memory>>],
    ) -> Result<(), ListError> {
        requests.iter().flatten().for_each(|request| self.note(request));
        let doorbells = {
            let mut posted = self.posted.lock().unwrap();
            posted.doorbells += 1;
            posted.doorbells
        };
        let refuses = self.refuses.load(Ordering::Relaxed);
        if refuses == 0 || requests.len() < 2 || !doorbells.is_multiple_of(refuses) {
            return inner.post_list(queue_pair, requests);
        }
        inner.post_list(queue_pair, &mut requests[..1])?;
        requests.iter_mut().for_each(|request| drop(request.take()));
        Err(ListError { posted: 1, error: PostError::QueueFull })
    }
}

/// Runs `body` with two nodes on machines of their own, the first of them watched, and its attach configuration.
fn watched(
    seed: u64,
    body: impl FnOnce(&Sim, &Watch, &dunlin_tier_node::Tier<Interposed<Sim, Watch>>, AttachConfig)
    + Send
    + 'static,
) {
    let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| {
        let watch = Watch::default();
        let (here, there) = (sim.process_on(0), sim.process_on(1));
        let one = node_on(&Interposed::with_hooks(here.clone(), watch.clone()), &here, NODES[0], |_| {});
        let _two = node_on(&there, &there, NODES[1], |_| {});
        body(&sim, &watch, &one.tier, AttachConfig::new(one.address.clone()));
    })
    .unwrap();
}

fn attach(sim: &Sim, config: &AttachConfig) -> Tier<Sim> {
    Tier::attach_with(&sim.process_on(0), config.clone()).unwrap()
}

fn word_of(region: &Lmr<Sim>, offset: u64) -> u64 {
    let mut word = [0; 8];
    region.read(offset, &mut word).unwrap();
    u64::from_le_bytes(word)
}

#[test]
fn a_list_of_a_process_has_one_doorbell_and_one_completion() {
    watched(1, |sim, watch, _, config| {
        let app = attach(sim, &config);
        let region = app.malloc(1 << 16, Spec::on("two")).unwrap();
        region.write(0, &[0; 8]).unwrap();
        // Inline, and from registered memory; as many as are under way at a time.
        for length in [64, 500] {
            let bytes = vec![7; length];
            let list = (0..16).fold(Operations::new(), |list, at| list.write(&region, 1000 * at, &bytes));
            watch.take();
            assert!(list.run().unwrap().iter().all(Result::is_ok));
            assert_eq!(watch.take(), Posted { requests: 16, doorbells: 1, signaled: 1 }, "{length}");
            let mut found = vec![vec![0; length]; 16];
            let mut list = Operations::new();
            for (at, found) in (0..).zip(&mut found) {
                list = list.read(&region, 1000 * at, found);
            }
            assert!(list.run().unwrap().iter().all(Result::is_ok));
            assert!(found.iter().all(|found| *found == bytes));
            // Each READ has a completion, with its bytes.
            assert_eq!(watch.take(), Posted { requests: 16, doorbells: 1, signaled: 16 }, "{length}");
        }
    });
}

#[test]
fn a_list_of_a_node_has_a_doorbell_for_eight_requests() {
    watched(2, |_, watch, one, _| {
        let region = one.malloc(1 << 16, Spec::on("two")).unwrap();
        region.write(0, &[0; 8]).unwrap();
        watch.take();
        region.write(0, &[0; 8]).unwrap();
        assert_eq!(watch.take(), Posted { requests: 1, doorbells: 1, signaled: 1 });
        let bytes = [7; 100];
        let list = (0..64)
            .fold(dunlin_tier_node::Operations::new(), |list, at| list.write(&region, 1000 * at, &bytes));
        assert!(list.run().unwrap().iter().all(Result::is_ok));
        assert_eq!(watch.take(), Posted { requests: 64, doorbells: 8, signaled: 8 });
    });
}

#[test]
fn requests_of_several_processes_share_doorbells() {
    const PROCESSES: u64 = 24;
    watched(3, |sim, watch, one, config| {
        let region = one.malloc(4096, Spec::on("two").named("r").grant_anyone(Rights::ALL)).unwrap();
        region.write(0, &[0; 8]).unwrap();
        let apps: Vec<_> = (0..PROCESSES).map(|_| attach(sim, &config)).collect();
        let regions: Vec<_> = apps.iter().map(|app| app.map("r", Rights::ALL).unwrap()).collect();
        watch.take();
        let tasks: Vec<_> = (0..)
            .zip(regions)
            .map(|(number, region)| {
                spawn(sim, move || {
                    for round in 0..50u64 {
                        region.write(64 * number, &[round as u8; 64]).unwrap();
                        assert_eq!(region.fetch_add(2048 + 8 * number, 1).unwrap(), round);
                    }
                })
            })
            .collect();
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        let posted = watch.take();
        assert_eq!(u64::from(posted.requests), 2 * 50 * PROCESSES);
        assert!(2 * posted.doorbells < posted.requests, "{posted:?}");
        assert!(posted.signaled < posted.requests, "{posted:?}");
    });
}

/// Operations that end at their deadline leave the connection to the others.
#[test]
fn a_deadline_of_one_process_ends_no_operation_of_another() {
    for seed in 0..8 {
        watched(seed, |sim, _, one, config| {
            let region = one.malloc(4096, Spec::on("two").named("r").grant_anyone(Rights::ALL)).unwrap();
            region.write(0, &[0; 8]).unwrap();
            let (hasty, patient) = (attach(sim, &config), attach(sim, &config));
            let hasty = hasty.map("r", Rights::ALL).unwrap();
            let task = {
                let region = patient.map("r", Rights::ALL).unwrap();
                spawn(sim, move || {
                    for round in 0..200 {
                        assert_eq!(region.fetch_add(8, 1).unwrap(), round);
                    }
                })
            };
            let (mut done, mut maybe) = (0, 0);
            for round in 0..100 {
                match hasty.within(Duration::from_nanos(1000 + 37 * round)).fetch_add(16, 1) {
                    Ok(_) => done += 1,
                    Err(error) => {
                        assert!(error.is_deadline(), "{error}");
                        maybe += u64::from(error.may_have_executed());
                    }
                }
            }
            task.join();
            assert_eq!(word_of(&hasty, 8), 200);
            let word = word_of(&hasty, 16);
            assert!((done..=done + maybe).contains(&word), "{word}, {done} and {maybe}");
            assert!(done > 0 && maybe > 0, "{done} and {maybe}");
            // Nothing is left under way that a free would wait for.
            let begin = sim.host().now();
            region.free().unwrap();
            assert!(sim.host().now() - begin < 100_000_000);
        });
    }
}

/// A list of requests that the device takes in part: each operation ends once, with its certainty.
#[test]
fn a_list_that_is_refused_in_part_ends_as_its_outcomes_say() {
    watched(5, |sim, watch, one, config| {
        let region = one.malloc(4096, Spec::on("two").named("r").grant_anyone(Rights::ALL)).unwrap();
        region.write(0, &[0; 8]).unwrap();
        watch.refuses.store(7, Ordering::Relaxed);
        let all_texts = Arc::new(Mutex::new(BTreeSet::new()));
        let tasks: Vec<_> = (0..24u64)
            .map(|number| {
                let (app, all_texts) = (attach(sim, &config), Arc::clone(&all_texts));
                spawn(sim, move || {
                    let region = app.map("r", Rights::ALL).unwrap();
                    let (mut least, mut most) = (0, 0);
                    for _ in 0..100 {
                        match region.fetch_add(8 * number, 1) {
                            Ok(_) => (least, most) = (least + 1, most + 1),
                            Err(error) => {
                                most += u64::from(error.may_have_executed());
                                all_texts.lock().unwrap().insert(error.to_string());
                            }
                        }
                    }
                    let mut word = [0; 8];
                    while region.read(8 * number, &mut word).is_err() {}
                    let word = u64::from_le_bytes(word);
                    assert!((least..=most).contains(&word), "{word}, {least} to {most}");
                    assert!(least > 20, "{least}");
                })
            })
            .collect();
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        // Its own request was refused, or another one of the list.
        let texts = all_texts.lock().unwrap();
        assert_eq!(texts.len(), 2, "{texts:?}");
    });
}
