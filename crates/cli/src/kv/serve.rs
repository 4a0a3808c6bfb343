//! `dunlin kv serve`: a key-value server in the foreground.

use crate::arguments::{self, DeviceArguments};
use crate::child;
use crate::echo::{self, DRAIN, ECHO};
use crate::interrupt::Interrupt;
use crate::output::{self, Failure};
use clap::Args;
use dunlin::engine::ServerBuilder;
use dunlin::{Address, Fabric, FunctionMode, Reply, Request, ServerConfig, Service, Status, on_fabric};
use dunlin_bench::report::Unit;
use dunlin_kv::KvService;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
The memory limit holds index, keys, values and all overhead together; when it is reached, the least recently used
items of a bucket, or of a size class, make room. Each worker owns a part of the keys and of the memory.
Ctrl-C or SIGTERM answers what was received and ends with exit status 0; a second one ends at once.

Examples:
  dunlin kv serve --listen shm:store
  dunlin kv serve --listen shm:store --workers 4 --memory 8g --expected-items 10000000
  dunlin kv serve --listen rdma:0.0.0.0:7000";

/// Run a key-value server until it is interrupted.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ServeArguments {
    /// The address to serve, as shm:NAME, rdma:HOST:PORT or ofi:tcp:HOST:PORT; port 0 for any that is free
    #[arg(long, short, value_name = "ADDRESS")]
    listen: Address,
    /// Worker threads; each owns a part of the keys
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// Memory for everything stored, all workers together: 64MiB, 1g
    #[arg(long, short, default_value = "256MiB", value_parser = arguments::size, value_name = "SIZE")]
    memory: u64,
    /// Items that the index is sized for [default: as many small ones as the memory holds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    expected_items: Option<u64>,
    /// Let processes of every user of this machine connect to shared memory, not only your own and root's
    #[arg(long)]
    allow_anyone: bool,
    #[command(flatten)]
    device: DeviceArguments,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = arguments::positive_duration)]
    duration: Option<Duration>,
}

/// The store of one worker, and the echo that pings ask for.
struct Store(KvService);

impl Service for Store {
    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        if request.function == ECHO { echo::echo(request, reply) } else { self.0.call(request, reply) }
    }
}

pub(crate) fn run(arguments: &ServeArguments) -> Result<ExitCode, Failure> {
    let chosen = arguments.device.fabrics(arguments.allow_anyone)?.choose(&arguments.listen)?;
    on_fabric!(&chosen, fabric => serve(arguments, fabric))
}

fn serve<F: Fabric>(arguments: &ServeArguments, fabric: &F) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let memory = usize::try_from(arguments.memory)
        .map_err(|_| Failure::new("this machine cannot address so much memory").help("lower --memory"))?;
    let items = arguments.expected_items.map(|items| usize::try_from(items).unwrap_or(usize::MAX));
    let mut stores = Vec::with_capacity(arguments.workers.into());
    for worker in 0..arguments.workers {
        stores.push(Some(KvService::new(memory, items, worker, arguments.workers)?));
    }
    let config = ServerConfig { workers: arguments.workers, ..ServerConfig::default() };
    let builder = ServerBuilder::new(fabric).config(config).function(ECHO, FunctionMode::Worker);
    let server = KvService::declare(builder).serve(&arguments.listen, |worker| {
        match stores.get_mut(usize::from(worker)).and_then(Option::take) {
            Some(store) => Box::new(Store(store)) as Box<dyn Service>,
            // A worker without a part of the keys has nothing to answer.
            None => Box::new(|_: &Request<'_>, _: &mut Reply<'_>| Err(Status::UnknownFunction)),
        }
    })?;
    // A server whose output nobody reads serves all the same.
    let _ = child::say_ready(server.address());
    let _ = output::print_line(format_args!(
        "{} {}, {} of memory; Ctrl-C ends it",
        arguments.workers,
        if arguments.workers == 1 { "worker" } else { "workers" },
        Unit::Bytes.format(arguments.memory as f64)
    ));
    if interrupt.wait(arguments.duration).is_some() {
        output::note("ending: answering what was received");
    }
    server.shutdown(DRAIN);
    Ok(ExitCode::SUCCESS)
}
