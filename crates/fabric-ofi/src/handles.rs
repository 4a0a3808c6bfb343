//! The objects of libfabric as values that free themselves. All calls are here.
//!
//! libfabric was asked to be safe for threads (`FI_THREAD_SAFE`), so each may be called from any thread. What has to be closed
//! before what is kept by references: each value holds those that it needs.

mod addresses;
mod connecting;

pub(crate) use addresses::{AddressVector, Inserted, MAX_ADDRESS};
pub(crate) use connecting::{Event, EventQueue, PassiveEndpoint};

use crate::features::{Asked, EndpointKind, Told};
use crate::library::Library;
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
/// It is open, nothing uses it any more, and it is closed once.
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

/// What a way to a network is like: a list of libfabric's, of which the first is used.
#[derive(Debug)]
pub(crate) struct Info {
    raw: NonNull<sys::Info>,
    library: &'static Library,
}

// SAFETY: plain memory that has one owner.
unsafe impl Send for Info {}
// SAFETY: shared, it is only read.
unsafe impl Sync for Info {}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Any.
    Any,
    /// From this address.
    Source(SocketAddr),
    /// To this address.
    Destination(SocketAddr),
}

impl Info {
    /// Endpoints of a provider with messages and remote memory, as they are asked for.
    pub(crate) fn find(
        library: &'static Library,
        provider: &str,
        asked: &Asked,
        place: Place,
    ) -> io::Result<Self> {
        Self::look(library, Some(provider), asked, place)
    }

    /// The providers that have such endpoints, each once.
    pub(crate) fn providers(library: &'static Library, asked: &Asked) -> io::Result<BTreeSet<String>> {
        let found = Self::look(library, None, asked, Place::Any)?;
        let mut names = BTreeSet::new();
        let mut next: *const sys::Info = found.raw.as_ptr();
        // SAFETY: a list of libfabric's, which ends with null; each has all attributes, whose names are strings or null.
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
        // SAFETY: null asks for an empty one.
        let hints = NonNull::new(unsafe { (library.dupinfo)(null()) })
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let hints = Info { raw: hints, library };
        let name = provider.map(CString::new).transpose();
        let name = name.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: libfabric made it with all its attributes; the name is the C library's memory, which `freeinfo` frees.
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
            // Of these it may want some: none is that memory which is sent needs registration.
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
        // SAFETY: strings and hints are alive during the call.
        let code = unsafe {
            (library.getinfo)(
                sys::VERSION,
                pointer(&node),
                pointer(&service),
                flags,
                hints.raw.as_ptr(),
                &mut found,
            )
        };
        Ok(Info { raw: made(library, code, found)?, library })
    }

    /// Takes what an event brought.
    ///
    /// # Safety
    /// libfabric gave it, and nobody else frees it.
    unsafe fn from_event(library: &'static Library, raw: *mut sys::Info) -> Option<Self> {
        NonNull::new(raw).map(|raw| Info { raw, library })
    }

    fn get(&self) -> &sys::Info {
        // SAFETY: libfabric made it, and it is this value's.
        unsafe { self.raw.as_ref() }
    }

    /// What it says that matters.
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

    /// Endpoints made of it have no RECVs of their own.
    pub(crate) fn share_receives(&mut self) {
        // SAFETY: as above, and it is this value's alone.
        unsafe { (*self.raw.as_mut().ep_attr).rx_ctx_cnt = sys::SHARED_CONTEXT }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: libfabric's, freed once.
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

// SAFETY: libfabric was asked to be safe for threads.
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
        // SAFETY: the fabric is open, the description is libfabric's own, and only read.
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
                // SAFETY: just opened, and nothing is on it.
                unsafe { close(library, "a fabric", fabric.as_ptr().cast()) };
                Err(error)
            }
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: opened in `open`; all that is made of it holds it, so nothing is left.
        unsafe {
            close(self.library, "a domain", self.domain.as_ptr().cast());
            close(self.library, "a fabric", self.fabric.as_ptr().cast());
        }
    }
}

/// Memory that peers may use by a key.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    raw: NonNull<sys::MemoryRegion>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`; only closed.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Exactly the mapping's length, within `access`, under this key or one of the provider's. The caller keeps the mapping as
    /// long as an endpoint may be at work in it, which can be longer than this value is there. Where memory belongs to an
    /// endpoint, `through` is that.
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
        // SAFETY: the domain is open; the range is mapped.
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
            // SAFETY: region and endpoint are open; the endpoint is the device's, and closed after all regions.
            unsafe {
                let operations = &*(*object).operations;
                domain.library.outcome((operations.bind)(object, endpoint.raw.as_ptr().cast(), 0))?;
                domain.library.outcome((operations.control)(object, sys::ENABLE, null_mut()))?;
            }
        }
        Ok(region)
    }

    /// The key that the provider knows it by.
    pub(crate) fn key(&self) -> u64 {
        // SAFETY: open.
        unsafe { self.raw.as_ref().key }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: made in `new`, closed once.
        unsafe { close(self.domain.library, "a memory region", self.raw.as_ptr().cast()) }
    }
}

/// What a completion queue yields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The context that was posted.
    pub(crate) context: u64,
    /// Bytes received.
    pub(crate) length: usize,
    /// 0, or what went wrong.
    pub(crate) error: c_int,
}

/// A completion queue, of connected endpoints with a descriptor to sleep on.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<sys::CompletionQueue>,
    descriptor: Option<c_int>,
    /// Held while endpoints come and go, and by who makes progress from another thread than they do: layered providers look at
    /// endpoints that are not enabled yet.
    changing: Mutex<()>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue that begins with so many entries.
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
        // SAFETY: the domain is open, the attributes are of the library's layout.
        let code = unsafe {
            let owner = domain.domain.as_ref();
            ((*owner.operations).cq_open)(domain.domain.as_ptr(), &mut attributes, &mut raw, null_mut())
        };
        let raw = made(domain.library, code, raw)?;
        let mut queue =
            CompletionQueue { raw, descriptor: None, changing: Mutex::default(), domain: Arc::clone(domain) };
        if has_descriptor {
            let mut descriptor: c_int = -1;
            // SAFETY: the queue is open, and its wait object is a descriptor, for which there is room.
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

    /// The descriptor that can be read when there may be something.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue has it open until it is closed, which the borrow prevents.
        self.descriptor.map(|descriptor| unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Before sleeping on the descriptor: `false` if there is something already.
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

    /// Makes progress of the whole domain without taking anything. Whether there is something to take.
    pub(crate) fn progress(&self) -> bool {
        let _unchanged = lock(&self.changing);
        // SAFETY: the queue is open; nothing is written for a count of 0.
        let count = unsafe { ((*self.raw.as_ref().operations).read)(self.raw.as_ptr(), null_mut(), 0) };
        count != -(libc::EAGAIN as isize)
    }

    /// Takes at most as many as there is room for in `into`, one if what comes next is an error. Makes progress if there is
    /// nothing. How many.
    #[inline]
    pub(crate) fn read(&self, into: &mut [Entry; BATCH]) -> usize {
        let mut raw = [sys::Completion { context: null_mut(), flags: 0, length: 0 }; BATCH];
        // SAFETY: the queue is open, and of the format that the array has.
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
        /// With room for what later versions have behind it.
        #[repr(C)]
        struct Roomy(sys::CompletionError, [u64; 8]);
        // SAFETY: numbers and null pointers, for which zeros are values.
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

/// Completions taken at once. Few: room for them is cleared at each look, and most looks find none or one.
pub(crate) const BATCH: usize = 8;

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made in `new`; endpoints that use it hold it.
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
        // SAFETY: the domain is open, the attributes are of the library's layout.
        let code = unsafe {
            let owner = domain.domain.as_ref();
            ((*owner.operations).srx_ctx)(domain.domain.as_ptr(), &mut attributes, &mut raw, null_mut())
        };
        Ok(Arc::new(SharedReceives { raw: made(domain.library, code, raw)?, domain: Arc::clone(domain) }))
    }

    /// Posts a RECV. `WouldBlock` if there is no room now.
    ///
    /// # Safety
    /// As [`Endpoint::receive`].
    pub(crate) unsafe fn receive(&self, parts: &[libc::iovec], context: u64) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { receive(self.domain.library, self.raw, parts, context) }
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: made in `new`; endpoints that use it hold it.
        unsafe { close(self.domain.library, "a shared receive context", self.raw.as_ptr().cast()) }
    }
}

/// # Safety
/// As [`Endpoint::receive`]; the endpoint is open.
unsafe fn receive(
    library: &Library,
    raw: NonNull<sys::Endpoint>,
    parts: &[libc::iovec],
    context: u64,
) -> io::Result<()> {
    // SAFETY: the caller's promise. Nothing needs descriptors, as was asked for.
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

/// What is done with a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneSided {
    Read,
    /// Complete when the provider needs its bytes no more.
    Write,
    /// Copied at once, and told of only if it fails.
    WriteCopied,
    /// Complete when its bytes can be seen at the other end.
    WriteDelivered,
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u64,
}

/// What an endpoint finds its other end by.
#[derive(Clone, Debug)]
pub(crate) enum Finds {
    /// A connection, whose beginning and end are told here.
    Connection(Arc<EventQueue>),
    /// Addresses of datagrams.
    Addresses(Arc<AddressVector>),
}

/// Where an operation of an endpoint goes: to an address of its table, or where it is connected to.
pub(crate) const CONNECTED: u64 = sys::ADDRESS_UNSPECIFIED;

/// An active endpoint: one end of a connection, or one for datagrams. Closing it ends all that is posted there.
#[derive(Debug)]
pub(crate) struct Endpoint {
    raw: NonNull<sys::Endpoint>,
    library: &'static Library,
    // What it uses, closed after it.
    queue: Arc<CompletionQueue>,
    _finds: Finds,
    _shared: Option<Arc<SharedReceives>>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// An endpoint that is enabled and not connected.
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
            // SAFETY: all are open, and held as long as the endpoint is.
            library.outcome(unsafe {
                ((*raw.as_ref().object.operations).bind)(raw.as_ptr().cast(), object, flags)
            })
        };
        let enable = || {
            match finds {
                Finds::Connection(events) => bind(events.as_ptr(), 0)?,
                Finds::Addresses(vector) => bind(vector.raw.as_ptr().cast(), 0)?,
            }
            // What is sent says by itself whether it is to be told of.
            bind(queue.raw.as_ptr().cast(), sys::SEND | sys::SELECTIVE_COMPLETION)?;
            bind(queue.raw.as_ptr().cast(), sys::RECV)?;
            if let Some(shared) = shared {
                bind(shared.raw.as_ptr().cast(), 0)?;
            }
            // SAFETY: the endpoint is open and has what it needs.
            library.outcome(unsafe {
                ((*raw.as_ref().object.operations).control)(raw.as_ptr().cast(), sys::ENABLE, null_mut())
            })
        };
        let enabled = enable();
        // Before an endpoint that is of no use is closed.
        drop(changing);
        enabled.map(|()| endpoint)
    }

    /// What events call it. Another may have the name when this one is closed.
    pub(crate) fn name(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Its address, in the provider's form.
    pub(crate) fn address(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; MAX_ADDRESS];
        let mut length = bytes.len();
        // SAFETY: the endpoint is open, and there is as much room as is said.
        self.library.outcome(unsafe {
            let manager = self.raw.as_ref().manager;
            ((*manager).getname)(self.raw.as_ptr().cast(), bytes.as_mut_ptr().cast(), &mut length)
        })?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Asks the passive endpoint that the description leads to for a connection.
    pub(crate) fn connect(&self, info: &Info, say: &[u8]) -> io::Result<()> {
        // SAFETY: the endpoint is open; address and words are read during the call.
        self.library.outcome(unsafe {
            let manager = self.raw.as_ref().manager;
            ((*manager).connect)(self.raw.as_ptr(), info.get().dest_addr, say.as_ptr().cast(), say.len())
        })
    }

    /// Accepts the request that it was made of.
    pub(crate) fn accept(&self) -> io::Result<()> {
        // SAFETY: the endpoint is open.
        self.library.outcome(unsafe {
            let manager = self.raw.as_ref().manager;
            ((*manager).accept)(self.raw.as_ptr(), null(), 0)
        })
    }

    /// Posts a RECV. `WouldBlock` if there is no room now.
    ///
    /// # Safety
    /// The parts are valid for writes, and no one else's, until a completion with this context came or the endpoint (or shared
    /// context) is closed.
    pub(crate) unsafe fn receive(&self, parts: &[libc::iovec], context: u64) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { receive(self.library, self.raw, parts, context) }
    }

    /// Sends a message. `WouldBlock` if there is no room now.
    ///
    /// # Safety
    /// The parts are valid for reads until a completion with this context came or the endpoint is closed; if it is to be
    /// `copied`, until this returns, and then they are no longer than the provider [copies](Told::inject).
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
        // SAFETY: the endpoint is open; the rest is the caller's promise.
        let code = unsafe {
            let flags = if copied { sys::INJECT } else { sys::COMPLETION };
            ((*self.raw.as_ref().messages).sendmsg)(self.raw.as_ptr(), &message, flags)
        };
        posted(self.library, code)
    }

    /// Does `what` with a peer's memory. `WouldBlock` if there is no room now.
    ///
    /// # Safety
    /// The parts are valid for reads (or writes, and no one else's) until a completion with this context came or the endpoint
    /// is closed; of [`OneSided::WriteCopied`] until this returns, and then they are no longer than the provider
    /// [copies](Told::inject).
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
        // SAFETY: the endpoint is open; the rest is the caller's promise.
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
        // SAFETY: made in `new`, closed once. After this the provider touches nothing that was posted here.
        unsafe { close(self.library, "an endpoint", self.raw.as_ptr().cast()) }
    }
}
