//! Runs of two or three servers that share a schedule, and of clients that call all of them in each step.

use super::book::{CallLedger, End, answer_to, number_of, request};
use super::client::end_of;
use super::draw::deployed::{DeploymentAct, DrawnDeployment};
use super::draw::{PATIENCE, size};
use super::play::look_for_leaks;
use super::server::ECHO;
use dunlin_fabric::WithSources;
use dunlin_fabric::{Address, Fabric, Host, Nanos, Scheme, Task};
use dunlin_fabric_sim::{Random, Sim};
use dunlin_rpc::{
    CallError, CallId, Cause, Client, Deployment, FunctionMode, Reply, Request, RunningSlice, Server,
    ServerBuilder,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Distance between the call numbers of two clients.
const APART: u64 = 1_000_000;
/// Intervals from the last disturbance until all servers share a schedule: a silent time server is left after 5 to 10 of
/// them, and a cycle begins 8 after its server leads.
const SETTLING: Nanos = 60;
/// Looks at the running slices of all servers.
const LOOKS: u64 = 100;
/// By how much a call may end after its deadline: it may have to connect again.
const LATE: Nanos = 150_000_000;
/// Calls that must succeed at each server once the run is calm.
const LAST_CALLS: u64 = 2;

struct DeployedServer {
    sim: Sim,
    server: Option<Server<Sim>>,
}

struct DeployedClient {
    sim: Sim,
    task: Option<Task>,
    first: u64,
}

fn addresses(servers: usize) -> Option<Vec<Address>> {
    (0..servers).map(|number| Address::new(Scheme::Sim, &format!("swarm-{number}")).ok()).collect()
}

/// Starts the server at this place of the list.
fn start_server(root: &Sim, drawn: &DrawnDeployment, own: usize, book: &CallLedger) -> DeployedServer {
    let sim = root.process_on(own);
    let Some(addresses) = addresses(drawn.servers) else { return DeployedServer { sim, server: None } };
    let address = addresses[own].clone();
    let interval = Duration::from_nanos(drawn.interval);
    let deployment = Deployment { interval, timeout: 4 * interval, ..Deployment::new(addresses, own as u16) };
    let server = ServerBuilder::new(&sim)
        .config(drawn.server.clone())
        .deployment(deployment)
        .function(ECHO, FunctionMode::Worker)
        .serve(&address, |_| {
            let (sim, book) = (sim.clone(), book.clone());
            Box::new(move |request: &Request<'_>, reply: &mut Reply<'_>| {
                match number_of(request.payload) {
                    Ok(number) => {
                        sim.tell(|| format!("call {number} begins at server {own}"));
                        book.executed(number, sim.time());
                    }
                    Err(what) => book.violate(what),
                }
                Ok(reply.write(&answer_to(request.payload))?)
            })
        });
    let server = match server {
        Ok(server) => Some(server),
        Err(error) => {
            book.violate(format!("server {own} does not start: {}", WithSources(&error)));
            None
        }
    };
    DeployedServer { sim, server }
}

impl DeployedServer {
    fn count(&self, book: &CallLedger) {
        if let Some(server) = &self.server {
            book.had_groups(server.group_counters());
        }
    }
}

/// The part of a client.
struct Stepping {
    sim: Sim,
    drawn: DrawnDeployment,
    index: usize,
    next: u64,
    random: Random,
    book: CallLedger,
    over: Arc<AtomicBool>,
}

impl Stepping {
    fn connect(&self, address: &Address) -> Option<Client<Sim>> {
        let host = self.sim.host();
        let until = host.now() + PATIENCE;
        loop {
            match Client::connect(&self.sim, address, self.drawn.client(self.index)) {
                Ok(client) => return Some(client),
                Err(_) if host.now() < until => host.sleep(host.now() + 100_000),
                Err(error) => {
                    self.book.violate(format!("client {}: {}", self.index, WithSources(&error)));
                    return None;
                }
            }
        }
    }

    fn play(mut self) {
        let Some(addresses) = addresses(self.drawn.servers) else { return };
        let clients: Option<Vec<Client<Sim>>> =
            addresses.iter().map(|address| self.connect(address)).collect();
        let Some(mut clients) = clients else { return };
        while !self.over.load(Ordering::Relaxed) {
            self.step(&mut clients);
            let host = self.sim.host();
            host.sleep(host.now() + self.drawn.think);
        }
        for (server, client) in clients.iter_mut().enumerate() {
            (0..LAST_CALLS).for_each(|_| self.must_succeed(server, client));
            if client.in_flight() > 0 {
                self.book.violate(format!("client {}: calls stay in flight at server {server}", self.index));
            }
        }
        clients.into_iter().for_each(Client::close);
    }

    /// Calls all servers at once, and waits for all answers.
    fn step(&mut self, clients: &mut [Client<Sim>]) {
        let mut calls = Vec::with_capacity(clients.len());
        for client in clients.iter_mut() {
            let (number, size) = (self.next, size(&mut self.random));
            self.next += 1;
            let worker = self.random.below(client.workers().max(1) as u64) as usize;
            let bytes = request(number, size);
            let made = self.sim.host().now();
            match client.submit_on(worker, ECHO, &bytes) {
                Ok(id) => {
                    self.book.sent(number);
                    calls.push(Some((number, bytes, made, id)));
                }
                Err(CallError::NotExecuted(_)) => {
                    self.book.not_made(number);
                    calls.push(None);
                    // The next call connects again.
                    let host = self.sim.host();
                    host.sleep(host.now() + 50_000);
                }
                Err(error) => {
                    return self.book.violate(format!("call {number} was not sent, yet {error}"));
                }
            }
        }
        for (client, call) in clients.iter_mut().zip(calls) {
            if let Some(call) = call {
                self.end(client, call);
            }
        }
    }

    fn end(&self, client: &mut Client<Sim>, (number, bytes, made, id): (u64, Vec<u8>, Nanos, CallId)) {
        let ended = client.wait(id).map(|answer| *answer == *answer_to(&bytes));
        let took = self.sim.host().now().saturating_sub(made);
        let end = match &ended {
            Ok(right) => {
                if !right {
                    self.book.violate(format!("call {number} of {} bytes got a wrong answer", bytes.len()));
                }
                End::Answered
            }
            Err(error) => {
                if self.drawn.is_undisturbed() {
                    self.book.violate(format!("call {number} failed, and nothing disturbs it: {error}"));
                }
                end_of(&self.book, number, error)
            }
        };
        self.sim.tell(|| format!("call {number} ends: {end:?}"));
        self.book.ended(number, end);
        let most = self.drawn.client(self.index).timeout.as_nanos() as Nanos + LATE;
        if took > most {
            self.book.violate(format!("call {number} ended {took} ns after it was made"));
        }
    }

    fn must_succeed(&mut self, server: usize, client: &mut Client<Sim>) {
        let host = self.sim.host().clone();
        let until = host.now() + PATIENCE;
        let mut last = None;
        while host.now() < until {
            let (number, bytes) = (self.next, request(self.next, 24));
            self.next += 1;
            match client.call_on(0, ECHO, &bytes).map(|answer| *answer == *answer_to(&bytes)) {
                Ok(right) => {
                    if !right {
                        self.book.violate(format!("call {number} got a wrong answer"));
                    }
                    self.book.sent(number);
                    return self.book.ended(number, End::Answered);
                }
                Err(CallError::NotExecuted(Cause::Disconnected)) => {}
                Err(error) => {
                    self.book.sent(number);
                    self.book.ended(number, end_of(&self.book, number, &error));
                    last = Some(error);
                }
            }
            host.sleep(host.now() + 100_000 + host.random() % 1_000_000);
        }
        let why = last.map_or("there was no connection".to_owned(), |error| error.to_string());
        let index = self.index;
        self.book.violate(format!("client {index}: no call of server {server} succeeds in calm: {why}"));
    }
}

/// Plays a drawn run.
pub(super) fn root(sim: &Sim, drawn: &DrawnDeployment, book: &CallLedger) {
    let registered = sim.registered();
    let over = Arc::new(AtomicBool::new(false));
    let mut servers: Vec<DeployedServer> =
        (0..drawn.servers).map(|own| start_server(sim, drawn, own, book)).collect();
    let mut incarnations = 0;
    let mut start_client = |index: usize| {
        let process = sim.process_on(drawn.clients[index]);
        incarnations += 1;
        let first = incarnations * APART;
        let stepping = Stepping {
            sim: process.clone(),
            drawn: drawn.clone(),
            index,
            next: first,
            random: Random::new(drawn.seed ^ first, 32),
            book: book.clone(),
            over: Arc::clone(&over),
        };
        let name = format!("client-{index}-{incarnations}");
        let task = process.host().spawn(&name, Box::new(move || stepping.play())).ok();
        DeployedClient { sim: process, task, first }
    };
    let mut clients: Vec<DeployedClient> = (0..drawn.clients.len()).map(&mut start_client).collect();
    let start = sim.time();
    let sleep = |until: Nanos| sim.host().sleep(sim.host().now() + until.saturating_sub(sim.time()));
    for (at, act) in &drawn.acts {
        sleep(start + at);
        sim.tell(|| format!("the director: {act:?}"));
        book.killed();
        match *act {
            DeploymentAct::CrashServer { server, back_after } => {
                servers[server].count(book);
                servers[server].sim.kill();
                sleep(sim.time() + back_after);
                servers[server] = start_server(sim, drawn, server, book);
            }
            DeploymentAct::CrashClient(index) => {
                let gone = &mut clients[index];
                gone.sim.kill();
                book.abandon(gone.first, gone.first + APART);
                *gone = start_client(index);
            }
        }
    }
    sleep(drawn.settings.faults.until);
    sim.tell(|| "the director: calm".to_owned());
    sleep(sim.time() + SETTLING * drawn.interval);
    if drawn.must_agree() {
        look_for_agreement(sim, drawn, &servers, book);
    }
    over.store(true, Ordering::Relaxed);
    for client in &mut clients {
        if let Some(task) = client.task.take() {
            task.join();
        }
    }
    for server in servers {
        server.count(book);
        server.server.into_iter().for_each(|server| server.shutdown(Duration::from_secs(1)));
    }
    drop(clients);
    look_for_leaks(sim, registered, book);
}

/// Checks that all servers serve the same group of a common cycle. The time around a switch is exempt.
fn look_for_agreement(sim: &Sim, drawn: &DrawnDeployment, servers: &[DeployedServer], book: &CallLedger) {
    let host = sim.host();
    let (mut same, mut groups, mut last) = (0, Vec::new(), Vec::new());
    for _ in 0..LOOKS {
        host.sleep(host.now() + drawn.slice / 7 * 3);
        let slices: Vec<RunningSlice> =
            servers.iter().filter_map(|one| Some(one.server.as_ref()?.running_slice())).collect();
        let Some(first) = slices.first() else { return };
        same += u64::from(slices.iter().all(|slice| slice.is_common && slice.group == first.group));
        if !groups.contains(&first.group) {
            groups.push(first.group);
        }
        last = slices;
    }
    sim.tell(|| format!("{same} of {LOOKS} looks find one group, of {}", groups.len()));
    if same * 4 < LOOKS * 3 {
        book.violate(format!("the servers serve one group in {same} of {LOOKS} looks: {last:?}"));
    }
    if groups.len() < 2 {
        book.violate(format!("{} clients in groups of {} have no turns", drawn.clients.len(), drawn.group));
    }
}
