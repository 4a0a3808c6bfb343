//! Routes: the plan that the hints select for each function, and the connections it requires.

use crate::form::Form;
use crate::introduction::Introduction;
use crate::numa;
use dunlin_fabric::{Capabilities, Fabric, Host, Topology};
use dunlin_hints::{Environment, FunctionHints, SelectError, Selection, Side, select, unify_sharing};
use dunlin_rpc::{ClientConfig, Plan, ServerConnections};
use dunlin_thrift_core::{CallError, ConnectError, ServiceDescriptor};
use dunlin_thrift_tcp::ConnectionOptions;
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};
use std::collections::BTreeMap;

/// Settings of a typed client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The engine's settings. Default: [`ClientConfig::default`]. The plan in them is ignored: the hints of
    /// each function select one. `wait_for_ready` and `lazy` hold for TCP connections, too.
    pub engine: ClientConfig,
    /// Hints that replace those of the IDL for the functions named in them, for values known only at run
    /// time, such as the payload size. The server uses its own hints. Default: none.
    pub hints: Vec<FunctionHints>,
    /// The number of clients that call the server concurrently. Overrides the hint `concurrency`.
    /// Default: what that hint says.
    pub clients: Option<u32>,
    /// The number of cores of the server's machine; by default that of this machine. With two NUMA nodes,
    /// half of the cores are assumed to be at the NIC.
    pub cores: Option<u32>,
    /// The NUMA topology; by default that of this machine. The server is assumed to have the same number of
    /// nodes.
    pub topology: Option<Topology>,
    /// The server's address for stock Thrift (`host:port`), for functions whose hints select TCP. By default
    /// it comes from the announcement of an `auto:` address, or else from the server's introduction.
    pub tcp: Option<String>,
    /// Whether the address is that of the node of this host, which the hint `sharing = tier` needs. The transports set it for
    /// `node:` addresses. Default: false.
    pub through_node: bool,
    /// Whether to connect although functions have other types on the server, so that their calls cannot be
    /// understood. Such calls then fail; the other functions work. Default: false, connecting fails and names
    /// the functions.
    pub other_signatures: bool,
    /// Settings of the TCP connection. Default: [`ConnectionOptions::default`]. A call has the same time
    /// there as elsewhere: that of `engine`, unless [`ConnectionOptions::call_timeout`] is set.
    pub connection: ConnectionOptions,
}

impl ClientOptions {
    /// Returns the settings of the TCP connection: [`ClientConfig::wait_for_ready`], [`ClientConfig::lazy`],
    /// and without a [`ConnectionOptions::call_timeout`] also the timeout of the engine's settings hold there,
    /// too.
    #[must_use]
    pub fn tcp_connection(&self) -> ConnectionOptions {
        let mut connection = self.connection.clone();
        connection.call_timeout.get_or_insert(self.engine.timeout);
        connection.wait_for_ready = connection.wait_for_ready.max(self.engine.wait_for_ready);
        connection.lazy |= self.engine.lazy;
        connection
    }
}

/// The route of a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Through the engine, on the lane of the function's plan.
    Engine {
        /// The server's id of the function in this form.
        id: u16,
        /// The encoding of arguments and result.
        form: Form,
    },
    /// Stock Thrift over TCP.
    Tcp,
    /// None: the server has no such function.
    Unknown,
}

/// Describes a machine with `cores` cores, or as many as this machine if `None`, and the nodes of `topology`.
pub(crate) fn environment<'a>(
    capabilities: &'a Capabilities,
    cores: Option<u32>,
    topology: &Topology,
) -> Environment<'a> {
    let here = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let (cores, nodes) = (cores.unwrap_or_else(here), topology.count());
    Environment { nodes, node_cores: cores.div_ceil(nodes), ..Environment::new(capabilities, cores) }
}

/// The selections of the hints: made before connecting, and again when the server has said how many workers it has, and
/// how many queue pairs it keeps active.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) selections: Vec<Selection>,
    /// The cores to bind the client to; empty for no binding.
    pub(crate) cores: Vec<u32>,
}

impl Choice {
    pub(crate) fn new<F: Fabric>(
        service: &ServiceDescriptor,
        fabric: &F,
        options: &ClientOptions,
        (connections, workers): (ServerConnections, usize),
    ) -> Result<Self, ConnectError> {
        let topology = options.topology.clone().unwrap_or_else(|| fabric.host().topology());
        let environment = Environment {
            clients: options.clients,
            connections,
            through_node: Some(options.through_node),
            queue_pairs_each: u32::try_from(workers).unwrap_or(u32::MAX).max(1),
            ..environment(fabric.capabilities(), options.cores, &topology)
        };
        let refused = |function: &FunctionHints, error: Box<SelectError>| ConnectError::Hints {
            service: service.name,
            function: function.name.to_string(),
            error,
        };
        let own = |function: &FunctionHints| options.hints.iter().find(|own| own.name == function.name);
        let hints: Vec<&FunctionHints> =
            service.functions.iter().map(|function| own(function).unwrap_or(function)).collect();
        let select = |function: &&FunctionHints| {
            select(function, &environment).map_err(|error| refused(function, Box::new(error)))
        };
        let mut selections = hints.iter().map(select).collect::<Result<Vec<_>, _>>()?;
        unify_sharing(hints.iter().copied().zip(&mut selections))
            .map_err(|(number, error)| refused(hints[number], error))?;
        let functions = service.functions.iter().zip(&selections);
        let cores = numa::cores(Side::Client, functions, &topology)
            .map_err(|error| ConnectError::Numa { service: service.name, error })?;
        Ok(Choice { selections, cores })
    }

    /// Returns whether functions have other plans than in `other`.
    pub(crate) fn differs_from(&self, other: &Choice) -> bool {
        let plans = |choice: &Choice| choice.selections.iter().map(|of| of.plan).collect::<Vec<_>>();
        plans(self) != plans(other)
    }

    /// Returns the introduction expected of a server built from the same IDL.
    pub(crate) fn expected(service: &ServiceDescriptor) -> Introduction {
        Introduction::of(service, None)
    }

    /// Returns the engine's settings, with a plan for each function that a server with this introduction has.
    pub(crate) fn config(
        &self,
        service: &ServiceDescriptor,
        introduction: &Introduction,
        options: &ClientOptions,
    ) -> ClientConfig {
        let routes = self.routes(service, introduction).into_iter().zip(&self.selections);
        let functions: BTreeMap<u16, Plan> = routes
            .filter_map(|(route, selection)| match route {
                Route::Engine { id, .. } => Some((id, selection.plan?)),
                Route::Tcp | Route::Unknown => None,
            })
            .collect();
        // Functions without a plan of their own, such as the introduction, use one of the plans in use.
        let plan = functions.values().next().copied().or(options.engine.plan);
        ClientConfig { plan, functions, ..options.engine.clone() }
    }

    /// Connects to the engine, asking for the service by its name, or else by the name of a service that it
    /// extends: an older server may serve only that one. A name in the options replaces these.
    pub(crate) fn connected<T>(
        service: &ServiceDescriptor,
        config: ClientConfig,
        connect: impl Fn(ClientConfig) -> Result<T, dunlin_rpc::ConnectError>,
    ) -> Result<T, ConnectError> {
        if !config.service.is_empty() {
            return Ok(connect(config)?);
        }
        let ask = |name: &str| connect(ClientConfig { service: name.to_owned(), ..config.clone() });
        let mut connected = ask(service.name);
        for base in service.extends {
            if !matches!(connected, Err(dunlin_rpc::ConnectError::OtherService(_))) {
                break;
            }
            connected = ask(base).or(connected);
        }
        Ok(connected?)
    }

    /// Returns the routes of the functions on a server with this introduction.
    pub(crate) fn routes(&self, service: &ServiceDescriptor, introduction: &Introduction) -> Vec<Route> {
        let route = |(number, selection): (usize, &Selection)| {
            let name = &service.functions[number].name;
            match (introduction.function(name), selection.plan) {
                (Some(function), Some(_)) => {
                    let (id, form) = function.form(&service.signature(number));
                    Route::Engine { id, form }
                }
                (Some(_), None) => Route::Tcp,
                (None, _) => Route::Unknown,
            }
        };
        self.selections.iter().enumerate().map(route).collect()
    }
}

/// Returns the error of a call that has no route.
#[cold]
pub(crate) fn no_route(service: &ServiceDescriptor, function: usize, route: Route) -> CallError {
    let name = &service.functions[function].name;
    match route {
        Route::Tcp => CallError::NoTcp { function: name.to_string() },
        _ => CallError::Application(ApplicationException::new(
            ApplicationExceptionKind::UNKNOWN_METHOD,
            format!("the server's {} has no function '{name}': it was built from another IDL", service.name),
        )),
    }
}
