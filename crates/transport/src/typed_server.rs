//! Typed servers on whatever transport their address means: one fabric, stock Thrift over TCP, or, at an address of `auto:`,
//! all fabrics that can be used here and TCP besides.

use crate::fabrics::{ChosenFabric, Fabrics};
use crate::server::Server;
use crate::several::{Place, SeveralServers, reason};
use dunlin_fabric::Topology;
use dunlin_fabric::{Address, ListenError, Nanos, Scheme};
use dunlin_rpc::ServerConfig;
use dunlin_thrift::{Adapter, Processor, ServeError, ServerOptions, tcp};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A running typed server; dropping it ends it at once. Its engines and TCP share one handler.
#[derive(Debug)]
pub struct TypedServer<P: Processor> {
    address: Address,
    /// `None` if it is on TCP alone, by its address.
    engine: Option<Server>,
    tcp: Option<tcp::Server<P>>,
}

impl<P: Processor> TypedServer<P> {
    /// The address that clients dial: with a port of 0, the one that the system has chosen.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Where stock Thrift clients are answered.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(tcp::Server::address)
    }

    /// The engine's server, [`Server::Several`] at an address of `auto:`; `None` at one of `tcp:`.
    pub fn engine(&self) -> Option<&Server> {
        self.engine.as_ref()
    }

    /// Ends the server gently: what was received is answered, for `timeout` nanoseconds at most on each side. Blocks.
    pub fn shutdown(self, timeout: Nanos) {
        if let Some(tcp) = self.tcp {
            tcp.shutdown(Duration::from_nanos(timeout));
        }
        if let Some(engine) = self.engine {
            engine.shutdown(timeout);
        }
    }
}

/// Starts a typed server; see [`dunlin_thrift::serve`].
///
/// At an address of `auto:` stock Thrift is answered three ports behind the address's own (behind RDMA's and libfabric's), at any
/// if that is 0, and where the options say if they do. A port that is not free is passed over and told, unless the options named it.
pub(crate) fn serve<P: Processor>(
    fabrics: &Fabrics,
    address: &Address,
    processor: P,
    options: ServerOptions,
) -> Result<TypedServer<P>, ServeError> {
    let processor = Arc::new(processor);
    let ServerOptions { engine: config, topology, tcp: named, tcp_options } = options;
    let bind = |place: &str| tcp::Server::bind(place, Arc::clone(&processor), tcp_options.clone());
    let unavailable = |error| dunlin_rpc::ServeError::from(ListenError::Unavailable(error));
    match address.scheme() {
        Scheme::Tcp => {
            fabrics.allow(address).map_err(unavailable)?;
            if let Some(other) = named {
                let error =
                    std::io::Error::other(format!("the server's address says {address}; name one of them"));
                return Err(ServeError::Tcp { address: other, error });
            }
            let tcp = bind(address.name())?;
            let actual = format!("{}:{}", crate::resolve::host_of(address), tcp.address().port());
            // Only the port can differ.
            let address = Address::new(Scheme::Tcp, &actual).unwrap_or_else(|_| address.clone());
            Ok(TypedServer { address, engine: None, tcp: Some(tcp) })
        }
        Scheme::Auto => {
            let place = Place::bind(address)?;
            let allowed = fabrics.config().disabled.iter().all(|disabled| *disabled != Scheme::Tcp);
            let tcp = match &named {
                Some(named) => Ok(bind(named)?),
                None if !allowed => Err("it is disabled by the settings of this process".to_owned()),
                None => bind(&place.tcp()).map_err(|error| error.to_string()),
            };
            let port = tcp.as_ref().map(|tcp| tcp.address().port()).map_err(Clone::clone);
            let tcp = tcp.ok();
            let adapter = Adapter::new(processor, told(tcp.as_ref()));
            let (servers, _) = SeveralServers::start(place, port, |address| {
                let started = serve_one(fabrics, address, &adapter, config.clone(), topology.clone());
                started.map(|server| (server, ())).map_err(|error| match &error {
                    ServeError::Engine(error) => reason(error),
                    error => error.to_string(),
                })
            })?;
            let address = servers.address().clone();
            Ok(TypedServer { address, engine: Some(Server::Several(Box::new(servers))), tcp })
        }
        _ => {
            let tcp = named.as_deref().map(bind).transpose()?;
            let adapter = Adapter::new(processor, told(tcp.as_ref()));
            let engine = serve_one(fabrics, address, &adapter, config, topology)?;
            Ok(TypedServer { address: engine.address().clone(), engine: Some(engine), tcp })
        }
    }
}

fn told<P: Processor>(tcp: Option<&tcp::Server<P>>) -> Option<String> {
    tcp.map(|tcp| tcp.address().to_string())
}

/// A server on the fabric that an address names.
fn serve_one<P: Processor>(
    fabrics: &Fabrics,
    address: &Address,
    adapter: &Adapter<P>,
    config: ServerConfig,
    topology: Option<Topology>,
) -> Result<Server, ServeError> {
    let chosen =
        fabrics.choose(address).map_err(|error| dunlin_rpc::ServeError::from(ListenError::from(error)))?;
    Ok(match chosen {
        ChosenFabric::Shm(fabric) => Server::Shm(adapter.serve(&fabric, address, config, topology)?),
        ChosenFabric::Rdma(fabric) => Server::Rdma(adapter.serve(&fabric, address, config, topology)?),
        #[cfg(feature = "ofi")]
        ChosenFabric::Ofi(fabric) => Server::Ofi(adapter.serve(&fabric, address, config, topology)?),
    })
}
