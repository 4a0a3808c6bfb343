//! libfabric's part of control connections: a grant is a memory region of its own, under a key that Dunlin
//! chooses.

use crate::device::Device;
use crate::memory::{Grant, OfiMemory};
use dunlin_fabric::{Access, GrantError, Host, Memory, RealHost, Scheme, nanos};
use dunlin_fabric_control::{Backend, Greeting, Limits, Place};
use std::io;
use std::sync::Arc;

/// A provider, as its control connections use it.
#[derive(Debug)]
pub struct OfiBackend {
    pub(crate) device: Arc<Device>,
}

impl Backend for OfiBackend {
    type Memory = OfiMemory;
    type Registration = Grant;

    const SCHEME: Scheme = Scheme::Ofi;
    const THREAD: &'static str = "dunlin-ofi-control";

    fn greeting(&self) -> Greeting {
        Greeting { magic: *b"DunlinOF", version: 3 }
    }

    fn limits(&self) -> Limits {
        let config = &self.device.config;
        Limits { max_grants: config.max_grants_per_link, greeting_patience: nanos(config.greeting_patience) }
    }

    /// Makes a region with its own key for each grant, since a provider's keys are valid for every peer. If
    /// the provider lets the user choose keys, the key is random and cannot be guessed.
    fn grant(&self, memory: &Arc<OfiMemory>, access: Access) -> Result<(Grant, Place), GrantError> {
        if !memory.is_of(&self.device) {
            return Err(io::Error::other("it was registered with another fabric").into());
        }
        if self.device.retired.is_full() {
            let why = "too much memory that was granted before waits for connections to close";
            return Err(io::Error::other(why).into());
        }
        let grant = Grant::new(memory, access, RealHost.random())?;
        let remote = grant.remote();
        let place = Place { remote_key: remote.key, address: remote.address, length: memory.length() as u64 };
        Ok((grant, place))
    }
}
