//! The timeout of a client's settings holds on TCP as on the engine, for blocking and asynchronous calls.

use dunlin::fabric::{FabricsConfig, Scheme};
use dunlin::thrift::{ClientOptions, Context, Failure, FastStr, Never, ServerOptions, serve_with};
use dunlin::{Address, Certainty, Fabrics};
use dunlin_generated::asked::*;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The longest time that the gate holds a handler. It is shorter than the default timeout of calls, so that a
/// call without the client's timeout is answered.
const HELD_AT_MOST: Duration = Duration::from_secs(5);

/// Handlers of `say` wait while the gate is closed.
#[derive(Clone, Default)]
struct Handler(Arc<Gate>);

#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.opened.notify_all();
    }
}

impl Asked for Handler {
    fn say(&self, _: &Context, text: &str) -> Result<FastStr, Failure<AskedSayException>> {
        let closed = self.0.closed.lock().unwrap();
        drop(self.0.opened.wait_timeout_while(closed, HELD_AT_MOST, |closed| *closed).unwrap());
        Ok(FastStr::new(text))
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

fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
            return value;
        }
        std::thread::yield_now();
    }
}

fn timeout(timeout: Duration) -> ClientOptions {
    let mut options = ClientOptions::default();
    options.engine.timeout = timeout;
    options
}

/// Each address with the transport that its clients take.
fn everywhere(name: &str, test: fn(&Fabrics, &Address, &Handler)) {
    let disabled = vec![Scheme::Shm, Scheme::Rdma, Scheme::Ofi];
    let config = FabricsConfig { disabled, ..FabricsConfig::default() };
    let (all, without) = (Fabrics::default(), Fabrics::new(config));
    let shm = format!("shm:timeouts-{name}-{}", std::process::id());
    for (fabrics, address, transport) in
        [(&all, &*shm, "shm"), (&all, "tcp:127.0.0.1:0", "tcp"), (&without, "auto:127.0.0.1:0", "tcp")]
    {
        let (handler, mut options) = (Handler::default(), ServerOptions::default());
        options.pool = vec!["say".into()];
        // A held handler keeps its thread from its other connections.
        options.tcp_options.threads = 8;
        let address: Address = address.parse().unwrap();
        let server = serve_with(fabrics, &address, AskedProcessor(handler.clone()), options).unwrap();
        let client = AskedClient::connect_with(fabrics, server.address(), ClientOptions::default()).unwrap();
        assert_eq!(client.transport().name, transport);
        test(fabrics, server.address(), &handler);
        server.shutdown(Duration::from_secs(1));
    }
}

#[test]
fn the_timeout_of_the_settings_holds_on_every_transport() {
    everywhere("setting", |fabrics, address, handler| {
        let options = timeout(Duration::from_millis(50));
        let mut blocking = AskedClient::connect_with(fabrics, address, options.clone()).unwrap();
        let futures = AskedAsyncClient::connect_with(fabrics, address, options).unwrap();
        handler.0.set(true);
        // The call ends while its handler is held.
        for error in [blocking.say("held").unwrap_err(), wait(futures.say("held")).unwrap_err()] {
            assert!(error.is_deadline(), "{address}: {error}");
            assert_ne!(error.certainty(), Certainty::Executed, "{address}: {error}");
        }
        handler.0.set(false);
    });
}

/// A time that no clock reaches is no time that has passed.
#[test]
fn calls_may_have_a_century_on_every_transport() {
    everywhere("century", |fabrics, address, _| {
        for time in [Duration::from_secs(100 * 365 * 24 * 3600), Duration::MAX] {
            let mut blocking = AskedClient::connect_with(fabrics, address, timeout(time)).unwrap();
            let futures = AskedAsyncClient::connect_with(fabrics, address, timeout(time)).unwrap();
            assert_eq!(blocking.say("setting").unwrap(), "setting");
            assert_eq!(wait(futures.say("setting")).unwrap(), "setting");
            assert_eq!(blocking.within(time).say("own").unwrap(), "own");
            assert_eq!(wait(futures.within(time).say("own")).unwrap(), "own");
        }
    });
}
