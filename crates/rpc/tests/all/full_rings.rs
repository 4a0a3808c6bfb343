//! Answers that fill the response ring repeatedly while the window is full: a server that waits for room must
//! learn when the client has made some.

use dunlin_fabric::{Address, Fabric, Scheme};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use dunlin_rpc::*;
use std::time::Duration;

const CALLS: usize = 300;

#[test]
fn a_full_window_of_large_answers_never_stands_still() {
    let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
    let address = Address::new(Scheme::Shm, &format!("rpc-test-full-{}", std::process::id())).unwrap();
    let server = ServerBuilder::new(&fabric)
        .function(1, FunctionMode::Worker)
        .serve(&address, |_| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
                let length: usize = request.payload.iter().map(|byte| usize::from(*byte) * 16).sum();
                reply.reserve(length)?.fill(7);
                Ok(())
            })
        })
        .unwrap();
    for protocol in PROTOCOLS {
        for mode in [CompletionMode::Busy, CompletionMode::Adaptive] {
            let plan = protocol.plan(mode);
            if plan.check(fabric.capabilities()).is_err() {
                continue;
            }
            // 16 answers of 1000 bytes exceed a ring of 16 KiB; 4080 bytes is nearly the longest message.
            for (window, answer) in [(16u16, 62u8), (8, 255), (64, 20)] {
                let config = ClientConfig { window, ..ClientConfig::with_plan(plan) };
                let mut client = Client::connect(&fabric, &address, config).unwrap();
                let (mut sent, mut done) = (0, 0);
                while done < CALLS {
                    while sent < CALLS && sent - done < usize::from(window) {
                        match client.push_on(0, 1, &[answer]) {
                            Ok(_) => sent += 1,
                            Err(CallError::NotExecuted(Cause::WindowFull)) => break,
                            Err(error) => panic!("{}: {error}", protocol.name),
                        }
                    }
                    let _ = client.flush();
                    let Some(call) = client.wait_any() else {
                        client.progress();
                        continue;
                    };
                    let outcome = client.outcome(call).map(<[u8]>::len);
                    assert_eq!(outcome, Ok(usize::from(answer) * 16), "{} {mode} {window}", protocol.name);
                    client.forget(call);
                    done += 1;
                }
            }
        }
    }
    server.shutdown(Duration::from_secs(1));
}
