//! From work requests to what libfabric takes: checked, put in order, and handed over as far as the provider has room.

use crate::handles::Remote;
use crate::header::{HEADER, Header};
use crate::memory::OfiMemory;
use crate::queue_pair::{DATA, Held, NOTICE, QueuePair, Sent};
use dunlin_fabric::{Buffer, Capabilities, Data, Opcode, Operation, PostError, QueuePairState, WorkRequest};
use std::io::{self, ErrorKind};

/// The most parts of one message, the header among them: what every provider takes.
pub(crate) const MAX_PARTS: usize = 4;

/// The kinds of completions, in the upper two bits of their contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of the send queue.
    Send,
    /// Of a queue pair's own RECVs.
    Receive,
    /// Of a shared receive queue.
    Shared,
}

/// The bits of a queue pair's id that fit.
pub(crate) const OWNER: u32 = 0x3fff_ffff;

/// What a work request is called towards the provider: kind, generation (14 bits) and slot of the queue pair (or the number of
/// the shared receive queue), its number in its queue.
pub(crate) fn name(kind: Kind, owner: u32, number: u32) -> u64 {
    // Never zero, which some providers take for none.
    let kind = match kind {
        Kind::Send => 1,
        Kind::Receive => 2,
        Kind::Shared => 3,
    };
    kind << 62 | u64::from(owner & OWNER) << 32 | u64::from(number)
}

/// The parts of a name; `None` for what was never given.
pub(crate) fn parse_name(name: u64) -> Option<(Kind, u32, u32)> {
    let kind = match name >> 62 {
        1 => Kind::Send,
        2 => Kind::Receive,
        3 => Kind::Shared,
        _ => return None,
    };
    Some((kind, (name >> 32) as u32 & OWNER, name as u32))
}

/// Refuses what cannot be done here, as verbs does for who asks it.
fn only(allowed: bool, why: &'static str) -> Result<(), PostError> {
    if allowed { Ok(()) } else { Err(PostError::Transport(why)) }
}

fn part(buffer: &Buffer<OfiMemory>) -> libc::iovec {
    libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: buffer.len() }
}

/// Parts of a message as libfabric takes them.
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
            Held::Copied(bytes) => {
                self.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
            }
            Held::Destination(buffer) => self.push(libc::iovec { iov_len: read as usize, ..part(buffer) }),
        }
    }

    fn list(&self) -> &[libc::iovec] {
        &self.list[..self.count]
    }
}

impl QueuePair {
    /// Takes a request, and hands it over if it can go now.
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
                self.put_header(immediate, None);
                sent.to_post = DATA;
                if let Held::Several(gather) = &sent.held
                    && gather.iter().filter(|buffer| !buffer.is_empty()).count() >= MAX_PARTS
                {
                    // With the header they are one part too many.
                    let bytes = gather.iter().flat_map(|buffer| buffer.iter().copied()).collect();
                    sent.held = Held::Copied(bytes);
                }
                Ok(sent)
            }
            Operation::Write { data, key, offset, immediate } => {
                let mut sent = self.sent(id, Opcode::Write, signaled, data, capabilities)?;
                sent.remote = self.remote(key, offset);
                sent.to_post = if sent.bytes > 0 { DATA } else { 0 };
                if immediate.is_some() {
                    self.put_header(immediate, Some(sent.bytes));
                    sent.to_post |= NOTICE;
                }
                Ok(sent)
            }
            Operation::Read { from, into } => {
                let limit = capabilities.max_message;
                for limit in [limit, u32::try_from(into.len()).unwrap_or(u32::MAX)] {
                    if from.length > limit {
                        return Err(PostError::Length { length: from.length.into(), limit });
                    }
                }
                let remote = self.remote(from.key, from.offset);
                Ok(Sent {
                    id,
                    opcode: Opcode::Read,
                    bytes: from.length,
                    // Always worth a completion.
                    signaled: true,
                    held: Held::Destination(into),
                    inline: 0,
                    remote,
                    to_post: if from.length > 0 { DATA } else { 0 },
                    outstanding: 0,
                    failed: None,
                })
            }
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                Err(PostError::Transport("this provider has no atomics"))
            }
        }
    }

    /// A request that sends data; what is inline is put behind the header in the next number's place.
    #[inline]
    fn sent(
        &mut self,
        id: dunlin_fabric::WorkId,
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
                    // SAFETY: the place is the next number's, whose last owner has ended, since there is room; and
                    // `max_inline` bytes fit behind the header.
                    unsafe { self.outgoing.put(number, offset, piece) };
                    offset += piece.len();
                }
                inline = length as u32;
                Held::Nothing
            }
            Data::Buffer(buffer) => Held::One(buffer),
            Data::Gather(gather) => Held::Several(gather),
        };
        let bytes = length as u32;
        let (remote, failed) = (Remote::default(), None);
        Ok(Sent { id, opcode, bytes, signaled, held, inline, remote, to_post: 0, outstanding: 0, failed })
    }

    #[inline]
    fn put_header(&mut self, immediate: Option<u32>, written: Option<u32>) {
        let Some(peer) = &self.peer else { return };
        let header = Header { number: peer.number, secret: peer.secret, immediate, written };
        // SAFETY: as in `sent`.
        unsafe { self.outgoing.put(self.sends.next(), 0, &header.encode()) };
    }

    /// Hands to the provider what waits for it, as far as it has room. Whether something waits still; an error breaks the queue
    /// pair.
    #[inline]
    pub(crate) fn drive(&mut self) -> io::Result<bool> {
        let Some(open) = &self.open else { return Ok(false) };
        let endpoint = &open.endpoint;
        while let Some((number, receive)) = self.receives.unposted() {
            let (parts, count) = receive.parts(self.incoming.at(number));
            // SAFETY: buffer and place are exclusive, and held until the RECV has ended or the endpoint is closed.
            let posted = unsafe { endpoint.receive(&parts[..count], name(Kind::Receive, self.id.0, number)) };
            match posted {
                Ok(()) => self.receives.is_posted(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if !self.met {
            return Ok(true);
        }
        while let Some((number, sent)) = self.sends.unposted() {
            let place = self.outgoing.at(number);
            let context = name(Kind::Send, self.id.0, number);
            let header = libc::iovec { iov_base: place.cast(), iov_len: HEADER };
            while sent.to_post != 0 {
                let mut parts = Parts::new();
                let is_send = sent.opcode == Opcode::Send;
                if is_send {
                    // The inline data are behind it.
                    parts.push(libc::iovec { iov_len: HEADER + sent.inline as usize, ..header });
                } else if sent.inline > 0 && sent.to_post & DATA != 0 {
                    // SAFETY: behind the header in the same place.
                    let base = unsafe { place.add(HEADER) };
                    parts.push(libc::iovec { iov_base: base.cast(), iov_len: sent.inline as usize });
                }
                let (step, posted) = if sent.to_post & DATA == 0 {
                    parts.push(header);
                    // SAFETY: the place is held until the request has ended or the endpoint is closed.
                    (NOTICE, unsafe { endpoint.send(parts.list(), context) })
                } else {
                    parts.push_held(&sent.held, sent.bytes);
                    // SAFETY: so are the buffers, of which a READ's destination is nobody else's.
                    let posted = unsafe {
                        if is_send {
                            endpoint.send(parts.list(), context)
                        } else {
                            let reads = sent.opcode == Opcode::Read;
                            endpoint.remote(reads, parts.list(), sent.remote, context)
                        }
                    };
                    (DATA, posted)
                };
                match posted {
                    Ok(()) => {
                        sent.to_post &= !step;
                        sent.outstanding += 1;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            self.sends.is_posted();
        }
        Ok(self.receives.unposted().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_given() {
        for kind in [Kind::Send, Kind::Receive, Kind::Shared] {
            for (owner, number) in [(0, 0), (OWNER, u32::MAX), (0x1_0002, 7)] {
                assert_eq!(parse_name(name(kind, owner, number)), Some((kind, owner, number)));
            }
        }
        assert_eq!(parse_name(0), None);
    }
}
