//! One service and one client on every address: shared memory, stock Thrift, and `auto:`, which takes the
//! best available transport, TCP last, and reports its choice with reasons. RDMA is tested in the virtual
//! machine (`tests/guest/calls`), libfabric in builds that have it.

use dunlin::errors::WithSources;
use dunlin::fabric::{ChosenTransport, FabricsConfig, Scheme};
use dunlin::hints::{FunctionHints, Hints};
use dunlin::server::TypedServer;
use dunlin::thrift::{
    ClientOptions, ConnectError, Context, Failure, FastStr, Never, ServerOptions, serve_with,
};
use dunlin::{Address, Client, ClientConfig, Fabrics, FunctionMode, Server, ServerBuilder};
use dunlin_generated::asked::*;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
struct Handler(Arc<AtomicI32>);

impl Asked for Handler {
    fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<AskedSayException>> {
        match text {
            "" => Err(Silent { why: "nothing was said".into() }.into()),
            text => Ok(FastStr::new(text)),
        }
    }

    fn by_tcp(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }

    fn note(&self, _: &Context, number: i32) -> Result<(), Failure<Never>> {
        self.0.fetch_add(number, Ordering::SeqCst);
        Ok(())
    }

    fn remote(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }
}

/// Fabrics without these transports, and with an RDMA device that does not exist.
fn without(disabled: &[Scheme]) -> Fabrics {
    let mut config = FabricsConfig { disabled: disabled.to_vec(), ..FabricsConfig::default() };
    config.rdma.device.device = Some("none-such".into());
    Fabrics::new(config)
}

fn anywhere() -> Address {
    "auto:127.0.0.1:0".parse().unwrap()
}

fn served(fabrics: &Fabrics, address: &Address) -> (Handler, TypedServer<AskedProcessor<Handler>>) {
    let handler = Handler::default();
    let server =
        serve_with(fabrics, address, AskedProcessor(handler.clone()), ServerOptions::default()).unwrap();
    (handler, server)
}

fn client(fabrics: &Fabrics, address: &Address) -> AskedClient {
    AskedClient::connect_with(fabrics, address, ClientOptions::default()).unwrap()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// Makes all kinds of calls with both kinds of clients. Returns the transport that they report.
fn talk(fabrics: &Fabrics, address: &Address, handler: &Handler, by_tcp: bool) -> ChosenTransport {
    let mut client = client(fabrics, address);
    assert_eq!(client.say("hello").unwrap(), "hello");
    assert!(matches!(client.say(""), Err(AskedError::Silent(_))));
    assert_eq!(client.by_tcp().unwrap(), by_tcp);
    let calls: Vec<_> = (0..10).map(|number| client.push_say(&format!("no. {number}")).unwrap()).collect();
    client.flush().unwrap();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(client.wait(call).unwrap(), format!("no. {number}"));
    }
    let before = handler.0.load(Ordering::SeqCst);
    client.note(3).unwrap();
    // On TCP, calls of one connection are executed in order, so this answer proves the earlier ones executed;
    // elsewhere workers are used round-robin.
    while handler.0.load(Ordering::SeqCst) != before + 3 {
        client.by_tcp().unwrap();
    }
    let futures = AskedAsyncClient::connect_with(fabrics, address, ClientOptions::default()).unwrap();
    let (first, second) = (futures.say("one"), futures.say("two"));
    assert_eq!((wait(second).unwrap(), wait(first).unwrap()), ("two".into(), "one".into()));
    assert_eq!(wait(futures.clone().by_tcp()).unwrap(), by_tcp);
    assert!(matches!(wait(futures.say("")), Err(AskedError::Silent(_))));
    assert_eq!(futures.transport(), client.transport());
    client.transport().clone()
}

/// Both kinds of clients report the tuning of functions whose results are fetched or written back, and
/// nothing for others.
/// Returns an error's text with its sources.
fn whole(error: &dyn std::error::Error) -> String {
    WithSources(error).to_string()
}

#[test]
fn what_is_chosen_is_told() {
    let fabrics = without(&[]);
    let (_, server) = served(&fabrics, &"shm:asked-what-is-chosen".parse().unwrap());
    let address = server.address().clone();
    let hinted = |protocol| ClientOptions {
        hints: vec![FunctionHints::new("say").both(Hints::NONE.protocol(protocol))],
        ..ClientOptions::default()
    };
    for (protocol, chooses) in [("RF-RPC", true), ("Server-reply", false)] {
        let mut client = AskedClient::connect_with(&fabrics, &address, hinted(protocol)).unwrap();
        let futures = AskedAsyncClient::connect_with(&fabrics, &address, hinted(protocol)).unwrap();
        for _ in 0..20 {
            assert_eq!(client.say("hello").unwrap(), "hello");
            assert_eq!(wait(futures.say("hello")).unwrap(), "hello");
        }
        for tuning in [client.inner().tuning(), futures.inner().tuning()] {
            let results: u64 = tuning.iter().map(|lane| lane.results.0 + lane.results.1).sum();
            assert_eq!((!tuning.is_empty(), results > 0), (chooses, chooses), "{protocol}: {tuning:?}");
        }
    }
}

#[test]
fn auto_takes_shared_memory_here_and_the_server_answers_stock_thrift_besides() {
    let fabrics = without(&[]);
    let (handler, server) = served(&fabrics, &anywhere());
    let address = server.address().clone();
    let said = talk(&fabrics, &address, &handler, false);
    assert_eq!(
        (said.name, said.why.as_str(), said.passed_over.len()),
        ("shm", "the server is on this host", 0)
    );
    assert!(said.to_string().starts_with("shm (shm:auto-127.0.0.1:"), "{said}");
    assert_eq!(fabrics.resolve_typed(&address).unwrap().address.to_string(), said.address);
    // Functions whose hints select TCP use the address in the announcement.
    assert!(client(&fabrics, &address).remote().unwrap());

    let Some(Server::Several(servers)) = server.engine() else { panic!("{server:?}") };
    assert_eq!(servers.passed_over()[0].scheme, Scheme::Rdma);
    assert!(servers.passed_over().iter().all(|passed| passed.scheme != Scheme::Tcp));
    let tcp = server.tcp_address().unwrap();
    let mut stock: AskedClient = AskedClient::connect_tcp(&tcp.to_string(), Default::default()).unwrap();
    assert!(stock.by_tcp().unwrap());
    assert_eq!(stock.transport().to_string(), format!("tcp (tcp:{tcp}): named by the address"));
    drop(stock);
    server.shutdown(Duration::from_secs(1));
}

#[test]
fn auto_ends_at_tcp_where_the_settings_leave_nothing_else() {
    let only_tcp = without(&[Scheme::Shm, Scheme::Rdma, Scheme::Ofi]);
    // First only the client lacks fabrics, then the server too.
    for server_side in [without(&[]), only_tcp.clone()] {
        let (handler, server) = served(&server_side, &anywhere());
        let said = talk(&only_tcp, server.address(), &handler, true);
        assert_eq!(said.name, "tcp");
        assert_eq!(said.address, format!("tcp:{}", server.tcp_address().unwrap()));
        assert_eq!(said.why, "no fabric is left, and the server answers stock Thrift");
        let passed: Vec<Scheme> = said.passed_over.iter().map(|passed| passed.scheme).collect();
        assert_eq!(passed, [Scheme::Shm, Scheme::Rdma, Scheme::Ofi]);
        assert!(said.to_string().contains("not shm: "), "{said}");
        assert!(client(&only_tcp, server.address()).remote().unwrap());

        // Calls by number are not supported on TCP: the error names all transports, and says that typed
        // services can use TCP.
        let error =
            whole(&Client::connect_with(&only_tcp, server.address(), ClientConfig::default()).unwrap_err());
        for part in ["not shm: ", "not rdma: ", "not ofi: ", "not tcp: ", "typed services go by TCP too"] {
            assert!(error.contains(part), "{error}");
        }
        server.shutdown(Duration::from_secs(1));
    }
}

#[test]
fn without_any_way_each_says_why() {
    let nothing = without(&[Scheme::Shm, Scheme::Rdma, Scheme::Ofi, Scheme::Tcp]);
    let (_, server) = served(&without(&[]), &anywhere());
    let error =
        whole(&AskedClient::connect_with(&nothing, server.address(), ClientOptions::default()).unwrap_err());
    for part in ["not shm: ", "not rdma: ", "not ofi: ", "not tcp: it is disabled by the settings"] {
        assert!(error.contains(part), "{error}");
    }
    let processor = AskedProcessor(Handler::default());
    let error = whole(&serve_with(&nothing, anywhere(), processor, ServerOptions::default()).unwrap_err());
    assert!(error.contains("not tcp: it is disabled by the settings"), "{error}");
}

/// A transport named in the address is used, or an error is returned.
#[test]
fn what_is_named_is_never_another() {
    let fabrics = without(&[]);
    let (_, server) = served(&fabrics, &anywhere());
    let Some(Server::Several(servers)) = server.engine() else { panic!("{server:?}") };
    let shm = servers.servers()[0].address().clone();
    assert_eq!(client(&fabrics, &shm).transport().to_string(), format!("shm ({shm}): named by the address"));
    let (host, port) = server.address().host_and_port().unwrap();
    let cases = [
        (without(&[Scheme::Shm]), shm.to_string(), "disabled by the settings"),
        (without(&[]), format!("rdma:{host}:{}", port.wrapping_add(1)), "rdma:"),
        (
            without(&[Scheme::Tcp]),
            format!("tcp:{}", server.tcp_address().unwrap()),
            "disabled by the settings",
        ),
    ];
    for (fabrics, address, why) in cases {
        let address: dunlin::Address = address.parse().unwrap();
        let error = AskedClient::connect_with(&fabrics, &address, ClientOptions::default()).unwrap_err();
        assert!(
            matches!(error, ConnectError::Engine(_)) && WithSources(&error).to_string().contains(why),
            "{error}"
        );
    }
    // The same holds for a server.
    for named in ["shm:asked-named", "rdma:127.0.0.1:0", "tcp:127.0.0.1:0"] {
        let fabrics = without(&[Scheme::Shm, Scheme::Tcp]);
        let processor = AskedProcessor(Handler::default());
        assert!(serve_with(&fabrics, named, processor, ServerOptions::default()).is_err(), "{named}");
    }
    // A single fabric accepts only its own addresses.
    let shared_memory = dunlin::fabric::shm().unwrap();
    for address in ["auto:127.0.0.1:1", "tcp:127.0.0.1:1"] {
        let address: dunlin::Address = address.parse().unwrap();
        assert!(AskedClient::connect_with(&shared_memory, &address, ClientOptions::default()).is_err());
    }
}

#[test]
fn tcp_by_name() {
    let fabrics = without(&[]);
    let (handler, server) = served(&fabrics, &"tcp:127.0.0.1:0".parse().unwrap());
    assert!(server.engine().is_none());
    let address = server.address().clone();
    assert_eq!(address.to_string(), format!("tcp:{}", server.tcp_address().unwrap()));
    let said = talk(&fabrics, &address, &handler, true);
    assert_eq!(said.to_string(), format!("tcp ({address}): named by the address"));
    // TCP is not a fabric.
    let error = whole(&Client::connect_with(&fabrics, &address, ClientConfig::default()).unwrap_err());
    let serves = format!("use {address} with a typed client; it serves 'Asked'");
    assert!(error.contains("TCP is no fabric") && error.contains(&serves), "{error}");
    server.shutdown(Duration::from_secs(1));
}

/// The port of TCP, by default and as configured. A port that is not free is reported.
#[test]
fn stock_thrift_is_three_ports_behind_or_where_it_was_told() {
    let fabrics = without(&[]);
    // Ports that are free together, found by trial; another process may take one in the meantime.
    let (address, server) = (0..100)
        .find_map(|_| {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let address: Address = format!("auto:127.0.0.1:{port}").parse().unwrap();
            let processor = AskedProcessor(Handler::default());
            let server = serve_with(&fabrics, &address, processor, ServerOptions::default()).ok()?;
            (server.tcp_address()?.port() == port.checked_add(3)?).then_some((address, server))
        })
        .expect("four ports in a row");
    assert_eq!(server.address(), &address);
    drop(server);

    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let options = ServerOptions { tcp: Some(taken.to_string()), ..ServerOptions::default() };
    assert!(serve_with(&fabrics, anywhere(), AskedProcessor(Handler::default()), options.clone()).is_err());
    drop(holder);
    let server = serve_with(&fabrics, anywhere(), AskedProcessor(Handler::default()), options).unwrap();
    assert_eq!(server.tcp_address(), Some(taken));
    let only_tcp = without(&[Scheme::Shm, Scheme::Ofi]);
    assert_eq!(client(&only_tcp, server.address()).transport().address, format!("tcp:{taken}"));

    // A default port that is not free is skipped and reported.
    let next = TcpListener::bind("127.0.0.1:0").unwrap();
    let Some(port) = next.local_addr().unwrap().port().checked_sub(3) else { return };
    let address: Address = format!("auto:127.0.0.1:{port}").parse().unwrap();
    // Another process may have taken the first port; the test then ends.
    let Ok(server) =
        serve_with(&fabrics, &address, AskedProcessor(Handler::default()), ServerOptions::default())
    else {
        return;
    };
    let Some(Server::Several(servers)) = server.engine() else { panic!("{server:?}") };
    let told = servers.passed_over().iter().find(|passed| passed.scheme == Scheme::Tcp).expect("told");
    assert!(told.why.contains("in use"), "{told}");
}

/// A server of calls by number at an `auto:` address reports that it does not serve stock Thrift.
#[test]
fn a_raw_server_has_no_tcp() {
    let fabrics = without(&[]);
    let builder = ServerBuilder::new().fabrics(&fabrics).function(1, FunctionMode::Worker);
    let echo = |request: &dunlin::Request<'_>, reply: &mut dunlin::Reply<'_>| -> Result<(), dunlin::Status> {
        reply.write(request.payload)?;
        Ok(())
    };
    let server = builder.serve(anywhere(), |_| Box::new(echo)).unwrap();
    let only_tcp = without(&[Scheme::Shm, Scheme::Rdma, Scheme::Ofi]);
    let error =
        whole(&AskedClient::connect_with(&only_tcp, server.address(), ClientOptions::default()).unwrap_err());
    assert!(
        error.contains("not tcp: the server is not on it: it serves calls without a typed service"),
        "{error}"
    );
    let mut client = Client::connect_with(&fabrics, server.address(), ClientConfig::default()).unwrap();
    assert_eq!(&*client.call(1, b"raw").unwrap(), b"raw");
    assert_eq!(client.transport().why, "the server is on this host");
}
