//! The making of connections: passive endpoints, and the queue for connection events.

use super::{Domain, Info, close, made};
use crate::sys;
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

/// A connection event.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request to the passive endpoint of this [name](PassiveEndpoint::name), with the peer's data, cut at
    /// [`MAX_SAID`] bytes.
    Request(usize, Info, Vec<u8>),
    /// The endpoint of this [name](Endpoint::name) is connected.
    Connected(usize),
    /// The endpoint's connection has ended, or was never made.
    Closed(usize),
}

/// The maximum number of bytes read of the data in a peer's request.
pub(crate) const MAX_SAID: usize = 64;

/// The queue for connection events.
#[derive(Debug)]
pub(crate) struct EventQueue {
    raw: NonNull<sys::EventQueue>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for EventQueue {}
// SAFETY: as above.
unsafe impl Sync for EventQueue {}

impl EventQueue {
    pub(crate) fn new(domain: &Arc<Domain>) -> io::Result<Arc<Self>> {
        let mut attributes = sys::EventQueueAttributes {
            size: 0,
            flags: 0,
            wait_obj: sys::WAIT_NONE,
            signaling_vector: 0,
            wait_set: null_mut(),
        };
        let mut raw = null_mut();
        // SAFETY: the fabric is open, and the attributes have the library's layout.
        let code = unsafe {
            let owner = domain.fabric.as_ref();
            ((*owner.operations).eq_open)(domain.fabric.as_ptr(), &mut attributes, &mut raw, null_mut())
        };
        Ok(Arc::new(EventQueue { raw: made(domain.library, code, raw)?, domain: Arc::clone(domain) }))
    }

    /// Returns the object for binding endpoints.
    pub(super) fn as_ptr(&self) -> *mut sys::Object {
        self.raw.as_ptr().cast()
    }

    /// Returns the next event, if there is one. Makes progress on connections.
    pub(crate) fn next(&self) -> Option<Event> {
        #[repr(C)]
        struct Roomy(sys::ConnectionEvent, [u8; MAX_SAID]);
        loop {
            let mut kind = 0;
            let mut raw = Roomy(sys::ConnectionEvent { object: null_mut(), info: null_mut() }, [0; MAX_SAID]);
            // SAFETY: the queue is open, and the buffer has the given size.
            let count = unsafe {
                let place = (&raw mut raw).cast();
                ((*self.raw.as_ref().operations).read)(
                    self.raw.as_ptr(),
                    &mut kind,
                    place,
                    size_of::<Roomy>(),
                    0,
                )
            };
            if count == -sys::ERROR_AVAILABLE {
                // SAFETY: numbers and null pointers, for which zeros are valid values.
                let mut error: sys::EventError = unsafe { std::mem::zeroed() };
                // SAFETY: the queue is open, and there is room for the entry.
                let count =
                    unsafe { ((*self.raw.as_ref().operations).readerr)(self.raw.as_ptr(), &mut error, 0) };
                if count <= 0 {
                    return None;
                }
                return Some(Event::Closed(error.object as usize));
            }
            let said = usize::try_from(count).ok()?.saturating_sub(size_of::<sys::ConnectionEvent>());
            let said = raw.1[..said.min(MAX_SAID)].to_vec();
            let object = raw.0.object as usize;
            match kind {
                sys::EVENT_CONNECTION_REQUEST => {
                    // SAFETY: the event transfers ownership of the description.
                    if let Some(info) = unsafe { Info::from_event(self.domain.library, raw.0.info) } {
                        return Some(Event::Request(object, info, said));
                    }
                }
                sys::EVENT_CONNECTED => return Some(Event::Connected(object)),
                sys::EVENT_SHUTDOWN => return Some(Event::Closed(object)),
                _ => {}
            }
        }
    }
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        // SAFETY: made in `new`; endpoints that use it hold it, so none is left.
        unsafe { close(self.domain.library, "an event queue", self.raw.as_ptr().cast()) }
    }
}

/// A listener for connection requests.
#[derive(Debug)]
pub(crate) struct PassiveEndpoint {
    raw: NonNull<sys::PassiveEndpoint>,
    /// The provider's address, with the port.
    pub(crate) address: SocketAddr,
    events: Arc<EventQueue>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for PassiveEndpoint {}
// SAFETY: as above.
unsafe impl Sync for PassiveEndpoint {}

impl PassiveEndpoint {
    /// Listens at an address of this host, on a port that the system chooses.
    pub(crate) fn listen(events: &Arc<EventQueue>, info: &Info) -> io::Result<Self> {
        let domain = &events.domain;
        let library = domain.library;
        let mut raw = null_mut();
        // SAFETY: the fabric is open; the description is libfabric's own.
        let code = unsafe {
            let owner = domain.fabric.as_ref();
            ((*owner.operations).passive_ep)(domain.fabric.as_ptr(), info.raw.as_ptr(), &mut raw, null_mut())
        };
        let raw = made(library, code, raw)?;
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut endpoint = PassiveEndpoint { raw, address: unknown, events: Arc::clone(events) };
        // SAFETY: endpoint and queue are open, and the queue is held as long as the endpoint is.
        unsafe {
            let object = raw.as_ref().object;
            library.outcome(((*object.operations).bind)(
                raw.as_ptr().cast(),
                events.raw.as_ptr().cast(),
                0,
            ))?;
            let manager = raw.as_ref().manager;
            library.outcome(((*manager).listen)(raw.as_ptr()))?;
            let mut storage: libc::sockaddr_storage = std::mem::zeroed();
            let mut length = size_of::<libc::sockaddr_storage>();
            let place = (&raw mut storage).cast();
            library.outcome(((*manager).getname)(raw.as_ptr().cast(), place, &mut length))?;
            endpoint.address = address_of(&storage)
                .ok_or_else(|| io::Error::other("the provider's addresses are not those of the Internet"))?;
        }
        Ok(endpoint)
    }

    /// Returns the name that events use.
    pub(crate) fn name(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Rejects a request.
    pub(crate) fn reject(&self, request: &Info) {
        // SAFETY: the endpoint is open, and the handle belongs to its request.
        let code = unsafe {
            let manager = self.raw.as_ref().manager;
            ((*manager).reject)(self.raw.as_ptr(), request.get().handle, null(), 0)
        };
        if let Err(error) = self.events.domain.library.outcome(code) {
            tracing::debug!(%error, "a connection cannot be turned down");
        }
    }
}

impl Drop for PassiveEndpoint {
    fn drop(&mut self) {
        // SAFETY: made in `listen`, closed once.
        unsafe { close(self.events.domain.library, "a passive endpoint", self.raw.as_ptr().cast()) }
    }
}

fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: this family has that structure.
            let v4 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            Some((v4.sin_addr.s_addr.to_ne_bytes(), u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: this family has that structure.
            let v6 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            Some((v6.sin6_addr.s6_addr, u16::from_be(v6.sin6_port)).into())
        }
        _ => None,
    }
}
