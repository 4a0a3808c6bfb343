//! Sweeps: valid files are read, and invalid ones are rejected with their line.

use dunlin_rnic_model::Profile;
use dunlin_rnic_model::driver::Signaling;
use dunlin_rnic_model::sweep::{COLUMNS, Effort, median_error_percent, parse, profile_of};

const SHARED: &str = include_str!("../../curves/rnic_sweep.csv");

fn refused(row: &str) -> String {
    let text = format!("{}\n\n{row}\n", COLUMNS.join(","));
    parse("my.csv", &text).expect_err("it is wrong").to_string()
}

#[test]
fn the_shared_sweep_is_read_whole() {
    let rows = parse("shared.csv", SHARED).expect("right");
    assert_eq!(rows.len(), SHARED.lines().count() - 1);
    assert_eq!(rows[0].line, 2);
    assert_eq!(rows.iter().filter(|row| row.signaling == Signaling::All).count(), 89);
    assert!(
        rows.iter().all(|row| row.queue_pairs
            == row.machines * row.threads * (row.queue_pairs / row.machines / row.threads))
    );
}

#[test]
fn clusters_find_their_profiles() {
    assert_eq!(profile_of("netapp"), Some("connect-ib"));
    assert_eq!(profile_of("apt"), Some("apt"));
    assert_eq!(profile_of("elsewhere"), None);
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let good = "apt,ConnectX-3,6,8,3,144,READ_RC,32,8,1,1,2.77,log";
    assert!(parse("my.csv", &format!("{}\n{good}\n", COLUMNS.join(","))).is_ok());
    for (row, word) in [
        (good.replace("apt", "atp"), "unknown cluster 'atp'"),
        (good.replace("READ_RC", "READ_UC"), "unknown op 'READ_UC'"),
        (good.replace(",144,", ",145,"), "qps_per_nic is 145"),
        (good.replace(",2.77,", ",fast,"), "mops_per_machine is 'fast'"),
        (good.replace(",2.77,", ",-1,"), "mops_per_machine is '-1'"),
        (good.replace(",32,8,", ",32,0,"), "window is '0'"),
        (good.replace(",1,1,2.77", ",1,2,2.77"), "allsig is '2'"),
        (good.replace(",6,8,3", ",1,8,3"), "machines is 1"),
        (good.replace(",log", ""), "12 columns"),
    ] {
        let error = refused(&row);
        assert!(error.starts_with("my.csv:3: ") && error.contains(word), "{error}");
    }
    let error = parse("my.csv", "cluster,nic\n").expect_err("wrong").to_string();
    assert!(error.starts_with("my.csv:1: column 2 is 'nic'"), "{error}");
    assert!(parse("my.csv", "").is_err() && parse("my.csv", &COLUMNS.join(",")).is_err());
}

#[test]
fn the_median_is_of_absolute_errors() {
    let pairs = [(10.0, 11.0), (10.0, 8.0), (10.0, 10.5)];
    assert!((median_error_percent(pairs.into_iter()) - 10.0).abs() < 1e-9);
    assert!((median_error_percent(pairs[..2].iter().copied()) - 15.0).abs() < 1e-9);
    assert_eq!(median_error_percent(std::iter::empty()), 0.0);
}

/// The bits of four rates, equal on any machine and in debug and release builds. After a change of the model
/// or the profiles, rewrite them with `UPDATE=1 cargo test --release`.
#[test]
fn predictions_are_the_same_everywhere() {
    let rows = parse("shared.csv", SHARED).expect("right");
    let rate = |line: usize| {
        let row = rows.iter().find(|row| row.line == line).expect("a row");
        let profile = Profile::built_in(profile_of(&row.cluster).expect("known")).expect("built in");
        row.predict(&profile, Effort::Quick).expect("it runs").to_bits()
    };
    let rates = [2, 16, 41, 101].map(rate);
    if std::env::var_os("UPDATE").is_some() {
        let text = rates.map(|rate| format!("{rate}\n")).concat();
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/everywhere.txt"), text).expect("written");
        return;
    }
    let known: Vec<u64> =
        include_str!("../everywhere.txt").lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(rates[..], known[..]);
}
