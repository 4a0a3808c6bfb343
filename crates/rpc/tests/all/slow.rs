//! Slow handlers are reported once for each function, in virtual time.

use super::reconnecting::{MILLISECOND, address};
use dunlin_fabric::{Fabric, Host};
use dunlin_fabric_sim::{Settings, Sim, SimHost};
use dunlin_rpc::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const QUICK: u16 = 1;
const SLOW: u16 = 2;
const SLOWER: u16 = 3;

type Reports = Arc<Mutex<Vec<(u16, Duration)>>>;

/// Takes no time, 2 ms or 5 ms, and keeps the reports.
struct Watched(SimHost, Reports);

impl Service for Watched {
    fn call(&mut self, request: &Request<'_>, _: &mut Reply<'_>) -> Result<(), Status> {
        let time = [0, 0, 2, 5][usize::from(request.function)] * MILLISECOND;
        self.0.sleep(self.0.now() + time);
        Ok(())
    }

    fn on_slow(&mut self, function: u16, took: Duration) {
        self.1.lock().unwrap().push((function, took));
        panic!("a worker survives this");
    }
}

/// Runs `calls` with two clients of a server with two workers. Returns the reports.
fn reports(mode: CompletionMode, calls: fn(&mut Client<Sim>, u32)) -> Vec<(u16, Duration)> {
    let reports = Reports::default();
    let kept = Arc::clone(&reports);
    let settings = Settings { limit: 1_000_000 * MILLISECOND, ..Settings::default() };
    let run = Sim::run_with(settings, 1, move |fabric| {
        let builder = ServerBuilder::new(&fabric)
            .config(ServerConfig { workers: 2, ..ServerConfig::default() })
            .function(QUICK, FunctionMode::Worker)
            .function(SLOW, FunctionMode::Worker)
            .function(SLOWER, FunctionMode::Worker);
        let host = fabric.host().clone();
        let service = |_| Box::new(Watched(host.clone(), Arc::clone(&kept))) as Box<dyn Service>;
        let server = builder.serve(&address(), service).unwrap();
        let plan = Protocol::by_name("Direct-WriteIMM").unwrap().plan(mode);
        let clients: Vec<_> = (0..2)
            .map(|number| {
                let fabric = fabric.clone();
                let body = move || {
                    let config = ClientConfig { timeout: Duration::MAX, ..ClientConfig::with_plan(plan) };
                    calls(&mut Client::connect(&fabric, &address(), config).unwrap(), number);
                };
                host.spawn(&format!("client-{number}"), Box::new(body)).unwrap()
            })
            .collect();
        clients.into_iter().for_each(dunlin_fabric::Task::join);
        server.shutdown(Duration::from_secs(1));
    });
    run.unwrap_or_else(|error| panic!("{mode}: {error}"));
    let mut reports = std::mem::take(&mut *reports.lock().unwrap());
    reports.sort();
    reports
}

const MODES: [CompletionMode; 3] = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];

#[test]
fn slow_handlers_are_reported_once_for_each_function() {
    for mode in MODES {
        let reports = reports(mode, |client, _| {
            for number in 0..600 {
                let function = [QUICK, SLOW, SLOWER][number % 3];
                client.call(function, &[]).unwrap();
            }
        });
        let [(SLOW, slow), (SLOWER, slower)] = reports[..] else { panic!("{mode}: {reports:?}") };
        let about = |took: Duration, millis: u64| took.as_micros() as u64 / 100 == millis * 10;
        assert!(about(slow, 2) && about(slower, 5), "{mode}: {reports:?}");
    }
}

/// The only call of an idle worker is timed.
#[test]
fn one_slow_call_is_found_if_its_worker_was_idle() {
    for mode in MODES {
        let reports = reports(mode, |client, number| {
            for _ in 0..200 {
                client.call_on(0, QUICK, &[]).unwrap();
            }
            if number == 1 {
                client.call_on(1, SLOW, &[]).unwrap();
            }
        });
        assert!(matches!(reports[..], [(SLOW, _)]), "{mode}: {reports:?}");
    }
}

/// One slow call in a hundred hides for some hundred of them at most.
#[test]
fn rare_slow_calls_are_found_under_load() {
    let reports = reports(CompletionMode::Busy, |client, number| {
        for call in 0..20_000 {
            let function = if number == 1 && call % 100 == 7 { SLOWER } else { QUICK };
            client.call_on(0, function, &[]).unwrap();
        }
    });
    assert!(matches!(reports[..], [(SLOWER, _)]), "{reports:?}");
}

#[test]
fn quick_handlers_are_not_reported() {
    for mode in MODES {
        let calls =
            |client: &mut Client<Sim>, _| (0..5_000).for_each(|_| drop(client.call(QUICK, &[]).unwrap()));
        assert_eq!(reports(mode, calls), []);
    }
}
