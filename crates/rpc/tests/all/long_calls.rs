//! Functions that overrun a slice leave to the pool, and calls outside the worker are answered in anybody's slice
//! (ScaleRPC section 3.5), in virtual time.

use super::reconnecting::{MILLISECOND, address};
use dunlin_fabric::{Fabric, Host, Task};
use dunlin_fabric_sim::{Settings, Sim, SimHost};
use dunlin_rpc::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const QUICK: u16 = 1;
const LONG: u16 = 2;
const PULLED: u16 = 3;
/// In groups of one client, several clients switch all the time.
const SLICE: Duration = Duration::from_micros(100);

fn leased() -> ClientConfig {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let plan = plan.shared(Sharing::Dedicated, Lease::Slice);
    ClientConfig { timeout: Duration::from_secs(60), ..ClientConfig::with_plan(plan) }
}

/// The runs of functions on workers and in the pool, and the functions that were reported as slow.
#[derive(Default)]
struct Runs {
    on_worker: [AtomicUsize; 3],
    in_pool: [AtomicUsize; 3],
    slow: Mutex<Vec<u16>>,
}

impl Runs {
    fn of(&self, function: u16) -> (usize, usize) {
        let at = usize::from(function);
        (self.on_worker[at].load(SeqCst), self.in_pool[at].load(SeqCst))
    }
}

/// Takes 2 ms for a long function, and echoes.
fn execute(
    host: &SimHost,
    runs: &[AtomicUsize; 3],
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Status> {
    runs[usize::from(request.function)].fetch_add(1, SeqCst);
    if request.function == LONG {
        host.sleep(host.now() + 2 * MILLISECOND);
    }
    Ok(reply.write(request.payload)?)
}

struct Worked(SimHost, Arc<Runs>);

impl Service for Worked {
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        execute(&self.0, &self.1.on_worker, request, reply)
    }

    fn on_slow(&mut self, function: u16, _: Duration) {
        self.1.slow.lock().unwrap().push(function);
    }
}

/// Three clients in groups of one make ten calls of each function, some of them together. Both functions may leave.
fn run(has_pool: bool, workers: u16) -> Arc<Runs> {
    let runs = Arc::new(Runs::default());
    let kept = Arc::clone(&runs);
    let settings = Settings { limit: 1_000_000 * MILLISECOND, ..Settings::default() };
    Sim::run_with(settings, 1, move |fabric| {
        let host = fabric.host().clone();
        let config = ServerConfig {
            group_size: Some(1),
            group_slice: Some(SLICE),
            workers,
            ..ServerConfig::default()
        };
        let mut builder = ServerBuilder::new(&fabric)
            .config(config)
            .function(QUICK, FunctionMode::WorkerThenPool)
            .function(LONG, FunctionMode::WorkerThenPool);
        if has_pool {
            let (host, runs) = (host.clone(), Arc::clone(&kept));
            builder = builder.pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                execute(&host, &runs.in_pool, request, reply)
            });
        }
        let service = |_| Box::new(Worked(host.clone(), Arc::clone(&kept))) as Box<dyn Service>;
        let server = builder.serve(&address(), service).unwrap();
        let clients: Vec<Task> = (0..3)
            .map(|number: u8| {
                let fabric = fabric.clone();
                let body = move || {
                    let mut client = Client::connect(&fabric, &address(), leased()).unwrap();
                    for call in 0..5 {
                        let worker = usize::from(call) % client.workers();
                        let functions = [QUICK, LONG, LONG, QUICK];
                        let calls = functions.map(|function| {
                            let payload = [number, call, function as u8];
                            (client.submit_on(worker, function, &payload).unwrap(), payload)
                        });
                        for (call, payload) in calls {
                            assert_eq!(*client.wait(call).unwrap(), payload);
                        }
                    }
                };
                host.spawn(&format!("client-{number}"), Box::new(body)).unwrap()
            })
            .collect();
        clients.into_iter().for_each(Task::join);
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap();
    runs
}

/// The first run ends on its worker and is answered; all others run in the pool. A quick function stays.
#[test]
fn a_function_that_overruns_its_slice_leaves_to_the_pool() {
    let runs = run(true, 1);
    assert_eq!([runs.of(QUICK), runs.of(LONG)], [(30, 0), (1, 29)]);
    assert_eq!(*runs.slow.lock().unwrap(), [], "the pool has it, so nobody has to do anything");
}

/// All workers know what one of them has seen. Those that run the function at that time end their runs.
#[test]
fn a_function_leaves_all_workers() {
    let runs = run(true, 3);
    let (on_worker, in_pool) = runs.of(LONG);
    assert!((1..=3).contains(&on_worker) && on_worker + in_pool == 30, "{on_worker} on workers");
    assert_eq!(runs.of(QUICK), (30, 0));
}

/// Without a pool service the function stays, and is reported.
#[test]
fn without_a_pool_a_long_function_stays() {
    let runs = run(false, 1);
    assert_eq!([runs.of(QUICK), runs.of(LONG)], [(30, 0), (30, 0)]);
    assert_eq!(*runs.slow.lock().unwrap(), [LONG]);
}

/// The answer of a call that the pool or the application executes comes in the slice of another group.
#[test]
fn calls_outside_the_worker_are_answered_in_anybodys_slice() {
    for function in [LONG, PULLED] {
        Sim::run_with(Settings { slack: 0, ..Settings::default() }, 1, move |fabric| {
            let host = fabric.host().clone();
            let late = {
                let host = host.clone();
                // Longer than the caller's slice, and shorter than two slices.
                move || host.sleep(host.now() + 30 * MILLISECOND)
            };
            let in_pool = late.clone();
            let group_slice = Duration::from_millis(20);
            let server = ServerBuilder::new(&fabric)
                .config(ServerConfig {
                    group_size: Some(1),
                    group_slice: Some(group_slice),
                    ..ServerConfig::default()
                })
                .function(QUICK, FunctionMode::Worker)
                .function(LONG, FunctionMode::Pool)
                .function(PULLED, FunctionMode::Pull)
                .pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                    in_pool();
                    Ok(reply.write(request.payload)?)
                })
                .serve(&address(), |_| {
                    let echo =
                        |request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?);
                    Box::new(echo)
                })
                .unwrap();
            let puller = server.puller();
            let pulling = host.spawn(
                "puller",
                Box::new(move || {
                    while let Some(call) = puller.receive(u64::MAX) {
                        late();
                        let payload = call.payload.clone();
                        call.reply(payload);
                    }
                }),
            );
            let (done, connected) = (Arc::new(AtomicBool::new(false)), fabric.clone());
            let mut other = Client::connect(&fabric, &address(), leased()).unwrap();
            let is_done = Arc::clone(&done);
            let caller = host.spawn(
                "caller",
                Box::new(move || {
                    let mut client = Client::connect(&connected, &address(), leased()).unwrap();
                    assert_eq!(*client.call(function, b"late").unwrap(), *b"late");
                    is_done.store(true, SeqCst);
                }),
            );
            loop {
                let before = (server.group_counters().switches, done.load(SeqCst));
                other.call(QUICK, b"now").unwrap();
                let after = (server.group_counters().switches, done.load(SeqCst));
                if after.1 {
                    assert!(!before.1 && before.0 > 0, "{before:?}");
                    assert_eq!(
                        before.0, after.0,
                        "answered between two calls of another client in one slice"
                    );
                    break;
                }
            }
            caller.unwrap().join();
            drop(other);
            server.shutdown(Duration::from_secs(1));
            pulling.unwrap().join();
        })
        .unwrap();
    }
}
