//! Resolution of `auto:HOST:PORT`. The client asks the server which transports it uses and takes the first
//! one that both sides can use: shared memory, then RDMA, then libfabric, and for typed services stock Thrift
//! over TCP. The result lists each skipped transport with the reason. An address that names a fabric is never
//! changed.

use crate::announcement::{Announcement, MAX_BYTES, Offer};
use crate::fabrics::{ChosenFabric, Fabrics};
use dunlin_fabric::WithSources;
use dunlin_fabric::chosen::NAMED;
use dunlin_fabric::dialling::{PROBE, first_of, probe};
use dunlin_fabric::door::{self, Door, Look};
use dunlin_fabric::{
    Address, ChosenTransport, Fabric, Host, Nanos, PassedOver, RealHost, Scheme, Unavailable, nanos,
};
use dunlin_rpc::{ClientConfig, Token};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;
use thiserror::Error;

/// The order of preference.
pub(crate) const ORDER: [Scheme; 4] = [Scheme::Shm, Scheme::Rdma, Scheme::Ofi, Scheme::Tcp];

/// The timeout for asking the server, and for testing whether it can be reached on one fabric.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// An address that names a fabric, with the reasons for the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The address, for [`Fabrics::choose`] and for connecting.
    pub address: Address,
    /// The reason for this choice.
    pub why: String,
    /// The preferred transports that were skipped, with the reasons.
    pub passed_over: Vec<PassedOver>,
    /// The service to ask for at the address, in place of the client's own settings; empty except for a `node:` address.
    pub service: String,
    /// The token for the address, if the client's own settings have none; empty except for a `node:` address.
    pub token: Token,
}

impl Resolved {
    pub(crate) fn named(address: &Address) -> Self {
        Resolved {
            address: address.clone(),
            why: NAMED.to_owned(),
            passed_over: Vec::new(),
            service: String::new(),
            token: Token::default(),
        }
    }

    /// Completes the settings of a client that connects to the address.
    pub(crate) fn settle(&self, mut config: ClientConfig) -> ClientConfig {
        if !self.service.is_empty() {
            config.service.clone_from(&self.service);
        }
        if config.token.is_empty() {
            config.token.clone_from(&self.token.0);
        }
        config
    }

    /// Returns the transport of a client that has connected to the address.
    pub(crate) fn transport(self, name: &'static str) -> ChosenTransport {
        let Resolved { address, why, passed_over, .. } = self;
        ChosenTransport { name, address: address.to_string(), why, passed_over }
    }
}

impl fmt::Display for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.why)?;
        self.passed_over.iter().try_for_each(|passed| write!(f, "; {passed}"))
    }
}

/// The error of resolving an `auto:` address; the source of an [`Unavailable`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The server could not be asked.
    #[error(
        "no server says there which fabrics it is on: {0}; start a server on this auto: address, or name the fabric"
    )]
    Asking(io::Error),
    /// The process that listens there is not such a server.
    #[error("the answer is not that of a server on an auto: address: {0}")]
    Foreign(&'static str),
    /// Something else than such a server listens there. The text says what, and which address to use.
    #[error("{0}")]
    WrongDoor(String),
    /// Calls of functions by number do not go by the TCP address. The text says what listens there.
    #[error("TCP is no fabric: typed services go by it, calls of functions by number do not; {0}")]
    ByNumber(String),
    /// No transport can be used by both sides.
    #[error("there is no way to it: {}", listed(.0))]
    NoWay(Vec<PassedOver>),
}

pub(crate) fn listed(passed: &[PassedOver]) -> String {
    passed.iter().map(PassedOver::to_string).collect::<Vec<_>>().join("; ")
}

/// Returns the transport of a client that has not connected yet, and will ask the server for its fabrics.
pub(crate) fn unconnected(address: &Address) -> ChosenTransport {
    ChosenTransport {
        name: address.scheme().as_str(),
        address: address.to_string(),
        why: "the client has not connected yet".to_owned(),
        passed_over: Vec::new(),
    }
}

/// Returns a string that identifies this host until its next boot; empty if unknown.
pub(crate) fn this_host() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

impl Fabrics {
    /// Resolves an `auto:` address to the address of a fabric, and a `node:` address to that of this host's node;
    /// returns the addresses of fabrics unchanged. A `tcp:` address has no fabric: the error says what listens there.
    ///
    /// Asks the server and takes the first fabric that works: shared memory on the same host, else RDMA, else
    /// libfabric. Opens fabrics, and may block for some seconds.
    pub fn resolve(&self, address: &Address) -> Result<Resolved, Unavailable> {
        self.resolve_within(address, PATIENCE)
    }

    /// As [`resolve`](Fabrics::resolve), where each step takes at most this time.
    pub(crate) fn resolve_within(&self, address: &Address, most: Duration) -> Result<Resolved, Unavailable> {
        Ok(self.resolve_for(address, Calls::Raw, most)?.0)
    }

    /// Like [`resolve`](Fabrics::resolve), for typed services: falls back to stock Thrift over TCP if no
    /// fabric works.
    pub fn resolve_typed(&self, address: &Address) -> Result<Resolved, Unavailable> {
        Ok(self.resolve_for(address, Calls::Typed, PATIENCE)?.0)
    }

    /// Returns the transports that an `auto:` address can select in this process, in the order of preference:
    /// each with its [`Capabilities::name`](dunlin_fabric::Capabilities::name), or the reason why it is
    /// unusable. Opens fabrics.
    pub fn usable(&self) -> [(Scheme, Result<&'static str, String>); 4] {
        ORDER.map(|scheme| {
            let name = match scheme {
                Scheme::Shm => "any",
                Scheme::Ofi => "tcp:any:0",
                _ => "any:0",
            };
            let usable = Address::new(scheme, name).map_err(|error| error.to_string()).and_then(|address| {
                let told = |unavailable: Unavailable| WithSources(&*unavailable.source).to_string();
                match scheme {
                    Scheme::Tcp => self.allow(&address).map(|()| Scheme::Tcp.as_str()).map_err(told),
                    _ => self.choose(&address).map(|chosen| chosen.capabilities().name).map_err(told),
                }
            });
            (scheme, usable)
        })
    }

    /// Resolves an address for the given kind of calls. For an `auto:` address, also returns the `host:port`
    /// on which its server announces stock Thrift.
    pub(crate) fn resolve_for(
        &self,
        address: &Address,
        calls: Calls,
        most: Duration,
    ) -> Result<(Resolved, Option<String>), Unavailable> {
        let failed = |error: ResolveError| Unavailable { address: address.clone(), source: Box::new(error) };
        match address.scheme() {
            Scheme::Auto => {}
            Scheme::Node => {
                self.allow(address)?;
                return Ok((crate::node::resolve(address)?, None));
            }
            Scheme::Tcp if calls == Calls::Raw => {
                self.allow(address)?;
                return Err(failed(ResolveError::ByNumber(listener_of(address, most))));
            }
            _ => return Ok((Resolved::named(address), None)),
        }
        let said = ask(address, most).map_err(failed)?;
        let reach = |to: &Address| self.reach(to, most);
        let resolved = decide(address, &said, &this_host(), calls, reach).map_err(failed)?;
        tracing::info!(target: "dunlin::transport", %address, "chosen: {resolved}");
        let tcp = said.offers.iter().find_map(|offer| match offer {
            Offer::Tcp(Ok(port)) => Some(format!("{}:{port}", host_of(address))),
            _ => None,
        });
        Ok((resolved, tcp))
    }

    /// Tests whether the server can be reached at this address. The error is the reason.
    fn reach(&self, to: &Address, most: Duration) -> Result<(), String> {
        fn dial<F: Fabric>(fabric: &F, to: &Address, most: Duration) -> Result<(), String> {
            let until = RealHost.now().saturating_add(nanos(most));
            fabric.dial(to, until).map(drop).map_err(|error| WithSources(&error).to_string())
        }
        if to.scheme() == Scheme::Tcp {
            self.allow(to).map_err(|unavailable| WithSources(&*unavailable.source).to_string())?;
            return asked(to, most, |_, _| Ok(())).map_err(|error| error.to_string());
        }
        match self.choose(to).map_err(|unavailable| WithSources(&*unavailable.source).to_string())? {
            ChosenFabric::Shm(fabric) => dial(&fabric, to, most),
            ChosenFabric::Rdma(fabric) => dial(&fabric, to, most),
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => dial(&fabric, to, most),
        }
    }
}

/// The time after which a server that has not answered is taken for one that waits for the end of a line.
const LINE_AFTER: Duration = Duration::from_secs(1);
/// The end of a request of a web server, which answers nothing before it. A server of Dunlin discards all bytes behind
/// the question.
const LINES_END: &[u8] = b"\r\n\r\n";

/// Returns whether an error says that the time of a read is over.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// Asks the server at the address for its announcement.
pub(crate) fn ask(address: &Address, most: Duration) -> Result<Announcement, ResolveError> {
    if address.host_and_port().is_none() {
        return Err(ResolveError::Foreign("it has no HOST:PORT"));
    }
    let said = asked(address, most, |mut socket, until| {
        let place = socket.peer_addr()?;
        // A peer that has closed already may have said why.
        let asked = socket.write_all(&door::AUTO_QUESTION);
        let mut said = Vec::new();
        let patience = RealHost.now().saturating_add(nanos(LINE_AFTER)).min(until);
        let mut heard = hear(&mut socket, patience, &mut said);
        if patience < until && said.is_empty() && heard.as_ref().is_err_and(is_late) {
            // Fails as the question does. The next read tells.
            let _ = socket.write_all(LINES_END);
            heard = hear(&mut socket, until, &mut said);
        }
        match heard {
            Ok(()) => {}
            // It closed the connection before it read the question.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) if said.is_empty() => return Err(asked.err().unwrap_or(error)),
            Err(_) => {}
        }
        if said.is_empty() {
            let left = Duration::from_nanos(until.saturating_sub(RealHost.now()));
            said = probe(&place, left.min(PROBE));
        }
        Ok(said)
    });
    let said = said.map_err(ResolveError::Asking)?;
    match door::recognise(&said) {
        Look::Is(Door::AutoServer) => Announcement::decode(&said).map_err(ResolveError::Foreign),
        _ => Err(ResolveError::WrongDoor(wrong_door(&said, address.name()))),
    }
}

/// Asks a listener on TCP what it is, for a client that cannot talk to stock Thrift.
fn listener_of(address: &Address, most: Duration) -> String {
    match ask(address, most) {
        Ok(_) => format!("this is a server of Dunlin; use auto:{}", address.name()),
        Err(ResolveError::Asking(error)) => format!("nothing answers there: {error}"),
        Err(error) => error.to_string(),
    }
}

/// Reads an announcement, or so much of other bytes that their protocol is known.
fn hear(socket: &mut TcpStream, until: Nanos, said: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; 512];
    loop {
        let left = until.saturating_sub(RealHost.now());
        if left == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(Duration::from_nanos(left)))?;
        match socket.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => said.extend(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let done = match door::recognise(said) {
            Look::Short => false,
            Look::Is(Door::AutoServer) => said.len() > MAX_BYTES,
            Look::Is(Door::Refusal) => door::refusal_text(said).is_some() || said.len() >= door::MAX_REFUSAL,
            Look::Is(_) | Look::Unknown => true,
        };
        if done {
            return Ok(());
        }
    }
}

/// Returns the sentence about a peer that has answered with these bytes.
fn wrong_door(said: &[u8], place: &str) -> String {
    match door::found(said, place) {
        Some(found) => found,
        None if said.is_empty() => format!(
            "it closed the connection without a word, as stock Thrift does with a question that it does not know; use tcp:{place} if it is that, and else look at host and port"
        ),
        None => {
            let begin = said[..said.len().min(16)].escape_ascii();
            format!("this is no server of Dunlin: it answered \"{begin}\"; look at host and port")
        }
    }
}

/// Connects by TCP to HOST:PORT and runs `talk` with the end of its time. Tries the addresses of the host
/// until one works, within one time limit for all.
fn asked<T>(
    address: &Address,
    most: Duration,
    talk: impl Fn(TcpStream, Nanos) -> io::Result<T>,
) -> io::Result<T> {
    let until = RealHost.now().saturating_add(nanos(most));
    let left = || Duration::from_nanos(until.saturating_sub(RealHost.now()));
    let places: Vec<SocketAddr> = address.host_and_port().unwrap_or_default().to_socket_addrs()?.collect();
    first_of(&places, left, |place, within| {
        let until = RealHost.now().saturating_add(within.as_nanos() as Nanos);
        talk(TcpStream::connect_timeout(place, within)?, until)
    })
}

/// Returns the shared-memory name of a server on the `auto:` address with that host and port.
pub(crate) fn shm_name(host: &str, port: u16) -> String {
    format!("auto-{host}:{port}")
}

/// Returns whether a shared-memory name belongs to a server on that address, whatever host name the server
/// uses.
fn is_of(name: &str, address: &Address) -> bool {
    let port = address.host_and_port().map_or(0, |(_, port)| port);
    let host = name.strip_prefix("auto-").and_then(|rest| rest.rsplit_once(':')).map_or("", |(host, _)| host);
    !host.is_empty() && name == shm_name(host, port)
}

/// Returns the host of HOST:PORT, including brackets.
pub(crate) fn host_of(address: &Address) -> &str {
    address.name().rsplit_once(':').map_or("", |(host, _)| host)
}

/// The kind of calls to resolve for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Calls of functions by number, which only the engine supports.
    Raw,
    /// Calls of a typed service.
    Typed,
}

/// Returns the first reachable transport in the order of preference.
fn decide(
    address: &Address,
    said: &Announcement,
    this_host: &str,
    calls: Calls,
    reach: impl Fn(&Address) -> Result<(), String>,
) -> Result<Resolved, ResolveError> {
    let mut passed_over = Vec::new();
    for scheme in ORDER {
        let offer = said.offers.iter().find(|offer| offer.scheme() == scheme);
        let way = match offer {
            _ if scheme == Scheme::Tcp && calls == Calls::Raw => {
                Err("calls without a typed service have no form there; typed services go by TCP too"
                    .to_owned())
            }
            None => Err("the server says nothing of it".to_owned()),
            Some(
                Offer::Shm(Err(why)) | Offer::Rdma(Err(why)) | Offer::Ofi(Err(why)) | Offer::Tcp(Err(why)),
            ) => Err(format!("the server is not on it: {why}")),
            Some(Offer::Shm(Ok(_))) if this_host.is_empty() || said.host != this_host => {
                Err("the server is on another host".to_owned())
            }
            // The answering process must not redirect the client to another service of this host.
            Some(Offer::Shm(Ok(name))) if !is_of(name, address) => {
                Err("the server names the place of another service".to_owned())
            }
            Some(Offer::Shm(Ok(name))) => Address::new(scheme, name).map_err(|error| error.to_string()),
            Some(Offer::Rdma(Ok(port)) | Offer::Tcp(Ok(port))) => {
                Address::new(scheme, &format!("{}:{port}", host_of(address)))
                    .map_err(|error| error.to_string())
            }
            Some(Offer::Ofi(Ok((provider, port)))) => {
                Address::new(scheme, &format!("{provider}:{}:{port}", host_of(address)))
                    .map_err(|error| error.to_string())
            }
        };
        match way.and_then(|to| reach(&to).map(|()| to)) {
            Ok(address) => {
                let why = match scheme {
                    Scheme::Shm => "the server is on this host",
                    Scheme::Rdma => "both sides have RDMA",
                    Scheme::Tcp => "no fabric is left, and the server answers stock Thrift",
                    _ => "both sides have libfabric",
                };
                return Ok(Resolved { why: why.to_owned(), passed_over, ..Resolved::named(&address) });
            }
            Err(why) => passed_over.push(PassedOver { scheme, why }),
        }
    }
    Err(ResolveError::NoWay(passed_over))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(host: &str, shm: Result<&str, &str>, rdma: Result<u16, &str>) -> Announcement {
        let shm = shm.map(str::to_owned).map_err(str::to_owned);
        let offers = vec![Offer::Shm(shm), Offer::Rdma(rdma.map_err(str::to_owned))];
        Announcement { host: host.into(), offers }
    }

    /// Like `said`, from a server that also uses libfabric.
    fn said_all(host: &str, rdma: Result<u16, &str>) -> Announcement {
        let mut said = said(host, Ok("auto-h:7000"), rdma);
        said.offers.push(Offer::Ofi(Ok(("tcp".into(), 7002))));
        said
    }

    fn decided(said: &Announcement, reachable: &[Scheme]) -> Result<String, String> {
        decided_for(Calls::Raw, said, reachable)
    }

    fn decided_for(calls: Calls, said: &Announcement, reachable: &[Scheme]) -> Result<String, String> {
        let address = "auto:[::1]:7000".parse().expect("an address");
        let reach = |to: &Address| match reachable.contains(&to.scheme()) {
            true => Ok(()),
            false => Err("cannot be opened".to_owned()),
        };
        let decided = decide(&address, said, "here", calls, reach);
        decided.map(|resolved| resolved.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn libfabric_comes_last_and_what_came_before_is_told() {
        let all = [Scheme::Shm, Scheme::Rdma, Scheme::Ofi];
        let other = "not shm: the server is on another host";
        assert_eq!(
            decided(&said_all("there", Ok(7001)), &all).unwrap(),
            format!("rdma:[::1]:7001: both sides have RDMA; {other}")
        );
        assert_eq!(
            decided(&said_all("there", Ok(7001)), &[Scheme::Ofi]).unwrap(),
            format!("ofi:tcp:[::1]:7002: both sides have libfabric; {other}; not rdma: cannot be opened")
        );
        assert_eq!(
            decided(&said_all("there", Err("no device")), &all).unwrap(),
            format!(
                "ofi:tcp:[::1]:7002: both sides have libfabric; {other}; not rdma: the server is not on it: no device"
            )
        );
    }

    #[test]
    fn typed_services_go_by_tcp_when_no_fabric_is_left() {
        let mut said = said_all("there", Ok(7001));
        assert!(
            decided_for(Calls::Typed, &said, &[])
                .unwrap_err()
                .contains("not tcp: the server says nothing of it")
        );
        said.offers.push(Offer::Tcp(Ok(7003)));
        let others =
            "not shm: the server is on another host; not rdma: cannot be opened; not ofi: cannot be opened";
        assert_eq!(
            decided_for(Calls::Typed, &said, &[Scheme::Tcp]).unwrap(),
            format!("tcp:[::1]:7003: no fabric is left, and the server answers stock Thrift; {others}")
        );
        // Any usable fabric is preferred.
        assert!(decided_for(Calls::Typed, &said, &ORDER).unwrap().starts_with("rdma:"));
        let raw = decided_for(Calls::Raw, &said, &[Scheme::Tcp]).unwrap_err();
        assert!(raw.contains(others) && raw.contains("typed services go by TCP too"), "{raw}");
        said.offers.pop();
        said.offers.push(Offer::Tcp(Err("the port is taken".into())));
        let error = decided_for(Calls::Typed, &said, &[Scheme::Tcp]).unwrap_err();
        assert!(error.contains("not tcp: the server is not on it: the port is taken"), "{error}");
    }

    const BOTH: [Scheme; 2] = [Scheme::Shm, Scheme::Rdma];

    #[test]
    fn the_first_way_that_works_is_taken_and_the_others_are_told() {
        let everywhere = said("here", Ok("auto-h:7000"), Ok(7001));
        assert_eq!(decided(&everywhere, &BOTH).unwrap(), "shm:auto-h:7000: the server is on this host");
        assert_eq!(
            decided(&said("there", Ok("auto-h:7000"), Ok(7001)), &BOTH).unwrap(),
            "rdma:[::1]:7001: both sides have RDMA; not shm: the server is on another host"
        );
        assert_eq!(
            decided(&said("here", Err("it is in use"), Ok(7001)), &BOTH).unwrap(),
            "rdma:[::1]:7001: both sides have RDMA; not shm: the server is not on it: it is in use"
        );
        assert_eq!(
            decided(&everywhere, &[Scheme::Rdma]).unwrap(),
            "rdma:[::1]:7001: both sides have RDMA; not shm: cannot be opened"
        );
        assert_eq!(
            decided(&said("", Ok("auto-h:7000"), Err("no device")), &BOTH).unwrap_err(),
            "there is no way to it: not shm: the server is on another host; not rdma: the server is not on it: no device; not ofi: the server says nothing of it; not tcp: calls without a typed service have no form there; typed services go by TCP too"
        );
        let silent = Announcement { host: "here".into(), offers: Vec::new() };
        assert!(decided(&silent, &BOTH).unwrap_err().contains("not rdma: the server says nothing of it"));
        for other in ["orders", "auto-h:7001", "auto-:7000", "auto-h"] {
            let error = decided(&said("here", Ok(other), Err("none")), &BOTH).unwrap_err();
            assert!(error.contains("not shm: the server names the place of another service"), "{error}");
        }
        // An invalid name is skipped too.
        assert!(
            decided(&said("here", Ok("auto-two words:7000"), Err("none")), &BOTH)
                .unwrap_err()
                .contains("spaces")
        );
    }
}
