//! Where the calls of each function go: what the hints select, and the connections that it takes.

use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError};
use crate::form::Form;
use crate::introduction::Introduction;
use crate::numa;
use crate::tcp::ConnectionOptions;
use dunlin_fabric::{Capabilities, Fabric, Host, Topology};
use dunlin_hints::{Environment, FunctionHints, Selection, Side, select};
use dunlin_rpc::{ClientConfig, Plan};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};
use std::collections::BTreeMap;

/// Settings of a typed client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The engine's settings. The plan in them does not count: each function's hints select one.
    pub engine: ClientConfig,
    /// Hints in the place of the IDL's for the functions of these names, for who knows them only when the program runs (a
    /// payload's size, a protocol to be tried). The server goes by its own.
    pub hints: Vec<FunctionHints>,
    /// Clients that call the server at the same time, if that is known better than by the hint `concurrency`.
    pub clients: Option<u32>,
    /// Cores of the server's machine, half of which are taken to be at the NIC if there are two nodes; as many as this
    /// machine has if not given.
    pub cores: Option<u32>,
    /// NUMA nodes; this machine's if not given, and the server's are taken to be as many.
    pub topology: Option<Topology>,
    /// Where the server answers stock Thrift (`host:port`), for functions whose hints say TCP; where the server of an address of `auto:`
    /// tells, else what the server says of itself, if not given.
    pub tcp: Option<String>,
    /// How to speak there.
    pub connection: ConnectionOptions,
}

/// Where the calls of a function go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By the engine, on the lane of its plan.
    Engine {
        /// The server's id of the function in this form.
        id: u16,
        /// How arguments and result are encoded.
        form: Form,
    },
    /// By stock Thrift over TCP.
    Tcp,
    /// The server has no such function.
    Unknown,
}

/// A machine with so many cores, as many as this one if not given, on these nodes.
pub(crate) fn environment<'a>(
    capabilities: &'a Capabilities,
    cores: Option<u32>,
    topology: &Topology,
) -> Environment<'a> {
    let here = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let (cores, nodes) = (cores.unwrap_or_else(here), topology.count());
    Environment { nodes, node_cores: cores.div_ceil(nodes), ..Environment::new(capabilities, cores) }
}

/// What the hints select, before connecting.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) selections: Vec<Selection>,
    /// Cores that the client is to be bound to; none for any.
    pub(crate) cores: Vec<u32>,
}

impl Choice {
    pub(crate) fn new<F: Fabric>(
        service: &ServiceDescriptor,
        fabric: &F,
        options: &ClientOptions,
    ) -> Result<Self, ConnectError> {
        let topology = options.topology.clone().unwrap_or_else(|| fabric.host().topology());
        let environment = Environment {
            clients: options.clients,
            ..environment(fabric.capabilities(), options.cores, &topology)
        };
        let select = |function: &FunctionHints| {
            let own = options.hints.iter().find(|hints| hints.name == function.name);
            select(own.unwrap_or(function), &environment).map_err(|error| ConnectError::Hints {
                service: service.name,
                function: function.name.to_string(),
                error: Box::new(error),
            })
        };
        let selections = service.functions.iter().map(select).collect::<Result<Vec<_>, _>>()?;
        let functions = service.functions.iter().zip(&selections);
        let cores = numa::cores(Side::Client, functions, &topology)
            .map_err(|error| ConnectError::Numa { service: service.name, error })?;
        Ok(Choice { selections, cores })
    }

    /// What a client expects of a server that was built from the same IDL.
    pub(crate) fn expected(service: &ServiceDescriptor) -> Introduction {
        Introduction::of(service, None)
    }

    /// The engine's settings: a plan for each function that a server with this introduction has.
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
        // What has no plan of its own, the introduction above all, goes by one that there is anyhow.
        let plan = functions.values().next().copied().or(options.engine.plan);
        ClientConfig { plan, functions, ..options.engine.clone() }
    }

    /// The routes to a server.
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

/// Why a call of a function cannot be made by the engine.
#[cold]
pub(crate) fn no_route<E>(service: &ServiceDescriptor, function: usize, route: Route) -> CallError<E> {
    let name = &service.functions[function].name;
    match route {
        Route::Tcp => CallError::NoTcp { function: name.to_string() },
        _ => CallError::Application(ApplicationException::new(
            ApplicationExceptionKind::UNKNOWN_METHOD,
            format!("the server's {} has no function '{name}': it was built from another IDL", service.name),
        )),
    }
}
