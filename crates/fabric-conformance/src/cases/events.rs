//! Sleeping on completion queues: the events that end a sleep, those that do not, and that none is missed.

use super::RC;
use crate::case::{Case, Need, Role};
use crate::context::{Context, MILLISECOND};
use crate::failure::Verdict;
use crate::station::Station;
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, CompletionStatus, Data, Fabric, Host, Operation, ReceiveTarget, ThreadDomain, WaitMode, Wake,
    Waker, WorkId,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("event_wakes_on_send", &[RC, Need::Events], |c, r| wakes(c, r, false)),
        Case::pair("event_wakes_on_write_immediate", &[RC, Need::Events, Need::Immediate], |c, r| {
            wakes(c, r, true)
        }),
        Case::pair("event_wakes_on_own_completion", &[RC, Need::Events, Need::Acknowledged], own_completion),
        Case::single("event_wakes_on_waker", &[Need::Events], waker),
        Case::single("waker_before_the_wait_is_not_lost", &[Need::Events], early_waker),
        Case::pair("arrival_between_arm_and_wait_is_not_lost", &[RC, Need::Events], between),
        Case::pair("disarmed_waits_go_on_working", &[RC, Need::Events], disarm),
        Case::pair("plain_write_does_not_wake", &[RC, Need::Events], plain_write),
        Case::pair("write_wait_ends_with_a_plain_write", &[RC, Need::WriteWakes], write_wakes),
        Case::pair("write_wait_ends_with_a_send", &[RC, Need::WriteWakes], send_ends_write_wait),
        Case::single("event_wait_ends_at_its_time", &[Need::Events], timeout),
        Case::single("busy_wait_returns", &[], busy),
    ]);
}

/// Sleeps in event mode until a RECV has completed.
fn sleep_for_receive<F: Fabric>(context: &Context<F>, station: &mut Station<F>, id: u64) -> Verdict {
    loop {
        let armed = station.domain.arm(WaitMode::Event);
        station.poll(station.receives);
        if let Some(got) = station.take(station.receives) {
            station.domain.disarm(armed);
            expect_eq!((got.id.0, got.status), (id, CompletionStatus::Success));
            return Ok(());
        }
        expect!(context.now() < context.deadline, "nothing arrived");
        let _ = station.domain.wait(armed, context.deadline);
    }
}

fn wakes<F: Fabric>(context: &mut Context<F>, role: Role, immediate: bool) -> Verdict {
    const ROUNDS: u64 = 50;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for id in 0..=ROUNDS {
        let target = ReceiveTarget::QueuePair(queue_pair);
        station.domain.post_receive(target, WorkId(id), None)?;
    }
    let region = context.region(64, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    let key = context.borrow_key()?;
    context.meet_at(&mut station)?;
    // Alternately, each role sleeps while the other works.
    for round in 0..ROUNDS {
        for turn in [Role::First, Role::Second] {
            if turn != role {
                sleep_for_receive(context, &mut station, round)?;
                continue;
            }
            if round % 8 == 0 {
                // Time for the other role to fall asleep; the case passes without that too.
                station.rest(2 * MILLISECOND)?;
            }
            let data = Data::Inline(&[]);
            let operation = if immediate {
                Operation::Write { data, key, offset: 0, immediate: Some(1) }
            } else {
                Operation::Send { data, immediate: None, to: None }
            };
            station.post(queue_pair, round, operation, true)?;
            station.sent(round)?;
        }
    }
    context.meet_at(&mut station)
}

fn own_completion<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        // Posts the RECV late.
        expect_eq!(context.hear_at(&mut station)?, b"sent");
        station.rest(5 * MILLISECOND)?;
        station.receive_on(queue_pair, 1, 64)?;
        station.received(1, b"late")?;
        return context.meet_at(&mut station);
    }
    station.send(queue_pair, 9, b"late", true)?;
    context.tell(b"sent")?;
    loop {
        let armed = station.domain.arm(WaitMode::Event);
        station.poll(station.sends);
        if let Some(got) = station.take(station.sends) {
            station.domain.disarm(armed);
            expect_eq!((got.id.0, got.status), (9, CompletionStatus::Success));
            return context.meet_at(&mut station);
        }
        expect!(context.now() < context.deadline, "the SEND does not complete");
        let _ = station.domain.wait(armed, context.deadline);
    }
}

fn waker<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let host = context.fabric.host().clone();
    // A sleep may end by itself before a slow thread wakes it; in ten rounds the waker has to be seen.
    let mut woken = 0;
    while woken < 10 {
        expect!(context.now() < context.deadline, "a waker ended {woken} waits only");
        let called = Arc::new(AtomicBool::new(false));
        let (waker, calls, other) = (station.domain.waker(), Arc::clone(&called), host.clone());
        let body = move || {
            other.sleep(other.now() + MILLISECOND);
            calls.store(true, Ordering::Release);
            waker.wake();
        };
        let armed = station.domain.arm(WaitMode::Event);
        let task = host.spawn("waker", Box::new(body))?;
        let wake = station.domain.wait(armed, context.deadline);
        woken += (wake == Wake::Arrived && called.load(Ordering::Acquire)) as u32;
        task.join();
        // A late call would end the next wait at once, and then every later call would be late, too.
        let armed = station.domain.arm(WaitMode::Event);
        let _ = station.domain.wait(armed, 0);
    }
    Ok(())
}

fn early_waker<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    for round in 0..20 {
        let armed = station.domain.arm(WaitMode::Event);
        station.domain.waker().wake();
        let wake = station.domain.wait(armed, context.deadline);
        expect_eq!(wake, Wake::Arrived, "round {round}: a wake after arm");
        // Or before it: "the current or next wait".
        station.domain.waker().wake();
    }
    Ok(())
}

fn between<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for round in 0..30 {
        if role == Role::First {
            station.receive_on(queue_pair, round, 64)?;
            // Takes leftovers of earlier rounds.
            station.rest(0)?;
            let armed = station.domain.arm(WaitMode::Event);
            expect_eq!(station.poll(station.receives), 0, "nothing was sent yet");
            context.tell(b"armed")?;
            expect_eq!(context.hear()?, b"posted");
            let wake = station.domain.wait(armed, context.deadline);
            expect_eq!(wake, Wake::Arrived, "round {round}: what came after arm ends the wait");
            station.received(round, b"between")?;
        } else {
            expect_eq!(context.hear_at(&mut station)?, b"armed");
            station.send(queue_pair, round, b"between", true)?;
            context.tell(b"posted")?;
            station.sent(round)?;
        }
    }
    context.meet_at(&mut station)
}

fn disarm<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 40;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for round in 0..ROUNDS {
        if role == Role::First {
            station.receive_on(queue_pair, round, 64)?;
            context.tell(b"next")?;
            // Armed and disarmed several times, in both modes, before the sleep.
            for mode in [WaitMode::Event, WaitMode::Busy, WaitMode::Event] {
                let armed = station.domain.arm(mode);
                station.domain.disarm(armed);
            }
            sleep_for_receive(context, &mut station, round)?;
        } else {
            expect_eq!(context.hear_at(&mut station)?, b"next");
            station.send(queue_pair, round, b"x", true)?;
            station.sent(round)?;
        }
    }
    context.meet_at(&mut station)
}

/// A single wait may end early without a reason; it is an error if all do.
fn plain_write<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 20;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let key = context.borrow_key()?;
        for round in 1..=ROUNDS {
            expect_eq!(context.hear_at(&mut station)?, b"armed");
            let data = Data::Buffer(station.buffer(&round.to_le_bytes())?);
            let operation = Operation::Write { data, key, offset: 0, immediate: None };
            station.post(queue_pair, round, operation, true)?;
            station.sent(round)?;
            context.tell(b"written")?;
        }
        return context.meet_at(&mut station);
    }
    let region = context.region(64, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    let mut slept = 0;
    for round in 1..=ROUNDS {
        let armed = station.domain.arm(WaitMode::Event);
        context.tell(b"armed")?;
        expect_eq!(context.hear()?, b"written");
        slept += (station.domain.wait(armed, context.now() + 2 * MILLISECOND) == Wake::TimedOut) as u64;
        station.until_word(&region, 0, |word| word == round)?;
    }
    expect!(slept > ROUNDS / 4, "plain WRITEs ended {} of {ROUNDS} event waits", ROUNDS - slept);
    context.meet_at(&mut station)
}

/// Alternately, the WRITE comes between arming and sleeping, and during the sleep.
fn write_wakes<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 40;
    let mut station = context.station()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::Second {
        let key = context.borrow_key()?;
        for round in 1..=ROUNDS {
            expect_eq!(context.hear_at(&mut station)?, b"armed");
            if round % 2 == 0 {
                station.rest(MILLISECOND)?;
            }
            // Short and long, inline and from registered memory.
            if round % 4 < 2 {
                let parts: &[&[u8]] = &[&round.to_le_bytes()];
                let inline = context.fabric.capabilities().max_inline >= 8;
                let data = if inline { Data::Inline(parts) } else { Data::Buffer(station.buffer(parts[0])?) };
                let operation = Operation::Write { data, key, offset: 0, immediate: None };
                station.post(queue_pair, round, operation, true)?;
            } else {
                let mut bytes = vec![0; 4096];
                bytes[..8].copy_from_slice(&round.to_le_bytes());
                let data = Data::Buffer(station.buffer(&bytes)?);
                let operation = Operation::Write { data, key, offset: 0, immediate: None };
                station.post(queue_pair, round, operation, true)?;
            }
            station.sent(round)?;
            if round % 2 == 1 {
                context.tell(b"written")?;
            }
        }
        return context.meet_at(&mut station);
    }
    let region = context.region(4096, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    station.domain.watch(&region);
    for round in 1..=ROUNDS {
        // A sleep may end early without a reason, but not later than the WRITE.
        let mut told = false;
        loop {
            let armed = station.domain.arm(WaitMode::Write);
            if region.load(0) == round {
                station.domain.disarm(armed);
                break;
            }
            if !std::mem::replace(&mut told, true) {
                context.tell(b"armed")?;
                if round % 2 == 1 {
                    expect_eq!(context.hear()?, b"written");
                }
            }
            let wake = station.domain.wait(armed, context.deadline);
            expect!(
                wake != Wake::TimedOut || context.now() < context.deadline,
                "round {round}: no WRITE woke it"
            );
        }
    }
    station.domain.unwatch(&region);
    context.meet_at(&mut station)
}

/// Completions end such a wait too, even if their queue was created without events.
fn send_ends_write_wait<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let mut station = context.station_without_events()?;
    let config = station.reliable();
    let queue_pair = context.connect(&mut station, &config)?;
    for round in 0..30 {
        if role == Role::First {
            station.receive_on(queue_pair, round, 64)?;
            let armed = station.domain.arm(WaitMode::Write);
            expect_eq!(station.poll(station.receives), 0, "nothing was sent yet");
            context.tell(b"armed")?;
            expect_eq!(context.hear()?, b"posted");
            let wake = station.domain.wait(armed, context.deadline);
            expect_eq!(wake, Wake::Arrived, "round {round}");
            station.received(round, b"between")?;
        } else {
            expect_eq!(context.hear_at(&mut station)?, b"armed");
            station.send(queue_pair, round, b"between", true)?;
            context.tell(b"posted")?;
            station.sent(round)?;
        }
    }
    context.meet_at(&mut station)
}

fn timeout<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    let until = context.now() + 5 * MILLISECOND;
    while context.now() < until {
        let armed = station.domain.arm(WaitMode::Event);
        let _ = station.domain.wait(armed, until);
    }
    // A deadline that has already passed.
    let armed = station.domain.arm(WaitMode::Event);
    let _ = station.domain.wait(armed, 0);
    Ok(())
}

fn busy<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let mut station = context.station()?;
    for _ in 0..10 {
        let armed = station.domain.arm(WaitMode::Busy);
        let _ = station.domain.wait(armed, context.now() + MILLISECOND);
    }
    expect!(context.now() < context.deadline);
    Ok(())
}
