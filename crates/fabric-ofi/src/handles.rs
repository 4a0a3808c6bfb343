//! Owned wrappers of libfabric's objects. All calls to libfabric are here.
//!
//! libfabric was asked for thread safety (`FI_THREAD_SAFE`), so each wrapper may be used from any thread.
//! References ensure the order of closing: each wrapper holds the objects that it needs.

mod addresses;
mod connecting;

pub(crate) use addresses::{AddressVector, Inserted, MAX_ADDRESS};
pub(crate) use connecting::{Event, EventQueue, PassiveEndpoint};

use crate::features::{Asked, EndpointKind, Told};
use crate::library::{Library, keep_signal_handlers};
use crate::sys;
use dunlin_fabric::Access;
use dunlin_fabric_control::{Mapping, lock};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null, null_mut};
use std::sync::{Arc, Mutex};

/// Closes an object.
///
/// # Safety
/// The object must be open, must not be in use, and must not be closed again.
unsafe fn close(library: &Library, what: &str, object: *mut sys::Object) {
    // SAFETY: an open object has its table.
    let code = unsafe { ((*(*object).operations).close)(object) };
    if let Err(error) = library.outcome(code) {
        tracing::error!(%error, "{what} cannot be closed");
    }
}

fn made<T>(library: &Library, code: c_int, raw: *mut T) -> io::Result<NonNull<T>> {
    library.outcome(code)?;
    NonNull::new(raw).ok_or_else(|| io::Error::other("libfabric gave nothing"))
}

/// Descriptions of endpoints: a list of libfabric, of which the first is used.
#[derive(Debug)]
pub(crate) struct Info {
    raw: NonNull<sys::Info>,
    library: &'static Library,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Info {}
// SAFETY: shared references only read it.
unsafe impl Sync for Info {}

/// The address to ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Any address.
    Any,
    /// This local address.
    Source(SocketAddr),
    /// This remote address.
    Destination(SocketAddr),
}

impl Info {
    /// Finds endpoints of a provider with messages and remote memory that match `asked`.
    pub(crate) fn find(
        library: &'static Library,
        provider: &str,
        asked: &Asked,
        place: Place,
    ) -> io::Result<Self> {
        Self::look(library, Some(provider), asked, place)
    }

    /// Returns the names of the providers with such endpoints, each once.
    pub(crate) fn providers(library: &'static Library, asked: &Asked) -> io::Result<BTreeSet<String>> {
        let found = Self::look(library, None, asked, Place::Any)?;
        let mut names = BTreeSet::new();
        let mut next: *const sys::Info = found.raw.as_ptr();
        // SAFETY: libfabric's list ends with null; each entry has all attributes, whose names are strings or
        // null.
        while let Some(info) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            let name = unsafe { (*info.fabric_attr).prov_name };
            if !name.is_null() {
                // SAFETY: as above.
                names.insert(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
            }
            next = info.next;
        }
        Ok(names)
    }

    fn look(
        library: &'static Library,
        provider: Option<&str>,
        asked: &Asked,
        place: Place,
    ) -> io::Result<Self> {
        // SAFETY: null requests an empty entry.
        let hints = NonNull::new(unsafe { (library.dupinfo)(null()) })
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let hints = Info { raw: hints, library };
        let name = provider.map(CString::new).transpose();
        let name = name.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: libfabric made it with all its attributes; the name is memory of the C library, which
        // `freeinfo` frees.
        unsafe {
            let info = &mut *hints.raw.as_ptr();
            info.caps = sys::MSG | sys::RMA;
            match asked.kind {
                EndpointKind::Connected => (*info.ep_attr).kind = sys::ENDPOINT_MSG,
                EndpointKind::Datagram => {
                    (*info.ep_attr).kind = sys::ENDPOINT_RDM;
                    (*info.domain_attr).resource_mgmt = sys::RESOURCES_MANAGED;
                }
            }
            (*info.domain_attr).threading = sys::THREAD_SAFE;
            (*info.domain_attr).control_progress = sys::PROGRESS_MANUAL;
            (*info.domain_attr).data_progress = sys::PROGRESS_MANUAL;
            // The provider may require some of these modes. None of them means that sent memory must be
            // registered.
            (*info.domain_attr).mr_mode = asked.registration;
            (*info.tx_attr).msg_order = asked.order;
            (*info.rx_attr).msg_order = asked.order;
            if let Some(name) = &name {
                (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
        }
        let (address, flags) = match place {
            Place::Any => (None, 0),
            Place::Source(address) => (Some(address), sys::SOURCE | sys::NUMERIC_HOST),
            Place::Destination(address) => (Some(address), sys::NUMERIC_HOST),
        };
        let text = |text: String| CString::new(text).map_err(io::Error::other);
        let node = address.map(|address| text(address.ip().to_string())).transpose()?;
        let service = address.map(|address| text(address.port().to_string())).transpose()?;
        let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
        let mut found = null_mut();
        // The first call loads the providers.
        let code = keep_signal_handlers(|| {
            // SAFETY: strings and hints are alive during the call.
            unsafe {
                (library.getinfo)(
                    sys::VERSION,
                    pointer(&node),
                    pointer(&service),
                    flags,
                    hints.raw.as_ptr(),
                    &mut found,
                )
            }
        });
        Ok(Info { raw: made(library, code, found)?, library })
    }

    /// Takes ownership of an event's description.
    ///
    /// # Safety
    /// `raw` must come from libfabric, and no other code may free it.
    unsafe fn from_event(library: &'static Library, raw: *mut sys::Info) -> Option<Self> {
        NonNull::new(raw).map(|raw| Info { raw, library })
    }

    fn get(&self) -> &sys::Info {
        // SAFETY: libfabric made it, and this value owns it.
        unsafe { self.raw.as_ref() }
    }

    /// Returns the relevant parts of the description.
    pub(crate) fn told(&self) -> Told {
        // SAFETY: libfabric makes each with all attributes.
        let (transmit, endpoint, domain) =
            unsafe { (*self.get().tx_attr, *self.get().ep_attr, *self.get().domain_attr) };
        let receive = self.receive();
        let remote = transmit.rma_iov_limit;
        Told {
            order: transmit.msg_order,
            registration: domain.mr_mode,
            key: domain.mr_key_size,
            parts: [transmit.iov_limit, receive.iov_limit, transmit.iov_limit, remote],
            max_message: endpoint.max_msg_size,
            inject: transmit.inject_size,
            endpoints: domain.ep_cnt,
            shared_receives: domain.max_ep_srx_ctx > 0,
            address_format: self.get().addr_format,
        }
    }

    fn receive(&self) -> sys::ReceiveAttributes {
        // SAFETY: as above.
        unsafe { *self.get().rx_attr }
    }

    /// Makes endpoints of this description use shared RECVs.
    pub(crate) fn share_receives(&mut self) {
        // SAFETY: as above, and this value owns it exclusively.
        unsafe { (*self.raw.as_mut().ep_attr).rx_ctx_cnt = sys::SHARED_CONTEXT }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: made by libfabric, freed once.
        unsafe { (self.library.freeinfo)(self.raw.as_ptr()) }
    }
}

/// A fabric of libfabric with one domain.
#[derive(Debug)]
pub(crate) struct Domain {
    fabric: NonNull<sys::Fabric>,
    domain: NonNull<sys::Domain>,
    pub(crate) library: &'static Library,
}

// SAFETY: libfabric was asked for thread safety.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn open(info: &Info) -> io::Result<Arc<Self>> {
        let library = info.library;
        let (mut fabric, mut domain) = (null_mut(), null_mut());
        // SAFETY: the attributes are libfabric's own.
        let code = unsafe { (library.fabric)(info.get().fabric_attr, &mut fabric, null_mut()) };
        let fabric = made(library, code, fabric)?;
        // SAFETY: the fabric is open; the description is libfabric's own and is only read.
        let code = unsafe {
            ((*fabric.as_ref().operations).domain)(
                fabric.as_ptr(),
                info.raw.as_ptr(),
                &mut domain,
                null_mut(),
            )
        };
        match made(library, code, domain) {
            Ok(domain) => Ok(Arc::new(Domain { fabric, domain, library })),
            Err(error) => {
                // SAFETY: just opened, and without other objects on it.
                unsafe { close(library, "a fabric", fabric.as_ptr().cast()) };
                Err(error)
            }
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: opened in `open`. All objects made from it hold it, so none is left.
        unsafe {
            close(self.library, "a domain", self.domain.as_ptr().cast());
            close(self.library, "a fabric", self.fabric.as_ptr().cast());
        }
    }
}

/// Memory that peers may access with a key.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    raw: NonNull<sys::MemoryRegion>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`; it is only read and closed.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers exactly the mapping's length, within `access`, under this key or one that the provider
    /// chooses.
    ///
    /// The caller keeps the mapping as long as an endpoint may access it, which can be longer than this value
    /// exists. If memory belongs to an endpoint, `through` is that endpoint.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        mapping: &Mapping,
        access: Access,
        key: u64,
        through: Option<&Endpoint>,
    ) -> io::Result<Self> {
        let mut flags = 0;
        for (right, flag) in [(Access::READ, sys::REMOTE_READ), (Access::WRITE, sys::REMOTE_WRITE)] {
            if access.contains(right) {
                flags |= flag;
            }
        }
        let mut raw = null_mut();
        // SAFETY: the domain is open, and the range is mapped.
        let code = unsafe {
            let owner = domain.domain.as_ref();
            ((*owner.memory).reg)(
                domain.domain.as_ptr().cast(),
                mapping.base().as_ptr().cast(),
                mapping.length(),
                flags,
                0,
                key,
                0,
                &mut raw,
                null_mut(),
            )
        };
        let region = MemoryRegion { raw: made(domain.library, code, raw)?, domain: Arc::clone(domain) };
        if let Some(endpoint) = through {
            let object: *mut sys::Object = region.raw.as_ptr().cast();
            // SAFETY: region and endpoint are open; the endpoint belongs to the device and is closed after
            // all regions.
            unsafe {
                let operations = &*(*object).operations;
                domain.library.outcome((operations.bind)(object, endpoint.raw.as_ptr().cast(), 0))?;
                domain.library.outcome((operations.control)(object, sys::ENABLE, null_mut()))?;
            }
        }
        Ok(region)
    }

    /// Returns the region's key at the provider.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: the region is open.
        unsafe { self.raw.as_ref().key }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: made in `new`, closed once.
        unsafe { close(self.domain.library, "a memory region", self.raw.as_ptr().cast()) }
    }
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The context that was given at posting.
    pub(crate) context: u64,
    /// The number of bytes received.
    pub(crate) length: usize,
    /// 0, or the error.
    pub(crate) error: c_int,
}

/// A completion queue; with connected endpoints it can have a descriptor to sleep on.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<sys::CompletionQueue>,
    descriptor: Option<c_int>,
    /// Held while endpoints are created and closed, and by other threads that make progress: layered
    /// providers access endpoints that are not enabled yet.
    changing: Mutex<()>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Makes a queue with `size` initial entries.
    pub(crate) fn new(domain: &Arc<Domain>, size: usize, has_descriptor: bool) -> io::Result<Self> {
        let mut attributes = sys::CompletionQueueAttributes {
            size,
            flags: 0,
            format: sys::CQ_FORMAT_MSG,
            wait_obj: if has_descriptor { sys::WAIT_DESCRIPTOR } else { sys::WAIT_NONE },
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: null_mut(),
        };
        let mut raw = null_mut();
        // SAFETY: the domain is open, and the attributes have the library's layout.
        let code = unsafe {
            let owner = domain.domain.as_ref();
            ((*owner.operations).cq_open)(domain.domain.as_ptr(), &mut attributes, &mut raw, null_mut())
        };
        let raw = made(domain.library, code, raw)?;
        let mut queue =
            CompletionQueue { raw, descriptor: None, changing: Mutex::default(), domain: Arc::clone(domain) };
        if has_descriptor {
            let mut descriptor: c_int = -1;
            // SAFETY: the queue is open, its wait object is a descriptor, and `place` has room for one.
            let code = unsafe {
                let object = raw.as_ref().object;
                let place = (&raw mut descriptor).cast();
                ((*object.operations).control)(raw.as_ptr().cast(), sys::GET_WAIT, place)
            };
            domain.library.outcome(code)?;
            queue.descriptor = (descriptor >= 0).then_some(descriptor);
        }
        Ok(queue)
    }

    /// Returns the descriptor, which is readable when there may be an entry.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue keeps the descriptor open until it is closed, which the borrow prevents.
        self.descriptor.map(|descriptor| unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Prepares a sleep on the descriptor; returns `false` if there is an entry already.
    pub(crate) fn may_sleep(&self) -> bool {
        if self.descriptor.is_none() {
            return true;
        }
        let _unchanged = lock(&self.changing);
        let mut object: *mut sys::Object = self.raw.as_ptr().cast();
        let fabric = self.domain.fabric;
        // SAFETY: fabric and queue are open; the list has one object.
        unsafe { ((*fabric.as_ref().operations).trywait)(fabric.as_ptr(), &mut object, 1) == 0 }
    }

    /// Makes progress for the whole domain without taking entries; returns whether there are any.
    pub(crate) fn progress(&self) -> bool {
        let _unchanged = lock(&self.changing);
        // SAFETY: the queue is open; with a count of 0 nothing is written.
        let count = unsafe { ((*self.raw.as_ref().operations).read)(self.raw.as_ptr(), null_mut(), 0) };
        count != -(libc::EAGAIN as isize)
    }

    /// Takes at most [`BATCH`] entries, or a single error entry if that is next; returns their number. Makes
    /// progress if the queue is empty.
    #[inline]
    pub(crate) fn read(&self, into: &mut [Entry; BATCH]) -> usize {
        let mut raw = [sys::Completion { context: null_mut(), flags: 0, length: 0 }; BATCH];
        // SAFETY: the queue is open, and the array has the queue's entry format.
        let count = unsafe {
            ((*self.raw.as_ref().operations).read)(self.raw.as_ptr(), raw.as_mut_ptr().cast(), BATCH)
        };
        if count > 0 {
            let count = (count as usize).min(BATCH);
            for (entry, raw) in into.iter_mut().zip(&raw[..count]) {
                *entry = Entry { context: raw.context as u64, length: raw.length, error: 0 };
            }
            return count;
        }
        if count == -sys::ERROR_AVAILABLE { usize::from(self.read_error(&mut into[0])) } else { 0 }
    }

    fn read_error(&self, into: &mut Entry) -> bool {
        /// Leaves room for the fields that later versions append.
        #[repr(C)]
        struct Roomy(sys::CompletionError, [u64; 8]);
        // SAFETY: numbers and null pointers, for which zeros are valid values.
        let mut raw: Roomy = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open, and there is room for the entry.
        let count = unsafe { ((*self.raw.as_ref().operations).readerr)(self.raw.as_ptr(), &mut raw.0, 0) };
        if count <= 0 {
            return false;
        }
        let error = if raw.0.error == 0 { libc::EIO } else { raw.0.error };
        *into = Entry { context: raw.0.context as u64, length: raw.0.length, error };
        true
    }
}

/// The number of entries taken at once. Small, since the array is cleared at each poll, and most polls find
/// none or one.
pub(crate) const BATCH: usize = 8;

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made in `new`; endpoints that use it hold it, so none is left.
        unsafe { close(self.domain.library, "a completion queue", self.raw.as_ptr().cast()) }
    }
}

/// RECVs that several endpoints share.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    raw: NonNull<sys::Endpoint>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for SharedReceives {}
// SAFETY: as above.
unsafe impl Sync for SharedReceives {}

impl SharedReceives {
    pub(crate) fn new(domain: &Arc<Domain>, info: &Info) -> io::Result<Arc<Self>> {
        let mut attributes = info.receive();
        let mut raw = null_mut();
        // SAFETY: the domain is open, and the attributes have the library's layout.
        let code = unsafe {
            let owner = domain.domain.as_ref();
            ((*owner.operations).srx_ctx)(domain.domain.as_ptr(), &mut attributes, &mut raw, null_mut())
        };
        Ok(Arc::new(SharedReceives { raw: made(domain.library, code, raw)?, domain: Arc::clone(domain) }))
    }

    /// Posts a RECV. Returns `WouldBlock` if there is no room now.
    ///
    /// # Safety
    /// As [`Endpoint::receive`].
    pub(crate) unsafe fn receive(&self, parts: &[libc::iovec], context: u64) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { receive(self.domain.library, self.raw, parts, context) }
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: made in `new`; endpoints that use it hold it, so none is left.
        unsafe { close(self.domain.library, "a shared receive context", self.raw.as_ptr().cast()) }
    }
}

/// # Safety
/// As [`Endpoint::receive`]; the endpoint must be open.
unsafe fn receive(
    library: &Library,
    raw: NonNull<sys::Endpoint>,
    parts: &[libc::iovec],
    context: u64,
) -> io::Result<()> {
    // SAFETY: the caller's contract. No memory needs a descriptor, since that mode was not offered.
    let code = unsafe {
        ((*raw.as_ref().messages).recvv)(
            raw.as_ptr(),
            parts.as_ptr(),
            null_mut(),
            parts.len(),
            sys::ADDRESS_UNSPECIFIED,
            context as *mut c_void,
        )
    };
    posted(library, code)
}

fn posted(library: &Library, code: isize) -> io::Result<()> {
    if code == 0 { Ok(()) } else { library.outcome(code as c_int) }
}

/// A one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneSided {
    Read,
    /// Completes when the provider no longer needs the bytes.
    Write,
    /// Copied at posting; reported only if it fails.
    WriteCopied,
    /// Completes when the bytes are visible at the other end.
    WriteDelivered,
}

/// The address and key of a peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// The means by which an endpoint finds its other end.
#[derive(Clone, Debug)]
pub(crate) enum Finds {
    /// A connection, whose events go to this queue.
    Connection(Arc<EventQueue>),
    /// Addresses of datagrams.
    Addresses(Arc<AddressVector>),
}

/// Destination of operations on connected endpoints. On datagram endpoints, the destination is an address in
/// the table.
pub(crate) const CONNECTED: u64 = sys::ADDRESS_UNSPECIFIED;

/// An active endpoint: one end of a connection, or a datagram endpoint. Closing it ends all operations posted
/// on it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    raw: NonNull<sys::Endpoint>,
    library: &'static Library,
    // Objects that the endpoint uses, closed after it.
    queue: Arc<CompletionQueue>,
    _finds: Finds,
    _shared: Option<Arc<SharedReceives>>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Makes an endpoint that is enabled and not connected.
    pub(crate) fn new(
        info: &Info,
        queue: &Arc<CompletionQueue>,
        finds: &Finds,
        shared: Option<&Arc<SharedReceives>>,
    ) -> io::Result<Self> {
        let domain = &queue.domain;
        let library = domain.library;
        let changing = lock(&queue.changing);
        let mut raw = null_mut();
        // SAFETY: the domain is open; the description is libfabric's own.
        let code = unsafe {
            let owner = domain.domain.as_ref();
            ((*owner.operations).endpoint)(domain.domain.as_ptr(), info.raw.as_ptr(), &mut raw, null_mut())
        };
        let raw = made(library, code, raw)?;
        let endpoint = Endpoint {
            raw,
            library,
            queue: Arc::clone(queue),
            _finds: finds.clone(),
            _shared: shared.map(Arc::clone),
        };
        let bind = |object: *mut sys::Object, flags| {
            // SAFETY: all objects are open, and held as long as the endpoint is.
            library.outcome(unsafe {
                ((*raw.as_ref().object.operations).bind)(raw.as_ptr().cast(), object, flags)
            })
        };
        let enable = || {
            match finds {
                Finds::Connection(events) => bind(events.as_ptr(), 0)?,
                Finds::Addresses(vector) => bind(vector.raw.as_ptr().cast(), 0)?,
            }
            // Each send operation chooses itself whether it makes a completion.
            bind(queue.raw.as_ptr().cast(), sys::SEND | sys::SELECTIVE_COMPLETION)?;
            bind(queue.raw.as_ptr().cast(), sys::RECV)?;
            if let Some(shared) = shared {
                bind(shared.raw.as_ptr().cast(), 0)?;
            }
            // SAFETY: the endpoint is open and bound to all that it needs.
            library.outcome(unsafe {
                ((*raw.as_ref().object.operations).control)(raw.as_ptr().cast(), sys::ENABLE, null_mut())
            })
        };
        let enabled = enable();
        // Released before an endpoint that could not be enabled is closed, since closing takes the lock.
        drop(changing);
        enabled.map(|()| endpoint)
    }

    /// Returns the name that events use. A later endpoint can get the same name after this one is closed.
    pub(crate) fn name(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Returns its address in the provider's format.
    pub(crate) fn address(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; MAX_ADDRESS];
        let mut length = bytes.len();
        // SAFETY: the endpoint is open, and the buffer has the given length.
        self.library.outcome(unsafe {
            let manager = self.raw.as_ref().manager;
            ((*manager).getname)(self.raw.as_ptr().cast(), bytes.as_mut_ptr().cast(), &mut length)
        })?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Requests a connection from the passive endpoint that the description leads to, with `say` as data.
    pub(crate) fn connect(&self, info: &Info, say: &[u8]) -> io::Result<()> {
        // SAFETY: the endpoint is open; address and data are only read during the call.
        self.library.outcome(unsafe {
            let manager = self.raw.as_ref().manager;
            ((*manager).connect)(self.raw.as_ptr(), info.get().dest_addr, say.as_ptr().cast(), say.len())
        })
    }

    /// Accepts the connection request from which the endpoint was made.
    pub(crate) fn accept(&self) -> io::Result<()> {
        // SAFETY: the endpoint is open.
        self.library.outcome(unsafe {
            let manager = self.raw.as_ref().manager;
            ((*manager).accept)(self.raw.as_ptr(), null(), 0)
        })
    }

    /// Posts a RECV. Returns `WouldBlock` if there is no room now.
    ///
    /// # Safety
    /// The parts must be valid for writes and used by no other code until a completion with this context has
    /// arrived or the endpoint (or shared context) is closed.
    pub(crate) unsafe fn receive(&self, parts: &[libc::iovec], context: u64) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { receive(self.library, self.raw, parts, context) }
    }

    /// Sends a message. Returns `WouldBlock` if there is no room now.
    ///
    /// # Safety
    /// The parts must be valid for reads until a completion with this context has arrived or the endpoint is
    /// closed. If `copied`, they must be valid until this method returns, and be no longer than the provider
    /// [copies](Told::inject).
    #[inline]
    pub(crate) unsafe fn send(
        &self,
        to: u64,
        parts: &[libc::iovec],
        context: u64,
        copied: bool,
    ) -> io::Result<()> {
        let message = sys::Message {
            parts: parts.as_ptr(),
            descriptors: null_mut(),
            count: parts.len(),
            address: to,
            context: context as *mut c_void,
            data: 0,
        };
        // SAFETY: the endpoint is open; the caller's contract covers the rest.
        let code = unsafe {
            let flags = if copied { sys::INJECT } else { sys::COMPLETION };
            ((*self.raw.as_ref().messages).sendmsg)(self.raw.as_ptr(), &message, flags)
        };
        posted(self.library, code)
    }

    /// Executes the operation `what` on a peer's memory. Returns `WouldBlock` if there is no room now.
    ///
    /// # Safety
    /// The parts must be valid for reads (for a READ: for writes, and used by no other code) until a
    /// completion with this context has arrived or the endpoint is closed. For [`OneSided::WriteCopied`] they
    /// must be valid until this method returns, and be no longer than the provider [copies](Told::inject).
    #[inline]
    pub(crate) unsafe fn remote(
        &self,
        what: OneSided,
        to: u64,
        parts: &[libc::iovec],
        at: Remote,
        context: u64,
    ) -> io::Result<()> {
        let length = parts.iter().map(|part| part.iov_len).sum();
        let remote = sys::RemotePart { address: at.address, length, key: at.key };
        let message = sys::RemoteMessage {
            parts: parts.as_ptr(),
            descriptors: null_mut(),
            count: parts.len(),
            address: to,
            remote: &remote,
            remote_count: 1,
            context: context as *mut c_void,
            data: 0,
        };
        // SAFETY: the endpoint is open; the caller's contract covers the rest.
        let code = unsafe {
            let operations = &*self.raw.as_ref().memory;
            let (post, flags) = match what {
                OneSided::Read => (operations.readmsg, sys::COMPLETION),
                OneSided::Write => (operations.writemsg, sys::COMPLETION),
                OneSided::WriteCopied => (operations.writemsg, sys::INJECT),
                OneSided::WriteDelivered => (operations.writemsg, sys::COMPLETION | sys::DELIVERY_COMPLETE),
            };
            post(self.raw.as_ptr(), &message, flags)
        };
        posted(self.library, code)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let _changing = lock(&self.queue.changing);
        // SAFETY: made in `new`, closed once. After this the provider accesses no memory of operations posted
        // here.
        unsafe { close(self.library, "an endpoint", self.raw.as_ptr().cast()) }
    }
}
