//! Tasks that share an asynchronous client, in virtual time: threads lose their core while they lead, windows are full,
//! calls are dropped, and deadlines pass.

#![allow(missing_docs, clippy::disallowed_methods, clippy::disallowed_types)]

use crate::common::*;
use crate::reconnecting::block_on;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Task};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MICROSECOND: Nanos = 1_000;
/// Far more than all calls of a run take in virtual time, and less than the time of one.
const PROMPTLY: Duration = Duration::from_secs(1);
const TASKS: u64 = 6;
const CALLS: u64 = 40;
/// Less than the time of the slow function, at times.
const SHORT: Duration = Duration::from_micros(40);
const SLOW: u16 = ECHO + 1;

/// The number of executions of each call.
type Executed = Arc<Mutex<BTreeMap<u64, u32>>>;

fn serve(fabric: &Sim, address: &Address, executed: &Executed) -> Server<Sim> {
    let (executed, host) = (Arc::clone(executed), fabric.host().clone());
    ServerBuilder::new(fabric)
        .config(ServerConfig { workers: 2, ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .function(SLOW, FunctionMode::Worker)
        .serve(address, move |_| {
            let (executed, host) = (Arc::clone(&executed), host.clone());
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                if request.function == SLOW {
                    host.sleep(host.now() + host.random() % (80 * MICROSECOND));
                }
                let number = u64::from_le_bytes(*request.payload.first_chunk().unwrap());
                *executed.lock().unwrap().entry(number).or_default() += 1;
                Ok(reply.write(request.payload)?)
            })
        })
        .unwrap()
}

/// A task's calls, some at a time: of all lengths, to one worker or any, some with little time, some dropped. Returns the
/// number of calls that ended otherwise than by their result.
fn use_client(fabric: &Sim, client: &AsyncClient<Sim>, task: u64, executed: &Executed) -> u64 {
    let (mut open, mut failed) = (VecDeque::new(), 0);
    let mut end = |(number, payload, call): (u64, Vec<u8>, Call<Sim>)| {
        let ended = block_on(fabric, call).map(|response| response.to_vec());
        let times = executed.lock().unwrap().get(&number).copied().unwrap_or(0);
        match ended {
            Ok(response) => assert!(response == payload && times == 1, "{number}: {times}"),
            Err(CallError::NotExecuted(Cause::DeadlineExceeded)) => {
                assert_eq!(times, 0, "{number}");
                failed += 1;
            }
            Err(CallError::MaybeExecuted(Cause::DeadlineExceeded)) => {
                assert!(times <= 1, "{number}: {times}");
                failed += 1;
            }
            Err(CallError::Executed(Cause::DeadlineExceeded)) => {
                assert_eq!(times, 1, "{number}");
                failed += 1;
            }
            Err(error) => panic!("{number}: {error}"),
        }
    };
    for call in 0..CALLS {
        let number = task << 32 | call;
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize([8, 30, 200, 9000][call as usize % 4], call as u8);
        let short = call % 5 == 3;
        let view = client.within(if short { SHORT } else { 10 * PROMPTLY });
        let function = if short || call % 11 == 2 { SLOW } else { ECHO };
        let future = match call % 3 {
            0 => view.call(function, &payload),
            worker => view.call_on(worker as usize - 1, function, &payload),
        };
        match call % 7 {
            6 => drop(future),
            _ => open.push_back((number, payload, future)),
        }
        if open.len() as u64 > task % 3 {
            end(open.pop_front().unwrap());
        }
    }
    open.into_iter().for_each(&mut end);
    failed
}

fn tasks_of_a_client(plan: Plan, batching: Option<Batching>, seed: u64) -> u64 {
    let sum = Arc::new(Mutex::new((0, 0)));
    let total = Arc::clone(&sum);
    let settings = Settings { preemption: 20, limit: 10_000_000_000, ..Settings::default() };
    Sim::run_with(settings, seed, move |fabric| {
        let (address, executed) = (Address::new(Scheme::Sim, "tasks").unwrap(), Executed::default());
        let server = serve(&fabric, &address, &executed);
        let hub = AsyncHub::new(&fabric).unwrap();
        let config =
            ClientConfig { window: 4, timeout: 10 * PROMPTLY, batching, ..ClientConfig::with_plan(plan) };
        let client = AsyncClient::connect(&hub, &address, config).unwrap();
        let begin = fabric.host().now();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (fabric, client) = (fabric.clone(), client.clone());
                let (executed, sum, host) = (Arc::clone(&executed), Arc::clone(&sum), fabric.host().clone());
                let body = move || {
                    let failed = use_client(&fabric, &client, task, &executed);
                    let mut sum = sum.lock().unwrap();
                    *sum = (sum.0 + 1, sum.1 + failed);
                };
                host.spawn(&format!("task-{task}"), Box::new(body)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        // Nobody finds the end of a call only at its deadline.
        let took = Duration::from_nanos(fabric.host().now() - begin);
        assert!(took < PROMPTLY, "{plan:?} {seed}: {took:?}");
        drop((client, hub));
        server.shutdown(Duration::from_secs(1));
    })
    .unwrap_or_else(|error| panic!("{plan:?} {batching:?} {seed}: {error}"));
    let total = *total.lock().unwrap();
    assert_eq!(total.0, TASKS);
    total.1
}

#[test]
fn tasks_get_their_own_results() {
    let capabilities = Settings::default().capabilities;
    let mut failed = 0;
    for protocol in PROTOCOLS {
        for mode in MODES {
            let plan = protocol.plan(mode);
            if plan.check(&capabilities).is_err() {
                continue;
            }
            for seed in 0..4 {
                let batching = (seed == 3).then(Batching::default);
                failed += tasks_of_a_client(plan, batching, seed);
            }
        }
    }
    assert!(failed > 0, "some deadlines pass");
}

/// The call under way was dropped, so only the call that waits for room can notice that the connection is gone.
#[test]
fn a_call_that_waits_for_room_hears_of_a_lost_connection() {
    for seed in 0..8 {
        Sim::run(seed, move |fabric| {
            let (address, executed) = (Address::new(Scheme::Sim, "lost").unwrap(), Executed::default());
            let server = serve(&fabric, &address, &executed);
            let hub = AsyncHub::new(&fabric).unwrap();
            let mode = MODES[seed as usize % MODES.len()];
            let plan = Plan::new(RequestHalf::WriteImm, ResponseHalf::WriteImm).completion(mode, mode);
            let config = ClientConfig { window: 1, timeout: 10 * PROMPTLY, ..ClientConfig::with_plan(plan) };
            let client = AsyncClient::connect(&hub, &address, config).unwrap();
            let begin = fabric.host().now();
            drop(client.call_on(0, SLOW, &[0; 8]));
            let waits = client.call_on(0, SLOW, &[1, 0, 0, 0, 0, 0, 0, 0]);
            drop(server);
            let ended = block_on(&fabric, waits).map(|response| response.to_vec());
            assert!(ended.is_err(), "{mode} {seed}");
            let took = Duration::from_nanos(fabric.host().now() - begin);
            assert!(took < PROMPTLY, "{mode} {seed}: {took:?}, {ended:?}");
        })
        .unwrap();
    }
}
