//! The hint `sharing`, the choice without it, and the agreement of a client's functions.
#![allow(missing_docs, reason = "a test")]

use dunlin_fabric::Capabilities;
use dunlin_hints::{
    ACTIVE_QUEUE_PAIRS, Environment, FunctionHints, Hints, Key, Level, Origin, PerfGoal, Place, SelectError,
    Selection, ServerConnections, Sharing, Side, Subject, Transport, select, unify_sharing,
};
use dunlin_rpc::{Lease, ServerConfig};

const COPIES: Capabilities = Capabilities { name: "shm", initiator_copies: true, ..Capabilities::EVERYTHING };

fn on(capabilities: &Capabilities, client: Hints, server: Hints, clients: Option<u32>) -> Selection {
    let environment = Environment { clients, ..Environment::new(capabilities, 16) };
    select(&FunctionHints::new("f").client(client).server(server), &environment).expect("a plan")
}

fn sharing(selection: &Selection) -> Sharing {
    Sharing::of(&selection.plan.expect("a plan")).expect("a value of the hint")
}

fn said(selection: &Selection) -> Vec<String> {
    selection.reasons_for(Subject::Sharing).map(ToString::to_string).collect()
}

#[test]
fn the_limit_is_that_of_a_server_without_settings() {
    assert_eq!(ServerConfig::default().max_active_queue_pairs, ACTIVE_QUEUE_PAIRS);
}

#[test]
fn without_a_hint_more_clients_than_queue_pairs_share_connections() {
    for (clients, expected, reason) in [
        (
            1,
            Sharing::Dedicated,
            "sharing: 1 client, not more than the 256 queue pairs that a server keeps active by default: dedicated",
        ),
        (
            256,
            Sharing::Dedicated,
            "sharing: 256 clients, not more than the 256 queue pairs that a server keeps active by default: dedicated",
        ),
        (
            257,
            Sharing::Combined,
            "sharing: 257 clients, more than the 256 queue pairs that a server keeps active by default: combined; if they are many processes of few hosts, sharing = tier shares among these, too",
        ),
    ] {
        let known = on(&Capabilities::EVERYTHING, Hints::NONE, Hints::NONE, Some(clients));
        let hinted = on(&Capabilities::EVERYTHING, Hints::NONE, Hints::NONE.concurrency(clients), None);
        for selection in [known, hinted] {
            assert_eq!((sharing(&selection), said(&selection)), (expected, vec![reason.to_owned()]));
        }
    }
    let small = Environment {
        clients: Some(9),
        connections: ServerConnections { open: None, active_queue_pairs: Some(8) },
        ..Environment::new(&Capabilities::EVERYTHING, 16)
    };
    let selection = select(&FunctionHints::new("f"), &small).expect("a plan");
    assert_eq!(sharing(&selection), Sharing::Combined);
    assert_eq!(
        said(&selection),
        [
            "sharing: 9 clients, more than the 8 queue pairs that the server keeps active: combined; if they are many processes of few hosts, sharing = tier shares among these, too"
        ]
    );
    // A client has a queue pair to each worker.
    for (clients, expected) in [(75, Sharing::Dedicated), (76, Sharing::Combined)] {
        let wide = Environment {
            clients: Some(clients),
            queue_pairs_each: 4,
            connections: ServerConnections { open: None, active_queue_pairs: Some(300) },
            ..Environment::new(&Capabilities::EVERYTHING, 16)
        };
        let selection = select(&FunctionHints::new("f"), &wide).expect("a plan");
        assert_eq!(sharing(&selection), expected);
        assert!(said(&selection)[0].contains("clients with 4 queue pairs each"), "{selection:?}");
    }
}

/// Above as many connections as the server keeps active, connections take turns, whether or not threads share them.
#[test]
fn without_a_hint_connections_take_turns_if_the_server_has_many() {
    let with = |capabilities: &Capabilities, hints: Hints, open, clients| {
        let connections = ServerConnections { open: Some(open), active_queue_pairs: Some(60) };
        let environment = Environment {
            clients: Some(clients),
            queue_pairs_each: 2,
            connections,
            ..Environment::new(capabilities, 16)
        };
        let selection = select(&FunctionHints::new("f").client(hints), &environment).expect("a plan");
        selection.plan.expect("a plan").check(capabilities).expect("a legal plan");
        (sharing(&selection), said(&selection).remove(0))
    };
    let all = &Capabilities::EVERYTHING;
    assert_eq!(with(all, Hints::NONE, 30, 1).0, Sharing::Dedicated);
    let (chosen, reason) = with(all, Hints::NONE, 31, 1);
    assert_eq!(chosen, Sharing::Grouped, "{reason}");
    assert_eq!(
        reason,
        "sharing: 1 client with 2 queue pairs each, not more than the 60 queue pairs that the server keeps active; \
         it has 31 connections, which take turns: grouped"
    );
    assert_eq!(with(all, Hints::NONE, 31, 31).0, Sharing::CombinedGrouped);
    // A hint holds, latency keeps its connection, and a fabric without order has no leases.
    assert_eq!(with(all, Hints::NONE.sharing(Sharing::Dedicated), 31, 31).0, Sharing::Dedicated);
    let (chosen, reason) = with(all, Hints::NONE.perf_goal(PerfGoal::Latency), 31, 31);
    assert!(chosen == Sharing::Combined && reason.contains("perf_goal = latency keeps"), "{reason}");
    let (chosen, reason) = with(&Capabilities::OFI, Hints::NONE, 31, 31);
    assert!(
        chosen == Sharing::Combined && reason.contains("takes no turns (a lease of a slice needs"),
        "{reason}"
    );
    assert_eq!(with(&COPIES, Hints::NONE, 31, 31).0, Sharing::Dedicated);
}

/// Functions of one client share connections or do not; each has its own lease.
#[test]
fn functions_keep_their_leases_when_they_agree() {
    let connections = ServerConnections { open: Some(9), active_queue_pairs: Some(8) };
    let environment =
        Environment { clients: Some(9), connections, ..Environment::new(&Capabilities::EVERYTHING, 16) };
    let hints = [
        FunctionHints::new("by_turns"),
        FunctionHints::new("quick").client(Hints::NONE.perf_goal(PerfGoal::Latency)),
    ];
    let mut selections = hints.clone().map(|hints| select(&hints, &environment).expect("a plan"));
    unify_sharing(hints.iter().zip(&mut selections)).unwrap();
    assert_eq!(selections.each_ref().map(sharing), [Sharing::CombinedGrouped, Sharing::Combined]);
    let few = Environment { clients: Some(1), ..environment };
    let mut selections =
        [select(&hints[0], &few).expect("a plan"), select(&hints[1], &environment).expect("a plan")];
    unify_sharing(hints.iter().zip(&mut selections)).unwrap();
    assert_eq!(selections.each_ref().map(sharing), [Sharing::CombinedGrouped, Sharing::Combined]);
    assert!(
        said(&selections[0])[1].contains("so as 'quick': combined_grouped"),
        "{:?}",
        said(&selections[0])
    );
}

#[test]
fn threads_do_not_share_where_the_senders_processor_copies_unless_asked() {
    let unhinted = on(&COPIES, Hints::NONE, Hints::NONE, Some(10_000));
    assert_eq!(sharing(&unhinted), Sharing::Dedicated);
    assert!(said(&unhinted)[0].contains("on shm the sender's processor copies"), "{unhinted:?}");
    let asked = on(&COPIES, Hints::NONE.sharing(Sharing::Combined), Hints::NONE, None);
    assert_eq!(
        (sharing(&asked), said(&asked)),
        (Sharing::Combined, vec!["sharing: sharing = combined".into()])
    );
    let asked =
        on(&Capabilities::EVERYTHING, Hints::NONE.sharing(Sharing::Dedicated), Hints::NONE, Some(10_000));
    assert_eq!(sharing(&asked), Sharing::Dedicated);
}

#[test]
fn the_rest_of_the_plan_does_not_depend_on_sharing() {
    for goal in [PerfGoal::Latency, PerfGoal::Throughput, PerfGoal::ResUtil] {
        for capabilities in [&Capabilities::EVERYTHING, &Capabilities::IWARP, &Capabilities::OFI, &COPIES] {
            let hints = Hints::NONE.perf_goal(goal).payload_size(64 << 10);
            let dedicated = on(capabilities, hints.sharing(Sharing::Dedicated), hints, Some(64));
            let combined = on(capabilities, hints.sharing(Sharing::Combined), hints, Some(64));
            let plan = dedicated.plan.expect("a plan");
            assert_eq!(combined.plan, Some(plan.shared(dunlin_rpc::Sharing::Combined, Lease::Forever)));
            assert_eq!(combined.protocol, dedicated.protocol);
        }
    }
}

#[test]
fn the_servers_hint_has_no_effect_and_says_so() {
    let combined = Hints::NONE.sharing(Sharing::Combined);
    let of_server = on(&Capabilities::EVERYTHING, Hints::NONE, combined, None);
    assert_eq!(sharing(&of_server), Sharing::Dedicated);
    assert_eq!(
        said(&of_server)[0],
        "sharing: the server's sharing = combined has no effect: the connections are the client's"
    );
    let differing = on(&Capabilities::EVERYTHING, Hints::NONE.sharing(Sharing::Dedicated), combined, None);
    assert_eq!((sharing(&differing), said(&differing).len()), (Sharing::Dedicated, 2));
    let both = on(&Capabilities::EVERYTHING, combined, combined, None);
    assert_eq!((sharing(&both), said(&both).len()), (Sharing::Combined, 1));
}

/// A plan that [`Plan::check`] refuses is an error with its reason and place; no other sharing replaces it.
#[test]
fn a_sharing_that_cannot_run_is_refused() {
    let grouped = FunctionHints {
        origins: vec![Origin::new(
            Side::Client,
            Key::Sharing,
            Level::Function,
            Place::new("kv.thrift", 3, 9),
        )]
        .into(),
        ..FunctionHints::new("f").client(Hints::NONE.sharing(Sharing::Grouped))
    };
    // No plan by SEND has a lease that ends.
    let by_send = FunctionHints { client: grouped.client.protocol("Eager-SendRecv"), ..grouped.clone() };
    let environment = Environment::new(&Capabilities::EVERYTHING, 16);
    let error = select(&by_send, &environment).expect_err("no plan");
    assert!(matches!(error, SelectError::IllegalSharing { sharing: Sharing::Grouped, .. }), "{error:?}");
    assert_eq!((error.keys(), error.side()), ((Key::Sharing, Key::Sharing), Side::Client));
    let text = error.to_string();
    assert!(text.starts_with("kv.thrift:3:9: sharing = grouped cannot run on the fabric"), "{text}");
    assert!(!error.without_places().contains("kv.thrift"));
}

/// Selects for each function, and lets the functions agree.
fn unified(functions: &[FunctionHints]) -> Result<Vec<Selection>, (usize, Box<SelectError>)> {
    let environment = Environment::new(&Capabilities::EVERYTHING, 16);
    let mut selections: Vec<Selection> =
        functions.iter().map(|function| select(function, &environment).expect("a plan")).collect();
    unify_sharing(functions.iter().zip(&mut selections))?;
    Ok(selections)
}

#[test]
fn the_functions_of_a_client_agree() {
    let few = FunctionHints::new("few").both(Hints::NONE.concurrency(2));
    let many = FunctionHints::new("many").both(Hints::NONE.concurrency(1_000));
    let dedicated = FunctionHints::new("own").client(Hints::NONE.sharing(Sharing::Dedicated));
    let combined = FunctionHints::new("all").client(Hints::NONE.sharing(Sharing::Combined));
    let tcp =
        FunctionHints::new("tcp").both(Hints::NONE.transport(Transport::Tcp).sharing(Sharing::Dedicated));
    let of = |functions: &[FunctionHints]| {
        let selections = unified(functions).expect("they agree");
        selections.iter().filter(|one| one.plan.is_some()).map(sharing).collect::<Vec<_>>()
    };
    use Sharing::{Combined, Dedicated};
    assert_eq!(of(&[few.clone(), few.clone()]), [Dedicated; 2]);
    assert_eq!(of(&[few.clone(), many.clone()]), [Combined; 2]);
    assert_eq!(of(&[few.clone(), many.clone(), dedicated.clone()]), [Dedicated; 3]);
    assert_eq!(of(&[few.clone(), combined.clone(), tcp]), [Combined; 2]);
    assert_eq!(of(&[]), []);

    let changed = unified(&[few.clone(), many]).expect("they agree");
    assert_eq!(
        said(&changed[0]).last().map(String::as_str),
        Some("sharing: the functions of a client use the same connections, so as 'many': combined")
    );
    assert_eq!(said(&changed[1]).len(), 1, "it decided by itself");

    let (second, error) = unified(&[few, dedicated, combined]).expect_err("two values");
    assert_eq!(second, 2);
    assert!(
        matches!(&*error, SelectError::FunctionsDiffer { first, second, .. } if first == "own" && second == "all")
    );
    assert!(error.to_string().contains("own asks for sharing = dedicated and all for combined"), "{error}");
}

#[test]
fn connections_of_a_node_need_its_address() {
    let hinted = FunctionHints::new("near").client(Hints::NONE.sharing(Sharing::Tier));
    let environment = Environment::new(&Capabilities::EVERYTHING, 16);
    // As long as no address is known, the hint holds. The thread's connection to the node is its own.
    for through_node in [None, Some(true)] {
        let selection = select(&hinted, &Environment { through_node, ..environment }).expect("a plan");
        assert_eq!(sharing(&selection), Sharing::Dedicated);
        assert!(said(&selection).contains(&"sharing: sharing = tier".to_owned()), "{:?}", said(&selection));
    }
    let without = Environment { through_node: Some(false), ..environment };
    let error = select(&hinted, &without).expect_err("no node");
    assert_eq!((error.keys(), error.side()), ((Key::Sharing, Key::Sharing), Side::Client));
    assert!(error.to_string().contains("connect to node:SERVICE"), "{error}");
    // Without the hint, the address tells, and a hint of another value holds for the connection to the node.
    let node = Environment { through_node: Some(true), clients: Some(1_000), ..environment };
    let selection = select(&FunctionHints::new("near"), &node).expect("a plan");
    assert_eq!(sharing(&selection), Sharing::Dedicated);
    assert!(said(&selection)[0].ends_with("the connections of their node: tier"), "{:?}", said(&selection));
    let combined = FunctionHints::new("near").client(Hints::NONE.sharing(Sharing::Combined));
    assert_eq!(sharing(&select(&combined, &node).expect("a plan")), Sharing::Combined);
    // With many clients, the other way is named.
    let many = Environment { clients: Some(1_000), ..environment };
    let selection = select(&FunctionHints::new("near"), &many).expect("a plan");
    assert!(said(&selection)[0].contains("sharing = tier"), "{:?}", said(&selection));

    let dedicated = FunctionHints::new("own").client(Hints::NONE.sharing(Sharing::Dedicated));
    let (second, error) = unified(&[hinted.clone(), dedicated]).expect_err("two values");
    assert_eq!(second, 1);
    assert!(error.to_string().contains("near asks for sharing = tier and own for dedicated"), "{error}");
    let agreed = unified(&[FunctionHints::new("other"), hinted]).expect("they agree");
    assert!(
        said(&agreed[0]).last().is_some_and(|text| text.ends_with("so as 'near': tier")),
        "{:?}",
        said(&agreed[0])
    );
}
