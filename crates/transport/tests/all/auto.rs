//! `auto:` addresses: on shared memory here, on RDMA in the virtual machine (`tests/guest/calls`).

use dunlin_fabric::{Address, DialError, ListenError, Scheme, WithSources};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{
    CallError, Cause, ClientConfig, ConnectError, Deployment, FunctionMode, Reply, Request, ServeError,
    ServerConfig, Service, Status,
};
use dunlin_transport::{AsyncClient, Client, Fabrics, FabricsConfig, Server, ServerBuilder};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::pin::pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const ECHO: u16 = 1;

/// Shared memory, and an RDMA device that does not exist.
fn fabrics() -> Fabrics {
    let mut config = FabricsConfig::default();
    config.rdma.device.device = Some("none-such".into());
    Fabrics::new(config)
}

fn builder(fabrics: &Fabrics) -> ServerBuilder {
    ServerBuilder::new()
        .fabrics(fabrics)
        .config(ServerConfig { workers: 2, ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
}

fn echo() -> Box<dyn Service> {
    Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| -> Result<(), Status> {
        reply.write(request.payload)?;
        Ok(())
    })
}

fn anywhere() -> Address {
    "auto:127.0.0.1:0".parse().expect("an address")
}

#[test]
fn on_one_host_it_is_shared_memory_and_the_rest_is_told() {
    let fabrics = fabrics();
    let made = AtomicU16::new(0);
    let server = builder(&fabrics)
        .serve(anywhere(), |worker| {
            assert_eq!(worker, made.fetch_add(1, Ordering::Relaxed));
            echo()
        })
        .expect("shared memory is always there");
    let address = server.address().clone();
    assert_eq!(address.scheme(), Scheme::Auto);
    assert_ne!(address.host_and_port().expect("both").1, 0);
    let Server::Several(servers) = &server else { panic!("{server:?}") };
    assert_eq!(usize::from(made.load(Ordering::Relaxed)), 2 * servers.servers().len());
    // libfabric may be available or not; TCP does not support calls by number.
    assert_eq!(servers.servers().len() + servers.passed_over().len(), 4);
    assert_eq!(servers.servers()[0].address().scheme(), Scheme::Shm);
    assert_eq!(servers.passed_over()[0].scheme, Scheme::Rdma);

    let resolved = fabrics.resolve(&address).expect("a way");
    assert_eq!(resolved.address, *servers.servers()[0].address());
    assert_eq!(resolved.to_string(), format!("{}: the server is on this host", resolved.address));
    let mut client = Client::connect_with(&fabrics, &address, ClientConfig::default()).expect("connects");
    assert_eq!((client.transport().name, client.workers()), ("shm", 2));
    assert_eq!(&*client.call(ECHO, b"whichever").expect("answered"), b"whichever");
    let asynchronous =
        AsyncClient::connect_with(&fabrics, &address, ClientConfig::default()).expect("connects");
    assert_eq!(asynchronous.transport().name, "shm");
    let mut call = pin!(asynchronous.call(ECHO, b"later"));
    let mut context = Context::from_waker(Waker::noop());
    let answer = loop {
        if let Poll::Ready(answer) = call.as_mut().poll(&mut context) {
            break answer.expect("answered");
        }
        std::thread::yield_now();
    };
    assert_eq!(&*answer, b"later");
    assert_eq!(server.connections(), 2);
    assert!(server.counters().accepted >= 2);

    let taken = builder(&fabrics).serve(&address, |_| echo()).expect_err("the port is taken");
    assert!(matches!(taken, ServeError::Listen(ListenError::InUse { .. })), "{taken}");
    drop((client, asynchronous));
    server.shutdown(Duration::from_secs(1));
    // Port and name are free again.
    let again = builder(&fabrics).serve(&address, |_| echo()).expect("free");
    assert_eq!(again.address(), &address);
}

/// If the server can use no fabric, the error gives the reason for each. With libfabric, it could always use
/// that.
#[cfg(not(feature = "ofi"))]
#[test]
fn without_a_way_each_fabric_says_why() {
    let fabrics = fabrics();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let name = format!("auto-127.0.0.1:{port}");
    let holder = dunlin_rpc::ServerBuilder::new(&fabrics.shm().expect("shared memory"))
        .serve(&Address::new(Scheme::Shm, &name).expect("a name"), |_| echo())
        .expect("free");
    let address: Address = format!("auto:127.0.0.1:{port}").parse().expect("an address");
    let error = builder(&fabrics).serve(&address, |_| echo()).expect_err("no fabric is left");
    let error = WithSources(&error).to_string();
    for part in ["not shm: ", "in use", "not rdma: ", "not ofi: this build is without libfabric"] {
        assert!(error.contains(part), "{error}");
    }
    drop(holder);

    let error = Client::connect_with(&fabrics, &address, ClientConfig::default()).expect_err("nobody");
    assert!(matches!(error, ConnectError::Dial(DialError::Unavailable(_))), "{error}");
    assert!(WithSources(&error).to_string().contains("start a server on this auto: address"), "{error}");
}

#[test]
fn who_is_no_such_server_is_told_from_one() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address: Address =
        format!("auto:{}", listener.local_addr().expect("bound")).parse().expect("an address");
    const WORDS: [(&[u8], &str); 7] = [
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "this is a web server (HTTP)"),
        (b"\0\0\0\x20\x80\x01\0\x03\0\0\0\0", "this is a server of stock Thrift; use tcp:127.0.0.1:"),
        (b"\x0b\0\0\0\x01DunlinRD\x03\0", "use rdma:127.0.0.1:"),
        (b"DunlinNO\x05\0words", "words"),
        (b"DunlinAU\x02", "it speaks another version"),
        (b"", "it closed the connection without a word, as stock Thrift does"),
        (&[b'x'; 100_000], "this is no server of Dunlin: it answered \"xxxxxxxxxxxxxxxx\""),
    ];
    let talker = std::thread::spawn(move || {
        for (word, _) in WORDS {
            let (mut socket, _) = listener.accept().expect("asked");
            // The longest answer is not read to its end.
            let _ = socket.write_all(word);
            drop(socket);
            // The client looks a second time at a server without a word.
            if word.is_empty() {
                listener.accept().expect("asked again");
            }
        }
    });
    for (_, part) in WORDS {
        let error = fabrics().resolve(&address).expect_err("no such server");
        let error = WithSources(&error).to_string();
        assert!(error.contains(part), "{error}");
    }
    talker.join().expect("talked");
}

/// A server of TLS closes in silence after bytes that are no TLS.
#[test]
fn a_server_of_tls_that_closes_in_silence_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address: Address =
        format!("auto:{}", listener.local_addr().expect("bound")).parse().expect("an address");
    let server = std::thread::spawn(move || {
        drop(listener.accept().expect("asked"));
        let (mut socket, _) = listener.accept().expect("asked again");
        let mut head = [0; 2];
        socket.read_exact(&mut head).expect("a greeting");
        socket.write_all(b"\x15\x03\x03\0\x02\x02\x28").expect("answered");
        head
    });
    let error = fabrics().resolve(&address).expect_err("no such server");
    let error = WithSources(&error).to_string();
    assert!(error.contains("this is a server of TLS"), "{error}");
    assert_eq!(server.join().expect("served"), [0x16, 3]);
}

/// A web server answers nothing before the end of a line, and in HTTP/0.9 then.
#[test]
fn a_web_server_that_waits_for_a_line_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address: Address =
        format!("auto:{}", listener.local_addr().expect("bound")).parse().expect("an address");
    let server = std::thread::spawn(move || {
        let (socket, _) = listener.accept().expect("asked");
        let mut line = Vec::new();
        BufReader::new(&socket).read_until(b'\n', &mut line).expect("a line");
        (&socket).write_all(b"<!DOCTYPE HTML>\n<html>Bad request syntax</html>\n").expect("answered");
        line
    });
    let error = fabrics().resolve(&address).expect_err("no such server");
    let error = WithSources(&error).to_string();
    assert!(error.contains("this is a web server (HTTP)"), "{error}");
    assert_eq!(server.join().expect("served"), b"DunlinAQ\r\n");
}

/// A named fabric is used or refused, never replaced. A single fabric does not accept `auto:` addresses.
#[test]
fn a_named_fabric_is_never_another() {
    let fabrics = fabrics();
    let named: Address = "rdma:127.0.0.1:1".parse().expect("an address");
    assert_eq!(fabrics.resolve(&named).expect("itself").address, named);
    assert!(matches!(
        Client::connect_with(&fabrics, &named, ClientConfig::default()),
        Err(ConnectError::Dial(DialError::Unavailable(_)))
    ));
    let error = fabrics.choose(&anywhere()).expect_err("no fabric");
    let error = WithSources(&error).to_string();
    assert!(error.contains("address of one fabric"), "{error}");
    let shm = ShmFabric::new(Default::default()).expect("shared memory");
    assert!(Client::connect_with(&shm, anywhere(), ClientConfig::default()).is_err());
    let pulled = ServerBuilder::new().fabrics(&fabrics).function(ECHO, FunctionMode::Pull);
    let error = pulled.serve(anywhere(), |_| echo()).expect_err("nobody could pull");
    let error = WithSources(&error).to_string();
    assert!(error.contains("pulled from a server of one fabric"), "{error}");
    for address in [anywhere(), "node:deployed".parse().expect("an address")] {
        let deployed = builder(&fabrics).deployment(Deployment::new(vec![address.clone()], 0));
        let error = deployed.serve(address, |_| echo()).expect_err("no fabric");
        let error = WithSources(&error).to_string();
        assert!(error.contains("a deployment's servers are on one fabric"), "{error}");
    }
}

/// Threads of the application run the workers of all fabrics.
#[test]
fn workers_on_threads_of_the_callers_own() {
    let fabrics = fabrics();
    let (server, workers) = builder(&fabrics).serve_with(anywhere(), |_| echo()).expect("serves");
    let Server::Several(servers) = &server else { panic!("{server:?}") };
    assert_eq!(workers.len(), 2 * servers.servers().len());
    let threads: Vec<_> =
        workers.into_iter().map(|worker| std::thread::spawn(move || worker.run())).collect();
    let mut client =
        Client::connect_with(&fabrics, server.address(), ClientConfig::default()).expect("connects");
    assert_eq!(&*client.call(ECHO, b"own").expect("answered"), b"own");
    drop(client);
    server.shutdown(Duration::from_secs(1));
    threads.into_iter().for_each(|thread| thread.join().expect("ended"));
}

/// Polls a future until it is ready.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
}

/// Clients that are made before their server know its fabric with their first call.
#[test]
fn lazy_clients_need_no_server_before_their_first_call() {
    let fabrics = fabrics();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let address: Address = format!("auto:127.0.0.1:{port}").parse().expect("an address");
    let lazy = ClientConfig { lazy: true, ..ClientConfig::default() };
    let patient = ClientConfig { wait_for_ready: Duration::from_secs(60), ..lazy.clone() };
    let mut client = Client::connect_with(&fabrics, &address, lazy.clone()).expect("needs no server");
    let mut another = client.another().expect("neither does another");
    let tasks = AsyncClient::connect_with(&fabrics, &address, patient.clone()).expect("needs no server");
    assert_eq!((client.transport().name, client.workers(), tasks.workers()), ("auto", 0, 0));
    assert!(client.plan_of(ECHO).to_string().contains("not connected yet"), "{}", client.plan_of(ECHO));
    let unavailable = CallError::NotExecuted(Cause::Disconnected);
    let late = CallError::NotExecuted(Cause::DeadlineExceeded);
    assert_eq!(client.call(ECHO, b"early").map(|_| ()), Err(unavailable.clone()));
    assert_eq!(client.within(Duration::ZERO).call(ECHO, b"late").map(|_| ()), Err(late.clone()));
    assert_eq!(client.wait_ready(Duration::from_millis(5)), Err(unavailable));
    assert_eq!((client.progress(), client.wait_any(), client.in_flight()), (0, None, 0));
    let mut waiting = Client::connect_with(&fabrics, &address, patient).expect("needs no server");
    let short = Duration::from_millis(5);
    assert_eq!(waiting.within(short).call(ECHO, b"late").map(|_| ()), Err(late.clone()));
    assert_eq!(wait(tasks.within(short).call(ECHO, b"late")).map(|_| ()), Err(late));
    let mut first = pin!(tasks.call_on(1, ECHO, b"task"));
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());

    let server = builder(&fabrics).serve(&address, |_| echo()).expect("free");
    assert_eq!(&*wait(first).expect("answered"), b"task");
    assert_eq!(&*waiting.call_on(1, ECHO, b"thread").expect("answered"), b"thread");
    client.wait_ready(Duration::from_secs(60)).expect("the server is there");
    another.wait_ready(Duration::from_secs(60)).expect("the server is there");
    let call = client.push_on(0, ECHO, b"batch").expect("room");
    assert_eq!(&*client.wait(call).expect("answered"), b"batch");
    assert_eq!(&*another.within(Duration::from_secs(60)).call(ECHO, b"own").expect("answered"), b"own");
    for transport in [client.transport(), another.transport(), waiting.transport(), tasks.transport()] {
        assert_eq!((transport.name, &*transport.why), ("shm", "the server is on this host"));
    }
    assert_eq!((client.workers(), tasks.workers()), (2, 2));
    server.shutdown(Duration::from_secs(1));
}
