//! Where the calls of each function go: what the hints select, and the connections that it takes.

use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError};
use crate::introduction::Introduction;
use dunlin_fabric::Capabilities;
use dunlin_hints::{Environment, FunctionHints, Selection, select};
use dunlin_rpc::{ClientConfig, Plan};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};
use std::collections::BTreeMap;

/// Settings of a typed client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The engine's settings. The plan in them does not count: each function's hints select one.
    pub engine: ClientConfig,
    /// Clients that call the server at the same time, if that is known better than by the hint `concurrency`.
    pub clients: Option<u32>,
    /// Cores of the server's machine, half of which are taken to be at the NIC if there are two nodes; as many as this
    /// machine has if not given.
    pub cores: Option<u32>,
}

/// Where the calls of a function go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By the engine, as the server's function of this id, on the lane of its plan.
    Engine(u16),
    /// By stock Thrift over TCP.
    Tcp,
    /// The server has no such function.
    Unknown,
}

/// What the hints select, before connecting.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) selections: Vec<Selection>,
}

impl Choice {
    pub(crate) fn new(
        service: &ServiceDescriptor,
        capabilities: &Capabilities,
        options: &ClientOptions,
    ) -> Result<Self, ConnectError> {
        let here = || std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let environment = Environment {
            clients: options.clients,
            ..Environment::new(capabilities, options.cores.unwrap_or_else(here))
        };
        let select = |function: &FunctionHints| {
            select(function, &environment).map_err(|error| ConnectError::Hints {
                service: service.name,
                function: function.name.to_string(),
                error: Box::new(error),
            })
        };
        let selections = service.functions.iter().map(select).collect::<Result<_, _>>()?;
        Ok(Choice { selections })
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
        let functions: BTreeMap<u16, Plan> = service
            .functions
            .iter()
            .zip(&self.selections)
            .filter_map(|(function, selection)| Some((introduction.id(&function.name)?, selection.plan?)))
            .collect();
        // What has no plan of its own, the introduction above all, goes by one that there is anyhow.
        let plan = functions.values().next().copied().unwrap_or(options.engine.plan);
        ClientConfig { plan, functions, ..options.engine.clone() }
    }

    /// The routes to a server.
    pub(crate) fn routes(&self, service: &ServiceDescriptor, introduction: &Introduction) -> Vec<Route> {
        let route = |(function, selection): (&FunctionHints, &Selection)| match (
            introduction.id(&function.name),
            selection.plan,
        ) {
            (Some(id), Some(_)) => Route::Engine(id),
            (Some(_), None) => Route::Tcp,
            (None, _) => Route::Unknown,
        };
        service.functions.iter().zip(&self.selections).map(route).collect()
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
