//! Copies between regions whose node is killed meanwhile.

use crate::cluster::config;
use dunlin_fabric::{Fabric, Host, Scheme, Signal};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_tier_node::{Rights, Spec, Tier, TierConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bob stores the source, so he maps the target, a region of alice's without a name. He is killed, and never tells her of
/// the end of his handle: her region ends with her own, and she has all of its memory.
#[test]
fn the_target_of_a_copy_is_freed_though_the_copying_node_is_killed() {
    let (done, cut_short) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for seed in 0..24 {
        let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
        let (done, cut_short) = (Arc::clone(&done), Arc::clone(&cut_short));
        Sim::run_with(settings, seed, move |sim| {
            let settings_of = |node: &str| {
                let (timeout, stop_timeout) = (Duration::from_millis(100), Duration::from_millis(5));
                let common = config(Scheme::Sim, "c", &["alice", "bob"], node);
                TierConfig { timeout, stop_timeout, ..common }
            };
            let host = sim.host();
            let alice = Tier::within(&sim.process_on(0), settings_of("alice")).unwrap();
            let (bob, ready) = (sim.process_on(1), host.signal());
            let raised = ready.clone();
            let (process, settings) = (bob.clone(), settings_of("bob"));
            let body = move || {
                let tier = Tier::within(&process, settings).unwrap();
                raised.raise();
                process.host().sleep(u64::MAX);
                drop(tier);
            };
            drop(bob.host().spawn("node", Box::new(body)).unwrap());
            ready.wait(0, u64::MAX);
            let length = 40_000;
            let source = alice.malloc(length, Spec::on("bob").named("c").grant_anyone(Rights::READ)).unwrap();
            let before = alice.free_memory() + alice.dirty_memory();
            let target = alice.malloc(length, Spec::here()).unwrap();
            let (killer, when) = (host.clone(), host.now() + 40_000 * (1 + seed));
            let victim = bob.clone();
            let kill = move || {
                killer.sleep(when);
                victim.kill();
            };
            let kills = host.spawn("killer", Box::new(kill)).unwrap();
            match alice.memcpy(target.at(0), source.at(0), length) {
                Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                Err(_) => cut_short.fetch_add(1, Ordering::Relaxed),
            };
            drop(target);
            kills.join();
            for _ in 0..4000 {
                if alice.free_memory() + alice.dirty_memory() == before {
                    return;
                }
                host.sleep(host.now() + 500_000);
            }
            panic!("seed {seed}: memory of the target is left over");
        })
        .unwrap();
    }
    let [done, cut_short] = [done, cut_short].map(|count| count.load(Ordering::Relaxed));
    assert!(done > 1 && cut_short > 1, "{done} copies done, {cut_short} cut short");
}
