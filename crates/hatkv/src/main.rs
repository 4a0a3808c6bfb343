//! `hatkv`: serves HatKV until SIGINT or SIGTERM.

use anyhow::Context as _;
use clap::Parser;
use dunlin::thrift::{ServerOptions, serve};
use dunlin_hatkv::hatkv::HatKvProcessor;
use dunlin_hatkv::{Durability, Handler};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::PathBuf;
use std::time::Duration;

/// Serves HatKV, a key-value store on LMDB, until SIGINT or SIGTERM.
#[derive(Debug, Parser)]
#[command(
    after_help = "Examples:\n  hatkv --listen shm:hat --data /var/lib/hat\n  hatkv --listen shm:hat --data /dev/shm/hat --fast"
)]
struct Arguments {
    /// Where clients find it
    #[arg(long, value_name = "ADDRESS")]
    listen: dunlin::Address,
    /// The folder of the store; made if need be
    #[arg(long, value_name = "FOLDER")]
    data: PathBuf,
    /// The most bytes that the store may have, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    map_size: u32,
    /// Answer before the disk has it: what was written in the last tenth of a second is lost if the machine stops (not if
    /// only the server does)
    #[arg(long)]
    fast: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let durability = match arguments.fast {
        true => Durability::Fast { sync_every: Duration::from_millis(100) },
        false => Durability::Durable,
    };
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let handler = Handler::open(&arguments.data, (arguments.map_size as usize) << 20, durability)?;
    let fabric = dunlin::fabric().context("shared memory")?;
    let server = serve(&fabric, &arguments.listen, HatKvProcessor(handler), ServerOptions::default())?;
    println!("serving {} from {}", server.address(), arguments.data.display());
    signals.forever().next();
    server.shutdown(1_000_000_000);
    Ok(())
}
