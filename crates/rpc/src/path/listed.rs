//! Work requests that wait for others, to be posted with them under one doorbell.

use dunlin_fabric::{
    Data, ListError, MAX_LIST, Memory, Operation, PostError, QueuePairId, RegionKey, ThreadDomain, WorkId,
    WorkRequest,
};
use std::ops::Range;

/// The most requests that wait: a message and its notification fit behind them.
pub(crate) const MOST: usize = MAX_LIST - 2;
/// The longest inline data that is kept. Longer data lies in a buffer.
pub(crate) const MAX_KEPT: usize = 512;

/// An operation that waits.
#[derive(Debug)]
enum Waiting<M: Memory> {
    /// An operation without inline data; `None` only while it is being posted.
    Whole(Option<Operation<'static, M>>),
    /// A WRITE of inline data, which is copied: its range of the list's bytes.
    Inline { key: RegionKey, offset: u64, immediate: Option<u32>, bytes: Range<usize> },
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
        Listed { requests: Vec::with_capacity(MOST), bytes: Vec::new() }
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request. Inline data is copied. The caller keeps to [`MOST`] requests and [`MAX_KEPT`] bytes.
    pub(crate) fn push(&mut self, request: WorkRequest<'_, M>) {
        let WorkRequest { id, operation, signaled } = request;
        let operation = match operation {
            Operation::Write { data: Data::Inline(parts), key, offset, immediate } => {
                let start = self.bytes.len();
                parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
                Waiting::Inline { key, offset, immediate, bytes: start..self.bytes.len() }
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
        let inline: [[&[u8]; 1]; MAX_LIST] = std::array::from_fn(|at| {
            [requests.get(at).and_then(|request| bytes.get(request.inline()?)).unwrap_or_default()]
        });
        let mut list = [const { None }; MAX_LIST];
        for ((request, parts), place) in requests.iter_mut().zip(&inline).zip(&mut list) {
            let operation = match &mut request.operation {
                Waiting::Whole(operation) => operation.take(),
                Waiting::Inline { key, offset, immediate, .. } => Some(Operation::Write {
                    data: Data::Inline(parts),
                    key: *key,
                    offset: *offset,
                    immediate: *immediate,
                }),
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
    };
    Some(match operation {
        Operation::Send { data: bytes, immediate, to } => {
            Operation::Send { data: data(bytes)?, immediate, to }
        }
        Operation::Write { data: bytes, key, offset, immediate } => {
            Operation::Write { data: data(bytes)?, key, offset, immediate }
        }
        Operation::Read { from, into } => Operation::Read { from, into },
        Operation::FetchAdd { key, offset, add } => Operation::FetchAdd { key, offset, add },
        Operation::CompareSwap { key, offset, expected, swap } => {
            Operation::CompareSwap { key, offset, expected, swap }
        }
    })
}
