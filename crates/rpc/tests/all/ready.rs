//! Waiting for a connection, in virtual time: `ClientConfig::wait_for_ready`, `wait_ready` and lazy clients.

use super::reconnecting::{ECHO, Executed, FailStep, Failing, MILLISECOND, address, block_on, serve};
use dunlin_fabric::interpose::Interposed;
use dunlin_fabric::{Fabric, Host, Listener, Nanos};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

/// The outage that most tests have.
const OUTAGE: Nanos = 300 * MILLISECOND;

/// Either kind of client behind one interface.
enum Either {
    Synchronous(Box<Client<Failing>>),
    Asynchronous(AsyncClient<Failing>),
}

impl Either {
    fn connect(fabric: &Failing, config: ClientConfig, asynchronous: bool) -> Result<Either, ConnectError> {
        Ok(match asynchronous {
            false => Either::Synchronous(Box::new(Client::connect(fabric, &address(), config)?)),
            true => {
                let hub = AsyncHub::new(fabric).unwrap();
                Either::Asynchronous(AsyncClient::connect(&hub, &address(), config)?)
            }
        })
    }

    fn call(&mut self, fabric: &Sim) -> Result<Vec<u8>, CallError> {
        match self {
            Either::Synchronous(client) => client.call(ECHO, &[7; 8]).map(|answer| answer.to_vec()),
            Either::Asynchronous(client) => {
                block_on(fabric, client.call(ECHO, &[7; 8])).map(|answer| answer.to_vec())
            }
        }
    }

    fn wait_ready(&mut self, fabric: &Sim, at_most: Duration) -> Result<(), CallError> {
        match self {
            Either::Synchronous(client) => client.wait_ready(at_most),
            Either::Asynchronous(client) => block_on(fabric, client.wait_ready(at_most)),
        }
    }

    fn workers(&self) -> usize {
        match self {
            Either::Synchronous(client) => client.workers(),
            Either::Asynchronous(client) => client.workers(),
        }
    }
}

/// The facts of one test run.
struct Scene {
    sim: Sim,
    fabric: Failing,
    hooks: FailStep,
    executed: Executed,
    asynchronous: bool,
}

impl Scene {
    fn now(&self) -> Nanos {
        self.sim.host().now()
    }

    fn sleep(&self, time: Nanos) {
        self.sim.host().sleep(self.now() + time);
    }

    fn connect(&self, config: ClientConfig) -> Result<Either, ConnectError> {
        Either::connect(&self.fabric, config, self.asynchronous)
    }

    /// Returns the number of attempts to connect since the last call of this.
    fn dials(&self) -> usize {
        std::mem::take(&mut self.hooks.0.lock().unwrap().dialled).len()
    }

    /// Starts a server after `OUTAGE`, which runs until the returned closure is called.
    fn returns(&self) -> impl FnOnce() + use<> {
        let (sim, executed) = (self.sim.clone(), Arc::clone(&self.executed));
        let server = Arc::new(Mutex::new(None));
        let made = Arc::clone(&server);
        let at = self.now() + OUTAGE;
        let body = move || {
            sim.host().sleep(at);
            *made.lock().unwrap() = Some(serve(&sim, &executed));
        };
        let task = self.sim.host().spawn("returns", Box::new(body)).unwrap();
        move || {
            task.join();
            drop(server.lock().unwrap().take());
        }
    }
}

/// Runs `test` for each kind of client and each way to wait.
fn each(test: fn(&Scene, ClientConfig)) {
    let protocol = Protocol::by_name("Direct-WriteIMM").unwrap();
    for mode in [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive] {
        for asynchronous in [false, true] {
            let settings = Settings { limit: 100_000 * MILLISECOND, ..Settings::default() };
            let run = Sim::run_with(settings, 1, move |sim| {
                let hooks = FailStep::default();
                let fabric = Interposed::with_hooks(sim.clone(), hooks.clone());
                let scene = Scene { sim, fabric, hooks, executed: Executed::default(), asynchronous };
                let backoff = BackoffConfig {
                    first: Duration::from_nanos(MILLISECOND),
                    longest: Duration::from_nanos(20 * MILLISECOND),
                };
                let plan = protocol.plan(mode);
                test(&scene, ClientConfig { backoff, ..ClientConfig::with_plan(plan) });
            });
            run.unwrap_or_else(|error| panic!("{mode}, asynchronous: {asynchronous}: {error}"));
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_call_waits_for_the_server_to_come_back() {
    each(|scene, config| {
        let server = serve(&scene.sim, &scene.executed);
        let mut client = scene.connect(ClientConfig { wait_for_ready: SECOND, ..config }).unwrap();
        client.call(&scene.sim).unwrap();
        drop(server);
        // The end of the connection is noticed before the next call.
        scene.sleep(MILLISECOND);
        let _ = client.wait_ready(&scene.sim, Duration::from_nanos(1));
        let (began, end) = (scene.now(), scene.returns());
        scene.dials();
        assert_eq!(client.call(&scene.sim).unwrap(), [7; 8]);
        let (took, dials) = (scene.now() - began, scene.dials());
        assert!((OUTAGE..OUTAGE + 25 * MILLISECOND).contains(&took), "{took} ns");
        // Five waits that double, then some of 10 to 20 ms each.
        assert!((15..=40).contains(&dials), "{dials} attempts");
        end();
    });
}

#[test]
fn a_server_that_never_answers_ends_the_wait_and_the_call() {
    each(|scene, config| {
        let wait = Duration::from_millis(500);
        let lazy = ClientConfig { lazy: true, wait_for_ready: wait, ..config };
        let deadline = ClientConfig { timeout: Duration::from_nanos(50 * MILLISECOND), ..lazy.clone() };
        let none = ClientConfig { wait_for_ready: Duration::ZERO, ..lazy.clone() };
        for (config, took, cause) in [
            (none, 0, Cause::Disconnected),
            (lazy, 500 * MILLISECOND, Cause::Disconnected),
            (deadline, 50 * MILLISECOND, Cause::DeadlineExceeded),
        ] {
            let mut client = scene.connect(config).unwrap();
            assert_eq!(client.workers(), 0);
            let began = scene.now();
            assert_eq!(client.call(&scene.sim), Err(CallError::NotExecuted(cause)));
            let over = (scene.now() - began) as i64 - took as i64;
            assert!((0..2 * MILLISECOND as i64).contains(&over), "{over} ns after {took}");
        }
    });
}

/// A listener that accepts connections and never answers costs a call no more than its time.
#[test]
fn a_listener_that_never_answers_ends_the_wait_and_the_call() {
    each(|scene, config| {
        let (sim, accepted) = (scene.sim.clone(), Arc::new(Mutex::new(0)));
        let (listener, count) = (sim.listen(&address()).unwrap(), Arc::clone(&accepted));
        let body = move || {
            let mut links = Vec::new();
            while let Ok(link) = listener.accept(sim.host().now() + 10_000 * MILLISECOND) {
                *count.lock().unwrap() += 1;
                links.push(link);
            }
        };
        let silent = scene.sim.host().spawn("silent", Box::new(body)).unwrap();
        let lazy = ClientConfig { lazy: true, wait_for_ready: 100 * SECOND, ..config };
        for time in [50, 500, 3000] {
            let timeout = Duration::from_millis(time);
            let mut client = scene.connect(ClientConfig { timeout, ..lazy.clone() }).unwrap();
            let began = scene.now();
            assert_eq!(client.call(&scene.sim), Err(CallError::NotExecuted(Cause::DeadlineExceeded)));
            let took = scene.now() - began;
            assert!((time..time + 1000).contains(&(took / MILLISECOND)), "{took} ns with {time} ms");
            let began = scene.now();
            let waited = client.wait_ready(&scene.sim, timeout);
            assert!(matches!(waited, Err(CallError::NotExecuted(_))), "{waited:?}");
            let took = scene.now() - began;
            assert!(took / MILLISECOND < time + 1000, "{took} ns with {time} ms");
        }
        silent.join();
        assert!(*accepted.lock().unwrap() >= 3, "the listener accepts");
    });
}

#[test]
fn a_lazy_client_connects_with_its_first_call() {
    each(|scene, config| {
        let wait = config.clone();
        let eager = scene.connect(wait).err();
        assert!(matches!(eager, Some(ConnectError::Dial(_))), "{eager:?}");
        scene.dials();
        let lazy = ClientConfig { lazy: true, wait_for_ready: SECOND, ..config };
        let mut client = scene.connect(lazy).unwrap();
        assert_eq!((client.workers(), scene.dials()), (0, 0));
        let end = scene.returns();
        assert_eq!(client.call(&scene.sim).unwrap(), [7; 8]);
        assert_eq!(client.workers(), 1);
        end();
    });
}

#[test]
fn a_client_can_be_waited_for() {
    each(|scene, config| {
        let mut client = scene.connect(ClientConfig { lazy: true, ..config }).unwrap();
        let began = scene.now();
        let waited = client.wait_ready(&scene.sim, Duration::from_millis(100));
        assert_eq!(waited, Err(CallError::NotExecuted(Cause::Disconnected)));
        assert!(scene.now() - began < 102 * MILLISECOND, "{}", scene.now() - began);
        let end = scene.returns();
        client.wait_ready(&scene.sim, SECOND).unwrap();
        assert_eq!(client.workers(), 1);
        scene.dials();
        client.wait_ready(&scene.sim, Duration::ZERO).unwrap();
        assert_eq!(client.call(&scene.sim).unwrap(), [7; 8]);
        assert_eq!(scene.dials(), 0, "it was connected");
        end();
    });
}

/// A future that counts the polls of another one.
struct Counted<T>(T, Arc<Mutex<u32>>);

impl<T: Future + Unpin> Future for Counted<T> {
    type Output = T::Output;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T::Output> {
        *self.1.lock().unwrap() += 1;
        pin!(&mut self.0).poll(context)
    }
}

/// Tasks that wait for a connection sleep, also those of a busy plan: they are polled twice for an attempt.
#[test]
fn tasks_that_wait_for_a_connection_sleep() {
    each(|scene, config| {
        if !scene.asynchronous {
            return;
        }
        let config = ClientConfig { lazy: true, wait_for_ready: SECOND, ..config };
        let Either::Asynchronous(client) = scene.connect(config).unwrap() else { return };
        let end = scene.returns();
        let polls = Arc::new(Mutex::new(0));
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let (sim, client, polls) = (scene.sim.clone(), client.clone(), Arc::clone(&polls));
                let body = move || {
                    let answer = block_on(&sim, Counted(client.call(ECHO, &[7; 8]), polls));
                    assert_eq!(*answer.unwrap(), [7; 8]);
                };
                scene.sim.host().spawn(&format!("task-{task}"), Box::new(body)).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(dunlin_fabric::Task::join);
        let (dials, polls) = (scene.dials() as u32, *polls.lock().unwrap());
        assert!(polls <= 4 * (2 * dials + 60), "{polls} polls for {dials} attempts");
        assert!(dials <= 40, "{dials} attempts");
        end();
    });
}

/// A call to a worker that does not exist waits for nothing.
#[test]
fn a_worker_that_does_not_exist_is_refused() {
    each(|scene, config| {
        let server = serve(&scene.sim, &scene.executed);
        let config = ClientConfig { wait_for_ready: SECOND, lazy: true, ..config };
        let none = Err(CallError::NotExecuted(Cause::NoSuchWorker));
        match scene.connect(config).unwrap() {
            Either::Synchronous(mut client) => {
                assert_eq!(client.call_on(3, ECHO, &[]).map(|_| ()), none);
                client.call_on(0, ECHO, &[0; 8]).unwrap();
            }
            Either::Asynchronous(client) => {
                assert_eq!(block_on(&scene.sim, client.call_on(3, ECHO, &[])).map(|_| ()), none);
                block_on(&scene.sim, client.call_on(0, ECHO, &[0; 8])).unwrap();
            }
        }
        server.shutdown(Duration::from_secs(1));
    });
}
