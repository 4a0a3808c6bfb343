//! Name resolution: the names of all files and their meaning in a file.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::document::{DefinitionId, FileId, ServiceId};
use crate::load::Parsed;
use crate::outline::ItemKind;
use crate::source::{Source, Span};
use crate::value::Value;
use dunlin_hints::nearest;
use pilota_thrift_parser as tree;
use std::collections::{HashMap, HashSet};

/// The names defined in a file.
#[derive(Debug, Default)]
pub(crate) struct Names {
    types: HashMap<String, (DefinitionId, ItemKind)>,
    services: HashMap<String, ServiceId>,
    /// The values of each enum.
    values: HashMap<String, HashSet<String>>,
    /// The prefixes of included files.
    includes: HashMap<String, FileId>,
}

/// The maximum number of candidates for a suggestion. Each error compares its name with all candidates.
const MOST_CANDIDATES: usize = 2000;

/// The names of all files.
#[derive(Debug)]
pub(crate) struct Scope {
    files: Vec<Names>,
}

impl Scope {
    /// Collects the names and reports duplicates.
    pub(crate) fn new(files: &[Parsed], diagnostics: &mut Diagnostics) -> Scope {
        let mut scope = Scope { files: Vec::new() };
        let mut services = 0;
        for (number, file) in files.iter().enumerate() {
            let mut names = Names::default();
            for tree in file.trees.iter().flatten() {
                if let tree::Item::Enum(tree) = tree {
                    let values = tree.values.iter().map(|value| value.name.to_string());
                    names.values.entry(tree.name.to_string()).or_default().extend(values);
                }
            }
            let mut seen: HashMap<&str, Span> = HashMap::new();
            let mut definitions = 0;
            for item in &file.outline.items {
                let name = file.name_of(item);
                let definition = is_definition(item.kind);
                if definition {
                    let id = DefinitionId { file: FileId(number), index: definitions };
                    definitions += 1;
                    if let Some(span) = &name {
                        names.types.entry(file.source.slice(span).to_owned()).or_insert((id, item.kind));
                    }
                }
                if item.kind == ItemKind::Service {
                    let id = ServiceId(services);
                    services += 1;
                    if let Some(span) = &name {
                        names.services.entry(file.source.slice(span).to_owned()).or_insert(id);
                    }
                }
                if let Some(span) = name
                    && (definition || item.kind == ItemKind::Service)
                {
                    let text = file.source.slice(&span);
                    if let Some(first) = seen.get(text) {
                        diagnostics.push(twice(&file.source, &span, first, text));
                    } else {
                        seen.insert(text, span);
                    }
                }
            }
            for include in &file.includes {
                let Some(id) = include.file else { continue };
                let prefix = files[id.0].prefix();
                if names.includes.insert(prefix.to_owned(), id).is_some_and(|other| other != id) {
                    let message = format!("two included files are called '{prefix}'");
                    let help = "names behind this prefix would mean either: rename one of the files";
                    diagnostics.push(Diagnostic::error(&file.source, &include.span, message).help(help));
                }
            }
            scope.files.push(names);
        }
        scope
    }

    /// Resolves the prefix of a dotted name. Returns the names of the file it refers to, and the last part.
    fn find<'a>(&'a self, file: FileId, name: &'a str) -> Result<(&'a Names, &'a str), String> {
        match name.rsplit_once('.') {
            None => Ok((&self.files[file.0], name)),
            Some((prefix, name)) => match self.files[file.0].includes.get(prefix) {
                Some(included) => Ok((&self.files[included.0], name)),
                None => Err(format!("no included file is called '{prefix}'")),
            },
        }
    }

    /// Resolves the name of a type. The error suggests the nearest name if `suggest` is set.
    pub(crate) fn type_of(
        &self,
        file: FileId,
        source: &Source,
        name: &str,
        span: &Span,
        suggest: bool,
    ) -> Result<DefinitionId, Box<Diagnostic>> {
        let (names, last) = match self.find(file, name) {
            Ok(found) => found,
            Err(message) => return Err(Box::new(self.unknown_prefix(file, source, name, span, message))),
        };
        let (message, nearest) = match names.types.get(last) {
            Some((id, kind)) if *kind != ItemKind::Const => return Ok(*id),
            Some(_) => (format!("'{name}' is a constant and not a type"), None),
            None if names.services.contains_key(last) => {
                (format!("'{name}' is a service and not a type"), None)
            }
            None if !suggest || names.types.len() > MOST_CANDIDATES => {
                (format!("there is no type '{name}'"), None)
            }
            None => {
                let types = names.types.iter().filter(|(_, (_, kind))| *kind != ItemKind::Const);
                let mut candidates: Vec<&str> = types.map(|(name, _)| name.as_str()).collect();
                candidates.sort_unstable();
                candidates.extend(if last == name { BASE_TYPES } else { &[] });
                (format!("there is no type '{name}'"), nearest(last, candidates))
            }
        };
        Err(Box::new(Diagnostic::error(source, span, message).nearest(nearest)))
    }

    /// Resolves the name of a service. The error suggests the nearest name if `suggest` is set.
    pub(crate) fn service_of(
        &self,
        file: FileId,
        source: &Source,
        name: &str,
        span: &Span,
        suggest: bool,
    ) -> Result<ServiceId, Box<Diagnostic>> {
        let (names, last) = match self.find(file, name) {
            Ok(found) => found,
            Err(message) => return Err(Box::new(self.unknown_prefix(file, source, name, span, message))),
        };
        if let Some(id) = names.services.get(last) {
            return Ok(*id);
        }
        let mut candidates: Vec<&str> = Vec::new();
        if suggest && names.services.len() <= MOST_CANDIDATES {
            candidates.extend(names.services.keys().map(String::as_str));
            candidates.sort_unstable();
        }
        let message = format!("there is no service '{name}'");
        Err(Box::new(Diagnostic::error(source, span, message).nearest(nearest(last, candidates))))
    }

    /// Resolves the dotted parts of a name to a constant or to a value of an enum.
    pub(crate) fn constant(&self, file: FileId, parts: &[&str]) -> Option<Value> {
        let (last, before) = parts.split_last()?;
        let own = &self.files[file.0];
        let within = |prefix: &[&str]| match prefix {
            [] => Some(own),
            prefix => own.includes.get(&prefix.join(".")).map(|included| &self.files[included.0]),
        };
        let value = |names: &Names, of: &str| {
            let known = names.values.get(of).is_some_and(|values| values.contains(*last));
            let (of, _) = names.types.get(of).filter(|_| known)?;
            Some(Value::EnumValue { of: *of, name: (*last).to_owned() })
        };
        if let Some((id, ItemKind::Const)) = within(before).and_then(|names| names.types.get(*last)) {
            return Some(Value::Constant(*id));
        }
        match before.split_last() {
            Some((name, prefix)) => value(within(prefix)?, name),
            // Old files name values without their enum. If several enums match, the first one counts.
            None => {
                let of = own.values.iter().filter(|(_, values)| values.contains(*last));
                value(own, of.map(|(of, _)| of).min_by_key(|of| own.types.get(*of).map(|(id, _)| *id))?)
            }
        }
    }

    fn unknown_prefix(
        &self,
        file: FileId,
        source: &Source,
        name: &str,
        span: &Span,
        message: String,
    ) -> Diagnostic {
        let prefix = name.rsplit_once('.').map_or(name, |(prefix, _)| prefix);
        let mut candidates: Vec<&str> = self.files[file.0].includes.keys().map(String::as_str).collect();
        candidates.sort_unstable();
        Diagnostic::error(source, span, message).nearest(nearest(prefix, candidates))
    }
}

const BASE_TYPES: &[&str] = &[
    "bool", "byte", "i8", "i16", "i32", "i64", "double", "string", "binary", "uuid", "list", "set", "map",
    "void",
];

/// Returns whether an item is a type or a constant.
pub(crate) fn is_definition(kind: ItemKind) -> bool {
    matches!(
        kind,
        ItemKind::Typedef
            | ItemKind::Const
            | ItemKind::Enum
            | ItemKind::Struct
            | ItemKind::Union
            | ItemKind::Exception
    )
}

/// Reports a duplicate name.
pub(crate) fn twice(source: &Source, span: &Span, first: &Span, name: &str) -> Diagnostic {
    Diagnostic::error(source, span, format!("'{name}' is there twice"))
        .related(source.place(first.start), "it is here first")
}
