//! The conformance suite in virtual time, under several seeds.

use dunlin_fabric::{Address, Atomics, Scheme};
use dunlin_fabric_conformance::{Options, Pair, Report, run_in_process};
use dunlin_fabric_sim::{Faults, ModelTiming, Prices, RunReport, Settings, Sim, TimingSettings};
use dunlin_rnic_model::Profile;
use std::sync::{Arc, Mutex};

/// Cases that do not apply to a fabric without limitations: the simulator makes all memory itself.
const OF_OTHERS: [&str; 1] = ["memory_of_another_fabric"];

/// Returns settings of a fabric without limitations, on which every other case applies.
fn everything() -> Settings {
    let mut settings = Settings::default();
    settings.capabilities.write_wakes = true;
    settings.capabilities.atomics = Atomics::Processors;
    settings
}

/// Runs the suite's cases in sequence within one run.
fn conform(settings: Settings, seed: u64, options: Options) -> (RunReport, Report) {
    conform_as(settings, seed, options, |sim| sim)
}

/// As [`conform`], on the fabric that `choose` returns.
fn conform_as(
    settings: Settings,
    seed: u64,
    options: Options,
    choose: fn(Sim) -> Sim,
) -> (RunReport, Report) {
    let reported = Arc::new(Mutex::new(Report::default()));
    let report = Arc::clone(&reported);
    let root = move |sim: Sim| {
        let sim = choose(sim);
        let mut made = 0;
        let make = |_: &_| {
            made += 1;
            let address = Address::new(Scheme::Sim, &format!("case-{made}")).expect("a short name");
            Pair { first: sim.clone(), second: sim.clone(), address }
        };
        let suite = run_in_process(&options, make, |row| println!("seed {seed}: {row}"));
        *report.lock().expect("no panic") = suite;
    };
    let run = Sim::run_with(settings, seed, root).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let report = reported.lock().expect("no panic").clone();
    (run, report)
}

/// Fewest cases expected, so that a lost case is noticed.
const CASES: usize = 153;

/// More seeds for a soak: `DUNLIN_SEEDS=100 cargo test ...`.
fn seeds() -> u64 {
    std::env::var("DUNLIN_SEEDS").map_or(4, |text| text.parse().expect("DUNLIN_SEEDS is a number"))
}

#[test]
fn the_suite_passes_under_every_seed() {
    for seed in 0..seeds() {
        let (_, report) = conform(everything(), seed, Options::default());
        assert!(report.failed().is_empty(), "seed {seed}: {:?}", report.failed());
        assert_eq!(report.not_applicable(), OF_OTHERS, "the sim has everything");
        assert!(report.passed().len() >= CASES, "cases are missing: {}", report.passed().len());
    }
}

/// Uses a cluster profile's times for network and processors, as the figures do.
#[test]
fn the_suite_passes_with_the_times_of_a_cluster() {
    for (seed, name) in ["connect-ib", "rf-rpc", "flock"].into_iter().enumerate() {
        let settings = of_cluster(name);
        let (_, report) = conform(settings, seed as u64, Options::default());
        assert!(report.failed().is_empty(), "{name}: {:?}", report.failed());
        assert_eq!(report.not_applicable(), OF_OTHERS, "{name}");
        assert!(report.passed().len() >= CASES, "{name}: cases are missing: {}", report.passed().len());
    }
}

fn of_cluster(name: &str) -> Settings {
    let profile = Arc::new(Profile::built_in(name).expect("built in"));
    let prices = Prices::of(&profile);
    let machines = vec![(profile, 1); Settings::default().machines.len()];
    let timing = TimingSettings::Model(ModelTiming { machines, switch_ns: None, control_ns: 5_000 });
    Settings { prices, timing, ..everything() }
}

#[test]
fn the_suite_passes_between_processes_of_one_machine() {
    for (seed, settings) in [everything(), of_cluster("lite")].into_iter().enumerate() {
        let (_, report) = conform_as(settings, seed as u64, Options::default(), |sim| sim.within_machine());
        assert!(report.failed().is_empty(), "seed {seed}: {:?}", report.failed());
        assert_eq!(report.not_applicable(), OF_OTHERS);
        assert!(report.passed().len() >= CASES, "cases are missing: {}", report.passed().len());
    }
}

#[test]
fn a_poorer_fabric_passes_what_applies_to_it() {
    let mut settings = Settings { spurious: 3, preemption: 2, ..Settings::default() };
    settings.capabilities.in_order_write = false;
    settings.capabilities.atomics = Atomics::None;
    settings.capabilities.shared_receive_queue = false;
    settings.capabilities.max_inline = 0;
    settings.capabilities.datagram_headroom = 0;
    for seed in 100..100 + seeds().div_ceil(4) {
        let (_, report) = conform(settings.clone(), seed, Options::default());
        assert!(report.failed().is_empty(), "seed {seed}: {:?}", report.failed());
        assert!(report.not_applicable().contains(&"rc_fetch_add"), "{:?}", report.not_applicable());
    }
}

#[test]
fn what_is_reliable_stays_so_when_every_fourth_unreliable_message_is_lost() {
    let settings = Settings { faults: Faults { loss: 4, ..Faults::default() }, ..Settings::default() };
    let options = Options { only: ["rc_", "is_lost"].map(str::to_owned).to_vec(), ..Options::default() };
    for seed in 200..200 + seeds().div_ceil(4) {
        let (_, report) = conform(settings.clone(), seed, options.clone());
        assert!(report.failed().is_empty(), "seed {seed}: {:?}", report.failed());
        assert!(report.passed().len() >= 8, "{:?}", report.passed());
    }
}

#[test]
fn what_asks_again_bears_that_every_fourth_datagram_is_lost() {
    let settings = Settings { faults: Faults { loss: 4, ..Faults::default() }, ..Settings::default() };
    let options = Options { only: vec!["ud_to_several_peers".to_owned()], ..Options::default() };
    for seed in 300..320 {
        let (_, report) = conform(settings.clone(), seed, options.clone());
        assert!(report.failed().is_empty(), "seed {seed}: {:?}", report.failed());
        assert_eq!(report.passed().len(), 1);
    }
}

#[test]
fn an_unreliable_message_can_be_lost() {
    let settings = Settings { faults: Faults { loss: 2, ..Faults::default() }, ..Settings::default() };
    let options = Options { only: vec!["uc_send".to_owned()], ..Options::default() };
    let (_, report) = conform(settings, 1, options);
    assert!(!report.failed().is_empty(), "a case that counts on every message has to notice");
}

#[test]
fn the_suite_takes_the_same_way_under_the_same_seed() {
    let only = ["rc_", "order", "shared"].map(str::to_owned).to_vec();
    let options = Options { only, ..Options::default() };
    let run = || conform(Settings::default(), 9, options.clone()).0;
    assert_eq!(run(), run());
}
