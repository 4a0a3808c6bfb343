//! The guarantees of calls, over shared memory: deadlines, cancellation, windows, batches, order,
//! reconnecting, draining.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::process::{
    NEVER, PANIC, SIZED, SLOW, ServerProcess, TIME_LEFT, WORDY, test_server, test_service,
};
use crate::common::*;
use dunlin_fabric::Fabric;
use dunlin_fabric::interpose::Count;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

tests!(
    every_protocol_carries_every_size,
    batches_mix_sizes_and_overflow_into_several_messages,
    a_batch_that_was_not_flushed_is_sent_by_who_waits,
    a_call_given_up_in_a_batch_harms_nobody,
    heads_may_arrive_out_of_order,
    answers_come_in_the_order_of_the_calls,
    a_deadline_ends_the_call_and_the_late_answer_frees_its_slot,
    the_server_sees_the_deadline_of_a_call_and_of_a_batch,
    a_call_given_up_takes_room_until_its_answer,
    a_full_window_pushes_back,
    a_panic_costs_one_call,
    the_text_of_an_error_is_cut_not_mixed_up,
    too_many_waiting_calls_are_refused,
    pulled_calls_are_answered_by_whoever_has_them,
    results_over_a_limit_were_executed,
    large_memory_is_a_limit_and_comes_back,
    clients_reconnect_with_back_off,
    a_drain_accounts_for_every_call,
    workers_run_by_hand_end_with_their_server,
    many_clients_of_many_workers,
);

struct Local {
    fabric: ShmFabric,
    server: Server<ShmFabric>,
    executed: Arc<AtomicU64>,
}

fn local(config: ServerConfig) -> Local {
    let (fabric, executed) = (fabric(), Arc::new(AtomicU64::new(0)));
    let config = ServerConfig { spin: Duration::from_micros(2), ..config };
    let server = test_server(&fabric, &executed)
        .config(config)
        .serve(&unique("local"), |_| test_service(Arc::clone(&executed)))
        .unwrap();
    Local { fabric, server, executed }
}

impl Local {
    fn client(&self, config: ClientConfig) -> Client<ShmFabric> {
        Client::connect(&self.fabric, self.server.address(), config).unwrap()
    }

    /// PipelinedReads a call while the client makes progress: under write rendezvous the client has to process the
    /// server's reply.
    fn receive(&self, client: &mut Client<ShmFabric>) -> Incoming<ShmFabric> {
        let mut incoming = None;
        until("a call is there to be pulled", || {
            client.progress();
            incoming = self.server.receive(Duration::from_millis(1));
            incoming.is_some()
        });
        incoming.unwrap()
    }

    fn executed(&self) -> u64 {
        self.executed.load(Ordering::SeqCst)
    }
}

fn with(plan: Plan) -> ClientConfig {
    ClientConfig { spin: Duration::from_micros(2), ..with_plan(plan) }
}

fn every_protocol_carries_every_size() {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &MODES) {
        println!("  {name}");
        let mut client = local.client(with(plan));
        let mut sizes = vec![0, 1, 32, 33, 55, 56, 57, 4095, 4096, 4097, 70_000, 1 << 20];
        if plan.client == CompletionMode::Busy {
            sizes.push(64 << 20);
        }
        for size in sizes {
            let payload = pattern(size, 5);
            assert!(*client.call(ECHO, &payload).unwrap() == *payload, "{name} {size}");
            let length = (size as u32).to_le_bytes();
            let sized = client.call(SIZED, &length).unwrap();
            assert!(sized.len() == size && sized.iter().all(|b| *b == size as u8), "{name} {size}");
        }
        let over = client.call(ECHO, &vec![0; (64 << 20) + 1]).unwrap_err();
        assert_eq!(over, CallError::NotExecuted(Cause::TooLarge { length: (64 << 20) + 1, limit: 64 << 20 }));
    }
}

/// Waits for everything in flight. Returns the calls and their outcomes in order of completion.
fn collect(client: &mut Client<ShmFabric>) -> Vec<(CallId, Result<Vec<u8>, CallError>)> {
    let mut all = Vec::new();
    while let Some(id) = client.wait_any() {
        all.push((id, client.outcome(id).map(<[u8]>::to_vec)));
        client.forget(id);
    }
    all
}

fn batches_mix_sizes_and_overflow_into_several_messages() {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &MODES) {
        let mut client = local.client(ClientConfig { window: 256, ..with(plan) });
        for round in 0..12u64 {
            let mut expected = std::collections::BTreeMap::new();
            let count = if round == 0 { 1 } else { 200 };
            for i in 0..count {
                let size = [0, 8, 32, 33, 200, 4000, 5000][((i * round + i) % 7) as usize];
                let payload = pattern(size, i + round);
                let id = loop {
                    match client.push_on(0, ECHO, &payload) {
                        Ok(id) => break id,
                        Err(CallError::NotExecuted(Cause::WindowFull)) => drop(client.progress()),
                        Err(error) => panic!("{name}: {error}"),
                    }
                };
                expected.insert(id, payload);
            }
            for (id, outcome) in collect(&mut client) {
                assert!(outcome.unwrap() == expected.remove(&id).unwrap(), "{name}");
            }
            assert!(expected.is_empty(), "{name}");
        }
    }
}

fn a_batch_that_was_not_flushed_is_sent_by_who_waits() {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &MODES) {
        let mut client = local.client(with(plan));
        let id = client.push_on(0, ECHO, b"alone").unwrap();
        assert_eq!(*client.wait(id).unwrap(), *b"alone", "{name}");
        let id = client.push_on(0, ECHO, b"any").unwrap();
        assert_eq!(client.wait_any(), Some(id));
    }
}

fn a_call_given_up_in_a_batch_harms_nobody() {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &[CompletionMode::Busy]) {
        let mut client = local.client(ClientConfig { window: 2, ..with(plan) });
        for round in 0..10 {
            let given_up = client.push_on(0, ECHO, b"never mind").unwrap();
            let wanted = client.push_on(0, ECHO, b"wanted").unwrap();
            client.forget(given_up);
            assert!(client.push_on(0, ECHO, b"no room").is_err(), "{name}: its answer is still to come");
            client.flush().unwrap();
            assert_eq!(*client.wait(wanted).unwrap(), *b"wanted", "{name} {round}");
            until("its slot is free again", || {
                client.progress();
                client.room(0) == 2
            });
        }
    }
}

fn heads_may_arrive_out_of_order() {
    let local = local(ServerConfig::default());
    for request in [RequestHalf::Write, RequestHalf::WriteImm] {
        for response in [ResponseHalf::Write, ResponseHalf::WriteImm, ResponseHalf::Fetch] {
            let mut client = local.client(ClientConfig { window: 256, ..with(Plan::new(request, response)) });
            for round in 0..50 {
                // Leaves one answer unprocessed and submits slow calls behind it, until the ring is full and
                // the client reads the server's head report. Once the slow calls are answered too, their
                // heads come in messages that are not processed here, so the ring stays full.
                let first = client.submit_on(0, ECHO, b"first").unwrap();
                let mut slow = Vec::new();
                let payload = [0; 3000];
                let end = std::time::Instant::now() + Duration::from_millis(5);
                while slow.len() < 12 && std::time::Instant::now() < end {
                    if let Ok(id) = client.submit_on(0, SLOW, &payload) {
                        slow.push(id);
                    }
                }
                assert_eq!(*client.wait(first).unwrap(), *b"first", "{request:?} {response:?} {round}");
                for id in slow {
                    assert_eq!(client.wait(id).unwrap().len(), 3000, "{request:?} {response:?} {round}");
                }
            }
        }
    }
}

fn answers_come_in_the_order_of_the_calls() {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &MODES) {
        let mut client = local.client(with(plan));
        let mut sent = std::collections::VecDeque::new();
        // A written result may overtake a fetched one. Where a message may be lost, a later call may overtake one that
        // is sent again, after 5 ms in which the other thread had no core.
        let overtakes = [ResponseHalf::FetchOrWrite, ResponseHalf::FetchOrWriteImm].contains(&plan.response)
            || plan.is_lossy();
        let done = |sent: &mut std::collections::VecDeque<CallId>, id| {
            let place = sent.iter().position(|sent| *sent == id);
            let place = place.unwrap_or_else(|| panic!("{name}: {id:?} is not under way"));
            assert!(place == 0 || overtakes, "{name}: {id:?} came before {place} earlier ones");
            sent.remove(place);
        };
        for i in 0..3000u64 {
            let payload = pattern(if i % 9 == 0 { 500 } else { 10 }, i);
            loop {
                match client.submit_on(0, ECHO, &payload) {
                    Ok(id) => break sent.push_back(id),
                    Err(CallError::NotExecuted(Cause::WindowFull)) => {
                        let id = client.wait_any().unwrap();
                        done(&mut sent, id);
                        client.forget(id);
                    }
                    Err(error) => panic!("{name}: {error}"),
                }
            }
        }
        while let Some(id) = client.wait_any() {
            done(&mut sent, id);
            client.forget(id);
        }
        assert!(sent.is_empty());
    }
}

fn a_deadline_ends_the_call_and_the_late_answer_frees_its_slot() {
    // Each call waits for its deadline.
    std::thread::scope(|scope| {
        for mode in MODES {
            scope.spawn(move || a_deadline_ends_the_call_in(mode));
        }
    });
}

fn a_deadline_ends_the_call_in(mode: CompletionMode) {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &[mode]) {
        let mut client =
            local.client(ClientConfig { window: 1, timeout: Duration::from_millis(200), ..with(plan) });
        let late = client.submit_on(0, NEVER, b"late").unwrap();
        // Pulled in time, and answered too late.
        let incoming = local.receive(&mut client);
        let error = client.wait(late).map(drop).unwrap_err();
        assert_eq!(error, CallError::MaybeExecuted(Cause::DeadlineExceeded), "{name}");
        // The server may still answer, so the slot stays taken and a call that waits for it fails.
        assert_eq!(client.room(0), 0, "{name}");
        let error = client.call(ECHO, b"no room").unwrap_err();
        assert_eq!(error, CallError::NotExecuted(Cause::DeadlineExceeded), "{name}");
        assert_eq!(incoming.payload, b"late");
        incoming.reply(b"too late".to_vec());
        until("the late answer has freed the slot", || {
            client.progress();
            client.room(0) == 1
        });
        let id = client.submit_on(0, ECHO, b"next").unwrap();
        until("the next call is answered", || {
            client.progress();
            client.is_done(id)
        });
        assert_eq!(client.outcome(id).unwrap(), b"next", "{name}: not the late answer");
        client.forget(id);
    }
}

fn the_server_sees_the_deadline_of_a_call_and_of_a_batch() {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &MODES) {
        for (timeout, usual) in [(Duration::MAX, 0), (Duration::from_secs(7), 7_000_000_000)] {
            let is_left = |left: &[u8], of: u64| {
                let left = u64::from_le_bytes(*left.first_chunk().unwrap());
                // The time left now is shorter by the time under way, which is short.
                assert!(left == of || left > of / 2 && left <= of, "{name}: {left} of {of}");
            };
            let mut client = local.client(ClientConfig { timeout, ..with(plan) });
            is_left(&client.call(TIME_LEFT, b"").unwrap(), usual);
            let own = Duration::from_secs(20);
            is_left(&client.within(own).call(TIME_LEFT, b"").unwrap(), 20_000_000_000);
            // A batch of one call is tested too.
            for count in [1, 2, 5] {
                for number in 0..count {
                    if number % 2 == 1 {
                        client.within(own / 2).push_on(0, TIME_LEFT, b"in a batch").unwrap();
                    } else {
                        client.push_on(0, TIME_LEFT, b"in a batch").unwrap();
                    }
                }
                let mut seen: Vec<_> =
                    collect(&mut client).into_iter().map(|(_, left)| left.unwrap()).collect();
                assert_eq!(seen.len(), count);
                seen.sort_by_key(|left| u64::from_le_bytes(*left.first_chunk().unwrap()));
                let own = seen.split_off(count.div_ceil(2));
                seen.iter().for_each(|left| is_left(left, usual));
                own.iter().for_each(|left| is_left(left, 10_000_000_000));
            }
        }
    }
}

fn a_call_given_up_takes_room_until_its_answer() {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &MODES) {
        let mut client = local.client(ClientConfig { window: 2, ..with(plan) });
        for size in [3, 100_000] {
            let given_up = client.submit_on(0, NEVER, &pattern(size, 1)).unwrap();
            client.forget(given_up);
            assert_eq!((client.room(0), client.in_flight()), (1, 1), "{name}");
            for _ in 0..5 {
                assert_eq!(*client.call(ECHO, b"beside it").unwrap(), *b"beside it");
            }
            let incoming = local.receive(&mut client);
            assert_eq!(incoming.payload, pattern(size, 1));
            let result = incoming.payload.clone();
            incoming.reply(result);
            until("its answer has come", || {
                client.progress();
                client.room(0) == 2
            });
            assert_eq!(client.in_flight(), 0, "{name}");
        }
    }
}

fn a_full_window_pushes_back() {
    let local = local(ServerConfig { window: 8, ..ServerConfig::default() });
    for (name, plan) in plans(&local.fabric, &MODES) {
        let mut client = local.client(ClientConfig { window: 100, ..with(plan) });
        assert_eq!(client.room(0), 8, "{name}: the server grants what it will");
        let held: Vec<_> = (0..8).map(|_| client.submit_on(0, NEVER, b"hold").unwrap()).collect();
        assert_eq!(client.submit_on(0, ECHO, b"9"), Err(CallError::NotExecuted(Cause::WindowFull)), "{name}");
        assert_eq!(client.push_on(0, ECHO, b"9"), Err(CallError::NotExecuted(Cause::WindowFull)), "{name}");
        // A call waits for room.
        let incoming = local.receive(&mut client);
        let answer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            incoming.reply(b"there".to_vec());
        });
        until("the answer has come", || {
            client.progress();
            held.iter().any(|id| client.is_done(*id))
        });
        answer.join().unwrap();
        let done = client.next_done().unwrap();
        assert_eq!(client.outcome(done).unwrap(), b"there");
        client.forget(done);
        assert_eq!(*client.call(ECHO, b"ninth").unwrap(), *b"ninth", "{name}");
        for _ in 1..8 {
            local.receive(&mut client).refuse(Status::Unauthorised);
        }
        for (_, outcome) in collect(&mut client) {
            assert_eq!(outcome, Err(CallError::NotExecuted(Cause::Refused(Status::Unauthorised))), "{name}");
        }
    }
}

fn a_panic_costs_one_call() {
    std::panic::set_hook(Box::new(|panic| {
        if !panic.to_string().contains("as asked") {
            eprintln!("{panic}");
        }
    }));
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &[CompletionMode::Busy]) {
        let mut client = local.client(with(plan));
        for _ in 0..3 {
            let error = client.call(PANIC, b"").unwrap_err();
            assert_eq!(error, CallError::Executed(Cause::HandlerPanicked), "{name}");
            assert_eq!(*client.call(ECHO, b"on").unwrap(), *b"on", "{name}");
        }
        for begins in [false, true] {
            let _unanswered = client.submit_on(0, NEVER, b"drop me").unwrap();
            let mut incoming = local.receive(&mut client);
            if begins {
                incoming.begin();
            }
            drop(incoming);
            let dropped = match begins {
                false => CallError::MaybeExecuted(Cause::Dropped),
                true => CallError::Executed(Cause::HandlerPanicked),
            };
            assert_eq!(collect(&mut client)[0].1, Err(dropped), "{name}");
        }
    }
}

/// The buffer for small results may still hold another call's bytes: none of them may be sent.
fn the_text_of_an_error_is_cut_not_mixed_up() {
    let local = local(ServerConfig::default());
    for (name, plan) in plans(&local.fabric, &MODES) {
        let mut client = local.client(with(plan));
        client.call(ECHO, &pattern(4000, 3)).unwrap();
        match client.call(WORDY, b"").unwrap_err() {
            CallError::Application { code: 3, payload } => {
                assert_eq!(payload, vec![7; plan.rendezvous_above as usize], "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

fn too_many_waiting_calls_are_refused() {
    let local = local(ServerConfig { max_waiting: 4, pool_threads: 1, ..ServerConfig::default() });
    for (name, plan) in plans(&local.fabric, &[CompletionMode::Busy, CompletionMode::Event]) {
        let mut client = local.client(with(plan));
        let before = local.executed();
        for _ in 0..40 {
            client.submit_on(0, SLOW, &[30]).unwrap();
        }
        let outcomes = collect(&mut client);
        let ok = outcomes.iter().filter(|(_, o)| o.is_ok()).count();
        let overloaded = CallError::NotExecuted(Cause::Refused(Status::Overloaded));
        let refused = outcomes.iter().filter(|(_, o)| *o == Err(overloaded.clone())).count();
        assert_eq!(ok + refused, 40, "{name}");
        assert!(ok >= 4 && refused > 0, "{name}: {ok} {refused}");
        assert_eq!(local.executed() - before, ok as u64, "{name}");
    }
}

fn pulled_calls_are_answered_by_whoever_has_them() {
    let local = Arc::new(local(ServerConfig { workers: 2, ..ServerConfig::default() }));
    let pullers: Vec<_> = (0..3)
        .map(|_| {
            let local = Arc::clone(&local);
            std::thread::spawn(move || {
                while let Some(incoming) = local.server.receive(HANG / 2) {
                    assert_eq!(incoming.function, NEVER);
                    if incoming.payload == b"end" {
                        return incoming.reply(Vec::new());
                    }
                    let mut result = incoming.payload.clone();
                    result.reverse();
                    incoming.reply(result);
                }
            })
        })
        .collect();
    for (name, plan) in plans(&local.fabric, &[CompletionMode::Busy, CompletionMode::Event]) {
        let mut client = local.client(with(plan));
        for i in 0..100u64 {
            let payload = pattern([0, 10, 3000, 50_000][i as usize % 4], i);
            let mut reversed = payload.clone();
            reversed.reverse();
            assert_eq!(*client.call(NEVER, &payload).unwrap(), *reversed, "{name}");
        }
    }
    let mut client = local.client(with(any_plan()));
    for _ in 0..3 {
        client.call(NEVER, b"end").unwrap();
    }
    pullers.into_iter().for_each(|puller| puller.join().unwrap());
}

fn results_over_a_limit_were_executed() {
    let local = local(ServerConfig { max_response: 10_000, ..ServerConfig::default() });
    for (name, plan) in plans(&local.fabric, &[CompletionMode::Busy, CompletionMode::Event]) {
        let mut client = local.client(with(plan));
        assert_eq!(client.call(SIZED, &10_000u32.to_le_bytes()).unwrap().len(), 10_000, "{name}");
        let error = client.call(SIZED, &10_001u32.to_le_bytes()).unwrap_err();
        assert_eq!(error, CallError::Executed(Cause::ResultTooLarge), "{name}");
        let before = local.executed();
        for function in [ECHO, SLOW] {
            let error = client.call(function, &[0; 10_001]).unwrap_err();
            assert_eq!(error, CallError::Executed(Cause::ResultTooLarge), "{name}");
        }
        assert_eq!(local.executed() - before, 2);
        assert_eq!(*client.call(ECHO, b"on").unwrap(), *b"on");
    }
}

fn large_memory_is_a_limit_and_comes_back() {
    const SIZE: usize = 600_000;
    // The server's limit for requests may or may not be reached, depending on the speed of READs.
    let local = local(ServerConfig { large_response_memory: 2 << 20, ..ServerConfig::default() });
    for (name, plan) in plans(&local.fabric, &[CompletionMode::Busy, CompletionMode::Event]) {
        // The server's limit for results; the client's for results and requests.
        let mut client = local.client(with(plan));
        for round in 0..3 {
            for _ in 0..8 {
                client.submit_on(0, SIZED, &(SIZE as u32).to_le_bytes()).unwrap();
            }
            let mut ok = 0;
            for (_, outcome) in collect(&mut client) {
                match outcome {
                    Ok(result) => ok += (result.len() == SIZE) as u32,
                    Err(error) => {
                        assert_eq!(error, CallError::Executed(Cause::ResultTooLarge), "{name} {round}")
                    }
                }
            }
            assert!(ok > 0, "{name} {round}");
        }
        until("the server has its memory back", || client.call(SIZED, &(SIZE as u32).to_le_bytes()).is_ok());

        let mut client = local.client(ClientConfig { large_memory: 1 << 20, ..with(plan) });
        let first = client.submit_on(0, NEVER, &[1; SIZE]).unwrap();
        // An eager payload releases its memory when its last fragment is sent.
        if plan.large != LargePayload::Eager {
            let error = client.submit_on(0, ECHO, &[1; SIZE]).unwrap_err();
            assert_eq!(error, CallError::NotExecuted(Cause::OutOfMemory), "{name}");
        }
        local.receive(&mut client).reply(b"done".to_vec());
        assert_eq!(*client.wait(first).unwrap(), *b"done", "{name}");
        assert_eq!(client.call(ECHO, &[1; SIZE]).unwrap().len(), SIZE, "{name}");

        let first = client.submit_on(0, SIZED, &(SIZE as u32).to_le_bytes()).unwrap();
        let second = client.submit_on(0, SIZED, &(SIZE as u32).to_le_bytes()).unwrap();
        until("both are done", || {
            client.progress();
            client.is_done(first) && client.is_done(second)
        });
        assert_eq!(client.outcome(first).unwrap().len(), SIZE, "{name}");
        assert_eq!(client.outcome(second), Err(CallError::Executed(Cause::OutOfMemory)), "{name}");
        client.forget(first);
        client.forget(second);
        assert_eq!(client.call(SIZED, &(SIZE as u32).to_le_bytes()).unwrap().len(), SIZE, "{name}");
    }
}

fn clients_reconnect_with_back_off() {
    let counted = Count::new(fabric());
    let address = unique("restarted");
    let mut server = ServerProcess::start_on(&address, "");
    for (name, plan) in plans(counted.inner(), &[CompletionMode::Busy, CompletionMode::Event]) {
        let backoff = BackoffConfig { first: Duration::from_millis(20), longest: Duration::from_millis(80) };
        let config = ClientConfig { backoff, ..with(plan) };
        let mut client = Client::connect(&counted, &address, config).unwrap();
        let session = client.session();
        assert_eq!(*client.call(ECHO, b"before").unwrap(), *b"before");
        server.kill();
        until("the client has noticed", || client.call(ECHO, b"?").is_err());
        // Without a server there are few attempts, however many calls are made.
        let before = counted.counts().dialled;
        let start = std::time::Instant::now();
        let mut calls = 0u64;
        while calls < 2000 || start.elapsed() < Duration::from_millis(100) {
            let error = client.call(ECHO, b"?").unwrap_err();
            assert_eq!(error, CallError::NotExecuted(Cause::Disconnected), "{name}");
            calls += 1;
        }
        let dials = counted.counts().dialled - before;
        // The interposer counts only successful connections, not failed attempts.
        assert_eq!(dials, 0, "{name}");
        server = ServerProcess::start_on(&address, "");
        until("the client is back", || client.call(ECHO, b"after").is_ok_and(|r| *r == *b"after"));
        assert_ne!(client.session(), session, "{name}");
        assert_eq!(counted.counts().dialled - before, 1, "{name}: one connection, not a storm");
    }
}

fn a_drain_accounts_for_every_call() {
    for (name, plan) in plans(&fabric(), &MODES) {
        for round in 0..3 {
            let local = local(ServerConfig::default());
            let started = Arc::new(AtomicU64::new(0));
            let clients: Vec<_> = (0..3)
                .map(|_| {
                    let mut client = local.client(ClientConfig { window: 32, ..with(plan) });
                    let started = Arc::clone(&started);
                    std::thread::spawn(move || {
                        let (mut ok, mut maybe, mut not) = (0u64, 0u64, 0u64);
                        let mut sort = |outcome: Result<(), CallError>| match outcome {
                            Ok(()) => ok += 1,
                            // The result of a call that was executed may be lost.
                            Err(CallError::MaybeExecuted(_) | CallError::Executed(_)) => maybe += 1,
                            Err(CallError::NotExecuted(_)) => not += 1,
                            Err(error) => panic!("{error}"),
                        };
                        let mut ended = false;
                        while !ended {
                            for i in 0..20 {
                                let function = if i % 10 == 0 { SLOW } else { ECHO };
                                match client.submit_on(0, function, &[0; 40]) {
                                    Ok(_) => {}
                                    Err(CallError::NotExecuted(Cause::WindowFull)) => break,
                                    Err(error) => {
                                        sort(Err(error));
                                        ended = true;
                                        break;
                                    }
                                }
                            }
                            while let Some(id) = client.wait_any() {
                                let outcome = client.outcome(id).map(|bytes| assert_eq!(bytes, [0; 40]));
                                sort(outcome);
                                client.forget(id);
                            }
                            started.fetch_add(1, Ordering::SeqCst);
                        }
                        (ok, maybe, not)
                    })
                })
                .collect();
            until("the clients are at it", || started.load(Ordering::SeqCst) > 30);
            let executed = Arc::clone(&local.executed);
            local.server.shutdown(Duration::from_secs(10));
            let (mut ok, mut maybe, mut not) = (0, 0, 0);
            for client in clients {
                let counts = client.join().unwrap();
                ok += counts.0;
                maybe += counts.1;
                not += counts.2;
            }
            let executed = executed.load(Ordering::SeqCst);
            assert_eq!(executed, ok + maybe, "{name} {round}: {ok} ok, {maybe} maybe, {not} not executed");
            assert!(not >= 3, "{name}: each client ends by being refused");
        }
    }
}

fn workers_run_by_hand_end_with_their_server() {
    for round in 0..20 {
        let (fabric, executed) = (fabric(), Arc::new(AtomicU64::new(0)));
        let (server, workers) = test_server(&fabric, &executed)
            .config(ServerConfig { workers: 2, ..ServerConfig::default() })
            .serve_with(&unique("by-hand"), |_| test_service(Arc::clone(&executed)))
            .unwrap();
        let threads: Vec<_> =
            workers.into_iter().map(|worker| std::thread::spawn(move || worker.run())).collect();
        let mut client = Client::connect(&fabric, server.address(), with(any_plan())).unwrap();
        assert_eq!(*client.call(ECHO, b"x").unwrap(), *b"x");
        if round % 2 == 0 {
            drop(server)
        } else {
            server.shutdown(Duration::from_secs(1))
        }
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

fn many_clients_of_many_workers() {
    let local = local(ServerConfig { workers: 3, ..ServerConfig::default() });
    for (name, plan) in plans(&local.fabric, &[CompletionMode::Event, CompletionMode::Adaptive]) {
        let before = local.executed();
        let first = local.client(with(plan));
        assert_eq!(first.workers(), 3);
        let threads: Vec<_> = (0..8u64)
            .map(|number| {
                let mut client = first.another().unwrap();
                std::thread::spawn(move || {
                    for i in 0..150 {
                        let payload = pattern([5, 90, 6000][i as usize % 3], i * 8 + number);
                        let response = client.call_on(i as usize % 3, ECHO, &payload).unwrap();
                        assert_eq!(*response, *payload);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(local.executed() - before, 8 * 150, "{name}");
        let _ = local.fabric.capabilities();
    }
}
