//! One fabric for all processes of a list, each at an `auto:` address: the nodes of the memory tier. All of them must use
//! the same fabric, so each asks those that run already and takes theirs; the first one decides, in the order of
//! [`resolve`](crate::resolve). Each process tells its choice at its own address, before it asks a second time. So of two
//! that start at the same time and decide differently at least one hears of it, and ends with an error.

use crate::announcement::{Announcement, Offer};
use crate::fabrics::Fabrics;
use crate::multi_fabric::PROVIDER;
use crate::on_fabric;
use crate::resolve::{ORDER, ResolveError, ask, host_of, listed, shm_name, this_host};
use crate::teller::Teller;
use dunlin_fabric::{Address, Fabric as _, PassedOver, Scheme, Unavailable, WithSources};
use std::fmt;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::time::Duration;
use thiserror::Error;

/// The time in which a process that runs answers.
const PATIENCE: Duration = Duration::from_secs(1);
/// The processes that are asked at the same time.
const AT_ONCE: usize = 32;
/// The ports behind that of the address: RDMA and libfabric have two each, of which one is shared.
const PORTS: u16 = 3;

/// The fabric on which all processes of a list are. This process tells it to the others until this value is dropped.
#[derive(Debug)]
pub struct AgreedFabric {
    /// The address of each process of the list, in the order of the list.
    pub addresses: Vec<Address>,
    /// The address at which this process listens.
    pub listen: Address,
    /// The reason for the choice.
    pub why: String,
    /// The fabrics that were preferred to it, with the reasons why they were not chosen.
    pub passed_over: Vec<PassedOver>,
    _teller: Teller,
}

impl fmt::Display for AgreedFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.listen, self.why)?;
        self.passed_over.iter().try_for_each(|passed| write!(f, "; {passed}"))
    }
}

/// The reason why a process has no fabric in common with the others of its list.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgreeError {
    /// An address is not `auto:HOST:PORT`, or its port leaves no room for those of the fabrics.
    #[error(
        "{0} is not auto:HOST:PORT with a port from 1 to {most}: the ports behind it are those of the fabrics",
        most = u16::MAX - PORTS
    )]
    Place(Address),
    /// The address is in use, or not one of this host.
    #[error("cannot listen at {address}: is a process of the list running there already?")]
    Listen {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// Something else answers at the address of a process of the list.
    #[error("{address} is not a process of the list: look at host and port")]
    Foreign {
        /// The address.
        address: Address,
        /// The reason.
        source: ResolveError,
    },
    /// Two processes of the list that run are on different fabrics.
    #[error(
        "{one} is on {} and {other} on {}: name the fabric in the list, or start all with the same --without",
        one_scheme.as_str(), other_scheme.as_str()
    )]
    Disagree {
        /// A process.
        one: Address,
        /// Its fabric.
        one_scheme: Scheme,
        /// Another one: this process, if it has just decided.
        other: Address,
        /// Its fabric.
        other_scheme: Scheme,
    },
    /// The others are on a fabric that this process cannot use.
    #[error(
        "{member} is on {scheme}, which this process cannot use: {why}; name a fabric that all hosts have in the list, or \
         start all of them with --without {scheme}",
        scheme = scheme.as_str()
    )]
    Unusable {
        /// A process that runs.
        member: Address,
        /// Its fabric.
        scheme: Scheme,
        /// The reason.
        why: String,
    },
    /// This process can use no fabric.
    #[error("there is no fabric for the list: {}", listed(.0))]
    NoFabric(Vec<PassedOver>),
}

/// The fabrics, each usable or with the reason why it is not.
type Usable = [(Scheme, Result<(), String>); 3];

impl Fabrics {
    /// Chooses the fabric of all `members` of a list, of which this process is number `me` and listens at `listen`: an
    /// address of the same port, which may name all addresses of the host. Takes the fabric of those that run, else the
    /// first of shared memory (if all are on this host), RDMA and libfabric that this process can use. Opens fabrics; asks
    /// the others, and may block for some seconds.
    pub fn agree(
        &self,
        listen: &Address,
        members: &[Address],
        me: usize,
    ) -> Result<AgreedFabric, AgreeError> {
        for address in members.iter().chain([listen]) {
            place(address)?;
        }
        let system = |source| AgreeError::Listen { address: listen.clone(), source };
        let listener = TcpListener::bind(place(listen)?).map_err(system)?;
        let usable = self.usable_by_all(listen, members, me);
        let mut running = ask_all(members, me, &vec![None; members.len()])?;
        let (scheme, why) = choose(&usable, members, &running)?;
        let passed_over = passed_over(&usable, scheme);
        let [listen_at, own] = [listen, &members[me]].map(|address| address_on(scheme, address));
        let (listen_at, own) = (listen_at?, own?);
        let teller = Teller::start(listener, announcement(scheme, &own).encode()).map_err(system)?;
        running = ask_all(members, me, &running)?;
        check(members, &running, (&members[me], scheme))?;
        let addresses = members.iter().map(|member| address_on(scheme, member)).collect::<Result<_, _>>()?;
        // On shared memory the others know the name by the list.
        let listen = if scheme == Scheme::Shm { own } else { listen_at };
        let agreed = AgreedFabric { addresses, listen, why, passed_over, _teller: teller };
        tracing::info!(target: "dunlin::transport", "chosen for all of the list: {agreed}");
        Ok(agreed)
    }

    /// Returns which fabrics this process can use for the list.
    fn usable_by_all(&self, listen: &Address, members: &[Address], me: usize) -> Usable {
        let away = members.iter().enumerate().find(|(at, member)| *at != me && !is_on_this_host(member));
        [Scheme::Shm, Scheme::Rdma, Scheme::Ofi].map(|scheme| {
            let usable = match (scheme, away) {
                (Scheme::Shm, Some((_, member))) => Err(format!("{member} is on another host")),
                _ => address_on(scheme, if scheme == Scheme::Shm { &members[me] } else { listen })
                    .map_err(|error| error.to_string())
                    .and_then(|address| self.listens(&address)),
            };
            (scheme, usable)
        })
    }

    /// Tests whether this process can listen at an address of a fabric.
    fn listens(&self, address: &Address) -> Result<(), String> {
        let told = |unavailable: Unavailable| WithSources(&*unavailable.source).to_string();
        let chosen = self.choose(address).map_err(told)?;
        on_fabric!(&chosen, fabric => fabric.listen(address).map(drop).map_err(|error| WithSources(&error).to_string()))
    }
}

/// Returns host and port of an address, if it can be that of a process of a list.
fn place(address: &Address) -> Result<(&str, u16), AgreeError> {
    let place = address.host_and_port().filter(|(_, port)| (1..=u16::MAX - PORTS).contains(port));
    place.filter(|_| address.scheme() == Scheme::Auto).ok_or_else(|| AgreeError::Place(address.clone()))
}

/// Returns the address on a fabric of the process at an `auto:` address.
fn address_on(scheme: Scheme, address: &Address) -> Result<Address, AgreeError> {
    address_of(scheme, PROVIDER, address)
}

fn address_of(scheme: Scheme, provider: &str, address: &Address) -> Result<Address, AgreeError> {
    let (host, (_, port)) = (host_of(address), place(address)?);
    let name = match scheme {
        Scheme::Shm => shm_name(host, port),
        Scheme::Rdma => format!("{host}:{}", port + 1),
        _ => format!("{provider}:{host}:{}", port + 2),
    };
    Address::new(scheme, &name).map_err(|_| AgreeError::Place(address.clone()))
}

/// Returns the address of the process at an `auto:` address on the fabric of another address, which names one.
///
/// # Errors
/// [`AgreeError::Place`] for an address that is none of a process of a list.
pub fn beside(other: &Address, address: &Address) -> Result<Address, AgreeError> {
    address_of(other.scheme(), other.provider().unwrap_or(PROVIDER), address)
}

/// Returns whether a process at the address is on this host: whether this host has its IP address.
pub fn is_on_this_host(address: &Address) -> bool {
    let places = address.host_and_port().and_then(|(host, _)| (host, 0).to_socket_addrs().ok());
    places.is_some_and(|mut places| places.any(|place| TcpListener::bind(place).is_ok()))
}

/// Returns what this process tells the others.
fn announcement(chosen: Scheme, own: &Address) -> Announcement {
    let port = own.host_and_port().map_or(0, |(_, port)| port);
    let not = || Err(format!("this process is on {}", chosen.as_str()));
    let on = |scheme| if scheme == chosen { Ok(port) } else { not() };
    let shm = on(Scheme::Shm).map(|_| own.name().to_owned());
    let ofi = on(Scheme::Ofi).map(|port| (PROVIDER.to_owned(), port));
    let offers = vec![Offer::Shm(shm), Offer::Rdma(on(Scheme::Rdma)), Offer::Ofi(ofi), Offer::Tcp(not())];
    Announcement { host: this_host(), offers }
}

/// Returns the fabric of a process by its announcement.
fn told(said: &Announcement) -> Result<Scheme, ResolveError> {
    let mut on = said.offers.iter().filter(|offer| match offer {
        Offer::Shm(place) => place.is_ok(),
        Offer::Rdma(port) | Offer::Tcp(port) => port.is_ok(),
        Offer::Ofi(place) => place.is_ok(),
    });
    match (on.next(), on.next()) {
        (Some(offer), None) if offer.scheme() != Scheme::Tcp => Ok(offer.scheme()),
        _ => Err(ResolveError::Foreign("it is not on one fabric")),
    }
}

/// Asks the processes of the list, except this one and those that are `known`, for their fabrics. A process that does not
/// run gives no answer.
fn ask_all(
    members: &[Address],
    me: usize,
    known: &[Option<Scheme>],
) -> Result<Vec<Option<Scheme>>, AgreeError> {
    let ask_one = |at: usize| match ask(&members[at], PATIENCE) {
        Ok(said) => told(&said).map(Some),
        Err(ResolveError::Asking(_)) => Ok(None),
        Err(error) => Err(error),
    };
    let mut found = known.to_vec();
    let unknown: Vec<usize> = (0..members.len()).filter(|at| *at != me && known[*at].is_none()).collect();
    for some in unknown.chunks(AT_ONCE) {
        let answers: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = some.iter().map(|at| scope.spawn(|| ask_one(*at))).collect();
            let answered = asked.into_iter().map(std::thread::ScopedJoinHandle::join);
            answered.map(|answer| answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for (at, answer) in some.iter().zip(answers) {
            let foreign = |source| AgreeError::Foreign { address: members[*at].clone(), source };
            found[*at] = answer.map_err(foreign)?;
        }
    }
    Ok(found)
}

/// Fails if a process that runs is on another fabric than `one`.
fn check(members: &[Address], running: &[Option<Scheme>], one: (&Address, Scheme)) -> Result<(), AgreeError> {
    let (one, one_scheme) = (one.0.clone(), one.1);
    let mut others = members.iter().zip(running).filter_map(|(member, scheme)| Some((member, (*scheme)?)));
    match others.find(|(_, scheme)| *scheme != one_scheme) {
        Some((other, other_scheme)) => {
            Err(AgreeError::Disagree { one, one_scheme, other: other.clone(), other_scheme })
        }
        None => Ok(()),
    }
}

/// Returns the fabric that this process takes, and why.
fn choose(
    usable: &Usable,
    members: &[Address],
    running: &[Option<Scheme>],
) -> Result<(Scheme, String), AgreeError> {
    let mut others = members.iter().zip(running).filter_map(|(member, scheme)| Some((member, (*scheme)?)));
    if let Some((member, scheme)) = others.next() {
        check(members, running, (member, scheme))?;
        if let Some((_, Err(why))) = usable.iter().find(|one| one.0 == scheme) {
            return Err(AgreeError::Unusable { member: member.clone(), scheme, why: why.clone() });
        }
        return Ok((scheme, format!("{member} is on it")));
    }
    let Some((scheme, _)) = usable.iter().find(|(_, usable)| usable.is_ok()) else {
        return Err(AgreeError::NoFabric(passed_over(usable, Scheme::Tcp)));
    };
    let why = match scheme {
        Scheme::Shm => "all of the list are on this host",
        Scheme::Rdma => "an RDMA device of this host serves it",
        _ => "this host has libfabric",
    };
    Ok((*scheme, why.to_owned()))
}

/// Returns the fabrics that are preferred to `chosen` and cannot be used.
fn passed_over(usable: &Usable, chosen: Scheme) -> Vec<PassedOver> {
    debug_assert!(ORDER.iter().zip(usable).all(|(scheme, usable)| *scheme == usable.0));
    let preferred = usable.iter().take_while(|(scheme, _)| *scheme != chosen);
    let not = preferred.filter_map(|(scheme, usable)| Some((*scheme, usable.clone().err()?)));
    not.map(|(scheme, why)| PassedOver { scheme, why }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabrics::FabricsConfig;
    use std::io::Write as _;

    fn addresses(texts: &[&str]) -> Vec<Address> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    fn usable(shm: bool, rdma: bool, ofi: bool) -> Usable {
        let is = |usable: bool| if usable { Ok(()) } else { Err("no".to_owned()) };
        [(Scheme::Shm, is(shm)), (Scheme::Rdma, is(rdma)), (Scheme::Ofi, is(ofi))]
    }

    #[test]
    fn the_first_process_decides_by_the_order_of_auto() {
        let members = addresses(&["auto:a:7000", "auto:b:7000"]);
        let chosen = |usable| choose(&usable, &members, &[None, None]).map(|(scheme, _)| scheme);
        assert!(matches!(chosen(usable(true, true, true)), Ok(Scheme::Shm)));
        assert!(matches!(chosen(usable(false, true, true)), Ok(Scheme::Rdma)));
        assert!(matches!(chosen(usable(false, false, true)), Ok(Scheme::Ofi)));
        let none = chosen(usable(false, false, false)).unwrap_err();
        assert_eq!(
            none.to_string(),
            "there is no fabric for the list: not shm: no; not rdma: no; not ofi: no"
        );
        let not = passed_over(&usable(false, true, true), Scheme::Ofi);
        assert_eq!(not, [PassedOver { scheme: Scheme::Shm, why: "no".to_owned() }]);
    }

    #[test]
    fn later_ones_take_the_fabric_of_those_that_run() {
        let members = addresses(&["auto:a:7000", "auto:b:7000", "auto:c:7000"]);
        let by = |usable, running: &[Option<Scheme>]| choose(&usable, &members, running);
        let (scheme, why) = by(usable(true, true, true), &[None, Some(Scheme::Ofi), None]).unwrap();
        assert_eq!((scheme, why.as_str()), (Scheme::Ofi, "auto:b:7000 is on it"));
        let error = by(usable(true, false, true), &[None, None, Some(Scheme::Rdma)]).unwrap_err().to_string();
        assert_eq!(
            error,
            "auto:c:7000 is on rdma, which this process cannot use: no; name a fabric that all hosts have in the list, or \
             start all of them with --without rdma"
        );
        let error = by(usable(true, true, true), &[Some(Scheme::Shm), Some(Scheme::Ofi), None]).unwrap_err();
        assert!(
            error.to_string().starts_with("auto:a:7000 is on shm and auto:b:7000 on ofi: name "),
            "{error}"
        );
    }

    #[test]
    fn addresses_follow_from_the_port() {
        let auto = "auto:[::1]:7000".parse().expect("an address");
        let shown = [Scheme::Shm, Scheme::Rdma, Scheme::Ofi]
            .map(|scheme| address_on(scheme, &auto).expect("an address").to_string());
        assert_eq!(shown, ["shm:auto-[::1]:7000", "rdma:[::1]:7001", "ofi:tcp:[::1]:7002"]);
        let other = "ofi:verbs:h:1".parse().expect("an address");
        assert_eq!(beside(&other, &auto).expect("an address").to_string(), "ofi:verbs:[::1]:7002");
        for wrong in ["auto:h:0", "auto:h:65533", "rdma:h:7000", "shm:h"] {
            let wrong = wrong.parse().expect("an address");
            assert!(matches!(place(&wrong), Err(AgreeError::Place(_))), "{wrong}");
        }
        for (own, scheme) in
            [("shm:x", Scheme::Shm), ("rdma:h:1", Scheme::Rdma), ("ofi:tcp:h:2", Scheme::Ofi)]
        {
            let said = announcement(scheme, &own.parse().expect("an address"));
            let said = Announcement::decode(&said.encode()).expect("an announcement");
            assert!(told(&said).is_ok_and(|found| found == scheme), "{own}");
        }
    }

    /// Two ports of this host that nobody uses, with room behind them.
    fn two_places() -> Vec<Address> {
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            listener.local_addr().expect("an address").port()
        };
        let mut ports = [0; 2];
        while ports.iter().any(|port| !(1..=u16::MAX - PORTS).contains(port)) || ports[0] == ports[1] {
            ports = [free(), free()];
        }
        ports.iter().map(|port| format!("auto:127.0.0.1:{port}").parse().expect("an address")).collect()
    }

    fn without(disabled: &[Scheme]) -> Fabrics {
        Fabrics::new(FabricsConfig { disabled: disabled.to_vec(), ..FabricsConfig::default() })
    }

    #[test]
    fn processes_of_one_host_meet_on_shared_memory() {
        let members = two_places();
        let fabrics = without(&[]);
        let all: Address =
            format!("auto:0.0.0.0:{}", place(&members[0]).expect("a port").1).parse().expect("an address");
        let one = fabrics.agree(&all, &members, 0).expect("shared memory");
        assert_eq!(one.why, "all of the list are on this host");
        assert_eq!(one.listen, one.addresses[0], "the name is that of the list");
        let two = fabrics.agree(&members[1], &members, 1).expect("shared memory");
        assert_eq!((&two.addresses, &two.listen), (&one.addresses, &two.addresses[1]));
        assert_eq!(two.why, format!("{} is on it", members[0]));
        assert_eq!(two.to_string(), format!("{}: {} is on it", two.listen, members[0]));
        // A process that cannot use it says so, and one whose place is taken.
        drop(two);
        let error = without(&[Scheme::Shm]).agree(&members[1], &members, 1).unwrap_err();
        assert!(matches!(&error, AgreeError::Unusable { scheme: Scheme::Shm, .. }), "{error}");
        assert!(error.to_string().contains("disabled by the settings"), "{error}");
        assert!(matches!(fabrics.agree(&members[0], &members, 0), Err(AgreeError::Listen { .. })));
    }

    #[test]
    fn processes_that_start_at_once_agree() {
        let members = two_places();
        let start = |at: usize| without(&[]).agree(&members[at], &members, at).expect("shared memory");
        let (one, two) = std::thread::scope(|scope| {
            let one = scope.spawn(|| start(0));
            (start(1), one.join().expect("no panic"))
        });
        assert_eq!(one.addresses, two.addresses);
    }

    #[test]
    fn a_list_without_a_fabric_and_a_stranger_in_it_are_errors() {
        let members = two_places();
        let error = without(&ORDER).agree(&members[0], &members, 0).unwrap_err();
        assert!(matches!(&error, AgreeError::NoFabric(passed) if passed.len() == 3), "{error}");
        let away = [members[0].clone(), "auto:192.0.2.1:7000".parse().expect("an address")];
        let usable = without(&[]).usable_by_all(&away[0], &away, 0);
        assert_eq!(usable[0].1, Err("auto:192.0.2.1:7000 is on another host".to_owned()));
        // A web server in the place of the other process.
        let listener = TcpListener::bind(place(&members[1]).expect("a port")).expect("free");
        let stranger = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a visitor");
            socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("written");
        });
        let error = without(&[]).agree(&members[0], &members, 0).unwrap_err();
        assert!(matches!(&error, AgreeError::Foreign { .. }), "{error}");
        stranger.join().expect("it has answered");
    }
}
