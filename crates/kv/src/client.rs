//! The client of the store: routes each key to the worker that owns it.

use crate::hash::partition_of;
use crate::partition::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH, PutOutcome, Stats};
use crate::protocol::{
    Function, MultiGetRequest, MultiGetResponse, ProtocolError, PutRequest, Status, parse_put_response,
    parse_stats,
};
use crate::service::SERVICE;
use dunlin_fabric::{Address, Fabric};
use dunlin_rpc::{CallError, CallId, Client, ClientConfig, ConnectError};
use thiserror::Error;

/// An operation on the store failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KvError {
    /// The call failed; the error tells whether it may have been executed.
    #[error(transparent)]
    Call(CallError),
    /// The store refused the operation.
    #[error("{0}")]
    Refused(Status),
    /// The response is not valid.
    #[error("the server's answer cannot be understood")]
    Answer(#[from] ProtocolError),
    /// The length of the key or value is out of bounds; nothing was sent.
    #[error(
        "keys have 1 to {MAX_KEY_LENGTH} bytes and values at most {MAX_VALUE_LENGTH}; this {what} has {length}"
    )]
    Length {
        /// `key` or `value`.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
}

impl From<CallError> for KvError {
    fn from(error: CallError) -> Self {
        match refused(&error) {
            Some(status) => KvError::Refused(status),
            None => KvError::Call(error),
        }
    }
}

/// Returns the store's status in a call's error, if the error came from the store.
pub fn refused(error: &CallError) -> Option<Status> {
    match error {
        CallError::Application { code, .. } => Status::from_wire(*code),
        _ => None,
    }
}

/// A client of the store, for one thread.
#[derive(Debug)]
pub struct KvClient<F: Fabric> {
    client: Client<F>,
    scratch: Vec<u8>,
}

impl<F: Fabric> KvClient<F> {
    /// Connects to all workers of a store's server. Asks for the store by its name ([`SERVICE`]) unless the
    /// settings have another name. Blocks.
    pub fn connect(fabric: &F, address: &Address, mut config: ClientConfig) -> Result<Self, ConnectError> {
        // Routing needs every worker.
        config.worker = None;
        if config.service.is_empty() {
            config.service = SERVICE.to_owned();
        }
        Ok(KvClient { client: Client::connect(fabric, address, config)?, scratch: Vec::with_capacity(4096) })
    }

    /// Makes a client of the same store for another thread: with a connection of its own, or at the same one, as
    /// the plan's sharing says ([`Client::another`]). Blocks.
    pub fn another(&self) -> Result<Self, ConnectError> {
        Ok(KvClient { client: self.client.another()?, scratch: Vec::with_capacity(4096) })
    }

    /// Returns the underlying RPC client, for progress and outcomes.
    pub fn rpc(&mut self) -> &mut Client<F> {
        &mut self.client
    }

    /// Returns the index of the worker that owns a key; 0 without a connection.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> usize {
        partition_of(key, self.client.workers().max(1))
    }

    /// Makes sure that the number of workers is known: without a connection, a key has no owner.
    #[inline]
    fn connected(&mut self) -> Result<(), CallError> {
        if self.client.workers() == 0 { self.client.ensure_connected() } else { Ok(()) }
    }

    /// Returns the owner of a key on the server that the client is connected to.
    #[inline]
    fn route(&mut self, key: &[u8]) -> Result<usize, CallError> {
        self.connected()?;
        Ok(self.owner(key))
    }

    /// Returns a copy of a key's value; `None` if the key is not stored. Blocks.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        check_key(key)?;
        let owner = self.route(key)?;
        match self.client.call_on(owner, Function::Get.id(), key) {
            Ok(value) => Ok(Some(value.to_vec())),
            Err(error) if refused(&error) == Some(Status::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores a value. Blocks.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<PutOutcome, KvError> {
        check_key(key)?;
        check_value(value)?;
        let owner = self.route(key)?;
        encode(&PutRequest { key, value }, &mut self.scratch)?;
        let answer = self.client.call_on(owner, Function::Put.id(), &self.scratch)?;
        Ok(parse_put_response(&answer)?)
    }

    /// Deletes a key; returns whether it was there. Blocks.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, KvError> {
        check_key(key)?;
        let owner = self.route(key)?;
        match self.client.call_on(owner, Function::Delete.id(), key) {
            Ok(_) => Ok(true),
            Err(error) if refused(&error) == Some(Status::NotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the values of many keys, in their order. Sends one message to each worker that owns some of
    /// them, all at once. Blocks.
    pub fn multiget(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        self.connected()?;
        let workers = self.client.workers().max(1);
        let mut by_owner: Vec<Vec<usize>> = vec![Vec::new(); workers];
        for (index, key) in keys.iter().enumerate() {
            by_owner[partition_of(key, workers)].push(index);
        }
        let mut calls = Vec::new();
        for (owner, indices) in by_owner.iter().enumerate().filter(|(_, indices)| !indices.is_empty()) {
            let mine: Vec<&[u8]> = indices.iter().map(|index| keys[*index]).collect();
            self.scratch.resize(MultiGetRequest::encoded_length(&mine), 0);
            let length = MultiGetRequest::encode(&mine, &mut self.scratch)?;
            calls.push((
                self.client.submit_on(owner, Function::MultiGet.id(), &self.scratch[..length])?,
                indices,
            ));
        }
        let mut values = vec![None; keys.len()];
        for (call, indices) in calls {
            let answer = self.client.wait(call)?;
            for (value, index) in MultiGetResponse::parse(&answer, indices.len())?.zip(indices) {
                values[*index] = value.map(<[u8]>::to_vec);
            }
        }
        Ok(values)
    }

    /// Returns the counters of each worker's partition. Blocks.
    pub fn stats(&mut self) -> Result<Vec<Stats>, KvError> {
        self.connected()?;
        (0..self.client.workers())
            .map(|worker| Ok(parse_stats(&self.client.call_on(worker, Function::Stats.id(), &[])?)?))
            .collect()
    }

    /// Submits a GET as a single message.
    #[inline]
    pub fn submit_get(&mut self, key: &[u8]) -> Result<CallId, CallError> {
        let owner = self.route(key)?;
        self.client.submit_on(owner, Function::Get.id(), key)
    }

    /// Adds a GET to the owner's batch.
    #[inline]
    pub fn push_get(&mut self, key: &[u8]) -> Result<CallId, CallError> {
        let owner = self.route(key)?;
        self.client.push_on(owner, Function::Get.id(), key)
    }

    /// Submits a PUT as a single message.
    #[inline]
    pub fn submit_put(&mut self, key: &[u8], value: &[u8]) -> Result<CallId, KvError> {
        check_value(value)?;
        let owner = self.route(key)?;
        encode(&PutRequest { key, value }, &mut self.scratch)?;
        Ok(self.client.submit_on(owner, Function::Put.id(), &self.scratch)?)
    }

    /// Adds a PUT to the owner's batch.
    #[inline]
    pub fn push_put(&mut self, key: &[u8], value: &[u8]) -> Result<CallId, KvError> {
        check_value(value)?;
        let owner = self.route(key)?;
        encode(&PutRequest { key, value }, &mut self.scratch)?;
        Ok(self.client.push_on(owner, Function::Put.id(), &self.scratch)?)
    }
}

fn check_key(key: &[u8]) -> Result<(), KvError> {
    if key.is_empty() || key.len() > MAX_KEY_LENGTH {
        return Err(KvError::Length { what: "key", length: key.len() });
    }
    Ok(())
}

fn check_value(value: &[u8]) -> Result<(), KvError> {
    if value.len() > MAX_VALUE_LENGTH {
        return Err(KvError::Length { what: "value", length: value.len() });
    }
    Ok(())
}

#[inline]
fn encode(request: &PutRequest<'_>, scratch: &mut Vec<u8>) -> Result<(), ProtocolError> {
    scratch.resize(request.encoded_length(), 0);
    request.encode(scratch).map(|_| ())
}
