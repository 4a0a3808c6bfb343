//! The price of calls through nodes, beside calls of the engine between the same processes, for requests and results
//! of one length: the time of one call, and the rate with 32 in flight; and the processor time and the changes between
//! threads that a call costs all four processes; and the hand-overs of a word between two sleeping threads that take as
//! long as a call. Two nodes on shared memory, each in a process of its own; the servers are in a third process, and
//! this one calls.
//!
//! `cargo run --release -p dunlin-tier-client --example call_latency [BYTES]`, 32 by default

mod common;

use common::{address, attach, fabric, node, print, sample, start, wait};
use dunlin_fabric::host::BindError;
use dunlin_fabric::{Address, Host as _, RealHost};
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{Client, ClientConfig, FunctionMode, Server, ServerBuilder};
use dunlin_tier_client::{Tier, gateway_address};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations of a measurement.
const ROUNDS: usize = 5000;
const IN_FLIGHT: usize = 32;
/// The most bytes of a call here.
const MOST: usize = 1 << 20;
const SERVICE: &str = "echo";
const IN_PLACE: &str = "echo-in-place";
const FUNCTION: u16 = 1;

fn echo(address: &Address) -> Result<Server<ShmFabric>, Box<dyn Error>> {
    let echo = |request: &dunlin_rpc::Request<'_>, reply: &mut dunlin_rpc::Reply<'_>| {
        Ok(reply.write(request.payload)?)
    };
    let builder = ServerBuilder::new(&fabric()?).function(FUNCTION, FunctionMode::Worker);
    Ok(builder.serve(address, move |_| Box::new(echo))?)
}

/// Answers each request with the bytes of the buffer into which it was received.
fn serve_in_place(tier: &Tier) -> Result<(), Box<dyn Error + Send + Sync>> {
    let calls = tier.register(IN_PLACE, FUNCTION)?;
    let (mut received, mut next) = (tier.buffer(MOST)?, tier.buffer(MOST)?);
    let mut request = calls.receive_into(&mut received, ..)?;
    loop {
        let length = request.len();
        request = request.reply_from_and_receive_into((&mut received, ..length), (&mut next, ..))?;
        std::mem::swap(&mut received, &mut next);
    }
}

/// The part of a child: a node, or the servers.
fn child(tag: &str, role: &str) -> Result<(), Box<dyn Error>> {
    if role == "servers" {
        let server = echo(&address(tag, "direct")?)?;
        let tier = attach(tag, "two", |_| {})?;
        let _announced = tier.announce("engine", server.address())?;
        let in_place = tier.clone();
        std::thread::spawn(move || serve_in_place(&in_place).map_err(|error| eprintln!("{error}")));
        let calls = tier.register(SERVICE, FUNCTION)?;
        let mut buffer = vec![0; MOST];
        let mut request = calls.receive(&mut buffer)?;
        loop {
            let length = request.len();
            let answer = buffer[..length].to_vec();
            request = request.reply_and_receive(&answer, &mut buffer)?;
        }
    }
    node(tag, role)
}

/// Measures an operation, and prints and returns its median and 99th percentile.
fn time<E: Error + 'static>(what: &str, run: impl FnMut() -> Result<(), E>) -> Result<[Duration; 2], E> {
    let mut times = Vec::with_capacity(ROUNDS);
    sample(&mut times, ROUNDS, run)?;
    Ok(print(what, &mut times))
}

/// Processor time in nanoseconds and context switches of all threads of processes since they began.
fn spent(processes: &[u32]) -> (u64, u64) {
    let tasks = processes.iter().flat_map(|process| std::fs::read_dir(format!("/proc/{process}/task")));
    let of_task = |task: std::path::PathBuf| {
        let read = |name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
        let time = read("schedstat").split(' ').next().and_then(|time| time.parse::<u64>().ok());
        let switches = read("status")
            .lines()
            .filter_map(|line| line.split_once("_ctxt_switches:"))
            .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
            .sum::<u64>();
        (time.unwrap_or_default(), switches)
    };
    tasks.flatten().flatten().map(|task| of_task(task.path())).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

/// Runs calls, and prints their costs to all processes.
fn costs(
    processes: &[u32],
    calls: usize,
    run: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let before = spent(processes);
    run()?;
    let after = spent(processes);
    let (time, switches) = ((after.0 - before.0) as f64, (after.1 - before.1) as f64);
    let calls = calls as f64;
    println!(
        "{:52} {:>9.2} us of processors, {:.2} switches a call",
        "",
        time / calls / 1e3,
        switches / calls
    );
    Ok(())
}

/// Prints the time in which two threads hand a word over and back, each on its core and asleep in a futex meanwhile.
/// Returns half of its median.
fn hand_over() -> Result<Duration, Box<dyn Error>> {
    let topology = RealHost.topology();
    let cores = topology.cores(topology.here())?;
    let [one, other] = [cores.first(), cores.last()].map(|core| core.copied().unwrap_or_default());
    let word = &AtomicU64::new(0);
    let until = move |wanted: fn(u64) -> bool| loop {
        let now = word.load(Ordering::Acquire);
        if wanted(now) {
            return now;
        }
        std::thread::park();
    };
    let (to_us, here) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // Odd: the other thread's turn. The largest value ends it.
        let echo = scope.spawn(move || -> Result<(), BindError> {
            RealHost.bind(&[other])?;
            let Ok(asker) = here.recv() else { return Ok(()) };
            loop {
                let now = until(|now| now % 2 == 1);
                if now == u64::MAX {
                    return Ok(());
                }
                word.store(now + 1, Ordering::Release);
                std::thread::Thread::unpark(&asker);
            }
        });
        let asking = scope.spawn(move || -> Result<Duration, BindError> {
            RealHost.bind(&[one])?;
            let _ = to_us.send(std::thread::current());
            let timed = time("a futex hand-over and back, on two cores", || -> Result<(), BindError> {
                word.fetch_add(1, Ordering::AcqRel);
                echo.thread().unpark();
                until(|now| now % 2 == 0);
                Ok(())
            });
            word.store(u64::MAX, Ordering::Release);
            echo.thread().unpark();
            Ok(timed?[0] / 2)
        });
        asking.join().map_err(|_| "the thread of the measurement panicked")?.map_err(Into::into)
    })
}

/// Prints the rate of calls with many in flight.
fn rate(what: &str, client: &mut Client<ShmFabric>, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let (mut sent, mut done) = (0, 0);
    let begin = Instant::now();
    while done < 10 * ROUNDS {
        while sent - done < IN_FLIGHT && sent < 10 * ROUNDS {
            client.submit_waiting_on(0, FUNCTION, bytes)?;
            sent += 1;
        }
        let mut failed = None;
        done += client.collect(|_, outcome| failed = outcome.err().or(failed.take()));
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
    let rate = done as f64 / begin.elapsed().as_secs_f64();
    println!("{what:<52} {:>9.1} k calls a second", rate / 1e3);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [tag, role] = &words[..] {
        return child(tag, role);
    }
    let length = words.first().map_or(Ok(32), |word| word.parse::<usize>())?;
    if length > MOST {
        return Err(format!("a call has at most {MOST} bytes here, not {length}").into());
    }
    let bytes = &vec![7; length][..];
    let tag = std::process::id().to_string();
    let children = [start(&tag, "one")?, start(&tag, "two")?, start(&tag, "servers")?];
    let mut processes: Vec<u32> = children.iter().map(|child| child.0.id()).collect();
    processes.push(std::process::id());
    let [near, far] = [attach(&tag, "two", |_| {})?, attach(&tag, "one", |_| {})?];
    let mut answer = vec![0; length.max(1)];
    wait(|| far.call("two", SERVICE, FUNCTION, bytes, &mut answer));
    let connect = |to: &Address, service: &str| {
        let config = ClientConfig { service: service.to_owned(), ..ClientConfig::default() };
        Client::connect(&fabric()?, to, config).map_err(Box::<dyn Error>::from)
    };
    let mut direct = connect(&address(&tag, "direct")?, "")?;
    let gateway = gateway_address(&address(&tag, "one-attach")?)?;
    let mut through = connect(&gateway, "engine@two")?;
    wait(|| through.call(FUNCTION, bytes).map(drop));
    let before = hand_over()?;
    costs(&processes, ROUNDS, || {
        time("engine, from process to process", || direct.call(FUNCTION, bytes).map(drop))?;
        Ok(())
    })?;
    let mut blocking = Duration::ZERO;
    costs(&processes, ROUNDS, || {
        [blocking, _] = time("node:, two nodes between", || through.call(FUNCTION, bytes).map(drop))?;
        Ok(())
    })?;
    let one = (before + hand_over()?) / 2;
    println!(
        "{:52} {:>9.1} hand-overs between cores of the run",
        "",
        blocking.as_secs_f64() / one.as_secs_f64()
    );
    costs(&processes, ROUNDS, || {
        time("call and reply_and_receive, one node between", || {
            near.call("two", SERVICE, FUNCTION, bytes, &mut answer).map(drop)
        })?;
        Ok(())
    })?;
    costs(&processes, ROUNDS, || {
        time("call and reply_and_receive, two nodes between", || {
            far.call("two", SERVICE, FUNCTION, bytes, &mut answer).map(drop)
        })?;
        Ok(())
    })?;
    let (mut from, mut into) = (far.buffer(length.max(1))?, far.buffer(length.max(1))?);
    from.copy_in(0, bytes)?;
    let mut in_place = || {
        let to = ("two", IN_PLACE.as_bytes(), FUNCTION);
        let range = ..length;
        far.call_in_place(Duration::from_secs(5), to, (&mut from, range), (&mut into, range)).map(drop)
    };
    wait(&mut in_place);
    costs(&processes, ROUNDS, || {
        time("call_in_place and receive_into, two nodes between", in_place)?;
        Ok(())
    })?;
    costs(&processes, 10 * ROUNDS, || {
        rate("engine, from process to process, 32 in flight", &mut direct, bytes)
    })?;
    costs(&processes, 10 * ROUNDS, || rate("node:, two nodes between, 32 in flight", &mut through, bytes))
}
