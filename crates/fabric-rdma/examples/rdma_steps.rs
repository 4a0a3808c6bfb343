//! Counts the instructions of a call over verbs, on both sides, including the verbs library. Client and
//! worker alternate in ONE thread, with a sleep between two steps in which messages arrive, so that there are
//! no empty polls. Times mean nothing here. For `tests/guest/instructions`, where callgrind counts the
//! instructions of `client_step` and `worker_step`.
//!
//! `rdma_steps CALLS PROTOCOL SIZE IN_FLIGHT [batch]`: `batch` sends each round of calls as one message.

use dunlin_fabric::{Address, Scheme};
use dunlin_fabric_rdma::{RdmaConfig, RdmaFabric};
use dunlin_rpc::{
    CallError, Client, ClientConfig, CompletionMode, FunctionMode, Protocol, Reply, Request, ServerBuilder,
    Worker,
};
use std::error::Error;
use std::time::Duration;

/// Long enough for a message to arrive under emulation.
const ARRIVAL: Duration = Duration::from_millis(3);

struct Both {
    client: Client<RdmaFabric>,
    worker: Worker<RdmaFabric>,
    payload: Vec<u8>,
}

impl Both {
    /// Sends a round of calls.
    fn submit(&mut self, count: u32, batch: bool) -> Result<(), CallError> {
        for _ in 0..count {
            if batch {
                self.client.push_on(0, 1, &self.payload)?;
            } else {
                self.client.submit_on(0, 1, &self.payload)?;
            }
        }
        if batch { self.client.flush() } else { Ok(()) }
    }

    /// Runs one step of the client: sends calls, or processes arrivals. Returns the number of calls that have
    /// ended.
    #[inline(never)]
    fn client_step(&mut self, send: Option<(u32, bool)>) -> Result<u32, CallError> {
        if let Some((count, batch)) = send {
            self.submit(count, batch)?;
            return Ok(0);
        }
        let length = self.payload.len();
        let ended = self.client.collect(|_, outcome| assert_eq!(outcome.map(<[u8]>::len), Ok(length)));
        Ok(ended as u32)
    }

    #[inline(never)]
    fn worker_step(&mut self) {
        self.worker.progress();
    }

    /// Makes calls, `in_flight` at a time; returns the number of steps that the client took.
    fn run(&mut self, calls: u32, in_flight: u32, batch: bool) -> Result<u32, CallError> {
        let mut steps = 0;
        for _ in 0..calls.div_ceil(in_flight) {
            self.client_step(Some((in_flight, batch)))?;
            std::thread::sleep(ARRIVAL);
            self.worker_step();
            let mut ended = 0;
            while ended < in_flight {
                std::thread::sleep(ARRIVAL);
                ended += self.client_step(None)?;
                steps += 1;
                assert!(steps < 100 * calls, "no answers");
                if ended < in_flight {
                    std::thread::sleep(ARRIVAL);
                    self.worker_step();
                }
            }
        }
        Ok(steps)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (calls, name, size, in_flight, batch) = match arguments.as_slice() {
        [calls, name, size, in_flight] => (calls, name, size, in_flight, false),
        [calls, name, size, in_flight, word] if word == "batch" => (calls, name, size, in_flight, true),
        _ => return Err("rdma_steps CALLS PROTOCOL SIZE IN_FLIGHT [batch]".into()),
    };
    let (calls, size, in_flight) = (calls.parse()?, size.parse()?, in_flight.parse::<u32>()?.max(1));
    let plan = Protocol::by_name(name).ok_or("no such protocol")?.plan(CompletionMode::Busy);

    let fabric = RdmaFabric::new(RdmaConfig::default())?;
    let address = Address::new(Scheme::Rdma, "127.0.0.1:0")?;
    let described = ServerBuilder::new(&fabric).function(1, FunctionMode::Worker);
    let (server, mut workers) = described.serve_with(&address, |_| {
        Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| Ok(reply.write(request.payload)?))
    })?;
    let mut worker = workers.pop().ok_or("no worker")?;
    let connecting = {
        let (fabric, address) = (fabric.clone(), server.address().clone());
        let config = ClientConfig {
            window: 256,
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(60),
            ..ClientConfig::with_plan(plan)
        };
        std::thread::spawn(move || Client::connect(&fabric, &address, config))
    };
    while !connecting.is_finished() {
        worker.progress();
        std::thread::sleep(ARRIVAL);
    }
    let client = connecting.join().map_err(|_| "the connecting thread panicked")??;
    let mut both = Both { client, worker, payload: vec![7; size] };
    let steps = both.run(calls, in_flight, batch)?;
    println!("{calls} calls, {steps} looks of the client");
    drop(both);
    drop(server);
    Ok(())
}
