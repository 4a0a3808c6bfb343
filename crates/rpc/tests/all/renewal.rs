//! Requests for credits that travel apart from messages, by immediate data (FLOCK section 7).

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::raw::{Half, RawClient, call, dial, hello, receive, send};
use crate::common::*;
use crate::strands::{combined, has_credits, serve, two_clients_divide};
use dunlin_fabric::{Address, Capabilities, Fabric, Host, Scheme, Task};
use dunlin_fabric_shm::ShmFabric;
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use dunlin_wire::handshake::{Extension, Extensions, Hello, Record, RefusalCode};
use dunlin_wire::{Flags, Header, Kind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Immediate data that asks for credits, without a degree.
const RENEWAL: u32 = 0x4352_0000;
/// The bit of a header that grants credits.
const GRANTED: u8 = 0x80;

fn apart(plan: Plan) -> ClientConfig {
    ClientConfig { credit_renewal: CreditRenewal::WriteImmediate, ..with_plan(plan) }
}

fn written() -> Plan {
    Plan { request: RequestHalf::Write, response: ResponseHalf::Write, ..combined() }
}

/// Whatever the halves of the protocol, few credits suffice for many calls, and declined queue pairs are given up.
#[test]
fn every_protocol_asks_apart() {
    let capabilities = Settings::default().capabilities;
    for protocol in PROTOCOLS {
        let plan = Plan { sharing: Sharing::Combined, ..protocol.plan(CompletionMode::Adaptive) };
        if plan.check(&capabilities).is_ok() && has_credits(protocol) {
            println!("{}", protocol.name);
            two_clients_divide(7, 2, ClientConfig { credits: 4, ..apart(plan) });
        }
    }
}

/// A queue pair is declined by a message without answers, which one of its threads finds while it has the lead: its
/// calls are given back to itself.
#[test]
fn who_gives_its_own_calls_back_moves() {
    for mode in [CompletionMode::Event, CompletionMode::Adaptive, CompletionMode::Busy] {
        for (seed, window, credits) in [(0, 1, 32), (1, 4, 63), (2, 8, 2), (3, 3, 1), (6, 3, 1)] {
            let plan = combined().completion(mode, mode);
            two_clients_divide(seed, window, ClientConfig { credits, ..apart(plan) });
        }
    }
}

/// The server finds a request for credits in its completion queue, and the message that caused it in memory, in either
/// order.
#[test]
fn requests_apart_are_answered_with_random_delays() {
    for seed in 0..20 {
        let settings = Settings { preemption: 3, ..Settings::default() };
        Sim::run_with(settings, seed, |fabric| {
            let address = Address::new(Scheme::Sim, "apart").unwrap();
            let server = serve(&fabric, &address, ServerConfig::default());
            let plan = written().completion(CompletionMode::Busy, CompletionMode::Busy);
            let config = ClientConfig { credits: 3, max_queue_pairs: 1, window: 8, ..apart(plan) };
            let first = Client::connect(&fabric, &address, config).unwrap();
            let host = fabric.host().clone();
            let tasks: Vec<_> = (0..3u8)
                .map(|thread| {
                    let mut client = first.another().unwrap();
                    let body = move || {
                        for number in 0..100u8 {
                            assert_eq!(*client.call(ECHO, &[thread, number]).unwrap(), [thread, number]);
                        }
                    };
                    host.spawn("caller", Box::new(body)).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(Task::join);
            server.shutdown(Duration::from_secs(1));
        })
        .unwrap();
    }
}

/// Real threads on shared memory.
#[test]
fn threads_share_a_queue_pair_that_asks_apart() {
    bounded(|| {
        let (fabric, address) = (fabric(), unique("apart"));
        let server = serve(&fabric, &address, ServerConfig::default());
        for plan in [written(), combined()] {
            let config = ClientConfig { credits: 2, max_queue_pairs: 1, ..apart(plan) };
            let first = Client::connect(&fabric, &address, config).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..3u32 {
                    let mut client = first.another().unwrap();
                    scope.spawn(move || {
                        for number in 0..300u32 {
                            let sent = [thread.to_le_bytes(), number.to_le_bytes()].concat();
                            assert_eq!(*client.call(ECHO, &sent).unwrap(), *sent);
                        }
                    });
                }
            });
        }
        server.shutdown(Duration::from_secs(1));
    });
}

/// A fabric without immediate data fails the connection: nothing else is used instead.
#[test]
fn a_fabric_without_immediate_data_refuses_the_setting() {
    let capabilities = Capabilities { immediate: false, ..Settings::default().capabilities };
    Sim::run_with(Settings { capabilities, ..Settings::default() }, 1, |fabric| {
        let address = Address::new(Scheme::Sim, "without").unwrap();
        let server = serve(&fabric, &address, ServerConfig::default());
        let plan = Plan { client: CompletionMode::Busy, server: CompletionMode::Busy, ..written() };
        let refused = Client::connect(&fabric, &address, apart(plan)).map(drop).unwrap_err();
        assert!(refused.to_string().contains("immediate data"), "{refused}");
        // Without credits there is nothing to ask for.
        let dedicated = Plan { sharing: Sharing::Dedicated, ..plan };
        let mut client = Client::connect(&fabric, &address, apart(dedicated)).unwrap();
        assert_eq!(*client.call(ECHO, b"dedicated").unwrap(), *b"dedicated");
        drop(client);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// A raw client with 8 credits, which asks in this way.
fn raw(fabric: &ShmFabric, address: &Address, plan: Plan, is_apart: bool) -> RawClient {
    let mut half = Half::new(fabric, address, plan);
    let apart = is_apart.then_some(Extension::RenewedApart);
    half.open.extensions = Extensions([Extension::Credits(8)].into_iter().chain(apart).collect());
    RawClient::open(fabric, half, plan)
}

/// Makes calls, one after the other. Returns whether the server granted credits meanwhile.
fn spend(raw: &mut RawClient, slots: std::ops::Range<u32>) -> bool {
    let mut is_granted = false;
    for slot in slots {
        raw.request(ECHO, call(slot, 1), b"paid");
        loop {
            let (header, _) = raw.answer();
            is_granted |= header.credits & GRANTED != 0;
            if header.kind != Kind::Credit {
                assert_eq!(header.call, call(slot, 1));
                break;
            }
        }
    }
    is_granted
}

#[test]
fn a_client_may_ask_before_its_message_and_long_after() {
    bounded(|| {
        let (fabric, address) = (fabric(), unique("raw-apart"));
        let server = serve(&fabric, &address, ServerConfig::default());
        let mut raw = raw(&fabric, &address, written(), true);
        // Half of C is reached by the fourth message.
        assert!(!spend(&mut raw, 0..3));
        raw.put_immediate(RENEWAL | 1);
        let is_granted = spend(&mut raw, 3..4) || raw.answer().0.credits & GRANTED != 0;
        assert!(is_granted);
        // 12 are left: the request comes after all are spent.
        assert!(!spend(&mut raw, 4..16));
        raw.put_immediate(RENEWAL | 1);
        let (header, _) = raw.answer();
        assert_eq!((header.kind, header.credits & GRANTED), (Kind::Credit, GRANTED));
        assert!(!spend(&mut raw, 16..24));
        server.shutdown(Duration::from_secs(1));
    });
}

/// A client that asks against the rules loses its lane, and nobody else notices.
#[test]
fn a_client_that_asks_against_the_rules_loses_its_lane() {
    type Act = fn(&mut RawClient);
    let told = Plan { request: RequestHalf::WriteImm, ..written() };
    let by_send = Plan { request: RequestHalf::Send, ..written() };
    let twice: Act = |raw| (0..2).for_each(|_| raw.put_immediate(RENEWAL | 1));
    // More than there are RECVs.
    let flood: Act = |raw| (0..100).for_each(|_| raw.put_immediate(RENEWAL | 1));
    let none: Act = |raw| raw.put_immediate(RENEWAL);
    let most: Act = |raw| raw.put_immediate(RENEWAL | 64);
    let all: Act = |raw| raw.put_immediate(RENEWAL | 255);
    let once: Act = |raw| raw.put_immediate(RENEWAL | 1);
    let in_message: Act = |raw| {
        let header = Header { code: ECHO, call: call(0, 1), credits: 1, ..Header::new(Kind::Request) };
        let bytes = raw.message(&header, b"asks");
        raw.deliver(&bytes);
    };
    bounded(move || {
        let (fabric, address) = (fabric(), unique("against"));
        let server = serve(&fabric, &address, ServerConfig::default());
        let mut good = Client::connect(&fabric, &address, apart(combined())).unwrap();
        for plan in [written(), told, by_send] {
            for act in [twice, flood, none, most, all, in_message] {
                let mut raw = raw(&fabric, &address, plan, true);
                act(&mut raw);
                raw.expect_closed();
                assert_eq!(*good.call(ECHO, b"good").unwrap(), *b"good");
            }
        }
        // Without the setting. There are RECVs for other immediate data.
        for plan in [told, by_send] {
            let mut raw = raw(&fabric, &address, plan, false);
            once(&mut raw);
            raw.expect_closed();
        }
        // Without RECVs the WRITE waits for one, and only its own client with it.
        let mut waiting = raw(&fabric, &address, written(), false);
        once(&mut waiting);
        // A message that asks must have left half of the credits.
        let mut early = raw(&fabric, &address, written(), false);
        in_message(&mut early);
        early.expect_closed();
        assert_eq!(*good.call(ECHO, b"good").unwrap(), *b"good");
        drop(waiting);
        server.shutdown(Duration::from_secs(1));
    });
}

/// A client tells of its operations on memory, which the server does not see, with its request: it gets no more than
/// for calls, and nothing for operations that it had no credits for.
#[test]
fn operations_are_told_of_with_a_request() {
    bounded(|| {
        let (fabric, address) = (fabric(), unique("operations"));
        let server = serve(&fabric, &address, ServerConfig::default());
        let tell = |raw: &mut RawClient, code: u16, credits: u8| {
            let header = Header { code, credits, ..Header::new(Kind::Credit) };
            let bytes = raw.message(&header, b"");
            raw.deliver(&bytes);
        };
        for is_apart in [false, true] {
            let mut truthful = raw(&fabric, &address, written(), is_apart);
            tell(&mut truthful, 4, 1);
            let (header, _) = truthful.answer();
            assert_eq!((header.kind, header.credits & GRANTED), (Kind::Credit, GRANTED));
            // 4 are left, and 8 were granted.
            assert!(!spend(&mut truthful, 0..12));
            truthful.request(ECHO, call(12, 1), b"overdrawn");
            truthful.expect_closed();
            for (operations, degree) in [(9, 1), (3, 1), (0, 1), (4, 64), (u16::MAX, 0)] {
                let mut against = raw(&fabric, &address, written(), is_apart);
                tell(&mut against, operations, degree);
                against.expect_closed();
            }
        }
        server.shutdown(Duration::from_secs(1));
    });
}

/// The calls of a raw client, one after the other, each with an id of its own.
struct Asking {
    raw: RawClient,
    calls: u32,
}

impl Asking {
    /// Connects a strand of the client with this number, with 8 credits.
    fn connect(fabric: &ShmFabric, address: &Address, client: u64) -> Asking {
        let link = dial(fabric, address);
        let extensions = [Extension::Client(client)].into();
        send(&link, &Record::Hello(Hello { extensions, ..hello() }));
        assert!(matches!(receive(&link), Some(Record::HelloReply(_))));
        let half = Half::beside(fabric, &link, written());
        Asking { raw: RawClient::open(fabric, half, written()), calls: 0 }
    }

    /// Makes calls, of which the last asks for credits. Returns whether they were granted.
    fn ask(&mut self, calls: u32) -> bool {
        let mut granted = None;
        for left in (0..calls).rev() {
            let id = call(self.calls % 64, 1 + self.calls / 64);
            self.calls += 1;
            let credits = u8::from(left == 0);
            let header = Header { code: ECHO, call: id, credits, ..Header::new(Kind::Request) };
            let bytes = self.raw.message(&header, b"asks");
            self.raw.deliver(&bytes);
            let mut is_answered = false;
            while !is_answered || left == 0 && granted.is_none() {
                let (header, _) = self.raw.answer();
                is_answered |= header.kind != Kind::Credit;
                if header.flags.contains(Flags::CONTEXT_SWITCH) {
                    granted = Some(false);
                } else if header.credits & GRANTED != 0 {
                    granted = Some(true);
                }
            }
        }
        granted.unwrap()
    }
}

/// A queue pair that was declined becomes active again when another one of its client ends. The client is silent, and
/// gets word by a message of its own.
#[test]
fn a_silent_client_is_granted_credits_when_its_queue_pair_is_active_again() {
    bounded(|| {
        let (fabric, address) = (fabric(), unique("again-active"));
        let config = ServerConfig { max_active_queue_pairs: 2, ..ServerConfig::default() };
        let server = serve(&fabric, &address, config);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The worker looks around while it serves this client, whose lane has no credits.
            let mut busy = Client::connect(&fabric, &address, with_plan(any_plan())).unwrap();
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(*busy.call(ECHO, b"busy").unwrap(), *b"busy");
                }
            });
            let mut strands = [7, 7].map(|client| Asking::connect(&fabric, &address, client));
            let other = Asking::connect(&fabric, &address, 8);
            // Half of C is reached by the fourth message, and then by each eighth.
            let mut calls = 4;
            let declined = loop {
                if let Some(declined) = (0..2).find(|strand| !strands[*strand].ask(calls)) {
                    break declined;
                }
                // All three are active until the server divides: in a millisecond, or later on a crowded machine.
                calls = 8;
            };
            let [first, second] = strands;
            let (kept, mut declined) = if declined == 0 { (second, first) } else { (first, second) };
            kept.raw.half.link_close();
            drop(kept);
            let (header, _) = declined.raw.answer();
            assert_eq!((header.kind, header.credits & GRANTED), (Kind::Credit, GRANTED));
            // 4 are left, and 8 were granted. As long as the other one has not ended they may take turns once more.
            if !declined.ask(8) {
                let (header, _) = declined.raw.answer();
                assert_eq!((header.kind, header.credits & GRANTED), (Kind::Credit, GRANTED));
            }
            over.store(true, Ordering::Relaxed);
            drop(other);
        });
        server.shutdown(Duration::from_secs(1));
    });
}

#[test]
fn the_setting_needs_credits() {
    let (fabric, address) = (fabric(), unique("needs"));
    let server = serve(&fabric, &address, ServerConfig::default());
    let mut half = Half::new(&fabric, &address, any_plan());
    half.open.extensions = [Extension::RenewedApart].into();
    assert_eq!(half.ask().unwrap_err().code, RefusalCode::ILLEGAL_PLAN);
    half.link_close();
    server.shutdown(Duration::from_secs(1));
}
