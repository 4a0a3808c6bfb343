//! `dunlin kv get`, `put` and `delete`: one operation each.

use super::ConnectArguments;
use clap::Args;
use dunlin::on_fabric;
use dunlin_command::output::{self, Failure};
use dunlin_kv::MAX_VALUE_LENGTH;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

/// Calls in flight; only one is needed.
const WINDOW: u16 = 4;

/// Print the value of a key, byte for byte.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: 0 with the value on standard output; 1 if the key is not stored, or if the call failed.

Examples:
  dunlin kv get shm:store greeting
  dunlin kv get shm:store photo > photo.jpg")]
pub(crate) struct GetArguments {
    #[command(flatten)]
    connect: ConnectArguments,
    /// The key, 1 to 250 bytes
    key: OsString,
}

/// Store a value under a key.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  dunlin kv put shm:store greeting hello
  dunlin kv put shm:store photo - < photo.jpg")]
pub(crate) struct PutArguments {
    #[command(flatten)]
    connect: ConnectArguments,
    /// The key, 1 to 250 bytes
    key: OsString,
    /// The value, at most 1 MiB; '-' reads it from standard input
    value: OsString,
}

/// Delete a key.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: 0 if the key was deleted; 1 if it was not stored, or if the call failed.

Example:
  dunlin kv delete shm:store greeting")]
pub(crate) struct DeleteArguments {
    #[command(flatten)]
    connect: ConnectArguments,
    /// The key, 1 to 250 bytes
    key: OsString,
}

fn not_found(key: &[u8]) -> Failure {
    Failure::new(format!("the key '{}' is not stored", String::from_utf8_lossy(key)))
}

pub(crate) fn get(arguments: &GetArguments) -> Result<ExitCode, Failure> {
    let key = arguments.key.clone().into_vec();
    let (chosen, address) = arguments.connect.choose()?;
    let value =
        on_fabric!(&chosen, fabric => arguments.connect.connect(fabric, &address, WINDOW)?.get(&key)?);
    let Some(mut value) = value else {
        return Err(not_found(&key));
    };
    if std::io::stdout().is_terminal() {
        value.push(b'\n');
    }
    output::print(value)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn put(arguments: &PutArguments) -> Result<ExitCode, Failure> {
    let key = arguments.key.clone().into_vec();
    let value =
        if arguments.value == "-" {
            let mut value = Vec::new();
            // One byte over the limit is enough to detect it.
            let most = MAX_VALUE_LENGTH as u64 + 1;
            std::io::stdin().lock().take(most).read_to_end(&mut value).map_err(|error| {
                Failure::new(format!("cannot read the value from standard input: {error}"))
            })?;
            value
        } else {
            arguments.value.clone().into_vec()
        };
    if value.len() > MAX_VALUE_LENGTH {
        return Err(Failure::new("the value has more than 1 MiB").help("split it over several keys"));
    }
    let (chosen, address) = arguments.connect.choose()?;
    on_fabric!(&chosen, fabric => arguments.connect.connect(fabric, &address, WINDOW)?.put(&key, &value)?);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn delete(arguments: &DeleteArguments) -> Result<ExitCode, Failure> {
    let key = arguments.key.clone().into_vec();
    let (chosen, address) = arguments.connect.choose()?;
    if on_fabric!(&chosen, fabric => arguments.connect.connect(fabric, &address, WINDOW)?.delete(&key)?) {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(not_found(&key))
    }
}
