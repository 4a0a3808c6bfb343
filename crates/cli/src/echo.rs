//! The echo function of every server of this command, and the echo server of `dunlin ping`.

use clap::Args;
use dunlin::{Address, FunctionMode, Reply, Request, ServerBuilder, ServerConfig, Service, Status};
use dunlin_command::arguments::DeviceArguments;
use dunlin_command::child;
use dunlin_command::interrupt::Interrupt;
use dunlin_command::output::Failure;
use std::process::ExitCode;
use std::time::Duration;

/// Function id of the echo. The key-value store's ids begin at 1.
pub(crate) const ECHO: u16 = 0;

/// The name of a service whose function 0 is the echo.
pub(crate) const SERVICE: &str = "echo";

/// Time limit for calls in progress when a server stops.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);

/// Returns the payload.
pub(crate) fn echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    reply.write(request.payload)?;
    Ok(())
}

/// Serve echo calls; 'dunlin ping' starts this for itself.
#[derive(Args, Debug)]
pub(crate) struct EchoServerArguments {
    #[arg(long)]
    listen: Address,
    #[command(flatten)]
    device: DeviceArguments,
}

pub(crate) fn run(arguments: &EchoServerArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let server = ServerBuilder::new()
        .fabrics(&arguments.device.fabrics(false))
        .config(ServerConfig { service: SERVICE.to_owned(), ..ServerConfig::default() })
        .function(ECHO, FunctionMode::Worker)
        .serve(&arguments.listen, |_| Box::new(echo) as Box<dyn Service>)?;
    child::say_ready(server.address())?;
    interrupt.wait(None);
    server.shutdown(DRAIN);
    Ok(ExitCode::SUCCESS)
}
