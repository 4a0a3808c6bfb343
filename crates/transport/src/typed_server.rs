//! Typed servers on the transport that their address selects: one fabric, stock Thrift over TCP, or, at an
//! `auto:` address, all usable fabrics and TCP.

use crate::fabrics::{ChosenFabric, Fabrics};
use crate::multi_fabric::{OnFabric, Place, SeveralServers, reason};
use crate::server::{Server, shm_of, through_node};
use crate::signals::wait_for_signal;
use dunlin_fabric::WithSources;
use dunlin_fabric::{Address, IntoAddress, ListenError, Scheme, Topology};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::OfiFabric;
use dunlin_fabric_rdma::RdmaFabric;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::ServerConfig;
use dunlin_thrift::{
    self as thrift, Adapter, AsyncProcessor, AsyncServer, Processor, ServeError, ServerOptions, Tasks, tcp,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A running typed server. Dropping it stops it immediately. Its engines and TCP server share one handler.
#[derive(Debug)]
pub struct TypedServer<P: Processor> {
    address: Address,
    /// `None` for a server on TCP alone.
    engine: Option<Server>,
    tcp: Option<tcp::Server<P>>,
    /// [`ServerConfig::shutdown_timeout`].
    shutdown_timeout: Duration,
}

impl<P: Processor> TypedServer<P> {
    /// Returns the address to which clients connect. A port of 0 is replaced by the assigned port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the address on which stock Thrift clients are served.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(tcp::Server::address)
    }

    /// Returns the engine's server: [`Server::Several`] at an `auto:` address, `None` at a `tcp:` address.
    pub fn engine(&self) -> Option<&Server> {
        self.engine.as_ref()
    }

    /// Serves until the process gets SIGINT (Ctrl-C) or SIGTERM, and then stops the server gracefully within
    /// [`ServerConfig::shutdown_timeout`]; as [`Server::run_until_signal`]. Blocks.
    pub fn run_until_signal(self) -> std::io::Result<()> {
        wait_for_signal()?;
        let timeout = self.shutdown_timeout;
        self.shutdown(timeout);
        Ok(())
    }

    /// Stops the server gracefully: answers the received calls, for at most `timeout` on each of TCP and
    /// the engine. Blocks.
    pub fn shutdown(self, timeout: Duration) {
        if let Some(tcp) = self.tcp {
            tcp.shutdown(timeout);
        }
        if let Some(engine) = self.engine {
            engine.shutdown(timeout);
        }
    }
}

/// Starts a server of `processor` at `address`, with the fabrics of this process ([`Fabrics::global`]) and
/// default settings; [`serve_with`](dunlin_thrift::serve_with) takes others.
pub fn serve<P: Processor>(address: impl IntoAddress, processor: P) -> Result<TypedServer<P>, ServeError> {
    thrift::serve_with(Fabrics::global(), address, processor, ServerOptions::default())
}

/// Starts a server of asynchronous handlers at `address`, with the fabrics of this process
/// ([`Fabrics::global`]) and default settings; [`serve_async_with`](dunlin_thrift::serve_async_with) takes
/// others, and says which addresses there are.
pub fn serve_async<P: AsyncProcessor>(
    address: impl IntoAddress,
    processor: P,
    tasks: Tasks,
) -> Result<TypedAsyncServer, ServeError> {
    thrift::serve_async_with(Fabrics::global(), address, processor, ServerOptions::default(), tasks)
}

/// Starts a typed server; see [`dunlin_thrift::serve_with`].
///
/// At an `auto:` address, it serves stock Thrift on the address in the options, or else on the address's own
/// port plus three (the ports in between are for RDMA and libfabric), or on any port if that port is 0. If
/// the default port is not free, the server skips TCP and reports that; if the address in the options is not
/// free, starting fails.
pub(crate) fn serve_on<P: Processor>(
    fabrics: &Fabrics,
    address: &Address,
    processor: P,
    options: ServerOptions,
) -> Result<TypedServer<P>, ServeError> {
    let processor = Arc::new(processor);
    let shutdown_timeout = options.engine.shutdown_timeout;
    let ServerOptions { engine: config, topology, tcp: named, tcp_options, pool } = options;
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
            // There is no pool, but a wrong name is wrong on every transport.
            Adapter::new(processor, None).pool(&pool)?;
            let actual = format!("{}:{}", crate::resolve::host_of(address), tcp.address().port());
            // Only the port can differ.
            let address = Address::new(Scheme::Tcp, &actual).unwrap_or_else(|_| address.clone());
            Ok(TypedServer { address, engine: None, tcp: Some(tcp), shutdown_timeout })
        }
        Scheme::Auto => {
            let place = Place::bind(address)?;
            let allowed = fabrics.config().disabled.iter().all(|disabled| *disabled != Scheme::Tcp);
            let tcp = match &named {
                Some(named) => Ok(bind(named)?),
                None if !allowed => Err("it is disabled by the settings of this process".to_owned()),
                None => bind(&place.tcp()).map_err(|error| WithSources(&error).to_string()),
            };
            let port = tcp.as_ref().map(|tcp| tcp.address().port()).map_err(Clone::clone);
            let tcp = tcp.ok();
            let adapter = Adapter::new(processor, told(tcp.as_ref())).pool(&pool)?;
            let (servers, _) = SeveralServers::start(place, port, |address| {
                let started = serve_one(fabrics, address, &adapter, config.clone(), topology.clone());
                started.map(|server| (server, ())).map_err(|error| match &error {
                    ServeError::Engine(error) => reason(error),
                    error => WithSources(error).to_string(),
                })
            })?;
            let address = servers.address().clone();
            let engine = Some(Server::Several(Box::new(servers)));
            Ok(TypedServer { address, engine, tcp, shutdown_timeout })
        }
        _ => {
            let tcp = named.as_deref().map(bind).transpose()?;
            let adapter = Adapter::new(processor, told(tcp.as_ref())).pool(&pool)?;
            let engine = serve_one(fabrics, address, &adapter, config, topology)?;
            let address = engine.address().clone();
            Ok(TypedServer { address, engine: Some(engine), tcp, shutdown_timeout })
        }
    }
}

fn told<P: Processor>(tcp: Option<&tcp::Server<P>>) -> Option<String> {
    tcp.map(|tcp| tcp.address().to_string())
}

/// Starts a server on the fabric of an address.
fn serve_one<P: Processor>(
    fabrics: &Fabrics,
    address: &Address,
    adapter: &Adapter<P>,
    config: ServerConfig,
    topology: Option<Topology>,
) -> Result<Server, ServeError> {
    if address.scheme() == Scheme::Node {
        let fabric = shm_of(fabrics, address).map_err(dunlin_rpc::ServeError::from)?;
        return through_node(&fabric, address, |own| {
            Ok(Server::Shm(adapter.serve(&fabric, own, config, topology)?))
        });
    }
    let chosen =
        fabrics.choose(address).map_err(|error| dunlin_rpc::ServeError::from(ListenError::from(error)))?;
    Ok(match chosen {
        ChosenFabric::Shm(fabric) => Server::Shm(adapter.serve(&fabric, address, config, topology)?),
        ChosenFabric::Rdma(fabric) => Server::Rdma(adapter.serve(&fabric, address, config, topology)?),
        #[cfg(feature = "ofi")]
        ChosenFabric::Ofi(fabric) => Server::Ofi(adapter.serve(&fabric, address, config, topology)?),
    })
}

/// A running server of asynchronous handlers. Dropping it stops it immediately.
#[derive(Debug)]
pub enum TypedAsyncServer {
    /// On shared memory.
    Shm(AsyncServer<ShmFabric>),
    /// On RDMA.
    Rdma(AsyncServer<RdmaFabric>),
    /// On libfabric.
    #[cfg(feature = "ofi")]
    Ofi(AsyncServer<OfiFabric>),
    /// On several fabrics, at an `auto:` address.
    Several(Box<SeveralServers<TypedAsyncServer>>),
}

impl OnFabric for TypedAsyncServer {
    fn bound(&self) -> &Address {
        self.address()
    }
}

impl TypedAsyncServer {
    /// Returns the address to which clients connect.
    pub fn address(&self) -> &Address {
        each_or!(Self, self, server => server.address(), Self::Several(servers) => servers.address())
    }

    /// Returns the number of calls in progress.
    pub fn in_progress(&self) -> usize {
        each_or!(Self, self, server => server.in_progress(), Self::Several(servers) => {
            servers.servers().iter().map(TypedAsyncServer::in_progress).sum()
        })
    }

    /// Returns the engine's settings: those of the first server, on several fabrics.
    fn config(&self) -> Option<&ServerConfig> {
        each_or!(Self, self, server => server.config(), Self::Several(servers) => {
            servers.servers().first()?.config()
        })
    }

    /// Serves until the process gets SIGINT (Ctrl-C) or SIGTERM, and then stops the server gracefully within
    /// [`ServerConfig::shutdown_timeout`]; as [`Server::run_until_signal`]. Blocks. The executor must run
    /// meanwhile.
    pub fn run_until_signal(self) -> std::io::Result<()> {
        wait_for_signal()?;
        let timeout = self.config().map_or(Duration::ZERO, |config| config.shutdown_timeout);
        self.shutdown(timeout);
        Ok(())
    }

    /// Stops the server gracefully, as [`AsyncServer::shutdown`]. Blocks.
    pub fn shutdown(self, timeout: Duration) {
        each_or!(Self, self, server => server.shutdown(timeout), Self::Several(servers) => {
            std::thread::scope(|scope| {
                for server in servers.into_servers() {
                    scope.spawn(move || server.shutdown(timeout));
                }
            });
        });
    }
}

/// Starts a server of asynchronous handlers; see [`dunlin_thrift::serve_async_with`].
pub(crate) fn serve_async_on<P: AsyncProcessor>(
    fabrics: &Fabrics,
    address: &Address,
    processor: P,
    options: ServerOptions,
    tasks: Tasks,
) -> Result<TypedAsyncServer, ServeError> {
    match address.scheme() {
        Scheme::Tcp => {
            let why =
                "they do not answer stock Thrift: use auto:HOST:PORT or a fabric, shm:NAME or rdma:HOST:PORT";
            return Err(ServeError::Asynchronous { why });
        }
        Scheme::Node => {
            let why = "this version makes servers of blocking handlers known to a node: name a fabric, shm:NAME or rdma:HOST:PORT";
            return Err(ServeError::Asynchronous { why });
        }
        Scheme::Auto => {}
        _ => return serve_async_one(fabrics, address, processor, options, tasks),
    }
    let (place, processor) = (Place::bind(address)?, Arc::new(processor));
    let tcp = Err("asynchronous handlers do not answer stock Thrift".to_owned());
    // The options are refused alike on every fabric, and are then the error.
    let mut refused = None;
    let started = SeveralServers::start(place, tcp, |address| {
        let (processor, options) = (Arc::clone(&processor), options.clone());
        let started = serve_async_one(fabrics, address, processor, options, tasks.clone());
        started.map(|server| (server, ())).map_err(|error| match &error {
            ServeError::Engine(error) => reason(error),
            error => {
                if let ServeError::Asynchronous { why } = error {
                    refused = Some(*why);
                }
                WithSources(error).to_string()
            }
        })
    });
    match refused {
        Some(why) => Err(ServeError::Asynchronous { why }),
        None => Ok(TypedAsyncServer::Several(Box::new(started?.0))),
    }
}

/// Starts a server of asynchronous handlers on the fabric of an address.
fn serve_async_one<P: AsyncProcessor>(
    fabrics: &Fabrics,
    address: &Address,
    processor: P,
    options: ServerOptions,
    tasks: Tasks,
) -> Result<TypedAsyncServer, ServeError> {
    let chosen =
        fabrics.choose(address).map_err(|error| dunlin_rpc::ServeError::from(ListenError::from(error)))?;
    Ok(match chosen {
        ChosenFabric::Shm(fabric) => {
            TypedAsyncServer::Shm(thrift::serve_async_with(&fabric, address, processor, options, tasks)?)
        }
        ChosenFabric::Rdma(fabric) => {
            TypedAsyncServer::Rdma(thrift::serve_async_with(&fabric, address, processor, options, tasks)?)
        }
        #[cfg(feature = "ofi")]
        ChosenFabric::Ofi(fabric) => {
            TypedAsyncServer::Ofi(thrift::serve_async_with(&fabric, address, processor, options, tasks)?)
        }
    })
}
