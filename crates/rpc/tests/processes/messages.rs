//! RF-RPC's table 2: messages between processes, refusals, and deaths of either side.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{Process, add_role, ready};
use crate::common::*;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::messages::*;
use dunlin_rpc::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

tests!(
    messages_between_processes_by_every_protocol,
    each_thread_of_a_server_has_its_own_messages,
    buffers_are_good_for_every_peer,
    what_cannot_be_is_refused_and_nothing_is_lost,
    messages_that_come_too_late_are_not_taken,
    a_killed_server_ends_every_message,
    a_killed_client_takes_only_its_own_messages_along,
    a_server_that_shuts_down_answers_what_it_has,
);

/// Adds the roles of this file.
pub(crate) fn add_roles() {
    add_role("answering", answering);
    add_role("silent", silent);
    add_role("sender", sender);
}

const LONGEST: usize = 200_000;

/// Turns a message into its answer, in place.
fn answer_to(message: &mut [u8]) {
    message.iter_mut().for_each(|byte| *byte ^= 0x5A);
}

/// Answers everything until the server ends.
fn serve(mut thread: MessageServer<ShmFabric>) {
    while !thread.is_ended() {
        let Some(client) = thread.next_client(Duration::MAX) else { continue };
        let Ok(mut buffer) = thread.malloc_buf(client, LONGEST) else { continue };
        while let Ok(Some(size)) = thread.server_recv(client, &mut buffer) {
            answer_to(&mut buffer[..size]);
            match thread.server_send(client, &mut buffer, size) {
                Ok(()) | Err(SendError::ClientGone) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn answering(address: &str) {
    let config = ServerConfig { workers: 2, spin: Duration::from_micros(2), ..ServerConfig::default() };
    let (_server, threads) = MessageServer::listen(&fabric(), &address.parse().unwrap(), config).unwrap();
    let threads: Vec<_> = threads.into_iter().map(|t| std::thread::spawn(move || serve(t))).collect();
    ready();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn messages_between_processes_by_every_protocol() {
    let fabric = fabric();
    let address = unique("messages");
    let _server = Process::start("answering", &address.to_string());
    for (name, plan) in plans(&fabric, &MODES) {
        println!("  {name}");
        let mut client = MessageClient::connect(&fabric, &address, with_plan(plan)).unwrap();
        assert_eq!(client.servers(), 2);
        let chooses = plan.response == ResponseHalf::FetchOrWrite;
        assert_eq!(client.client().tuning().len(), if chooses { 2 } else { 0 });
        for server in 0..2 {
            let mut buffer = client.malloc_buf(server, LONGEST).unwrap();
            let sizes = [0, 5, 32, 33, 1000, 4096, 4097, 30_000, LONGEST];
            for (number, size) in sizes.into_iter().enumerate() {
                buffer[..size].copy_from_slice(&pattern(size, number as u64));
                client.client_send(server, &mut buffer, size).unwrap();
            }
            assert_eq!(client.outstanding(server), sizes.len());
            for (number, size) in sizes.into_iter().enumerate() {
                assert_eq!(client.client_recv(server, &mut buffer).unwrap(), size, "{name}");
                let mut expected = pattern(size, number as u64);
                answer_to(&mut expected);
                assert!(buffer[..size] == expected, "{name}: the answer to message {number}");
            }
        }
    }
}

/// A server in this process, with a function run for each server thread.
struct Here {
    server: Server<ShmFabric>,
    address: dunlin_fabric::Address,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Here {
    fn start(config: ServerConfig, run: fn(MessageServer<ShmFabric>)) -> Here {
        let address = unique("messages");
        let (server, threads) = MessageServer::listen(&fabric(), &address, config).unwrap();
        let threads = threads.into_iter().map(|t| std::thread::spawn(move || run(t))).collect();
        Here { server, address, threads }
    }

    fn end(self) {
        self.server.shutdown(Duration::from_secs(10));
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Answers each message with the thread's number.
fn numbered(mut thread: MessageServer<ShmFabric>) {
    let number = thread.number();
    while !thread.is_ended() {
        let Some(client) = thread.next_client(Duration::MAX) else { continue };
        let mut buffer = thread.malloc_buf(client, 8).unwrap();
        while let Ok(Some(size)) = thread.server_recv(client, &mut buffer) {
            buffer[size] = number as u8;
            thread.server_send(client, &mut buffer, size + 1).unwrap();
        }
    }
}

fn each_thread_of_a_server_has_its_own_messages() {
    let here = Here::start(ServerConfig { workers: 3, ..ServerConfig::default() }, numbered);
    let mut clients: Vec<_> = (0..3)
        .map(|_| {
            MessageClient::connect(&fabric(), &here.address, ClientConfig::with_plan(any_plan())).unwrap()
        })
        .collect();
    for round in 0..20u8 {
        for (number, client) in clients.iter_mut().enumerate() {
            for server in 0..3 {
                let mut buffer = client.malloc_buf(server, 8).unwrap();
                buffer[..2].copy_from_slice(&[round, number as u8]);
                client.client_send(server, &mut buffer, 2).unwrap();
            }
        }
        for (number, client) in clients.iter_mut().enumerate() {
            for server in (0..3).rev() {
                let mut buffer = client.malloc_buf(server, 8).unwrap();
                assert_eq!(client.client_recv(server, &mut buffer).unwrap(), 3);
                assert_eq!(buffer[..3], [round, number as u8, server as u8]);
            }
        }
    }
    drop(clients);
    here.end();
}

/// A buffer allocated for one peer is used for another, and for many messages.
fn buffers_are_good_for_every_peer() {
    let here = Here::start(ServerConfig { workers: 2, ..ServerConfig::default() }, |mut thread| {
        let mut buffer = None;
        while !thread.is_ended() {
            let Some(client) = thread.next_client(Duration::MAX) else { continue };
            // Allocated for the first client, used for all.
            let buffer = buffer.get_or_insert_with(|| thread.malloc_buf(client, LONGEST).unwrap());
            while let Ok(Some(size)) = thread.server_recv(client, buffer) {
                answer_to(&mut buffer[..size]);
                thread.server_send(client, buffer, size).unwrap();
            }
        }
    });
    let connect = |protocol: &str| {
        let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
        MessageClient::connect(&fabric(), &here.address, with_plan(plan)).unwrap()
    };
    let mut clients = [connect("RF-RPC"), connect("Write-RNDV"), connect("Eager-SendRecv")];
    let mut buffer = clients[0].malloc_buf(0, LONGEST).unwrap();
    for round in 0..30 {
        for client in &mut clients {
            for server in 0..2 {
                let size = [40_000, 100, LONGEST][round % 3];
                buffer[..size].copy_from_slice(&pattern(size, round as u64));
                client.client_send(server, &mut buffer, size).unwrap();
                assert_eq!(client.client_recv(server, &mut buffer).unwrap(), size);
                let mut expected = pattern(size, round as u64);
                answer_to(&mut expected);
                assert!(buffer[..size] == expected);
            }
        }
    }
    drop((clients, buffer));
    here.end();
}

fn what_cannot_be_is_refused_and_nothing_is_lost() {
    let address = unique("messages");
    let config = ServerConfig { max_payload: 10_000, max_response: 20_000, ..ServerConfig::default() };
    let (server, mut threads) = MessageServer::listen(&fabric(), &address, config).unwrap();
    let mut thread = threads.remove(0);
    // The handshake needs a running worker.
    let connected = Arc::new(AtomicBool::new(false));
    let (done, to) = (Arc::clone(&connected), address.clone());
    let connecting = std::thread::spawn(move || {
        let config = ClientConfig { window: 4, ..ClientConfig::with_plan(any_plan()) };
        let client = MessageClient::connect(&fabric(), &to, config);
        done.store(true, Ordering::Release);
        client.unwrap()
    });
    while !connected.load(Ordering::Acquire) {
        assert_eq!(thread.next_client(Duration::from_millis(1)), None);
    }
    let mut client = connecting.join().unwrap();

    assert!(matches!(client.malloc_buf(0, 10_001), Err(BufferError::Call(CallError::NotExecuted(_)))));
    let mut buffer = client.malloc_buf(0, 100).unwrap();
    assert!(matches!(client.client_recv(0, &mut buffer), Err(ReceiveError::NothingSent)));
    assert!(matches!(client.client_recv(7, &mut buffer), Err(ReceiveError::NothingSent)));
    assert!(matches!(
        client.client_send(7, &mut buffer, 1),
        Err(SendError::Call(CallError::NotExecuted(Cause::NoSuchWorker)))
    ));
    assert!(matches!(
        client.client_send(0, &mut buffer, 101),
        Err(SendError::Size { size: 101, capacity: 100 })
    ));
    for number in 0..4 {
        buffer[0] = number;
        client.client_send(0, &mut buffer, 50).unwrap();
    }
    let id = thread.next_client(HANG).unwrap();
    let mut small = thread.malloc_buf(id, 49).unwrap();
    assert!(matches!(thread.server_send(id, &mut small, 1), Err(SendError::NothingReceived)));
    assert!(matches!(
        thread.server_recv(id, &mut small),
        Err(ReceiveError::TooLong { size: 50, capacity: 49 })
    ));
    let mut fitting = thread.malloc_buf(id, 30_000).unwrap();
    assert_eq!(thread.server_recv(id, &mut fitting).unwrap(), Some(50), "it has stayed");
    assert!(matches!(
        thread.server_send(id, &mut fitting, 20_001),
        Err(SendError::TooLong { size: 20_001, limit: 20_000 })
    ));
    thread.server_send(id, &mut fitting, 20_000).unwrap();
    assert!(matches!(thread.server_send(id, &mut fitting, 1), Err(SendError::NothingReceived)));
    for number in 1..4 {
        assert_eq!(thread.server_recv(id, &mut fitting).unwrap(), Some(50));
        assert_eq!(fitting[0], number);
    }
    assert_eq!(thread.server_recv(id, &mut fitting).unwrap(), None);
    for _ in 0..3 {
        thread.server_send(id, &mut fitting, 3).unwrap();
    }
    // The thread must run until the client has READ the long answer.
    let running = std::thread::spawn(move || {
        while !thread.is_ended() {
            assert_eq!(thread.next_client(Duration::MAX), None);
        }
        thread
    });
    assert!(matches!(
        client.client_recv(0, &mut buffer),
        Err(ReceiveError::TooLong { size: 20_000, capacity: 100 })
    ));
    assert_eq!(client.outstanding(0), 4);
    let mut server_sized = client.malloc_buf(0, 10_000).unwrap();
    assert!(matches!(client.client_recv(0, &mut server_sized), Err(ReceiveError::TooLong { .. })));
    drop(client);
    server.shutdown(Duration::from_secs(10));
    let mut thread = running.join().unwrap();
    assert!(matches!(thread.server_recv(id, &mut fitting), Err(ReceiveError::ClientGone)));
    assert!(matches!(thread.server_send(id, &mut fitting, 1), Err(SendError::ClientGone)));
    assert!(matches!(thread.malloc_buf(id, 1), Err(BufferError::ClientGone)));
}

/// The server receives nothing until the deadline has passed.
fn messages_that_come_too_late_are_not_taken() {
    let here = Here::start(ServerConfig::default(), |mut thread| {
        let mut taken = 0;
        while !thread.is_ended() {
            let Some(client) = thread.next_client(Duration::from_millis(1)) else { continue };
            // Longer than the deadline.
            std::thread::sleep(Duration::from_millis(60));
            // The client may have disconnected.
            let Ok(mut buffer) = thread.malloc_buf(client, 64) else { continue };
            while let Ok(Some(size)) = thread.server_recv(client, &mut buffer) {
                taken += 1;
                thread.server_send(client, &mut buffer, size).unwrap();
            }
        }
        assert_eq!(taken, 0);
    });
    let config = ClientConfig { timeout: Duration::from_millis(20), ..ClientConfig::with_plan(any_plan()) };
    let mut client = MessageClient::connect(&fabric(), &here.address, config).unwrap();
    let mut buffer = client.malloc_buf(0, 64).unwrap();
    for _ in 0..5 {
        client.client_send(0, &mut buffer, 10).unwrap();
    }
    for _ in 0..5 {
        let error = client.client_recv(0, &mut buffer).unwrap_err();
        assert!(
            matches!(error, ReceiveError::Call(CallError::MaybeExecuted(Cause::DeadlineExceeded))),
            "{error}"
        );
    }
    assert!(matches!(client.client_recv(0, &mut buffer), Err(ReceiveError::NothingSent)));
    drop(client);
    here.end();
}

/// Receives everything, and answers only the first message of each client.
fn silent(address: &str) {
    let (_server, mut threads) =
        MessageServer::listen(&fabric(), &address.parse().unwrap(), ServerConfig::default()).unwrap();
    let mut thread = threads.remove(0);
    ready();
    let mut known = Vec::new();
    loop {
        let Some(client) = thread.next_client(Duration::MAX) else { continue };
        let mut buffer = thread.malloc_buf(client, LONGEST).unwrap();
        while let Ok(Some(size)) = thread.server_recv(client, &mut buffer) {
            if !known.contains(&client) {
                known.push(client);
                thread.server_send(client, &mut buffer, size).unwrap();
            }
        }
    }
}

fn a_killed_server_ends_every_message() {
    let fabric = fabric();
    for (name, plan) in plans(&fabric, &[CompletionMode::Busy, CompletionMode::Event]) {
        println!("  {name}");
        let address = unique("messages");
        let mut server = Process::start("silent", &address.to_string());
        // Without a timeout no deadline ends these messages.
        let config = ClientConfig { timeout: Duration::MAX, ..with_plan(plan) };
        let mut client = MessageClient::connect(&fabric, &address, config).unwrap();
        let mut buffer = client.malloc_buf(0, 20_000).unwrap();
        for size in [10, 1000, 20_000, 10] {
            client.client_send(0, &mut buffer, size).unwrap();
        }
        // Answered before all others.
        assert!(client.client_recv(0, &mut buffer).is_ok(), "{name}");
        server.kill();
        for _ in 0..3 {
            let error = client.client_recv(0, &mut buffer).unwrap_err();
            let lost = CallError::MaybeExecuted(Cause::ConnectionLost);
            assert!(matches!(&error, ReceiveError::Call(call) if *call == lost), "{name}: {error}");
        }
        assert!(matches!(client.client_recv(0, &mut buffer), Err(ReceiveError::NothingSent)), "{name}");
        let error = client.client_send(0, &mut buffer, 1).unwrap_err();
        let none = CallError::NotExecuted(Cause::Disconnected);
        assert!(matches!(&error, SendError::Call(call) if *call == none), "{name}: {error}");
    }
}

/// Sends messages until it is killed.
fn sender(address: &str) {
    let plan = Protocol::by_name("RF-RPC").unwrap().plan(CompletionMode::Busy);
    let config = ClientConfig { window: 8, ..with_plan(plan) };
    let mut client = MessageClient::connect(&fabric(), &address.parse().unwrap(), config).unwrap();
    let mut buffer = client.malloc_buf(0, 10_000).unwrap();
    for number in 0.. {
        if client.outstanding(0) == 8 {
            client.client_recv(0, &mut buffer).unwrap();
        }
        client.client_send(0, &mut buffer, [10, 10_000][number % 2]).unwrap();
        if number == 100 {
            ready();
        }
    }
}

fn a_killed_client_takes_only_its_own_messages_along() {
    let here = Here::start(ServerConfig::default(), serve);
    let mut client =
        MessageClient::connect(&fabric(), &here.address, ClientConfig::with_plan(any_plan())).unwrap();
    let mut buffer = client.malloc_buf(0, 10_000).unwrap();
    for round in 0..6 {
        let mut other = Process::start("sender", &here.address.to_string());
        for number in 0..50 {
            if number == 25 {
                other.kill();
            }
            let size = [100, 10_000][number % 2];
            buffer[..size].copy_from_slice(&pattern(size, round + number as u64));
            client.client_send(0, &mut buffer, size).unwrap();
            assert_eq!(client.client_recv(0, &mut buffer).unwrap(), size);
            let mut expected = pattern(size, round + number as u64);
            answer_to(&mut expected);
            assert!(buffer[..size] == expected);
        }
    }
    until("only one connection is left", || here.server.connections() == 1);
    drop(client);
    here.end();
}

fn a_server_that_shuts_down_answers_what_it_has() {
    let here = Here::start(ServerConfig::default(), |mut thread| {
        let mut late = Vec::new();
        while !thread.is_ended() {
            let Some(client) = thread.next_client(Duration::from_millis(5)) else {
                // Answered when there is nothing else to do.
                if let Some((client, mut buffer)) = late.pop() {
                    thread.server_send(client, &mut buffer, 1).unwrap();
                }
                continue;
            };
            let mut buffer = thread.malloc_buf(client, 64).unwrap();
            if thread.server_recv(client, &mut buffer).unwrap().is_some() {
                late.push((client, buffer));
            }
        }
    });
    let mut client =
        MessageClient::connect(&fabric(), &here.address, ClientConfig::with_plan(any_plan())).unwrap();
    let mut buffer = client.malloc_buf(0, 64).unwrap();
    for _ in 0..10 {
        client.client_send(0, &mut buffer, 64).unwrap();
    }
    let receiving = std::thread::spawn(move || {
        for _ in 0..10 {
            assert_eq!(client.client_recv(0, &mut buffer).unwrap(), 1);
        }
    });
    here.end();
    receiving.join().unwrap();
}
