//! The store as a service: each worker exclusively owns one partition for reads and writes (RF-RPC section
//! 5.1), and clients send each request to the owner.

use crate::dispatch::{ResponseSink, SinkFull, handle};
use crate::error::PartitionError;
use crate::hash::KeyHash;
use crate::partition::{Partition, PartitionConfig};
use crate::protocol::Function;
use dunlin_fabric::Fabric;
use dunlin_rpc::{ApplicationCode, FunctionMode, Reply, Request, ServerBuilder, Service, Status};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the service, for which clients ask when they connect
/// ([`ServerConfig::service`](dunlin_rpc::ServerConfig::service)).
pub const SERVICE: &str = "key-value store";

/// The service of one worker, with its partition.
#[derive(Debug)]
pub struct KvService {
    partition: Partition,
}

impl KvService {
    /// Creates the partition of worker `index` of `count`, with its share of `memory` bytes.
    ///
    /// `expected_items` is the total for all partitions, for the size of the index; with `None` the index
    /// takes a fifth of the memory.
    pub fn new(
        memory: usize,
        expected_items: Option<usize>,
        index: u16,
        count: u16,
    ) -> Result<Self, PartitionError> {
        let mut config = PartitionConfig::new(memory / count.max(1) as usize);
        config.index = index as usize;
        config.count = count.max(1) as usize;
        config.expected_items = expected_items.map(|items| items / count.max(1) as usize + 1);
        Ok(KvService { partition: Partition::with_config(config)? })
    }

    /// Returns the ids of the service's functions, all of which run on the worker.
    pub fn functions() -> impl Iterator<Item = u16> {
        [Function::Get, Function::Put, Function::Delete, Function::MultiGet, Function::Stats]
            .into_iter()
            .map(Function::id)
    }

    /// Declares the service's functions.
    #[must_use]
    pub fn declare<F: Fabric>(builder: ServerBuilder<F>) -> ServerBuilder<F> {
        Self::functions().fold(builder, |builder, id| builder.function(id, FunctionMode::Worker))
    }

    /// Shares the partition between workers on several fabrics.
    pub fn shared(self) -> SharedKvService {
        SharedKvService(Arc::new(Mutex::new(self)))
    }
}

/// One partition as the service of several workers, one on each fabric of a server with an `auto:` address.
/// Each call takes a lock, which is uncontended while clients use only one fabric.
#[derive(Clone, Debug)]
pub struct SharedKvService(Arc<Mutex<KvService>>);

impl Service for SharedKvService {
    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        // A call that panicked has ended; the partition serves the others as it would without the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).call(request, reply)
    }
}

/// A reply as the destination of results.
struct Sink<'a, 'b>(&'a mut Reply<'b>);

impl ResponseSink for Sink<'_, '_> {
    #[inline]
    fn reserve(&mut self, length: usize) -> Result<&mut [u8], SinkFull> {
        let start = self.0.len();
        match self.0.reserve(start + length) {
            Ok(place) => Ok(&mut place[start..]),
            Err(_) => Err(SinkFull { needed: length }),
        }
    }
}

impl Service for KvService {
    fn passes(&self) -> usize {
        2
    }

    /// Pass 0 prefetches the buckets, pass 1 the items to which they point, as in a MULTIGET.
    #[inline]
    fn prepare(&mut self, pass: usize, function: u16, payload: &[u8]) {
        if function != Function::Get.id() {
            return;
        }
        let hash = KeyHash::of(payload);
        if pass == 0 { self.partition.prefetch(hash) } else { self.partition.prefetch_item(hash) }
    }

    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Status> {
        match handle(&mut self.partition, request.function, request.payload, &mut Sink(reply)) {
            Ok(()) => Ok(()),
            Err(status) => {
                reply.clear();
                Err(ApplicationCode::new(status.code()).map_or(Status::Malformed, Status::Application))
            }
        }
    }
}
