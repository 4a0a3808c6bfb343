//! Work requests that wait for others, to be posted with them under one doorbell.

use dunlin_fabric::{
    AddressHandleId, Data, ListError, Memory, Operation, PostError, QueuePairId, RegionKey, ThreadDomain,
    WorkId, WorkRequest,
};
use std::ops::Range;

/// The most requests that wait: a message and its notification fit behind them.
pub(crate) const MOST: usize = PLACES - 2;
/// The most places of a list: it lies on the stack while it is posted.
const PLACES: usize = 32;
/// The longest inline data that is kept. Longer data lies in a buffer.
pub(crate) const MAX_KEPT: usize = 512;

/// An operation that waits.
#[derive(Debug)]
enum Waiting<M: Memory> {
    /// An operation without inline data; `None` only while it is being posted.
    Whole(Option<Operation<'static, M>>),
    /// An operation with inline data, which is copied: its range of the list's bytes.
    Inline { to: To, immediate: Option<u32>, bytes: Range<usize> },
}

/// The destination of inline data.
#[derive(Clone, Copy, Debug)]
enum To {
    Write { key: RegionKey, offset: u64 },
    Send(Option<AddressHandleId>),
}

impl To {
    fn operation<M: Memory>(self, data: Data<'_, M>, immediate: Option<u32>) -> Operation<'_, M> {
        match self {
            To::Write { key, offset } => Operation::Write { data, key, offset, immediate },
            To::Send(to) => Operation::Send { data, immediate, to },
        }
    }
}

/// A request that waits.
#[derive(Debug)]
struct Request<M: Memory> {
    id: WorkId,
    signaled: bool,
    operation: Waiting<M>,
}

/// The requests that wait, in order. Allocates only while it grows.
#[derive(Debug)]
pub(crate) struct Listed<M: Memory> {
    requests: Vec<Request<M>>,
    bytes: Vec<u8>,
}

impl<M: Memory> Listed<M> {
    pub(crate) fn new() -> Self {
        Listed { requests: Vec::new(), bytes: Vec::new() }
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request. Inline data is copied. The caller keeps to [`MOST`] requests and [`MAX_KEPT`] bytes each.
    pub(crate) fn push(&mut self, request: WorkRequest<'_, M>) {
        let WorkRequest { id, operation, signaled } = request;
        let mut inline = |parts: &[&[u8]], to, immediate| {
            let start = self.bytes.len();
            parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
            Waiting::Inline { to, immediate, bytes: start..self.bytes.len() }
        };
        let operation = match operation {
            Operation::Write { data: Data::Inline(parts), key, offset, immediate } => {
                inline(parts, To::Write { key, offset }, immediate)
            }
            Operation::Send { data: Data::Inline(parts), immediate, to } if !parts.is_empty() => {
                inline(parts, To::Send(to), immediate)
            }
            whole => Waiting::Whole(owned(whole)),
        };
        self.requests.push(Request { id, signaled, operation });
    }

    /// Posts all requests, and `last` behind them, with one doorbell. After [`PostError::QueueFull`] all still wait,
    /// without `last`.
    pub(crate) fn post<'a, D: ThreadDomain<Memory = M>>(
        &'a mut self,
        domain: &mut D,
        queue_pair: QueuePairId,
        last: [Option<WorkRequest<'a, M>>; 2],
    ) -> Result<(), PostError> {
        let Listed { requests, bytes } = self;
        let inline: [[&[u8]; 1]; PLACES] = std::array::from_fn(|at| {
            [requests.get(at).and_then(|request| bytes.get(request.inline()?)).unwrap_or_default()]
        });
        let mut list = [const { None }; PLACES];
        for ((request, parts), place) in requests.iter_mut().zip(&inline).zip(&mut list) {
            let operation = match &mut request.operation {
                Waiting::Whole(operation) => operation.take(),
                Waiting::Inline { to, immediate, .. } => Some(to.operation(Data::Inline(parts), *immediate)),
            };
            *place = operation.map(|operation| WorkRequest {
                id: request.id,
                operation,
                signaled: request.signaled,
            });
        }
        let own = requests.len().min(MOST);
        list[own..].iter_mut().zip(last).for_each(|(place, last)| *place = last);
        let posted = domain.post_list(queue_pair, &mut list[..own + 2]);
        if let Err(ListError { error: PostError::QueueFull, .. }) = posted {
            for (request, place) in requests.iter_mut().zip(&mut list[..own]) {
                if let Waiting::Whole(operation) = &mut request.operation {
                    *operation = place.take().and_then(|request| owned(request.operation));
                    if operation.is_none() {
                        // A device that reports a full queue by itself has taken the buffer.
                        return Err(PostError::QueuePairError);
                    }
                }
            }
            return Err(PostError::QueueFull);
        }
        drop(list);
        self.requests.clear();
        self.bytes.clear();
        posted.map_err(|refused| refused.error)
    }
}

impl<M: Memory> Request<M> {
    /// Returns where its inline data lies.
    fn inline(&self) -> Option<Range<usize>> {
        match &self.operation {
            Waiting::Whole(_) => None,
            Waiting::Inline { bytes, .. } => Some(bytes.clone()),
        }
    }
}

/// Returns an operation that borrows nothing; `None` if it has inline data.
fn owned<M: Memory>(operation: Operation<'_, M>) -> Option<Operation<'static, M>> {
    let data = |data: Data<'_, M>| match data {
        Data::Inline([]) => Some(Data::Inline(&[])),
        Data::Inline(_) => None,
        Data::Buffer(buffer) => Some(Data::Buffer(buffer)),
        Data::Gather(gather) => Some(Data::Gather(gather)),
        Data::Region(range) => Some(Data::Region(range)),
    };
    Some(match operation {
        Operation::Send { data: bytes, immediate, to } => {
            Operation::Send { data: data(bytes)?, immediate, to }
        }
        Operation::Write { data: bytes, key, offset, immediate } => {
            Operation::Write { data: data(bytes)?, key, offset, immediate }
        }
        Operation::Read { from, into } => Operation::Read { from, into },
        Operation::ReadInto { from, into } => Operation::ReadInto { from, into },
        Operation::FetchAdd { key, offset, add } => Operation::FetchAdd { key, offset, add },
        Operation::CompareSwap { key, offset, expected, swap } => {
            Operation::CompareSwap { key, offset, expected, swap }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::{
        Access, Address, Arena, Fabric, Link, Listener, QueuePairConfig, Region, RemoteSlice, Scheme,
        WaitMode,
    };
    use dunlin_fabric_sim::Sim;

    const FOREVER: u64 = u64::MAX;

    /// A list without room goes on waiting whole, and the message behind it does not.
    #[test]
    fn what_finds_no_room_is_posted_later() {
        Sim::run(1, |fabric| {
            let address = Address::new(Scheme::Sim, "listed").unwrap();
            let listener = fabric.listen(&address).unwrap();
            let link = fabric.dial(&address, FOREVER).unwrap();
            let far_link = listener.accept(FOREVER).unwrap();
            let both = Access::READ.with(Access::WRITE);
            let region = Region::new(fabric.register(4096, both).unwrap());
            let end = |link: &_| {
                let mut domain = fabric.domain().unwrap();
                let queue = domain.create_completion_queue(64, false).unwrap();
                let config = QueuePairConfig { max_send: 6, ..QueuePairConfig::reliable(queue, queue) };
                let pair = domain.create_queue_pair(&config).unwrap();
                let endpoint = domain.endpoint(pair, link).unwrap();
                (domain, queue, pair, endpoint)
            };
            let (mut domain, queue, pair, endpoint) = end(&link);
            let (mut far, _, far_pair, far_endpoint) = end(&far_link);
            domain.connect(pair, &link, &far_endpoint).unwrap();
            far.connect(far_pair, &far_link, &endpoint).unwrap();
            let key = far_link.grant(region.memory(), both).unwrap();
            let arena = Arena::new(fabric.register(1 << 16, Access::LOCAL).unwrap()).unwrap();
            let buffer = |byte: u8| {
                let mut buffer = arena.reserve(8).unwrap();
                buffer.fill(byte);
                buffer
            };
            let write = |id, data, offset| WorkRequest {
                id: WorkId(id),
                operation: Operation::Write { data, key, offset, immediate: None },
                signaled: true,
            };
            for id in 0..2 {
                domain.post(pair, write(id, Data::Buffer(buffer(1)), 0)).unwrap();
            }
            let mut list = Listed::new();
            list.push(write(2, Data::Inline(&[&[2; 3], &[3; 5]]), 8));
            list.push(write(3, Data::Buffer(buffer(4)), 16));
            let operation = Operation::Read {
                from: RemoteSlice { key, offset: 0, length: 24 },
                into: arena.reserve(24).unwrap(),
            };
            list.push(WorkRequest { id: WorkId(4), operation, signaled: true });
            region.copy_in(64, &[4; 8]);
            list.push(write(7, Data::Region(region.range(65, 6).unwrap()), 33));
            let from = RemoteSlice { key, offset: 32, length: 8 };
            let operation = Operation::ReadInto { from, into: region.range(72, 8).unwrap() };
            list.push(WorkRequest { id: WorkId(8), operation, signaled: true });
            let message = [Some(write(5, Data::Inline(&[&[5; 8]]), 24)), None];
            assert_eq!(list.post(&mut domain, pair, message), Err(PostError::QueueFull));
            assert_eq!(list.count(), 5);
            let mut found = Vec::new();
            let mut wait = |domain: &mut <Sim as Fabric>::Domain, number: usize| {
                while found.len() < number {
                    let armed = domain.arm(WaitMode::Busy);
                    match domain.poll(queue, &mut found, 64) {
                        0 => drop(domain.wait(armed, FOREVER)),
                        _ => domain.disarm(armed),
                    }
                }
                found.iter().map(|completion| completion.id.0).collect::<Vec<_>>()
            };
            assert_eq!(wait(&mut domain, 2), [0, 1]);
            let message = [Some(write(6, Data::Inline(&[&[6; 8]]), 24)), None];
            assert_eq!(list.post(&mut domain, pair, message), Ok(()));
            assert_eq!(list.count(), 0);
            assert_eq!(wait(&mut domain, 8), [0, 1, 2, 3, 4, 7, 8, 6]);
            let read = found[4].buffer.take().unwrap();
            assert_eq!(*read, [[1; 8], [2, 2, 2, 3, 3, 3, 3, 3], [4; 8]].concat());
            assert_eq!(region.load(24), u64::from_le_bytes([6; 8]));
            assert_eq!(region.load(72), u64::from_le_bytes([0, 4, 4, 4, 4, 4, 4, 0]));
        })
        .unwrap();
    }
}
