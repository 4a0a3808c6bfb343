//! Servers that share one schedule (ScaleRPC section 4.2). In virtual time each has a machine of its own, whose clock is a
//! second apart from the others and drifts by up to 200 millionths; on shared memory all have one clock.

use crate::common::{bounded, fabric, unique, until};
use dunlin_fabric::{Address, Fabric, Host, Scheme, Task};
use dunlin_fabric_sim::{MachineSettings, Settings, Sim};
use dunlin_rpc::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ECHO: u16 = 1;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
const SERVERS: usize = 3;
const SLICE: u64 = 100_000;
/// The time between two steps of a client.
const THINK: u64 = 50_000;
/// By server: how far its clock is ahead, and its drift in millionths.
const CLOCKS: [(u64, u64); SERVERS] = [(0, 200), (SECOND, 0), (2 * SECOND, 200)];
/// The machine of all clients.
const CLIENTS: usize = SERVERS;

fn settings() -> Settings {
    let mut machines = vec![MachineSettings::default(); SERVERS + 1];
    for (machine, (offset, drift)) in machines.iter_mut().zip(CLOCKS) {
        (machine.clock_offset, machine.clock_drift) = (offset, drift);
    }
    Settings { machines, limit: 1_000 * SECOND, preemption: 0, spurious: 0, ..Settings::default() }
}

fn addresses() -> Vec<Address> {
    (0..SERVERS).map(|number| Address::new(Scheme::Sim, &format!("server-{number}")).unwrap()).collect()
}

/// Returns the true time at which the clock of a server shows `own`, to a microsecond or so.
fn true_time(server: usize, own: u64) -> u64 {
    let (offset, drift) = CLOCKS[server];
    let shown = own - offset;
    shown - (u128::from(shown) * u128::from(drift) / u128::from(1_000_000 + drift)) as u64
}

struct OfServer {
    sim: Sim,
    server: Option<Server<Sim>>,
}

fn echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    Ok(reply.write(request.payload)?)
}

/// Starts the server at this place, on its machine.
fn start(root: &Sim, own: usize) -> OfServer {
    let sim = root.process_on(own);
    let config = ServerConfig {
        group_size: Some(1),
        group_slice: Some(Duration::from_nanos(SLICE)),
        group_priorities: false,
        ..ServerConfig::default()
    };
    let deployment = Deployment { secret: b"deployed".to_vec(), ..Deployment::new(addresses(), own as u16) };
    let server = ServerBuilder::new(&sim)
        .deployment(deployment)
        .config(config)
        .function(ECHO, FunctionMode::Worker)
        .serve(&addresses()[own], |_| Box::new(echo))
        .unwrap();
    OfServer { sim, server: Some(server) }
}

fn config(identity: u64) -> ClientConfig {
    let plan = Protocol::by_name("Server-reply").unwrap().plan(CompletionMode::Busy);
    let plan = plan.shared(Sharing::Dedicated, Lease::Slice);
    ClientConfig { identity: Some(identity), ..ClientConfig::with_plan(plan) }
}

/// Clients that call all servers in each step, until they are told to stop.
struct Stepping {
    over: Arc<AtomicBool>,
    steps: Arc<AtomicU64>,
    tasks: Vec<Task>,
}

impl Stepping {
    fn start(root: &Sim, clients: u64, servers: &[usize]) -> Stepping {
        let sim = root.process_on(CLIENTS);
        let (over, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..clients).map(|number| {
            let (sim, servers) = (sim.clone(), servers.to_vec());
            let (over, steps) = (Arc::clone(&over), Arc::clone(&steps));
            let (host, spawning) = (sim.host().clone(), sim.host().clone());
            let body = move || {
                let connect = |server: &usize| {
                    Client::connect(&sim, &addresses()[*server], config(1_000 + number)).unwrap()
                };
                let mut clients: Vec<Client<Sim>> = servers.iter().map(connect).collect();
                while !over.load(SeqCst) {
                    let payload = number.to_le_bytes();
                    let submit = |client: &mut Client<Sim>| client.submit_on(0, ECHO, &payload).unwrap();
                    let calls: Vec<_> = clients.iter_mut().map(submit).collect();
                    for (client, call) in clients.iter_mut().zip(calls) {
                        assert_eq!(*client.wait(call).unwrap(), payload);
                    }
                    steps.fetch_add(1, SeqCst);
                    host.sleep(host.now() + THINK);
                }
            };
            spawning.spawn(&format!("client-{number}"), Box::new(body)).unwrap()
        });
        Stepping { tasks: tasks.collect(), over, steps }
    }

    fn end(self) -> u64 {
        self.over.store(true, SeqCst);
        self.tasks.into_iter().for_each(Task::join);
        self.steps.load(SeqCst)
    }
}

/// Looks at the running slices of servers for some slices. Returns how often all served the same group of a common
/// cycle, and how often not.
fn agreement(root: &Sim, servers: &[&OfServer], looks: u64) -> (u64, u64) {
    let host = root.host();
    let (mut same, mut other) = (0, 0);
    for _ in 0..looks {
        host.sleep(host.now() + SLICE / 7);
        let slices: Vec<RunningSlice> =
            servers.iter().map(|one| one.server.as_ref().unwrap().running_slice()).collect();
        match slices.iter().all(|slice| slice.is_common && slice.group == slices[0].group) {
            true => same += 1,
            false => other += 1,
        }
    }
    (same, other)
}

fn sleep(root: &Sim, time: u64) {
    root.host().sleep(root.host().now() + time);
}

fn shutdown(servers: Vec<OfServer>) {
    for OfServer { server, .. } in servers {
        server.into_iter().for_each(|server| server.shutdown(Duration::from_secs(1)));
    }
}

/// All servers serve the same group at the same time, and begin their slices together.
#[test]
fn servers_switch_together() {
    Sim::run_with(settings(), 1, |root| {
        let servers: Vec<OfServer> = (0..SERVERS).map(|own| start(&root, own)).collect();
        sleep(&root, 2 * SECOND);
        let clients = Stepping::start(&root, 4, &[0, 1, 2]);
        // The next cycles have groups of the clients.
        sleep(&root, SECOND);
        let (same, other) = agreement(&root, &servers.iter().collect::<Vec<_>>(), 200);
        assert!(other * 10 < same, "{same} to {other}");
        let mut worst = 0;
        for _ in 0..100 {
            sleep(&root, SLICE);
            let slices: Vec<RunningSlice> =
                servers.iter().map(|one| one.server.as_ref().unwrap().running_slice()).collect();
            if slices.iter().all(|slice| slice.group == slices[0].group) {
                let began: Vec<u64> =
                    (0..).zip(&slices).map(|(at, slice)| true_time(at, slice.began)).collect();
                worst = worst.max(began.iter().max().unwrap() - began.iter().min().unwrap());
            }
        }
        assert!(worst < SLICE / 5, "{worst} ns apart");
        assert!(clients.end() > 100);
        shutdown(servers);
    })
    .unwrap();
}

/// The time server's process dies while clients of the others make calls. The others go on together; the server that is
/// started again joins them.
#[test]
fn the_schedule_outlives_the_time_server() {
    Sim::run_with(settings(), 2, |root| {
        let mut servers: Vec<OfServer> = (0..SERVERS).map(|own| start(&root, own)).collect();
        sleep(&root, 2 * SECOND);
        let clients = Stepping::start(&root, 4, &[1, 2]);
        sleep(&root, SECOND);
        let dead = servers.remove(0);
        dead.sim.kill();
        drop(dead);
        let (same, other) = agreement(&root, &servers.iter().collect::<Vec<_>>(), 2_000);
        assert!(other * 10 < same, "nobody has noticed yet: {same} to {other}");
        sleep(&root, 3 * SECOND);
        let (same, other) = agreement(&root, &servers.iter().collect::<Vec<_>>(), 200);
        assert!(other * 10 < same, "another one leads: {same} to {other}");
        assert!(clients.end() > 1_000);
        servers.insert(0, start(&root, 0));
        sleep(&root, 2 * SECOND);
        // A server without clients has no slices.
        let clients = Stepping::start(&root, 4, &[0, 1, 2]);
        sleep(&root, SECOND);
        let (same, other) = agreement(&root, &servers.iter().collect::<Vec<_>>(), 200);
        assert!(other * 10 < same, "it follows the others: {same} to {other}");
        assert!(clients.end() > 100);
        shutdown(servers);
    })
    .unwrap();
}

/// A time server whose stamps jump by a century, and whose cycles are garbage, disturbs nobody for long.
#[test]
fn a_time_server_that_forges_stamps_is_left() {
    Sim::run_with(settings(), 3, |root| {
        let (asked, put) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(0u64)));
        let (count, jumps) = (Arc::clone(&asked), Arc::clone(&put));
        let liar = ServerBuilder::new(&root.process_on(0))
            .function(4095, FunctionMode::Worker)
            .serve(&addresses()[0], move |_| {
                let (count, jumps) = (Arc::clone(&count), Arc::clone(&jumps));
                Box::new(move |_: &Request<'_>, reply: &mut Reply<'_>| -> Result<(), Status> {
                    count.fetch_add(1, SeqCst);
                    let mut jump = jumps.lock().unwrap();
                    *jump = jump.wrapping_add(3_155_760_000_000_000_000);
                    // The claim of the first server to lead in each term that it hears of.
                    reply.write(&[1])?;
                    reply.write(&1u32.to_le_bytes())?;
                    reply.write(&0u16.to_le_bytes())?;
                    reply.write(&jump.to_le_bytes())?;
                    reply.write(&jump.to_le_bytes())?;
                    reply.write(&0u64.to_le_bytes())?;
                    Ok(())
                })
            })
            .unwrap();
        let servers: Vec<OfServer> = (1..SERVERS).map(|own| start(&root, own)).collect();
        sleep(&root, 5 * SECOND);
        let clients = Stepping::start(&root, 4, &[1, 2]);
        sleep(&root, SECOND);
        let (same, other) = agreement(&root, &servers.iter().collect::<Vec<_>>(), 200);
        assert!(other * 10 < same, "{same} to {other}");
        assert!(clients.end() > 100 && asked.load(SeqCst) > 4);
        shutdown(servers);
        liar.shutdown(Duration::from_secs(1));
    })
    .unwrap();
}

/// A client without the secret learns nothing and changes nothing.
#[test]
fn questions_without_the_secret_are_refused() {
    Sim::run_with(settings(), 4, |root| {
        let server = start(&root, 0);
        let sim = root.process_on(CLIENTS);
        let mut client = Client::connect(&sim, &addresses()[0], ClientConfig::default()).unwrap();
        let refused = |question: &[u8], client: &mut Client<Sim>| match client.call(4095, question) {
            Err(CallError::NotExecuted(Cause::Refused(Status::Malformed))) => true,
            other => panic!("{other:?}"),
        };
        // Version, secret, cycle, counts.
        let mut question = vec![1, 8];
        question.extend_from_slice(b"deployee");
        question.extend_from_slice(&[0; 12]);
        assert!(refused(&question, &mut client));
        assert!(refused(b"", &mut client) && refused(&[0xff; 600], &mut client));
        question[2..10].copy_from_slice(b"deployed");
        assert!(client.call(4095, &question).is_ok());
        drop(client);
        shutdown(vec![server]);
    })
    .unwrap();
}

/// On shared memory and by real clocks: servers agree, clients of all of them are served, and the servers end.
#[test]
fn servers_of_one_host_agree() {
    bounded(|| {
        let addresses: Vec<Address> = (0..SERVERS).map(|_| unique("deployed")).collect();
        let start = |own: usize| {
            let deployment = Deployment {
                interval: Duration::from_millis(5),
                ..Deployment::new(addresses.clone(), own as u16)
            };
            let config = ServerConfig {
                group_size: Some(1),
                group_slice: Some(Duration::from_millis(1)),
                spin: Duration::from_micros(1),
                ..ServerConfig::default()
            };
            ServerBuilder::new(&fabric())
                .config(config)
                .deployment(deployment)
                .function(ECHO, FunctionMode::Worker)
                .serve(&addresses[own], |_| Box::new(echo))
                .unwrap()
        };
        let servers: Vec<Server<_>> = (0..SERVERS).map(start).collect();
        until("the servers share a cycle", || servers.iter().all(|server| server.running_slice().is_common));
        let plan = Plan::new(RequestHalf::Write, ResponseHalf::Write);
        let plan = plan.completion(CompletionMode::Adaptive, CompletionMode::Adaptive);
        let plan = plan.shared(Sharing::Dedicated, Lease::Slice);
        std::thread::scope(|scope| {
            for number in 1..=2u64 {
                let addresses = &addresses;
                scope.spawn(move || {
                    let config = ClientConfig { identity: Some(number), ..ClientConfig::with_plan(plan) };
                    let connect = |address| Client::connect(&fabric(), address, config.clone()).unwrap();
                    let mut clients: Vec<_> = addresses.iter().map(connect).collect();
                    for call in 0..200u64 {
                        for client in &mut clients {
                            assert_eq!(*client.call(ECHO, &call.to_le_bytes()).unwrap(), call.to_le_bytes());
                        }
                    }
                });
            }
        });
        servers.into_iter().for_each(|server| server.shutdown(Duration::from_secs(1)));
    });
}

#[test]
fn settings_without_a_meaning_are_refused() {
    Sim::run_with(settings(), 5, |root| {
        let good = Deployment::new(addresses(), 0);
        for deployment in [
            Deployment { own: 3, ..good.clone() },
            Deployment { function: ECHO, ..good.clone() },
            Deployment { function: 4096, ..good.clone() },
            Deployment { secret: vec![0; 256], ..good.clone() },
            Deployment { interval: Duration::from_micros(10), ..good.clone() },
        ] {
            let started = ServerBuilder::new(&root)
                .function(ECHO, FunctionMode::Worker)
                .deployment(deployment.clone())
                .serve(&addresses()[0], |_| Box::new(echo));
            assert!(matches!(started, Err(ServeError::Setting { .. })), "{deployment:?}");
        }
    })
    .unwrap();
}
