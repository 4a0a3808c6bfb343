//! Hints as annotations mean the same as in groups and brackets: every function has the same plan on every
//! fabric.
#![allow(missing_docs, reason = "a test")]

use dunlin_idl::hints::{Capabilities, Environment, Level, select};
use dunlin_idl::{Disk, Document, Files, Memory, Options, load, load_with};
use proptest::prelude::*;
use std::io;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The files on disk, with another text in one of them.
struct Instead {
    path: PathBuf,
    text: String,
}

impl Files for Instead {
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        Disk.canonical(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if path == self.path { Ok(self.text.clone().into_bytes()) } else { Disk.read(path) }
    }
}

/// Returns each function's name, its hints with their levels, and its plan on each fabric.
fn plans(document: &Document) -> Vec<String> {
    let nic = Capabilities::EVERYTHING;
    let shared = Capabilities { initiator_copies: true, ..Capabilities::EVERYTHING };
    let iwarp =
        Capabilities { immediate: false, atomics: Capabilities::IWARP.atomics, ..Capabilities::EVERYTHING };
    let mut plans = Vec::new();
    for function in document.services.iter().flat_map(|service| service.all_functions()) {
        let levels: Vec<(_, _, Level)> =
            function.hints.origins.iter().map(|origin| (origin.side, origin.key, origin.level)).collect();
        let (client, server) = (function.hints.client, function.hints.server);
        plans.push(format!("{} {client:?} {server:?} {levels:?} {}", function.name, function.documentation));
        for capabilities in [&nic, &shared, &iwarp] {
            for clients in [1, 16, 1000] {
                let environment =
                    Environment { clients: Some(clients), ..Environment::new(capabilities, 16) };
                let selected = select(&function.hints, &environment);
                let selected = selected.map_err(|error| error.without_places()).map(|selection| {
                    (selection.transport, selection.plan, selection.client_binding, selection.server_binding)
                });
                plans.push(format!("{} {clients}: {selected:?}", function.name));
            }
        }
    }
    plans
}

/// Every IDL file of the workspace.
fn files() -> Vec<PathBuf> {
    let folders = [
        "examples/idl",
        "crates/hatkv/idl",
        "crates/bench/idl",
        "crates/generated/idl",
        "crates/idl/tests/data",
        "crates/idl/tests/data/shared",
        "tests/interop",
    ];
    let mut files = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(Path::new(ROOT).join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "thrift") {
                files.push(path);
            }
        }
    }
    files
}

#[test]
fn every_file_of_the_workspace_keeps_its_plans() {
    let (mut functions, mut rewritten) = (0, 0);
    for path in files() {
        // Some files include others of a further folder.
        let shared = Path::new(ROOT).join("crates/idl/tests/data/shared");
        let options = Options { include_folders: vec![shared], ..Options::default() };
        let before = load_with(&path, &options, &Disk).unwrap_or_else(|wrong| panic!("{wrong}"));
        let text = before.files[0].with_annotations();
        rewritten += usize::from(before.files[0].has_bracket_hints());
        let instead = Instead { path: path.clone(), text: text.clone() };
        let after = load_with(&path, &options, &instead).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
        assert_eq!(plans(&before), plans(&after), "{}", path.display());
        assert!(!after.files[0].has_bracket_hints(), "{text}");
        functions += plans(&before).len();
        // Words other than those of hints are the same, and so are the comments.
        let comments = |text: &str| text.matches("//").count() + text.matches("/*").count();
        assert_eq!(comments(&before.files[0].text), comments(&text), "{}", path.display());
    }
    assert!(functions > 500 && rewritten > 3, "{functions} plans, {rewritten} files rewritten");
}

#[test]
fn shipped_files_are_for_every_compiler() {
    for path in files() {
        let shipped = ["examples/idl", "crates/hatkv/idl"];
        if shipped.iter().any(|folder| path.parent().is_some_and(|parent| parent.ends_with(folder))) {
            let document = load(&path, &[]).unwrap_or_else(|wrong| panic!("{wrong}"));
            assert!(!document.files.iter().any(|file| file.has_bracket_hints()), "{}", path.display());
        }
    }
}

/// Hints in all places where they may stand, with comments and line breaks between.
fn layout() -> impl Strategy<Value = String> {
    let gap = prop::sample::select(&["", " ", "\n  ", " /* a */ ", " // b\n  ", " # c\n"][..]);
    let hint = prop::sample::select(
        &[
            "perf_goal = latency",
            "payload_size=1KB",
            "polling = \"busy\"",
            "process_time =10us",
            "priority= low",
        ][..],
    );
    let group = (prop::sample::select(&["hint", "c_hint", "s_hint"][..]), hint, gap.clone(), gap.clone())
        .prop_map(|(group, hint, one, two)| format!("{group}:{one}{hint}{two};"));
    let bracket = (prop::option::of(group.clone()), gap.clone())
        .prop_map(|(group, gap)| group.map_or(String::new(), |group| format!("[{gap}{group}{gap}]")));
    let tag = prop::sample::select(&["", " (go.tag = \"x\")", " (a = \"1\",)"][..]);
    let throws = prop::sample::select(&["", " throws (1: E e)"][..]);
    let end = prop::sample::select(&["\n", ",\n", ";\n", " // end\n"][..]);
    (
        prop::option::of(group),
        bracket.clone(),
        throws,
        tag,
        bracket,
        end,
        prop::sample::select(&["", " (b.c = \"d\")"][..]),
    )
        .prop_map(|(service, first, throws, tag, second, end, annotations)| {
            let service = service.map_or(String::new(), |group| format!("  {group}\n"));
            format!(
                "exception E {{ 1: i32 a }}\n/** S. */\nservice S {{\n{service}  /** F. */\n  i32 f(1: i32 a) {first}{throws}{tag} {second}{end}  void g()\n}}{annotations}\n"
            )
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_layout_keeps_its_hints(text in layout()) {
        let load = |text: &str| {
            let files = Memory::new().with("a.thrift", text);
            load_with("a.thrift", &Options::default(), &files)
        };
        // Hints that are said twice are errors.
        let Ok(before) = load(&text) else { return Ok(()) };
        let rewritten = before.files[0].with_annotations();
        let after = load(&rewritten);
        prop_assert!(after.is_ok(), "{text}\n{rewritten}\n{}", after.unwrap_err());
        let after = after.expect("checked");
        prop_assert_eq!(plans(&before), plans(&after), "{}\n{}", text, rewritten);
        prop_assert!(!after.files[0].has_bracket_hints(), "{}", rewritten);
    }
}
