//! Owned wrappers of verbs objects. All calls of the data path are here.
//!
//! One thread at a time uses each wrapper (methods that change it take `&mut self`), and each keeps its
//! device open. [`RdmaDomain`](crate::RdmaDomain) ensures the order among them: it drops queue pairs before
//! queues.

use crate::device::{Device, errno};
use crate::events::Object;
use crate::sys;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

fn freed(what: &str, code: c_int) {
    if code != 0 {
        tracing::error!(error = %errno(code), "{what} cannot be destroyed");
    }
}

fn made<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

/// A completion channel: a descriptor that becomes readable when an armed completion queue has a completion.
#[derive(Debug)]
pub(crate) struct Channel {
    raw: NonNull<sys::CompletionChannel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: shared references only read the descriptor; the owner of the domain takes events.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = made(unsafe { (device.library.create_channel)(device.context.as_ptr()) })?;
        let channel = Channel { raw, device: Arc::clone(device) };
        let flags = rustix::fs::fcntl_getfl(channel.descriptor())?;
        // Events are taken until none is left.
        rustix::fs::fcntl_setfl(channel.descriptor(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    /// Returns the descriptor, for polling.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps the descriptor open until it is destroyed, which the borrow prevents.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().descriptor) }
    }

    /// Takes one event; returns the number of its completion queue. The event has to be acknowledged.
    pub(crate) fn next_event(&self) -> Option<usize> {
        let (mut queue, mut user) = (null_mut(), null_mut::<c_void>());
        // SAFETY: the channel is open, and both places are valid to write to.
        let code = unsafe { (self.device.library.get_cq_event)(self.raw.as_ptr(), &mut queue, &mut user) };
        (code == 0).then_some(user as usize)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made in `new`. Queues that use it are gone, since the domain drops them first.
        freed("a completion channel", unsafe { (self.device.library.destroy_channel)(self.raw.as_ptr()) });
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    raw: NonNull<sys::CompletionQueue>,
    device: Arc<Device>,
    unacknowledged: u32,
}

// SAFETY: as for `Channel`; used by one thread at a time.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// Makes a queue; its events carry `number`.
    pub(crate) fn new(
        device: &Arc<Device>,
        depth: u32,
        channel: Option<&Channel>,
        number: usize,
    ) -> io::Result<Self> {
        let depth = c_int::try_from(depth).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let channel = channel.map_or(null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: context and channel are open; the library only returns the number with events.
        let raw = made(unsafe {
            (device.library.create_cq)(device.context.as_ptr(), depth, number as *mut c_void, channel, 0)
        })?;
        Ok(CompletionQueue { raw, device: Arc::clone(device), unacknowledged: 0 })
    }

    /// Returns the object that its events name.
    pub(crate) fn object(&self) -> Object {
        Object::CompletionQueue(self.raw.as_ptr() as usize)
    }

    /// Takes completions, as many as there are and fit; returns their number.
    #[inline]
    pub(crate) fn poll(&mut self, into: &mut [sys::WorkCompletion]) -> usize {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue and its context are alive, the slice has the given length, and no other thread
        // polls the queue.
        let count = unsafe {
            let poll = (*self.raw.as_ref().context).operations.poll_cq;
            poll(self.raw.as_ptr(), room, into.as_mut_ptr())
        };
        usize::try_from(count).unwrap_or(0)
    }

    /// Arms the queue: the channel reports the next completion.
    pub(crate) fn request_notification(&mut self) -> io::Result<()> {
        // SAFETY: the queue and its context are alive.
        let code = unsafe {
            let request = (*self.raw.as_ref().context).operations.request_notification;
            request(self.raw.as_ptr(), 0)
        };
        if code == 0 { Ok(()) } else { Err(errno(code)) }
    }

    /// Counts an event of the queue that was taken from the channel.
    pub(crate) fn count_event(&mut self) {
        self.unacknowledged += 1;
        // Each acknowledgement takes a lock, so events are acknowledged in batches.
        if self.unacknowledged == 64 {
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        let events = std::mem::take(&mut self.unacknowledged);
        // SAFETY: exactly this number of events of the queue was taken and not acknowledged.
        unsafe { (self.device.library.ack_cq_events)(self.raw.as_ptr(), events) };
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // The library waits in the destruction until all events are acknowledged.
        self.acknowledge();
        // SAFETY: made in `new`. Queue pairs that use it are gone, since the domain drops them first.
        freed("a completion queue", unsafe { (self.device.library.destroy_cq)(self.raw.as_ptr()) });
    }
}

/// One RECV: its id and the memory that it may fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveRequest {
    pub(crate) id: u64,
    pub(crate) memory: Option<sys::ScatterGather>,
}

impl ReceiveRequest {
    /// Passes the request to `post` in the library's format.
    fn with<T>(mut self, post: impl FnOnce(*mut sys::ReceiveWorkRequest) -> T) -> T {
        let part_count = c_int::from(self.memory.is_some());
        let parts = self.memory.as_mut().map_or(null_mut(), |memory| memory as *mut _);
        let mut request = sys::ReceiveWorkRequest { id: self.id, next: null_mut(), parts, part_count };
        post(&mut request)
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    raw: NonNull<sys::SharedReceiveQueue>,
    device: Arc<Device>,
}

// SAFETY: as for `CompletionQueue`.
unsafe impl Send for SharedReceiveQueue {}

impl SharedReceiveQueue {
    pub(crate) fn new(device: &Arc<Device>, depth: u32) -> io::Result<Self> {
        let mut init = sys::SharedReceiveInit { user: null_mut(), max_wr: depth, max_sge: 1, limit: 0 };
        // SAFETY: the protection domain belongs to an open device, and the structure has the library's
        // layout.
        let raw = made(unsafe { (device.library.create_srq)(device.domain.as_ptr(), &mut init) })?;
        Ok(SharedReceiveQueue { raw, device: Arc::clone(device) })
    }

    /// Returns the object that its events name.
    pub(crate) fn object(&self) -> Object {
        Object::SharedReceiveQueue(self.raw.as_ptr() as usize)
    }

    /// Posts a RECV.
    ///
    /// # Safety
    /// The memory must be valid for writes and used by no other code until a completion with this id has
    /// arrived or the queue is gone.
    pub(crate) unsafe fn post(&mut self, request: ReceiveRequest) -> io::Result<()> {
        let mut bad = null_mut();
        let code = request.with(|request| {
            // SAFETY: the queue and its context are alive, and the list is only read during the call. The
            // caller's contract covers the memory.
            unsafe {
                let post = (*self.raw.as_ref().context).operations.post_shared_receive;
                post(self.raw.as_ptr(), request, &mut bad)
            }
        });
        if code == 0 { Ok(()) } else { Err(errno(code)) }
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: made in `new`. Queue pairs that use it are gone, since the domain drops them first.
        freed("a shared receive queue", unsafe { (self.device.library.destroy_srq)(self.raw.as_ptr()) });
    }
}

/// The parameters of a queue pair.
pub(crate) struct QueuePairParts<'a> {
    pub(crate) transport: u32,
    pub(crate) send_completions: &'a CompletionQueue,
    pub(crate) receive_completions: &'a CompletionQueue,
    pub(crate) shared_receive: Option<&'a SharedReceiveQueue>,
    pub(crate) capacity: sys::QueuePairCapacity,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    raw: NonNull<sys::QueuePair>,
    number: u32,
    device: Arc<Device>,
}

// SAFETY: as for `CompletionQueue`.
unsafe impl Send for QueuePair {}

impl QueuePair {
    pub(crate) fn new(device: &Arc<Device>, parts: QueuePairParts<'_>) -> io::Result<Self> {
        let mut init = sys::QueuePairInit {
            user: null_mut(),
            send_completions: parts.send_completions.raw.as_ptr(),
            receive_completions: parts.receive_completions.raw.as_ptr(),
            shared_receive: parts.shared_receive.map_or(null_mut(), |shared| shared.raw.as_ptr()),
            capacity: parts.capacity,
            transport: parts.transport,
            all_signaled: 0,
        };
        // SAFETY: all named objects are alive and belong to this device, and the structure has the library's
        // layout.
        let raw = made(unsafe { (device.library.create_qp)(device.domain.as_ptr(), &mut init) })?;
        // SAFETY: just made.
        let number = unsafe { raw.as_ref().number };
        Ok(QueuePair { raw, number, device: Arc::clone(device) })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Changes the attributes in `mask`.
    pub(crate) fn modify(&mut self, mut attributes: sys::QueuePairAttributes, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair is alive; the structure has the library's layout and is only read during the
        // call.
        let code = unsafe { (self.device.library.modify_qp)(self.raw.as_ptr(), &mut attributes, mask) };
        if code == 0 { Ok(()) } else { Err(errno(code)) }
    }

    /// Returns the device's state of the queue pair, which can differ from the last one that was set.
    pub(crate) fn state(&self) -> io::Result<c_uint> {
        let mut attributes = sys::QueuePairAttributes::default();
        // The library writes the creation parameters too, which are not used.
        let mut init = MaybeUninit::<sys::QueuePairInit>::zeroed();
        // SAFETY: the queue pair is alive, and both structures have the library's layout and are writable.
        let code = unsafe {
            (self.device.library.query_qp)(
                self.raw.as_ptr(),
                &mut attributes,
                sys::SET_STATE,
                init.as_mut_ptr(),
            )
        };
        if code == 0 { Ok(attributes.state) } else { Err(errno(code)) }
    }

    /// Posts work requests (at least one) as a linked list with one doorbell. An error contains the number of
    /// requests that were accepted.
    ///
    /// # Safety
    /// The parts of each request must name memory that is valid for reads (READ and atomics: for writes, and
    /// used by no other code) until that request or a later one of this queue pair has completed, or the
    /// queue pair is gone. Inline memory must be valid until this method returns.
    #[inline]
    pub(crate) unsafe fn post(
        &mut self,
        list: &mut [sys::SendWorkRequest],
    ) -> Result<(), (usize, io::Error)> {
        let (first, mut bad) = (list.as_mut_ptr(), null_mut());
        // SAFETY: the indices are within the list, and the queue pair and its context are alive. The caller's
        // contract covers the rest.
        let code = unsafe {
            for at in 1..list.len() {
                (*first.add(at - 1)).next = first.add(at);
            }
            let post = (*self.raw.as_ref().context).operations.post_send;
            post(self.raw.as_ptr(), first, &mut bad)
        };
        if code == 0 {
            return Ok(());
        }
        let taken = list.iter().position(|request| std::ptr::eq(request, bad)).unwrap_or(0);
        Err((taken, errno(code)))
    }

    /// Posts a RECV.
    ///
    /// # Safety
    /// As [`SharedReceiveQueue::post`].
    pub(crate) unsafe fn post_receive(&mut self, request: ReceiveRequest) -> io::Result<()> {
        let mut bad = null_mut();
        let code = request.with(|request| {
            // SAFETY: the queue pair and its context are alive, and the list is only read during the call.
            // The caller's contract covers the memory.
            unsafe {
                let post = (*self.raw.as_ref().context).operations.post_receive;
                post(self.raw.as_ptr(), request, &mut bad)
            }
        });
        if code == 0 { Ok(()) } else { Err(errno(code)) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made in `new`. After this the NIC accesses no memory of requests posted here.
        freed("a queue pair", unsafe { (self.device.library.destroy_qp)(self.raw.as_ptr()) });
    }
}

/// The destination of datagrams.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    raw: NonNull<sys::AddressHandle>,
    device: Arc<Device>,
}

// SAFETY: as for `CompletionQueue`.
unsafe impl Send for AddressHandle {}

impl AddressHandle {
    pub(crate) fn new(device: &Arc<Device>, mut address: sys::AddressAttributes) -> io::Result<Self> {
        // SAFETY: the protection domain belongs to an open device, and the structure has the library's
        // layout.
        let raw = made(unsafe { (device.library.create_ah)(device.domain.as_ptr(), &mut address) })?;
        Ok(AddressHandle { raw, device: Arc::clone(device) })
    }

    /// Returns the pointer for a work request; valid while this value lives.
    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::AddressHandle {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed only here.
        freed("an address handle", unsafe { (self.device.library.destroy_ah)(self.raw.as_ptr()) });
    }
}
