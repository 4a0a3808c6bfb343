//! A sleeping peer learns that there is room again in a full ring. In virtual time no event wait ends
//! spontaneously: a report that wakes nobody is a deadlock here, and a delay of milliseconds on a real host.

#![allow(missing_docs, clippy::disallowed_types)]

use dunlin_fabric::{Address, Capabilities, Fabric, Host, Scheme};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::time::Duration;

const LARGE_ANSWER: u16 = 1;
const COLLECTED: u16 = 2;

/// Returns every legal plan in which a side may sleep.
fn sleeping_plans(capabilities: &Capabilities) -> Vec<Plan> {
    use CompletionMode::{Adaptive, Busy, Event};
    let mut plans = Vec::new();
    for request in RequestHalf::ALL {
        for response in ResponseHalf::ALL {
            for (client, server) in
                [(Event, Event), (Adaptive, Adaptive), (Busy, Event), (Event, Busy), (Adaptive, Event)]
            {
                let plan = Plan::new(request, response).completion(client, server);
                if plan.check(capabilities).is_ok() {
                    plans.push(plan);
                }
            }
        }
    }
    plans
}

/// Runs a server, a client on its own task, and `application` on this one.
fn run(
    plan: Plan,
    seed: u64,
    client: fn(Client<Sim>),
    application: fn(&Server<Sim>),
) -> Result<(), dunlin_fabric_sim::RunError> {
    // No spurious wake-ups: they would hide a report that wakes nobody.
    let settings = Settings { spurious: 0, limit: 3_000_000_000, ..Settings::default() };
    let report = Sim::run_with(settings, seed, move |fabric| {
        let address = Address::new(Scheme::Sim, "heads").unwrap();
        let server = ServerBuilder::new(&fabric)
            .function(LARGE_ANSWER, FunctionMode::Worker)
            .function(COLLECTED, FunctionMode::Pull)
            .serve(&address, |_| {
                Box::new(|_: &Request<'_>, reply: &mut Reply<'_>| {
                    reply.reserve(4000)?.fill(7);
                    Ok(())
                })
            })
            .unwrap();
        let host = fabric.host().clone();
        let body = move || {
            let config = ClientConfig { window: 48, timeout: Duration::MAX, ..ClientConfig::with_plan(plan) };
            client(Client::connect(&fabric, &address, config).unwrap());
        };
        let task = host.spawn("client", Box::new(body)).unwrap();
        application(&server);
        task.join();
        server.shutdown(Duration::from_secs(1));
    });
    report.map(|_| ())
}

fn each_plan(client: fn(Client<Sim>), application: fn(&Server<Sim>)) {
    let plans = sleeping_plans(&Settings::default().capabilities);
    assert!(plans.len() > 20, "{plans:?}");
    let mut failed = Vec::new();
    for plan in plans {
        for seed in 0..3 {
            if let Err(error) = run(plan, seed, client, application) {
                failed.push(format!(
                    "{:?}/{:?}, {} and {}, seed {seed}: {error}",
                    plan.request, plan.response, plan.client, plan.server
                ));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The server has answers for many rings, and the client sends nothing but head reports.
#[test]
fn a_server_that_sleeps_hears_of_room_for_its_answers() {
    each_plan(
        |mut client| {
            let calls: Vec<_> = (0..40).map(|_| client.submit_on(0, LARGE_ANSWER, &[]).unwrap()).collect();
            for call in calls {
                assert_eq!(*client.wait(call).unwrap(), [7; 4000]);
            }
        },
        |_| {},
    );
}

/// The ring of requests is full, and no answer comes before the last request has arrived.
#[test]
fn a_client_that_sleeps_hears_of_room_for_its_requests() {
    each_plan(
        |mut client| {
            let mut calls = Vec::new();
            while calls.len() < 40 {
                match client.submit_on(0, COLLECTED, &[0; 1000]) {
                    Ok(call) => calls.push(call),
                    Err(CallError::NotExecuted(Cause::WindowFull)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(*client.call_on(0, COLLECTED, &[1; 1000]).unwrap(), *b"collected");
            for call in calls {
                assert_eq!(*client.wait(call).unwrap(), *b"collected");
            }
        },
        |server| {
            let mut collected = Vec::new();
            while collected.last().is_none_or(|last: &Incoming<Sim>| last.payload[0] == 0) {
                collected.extend(server.receive(Duration::MAX));
            }
            collected.into_iter().for_each(|call| call.reply(b"collected".to_vec()));
        },
    );
}
