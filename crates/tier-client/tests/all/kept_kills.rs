//! Kills at random points of nodes whose memory a keeper holds, of keepers, and of both. Every byte is checked.
//! `DUNLIN_TIER_KEPT_KILLS` is the number of kills.

use crate::common::{attach, attach_address, bytes_of, count, tag, wait};
use crate::kept::{keeper, node};
use crate::processes::{ROLE, start};
use dunlin_fabric::{Host as _, RealHost};
use dunlin_tier::RecordError;
use dunlin_tier::message::Refusal;
use dunlin_tier_client::{Lmr, OperationError, RequestError, Rights, Spec, Tier};

/// Bytes that one write covers; longer than one request of a process.
const LENGTH: usize = 200_000;
/// The word that has the number of the last acknowledged write, behind the bytes.
const WORD: u64 = LENGTH as u64;
/// The length of the region.
pub(crate) const BYTES: u64 = WORD + 8;

/// Writes all bytes of a region for ever, each time with the next number, and counts. A write that fails is made again,
/// by this program and not by the library: it is the same bytes.
pub(crate) fn write_for_ever(tag: &str) {
    let node = if tag.ends_with("-far") { "two" } else { "one" };
    let tier = attach(&attach_address(tag, node));
    let region: Lmr = wait("the region", || tier.map("kills", Rights::READ.with(Rights::WRITE)).ok());
    let _unnamed = wait("memory", || tier.malloc(100_000, Spec::on("one")).ok());
    let first = wait("the last number", || region.fetch_add(WORD, 0).ok()) + 1;
    for number in first.. {
        wait("a write", || ended(region.write(0, &vec![number as u8; LENGTH])));
        // The word may have been stored by an attempt that failed.
        wait("the count", || ended(region.write(WORD, &number.to_le_bytes())));
        // Regions that are half made, or half freed, when their node dies. Nobody else ever uses them.
        let store = if number % 2 == 0 { "one" } else { "two" };
        let _ = tier.malloc(20_000, Spec::on(store)).map(|region| region.free());
        let _ = tier.map("kills", Rights::READ).map(Lmr::unmap);
        // One with a name, which may be left behind anywhere on the way from one node to the other.
        let spec = Spec::on(store).named("moves");
        if let Ok(region) = tier.malloc(20_000, spec).or_else(|_| tier.map("moves", Rights::ALL)) {
            let _ = region.move_to(if number % 2 == 0 { "two" } else { "one" });
            let _ = region.free();
        }
    }
}

/// Returns the outcome, unless it is to be tried again. Without its region, the process has no more to do.
fn ended(outcome: Result<(), OperationError>) -> Option<()> {
    match outcome {
        Ok(()) => Some(()),
        Err(OperationError::Access(_)) => std::process::exit(0),
        Err(OperationError::Request(error)) if matches!(*error, RequestError::Detached) => {
            std::process::exit(0)
        }
        Err(_) => None,
    }
}

/// Frees the region that moves between the nodes, which a writer that was killed has left.
fn end_moves(here: &Tier) {
    wait("the end of the last move", || match here.map("moves", Rights::ALL) {
        Err(RequestError::Refused { source: Refusal::Record(RecordError::NoSuch), .. }) => Some(()),
        left => {
            let _ = left.map(Lmr::free);
            None
        }
    });
}

/// Kills while a process of the node, or of another one, writes.
fn kill_at_random(tag: &str, kills: u32) {
    let mut keepers = [keeper("one", tag), keeper("two", tag)];
    let mut one = node("one", tag);
    let _two = node("two", tag);
    let address = attach_address(tag, "one");
    let mut counts = [0u32; 3];
    let mut here = attach(&address);
    let used = |tier: &Tier| {
        let status = tier.status().unwrap();
        status.memory - status.free
    };
    let empty = used(&here);
    let fill = |here: &Tier| {
        let spec = || Spec::here().grant_anyone(Rights::ALL);
        let region = here.malloc(BYTES, spec().named("kills")).unwrap();
        let canaries = [0u8, 1].map(|at| {
            let canary = here.malloc(65_536, Spec::here()).unwrap();
            canary.write(0, &[0xa0 + at; 65_536]).unwrap();
            canary
        });
        (region, canaries)
    };
    let (mut region, mut canaries) = fill(&here);
    let mut writer = start("kept-writer", tag);
    let number_of = |region: &Lmr| region.fetch_add(WORD, 0).ok();
    for round in 0..kills {
        let begun = wait("an answer", || number_of(&region));
        wait("the writer", || number_of(&region).filter(|number| *number > begun));
        let random = RealHost.random();
        RealHost.sleep(RealHost.now() + random % 20_000_000);
        let kind = match random >> 32 & 7 {
            0 => 1,
            1 => 2,
            _ => 0,
        };
        counts[kind] += 1;
        let before = number_of(&region).unwrap_or(begun);
        match kind {
            // The keeper by itself: the node goes on, with its regions, and they end with it.
            1 => {
                keepers[0].kill();
                wait("the writer", || number_of(&region).filter(|number| *number > before));
                one.kill();
            }
            2 => {
                one.kill();
                keepers[0].kill();
            }
            _ => one.kill(),
        }
        if kind == 0 {
            one = node("one", tag);
            // A process that knows the node from before has all it had.
            let after = wait("the next life", || number_of(&region));
            assert!(after >= before, "round {round}: an acknowledged write is lost: {before}, then {after}");
            let bytes = wait("the bytes", || bytes_of(&region).ok());
            let last = wait("an answer", || number_of(&region));
            // Writes go on meanwhile, so there are two numbers at most between two looks.
            let is_near = |byte: &u8| (after..=last + 1).any(|number| *byte == number as u8);
            assert!(bytes[..LENGTH].iter().all(is_near), "round {round}: a byte of no write");
            for (at, canary) in canaries.iter().enumerate() {
                let bytes = wait("a canary", || bytes_of(canary).ok());
                assert!(bytes.iter().all(|byte| *byte == 0xa0 + at as u8), "round {round}: a canary changed");
            }
            continue;
        }
        // All is gone, and every handle says so.
        drop(writer);
        keepers[0] = keeper("one", tag);
        one = node("one", tag);
        let error = region.read(0, &mut [0; 8]).unwrap_err();
        let is_lost =
            matches!(&error, OperationError::Request(one) if matches!(**one, RequestError::Detached));
        assert!(is_lost, "round {round}: {error:?}");
        here = attach(&address);
        // The other node may have made a region here for the writer that is dead; it gives those without a name back.
        end_moves(&here);
        wait("a new life without regions", || (used(&here) == empty).then_some(()));
        (region, canaries) = fill(&here);
        writer = start("kept-writer", tag);
    }
    drop(writer);
    drop(canaries);
    end_moves(&here);
    region.free().unwrap();
    wait("all memory", || (used(&here) == empty).then_some(()));
    println!("killed: {} nodes, {} keepers and then their nodes, {} both", counts[0], counts[1], counts[2]);
    // The node's own death is what the test is about.
    assert!(counts[0] > 0);
}

fn kills() -> u32 {
    count("DUNLIN_TIER_KEPT_KILLS", 12)
}

#[test]
fn a_node_dies_under_writes_of_its_own_process() {
    if std::env::var(ROLE).is_err() {
        kill_at_random(&tag("kept-near"), kills());
    }
}

#[test]
fn a_node_dies_under_writes_of_another_node() {
    if std::env::var(ROLE).is_err() {
        kill_at_random(&format!("{}-far", tag("kept")), kills());
    }
}

/// Prints the time from the kill of a node until its process goes on, the start of a program included.
/// `DUNLIN_TIER_KEPT_MIB` is the memory of the node.
#[test]
fn callers_go_on_after_the_next_start() {
    if std::env::var(ROLE).is_ok() {
        return;
    }
    let tag = tag("kept-soon");
    let (_keeper, mut one) = (keeper("one", &tag), node("one", &tag));
    let here = attach(&attach_address(&tag, "one"));
    // All memory but the last parts has pages, and many regions have records.
    let free = here.status().unwrap().free;
    let length = if free > 1 << 31 { 4 << 20 } else { 1 << 20 };
    let regions: Vec<Lmr> =
        (0..free / length - 2).map(|_| here.malloc(length, Spec::here()).unwrap()).collect();
    regions.iter().for_each(|region| region.memset(0, length, 7).unwrap());
    for _ in 0..3 {
        let begin = std::time::Instant::now();
        one.kill();
        let killed = begin.elapsed();
        one = start("kept-one", &tag);
        let mut byte = [0];
        // A read that was sent before this process saw the end of the connection fails, and may be made again.
        wait("the next life", || regions[0].read(5, &mut byte).ok());
        let count = regions.len();
        println!(
            "{count} regions of {length} bytes: went on after {:?}, the kill {killed:?}",
            begin.elapsed()
        );
        assert_eq!(byte, [7]);
    }
    let mut bytes = vec![0; length as usize];
    for region in &regions {
        region.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}
