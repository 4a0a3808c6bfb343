//! What `auto:HOST:PORT` means for this process: the server there is asked which fabrics it is on, and the first that both
//! sides can use is taken, shared memory before RDMA before libfabric. Nothing is left out in silence: what was passed over is told with its
//! reason, and an address that names a fabric never becomes another.

use crate::announcement::{Announcement, MAX_BYTES, Offer};
use crate::fabrics::{ChosenFabric, Fabrics};
use dunlin_fabric::{Address, Fabric, Host, Nanos, RealHost, Scheme, Unavailable};
use std::fmt;
use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;
use thiserror::Error;

/// How long asking may take, and how long seeing whether the server can be reached on one fabric.
const PATIENCE: Duration = Duration::from_secs(5);

/// A way that was not taken, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Its fabric.
    pub scheme: Scheme,
    /// Why not.
    pub why: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {}: {}", self.scheme.as_str(), self.why)
    }
}

/// An address that names a fabric, and how it came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The address, for [`Fabrics::choose`] and for connecting.
    pub address: Address,
    /// Why this one, in words.
    pub why: String,
    /// What came before it in the order of preference, and why it was not taken.
    pub passed_over: Vec<PassedOver>,
}

impl Resolved {
    pub(crate) fn named(address: &Address) -> Self {
        let why = "named by the address".to_owned();
        Resolved { address: address.clone(), why, passed_over: Vec::new() }
    }
}

impl fmt::Display for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.why)?;
        self.passed_over.iter().try_for_each(|passed| write!(f, "; {passed}"))
    }
}

/// Why an `auto:` address leads nowhere; within [`Unavailable`].
#[derive(Debug, Error)]
pub enum ResolveError {
    /// Nobody was there to ask.
    #[error(
        "nobody says there which fabrics it is on: {0}; start a server on this auto: address, or name the fabric"
    )]
    Asking(io::Error),
    /// Who is there is no such server.
    #[error("who listens there is no server on an auto: address: {0}")]
    Foreign(&'static str),
    /// There is no fabric that both sides can use.
    #[error("there is no way to it: {}", listed(.0))]
    NoWay(Vec<PassedOver>),
}

fn listed(passed: &[PassedOver]) -> String {
    passed.iter().map(PassedOver::to_string).collect::<Vec<_>>().join("; ")
}

/// What tells this host from all others, until it is started again.
pub(crate) fn this_host() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

impl Fabrics {
    /// The address of a fabric that an address means: itself, unless it is of `auto:`. Then the server there is asked, and
    /// the first way that works is taken: shared memory if it is on this host, else RDMA, else libfabric. Opens fabrics, and blocks for some
    /// seconds at most.
    pub fn resolve(&self, address: &Address) -> Result<Resolved, Unavailable> {
        if address.scheme() != Scheme::Auto {
            return Ok(Resolved::named(address));
        }
        let failed = |error: ResolveError| Unavailable { address: address.clone(), source: Box::new(error) };
        let said = ask(address).map_err(failed)?;
        let reach = |to: &Address| self.reach(to);
        let resolved = decide(address, &said, &this_host(), reach).map_err(failed)?;
        tracing::info!(target: "dunlin::transport", %address, "chosen: {resolved}");
        Ok(resolved)
    }

    /// Whether the server can be reached there; if not, why.
    fn reach(&self, to: &Address) -> Result<(), String> {
        fn dial<F: Fabric>(fabric: &F, to: &Address) -> Result<(), String> {
            let until = RealHost.now().saturating_add(PATIENCE.as_nanos() as Nanos);
            fabric.dial(to, until).map(drop).map_err(|error| error.to_string())
        }
        match self.choose(to).map_err(|unavailable| unavailable.source.to_string())? {
            ChosenFabric::Shm(fabric) => dial(&fabric, to),
            ChosenFabric::Rdma(fabric) => dial(&fabric, to),
            #[cfg(feature = "ofi")]
            ChosenFabric::Ofi(fabric) => dial(&fabric, to),
        }
    }
}

/// Asks who listens at the address.
fn ask(address: &Address) -> Result<Announcement, ResolveError> {
    let (host, port) = address.host_and_port().ok_or(ResolveError::Foreign("it has no HOST:PORT"))?;
    let until = RealHost.now().saturating_add(PATIENCE.as_nanos() as Nanos);
    let left = || Duration::from_nanos(until.saturating_sub(RealHost.now()).max(1));
    let mut failure = io::Error::other(format!("{host} has no address"));
    let places = (host, port).to_socket_addrs().map_err(ResolveError::Asking)?;
    for place in places {
        let asked = TcpStream::connect_timeout(&place, left()).and_then(|mut socket| {
            let mut said = Vec::new();
            let mut piece = [0; 512];
            loop {
                socket.set_read_timeout(Some(left()))?;
                match socket.read(&mut piece)? {
                    0 => return Ok(said),
                    count => said.extend(&piece[..count]),
                }
                if said.len() > MAX_BYTES {
                    return Ok(said);
                }
            }
        });
        match asked {
            Ok(said) => return Announcement::decode(&said).map_err(ResolveError::Foreign),
            Err(error) => failure = error,
        }
    }
    Err(ResolveError::Asking(failure))
}

/// Where a server on an `auto:` address with that host and port is on shared memory.
pub(crate) fn shm_name(host: &str, port: u16) -> String {
    format!("auto-{host}:{port}")
}

/// Whether a name on shared memory is of a server on that address, whatever it calls its host.
fn is_of(name: &str, address: &Address) -> bool {
    let port = address.host_and_port().map_or(0, |(_, port)| port);
    let host = name.strip_prefix("auto-").and_then(|rest| rest.rsplit_once(':')).map_or("", |(host, _)| host);
    !host.is_empty() && name == shm_name(host, port)
}

/// The first way, in the order of preference, that can be reached.
fn decide(
    address: &Address,
    said: &Announcement,
    this_host: &str,
    reach: impl Fn(&Address) -> Result<(), String>,
) -> Result<Resolved, ResolveError> {
    let mut passed_over = Vec::new();
    for scheme in [Scheme::Shm, Scheme::Rdma, Scheme::Ofi] {
        let offer = said.offers.iter().find(|offer| offer.scheme() == scheme);
        let way = match offer {
            None => Err("the server says nothing of it".to_owned()),
            Some(Offer::Shm(Err(why)) | Offer::Rdma(Err(why)) | Offer::Ofi(Err(why))) => {
                Err(format!("the server is not on it: {why}"))
            }
            Some(Offer::Shm(Ok(_))) if this_host.is_empty() || said.host != this_host => {
                Err("the server is on another host".to_owned())
            }
            // Who answers there must not send us to any other service of this host.
            Some(Offer::Shm(Ok(name))) if !is_of(name, address) => {
                Err("the server names the place of another service".to_owned())
            }
            Some(Offer::Shm(Ok(name))) => Address::new(scheme, name).map_err(|error| error.to_string()),
            Some(Offer::Rdma(Ok(port))) => {
                let name = address.name().rsplit_once(':').map_or("", |(host, _)| host);
                Address::new(scheme, &format!("{name}:{port}")).map_err(|error| error.to_string())
            }
            Some(Offer::Ofi(Ok((provider, port)))) => {
                let name = address.name().rsplit_once(':').map_or("", |(host, _)| host);
                Address::new(scheme, &format!("{provider}:{name}:{port}")).map_err(|error| error.to_string())
            }
        };
        match way.and_then(|to| reach(&to).map(|()| to)) {
            Ok(address) => {
                let why = match scheme {
                    Scheme::Shm => "the server is on this host",
                    Scheme::Rdma => "both sides have RDMA",
                    _ => "both sides have libfabric",
                };
                return Ok(Resolved { address, why: why.to_owned(), passed_over });
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

    /// As `said`, from a server that is on libfabric too.
    fn said_all(host: &str, rdma: Result<u16, &str>) -> Announcement {
        let mut said = said(host, Ok("auto-h:7000"), rdma);
        said.offers.push(Offer::Ofi(Ok(("tcp".into(), 7002))));
        said
    }

    fn decided(said: &Announcement, reachable: &[Scheme]) -> Result<String, String> {
        let address = "auto:[::1]:7000".parse().expect("an address");
        let reach = |to: &Address| match reachable.contains(&to.scheme()) {
            true => Ok(()),
            false => Err("cannot be opened".to_owned()),
        };
        let decided = decide(&address, said, "here", reach);
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
            "there is no way to it: not shm: the server is on another host; not rdma: the server is not on it: no device; not ofi: the server says nothing of it"
        );
        let silent = Announcement { host: "here".into(), offers: Vec::new() };
        assert!(decided(&silent, &BOTH).unwrap_err().contains("not rdma: the server says nothing of it"));
        for other in ["orders", "auto-h:7001", "auto-:7000", "auto-h"] {
            let error = decided(&said("here", Ok(other), Err("none")), &BOTH).unwrap_err();
            assert!(error.contains("not shm: the server names the place of another service"), "{error}");
        }
        // A name that is none is no way either.
        assert!(
            decided(&said("here", Ok("auto-two words:7000"), Err("none")), &BOTH)
                .unwrap_err()
                .contains("spaces")
        );
    }
}
