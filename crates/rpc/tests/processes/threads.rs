//! An answer names the thread slot of its call, whatever the path of the call through the server: without it, a
//! client whose threads share a lane could not find the thread that waits for it.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::raw::{LONGEST, RawClient, call};
use crate::common::*;
use dunlin_fabric::{Access, Arena, Link};
use dunlin_fabric_shm::{ShmFabric, ShmMemory};
use dunlin_rpc::messages::MessageServer;
use dunlin_rpc::*;
use dunlin_wire::{BatchBuilder, Descriptor, EntryMeta, Flags, Header, Kind, Message};
use std::time::Duration;

tests!(
    a_worker_repeats_the_thread_of_a_call,
    a_batch_repeats_the_thread_of_each_call,
    the_pool_repeats_the_thread_of_a_call,
    an_application_that_pulls_repeats_the_thread_of_a_call,
    a_thread_that_holds_messages_repeats_the_thread_of_a_call,
    large_requests_and_results_keep_the_thread_of_a_call,
);

/// Runs in the pool, and answers with as many bytes as its first four bytes say; with none it panics.
const POOL: u16 = 2;
/// Is pulled by the test.
const PULLED: u16 = 3;
/// Answers on the worker with as many bytes as its first four bytes say.
const SIZED: u16 = 4;
/// Fails with a code of the application, on the worker.
const FAILS: u16 = 5;
/// No server has this function.
const UNKNOWN: u16 = 99;

fn length_in(payload: &[u8]) -> usize {
    payload.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize
}

fn server(fabric: &ShmFabric) -> Server<ShmFabric> {
    let service = |request: &Request<'_>, reply: &mut Reply<'_>| match request.function {
        SIZED => {
            reply.reserve(length_in(request.payload))?.fill(1);
            Ok(())
        }
        FAILS => Err(Status::Application(ApplicationCode::new(1).unwrap())),
        _ => Ok(reply.write(request.payload)?),
    };
    ServerBuilder::new(fabric)
        .function(ECHO, FunctionMode::Worker)
        .function(SIZED, FunctionMode::Worker)
        .function(FAILS, FunctionMode::Worker)
        .function(POOL, FunctionMode::Pool)
        .function(PULLED, FunctionMode::Pull)
        .pool(|request: &Request<'_>, reply: &mut Reply<'_>| {
            let length = length_in(request.payload);
            assert!(length > 0, "a call without a length");
            reply.reserve(length)?.fill(2);
            Ok(())
        })
        .serve(&unique("threads"), move |_| Box::new(service))
        .unwrap()
}

/// Plans that poll and plans that sleep, with every carrier that a raw client speaks.
fn raw_plans() -> [Plan; 3] {
    let sleeping = |plan: Plan| plan.completion(CompletionMode::Busy, CompletionMode::Event);
    [
        Plan::new(RequestHalf::Write, ResponseHalf::Write),
        sleeping(Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm)),
        sleeping(Plan::new(RequestHalf::Send, ResponseHalf::Send)),
    ]
}

fn each_plan(test: impl Fn(&Server<ShmFabric>, &mut RawClient)) {
    let fabric = fabric();
    let server = server(&fabric);
    for plan in raw_plans() {
        println!("  {:?}", plan.request);
        test(&server, &mut RawClient::connect(&fabric, server.address(), plan));
    }
}

/// Makes a call of a thread.
fn ask(raw: &mut RawClient, thread: u16, function: u16, id: u32, payload: &[u8]) {
    let header = Header { code: function, call: id, thread, ..Header::new(Kind::Request) };
    let bytes = raw.message(&header, payload);
    raw.deliver(&bytes);
}

/// Returns the next answer, which must be for this call of this thread. Reports of large results are skipped.
fn answer_to(raw: &mut RawClient, thread: u16, id: u32) -> (Header, Vec<u8>) {
    let (header, payload) = loop {
        let (header, payload) = raw.answer();
        if header.kind != Kind::Filled {
            break (header, payload);
        }
    };
    assert_eq!((header.call, header.thread), (id, thread), "{header:?}");
    (header, payload)
}

fn a_worker_repeats_the_thread_of_a_call() {
    each_plan(|_, raw| {
        for (slot, thread) in [1, 7, 255, 256, u16::MAX].into_iter().enumerate() {
            let id = |generation| call(slot as u32, generation);
            ask(raw, thread, ECHO, id(1), b"short");
            assert_eq!(answer_to(raw, thread, id(1)).1, b"short");
            ask(raw, thread, ECHO, id(2), &[3; 200]);
            assert_eq!(answer_to(raw, thread, id(2)).1, [3; 200]);
            for (generation, function) in [(3, FAILS), (4, UNKNOWN)] {
                ask(raw, thread, function, id(generation), &[]);
                assert_ne!(answer_to(raw, thread, id(generation)).0.code, 0);
            }
            // A call that came before is refused.
            ask(raw, thread, ECHO, id(4), &[]);
            assert_eq!(answer_to(raw, thread, id(4)).0.code, Status::DuplicateCall.to_wire());
        }
    });
}

fn a_batch_repeats_the_thread_of_each_call() {
    each_plan(|_, raw| {
        let mut buffer = vec![0; LONGEST];
        let mut batch = BatchBuilder::new(&mut buffer);
        let functions = [ECHO, FAILS, SIZED, UNKNOWN, ECHO];
        for (slot, function) in functions.into_iter().enumerate() {
            let (thread, call) = (0x100 * slot as u16 + 9, call(slot as u32, 1));
            let meta = EntryMeta { function_or_status: function, thread, call, ..EntryMeta::default() };
            batch.push(&meta, &20_u32.to_le_bytes()).unwrap();
        }
        let total = batch.finish(&Header::new(Kind::RequestBatch), raw.tags.tags(0, 0)).unwrap();
        raw.deliver(&buffer[..total]);
        let bytes = raw.answer_bytes();
        let message = Message::parse(&bytes, LONGEST).unwrap();
        let answered: Vec<_> = message.entries().map(|entry| (entry.call, entry.thread)).collect();
        let expected: Vec<_> = (0..5).map(|slot| (call(slot, 1), 0x100 * slot as u16 + 9)).collect();
        assert_eq!(answered, expected);
    });
}

fn the_pool_repeats_the_thread_of_a_call() {
    each_plan(|_, raw| {
        for (slot, (length, thread)) in [(8, 3), (3000, 4), (0, 5)].into_iter().enumerate() {
            let id = call(slot as u32, 1);
            ask(raw, thread, POOL, id, &u32::to_le_bytes(length));
            let (header, payload) = answer_to(raw, thread, id);
            // Without a length it panics.
            let panicked = header.code == Status::HandlerPanicked.to_wire();
            assert!(if length == 0 { panicked } else { payload.len() == length as usize });
        }
    });
}

fn an_application_that_pulls_repeats_the_thread_of_a_call() {
    each_plan(|server, raw| {
        let pull = || server.receive(HANG / 2).unwrap();
        // Two calls are answered in the other order.
        ask(raw, 11, PULLED, call(0, 1), b"first");
        let first = pull();
        ask(raw, 12, PULLED, call(1, 1), b"second");
        let second = pull();
        second.reply(b"to the second".to_vec());
        assert_eq!(answer_to(raw, 12, call(1, 1)).1, b"to the second");
        first.reply(b"to the first".to_vec());
        assert_eq!(answer_to(raw, 11, call(0, 1)).1, b"to the first");
        ask(raw, 13, PULLED, call(0, 2), &[]);
        pull().refuse(Status::Overloaded);
        assert_eq!(answer_to(raw, 13, call(0, 2)).0.code, Status::Overloaded.to_wire());
        ask(raw, 14, PULLED, call(0, 3), &[]);
        pull().fail(ApplicationCode::new(2).unwrap(), b"why".to_vec());
        assert_eq!(answer_to(raw, 14, call(0, 3)).1, b"why");
        // An application that drops a call.
        ask(raw, 15, PULLED, call(0, 4), &[]);
        drop(pull());
        assert_eq!(answer_to(raw, 15, call(0, 4)).0.code, Status::HandlerPanicked.to_wire());
        // An answer that does not fit a message.
        ask(raw, 16, PULLED, call(0, 5), &[]);
        pull().reply(vec![1; 10_000]);
        assert!(answer_to(raw, 16, call(0, 5)).0.flags.contains(Flags::RENDEZVOUS));
    });
}

fn a_thread_that_holds_messages_repeats_the_thread_of_a_call() {
    let fabric = fabric();
    let address = unique("threads-held");
    let (server, mut threads) = MessageServer::listen(&fabric, &address, ServerConfig::default()).unwrap();
    let mut thread = threads.pop().unwrap();
    let serving = std::thread::spawn(move || {
        while !thread.is_ended() {
            let Some(client) = thread.next_client(Duration::MAX) else { continue };
            let mut buffer = thread.malloc_buf(client, 20_000).unwrap();
            while let Ok(Some(size)) = thread.server_recv(client, &mut buffer) {
                let size = if size == 4 { length_in(&buffer[..size]) } else { size };
                thread.server_send(client, &mut buffer, size).unwrap();
            }
        }
    });
    let mut raw = RawClient::connect(&fabric, &address, raw_plans()[1]);
    ask(&mut raw, 21, 0, call(0, 1), b"message");
    assert_eq!(answer_to(&mut raw, 21, call(0, 1)).1, b"message");
    ask(&mut raw, 22, 0, call(0, 2), &10_000_u32.to_le_bytes());
    assert!(answer_to(&mut raw, 22, call(0, 2)).0.flags.contains(Flags::RENDEZVOUS));
    raw.half.link_close();
    server.shutdown(std::time::Duration::from_secs(10));
    serving.join().unwrap();
}

/// Memory of a raw client that the server may READ, and the descriptor of its first `length` bytes.
fn readable(raw: &RawClient, length: u64) -> (Arena<ShmMemory>, [u8; 24]) {
    use dunlin_fabric::Fabric;
    let arena = Arena::new(raw.fabric.register(1 << 20, Access::READ).unwrap()).unwrap();
    let key = raw.half.link.grant(arena.memory(), Access::READ).unwrap();
    (arena, Descriptor { key: key.0, offset: 0, length }.encode())
}

fn large_requests_and_results_keep_the_thread_of_a_call() {
    let fabric = fabric();
    let server = server(&fabric);
    let plan = raw_plans()[0];
    for large in [LargePayload::Read, LargePayload::Pipelined] {
        let mut raw = RawClient::connect(&fabric, server.address(), plan.large(large, SMALL_LIMIT));
        for (slot, function) in [SIZED, POOL].into_iter().enumerate() {
            let (thread, id) = (31 + slot as u16, call(slot as u32, 1));
            ask(&mut raw, thread, function, id, &100_000_u32.to_le_bytes());
            assert!(answer_to(&mut raw, thread, id).0.flags.contains(Flags::RENDEZVOUS));
        }
        // A request that the server READs; its first bytes are zero, so its answer is short.
        let (_memory, descriptor) = readable(&raw, 10_000);
        for (slot, (function, thread)) in [(SIZED, 41), (POOL, 42)].into_iter().enumerate() {
            let id = call(slot as u32, 2);
            let flags = Flags::RENDEZVOUS;
            let header = Header { code: function, call: id, thread, flags, ..Header::new(Kind::Request) };
            let bytes = raw.message(&header, &descriptor);
            raw.deliver(&bytes);
            answer_to(&mut raw, thread, id);
        }
    }
    for large in [LargePayload::Write, LargePayload::Eager] {
        let mut raw = RawClient::connect(&fabric, server.address(), plan.large(large, SMALL_LIMIT));
        for (slot, function) in [SIZED, POOL].into_iter().enumerate() {
            let (thread, id) = (51 + slot as u16, call(slot as u32, 1));
            ask(&mut raw, thread, function, id, &5000_u32.to_le_bytes());
            assert!(answer_to(&mut raw, thread, id).0.flags.contains(Flags::RENDEZVOUS));
            if large == LargePayload::Eager {
                // Fragments follow, which name the call and no thread.
                let mut bytes = 0;
                while bytes < 5000 {
                    let (header, payload) = raw.answer();
                    assert_eq!((header.kind, header.call), (Kind::Fragment, id));
                    bytes += payload.len();
                }
            }
        }
        // A request whose fragments follow it.
        if large == LargePayload::Eager {
            let (thread, id) = (61, call(0, 2));
            let flags = Flags::RENDEZVOUS;
            let header = Header { code: SIZED, call: id, thread, flags, ..Header::new(Kind::Request) };
            let bytes = raw.message(&header, &Descriptor::announcement(5000).encode());
            raw.deliver(&bytes);
            for piece in [4096, 904] {
                let header = Header { call: id, ..Header::new(Kind::Fragment) };
                let bytes = raw.message(&header, &vec![0; piece]);
                raw.deliver(&bytes);
            }
            answer_to(&mut raw, thread, id);
        }
    }
}
