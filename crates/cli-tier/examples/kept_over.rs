//! Nodes on a network whose memory is shared memory of their hosts: processes map it, and a keeper holds it while a node
//! is killed and starts again. A test that `tests/ofi/suite` and `tests/guest/suite` run, with the command `dunlin`.
//!
//! `kept_over PREFIX [DUNLIN]`: PREFIX is an address without its port, for example `ofi:tcp:127.0.0.1`; ports 7160 and
//! 7170 follow.

mod over;

use dunlin_tier_client::{Lmr, Rights, Spec, Tier};
use over::{Cluster, Outcome, same, wait};

const LENGTH: usize = 100_000;
/// Five of eight extents.
const WIDE: usize = 19 << 20;

/// Waits until a region has these bytes from `offset` on. The first operation after a restart meets the end of the
/// connection, and a processor sees the bytes of a WRITE a little after its completion.
fn has(region: &Lmr, offset: u64, expected: &[u8]) -> Outcome {
    let mut bytes = vec![0; expected.len()];
    wait("the bytes of a region", || {
        region.read(offset, &mut bytes)?;
        same(&bytes, expected)
    })
}

fn is_filled(region: &Lmr, byte: u8) -> Outcome {
    has(region, 0, &[byte; LENGTH])
}

fn run(cluster: &Cluster) -> Outcome {
    let keeper = cluster.attach_name("keeper");
    let _keeper = cluster.start(&["keep", &keeper])?;
    let _two = cluster.node("two", None)?;
    // The keeper may not listen yet.
    let mut one = cluster.node("one", Some(&keeper))?;
    let here = wait("a node with a keeper", || {
        if one.0.try_wait()?.is_some() {
            one = cluster.node("one", Some(&keeper))?;
        }
        Ok(Tier::attach(&cluster.attach_name("one").parse()?)?)
    })?;
    let there = cluster.attach("two")?;
    for tier in [&here, &there] {
        let status = tier.status()?;
        assert_eq!((status.extents, status.registrations), (8, 1), "an RNIC registers the whole memory once");
    }

    // Bytes of several extents in one registration.
    let wide = here.malloc(WIDE as u64, Spec::here().named("kept/wide").grant_anyone(Rights::ALL))?;
    let wide_view = there.map("kept/wide", Rights::ALL)?;
    let bytes: Vec<u8> = (0..WIDE).map(|at| (at / 4093) as u8).collect();
    wide_view.write(0, &bytes)?;
    has(&wide, 0, &bytes)?;

    // A buffer of this process, from which the network card of its node writes, and into which it reads.
    let mut buffer = there.buffer(LENGTH)?;
    buffer.copy_in(0, &[3; LENGTH])?;
    wide_view.write_from(7, &mut buffer, ..)?;
    has(&wide, 7, &[3; LENGTH])?;
    wide.write(0, &bytes)?;
    wait("bytes in the buffer", || {
        wide_view.read_into(7, &mut buffer, ..)?;
        let mut found = vec![0; LENGTH];
        buffer.copy_out(0, &mut found)?;
        if found == bytes[7..7 + LENGTH] { Ok(()) } else { Err("other bytes".into()) }
    })?;

    // A region that this process maps, and that the network card of the other node writes.
    let spec = Spec::here().named("kept/over").direct().grant_anyone(Rights::ALL);
    let region = here.malloc(LENGTH as u64, spec)?;
    let direct = region.direct()?;
    let view = there.map("kept/over", Rights::ALL)?;
    view.write(0, &[5; LENGTH])?;
    is_filled(&region, 5)?;
    wait("bytes of the network in the mapping", || match direct.load(64)? {
        0x0505_0505_0505_0505 => Ok(()),
        other => Err(format!("{other:x}").into()),
    })?;
    direct.store(64, 0x0606_0606_0606_0606)?;
    let mut word = [0; 8];
    view.read(64, &mut word)?;
    assert_eq!(word, [6; 8], "a READ of the network sees a store of a process");
    direct.store(64, 0x0505_0505_0505_0505)?;

    for life in 0..3u8 {
        one.0.kill()?;
        one.0.wait()?;
        assert_eq!(direct.load(64)?, 0x0505_0505_0505_0505, "the mapping outlives the node");
        one = cluster.node("one", Some(&keeper))?;
        // Handles of the process and of the other node, and the name.
        is_filled(&region, 5)?;
        is_filled(&view, 5)?;
        has(&wide, 0, &bytes)?;
        has(&wide_view, 0, &bytes)?;
        is_filled(&wait("the name", || Ok(there.map("kept/over", Rights::READ)?))?, 5)?;
        // The new registration is of the same memory.
        wait("a WRITE", || Ok(view.write(LENGTH as u64 - 1, &[life])?))?;
        has(&region, LENGTH as u64 - 1, &[life])?;
        view.write(LENGTH as u64 - 1, &[5])?;
        // libfabric completes a WRITE before it arrives, and the next kill would lose it.
        has(&region, LENGTH as u64 - 1, &[5])?;
        println!("life {life}: the same regions, handles and mappings");
    }
    drop(direct);
    wait("a free", || Ok(there.map("kept/over", Rights::ALL)?.free()?))
}

fn main() -> Outcome {
    run(&Cluster::new("kept-over", &[("one", 7160), ("two", 7170)])?.0)
}
