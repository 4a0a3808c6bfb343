//! `dunlin kv`: the key-value store from the command line.

mod bench;
mod load;
mod one_shot;
mod serve;
mod stats;

use clap::{Args, Subcommand};
use dunlin::fabric::{ChosenFabric, Fabric};
use dunlin::plan::Plan;
use dunlin::{Address, ClientConfig};
use dunlin_command::arguments::{self, DeviceArguments, PlanArguments};
use dunlin_command::output::{self, Failure};
use dunlin_kv::KvClient;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  dunlin kv serve --listen shm:store --workers 2 --memory 1g
  dunlin kv put shm:store greeting hello
  dunlin kv get shm:store greeting
  dunlin kv load shm:store records.tsv
  dunlin kv bench shm:store --workload a --clients 4 --seconds 5
  dunlin kv stats shm:store
  dunlin kv serve --listen rdma:10.0.0.1:7000      the same over an RNIC
  dunlin kv bench rdma:10.0.0.1:7000
  dunlin kv serve --listen auto:10.0.0.1:7000      on every available fabric; clients use the best one in common
  dunlin kv bench auto:10.0.0.1:7000";

/// Run, use, fill, inspect and measure a key-value server.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct KvArguments {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Debug, Subcommand)]
enum KvCommand {
    Serve(serve::ServeArguments),
    Get(one_shot::GetArguments),
    Put(one_shot::PutArguments),
    Delete(one_shot::DeleteArguments),
    Load(load::LoadArguments),
    Bench(bench::BenchArguments),
    Stats(stats::StatsArguments),
}

pub(crate) fn run(arguments: KvArguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        KvCommand::Serve(arguments) => serve::run(&arguments),
        KvCommand::Get(arguments) => one_shot::get(&arguments),
        KvCommand::Put(arguments) => one_shot::put(&arguments),
        KvCommand::Delete(arguments) => one_shot::delete(&arguments),
        KvCommand::Load(arguments) => load::run(&arguments),
        KvCommand::Bench(arguments) => bench::run(&arguments),
        KvCommand::Stats(arguments) => stats::run(&arguments),
    }
}

/// Options that select a store.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectArguments {
    /// Address of the server: shm:NAME, rdma:HOST:PORT, ofi:tcp:HOST:PORT or auto:HOST:PORT
    address: Address,
    #[command(flatten)]
    plan: PlanArguments,
    #[command(flatten)]
    device: DeviceArguments,
    /// Time limit of each call
    #[arg(long, default_value = "10", value_parser = arguments::positive_duration, value_name = "TIME")]
    timeout: Duration,
}

impl ConnectArguments {
    /// Returns the fabric for the address, and the resolved address. For `auto:` addresses, prints a note
    /// with the choice and its reason.
    fn choose(&self) -> Result<(ChosenFabric, Address), Failure> {
        let fabrics = self.device.fabrics(false);
        let resolved = fabrics.resolve(&self.address)?;
        if resolved.address != self.address {
            output::note(format_args!("{} is {resolved}", self.address));
        }
        Ok((fabrics.choose(&resolved.address)?, resolved.address))
    }

    /// Connects a client with a window of `window` calls per worker.
    fn connect<F: Fabric>(&self, fabric: &F, address: &Address, window: u16) -> Result<KvClient<F>, Failure> {
        let plan = self.plan.plan(fabric.capabilities());
        connect(fabric, address, plan, window, self.timeout)
    }
}

/// Connects a client of a store.
pub(crate) fn connect<F: Fabric>(
    fabric: &F,
    address: &Address,
    plan: Plan,
    window: u16,
    timeout: Duration,
) -> Result<KvClient<F>, Failure> {
    connect_as(fabric, address, ClientConfig { window, ..ClientConfig::with_plan(plan) }, timeout)
}

/// Connects a client of a store with the given settings.
fn connect_as<F: Fabric>(
    fabric: &F,
    address: &Address,
    settings: ClientConfig,
    timeout: Duration,
) -> Result<KvClient<F>, Failure> {
    let connect_timeout = settings.connect_timeout.min(timeout);
    let config = ClientConfig { timeout, connect_timeout, ..settings };
    Ok(KvClient::connect(fabric, address, config)?)
}
