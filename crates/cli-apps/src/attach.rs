//! The attachment of a command to the node of this host.

use clap::Args;
use dunlin::Address;
use dunlin::errors::{ConnectError, DialError};
use dunlin_command::output::Failure;
use dunlin_tier_client::{AttachConfig, AttachError, Tier, default_address};

/// Options that select the node of this host.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArguments {
    /// Address at which the node serves processes [default: DUNLIN_NODE, or shm:dunlin-node-UID]
    #[arg(long, value_name = "ADDRESS")]
    node: Option<Address>,
}

impl AttachArguments {
    /// Attaches this process.
    pub(crate) fn attach(&self) -> Result<Tier, Failure> {
        let address = match &self.node {
            Some(address) => address.clone(),
            None => default_address().map_err(AttachError::from).map_err(attach_failure)?,
        };
        let config = AttachConfig { program: "dunlin".to_owned(), ..AttachConfig::new(address) };
        Tier::attach_with(&dunlin_command::shared_memory()?, config).map_err(attach_failure)
    }
}

fn attach_failure(error: AttachError) -> Failure {
    let help = match &error {
        AttachError::Connect(ConnectError::Dial(DialError::NobodyListens { .. })) => {
            Some("start a node with: dunlin node run")
        }
        AttachError::Connect(ConnectError::Dial(DialError::Permission { .. })) => {
            Some("run both as the same user, or start the node with --allow-anyone")
        }
        _ => None,
    };
    let failure = Failure::new(error);
    match help {
        Some(help) => failure.help(help),
        None => failure,
    }
}
