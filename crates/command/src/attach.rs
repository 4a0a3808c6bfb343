//! The attachment of a command to the node of this host.

use crate::output::Failure;
use clap::Args;
use dunlin::Address;
use dunlin::errors::{ConnectError, DialError};
use dunlin_tier_client::{AttachConfig, AttachError, Priority, Tier, default_address};

/// Options that select the node of this host.
#[derive(Args, Clone, Debug)]
pub struct AttachArguments {
    /// Address at which the node serves processes [default: DUNLIN_NODE, or shm:dunlin-node-UID]
    #[arg(long, value_name = "ADDRESS")]
    node: Option<Address>,
}

/// The option for the priority of a command at the node of this host.
#[derive(Args, Clone, Copy, Debug)]
pub struct PriorityArguments {
    /// Priority of this command at the node: high or low, which leaves the paths to others [default: the highest that your
    /// principal may have]
    #[arg(long, value_parser = priority, value_name = "PRIORITY")]
    priority: Option<Priority>,
}

fn priority(text: &str) -> Result<Priority, String> {
    match text {
        "high" => Ok(Priority::High),
        "low" => Ok(Priority::Low),
        _ => Err(format!("'{text}' is no priority: use high or low")),
    }
}

impl AttachArguments {
    /// Attaches this process. Blocks for 5 s at most. An error includes advice.
    pub fn attach(&self) -> Result<Tier, Failure> {
        self.attach_as(PriorityArguments { priority: None })
    }

    /// As [`attach`](AttachArguments::attach), with a priority.
    pub fn attach_as(&self, PriorityArguments { priority }: PriorityArguments) -> Result<Tier, Failure> {
        let address = match &self.node {
            Some(address) => address.clone(),
            None => default_address().map_err(AttachError::from).map_err(attach_failure)?,
        };
        let config = AttachConfig { program: "dunlin".to_owned(), priority, ..AttachConfig::new(address) };
        Tier::attach_with(&crate::shared_memory()?, config).map_err(attach_failure)
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
