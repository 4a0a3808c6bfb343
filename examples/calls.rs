//! Functions called by number: on a worker, in the pool, and pulled; many calls in flight; failures and their certainty.
//!
//! `cargo run --release --example calls [ADDRESS]`

use dunlin::plan::{CompletionMode, Protocol};
use dunlin::server::ApplicationCode;
use dunlin::{
    CallError, Cause, Certainty, Client, ClientConfig, Fabrics, FunctionMode, Reply, Request, Server,
    ServerBuilder, ServerConfig, Status,
};
use std::error::Error;
use std::time::Duration;

const UPPER: u16 = 1;
const SLOW: u16 = 2;
const LATER: u16 = 3;
const REFUSE: u16 = 4;

/// The error code of `REFUSE`.
const NOT_TODAY: ApplicationCode = ApplicationCode::new(7).expect("a code of the application");

const SECOND: Duration = Duration::from_secs(1);

fn upper(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    if request.function == REFUSE {
        reply.write(b"not today")?;
        return Err(Status::Application(NOT_TODAY));
    }
    reply.write(&request.payload.to_ascii_uppercase())?;
    Ok(())
}

fn slow(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    std::thread::sleep(Duration::from_millis(5));
    upper(request, reply)
}

fn serve(address: &str) -> Result<Server, Box<dyn Error>> {
    let server = ServerBuilder::new()
        .config(ServerConfig { workers: 2, pool_threads: 4, ..ServerConfig::default() })
        .function(UPPER, FunctionMode::Worker)
        .function(REFUSE, FunctionMode::Worker)
        .function(SLOW, FunctionMode::Pool)
        .function(LATER, FunctionMode::Pull)
        .pool(slow)
        .serve(address, |_worker| Box::new(upper))?;
    Ok(server)
}

/// Answers the calls of the pulled function, at any later time and on any thread; an empty call is the last.
fn answer_later(server: &Server) {
    while let Some(call) = server.receive(Duration::MAX) {
        let (last, mut answer) = (call.payload.is_empty(), b"later: ".to_vec());
        answer.extend_from_slice(&call.payload);
        call.reply(answer);
        if last {
            break;
        }
    }
}

/// Calls again where the call was not executed. A call that was or may have been executed is the caller's decision.
fn call_twice(client: &mut Client, function: u16, payload: &[u8]) -> Result<Vec<u8>, CallError> {
    match client.call(function, payload) {
        Ok(result) => return Ok(result.to_vec()),
        Err(error) if error.certainty() != Certainty::NotExecuted => return Err(error),
        Err(_) => {}
    }
    client.call(function, payload).map(|result| result.to_vec())
}

fn many(client: &mut Client) -> Result<usize, Box<dyn Error>> {
    let (mut sent, mut answered, mut bytes) = (0, 0, 0);
    while answered < 1000 {
        while sent < 1000 && client.room(0) > 0 {
            client.push_on(0, UPPER, b"together")?;
            sent += 1;
        }
        client.flush_waiting()?;
        answered += client.collect(|_call, result| bytes += result.map_or(0, <[u8]>::len));
    }
    Ok(bytes)
}

fn main() -> Result<(), Box<dyn Error>> {
    let own = || format!("shm:example-calls-{}", std::process::id());
    let address = std::env::args().nth(1).unwrap_or_else(own);
    let server = serve(&address)?;

    let config = ClientConfig { timeout: SECOND, ..ClientConfig::default() };
    let mut client = Client::connect_with(Fabrics::global(), &address, config)?;
    println!("{}", String::from_utf8_lossy(&client.call(UPPER, b"on a worker")?));
    println!("{}", String::from_utf8_lossy(&client.call(SLOW, b"in the pool")?));
    std::thread::scope(|scope| -> Result<(), CallError> {
        scope.spawn(|| answer_later(&server));
        println!("{}", String::from_utf8_lossy(&client.call(LATER, b"pulled")?));
        client.call(LATER, b"").map(drop)
    })?;

    match client.call(REFUSE, b"") {
        Err(CallError::Application { code, payload }) => {
            println!("error {code} of the service: {}", String::from_utf8_lossy(&payload));
        }
        other => {
            return Err(format!("an error was expected, not {:?}", other.map(|result| result.len())).into());
        }
    }
    match call_twice(&mut client, 99, b"") {
        Err(CallError::NotExecuted(Cause::Refused(status))) => println!("not executed: {status}"),
        other => return Err(format!("a refusal was expected, not {other:?}").into()),
    }

    let plan = Protocol::by_name("Server-reply").ok_or("no such protocol")?.plan(CompletionMode::Busy);
    let mut fast = Client::connect_with(Fabrics::global(), &address, ClientConfig::with_plan(plan))?;
    println!("{} bytes of 1000 calls in batches", many(&mut fast)?);

    drop((client, fast));
    server.shutdown(SECOND);
    Ok(())
}
