//! A client and a worker that alternate on one thread, so that their interaction is deterministic.

use super::*;
use dunlin_fabric::interpose::{Count, CountSnapshot};
use dunlin_fabric_shm::ShmFabric;
use std::time::Instant;

pub type Counted = Count<ShmFabric>;

pub fn echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), dunlin_wire::Status> {
    Ok(reply.write(request.payload)?)
}

pub struct Turns {
    pub client: Client<Counted>,
    pub worker: Worker<Counted>,
    /// The client's fabric and the server's.
    pub fabrics: [Counted; 2],
    /// Serves until it is dropped.
    _server: Server<Counted>,
}

impl Turns {
    /// Creates a pair that calls `before` with each request and then echoes it.
    pub fn new(config: ClientConfig, before: fn(&Request<'_>)) -> Turns {
        Turns::serving(config, [ECHO, ECHO + 1], move |request, reply| {
            before(request);
            echo(request, reply)
        })
    }

    /// Creates a pair whose worker serves these functions by `service`.
    pub fn serving(
        config: ClientConfig,
        functions: [u16; 2],
        service: impl Fn(&Request<'_>, &mut Reply<'_>) -> Result<(), dunlin_wire::Status> + Copy + Send + 'static,
    ) -> Turns {
        let fabrics = [Count::new(fabric()), Count::new(fabric())];
        let builder = ServerBuilder::new(&fabrics[1]);
        let (server, mut workers) = functions
            .into_iter()
            .fold(builder, |builder, function| builder.function(function, FunctionMode::Worker))
            .serve_with(&unique("turns"), move |_| Box::new(service))
            .unwrap();
        let mut worker = workers.pop().unwrap();
        let client = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| Client::connect(&fabrics[0], server.address(), config).unwrap());
            while !connecting.is_finished() {
                worker.progress();
                std::thread::yield_now();
            }
            connecting.join().unwrap()
        });
        Turns { client, worker, fabrics, _server: server }
    }

    /// Makes calls one after the other, each answered before the client polls.
    pub fn calls(&mut self, count: u64) {
        (0..count).for_each(|number| self.call(ECHO, 0, number));
    }

    /// Makes one call, with `looks` polls of the client before the worker runs.
    pub fn call(&mut self, function: u16, looks: u32, number: u64) {
        let payload = pattern(32, number);
        let call = self.client.submit_on(0, function, &payload).unwrap();
        for _ in 0..looks {
            self.client.progress();
        }
        assert_eq!(self.end(call).unwrap(), payload, "call {number}");
    }

    /// Alternates until the call is over.
    pub fn end(&mut self, call: CallId) -> Result<Vec<u8>, CallError> {
        let until = Instant::now() + HANG / 4;
        while !self.client.is_done(call) {
            assert!(Instant::now() < until, "no answer");
            self.worker.progress();
            self.client.progress();
        }
        let outcome = self.client.outcome(call).map(<[u8]>::to_vec);
        self.client.forget(call);
        outcome
    }

    /// Polls both sides often enough that everything pending is processed, including periodic work.
    pub fn settle(&mut self) {
        for _ in 0..256 {
            self.worker.progress();
            self.client.progress();
        }
    }

    pub fn counts(&self) -> [CountSnapshot; 2] {
        [self.fabrics[0].counts(), self.fabrics[1].counts()]
    }
}
