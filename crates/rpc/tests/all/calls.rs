//! Calls of every kind over shared memory, within one process.

use dunlin_fabric::{Address, Fabric, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::*;

fn echo() -> Box<dyn Service> {
    Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
        reply.write(request.payload)?;
        Ok(())
    })
}

fn address(name: &str) -> Address {
    Address::new(Scheme::Shm, &format!("rpc-test-{name}-{}", std::process::id())).unwrap()
}

fn serve(fabric: &ShmFabric, name: &str) -> Server<ShmFabric> {
    ServerBuilder::new(fabric).function(1, FunctionMode::Worker).serve(&address(name), |_| echo()).unwrap()
}

fn all_plans(fabric: &ShmFabric) -> Vec<Plan> {
    let mut plans = Vec::new();
    for request in RequestHalf::ALL {
        for response in ResponseHalf::ALL {
            for client in [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive] {
                for server in [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive] {
                    let plan = Plan::new(request, response).completion(client, server);
                    if plan.check(fabric.capabilities()).is_ok() {
                        plans.push(plan);
                    }
                }
            }
        }
    }
    plans
}

#[test]
fn every_legal_plan_echoes_every_size() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let server = serve(&fabric, "plans");
    for plan in all_plans(&fabric) {
        println!("{plan:?}");
        let mut client = Client::connect(&fabric, server.address(), ClientConfig::with_plan(plan)).unwrap();
        for size in [0usize, 1, 31, 32, 33, 56, 57, 64, 500, 4000, 4095, 4096, 4097, 65_536, 1 << 20] {
            let payload: Vec<u8> = (0..size).map(|i| (i * 7 + size) as u8).collect();
            let response = client.call(1, &payload).unwrap();
            assert!(*response == *payload, "{size}");
        }
        for i in 0..2000u32 {
            let response = client.call(1, &i.to_le_bytes()).unwrap();
            assert_eq!(*response, i.to_le_bytes());
        }
    }
}
