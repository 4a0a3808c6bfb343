//! Requests that are posted before the other end of an iWARP connection has requested it. They are kept, and
//! posted when it has. Not on the hot path, so inline data is copied.

use crate::handles;
use crate::sys;
use std::io;

/// A work request that waits. The send queue holds its buffers, like those of all requests in flight.
#[derive(Debug)]
pub(crate) struct Early {
    id: u64,
    opcode: u32,
    flags: u32,
    remote: (u64, u32),
    parts: Vec<sys::ScatterGather>,
    inline: Vec<u8>,
}

impl Early {
    /// Copies a request of a reliable connection without atomics or immediate data.
    ///
    /// # Safety
    /// The request's parts must be valid; if it is inline, so must the memory that they name.
    pub(crate) unsafe fn new(request: &sys::SendWorkRequest) -> Self {
        let count = usize::try_from(request.part_count).unwrap_or(0);
        let mut parts = Vec::with_capacity(count);
        let mut inline = Vec::new();
        for at in 0..count {
            // SAFETY: the caller's contract.
            let part = unsafe { *request.parts.add(at) };
            if request.flags & sys::SEND_INLINE == 0 {
                parts.push(part);
            } else {
                // SAFETY: the caller's contract.
                let bytes =
                    unsafe { std::slice::from_raw_parts(part.address as *const u8, part.length as usize) };
                inline.extend_from_slice(bytes);
            }
        }
        // SAFETY: all variants begin with the fields read here, and the request was zeros before one variant
        // was set.
        let remote = unsafe { request.remote.memory };
        Early {
            id: request.id,
            opcode: request.opcode,
            flags: request.flags,
            remote: (remote.address, remote.key),
            parts,
            inline,
        }
    }

    /// Posts the request.
    ///
    /// # Safety
    /// As [`handles::QueuePair::post`], for the buffers that the request names.
    pub(crate) unsafe fn post(mut self, handle: &mut handles::QueuePair) -> io::Result<()> {
        if !self.inline.is_empty() {
            let (address, length) = (self.inline.as_ptr() as u64, self.inline.len() as u32);
            self.parts = vec![sys::ScatterGather { address, length, local_key: 0 }];
        }
        let mut request = sys::SendWorkRequest::empty();
        request.id = self.id;
        request.parts = self.parts.as_mut_ptr();
        request.part_count = self.parts.len() as i32;
        (request.opcode, request.flags) = (self.opcode, self.flags);
        request.remote.memory = sys::RemoteMemory { address: self.remote.0, key: self.remote.1 };
        // SAFETY: the caller's contract; inline bytes are in `self` until this returns.
        unsafe { handle.post(&mut [request]) }.map_err(|(_, error)| error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_parts_are_copied_and_others_are_named() {
        let bytes = [1u8, 2, 3, 4, 5];
        let part = |range: std::ops::Range<usize>| sys::ScatterGather {
            address: bytes[range.clone()].as_ptr() as u64,
            length: range.len() as u32,
            local_key: 9,
        };
        let mut parts = [part(0..2), part(2..5)];
        let mut request = sys::SendWorkRequest::empty();
        (request.part_count, request.parts) = (2, parts.as_mut_ptr());
        // SAFETY: the parts are alive.
        let named = unsafe { Early::new(&request) };
        assert_eq!((named.parts.len(), named.parts[1].local_key, named.inline.len()), (2, 9, 0));
        request.flags = sys::SEND_INLINE;
        // SAFETY: the parts and the bytes are alive.
        let copied = unsafe { Early::new(&request) };
        assert_eq!((copied.parts.len(), &copied.inline[..]), (0, &bytes[..]));
    }
}
