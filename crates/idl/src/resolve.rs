//! Resolution of hints: parses their words, selects the effective hint of each function, side and key, and
//! reports contradictions.

use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::document::{FileId, Function, Service, ServiceId};
use crate::load::{Lenience, Parsed};
use crate::raw_hint::RawHint;
use crate::source::{Source, Span};
use crate::walk::{Head, Signature};
use dunlin_hints::{
    Capabilities, Environment, FunctionHints, Hints, Key, Level, Origin, PerfGoal, Side, Transport, Value,
    select,
};
use std::borrow::Cow;
use std::collections::HashMap;

/// The maximum length of a chain of services that extend each other.
pub const MAX_EXTENDS: usize = 64;
/// The maximum number of functions of all services together. Inherited functions count for each service.
pub const MAX_FUNCTIONS: usize = 100_000;

/// A parsed hint.
#[derive(Clone, Debug)]
struct Given<'a> {
    side: Option<Side>,
    value: Value,
    source: &'a Source,
    key: Span,
}

/// The parsed hints of a service and of its functions, in order.
struct Layers<'a> {
    service: Vec<Given<'a>>,
    functions: Vec<Vec<Given<'a>>>,
}

/// Builds the services with their resolved hints.
pub(crate) fn services(
    parsed: &[Parsed],
    heads: Vec<(FileId, usize, Option<Head>)>,
    lenience: Lenience,
    diagnostics: &mut Diagnostics,
) -> Vec<Service> {
    let layers: Vec<Layers<'_>> = heads
        .iter()
        .map(|(file, item, _)| {
            let file = &parsed[file.0];
            let mut layers = Layers { service: Vec::new(), functions: Vec::new() };
            if let Some(outline) = &file.outline.items[*item].service {
                layers.service = understand(&file.source, &outline.hints, lenience, diagnostics);
                layers.functions = outline
                    .functions
                    .iter()
                    .map(|function| understand(&file.source, &function.hints, lenience, diagnostics))
                    .collect();
            }
            layers
        })
        .collect();
    let chains: Vec<Vec<ServiceId>> =
        (0..heads.len()).map(|index| chain(parsed, &heads, index, diagnostics)).collect();
    let mut services = Vec::new();
    let mut count = 0;
    for (index, (file, item, head)) in heads.iter().enumerate() {
        // The parser has already reported this service.
        let Some(head) = head else { continue };
        let chain = &chains[index];
        let declaring = chain.iter().filter_map(|service| heads[service.0].2.as_ref());
        count += declaring.map(|head| head.functions.len()).sum::<usize>();
        if count > MAX_FUNCTIONS {
            let source = &parsed[file.0].source;
            let span = source.span(&head.place, head.name.len());
            let message = format!("with this service there are more than {MAX_FUNCTIONS} functions");
            diagnostics.push(Diagnostic::error(source, &span, message));
            break;
        }
        let below = Below::of(chain, &layers);
        let mut inherited = Vec::new();
        let mut functions = Vec::new();
        for declarer in chain.iter().rev() {
            let Some(declaring) = &heads[declarer.0].2 else { continue };
            let list = if declarer.0 == index { &mut functions } else { &mut inherited };
            for (number, signature) in declaring.functions.iter().enumerate() {
                let own = layers[declarer.0].functions.get(number).map_or(&[][..], Vec::as_slice);
                list.push(function(signature, *declarer, own, &below, diagnostics));
            }
        }
        hidden(&parsed[file.0], *item, head, &inherited, diagnostics);
        disagreement(&layers, inherited.iter().chain(&functions), diagnostics);
        services.push(Service {
            name: head.name.clone(),
            file: *file,
            place: head.place.clone(),
            extends: chain.get(1).copied(),
            documentation: head.documentation.clone(),
            functions,
            inherited,
        });
    }
    services
}

/// The defaults for a service's functions: for each side and key, the hint of the nearest level.
struct Below<'a>([[Option<(Level, &'a Given<'a>)>; Key::ALL.len()]; 2]);

impl<'a> Below<'a> {
    fn of(chain: &[ServiceId], layers: &'a [Layers<'a>]) -> Self {
        Below(Side::BOTH.map(|side| {
            Key::ALL.map(|key| {
                chain.iter().enumerate().find_map(|(steps, service)| {
                    let level = match steps {
                        0 => Level::Service,
                        steps => Level::Extended(steps as u16),
                    };
                    decide(&layers[service.0].service, side, key).map(|given| (level, given))
                })
            })
        }))
    }
}

/// Returns the hint of one level that applies to a side. A hint for the side takes precedence over one for
/// both.
fn decide<'a>(given: &'a [Given<'a>], side: Side, key: Key) -> Option<&'a Given<'a>> {
    let of = |wanted| given.iter().find(move |given| given.value.key() == key && given.side == wanted);
    of(Some(side)).or_else(|| of(None))
}

/// Returns a service and those that it extends, nearest first.
fn chain(
    parsed: &[Parsed],
    heads: &[(FileId, usize, Option<Head>)],
    index: usize,
    diagnostics: &mut Diagnostics,
) -> Vec<ServiceId> {
    let mut chain = vec![ServiceId(index)];
    let mut at = index;
    while let Some((next, span)) = heads[at].2.as_ref().and_then(|head| head.extends.clone()) {
        if chain.contains(&next) {
            if next.0 == index {
                let source = &parsed[heads[at].0.0].source;
                let message = "services extend each other in a circle";
                diagnostics.push(Diagnostic::error(source, &span, message));
            }
            break;
        }
        if chain.len() > MAX_EXTENDS {
            let source = &parsed[heads[index].0.0].source;
            if let Some(span) =
                heads[index].2.as_ref().and_then(|head| head.extends.as_ref()).map(|(_, span)| span)
            {
                let message = format!("more than {MAX_EXTENDS} services are extended, one over the other");
                diagnostics.push(Diagnostic::error(source, span, message));
            }
            break;
        }
        chain.push(next);
        at = next.0;
    }
    chain
}

/// Reports functions that have the name of an inherited one.
fn hidden(file: &Parsed, item: usize, head: &Head, inherited: &[Function], diagnostics: &mut Diagnostics) {
    let Some(outline) = &file.outline.items[item].service else { return };
    let inherited: HashMap<&str, &Function> =
        inherited.iter().map(|function| (function.name.as_str(), function)).collect();
    for (signature, outline) in head.functions.iter().zip(&outline.functions) {
        if let Some(other) = inherited.get(signature.name.as_str()) {
            let span = &file.tokens.tokens[outline.name].span;
            let message = format!("'{}' is inherited already", signature.name);
            diagnostics.push(
                Diagnostic::error(&file.source, span, message)
                    .related(other.place.clone(), "it is declared here"),
            );
        }
    }
}

/// Reports functions of a service that hint different values of `sharing`: the functions of a client use the same
/// connections.
fn disagreement<'a>(
    layers: &[Layers<'_>],
    functions: impl Iterator<Item = &'a Function>,
    diagnostics: &mut Diagnostics,
) {
    let mut hinted = functions.filter_map(|function| {
        let client = &function.hints.client;
        let origin = function.hints.origin(Side::Client, Key::Sharing)?;
        (client.transport != Some(Transport::Tcp)).then_some((function, client.sharing?, origin))
    });
    let Some(first) = hinted.next() else { return };
    let Some(second) = hinted.find(|(_, sharing, _)| *sharing != first.1) else { return };
    // The values of two functions differ only if at least one of them has a hint of its own.
    for ((function, _, origin), (other, sharing, place)) in [(second, first), (first, second)] {
        let mut own = layers[function.declared_in.0].functions.iter().flatten();
        let own = own.find(|given| {
            given.value.key() == Key::Sharing && given.source.place(given.key.start) == origin.place
        });
        if let Some(given) = own {
            let message = format!(
                "{} asks for sharing = {} and {} for {}: the functions of a client use the same connections",
                function.name,
                given.value,
                other.name,
                Value::Sharing(sharing)
            );
            let diagnostic = Diagnostic::error(given.source, &given.key, message)
                .related(place.place.clone(), format!("sharing = {}", Value::Sharing(sharing)))
                .help("give the hint to the service, or the same to all functions");
            diagnostics.push(diagnostic);
            return;
        }
    }
}

/// Parses the hints of one level.
fn understand<'a>(
    source: &'a Source,
    raw: &[RawHint],
    lenience: Lenience,
    diagnostics: &mut Diagnostics,
) -> Vec<Given<'a>> {
    let severity = match lenience {
        Lenience::Strict => Severity::Error,
        Lenience::Lenient => Severity::Warning,
    };
    let mut all: Vec<Given<'a>> = Vec::new();
    for hint in raw {
        let name_span = hint.key.start + hint.name..hint.key.end;
        let name = source.slice(&name_span);
        let Some(key) = Key::by_name(name) else {
            let message = format!("unknown hint '{}'", name.chars().take(40).collect::<String>());
            let names: Vec<&str> = Key::ALL.into_iter().map(Key::name).collect();
            let mut diagnostic = Diagnostic::new(severity, source, &name_span, message)
                .help(format!("hints are {}", names.join(", ")));
            if let Some(nearest) = Key::nearest_name(name) {
                diagnostic = diagnostic.nearest(Some(nearest));
            }
            diagnostics.push(diagnostic);
            continue;
        };
        let value = match Value::parse(key, &hint.word) {
            Ok(value) => value,
            Err(error) => {
                let diagnostic = Diagnostic::new(severity, source, &hint.value, error.to_string())
                    .nearest(error.nearest());
                diagnostics.push(diagnostic);
                continue;
            }
        };
        let given = Given { side: hint.side, value, source, key: hint.key.clone() };
        let same = |other: &&Given<'_>| other.side == given.side && other.value.key() == key;
        if let Some(first) = all.iter().find(same) {
            let message = format!("{key} is said twice on the same level");
            diagnostics.push(
                Diagnostic::error(source, &given.key, message)
                    .related(source.place(first.key.start), "it is here first"),
            );
            continue;
        }
        all.push(given);
    }
    all
}

fn function(
    signature: &Signature,
    declared_in: ServiceId,
    own: &[Given<'_>],
    below: &Below<'_>,
    diagnostics: &mut Diagnostics,
) -> Function {
    let mut sets = [Hints::NONE; 2];
    let mut origins = Vec::new();
    let mut deciding = Vec::new();
    for ((side, hints), below) in Side::BOTH.into_iter().zip(&mut sets).zip(&below.0) {
        for (key, below) in Key::ALL.into_iter().zip(below) {
            let own = decide(own, side, key).map(|given| (Level::Function, given));
            let Some((level, given)) = own.or(*below) else { continue };
            hints.set(given.value);
            origins.push(Origin { side, key, level, place: given.source.place(given.key.start) });
            deciding.push(given);
        }
    }
    let [client, server] = sets;
    let hints = FunctionHints {
        name: Cow::Owned(signature.name.clone()),
        oneway: signature.oneway,
        client,
        server,
        origins: Cow::Owned(origins),
    };
    contradictions(&hints, &deciding, diagnostics);
    Function {
        name: signature.name.clone(),
        place: signature.place.clone(),
        declared_in,
        oneway: signature.oneway,
        arguments: signature.arguments.clone(),
        result: signature.result.clone(),
        throws: signature.throws.clone(),
        documentation: signature.documentation.clone(),
        hints,
    }
}

/// Reports hints that exclude each other on every fabric as errors, and suspicious combinations as warnings,
/// with both locations.
fn contradictions(hints: &FunctionHints, deciding: &[&Given<'_>], diagnostics: &mut Diagnostics) {
    let given = |side: Side, key: Key| {
        let index = hints.origins.iter().position(|origin| origin.side == side && origin.key == key)?;
        Some((deciding[index], &hints.origins[index]))
    };
    let environment = Environment::new(&Capabilities::EVERYTHING, u32::MAX);
    if let Err(error) = select(hints, &environment) {
        let (first, second) = error.keys();
        let side = error.side();
        let place_of = |side: Side, key| given(side, key).or_else(|| given(side.other(), key));
        if let Some((place, _)) = place_of(side, first) {
            let mut diagnostic = Diagnostic::error(place.source, &place.key, error.without_places());
            let other = if first == second { side.other() } else { side };
            if let Some((other, origin)) = place_of(other, second)
                && other.key != place.key
            {
                diagnostic = diagnostic.related(origin.place.clone(), format!("{second} = {}", other.value));
            }
            diagnostics.push(diagnostic);
        }
        return;
    }
    if hints.server.sharing != hints.client.sharing
        && let Some((given, _)) = given(Side::Server, Key::Sharing)
    {
        let message = "the server's sharing has no effect: the connections are the client's";
        diagnostics.push(Diagnostic::warning(given.source, &given.key, message));
    }
    for side in Side::BOTH {
        let own = hints.side(side);
        let mut odd = |first: Key, second: Key, message: &str| {
            let (Some((one, at)), Some((other, origin))) = (given(side, first), given(side, second)) else {
                return;
            };
            // A hint on a nearer level overrides intentionally.
            if at.level == origin.level {
                let what = format!("{second} = {}", other.value);
                diagnostics.push(
                    Diagnostic::warning(one.source, &one.key, message).related(origin.place.clone(), what),
                );
            }
        };
        if own.transport == Some(Transport::Tcp) {
            if own.perf_goal == Some(PerfGoal::Latency) {
                odd(Key::PerfGoal, Key::Transport, "perf_goal = latency is out of reach of transport = tcp");
            }
            odd(Key::Polling, Key::Transport, "polling means nothing to transport = tcp");
            odd(Key::Sharing, Key::Transport, "sharing means nothing to transport = tcp");
        }
        if own.perf_goal == Some(PerfGoal::Latency)
            && own.polling == Some(dunlin_hints::CompletionMode::Event)
        {
            odd(Key::Polling, Key::PerfGoal, "polling = event costs a wake-up, against perf_goal = latency");
        }
    }
}
