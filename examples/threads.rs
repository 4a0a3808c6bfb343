//! Threads on one connection: each has a client of its own, and the calls of all share messages.

use dunlin::errors::ConnectError;
use dunlin::plan::{Plan, Sharing};
use dunlin::{CallError, Client, ClientConfig, Fabrics, FunctionMode, Reply, Request, ServerBuilder};
use std::time::Duration;

const SQUARE: u16 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = format!("shm:threads-{}", std::process::id());
    let server = ServerBuilder::new().function(SQUARE, FunctionMode::Worker).serve(&address, |_worker| {
        Box::new(|request: &Request<'_>, reply: &mut Reply<'_>| {
            let number = u64::from_le_bytes(request.payload.try_into().unwrap_or_default());
            reply.write(&(number * number).to_le_bytes())?;
            Ok(())
        })
    })?;
    let plan = Plan { sharing: Sharing::Combined, ..Plan::default() };
    let first = Client::connect_with(Fabrics::global(), &address, ClientConfig::with_plan(plan))?;
    let sums = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let client = first.another()?;
                Ok(scope.spawn(move || sum_of_squares(client, thread * 1000)))
            })
            .collect::<Result<_, ConnectError>>()?;
        Ok::<_, ConnectError>(threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>())
    })?;
    for sum in sums {
        println!("{}", sum.map_err(|_| "a thread panicked")??);
    }
    drop(first);
    server.shutdown(Duration::from_secs(1));
    Ok(())
}

fn sum_of_squares(mut client: Client, from: u64) -> Result<u64, CallError> {
    let mut sum = 0;
    for number in from..from + 1000 {
        let squared = client.call(SQUARE, &number.to_le_bytes())?;
        sum += u64::from_le_bytes(squared[..].try_into().unwrap_or_default());
    }
    Ok(sum)
}
