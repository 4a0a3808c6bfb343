//! Generates hints as constants.

use dunlin_idl::hints::{FunctionHints, Hints, Level, Origin, Value};
use std::fmt::Write as _;

/// Returns a function's hints as an expression.
pub(crate) fn function(hints: &FunctionHints) -> String {
    let origins: String = hints.origins.iter().map(origin).collect();
    format!(
        "hints::FunctionHints {{
            name: ::std::borrow::Cow::Borrowed({:?}),
            oneway: {},
            client: {},
            server: {},
            origins: ::std::borrow::Cow::Borrowed(&[{origins}]),
        }}",
        hints.name,
        hints.oneway,
        side(&hints.client),
        side(&hints.server)
    )
}

fn side(hints: &Hints) -> String {
    hints.values().fold("hints::Hints::NONE".to_owned(), |mut text, each| {
        let _ = write!(text, ".{}({})", each.key().name(), value(&each));
        text
    })
}

/// Relies on `Debug`, which prints the variants' names and fields.
fn value(value: &Value) -> String {
    match value {
        Value::PerfGoal(goal) => format!("hints::PerfGoal::{goal:?}"),
        Value::Concurrency(clients) => clients.to_string(),
        Value::PayloadSize(bytes) => bytes.to_string(),
        Value::Polling(mode) => format!("hints::CompletionMode::{mode:?}"),
        Value::Numa(numa) => format!("hints::Numa::{numa:?}"),
        Value::Transport(transport) => format!("hints::Transport::{transport:?}"),
        Value::Priority(priority) => format!("hints::Priority::{priority:?}"),
        Value::ProcessTime(time) => format!("hints::ProcessTime::{time:?}"),
        Value::Sharing(sharing) => format!("hints::Sharing::{sharing:?}"),
        Value::Protocol(name) => format!("{name:?}"),
    }
}

fn origin(origin: &Origin) -> String {
    let level = match origin.level {
        Level::Function => "hints::Level::Function".to_owned(),
        Level::Service => "hints::Level::Service".to_owned(),
        Level::Extended(steps) => format!("hints::Level::Extended({steps})"),
    };
    let Origin { side, key, place, .. } = origin;
    format!(
        "hints::Origin::new(hints::Side::{side:?}, hints::Key::{key:?}, {level}, hints::Place::new({:?}, {}, {})),",
        place.file, place.line, place.column
    )
}
