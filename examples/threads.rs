//! Threads of one client: each has a seat, calls of threads on the same connection share messages, and operations on
//! the server's memory go the same way, without a handler.

use dunlin::errors::{ConnectError, MemoryError};
use dunlin::fabric::{Access, Fabric, Region, ShmFabric, shm};
use dunlin::plan::{Plan, Sharing};
use dunlin::raw::{Client, ServerBuilder};
use dunlin::{Address, ClientConfig, FunctionMode, Reply, Request};
use std::time::Duration;

const SQUARE: u16 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address: Address = format!("shm:threads-{}", std::process::id()).parse()?;
    let fabric = shm()?;
    let access = Access::READ.with(Access::ATOMIC);
    let totals = Region::new(fabric.register(4096, access)?);
    let server = ServerBuilder::new(&fabric)
        .function(SQUARE, FunctionMode::Worker)
        .expose("totals", totals.clone(), access)
        .serve(&address, |_worker| {
            Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
                let number = u64::from_le_bytes(request.payload.try_into().unwrap_or_default());
                reply.write(&(number * number).to_le_bytes())?;
                Ok(())
            })
        })?;
    let plan = Plan { sharing: Sharing::Combined, ..Plan::default() };
    let first = Client::connect(&fabric, &address, ClientConfig::with_plan(plan))?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let client = first.another()?;
                Ok(scope.spawn(move || add_squares(client, thread * 1000)))
            })
            .collect::<Result<_, ConnectError>>()?;
        for thread in threads {
            println!("{}", thread.join().map_err(|_| "a thread panicked")??);
        }
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    println!("in all {}", totals.load(0));
    drop(first);
    server.shutdown(Duration::from_secs(1));
    Ok(())
}

/// Sums up squares that the server computes, and adds the sum to a total in the server's memory.
fn add_squares(mut client: Client<ShmFabric>, from: u64) -> Result<u64, MemoryError> {
    let mut sum = 0;
    for number in from..from + 1000 {
        let squared = client.call(SQUARE, &number.to_le_bytes())?;
        sum += u64::from_le_bytes(squared[..].try_into().unwrap_or_default());
    }
    let totals = client.attach("totals")?;
    client.fetch_add(&totals, 0, sum)?;
    Ok(sum)
}
