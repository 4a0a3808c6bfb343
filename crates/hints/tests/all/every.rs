//! Any hints on any fabric give a legal plan or a typed error.
#![allow(missing_docs, reason = "a test")]

use dunlin_fabric::Capabilities;
use dunlin_hints::{
    CompletionMode, Environment, FunctionHints, Hints, Key, Level, Numa, Origin, PerfGoal, Place, Priority,
    ProcessTime, SelectError, ServerConnections, Sharing, Side, Subject, Transport, select,
};
use dunlin_rpc::{Lease, PROTOCOLS, Plan, RequestHalf, ResponseHalf};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select as one_of;

fn fabrics() -> impl Strategy<Value = Capabilities> {
    any::<[bool; 9]>().prop_map(
        |[
            acknowledged,
            immediate,
            in_order_write,
            events,
            atomics,
            shared_receive_queue,
            connected,
            initiator_copies,
            write_wakes,
        ]| {
            let transports = if connected {
                dunlin_fabric::Capabilities::EVERYTHING.transports
            } else {
                dunlin_fabric::TransportSet::NONE
            };
            Capabilities {
                name: "drawn",
                transports,
                acknowledged,
                immediate,
                in_order_write,
                events,
                atomics: dunlin_fabric::Atomics::of_device(atomics),
                shared_receive_queue,
                initiator_copies,
                write_wakes,
                ..dunlin_fabric::Capabilities::EVERYTHING
            }
        },
    )
}

fn modes() -> impl Strategy<Value = CompletionMode> {
    one_of(&[CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive][..])
}

fn hints() -> impl Strategy<Value = Hints> {
    let goals = one_of(&[PerfGoal::Latency, PerfGoal::Throughput, PerfGoal::ResUtil][..]);
    let numas = one_of(&[Numa::On, Numa::Off, Numa::Node(0), Numa::Node(9)][..]);
    let transports = prop_oneof![4 => Just(Transport::Rdma), 1 => Just(Transport::Tcp)];
    let priorities = one_of(&[Priority::High, Priority::Low][..]);
    let times = one_of(&[ProcessTime::Short, ProcessTime::Long, ProcessTime::Nanos(100)][..]);
    let sharings = one_of(&[Sharing::Dedicated, Sharing::Combined, Sharing::Grouped][..]);
    let mut names: Vec<&'static str> = PROTOCOLS.iter().map(|protocol| protocol.name).collect();
    names.push("Carrier-pigeon");
    (
        option::of(goals),
        option::of(1..600u32),
        option::of(prop_oneof![Just(4u64), Just(4096), Just(4097), Just(1 << 32)]),
        option::of(modes()),
        option::of(numas),
        option::of(transports),
        option::of(priorities),
        option::of(times),
        option::weighted(0.3, one_of(names)),
        option::weighted(0.3, sharings),
    )
        .prop_map(
            |(
                perf_goal,
                concurrency,
                payload_size,
                polling,
                numa,
                transport,
                priority,
                process_time,
                protocol,
                sharing,
            )| {
                Hints {
                    perf_goal,
                    concurrency,
                    payload_size,
                    polling,
                    numa,
                    transport,
                    priority,
                    process_time,
                    protocol,
                    sharing,
                }
            },
        )
}

/// Locations on random levels, one line each.
fn origins() -> impl Strategy<Value = Vec<Origin>> {
    proptest::collection::vec(option::of(0..3u8), 2 * Key::ALL.len()).prop_map(|levels| {
        let keys = Side::BOTH.into_iter().flat_map(|side| Key::ALL.map(|key| (side, key)));
        keys.zip(levels)
            .enumerate()
            .filter_map(|(line, ((side, key), level))| {
                let level = match level? {
                    0 => Level::Function,
                    1 => Level::Service,
                    _ => Level::Extended(1),
                };
                Some(Origin { side, key, level, place: Place::new("f.thrift", line as u32 + 1, 1) })
            })
            .collect()
    })
}

/// Returns whether the fabric runs the simplest plan, which all others require.
fn runs_anything(fabric: &Capabilities) -> bool {
    RequestHalf::ALL
        .into_iter()
        .flat_map(|request| ResponseHalf::ALL.map(|response| Plan::new(request, response)))
        .any(|plan| plan.check(fabric).is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn there_is_a_legal_plan_or_a_typed_error(
        client in hints(),
        server in hints(),
        fabric in fabrics(),
        origins in origins(),
        oneway in any::<bool>(),
        cores in (1..40u32, 1..40u32, 0..3u32),
        clients in option::of(1..600u32),
        open in option::of(1..600u32),
    ) {
        let function = FunctionHints {
            name: "f".into(),
            oneway,
            client,
            server,
            origins: origins.into(),
        };
        let (node_cores, cores, nodes) = cores;
        let environment =
            Environment { node_cores, nodes, clients, ..Environment::new(&fabric, cores) };
        let environment = Environment {
            connections: ServerConnections { open, active_queue_pairs: None },
            ..environment
        };
        match select(&function, &environment) {
            Ok(selection) => {
                let tcp = [client, server].iter().any(|hints| hints.transport == Some(Transport::Tcp));
                prop_assert_eq!(selection.plan.is_none(), tcp);
                prop_assert_eq!(selection.transport == Transport::Tcp, tcp);
                if let Some(plan) = selection.plan {
                    prop_assert_eq!(plan.check(&fabric), Ok(()));
                    // A side spins without end only if its hint asks for that, or nothing can wake it.
                    let asleep = [
                        (plan.client, client, plan.completion(CompletionMode::Adaptive, plan.server)),
                        (plan.server, server, plan.completion(plan.client, CompletionMode::Adaptive)),
                    ];
                    for (mode, hints, asleep) in asleep {
                        prop_assert!(
                            mode != CompletionMode::Busy
                                || hints.polling == Some(CompletionMode::Busy)
                                || asleep.check(&fabric).is_err(),
                            "{:?}",
                            selection
                        );
                    }
                    let sharing = Sharing::of(&plan).expect("a value of the hint");
                    let known = clients.or(server.concurrency).or(client.concurrency).unwrap_or(1);
                    let combines = known > 256 && !fabric.initiator_copies;
                    let unhinted = if combines { Sharing::Combined } else { Sharing::Dedicated };
                    // Connections take turns only where the server has many, and a lease is legal.
                    let by_turns = plan.lease == Lease::Slice && client.sharing.is_none();
                    prop_assert!(!by_turns || (open > Some(256) && !fabric.initiator_copies));
                    let lasting = match sharing {
                        Sharing::Grouped if by_turns => Sharing::Dedicated,
                        Sharing::CombinedGrouped if by_turns => Sharing::Combined,
                        other => other,
                    };
                    prop_assert_eq!(lasting, client.sharing.unwrap_or(unhinted));
                    prop_assert!(selection.reasons_for(Subject::Sharing).count() > 0);
                    let asked = client.protocol.or(server.protocol);
                    prop_assert!(asked.is_none() || asked == selection.protocol, "{:?}", selection);
                }
                for reason in &selection.reasons {
                    prop_assert!(!reason.text.is_empty());
                }
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty());
                match error {
                    SelectError::UnknownProtocol { name, .. } => prop_assert_eq!(name, "Carrier-pigeon"),
                    SelectError::IllegalProtocol { name, illegal, .. } => {
                        // The protocol is illegal with any completion modes.
                        let protocol = dunlin_hints::Protocol::by_name(name).expect("it is in the table");
                        prop_assert!(protocol.plan(CompletionMode::Busy).check(&fabric).is_err(), "{illegal}");
                    }
                    SelectError::IllegalSharing { sharing, illegal, .. } => {
                        prop_assert_eq!(client.sharing, Some(sharing));
                        // The protocol is illegal with it, whatever the completion modes; or the table's default is.
                        let asked = client.protocol.or(server.protocol);
                        let asked = asked.map(|name| dunlin_hints::Protocol::by_name(name).expect("it is known"));
                        let plan = asked.map_or(Plan::default_for(&fabric), |row| row.plan(CompletionMode::Busy));
                        let is_large = [client, server].iter().any(|hints| hints.payload_size.is_some());
                        prop_assert!(sharing.on(plan).check(&fabric).is_err() || (asked.is_none() && is_large), "{illegal}");
                    }
                    SelectError::ProtocolAgainstPolling { side, mode, .. } => {
                        prop_assert_eq!(function.side(side).polling, Some(mode));
                    }
                    SelectError::ProtocolOnTcp { .. } => {
                        prop_assert!(client.protocol.is_some() || server.protocol.is_some());
                    }
                    SelectError::SidesDiffer { key, .. } => {
                        prop_assert_ne!(client.get(key), server.get(key));
                    }
                    SelectError::NothingLegal { .. } => prop_assert!(!runs_anything(&fabric)),
                    other => panic!("an error that this test does not check: {other}"),
                }
            }
        }
    }
}
