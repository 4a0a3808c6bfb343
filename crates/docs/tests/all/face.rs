//! The face that a new user sees stays small: the hello world of README, the names of the crate, the enums of errors.

use dunlin_docs::pages::{self, Block, Page};
use dunlin_docs::sources;
use std::path::{Path, PathBuf};
use syn::{Item, UseTree, Visibility};

/// The folder of the hello world.
const HELLO: &str = "examples/hello-service";
/// Lines of server and client together, as `docs/results/counts.md` counts them: those that are not empty.
const RUST_AT_MOST: usize = 18;
/// Such lines of all five files.
const HELLO_AT_MOST: usize = 35;
/// Names in the root of the crate, without modules and crates.
const NAMES_AT_MOST: usize = 24;

fn read(path: impl AsRef<Path>) -> String {
    let path = pages::root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn hello(file: &str) -> String {
    read(Path::new(HELLO).join(file))
}

fn readme() -> Page {
    Page { path: PathBuf::from("README.md"), text: read("README.md") }
}

/// The block of README with this source.
fn block(from: &str) -> Block {
    let from = format!("{HELLO}/{from}");
    let found = readme().blocks().into_iter().find(|block| block.from.as_ref() == Some(&from));
    found.unwrap_or_else(|| panic!("README has no block from {from}"))
}

fn lines(text: &str) -> usize {
    text.lines().filter(|line| !line.trim().is_empty()).count()
}

/// The block of README with the dependencies.
fn dependencies() -> Block {
    readme().blocks().into_iter().find(|block| block.language == "toml").expect("README has a block of TOML")
}

#[test]
fn the_hello_world_of_the_readme_is_whole_and_short() {
    let programs = ["src/bin/server.rs", "src/bin/client.rs"];
    for file in programs.into_iter().chain(["idl/hello.thrift"]) {
        assert_eq!(block(file).code, hello(file), "README has a part of {file}");
    }
    let rust: usize = programs.iter().map(|file| lines(&hello(file))).sum();
    assert!((1..=RUST_AT_MOST).contains(&rust), "{rust} lines of Rust; at most {RUST_AT_MOST}");
    let counted = format!("| Dunlin | {rust} |");
    assert!(read("docs/results/counts.md").contains(&counted), "docs/results/counts.md has no '{counted}'");
    let rest = [dependencies().code, hello("build.rs"), hello("idl/hello.thrift")];
    let all: usize = rust + rest.iter().map(|text| lines(text)).sum::<usize>();
    assert!(all <= HELLO_AT_MOST, "{all} lines in all; at most {HELLO_AT_MOST}");
}

#[test]
fn the_readme_has_the_manifest_and_the_build_script_of_the_example() {
    let manifest = hello("Cargo.toml");
    // The example lies in the checkout, and a user's program beside it.
    let shown = dependencies().code.replace("../dunlin/", "../../");
    let needed = manifest.lines().skip_while(|line| *line != "[dependencies]");
    let needed: Vec<&str> =
        needed.take_while(|line| !line.starts_with('#')).filter(|line| !line.is_empty()).collect();
    assert_eq!(shown.lines().collect::<Vec<_>>(), needed);
    let script = hello("build.rs").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(readme().text.contains(&format!("`build.rs` is\n`{script}`")), "README has no `{script}`");
}

/// A copy of the folder needs the edits of README and no other: its files name nothing in the checkout but the
/// two crates, whose paths README gives.
#[test]
fn a_copy_of_the_hello_world_is_a_package_of_its_own() {
    let copy = std::env::temp_dir().join(format!("dunlin-hello-copy-{}", std::process::id()));
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        std::fs::create_dir_all(copy.join(&folder)).expect("a folder");
        for entry in std::fs::read_dir(pages::root().join(HELLO).join(&folder)).expect("the folder") {
            let entry = entry.expect("an entry");
            let file = folder.join(entry.file_name());
            match entry.file_type().expect("a type").is_dir() {
                true => folders.push(file),
                false => drop(std::fs::copy(entry.path(), copy.join(file)).expect("a copy")),
            }
        }
    }
    let checkout = pages::root().canonicalize().expect("the checkout");
    let needed = dependencies().code.replace("../dunlin", &checkout.display().to_string());
    let package = hello("Cargo.toml");
    let package = package.split("[dependencies]").next().expect("the package");
    let others: Vec<_> =
        hello("Cargo.toml").lines().filter(|line| line.starts_with('[')).map(str::to_owned).collect();
    assert_eq!(
        others,
        ["[package]", "[dependencies]", "[build-dependencies]"],
        "the manifest needs further edits"
    );
    std::fs::write(copy.join("Cargo.toml"), format!("{package}{needed}")).expect("the manifest");
    // The versions of the checkout, for which its tests have all sources.
    std::fs::copy(checkout.join("Cargo.lock"), copy.join("Cargo.lock")).expect("the lock file");
    let resolved = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--depth", "1"])
        .current_dir(&copy)
        .output()
        .expect("cargo");
    let (out, errors) =
        (String::from_utf8_lossy(&resolved.stdout), String::from_utf8_lossy(&resolved.stderr));
    assert!(resolved.status.success(), "{errors}");
    for package in ["hello-service v", "dunlin v", "dunlin-idl-build v"] {
        assert!(out.contains(package), "{package} is missing in:\n{out}");
    }
    std::fs::remove_dir_all(&copy).expect("the copy is removed");
}

/// Comments in the Markdown are not rendered.
#[test]
fn the_files_of_the_hello_world_are_named_above_their_code() {
    let text = readme().text;
    let visible: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("<!--") && !line.is_empty()).collect();
    let above = |language: &str, first: &str| {
        let found =
            visible.windows(3).find(|lines| lines[1] == format!("```{language}") && lines[2] == first);
        found.map_or_else(|| panic!("README has no block that begins with {first}"), |lines| lines[0])
    };
    let first = |file: &str| hello(file).lines().next().unwrap_or_default().to_owned();
    let server = above("rust", &first("src/bin/server.rs"));
    let client = above("rust", &first("src/bin/client.rs"));
    assert!(server.contains("The server") && server.contains("`src/bin/server.rs`"), "{server}");
    assert!(client.contains("The client") && client.contains("`src/bin/client.rs`"), "{client}");
    assert!(above("thrift", &first("idl/hello.thrift")).contains("`idl/hello.thrift`"));
    assert!(above("toml", "[dependencies]").contains("`Cargo.toml`"));
}

/// Adds the names that a `use` makes. A name for a whole crate is not among them.
fn names(tree: &UseTree, inside: bool, found: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => names(&path.tree, true, found),
        UseTree::Group(group) => group.items.iter().for_each(|tree| names(tree, inside, found)),
        UseTree::Name(name) => found.push(name.ident.to_string()),
        UseTree::Rename(renamed) if inside => found.push(renamed.rename.to_string()),
        UseTree::Rename(_) => {}
        UseTree::Glob(_) => panic!("the root has a glob, whose names nobody counts"),
    }
}

#[test]
fn the_root_of_the_crate_has_few_names() {
    let root = syn::parse_file(&read("crates/dunlin/src/lib.rs")).expect("a source");
    let (mut found, mut modules) = (Vec::new(), Vec::new());
    for item in root.items {
        match item {
            Item::Use(item) if matches!(item.vis, Visibility::Public(_)) => {
                names(&item.tree, false, &mut found)
            }
            Item::Macro(item) => found.extend(item.ident.map(|name| name.to_string())),
            Item::Mod(item) if matches!(item.vis, Visibility::Public(_)) => {
                modules.push(item.ident.to_string())
            }
            Item::Mod(_) | Item::Use(_) => {}
            _ => panic!("the root has more than re-exports, modules and a macro"),
        }
    }
    assert!(
        found.contains(&"Client".to_owned()) && found.contains(&"include_service".to_owned()),
        "{found:?}"
    );
    assert!(found.len() <= NAMES_AT_MOST, "{} names, at most {NAMES_AT_MOST}: {found:?}", found.len());
    for module in ["plan", "tune", "fabric", "raw", "rfp"] {
        assert!(modules.iter().any(|found| found == module), "{module} is no module: {modules:?}");
    }
}

#[test]
fn programs_have_to_expect_further_variants_of_every_error() {
    let mut count = 0;
    for krate in [
        "rpc",
        "fabric",
        "fabric-shm",
        "fabric-rdma",
        "fabric-ofi",
        "wire",
        "hints",
        "thrift",
        "thrift-core",
        "thrift-tcp",
        "transport",
        "idl-build",
        "kv",
        "hatkv",
        "tier",
        "tier-node",
        "tier-client",
        "page-faults",
    ] {
        let failures = sources::failures_of(&format!("crates/{krate}")).expect("sources");
        count += failures.len();
        let closed: Vec<_> = failures.into_iter().filter(|(_, open)| !open).map(|(name, _)| name).collect();
        assert!(closed.is_empty(), "{krate}: #[non_exhaustive] is missing at {closed:?}");
    }
    assert!(count > 50, "{count} enums were checked");
}
