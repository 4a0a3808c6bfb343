//! The hint `sharing`: the threads of a typed client on shared connections.

use dunlin::hints::{FunctionHints, Hints, PerfGoal, SelectError, Sharing as Hint};
use dunlin::plan::{Lease, Sharing};
use dunlin::raw::AsyncHub;
use dunlin::thrift::{ClientOptions, ConnectError, Context, Failure, Never, ServerOptions, serve_with};
use dunlin::{Address, Fabrics};
use dunlin_fabric::Scheme;
use dunlin_fabric_sim::Sim;
use dunlin_generated::sharing::*;
use dunlin_tier_node::{Peer, ProcessConfig, ProcessServer, Tier, TierConfig};
use std::process::Command;
use std::task::{Poll, Waker};

#[derive(Debug)]
struct Handler;

impl Counted for Handler {
    fn next(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
        Ok(number + 1)
    }

    fn busy_next(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
        Ok(number + 1)
    }
}

fn address(name: &str) -> Address {
    format!("shm:sharing-{name}-{}", std::process::id()).parse().unwrap()
}

/// Polls all futures by turns until all are ready.
fn all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    let mut context = std::task::Context::from_waker(Waker::noop());
    while futures.iter().any(|(_, result)| result.is_none()) {
        for (future, result) in futures.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                *result = Some(value);
            }
        }
        std::thread::yield_now();
    }
    futures.into_iter().filter_map(|(_, result)| result).collect()
}

#[test]
fn threads_share_the_connections_of_a_hinted_client() {
    let (fabrics, address) = (Fabrics::default(), address("threads"));
    let _server =
        serve_with(&fabrics, &address, CountedProcessor(Handler), ServerOptions::default()).unwrap();
    let mut client = CountedClient::connect_with(&fabrics, &address, ClientOptions::default()).unwrap();
    for function in ["next", "busy_next"] {
        let running = client.plan_of(function).unwrap();
        assert_eq!(running.plan.unwrap().sharing, Sharing::Combined, "{running}");
        let line = running.to_string();
        assert!(line.contains("on combined lanes") && line.contains("sharing = combined"), "{line}");
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mut other = client.another().unwrap();
            scope.spawn(move || {
                for number in (thread * 1_000)..(thread * 1_000 + 200) {
                    assert_eq!(other.next(number).unwrap(), number + 1);
                    assert_eq!(other.busy_next(-number).unwrap(), 1 - number);
                }
            });
        }
        assert_eq!(client.next(7).unwrap(), 8);
    });
    // An asynchronous client of such a service: more calls at once than a queue pair has credits.
    let futures = CountedAsyncClient::connect_with(&fabrics, &address, ClientOptions::default()).unwrap();
    assert_eq!(futures.plan_of("next").unwrap().plan.unwrap().sharing, Sharing::Combined);
    for round in 0..20 {
        let answers = all((0..60).map(|number| futures.next(round * 60 + number)));
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.unwrap(), round * 60 + number as i32 + 1);
        }
    }
}

/// The hints of a program replace those of the file, and the functions of its client agree.
#[test]
fn the_functions_of_a_client_have_one_sharing() {
    let (fabrics, address) = (Fabrics::default(), address("agree"));
    let _server =
        serve_with(&fabrics, &address, CountedProcessor(Handler), ServerOptions::default()).unwrap();
    let of = |name: &'static str, sharing: Option<Hint>| {
        FunctionHints::new(name).both(Hints { sharing, ..Hints::NONE.perf_goal(PerfGoal::Latency) })
    };
    let connect = |hints: Vec<FunctionHints>| {
        CountedClient::connect_with(&fabrics, &address, ClientOptions { hints, ..Default::default() })
    };
    let mut client = connect(vec![of("next", None), of("busy_next", Some(Hint::Combined))]).unwrap();
    let running = client.plan_of("next").unwrap();
    assert_eq!(running.plan.unwrap().sharing, Sharing::Combined);
    assert!(running.to_string().contains("so as 'busy_next': combined"), "{running}");
    assert_eq!(client.next(1).unwrap(), 2);

    let mut alone = connect(vec![of("next", None), of("busy_next", None)]).unwrap();
    assert_eq!(alone.plan_of("next").unwrap().plan.unwrap().sharing, Sharing::Dedicated);
    assert_eq!(alone.next(1).unwrap(), 2);

    // The file's hint of the other function holds.
    match connect(vec![of("next", Some(Hint::Dedicated))]) {
        Err(ConnectError::Hints { function, error, .. }) => {
            assert_eq!(function, "busy_next");
            assert!(matches!(*error, SelectError::FunctionsDiffer { .. }), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// Without the hint, the number that the server says in the handshake decides, and not the default.
#[test]
fn a_server_that_keeps_few_queue_pairs_active_has_its_clients_share() {
    Sim::run(1, |fabric| {
        let of = |name| FunctionHints::new(name).both(Hints::NONE.perf_goal(PerfGoal::Latency));
        for (number, (active, workers, clients, expected)) in [
            (2, 1, 3, Sharing::Combined),
            (2, 1, 2, Sharing::Dedicated),
            (300, 1, 299, Sharing::Dedicated),
            (300, 2, 299, Sharing::Combined),
        ]
        .into_iter()
        .enumerate()
        {
            let address = Address::new(Scheme::Sim, &format!("counted-{number}")).unwrap();
            let mut options = ServerOptions::default();
            (options.engine.max_active_queue_pairs, options.engine.workers) = (active, workers);
            let _server = serve_with(&fabric, &address, CountedProcessor(Handler), options).unwrap();
            for lazy in [false, true] {
                let mut options = ClientOptions { clients: Some(clients), ..ClientOptions::default() };
                options.hints = vec![of("next"), of("busy_next")];
                options.engine.lazy = lazy;
                let mut client = CountedClient::connect_with(&fabric, &address, options.clone()).unwrap();
                assert_eq!(client.next(1).unwrap(), 2);
                let running = client.plan_of("busy_next").unwrap();
                assert_eq!(running.plan.unwrap().sharing, expected, "{running}");
                let said = format!("the {active} queue pairs that the server keeps active");
                assert!(running.to_string().contains(&said), "{running}");
                if !lazy {
                    let hub = AsyncHub::new(&fabric).unwrap();
                    let client = CountedAsyncClient::connect_with(&hub, &address, options).unwrap();
                    assert_eq!(client.plan_of("next").unwrap().plan.unwrap().sharing, expected);
                }
            }
        }
    })
    .unwrap();
}

/// Without the hint, clients of a server that has more connections than it keeps active take turns, except with functions
/// whose goal is latency.
#[test]
fn clients_of_a_server_with_many_connections_take_turns() {
    Sim::run(3, |fabric| {
        let address = Address::new(Scheme::Sim, "many").unwrap();
        let mut options = ServerOptions::default();
        options.engine.max_active_queue_pairs = 2;
        let _server = serve_with(&fabric, &address, CountedProcessor(Handler), options).unwrap();
        let connect = |lazy| {
            let hints = vec![
                FunctionHints::new("next").both(Hints::NONE),
                FunctionHints::new("busy_next").both(Hints::NONE.perf_goal(PerfGoal::Latency)),
            ];
            let mut options = ClientOptions { hints, ..ClientOptions::default() };
            options.engine.lazy = lazy;
            CountedClient::connect_with(&fabric, &address, options).unwrap()
        };
        let mut clients: Vec<_> = [false, false, false, true].map(connect).into();
        for (number, client) in clients.iter_mut().enumerate() {
            for call in 0..20 {
                assert_eq!(client.next(call).unwrap(), call + 1);
                assert_eq!(client.busy_next(call).unwrap(), call + 1);
            }
            let lease = |name| client.plan_of(name).unwrap().plan.unwrap().lease;
            assert_eq!(lease("busy_next"), Lease::Forever);
            // Beside its own connections there are those of the clients before.
            let expected = if number < 2 { Lease::Forever } else { Lease::Slice };
            assert_eq!(lease("next"), expected, "{}", client.plan_of("next").unwrap());
        }
        let said = clients[3].plan_of("next").unwrap().to_string();
        assert!(said.contains("which take turns: grouped"), "{said}");
    })
    .unwrap();
}

/// The hint `tier` on both functions.
fn by_tier() -> ClientOptions {
    let of = |name| FunctionHints::new(name).client(Hints::NONE.sharing(Hint::Tier));
    ClientOptions { hints: vec![of("next"), of("busy_next")], ..ClientOptions::default() }
}

/// The variable that tells a child its service.
const SERVICE: &str = "GENERATED_TEST_TIER_SERVICE";

/// A value of the hint is used or refused: without a node, no client of `sharing = tier` connects.
#[test]
fn connections_of_a_node_need_its_address() {
    let (fabrics, address) = (Fabrics::default(), address("no-node"));
    let fabric = dunlin::fabric::shm().unwrap();
    let _server =
        serve_with(&fabrics, &address, CountedProcessor(Handler), ServerOptions::default()).unwrap();
    let refused = |error: ConnectError| match error {
        ConnectError::Hints { function, error, .. } => {
            assert_eq!((&*function, error.keys().0.name()), ("next", "sharing"));
            assert!(error.to_string().contains("connect to node:SERVICE"), "{error}");
        }
        other => panic!("{other:?}"),
    };
    refused(CountedClient::connect_with(&fabrics, &address, by_tier()).unwrap_err());
    refused(CountedAsyncClient::connect_with(&fabrics, &address, by_tier()).unwrap_err());
    refused(CountedClient::connect_with(&fabric, &address, by_tier()).unwrap_err());
}

#[test]
fn a_client_with_the_connections_of_a_node_has_its_address() {
    let tag = format!("generated-tier-{}", std::process::id());
    let mut peer = Peer::named(Scheme::Shm, &tag).unwrap();
    peer.name = "one".to_owned();
    let fabric = dunlin::fabric::shm().unwrap();
    let config = TierConfig { memory: 1 << 20, ..TierConfig::new(vec![peer], "one") };
    let tier = Tier::within(&fabric, config).unwrap();
    let attach = Address::new(Scheme::Shm, &format!("{tag}-attach")).unwrap();
    let _processes = ProcessServer::serve(&fabric, &tier, ProcessConfig::new(attach.clone())).unwrap();
    // The variable that names the node belongs to a process.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "sharing::calls_by_the_node"])
        .env("DUNLIN_NODE", attach.to_string())
        .env(SERVICE, "node:counted")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{error}");
}

/// The child of the test above.
#[test]
fn calls_by_the_node() {
    let Ok(address) = std::env::var(SERVICE) else { return };
    let fabrics = Fabrics::default();
    let options = ServerOptions { tcp: Some("127.0.0.1:0".to_owned()), ..ServerOptions::default() };
    let server = serve_with(&fabrics, &*address, CountedProcessor(Handler), options).unwrap();
    // The gateway looks for a service once a second.
    let mut client = loop {
        match CountedClient::connect_with(&fabrics, &*address, by_tier()) {
            Ok(client) => break client,
            Err(error) => assert!(!matches!(error, ConnectError::Hints { .. }), "{error}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(client.next(7).unwrap(), 8);
    let running = client.plan_of("next").unwrap().to_string();
    assert!(running.contains("sharing = tier"), "{running}");
    // Without the hint, the address says the same.
    let mut unhinted = by_tier();
    unhinted.hints = ["next", "busy_next"].map(FunctionHints::new).into();
    let mut client = CountedClient::connect_with(&fabrics, &*address, unhinted).unwrap();
    assert_eq!(client.busy_next(7).unwrap(), 8);
    let running = client.plan_of("next").unwrap().to_string();
    assert!(running.contains("share the connections of their node: tier"), "{running}");
    // The same server serves stock Thrift over TCP.
    let tcp = format!("tcp:{}", server.tcp_address().unwrap());
    let mut client = CountedClient::connect_with(&fabrics, &*tcp, ClientOptions::default()).unwrap();
    assert_eq!(client.next(8).unwrap(), 9);
}
