//! The destinations of reliable datagrams: the provider's table of addresses.

use super::{Domain, close, made};
use crate::sys;
use std::io;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

/// The longest address of an endpoint, in bytes; `shm` has the longest. Two of them fit into a queue pair's
/// endpoint.
pub(crate) const MAX_ADDRESS: usize = 88;

/// A table of addresses, to which endpoints are bound.
#[derive(Debug)]
pub(crate) struct AddressVector {
    pub(super) raw: NonNull<sys::AddressVector>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for AddressVector {}
// SAFETY: as above.
unsafe impl Sync for AddressVector {}

impl AddressVector {
    pub(crate) fn new(domain: &Arc<Domain>) -> io::Result<Arc<Self>> {
        let mut attributes = sys::AddressVectorAttributes {
            kind: sys::ADDRESS_TABLE,
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            name: null(),
            map_addr: null_mut(),
            flags: 0,
        };
        let mut raw = null_mut();
        // SAFETY: the domain is open, and the attributes have the library's layout.
        let code = unsafe {
            let owner = domain.domain.as_ref();
            ((*owner.operations).av_open)(domain.domain.as_ptr(), &mut attributes, &mut raw, null_mut())
        };
        Ok(Arc::new(AddressVector { raw: made(domain.library, code, raw)?, domain: Arc::clone(domain) }))
    }

    /// Adds an address in the provider's format. The caller has checked it as far as possible.
    pub(crate) fn insert(self: &Arc<Self>, address: &[u8]) -> io::Result<Inserted> {
        // Padded, so that no provider reads beyond the buffer, whatever length it assumes for an address;
        // aligned like a structure.
        let mut bytes = [0u64; (MAX_ADDRESS + 64) / 8];
        let room = &mut bytes[..];
        // SAFETY: integers can be viewed as bytes, and the length is that of the integers.
        let room =
            unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<u8>(), size_of_val(room)) };
        let length = address.len().min(MAX_ADDRESS);
        room[..length].copy_from_slice(&address[..length]);
        let mut name = sys::ADDRESS_UNSPECIFIED;
        // SAFETY: the table is open. The address is only read during the call, as the table has no event
        // queue.
        let count = unsafe {
            let operations = &*self.raw.as_ref().operations;
            (operations.insert)(self.raw.as_ptr(), room.as_ptr().cast(), 1, &mut name, 0, null_mut())
        };
        if count == 1 && name != sys::ADDRESS_UNSPECIFIED {
            return Ok(Inserted { name, vector: Arc::clone(self) });
        }
        self.domain.library.outcome(count.min(0))?;
        Err(io::Error::new(io::ErrorKind::InvalidInput, "the provider does not take the other end's address"))
    }
}

impl Drop for AddressVector {
    fn drop(&mut self) {
        // SAFETY: made in `new`; endpoints that are bound to it hold it, so none is left.
        unsafe { close(self.domain.library, "an address vector", self.raw.as_ptr().cast()) }
    }
}

/// An address in the table, for as long as this value exists. Dropped after the endpoint that sends to it is
/// closed.
#[derive(Debug)]
pub(crate) struct Inserted {
    /// The name of the address in operations.
    pub(crate) name: u64,
    vector: Arc<AddressVector>,
}

impl Drop for Inserted {
    fn drop(&mut self) {
        let vector = &self.vector;
        // SAFETY: the table is open, and contains the address.
        let code =
            unsafe { ((*vector.raw.as_ref().operations).remove)(vector.raw.as_ptr(), &mut self.name, 1, 0) };
        if let Err(error) = vector.domain.library.outcome(code) {
            tracing::warn!(%error, "an address cannot be removed");
        }
    }
}
