//! A swarm of runs in virtual time: protocols, sizes, windows, batches, clients that close midway, servers that shut
//! down midway, all from a seed. Whatever happens, every call ends exactly once, none is executed twice, an answer is
//! the right one, and what was executed is accounted for.

#![allow(missing_docs, clippy::disallowed_types)]

use dunlin_fabric::{Address, Fabric, Host, Scheme};
use dunlin_fabric_sim::{ChanceTiming, Settings, Sim, TimingSettings};
use dunlin_rpc::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// SplitMix64: chance from the seed of a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// What became of the calls of a run, by number.
#[derive(Default)]
struct Book {
    executed: BTreeMap<u64, u32>,
    ended: BTreeMap<u64, Outcome>,
    sent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Ok,
    Maybe,
    Not,
}

fn payload(number: u64, size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..size as u64).map(|i| (i * 31 + number * 17) as u8).collect();
    bytes.extend(number.to_le_bytes());
    bytes
}

fn number_of(payload: &[u8]) -> u64 {
    payload.last_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number))
}

const ECHO: u16 = 1;
const POOLED: u16 = 2;

fn serve(fabric: &Sim, address: &Address, dice: &mut Dice, book: &Arc<Mutex<Book>>) -> Server<Sim> {
    let execute = |book: &Mutex<Book>, payload: &[u8]| {
        *book.lock().unwrap().executed.entry(number_of(payload)).or_default() += 1;
    };
    let pool_book = Arc::clone(book);
    let host = fabric.host().clone();
    let config = ServerConfig {
        workers: 1 + dice.roll(2) as u16,
        window: 4 << dice.roll(5),
        ..ServerConfig::default()
    };
    ServerBuilder::new(fabric)
        .config(config)
        .function(ECHO, FunctionMode::Worker)
        .function(POOLED, FunctionMode::Pool)
        .pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
            host.sleep(host.now() + 20_000);
            execute(&pool_book, request.payload);
            Ok(reply.write(request.payload)?)
        })
        .serve(address, |_| {
            let book = Arc::clone(book);
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                execute(&book, request.payload);
                Ok(reply.write(request.payload)?)
            })
        })
        .unwrap()
}

/// Takes what is done; checks each result.
fn collect(client: &mut Client<Sim>, open: &mut BTreeMap<CallId, (u64, usize)>, book: &Mutex<Book>) {
    while let Some(id) = client.next_done() {
        let Some((number, size)) = open.remove(&id) else { panic!("{id:?} ended twice") };
        let outcome = match client.outcome(id) {
            Ok(bytes) => {
                assert!(bytes == payload(number, size), "call {number} has another's answer");
                Outcome::Ok
            }
            Err(CallError::MaybeExecuted(_)) => Outcome::Maybe,
            Err(CallError::NotExecuted(_)) => Outcome::Not,
            Err(error) => panic!("{error}"),
        };
        client.forget(id);
        assert_eq!(book.lock().unwrap().ended.insert(number, outcome), None, "call {number} ended twice");
    }
}

fn client(fabric: &Sim, address: &Address, plan: Plan, mut dice: Dice, first: u64, book: &Mutex<Book>) {
    let config = ClientConfig {
        window: 1 + dice.roll(64) as u16,
        ring_bytes: (16 * 1024) << dice.roll(2),
        // A call that a client gives up by its deadline is one more way to end.
        timeout: if dice.roll(4) == 0 { 30_000 } else { 10_000_000_000 },
        ..ClientConfig::with_plan(plan)
    };
    let Ok(mut client) = Client::connect(fabric, address, config) else { return };
    let mut open = BTreeMap::new();
    let quits_after = if dice.roll(4) == 0 { dice.roll(60) } else { u64::MAX };
    let batched = dice.roll(2) == 0;
    for i in 0..40 + dice.roll(60) {
        let number = first + i;
        let size = [0, 8, 24, 25, 200, 4000, 4088, 4089, 9000][dice.roll(9) as usize];
        let function = if dice.roll(5) == 0 { POOLED } else { ECHO };
        let worker = dice.roll(client.workers().max(1) as u64) as usize;
        let bytes = payload(number, size);
        let sent = if batched && dice.roll(4) != 0 {
            client.push_on(worker, function, &bytes)
        } else {
            client.submit_on(worker, function, &bytes)
        };
        match sent {
            Ok(id) => {
                book.lock().unwrap().sent += 1;
                assert_eq!(open.insert(id, (number, size)), None);
            }
            Err(CallError::NotExecuted(Cause::WindowFull)) => {
                if let Some(id) = client.wait_any() {
                    // Given back to be found again: the outcome stays until it is forgotten.
                    let Some((number, size)) = open.remove(&id) else { panic!("{id:?} ended twice") };
                    let outcome = match client.outcome(id) {
                        Ok(bytes) => {
                            assert!(bytes == payload(number, size));
                            Outcome::Ok
                        }
                        Err(error) if error.certainty() == Certainty::MaybeExecuted => Outcome::Maybe,
                        Err(_) => Outcome::Not,
                    };
                    client.forget(id);
                    assert_eq!(book.lock().unwrap().ended.insert(number, outcome), None);
                } else {
                    client.progress();
                    fabric.host().sleep(fabric.host().now() + 1000);
                }
            }
            Err(CallError::NotExecuted(_)) => {}
            Err(error) => panic!("not sent, yet {error}"),
        }
        if dice.roll(3) == 0 {
            client.progress();
            collect(&mut client, &mut open, book);
        }
        if i >= quits_after {
            // Calls that are open now have no outcome: nobody asks any more.
            for (number, _) in open.values() {
                book.lock().unwrap().ended.insert(*number, Outcome::Maybe);
            }
            return client.close();
        }
    }
    while !open.is_empty() {
        let Some(id) = client.wait_any() else { panic!("{} calls never ended", open.len()) };
        let Some((number, size)) = open.remove(&id) else { panic!("{id:?} ended twice") };
        let outcome = match client.outcome(id) {
            Ok(bytes) => {
                assert!(bytes == payload(number, size));
                Outcome::Ok
            }
            Err(error) if error.certainty() == Certainty::MaybeExecuted => Outcome::Maybe,
            Err(_) => Outcome::Not,
        };
        client.forget(id);
        assert_eq!(book.lock().unwrap().ended.insert(number, outcome), None);
    }
}

fn run(seed: u64) -> (u64, u64) {
    let book = Arc::new(Mutex::new(Book::default()));
    let inner = Arc::clone(&book);
    let mut dice = Dice(seed);
    let settings = Settings {
        timing: TimingSettings::Chance(ChanceTiming {
            latency: 100 + dice.roll(2000),
            jitter: dice.roll(3000),
            landing: dice.roll(2000),
        }),
        spurious: dice.roll(20),
        preemption: dice.roll(12),
        ..Settings::default()
    };
    let report = Sim::run_with(settings, seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "swarm").unwrap();
        let server = serve(&fabric, &address, &mut dice, &inner);
        let tasks: Vec<_> = (0..1 + dice.roll(3))
            .map(|number| {
                let plan = loop {
                    let protocol = &PROTOCOLS[dice.roll(PROTOCOLS.len() as u64) as usize];
                    let mode = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];
                    let plan = protocol.plan(mode[dice.roll(3) as usize]);
                    if plan.check(fabric.capabilities()).is_ok() {
                        break plan;
                    }
                };
                let (fabric, address, book) = (fabric.clone(), address.clone(), Arc::clone(&inner));
                let own = Dice(seed ^ (number + 1) << 32);
                let host = fabric.host().clone();
                let body = move || client(&fabric, &address, plan, own, number * 1_000_000, &book);
                host.spawn(&format!("client-{number}"), Box::new(body)).unwrap()
            })
            .collect();
        let host = fabric.host();
        match dice.roll(3) {
            0 => {
                host.sleep(host.now() + dice.roll(300_000));
                server.shutdown(1_000_000_000);
                tasks.into_iter().for_each(dunlin_fabric::Task::join);
            }
            1 => {
                host.sleep(host.now() + dice.roll(300_000));
                drop(server);
                tasks.into_iter().for_each(dunlin_fabric::Task::join);
            }
            _ => {
                tasks.into_iter().for_each(dunlin_fabric::Task::join);
                server.shutdown(1_000_000_000);
            }
        }
    });
    report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let book = book.lock().unwrap();
    assert_eq!(book.ended.len() as u64, book.sent, "seed {seed}: every call that was sent has ended");
    for (number, times) in &book.executed {
        assert_eq!(*times, 1, "seed {seed}: call {number} was executed {times} times");
        let outcome = book.ended.get(number);
        assert!(
            matches!(outcome, Some(Outcome::Ok | Outcome::Maybe)),
            "seed {seed}: call {number} was executed, and its caller told {outcome:?}"
        );
    }
    let ok = book.ended.iter().filter(|(_, outcome)| **outcome == Outcome::Ok);
    for (number, _) in ok.clone() {
        assert!(book.executed.contains_key(number), "seed {seed}: call {number} is ok, but was not executed");
    }
    (book.sent, ok.count() as u64)
}

#[test]
fn whatever_happens_every_call_is_accounted_for() {
    let (mut sent, mut ok) = (0, 0);
    for seed in 0..200 {
        let (more_sent, more_ok) = run(seed);
        sent += more_sent;
        ok += more_ok;
    }
    // The swarm is worth something only if calls succeed and fail in it.
    assert!(sent > 10_000 && ok > sent / 2 && ok < sent * 99 / 100, "{ok} of {sent}");
}
