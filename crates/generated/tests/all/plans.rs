//! How the calls of typed clients run: `plan_of`, functions in the pool by a setting, lazy clients, and waiting
//! for a server.

use dunlin::errors::WithSources;
use dunlin::fabric::{ChosenFabric, Fabric, Scheme};
use dunlin::hints::{FunctionHints, Hints, PerfGoal};
use dunlin::plan::{CompletionMode, RunsIn};
use dunlin::raw::AsyncHub;
use dunlin::server::TypedServer;
use dunlin::thrift::{
    CallError, ClientOptions, ConnectError, Context, Failure, FastStr, Never, PlanOfError, PlanOnServer,
    ServeError, ServerOptions, describe, serve_with,
};
use dunlin::tune::{FetchTable, Tuning};
use dunlin::{Address, CallError as EngineError, Cause, ClientConfig, Fabrics};
use dunlin_fabric::Host;
use dunlin_fabric_sim::Sim;
use dunlin_generated::asked::*;
use std::io::Write;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

/// `say` answers with the name of its thread.
#[derive(Clone, Debug, Default)]
struct Handler;

impl Asked for Handler {
    fn say(&self, _: &Context, _: &str) -> Result<FastStr, Failure<AskedSayException>> {
        Ok(FastStr::new(std::thread::current().name().unwrap_or_default()))
    }

    fn by_tcp(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }

    fn note(&self, _: &Context, _: i32) -> Result<(), Failure<Never>> {
        Ok(())
    }

    fn remote(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }
}

type Served = TypedServer<AskedProcessor<Handler>>;

fn address(name: &str) -> Address {
    format!("shm:plans-{name}-{}", std::process::id()).parse().unwrap()
}

fn served(address: &Address, options: ServerOptions) -> Served {
    serve_with(&Fabrics::default(), address, AskedProcessor(Handler), options).unwrap()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
}

fn pool(names: &[&str]) -> ServerOptions {
    ServerOptions { pool: names.iter().map(|name| (*name).to_owned()).collect(), ..ServerOptions::default() }
}

/// A client whose `by_tcp` is busy and whose other functions sleep.
fn hinted() -> ClientOptions {
    let event = Hints::NONE.perf_goal(PerfGoal::Latency).polling(CompletionMode::Event);
    let busy = Hints::NONE.perf_goal(PerfGoal::Latency).polling(CompletionMode::Busy);
    let of = |name: &'static str, client| FunctionHints::new(name).client(client).server(event);
    ClientOptions {
        hints: vec![of("say", event), of("by_tcp", busy), of("note", event)],
        ..Default::default()
    }
}

#[test]
fn every_client_says_how_a_function_runs() {
    let fabrics = Fabrics::default();
    let options = ServerOptions { tcp: Some("127.0.0.1:0".into()), ..pool(&["say"]) };
    let server = served(&address("of"), options);
    let mut client = AskedClient::connect_with(&fabrics, server.address(), hinted()).unwrap();
    let futures = AskedAsyncClient::connect_with(&fabrics, server.address(), hinted()).unwrap();
    for say in [client.plan_of("say").unwrap(), futures.plan_of("say").unwrap()] {
        assert_eq!((say.transport, say.runs), ("shm", RunsIn::Pool { threads: 2 }));
        assert!(say.plan.is_some() && say.protocol().is_some(), "{say:?}");
        let waits = say.client.as_ref().unwrap();
        assert_eq!((waits.mode, waits.because_of.as_deref()), (CompletionMode::Busy, Some("by_tcp")));
        let line = say.to_string();
        for part in [
            "say: ",
            " over shm; client busy, because of by_tcp; server event; runs in the pool of 2 threads; ",
            "transport: named by the address",
            "place: ServerOptions::pool",
            "client polling: polling = event",
        ] {
            assert!(line.contains(part), "'{part}' is missing in: {line}");
        }
        assert!(!line.contains('\n'), "{line}");
    }
    let by_tcp = client.plan_of("by_tcp").unwrap();
    assert_eq!((by_tcp.runs, by_tcp.client.unwrap().because_of), (RunsIn::Worker, None));
    let remote = client.plan_of("remote").unwrap();
    assert_eq!((remote.transport, remote.plan, remote.runs), ("tcp", None, RunsIn::Unknown));
    assert!(remote.to_string().starts_with("remote: stock Thrift over tcp; "), "{remote}");
    assert_eq!(
        client.plan_of("sai").unwrap_err(),
        PlanOfError::NoSuchFunction { service: "Asked", function: "sai".into(), nearest: Some("say".into()) }
    );
    // It is as it says.
    assert!(client.say("").unwrap().starts_with("pool-"), "{}", client.say("").unwrap());
    assert!(wait(futures.say("")).unwrap().starts_with("pool-"));
    server.shutdown(Duration::from_secs(1));
}

/// Workers that outnumber the cores wait adaptively, whatever the plans say, and clients are told.
#[test]
fn the_waiting_of_a_crowded_server_is_said_as_it_is() {
    let fabrics = Fabrics::default();
    let shm = dunlin::fabric::shm().unwrap();
    let topology = shm.host().topology();
    let cores: usize = topology.nodes().map(|node| topology.cores(node).map_or(0, <[u32]>::len)).sum();
    let mut options = ServerOptions::default();
    options.engine.workers = cores as u16;
    let server = served(&address("crowded"), options);
    let busy = Hints::NONE.perf_goal(PerfGoal::Latency).polling(CompletionMode::Busy);
    let hints = ["say", "by_tcp", "note"].map(|name| FunctionHints::new(name).both(busy)).into();
    let options = ClientOptions { hints, ..Default::default() };
    let mut client = AskedClient::connect_with(&fabrics, server.address(), options.clone()).unwrap();
    let futures = AskedAsyncClient::connect_with(&fabrics, server.address(), options).unwrap();
    client.say("").unwrap();
    wait(futures.say("")).unwrap();
    for say in [client.plan_of("say").unwrap(), futures.plan_of("say").unwrap()] {
        assert_eq!(say.plan.unwrap().server, CompletionMode::Busy);
        assert_eq!(say.server.as_ref().unwrap().mode, CompletionMode::Adaptive);
        let line = say.to_string();
        let workers = if cores == 1 { "1 worker".to_owned() } else { format!("{cores} workers") };
        assert!(line.contains(&format!("; {workers} and ")), "{line}");
        assert!(line.contains("more threads than cores, so the workers wait adaptively, although"), "{line}");
    }
    server.shutdown(Duration::from_secs(1));
}

/// Rates of a NIC that lets results be fetched, which shared memory does not.
#[test]
fn tuning_names_the_functions_that_were_called() {
    Sim::run(1, |fabric| {
        let address = Address::new(Scheme::Sim, "tuning").unwrap();
        let _server =
            serve_with(&fabric, &address, AskedProcessor(Handler), ServerOptions::default()).unwrap();
        let rf_rpc = |name| FunctionHints::new(name).both(Hints::NONE.protocol("RF-RPC"));
        let mut options =
            ClientOptions { hints: vec![rf_rpc("say"), rf_rpc("by_tcp")], ..Default::default() };
        options.engine.fetch_table = Some(Arc::new(FetchTable::rf_rpc()));
        let mut client = AskedClient::connect_with(&fabric, &address, options.clone()).unwrap();
        let hub = AsyncHub::new(&fabric).unwrap();
        let futures = AskedAsyncClient::connect_with(&hub, &address, options).unwrap();
        let names = |tuning: Vec<Tuning>| -> Vec<Vec<String>> {
            let functions = tuning.into_iter().flat_map(|tuning| tuning.functions);
            functions.map(|function| function.names).collect()
        };
        for calls in [0, 100] {
            for _ in 0..calls {
                client.by_tcp().unwrap();
                wait(futures.by_tcp()).unwrap();
            }
            let expected = if calls == 0 { vec![] } else { vec![vec!["by_tcp".to_owned()]] };
            assert_eq!(names(client.inner().tuning()), expected);
            assert_eq!(names(futures.inner().tuning()), expected);
        }
        (0..100).for_each(|_| drop(client.say("too").unwrap()));
        assert_eq!(names(client.inner().tuning()), [["say"], ["by_tcp"]]);
    })
    .unwrap();
}

#[test]
fn a_server_describes_itself() {
    let server = served(&address("describe"), pool(&["note"]));
    let fabric = dunlin::fabric::shm().unwrap();
    let told = describe(&fabric, server.address(), ClientConfig::default()).unwrap();
    let names: Vec<_> = told.functions.iter().map(|function| (&*function.name, function.runs)).collect();
    let (worker, pool) = (RunsIn::Worker, RunsIn::Pool { threads: 2 });
    assert_eq!(told.service, "Asked");
    assert_eq!(names, [("say", worker), ("by_tcp", worker), ("note", pool), ("remote", worker)]);
    assert!(matches!(told.functions[0].plan, PlanOnServer::Plan(_)), "{told:?}");
    assert_eq!(told.functions[3].plan, PlanOnServer::Tcp);
}

#[test]
fn a_function_for_the_pool_must_exist() {
    let fabrics = Fabrics::default();
    for address in [address("unknown"), "tcp:127.0.0.1:0".parse().unwrap()] {
        match serve_with(&fabrics, &address, AskedProcessor(Handler), pool(&["say", "noet"])) {
            Err(ServeError::NoSuchFunction { function, nearest, .. }) => {
                assert_eq!((&*function, nearest.as_deref()), ("noet", Some("note")));
            }
            other => panic!("{other:?}"),
        }
    }
}

const LONG: Duration = Duration::from_secs(60);

fn lazy(wait: Duration) -> ClientOptions {
    let engine = ClientConfig { lazy: true, wait_for_ready: wait, ..ClientConfig::default() };
    ClientOptions { engine, ..ClientOptions::default() }
}

/// A free port, for a server that starts later. The three ports behind it are free, too: an `auto:` server
/// takes them.
fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if port < u16::MAX - 3 && (port + 1..=port + 3).all(is_free) {
            return port;
        }
    }
}

#[test]
fn lazy_clients_wait_for_their_server_on_every_transport() {
    let fabrics = Fabrics::default();
    let tcp: Address = format!("tcp:127.0.0.1:{}", free_port()).parse().unwrap();
    let auto: Address = format!("auto:127.0.0.1:{}", free_port()).parse().unwrap();
    for (address, by_tcp) in [(address("lazy"), false), (tcp, true), (auto, false)] {
        let mut hasty = AskedClient::connect_with(&fabrics, &address, lazy(Duration::ZERO)).unwrap();
        let error = hasty.by_tcp().unwrap_err();
        assert_eq!(error.certainty(), dunlin::Certainty::NotExecuted, "{error}");
        assert!(hasty.wait_ready(Duration::from_millis(5)).is_err());
        if !by_tcp {
            assert_eq!(hasty.plan_of("say"), Err(PlanOfError::NotConnected));
            let gone = matches!(
                error,
                AskedError::Call(CallError::Transport(EngineError::NotExecuted(Cause::Disconnected)))
            );
            assert!(gone && error.to_string().contains("no connection to the server"), "{error}");
        }
        let mut patient = AskedClient::connect_with(&fabrics, &address, lazy(LONG)).unwrap();
        let caller = std::thread::spawn(move || {
            let first = patient.by_tcp().unwrap();
            (patient, first)
        });
        std::thread::sleep(Duration::from_millis(20));
        let server = served(&address, ServerOptions::default());
        let (mut patient, first) = caller.join().unwrap();
        assert_eq!(first, by_tcp);
        hasty.wait_ready(LONG).unwrap();
        assert_eq!(hasty.by_tcp().unwrap(), by_tcp);
        // The server goes and comes back.
        drop(server);
        let caller = std::thread::spawn(move || {
            loop {
                match patient.by_tcp() {
                    Ok(answer) => return answer,
                    // Calls that were under way when the server ended.
                    Err(error) => assert!(!error.to_string().contains("no connection"), "{error}"),
                }
            }
        });
        std::thread::sleep(Duration::from_millis(20));
        let server = served(&address, ServerOptions::default());
        assert_eq!(caller.join().unwrap(), by_tcp);
        server.shutdown(Duration::from_secs(1));
    }
}

/// Waits for a future with the thread's parking.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut context, mut future) = (TaskContext::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Without patience a call starts to connect and fails; with it, it waits for the server.
fn lazy_tasks_wait_for_their_server(address: &Address) {
    let fabrics = Fabrics::default();
    let hasty = AskedAsyncClient::connect_with(&fabrics, address, lazy(Duration::ZERO)).unwrap();
    let error = block_on(hasty.by_tcp()).unwrap_err();
    assert_eq!(
        (error.certainty(), error.is_unavailable()),
        (dunlin::Certainty::NotExecuted, true),
        "{error}"
    );
    assert_eq!(hasty.plan_of("say"), Err(PlanOfError::NotConnected));
    assert_eq!(hasty.transport().why, "the client has not connected yet");
    assert!(block_on(hasty.wait_ready(Duration::from_millis(5))).is_err());
    let none = block_on(hasty.within(Duration::ZERO).by_tcp()).unwrap_err();
    assert!(none.is_deadline() && none.certainty() == dunlin::Certainty::NotExecuted, "{none}");
    let patient = AskedAsyncClient::connect_with(&fabrics, address, lazy(LONG)).unwrap();
    let late = block_on(patient.within(Duration::from_millis(10)).by_tcp()).unwrap_err();
    assert!(late.is_deadline() && late.certainty() == dunlin::Certainty::NotExecuted, "{late}");
    // Calls that are given up while they wait are not executed later.
    drop(patient.by_tcp());
    let mut first = pin!(patient.by_tcp());
    let mut context = TaskContext::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    let server = served(address, ServerOptions::default());
    let by_tcp = address.scheme() == Scheme::Tcp;
    assert_eq!(block_on(first).unwrap(), by_tcp);
    block_on(hasty.wait_ready(LONG)).unwrap();
    block_on(patient.say(&"x".repeat(100_000))).unwrap();
    assert_eq!(block_on(hasty.by_tcp()).unwrap(), by_tcp);
    assert!(patient.plan_of("say").is_ok());
    assert_ne!(patient.transport().name, "auto");
    server.shutdown(Duration::from_secs(1));
}

#[test]
fn lazy_tasks_wait_for_their_server_on_every_transport() {
    lazy_tasks_wait_for_their_server(&address("lazy-tasks"));
    for scheme in ["tcp", "auto"] {
        lazy_tasks_wait_for_their_server(&format!("{scheme}:127.0.0.1:{}", free_port()).parse().unwrap());
    }
}

/// A task that waits does not outlive a refusal: a server of another kind cannot be waited for.
#[test]
fn lazy_clients_learn_that_a_server_is_of_another_kind() {
    let fabrics = Fabrics::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let auto: Address = format!("auto:{}", listener.local_addr().unwrap()).parse().unwrap();
    let web = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut visitor, _) = listener.accept().unwrap();
            visitor.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        }
    });
    let is_named = |error: AskedError| {
        let text = WithSources(&error).to_string();
        assert!(text.contains("HTTP") && error.certainty() == dunlin::Certainty::NotExecuted, "{text}");
    };
    let mut blocking = AskedClient::connect_with(&fabrics, &auto, lazy(LONG)).unwrap();
    is_named(blocking.say("x").unwrap_err());
    let tasks = AskedAsyncClient::connect_with(&fabrics, &auto, lazy(LONG)).unwrap();
    is_named(block_on(tasks.say("x")).unwrap_err());
    web.join().unwrap();
}

#[test]
fn clients_that_cannot_be_lazy_say_so() {
    let fabrics = Fabrics::default();
    let ChosenFabric::Shm(shm) = fabrics.choose(&address("none")).unwrap() else {
        panic!("shm: addresses are of shared memory")
    };
    let hub = dunlin::raw::AsyncHub::new(&shm).unwrap();
    let error = AskedAsyncClient::connect_with(&hub, address("none"), lazy(LONG)).unwrap_err();
    let lazy = matches!(error, ConnectError::Engine(dunlin::errors::ConnectError::Lazy(_)));
    assert!(lazy && error.to_string().contains("cannot be lazy"), "{error}");
}
