//! The log names a slow handler, in a process of its own because the subscriber is that of the process.

use dunlin::thrift::{ClientOptions, Context, Failure, Form, Never, Route, ServerOptions, serve_with};
use dunlin::{Address, Client, ClientConfig, Fabrics};
use dunlin_generated::sharing::*;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

/// `next` takes several milliseconds.
#[derive(Clone, Debug, Default)]
struct Handler(Arc<AtomicUsize>);

impl Counted for Handler {
    fn next(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(3));
        Ok(number + 1)
    }

    fn busy_next(&self, _: &Context, number: i32) -> Result<i32, Failure<Never>> {
        Ok(number + 1)
    }
}

/// Keeps the warnings of the server.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "dunlin::server" && *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Lines {
    /// Returns the lines that name the slow function.
    fn of_next(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|line| line.contains("Counted.next")).cloned().collect()
    }
}

/// The engine's number of `next` with tagged arguments, and an argument in that form.
const TAGGED: (u16, [u8; 8]) = (1, [8, 0, 1, 0, 0, 0, 41, 0]);

/// A worker times one of at most 95 calls.
const CALLS: usize = 100;

/// Both forms of a function have a number of their own in the engine, and the line is about the function.
#[test]
fn a_slow_handler_on_a_worker_is_named_once_with_the_hint_that_mends_it() {
    let (lines, handler) = (Lines::default(), Handler::default());
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let address: Address = format!("shm:log-{}", std::process::id()).parse().unwrap();
    let (fabrics, processor) = (Fabrics::default(), CountedProcessor(handler.clone()));
    let server = serve_with(&fabrics, &address, processor, ServerOptions::default()).unwrap();
    let fabric = dunlin::fabric::shm().unwrap();
    let mut client = CountedClient::connect_with(&fabric, &address, ClientOptions::default()).unwrap();
    assert!(matches!(client.inner().routes()[0], Route::Engine { form: Form::Bare, .. }));
    let mut numbered = Client::connect_with(&fabrics, &address, ClientConfig::default()).unwrap();
    for number in 0..CALLS {
        assert_eq!(client.next(number as i32).unwrap(), number as i32 + 1);
    }
    let line = lines.of_next().concat();
    let parts = ["process_time = long", "ServerOptions::pool", "kept its worker for "];
    assert!(parts.iter().all(|part| line.contains(part)), "{:?}", lines.0);
    for _ in 0..CALLS {
        numbered.call(TAGGED.0, &TAGGED.1).unwrap();
        client.next(1).unwrap();
    }
    assert_eq!(handler.0.load(Ordering::SeqCst), 3 * CALLS);
    assert_eq!(lines.of_next(), [line]);
    server.shutdown(Duration::from_secs(1));
}
