//! Connections on iWARP: the two ends of a queue pair connect through the kernel's connection manager
//! (librdmacm), which is used for nothing else.
//!
//! The side that dialled the control connection sends the request. The other side's control thread accepts it
//! for queue pairs whose endpoint was sent, and identifies them by the number and secret in the endpoint. A
//! queue pair that waits for a request keeps posted requests until then.
//!
//! The requesting end knows of the connection before the other end does, and on Soft-iWARP neither end may
//! send too early: data right after the reply counts as a protocol violation, and data that arrives before
//! the queue pair owns the socket is not processed until more arrives. Each end therefore notifies the other
//! over the link ([`LinkShared::tell_ready`]) once the manager has reported the connection, and sends nothing
//! before it has received that notice too. (RFC 6581 specifies an empty first message from the requester for
//! this, but it is optional, and Soft-iWARP's driver does not send it.)

use crate::backend::RdmaBackend;
use crate::device::{Device, OpenError, errno};
use crate::domain_waiter::DomainWaiter;
use crate::endpoint::QueuePairAddress;
use crate::library::ManagerLibrary;
use crate::sys;
use dunlin_fabric::{Host, Nanos, RealHost};
use dunlin_fabric_control::{Flag, LinkEvents, LinkShared, lock};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, Weak};

/// The time limit for resolving the address and route of the peer, in milliseconds each.
const RESOLVE_PATIENCE: c_int = 2000;
/// The number of requests that may wait for the control thread.
const BACKLOG: c_int = 1024;
/// The number of ports that are tried before the error is reported.
const PORT_TRIES: usize = 32;

const MAGIC: [u8; 8] = *b"DunlinIW";

/// The data of a connection request: the target queue pair, proof that the sender knows its endpoint, and the
/// sender's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    number: u32,
    secret: (u32, u32),
    from: u64,
}

impl Claim {
    const LENGTH: usize = 28;

    fn of(address: &QueuePairAddress, from: u64) -> Self {
        Claim { number: address.number, secret: (address.psn, address.qkey), from }
    }

    fn encode(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.secret.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.secret.1.to_le_bytes());
        bytes[20..].copy_from_slice(&self.from.to_le_bytes());
        bytes
    }

    /// Decodes a peer's data. Trailing bytes are ignored, since the manager pads with zeros.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.get(..Self::LENGTH)?.strip_prefix(&MAGIC)?;
        let number = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        let from = u64::from_le_bytes(rest.get(12..20)?.try_into().ok()?);
        Some(Claim { number: number(0)?, secret: (number(4)?, number(8)?), from })
    }
}

/// An event channel of the connection manager.
#[derive(Debug)]
struct Channel {
    raw: NonNull<sys::EventChannel>,
    library: &'static ManagerLibrary,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above; each event is given to only one thread.
unsafe impl Sync for Channel {}

/// The content of an event, copied out of it.
struct Told {
    id: usize,
    kind: u32,
    status: i32,
    claim: Option<Claim>,
}

impl Channel {
    fn new(library: &'static ManagerLibrary) -> io::Result<Self> {
        // SAFETY: the function takes no arguments.
        let raw = unsafe { (library.create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Channel { raw, library };
        let flags = rustix::fs::fcntl_getfl(channel.descriptor())?;
        rustix::fs::fcntl_setfl(channel.descriptor(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps the descriptor open until it is destroyed, which the borrow prevents.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().descriptor) }
    }

    /// Returns the next event, if there is one.
    fn next(&self) -> Option<Told> {
        let mut raw = null_mut();
        // SAFETY: the channel is open, and the place is valid to write to.
        if unsafe { (self.library.get_event)(self.raw.as_ptr(), &mut raw) } != 0 || raw.is_null() {
            return None;
        }
        // SAFETY: just received, with the library's layout, and acknowledged only after this. If the event's
        // kind has private data, they are valid as long as the event.
        let told = unsafe {
            let event = &*raw;
            let (data, length) = (event.connection.private_data, event.connection.private_length);
            let has_claim = event.kind == sys::MANAGER_CONNECT_REQUEST && !data.is_null();
            let claim = has_claim
                .then(|| std::slice::from_raw_parts(data.cast::<u8>(), length.into()))
                .and_then(Claim::decode);
            Told { id: event.id as usize, kind: event.kind, status: event.status, claim }
        };
        // SAFETY: received from the library, and acknowledged once.
        unsafe { (self.library.acknowledge_event)(raw) };
        Some(told)
    }

    /// Waits for the next event, which has to be of this kind and successful.
    fn expect(&self, kind: u32, until: u64) -> io::Result<()> {
        loop {
            if let Some(told) = self.next() {
                return match (told.kind == kind, told.status) {
                    (true, 0) => Ok(()),
                    (_, status) if status < 0 => Err(errno(status)),
                    // A positive status is the peer's reason.
                    _ => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                };
            }
            let left = until.saturating_sub(RealHost.now());
            if left == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let timeout =
                Timespec { tv_sec: (left / 1_000_000_000) as _, tv_nsec: (left % 1_000_000_000) as _ };
            let mut descriptors = [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)];
            // The loop retries whatever the result.
            let _ = rustix::event::poll(&mut descriptors, Some(&timeout));
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made in `new`; its users have dropped their ids, and all events are acknowledged.
        unsafe { (self.library.destroy_event_channel)(self.raw.as_ptr()) }
    }
}

/// One side of a connection, or a listener.
#[derive(Debug)]
struct Id {
    raw: NonNull<sys::ConnectionId>,
    library: &'static ManagerLibrary,
}

// SAFETY: as for `Channel`.
unsafe impl Send for Id {}
// SAFETY: as for `Channel`; a shared reference gives access to nothing.
unsafe impl Sync for Id {}

impl Id {
    fn new(channel: &Channel) -> io::Result<Self> {
        let mut raw = null_mut();
        // SAFETY: the channel is open, and the place is valid to write to.
        done(unsafe {
            (channel.library.create_id)(channel.raw.as_ptr(), &mut raw, null_mut(), sys::PORT_SPACE_TCP)
        })?;
        let raw = NonNull::new(raw).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Id { raw, library: channel.library })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed only here; all its events that were taken are acknowledged.
        unsafe { (self.library.destroy_id)(self.raw.as_ptr()) };
    }
}

fn done(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(errno(code)) }
}

/// Runs an operation that needs a free port, and repeats it while the port is in use. The connection manager
/// assigns ports from TCP's range but knows only its own; a software device (siw) then needs the port of TCP
/// too. Each attempt uses a new id, and thus another port.
fn with_a_free_port<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..PORT_TRIES {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                tracing::debug!("TCP uses the port that the connection manager has drawn: another is drawn");
            }
            other => return other,
        }
    }
    attempt()
}

/// A socket address in C's format.
union SocketAddress {
    any: libc::sockaddr,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SocketAddress {
    fn new(address: IpAddr, port: u16) -> Self {
        match address {
            IpAddr::V4(address) => SocketAddress {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                    sin_zero: [0; 8],
                },
            },
            IpAddr::V6(address) => SocketAddress {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: port.to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: address.octets() },
                    sin6_scope_id: 0,
                },
            },
        }
    }

    fn raw(&mut self) -> *mut libc::sockaddr {
        // Only the address is taken.
        &raw mut self.any
    }
}

/// The parameters that both sides exchange when they connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The queue pair's number on its device.
    pub(crate) number: u32,
    /// The maximum number of READs that it answers concurrently.
    pub(crate) responder_resources: u8,
    /// The maximum number of READs that it has in flight.
    pub(crate) initiator_depth: u8,
}

impl Terms {
    fn parameters(self, private_data: &[u8]) -> sys::ConnectionParameters {
        sys::ConnectionParameters {
            private_data: private_data.as_ptr().cast::<c_void>(),
            private_length: private_data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            shared_receive: 0,
            queue_pair: self.number,
        }
    }
}

/// The state of a queue pair's connection.
#[derive(Debug)]
enum Connection {
    /// The peer has to request it.
    Awaited,
    /// Established; dropping it ends it. The second value is the name of the peer's queue pair, if the peer
    /// sent the request.
    Open(Id, Option<u64>),
    /// The queue pair is gone or unusable.
    Over,
}

/// A queue pair that waits for the peer's request, or has a connection.
#[derive(Debug)]
pub(crate) struct Awaited {
    terms: Terms,
    secret: (u32, u32),
    joined: Flag,
    link: Weak<LinkShared<RdmaBackend>>,
    broken: Weak<Flag>,
    attention: Weak<DomainWaiter>,
    /// Locked while a request is accepted, so that the queue pair is not destroyed meanwhile.
    connection: Mutex<Connection>,
}

impl Awaited {
    /// Returns whether this end accepts messages and has notified the peer of that.
    pub(crate) fn is_joined(&self) -> bool {
        self.joined.is_raised()
    }

    /// Records that this end accepts messages, and notifies the peer.
    fn join(&self) {
        let peer = match *lock(&self.connection) {
            Connection::Open(_, peer) => peer,
            Connection::Awaited | Connection::Over => None,
        };
        if let (Some(peer), Some(link)) = (peer, self.link.upgrade()) {
            link.tell_ready(peer);
        }
        self.joined.raise();
    }

    fn tell_news(&self) {
        if let Some(attention) = self.attention.upgrade() {
            attention.tell_news();
        }
    }

    /// Marks the queue pair as broken.
    fn break_it(&self) {
        if let Some(broken) = self.broken.upgrade() {
            broken.raise();
        }
    }
}

/// Accepts and sends connection requests for a fabric.
#[derive(Debug)]
pub(crate) struct Manager {
    awaited: Mutex<BTreeMap<u32, Arc<Awaited>>>,
    /// The queue pairs' numbers, by the ids of their connections.
    connected: Mutex<BTreeMap<usize, u32>>,
    library: &'static ManagerLibrary,
    address: IpAddr,
    port: u16,
    // Fields are dropped in order: ids before their channel.
    _listener: Id,
    channel: Channel,
}

impl Manager {
    /// Listens on a free port of the device's address.
    pub(crate) fn new(device: &Device) -> Result<Self, OpenError> {
        let library = ManagerLibrary::get()?;
        let failed = |what| move |source| OpenError::System { device: device.name.clone(), what, source };
        let address =
            address_of(device).ok_or_else(|| OpenError::NoAddress { device: device.name.clone() })?;
        let channel =
            Channel::new(library).map_err(failed("rdma_create_event_channel (module rdma_ucm?)"))?;
        let listener = with_a_free_port(|| {
            let listener = Id::new(&channel)?;
            let mut place = SocketAddress::new(address, 0);
            // SAFETY: the id is alive, and the address is only read during the call.
            done(unsafe { (library.bind_address)(listener.raw.as_ptr(), place.raw()) })?;
            // SAFETY: the id is alive.
            done(unsafe { (library.listen)(listener.raw.as_ptr(), BACKLOG) })?;
            Ok(listener)
        })
        .map_err(failed("rdma_listen"))?;
        // SAFETY: the id is alive.
        let port = u16::from_be(unsafe { (library.source_port)(listener.raw.as_ptr()) });
        Ok(Manager {
            awaited: Mutex::default(),
            connected: Mutex::default(),
            library,
            address,
            port,
            _listener: listener,
            channel,
        })
    }

    /// Returns the IP address for peers' requests.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the address and port for peers' requests, in the format of endpoints.
    pub(crate) fn place(&self) -> (sys::Gid, u16) {
        let address = match self.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        (sys::Gid(address.octets()), self.port)
    }

    /// Returns the descriptor that is readable when there are events to [`hear`](Manager::hear).
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    /// Accepts a request for this queue pair from now on, until [`forget`](Manager::forget).
    pub(crate) fn await_peer(
        &self,
        own: &QueuePairAddress,
        terms: Terms,
        link: &Arc<LinkShared<RdmaBackend>>,
        broken: &Arc<Flag>,
        attention: &Arc<DomainWaiter>,
    ) -> Arc<Awaited> {
        let awaited = Arc::new(Awaited {
            terms,
            secret: (own.psn, own.qkey),
            joined: Flag::default(),
            link: Arc::downgrade(link),
            broken: Arc::downgrade(broken),
            attention: Arc::downgrade(attention),
            connection: Mutex::new(Connection::Awaited),
        });
        lock(&self.awaited).insert(own.number, Arc::clone(&awaited));
        awaited
    }

    /// Stops accepting requests for a queue pair, and ends its connection.
    pub(crate) fn forget(&self, number: u32) {
        let Some(awaited) = lock(&self.awaited).remove(&number) else { return };
        let was = std::mem::replace(&mut *lock(&awaited.connection), Connection::Over);
        if let Connection::Open(id, _) = &was {
            lock(&self.connected).remove(&(id.raw.as_ptr() as usize));
        }
    }

    /// Requests a connection to the peer's queue pair, for this side's queue pair `name`; blocks no longer
    /// than `until`. Afterwards this end is ready; the peer's may not be yet. [`forget`](Manager::forget)
    /// ends the connection.
    pub(crate) fn ask(
        &self,
        terms: Terms,
        remote: &QueuePairAddress,
        name: u64,
        broken: &Arc<Flag>,
        attention: &Arc<DomainWaiter>,
        until: Nanos,
    ) -> io::Result<()> {
        let (library, channel) = (self.library, Channel::new(self.library)?);
        let address = Ipv6Addr::from(remote.gid.0);
        let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
        let id = with_a_free_port(|| {
            let id = Id::new(&channel)?;
            let mut from = SocketAddress::new(self.address, 0);
            let mut to = SocketAddress::new(address, remote.lid);
            let raw = id.raw.as_ptr();
            // SAFETY: the id is alive, and the addresses are only read during the call.
            done(unsafe { (library.resolve_address)(raw, from.raw(), to.raw(), RESOLVE_PATIENCE) })?;
            channel.expect(sys::MANAGER_ADDRESS_RESOLVED, until)?;
            // SAFETY: the id is alive.
            done(unsafe { (library.resolve_route)(raw, RESOLVE_PATIENCE) })?;
            channel.expect(sys::MANAGER_ROUTE_RESOLVED, until)?;
            let claim = Claim::of(remote, name).encode();
            let mut parameters = terms.parameters(&claim);
            // SAFETY: the id is alive; the parameters and the data that they name are only read during the
            // call.
            done(unsafe { (library.connect)(raw, &mut parameters) })?;
            channel.expect(sys::MANAGER_ESTABLISHED, until)?;
            Ok(id)
        })?;
        let raw = id.raw.as_ptr();
        // So that its end is reported like that of accepted connections.
        lock(&self.connected).insert(raw as usize, terms.number);
        let awaited = Awaited {
            terms,
            secret: (0, 0),
            joined: Flag::default(),
            link: Weak::new(),
            broken: Arc::downgrade(broken),
            attention: Arc::downgrade(attention),
            connection: Mutex::new(Connection::Open(id, None)),
        };
        lock(&self.awaited).insert(terms.number, Arc::new(awaited));
        // SAFETY: the id and the channel are alive. The id is not destroyed meanwhile, since the thread that
        // destroys the queue pair is the one that calls this.
        done(unsafe { (library.migrate_id)(raw, self.channel.raw.as_ptr()) })
            .inspect_err(|_| self.forget(terms.number))?;
        // An event that has moved to the channel with the id wakes no thread.
        self.hear();
        Ok(())
    }

    /// Processes all pending events. Called by the control thread, and after a request was sent.
    pub(crate) fn hear(&self) {
        while let Some(told) = self.channel.next() {
            match told.kind {
                sys::MANAGER_CONNECT_REQUEST => self.asked(&told),
                sys::MANAGER_ESTABLISHED => self.tell(told.id, Awaited::join),
                sys::MANAGER_DISCONNECTED => self.tell(told.id, Awaited::break_it),
                kind => tracing::debug!(kind, status = told.status, "the connection manager has other news"),
            }
        }
    }

    fn tell(&self, id: usize, change: impl FnOnce(&Awaited)) {
        let number = lock(&self.connected).get(&id).copied();
        let awaited = number.and_then(|number| lock(&self.awaited).get(&number).cloned());
        if let Some(awaited) = awaited {
            change(&awaited);
            awaited.tell_news();
        }
    }

    /// Processes a request. It has an id of its own, which this value owns from here on.
    fn asked(&self, told: &Told) {
        let Some(raw) = NonNull::new(told.id as *mut sys::ConnectionId) else { return };
        let id = Id { raw, library: self.library };
        let found = told.claim.and_then(|claim| {
            let awaited = lock(&self.awaited).get(&claim.number).cloned()?;
            (awaited.secret == claim.secret).then_some((claim, awaited))
        });
        let mut connection = found.as_ref().map(|(_, awaited)| lock(&awaited.connection));
        let free = connection.as_mut().filter(|connection| matches!(***connection, Connection::Awaited));
        let (Some(free), Some((claim, awaited))) = (free, &found) else {
            tracing::warn!("a request for a queue pair that is not there, or is taken, was rejected");
            // SAFETY: the id is alive. If the call fails, the peer is gone.
            unsafe { (self.library.reject)(raw.as_ptr(), null_mut(), 0) };
            return;
        };
        lock(&self.connected).insert(told.id, claim.number);
        let mut parameters = awaited.terms.parameters(&[]);
        parameters.private_data = null_mut();
        // SAFETY: the id is alive, and the parameters are only read during the call.
        if let Err(error) = done(unsafe { (self.library.accept)(raw.as_ptr(), &mut parameters) }) {
            tracing::warn!(%error, "a request for a queue pair could not be accepted");
            lock(&self.connected).remove(&told.id);
            **free = Connection::Over;
            drop(connection);
            awaited.break_it();
            return awaited.tell_news();
        }
        **free = Connection::Open(id, Some(claim.from));
    }
}

/// Returns an IP address of the device's network interface, whose hardware address is the beginning of the
/// device's GID. IPv4 is preferred.
fn address_of(device: &Device) -> Option<IpAddr> {
    let wanted: Vec<String> = device.port.gid.gid.0[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    let wanted = wanted.join(":");
    let interfaces = std::fs::read_dir("/sys/class/net").ok()?.filter_map(Result::ok);
    let names: Vec<String> = interfaces
        .filter(|entry| {
            let hardware = std::fs::read_to_string(entry.path().join("address"));
            hardware.is_ok_and(|address| address.trim() == wanted)
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let mut addresses: Vec<IpAddr> = interface_addresses()
        .into_iter()
        .filter(|(name, _)| names.contains(name))
        .map(|(_, address)| address)
        .collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.first().copied()
}

/// Returns the addresses of all network interfaces with the interfaces' names, without link-local ones.
fn interface_addresses() -> Vec<(String, IpAddr)> {
    let mut first = null_mut();
    // SAFETY: the place is valid to write to.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let (mut found, mut next) = (Vec::new(), first);
    // SAFETY: a list of C strings and addresses that is valid until it is freed; an address's type is given
    // by its family.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: as above.
        let (name, address) = unsafe {
            let name = std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            (name, entry.ifa_addr.as_ref().and_then(|address| ip_address(address)))
        };
        if let Some(address) = address {
            found.push((name, address.ip()));
        }
    }
    // SAFETY: from `getifaddrs`, and freed once.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// Converts a C address; returns `None` if it is link-local or not an IP address.
///
/// # Safety
/// The address must be as long as its family requires.
unsafe fn ip_address(address: &libc::sockaddr) -> Option<SocketAddr> {
    match i32::from(address.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family is AF_INET.
            let address = unsafe { &*std::ptr::from_ref(address).cast::<libc::sockaddr_in>() };
            Some((std::net::Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()), 0).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family is AF_INET6.
            let address = unsafe { &*std::ptr::from_ref(address).cast::<libc::sockaddr_in6>() };
            let address = Ipv6Addr::from(address.sin6_addr.s6_addr);
            (address.segments()[0] & 0xffc0 != 0xfe80).then(|| (address, 0).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn claims_are_read_as_they_were_written() {
        let claim = Claim { number: 77, secret: (5, u32::MAX), from: 9 << 40 };
        let mut bytes = claim.encode().to_vec();
        assert_eq!(Claim::decode(&bytes), Some(claim));
        bytes.extend([0; 40]);
        assert_eq!(Claim::decode(&bytes), Some(claim));
        assert_eq!(Claim::decode(&bytes[..Claim::LENGTH - 1]), None);
        bytes[0] ^= 1;
        assert_eq!(Claim::decode(&bytes), None);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(Claim::decode(&bytes), None);
        }
    }

    #[test]
    fn a_port_in_use_is_no_end_as_long_as_others_are_free() {
        let mut taken = 0;
        let mut try_with = |in_use: usize, then: io::Result<u16>| {
            taken = 0;
            let mut then = Some(then);
            let got = with_a_free_port(|| {
                taken += 1;
                if taken > in_use {
                    then.take().expect("asked once")
                } else {
                    Err(io::ErrorKind::AddrInUse.into())
                }
            });
            (got.map_err(|error| error.kind()), taken)
        };
        assert_eq!(try_with(0, Ok(7)), (Ok(7), 1));
        assert_eq!(try_with(PORT_TRIES - 1, Ok(7)), (Ok(7), PORT_TRIES));
        assert_eq!(try_with(PORT_TRIES, Ok(7)), (Err(io::ErrorKind::AddrInUse), PORT_TRIES));
        // Any other failure is not repeated, since the peer may have seen the attempt.
        let refused = Err(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(try_with(1, refused), (Err(io::ErrorKind::ConnectionRefused), 2));
    }

    #[test]
    fn this_machines_addresses_are_found() {
        let found = interface_addresses();
        assert!(found.iter().any(|(name, address)| name == "lo" && address.is_loopback()), "{found:?}");
    }
}
