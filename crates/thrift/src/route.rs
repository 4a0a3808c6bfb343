//! Where the calls of each function go: what the hints select, and the connections that it takes.

use crate::descriptor::ServiceDescriptor;
use crate::error::{CallError, ConnectError};
use crate::introduction::Introduction;
use dunlin_fabric::Capabilities;
use dunlin_hints::{Environment, Selection, select};
use dunlin_rpc::{ClientConfig, Plan};
use pilota::thrift::{ApplicationException, ApplicationExceptionKind};

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
    /// By the engine: which of the client's connections, and the server's id of the function.
    Engine {
        /// The connection, one for each plan.
        connection: u16,
        /// The server's function id.
        function: u16,
    },
    /// By stock Thrift over TCP.
    Tcp,
    /// The server has no such function.
    Unknown,
}

/// What was chosen before connecting.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) selections: Vec<Selection>,
    /// The plans, each once; at least one, for the introduction.
    pub(crate) plans: Vec<Plan>,
    /// The plan of each function, `None` for TCP.
    places: Vec<Option<u16>>,
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
        let mut choice = Choice { selections: Vec::new(), plans: Vec::new(), places: Vec::new() };
        for function in service.functions {
            let selection = select(function, &environment).map_err(|error| ConnectError::Hints {
                service: service.name,
                function: function.name.to_string(),
                error: Box::new(error),
            })?;
            choice.places.push(selection.plan.map(|plan| choice.plans.place(plan)));
            choice.selections.push(selection);
        }
        if choice.plans.is_empty() {
            choice.plans.push(Plan::default());
        }
        Ok(choice)
    }

    /// The engine's settings for each plan.
    pub(crate) fn configs(&self, options: &ClientOptions) -> impl Iterator<Item = ClientConfig> {
        self.plans.iter().map(|plan| ClientConfig { plan: *plan, ..options.engine.clone() })
    }

    /// The routes, once the server has said what it has.
    pub(crate) fn routes(&self, service: &ServiceDescriptor, introduction: &Introduction) -> Vec<Route> {
        let route = |(function, place): (&dunlin_hints::FunctionHints, &Option<u16>)| match (
            introduction.id(&function.name),
            place,
        ) {
            (Some(function), Some(connection)) => Route::Engine { connection: *connection, function },
            (Some(_), None) => Route::Tcp,
            (None, _) => Route::Unknown,
        };
        service.functions.iter().zip(&self.places).map(route).collect()
    }
}

/// A list of different things.
trait Distinct<T> {
    /// The place of a thing, which is added if it is new.
    fn place(&mut self, thing: T) -> u16;
}

impl<T: PartialEq> Distinct<T> for Vec<T> {
    fn place(&mut self, thing: T) -> u16 {
        let known = self.iter().position(|known| *known == thing);
        known.unwrap_or_else(|| {
            self.push(thing);
            self.len() - 1
        }) as u16
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
