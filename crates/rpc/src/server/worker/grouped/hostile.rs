//! Clients that lie about leases or write where they must not: they lose their connections where it can be told, and no
//! call of anybody else has a wrong answer.

use super::tests::{ECHO, LOAD, Load, plan, serve, serve_counted};
use super::*;
use crate::CompletionMode;
use crate::client::config::ClientConfig;
use crate::client::core::{CallId, Core};
use crate::client::establish::{PreparedLane, greet, negotiate};
use crate::client::lane::SubmitError;
use crate::error::{CallError, Cause};
use crate::grouped::Word;
use crate::path::half::staged::WORD_AT;
use crate::server::ServerBuilder;
use crate::service::{FunctionMode, Reply, Request};
use crate::share::Client;
use dunlin_fabric::RegionKey;
use dunlin_fabric::{Address, Scheme, Task};
use dunlin_fabric_sim::{MachineSettings, Random, Settings, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A client whose lane a test uses as it likes.
pub(super) struct Raw {
    core: Core<Sim>,
    lane: u16,
    /// Calls of [`announce`](Raw::announce).
    calls: Vec<CallId>,
}

impl Raw {
    pub(super) fn connect(fabric: &Sim, address: &Address) -> Self {
        let config = ClientConfig::with_plan(plan(CompletionMode::Busy)).resolved(fabric);
        let tuners = config.tuners(fabric);
        let mut core = Core::new(fabric, config.mode()).unwrap();
        let until = fabric.host().now() + 5_000_000_000;
        let greeting = greet(fabric, address, &config, until).unwrap();
        let prepared = PreparedLane::new(&mut core, &greeting, &config, config.plan.unwrap(), 1, 0).unwrap();
        let ready = negotiate(&greeting, std::slice::from_ref(&prepared), until).unwrap();
        let lane = core.install(&greeting, &config, vec![prepared], &ready, &tuners).unwrap()[0];
        Raw { core, lane, calls: Vec::new() }
    }

    pub(super) fn step(&mut self) {
        self.core.progress();
        let host = self.core.fabric.host();
        host.sleep(host.now() + 1000);
    }

    /// Makes a call and waits for its answer, which begins a lease.
    fn call(&mut self) {
        let Some(id) = self.begin() else { panic!("the lane takes no call") };
        while !self.has_ended(id) {
            self.step();
        }
    }

    /// Begins a call, if the lane takes one.
    fn begin(&mut self) -> Option<CallId> {
        self.core.with_lane(self.lane, |cx, lane| lane.submit(cx, ECHO, b"a call", 0)).ok()
    }

    /// Returns whether a call has ended, which must have its answer, and forgets it then.
    fn has_ended(&mut self, id: CallId) -> bool {
        let has_ended = self.core.is_done(id);
        if has_ended {
            assert_eq!(self.core.outcome(id).unwrap(), b"a call");
            self.core.forget(id);
        }
        has_ended
    }

    /// Begins a call of which the server learns; `false` if the lane takes none.
    fn submit(&mut self, payload: &[u8]) -> bool {
        self.core.with_lane(self.lane, |cx, lane| lane.submit(cx, ECHO, payload, 0)).is_ok()
    }

    /// Fills the window, forgets the calls that are done, and announces everything again.
    pub(super) fn announce(&mut self) {
        while self.calls.len() < 32 {
            let submitted = self.core.with_lane(self.lane, |cx, lane| lane.submit(cx, ECHO, b"greedy", 0));
            let Ok(id) = submitted else { break };
            self.calls.push(id);
        }
        let Raw { core, calls, .. } = self;
        calls.retain(|id| {
            let done = core.is_done(*id);
            if done {
                assert_eq!(core.outcome(*id).unwrap(), b"greedy");
                core.forget(*id);
            }
            !done
        });
        self.step();
        let announced = self.core.with_lane(self.lane, |cx, lane| {
            lane.tx.announce_again(cx).map_err(SubmitError::from).map(|()| 0)
        });
        assert!(announced.is_ok());
    }

    /// Returns the ring that the server READs, the key of the pool, and the own zone's offset in it.
    fn memory(&mut self) -> (Region<<Sim as Fabric>::Memory>, RegionKey, Option<u64>) {
        self.core.lane(self.lane).unwrap().tx.leased_memory()
    }

    /// WRITEs bytes anywhere; `false` if the queue pair takes none.
    fn write(&mut self, key: RegionKey, offset: u64, bytes: &[u8]) -> bool {
        let written = self.core.with_lane(self.lane, |cx, lane| {
            lane.tx.write_anywhere(cx, (key, offset), bytes).map_err(SubmitError::from).map(|()| 0)
        });
        written.is_ok()
    }

    /// Writes a word, true or not.
    fn say(&mut self, tail: u32, heard: u32) {
        assert!(self.may_say(tail, heard));
    }

    /// Writes a word, true or not; `false` if the queue pair is in error.
    fn may_say(&mut self, tail: u32, heard: u32) -> bool {
        let said = self.core.with_lane(self.lane, |cx, lane| {
            let (key, at) = lane.control_line;
            let to = (key, at + WORD_AT);
            let word = Word { tail, heard }.to_wire();
            lane.tx.end.write_word(cx, to, word, None).map_err(SubmitError::from).map(|()| 0)
        });
        said.is_ok()
    }

    /// Waits until the server has closed the connection; `false` if it does not.
    fn is_closed(&mut self) -> bool {
        for _ in 0..10_000 {
            if !self.core.is_usable(self.lane) {
                return true;
            }
            self.step();
        }
        false
    }
}

fn in_virtual_time(body: impl FnOnce(&Sim, &Address) + Send + 'static) {
    Sim::run_with(Settings::default(), 6, move |fabric| {
        let address = Address::new(Scheme::Sim, "lies").unwrap();
        // One group, so that no lease ends.
        let (server, workers, _) = serve(&fabric, &address, Load { group: 40, ..LOAD });
        let honest = ClientConfig::with_plan(plan(CompletionMode::Busy));
        let mut honest = Client::connect(&fabric, &address, honest).unwrap();
        assert_eq!(*honest.call(ECHO, b"before").unwrap(), *b"before");
        body(&fabric, &address);
        assert_eq!(*honest.call(ECHO, b"after").unwrap(), *b"after");
        drop(honest);
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// The words that are lies before the first lease, and during a lease whose requests took one line.
#[test]
fn a_lie_closes_the_connection_of_the_liar() {
    in_virtual_time(|fabric, address| {
        // It has heard of a lease that did not begin; announces more than a ring; announces bytes that are no request.
        for (tail, heard) in [(0, 1), (0, u32::MAX), (ZONE_BYTES / LINE as u32 + 1, 0), (1, 0), (40, 0)] {
            let mut liar = Raw::connect(fabric, address);
            liar.say(tail, heard);
            assert!(liar.is_closed(), "tail {tail}, heard {heard}");
        }
        // It has heard of the end before it came, or of a lease that comes later.
        for (tail, heard) in [(1, 1), (1, 2)] {
            let mut liar = Raw::connect(fabric, address);
            liar.call();
            liar.say(tail, heard);
            assert!(liar.is_closed(), "tail {tail}, heard {heard} during a lease");
        }
    });
}

/// Announcements of requests that were taken already are old, not lies.
#[test]
fn an_old_announcement_is_ignored() {
    in_virtual_time(|fabric, address| {
        let mut client = Raw::connect(fabric, address);
        client.call();
        client.say(0, 0);
        client.say(1, 0);
        client.call();
        assert!(client.core.is_usable(client.lane));
    });
}

/// Whole lines in the zones of others, at random places and times: each has tags, those of the liar's own requests, so
/// none is taken for its tenant's. A request that was overwritten is late: its slice ends, and it is announced again. All
/// requests are executed once. A request of several lines could be changed in its middle: principals are the border.
#[test]
fn lines_in_zones_of_others_make_calls_late_at_worst() {
    const CLIENTS: u64 = 3;
    const CALLS: u64 = 120;
    for seed in 0..2 {
        Sim::run_with(Settings::default(), seed, move |fabric| {
            let address = Address::new(Scheme::Sim, "zones").unwrap();
            let (server, workers, _, executed) = serve_counted(&fabric, &address, LOAD);
            let left = Arc::new(AtomicU64::new(CLIENTS));
            let honest = (0..CLIENTS).map(|number| {
                let (fabric, address, left) = (fabric.clone(), address.clone(), Arc::clone(&left));
                let host = fabric.host().clone();
                let body = move || {
                    let config = ClientConfig::with_plan(plan(CompletionMode::Busy));
                    let mut client = Client::connect(&fabric, &address, config).unwrap();
                    for call in 0..CALLS {
                        let sent = number << 32 | call;
                        assert_eq!(*client.call(ECHO, &sent.to_le_bytes()).unwrap(), sent.to_le_bytes());
                    }
                    left.fetch_sub(1, Ordering::Relaxed);
                };
                host.spawn(&format!("honest-{number}"), Box::new(body)).unwrap()
            });
            let honest: Vec<Task> = honest.collect();
            let mut liar = Raw::connect(&fabric, &address);
            liar.call();
            let (mut random, mut written) = (Random::new(seed, 1), 0);
            let (ring, pool, _) = liar.memory();
            let line = ring.line_out(0);
            while left.load(Ordering::Relaxed) > 0 {
                let own = liar.memory().2;
                // A group of one client has three zones. Requests follow each other from the first line on.
                for _ in 0..16 {
                    let zone = random.below(3) * u64::from(ZONE_BYTES);
                    let at = random.below(u64::from(ZONE_BYTES) / LINE as u64) * LINE as u64;
                    written += u64::from(Some(zone) != own && liar.write(pool, zone + at, &line));
                }
                liar.step();
            }
            honest.into_iter().for_each(Task::join);
            assert!(written > 1_000, "{written}");
            assert_eq!(
                executed.load(Ordering::Relaxed),
                CLIENTS * CALLS + 1,
                "nothing was executed for the liar"
            );
            drop(liar);
            server.shutdown(Duration::from_secs(1));
            workers.into_iter().for_each(Task::join);
        })
        .unwrap();
    }
}

/// With one group no switch tells which requests were taken. A request that was written over ends at its deadline, the
/// client then writes again what is not known to be taken, and its next calls are answered.
#[test]
fn a_request_that_was_written_over_in_a_lone_group_holds_up_no_later_call() {
    Sim::run_with(Settings::default(), 3, |fabric| {
        let address = Address::new(Scheme::Sim, "alone").unwrap();
        let host = fabric.host().clone();
        let handling = host.clone();
        let server = ServerBuilder::new(&fabric)
            .function(ECHO, FunctionMode::Worker)
            .serve(&address, |_| {
                let host = handling.clone();
                Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                    if request.payload == b"slow" {
                        host.sleep(host.now() + 100_000);
                    }
                    Ok(reply.write(request.payload)?)
                })
            })
            .unwrap();
        let config = ClientConfig {
            timeout: Duration::from_millis(2),
            ..ClientConfig::with_plan(plan(CompletionMode::Busy))
        };
        let mut client = Client::connect(&fabric, &address, config).unwrap();
        let mut liar = Raw::connect(&fabric, &address);
        client.call(ECHO, b"leased").unwrap();
        liar.call();
        let (ring, pool, own) = liar.memory();
        let line = ring.line_out(0);
        // The second request lies in the zone while the worker executes the first one.
        let slow = client.submit_on(0, ECHO, b"slow").unwrap();
        host.sleep(host.now() + 20_000);
        let second = client.submit_on(0, ECHO, b"written over").unwrap();
        host.sleep(host.now() + 20_000);
        for zone in (0..2).map(|zone| zone * u64::from(ZONE_BYTES)).filter(|zone| Some(*zone) != own) {
            for at in 0..8 {
                assert!(liar.write(pool, zone + at * LINE as u64, &line));
            }
        }
        liar.step();
        assert_eq!(*client.wait(slow).unwrap(), *b"slow");
        let late = CallError::MaybeExecuted(Cause::DeadlineExceeded);
        assert_eq!(client.wait(second).map(drop), Err(late), "its tag is wrong");
        for _ in 0..20 {
            assert_eq!(*client.call(ECHO, b"later").unwrap(), *b"later");
        }
        drop((client, liar));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// A client whose slice has ended goes on to write into the zone that it had, before and after its word, while others
/// have leases of it.
#[test]
fn writes_after_the_slice_make_calls_late_at_worst() {
    Sim::run_with(Settings::default(), 2, |fabric| {
        let address = Address::new(Scheme::Sim, "late").unwrap();
        let (server, workers, counted, executed) = serve_counted(&fabric, &address, LOAD);
        let connect = || {
            let config = ClientConfig::with_plan(plan(CompletionMode::Busy));
            Client::connect(&fabric, &address, config).unwrap()
        };
        let mut honest = [connect(), connect()];
        let mut liar = Raw::connect(&fabric, &address);
        let mut written = 0;
        for round in 0..200u64 {
            liar.call();
            let (ring, pool, zone) = liar.memory();
            let line = ring.line_out(0);
            for client in &mut honest {
                // The slices of others begin.
                let sent = client.submit_on(0, ECHO, &round.to_le_bytes()).unwrap();
                for at in 0..4 {
                    // The zone that it has, or had last.
                    let zone = zone.unwrap_or(0);
                    written += u64::from(liar.write(pool, zone + at * LINE as u64, &line));
                }
                liar.step();
                assert_eq!(*client.wait(sent).unwrap(), round.to_le_bytes());
            }
        }
        // The lines of the liar in its own zone are of no request, so all calls of the others were executed, and its own.
        assert_eq!(executed.load(Ordering::Relaxed), 600);
        assert!(written > 800 && counted.lock().unwrap()[0].switches > 200, "{written}");
        drop((honest, liar));
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// Words in the lines of others, which lie in the same region: true ones, old ones, and lies. The connection of a client
/// in whose name a lie was told ends with a typed error. No answer is wrong, no request is executed twice, and a new
/// connection works.
#[test]
fn words_in_lines_of_others_end_connections_at_worst() {
    for (seed, heads) in [(4, false), (5, true)] {
        Sim::run_with(Settings::default(), seed, move |fabric| {
            let address = Address::new(Scheme::Sim, "words").unwrap();
            let (server, workers, _, executed) = serve_counted(&fabric, &address, LOAD);
            let connect = || {
                let timeout = Duration::from_millis(20);
                let config = ClientConfig { timeout, ..ClientConfig::with_plan(plan(CompletionMode::Busy)) };
                Client::connect(&fabric, &address, config).unwrap()
            };
            let mut liar = Raw::connect(&fabric, &address);
            liar.call();
            let (key, own) = liar.core.lane(liar.lane).unwrap().control_line;
            let (mut right, mut ended) = (1, 0);
            for round in 0..60u64 {
                let mut client = connect();
                for call in 0..4u64 {
                    if call == 2 {
                        let line = (round % 4) as usize * LINE;
                        let said =
                            Word { tail: [0, 1, 3, 4096][round as usize % 4], heard: round as u32 % 3 };
                        let (at, word) = if heads { (0, 1 << 32 | round) } else { (WORD_AT, said.to_wire()) };
                        if line != own && !liar.write(key, (line + at) as u64, &word.to_le_bytes()) {
                            liar = Raw::connect(&fabric, &address);
                        }
                        liar.step();
                    }
                    match client.call(ECHO, &call.to_le_bytes()) {
                        Ok(answer) => {
                            assert_eq!(*answer, call.to_le_bytes());
                            right += 1;
                        }
                        Err(CallError::NotExecuted(_) | CallError::MaybeExecuted(_)) => ended += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            let all = executed.load(Ordering::Relaxed);
            assert!(
                (right..=right + ended).contains(&all),
                "{right} answers, {ended} errors, {all} executed"
            );
            assert!(right >= 120, "{right} of 240 calls are answered");
            drop(liar);
            server.shutdown(Duration::from_secs(1));
            workers.into_iter().for_each(Task::join);
        })
        .unwrap();
    }
}

/// Beyond the pool, beyond the own line, and in memory that was granted to nobody or to another connection: the fabric
/// refuses the WRITE, and the liar's queue pair is in error.
#[test]
fn the_fabric_refuses_writes_that_the_connection_was_not_granted() {
    in_virtual_time(|fabric, address| {
        let mut other = Raw::connect(fabric, address);
        other.call();
        let (_, of_other, _) = other.memory();
        let pool_bytes = 3 * 40 * u64::from(ZONE_BYTES);
        for case in 0..4 {
            let mut liar = Raw::connect(fabric, address);
            liar.call();
            let (_, pool, _) = liar.memory();
            let line_key = liar.core.lane(liar.lane).unwrap().control_line.0;
            assert_ne!(pool, of_other, "each connection has a key of its own");
            let (key, offset) = [
                (pool, pool_bytes - 32),
                (pool, u64::from(u32::MAX)),
                (line_key, 1 << 16),
                // The key that principals do not share: here that of another connection.
                (of_other, 0),
            ][case];
            assert!(liar.write(key, offset, &[0xa5; LINE]));
            assert!(liar.is_closed(), "case {case}");
        }
        other.call();
    });
}

/// The clients of the server's host are one principal, those of other hosts another. The memory that a liar may write has
/// no zone and no line of the victim, and the fabric refuses the victim's keys.
#[test]
fn clients_of_another_principal_are_out_of_reach() {
    let settings = Settings { machines: vec![MachineSettings::default(); 2], ..Settings::default() };
    Sim::run_with(settings, 8, |fabric| {
        let address = Address::new(Scheme::Sim, "principals").unwrap();
        // One group, so that no lease ends.
        let (server, workers, _) = serve(&fabric, &address, Load { group: 40, ..LOAD });
        let far = fabric.process_on(1);
        for (of_victim, of_liar) in [(&fabric, &far), (&far, &fabric)] {
            let mut victim = Raw::connect(of_victim, &address);
            victim.call();
            let (_, pool, zone) = victim.memory();
            let (line_key, line) = victim.core.lane(victim.lane).unwrap().control_line;
            let zone = zone.expect("a lease");
            for (key, offset) in [(pool, zone), (line_key, line as u64)] {
                let mut liar = Raw::connect(of_liar, &address);
                liar.call();
                assert!(liar.write(key, offset, &[0xa5; LINE]));
                assert!(liar.is_closed());
            }
            // In its own pool the victim's place is that of another one, or of nobody.
            let mut liar = Raw::connect(of_liar, &address);
            liar.call();
            let mut others = Vec::new();
            while liar.memory().2 == Some(zone) || liar.core.lane(liar.lane).unwrap().control_line.1 == line {
                others.push(std::mem::replace(&mut liar, Raw::connect(of_liar, &address)));
                liar.call();
            }
            let (_, own_pool, _) = liar.memory();
            let (own_key, _) = liar.core.lane(liar.lane).unwrap().control_line;
            let word = Word { tail: 77, heard: 3 }.to_wire().to_le_bytes();
            assert!(liar.write(own_key, (line + WORD_AT) as u64, &word));
            // The lines of the victim's next requests, at the time at which these arrive.
            for _ in 0..40 {
                let mut calls = Vec::new();
                for number in 0..64 {
                    if number % 16 == 0 {
                        calls.extend(victim.begin());
                    }
                    let to = zone + number * LINE as u64;
                    // Its queue may be full.
                    while !liar.write(own_pool, to, &[0xa5; LINE]) {
                        assert!(liar.core.is_usable(liar.lane), "its own pool is its own");
                        liar.step();
                    }
                }
                for _ in 0..1_000 {
                    liar.step();
                    victim.step();
                    calls.retain(|id| !victim.has_ended(*id));
                    if calls.is_empty() {
                        break;
                    }
                }
                assert!(calls.is_empty(), "requests are lost");
            }
            (0..10).for_each(|_| victim.call());
        }
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// A client that goes on announcing after a lease and never says that it has heard of its end: it is served like any other,
/// and loses its connection once others want zones. Nobody has a wrong answer.
#[test]
fn a_client_that_announces_and_never_says_the_word_gives_way() {
    Sim::run_with(Settings::default(), 9, |fabric| {
        let address = Address::new(Scheme::Sim, "never").unwrap();
        // A group of one client has three zones.
        let (server, workers, _) = serve(&fabric, &address, LOAD);
        let host = fabric.host().clone();
        let mut liars: Vec<_> = (0..3).map(|_| Raw::connect(&fabric, &address)).collect();
        liars.iter_mut().for_each(Raw::call);
        let connect = || {
            Client::connect(&fabric, &address, ClientConfig::with_plan(plan(CompletionMode::Busy))).unwrap()
        };
        let mut busy: Vec<_> = (0..2).map(|_| connect()).collect();
        for call in 0..300u32 {
            for liar in &mut liars {
                // The true tail, and the word of before its lease.
                if liar.core.is_usable(liar.lane) && !liar.may_say(1, 0) {
                    liar.core.progress();
                }
            }
            for client in &mut busy {
                assert_eq!(*client.call(ECHO, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
            }
            host.sleep(host.now() + 10_000_000);
        }
        assert!(server.connections() < 5, "a client without a word was given up");
        server.shutdown(Duration::from_secs(1));
        workers.into_iter().for_each(Task::join);
    })
    .unwrap();
}

/// Requests that change before, while and after the server READs them. The server reads its private copy, so the liar has
/// an answer or loses its connection, whatever byte changes.
#[test]
fn requests_that_change_while_they_are_read_end_the_connection_or_are_answered() {
    in_virtual_time(|fabric, address| {
        let host = fabric.host().clone();
        let (mut closed, mut answered) = (0, 0);
        // The kind, flags, lengths, counts, call and function; and the tags, which the server does not need here.
        for at in (0..LINE).step_by(3) {
            for (value, delay) in [(0x00, 0), (0xff, 0), (0x7f, 700), (0xff, 1_500)] {
                let mut liar = Raw::connect(fabric, address);
                let (ring, ..) = liar.memory();
                assert!(liar.submit(b"a request of some bytes"));
                host.sleep(host.now() + delay);
                ring.copy_in(at, &[value]);
                for _ in 0..200 {
                    liar.step();
                }
                match liar.core.is_usable(liar.lane) {
                    true => answered += 1,
                    false => closed += 1,
                }
            }
        }
        assert!(closed > 5 && answered > 5, "{closed} closed, {answered} answered");
    });
}

/// Several requests whose announcement lies about where the last one ends: short by some lines, or beyond what was built.
#[test]
fn an_announcement_that_lies_about_its_length_closes_the_connection() {
    in_virtual_time(|fabric, address| {
        for tail in [1, 2, 5] {
            let mut liar = Raw::connect(fabric, address);
            // Three lines: the word of the first WRITE is true, so the server may READ it before the lie comes.
            let (ring, ..) = liar.memory();
            ring.copy_in(0, &[Kind::Request as u8; 3 * LINE]);
            liar.say(tail, 0);
            assert!(liar.is_closed(), "tail {tail}");
        }
    });
}
