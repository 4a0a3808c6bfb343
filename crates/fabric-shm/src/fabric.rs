//! The fabric, which creates all other objects.

use crate::accept::{Acceptor, greet};
use crate::barrier;
use crate::config::ShmConfig;
use crate::device;
use crate::domain::ShmDomain;
use crate::frame::{Frame, READ_BUFFER, Refusal, VERSION};
use crate::io::Io;
use crate::limits::{MAX_DATAGRAM, MAX_INLINE, MAX_MESSAGE, MAX_QUEUE_DEPTH, MAX_QUEUE_PAIRS};
use crate::link::{LinkShared, Secrets, ShmLink};
use crate::memory::ShmMemory;
use crate::payloads::{ProcessFills, ShmPayloads};
use crate::process;
use dunlin_fabric::{
    Access, Address, Atomics, Capabilities, CreateError, DeviceIdentity, DialError, Fabric, Host, KnownRates,
    ListenError, Nanos, Prefetch, Rates, RatesBook, RealHost, RegisterError, Scheme, TransportSet,
};
use dunlin_fabric::{copy, door};
use dunlin_fabric_control::unix::{self, Received};
use dunlin_fabric_control::{ControlListener, ListenerShared, wait};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[derive(Debug)]
struct Inner {
    io: Arc<Io>,
    capabilities: Capabilities,
    rates: KnownRates,
    /// The rates in use until measurements exist.
    typical_rates: Arc<Rates>,
    domains: AtomicU32,
    fills: Arc<ProcessFills>,
}

/// Listens on an abstract Unix socket, which has no name in a file system. Dropping it frees the name.
pub type ShmListener = ControlListener<OwnedFd, ShmLink>;

/// Shared memory between the processes of one host, or within one process. Clones are the same fabric, with
/// one control thread; all methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct ShmFabric(Arc<Inner>);

impl ShmFabric {
    /// Starts a fabric, which has one control thread and a handful of descriptors. Raises the process's soft
    /// limit of open descriptors to the hard limit.
    pub fn new(config: ShmConfig) -> io::Result<Self> {
        process::raise_descriptor_limit();
        let capabilities = Capabilities {
            name: "shm",
            transports: TransportSet::ALL,
            max_inline: MAX_INLINE,
            max_message: MAX_MESSAGE,
            max_datagram: MAX_DATAGRAM,
            datagram_headroom: 0,
            atomics: Atomics::Processors,
            immediate: true,
            acknowledged: true,
            in_order_write: true,
            cache_line_atomic_reads: true,
            shared_receive_queue: true,
            events: true,
            write_wakes: barrier::is_registered(),
            wakes_others: true,
            initiator_copies: true,
            target_progress: true,
            adopts: false,
            max_queue_pairs: MAX_QUEUE_PAIRS,
            max_queue_depth: MAX_QUEUE_DEPTH,
        };
        let io = Io::start(config)?;
        Ok(ShmFabric(Arc::new(Inner {
            io,
            capabilities,
            rates: KnownRates::default(),
            typical_rates: Arc::new(Rates::shared_memory()),
            domains: AtomicU32::new(1),
            fills: Arc::default(),
        })))
    }

    /// Sets the source of measured rates. Only the first call counts. The source is not read before rates are
    /// requested.
    pub fn set_rates_book(&self, book: Arc<dyn RatesBook>) {
        self.0.rates.set_book(book);
    }

    fn greet(&self, socket: OwnedFd, address: &Address, until: Nanos) -> Result<ShmLink, DialError> {
        let system = |source: io::Error| DialError::System { address: address.clone(), source };
        let none = |source: io::Error| DialError::NoGreeting { address: address.clone(), source };
        let foreign = |bytes: &[u8], source: io::Error| match door::found(bytes, address.name()) {
            Some(found) => DialError::WrongDoor { address: address.clone(), found },
            None => none(source),
        };
        let io = &self.0.io;
        let start = RealHost.now();
        // A listener that refuses has closed the connection before this side's greeting; its reason can still
        // be read.
        let said = greet(&socket);
        let mut buffer = vec![0; READ_BUFFER];
        let theirs = loop {
            match unix::receive(socket.as_fd(), &mut buffer).map_err(|e| none(e.into()))? {
                Received::Empty => {
                    let left = until.saturating_sub(RealHost.now());
                    if left == 0 {
                        return Err(timed_out(address, until.saturating_sub(start)));
                    }
                    wait(socket.as_fd(), false, left.min(1_000_000_000));
                }
                Received::Frame { length, descriptor: None } => match Frame::decode(&buffer[..length]) {
                    Ok(Frame::Hello { version: VERSION, secret }) => break secret,
                    Ok(Frame::Hello { version: theirs, .. } | Frame::Refused(Refusal::Version(theirs))) => {
                        return Err(DialError::Version { address: address.clone(), ours: VERSION, theirs });
                    }
                    Ok(Frame::Refused(Refusal::User(user))) => {
                        return Err(DialError::Permission {
                            address: address.clone(),
                            why: format!(
                                "it does not admit user id {user}; run as the server's user, or widen its policy"
                            ),
                        });
                    }
                    Ok(Frame::Refused(Refusal::Full)) => {
                        return Err(DialError::Full { address: address.clone() });
                    }
                    Ok(_) => {
                        let error = io::Error::other("its first word was no greeting");
                        return Err(foreign(&buffer[..length], error));
                    }
                    Err(error) => return Err(foreign(&buffer[..length], io::Error::other(error))),
                },
                Received::Frame { .. } | Received::Oversized => {
                    return Err(none(io::Error::other("its first word was no greeting")));
                }
                Received::End => {
                    return Err(none(io::Error::other("it closed the connection before its greeting")));
                }
            }
        };
        let ours = said.map_err(|e| none(e.into()))?;
        let secrets = Secrets { ours, theirs };
        let link = LinkShared::new(socket, secrets, io);
        link.watch().map_err(system)?;
        Ok(ShmLink::new(link, Arc::clone(&self.0.io)))
    }
}

fn timed_out(address: &Address, within: Nanos) -> DialError {
    DialError::TimedOut { address: address.clone(), after: Duration::from_nanos(within) }
}

impl Fabric for ShmFabric {
    type Host = RealHost;
    type Memory = ShmMemory;
    type Link = ShmLink;
    type Listener = ShmListener;
    type Domain = ShmDomain;
    type Payloads = ShmPayloads;

    // A store into a line that the reader's core holds waits for it, and the writer's store queue fills up; a much longer
    // distance takes lines away from the reader, whose processor prefetches too. To read ahead where no stream is takes
    // lines away from the writer.
    const PREFETCH: Prefetch = Prefetch { written_lines: copy::LINES_BEHIND, read_lines: 2, stream_from: 4 };

    fn host(&self) -> &RealHost {
        &RealHost
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn device(&self) -> DeviceIdentity {
        device::this_machine()
    }

    fn rates(&self) -> Option<Arc<Rates>> {
        self.0.rates.get(|| self.device()).or_else(|| Some(Arc::clone(&self.0.typical_rates)))
    }

    fn payloads(&self) -> ShmPayloads {
        ShmPayloads::new(Arc::clone(&self.0.fills))
    }

    fn register(&self, length: u64, access: Access) -> Result<ShmMemory, RegisterError> {
        ShmMemory::new(length, access)
    }

    fn register_adjacent(&self, lengths: &[u64], access: Access) -> Result<Vec<ShmMemory>, RegisterError> {
        ShmMemory::new_adjacent(lengths, access)
    }

    fn domain(&self) -> Result<ShmDomain, CreateError> {
        let number = self.0.domains.fetch_add(1, Ordering::Relaxed);
        ShmDomain::new(number, Arc::clone(&self.0.io))
    }

    fn listen(&self, address: &Address) -> Result<ShmListener, ListenError> {
        if address.scheme() != Scheme::Shm {
            return Err(ListenError::WrongScheme(address.clone()));
        }
        let system = |source| ListenError::System { address: address.clone(), source };
        let socket = unix::listen(address.name(), 1024).map_err(|errno| match errno {
            Errno::ADDRINUSE => ListenError::InUse { address: address.clone() },
            other => system(other.into()),
        })?;
        let shared = ListenerShared::new(socket, self.0.io.reactor());
        let acceptor = Acceptor { listener: Arc::clone(&shared), io: Arc::downgrade(&self.0.io) };
        shared.watch(Arc::new(acceptor)).map_err(system)?;
        let owner: Arc<Io> = Arc::clone(&self.0.io);
        Ok(ShmListener::new(shared, address.clone(), owner))
    }

    fn dial(&self, address: &Address, until: Nanos) -> Result<ShmLink, DialError> {
        if address.scheme() != Scheme::Shm {
            return Err(DialError::WrongScheme(address.clone()));
        }
        let start = RealHost.now();
        loop {
            match unix::connect(address.name()) {
                Ok(socket) => return self.greet(socket, address, until),
                Err(Errno::CONNREFUSED) => {
                    return Err(DialError::NobodyListens { address: address.clone() });
                }
                // The listener's backlog is full; it accepts again soon.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => {
                    return Err(DialError::System { address: address.clone(), source: errno.into() });
                }
            }
            let now = RealHost.now();
            if now >= until {
                return Err(timed_out(address, until.saturating_sub(start)));
            }
            RealHost.sleep((now + 1_000_000).min(until));
        }
    }
}
