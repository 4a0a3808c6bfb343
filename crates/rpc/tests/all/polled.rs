//! A service of the worker answers calls at once, in later turns, or leaves them to the pool.

use crate::common::*;
use dunlin_fabric::{Address, AnyWaker, Fabric, Host, Nanos, Scheme};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::plan::Protocol;
use dunlin_rpc::*;

const CALL: u16 = 1;
const PLAIN: u16 = 2;
/// The time for which the service keeps calls, in nanoseconds.
const KEPT: Nanos = 50_000;

/// Keeps calls for a time, and sleeps until then or not.
struct Keeping<F: Fabric> {
    host: F::Host,
    kept: Vec<(Nanos, bool, Incoming<F>)>,
    panics: bool,
}

impl<F: Fabric> PolledService<F> for Keeping<F> {
    fn start(&mut self, request: &Request<'_>, reply: &mut Reply<'_>, later: Later<'_, F>) -> Started {
        let until = self.host.now() + KEPT;
        match request.payload {
            b"now" => Started::Answered(reply.write(b"at once").map_err(Status::from)),
            b"long" => {
                Started::Answered(reply.reserve(100_000).map(|place| place.fill(7)).map_err(Status::from))
            }
            b"no" => Started::Answered(Err(Status::Unauthorised)),
            b"busy" | b"sleep" | b"poll panics" => {
                reply.write(b"discarded").unwrap();
                self.kept.push((until, request.payload == b"sleep", later.keep(request)));
                self.panics = request.payload == b"poll panics";
                Started::Kept
            }
            b"dropped" => {
                drop(later.keep(request));
                Started::Kept
            }
            b"kept and panics" => {
                let _kept = later.keep(request);
                panic!("asked for");
            }
            b"panic" => panic!("asked for"),
            b"lost" => Started::Kept,
            _ => Started::Left,
        }
    }

    fn poll(&mut self, _: &AnyWaker) -> PollAgain {
        assert!(!self.panics, "asked for");
        let now = self.host.now();
        let (over, kept) = std::mem::take(&mut self.kept).into_iter().partition(|(until, ..)| *until <= now);
        self.kept = kept;
        let over: Vec<(Nanos, bool, Incoming<F>)> = over;
        for (_, _, call) in over {
            assert!(call.payload.is_empty());
            call.reply(b"later".to_vec());
        }
        let is_busy = self.kept.iter().any(|(_, sleeps, _)| !sleeps);
        match self.kept.iter().map(|(until, ..)| *until).min() {
            None => PollAgain::Never,
            Some(_) if is_busy => PollAgain::Busy,
            Some(until) => PollAgain::Until(until),
        }
    }
}

fn serve<F: Fabric>(fabric: &F, address: &Address) -> Server<F> {
    let host = fabric.host().clone();
    ServerBuilder::new(fabric)
        .function(CALL, FunctionMode::Polled)
        .function(PLAIN, FunctionMode::Worker)
        .polled(move |_| Box::new(Keeping::<F> { host: host.clone(), kept: Vec::new(), panics: false }))
        .pool(|_: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(b"the pool")?))
        .serve(address, |_| Box::new(|_: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(b"plain")?)))
        .unwrap()
}

type Outcome = Result<Vec<u8>, CallError>;

/// Each outcome once; returns the time of a call that the worker keeps while it polls, and while it sleeps.
fn outcomes<F: Fabric>(fabric: &F, address: &Address) -> [Nanos; 2] {
    let server = serve(fabric, address);
    let mut client = Client::connect(fabric, server.address(), ClientConfig::default()).unwrap();
    let mut call = |payload: &[u8]| client.call(CALL, payload).map(|answer| answer.to_vec());
    use CallError::{Executed, MaybeExecuted, NotExecuted};
    let cases: [(&[u8], Outcome); 10] = [
        (b"now", Ok(b"at once".to_vec())),
        (b"other", Ok(b"the pool".to_vec())),
        (b"long", Ok(vec![7; 100_000])),
        (b"no", Err(NotExecuted(Cause::Refused(Status::Unauthorised)))),
        (b"dropped", Err(MaybeExecuted(Cause::Dropped))),
        (b"kept and panics", Err(MaybeExecuted(Cause::Dropped))),
        (b"panic", Err(Executed(Cause::HandlerPanicked))),
        (b"lost", Err(MaybeExecuted(Cause::Dropped))),
        (b"busy", Ok(b"later".to_vec())),
        (b"sleep", Ok(b"later".to_vec())),
    ];
    for (payload, expected) in cases {
        assert_eq!(call(payload), expected, "{payload:?}");
    }
    let host = fabric.host();
    let times = [&b"busy"[..], b"sleep"].map(|payload| {
        let begin = host.now();
        assert_eq!(call(payload), Ok(b"later".to_vec()));
        host.now() - begin
    });
    // Several at a time, in one message and beside plain calls.
    let payloads: [&[u8]; 6] = [b"sleep", b"busy", b"now", b"other", b"busy", b"now"];
    let ids = payloads.map(|payload| client.submit_on(0, CALL, payload).unwrap());
    let plain = client.submit_on(0, PLAIN, b"").unwrap();
    assert_eq!(&client.wait(plain).unwrap()[..], b"plain");
    let expected: [&[u8]; 6] = [b"later", b"later", b"at once", b"the pool", b"later", b"at once"];
    for (id, expected) in ids.into_iter().zip(expected) {
        assert_eq!(&client.wait(id).unwrap()[..], expected);
    }
    times
}

#[test]
fn a_worker_answers_at_once_or_later_or_leaves_a_call_to_the_pool() {
    bounded(|| {
        outcomes(&fabric(), &unique("polled"));
    });
}

/// The service is polled as often as it asks for, although its worker's domain sees nothing.
#[test]
fn the_service_bounds_the_waits_of_its_worker_in_virtual_time() {
    for seed in 0..4 {
        Sim::run_with(Settings::default(), seed, |sim| {
            let times = outcomes(&sim, &Address::new(Scheme::Sim, "polled").unwrap());
            assert!(times.iter().all(|time| (KEPT..KEPT + 20_000).contains(time)), "{times:?}");
        })
        .unwrap();
    }
}

/// The worker that answers a call in a later turn is awake, so no system call wakes it.
#[test]
fn an_answer_in_a_later_turn_wakes_nobody() {
    const SYSTEM_CALL: Nanos = 300_000;
    let mut settings = Settings::default();
    settings.prices.system_call = SYSTEM_CALL;
    Sim::run_with(settings, 7, |sim| {
        let server = serve(&sim, &Address::new(Scheme::Sim, "polled").unwrap());
        let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
        let config = ClientConfig::with_plan(plan);
        let mut client = Client::connect(&sim, server.address(), config).unwrap();
        for _ in 0..3 {
            let begin = sim.host().now();
            assert_eq!(*client.call(CALL, b"busy").unwrap(), *b"later");
            let time = sim.host().now() - begin;
            assert!((KEPT..KEPT + SYSTEM_CALL / 2).contains(&time), "{time} ns");
        }
    })
    .unwrap();
}

/// A service that panics in a poll is gone with its calls; later ones run in the pool, and the worker goes on.
#[test]
fn a_service_that_panics_in_a_poll_is_dropped() {
    bounded(|| {
        let fabric = fabric();
        let server = serve(&fabric, &unique("polled-panic"));
        let mut client = Client::connect(&fabric, server.address(), ClientConfig::default()).unwrap();
        let error = client.call(CALL, b"poll panics").map(drop).unwrap_err();
        assert_eq!(error, CallError::MaybeExecuted(Cause::Dropped));
        // The panic follows in the next turn.
        while &client.call(CALL, b"now").unwrap()[..] != b"the pool" {}
        assert_eq!(&client.call(PLAIN, b"").unwrap()[..], b"plain");
    });
}

/// A server that ends drops the calls that its service keeps.
#[test]
fn calls_that_are_kept_at_the_end_of_the_server_may_have_been_executed() {
    bounded(|| {
        let fabric = fabric();
        let server = serve(&fabric, &unique("polled-end"));
        let mut client = Client::connect(&fabric, server.address(), ClientConfig::default()).unwrap();
        let ids = [0; 20].map(|_| client.submit_on(0, CALL, b"sleep").unwrap());
        drop(server);
        for id in ids {
            if let Err(error) = client.wait(id).map(drop) {
                assert_ne!(error.was_executed(), Some(true), "{error:?}");
            }
        }
    });
}
