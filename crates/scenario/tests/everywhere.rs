//! Runs that are the same on any machine, in debug and release builds: hashes over all their events, stored
//! in `everywhere.txt`. `cargo test` compares them in its own profile, and the `demo` stage of `./test` in
//! the release profile, against the same file.
//!
//! The hashes change with the engine's behaviour. To rewrite them: `UPDATE=1 cargo test -p dunlin-scenario
//! --test everywhere`.

use dunlin_rnic_model::sweep::{parse, profile_of};
use dunlin_rnic_model::{Opcode, Profile};
use dunlin_rpc::{CompletionMode, Protocol};
use dunlin_scenario::load::{Connections, Load, Network, Pace};
use dunlin_scenario::random_values::{Sizes, Times};
use dunlin_scenario::{datagrams::Datagrams, raw_verbs};
use dunlin_swarm::play;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/everywhere.txt");

/// Seeds of the swarm; most use random timing, some the model.
const SEEDS: u64 = 16;

fn swarm() -> Vec<String> {
    let outcomes: Vec<_> = (0..SEEDS).map(|seed| play(seed, None)).collect();
    let modelled = outcomes.iter().filter(|outcome| outcome.what.contains(" times of ")).count();
    assert!(modelled > 0 && modelled < outcomes.len(), "{modelled} by the model");
    outcomes.iter().map(|outcome| format!("swarm {} {:016x}", outcome.seed, outcome.trace_hash)).collect()
}

fn load(name: &str, load: &Load) -> String {
    let outcome = load.run(3, || [0, 0]).expect("a load");
    let p99 = outcome.all.p99_ns;
    format!("load {name} {:016x} {} ns, 99% {p99} ns", outcome.trace_hash, outcome.time_ns)
}

fn loads() -> Vec<String> {
    let modelled = || Network::Modelled("connect-ib".to_owned());
    let rates = Load::bench(12, 1_200, Network::Rates);
    let model = Load::bench(12, 1_200, modelled());
    // Logarithms and powers determine the times and sizes of calls.
    let mut open = Load::bench(4, 400, modelled());
    open.pace = Pace::Open { gaps: Times::FacebookGaps(1.0) };
    open.functions[0].requests = Sizes::FacebookKeys;
    open.functions[0].results = Sizes::FacebookValues;
    open.functions[0].service = Times::Exponential(300.0);
    // Threads that share cores, and a client that chooses by floating-point means.
    let mut tuned = Load::bench(8, 1_600, Network::Modelled("rf-rpc".to_owned()));
    tuned.functions[0].plan = Protocol::by_name("RF-RPC").expect("a protocol").plan(CompletionMode::Busy);
    tuned.functions[0].service = Times::Fixed(3_000);
    (tuned.connections, tuned.key_skew) = (Connections::EachWorker, Some((1_000, 0.99)));
    (tuned.server_cores, tuned.client_cores) = (Some(2), Some(4));
    vec![
        load("rates", &rates),
        load("connect-ib", &model),
        load("connect-ib, open", &open),
        load("rf-rpc, tuned", &tuned),
    ]
}

fn others() -> Vec<String> {
    let datagrams = Datagrams {
        profile: "flock".to_owned(),
        client_hosts: 2,
        senders: 6,
        threads: 2,
        bytes: 64,
        warm_up: 20_000,
        measured: 100_000,
        limit: 1_000_000_000,
    };
    let hash = datagrams.run(3).expect("a load").trace_hash;
    let rows = parse("sweep", include_str!("../../rnic-model/curves/rnic_sweep.csv")).expect("a sweep");
    let row = rows.iter().find(|row| row.opcode == Opcode::Write).expect("a row");
    let profile = Profile::built_in(profile_of(&row.cluster).expect("known")).expect("built in");
    let rate = raw_verbs::mops(row, &profile, 3).expect("it runs");
    vec![
        format!("datagrams flock {hash:016x}"),
        format!("raw verbs, line {} {:016x} {rate:.3} Mops", row.line, rate.to_bits()),
    ]
}

#[test]
fn runs_are_the_same_everywhere() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let lines = [swarm(), loads(), others()].concat();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(FILE, text).expect("written");
    }
    let known = std::fs::read_to_string(FILE).expect("the file");
    let other: Vec<(&str, &String)> =
        known.lines().zip(&lines).filter(|(known, line)| *known != line.as_str()).collect();
    assert!(
        other.is_empty() && known.lines().count() == lines.len(),
        "these runs are not those of {FILE}, the old line first: {other:#?}. If that is meant to be so, write it anew by \
         UPDATE=1 cargo test -p dunlin-scenario --test everywhere. If nothing was changed, runs differ between machines, or between \
         debug and release, and may not."
    );
}
