//! Calls a server process with every protocol that the fabric of an address supports, each completion mode
//! and each mode of large payloads, with payloads from 0 to 300 000 bytes.
//!
//! ```text
//! every_protocol [ADDRESS]      shared memory if no address is given
//! ```
//!
//! The server is a child process of this program. The answer is the reversed request, so that it differs from
//! the request's bytes. At the end, the client that selects the fabric by address makes calls too. Prints a
//! line for each protocol and exits with status 1 after any error.

use dunlin_fabric::{Address, Fabric};
use dunlin_rpc::tune::table::FetchTable;
use dunlin_rpc::{
    CallId, Client, ClientConfig, CompletionMode, ConnectError, FunctionMode, LargePayload, PROTOCOLS, Plan,
    Reply, Request, ServerBuilder, Service, Status,
};
use dunlin_transport::{Fabrics, on_fabric};
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Reverses the request on the worker.
const BACKWARDS: u16 = 1;
/// Reverses the request in the pool.
const BACKWARDS_LATER: u16 = 2;

/// Sizes around the limits of a line, a batch, a datagram and a message, and well above.
const SIZES: [usize; 9] = [0, 1, 32, 500, 4000, 4096, 5000, 70_000, 300_000];
/// The number of calls in flight.
const WINDOW: u16 = 16;

fn backwards(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    let answer: Vec<u8> = request.payload.iter().rev().copied().collect();
    reply.write(&answer)?;
    Ok(())
}

/// Serves until standard input ends, which is when the parent process exits.
fn serve<F: Fabric>(fabric: &F, address: &Address) -> Outcome<()> {
    let server = ServerBuilder::new(fabric)
        .function(BACKWARDS, FunctionMode::Worker)
        .function(BACKWARDS_LATER, FunctionMode::Pool)
        .pool(backwards)
        .serve(address, |_| Box::new(backwards) as Box<dyn Service>)?;
    println!("{}", server.address());
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    server.shutdown(Duration::from_secs(2));
    Ok(())
}

/// Returns the supported plans of each protocol, with a name to print.
fn plans<F: Fabric>(fabric: &F) -> Vec<(String, Plan)> {
    let modes = [CompletionMode::Busy, CompletionMode::Event, CompletionMode::Adaptive];
    let mut plans = Vec::new();
    for protocol in PROTOCOLS {
        for mode in modes {
            let usual = protocol.plan(mode);
            for way in LargePayload::ALL {
                let plan = usual.large(way, usual.rendezvous_above);
                // Each mode of large payloads once per protocol; otherwise only the protocol's usual one.
                let wanted = plan == usual || mode == CompletionMode::Adaptive;
                if wanted && plan.check(fabric.capabilities()).is_ok() {
                    plans.push((format!("{} {mode} {}", protocol.name, way.name()), plan));
                }
            }
        }
    }
    plans
}

/// Returns a payload that differs from call to call.
fn payload(size: usize, number: usize) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(7) ^ (at >> 8) ^ number) as u8).collect()
}

fn is_backwards(answer: &[u8], request: &[u8]) -> bool {
    answer.len() == request.len() && answer.iter().eq(request.iter().rev())
}

/// Calls with payloads of all sizes and one plan: one at a time on the worker and in the pool, then a whole
/// window of separate messages and of batches.
fn call<F: Fabric>(fabric: &F, address: &Address, plan: Plan) -> Outcome<usize> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let config = ClientConfig {
        window: WINDOW,
        timeout: PATIENCE,
        connect_timeout: PATIENCE,
        silence: PATIENCE,
        // With its own rates, shared memory would fetch nothing.
        fetch_table: Some(Arc::new(FetchTable::rf_rpc())),
        ..ClientConfig::with_plan(plan)
    };
    let mut client = Client::connect(fabric, address, config)?;
    let mut calls = 0;
    for (number, size) in SIZES.into_iter().enumerate() {
        let request = payload(size, number);
        for function in [BACKWARDS, BACKWARDS_LATER] {
            let answer = client.call(function, &request).map_err(|error| format!("{size} bytes: {error}"))?;
            if !is_backwards(&answer, &request) {
                return Err(format!("{size} bytes to function {function}: the answer is wrong").into());
            }
            calls += 1;
        }
    }
    for batched in [false, true] {
        let requests: Vec<Vec<u8>> =
            (0..4 * usize::from(WINDOW)).map(|number| payload(SIZES[number % 4], number)).collect();
        for some in requests.chunks(WINDOW.into()) {
            let submit = |request: &Vec<u8>| match batched {
                false => client.submit_waiting_on(0, BACKWARDS, request),
                true => client.push_waiting_on(0, BACKWARDS, request),
            };
            let ids: Vec<CallId> = some.iter().map(submit).collect::<Result<_, _>>()?;
            client.flush_waiting()?;
            for (id, request) in ids.into_iter().zip(some) {
                let answer = client.wait(id)?;
                if !is_backwards(&answer, request) {
                    return Err(format!("{} bytes in flight with others: wrong", request.len()).into());
                }
                calls += 1;
            }
        }
    }
    client.close();
    Ok(calls)
}

/// The server process, stopped on drop.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The process now exits. If it has already exited, that was reported.
        let _ = self.0.wait();
    }
}

fn start_server(address: &str) -> Outcome<(ServerProcess, Address)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["serve", address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().ok_or("the server has no output")?;
    let server = ServerProcess(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    Ok((server, line.trim().parse().map_err(|error| format!("the server did not start: {error}"))?))
}

fn call_all<F: Fabric>(fabric: &F, address: &Address) -> bool {
    let mut failed = 0;
    let plans = plans(fabric);
    for (name, plan) in &plans {
        let begin = Instant::now();
        match call(fabric, address, *plan) {
            Ok(calls) => println!("{name:<55} {calls} calls, {} ms", begin.elapsed().as_millis()),
            Err(error) => {
                failed += 1;
                println!("{name:<55} FAILED: {error}");
            }
        }
    }
    println!("{} plans on {}, {failed} failed", plans.len(), fabric.capabilities().name);
    failed == 0 && !plans.is_empty()
}

/// Calls as an application does that lets the address select the fabric and the fabric select the plan.
fn call_chosen(fabrics: &Fabrics, address: &Address) -> Outcome<()> {
    let chosen = fabrics.choose(address)?;
    let usual = Plan::default_for(chosen.capabilities());
    let mut client = dunlin_transport::Client::connect_with(fabrics, address, ClientConfig::default())?;
    if client.config().plan != Some(usual) {
        return Err(format!("goes by {:?}, not by {usual:?}", client.config().plan).into());
    }
    // A named plan is used or refused.
    if let Err(why) = Plan::default().check(chosen.capabilities()) {
        match dunlin_transport::Client::connect_with(
            fabrics,
            address,
            ClientConfig::with_plan(Plan::default()),
        ) {
            Err(ConnectError::Plan(refused)) if refused == why => println!("as named: {why}"),
            other => return Err(format!("a plan that cannot be: {other:?}").into()),
        }
    }
    for (number, size) in SIZES.into_iter().enumerate() {
        let request = payload(size, number);
        if !is_backwards(&client.call(BACKWARDS, &request)?, &request) {
            return Err(format!("{size} bytes by {}: the answer is wrong", client.transport().name).into());
        }
    }
    println!("{}, by {} and {}", client.transport(), usual.request.name(), usual.response.name());
    client.close();
    Ok(())
}

fn run() -> Outcome<bool> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let serves = arguments.first().is_some_and(|word| word == "serve");
    if serves {
        arguments.remove(0);
    }
    let own = format!("shm:every-protocol-{}", std::process::id());
    // Arguments added by a test runner begin with a dash.
    let address = arguments.into_iter().find(|word| !word.starts_with('-')).unwrap_or(own);
    let fabrics = Fabrics::default();
    let chosen = fabrics.choose(&address.parse()?)?;
    if serves {
        on_fabric!(&chosen, fabric => serve(fabric, &address.parse()?)?);
        return Ok(true);
    }
    let (_server, actual) = start_server(&address)?;
    let legal = on_fabric!(&chosen, fabric => call_all(fabric, &actual));
    call_chosen(&fabrics, &actual)?;
    Ok(legal)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("every_protocol: {error}");
            ExitCode::FAILURE
        }
    }
}
