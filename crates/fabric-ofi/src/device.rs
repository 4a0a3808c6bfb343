//! An open provider of libfabric: its domain, and the making of connections (for datagrams: `reach`).
//!
//! The side that dialled the control connection requests a connection. The other side accepts it for queue
//! pairs whose endpoint it has sent, and identifies the requester by the number and secret in that endpoint.
//! Other requests to the port are rejected.

use crate::config::OfiConfig;
use crate::domain_waiter::DomainWaiter;
use crate::features::{ASKED, Asked, EndpointKind, Features};
use crate::handles::{
    AddressVector, Domain, Endpoint, Event, EventQueue, Finds, Info, PassiveEndpoint, Place, SharedReceives,
};
use crate::library::{Library, LibraryError};
use crate::memory::Retired;
use crate::progress_thread::ProgressThread;
use crate::reach::Reach;
use dunlin_fabric_control::{Flag, LinkEvents, lock};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use thiserror::Error;

/// The reason why a provider cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libfabric itself cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The provider is missing, or lacks required features.
    #[error(
        "libfabric's provider '{provider}' offers no endpoints with messages and remote memory here, neither connected nor for \
         reliable datagrams ({why}); see what there is: fi_info -c 'FI_MSG|FI_RMA'"
    )]
    Provider {
        /// The provider's name.
        provider: String,
        /// libfabric's error.
        why: io::Error,
    },
    /// A call to the provider failed.
    #[error("libfabric's provider '{provider}': {what} failed")]
    System {
        /// The provider's name.
        provider: String,
        /// The operation.
        what: &'static str,
        /// The provider's error.
        source: io::Error,
    },
}

/// Encodes the data of a connection request: `number` and `secret` of the queue pair at the target.
pub(crate) fn request(number: u32, secret: u64) -> Vec<u8> {
    [&MAGIC[..], &number.to_le_bytes(), &secret.to_le_bytes()].concat()
}

const MAGIC: [u8; 4] = *b"Dnl1";

/// Decodes [`request`].
fn parse_request(said: &[u8]) -> Option<(u32, u64)> {
    let (number, secret) = said.strip_prefix(&MAGIC)?.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), u64::from_le_bytes(secret.try_into().ok()?)))
}

/// The state of a connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// The connection is established.
    pub(crate) connected: Flag,
    /// The connection has ended, or will never be established.
    pub(crate) closed: Flag,
}

#[derive(Debug)]
struct Watched {
    connection: Weak<Connection>,
    attention: Weak<DomainWaiter>,
}

/// An open endpoint, with its number.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Arc<Connection>,
    /// Its number in [`Retired`].
    pub(crate) number: u64,
}

/// The progress of an awaited connection.
#[derive(Debug, Default)]
struct Meeting {
    /// The queue pair knows its other end.
    wanted: bool,
    /// The passive endpoint and the request. Only the first request counts.
    request: Option<(usize, Info)>,
    asked: bool,
    accepted: Option<Open>,
}

/// A queue pair that awaits a connection request. Whichever thread receives the request accepts it, so the
/// other end need not wait until this domain polls.
#[derive(Debug)]
pub(crate) struct Awaited {
    number: u32,
    secret: u64,
    meeting: Mutex<Meeting>,
    /// The request cannot be accepted.
    pub(crate) failed: Flag,
    attention: Weak<DomainWaiter>,
    shared: Option<Arc<SharedReceives>>,
    device: Arc<Device>,
}

impl Awaited {
    /// Accepts the request from now on, including one that has already arrived.
    pub(crate) fn want(&self) {
        let mut meeting = lock(&self.meeting);
        meeting.wanted = true;
        self.accept(&mut meeting);
    }

    /// Returns the endpoint, once a request was accepted.
    pub(crate) fn take(&self) -> Option<Open> {
        lock(&self.meeting).accepted.take()
    }

    fn accept(&self, meeting: &mut Meeting) {
        let Some(attention) = self.attention.upgrade() else { return };
        let Some((_, mut info)) = meeting.request.take_if(|_| meeting.wanted) else { return };
        let opened = self.device.open_endpoint(&mut info, &attention, self.shared.as_ref());
        let accepted = opened.and_then(|open| match open.endpoint.accept() {
            Ok(()) => Ok(open),
            Err(error) => {
                self.device.give_up(open);
                Err(error)
            }
        });
        match accepted {
            Ok(open) => meeting.accepted = Some(open),
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                self.failed.raise();
            }
        }
        attention.tell_news();
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        lock(&self.device.awaited).remove(&self.number);
        let meeting = std::mem::take(&mut *lock(&self.meeting));
        if let Some((passive, request)) = meeting.request {
            self.device.reject(passive, &request);
        }
        if let Some(open) = meeting.accepted {
            self.device.give_up(open);
        }
    }
}

/// An open provider.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) provider: String,
    /// The request to libfabric that found the provider, and the provider's features.
    pub(crate) asked: Asked,
    pub(crate) features: Features,
    /// Only for providers with datagrams.
    pub(crate) reach: Option<Reach>,
    /// The provider's first description.
    pub(crate) info: Info,
    pub(crate) config: OfiConfig,
    pub(crate) keeper: ProgressThread,
    pub(crate) retired: Retired,
    passive: Mutex<BTreeMap<IpAddr, PassiveEndpoint>>,
    /// By number. Weak, since the waiting queue pairs hold them.
    awaited: Mutex<BTreeMap<u32, Weak<Awaited>>>,
    /// By the name that events use.
    watched: Mutex<BTreeMap<usize, Watched>>,
    /// Held by the thread that takes events.
    hearing: Mutex<()>,
    numbers: AtomicU32,
    pub(crate) events: Arc<EventQueue>,
    pub(crate) domain: Arc<Domain>,
}

impl Device {
    /// Opens a provider.
    pub(crate) fn open(provider: &str, config: OfiConfig) -> Result<Arc<Self>, OpenError> {
        let library = Library::get()?;
        let (asked, info) = Self::ask(library, provider, &config)
            .map_err(|why| OpenError::Provider { provider: provider.to_owned(), why })?;
        let failed = |what| move |source| OpenError::System { provider: provider.to_owned(), what, source };
        let features = Features::of(&asked, &info.told(), config.without)
            .map_err(io::Error::other)
            .map_err(failed("opening it"))?;
        let domain = Domain::open(&info).map_err(failed("opening it"))?;
        let reach = match features.kind {
            EndpointKind::Connected => None,
            EndpointKind::Datagram => {
                let addresses = AddressVector::new(&domain).map_err(failed("an address vector"))?;
                Some(Reach::new(addresses))
            }
        };
        let events = EventQueue::new(&domain).map_err(failed("an event queue"))?;
        let keeper = ProgressThread::new().map_err(failed("the thread that keeps progress"))?;
        Ok(Arc::new(Device {
            provider: provider.to_owned(),
            asked,
            features,
            reach,
            info,
            config,
            keeper,
            retired: Retired::default(),
            passive: Mutex::default(),
            awaited: Mutex::default(),
            watched: Mutex::default(),
            hearing: Mutex::default(),
            numbers: AtomicU32::new(1),
            events,
            domain,
        }))
    }

    /// Returns the first usable description that the provider offers.
    fn ask(library: &'static Library, provider: &str, config: &OfiConfig) -> io::Result<(Asked, Info)> {
        let mut refused = None;
        for asked in ASKED.iter().filter(|asked| config.endpoints.is_none_or(|kind| kind == asked.kind)) {
            match Info::find(library, provider, asked, Place::Any) {
                Ok(info) => return Ok((*asked, info)),
                Err(why) => refused = Some(why),
            }
        }
        Err(refused.unwrap_or_else(|| io::Error::from(io::ErrorKind::Unsupported)))
    }

    /// Returns a number that no other queue pair of this device has, until 2^32 numbers were issued.
    pub(crate) fn next_number(&self) -> u32 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Listens for connection requests at this address of the host, from the first call on; returns address
    /// and port.
    pub(crate) fn listen_at(&self, address: IpAddr) -> io::Result<SocketAddr> {
        let mut passive = lock(&self.passive);
        if let Some(known) = passive.get(&address) {
            return Ok(SocketAddr::new(address, known.address.port()));
        }
        let place = Place::Source(SocketAddr::new(address, 0));
        let info = Info::find(self.domain.library, &self.provider, &self.asked, place)?;
        let endpoint = PassiveEndpoint::listen(&self.events, &info)?;
        let port = endpoint.address.port();
        passive.insert(address, endpoint);
        Ok(SocketAddr::new(address, port))
    }

    /// Waits for a request with this number and secret.
    pub(crate) fn await_peer(
        self: &Arc<Self>,
        number: u32,
        secret: u64,
        attention: &Arc<DomainWaiter>,
        shared: Option<Arc<SharedReceives>>,
    ) -> Arc<Awaited> {
        let awaited = Arc::new(Awaited {
            number,
            secret,
            meeting: Mutex::default(),
            failed: Flag::default(),
            attention: Arc::downgrade(attention),
            shared,
            device: Arc::clone(self),
        });
        lock(&self.awaited).insert(number, Arc::downgrade(&awaited));
        awaited
    }

    /// Opens an endpoint that completes in this domain's queue and whose connection events go to this domain.
    pub(crate) fn open_endpoint(
        &self,
        info: &mut Info,
        attention: &Arc<DomainWaiter>,
        shared: Option<&Arc<SharedReceives>>,
    ) -> io::Result<Open> {
        if shared.is_some() {
            info.share_receives();
        }
        let endpoint = Endpoint::new(
            info,
            attention.open_queue()?,
            &Finds::Connection(Arc::clone(&self.events)),
            shared,
        )?;
        let connection = Arc::new(Connection::default());
        let watched =
            Watched { connection: Arc::downgrade(&connection), attention: Arc::downgrade(attention) };
        lock(&self.watched).insert(endpoint.name(), watched);
        Ok(Open { endpoint, connection, number: self.retired.opened() })
    }

    /// Closes an endpoint that was never given to a queue pair.
    fn give_up(&self, open: Open) {
        lock(&self.watched).remove(&open.endpoint.name());
        drop(open.endpoint);
        self.retired.closed(open.number);
    }

    /// Stops reporting a connection's events; `name` is its endpoint's. Processes pending events of that name
    /// first, before another endpoint can get it.
    pub(crate) fn forget(&self, name: usize) {
        let _turn = lock(&self.hearing);
        self.hear_all();
        lock(&self.watched).remove(&name);
    }

    /// Processes requests, connections and their ends, unless another thread does so already.
    pub(crate) fn hear(&self) {
        if let Ok(_turn) = self.hearing.try_lock() {
            self.hear_all();
        }
    }

    fn hear_all(&self) {
        while let Some(event) = self.events.next() {
            match event {
                Event::Request(passive, info, said) => self.asked(passive, info, &said),
                Event::Connected(name) => self.tell(name, |connection| &connection.connected),
                Event::Closed(name) => self.tell(name, |connection| &connection.closed),
            }
        }
    }

    fn tell(&self, name: usize, flag: impl FnOnce(&Connection) -> &Flag) {
        let told = lock(&self.watched)
            .get(&name)
            .and_then(|watched| Some((watched.connection.upgrade()?, watched.attention.upgrade()?)));
        if let Some((connection, attention)) = told {
            flag(&connection).raise();
            attention.tell_news();
        }
    }

    fn asked(&self, passive: usize, info: Info, said: &[u8]) {
        let wanted = parse_request(said)
            .and_then(|(number, secret)| Some((lock(&self.awaited).get(&number)?.upgrade()?, secret)))
            .filter(|(awaited, secret)| awaited.secret == *secret);
        let Some((awaited, _)) = wanted else {
            tracing::info!("somebody asked for a connection that nobody waits for");
            return self.reject(passive, &info);
        };
        let mut meeting = lock(&awaited.meeting);
        if std::mem::replace(&mut meeting.asked, true) {
            drop(meeting);
            return self.reject(passive, &info);
        }
        meeting.request = Some((passive, info));
        awaited.accept(&mut meeting);
    }

    fn reject(&self, passive: usize, request: &Info) {
        if let Some(endpoint) = lock(&self.passive).values().find(|endpoint| endpoint.name() == passive) {
            endpoint.reject(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let said = request(7, u64::MAX - 1);
        assert_eq!(parse_request(&said), Some((7, u64::MAX - 1)));
        for end in 0..said.len() {
            assert_eq!(parse_request(&said[..end]), None, "{end} bytes");
        }
        assert_eq!(parse_request(&[&said[..], &[0]].concat()), None);
        assert_eq!(parse_request(&[b'x'; 16]), None);
    }
}
