//! Asynchronous handlers on an executor of this test: results, exceptions, panics, the limit of calls in
//! progress, and the end of the server.

use dunlin::errors::WithSources;
use dunlin::fabric::{FabricsConfig, Scheme, ShmFabric};
use dunlin::plan::RunsIn;
use dunlin::raw::AsyncHub;
use dunlin::thrift::{
    ApplicationExceptionKind, AsyncServer, CallError, CallTask, ClientOptions, Context, Failure, FastStr,
    Never, ServeError, ServerOptions, Tasks, serve_async_with,
};
use dunlin::{Address, CallError as EngineError, Cause, Certainty, ClientConfig, Fabrics, Status};
use dunlin_generated::asked::*;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A task of the executor, which puts itself back into the queue when it is woken.
struct Spawned(Mutex<Option<CallTask>>, Sender<Arc<Spawned>>);

impl Wake for Spawned {
    fn wake(self: Arc<Self>) {
        let queue = self.1.clone();
        let _ = queue.send(self);
    }
}

/// Starts an executor with one thread.
fn executor() -> Tasks {
    let (queue, tasks) = channel::<Arc<Spawned>>();
    std::thread::spawn(move || {
        while let Ok(task) = tasks.recv() {
            let waker = Waker::from(Arc::clone(&task));
            let mut place = task.0.lock().unwrap();
            if let Some(mut future) = place.take()
                && future.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending()
            {
                *place = Some(future);
            }
        }
    });
    Tasks::new(move |task| {
        let _ = queue.send(Arc::new(Spawned(Mutex::new(Some(task)), queue.clone())));
    })
}

#[derive(Clone, Default)]
struct Handler(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// The wakers of calls that wait at the gate, until it opens.
    gate: Mutex<(bool, Vec<Waker>)>,
    waiting: AtomicUsize,
    notes: AtomicUsize,
    said: AtomicUsize,
    cancelled: AtomicUsize,
}

impl Inner {
    fn open(&self) {
        let wakers = {
            let mut gate = self.gate.lock().unwrap();
            gate.0 = true;
            std::mem::take(&mut gate.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Counts calls that were dropped before they ended.
struct Cancelled<'a>(&'a Inner, bool);

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl AskedAsync for Handler {
    async fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<AskedSayException>> {
        self.0.said.fetch_add(1, Ordering::SeqCst);
        match text {
            "" => return Err(Silent { why: "nothing was said".into() }.into()),
            "panic" => panic!("as asked"),
            "fail" => return Err(Failure::internal("as asked")),
            "wait" => {
                let mut ended = Cancelled(&self.0, false);
                self.0.waiting.fetch_add(1, Ordering::SeqCst);
                poll_fn(|context| {
                    let mut gate = self.0.gate.lock().unwrap();
                    if gate.0 {
                        return Poll::Ready(());
                    }
                    gate.1.push(context.waker().clone());
                    Poll::Pending
                })
                .await;
                ended.1 = true;
            }
            _ => {}
        }
        Ok(FastStr::new(text))
    }

    async fn by_tcp(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }

    async fn note(&self, _: &Context, number: i32) -> Result<(), Failure<Never>> {
        self.0.notes.fetch_add(number as usize, Ordering::SeqCst);
        Ok(())
    }

    async fn remote(&self, context: &Context) -> Result<bool, Failure<Never>> {
        Ok(context.tcp)
    }
}

fn address(name: &str) -> Address {
    format!("shm:tasks-{name}-{}", std::process::id()).parse().unwrap()
}

fn served(name: &str, tasks: Tasks) -> (Handler, AsyncServer<ShmFabric>, ShmFabric) {
    let (fabric, handler) = (dunlin::fabric::shm().unwrap(), Handler::default());
    let processor = AskedAsyncProcessor(handler.clone());
    let server =
        serve_async_with(&fabric, address(name), processor, ServerOptions::default(), tasks).unwrap();
    (handler, server, fabric)
}

fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        std::thread::yield_now();
    }
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

#[test]
fn calls_are_tasks_and_a_panic_costs_its_call_alone() {
    let (handler, server, fabric) = served("calls", executor());
    let mut client = AskedClient::connect_with(&fabric, server.address(), ClientOptions::default()).unwrap();
    let long = "x".repeat(100_000);
    for _ in 0..3 {
        assert_eq!(client.say("hello").unwrap(), "hello");
        assert_eq!(client.say(&long).unwrap(), long);
        assert!(!client.by_tcp().unwrap());
        assert!(matches!(client.say(""), Err(AskedError::Silent(_))));
        for (word, text) in [("panic", "panicked"), ("fail", "as asked")] {
            let error = client.say(word).unwrap_err();
            assert_eq!(error.certainty(), Certainty::Executed, "{error}");
            match error {
                AskedError::Call(CallError::Application(exception)) => {
                    assert_eq!(exception.kind(), ApplicationExceptionKind::INTERNAL_ERROR);
                    assert!(exception.message().contains(text), "{exception}");
                }
                other => panic!("{other}"),
            }
        }
        client.note(1).unwrap();
    }
    until(|| handler.0.notes.load(Ordering::SeqCst) == 3);
    assert_eq!(client.plan_of("say").unwrap().runs, RunsIn::Tasks { most: 1024 });
    until(|| server.in_progress() == 0);
    server.shutdown(Duration::from_secs(1));
}

#[test]
fn calls_beyond_the_limit_are_refused_and_the_others_wait_without_a_thread() {
    const MOST: usize = 5;
    let (handler, server, fabric) = served("limit", executor().at_most(MOST as u32));
    let hub = AsyncHub::new(&fabric).unwrap();
    let client = AskedAsyncClient::connect_with(&hub, server.address(), ClientOptions::default()).unwrap();
    let calls: Vec<_> = (0..MOST).map(|_| client.say("wait")).collect();
    until(|| handler.0.waiting.load(Ordering::SeqCst) == MOST);
    assert_eq!(server.in_progress(), MOST);
    let error = wait(client.say("one more")).unwrap_err();
    let refused = EngineError::NotExecuted(Cause::Refused(Status::Overloaded));
    assert!(matches!(&error, AskedError::Call(CallError::Transport(error)) if *error == refused), "{error}");
    handler.0.open();
    for call in calls {
        assert_eq!(wait(call).unwrap(), "wait");
    }
    until(|| server.in_progress() == 0);
    assert_eq!(wait(client.say("one more")).unwrap(), "one more");
    server.shutdown(Duration::from_secs(1));
    assert_eq!(handler.0.cancelled.load(Ordering::SeqCst), 0);
}

/// The executor keeps each task until the test polls it.
#[test]
fn a_call_whose_time_runs_out_in_the_executor_is_not_executed() {
    let held = Arc::new(Mutex::new(Vec::<CallTask>::new()));
    let queue = Arc::clone(&held);
    let (handler, server, fabric) = served("held", Tasks::new(move |task| queue.lock().unwrap().push(task)));
    let hub = AsyncHub::new(&fabric).unwrap();
    let client = AskedAsyncClient::connect_with(&hub, server.address(), ClientOptions::default()).unwrap();
    let long = client.within(Duration::from_secs(60)).say("long");
    until(|| held.lock().unwrap().len() == 1);
    // A call whose time is over before the server has it is not held, and another is made.
    let error = loop {
        let mut short = pin!(client.within(Duration::from_millis(5)).say("short"));
        let mut context = std::task::Context::from_waker(Waker::noop());
        let mut early = None;
        until(|| {
            if let Poll::Ready(result) = short.as_mut().poll(&mut context) {
                early = Some(result);
            }
            early.is_some() || held.lock().unwrap().len() > 1
        });
        match early {
            Some(_) if held.lock().unwrap().len() < 2 => {}
            Some(result) => break result.unwrap_err(),
            None => break wait(short).unwrap_err(),
        }
    };
    assert!(error.is_deadline(), "{error}");
    // The server computes a call's deadline before it gives the call to the executor.
    let (tasks, given) = (std::mem::take(&mut *held.lock().unwrap()), Instant::now());
    until(|| given.elapsed() > Duration::from_millis(5));
    tasks.into_iter().for_each(wait);
    assert_eq!(
        wait(long).unwrap(),
        "long",
        "a call with enough time runs, however late the executor begins it"
    );
    assert_eq!(handler.0.said.load(Ordering::SeqCst), 1);
    server.shutdown(Duration::from_secs(1));
}

#[test]
fn calls_in_progress_end_with_the_server() {
    let (handler, server, fabric) = served("end", executor());
    let engine = ClientConfig { timeout: Duration::MAX, ..ClientConfig::default() };
    let options = ClientOptions { engine, ..ClientOptions::default() };
    let mut client = AskedClient::connect_with(&fabric, server.address(), options).unwrap();
    let caller = std::thread::spawn(move || client.say("wait"));
    until(|| handler.0.waiting.load(Ordering::SeqCst) == 1);
    // It never ends by itself.
    server.shutdown(Duration::from_millis(10));
    until(|| handler.0.cancelled.load(Ordering::SeqCst) == 1);
    let error = caller.join().unwrap().unwrap_err();
    assert_ne!(error.certainty(), Certainty::NotExecuted, "{error}");
}

#[test]
fn what_asynchronous_handlers_cannot_do_is_refused() {
    let fabrics = Fabrics::default();
    let refused = |address: Address, options, tasks| {
        let processor = AskedAsyncProcessor(Handler::default());
        let error = serve_async_with(&fabrics, &address, processor, options, tasks).map(drop).unwrap_err();
        assert!(matches!(error, ServeError::Asynchronous { .. }), "{error}");
    };
    let options = ServerOptions::default;
    refused("tcp:127.0.0.1:0".parse().unwrap(), options(), executor());
    refused("node:tasks".parse().unwrap(), options(), executor());
    for address in [address("options"), "auto:127.0.0.1:0".parse().unwrap()] {
        let tcp = Some("127.0.0.1:0".into());
        refused(address.clone(), ServerOptions { tcp, ..options() }, executor());
        refused(address.clone(), ServerOptions { pool: vec!["say".into()], ..options() }, executor());
        refused(address, options(), executor().at_most(0));
    }
    let processor = AskedAsyncProcessor(Handler::default());
    let server = serve_async_with(&fabrics, address("fabrics"), processor, options(), executor()).unwrap();
    let mut client = AskedClient::connect_with(&fabrics, server.address(), ClientOptions::default()).unwrap();
    assert_eq!(client.say("hello").unwrap(), "hello");
    server.shutdown(Duration::from_secs(1));
}

/// At an `auto:` address each fabric has the handlers. Stock Thrift is announced as absent, with the reason.
#[test]
fn asynchronous_handlers_serve_the_fabrics_of_an_auto_address() {
    let auto: Address = "auto:127.0.0.1:0".parse().unwrap();
    let (fabrics, handler) = (Fabrics::default(), Handler::default());
    let serve = |fabrics: &Fabrics| {
        let processor = AskedAsyncProcessor(handler.clone());
        serve_async_with(fabrics, &auto, processor, ServerOptions::default(), executor())
    };
    let server = serve(&fabrics).unwrap();
    assert_eq!((server.address().scheme(), server.in_progress()), (Scheme::Auto, 0));
    let connect =
        |fabrics: &Fabrics| AskedClient::connect_with(fabrics, server.address(), ClientOptions::default());
    let mut client = connect(&fabrics).unwrap();
    assert_eq!((client.transport().name, client.say("hello").unwrap()), ("shm", "hello".into()));
    assert_eq!(client.plan_of("say").unwrap().runs, RunsIn::Tasks { most: 1024 });
    // The hint of `remote` asks for stock Thrift.
    assert!(matches!(client.remote(), Err(AskedError::Call(CallError::NoTcp { .. }))));
    let caller = std::thread::spawn(move || client.say("wait"));
    until(|| handler.0.waiting.load(Ordering::SeqCst) == 1);
    assert_eq!(server.in_progress(), 1);

    let disabled = vec![Scheme::Shm, Scheme::Rdma, Scheme::Ofi];
    let config = FabricsConfig { disabled, ..FabricsConfig::default() };
    let without = Fabrics::new(config);
    let error = WithSources(&connect(&without).unwrap_err()).to_string();
    assert!(error.contains("asynchronous handlers do not answer stock Thrift"), "{error}");
    let error = WithSources(&serve(&without).unwrap_err()).to_string();
    assert!(error.contains("asynchronous handlers do not answer stock Thrift"), "{error}");

    handler.0.open();
    server.shutdown(Duration::from_secs(1));
    assert_eq!(caller.join().unwrap().unwrap(), "wait", "the server answers what it has received");
}
