//! Calls of every kind over shared memory, within one process.

use dunlin_fabric::{Address, Scheme};
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

/// The largest function number is 4095. Larger ones are refused by whoever gets them, and never taken for
/// another one.
#[test]
fn function_numbers_over_the_limit_are_refused() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    for (number, id) in [4096, 5000, u16::MAX].into_iter().enumerate() {
        let builder =
            ServerBuilder::new(&fabric).function(1, FunctionMode::Worker).function(id, FunctionMode::Worker);
        let refused = builder.serve(&address(&format!("numbers-{number}")), |_| echo()).unwrap_err();
        let ServeError::Setting { what: "a function's number", value, .. } = &refused else {
            panic!("{refused}")
        };
        assert_eq!(*value, u64::from(id));
        assert!(refused.to_string().contains("below 4096"), "{refused}");
    }
    let builder = ServerBuilder::new(&fabric).function(4095, FunctionMode::Worker);
    let server = builder.serve(&address("numbers"), |_| echo()).unwrap();
    let mut client = Client::connect(&fabric, server.address(), ClientConfig::default()).unwrap();
    assert_eq!(*client.call(4095, b"the last").unwrap(), *b"the last");
    for id in [4094, 4096, 8191, u16::MAX] {
        let error = client.call(id, b"none").unwrap_err();
        assert_eq!(error.certainty(), Certainty::NotExecuted);
        assert!(
            matches!(error, CallError::NotExecuted(Cause::Refused(Status::UnknownFunction))),
            "{id}: {error}"
        );
    }
    let functions = [(4096, Plan::default())].into_iter().collect();
    let config = ClientConfig { functions, ..ClientConfig::default() };
    let refused = Client::connect(&fabric, server.address(), config).unwrap_err();
    assert!(matches!(refused, ConnectError::Setting { value: 4096, .. }), "{refused}");
}
