//! The fabric by itself beside the memory tier: one WRITE or READ on a queue pair of this thread.

use std::fmt::Debug;
use std::sync::Arc;

use dunlin_fabric::{
    Access, Address, Arena, Completion, Data, Endpoint, Fabric, Host, Link, Listener, Operation,
    QueuePairConfig, QueuePairId, RegionKey, RemoteSlice, ThreadDomain, WorkId, WorkRequest,
};

/// The time to connect, in nanoseconds.
const CONNECT: u64 = 5_000_000_000;

/// A queue pair to memory of the other end of a connection, which is in this process, too: the copy is the same.
pub(super) struct Bare<F: Fabric> {
    // The domains are dropped before their links and memory.
    domain: F::Domain,
    _peer: F::Domain,
    completions: dunlin_fabric::CompletionQueueId,
    queue_pair: QueuePairId,
    key: RegionKey,
    staging: Arena<F::Memory>,
    max_inline: usize,
    found: Vec<Completion<F::Memory>>,
    _links: [F::Link; 2],
    _memory: Arc<F::Memory>,
}

fn text(error: impl Debug) -> String {
    format!("{error:?}")
}

impl<F: Fabric> Bare<F> {
    /// Connects a queue pair to `length` bytes of memory. Blocks for some milliseconds.
    pub(super) fn new(fabric: &F, address: &Address, length: u64) -> Result<Self, String> {
        let until = fabric.host().now() + CONNECT;
        let listener = fabric.listen(address).map_err(text)?;
        let (near, far) = std::thread::scope(|scope| {
            let dialled = scope.spawn(|| fabric.dial(address, until).map_err(text));
            let far = listener.accept(until).map_err(text);
            let near = dialled.join().unwrap_or_else(|_| Err("dialling panicked".to_owned()));
            Ok::<_, String>((near?, far?))
        })?;
        let memory = Arc::new(
            fabric.register(length, Access::LOCAL.with(Access::READ).with(Access::WRITE)).map_err(text)?,
        );
        let key = far.grant(&memory, Access::READ.with(Access::WRITE)).map_err(text)?;
        let end = || -> Result<_, String> {
            let mut domain = fabric.domain().map_err(text)?;
            let completions = domain.create_completion_queue(16, false).map_err(text)?;
            let config = QueuePairConfig::reliable(completions, completions);
            let queue_pair = domain.create_queue_pair(&config).map_err(text)?;
            Ok((domain, completions, queue_pair))
        };
        let ((mut domain, completions, queue_pair), (mut peer, _, other)) = (end()?, end()?);
        let endpoint = |domain: &mut F::Domain, queue_pair, link: &F::Link, other: &F::Link| {
            let Endpoint(bytes) = domain.endpoint(queue_pair, link).map_err(text)?;
            link.send(&bytes).map_err(text)?;
            other.receive(until).map(Endpoint).map_err(text)
        };
        let of_near = endpoint(&mut domain, queue_pair, &near, &far)?;
        let of_far = endpoint(&mut peer, other, &far, &near)?;
        peer.connect(other, &far, &of_near).map_err(text)?;
        domain.connect(queue_pair, &near, &of_far).map_err(text)?;
        let staging = Arena::new(fabric.register(4 * length, Access::LOCAL).map_err(text)?).map_err(text)?;
        Ok(Bare {
            domain,
            _peer: peer,
            completions,
            queue_pair,
            key,
            staging,
            max_inline: fabric.capabilities().max_inline as usize,
            found: Vec::with_capacity(1),
            _links: [near, far],
            _memory: memory,
        })
    }

    /// Posts a request and polls until it is complete.
    fn run(&mut self, operation: Operation<'_, F::Memory>) -> Result<Completion<F::Memory>, String> {
        let request = WorkRequest { id: WorkId(1), operation, signaled: true };
        self.domain.post(self.queue_pair, request).map_err(text)?;
        loop {
            self.domain.poll(self.completions, &mut self.found, 1);
            if let Some(completion) = self.found.pop() {
                return Ok(completion);
            }
        }
    }

    /// Writes bytes at the beginning of the memory.
    pub(super) fn write(&mut self, from: &[u8]) -> Result<(), String> {
        let (key, parts) = (self.key, [from]);
        let data = match from.len() <= self.max_inline {
            true => Data::Inline(&parts),
            false => {
                let mut buffer = self.staging.reserve(from.len()).map_err(text)?;
                buffer.copy_from_slice(from);
                Data::Buffer(buffer)
            }
        };
        self.run(Operation::Write { data, key, offset: 0, immediate: None }).map(drop)
    }

    /// Reads bytes from the beginning of the memory.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<(), String> {
        let room = self.staging.reserve(into.len()).map_err(text)?;
        let from = RemoteSlice { key: self.key, offset: 0, length: into.len() as u32 };
        let completion = self.run(Operation::Read { from, into: room })?;
        let buffer = completion.buffer.ok_or("a READ without its buffer")?;
        into.copy_from_slice(&buffer[..into.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::Scheme;
    use dunlin_fabric_shm::{ShmConfig, ShmFabric};

    #[test]
    fn bytes_come_back() {
        let fabric = ShmFabric::new(ShmConfig::default()).unwrap();
        let address = Address::new(Scheme::Shm, &format!("bare-{}", std::process::id())).unwrap();
        let mut bare = Bare::new(&fabric, &address, 1 << 20).unwrap();
        for length in [64, 4096, 1 << 20] {
            let from: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut into = vec![0; length];
            bare.write(&from).unwrap();
            bare.read(&mut into).unwrap();
            assert_eq!(from, into, "{length}");
        }
    }
}
