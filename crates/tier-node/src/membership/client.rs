//! A node's connection to the directory.

use super::{Membership, MembershipError, Own};
use dunlin_fabric::{Address, Fabric, Host, Nanos};
use dunlin_rpc::{Client, ClientConfig};
use dunlin_tier::membership::message::{
    DIRECTORY_SERVICE, MAX_MESSAGE, MEMBER_CALL, MemberReply, MemberRequest,
};
use dunlin_tier::membership::{Identity, MembershipEvent, Standing, View};
use std::sync::Arc;
use std::time::Duration;

/// Learns views from a directory, by calls of the engine.
#[derive(Debug)]
pub struct DirectoryClient<F: Fabric> {
    fabric: F,
    address: Address,
    period: Duration,
    token: Vec<u8>,
    standing: Standing,
    /// Connects again by itself.
    client: Option<Client<F>>,
}

impl<F: Fabric> DirectoryClient<F> {
    /// Makes a client of the directory at `address` for a node, which reports itself after each `period`. Connects with the
    /// first call.
    pub fn new(fabric: &F, address: Address, identity: Identity, period: Duration, token: Vec<u8>) -> Self {
        let standing = Standing::new(identity);
        DirectoryClient { fabric: fabric.clone(), address, period, token, standing, client: None }
    }

    fn ask(&mut self, request: &MemberRequest, until: Nanos) -> Result<MemberReply, MembershipError> {
        let left = Duration::from_nanos(until.saturating_sub(self.fabric.host().now()));
        let mut client = match self.client.take() {
            Some(client) => client,
            None => {
                let config = ClientConfig {
                    window: 1,
                    connect_timeout: left,
                    max_response: MAX_MESSAGE as u64,
                    large_memory: 2 * MAX_MESSAGE as u64,
                    service: DIRECTORY_SERVICE.to_owned(),
                    program: "tier node".to_owned(),
                    token: self.token.clone(),
                    ..ClientConfig::default()
                };
                let connected = Client::connect(&self.fabric, &self.address, config);
                connected
                    .map_err(|source| MembershipError::Connect { address: self.address.clone(), source })?
            }
        };
        let reply = match client.within(left).call(MEMBER_CALL, &request.encode()) {
            Ok(answer) => MemberReply::parse(&answer).map_err(|_| MembershipError::Answer),
            // The next attempt connects to the next life of the directory.
            Err(source) => return Err(MembershipError::Call { address: self.address.clone(), source }),
        };
        self.client = Some(client);
        reply
    }
}

impl<F: Fabric> Membership for DirectoryClient<F> {
    fn period(&self) -> Option<Duration> {
        Some(self.period)
    }

    fn renew(&mut self, until: Nanos) -> Result<MembershipEvent, MembershipError> {
        let request = self.standing.request();
        let reply = self.ask(&request, until)?;
        Ok(self.standing.take(reply))
    }

    fn view(&self) -> Arc<View> {
        Arc::clone(self.standing.view())
    }

    fn own(&self) -> Option<Own> {
        self.standing.joined().map(|(number, incarnation)| Own { number, incarnation })
    }

    fn leave(&mut self, until: Nanos) -> Result<(), MembershipError> {
        let Some(request) = self.standing.leave() else { return Ok(()) };
        match self.ask(&request, until)? {
            MemberReply::Current => Ok(()),
            MemberReply::Wait => Err(MembershipError::Waiting),
            _ => Err(MembershipError::Answer),
        }
    }
}
