//! The two sides of a call: where a function runs, and the differences between the file and a running server.

use dunlin::ServerConfig;
use dunlin::plan::{Plan, RunsIn};
use dunlin::thrift::{FunctionOnServer, PlanOnServer, ServerDescription};
use dunlin_hints::{FunctionHints, RunsBy, Selection, Sharing, runs};

/// Where a function runs, and the reason.
#[derive(Debug)]
pub(super) struct Runs {
    /// In one word, for the table.
    pub(super) word: &'static str,
    /// In one line.
    pub(super) text: String,
}

impl Runs {
    /// Returns where the hints place a function on a server with default settings.
    pub(super) fn hinted(function: &FunctionHints) -> Self {
        let RunsBy { pool, text, place } = runs(function);
        let threads = ServerConfig::default().pool_threads;
        let runs = if pool { RunsIn::Pool { threads } } else { RunsIn::Worker };
        let place = place.map_or(String::new(), |place| format!(" ({place})"));
        Runs { word: word(runs), text: format!("runs {runs}: {text}{place}") }
    }

    /// Returns where a server says that it runs a function.
    fn told(function: &FunctionOnServer) -> Self {
        let FunctionOnServer { runs, why, .. } = function;
        Runs { word: word(*runs), text: format!("runs {runs}: {why} (the server says so)") }
    }

    /// Returns where a function runs: as its server says, if one was asked and has it, else as its hints say.
    pub(super) fn of(function: &FunctionHints, server: Option<&ServerDescription>) -> Self {
        match server.and_then(|server| named(server, &function.name)) {
            Some(told) => Runs::told(told),
            None => Runs::hinted(function),
        }
    }
}

const fn word(runs: RunsIn) -> &'static str {
    match runs {
        RunsIn::Unknown => "unknown",
        RunsIn::Worker => "worker",
        RunsIn::Pool { .. } => "pool",
        RunsIn::Tasks { .. } => "tasks",
    }
}

fn named<'a>(server: &'a ServerDescription, name: &str) -> Option<&'a FunctionOnServer> {
    server.functions.iter().find(|function| function.name == name)
}

/// Describes a plan in a few words.
fn words(plan: &Plan) -> String {
    let halves = match plan.protocol() {
        Some(protocol) => protocol.name.to_owned(),
        None => format!("{} and {}", plan.request.name(), plan.response.name()),
    };
    format!(
        "{halves}, client {}, server {}, {} above {} B",
        plan.client,
        plan.server,
        plan.large.name(),
        plan.rendezvous_above
    )
}

/// Returns the differences between the plan of a function by the file and by the server's own hints.
pub(super) fn difference(
    function: &FunctionHints,
    selection: &Selection,
    server: &ServerDescription,
) -> Option<String> {
    let Some(told) = named(server, &function.name) else {
        return Some("the server has no such function: it was built from another IDL".to_owned());
    };
    // How the client's threads share its connections is not the server's to say.
    let plan = selection.plan.map(|plan| Sharing::Dedicated.on(plan));
    let ours = selection.plan.as_ref().map_or_else(|| "stock Thrift over TCP".to_owned(), words);
    let theirs = match &told.plan {
        PlanOnServer::Plan(on_server) if Some(*on_server) == plan => return None,
        PlanOnServer::Tcp if selection.plan.is_none() => return None,
        PlanOnServer::Plan(plan) => words(plan),
        PlanOnServer::Tcp => "stock Thrift over TCP".to_owned(),
        PlanOnServer::None(why) => format!("no plan ({why})"),
    };
    Some(format!(
        "the sides differ: by this file {ours}; by the server's hints {theirs}. The client's plan holds; give both sides the same IDL, or the same number of clients and cores"
    ))
}

/// Returns the server's functions that the file lacks, in one line.
pub(super) fn unknown_here<'a>(
    server: &'a ServerDescription,
    mut known: impl FnMut(&str) -> bool,
) -> Option<String> {
    let others: Vec<&'a str> =
        server.functions.iter().map(|function| &*function.name).filter(|name| !known(name)).collect();
    let plural = if others.len() == 1 { "" } else { "s" };
    (!others.is_empty()).then(|| format!("the server also has the function{plural} {}", others.join(", ")))
}
