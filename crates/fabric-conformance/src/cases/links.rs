//! Control connections: messages, listening and dialling, identity.

use crate::case::{Case, Role};
use crate::context::{Context, MILLISECOND};
use crate::failure::Verdict;
use crate::station::pattern;
use crate::{expect, expect_eq, expect_matches};
use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
use dunlin_fabric::{
    AcceptError, Access, Address, DialError, Fabric, Host, Link, LinkError, ListenError, Listener, Scheme,
    Signal,
};

pub(super) fn add<F: Fabric>(all: &mut Vec<Case<F>>) {
    all.extend([
        Case::pair("link_messages_in_order", &[], in_order),
        Case::pair("link_message_of_the_longest_length", &[], longest),
        Case::pair("link_message_too_long", &[], too_long),
        Case::pair("link_receive_times_out", &[], times_out),
        Case::pair("link_messages_before_the_close_still_come", &[], before_close),
        Case::pair("link_backlog_is_bounded", &[], backlog),
        Case::pair("link_signal_is_raised_by_a_message", &[], signal),
        Case::pair("link_peer_identity", &[], identity),
        Case::pair("link_used_by_several_threads", &[], several_threads),
        Case::pair("grants_before_a_message_are_there_with_it", &[], many_grants),
        Case::single("dial_to_nobody", &[], to_nobody),
        Case::single("listen_twice", &[], twice),
        Case::single("address_of_another_fabric", &[], wrong_scheme),
        Case::single("accept_times_out", &[], accept_times_out),
        Case::pair("listener_signal_is_raised_by_a_dial", &[], listener_signal),
        Case::pair("links_outlive_their_listener", &[], outlive),
    ]);
}

fn in_order<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let length = |number: u64| (number * 37 % 600) as usize;
    for number in 0..500 {
        // Alternately, so that no backlog builds up.
        if (number % 2 == 0) == (role == Role::First) {
            context.tell(&pattern(number, length(number)))?;
        } else {
            expect!(context.hear()? == pattern(number, length(number)), "message {number} differs");
        }
    }
    // And some in a row.
    if role == Role::First {
        for number in 0..50 {
            context.tell(&pattern(number, length(number)))?;
        }
        expect_eq!(context.hear()?, b"all");
    } else {
        for number in 0..50 {
            expect!(context.hear()? == pattern(number, length(number)), "message {number} of a row differs");
        }
        expect!(context.link().try_receive()?.is_none(), "more messages than were sent");
        context.tell(b"all")?;
    }
    Ok(())
}

fn longest<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    for length in [MAX_CONTROL_MESSAGE, MAX_CONTROL_MESSAGE - 1, 0] {
        let got = context.exchange(&pattern(9, length))?;
        expect!(got == pattern(9, length), "a message of {length} bytes differs");
    }
    Ok(())
}

fn too_long<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    for length in [MAX_CONTROL_MESSAGE + 1, 1 << 20] {
        let error = LinkError::TooLong { length, limit: MAX_CONTROL_MESSAGE };
        expect_eq!(context.link().send(&vec![0; length]), Err(error));
    }
    // No part of it was sent.
    expect_eq!(context.exchange(b"next")?, b"next");
    Ok(())
}

fn times_out<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    expect_eq!(context.link().receive(0), Err(LinkError::TimedOut), "a time that is over");
    let until = context.now() + 5 * MILLISECOND;
    expect_eq!(context.link().receive(until), Err(LinkError::TimedOut));
    expect!(context.now() >= until, "it gave up before its time");
    expect_eq!(context.link().try_receive(), Ok(None));
    // Only now does either role send.
    if role == Role::First {
        context.fabric.host().sleep(context.now() + 20 * MILLISECOND);
    } else {
        context.fabric.host().sleep(context.now() + 30 * MILLISECOND);
    }
    context.exchange(b"after")?;
    Ok(())
}

fn before_close<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    if role == Role::First {
        for number in 0..20u8 {
            context.tell(&[number; 100])?;
        }
        context.link().close();
        expect_matches!(context.link().send(b"closed"), Err(LinkError::PeerGone(_)));
        return Ok(());
    }
    while context.link().is_alive() {
        expect!(context.now() < context.deadline, "the close was not noticed");
        context.fabric.host().sleep(context.now() + MILLISECOND);
    }
    for number in 0..20u8 {
        expect_eq!(context.hear()?, [number; 100]);
    }
    expect_matches!(context.link().receive(context.deadline), Err(LinkError::PeerGone(_)));
    expect_matches!(context.link().try_receive(), Err(LinkError::PeerGone(_)));
    Ok(())
}

fn backlog<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const MOST: u32 = 20_000;
    let other = context.another_link()?;
    if role == Role::First {
        let mut taken = 0u32;
        let error = loop {
            let mut message = taken.to_le_bytes().to_vec();
            message.resize(MAX_CONTROL_MESSAGE, 7);
            match other.send(&message) {
                Ok(()) => taken += 1,
                Err(error) => break error,
            }
            expect!(taken < MOST, "{MOST} unread messages and no end");
        };
        expect_eq!(error, LinkError::Backlog);
        expect!(taken > 0, "at least one message fits");
        context.tell_number(u64::from(taken))?;
        expect_eq!(context.hear()?, b"read");
        return Ok(());
    }
    let taken = context.hear_number()? as u32;
    for number in 0..taken {
        let message = other.receive(context.deadline)?;
        expect!(message.len() == MAX_CONTROL_MESSAGE && message[..4] == number.to_le_bytes());
    }
    context.tell(b"read")
}

fn signal<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let signal = context.fabric.host().signal();
    if role == Role::Second {
        context.tell(b"early")?;
        context.link().subscribe(signal.clone().into());
        expect_eq!(context.hear()?, b"subscribed");
    } else {
        // An earlier message raises the signal too, whether or not it has arrived yet.
        let seen = signal.seen();
        context.link().subscribe(signal.clone().into());
        expect!(signal.wait(seen, context.deadline), "a message that came before raises the signal");
        expect_eq!(context.hear()?, b"early");
        context.tell(b"subscribed")?;
    }
    for round in 0..10u8 {
        if role == Role::Second {
            expect_eq!(context.hear()?, [round]);
            context.tell(&[round])?;
            continue;
        }
        let seen = signal.seen();
        context.tell(&[round])?;
        expect!(signal.wait(seen, context.deadline), "a message raises the signal");
        expect_eq!(context.hear()?, [round]);
    }
    Ok(())
}

fn identity<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let theirs = context.exchange(&std::process::id().to_le_bytes())?;
    if let Some(process) = context.link().peer().process {
        expect_eq!(process.to_le_bytes().to_vec(), theirs, "the peer's process id");
    }
    Ok(())
}

fn several_threads<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const EACH: u32 = 40;
    if role == Role::First {
        let host = context.fabric.host().clone();
        let mut tasks = Vec::new();
        for thread in 0..3u32 {
            let link = context.link().clone();
            let body = move || {
                for number in 0..EACH {
                    // The other role checks the messages that arrive.
                    let _ = link.send(&[thread.to_le_bytes(), number.to_le_bytes()].concat());
                }
            };
            tasks.push(host.spawn("sender", Box::new(body))?);
        }
        tasks.into_iter().for_each(|task| task.join());
        expect_eq!(context.hear()?, b"all");
        return Ok(());
    }
    let mut next = [0u32; 3];
    for _ in 0..3 * EACH {
        let message = context.hear()?;
        let thread = next.iter().enumerate().position(|(thread, number)| {
            message == [(thread as u32).to_le_bytes(), number.to_le_bytes()].concat()
        });
        let Some(thread) = thread else {
            return Err(crate::Failure::new(format!("{message:?} is torn or out of order")));
        };
        next[thread] += 1;
    }
    context.tell(b"all")
}

fn many_grants<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    const GRANTS: usize = 40;
    let mut station = context.station()?;
    let config = station.config(dunlin_fabric::Transport::ReliableConnection);
    let queue_pair = context.connect(&mut station, &config)?;
    if role == Role::First {
        let mut regions = Vec::new();
        for number in 0..GRANTS {
            let region = context.region(64, Access::READ)?;
            region.store(0, number as u64);
            // Granted, sent, and used at once.
            context.lend(&region, Access::READ)?;
            regions.push(region);
        }
        return context.meet_at(&mut station);
    }
    let mut keys = Vec::new();
    for number in 0..GRANTS as u64 {
        let key = context.borrow_key()?;
        expect!(!keys.contains(&key), "two grants have one key");
        keys.push(key);
        let into = station.arena.reserve(8)?;
        let from = dunlin_fabric::RemoteSlice { key, offset: 0, length: 8 };
        let read = dunlin_fabric::Operation::Read { from, into };
        station.post(queue_pair, number, read, true)?;
        let got = station.sent(number)?;
        expect_eq!(got.buffer.as_deref(), Some(&number.to_le_bytes()[..]));
    }
    context.meet_at(&mut station)
}

fn to_nobody<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let result = context.fabric.dial(&context.address, context.now() + 50 * MILLISECOND);
    expect_matches!(result, Err(DialError::NobodyListens { .. }));
    Ok(())
}

fn twice<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let first = context.fabric.listen(&context.address)?;
    expect_eq!(first.address(), context.address);
    expect_matches!(context.fabric.listen(&context.address), Err(ListenError::InUse { .. }));
    drop(first);
    let again = context.fabric.listen(&context.address)?;
    expect_eq!(again.address(), context.address);
    drop(again);
    let result = context.fabric.dial(&context.address, context.now() + 50 * MILLISECOND);
    expect_matches!(result, Err(DialError::NobodyListens { .. }));
    Ok(())
}

fn wrong_scheme<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let ours = context.address.scheme();
    let theirs = if ours == Scheme::Shm { Scheme::Sim } else { Scheme::Shm };
    let address = Address::new(theirs, "elsewhere")?;
    expect_matches!(context.fabric.listen(&address), Err(ListenError::WrongScheme(_)));
    expect_matches!(context.fabric.dial(&address, context.deadline), Err(DialError::WrongScheme(_)));
    Ok(())
}

fn accept_times_out<F: Fabric>(context: &mut Context<F>, _: Role) -> Verdict {
    let listener = context.fabric.listen(&context.address)?;
    let until = context.now() + 5 * MILLISECOND;
    expect_matches!(listener.accept(until), Err(AcceptError::TimedOut));
    expect!(context.now() >= until, "it gave up before its time");
    expect!(listener.try_accept()?.is_none());
    Ok(())
}

/// Returns a second address, derived from the case's own.
fn elsewhere<F: Fabric>(context: &Context<F>) -> Result<Address, crate::Failure> {
    let address = &context.address;
    let name = match address.host_and_port() {
        Some((host, port)) => {
            let provider = address.provider().map(|provider| format!("{provider}:")).unwrap_or_default();
            format!("{provider}{host}:{}", port + 1)
        }
        None => format!("{}-2", address.name()),
    };
    Ok(Address::new(address.scheme(), &name)?)
}

fn listener_signal<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let address = elsewhere(context)?;
    if role == Role::First {
        let listener = context.fabric.listen(&address)?;
        let signal = context.fabric.host().signal();
        listener.subscribe(signal.clone());
        let seen = signal.seen();
        context.tell(b"listening")?;
        expect!(signal.wait(seen, context.deadline), "a dial raises the listener's signal");
        let link = listener.accept(context.deadline)?;
        expect_eq!(link.receive(context.deadline)?, b"hello");
        context.exchange(b"done")?;
        return Ok(());
    }
    expect_eq!(context.hear()?, b"listening");
    let link = context.fabric.dial(&address, context.deadline)?;
    link.send(b"hello")?;
    context.exchange(b"done")?;
    Ok(())
}

fn outlive<F: Fabric>(context: &mut Context<F>, role: Role) -> Verdict {
    let address = elsewhere(context)?;
    if role == Role::First {
        let listener = context.fabric.listen(&address)?;
        context.tell(b"listening")?;
        let link = listener.accept(context.deadline)?;
        drop(listener);
        link.send(b"still here")?;
        expect_eq!(link.receive(context.deadline)?, b"so am I");
        context.exchange(b"done")?;
        return Ok(());
    }
    expect_eq!(context.hear()?, b"listening");
    let link = context.fabric.dial(&address, context.deadline)?;
    expect_eq!(link.receive(context.deadline)?, b"still here");
    link.send(b"so am I")?;
    context.exchange(b"done")?;
    Ok(())
}
