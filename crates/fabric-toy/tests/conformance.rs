//! The conformance suite in virtual time, under several seeds.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_conformance::{Options, Pair, Report, run_in_process};
use dunlin_fabric_toy::{RunReport, Toy};
use std::sync::{Arc, Mutex};

/// Runs the suite's cases one after the other in one run.
fn conform(seed: u64, options: Options) -> (RunReport, Report) {
    let reported = Arc::new(Mutex::new(Report::default()));
    let report = Arc::clone(&reported);
    let root = move |toy: Toy| {
        let mut made = 0;
        let make = |_: &_| {
            made += 1;
            let address = Address::new(Scheme::Sim, &format!("case-{made}")).expect("a short name");
            Pair { first: toy.clone(), second: toy.clone(), address }
        };
        let suite = run_in_process(&options, make, |row| println!("seed {seed}: {row}"));
        *report.lock().expect("no panic") = suite;
    };
    let run = Toy::run(seed, root).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let report = reported.lock().expect("no panic").clone();
    (run, report)
}

#[test]
fn the_suite_passes_under_every_seed() {
    for seed in 0..4 {
        let (_, report) = conform(seed, Options::default());
        assert!(report.failed().is_empty(), "seed {seed}: {:?}", report.failed());
        assert!(report.not_applicable().is_empty(), "the toy has everything: {:?}", report.not_applicable());
        assert!(report.passed().len() > 50, "cases are missing: {}", report.passed().len());
    }
}

#[test]
fn the_suite_takes_the_same_way_under_the_same_seed() {
    let only = ["rc_", "order", "shared"].map(str::to_owned).to_vec();
    let options = Options { only, ..Options::default() };
    assert_eq!(conform(9, options.clone()).0, conform(9, options).0);
}
