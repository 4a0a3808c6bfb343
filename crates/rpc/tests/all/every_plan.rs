//! The suite of plans: every legal combination of halves, ways of large payloads and completion modes keeps the same
//! promises, on shared memory and in the simulator. A half that is added is run by it.

use crate::common::{MODES, pattern, unique, with_plan};
use dunlin_fabric::{Address, Fabric, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_fabric_sim::{Settings, Sim};
use dunlin_rpc::*;
use std::collections::VecDeque;
use std::time::Duration;

const ECHO: u16 = 1;
const FAILS: u16 = 2;
const MISSING: u16 = 3;

/// Around a line, a datagram, a slot of 4 KiB and a fragment.
const SIZES: [usize; 15] = [0, 1, 31, 32, 33, 56, 57, 64, 500, 3999, 4008, 4009, 4096, 4097, 65_536];

fn serve<F: Fabric>(fabric: &F, address: &Address) -> Server<F> {
    let builder = ServerBuilder::new(fabric).function(ECHO, FunctionMode::Worker);
    let service = |_| -> Box<dyn Service> {
        Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
            reply.write(request.payload)?;
            match request.function {
                ECHO => Ok(()),
                _ => Err(Status::Application(ApplicationCode::new(7).unwrap())),
            }
        })
    };
    builder.function(FAILS, FunctionMode::Worker).serve(address, service).unwrap()
}

/// A promise that calls keep under every plan.
type Promise<F> = fn(&F, &Address, &mut Client<F>);

/// Each size comes back, one call at a time.
fn every_size_comes_back<F: Fabric>(_: &F, _: &Address, client: &mut Client<F>) {
    for size in SIZES {
        let payload = pattern(size, size as u64);
        assert!(*client.call(ECHO, &payload).unwrap() == *payload, "{size}");
    }
}

/// Calls in flight go around rings of the least size, and each gets its own result.
fn calls_in_flight_get_their_own_results<F: Fabric>(_: &F, _: &Address, client: &mut Client<F>) {
    let mut sent = VecDeque::<(CallId, Vec<u8>)>::new();
    for number in 0..300_u64 {
        let payload = pattern(if number % 50 == 49 { 5000 } else { number as usize % 100 }, number);
        let id = loop {
            match client.submit_on(0, ECHO, &payload) {
                Ok(id) => break id,
                Err(CallError::NotExecuted(Cause::WindowFull)) => {
                    let (id, expected) = sent.pop_front().expect("a call in flight");
                    assert!(*client.wait(id).unwrap() == *expected);
                }
                Err(error) => panic!("{error}"),
            }
        };
        sent.push_back((id, payload));
    }
    for (id, expected) in sent {
        assert!(*client.wait(id).unwrap() == *expected);
    }
}

/// A handler's failure and a function that nobody serves are typed, and say whether the call was executed.
fn failures_are_typed<F: Fabric>(_: &F, _: &Address, client: &mut Client<F>) {
    let failed = client.call(FAILS, b"why").unwrap_err();
    assert_eq!(failed.certainty(), Certainty::Executed, "{failed}");
    let refused = client.call(MISSING, b"").unwrap_err();
    assert!(matches!(refused, CallError::NotExecuted(Cause::Refused(Status::UnknownFunction))), "{refused}");
    assert_eq!(*client.call(ECHO, b"goes on").unwrap(), *b"goes on");
}

/// A client that ends with calls in flight harms no other one.
fn a_client_that_ends_in_a_call_harms_nobody<F: Fabric>(
    fabric: &F,
    address: &Address,
    client: &mut Client<F>,
) {
    let mut other = Client::connect(fabric, address, client.config().clone()).unwrap();
    for size in [10, 10, 5000] {
        other.submit_on(0, ECHO, &pattern(size, 3)).unwrap();
    }
    drop(other);
    assert_eq!(*client.call(ECHO, b"goes on").unwrap(), *b"goes on");
}

/// The promises by name.
fn promises<F: Fabric>() -> [(&'static str, Promise<F>); 4] {
    [
        ("every_size_comes_back", every_size_comes_back),
        ("calls_in_flight_get_their_own_results", calls_in_flight_get_their_own_results),
        ("failures_are_typed", failures_are_typed),
        ("a_client_that_ends_in_a_call_harms_nobody", a_client_that_ends_in_a_call_harms_nobody),
    ]
}

/// Returns every plan that a fabric can run. Payloads are large from the default border on, and all of them are.
fn plans(fabric: &impl Fabric) -> Vec<Plan> {
    let halves = RequestHalf::ALL.into_iter().flat_map(|r| ResponseHalf::ALL.map(|answers| (r, answers)));
    let modes = MODES.into_iter().flat_map(|client| MODES.map(|server| (client, server)));
    let mut plans = Vec::new();
    for ((request, response), (client, server)) in halves.flat_map(|h| modes.clone().map(move |m| (h, m))) {
        let plan = Plan::new(request, response).completion(client, server);
        for large in LargePayload::ALL {
            let borders =
                if client == server { [plan.rendezvous_above, 0] } else { [plan.rendezvous_above; 2] };
            for above in &borders[..1 + usize::from(client == server)] {
                let plan = plan.large(large, *above);
                let leases = Lease::ALL.map(|lease| plan.shared(plan.sharing, lease));
                plans.extend(leases.into_iter().filter(|plan| plan.check(fabric.capabilities()).is_ok()));
            }
        }
    }
    plans
}

/// Runs all promises under a plan.
fn keeps_all<F: Fabric>(fabric: &F, address: &Address, plan: Plan) {
    let config = ClientConfig { ring_bytes: 16 * 1024, ..with_plan(plan) };
    let mut client = Client::connect(fabric, address, config).unwrap();
    for (name, keeps) in promises() {
        println!("{name}: {plan:?}");
        keeps(fabric, address, &mut client);
    }
}

#[test]
fn on_shared_memory_every_legal_plan_keeps_all_promises() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let server = serve(&fabric, &unique("every-plan"));
    let plans = plans(&fabric);
    assert!(plans.len() > 1000, "{}", plans.len());
    for plan in plans {
        keeps_all(&fabric, server.address(), plan);
    }
}

/// Each run has its share of the plans, one after the other at one server, so that a failure names a short run.
#[test]
fn in_the_simulator_every_legal_plan_keeps_all_promises() {
    const RUNS: usize = 16;
    for first in 0..RUNS {
        let run = Sim::run_with(Settings::default(), first as u64, move |fabric| {
            let address = Address::new(Scheme::Sim, "every-plan").unwrap();
            let server = serve(&fabric, &address);
            let plans = plans(&fabric);
            assert!(plans.len() > 1000, "{}", plans.len());
            for plan in plans.into_iter().skip(first).step_by(RUNS) {
                keeps_all(&fabric, &address, plan);
            }
            server.shutdown(Duration::from_secs(5));
        });
        run.unwrap();
    }
}
