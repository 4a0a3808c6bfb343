//! Servers of the engine in this process, made known at the node of this host: clients of any node reach them by
//! `node:SERVICE`.

use crate::attachment::Attachment;
use crate::tier::Tier;
use dunlin_fabric::{Address, Fabric};
use dunlin_fabric_shm::ShmFabric;
use dunlin_tier::Name;
use dunlin_tier::message::Malformed;
use dunlin_tier::process::service::ServiceRequest;
use dunlin_tier_node::RequestError;
use std::sync::Arc;
use std::time::Duration;

/// The time of the request by which a dropped registration is given up.
const GIVE_UP_TIME: Duration = Duration::from_secs(1);

/// A server that is known at the node of this host: [`Tier::announce`]. Dropping it ends that: a request to the node,
/// which blocks for 1 s at most. Calls that the server has are not affected.
#[derive(Debug)]
pub struct Announced<P: Fabric = ShmFabric> {
    attachment: Arc<Attachment<P>>,
    registration: u64,
}

impl<P: Fabric> Tier<P> {
    /// Makes a server of this process known at the node of this host, for all functions of a service. The node connects
    /// to `address` with the first call, and refuses to if another process serves there. Ends with the value, with the
    /// process in any way, and with the node. Blocks until [`AttachConfig::timeout`](crate::AttachConfig::timeout) at
    /// most.
    ///
    /// # Errors
    /// [`RequestError::Registered`] if the service, or a function of it, is registered at this node, by whomever.
    pub fn announce(
        &self,
        service: impl AsRef<[u8]>,
        address: &Address,
    ) -> Result<Announced<P>, RequestError> {
        let attachment = self.attachment();
        let address = address.to_string();
        let request = ServiceRequest::RegisterServer { service: Name::new(service)?, address: &address };
        let number = |answer: &[u8]| answer.try_into().map(u64::from_le_bytes).map_err(|_| Malformed);
        let registration = attachment.serve_call(&request, attachment.config.timeout, number)?;
        Ok(Announced { attachment: Arc::clone(attachment), registration })
    }
}

impl<P: Fabric> Announced<P> {
    /// Checks that the node knows this process still. Blocks for `time` at most.
    ///
    /// # Errors
    /// The node has ended, or does not answer. [`Tier::announce`] makes the server known to its next life.
    pub fn check(&self, time: Duration) -> Result<(), RequestError> {
        Ok(self.attachment.serve_call(&ServiceRequest::Ping, time, |_| Ok(()))?)
    }
}

impl<P: Fabric> Drop for Announced<P> {
    fn drop(&mut self) {
        // Without an answer the node ends it with the process.
        let request = ServiceRequest::Withdraw { registration: self.registration };
        let _ = self.attachment.serve_call(&request, GIVE_UP_TIME, |_| Ok(()));
    }
}
