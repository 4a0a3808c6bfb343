//! Common parts: clusters of nodes, texts, and plain programs with the same results.

use dunlin_app_mapreduce::{Input, Job, MapReduceError, Master, Outcome, Program, Split, Watch, work_for};
use dunlin_fabric::{Fabric, Host, Scheme, Task};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{Peer, Tier, TierConfig};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const NAMES: [&str; 3] = ["alice", "bob", "carol"];

fn start<F: Fabric>(fabric: &F, scheme: Scheme, tag: &str, name: &str) -> Tier<F> {
    let peer = |name: &&str| {
        let mut peer = Peer::named(scheme, &format!("{tag}-{name}")).unwrap();
        peer.name = (*name).to_owned();
        peer
    };
    let mut config = TierConfig::new(NAMES.iter().map(peer).collect(), name);
    (config.memory, config.paths, config.timeout) = (4 << 20, 4, Duration::from_secs(2));
    Tier::within(fabric, config).unwrap()
}

/// Starts three nodes on shared memory, each with a fabric of its own.
pub(crate) fn on_shared_memory() -> [Tier<ShmFabric>; 3] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let tag = format!("mapreduce-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    NAMES.map(|name| start(&ShmFabric::new(ShmConfig::default()).unwrap(), Scheme::Shm, &tag, name))
}

/// Runs `body` with three nodes on machines of their own in virtual time.
pub(crate) fn in_virtual_time(seed: u64, body: impl FnOnce([Tier<Sim>; 3]) + Send + 'static) {
    let settings =
        Settings { machines: vec![MachineSettings::default(); 3], preemption: 20, ..Settings::default() };
    Sim::run_with(settings, seed, move |sim| {
        body([0, 1, 2].map(|at| start(&sim.process_on(at), Scheme::Sim, "mapreduce", NAMES[at])));
    })
    .unwrap();
}

pub(crate) fn job(name: &str) -> Job {
    Job {
        partitions: 5,
        memory: 4096,
        lease: Duration::from_secs(5),
        patience: Duration::from_secs(3),
        ..Job::new(name)
    }
}

/// Documents in memory, each of which is a split.
#[derive(Clone, Debug)]
pub(crate) struct Texts(pub(crate) Arc<Vec<String>>);

/// Makes documents from a seed.
pub(crate) fn texts(seed: u64, documents: usize) -> Texts {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut document = |_| {
        let words = 20 + next(200);
        let word = |number: u64| format!("w{number}{}", ["", ",", "\n", ". "][number as usize % 4]);
        (0..words).map(|_| word(next(300).min(next(300)))).collect::<Vec<_>>().join(" ")
    };
    Texts(Arc::new((0..documents).map(&mut document).collect()))
}

impl Input for Texts {
    fn splits(&self) -> u32 {
        self.0.len() as u32
    }

    fn read(
        &self,
        split: u32,
        _buffer: &mut Vec<u8>,
        map: &mut dyn FnMut(Split<'_>),
    ) -> Result<(), MapReduceError> {
        let source = format!("document-{split}");
        map(Split { source: &source, offset: 0, bytes: self.0[split as usize].as_bytes() });
        Ok(())
    }

    fn fingerprint(&self) -> String {
        format!("{:?}", self.0)
    }
}

pub(crate) type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Runs a program without the engine.
pub(crate) fn plain(program: &impl Program, input: &Texts) -> Entries {
    let mut all: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for split in 0..input.splits() {
        let mut emit = |key: &[u8], value: &[u8]| match all.get_mut(key) {
            Some(held) => program.combine(key, held, value),
            None => {
                all.insert(key.to_vec(), value.to_vec());
            }
        };
        input.read(split, &mut Vec::new(), &mut |split| program.map(split, &mut emit)).unwrap();
    }
    let reduced = all.into_iter().map(|(key, value)| {
        let result = program.reduce(&key, value);
        (key, result)
    });
    reduced.filter_map(|(key, value)| Some((key, value?))).collect()
}

/// Collects the results of a master.
pub(crate) fn led<F: Fabric>(
    tier: &Tier<F>,
    job: &Job,
    program: &impl Program,
    input: &impl Input,
    watch: Arc<dyn Watch>,
) -> Result<(Entries, Outcome), MapReduceError> {
    let mut all = Vec::new();
    let outcome = Master::start(tier, job, program, input, watch)?.finish(|key, value| {
        all.push((key.to_vec(), value.to_vec()));
        true
    })?;
    assert_eq!(outcome.keys, all.len() as u64);
    Ok((all, outcome))
}

/// The results of workers, when they have ended.
pub(crate) type Ends = Arc<Mutex<Vec<Result<(), MapReduceError>>>>;

/// Starts a process's workers as a task of a node.
pub(crate) fn hire<F: Fabric, P: Program + Clone, I: Input>(
    tier: &Tier<F>,
    job: &Job,
    (program, input): (&P, I),
    threads: u16,
    ends: &Ends,
) -> Task {
    let (own, job, program, ends) = (tier.clone(), job.clone(), program.clone(), Arc::clone(ends));
    let body = move || {
        let ended = work_for(&own, &job, program, input, threads, Arc::new(()));
        ends.lock().unwrap().push(ended);
    };
    tier.fabric().host().spawn("workers", Box::new(body)).unwrap()
}

/// Runs a job with workers on all nodes; returns the results.
pub(crate) fn well<F: Fabric, P: Program + Clone>(
    tiers: &[Tier<F>],
    job: &Job,
    program: &P,
    input: &Texts,
    threads: u16,
) -> Entries {
    let ends = Ends::default();
    let tasks: Vec<_> =
        tiers.iter().map(|tier| hire(tier, job, (program, input.clone()), threads, &ends)).collect();
    let (entries, _) = led(&tiers[0], job, program, input, Arc::new(())).unwrap();
    tasks.into_iter().for_each(Task::join);
    // Workers that come late find no master.
    let is_well = |end: &Result<(), _>| {
        matches!(end, Ok(()) | Err(MapReduceError::NoMaster { .. } | MapReduceError::Master(_)))
    };
    ends.lock().unwrap().iter().for_each(|end| assert!(is_well(end), "{end:?}"));
    assert_eq!(ends.lock().unwrap().len(), tiers.len());
    // Nothing is left behind.
    for tier in tiers {
        for name in NAMES {
            assert_eq!(tier.list(name, 0).unwrap().regions, []);
        }
    }
    entries
}
