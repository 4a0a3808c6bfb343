//! The attachment of a command to the node of this host.

use crate::output::Failure;
use clap::Args;
use dunlin::Address;
use dunlin::errors::{ConnectError, DialError};
use dunlin_tier_client::{AttachConfig, AttachError, Priority, Tier, Token, default_address, read_secret};
use std::path::PathBuf;

/// Options that select the node of this host.
#[derive(Args, Clone, Debug)]
pub struct AttachArguments {
    /// Address at which the node serves processes [default: DUNLIN_NODE, or shm:dunlin-node-UID]
    #[arg(long, value_name = "ADDRESS")]
    node: Option<Address>,
    /// File with the token that names your principal at the node; no other user may read it [default: that which
    /// DUNLIN_NODE_TOKEN_FILE names, if it is set; else your user is the principal]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
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
        let token = match &self.token_file {
            Some(path) => Token(read_secret(path).map_err(Failure::new)?),
            None => Token::default(),
        };
        let program = "dunlin".to_owned();
        let config = AttachConfig { program, priority, token, ..AttachConfig::new(address) };
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
        AttachError::Unauthorised(_) => {
            Some("give --token-file a token that the node has in the file of its --principals")
        }
        _ => None,
    };
    let failure = Failure::new(error);
    match help {
        Some(help) => failure.help(help),
        None => failure,
    }
}
