//! The same seed gives the same run in another process, with address randomisation and without.

use dunlin_scenario::load::{Load, Network};
use dunlin_swarm::play;
use std::process::Command;

const CHILD: &str = "DUNLIN_REPLAY_CHILD";
const NAME: &str = "replay::a_seed_is_the_same_run_in_another_process_and_without_address_randomisation";

fn hashes() -> String {
    std::panic::set_hook(Box::new(|_| {}));
    let swarm: Vec<String> = (0..12).map(|seed| format!("{:016x}", play(seed, None).trace_hash)).collect();
    let load = Load::bench(20, 2_000, Network::Modelled("connect-ib".to_owned()));
    let outcome = load.run(3, || [0, 0]).expect("a load");
    format!("{} {:016x} {}", swarm.join(" "), outcome.trace_hash, outcome.time_ns)
}

#[test]
fn a_seed_is_the_same_run_in_another_process_and_without_address_randomisation() {
    let here = hashes();
    if std::env::var_os(CHILD).is_some() {
        println!("hashes {here}");
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let arguments = [NAME, "--exact", "--nocapture"];
    let ask = |mut command: Command| {
        let output = command.args(arguments).env(CHILD, "1").output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let plain = ask(Command::new(&program));
    assert!(plain.contains(&here), "here {here}, in another process {plain}");
    // Skipped where the command does not exist.
    if Command::new("setarch").args(["-R", "true"]).status().is_ok_and(|status| status.success()) {
        let mut fixed = Command::new("setarch");
        fixed.arg("-R").arg(&program);
        let said = ask(fixed);
        assert!(said.contains(&here), "here {here}, without address randomisation {said}");
    }
}

#[test]
fn another_seed_is_another_run() {
    let load = Load::bench(4, 200, Network::Rates);
    let mut spread = load.clone();
    spread.functions[0].service = dunlin_scenario::random_values::Times::Exponential(500.0);
    let run = |seed| spread.run(seed, || [0, 0]).expect("a load").trace_hash;
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
