//! The forms of connecting and serving: short and long, every form of an address, blocking and as a future,
//! another client of the same kind, and a handler that the program keeps.

use dunlin::errors::{AddressError, ConnectError as EngineError, GlobalInUse, ListenError};
use dunlin::server::{TypedAsyncServer, TypedServer, serve_async};
use dunlin::thrift::{ConnectError, Failure, FastStr, Never, ServeError, Tasks};
use dunlin::{AsyncClient, Client, Context, Fabrics, FunctionMode, Reply, Request, ServerBuilder, Status};
use dunlin_generated::asked::*;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

#[derive(Debug, Default)]
struct Handler {
    noted: AtomicI32,
}

impl Asked for Handler {
    fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<AskedSayException>> {
        Ok(FastStr::new(text))
    }

    fn by_tcp(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }

    fn note(&self, _: &Context, number: i32) -> Result<(), Failure<Never>> {
        self.noted.fetch_add(number, Ordering::SeqCst);
        Ok(())
    }

    fn remote(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }
}

impl AskedAsync for Handler {
    async fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<AskedSayException>> {
        Ok(FastStr::new(text))
    }

    async fn by_tcp(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }

    async fn note(&self, _: &Context, number: i32) -> Result<(), Failure<Never>> {
        self.noted.fetch_add(number, Ordering::SeqCst);
        Ok(())
    }

    async fn remote(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }
}

/// Clients, servers and handlers stand in a struct without type parameters.
struct Program {
    handler: Arc<Handler>,
    server: TypedServer<AskedProcessor<Arc<Handler>>>,
    client: AskedClient,
    futures: AskedAsyncClient,
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

fn own(name: &str) -> String {
    format!("shm:connecting-{name}-{}", std::process::id())
}

#[test]
fn clients_of_every_address_need_no_type_parameter() {
    for address in [own("struct"), "auto:127.0.0.1:0".to_owned(), "tcp:127.0.0.1:0".to_owned()] {
        let handler = Arc::new(Handler::default());
        let server = dunlin::serve(&address, AskedProcessor(Arc::clone(&handler))).unwrap();
        let client = AskedClient::connect(server.address()).unwrap();
        let futures = AskedAsyncClient::connect(server.address().to_string()).unwrap();
        let mut program = Program { handler, server, client, futures };
        assert_eq!(program.client.say("hello").unwrap(), "hello");
        assert_eq!(wait(program.futures.say("futures")).unwrap(), "futures");
        program.client.note(3).unwrap();
        // On one connection a later answer does not prove that a oneway call was executed elsewhere.
        while program.handler.noted.load(Ordering::SeqCst) != 3 {
            program.client.by_tcp().unwrap();
        }
        let mut other = program.client.another().unwrap();
        let told = std::thread::spawn(move || other.say("another").unwrap()).join().unwrap();
        assert_eq!((told, program.client.say("still").unwrap()), ("another".into(), "still".into()));
        assert_eq!(program.client.transport(), program.futures.clone().transport());
        program.server.shutdown(Duration::from_secs(1));
    }
}

#[test]
fn another_client_is_as_lazy_and_has_the_routes_of_the_first() {
    let address = own("lazy");
    let mut options = dunlin::ClientOptions::default();
    options.engine.lazy = true;
    let mut first = AskedClient::connect_with(Fabrics::global(), &address, options).unwrap();
    let mut unconnected = first.another().unwrap();
    let _server = dunlin::serve(&address, AskedProcessor(Handler::default())).unwrap();
    assert_eq!(first.say("first").unwrap(), "first");
    assert_eq!(unconnected.say("lazy").unwrap(), "lazy");
    assert_eq!(first.another().unwrap().say("connected").unwrap(), "connected");
}

#[test]
fn connecting_is_a_future() {
    let address = own("future");
    let _server = dunlin::serve(&address, AskedProcessor(Handler::default())).unwrap();
    let client = wait(AskedAsyncClient::connect_async(&address)).unwrap();
    assert_eq!(wait(client.say("hello")).unwrap(), "hello");
    drop(AskedAsyncClient::connect_async(&address));
    let nobody = AskedAsyncClient::connect_async_with(Fabrics::global(), own("nobody"), Default::default());
    assert!(matches!(wait(nobody), Err(ConnectError::Engine(EngineError::Dial(_)))));
    let wrong = wait(AskedAsyncClient::connect_async("nowhere"));
    assert!(matches!(wrong, Err(ConnectError::Engine(EngineError::Address(_)))));
}

#[test]
fn a_text_that_is_no_address_is_an_error_of_connecting() {
    let typed = AskedClient::connect("node-7:7000").unwrap_err();
    let wrong = |error: &AddressError| matches!(error, AddressError::UnknownScheme(_));
    assert!(matches!(&typed, ConnectError::Engine(EngineError::Address(error)) if wrong(error)), "{typed}");
    let untyped = Client::connect("node-7:7000").unwrap_err();
    assert!(matches!(&untyped, EngineError::Address(error) if wrong(error)), "{untyped}");
    assert!(matches!(AsyncClient::connect(String::new()), Err(EngineError::Address(_))));
    let served = dunlin::serve("here", AskedProcessor(Handler::default())).unwrap_err();
    let ServeError::Engine(dunlin::errors::ServeError::Listen(ListenError::Address(error))) = served else {
        panic!("{served}");
    };
    assert_eq!(error, AddressError::NoScheme("here".into()));
}

#[test]
fn asynchronous_handlers_are_shared_too() {
    let (address, handler) = (own("shared"), Arc::new(Handler::default()));
    // Calls run where they are spawned: the handler never waits.
    let tasks = Tasks::new(wait);
    let processor = AskedAsyncProcessor(Arc::clone(&handler));
    let server: TypedAsyncServer = serve_async(&address, processor, tasks).unwrap();
    let mut client = AskedClient::connect(&address).unwrap();
    client.note(5).unwrap();
    assert_eq!(client.say("hello").unwrap(), "hello");
    server.shutdown(Duration::from_secs(1));
    assert_eq!(handler.noted.load(Ordering::SeqCst), 5);
}

#[test]
fn functions_by_number_have_the_same_forms() {
    let address = own("numbers");
    let echo = |request: &Request<'_>, reply: &mut Reply<'_>| -> Result<(), Status> {
        Ok(reply.write(request.payload)?)
    };
    let server = ServerBuilder::new().function(1, FunctionMode::Worker).serve(&address, |_| Box::new(echo));
    let server = server.unwrap();
    let mut client = Client::connect(&address).unwrap();
    assert_eq!(&*client.call(1, b"short").unwrap(), b"short");
    let futures = wait(AsyncClient::connect_async(server.address())).unwrap();
    assert_eq!(&*wait(futures.call(1, b"future")).unwrap(), b"future");
    let fabrics = Fabrics::default();
    let mut client = Client::connect_with(&fabrics, &address, Default::default()).unwrap();
    assert_eq!(&*client.call(1, b"long").unwrap(), b"long");
}

/// The tests of this process use the fabrics of the process, which therefore stay.
#[test]
fn the_fabrics_of_a_process_are_set_before_their_first_use() {
    let _ = Fabrics::global();
    assert_eq!(Fabrics::default().make_global(), Err(GlobalInUse));
}
