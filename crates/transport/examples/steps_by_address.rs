//! Counts the instructions that fabric selection by address adds to a call. Client and worker alternate on
//! one thread, so that callgrind counts the call's instructions and no waiting.
//!
//! `valgrind --tool=callgrind --toggle-collect='*calls_by*' steps_by_address CALLS engine|chosen` uses the
//! engine's types or the types that select the fabric by address.

use dunlin_fabric::Address;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{
    CallError, ClientConfig, CompletionMode, FunctionMode, Protocol, Reply, Request, Service, Status,
};
use dunlin_transport::Fabrics;
use std::error::Error;

fn echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    reply.write(request.payload)?;
    Ok(())
}

/// The same program on either set of types.
macro_rules! steps {
    ($steps:ident, $calls:ident, $fabric:ty, $builder:expr, $client:ty, $connect:path, $worker:ty) => {
        #[inline(never)]
        fn $calls(client: &mut $client, worker: &mut $worker, calls: u32) -> Result<usize, CallError> {
            let mut sum = 0;
            for _ in 0..calls {
                let id = client.submit_on(0, 1, &[7; 32])?;
                worker.progress();
                sum += client.wait(id)?.len();
            }
            Ok(sum)
        }

        fn $steps(fabric: $fabric, calls: u32) -> Result<(), Box<dyn Error>> {
            let address: Address = format!("shm:steps-by-address-{}", std::process::id()).parse()?;
            let described = ($builder)(&fabric).function(1, FunctionMode::Worker);
            let (server, mut workers) =
                described.serve_with(&address, |_| Box::new(echo) as Box<dyn Service>)?;
            let mut worker = workers.pop().ok_or("no worker")?;
            let plan =
                Protocol::by_name("Server-reply").ok_or("no such protocol")?.plan(CompletionMode::Busy);
            let config = ClientConfig::with_plan(plan);
            let connecting = std::thread::spawn(move || $connect(&fabric, &address, config));
            while !connecting.is_finished() {
                worker.progress();
            }
            let mut client = connecting.join().map_err(|_| "the connecting thread panicked")??;
            println!("{calls} calls, {} bytes", $calls(&mut client, &mut worker, calls)?);
            drop((client, worker, server));
            Ok(())
        }
    };
}

steps!(
    by_engine,
    calls_by_engine,
    ShmFabric,
    dunlin_rpc::ServerBuilder::new,
    dunlin_rpc::Client<ShmFabric>,
    dunlin_rpc::Client::connect,
    dunlin_rpc::Worker<ShmFabric>
);
steps!(
    by_choice,
    calls_by_choice,
    Fabrics,
    |fabrics: &Fabrics| dunlin_transport::ServerBuilder::new().fabrics(fabrics),
    dunlin_transport::Client,
    dunlin_transport::Client::connect_with,
    dunlin_transport::Worker
);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let calls = arguments.get(1).map_or(Ok(10_000), |text| text.parse())?;
    let fabrics = Fabrics::default();
    match arguments.get(2).map_or("chosen", String::as_str) {
        "engine" => by_engine(fabrics.shm()?, calls),
        _ => by_choice(fabrics, calls),
    }
}
