//! The unmodified engine in virtual time, on the simulated fabric. A run is a pure function of its seed.

use dunlin_fabric::{Address, Capabilities, Fabric, Host, Nanos, Scheme, Signal};
use dunlin_fabric_sim::{RunReport, Settings, Sim};
use dunlin_rpc::messages::{MessageClient, MessageServer};
use dunlin_rpc::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn echo() -> Box<dyn Service> {
    Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
        reply.write(request.payload)?;
        Ok(())
    })
}

/// Runs a server with one worker and two clients, each with several calls in flight.
fn scenario(seed: u64, plan: Plan, calls: u64) -> RunReport {
    scenario_with(Settings::default(), seed, plan, calls)
}

fn scenario_with(settings: Settings, seed: u64, plan: Plan, calls: u64) -> RunReport {
    let answered = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&answered);
    let report = Sim::run_with(settings, seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "echo").unwrap();
        let server = ServerBuilder::new(&fabric)
            .function(1, FunctionMode::Worker)
            .serve(&address, |_| echo())
            .unwrap();
        let tasks: Vec<_> = (0..2u64)
            .map(|number| {
                let (fabric, address, count) = (fabric.clone(), address.clone(), Arc::clone(&count));
                let host = fabric.host().clone();
                let body = move || {
                    let mut client =
                        Client::connect(&fabric, &address, ClientConfig::with_plan(plan)).unwrap();
                    let mut window = Vec::new();
                    for call in 0..calls {
                        let times = if plan.large == LargePayload::Pipelined { 40 } else { 1 };
                        let payload = vec![(call + number) as u8; (call * 37 % 6000 * times) as usize];
                        loop {
                            match client.submit_on(0, 1, &payload) {
                                Ok(id) => break window.push((id, payload)),
                                Err(CallError::NotExecuted(Cause::WindowFull)) => {
                                    let (id, payload) = window.remove(0);
                                    assert_eq!(*client.wait(id).unwrap(), *payload);
                                    count.fetch_add(1, Ordering::Relaxed);
                                }
                                Err(error) => panic!("{error}"),
                            }
                        }
                        if window.len() > 5 {
                            let (id, payload) = window.remove(0);
                            assert_eq!(*client.wait(id).unwrap(), *payload);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    for (id, payload) in window {
                        assert_eq!(*client.wait(id).unwrap(), *payload);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                };
                host.spawn(&format!("client-{number}"), Box::new(body)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    assert_eq!(answered.load(Ordering::Relaxed), 2 * calls);
    report
}

#[test]
fn every_protocol_runs_in_virtual_time_and_replays_from_its_seed() {
    for protocol in PROTOCOLS {
        for mode in [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive] {
            for large in [protocol.large, LargePayload::Pipelined] {
                let plan = protocol.plan(mode).large(large, protocol.rendezvous_above);
                if plan.check(&capabilities()).is_err() {
                    continue;
                }
                let name = format!("{} {mode} {}", protocol.name, large.name());
                println!("{name}");
                let first = scenario(1, plan, 60);
                assert_eq!(first, scenario(1, plan, 60), "{name}");
                assert_ne!(first.trace_hash, scenario(2, plan, 60).trace_hash, "{name}");
            }
        }
    }
}

/// Where WRITEs wake a sleeper, both sides of a plan that polls memory may sleep, and no wake-up is lost: a lost
/// one would end the run as a deadlock.
#[test]
fn who_polls_memory_sleeps_where_writes_wake() {
    let mut settings = Settings::default();
    settings.capabilities.write_wakes = true;
    let mut plans = 0;
    for request in RequestHalf::ALL {
        for response in ResponseHalf::ALL {
            for mode in [CompletionMode::Event, CompletionMode::Adaptive] {
                let plan = Plan::new(request, response).completion(mode, mode);
                let legal = plan.check(&settings.capabilities).is_ok();
                if !legal || plan.check(&capabilities()).is_ok() {
                    continue;
                }
                plans += 1;
                println!("{} {} {mode}", request.name(), response.name());
                for seed in 0..3 {
                    scenario_with(settings.clone(), seed, plan, 100);
                }
            }
        }
    }
    assert!(plans >= 2 * 12, "{plans}");
}

/// A receiver that is notified of each message reads nothing beyond it. If the bytes of a WRITE become
/// visible in any order, the memory beyond may hold part of the next message.
#[test]
fn who_is_told_of_messages_needs_no_order_within_them() {
    let mut settings = Settings::default();
    settings.capabilities.in_order_write = false;
    let mut legal = 0;
    for request in RequestHalf::ALL {
        for response in ResponseHalf::ALL {
            for mode in [CompletionMode::Busy, CompletionMode::Event] {
                let plan = Plan::new(request, response).completion(mode, mode);
                if plan.check(&settings.capabilities).is_err() {
                    continue;
                }
                legal += 1;
                println!("{} {} {mode}", request.name(), response.name());
                for seed in 0..4 {
                    scenario_with(settings.clone(), seed, plan, 100);
                }
            }
        }
    }
    assert!(legal >= 2 * 4 * 4, "{legal}");
}

/// Without a plan the client uses the fabric's default plan. A plan that the fabric cannot run is refused and
/// not replaced.
#[test]
fn a_client_without_a_plan_takes_the_usual_one_of_the_fabric() {
    let everything = Settings::default().capabilities;
    let iwarp = Capabilities { max_inline: everything.max_inline, ..Capabilities::IWARP };
    for capabilities in [everything, iwarp] {
        let settings = Settings { capabilities, ..Settings::default() };
        let run = Sim::run_with(settings, 11, |fabric| {
            let address = Address::new(Scheme::Sim, "echo").unwrap();
            let function = ServerBuilder::new(&fabric).function(1, FunctionMode::Worker);
            let server = function.serve(&address, |_| echo()).unwrap();
            let usual = Plan::default_for(fabric.capabilities());
            let mut client = Client::connect(&fabric, &address, ClientConfig::default()).unwrap();
            assert_eq!(client.config().plan, Some(usual));
            for size in [0, 32, 4096, 100_000] {
                let payload = vec![size as u8; size];
                assert_eq!(*client.call(1, &payload).unwrap(), *payload);
            }
            let mut another = client.another().unwrap();
            assert_eq!(*another.call(1, b"another").unwrap(), *b"another");
            let hub = AsyncHub::new(&fabric).unwrap();
            drop(AsyncClient::connect(&hub, &address, ClientConfig::default()).unwrap());

            let chosen = Client::connect(&fabric, &address, ClientConfig::with_plan(Plan::default()));
            let chosen_too = AsyncClient::connect(&hub, &address, ClientConfig::with_plan(Plan::default()));
            match fabric.capabilities().immediate {
                true => assert!(usual == Plan::default() && chosen.is_ok() && chosen_too.is_ok()),
                false => {
                    assert!(matches!(chosen, Err(ConnectError::Plan(_))), "{chosen:?}");
                    assert!(matches!(chosen_too, Err(ConnectError::Plan(_))), "{chosen_too:?}");
                }
            }
            drop((client, another));
            server.shutdown(Duration::from_secs(1));
        });
        run.unwrap_or_else(|error| panic!("{error}"));
    }
}

struct Raise<S>(S);

impl<S: Signal> std::task::Wake for Raise<S> {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }
}

/// The wake thread may sleep until the deadline of a call with a long timeout, or without one. A later call
/// with a shorter timeout must still end on time.
#[test]
fn a_short_deadline_is_kept_beside_calls_that_have_longer() {
    for long in [Duration::MAX, Duration::from_secs(10)] {
        let run = Sim::run(5, move |fabric| {
            let host = fabric.host().clone();
            let address = Address::new(Scheme::Sim, "late").unwrap();
            let slow = fabric.clone();
            let server =
                ServerBuilder::new(&fabric).function(1, FunctionMode::Worker).serve(&address, |_| {
                    let host = slow.host().clone();
                    Box::new(move |_: &Request<'_>, _: &mut Reply<'_>| {
                        host.sleep(host.now() + 500_000_000);
                        Ok(())
                    })
                });
            let server = server.unwrap();
            let hub = AsyncHub::new(&fabric).unwrap();
            let plan = Plan::default().completion(CompletionMode::Event, CompletionMode::Event);
            let connect = |timeout| {
                let config = ClientConfig { timeout, ..ClientConfig::with_plan(plan) };
                AsyncClient::connect(&hub, &address, config).unwrap()
            };
            let (patient, hasty) = (connect(long), connect(Duration::from_millis(1)));
            let signal = host.signal();
            let waker = std::task::Waker::from(Arc::new(Raise(signal.clone())));
            let mut context = std::task::Context::from_waker(&waker);
            let mut first = std::pin::pin!(patient.call(1, b""));
            assert!(first.as_mut().poll(&mut context).is_pending());
            // Lets the wake thread go to sleep.
            host.sleep(host.now() + 5_000_000);
            let since = host.now();
            let mut second = std::pin::pin!(hasty.call(1, b""));
            let ended = loop {
                let seen = signal.seen();
                if let std::task::Poll::Ready(ended) = second.as_mut().poll(&mut context) {
                    break ended;
                }
                signal.wait(seen, Nanos::MAX);
            };
            let ended = ended.map(|answer| answer.len());
            assert_eq!(ended, Err(CallError::MaybeExecuted(Cause::DeadlineExceeded)));
            // In virtual time.
            let took = host.now() - since;
            assert!((1_000_000..1_100_000).contains(&took), "{took}");
            server.shutdown(Duration::from_secs(2));
        });
        run.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// On a fabric where a READ may return a partly old line with a new tag (software copies), a result is READ
/// again after it was seen to be complete.
#[test]
fn results_are_fetched_once_more_where_lines_are_not_read_whole() {
    const CALLS: u64 = 40;
    for (whole, reads) in [(true, 1), (false, 2)] {
        let mut settings = Settings::default();
        settings.capabilities.cache_line_atomic_reads = whole;
        let run = Sim::run_with(settings, 3, move |fabric| {
            let address = Address::new(Scheme::Sim, "echo").unwrap();
            let function = ServerBuilder::new(&fabric).function(1, FunctionMode::Worker);
            let server = function.serve(&address, |_| echo()).unwrap();
            let plan = Protocol::by_name("RF-RPC").unwrap().plan(CompletionMode::Busy);
            let mut client = Client::connect(&fabric, &address, ClientConfig::with_plan(plan)).unwrap();
            for call in 0..CALLS {
                assert_eq!(*client.call(1, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
            }
            let tuning = client.tuning().remove(0);
            assert!(tuning.results.0 > 0, "{tuning:?}");
            assert_eq!(tuning.reads.0 - tuning.reads.1, reads * tuning.results.0, "{tuning:?}");
            drop(client);
            server.shutdown(Duration::from_secs(1));
        });
        run.unwrap_or_else(|error| panic!("{whole}: {error}"));
    }
    // Everything that is fetched, including metadata, of any length.
    let mut settings = Settings::default();
    settings.capabilities.cache_line_atomic_reads = false;
    for protocol in ["Remote-fetch", "FaRM", "Pilaf", "RF-RPC"] {
        let plan = Protocol::by_name(protocol).unwrap().plan(CompletionMode::Busy);
        scenario_with(settings.clone(), 1, plan, 200);
    }
}

/// On a fabric where a SEND does not wait for a RECV (iWARP), a SEND without a RECV breaks the lane. No
/// client may cause that, however many lanes a worker has and however slow it is.
#[test]
fn no_send_outruns_the_receives_where_none_waits() {
    let capabilities = dunlin_fabric::Capabilities { name: "sim", ..dunlin_fabric::Capabilities::IWARP };
    let settings = Settings { capabilities, ..Settings::default() };
    let mut plans: Vec<Plan> = PROTOCOLS
        .iter()
        .flat_map(|row| [CompletionMode::Busy, CompletionMode::Event].map(|mode| row.plan(mode)))
        .collect();
    plans.retain(|plan| plan.check(&settings.capabilities).is_ok());
    assert_eq!(plans.len(), 15);
    for plan in plans {
        let answered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&answered);
        let run = Sim::run_with(settings.clone(), 5, move |fabric| {
            let address = Address::new(Scheme::Sim, "echo").unwrap();
            let server = ServerBuilder::new(&fabric)
                .function(1, FunctionMode::Worker)
                .serve(&address, |_| echo())
                .unwrap();
            // Together more than a worker's shared RECVs.
            let tasks: Vec<_> = (0..12u8)
                .map(|number| {
                    let (fabric, address, count) = (fabric.clone(), address.clone(), Arc::clone(&count));
                    let host = fabric.host().clone();
                    let body = move || {
                        let config = ClientConfig::with_plan(plan);
                        let window = config.window;
                        let mut client = Client::connect(&fabric, &address, config).unwrap();
                        for round in 0..4 {
                            let ids: Vec<CallId> = (0..window)
                                .map(|call| {
                                    let large = (round + call) % 3 == 0;
                                    let payload = vec![number; if large { 9000 } else { 200 }];
                                    client.submit_waiting_on(0, 1, &payload).unwrap()
                                })
                                .collect();
                            for id in ids {
                                assert!(client.wait(id).unwrap().iter().all(|byte| *byte == number));
                                count.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    };
                    host.spawn(&format!("client-{number}"), Box::new(body)).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(dunlin_fabric::Task::join);
            server.shutdown(Duration::from_secs(1));
        });
        run.unwrap_or_else(|error| panic!("{plan:?}: {error}"));
        assert_eq!(answered.load(Ordering::Relaxed), 12 * 4 * 64, "{plan:?}");
    }
}

/// Messages that are not inline lie in registered memory until a signaled completion releases it. Only that
/// completion wakes a waiter, so a poll that comes too early must not be the last one.
#[test]
fn staged_messages_get_their_memory_back_by_the_completion_alone() {
    for protocol in PROTOCOLS {
        // No spurious wake-ups, and none of these calls takes a second.
        let settings = Settings { spurious: 0, preemption: 0, limit: 2_000_000_000, ..Settings::default() };
        let plan = protocol.plan(CompletionMode::Busy);
        let run = Sim::run_with(settings, 3, move |fabric| {
            let address = Address::new(Scheme::Sim, "echo").unwrap();
            let server = ServerBuilder::new(&fabric)
                .function(1, FunctionMode::Worker)
                .serve(&address, |_| echo())
                .unwrap();
            let mut client = Client::connect(&fabric, &address, ClientConfig::with_plan(plan)).unwrap();
            let payload = vec![7; 4096];
            for _ in 0..300 {
                assert_eq!(*client.call(1, &payload).unwrap(), *payload);
            }
            drop(client);
            server.shutdown(Duration::from_secs(1));
        });
        run.unwrap_or_else(|error| panic!("{}: {error}", protocol.name));
    }
}

/// RF-RPC's table 2 in virtual time: three clients, and two server threads that receive all of a client's
/// messages before they answer.
fn messages(seed: u64, plan: Plan) -> RunReport {
    let received = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&received);
    let report = Sim::run(seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "messages").unwrap();
        let config = ServerConfig { workers: 2, ..ServerConfig::default() };
        let (server, threads) = MessageServer::listen(&fabric, &address, config).unwrap();
        let host = fabric.host().clone();
        let spawn = |name: String, body: Box<dyn FnOnce() + Send>| host.spawn(&name, body).unwrap();
        let serving: Vec<_> = threads
            .into_iter()
            .map(|mut thread| {
                let serve = move || {
                    while !thread.is_ended() {
                        let Some(client) = thread.next_client(Duration::MAX) else { continue };
                        let mut buffer = thread.malloc_buf(client, 9000).unwrap();
                        let mut sizes = Vec::new();
                        while let Some(size) = thread.server_recv(client, &mut buffer).unwrap() {
                            sizes.push(size);
                        }
                        for size in sizes {
                            buffer[..size].fill(size as u8);
                            thread.server_send(client, &mut buffer, size).unwrap();
                        }
                    }
                };
                spawn("thread".to_owned(), Box::new(serve))
            })
            .collect();
        let clients: Vec<_> = (0..3)
            .map(|number| {
                let (fabric, address, count) = (fabric.clone(), address.clone(), Arc::clone(&count));
                let body = move || {
                    let config = ClientConfig::with_plan(plan);
                    let mut client = MessageClient::connect(&fabric, &address, config).unwrap();
                    let mut buffers = [0, 1].map(|server| client.malloc_buf(server, 9000).unwrap());
                    for round in 0..20 {
                        for (server, buffer) in buffers.iter_mut().enumerate() {
                            for size in [number + round, 500, 8000] {
                                client.client_send(server, buffer, size).unwrap();
                            }
                        }
                        for (server, buffer) in buffers.iter_mut().enumerate() {
                            for size in [number + round, 500, 8000] {
                                let received = client.client_recv(server, buffer).unwrap();
                                assert_eq!(received, size);
                                assert!(buffer[..size].iter().all(|byte| *byte == size as u8));
                                count.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                };
                spawn(format!("client-{number}"), Box::new(body))
            })
            .collect();
        clients.into_iter().for_each(dunlin_fabric::Task::join);
        server.shutdown(Duration::from_secs(1));
        serving.into_iter().for_each(dunlin_fabric::Task::join);
    })
    .unwrap();
    assert_eq!(received.load(Ordering::Relaxed), 3 * 2 * 20 * 3);
    report
}

#[test]
fn messages_run_in_virtual_time_and_replay_from_their_seed() {
    for name in ["RF-RPC", "Remote-fetch", "Server-reply", "Direct-WriteIMM", "Read-RNDV", "FaSST"] {
        println!("{name}");
        let plan = Protocol::by_name(name).unwrap().plan(CompletionMode::Busy);
        let first = messages(1, plan);
        assert_eq!(first, messages(1, plan), "{name}");
        assert_ne!(first.trace_hash, messages(2, plan).trace_hash, "{name}");
    }
}

fn capabilities() -> dunlin_fabric::Capabilities {
    let seen = Arc::new(std::sync::Mutex::new(None));
    let inner = Arc::clone(&seen);
    Sim::run(1, move |fabric| *inner.lock().unwrap() = Some(fabric.capabilities().clone())).unwrap();
    seen.lock().unwrap().take().unwrap()
}
