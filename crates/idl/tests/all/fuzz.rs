//! The loader never panics, and each error has a location in the text.
#![allow(missing_docs, reason = "a test")]

use dunlin_idl::hints::Place;
use dunlin_idl::{DefinitionKind, Document, Field, Memory, Options, Severity, load_with};
use proptest::prelude::*;
use proptest::sample::select;

const GOOD: [&str; 6] = [
    include_str!("../data/echo.thrift"),
    include_str!("../data/mail.thrift"),
    include_str!("../data/hatkv.thrift"),
    include_str!("../data/hatrpc.thrift"),
    include_str!("../data/everything.thrift"),
    include_str!("../data/shared/base.thrift"),
];

const WORDS: &[&str] = &[
    "service",
    "struct",
    "union",
    "exception",
    "enum",
    "typedef",
    "const",
    "include",
    "namespace",
    "extends",
    "throws",
    "oneway",
    "required",
    "optional",
    "void",
    "i32",
    "string",
    "list",
    "map",
    "set",
    "uuid",
    "true",
    "A",
    "b",
    "A.b",
    "hint",
    "c_hint",
    "s_hint",
    "hnt",
    "perf_goal",
    "polling",
    "protocol",
    "sharing",
    "transport",
    "latency",
    "busy",
    "combined",
    "grouped",
    "eager",
    "tcp",
    "1KB",
    "10us",
    "hint: polling = busy;",
    "[ hint: perf_goal = latency; ]",
    "(polling = \"busy\")",
    "1",
    "-1",
    "0x10",
    "1.5",
    "1:",
    "2:",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ",",
    ";",
    ":",
    "=",
    "&",
    ".",
    "*",
    "+",
    "\"x\"",
    "'y'",
    "\"",
    "'",
    "\\",
    "//",
    "#",
    "/*",
    "*/",
    "\n",
    "\r\n",
    "\t",
    "ä",
    "\u{feff}",
    "\0",
    "void f()",
    "1: i32 a",
    "service S {",
    "struct S {",
    "\"a.thrift\"",
    "include \"a.thrift\"",
    "include \"b.thrift\"",
];

/// All names with their locations.
fn names(document: &Document) -> Vec<(&Place, &str)> {
    let mut all: Vec<(&Place, &str)> = Vec::new();
    let mut fields: Vec<&Field> = Vec::new();
    for definition in document.files.iter().flat_map(|file| &file.definitions) {
        all.push((&definition.place, &definition.name));
        match &definition.kind {
            DefinitionKind::Struct(list) | DefinitionKind::Union(list) | DefinitionKind::Exception(list) => {
                fields.extend(list);
            }
            DefinitionKind::Enum(values) => all.extend(values.iter().map(|it| (&it.place, it.name.as_str()))),
            DefinitionKind::Typedef(_) | DefinitionKind::Constant(..) => {}
        }
    }
    for service in &document.services {
        all.push((&service.place, &service.name));
        for function in service.all_functions() {
            all.push((&function.place, &function.name));
            fields.extend(function.arguments.iter().chain(&function.throws));
        }
    }
    all.extend(fields.into_iter().map(|field| (&field.place, field.name.as_str())));
    all
}

/// Checks the properties that hold for any text.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let memory = Memory::new()
        .with("a.thrift", bytes)
        .with("b.thrift", "struct T {}")
        .with("shared/base.thrift", GOOD[5])
        .with("shared/deep.thrift", include_str!("../data/shared/deep.thrift"))
        .with("shared/dotted.name.thrift", include_str!("../data/shared/dotted.name.thrift"));
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split('\n').collect();
    let diagnostics = match load_with("a.thrift", &Options::default(), &memory) {
        Ok(document) => {
            for file in &document.files {
                prop_assert_eq!(file.blanked_text.len(), file.text.len());
            }
            for (place, name) in names(&document) {
                let file = document.files.iter().find(|file| file.path.to_str() == Some(&*place.file));
                let text = file.map_or("", |file| &*file.text);
                let line = text.split('\n').nth(place.line as usize - 1).unwrap_or_default();
                let there: String = line.chars().skip(place.column as usize - 1).collect();
                prop_assert!(there.starts_with(name), "{name} is not at {place}:\n{text}");
            }
            let hints = document.services.iter().flat_map(|service| service.all_functions());
            for origin in hints.flat_map(|function| function.hints.origins.iter()) {
                prop_assert!(
                    document.files.iter().any(|file| file.path.to_str() == Some(&*origin.place.file))
                );
            }
            document.warnings
        }
        Err(diagnostics) => {
            prop_assert!(diagnostics.errors() > 0);
            diagnostics
        }
    };
    prop_assert!(diagnostics.iter().count() <= dunlin_idl::MAX_DIAGNOSTICS);
    for diagnostic in &diagnostics {
        prop_assert!(!diagnostic.message.is_empty());
        let place = &diagnostic.place;
        let shown = diagnostic.to_string();
        let title = match diagnostic.severity {
            Severity::Error => "error: ",
            Severity::Warning => "warning: ",
        };
        prop_assert!(shown.starts_with(title), "{shown}");
        prop_assert!(place.line >= 1 && place.column >= 1, "{shown}");
        if place.file == "a.thrift" {
            let line = lines.get(place.line as usize - 1);
            let length = line.map(|line| line.chars().count());
            prop_assert!(length.is_some_and(|length| place.column as usize <= length + 1), "{shown}\n{text}");
        }
        prop_assert!(shown.contains(&place.file.to_string()), "{shown}");
    }
    Ok(())
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), 0..6u8, select(WORDS), any::<prop::sample::Index>());
    (select(&GOOD[..]), proptest::collection::vec(change, 1..6)).prop_map(|(text, changes)| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, kind, word, to) in changes {
            if bytes.is_empty() {
                break;
            }
            let (at, to) = (at.index(bytes.len()), to.index(bytes.len()));
            match kind {
                0 => {
                    bytes.remove(at);
                }
                1 => bytes[at] ^= 1 << (to % 8),
                2 => {
                    bytes.splice(at..at, word.bytes());
                }
                3 => bytes.truncate(at),
                4 => {
                    let piece = bytes[at.min(to)..at.max(to).min(at.min(to) + 200)].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => {
                    let end = at.max(to).min(at.min(to) + 40);
                    bytes.drain(at.min(to)..end);
                }
            }
        }
        bytes
    })
}

/// Valid files with some words, but no brackets, replaced, doubled or removed.
fn reworded() -> impl Strategy<Value = String> {
    let words: Vec<&str> = WORDS
        .iter()
        .copied()
        .filter(|word| !word.contains(['{', '}', '(', ')', '[', ']', '"', '\'']))
        .collect();
    let change = (any::<prop::sample::Index>(), 0..4u8, select(words));
    (select(&GOOD[..]), proptest::collection::vec(change, 1..4)).prop_map(|(text, changes)| {
        let mut pieces: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let end = rest.find(|c| word(c) != word(first)).unwrap_or(rest.len());
            let end = if word(first) { end } else { first.len_utf8() };
            pieces.push(&rest[..end]);
            rest = &rest[end..];
        }
        for (at, kind, word) in changes {
            let at = at.index(pieces.len());
            if pieces[at].contains(['{', '}', '(', ')', '[', ']', '"', '\'', '/', '*']) {
                continue;
            }
            match kind {
                0 => pieces[at] = word,
                1 => pieces.insert(at, word),
                2 => pieces.insert(at, pieces[at]),
                _ => pieces[at] = "",
            }
        }
        pieces.concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_words(words in proptest::collection::vec(select(WORDS), 0..80), gaps in any::<u64>()) {
        let mut text = String::new();
        for (index, word) in words.iter().enumerate() {
            text.push_str(word);
            if gaps >> (index % 64) & 1 == 0 {
                text.push(' ');
            }
        }
        check(text.as_bytes())?;
    }

    #[test]
    fn words_in_a_service(words in proptest::collection::vec(select(WORDS), 0..40)) {
        check(format!("service S {{ void f() {} }}", words.join(" ")).as_bytes())?;
    }

    #[test]
    fn mutations_of_good_files(bytes in mutated()) {
        check(&bytes)?;
    }

    #[test]
    fn other_words_in_good_files(text in reworded()) {
        check(text.as_bytes())?;
    }

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes)?;
    }

    #[test]
    fn any_text(text in any::<String>()) {
        check(text.as_bytes())?;
    }
}
