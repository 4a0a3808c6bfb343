//! The director: starts server and clients, disturbs them by plan, and checks for leftovers.

use super::book::CallLedger;
use super::client::{self, Part};
use super::draw::{Act, Drawn};
use super::server::ServerProcess;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Task};
use dunlin_fabric_sim::Sim;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Distance between the call numbers of two clients.
const APART: u64 = 1_000_000;
/// Longest time of an orderly server shutdown.
const GENTLY: Nanos = 1_000_000_000;

struct ClientProcess {
    sim: Sim,
    task: Option<Task>,
    first: u64,
}

/// The phase of the run, as all clients see it.
#[derive(Clone, Default)]
pub(super) struct FaultSchedule {
    calm: Arc<AtomicBool>,
}

impl FaultSchedule {
    /// Returns whether the faults have stopped and the server stays up.
    pub(super) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }
}

/// Plays a drawn run.
pub(super) fn root(sim: &Sim, drawn: &Drawn, book: &CallLedger) {
    let registered = sim.registered();
    let Ok(address) = Address::new(Scheme::Sim, "swarm") else {
        return book.violate("the address is none".to_owned());
    };
    let weather = FaultSchedule::default();
    book.may_be_late_by(drawn.begins_late_by());
    let mut server = Some(ServerProcess::start(sim, &address, drawn, book));
    let mut incarnations = 0;
    let mut start_client = |index: usize| {
        let client = &drawn.clients[index];
        let process = sim.process_on(client.machine);
        incarnations += 1;
        let first = incarnations * APART;
        if let Some(most) = drawn.keeps_order(client) {
            book.has_order(first, first + APART, most);
        }
        let part = Part {
            sim: process.clone(),
            address: address.clone(),
            drawn: client.clone(),
            server_window: drawn.server.window,
            lateness: drawn.lateness(client),
            patience: drawn.patience(client),
            undisturbed: drawn.is_undisturbed(client),
            turn: drawn.turn(client),
            seed: drawn.seed ^ first,
            first,
            book: book.clone(),
            weather: weather.clone(),
            pulls: drawn.pullers > 0,
        };
        let name = format!("client-{index}-{incarnations}");
        let task = process.host().spawn(&name, Box::new(move || client::play(part))).ok();
        ClientProcess { sim: process, task, first }
    };
    let mut clients: Vec<ClientProcess> = (0..drawn.clients.len()).map(&mut start_client).collect();
    let start = sim.time();
    let sleep = |until: Nanos| sim.host().sleep(sim.host().now() + until.saturating_sub(sim.time()));
    let mut slow_until = start;
    for (at, act) in &drawn.acts {
        sleep(start + at);
        sim.tell(|| format!("the director: {act:?}"));
        match act {
            Act::CrashServer { back_after } => {
                if let Some(server) = server.take() {
                    server.crash();
                }
                book.killed();
                sleep(sim.time() + back_after);
                server = Some(ServerProcess::start(sim, &address, drawn, book));
            }
            Act::Shutdown { within } => {
                if let Some(server) = server.take() {
                    server.shutdown(*within);
                }
                server = Some(ServerProcess::start(sim, &address, drawn, book));
            }
            Act::CrashClient(index) => {
                let gone = &mut clients[*index];
                gone.sim.kill();
                book.killed();
                book.abandon(gone.first, gone.first + APART);
                *gone = start_client(*index);
            }
            Act::Slow { machine, thousandths, lasts } => {
                sim.set_slowness(*machine, *thousandths);
                slow_until = slow_until.max(sim.time() + lasts);
            }
        }
    }
    sleep(slow_until.max(drawn.settings.faults.until));
    for machine in 0..drawn.settings.machines.len() {
        sim.set_slowness(machine, 1000);
    }
    weather.calm.store(true, Ordering::Relaxed);
    sim.tell(|| "the director: calm".to_owned());
    for client in &mut clients {
        if let Some(task) = client.task.take() {
            task.join();
        }
    }
    if let Some(server) = server {
        server.shutdown(GENTLY);
    }
    drop(clients);
    look_for_leaks(sim, registered, book);
}

/// Checks that all resources are released once everything has ended.
pub(super) fn look_for_leaks(sim: &Sim, registered: u64, book: &CallLedger) {
    // Killed tasks still need time to end.
    sim.host().sleep(sim.host().now() + 1_000_000);
    let tasks = sim.live_tasks();
    if tasks != 1 {
        book.violate(format!("{} tasks are left over", tasks - 1));
    }
    let pairs = sim.queue_pairs();
    if pairs != 0 {
        book.violate(format!("{pairs} queue pairs are left over"));
    }
    let left = sim.registered() - registered;
    if left != 0 {
        book.violate(format!("{left} pieces of registered memory are left over"));
    }
}
