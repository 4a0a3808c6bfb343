//! Counts what it costs that an address picks the fabric: client and worker take turns on ONE thread, so that
//! `valgrind --tool=callgrind` sees a call's instructions and nothing of waiting.
//!
//! `steps_by_address CALLS engine|chosen`: by the engine's own types, or by those whose kind the address picks.
//! The difference of two runs with different numbers of calls is what calls cost.

use dunlin_rpc::{ClientConfig, CompletionMode, FunctionMode, Protocol, Reply, Request, Service, Status};
use dunlin_transport::Fabrics;
use std::error::Error;

fn echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    reply.write(request.payload)?;
    Ok(())
}

/// The same program on the types of either.
macro_rules! steps {
    ($calls:expr, $fabric:expr, $builder:ty, $client:ty) => {{
        let fabric = $fabric;
        let address = format!("shm:steps-by-address-{}", std::process::id()).parse()?;
        let described = <$builder>::new(&fabric).function(1, FunctionMode::Worker);
        let (server, mut workers) = described.serve_with(&address, |_| Box::new(echo) as Box<dyn Service>)?;
        let mut worker = workers.pop().ok_or("no worker")?;
        let plan = Protocol::by_name("Server-reply").ok_or("no such protocol")?.plan(CompletionMode::Busy);
        let connecting =
            std::thread::spawn(move || <$client>::connect(&fabric, &address, ClientConfig::with_plan(plan)));
        while !connecting.is_finished() {
            worker.progress();
        }
        let mut client = connecting.join().map_err(|_| "the connecting thread panicked")??;
        let mut sum = 0;
        for _ in 0..$calls {
            let id = client.submit_on(0, 1, &[7; 32])?;
            worker.progress();
            sum += client.wait(id)?.len();
        }
        println!("{} calls, {sum} bytes", $calls);
        drop((client, worker, server));
    }};
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let calls: u32 = arguments.get(1).map_or(Ok(10_000), |text| text.parse())?;
    let fabrics = Fabrics::default();
    match arguments.get(2).map_or("chosen", String::as_str) {
        "engine" => {
            type Shm = dunlin_fabric_shm::ShmFabric;
            steps!(calls, fabrics.shm()?, dunlin_rpc::ServerBuilder<Shm>, dunlin_rpc::Client<Shm>);
        }
        _ => steps!(calls, fabrics, dunlin_transport::ServerBuilder, dunlin_transport::Client),
    }
    Ok(())
}
