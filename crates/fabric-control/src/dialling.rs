//! Listening and dialling over TCP.

use crate::backend::Backend;
use crate::control::Control;
use crate::greeting::{Acceptor, GreetError, greet};
use crate::link::{LinkShared, TcpLink};
use crate::listener::{ControlListener, ListenerShared};
use crate::tcp;
use dunlin_fabric::door;
use dunlin_fabric::{Address, DialError, Host, ListenError, Nanos, RealHost};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// Listens on a TCP port. Dropping it frees the port.
pub type TcpControlListener<B> = ControlListener<TcpListener, TcpLink<B>>;

impl<B: Backend> Control<B> {
    /// Listens at HOST:PORT. Port 0 lets the system choose a port, which the listener's address then
    /// contains. `prefix` is the text before HOST:PORT in addresses, with its colon; it may be empty.
    pub fn listen(
        self: &Arc<Self>,
        address: &Address,
        (prefix, host, port): (&str, &str, u16),
    ) -> Result<TcpControlListener<B>, ListenError> {
        let system = |source| ListenError::System { address: address.clone(), source };
        let socket = TcpListener::bind((host, port)).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => ListenError::InUse { address: address.clone() },
            _ => system(error),
        })?;
        socket.set_nonblocking(true).map_err(system)?;
        let port = socket.local_addr().map_err(system)?.port();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let actual = Address::new(B::SCHEME, &format!("{prefix}{host}:{port}"))
            .map_err(|error| system(io::Error::other(error)))?;
        let shared = ListenerShared::new(socket, self.reactor());
        let acceptor = Acceptor { listener: Arc::clone(&shared), control: Arc::downgrade(self) };
        shared.watch(Arc::new(acceptor)).map_err(system)?;
        let owner: Arc<Self> = Arc::clone(self);
        Ok(ControlListener::new(shared, actual, owner))
    }

    /// Opens a control connection to HOST:PORT; blocks no longer than `until`.
    pub fn dial(
        self: &Arc<Self>,
        address: &Address,
        (host, port): (&str, u16),
        until: Nanos,
    ) -> Result<TcpLink<B>, DialError> {
        let address = || address.clone();
        if let Some(trouble) = self.backend().trouble() {
            return Err(DialError::System { address: address(), source: io::Error::other(trouble) });
        }
        let within = until.saturating_sub(RealHost.now());
        let timed_out = || DialError::TimedOut { address: address(), after: Duration::from_nanos(within) };
        let socket = tcp::connect(host, port, until).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => DialError::NobodyListens { address: address() },
            ErrorKind::TimedOut | ErrorKind::WouldBlock => timed_out(),
            _ => DialError::System { address: address(), source: error },
        })?;
        let ours = self.backend().greeting();
        let rest = greet(&socket, ours, until).map_err(|error| match error {
            GreetError::Version(theirs) => {
                DialError::Version { address: address(), ours: ours.version, theirs }
            }
            GreetError::TimedOut => timed_out(),
            GreetError::Full => DialError::Full { address: address() },
            GreetError::None(source) => DialError::NoGreeting { address: address(), source },
            GreetError::Foreign(bytes, source) => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
                match door::found(&bytes, &format!("{host}:{port}")) {
                    Some(found) => DialError::WrongDoor { address: address(), found },
                    None => DialError::NoGreeting { address: address(), source },
                }
            }
        })?;
        let link = LinkShared::new(socket, true, rest, self);
        link.watch().map_err(|source| DialError::System { address: address(), source })?;
        Ok(TcpLink::new(link, Arc::clone(self)))
    }
}
