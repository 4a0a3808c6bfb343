//! Converts work requests into libfabric operations: checks them, puts them in order, and posts them as far
//! as the provider has room.

use crate::datagram::Datagram;
use crate::handles::{CONNECTED, OneSided, Remote};
use crate::header::{HEADER, Header};
use crate::memory::OfiMemory;
use crate::order::Next;
use crate::queue_pair::{DATA, Held, NOTICE, Posted, QueuePair, Sent};
use crate::receives::SEQUENCE;
use dunlin_fabric::{
    Buffer, Capabilities, Data, Opcode, Operation, PostError, QueuePairState, RegionRange, RemoteSlice,
    RequestKind, WorkId, WorkRequest, request_name,
};
use std::io::{self, ErrorKind};

/// The maximum number of parts of one message, including the header.
pub(crate) const MAX_PARTS: usize = 4;

/// Returns [`PostError::Transport`] with the reason unless the operation is allowed.
fn only(allowed: bool, why: &'static str) -> Result<(), PostError> {
    if allowed { Ok(()) } else { Err(PostError::Transport(why)) }
}

fn part(buffer: &Buffer<OfiMemory>) -> libc::iovec {
    libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: buffer.len() }
}

/// Returns the first bytes of a range, which has so many.
fn part_of(range: &RegionRange<OfiMemory>, length: usize) -> libc::iovec {
    libc::iovec { iov_base: range.start().cast(), iov_len: length }
}

/// Parts of a message in libfabric's format.
struct Parts {
    list: [libc::iovec; MAX_PARTS],
    count: usize,
}

impl Parts {
    fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Parts { list: [none; MAX_PARTS], count: 0 }
    }

    #[inline]
    fn push(&mut self, part: libc::iovec) {
        if part.iov_len > 0
            && let Some(place) = self.list.get_mut(self.count)
        {
            *place = part;
            self.count += 1;
        }
    }

    fn push_held(&mut self, held: &Held, read: u32) {
        match held {
            Held::Nothing => {}
            Held::One(buffer) => self.push(part(buffer)),
            Held::Several(gather) => gather.iter().for_each(|buffer| self.push(part(buffer))),
            Held::Copied(bytes) | Held::Whole(bytes) => {
                self.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
            }
            Held::Region(range) => self.push(part_of(range, range.length())),
            Held::RegionDestination(range) => self.push(part_of(range, read as usize)),
            Held::Destination(buffer) => self.push(libc::iovec { iov_len: read as usize, ..part(buffer) }),
        }
    }

    fn list(&self) -> &[libc::iovec] {
        &self.list[..self.count]
    }

    fn bytes(&self) -> usize {
        self.list().iter().map(|part| part.iov_len).sum()
    }
}

impl QueuePair {
    /// Adds a request to the send queue.
    #[inline]
    pub(crate) fn post(
        &mut self,
        request: WorkRequest<'_, OfiMemory>,
        capabilities: &Capabilities,
    ) -> Result<(), PostError> {
        match self.state {
            QueuePairState::Initialised => return Err(PostError::NotConnected),
            QueuePairState::Error => return Err(PostError::QueuePairError),
            QueuePairState::Ready => {}
        }
        if self.sends.room() == 0 {
            return Err(PostError::QueueFull);
        }
        let sent = self.prepare(request, capabilities)?;
        self.sends.push(sent);
        Ok(())
    }

    #[inline]
    fn prepare(
        &mut self,
        request: WorkRequest<'_, OfiMemory>,
        capabilities: &Capabilities,
    ) -> Result<Sent, PostError> {
        let WorkRequest { id, operation, signaled } = request;
        match operation {
            Operation::Send { data, immediate, to } => {
                only(to.is_none(), "address handles are for datagrams")?;
                let mut sent = self.sent(id, Opcode::Send, signaled, data, capabilities)?;
                let header = self.put_header(immediate, None);
                sent.to_post = DATA;
                let parts = self.most_parts();
                if sent.held.parts() >= parts {
                    // With the header there would be too many parts.
                    sent.held = match parts {
                        1 => Held::Whole([&header[..], &sent.held.bytes()].concat().into()),
                        _ => Held::Copied(sent.held.bytes().into()),
                    };
                }
                Ok(sent)
            }
            Operation::Write { data, key, offset, immediate } => {
                let mut sent = self.sent(id, Opcode::Write, signaled, data, capabilities)?;
                sent.remote = self.remote(key, offset);
                sent.to_post = if sent.bytes > 0 { DATA } else { 0 };
                if sent.held.parts() > self.most_parts() {
                    sent.held = Held::Copied(sent.held.bytes().into());
                }
                if immediate.is_some() {
                    self.put_header(immediate, Some(sent.bytes));
                    sent.to_post |= NOTICE;
                }
                Ok(sent)
            }
            Operation::Read { from, into } => {
                let room = into.len();
                self.read(id, from, (Held::Destination(into), room), capabilities)
            }
            Operation::ReadInto { from, into } => {
                let room = into.length();
                self.read(id, from, (Held::RegionDestination(into), room), capabilities)
            }
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                Err(PostError::Transport("this provider has no atomics"))
            }
        }
    }

    /// Makes a READ into memory of `room` bytes.
    fn read(
        &mut self,
        id: WorkId,
        from: RemoteSlice,
        (held, room): (Held, usize),
        capabilities: &Capabilities,
    ) -> Result<Sent, PostError> {
        for limit in [capabilities.max_message, u32::try_from(room).unwrap_or(u32::MAX)] {
            if from.length > limit {
                return Err(PostError::Length { length: from.length.into(), limit });
            }
        }
        Ok(Sent {
            id,
            opcode: Opcode::Read,
            bytes: from.length,
            // A READ always makes a completion.
            signaled: true,
            held,
            inline: 0,
            remote: self.remote(from.key, from.offset),
            to_post: if from.length > 0 { DATA } else { 0 },
            outstanding: 0,
            writing: false,
            failed: None,
        })
    }

    /// Makes a request that sends data; copies inline data after the header in the next number's place.
    #[inline]
    fn sent(
        &mut self,
        id: WorkId,
        opcode: Opcode,
        signaled: bool,
        data: Data<'_, OfiMemory>,
        capabilities: &Capabilities,
    ) -> Result<Sent, PostError> {
        let (length, limit) = (data.length(), capabilities.max_message);
        if let Data::Inline(_) = data
            && length > u64::from(capabilities.max_inline)
        {
            return Err(PostError::Inline { length: length as usize, limit: capabilities.max_inline });
        }
        if length > u64::from(limit) {
            return Err(PostError::Length { length, limit });
        }
        let mut inline = 0;
        let held = match data {
            Data::Inline(pieces) => {
                let number = self.sends.next();
                let mut offset = HEADER;
                for piece in pieces {
                    // SAFETY: the place belongs to the next number. Its previous owner has ended, since there
                    // is room, and `max_inline` bytes fit after the header.
                    unsafe { self.outgoing.put(number, offset, piece) };
                    offset += piece.len();
                }
                inline = length as u32;
                Held::Nothing
            }
            Data::Buffer(buffer) => Held::One(buffer),
            Data::Gather(gather) => Held::Several(gather),
            Data::Region(range) => Held::Region(range),
        };
        let bytes = length as u32;
        let (remote, failed) = (Remote::default(), None);
        let (to_post, outstanding, writing) = (0, 0, false);
        Ok(Sent { id, opcode, bytes, signaled, held, inline, remote, to_post, outstanding, writing, failed })
    }

    /// Writes the header of the next message into its place; returns its bytes.
    #[inline]
    fn put_header(&mut self, immediate: Option<u32>, written: Option<u32>) -> [u8; HEADER] {
        let Some(peer) = &self.peer else { return [0; HEADER] };
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1) & SEQUENCE;
        let header = Header { number: peer.number, secret: peer.secret, immediate, written, sequence };
        let bytes = header.encode();
        // SAFETY: as in `sent`.
        unsafe { self.outgoing.put(self.sends.next(), 0, &bytes) };
        bytes
    }

    fn most_parts(&self) -> usize {
        self.features.parts.min(MAX_PARTS)
    }

    /// Gives waiting requests to the provider, as far as it has room; returns whether some still wait. An
    /// error breaks the queue pair.
    #[inline]
    pub(crate) fn drive(&mut self) -> io::Result<bool> {
        let Some(open) = &self.open else { return Ok(false) };
        let (endpoint, id) = (&open.endpoint, self.id.0);
        if self.receives.has_unposted() {
            let (count, handed) = self.receives.hand_over(|parts, place| {
                // SAFETY: buffer and place are exclusive, and held until the RECV has completed or the
                // endpoint is closed.
                unsafe { endpoint.receive(parts, request_name(RequestKind::Receive, id, place)) }
            });
            if let Some(datagram) = &mut self.datagram {
                datagram.posts(count);
            }
            handed?;
        }
        if let Some(datagram) = &mut self.datagram
            && let Err(error) = datagram.tell(endpoint, self.secret, request_name(RequestKind::Credit, id, 0))
            && error.kind() != ErrorKind::WouldBlock
        {
            return Err(error);
        }
        if !self.met {
            return Ok(false);
        }
        // Connected endpoints have a fixed destination.
        let (to, to_memory) =
            self.datagram.as_ref().and_then(Datagram::addresses).unwrap_or((CONNECTED, CONNECTED));
        let ordered = self.features.ordered;
        while let Some((number, sent)) = self.sends.unposted() {
            if sent.to_post == 0 {
                self.sends.is_posted(0, Posted::Copied);
                continue;
            }
            let is_send = sent.opcode == Opcode::Send;
            // A WRITE first sends its data, then its notice.
            let step = if sent.to_post & DATA != 0 { DATA } else { NOTICE };
            let writes = sent.opcode == Opcode::Write && step == DATA;
            let is_message = is_send || step == NOTICE;
            if !ordered {
                let next = if writes { Next::Write(sent.piece()) } else { Next::Sees };
                if self.sends.must_wait(next) {
                    return Ok(true);
                }
            }
            if is_message
                && let Some(datagram) = &mut self.datagram
                && !datagram.may_send(self.secret)?
            {
                return Ok(true);
            }
            let place = self.outgoing.at(number);
            let context = request_name(RequestKind::Send, id, number);
            let header = libc::iovec { iov_base: place.cast(), iov_len: HEADER };
            let mut parts = Parts::new();
            if is_send && !matches!(sent.held, Held::Whole(_)) {
                // Inline data follow the header.
                parts.push(libc::iovec { iov_len: HEADER + sent.inline as usize, ..header });
            } else if step == NOTICE {
                parts.push(header);
            } else if sent.inline > 0 {
                // SAFETY: the inline data follow the header in the same place.
                let base = unsafe { place.add(HEADER) };
                parts.push(libc::iovec { iov_base: base.cast(), iov_len: sent.inline as usize });
            }
            if step == DATA {
                parts.push_held(&sent.held, sent.bytes);
            }
            // Short messages that are unsignaled, or have another step to come, are done when posted: each
            // completion costs `tcp` two system calls. The user signals at least one request per queue
            // length, which bounds the memory that the provider keeps.
            let told = sent.signaled && sent.to_post == step;
            let copied = sent.opcode != Opcode::Read && !told && parts.bytes() <= self.features.inject;
            let posted = if is_message {
                // SAFETY: place and buffers are held until the request has ended or the endpoint is closed,
                // and the length was checked.
                unsafe { endpoint.send(to, parts.list(), context, copied) }
            } else {
                let what = match (sent.opcode, to_memory) {
                    (Opcode::Read, _) => OneSided::Read,
                    _ if copied => OneSided::WriteCopied,
                    (_, CONNECTED) => OneSided::Write,
                    // A refused WRITE must report its error here, since no connection breaks because of it.
                    _ => OneSided::WriteDelivered,
                };
                // SAFETY: as above, and a READ's destination is exclusively owned.
                unsafe { endpoint.remote(what, to_memory, parts.list(), sent.remote, context) }
            };
            match posted {
                Ok(()) => {
                    let how = match (copied, writes && !ordered) {
                        (true, _) => Posted::Copied,
                        (false, false) => Posted::Told,
                        (false, true) => Posted::Awaited,
                    };
                    self.sends.is_posted(step, how);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
            if is_message && let Some(datagram) = &mut self.datagram {
                datagram.sends();
            }
        }
        let owes = self.datagram.as_ref().is_some_and(|datagram| datagram.owes().is_some());
        Ok(self.receives.has_unposted() || owes)
    }
}
