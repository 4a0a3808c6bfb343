//! Processes, nodes and both are killed at random points, many times. Every byte that they could touch is checked.
//! `DUNLIN_TIER_KILLS` is the number of kills.

use crate::common::{attach, attach_address, bytes_of, config, count, serve, tag, wait};
use crate::processes::start;
use dunlin_fabric::{Host as _, RealHost};
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{Lmr, RequestError, Rights, Spec, Tier};
use std::time::Duration;

/// Bytes that one write covers; longer than one request of a process.
const LENGTH: usize = 400_000;
/// The word that counts acknowledged writes, behind the bytes.
const WORD: u64 = LENGTH as u64;

/// Writes all bytes of a region for ever, each time with the next number, and counts.
pub(crate) fn write_for_ever(tag: &str) {
    let tier = attach(&attach_address(tag, "two"));
    let region: Lmr = wait("the region", || tier.map("kills", Rights::READ.with(Rights::WRITE)).ok());
    let _unnamed = tier.malloc(100_000, Spec::on("two")).unwrap();
    for number in 1u64.. {
        // Without its node it has no more to do.
        if region.write(0, &vec![number as u8; LENGTH]).is_err() {
            return;
        }
        match region.fetch_add(WORD, 1) {
            Ok(before) => assert_eq!(before, number - 1),
            Err(_) => return,
        }
    }
}

#[test]
fn kills_at_random_points_change_no_byte_of_others() {
    if std::env::var(crate::processes::ROLE).is_ok() {
        return;
    }
    let tag = tag("kills");
    let mut settings = config(&tag, &["one", "two"], "one");
    settings.timeout = Duration::from_secs(2);
    settings.stop_timeout = Duration::from_millis(100);
    let one = serve(settings, &tag, |_| {});
    let here = attach(&one.address);
    let canaries = [0u8, 1].map(|at| {
        let region = here.malloc(65_536, Spec::here()).unwrap();
        region.write(0, &[0xa0 + at; 65_536]).unwrap();
        region
    });
    let used = || one.node.memory() - one.node.free_memory();
    let before = used();
    let (mut two, mut writes) = (None, 0);
    for round in 0..count("DUNLIN_TIER_KILLS", 12) {
        let node = two.get_or_insert_with(|| start("two", &tag));
        wait("the node", || Tier::attach(&attach_address(&tag, "two")).ok());
        let spec = Spec::here().named("kills").grant_anyone(Rights::ALL);
        let region = here.malloc(WORD + 8, spec).unwrap();
        let mut writer = start("killed", &tag);
        let acknowledged = || region.fetch_add(WORD, 0).unwrap();
        wait("the writer", || (acknowledged() > 0).then_some(()));
        let random = RealHost.random();
        std::thread::sleep(Duration::from_micros(random % 20_000));
        // The process, the node, both in either order.
        match random >> 32 & 3 {
            0 => writer.kill(),
            1 => node.kill(),
            2 => {
                writer.kill();
                node.kill();
            }
            _ => {
                node.kill();
                writer.kill();
            }
        }
        if random >> 32 & 3 != 0 {
            two = None;
        }
        drop(writer);
        // Operations under way may land until the node notices the death. Later no operation of a dead process changes a byte.
        let whole = |bytes: &[u8], number: u64| {
            let (old, new) = (number as u8, (number + 1) as u8);
            bytes[..LENGTH].iter().all(|byte| *byte == old || *byte == new)
        };
        let bytes = wait("the end of writes", || {
            let (first, number) = (bytes_of(&region).unwrap(), acknowledged());
            let again = bytes_of(&region).unwrap();
            (first == again && whole(&again, number)).then_some(again)
        });
        writes += acknowledged();
        if two.is_some() {
            // The node lives: another process goes on with the region.
            let tier = attach(&attach_address(&tag, "two"));
            let view = tier.map("kills", Rights::READ).unwrap();
            assert!(bytes_of(&view).unwrap() == bytes_of(&region).unwrap(), "round {round}");
        }
        assert!(bytes_of(&region).unwrap() == bytes, "round {round}: a byte changed later");
        let freed = region.free();
        let waits = matches!(freed, Err(RequestError::Refused { source: Refusal::Waits(_), .. }));
        assert!(freed.is_ok() || waits, "round {round}: {freed:?}");
        // All bytes come back, zeroed.
        wait("the memory of the dead", || (used() == before).then_some(()));
        for (at, canary) in canaries.iter().enumerate() {
            let is_whole = bytes_of(canary).unwrap().iter().all(|byte| *byte == 0xa0 + at as u8);
            assert!(is_whole, "round {round}: a canary changed");
        }
    }
    println!("{writes} acknowledged writes of {LENGTH} bytes");
    assert!(writes > 0);
}
