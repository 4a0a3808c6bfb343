//! `dunlin kv serve`: runs a key-value server in the foreground.

use crate::echo::{self, DRAIN, ECHO};
use clap::Args;
use dunlin::fabric::Scheme;
use dunlin::{Address, FunctionMode, Reply, Request, Server, ServerBuilder, ServerConfig, Service, Status};
use dunlin_command::arguments::{self, DeviceArguments};
use dunlin_command::child;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::{self, Failure};
use dunlin_kv::KvService;
use dunlin_report::Unit;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
The memory limit covers index, keys, values and all overhead. At the limit, the least recently used items of a bucket,
or of a size class, are evicted. Each worker owns a partition of the keys and of the memory.
On Ctrl-C or SIGTERM the server answers the requests received so far and exits with status 0; a second signal ends it
at once.

Examples:
  dunlin kv serve --listen shm:store
  dunlin kv serve --listen shm:store --workers 4 --memory 8g --expected-items 10000000
  dunlin kv serve --listen rdma:0.0.0.0:7000
  dunlin kv serve --listen auto:0.0.0.0:7000     the same store on every available fabric";

/// Run a key-value server until it is interrupted.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ServeArguments {
    /// Address to serve: shm:NAME, rdma:HOST:PORT, ofi:tcp:HOST:PORT or auto:HOST:PORT; port 0 selects a
    /// free port
    #[arg(long, short, value_name = "ADDRESS")]
    listen: Address,
    /// Worker threads; each owns a partition of the keys
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// Memory limit of the store, over all workers: 64MiB, 1g
    #[arg(long, short, default_value = "256MiB", value_parser = arguments::size, value_name = "SIZE")]
    memory: u64,
    /// Number of items to size the index for [default: as many small items as fit the memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    expected_items: Option<u64>,
    /// Let processes of every user of this machine connect over shared memory, not only those of your user
    /// and root
    #[arg(long)]
    allow_anyone: bool,
    #[command(flatten)]
    device: DeviceArguments,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = arguments::positive_duration)]
    duration: Option<Duration>,
}

/// The store of one worker, with the echo function for pings.
struct Store<S>(S);

impl<S: Service> Service for Store<S> {
    fn passes(&self) -> usize {
        self.0.passes()
    }

    #[inline]
    fn prepare(&mut self, pass: usize, function: u16, payload: &[u8]) {
        self.0.prepare(pass, function, payload);
    }

    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        if request.function == ECHO { echo::echo(request, reply) } else { self.0.call(request, reply) }
    }
}

pub(crate) fn run(arguments: &ServeArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let memory = usize::try_from(arguments.memory)
        .map_err(|_| Failure::new("this machine cannot address so much memory").help("lower --memory"))?;
    let items = arguments.expected_items.map(|items| usize::try_from(items).unwrap_or(usize::MAX));
    let mut stores = Vec::with_capacity(arguments.workers.into());
    for worker in 0..arguments.workers {
        stores.push(KvService::new(memory, items, worker, arguments.workers)?);
    }
    let config = ServerConfig {
        workers: arguments.workers,
        service: dunlin_kv::SERVICE.to_owned(),
        other_names: vec![echo::SERVICE.to_owned()],
        ..ServerConfig::default()
    };
    let fabrics = arguments.device.fabrics(arguments.allow_anyone);
    let builder = ServerBuilder::new().fabrics(&fabrics).config(config).function(ECHO, FunctionMode::Worker);
    let builder =
        KvService::functions().fold(builder, |builder, id| builder.function(id, FunctionMode::Worker));
    let server = match arguments.listen.scheme() {
        // Every fabric has the same number of workers. Worker numbers continue from fabric to fabric, and
        // workers of the same partition share its store.
        Scheme::Auto => {
            let stores: Vec<_> = stores.into_iter().map(KvService::shared).collect();
            builder.serve(&arguments.listen, |worker| {
                Box::new(Store(stores[usize::from(worker) % stores.len()].clone()))
            })?
        }
        _ => {
            let mut stores: Vec<_> = stores.into_iter().map(Some).collect();
            builder.serve(&arguments.listen, |worker| {
                match stores.get_mut(usize::from(worker)).and_then(Option::take) {
                    Some(store) => Box::new(Store(store)) as Box<dyn Service>,
                    // A worker without a partition rejects every call.
                    None => Box::new(|_: &Request<'_>, _: &mut Reply<'_>| Err(Status::UnknownFunction)),
                }
            })?
        }
    };
    if let Server::Several(servers) = &server {
        let places: Vec<String> =
            servers.servers().iter().map(|server| server.address().to_string()).collect();
        let passed: String = servers.passed_over().iter().map(|passed| format!("; {passed}")).collect();
        output::note(format_args!("serving on {}{passed}", places.join(" and ")));
    }
    // Ignore errors: the server also runs if nothing reads its output.
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
