//! Clients and servers whose address selects the fabric: shared memory here, RDMA in the virtual machine
//! (`examples/every_protocol.rs`).

use dunlin_fabric::{
    Access, Address, DialError, Fabric as _, ListenError, RateRow, RatesSource, Region, WithSources,
};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::tune::table::FetchTable;
use dunlin_rpc::{
    CallError, Cause, ClientConfig, CompletionMode, ConnectError, Deployment, FunctionMode, LargePayload,
    MemoryError, Plan, Reply, Request, RequestHalf, ResponseHalf, SMALL_LIMIT, ServeError, ServerConfig,
    Service, Status,
};
use dunlin_transport::{
    AsyncClient, Client, Fabrics, FabricsConfig, Server, ServerBuilder, Tables, TablesFrom,
};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

const ECHO: u16 = 1;
const POOLED: u16 = 2;
const PULLED: u16 = 3;

fn echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    reply.write(request.payload)?;
    Ok(())
}

fn address(name: &str) -> Address {
    format!("shm:facade-{name}-{}", std::process::id()).parse().unwrap()
}

fn described(fabrics: &Fabrics) -> ServerBuilder {
    ServerBuilder::new()
        .fabrics(fabrics)
        .config(ServerConfig { workers: 2, ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .function(POOLED, FunctionMode::Pool)
        .function(PULLED, FunctionMode::Pull)
        .pool(echo)
}

fn serve(fabrics: &Fabrics, name: &str) -> Server {
    described(fabrics).serve(address(name), |_| Box::new(echo) as Box<dyn Service>).unwrap()
}

/// Servers of one deployment follow its schedule. A server without a deployment follows its own.
#[test]
fn a_deployment_shares_its_schedule() {
    let fabrics = Fabrics::default();
    let addresses = ["first", "second"].map(|name| address(&format!("deployment-{name}")));
    let start = |own: usize| {
        let deployment = Deployment {
            interval: Duration::from_millis(5),
            ..Deployment::new(addresses.to_vec(), own as u16)
        };
        let builder = described(&fabrics).deployment(deployment);
        builder.serve(&addresses[own], |_| Box::new(echo) as Box<dyn Service>).unwrap()
    };
    let servers = [start(0), start(1)];
    let end = Instant::now() + Duration::from_secs(30);
    while !servers.iter().all(Server::follows_deployment) {
        assert!(Instant::now() < end, "the servers follow no common schedule");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!serve(&fabrics, "alone").follows_deployment());
}

#[test]
fn calls_of_every_kind() {
    let fabrics = Fabrics::default();
    let server = serve(&fabrics, "calls");
    let mut client = Client::connect_with(&fabrics, server.address(), ClientConfig::default()).unwrap();
    assert_eq!((client.transport().name, client.workers()), ("shm", 2));
    assert_eq!(&*client.call(ECHO, b"by any worker").unwrap(), b"by any worker");
    assert_eq!(&*client.call_on(1, POOLED, &[7; 100_000]).unwrap(), [7; 100_000]);

    let ids: Vec<_> = (0..10u8).map(|number| client.push_on(0, ECHO, &[number; 9]).unwrap()).collect();
    client.flush_waiting().unwrap();
    for (number, id) in ids.into_iter().enumerate() {
        assert_eq!(&*client.wait(id).unwrap(), [number as u8; 9]);
    }

    let mut request = client.large_request_for(0, ECHO, 70_000).unwrap();
    request.fill(3);
    let id = client.submit_large(ECHO, request).unwrap();
    assert_eq!(client.wait_any(), Some(id));
    assert_eq!(client.outcome(id).unwrap(), [3; 70_000]);
    client.forget(id);
    assert_eq!(client.in_flight(), 0);

    for plan in [None, Some(LargePayload::Pipelined)] {
        let config = ClientConfig::default();
        let plan =
            plan.map(|large| Plan::new(RequestHalf::Write, ResponseHalf::Write).large(large, SMALL_LIMIT));
        let mut client =
            Client::connect_with(&fabrics, server.address(), ClientConfig { plan, ..config }).unwrap();
        let mut request = client.filling_request_for(0, ECHO, 100_000).unwrap();
        let (place, filling) = request.parts();
        filling.put(0, place, &[5; 100_000]);
        let id = request.submit().unwrap();
        assert_eq!(&*client.wait(id).unwrap(), [5; 100_000]);
        drop(client.filling_request_for(0, ECHO, 100_000).unwrap());
        assert_eq!(client.in_flight(), 0);
    }

    let id = client.submit_on(0, PULLED, b"later").unwrap();
    let incoming = server.receive(Duration::MAX).unwrap();
    assert_eq!((incoming.function, &incoming.payload[..]), (PULLED, &b"later"[..]));
    incoming.reply(b"now".to_vec());
    assert_eq!(&*client.wait(id).unwrap(), b"now");
    let id = client.submit_on(0, PULLED, b"never").unwrap();
    server.receive(Duration::MAX).unwrap().refuse(Status::Overloaded);
    let refused = client.wait(id).map(drop);
    assert_eq!(refused, Err(CallError::NotExecuted(Cause::Refused(Status::Overloaded))));

    let mut another = client.another().unwrap();
    assert_eq!(&*another.call(ECHO, b"").unwrap(), b"");
    client.close();
    another.close();
    server.shutdown(Duration::from_secs(1));
}

/// Unparks the waiting thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn asynchronous_calls() {
    let fabrics = Fabrics::default();
    let server = serve(&fabrics, "async");
    let client = AsyncClient::connect_with(&fabrics, server.address(), ClientConfig::default()).unwrap();
    let second = AsyncClient::connect_with(&fabrics, server.address(), ClientConfig::default()).unwrap();
    assert_eq!((client.transport().name, client.workers()), ("shm", 2));
    assert_eq!((client.tuning(), client.batch_calls()), (Vec::new(), Vec::new()));
    let (first, large) = (client.call(ECHO, b"one"), second.call_on(1, ECHO, &[1; 50_000]));
    assert_eq!(&*block_on(large).unwrap(), [1; 50_000]);
    assert_eq!(&*block_on(first).unwrap(), b"one");
    client.call(ECHO, b"left").leave().unwrap();
    drop((client, second, fabrics));
    server.shutdown(Duration::from_secs(1));
}

/// Operations on memory as futures, of a client that has its server and of one that connects when it attaches.
#[test]
fn memory_of_a_server() {
    let all = Access::READ.with(Access::WRITE).with(Access::ATOMIC);
    let shm = ShmFabric::new(ShmConfig::default()).unwrap();
    let memory = Region::new(shm.register(4096, all).unwrap());
    let server = dunlin_rpc::ServerBuilder::new(&shm)
        .function(ECHO, FunctionMode::Worker)
        .expose("all", memory.clone(), all)
        .serve(&address("memory"), |_| Box::new(echo) as Box<dyn Service>)
        .unwrap();
    let fabrics = Fabrics::default();
    let client = AsyncClient::connect_with(&fabrics, address("memory"), ClientConfig::default()).unwrap();
    let region = block_on(client.attach("all")).unwrap();
    block_on(client.write(&region, 8, &5u64.to_le_bytes())).unwrap();
    assert_eq!(*block_on(client.read(&region, 8, 8)).unwrap(), 5u64.to_le_bytes());
    assert_eq!(block_on(client.fetch_add(&region, 8, 2)).unwrap(), 5);
    assert_eq!(block_on(client.compare_swap(&region, 8, 7, 9)).unwrap(), 7);
    assert_eq!(memory.load(8), 9);
    let unknown = block_on(client.attach("none")).unwrap_err();
    assert_eq!(unknown, MemoryError::NoSuchRegion { name: "none".to_owned() });

    let lazy = ClientConfig { lazy: true, ..ClientConfig::default() };
    let nowhere: Address = "auto:127.0.0.1:9".parse().unwrap();
    let waiting = AsyncClient::connect_with(&fabrics, &nowhere, lazy).unwrap();
    let unconnected = MemoryError::Call(CallError::NotExecuted(Cause::Disconnected));
    assert_eq!(block_on(waiting.write(&region, 8, &[1])), Err(unconnected.clone()));
    assert_eq!(block_on(waiting.attach("all")).map(drop), Err(unconnected));
    drop((client, waiting, fabrics));
    server.shutdown(Duration::from_secs(1));
}

#[test]
fn workers_of_the_application() {
    let fabrics = Fabrics::default();
    let (server, workers) =
        described(&fabrics).serve_with(address("own"), |_| Box::new(echo) as Box<dyn Service>).unwrap();
    assert_eq!(workers.iter().map(|worker| worker.number()).collect::<Vec<_>>(), [0, 1]);
    let threads: Vec<_> = workers.into_iter().map(|worker| std::thread::spawn(|| worker.run())).collect();
    let mut client = Client::connect_with(&fabrics, server.address(), ClientConfig::default()).unwrap();
    assert_eq!(&*client.call(ECHO, b"hello").unwrap(), b"hello");
    drop(client);
    server.shutdown(Duration::from_secs(1));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_named_fabric_is_used_or_refused() {
    let fabrics = Fabrics::default();
    let simulated: Address = "sim:somewhere".parse().unwrap();
    match Client::connect_with(&fabrics, &simulated, ClientConfig::default()) {
        Err(ConnectError::Dial(DialError::Unavailable(error))) => assert_eq!(error.address, simulated),
        other => panic!("{other:?}"),
    }
    let served = described(&fabrics).serve(&simulated, |_| Box::new(echo) as Box<dyn Service>);
    assert!(matches!(served, Err(ServeError::Listen(ListenError::Unavailable(_)))), "{served:?}");

    // A single fabric accepts only its own addresses.
    let shm = fabrics.shm().unwrap();
    let elsewhere: Address = "rdma:localhost:7000".parse().unwrap();
    let error = Client::connect_with(&shm, &elsewhere, ClientConfig::default()).map(drop).unwrap_err();
    assert!(WithSources(&error).to_string().contains("Fabrics"), "{error}");
    let server = serve(&fabrics, "alone");
    let mut client = Client::connect_with(&shm, server.address(), ClientConfig::default()).unwrap();
    assert_eq!(&*client.call(ECHO, b"hello").unwrap(), b"hello");
}

/// A client uses the given table, else measured rates of its device, else built-in rates, and reports which.
#[test]
fn the_rates_are_those_given_or_measured_or_built_in() {
    let folder = tempfile::tempdir().unwrap();
    let tables = Tables::in_folder(folder.path());
    let server = serve(&Fabrics::default(), "rates");
    let source = |from: TablesFrom, given: Option<FetchTable>| {
        let fabrics = Fabrics::new(FabricsConfig { tables: from, ..FabricsConfig::default() });
        let plan = Plan::new(RequestHalf::Write, ResponseHalf::FetchOrWrite)
            .completion(CompletionMode::Busy, CompletionMode::Busy);
        let config = ClientConfig {
            fetch_table: given.map(Arc::new),
            worker: Some(0),
            ..ClientConfig::with_plan(plan)
        };
        let mut client = Client::connect_with(&fabrics, server.address(), config).unwrap();
        assert_eq!(&*client.call(ECHO, b"hello").unwrap(), b"hello");
        let [tuning] = client.tuning().try_into().unwrap();
        (tuning.table, tuning.retries_at_most)
    };
    let measured = || TablesFrom::Tables(tables.clone());
    assert_eq!(source(measured(), None), (RatesSource::Typical, 1));
    let device = Fabrics::default().shm().unwrap().device();
    let row = |bytes, reads| RateRow { bytes, reads, writes: 1e6, read_nanos: 500.0 };
    tables.save(&device, (&[row(64, 3e6), row(1024, 1e6)], &[]), 1_795_305_600).unwrap();
    let (found, reads_at_most) = source(measured(), None);
    assert_eq!(found, RatesSource::Measured { device: device.to_string(), unix_time_s: 1_795_305_600 });
    assert_eq!(reads_at_most, 3);
    let given = FetchTable::new(vec![row(64, 8e6), row(1024, 1e6)]).unwrap();
    assert_eq!(source(measured(), Some(given)), (RatesSource::Given, 8));
    assert_eq!(source(TablesFrom::Nowhere, None), (RatesSource::Typical, 1));
    std::fs::write(tables.path(&device), b"no table").unwrap();
    assert_eq!(source(measured(), None), (RatesSource::Typical, 1));
    server.shutdown(Duration::from_secs(1));
}
