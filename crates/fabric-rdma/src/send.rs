//! Converts work requests to verbs' format: checks them, links them, and posts them with one doorbell.

use crate::device::Device;
use crate::early::Early;
use crate::handles::AddressHandle;
use crate::memory::RdmaMemory;
use crate::queue_pair::{Held, QueuePair, Sent, part_of, part_of_region};
use crate::sys;
use dunlin_fabric::{
    AddressHandleId, AddressHandles, Arena, Capabilities, Data, InlineWrite, ListError, Opcode, Operation,
    PostError, QueuePairState, RegionKey, RequestKind, Transport, WorkRequest, request_name,
};
use std::fmt;
use std::sync::Arc;

/// The maximum number of parts of one message.
pub(crate) const MAX_PARTS: usize = 4;

/// The destination of datagrams of a queue pair.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) handle: AddressHandle,
    pub(crate) number: u32,
    pub(crate) qkey: u32,
}

/// The parts of a domain that posting needs.
pub(crate) struct Means<'a> {
    pub(crate) capabilities: &'a Capabilities,
    pub(crate) destinations: &'a AddressHandles<Destination>,
    /// Memory for the old values of atomics.
    pub(crate) results: Option<&'a Arena<RdmaMemory>>,
    /// The flags of requests other than READs.
    pub(crate) flags: u32,
    /// Soft-iWARP: each request with a buffer is signaled at the NIC, since a completion says nothing about
    /// earlier buffers, and short messages go inline, see [`SOFT_IWARP_SHORT`].
    pub(crate) is_soft_iwarp: bool,
    /// Memory for inline messages of more parts than verbs allows.
    pub(crate) scratch: &'a mut Vec<u8>,
    /// Memory for long lists in verbs' format.
    pub(crate) long: &'a mut LongList,
    /// The device, with which local regions have to be registered.
    pub(crate) device: &'a Arc<Device>,
}

/// On Soft-iWARP, messages of one part up to this number of bytes go inline, if the inline limit allows it.
///
/// Its kernel module copies data that fit after a frame's header (32 bytes) when it sends, from the process's
/// memory if a system call of the process sends. Every hundred frames the module's own thread takes over from
/// the system call and, if it is quick, finds the frame still marked so. It then copies from memory that it
/// has not mapped, and breaks the queue pair. Inline data are in the queue, where both find them.
const SOFT_IWARP_SHORT: u32 = 64;

/// The most places of a list that lies on the stack in verbs' format: 6 KiB.
const SHORT_LIST: usize = 32;

/// Memory for longer lists in verbs' format, used again for each.
#[derive(Default)]
pub(crate) struct LongList {
    requests: Vec<sys::SendWorkRequest>,
    parts: Vec<Parts>,
}

impl fmt::Debug for LongList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongList").field("places", &self.requests.len()).finish()
    }
}

// SAFETY: the pointers in it are used only while a list is posted, by the thread that posts it.
unsafe impl Send for LongList {}

impl LongList {
    /// Makes room for lists of a queue pair with `max_send` places, so that posting them allocates nothing.
    pub(crate) fn reserve(&mut self, max_send: u32) {
        let length = max_send as usize;
        if length > SHORT_LIST && length > self.requests.len() {
            self.requests.resize_with(length, sys::SendWorkRequest::empty);
            self.parts.resize(length, Parts::default());
        }
    }
}

/// The parts of one message in verbs' format.
type Parts = [sys::ScatterGather; MAX_PARTS];

/// The local side of a request except its parts: their number, and the memory held until it is done.
struct Local {
    count: usize,
    inline: bool,
    bytes: u32,
    held: Option<Held>,
    misaligned: bool,
}

impl Local {
    /// Returns whether Soft-iWARP would copy it into a frame when sending, and it can be copied into the
    /// queue instead.
    fn is_short(&self, opcode: Opcode, max_inline: u32) -> bool {
        let is_sent = matches!(opcode, Opcode::Send | Opcode::Write);
        is_sent && self.count == 1 && self.bytes <= SOFT_IWARP_SHORT.min(max_inline)
    }
}

#[inline]
fn part(bytes: &[u8]) -> sys::ScatterGather {
    sys::ScatterGather { address: bytes.as_ptr() as u64, length: bytes.len() as u32, local_key: 0 }
}

/// Stores the non-empty parts of an inline message, at most [`MAX_PARTS`]; returns their number.
#[inline]
fn inline_parts(pieces: &[&[u8]], parts: &mut Parts) -> usize {
    let mut count = 0;
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        parts[count] = part(piece);
        count += 1;
    }
    count
}

/// Checks the length of a message.
#[inline]
fn check_length(length: u64, limit: u32, inline_limit: Option<u32>) -> Result<(), PostError> {
    match inline_limit {
        Some(limit) if length > u64::from(limit) => Err(PostError::Inline { length: length as usize, limit }),
        _ if length > u64::from(limit) => Err(PostError::Length { length, limit }),
        _ => Ok(()),
    }
}

fn local(
    data: Data<'_, RdmaMemory>,
    limit: u32,
    max_inline: u32,
    scratch: &mut Vec<u8>,
    parts: &mut Parts,
) -> Result<Local, PostError> {
    let length = data.length();
    let inline = matches!(data, Data::Inline(_));
    check_length(length, limit, inline.then_some(max_inline))?;
    let (count, held) = match data {
        Data::Inline(pieces) if pieces.len() <= MAX_PARTS => (inline_parts(pieces, parts), None),
        Data::Inline(pieces) => {
            // Memory for all requests of a list was reserved before, so nothing moves.
            let start = scratch.len();
            pieces.iter().for_each(|piece| scratch.extend_from_slice(piece));
            (inline_parts(&[&scratch[start..]], parts), None)
        }
        Data::Buffer(buffer) => {
            parts[0] = part_of(&buffer);
            (usize::from(length > 0), Some(Held::One(buffer)))
        }
        Data::Gather(gather) => {
            let mut count = 0;
            for buffer in gather.iter().filter(|buffer| !buffer.is_empty()) {
                parts[count] = part_of(buffer);
                count += 1;
            }
            (count, Some(Held::Several(gather)))
        }
        Data::Region(range) => {
            parts[0] = part_of_region(&range, length as u32);
            (usize::from(length > 0), Some(Held::Region(range)))
        }
    };
    Ok(Local { count, inline, bytes: length as u32, held, misaligned: false })
}

const NO_IMMEDIATE: &str = "this device has no immediate data";

/// Returns [`PostError::Transport`] with the reason unless the operation is allowed.
#[inline]
fn only(allowed: bool, why: &'static str) -> Result<(), PostError> {
    if allowed { Ok(()) } else { Err(PostError::Transport(why)) }
}

/// Checks whether a READ of `length` bytes into `room` bytes can be posted.
#[inline]
fn check_read(reliable: bool, length: u32, limit: u32, room: usize) -> Result<(), PostError> {
    only(reliable, "READ needs a reliable connection")?;
    match limit.min(u32::try_from(room).unwrap_or(u32::MAX)) {
        limit if length > limit => Err(PostError::Length { length: length.into(), limit }),
        _ => Ok(()),
    }
}

impl QueuePair {
    /// Checks whether `requests` requests can be posted.
    #[inline]
    fn check_room(&self, requests: usize) -> Result<(), PostError> {
        match self.state {
            QueuePairState::Initialised => Err(PostError::NotConnected),
            QueuePairState::Error => Err(PostError::QueuePairError),
            QueuePairState::Ready if self.sends.room() < requests => Err(PostError::QueueFull),
            QueuePairState::Ready => Ok(()),
        }
    }

    /// Posts an inline WRITE. This fast path needs a third of the instructions of [`post`](QueuePair::post):
    /// it holds no buffer and builds no list.
    #[inline]
    pub(crate) fn post_write(&mut self, write: InlineWrite<'_>, means: Means<'_>) -> Result<(), PostError> {
        let InlineWrite { id, parts: pieces, key, offset, immediate, signaled, ahead: _ } = write;
        if pieces.len() > MAX_PARTS {
            return self.post(write.into(), means);
        }
        self.check_room(1)?;
        self.check_write(immediate, means.capabilities)?;
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        check_length(bytes, means.capabilities.max_message, Some(means.capabilities.max_inline))?;
        let mut parts = Parts::default();
        let mut request = sys::SendWorkRequest::empty();
        request.part_count = inline_parts(pieces, &mut parts) as i32;
        request.parts = parts.as_mut_ptr();
        self.write_to(&mut request, immediate, key, offset);
        let first = self.sends.next();
        request.id = request_name(RequestKind::Send, self.id.0, first);
        request.flags = means.flags | sys::SEND_INLINE | if signaled { sys::SEND_SIGNALED } else { 0 };
        let sent = Sent { id, opcode: Opcode::Write, bytes: bytes as u32, signaled, misaligned: false };
        self.sends.push(sent, None);
        self.ring(std::slice::from_mut(&mut request), first).map_err(|refused| refused.error)
    }

    /// Checks whether a WRITE can be posted.
    #[inline]
    fn check_write(&self, immediate: Option<u32>, capabilities: &Capabilities) -> Result<(), PostError> {
        only(immediate.is_none() || capabilities.immediate, NO_IMMEDIATE)?;
        only(self.config.transport != Transport::UnreliableDatagram, "datagram queue pairs have no WRITE")
    }

    /// Sets opcode, immediate data and destination of a WRITE.
    #[inline]
    fn write_to(
        &mut self,
        request: &mut sys::SendWorkRequest,
        immediate: Option<u32>,
        key: RegionKey,
        offset: u64,
    ) {
        request.opcode = if immediate.is_some() { sys::OPCODE_WRITE_IMMEDIATE } else { sys::OPCODE_WRITE };
        request.immediate = immediate.unwrap_or(0).to_be();
        request.remote.memory = self.remote(key, offset);
    }

    /// Posts one request.
    #[inline]
    pub(crate) fn post(
        &mut self,
        request: WorkRequest<'_, RdmaMemory>,
        means: Means<'_>,
    ) -> Result<(), PostError> {
        self.post_at_most::<1>(&mut [Some(request)], means).map_err(|refused| refused.error)
    }

    /// Posts a list with one doorbell. If a request is invalid, those before it are posted.
    #[inline]
    pub(crate) fn post_list(
        &mut self,
        requests: &mut [Option<WorkRequest<'_, RdmaMemory>>],
        means: Means<'_>,
    ) -> Result<(), ListError> {
        match requests.len() {
            0..=2 => self.post_at_most::<2>(requests, means),
            3..=8 => self.post_at_most::<8>(requests, means),
            9..=SHORT_LIST => self.post_at_most::<SHORT_LIST>(requests, means),
            _ => self.post_long(requests, means),
        }
    }

    /// Posts a list of any length with one doorbell.
    #[inline(never)]
    fn post_long(
        &mut self,
        requests: &mut [Option<WorkRequest<'_, RdmaMemory>>],
        mut means: Means<'_>,
    ) -> Result<(), ListError> {
        let length = requests.iter().flatten().count();
        self.check_room(length)?;
        let LongList { requests: mut list, parts: mut all_parts } = std::mem::take(means.long);
        // Domains reserve it for their queue pairs' depths, so it is long enough.
        let used = length.min(list.len()).min(all_parts.len());
        list[..used].fill_with(sys::SendWorkRequest::empty);
        let posted = self.post_in(requests, &mut means, &mut list[..used], &mut all_parts[..used]);
        *means.long = LongList { requests: list, parts: all_parts };
        posted
    }

    /// Posts a list of at most `N` places with one doorbell.
    #[inline]
    fn post_at_most<const N: usize>(
        &mut self,
        requests: &mut [Option<WorkRequest<'_, RdmaMemory>>],
        mut means: Means<'_>,
    ) -> Result<(), ListError> {
        let length = requests.iter().flatten().count();
        self.check_room(length)?;
        let mut list: [_; N] = std::array::from_fn(|_| sys::SendWorkRequest::empty());
        let mut parts = [Parts::default(); N];
        self.post_in(requests, &mut means, &mut list, &mut parts)
    }

    /// Posts a list for which there is room, in memory for as many requests.
    #[inline(always)]
    fn post_in(
        &mut self,
        requests: &mut [Option<WorkRequest<'_, RdmaMemory>>],
        means: &mut Means<'_>,
        list: &mut [sys::SendWorkRequest],
        parts: &mut [Parts],
    ) -> Result<(), ListError> {
        means.scratch.clear();
        means.scratch.reserve(list.len() * means.capabilities.max_inline as usize);
        let first = self.sends.next();
        let (mut ready, mut refused) = (0, None);
        for request in requests.iter_mut().filter_map(Option::take) {
            if let Err(error) = self.prepare(request, means, &mut list[ready], &mut parts[ready]) {
                refused = Some(ListError { posted: ready, error });
                break;
            }
            list[ready].parts = parts[ready].as_mut_ptr();
            ready += 1;
        }
        if ready > 0 {
            self.ring(&mut list[..ready], first)?;
        }
        refused.map_or(Ok(()), Err)
    }

    /// Rings the doorbell for requests that are in flight from `first` on. After an error those that the device did
    /// not take are in flight no longer.
    fn ring(&mut self, list: &mut [sys::SendWorkRequest], first: u32) -> Result<(), ListError> {
        if let Some(early) = &mut self.early {
            // SAFETY: the parts and inline data are valid, as below.
            early.extend(list.iter().map(|request| unsafe { Early::new(request) }));
            return Ok(());
        }
        let Some(handle) = &mut self.handle else { return Err(PostError::QueuePairError.into()) };
        // SAFETY: the parts are buffers, which `sends` holds until the completion of their request or a later
        // one, and drops after the handle, or inline data, which outlives this call: it is the caller's, or
        // in the scratch memory, which does not move until it is cleared for the next list. The NIC writes
        // only to READs' destinations and atomics' results: exclusively owned buffers, and regions, of which no
        // reference exists.
        let Err((taken, error)) = (unsafe { handle.post(list) }) else { return Ok(()) };
        let is_full = taken == 0 && error.raw_os_error() == Some(libc::ENOMEM);
        if !is_full {
            tracing::warn!(%error, "a queue pair takes no work requests");
            // Before the buffers are released: when Soft-iWARP reports this error, the requests are already
            // visible to the kernel.
            self.fail();
        }
        self.sends.take_back(first.wrapping_add(taken as u32));
        // ENOMEM for the first request is the driver's error for a full queue: requests have completed, but
        // their completions were not polled.
        let error = if is_full { PostError::QueueFull } else { PostError::QueuePairError };
        Err(ListError { posted: taken, error })
    }

    /// Writes a request in verbs' format, and adds it to those in flight.
    #[inline]
    fn prepare(
        &mut self,
        request: WorkRequest<'_, RdmaMemory>,
        means: &mut Means<'_>,
        into: &mut sys::SendWorkRequest,
        parts: &mut Parts,
    ) -> Result<(), PostError> {
        let WorkRequest { id, operation, mut signaled } = request;
        let reliable = self.config.transport == Transport::ReliableConnection;
        let datagram = self.config.transport == Transport::UnreliableDatagram;
        let limit = if datagram { means.capabilities.max_datagram } else { means.capabilities.max_message };
        let max_inline = means.capabilities.max_inline;
        if operation.local_region().is_some_and(|range| !range.region().memory().is_of(means.device)) {
            return Err(PostError::ForeignRegion);
        }
        let (opcode, local) = match operation {
            Operation::Send { data, immediate, to } => {
                only(immediate.is_none() || means.capabilities.immediate, NO_IMMEDIATE)?;
                if datagram {
                    let to = to.ok_or(PostError::Transport("a datagram needs an address handle"))?;
                    into.remote.datagram = self.destination(means.destinations, to)?;
                } else {
                    only(to.is_none(), "address handles are for datagrams")?;
                }
                into.opcode = if immediate.is_some() { sys::OPCODE_SEND_IMMEDIATE } else { sys::OPCODE_SEND };
                into.immediate = immediate.unwrap_or(0).to_be();
                (Opcode::Send, local(data, limit, max_inline, means.scratch, parts)?)
            }
            Operation::Write { data, key, offset, immediate } => {
                self.check_write(immediate, means.capabilities)?;
                let local = local(data, limit, max_inline, means.scratch, parts)?;
                self.write_to(into, immediate, key, offset);
                (Opcode::Write, local)
            }
            Operation::Read { from, into: destination } => {
                check_read(reliable, from.length, limit, destination.len())?;
                signaled = true;
                into.opcode = sys::OPCODE_READ;
                into.remote.memory = self.remote(from.key, from.offset);
                parts[0] = sys::ScatterGather { length: from.length, ..part_of(&destination) };
                let (count, held) = (usize::from(from.length > 0), Some(Held::Destination(destination)));
                let local = Local { count, inline: false, bytes: from.length, held, misaligned: false };
                (Opcode::Read, local)
            }
            Operation::ReadInto { from, into: destination } => {
                check_read(reliable, from.length, limit, destination.length())?;
                signaled = true;
                into.opcode = sys::OPCODE_READ;
                into.remote.memory = self.remote(from.key, from.offset);
                parts[0] = part_of_region(&destination, from.length);
                let (count, held) = (usize::from(from.length > 0), Some(Held::Region(destination)));
                let local = Local { count, inline: false, bytes: from.length, held, misaligned: false };
                (Opcode::Read, local)
            }
            Operation::FetchAdd { key, offset, add } => {
                signaled = true;
                into.opcode = sys::OPCODE_FETCH_ADD;
                (Opcode::FetchAdd, self.atomic(means, into, parts, (key, offset), (add, 0))?)
            }
            Operation::CompareSwap { key, offset, expected, swap } => {
                signaled = true;
                into.opcode = sys::OPCODE_COMPARE_SWAP;
                (Opcode::CompareSwap, self.atomic(means, into, parts, (key, offset), (expected, swap))?)
            }
        };
        into.id = request_name(RequestKind::Send, self.id.0, self.sends.next());
        let holds = matches!(local.held, Some(Held::One(_) | Held::Several(_) | Held::Region(_)));
        into.flags = if signaled || (means.is_soft_iwarp && holds) { sys::SEND_SIGNALED } else { 0 };
        if opcode != Opcode::Read {
            into.flags |= means.flags;
        }
        if local.inline || (means.is_soft_iwarp && local.is_short(opcode, max_inline)) {
            into.flags |= sys::SEND_INLINE;
        }
        into.part_count = local.count as i32;
        let Local { bytes, held, misaligned, .. } = local;
        self.sends.push(Sent { id, opcode, bytes, signaled, misaligned }, held);
        Ok(())
    }

    fn destination(
        &self,
        destinations: &AddressHandles<Destination>,
        to: AddressHandleId,
    ) -> Result<sys::RemoteDatagram, PostError> {
        let found = destinations.get(self.id, to).ok_or(PostError::NoSuch("address handle"))?;
        Ok(sys::RemoteDatagram { handle: found.handle.raw(), number: found.number, qkey: found.qkey })
    }

    fn atomic(
        &mut self,
        means: &Means<'_>,
        into: &mut sys::SendWorkRequest,
        parts: &mut Parts,
        (key, offset): (RegionKey, u64),
        (compare_or_add, swap): (u64, u64),
    ) -> Result<Local, PostError> {
        only(self.config.transport == Transport::ReliableConnection, "atomics need a reliable connection")?;
        let results = means.results.ok_or(PostError::Transport("this device has no atomics"))?;
        let result = results.reserve(8).map_err(|_| PostError::QueueFull)?;
        let mut place = self.remote(key, offset);
        let misaligned = !place.address.is_multiple_of(8);
        if misaligned {
            place = self.trap();
        }
        let sys::RemoteMemory { address, key } = place;
        into.remote.atomic = sys::RemoteAtomic { address, compare_or_add, swap, key };
        parts[0] = part_of(&result);
        Ok(Local { count: 1, inline: false, bytes: 8, held: Some(Held::One(result)), misaligned })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_messages_of_any_number_of_parts() {
        let bytes: Vec<u8> = (0..100).collect();
        let pieces: Vec<&[u8]> = bytes.chunks(10).collect();
        let mut scratch = Vec::with_capacity(128);
        let mut parts = Parts::default();
        let many = local(Data::Inline(&pieces), 1000, 128, &mut scratch, &mut parts).unwrap();
        assert_eq!((many.count, parts[0].length, many.bytes, &scratch[..]), (1, 100, 100, &bytes[..]));
        let pieces_of = [&bytes[..3], &[], &bytes[3..7]];
        let few = local(Data::Inline(&pieces_of), 1000, 128, &mut scratch, &mut parts).unwrap();
        assert_eq!((few.count, parts[1].length, few.bytes), (2, 4, 7));
        let error = local(Data::Inline(&pieces), 1000, 99, &mut scratch, &mut parts).err();
        assert_eq!(error, Some(PostError::Inline { length: 100, limit: 99 }));
        let error = local(Data::Inline(&pieces), 50, 128, &mut scratch, &mut parts).err();
        assert_eq!(error, Some(PostError::Length { length: 100, limit: 50 }));
    }

    #[test]
    fn what_soft_iwarp_would_copy_later_is_short() {
        let of = |count, bytes| Local { count, inline: false, bytes, held: None, misaligned: false };
        let short = [
            of(1, 1).is_short(Opcode::Send, 256),
            of(1, 64).is_short(Opcode::Write, 256),
            of(1, 16).is_short(Opcode::Write, 16),
        ];
        let other = [
            of(1, 65).is_short(Opcode::Send, 256),
            of(1, 17).is_short(Opcode::Send, 16),
            of(2, 8).is_short(Opcode::Send, 256),
            of(0, 0).is_short(Opcode::Send, 256),
            of(1, 8).is_short(Opcode::Read, 256),
            of(1, 8).is_short(Opcode::FetchAdd, 256),
        ];
        assert_eq!((short, other), ([true; 3], [false; 6]));
    }
}
