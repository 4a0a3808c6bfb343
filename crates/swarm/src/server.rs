//! The server of a swarm: a process that can be killed and restarted.

use super::book::{CallLedger, answer_to, number_of};
use super::draw::{Drawn, SERVER_MACHINE};
use dunlin_fabric::WithSources;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Task};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rpc::{FunctionMode, Reply, Request, Server, ServerBuilder, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs on the worker.
pub(super) const ECHO: u16 = 1;
/// Runs in the pool, slowly.
pub(super) const POOLED: u16 = 2;
/// Is pulled; some calls are refused.
pub(super) const PULLED: u16 = 3;

/// How long a puller keeps a call that it does not answer, in nanoseconds.
const KEPT: Nanos = 400_000_000;

/// A server in a separate process.
pub(super) struct ServerProcess {
    pub(super) sim: Sim,
    server: Option<Arc<Server<Sim>>>,
    pullers: Vec<Task>,
    over: Arc<AtomicBool>,
    book: CallLedger,
}

fn execute(sim: &Sim, book: &CallLedger, payload: &[u8]) -> Vec<u8> {
    match number_of(payload) {
        Ok(number) => {
            sim.tell(|| format!("call {number} begins"));
            book.executed(number, sim.time());
        }
        Err(what) => book.violate(what),
    }
    answer_to(payload)
}

impl ServerProcess {
    /// Starts a server on its machine.
    pub(super) fn start(root: &Sim, address: &Address, drawn: &Drawn, book: &CallLedger) -> ServerProcess {
        let sim = root.process_on(SERVER_MACHINE);
        let host = sim.host().clone();
        let (pool_book, pool_sim) = (book.clone(), sim.clone());
        let (slow_ones, service_sim) = (drawn.slow_ones, sim.clone());
        let server = ServerBuilder::new(&sim)
            .config(drawn.server.clone())
            .function(ECHO, FunctionMode::Worker)
            .function(POOLED, FunctionMode::Pool)
            .function(PULLED, FunctionMode::Pull)
            .pool(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                let answer = execute(&pool_sim, &pool_book, request.payload);
                host.sleep(host.now() + 20_000);
                Ok(reply.write(&answer)?)
            })
            .serve(address, |worker| {
                let (book, sim) = (book.clone(), service_sim.clone());
                Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                    let answer = execute(&sim, &book, request.payload);
                    let number = number_of(request.payload).unwrap_or_default();
                    book.begins_at(number, request.payload.len(), usize::from(worker));
                    sim.tell(|| format!("call {number} begins at worker {worker}"));
                    // Some calls hold up those behind them.
                    if let Some((one_in, takes)) = slow_ones
                        && number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & one_in == 0
                    {
                        sim.host().sleep(sim.host().now() + takes);
                    }
                    Ok(reply.write(&answer)?)
                })
            });
        let over = Arc::new(AtomicBool::new(false));
        let server = match server {
            Ok(server) => Some(Arc::new(server)),
            Err(error) => {
                book.violate(format!("the server does not start: {}", WithSources(&error)));
                None
            }
        };
        let mut process = ServerProcess { sim, server, pullers: Vec::new(), over, book: book.clone() };
        for number in 0..drawn.pullers {
            process.start_puller(number, drawn.seed, book);
        }
        process
    }

    fn start_puller(&mut self, number: u64, seed: u64, book: &CallLedger) {
        let Some(server) = self.server.clone() else { return };
        let (sim, over, book) = (self.sim.clone(), Arc::clone(&self.over), book.clone());
        let host = sim.host().clone();
        let mut random = Random::new(seed, 1000 + number);
        let body = move || {
            // Some calls are kept for longer than their callers wait.
            let mut kept = Vec::new();
            while !over.load(Ordering::Relaxed) {
                kept.retain(|(until, _)| *until > host.now());
                let Some(incoming) = server.receive(Duration::from_micros(200)) else { continue };
                if random.one_in(16) {
                    let answer = execute(&sim, &book, &incoming.payload);
                    kept.push((host.now() + KEPT, incoming));
                    drop(answer);
                    continue;
                }
                if random.one_in(8) {
                    incoming.refuse(Status::Overloaded);
                    continue;
                }
                let answer = execute(&sim, &book, &incoming.payload);
                if random.one_in(2) {
                    host.sleep(host.now() + random.below(30_000));
                }
                // A dropped call is answered too, so its caller is not left waiting.
                if !random.one_in(16) {
                    incoming.reply(answer);
                }
            }
        };
        if let Ok(task) = self.sim.host().spawn(&format!("puller-{number}"), Box::new(body)) {
            self.pullers.push(task);
        }
    }

    /// Shuts the server down within a time.
    pub(super) fn shutdown(mut self, within: Nanos) {
        self.over.store(true, Ordering::Relaxed);
        for puller in self.pullers.drain(..) {
            puller.join();
        }
        if let Some(server) = self.server.take().and_then(Arc::into_inner) {
            self.book.had_groups(server.group_counters());
            server.shutdown(Duration::from_nanos(within));
        }
    }

    /// Kills the process.
    pub(super) fn crash(self) {
        if let Some(server) = &self.server {
            self.book.had_groups(server.group_counters());
        }
        self.sim.kill();
        // The handles of a dead process have no effect.
        drop(self);
    }
}
