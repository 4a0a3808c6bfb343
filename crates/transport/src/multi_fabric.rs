//! A server on all fabrics of its host, at an `auto:` address: one engine server with its own workers per
//! usable fabric, and a thread that announces these servers at HOST:PORT (`teller.rs`).

use crate::announcement::{Announcement, Offer};
use crate::resolve::{ResolveError, host_of, shm_name, this_host};
use crate::server::Server;
use crate::teller::Teller;
use dunlin_fabric::WithSources;
use dunlin_fabric::{Address, ListenError, PassedOver, Scheme, Unavailable};
use dunlin_rpc::ServeError;
use std::io::{self, ErrorKind};
use std::net::TcpListener;

/// The provider of libfabric that is available on every host.
pub(crate) const PROVIDER: &str = "tcp";

/// Servers of one service on several fabrics.
#[derive(Debug)]
pub struct SeveralServers<S = Server> {
    // Dropped first, so that no client learns of servers that are gone.
    teller: Teller,
    address: Address,
    servers: Vec<S>,
    passed_over: Vec<PassedOver>,
}

/// The bound HOST:PORT of an `auto:` address, and the addresses derived from it.
#[derive(Debug)]
pub(crate) struct Place {
    listener: TcpListener,
    /// The requested address.
    wanted: Address,
    /// The address with its actual port.
    actual: Address,
    /// Whether port 0 was requested.
    any: bool,
    host: String,
    port: u16,
}

impl Place {
    pub(crate) fn bind(address: &Address) -> Result<Self, ServeError> {
        let system = |source: io::Error| match source.kind() {
            ErrorKind::AddrInUse => ListenError::InUse { address: address.clone() },
            _ => ListenError::System { address: address.clone(), source },
        };
        let Some(place) = address.host_and_port() else {
            return Err(ListenError::WrongScheme(address.clone()).into());
        };
        let listener = TcpListener::bind(place).map_err(system)?;
        let port = listener.local_addr().map_err(system)?.port();
        let host = host_of(address).to_owned();
        let (wanted, any) = (address.clone(), place.1 == 0);
        let mut place = Place { listener, wanted, actual: address.clone(), any, host, port };
        place.actual = place.named(Scheme::Auto, format!("{}:{port}", place.host))?;
        Ok(place)
    }

    fn named(&self, scheme: Scheme, name: String) -> Result<Address, ServeError> {
        Address::new(scheme, &name).map_err(|error| {
            let source = io::Error::new(ErrorKind::InvalidInput, error.to_string());
            ListenError::System { address: self.wanted.clone(), source }.into()
        })
    }

    /// Returns our port plus `distance`, so that clients find the server again after a restart; 0 if port 0
    /// was requested.
    fn behind(&self, distance: u16) -> u16 {
        if self.any { 0 } else { self.port.checked_add(distance).unwrap_or(0) }
    }

    /// Returns the default address of stock Thrift: `host:port`.
    #[cfg(feature = "thrift")]
    pub(crate) fn tcp(&self) -> String {
        format!("{}:{}", self.host, self.behind(3))
    }

    /// Returns the address of the server on each fabric.
    fn fabrics(&self) -> Result<[Address; 3], ServeError> {
        let Place { host, port, .. } = self;
        Ok([
            self.named(Scheme::Shm, shm_name(host, *port))?,
            self.named(Scheme::Rdma, format!("{host}:{}", self.behind(1)))?,
            self.named(Scheme::Ofi, format!("{PROVIDER}:{host}:{}", self.behind(2)))?,
        ])
    }
}

/// A server on one fabric.
pub trait OnFabric {
    /// Returns the address to which clients connect.
    fn bound(&self) -> &Address;
}

impl OnFabric for Server {
    fn bound(&self) -> &Address {
        self.address()
    }
}

impl<S: OnFabric> SeveralServers<S> {
    /// Starts a server on each fabric with `start`, whose error is the reason why there is no server, and
    /// announces them. Unusable fabrics are skipped. Fails if no fabric is usable and stock Thrift is not
    /// served either. `tcp` is its port, or the reason why it is not served.
    pub(crate) fn start<T>(
        place: Place,
        tcp: Result<u16, String>,
        mut start: impl FnMut(&Address) -> Result<(S, T), String>,
    ) -> Result<(Self, Vec<T>), ServeError> {
        let (mut servers, mut others, mut passed_over) = (Vec::new(), Vec::new(), Vec::new());
        let mut announcement = Announcement { host: this_host(), offers: Vec::new() };
        for wanted in place.fabrics()? {
            let scheme = wanted.scheme();
            let place = start(&wanted).map(|(server, other)| {
                let place = server.bound().clone();
                servers.push(server);
                others.push(other);
                place
            });
            if let Err(why) = &place {
                passed_over.push(PassedOver { scheme, why: why.clone() });
            }
            announcement.offers.push(match scheme {
                Scheme::Rdma => Offer::Rdma(place.map(|place| place.host_and_port().map_or(0, |at| at.1))),
                Scheme::Ofi => Offer::Ofi(
                    place.map(|place| (PROVIDER.into(), place.host_and_port().map_or(0, |at| at.1))),
                ),
                _ => Offer::Shm(place.map(|place| place.name().to_owned())),
            });
        }
        if let Err(why) = &tcp {
            passed_over.push(PassedOver { scheme: Scheme::Tcp, why: why.clone() });
        }
        announcement.offers.push(Offer::Tcp(tcp.clone()));
        if servers.is_empty() && tcp.is_err() {
            let source = Box::new(ResolveError::NoWay(passed_over));
            return Err(ListenError::Unavailable(Unavailable { address: place.wanted, source }).into());
        }
        let teller = Teller::start(place.listener, announcement.encode())?;
        let mut places: Vec<String> = servers.iter().map(|server| server.bound().to_string()).collect();
        places.extend(tcp.ok().map(|port| format!("tcp:{}:{port}", place.host)));
        let told: String = passed_over.iter().map(|passed| format!("; {passed}")).collect();
        tracing::info!(target: "dunlin::transport", address = %place.actual, "serving on {}{told}", places.join(" and "));
        Ok((SeveralServers { teller, address: place.actual, servers, passed_over }, others))
    }
}

impl<S> SeveralServers<S> {
    /// Returns the `auto:` address that clients resolve.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the server on each fabric.
    pub fn servers(&self) -> &[S] {
        &self.servers
    }

    /// Returns the transports that the server does not use, with the reasons.
    pub fn passed_over(&self) -> &[PassedOver] {
        &self.passed_over
    }

    /// Stops announcing the servers and returns them.
    pub(crate) fn into_servers(self) -> Vec<S> {
        drop(self.teller);
        self.servers
    }
}

/// Returns the reason why a server could not be started, without the derived address, which the user did not
/// name.
pub(crate) fn reason(error: &ServeError) -> String {
    match error {
        ServeError::Listen(ListenError::Unavailable(unavailable)) => {
            WithSources(&*unavailable.source).to_string()
        }
        error => WithSources(error).to_string(),
    }
}
