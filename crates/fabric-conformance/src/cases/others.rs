//! Domains whose events wake the thread of another domain: none is missed, and none comes after a disarming.

use super::RC;
use crate::case::{Case, Need, Role};
use crate::context::{Context, MILLISECOND};
use crate::failure::{Failure, Verdict};
use crate::station::Station;
use crate::{expect, expect_eq};
use dunlin_fabric::{
    Access, AnyWaker, Armed, Data, Fabric, Host, Link, Nanos, Operation, QueuePairId, QueuePairState,
    RegionKey, ThreadDomain, WaitMode, Wake,
};

/// Waits that may end without their event: a control thread can be late on a machine without free cores.
const MAY_BE_LATE: u64 = 3;

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    const NEEDS: &[Need] = &[RC, Need::Events, Need::WakesOthers];
    all.extend([
        Case::pair("armed_domain_wakes_another", NEEDS, |c, r| wakes(c, r, 0)),
        Case::pair("event_between_arm_and_the_other_wait_is_not_lost", NEEDS, |c, r| {
            wakes(c, r, 2 * MILLISECOND)
        }),
        Case::pair("end_of_a_connection_wakes_another", NEEDS, |c, r| ends(c, r, false)),
        Case::pair("disarmed_domain_wakes_no_other", NEEDS, disarmed),
        Case::pair("later_waker_replaces_the_earlier", NEEDS, |c, r| ends(c, r, true)),
        Case::pair("domain_destroyed_while_armed", NEEDS, destroyed),
    ]);
}

/// The domain with the requests, and its only queue pair.
struct Initiator<F: Fabric> {
    station: Station<F>,
    queue_pair: QueuePairId,
    key: RegionKey,
}

impl<F: Fabric> Initiator<F> {
    /// Makes it at the first role, with memory of the second one.
    fn new(context: &Context<F>) -> Result<Self, crate::failure::Failure> {
        let mut station = context.station()?;
        let config = station.reliable();
        let queue_pair = context.connect(&mut station, &config)?;
        Ok(Initiator { station, queue_pair, key: context.borrow_key()? })
    }

    fn write(&mut self, id: u64) -> Verdict {
        let data = Data::Buffer(self.station.buffer(&id.to_le_bytes())?);
        let operation = Operation::Write { data, key: self.key, offset: 0, immediate: None };
        Ok(self.station.post(self.queue_pair, id, operation, true)?)
    }

    /// Returns whether the WRITE has completed.
    fn poll(&mut self) -> bool {
        self.station.poll(self.station.sends) > 0
    }
}

/// The second role: memory for WRITEs.
fn target<F: Fabric>(context: &Context<F>) -> Result<Station<F>, crate::failure::Failure> {
    let mut station = context.station()?;
    let config = station.reliable();
    context.connect(&mut station, &config)?;
    let region = context.region(64, Access::WRITE)?;
    context.lend(&region, Access::WRITE)?;
    // The grant keeps the memory.
    Ok(station)
}

/// Waits at an armed domain for an event of another one; returns whether none came, although the wait ended before its
/// time.
fn is_missed<F: Fabric>(context: &Context<F>, domain: &mut F::Domain, armed: Armed, until: Nanos) -> bool {
    domain.wait(armed, until.min(context.deadline)) == Wake::TimedOut && context.now() < until
}

/// The initiator, the domain that waits, and the waker of that.
type Waiting<F> = (Initiator<F>, <F as Fabric>::Domain, AnyWaker);

/// Makes the domain that waits, its waker, and the one that writes; the other role is the target, and is done.
fn waiting<F: Fabric>(context: &mut Context<F>, role: Role) -> Result<Option<Waiting<F>>, Failure> {
    if role == Role::Second {
        let mut station = target(context)?;
        return context.meet_at(&mut station).map(|()| None);
    }
    let initiator = Initiator::new(context)?;
    let other = context.fabric.domain()?;
    let waker = AnyWaker::new(other.waker());
    Ok(Some((initiator, other, waker)))
}

/// The completion comes before, at the same time as, or after the arming and the wait.
fn wakes<F: Fabric>(context: &mut Context<F>, role: Role, pause: Nanos) -> Verdict {
    const ROUNDS: u64 = 40;
    let Some((mut initiator, mut other, waker)) = waiting(context, role)? else { return Ok(()) };
    let mut late = 0;
    for round in 0..ROUNDS {
        initiator.write(round)?;
        loop {
            let armed = other.arm(WaitMode::Event);
            let until = initiator.station.domain.arm_other(&waker);
            if initiator.poll() {
                other.disarm(armed);
                break;
            }
            expect!(context.now() < context.deadline, "round {round}: the WRITE does not complete");
            context.fabric.host().sleep(context.now() + pause);
            late += u64::from(is_missed(context, &mut other, armed, until));
        }
        initiator.station.sent(round)?;
    }
    expect!(late <= MAY_BE_LATE, "no event ended {late} of {ROUNDS} waits");
    context.meet_at(&mut initiator.station)
}

/// The end of a connection during the wait. The waker may have replaced that of a domain where nobody waits.
fn ends<F: Fabric>(context: &mut Context<F>, role: Role, replaces: bool) -> Verdict {
    const ROUNDS: u64 = 6;
    let mut station = context.station()?;
    let (mut other, idle) = (context.fabric.domain()?, context.fabric.domain()?);
    let [waker, earlier] = [&other, &idle].map(|domain| AnyWaker::new(domain.waker()));
    let mut late = 0;
    for round in 0..ROUNDS {
        let link = context.another_link()?;
        let config = station.reliable();
        let queue_pair = context.connect_over(&link, &mut station, &config)?;
        context.meet_at(&mut station)?;
        if role == Role::Second {
            context.fabric.host().sleep(context.now() + 3 * MILLISECOND);
            link.close();
            continue;
        }
        let mut missed = false;
        loop {
            if replaces {
                let _ = station.domain.arm_other(&earlier);
            }
            let armed = other.arm(WaitMode::Event);
            let until = station.domain.arm_other(&waker);
            station.poll(station.sends);
            if station.domain.state(queue_pair) == Some(QueuePairState::Error) {
                other.disarm(armed);
                break;
            }
            expect!(context.now() < context.deadline, "round {round}: the end was not noticed");
            missed = is_missed(context, &mut other, armed, until);
        }
        late += u64::from(missed);
    }
    expect!(late <= 1, "no event ended {late} of {ROUNDS} waits");
    context.meet_at(&mut station)
}

fn disarmed<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 20;
    let Some((mut initiator, mut other, waker)) = waiting(context, role)? else { return Ok(()) };
    let mut slept = 0;
    for round in 0..ROUNDS {
        let armed = other.arm(WaitMode::Event);
        let _ = initiator.station.domain.arm_other(&waker);
        initiator.station.domain.disarm_other();
        initiator.write(round)?;
        initiator.station.sent(round)?;
        slept += u64::from(other.wait(armed, context.now() + 2 * MILLISECOND) == Wake::TimedOut);
    }
    expect!(slept > ROUNDS / 2, "a disarmed domain ended {} of {ROUNDS} waits", ROUNDS - slept);
    // It can be armed again.
    initiator.write(ROUNDS)?;
    let armed = other.arm(WaitMode::Event);
    let until = initiator.station.domain.arm_other(&waker);
    match initiator.poll() {
        true => other.disarm(armed),
        false => expect!(!is_missed(context, &mut other, armed, until), "armed again"),
    }
    initiator.station.sent(ROUNDS)?;
    context.meet_at(&mut initiator.station)
}

fn destroyed<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const ROUNDS: u64 = 10;
    if role == Role::Second {
        for _ in 0..ROUNDS {
            let mut station = target(context)?;
            context.meet_at(&mut station)?;
            expect_eq!(context.hear_at(&mut station)?, b"destroyed");
        }
        return Ok(());
    }
    let mut other = context.fabric.domain()?;
    let waker = AnyWaker::new(other.waker());
    for round in 0..ROUNDS {
        let mut initiator = Initiator::new(context)?;
        context.meet_at(&mut initiator.station)?;
        initiator.write(round)?;
        // Armed for the first or for the second time.
        for _ in 0..1 + round % 2 {
            let _ = initiator.station.domain.arm_other(&waker);
        }
        drop(initiator);
        context.tell(b"destroyed")?;
        // The domain that waits is unharmed.
        let armed = other.arm(WaitMode::Event);
        let wake = other.wait(armed, context.now() + MILLISECOND);
        expect!(matches!(wake, Wake::Arrived | Wake::TimedOut), "round {round}: {wake:?}");
    }
    Ok(())
}
