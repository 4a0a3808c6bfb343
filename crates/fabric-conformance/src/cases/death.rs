//! The end of a peer, of its queue pair, or of its link, and its effects at this side.

use super::RC;
use crate::case::{Case, Need, Role};
use crate::context::Context;
use crate::failure::{Failure, Verdict};
use crate::station::{Station, pattern};
use crate::{expect, expect_eq, expect_matches};
use dunlin_fabric::{
    Access, CompletionStatus, Data, Fabric, Host, Link, LinkError, Operation, PostError, QueuePairId,
    QueuePairState, RegionKey, RemoteSlice, Signal, ThreadDomain, WaitMode,
};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::deadly("peer_dies_quiet", &[RC, Need::Acknowledged], quiet),
        Case::deadly("peer_dies_asleep_waiter", &[RC, Need::Events], asleep),
        Case::deadly("peer_dies_during_sends", &[RC], |c, r| busy(c, r, Traffic::Send)),
        Case::deadly("peer_dies_during_writes", &[RC], |c, r| busy(c, r, Traffic::Write)),
        Case::deadly("peer_dies_during_reads", &[RC], |c, r| busy(c, r, Traffic::Read)),
        Case::deadly("peer_dies_while_it_writes_to_us", &[RC], writes_to_us),
        Case::deadly("peer_dies_in_the_middle_of_its_message", &[RC], half_sent),
        Case::deadly("peer_dies_in_the_middle_of_our_message", &[RC], half_taken),
        Case::pair("link_closed_by_the_peer", &[RC], closed),
        Case::pair("link_dropped_by_the_peer", &[RC], dropped),
        Case::pair("queue_pair_destroyed_by_the_peer", &[RC], destroyed),
        Case::pair("destroying_drops_what_is_posted", &[RC], destroying),
        Case::pair("a_new_queue_pair_after_an_error", &[RC, Need::Acknowledged], anew),
    ]);
}

/// Checks the surviving side: the signal for the link's end, the queue pair in error, and all requests
/// flushed.
fn mourn<F: Fabric>(
    context: &Context<F>,
    station: &mut Station<F>,
    queue_pair: QueuePairId,
    receives: (u64, u64),
) -> Verdict {
    station.until_error(queue_pair)?;
    station.flushed_receives(receives.0, receives.1)?;
    let link = context.link();
    station.until("the link's end", |_| Ok((!link.is_alive()).then_some(())))?;
    expect_matches!(link.receive(context.deadline), Err(LinkError::PeerGone(_)));
    expect_matches!(link.send(b"anybody?"), Err(LinkError::PeerGone(_)));
    let data = Data::Buffer(station.buffer(b"late")?);
    let operation = Operation::Send { data, immediate: None, to: None };
    expect_eq!(station.post(queue_pair, 50, operation, true), Err(PostError::QueuePairError));
    Ok(())
}

fn quiet<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        expect_eq!(context.hear_at(&mut station)?, b"die");
        context.die();
        return Ok(());
    }
    for id in 0..3 {
        station.receive_on(queue_pair, id, 64)?;
    }
    // These wait for RECVs that are never posted.
    for id in 10..13 {
        station.send(queue_pair, id, b"never taken", id == 12)?;
    }
    let signal = context.fabric.host().signal();
    context.link().subscribe(signal.clone().into());
    let seen = signal.seen();
    context.tell(b"die")?;
    while context.link().is_alive() {
        expect!(signal.wait(seen, context.deadline), "the link's end raises the signal");
        // The signal may have had another reason; a bounded poll is enough.
        station.rest(crate::MILLISECOND)?;
        expect!(context.now() < context.deadline, "the link says that the peer is alive");
    }
    for id in 10..13 {
        let got = station.next(station.sends)?;
        expect_eq!(got.id.0, id);
        let status = got.status;
        expect_matches!(status, CompletionStatus::TransportRetry | CompletionStatus::Flushed);
    }
    mourn(context, &mut station, queue_pair, (0, 3))
}

/// A thread that sleeps in event mode notices the death without any traffic.
fn asleep<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        expect_eq!(context.hear_at(&mut station)?, b"die");
        context.die();
        return Ok(());
    }
    station.receive_on(queue_pair, 0, 64)?;
    context.tell(b"die")?;
    while station.domain.state(queue_pair) != Some(QueuePairState::Error) {
        let armed = station.domain.arm(WaitMode::Event);
        if station.poll(station.receives) > 0 {
            station.domain.disarm(armed);
            break;
        }
        expect!(context.now() < context.deadline, "the death was not noticed");
        let _ = station.domain.wait(armed, context.deadline);
    }
    mourn(context, &mut station, queue_pair, (0, 1))
}

#[derive(Clone, Copy)]
enum Traffic {
    Send,
    Write,
    Read,
}

fn busy<F: Fabric>(context: &mut Context<F>, role: Role, traffic: Traffic) -> Verdict {
    const LENGTH: usize = 64 * 1024;
    const BOTH: Access = Access::READ.with(Access::WRITE);
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let region = context.region(LENGTH, BOTH)?;
        context.lend(&region, BOTH)?;
        for id in 0..40 {
            station.receive_on(queue_pair, id, LENGTH)?;
        }
        context.tell(b"go")?;
        // The peer dies while traffic is in flight.
        if matches!(traffic, Traffic::Send) {
            for id in 0..20 {
                station.success(station.receives, id)?;
            }
        } else {
            expect_eq!(context.hear_at(&mut station)?, b"under way");
        }
        context.die();
        return Ok(());
    }
    let key = context.borrow_key()?;
    station.receive_on(queue_pair, 0, 64)?;
    expect_eq!(context.hear_at(&mut station)?, b"go");
    let bytes = pattern(1, LENGTH);
    let (mut posted, mut completed) = (0u64, 0u64);
    let failed = 'traffic: loop {
        let operation = match traffic {
            Traffic::Send => {
                let data = Data::Buffer(station.buffer(&bytes)?);
                Operation::Send { data, immediate: None, to: None }
            }
            Traffic::Write => {
                let data = Data::Buffer(station.buffer(&bytes)?);
                Operation::Write { data, key, offset: 0, immediate: None }
            }
            Traffic::Read => {
                let into = station.arena.reserve(LENGTH)?;
                Operation::Read { from: RemoteSlice { key, offset: 0, length: LENGTH as u32 }, into }
            }
        };
        match station.post(queue_pair, posted, operation, true) {
            Ok(()) => posted += 1,
            Err(PostError::QueuePairError) if posted > 0 => break None,
            Err(error) => return Err(error.into()),
        }
        if posted == 50 {
            // The peer may already be gone.
            let _ = context.tell(b"under way");
        }
        while posted - completed >= 4 {
            let got = station.next(station.sends)?;
            expect_eq!(got.id.0, completed, "completions are in order");
            completed += 1;
            if got.status != CompletionStatus::Success {
                break 'traffic Some(got.status);
            }
        }
        expect!(context.now() < context.deadline, "the peer's death stops nothing");
    };
    if let Some(status) = failed {
        expect_matches!(status, CompletionStatus::TransportRetry | CompletionStatus::Flushed);
    }
    // Every accepted request completes once.
    while completed < posted {
        let got = station.next(station.sends)?;
        expect_eq!(got.id.0, completed);
        completed += 1;
        expect_eq!(got.buffer.is_some(), matches!(traffic, Traffic::Read), "READs give their buffers back");
    }
    expect!(station.take(station.sends).is_none(), "a request completed twice");
    mourn(context, &mut station, queue_pair, (0, 1))
}

fn writes_to_us<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const LENGTH: usize = 64 * 1024;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let region = context.region(LENGTH, Access::WRITE)?;
        context.lend(&region, Access::WRITE)?;
        station.receive_on(queue_pair, 0, 64)?;
        let mut copy = vec![0; LENGTH];
        station.until("the peer's death", |station| {
            region.copy_out(0, &mut copy);
            Ok((station.domain.state(queue_pair) == Some(QueuePairState::Error)).then_some(()))
        })?;
        // This side's memory stays usable, whatever its contents.
        region.copy_in(0, &copy);
        return mourn(context, &mut station, queue_pair, (0, 1));
    }
    let key = context.borrow_key()?;
    for round in 0..200 {
        let data = Data::Buffer(station.buffer(&pattern(round, LENGTH))?);
        let operation = Operation::Write { data, key, offset: 0, immediate: None };
        station.post(queue_pair, round, operation, true)?;
        if round % 8 == 7 {
            for id in round - 7..=round {
                station.sent(id)?;
            }
        }
    }
    context.die();
    Ok(())
}

const LONG: usize = 1 << 20;

/// A message of which the peer has sent only a part is not delivered: its RECV is flushed.
fn half_sent<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let long = LONG.min(context.fabric.capabilities().max_message as usize);
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        expect_eq!(context.hear_at(&mut station)?, b"send");
        station.send(queue_pair, 1, &pattern(1, long), true)?;
        context.die();
        return Ok(());
    }
    station.receive_on(queue_pair, 0, long)?;
    station.receive_on(queue_pair, 1, long)?;
    context.tell(b"send")?;
    let first = station.next(station.receives)?;
    expect_eq!(first.id.0, 0);
    expect!(first.buffer.is_some(), "the RECV gives its buffer back");
    if first.status == CompletionStatus::Success {
        // A fabric with room for the whole message may have delivered it before the end.
        crate::station::check_received::<F>(&first, &pattern(1, long), 0)?;
    } else {
        expect_eq!(first.status, CompletionStatus::Flushed);
    }
    mourn(context, &mut station, queue_pair, (1, 1))
}

fn half_taken<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let long = LONG.min(context.fabric.capabilities().max_message as usize);
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        station.receive_on(queue_pair, 0, long)?;
        context.tell(b"send")?;
        expect_eq!(context.hear()?, b"sent");
        station.poll(station.receives);
        context.die();
        return Ok(());
    }
    expect_eq!(context.hear_at(&mut station)?, b"send");
    station.send(queue_pair, 0, &pattern(1, long), true)?;
    station.send(queue_pair, 1, &pattern(2, long), true)?;
    context.tell(b"sent")?;
    let (first, second) = (station.next(station.sends)?, station.next(station.sends)?);
    expect_eq!((first.id.0, second.id.0), (0, 1));
    // If completions do not report the outcome at the target, the network may have accepted all of it.
    let acknowledged = context.fabric.capabilities().acknowledged;
    expect!(
        second.status != CompletionStatus::Success || !acknowledged,
        "nobody had a RECV for the second message"
    );
    station.until_error(queue_pair)?;
    expect!(station.arena.reserve(8 << 20).is_ok(), "the buffers of failed SENDs are free again");
    mourn(context, &mut station, queue_pair, (0, 0))
}

fn closed<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for id in 0..3 {
        station.receive_on(queue_pair, id, 64)?;
    }
    context.meet_at(&mut station)?;
    if role == Role::Second {
        context.link().close();
        expect!(!context.link().is_alive(), "a link that we closed");
    }
    mourn(context, &mut station, queue_pair, (0, 3))
}

/// Dropping the last clone closes the link.
fn dropped<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let other = context.another_link()?;
    let mut station = context.station()?;
    if role == Role::Second {
        let clone = other.clone();
        drop(other);
        clone.send(b"a clone keeps it open")?;
        drop(clone);
        return context.meet_at(&mut station);
    }
    expect_eq!(other.receive(context.deadline)?, b"a clone keeps it open");
    expect_matches!(other.receive(context.deadline), Err(LinkError::PeerGone(_)));
    expect!(!other.is_alive(), "the peer has dropped it");
    context.meet_at(&mut station)
}

fn destroyed<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    let neighbour = context.connect(&mut station, &config)?;
    for id in 0..3 {
        station.receive_on(queue_pair, id, 64)?;
    }
    station.receive_on(neighbour, 10, 64)?;
    context.meet_at(&mut station)?;
    if role == Role::Second {
        station.domain.destroy_queue_pair(queue_pair)?;
        expect_eq!(station.domain.state(queue_pair), None);
        context.tell(b"destroyed")?;
    } else {
        expect_eq!(context.hear_at(&mut station)?, b"destroyed");
        let data = Data::Buffer(station.buffer(b"to nobody")?);
        match station.post(queue_pair, 1, Operation::Send { data, immediate: None, to: None }, false) {
            Err(error) => expect_eq!(error, PostError::QueuePairError),
            Ok(()) if context.fabric.capabilities().acknowledged => {
                let got = station.next(station.sends)?;
                expect_eq!(got.id.0, 1);
                expect!(got.status != CompletionStatus::Success, "a SEND to a destroyed queue pair");
            }
            // The network may have accepted it before it knew of the end; then nothing is reported.
            Ok(()) => {}
        }
        station.until_error(queue_pair)?;
        station.flushed_receives(0, 3)?;
        while let Some(got) = station.take(station.sends) {
            expect_eq!(got.id.0, 1);
            expect!(got.status != CompletionStatus::Success, "an unsignaled SEND to a destroyed queue pair");
        }
    }
    context.meet_at(&mut station)?;
    // The link and the other queue pair are unaffected.
    expect!(context.link().is_alive());
    station.send(neighbour, 2, b"alive", true)?;
    station.received(10, b"alive")?;
    station.sent(2)?;
    context.meet_at(&mut station)
}

fn destroying<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for id in 0..8 {
        station.receive_on(queue_pair, id, 4096)?;
    }
    if role == Role::First {
        // Eight are received, eight wait.
        for id in 0..16 {
            station.send(queue_pair, id, &pattern(id, 100), true)?;
        }
    }
    context.meet_at(&mut station)?;
    station.domain.destroy_queue_pair(queue_pair)?;
    expect_matches!(
        station.domain.destroy_queue_pair(queue_pair),
        Err(dunlin_fabric::CreateError::NoSuch(_))
    );
    // Earlier completions may still be polled; no new ones appear.
    station.poll(station.receives);
    station.poll(station.sends);
    while station.take(station.receives).is_some() || station.take(station.sends).is_some() {}
    station.rest(crate::MILLISECOND)?;
    let late = station.take(station.receives).is_some() || station.take(station.sends).is_some();
    expect!(!late, "a destroyed queue pair goes on completing");
    expect!(station.arena.reserve(8 << 20).is_ok(), "destroying returns the buffers");
    context.meet_at(&mut station)
}

fn anew<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    for round in 0..5u64 {
        let queue_pair = context.connect(&mut station, &config)?;
        station.receive_on(queue_pair, round, 64)?;
        station.receive_on(queue_pair, round + 100, 64)?;
        context.meet_at(&mut station)?;
        station.send(queue_pair, round, &round.to_le_bytes(), true)?;
        station.sent(round)?;
        station.received(round, &round.to_le_bytes())?;
        context.meet_at(&mut station)?;
        if role == Role::First {
            let data = Data::Buffer(station.buffer(b"bad")?);
            let key = RegionKey(0x0bad);
            station.post(queue_pair, 1, Operation::Write { data, key, offset: 0, immediate: None }, true)?;
            let got = station.next(station.sends)?;
            if got.status != CompletionStatus::RemoteAccess {
                return Err(Failure::new(format!("a bad key gave {:?}", got.status)));
            }
        }
        station.until_error(queue_pair)?;
        station.flushed_receives(round + 100, 1)?;
        context.meet_at(&mut station)?;
        station.domain.destroy_queue_pair(queue_pair)?;
    }
    context.meet_at(&mut station)
}
