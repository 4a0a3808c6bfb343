//! What generated code costs: client and worker take turns on ONE thread, so that the clock sees no cache line travel and a
//! profiler nothing of waiting.
//!
//! `typed_steps CALLS FUNCTION`: `raw` is the engine's echo of 32 bytes; `echo`, `look`, `say`, `sum` and `turn` are the functions
//! of `bench/idl/typed.thrift` with as many. Without arguments all, in turns, with nanoseconds of the best of many rounds.
//! `perf record typed_steps 10000000 say` tells where they go.

use dunlin::thrift::{Adapter, ClientOptions, Outcome, Pending};
use dunlin_bench::typed_service::{
    Handler, Point, TypedClient, TypedEchoArguments, TypedEchoOutcome, TypedLookArguments, TypedLookOutcome,
    TypedProcessor, TypedSayArguments, TypedSayOutcome, TypedSumArguments, TypedSumOutcome,
    TypedTurnArguments, TypedTurnOutcome,
};
use dunlin_fabric::Address;
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::{
    Client, ClientConfig, CompletionMode, FunctionMode, Protocol, Reply, Request, Server, ServerBuilder,
    Status, Worker,
};
use std::error::Error;
use std::fmt::Display;
use std::hint::black_box;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// What is called.
const NAMES: [&str; 6] = ["raw", "echo", "look", "say", "sum", "turn"];
/// Rounds of all, and calls of each in a round.
const ROUNDS: usize = 300;
const CALLS: usize = 2_000;

/// A server whose worker this thread steps.
struct Served {
    _server: Server<ShmFabric>,
    worker: Worker<ShmFabric>,
    address: Address,
}

impl Served {
    fn with_client<T: Send + 'static>(&mut self, connecting: JoinHandle<T>) -> Result<T, Box<dyn Error>> {
        while !connecting.is_finished() {
            self.worker.progress();
        }
        connecting.join().map_err(|_| "the connecting thread panicked".into())
    }
}

struct Steps {
    raw: Client<ShmFabric>,
    raw_server: Served,
    typed: TypedClient,
    typed_server: Served,
}

fn echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    reply.write(request.payload)?;
    Ok(())
}

impl Steps {
    fn new() -> Result<Self, Box<dyn Error>> {
        let fabric = ShmFabric::new(ShmConfig::default())?;
        let address =
            |kind: &str| format!("shm:typed-steps-{kind}-{}", std::process::id()).parse::<Address>();
        let first = |mut workers: Vec<Worker<ShmFabric>>| workers.pop().ok_or("no worker");

        let at = address("raw")?;
        let builder = ServerBuilder::new(&fabric).function(1, FunctionMode::Worker);
        let (server, workers) = builder.serve_with(&at, |_| Box::new(echo))?;
        let mut raw_server = Served { _server: server, worker: first(workers)?, address: at };
        let adapter = Adapter::new(Arc::new(TypedProcessor(Handler)), None);
        let at = address("typed")?;
        let builder = adapter.declare(ServerBuilder::new(&fabric));
        let (server, workers) = builder.serve_with(&at, |_| Box::new(adapter.clone()))?;
        let mut typed_server = Served { _server: server, worker: first(workers)?, address: at };

        let plan = Protocol::by_name("Server-reply").ok_or("no such protocol")?.plan(CompletionMode::Busy);
        let (here, at) = (fabric.clone(), raw_server.address.clone());
        let raw = std::thread::spawn(move || Client::connect(&here, &at, ClientConfig::with_plan(plan)));
        let raw = raw_server.with_client(raw)??;
        let (here, at) = (fabric.clone(), typed_server.address.clone());
        let typed = std::thread::spawn(move || TypedClient::connect(&here, &at, ClientOptions::default()));
        let typed = typed_server.with_client(typed)??;
        Ok(Steps { raw, raw_server, typed, typed_server })
    }

    /// Makes so many calls of one function.
    #[inline(never)]
    fn run(&mut self, name: &str, calls: usize) -> Result<(), String> {
        match name {
            "raw" => repeat(calls, || self.raw()),
            "echo" => repeat(calls, || self.echo()),
            "look" => repeat(calls, || self.look()),
            "say" => repeat(calls, || self.say()),
            "sum" => repeat(calls, || self.sum()),
            "turn" => repeat(calls, || self.turn()),
            other => Err(format!("there is no function '{other}': {}", NAMES.join(", "))),
        }
    }

    #[inline(never)]
    fn raw(&mut self) -> Result<(), String> {
        let call = self.raw.submit_on(0, 1, black_box(&[b'x'; 32])).map_err(text)?;
        self.raw_server.worker.progress();
        let answer = self.raw.wait(call).map_err(text)?;
        expect(answer[..] == [b'x'; 32])
    }

    /// The worker's turn, and then the client's.
    #[inline(always)]
    fn answer<R: Outcome>(&mut self, pending: Pending<R>) -> Result<R::Value, String>
    where
        R::Exception: std::fmt::Debug,
    {
        self.typed_server.worker.progress();
        match self.typed.wait(pending) {
            Ok(value) => Ok(value),
            Err(error) => Err(text(error)),
        }
    }

    #[inline(never)]
    fn echo(&mut self) -> Result<(), String> {
        let arguments = TypedEchoArguments { data: black_box(&[b'x'; 32]) };
        let pending = self.typed.inner().start::<_, TypedEchoOutcome>(0, &arguments).map_err(text)?;
        let answer = self.answer(pending)?;
        expect(answer[..] == [b'x'; 32])
    }

    #[inline(never)]
    fn look(&mut self) -> Result<(), String> {
        let arguments = TypedLookArguments { data: black_box(&[b'x'; 32]) };
        let pending = self.typed.inner().start::<_, TypedLookOutcome>(1, &arguments).map_err(text)?;
        let answer = self.answer(pending)?;
        expect(answer[..] == [b'x'; 32])
    }

    #[inline(never)]
    fn say(&mut self) -> Result<(), String> {
        let arguments = TypedSayArguments { text: black_box("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx") };
        let pending = self.typed.inner().start::<_, TypedSayOutcome>(2, &arguments).map_err(text)?;
        let answer = self.answer(pending)?;
        expect(answer.as_bytes() == [b'x'; 32])
    }

    #[inline(never)]
    fn sum(&mut self) -> Result<(), String> {
        let [a, b, c, d] = black_box([1, 2, 3, 4]);
        let arguments = TypedSumArguments { a, b, c, d };
        let pending = self.typed.inner().start::<_, TypedSumOutcome>(3, &arguments).map_err(text)?;
        let answer = self.answer(pending)?;
        expect(answer == 10)
    }

    #[inline(never)]
    fn turn(&mut self) -> Result<(), String> {
        let point = black_box(Point { x: 1, y: 2, z: 3, w: 4 });
        let arguments = TypedTurnArguments { point: &point };
        let pending = self.typed.inner().start::<_, TypedTurnOutcome>(4, &arguments).map_err(text)?;
        let answer = self.answer(pending)?;
        expect(answer == point)
    }
}

#[inline(always)]
fn repeat(calls: usize, mut call: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    (0..calls).try_for_each(|_| call())
}

#[inline(always)]
fn expect(right: bool) -> Result<(), String> {
    if right { Ok(()) } else { Err("an answer had other bytes than it should: this is a bug".to_owned()) }
}

#[cold]
fn text(error: impl Display) -> String {
    error.to_string()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let mut steps = Steps::new()?;
    if let [_, calls, name] = &arguments[..] {
        return Ok(steps.run(name, calls.parse()?)?);
    }
    let mut best = [f64::INFINITY; NAMES.len()];
    for _ in 0..ROUNDS {
        for (name, best) in NAMES.iter().zip(&mut best) {
            steps.run(name, CALLS / 10)?;
            let start = Instant::now();
            steps.run(name, CALLS)?;
            *best = best.min(start.elapsed().as_nanos() as f64 / CALLS as f64);
        }
    }
    for (name, best) in NAMES.iter().zip(best) {
        println!("{name:5} {best:7.1} ns a call, both sides");
    }
    Ok(())
}
