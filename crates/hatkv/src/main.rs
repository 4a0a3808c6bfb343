//! `dunlin-hatkv`: serves HatKV until SIGINT or SIGTERM.

use clap::Parser;
use dunlin::Fabrics;
use dunlin::thrift::{ServerOptions, serve_with};
use dunlin_hatkv::hatkv::HAT_KV_SERVICE;
use dunlin_hatkv::{Handler, TunedProcessor, Tuning};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Serves HatKV, a key-value store on LMDB, until SIGINT or SIGTERM.
#[derive(Debug, Parser)]
#[command(
    after_help = "Examples:\n  dunlin-hatkv --listen shm:hat --data /var/lib/hat\n  dunlin-hatkv --listen shm:hat --data /dev/shm/hat --fast\n  dunlin-hatkv --listen rdma:0.0.0.0:7000 --data /var/lib/hat\n  dunlin-hatkv --listen auto:0.0.0.0:7000 --data /var/lib/hat"
)]
struct Arguments {
    /// The address to serve on: shm:NAME, rdma:HOST:PORT, tcp:HOST:PORT, or auto:HOST:PORT for all of these;
    /// the environment variable DUNLIN_RDMA_DEVICE selects one of several RDMA devices
    #[arg(long, value_name = "ADDRESS")]
    listen: dunlin::Address,
    /// The folder of the store; created if necessary
    #[arg(long, value_name = "FOLDER")]
    data: PathBuf,
    /// The maximum size of the store in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    map_size: u32,
    /// Answer writes before they are on disk, whatever the hints say: a machine crash loses the writes of the
    /// last tenth of a second (a crash of the server alone does not)
    #[arg(long)]
    fast: bool,
    /// Answer writes when they are on disk, whatever the hints say
    #[arg(long, conflicts_with = "fast")]
    durable: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let hinted = Tuning::hinted(HAT_KV_SERVICE.functions);
    let tuning = if arguments.fast || arguments.durable { hinted.fast(arguments.fast) } else { hinted };
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let handler = Handler::open_with(&arguments.data, (arguments.map_size as usize) << 20, tuning)?;
    let fabrics = Fabrics::default();
    let mut options = ServerOptions::default();
    options.engine.pool_threads = tuning.writers;
    let server = serve_with(&fabrics, &arguments.listen, TunedProcessor::new(handler), options)?;
    let mut says = format!("serving {} from {}", server.address(), arguments.data.display());
    if let Some(dunlin::Server::Several(servers)) = server.engine() {
        for server in servers.servers() {
            let _ = write!(says, "; on {}", server.address());
        }
        for passed in servers.passed_over() {
            let _ = write!(says, "; {passed}");
        }
    }
    if let Some(place) = server.tcp_address() {
        let _ = write!(says, "; stock Thrift on {place}");
    }
    println!("{says}");
    signals.forever().next();
    server.shutdown(Duration::from_secs(1));
    Ok(())
}
