//! How the calls of a typed client run, as the client knows it.

use crate::introduction::{INTRODUCTION, Introduction};
use crate::on_server::{OnServer, ServerDescription};
use crate::route::Route;
use dunlin_fabric::{Address, ChosenTransport, Fabric, Scheme};
use dunlin_hints::{Selection, nearest};
use dunlin_rpc::{ClientConfig, RunningPlan, RunsIn, Tuning};
use dunlin_thrift_core::{ConnectError, PlanOfError, ServiceDescriptor};

/// Asks the server at `address` for its functions: where each runs, and the plan that the server's own hints
/// select on this fabric. Connects for it with `config`, and blocks for at most its two time limits.
///
/// # Errors
/// The server cannot be reached, or is not a typed server of this version.
pub fn describe<F: Fabric>(
    fabric: &F,
    address: &Address,
    config: ClientConfig,
) -> Result<ServerDescription, ConnectError> {
    let mut client = dunlin_rpc::Client::connect(fabric, address, config)?;
    let answer = client.call(INTRODUCTION, &[]).map_err(ConnectError::Introduction)?;
    let introduction = Introduction::parse(&answer).map_err(ConnectError::NotThrift)?;
    drop(answer);
    Ok(introduction.describe(client.server_connections()))
}

/// The part of a typed client that says how its calls run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The route of each function; empty until a lazy client has connected.
    pub(crate) routes: Vec<Route>,
    /// The selection of each function; empty if all functions use TCP.
    pub(crate) selections: Vec<Selection>,
    /// The server's description of each function that it has.
    pub(crate) on_server: Vec<Option<OnServer>>,
}

impl Known {
    /// Returns the facts of a client whose functions all use TCP.
    pub(crate) fn by_tcp(service: &ServiceDescriptor) -> Self {
        Known { routes: vec![Route::Tcp; service.functions.len()], ..Known::default() }
    }

    /// Adds what the server's introduction says.
    pub(crate) fn learn(
        &mut self,
        service: &ServiceDescriptor,
        routes: Vec<Route>,
        introduction: &Introduction,
    ) {
        self.routes = routes;
        let names = service.functions.iter().map(|function| &*function.name);
        self.on_server = names.map(|name| introduction.on_server(name).cloned()).collect();
    }

    /// Returns the name of the function with this id.
    fn name(&self, service: &ServiceDescriptor, id: u16) -> String {
        let is_it = |route: &Route| matches!(route, Route::Engine { id: of, .. } if *of == id);
        match self.routes.iter().position(is_it) {
            Some(number) => service.functions[number].name.to_string(),
            None => format!("function {id}"),
        }
    }

    /// Returns how the calls of a function run. `engine` returns what the engine knows of a function id.
    pub(crate) fn plan_of(
        &self,
        service: &'static ServiceDescriptor,
        function: &str,
        engine: impl FnOnce(u16, &dyn Fn(u16) -> String) -> Option<RunningPlan>,
    ) -> Result<RunningPlan, PlanOfError> {
        let Some(number) = service.function(function) else {
            let names = service.functions.iter().map(|function| &*function.name);
            let nearest = nearest(function, names).map(str::to_owned);
            return Err(PlanOfError::NoSuchFunction {
                service: service.name,
                function: function.to_owned(),
                nearest,
            });
        };
        let mut running = match self.routes.get(number) {
            None => return Err(PlanOfError::NotConnected),
            Some(Route::Unknown) => {
                let function = function.to_owned();
                return Err(PlanOfError::NotOnServer { service: service.name, function });
            }
            Some(Route::Engine { id, .. }) => {
                engine(*id, &|id| self.name(service, id)).ok_or(PlanOfError::NotConnected)?
            }
            Some(Route::Tcp) => RunningPlan {
                function: function.to_owned(),
                transport: Scheme::Tcp.as_str(),
                plan: None,
                client: None,
                server: None,
                runs: RunsIn::Unknown,
                reasons: Vec::new(),
            },
        };
        if let (Some(Some(on_server)), true) = (self.on_server.get(number), running.plan.is_some()) {
            running.runs = on_server.runs;
            running.reasons.push(format!("place: {}", on_server.why));
        }
        let selection = self.selections.get(number);
        running.reasons.extend(selection.iter().flat_map(|of| &of.reasons).map(ToString::to_string));
        Ok(running)
    }

    /// Fills in the names of functions, and leaves out entries of none of them: that of the introduction.
    pub(crate) fn named(&self, service: &ServiceDescriptor, mut tuning: Vec<Tuning>) -> Vec<Tuning> {
        for tuning in &mut tuning {
            tuning.functions.retain_mut(|function| {
                let same =
                    |route: &Route| matches!(route, Route::Engine { id, .. } if id % 32 == function.function);
                let numbers = self.routes.iter().enumerate().filter(|(_, route)| same(route));
                function.names =
                    numbers.map(|(number, _)| service.functions[number].name.to_string()).collect();
                !function.names.is_empty()
            });
        }
        tuning
    }
}

/// Adds the reason for the transport to the answer of `plan_of`, for clients that choose it.
#[must_use]
pub fn over(transport: &ChosenTransport, mut running: RunningPlan) -> RunningPlan {
    if running.transport == transport.name {
        running.reasons.insert(0, format!("transport: {}", transport.why));
    }
    running
}
