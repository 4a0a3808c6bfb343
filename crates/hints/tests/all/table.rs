//! HatRPC figure 6, row by row, and the effect of the hints of each side.
#![allow(missing_docs, reason = "a test")]

use dunlin_hints::{
    CompletionMode, Environment, FunctionHints, Hints, Key, Level, Numa, NumaBinding, Origin, PerfGoal,
    Place, Priority, ProcessTime, SelectError, Selection, Side, Subject, Subscription, Transport, select,
};
use dunlin_rpc::{LargePayload, PROTOCOLS, Plan, RequestHalf, ResponseHalf};

/// HatRPC's server: 28 cores, of which 14 are at the NIC's node; figure 12 rounds 14 to 16.
fn server(clients: u32) -> Environment<'static> {
    Environment {
        node_cores: 16,
        nodes: 2,
        clients: Some(clients),
        ..Environment::new(&dunlin_fabric::Capabilities::EVERYTHING, 28)
    }
}

const UNDER: [u32; 2] = [1, 16];
const FULL: [u32; 2] = [17, 28];
const OVER: [u32; 2] = [29, 512];
const SMALL: [u64; 3] = [4, 512, 4096];
const LARGE: [u64; 3] = [4097, 128 << 10, 512 << 10];

#[track_caller]
fn chosen(hints: Hints, clients: u32) -> Selection {
    let selection = select(&FunctionHints::new("f").both(hints), &server(clients)).expect("a plan");
    let plan = selection.plan.expect("a plan");
    assert_eq!(plan.check(&dunlin_fabric::Capabilities::EVERYTHING), Ok(()));
    for subject in
        [Subject::Request, Subject::Response, Subject::Polling(Side::Client), Subject::Polling(Side::Server)]
    {
        assert!(selection.reasons_for(subject).count() > 0, "{subject} has no reason");
    }
    selection
}

/// Checks a row of the figure: these clients and sizes get this protocol and these completion modes.
#[track_caller]
fn row(
    goal: PerfGoal,
    clients: &[u32],
    sizes: &[u64],
    protocol: &str,
    client: CompletionMode,
    server: CompletionMode,
) {
    for clients in clients {
        for size in sizes {
            let selection = chosen(Hints::NONE.perf_goal(goal).payload_size(*size), *clients);
            let plan = selection.plan.expect("a plan");
            let found = (selection.protocol, plan.client, plan.server);
            assert_eq!(found, (Some(protocol), client, server), "{clients} clients, {size} bytes");
        }
    }
}

use CompletionMode::{Adaptive, Busy, Event};
use PerfGoal::{Latency, ResUtil, Throughput};

#[test]
fn latency_waits_adaptively_at_any_number_of_clients() {
    let sizes = [SMALL, LARGE].concat();
    row(Latency, &[UNDER, FULL, OVER].concat(), &sizes, "Direct-WriteIMM", Adaptive, Adaptive);
}

#[test]
fn throughput_of_small_payloads_is_by_events_at_any_number_of_clients() {
    row(Throughput, &[UNDER, FULL, OVER].concat(), &SMALL, "Direct-WriteIMM", Event, Event);
}

#[test]
fn throughput_of_large_payloads_fetches_above_the_nodes_cores() {
    row(Throughput, &UNDER, &LARGE, "Direct-WriteIMM", Adaptive, Adaptive);
    // A fetching client cannot sleep, since no completion signals that its result is ready.
    row(Throughput, &[FULL, OVER].concat(), &LARGE, "Remote-fetch", Busy, Event);
    let selection = chosen(Hints::NONE.perf_goal(Throughput).payload_size(128 << 10), 64);
    let plan = selection.plan.expect("a plan");
    assert_eq!((plan.request, plan.response), (RequestHalf::WriteImm, ResponseHalf::Fetch));
    let client: Vec<_> = selection.reasons_for(Subject::Polling(Side::Client)).collect();
    assert!(client.iter().any(|reason| reason.text.contains("in the place of event")), "{client:?}");
}

#[test]
fn resources_are_spared() {
    row(ResUtil, &UNDER, &SMALL, "Direct-WriteIMM", Event, Event);
    row(ResUtil, &UNDER, &LARGE, "Write-RNDV", Event, Event);
    row(ResUtil, &[FULL, OVER].concat(), &SMALL, "Eager-SendRecv", Event, Event);
    row(ResUtil, &[FULL, OVER].concat(), &LARGE, "Write-RNDV", Event, Event);
}

#[test]
fn a_small_direction_does_not_wait_for_a_large_one() {
    let hints = FunctionHints::new("multiget")
        .client(Hints::NONE.perf_goal(ResUtil).payload_size(240))
        .server(Hints::NONE.perf_goal(ResUtil).payload_size(10 << 10));
    let selection = select(&hints, &server(64)).expect("a plan");
    assert_eq!(selection.protocol, Some("Hybrid-EagerRNDV"));
    let plan = select(&hints, &server(1)).expect("a plan").plan.expect("a plan");
    assert_eq!((plan.request, plan.response), (RequestHalf::WriteImm, ResponseHalf::Send));
    assert_eq!((plan.large, plan.rendezvous_above), (LargePayload::Write, 4096));
}

#[test]
fn without_a_goal_the_usual_plan_is_chosen() {
    let selection = chosen(Hints::NONE, 1);
    assert_eq!(selection.plan, Some(dunlin_hints::Plan::default()));
}

#[test]
fn each_direction_goes_by_the_size_of_who_sends_and_each_side_waits_by_its_own_goal() {
    let hints = FunctionHints::new("multiget")
        .client(Hints::NONE.perf_goal(Latency).payload_size(240))
        .server(Hints::NONE.perf_goal(Throughput).payload_size(10 << 10));
    let plan = select(&hints, &server(64)).expect("a plan").plan.expect("a plan");
    assert_eq!((plan.request, plan.response), (RequestHalf::WriteImm, ResponseHalf::Fetch));
    // Nothing announces a fetched result, so that the client cannot sleep.
    assert_eq!((plan.client, plan.server), (Busy, Event));
    let hints = FunctionHints::new("multiput")
        .client(Hints::NONE.perf_goal(Latency).payload_size(10 << 10))
        .server(Hints::NONE.perf_goal(Throughput).payload_size(4));
    let selection = select(&hints, &server(64)).expect("a plan");
    let plan = selection.plan.expect("a plan");
    assert_eq!(plan.response, ResponseHalf::WriteImm);
    assert_eq!((plan.client, plan.server), (Adaptive, Event));
}

#[test]
fn a_hinted_way_to_wait_stays_and_the_path_gives_way() {
    let hints = Hints::NONE.perf_goal(Throughput).payload_size(128 << 10).polling(Event);
    let selection = chosen(hints, 64);
    let plan = selection.plan.expect("a plan");
    assert_eq!((selection.protocol, plan.client, plan.server), (Some("Direct-WriteIMM"), Event, Event));
    assert!(
        selection.reasons_for(Subject::Response).any(|reason| reason.text.contains("in the place of fetch"))
    );
}

#[test]
fn long_work_is_not_fetched() {
    let hints = Hints::NONE.perf_goal(Throughput).payload_size(128 << 10);
    for (time, protocol) in [
        (ProcessTime::Short, "Remote-fetch"),
        (ProcessTime::Nanos(6_999), "Remote-fetch"),
        (ProcessTime::Nanos(7_000), "Direct-WriteIMM"),
        (ProcessTime::Long, "Direct-WriteIMM"),
    ] {
        assert_eq!(chosen(hints.process_time(time), 64).protocol, Some(protocol), "{time:?}");
    }
}

#[test]
fn who_gives_way_does_not_spin() {
    let plan = chosen(Hints::NONE.perf_goal(Latency).priority(Priority::Low), 1).plan.expect("a plan");
    assert_eq!((plan.client, plan.server), (Event, Event));
    let plan = chosen(Hints::NONE.perf_goal(Latency).priority(Priority::High), 1).plan.expect("a plan");
    assert_eq!((plan.client, plan.server), (Adaptive, Adaptive));
}

#[test]
fn known_clients_count_more_than_hinted_ones() {
    let hints = FunctionHints::new("f").both(Hints::NONE.perf_goal(Latency).concurrency(64));
    let hinted = Environment { clients: None, ..server(1) };
    assert_eq!(select(&hints, &hinted).expect("a plan").subscription, Subscription::Over);
    assert_eq!(select(&hints, &server(20)).expect("a plan").subscription, Subscription::Full);
    assert_eq!(select(&hints, &server(16)).expect("a plan").subscription, Subscription::Under);
}

#[test]
fn threads_are_bound_where_there_are_nodes_and_cores_enough() {
    for (numa, clients, nodes, binding) in [
        (Numa::On, 16, 2, Some(NumaBinding::NicNode)),
        (Numa::On, 17, 2, None),
        (Numa::On, 1, 1, None),
        (Numa::Node(1), 64, 2, Some(NumaBinding::Node(1))),
        (Numa::Node(1), 1, 1, None),
        (Numa::Node(2), 1, 2, Some(NumaBinding::Node(2))),
        (Numa::Off, 1, 2, None),
    ] {
        let hints = FunctionHints::new("f").client(Hints::NONE.numa(numa));
        let environment = Environment { nodes, ..server(clients) };
        let selection = select(&hints, &environment).expect("a plan");
        assert_eq!(selection.client_binding, binding, "{numa:?} {clients} {nodes}");
        assert_eq!(selection.server_binding, None);
        assert_eq!(selection.reasons_for(Subject::Numa(Side::Client)).count(), 1);
    }
}

/// Hints with locations, as loaded from a file.
fn placed(hints: FunctionHints, origins: &[(Side, Key, Level, u32)]) -> FunctionHints {
    let origins = origins
        .iter()
        .map(|(side, key, level, line)| Origin {
            side: *side,
            key: *key,
            level: *level,
            place: Place::new("kv.thrift", *line, 3),
        })
        .collect::<Vec<_>>();
    FunctionHints { origins: origins.into(), ..hints }
}

/// On iWARP: no immediate data, and no eager SEND.
#[test]
fn without_immediate_data_sends_tell_and_sleepers_still_sleep() {
    let iwarp = dunlin_fabric::Capabilities::IWARP;
    let environment = |clients| Environment { clients: Some(clients), ..Environment::new(&iwarp, 16) };
    let of = |hints: Hints, clients| {
        select(&FunctionHints::new("f").both(hints), &environment(clients)).expect("legal")
    };
    let selected = |goal: PerfGoal, clients| of(Hints::NONE.perf_goal(goal), clients);
    // Nothing tells a sleeper that a ring has room again, so that sides that may sleep use SENDs.
    let latency = selected(PerfGoal::Latency, 1);
    let plan = latency.plan.expect("a plan");
    assert_eq!((latency.protocol, plan.client, plan.server), (Some("AR-gRPC"), Adaptive, Adaptive));
    let busy = of(Hints::NONE.perf_goal(PerfGoal::Latency).polling(Busy), 1);
    assert_eq!(busy.protocol, Some("Chained-Write-Send"));
    assert!(busy.reasons.iter().any(|reason| {
        reason.text == "write_send_chained in the place of write_imm: this fabric has no immediate data"
    }));
    let throughput = selected(PerfGoal::Throughput, 64);
    let plan = throughput.plan.expect("a plan");
    assert_eq!((throughput.protocol, plan.client), (Some("AR-gRPC"), CompletionMode::Event));
    let spared = selected(PerfGoal::ResUtil, 64);
    assert_eq!(spared.protocol, Some("AR-gRPC"));
    assert!(
        spared.reasons.iter().any(|reason| reason.text.starts_with("rendezvous_read in the place of eager"))
    );
    let usual = select(&FunctionHints::new("f"), &environment(1)).expect("legal");
    assert_eq!(usual.plan, Some(Plan::default_for(&iwarp)));
    let lossy = PROTOCOLS.iter().filter(|row| row.plan(CompletionMode::Busy).is_lossy()).map(|row| row.name);
    for name in ["Direct-WriteIMM", "Eager-SendRecv"].into_iter().chain(lossy) {
        let hints = FunctionHints::new("f").both(Hints::NONE.protocol(name));
        let error = select(&hints, &environment(1)).expect_err("illegal on iWARP");
        assert!(matches!(error, dunlin_hints::SelectError::IllegalProtocol { .. }), "{name}: {error}");
    }
}

#[test]
fn tcp_has_no_plan_and_no_protocol() {
    let tcp = Hints::NONE.transport(Transport::Tcp);
    let selection = select(&FunctionHints::new("f").both(tcp), &server(1)).expect("TCP");
    assert_eq!((selection.transport, selection.plan), (Transport::Tcp, None));
    let hints = FunctionHints::new("f").both(tcp.protocol("Eager-SendRecv"));
    for (transport, protocol, legal) in [
        (Level::Function, Level::Service, true),
        (Level::Function, Level::Function, false),
        (Level::Service, Level::Function, false),
        (Level::Service, Level::Extended(1), true),
        (Level::Extended(2), Level::Extended(1), false),
    ] {
        let hints = placed(
            hints.clone(),
            &[
                (Side::Client, Key::Transport, transport, 1),
                (Side::Server, Key::Transport, transport, 1),
                (Side::Client, Key::Protocol, protocol, 2),
                (Side::Server, Key::Protocol, protocol, 2),
            ],
        );
        let selected = select(&hints, &server(1));
        assert_eq!(selected.is_ok(), legal, "{transport:?} {protocol:?}");
        if let Err(error) = selected {
            let said = error.to_string();
            assert!(said.contains("kv.thrift:1:3") && said.contains("kv.thrift:2:3"), "{said}");
        }
    }
}

#[test]
fn sides_cannot_ask_for_two_transports_or_protocols() {
    let hints = FunctionHints::new("f")
        .client(Hints::NONE.transport(Transport::Tcp))
        .server(Hints::NONE.transport(Transport::Rdma));
    assert!(matches!(select(&hints, &server(1)), Err(SelectError::SidesDiffer { key: Key::Transport, .. })));
    let hints = FunctionHints::new("f")
        .client(Hints::NONE.protocol("Eager-SendRecv"))
        .server(Hints::NONE.protocol("Direct-WriteIMM"));
    assert!(matches!(select(&hints, &server(1)), Err(SelectError::SidesDiffer { key: Key::Protocol, .. })));
}

#[test]
fn a_protocol_by_name_is_kept_or_refused() {
    for protocol in PROTOCOLS {
        let hints = FunctionHints::new("f").both(Hints::NONE.protocol(protocol.name).perf_goal(Throughput));
        let selection = select(&hints, &server(64)).expect("a plan");
        assert_eq!(selection.protocol, Some(protocol.name));
    }
    let hints = FunctionHints::new("f").both(Hints::NONE.protocol("Server-reply"));
    let unordered =
        dunlin_fabric::Capabilities { in_order_write: false, ..dunlin_fabric::Capabilities::EVERYTHING };
    let environment = Environment { capabilities: &unordered, ..server(1) };
    let hints = placed(hints, &[(Side::Client, Key::Protocol, Level::Function, 7)]);
    let error = select(&hints, &environment).expect_err("no polling of memory");
    assert!(matches!(error, SelectError::IllegalProtocol { name: "Server-reply", .. }));
    assert!(error.to_string().starts_with("kv.thrift:7:3: Server-reply cannot run"), "{error}");
    let hints = FunctionHints::new("f").both(Hints::NONE.protocol("Carrier-pigeon"));
    assert!(matches!(select(&hints, &server(1)), Err(SelectError::UnknownProtocol { .. })));
}

#[test]
fn a_protocol_against_a_way_to_wait_is_an_error_unless_it_is_nearer() {
    let hints = FunctionHints::new("f").both(Hints::NONE.protocol("Server-reply").polling(Event));
    assert!(matches!(
        select(&hints, &server(1)),
        Err(SelectError::ProtocolAgainstPolling { side: Side::Client, mode: Event, .. })
    ));
    let both = |key, level, line| Side::BOTH.map(|side| (side, key, level, line));
    let nearer = placed(
        hints,
        &[both(Key::Protocol, Level::Function, 1), both(Key::Polling, Level::Service, 2)].concat(),
    );
    let selection = select(&nearer, &server(1)).expect("a plan");
    let plan = selection.plan.expect("a plan");
    assert_eq!((selection.protocol, plan.client, plan.server), (Some("Server-reply"), Busy, Busy));
    // A request whose result is fetched still wakes a sleeping server.
    let hints = FunctionHints::new("f")
        .both(Hints::NONE.protocol("Remote-fetch"))
        .server(Hints::NONE.protocol("Remote-fetch").polling(Event));
    let plan = select(&hints, &server(1)).expect("a plan").plan.expect("a plan");
    assert_eq!((plan.request, plan.response), (RequestHalf::WriteImm, ResponseHalf::Fetch));
}

#[test]
fn reasons_name_the_hints_that_decided() {
    let hints = placed(
        FunctionHints::new("get")
            .both(Hints::NONE.perf_goal(Throughput).payload_size(64 << 10).concurrency(64)),
        &[
            (Side::Server, Key::PerfGoal, Level::Service, 2),
            (Side::Server, Key::Concurrency, Level::Service, 3),
            (Side::Client, Key::PayloadSize, Level::Function, 4),
        ],
    );
    let environment = Environment { clients: None, ..server(1) };
    let selection = select(&hints, &environment).expect("a plan");
    let request = selection.reasons_for(Subject::Request).next().expect("a reason");
    assert_eq!(
        request.to_string(),
        "request: perf_goal = throughput, large requests (64KB), 64 clients, over-subscribed: Remote-fetch \
         (kv.thrift:2:3, 4:3, 3:3)"
    );
    assert_eq!(request.place(), Some(&Place::new("kv.thrift", 2, 3)));
}

/// Generated code holds its hints and their locations in constants.
#[test]
fn tables_are_constants() {
    static GET: FunctionHints = FunctionHints {
        name: std::borrow::Cow::Borrowed("get"),
        oneway: false,
        client: Hints::NONE.perf_goal(Latency).polling(Busy),
        server: Hints::NONE.protocol("Eager-SendRecv"),
        origins: std::borrow::Cow::Borrowed(&[Origin {
            side: Side::Client,
            key: Key::Polling,
            level: Level::Function,
            place: Place::new("kv.thrift", 3, 20),
        }]),
    };
    assert_eq!(
        GET.place(Side::Client, Key::Polling).map(ToString::to_string).as_deref(),
        Some("kv.thrift:3:20")
    );
    assert_eq!(GET.place(Side::Server, Key::Polling), None);
    assert_eq!(select(&GET, &server(1)).expect("a plan").protocol, Some("Eager-SendRecv"));
}

/// If the sender's processor copies, memory is polled, unless a side prefers to sleep or must wait long. Long
/// payloads are then READ while they are filled, in either direction, but not under a protocol requested by
/// name and not with a NIC.
#[test]
fn long_payloads_travel_in_pieces_on_shared_memory() {
    let copies = dunlin_fabric::Capabilities {
        initiator_copies: true,
        write_wakes: true,
        ..dunlin_fabric::Capabilities::EVERYTHING
    };
    let large = |capabilities, of_client: Hints, of_server: Hints| {
        let environment = Environment { capabilities, ..server(1) };
        let hints = FunctionHints::new("f").client(of_client).server(of_server);
        let selection = select(&hints, &environment).expect("a plan");
        assert_eq!(
            selection.protocol,
            Some(if capabilities.initiator_copies { "Server-reply" } else { "Direct-WriteIMM" })
        );
        let says = selection.reasons.iter().any(|reason| reason.text.contains("rendezvous_pieces"));
        let large = selection.plan.expect("a plan").large;
        assert_eq!(says, large == LargePayload::Pipelined);
        large
    };
    let of = |size: u64| Hints::NONE.perf_goal(Latency).payload_size(size);
    let named = of(1 << 20).protocol("Server-reply");
    for (client, server, expected) in [
        (of(64 << 10), of(32), LargePayload::Pipelined),
        (of(32), of(64 << 10), LargePayload::Pipelined),
        (of(1 << 20), of(1 << 20), LargePayload::Pipelined),
        (of((64 << 10) - 1), of((64 << 10) - 1), LargePayload::Read),
        (named, named, LargePayload::Read),
    ] {
        assert_eq!(large(&copies, client, server), expected);
    }
    assert_eq!(large(&dunlin_fabric::Capabilities::EVERYTHING, of(1 << 20), of(1 << 20)), LargePayload::Read);
}

/// Shared memory whose WRITEs cannot wake a sleeper: memory is polled only if both sides ask for busy waiting.
#[test]
fn shared_memory_without_wake_ups_is_polled_where_busy_waiting_is_asked_for() {
    let shm =
        dunlin_fabric::Capabilities { initiator_copies: true, ..dunlin_fabric::Capabilities::EVERYTHING };
    let on = |client: Hints, server: Hints, clients: u32| {
        let environment = Environment { clients: Some(clients), ..Environment::new(&shm, 2) };
        let function = FunctionHints::new("f").client(client).server(server);
        select(&function, &environment).expect("a plan")
    };
    for goal in [Latency, Throughput] {
        for clients in [1, 2, 512] {
            for size in [4, 128 << 10] {
                let hints = Hints::NONE.perf_goal(goal).payload_size(size);
                let asked = hints.polling(Busy);
                let selection = on(asked, asked, clients);
                let plan = selection.plan.expect("a plan");
                assert_eq!(
                    (selection.protocol, plan.client, plan.server),
                    (Some("Server-reply"), Busy, Busy)
                );
                let reasons = 2 + usize::from(plan.large == LargePayload::Pipelined);
                assert!(
                    selection.reasons_for(Subject::Request).count() == reasons,
                    "{:?}",
                    selection.reasons
                );
                for (client, server) in [(hints, hints), (asked, hints), (hints, asked)] {
                    let plan = on(client, server, clients).plan.expect("a plan");
                    assert_ne!((plan.request, plan.response), (RequestHalf::Write, ResponseHalf::Write));
                    assert_eq!(
                        plan.client == Busy,
                        client.polling == Some(Busy) || fetches(&plan),
                        "{plan:?}"
                    );
                    assert_eq!(plan.server == Busy, server.polling == Some(Busy), "{plan:?}");
                }
            }
        }
    }
    let forced = on(Hints::NONE.perf_goal(Throughput).protocol("Direct-WriteIMM"), Hints::NONE, 512);
    let plan = forced.plan.expect("a plan");
    assert_eq!((forced.protocol, plan.client, plan.server), (Some("Direct-WriteIMM"), Event, Adaptive));
}

fn fetches(plan: &Plan) -> bool {
    plan.response == ResponseHalf::Fetch
}

/// Where WRITEs wake a sleeper, polling memory does not keep anybody awake: both sides wait adaptively, unless
/// busy waiting is asked for.
#[test]
fn shared_memory_is_polled_adaptively_where_writes_wake() {
    let shm = dunlin_fabric::Capabilities {
        initiator_copies: true,
        write_wakes: true,
        ..dunlin_fabric::Capabilities::EVERYTHING
    };
    let on = |client: Hints, server: Hints, clients: u32, workers: Option<u32>| {
        let environment = Environment { clients: Some(clients), workers, ..Environment::new(&shm, 2) };
        let function = FunctionHints::new("f").client(client).server(server);
        select(&function, &environment).expect("a plan")
    };
    for goal in [Latency, Throughput] {
        for clients in [1, 2, 512] {
            let hints = Hints::NONE.perf_goal(goal);
            for hints in [hints, hints.polling(Adaptive)] {
                let plan = on(hints, hints, clients, None).plan.expect("a plan");
                assert_eq!((plan.request, plan.response), (RequestHalf::Write, ResponseHalf::Write));
                assert_eq!((plan.client, plan.server), (Adaptive, Adaptive));
            }
            let plan = on(hints.polling(Busy), hints, clients, None).plan.expect("a plan");
            assert_eq!((plan.client, plan.server), (Busy, Adaptive));
        }
    }
    // Workers and clients that outnumber the cores: the server does not wait as it was asked to, and says so.
    let busy = Hints::NONE.perf_goal(Latency).polling(Busy);
    for (workers, clients, server) in [(1, 1, Busy), (1, 2, Adaptive), (4, 1, Adaptive)] {
        let selection = on(busy, busy, clients, Some(workers));
        let plan = selection.plan.expect("a plan");
        assert_eq!((plan.client, plan.server), (Busy, server), "{workers} workers, {clients} clients");
        let said = selection
            .reasons_for(Subject::Polling(Side::Server))
            .any(|reason| reason.text.contains("more threads than cores"));
        assert_eq!(said, server == Adaptive);
    }
    let hints = Hints::NONE.perf_goal(Throughput);
    let table = |client, server| {
        let plan = on(client, server, 512, None).plan.expect("a plan");
        assert_ne!((plan.request, plan.response), (RequestHalf::Write, ResponseHalf::Write), "{plan:?}");
        (plan.client, plan.server)
    };
    assert_eq!(table(hints.polling(Event), hints), (Event, Event));
    assert_eq!(table(hints, hints.priority(Priority::Low)), (Event, Event));
    assert_eq!(table(hints, hints.process_time(ProcessTime::Long)), (Event, Event));
    assert_eq!(table(hints, hints.perf_goal(ResUtil)), (Event, Event));
    assert_eq!(table(hints, Hints::NONE), (Event, Adaptive));
    assert_eq!(table(Hints::NONE, Hints::NONE), (Adaptive, Adaptive));
    let forced = on(hints.protocol("Direct-WriteIMM"), hints, 512, None);
    let plan = forced.plan.expect("a plan");
    assert_eq!((forced.protocol, plan.client, plan.server), (Some("Direct-WriteIMM"), Adaptive, Adaptive));
}
