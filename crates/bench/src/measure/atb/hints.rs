//! Contestants: their hints, written and parsed as IDL, and the plans that the hints select.

use dunlin_fabric::Capabilities;
use dunlin_hints::{CompletionMode, Environment, FunctionHints, Plan, select};
use dunlin_idl::{Memory, Options, load_with};
use dunlin_rpc::{PROTOCOLS, Protocol};

use crate::measure::MeasureError;

/// A contestant.
#[derive(Clone, Debug)]
pub(in crate::measure) struct Contestant {
    /// `hinted`, or the name of a protocol.
    pub(in crate::measure) name: String,
    /// Whether the contestant uses a single protocol, requested by name, for all functions.
    pub(in crate::measure) single: bool,
    pub(in crate::measure) hints: Vec<FunctionHints>,
    /// The plan of each function, in the order of the IDL.
    pub(in crate::measure) plans: Vec<Plan>,
}

/// The environment of a run: the inputs of plan selection other than hints.
#[derive(Clone, Copy, Debug)]
pub(in crate::measure) struct Surroundings<'a> {
    pub(in crate::measure) capabilities: &'a Capabilities,
    pub(in crate::measure) cores: u32,
    pub(in crate::measure) clients: u32,
}

impl Contestant {
    /// Creates the contestant with the hints of `idl`. If the hints exclude each other or select no plan on
    /// this fabric, returns the reason in one line.
    pub(in crate::measure) fn new(
        name: &str,
        single: bool,
        idl: &str,
        surroundings: Surroundings<'_>,
    ) -> Result<Self, String> {
        let file = "bench.thrift";
        let document =
            load_with(file, &Options::default(), &Memory::new().with(file, idl)).map_err(|diagnostics| {
                diagnostics.iter().map(|one| one.message.to_string()).collect::<Vec<_>>().join("; ")
            })?;
        let service = document.own_services().next().ok_or("there is no service")?;
        let hints: Vec<FunctionHints> =
            service.all_functions().map(|function| function.hints.clone()).collect();
        let environment = Environment {
            clients: Some(surroundings.clients),
            ..Environment::new(surroundings.capabilities, surroundings.cores)
        };
        let mut plans = Vec::new();
        for hints in &hints {
            plans.extend(select(hints, &environment).map_err(|error| error.to_string())?.plan);
        }
        Ok(Self { name: name.to_owned(), single, hints, plans })
    }

    /// Creates the hinted contestant, as [`Contestant::new`] does. Its hints must select a plan.
    pub(in crate::measure) fn hinted(
        name: &str,
        idl: &str,
        surroundings: Surroundings<'_>,
    ) -> Result<Self, MeasureError> {
        Self::new(name, false, idl, surroundings)
            .map_err(|error| MeasureError::BadArgument(format!("the hints select no plan: {error}")))
    }

    /// Describes the distinct plans.
    pub(in crate::measure) fn plan(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        for plan in &self.plans {
            let text = describe(plan);
            if !words.contains(&text) {
                words.push(text);
            }
        }
        words.join(" | ")
    }
}

/// Describes a plan: halves, completion modes of client and server, and transfer of large payloads.
fn describe(plan: &Plan) -> String {
    let halves = if plan.request.name() == plan.response.name() {
        plan.request.name().to_owned()
    } else {
        format!("{} {}", plan.request.name(), plan.response.name())
    };
    let waits = if plan.client == plan.server {
        plan.client.to_string()
    } else {
        format!("{}/{}", plan.client, plan.server)
    };
    format!("{halves}, {waits}, {}>{}", plan.large.name(), plan.rendezvous_above)
}

/// The completion mode of single-protocol contestants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// The mode that the other hints select.
    Hinted,
    /// This mode. A protocol that does not support it has no such contestant.
    As(CompletionMode),
}

impl Polling {
    /// Returns the additional hint.
    fn hint(self) -> String {
        match self {
            Self::Hinted => String::new(),
            Self::As(mode) => format!(", polling = {mode}"),
        }
    }
}

/// The competing single protocols and their completion modes.
#[derive(Clone, Debug)]
pub struct Singles {
    /// Names of the protocols; empty for all.
    pub protocols: Vec<String>,
    /// Completion modes; each gives a contestant.
    pub pollings: Vec<Polling>,
}

impl Default for Singles {
    fn default() -> Self {
        Self { protocols: Vec::new(), pollings: vec![Polling::Hinted] }
    }
}

impl Singles {
    /// Returns the protocols, in the order of the table.
    pub(in crate::measure) fn chosen(&self) -> Result<Vec<&'static Protocol>, MeasureError> {
        if self.protocols.is_empty() {
            return Ok(PROTOCOLS.iter().collect());
        }
        self.protocols.iter().map(|name| crate::measure::protocol_by_name(name)).collect()
    }

    /// Returns a contestant for each protocol and completion mode. `idl` produces the IDL from additional
    /// service hints. Contestants without a plan are left out, with a note; those equal to an earlier one
    /// are left out silently.
    pub(in crate::measure) fn contestants(
        &self,
        surroundings: Surroundings<'_>,
        notes: &mut Vec<String>,
        idl: impl Fn(&str) -> Result<String, MeasureError>,
    ) -> Result<Vec<Contestant>, MeasureError> {
        let mut all: Vec<Contestant> = Vec::new();
        for protocol in self.chosen()? {
            for polling in &self.pollings {
                let idl = idl(&format!(", protocol = {}{}", identifier(protocol.name), polling.hint()))?;
                match Contestant::new(protocol.name, true, &idl, surroundings) {
                    Ok(one) if all.iter().any(|o| o.name == one.name && o.plans == one.plans) => {}
                    Ok(one) => all.push(one),
                    Err(error) => {
                        let note = format!("{} does not compete: {error}", protocol.name);
                        if !notes.contains(&note) {
                            notes.push(note);
                        }
                    }
                }
            }
        }
        Ok(all)
    }
}

/// Converts a protocol's name to an IDL identifier.
fn identifier(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

/// Returns an IDL with other hints: the service's groups, and the hint group of each given function. The IDL
/// may have its hints in groups and brackets or as annotations.
pub(in crate::measure) fn rewritten(
    idl: &str,
    service: &str,
    functions: &[(&str, String)],
) -> Result<String, MeasureError> {
    let missing =
        |what: &str| MeasureError::BadArgument(format!("the benchmark's IDL has no place for {what}"));
    let mut text = of_service(idl, service).ok_or_else(|| missing("hints of the service"))?;
    for (name, group) in functions {
        let place = |text: &str| {
            let call = text.find(&format!(" {name}("))?;
            let end = call + text[call..].find("/**").unwrap_or(text.len() - call);
            match text[call..end].find('[') {
                Some(open) => Some(call + open..=call + open + text[call + open..].find(']')?),
                None => annotations(text, call, end),
            }
        };
        let place = place(&text).ok_or_else(|| missing(name))?;
        text.replace_range(place, &if group.is_empty() { String::new() } else { format!("[ {group} ]") });
    }
    Ok(text)
}

/// Returns the place of the first annotations between two places.
fn annotations(text: &str, start: usize, end: usize) -> Option<std::ops::RangeInclusive<usize>> {
    let opens = text[start..end].match_indices('(').map(|(at, _)| start + at);
    opens
        .filter_map(|open| Some(open..=open + text[open..end].find(')')?))
        .find(|place| text[place.clone()].contains("= \""))
}

/// Replaces the hints of an IDL's service.
fn of_service(idl: &str, service: &str) -> Option<String> {
    if let Some(start) = idl.find("\n  hint:") {
        let end = start + 1 + idl[start + 1..].find('\n')?;
        return Some(format!("{}\n  {service}{}", &idl[..start], &idl[end..]));
    }
    let last = annotations(idl, idl.rfind('}')?, idl.len())?;
    let begin = idl.find("\nservice ")?;
    let open = begin + idl[begin..].find('{')? + 1;
    Some(format!("{}\n  {service}{}{}", &idl[..open], &idl[open..*last.start()], &idl[last.end() + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Annotations are replaced as brackets are.
    #[test]
    fn hints_of_both_spellings_are_replaced() {
        let around =
            Surroundings { capabilities: &dunlin_fabric::Capabilities::EVERYTHING, cores: 16, clients: 1 };
        let of = |functions: &[(&str, String)]| {
            let idl = rewritten(dunlin_hatkv::IDL, "hint: concurrency = 7;", functions).expect("places");
            Contestant::new("one", false, &idl, around).expect("legal").hints
        };
        let functions = ["get", "put", "multiget", "multiput"];
        let none = of(&functions.map(|name| (name, String::new())));
        assert_eq!(none.len(), 4);
        for hints in none {
            assert_eq!((hints.client.concurrency, hints.client.perf_goal), (Some(7), None));
            assert_eq!((hints.client.payload_size, hints.server.payload_size), (None, None));
        }
        let own = of(&[("put", "hint: payload_size = 9B;".to_owned())]);
        let sizes: Vec<_> = own.iter().map(|hints| hints.client.payload_size).collect();
        assert_eq!(sizes, [Some(24), Some(9), Some(240), Some(10 * 1024)]);
    }

    const FUNCTIONS: [&str; 3] = ["echo", "quick", "bulk"];

    fn contestant(service: &str, group: &str) -> Contestant {
        let functions = FUNCTIONS.map(|name| (name, group.to_owned()));
        let idl = rewritten(super::super::service::IDL, service, &functions).expect("places");
        let surroundings =
            Surroundings { capabilities: &dunlin_fabric::Capabilities::EVERYTHING, cores: 16, clients: 1 };
        Contestant::new("one", false, &idl, surroundings).expect("legal")
    }

    #[test]
    fn hints_are_replaced_and_mean_what_they_say() {
        let one = contestant("hint: perf_goal = throughput, concurrency = 7; c_hint: payload_size = 9B;", "");
        assert_eq!(one.hints.len(), 3);
        for hints in &one.hints {
            assert_eq!(hints.client.concurrency, Some(7));
            assert_eq!((hints.client.payload_size, hints.server.payload_size), (Some(9), None));
        }
        assert_eq!(one.plans.len(), 3);
        assert!(!one.plan().contains('|'), "one plan: {}", one.plan());
        let other = contestant("hint: perf_goal = throughput;", "hint: perf_goal = latency;");
        assert_ne!(one.plan(), other.plan());
    }

    #[test]
    fn every_protocol_has_a_contestant_of_its_plan() {
        let surroundings =
            Surroundings { capabilities: &dunlin_fabric::Capabilities::EVERYTHING, cores: 16, clients: 1 };
        let mut notes = Vec::new();
        let pollings =
            vec![Polling::Hinted, Polling::As(CompletionMode::Busy), Polling::As(CompletionMode::Event)];
        let singles = Singles { protocols: Vec::new(), pollings };
        let all = singles
            .contestants(surroundings, &mut notes, |more| {
                let service = format!("hint: perf_goal = latency{more};");
                rewritten(super::super::service::IDL, &service, &FUNCTIONS.map(|name| (name, String::new())))
            })
            .expect("valid");
        for protocol in PROTOCOLS {
            assert!(all.iter().any(|one| one.name == protocol.name), "{} of {notes:?}", protocol.name);
        }
        let of = |name: &str| all.iter().filter(|one| one.name == name).count();
        assert_eq!((of("Direct-WriteIMM"), of("Server-reply")), (3, 1), "{notes:?}");
        assert!(singles.chosen().is_ok());
        let unknown = Singles { protocols: vec!["pigeon".to_owned()], ..Singles::default() };
        assert!(unknown.chosen().is_err_and(|error| error.to_string().contains("Server-reply")));
    }
}
