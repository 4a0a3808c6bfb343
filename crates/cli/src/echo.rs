//! The echo function that every server of this command offers, and the server of `dunlin ping` that offers nothing
//! else.

use crate::arguments::DeviceArguments;
use crate::child;
use crate::interrupt::Interrupt;
use crate::output::Failure;
use clap::Args;
use dunlin::{Address, DefaultFabric, FunctionMode, Reply, Request, ServerBuilder, Service, Status};
use std::process::ExitCode;

/// The function id of the echo; the key-value store's begin at 1.
pub(crate) const ECHO: u16 = 0;

/// Time that a server gives calls to end when it is asked to stop, in nanoseconds.
pub(crate) const DRAIN: u64 = 2_000_000_000;

/// Shared memory.
pub(crate) fn fabric() -> Result<DefaultFabric, Failure> {
    dunlin::fabric().map_err(|error| {
        Failure::new(format!("cannot start the shared-memory fabric: {error}"))
            .help("dunlin doctor says what is missing")
    })
}

/// Answers with the payload.
pub(crate) fn echo(request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
    reply.write(request.payload)?;
    Ok(())
}

/// Serve echoes: what 'dunlin ping' starts for itself.
#[derive(Args, Debug)]
pub(crate) struct EchoServerArguments {
    #[arg(long)]
    listen: Address,
    #[command(flatten)]
    device: DeviceArguments,
}

pub(crate) fn run(arguments: &EchoServerArguments) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::install()?;
    let server = ServerBuilder::new(&arguments.device.fabrics(false))
        .function(ECHO, FunctionMode::Worker)
        .serve(&arguments.listen, |_| Box::new(echo) as Box<dyn Service>)?;
    child::say_ready(server.address())?;
    interrupt.wait(None);
    server.shutdown(DRAIN);
    Ok(ExitCode::SUCCESS)
}
