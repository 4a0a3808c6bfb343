//! A client of a swarm that makes calls as futures: one asynchronous client, or several clones that share its queue
//! pairs, each on a thread of its own.

use super::book::{End, answer_to, request};
use super::client::{LAST_CALLS, Part, end_of};
use super::draw::{PATIENCE, size};
use super::executor::block_on;
use super::server::{ECHO, POOLED, PULLED};
use dunlin_fabric::{Fabric, Host, Task, WithSources};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rpc::{AsyncClient, AsyncHub, CallError};

/// Plays a client's part.
pub(super) fn play(part: Part) {
    let Some(client) = connect(&part) else { return };
    let mut others = Vec::new();
    for thread in 1..part.drawn.threads {
        let (client, (name, own)) = (client.clone(), part.of_thread(thread));
        others.extend(part.sim.host().spawn(&name, Box::new(move || play_clone(&own, client))).ok());
    }
    play_clone(&part, client);
    others.into_iter().for_each(Task::join);
}

/// Connects, with retries: the server may be away.
fn connect(part: &Part) -> Option<AsyncClient<Sim>> {
    let host = part.sim.host();
    let hub = match AsyncHub::new(&part.sim) {
        Ok(hub) => hub,
        Err(error) => {
            // A killed process does not return from this call.
            host.sleep(host.now() + 1);
            part.book.violate(format!("no hub: {error}"));
            return None;
        }
    };
    let until = host.now() + PATIENCE;
    loop {
        match AsyncClient::connect(&hub, &part.address, part.drawn.config.clone()) {
            Ok(client) => return Some(client),
            Err(_) if host.now() < until => host.sleep(host.now() + 100_000),
            Err(error) => {
                part.book.violate(format!("client {}: {}", part.first, WithSources(&error)));
                return None;
            }
        }
    }
}

/// Plays the part of one clone: several calls at a time.
fn play_clone(part: &Part, client: AsyncClient<Sim>) {
    let (host, workers) = (part.sim.host().clone(), client.workers().max(1) as u64);
    let mut random = Random::new(part.seed, 4);
    let mut next = part.first;
    let mut sent = 0;
    while sent < part.drawn.calls || !part.weather.is_calm() {
        if sent >= part.drawn.calls {
            host.sleep(host.now() + 50_000);
            continue;
        }
        if part.drawn.quits_after.is_some_and(|quits| sent >= quits) {
            break;
        }
        // Several at a time; some futures are dropped before their end.
        let together = 1 + random.below(6);
        let mut calls = Vec::new();
        for _ in 0..together {
            let (number, size) = (next, size(&mut random));
            next += 1;
            let function = match random.below(8) {
                0 => POOLED,
                1 if part.pulls => PULLED,
                _ => ECHO,
            };
            let own = part.drawn.own_time(&mut random);
            part.begin(number, function, own);
            part.sim.tell(|| format!("call {number} of {size} bytes is made"));
            let (client, bytes) = (client.within_or_default(own), request(number, size));
            // The calls of a clone keep their order at a worker that it names.
            let call = match part.drawn.threads {
                1 => client.call(function, &bytes),
                _ => client.call_on(random.below(workers) as usize, function, &bytes),
            };
            calls.push((number, size, own, call));
        }
        sent += together;
        for (number, size, own, call) in calls {
            if random.one_in(20) {
                drop(call);
                part.book.ended(number, End::Abandoned);
                continue;
            }
            // Polled only from here on. Reconnecting runs on a separate thread.
            let (since, lateness) = (host.now(), part.lateness.call);
            let ended =
                block_on(&host, since + 2 * part.drawn.config.call_nanos() + lateness + PATIENCE, call);
            part.check_deadline(number, since, lateness, own);
            match ended {
                Some(Ok(response)) => {
                    if *response != *answer_to(&request(number, size)) {
                        part.book.violate(format!("call {number} of {size} bytes got a wrong answer"));
                    }
                    part.book.ended(number, End::Answered);
                }
                Some(Err(error)) => {
                    part.check_connection(number, &error);
                    part.book.ended(number, end_of(&part.book, number, &error));
                    if matches!(error, CallError::NotExecuted(_)) {
                        host.sleep(host.now() + random.below(100_000));
                    }
                }
                None => part.book.violate(format!("call {number} of a future does not end")),
            }
        }
    }
    if part.drawn.quits_after.is_some() {
        return;
    }
    for _ in 0..LAST_CALLS {
        let until = host.now() + part.patience;
        loop {
            let number = next;
            next += 1;
            let bytes = request(number, 100);
            match block_on(&host, until, client.call(ECHO, &bytes)) {
                Some(Ok(response)) => {
                    if *response != *answer_to(&bytes) {
                        part.book.violate(format!("call {number} got a wrong answer"));
                    }
                    part.book.ended(number, End::Answered);
                    break;
                }
                Some(Err(error)) if host.now() < until => {
                    part.book.ended(number, end_of(&part.book, number, &error));
                    part.rest_out_of_step();
                }
                _ => {
                    let first = part.first;
                    return part
                        .book
                        .violate(format!("client {first}: no future succeeds though all is calm"));
                }
            }
        }
    }
}
