//! The structure of a crate: the modules that each source file names, the arrows that may stand between rooms, and
//! circles of files.
//!
//! Reads paths that begin with `crate`, `super`, `self` or a child module, in `use` items and elsewhere, also inside
//! macro calls. A path leads to the file that it names and, through `use` items of that file, to the file that defines
//! the item.

use crate::pages::files;
use anyhow::{Context as _, Result, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::str::FromStr as _;

/// The path of a module below the crate's root, which is the empty path.
pub type Module = Vec<String>;

/// One file names a module of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// The module of the file whose code names the other.
    pub from: Module,
    /// The module of the file that is named.
    pub to: Module,
    /// The path as it is written.
    pub written: String,
    /// The code is compiled for tests only.
    pub of_tests: bool,
}

/// A path in a file.
#[derive(Debug)]
struct Named {
    /// The module, inline or not, in which the path stands.
    inside: Module,
    path: Vec<String>,
    of_tests: bool,
}

/// A source file.
#[derive(Debug, Default)]
struct Source {
    named: Vec<Named>,
    /// The names that `use` items of the file's own module bring in, and their paths.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules in files of their own that are compiled for tests only.
    tests: BTreeSet<String>,
}

/// The source files of a crate by their modules.
#[derive(Debug, Default)]
pub struct Structure(BTreeMap<Module, Source>);

impl Structure {
    /// Reads all files of a `src` folder.
    ///
    /// # Errors
    /// A file cannot be read, or is not Rust.
    pub fn of(folder: &Path) -> Result<Self> {
        let mut structure = Structure::default();
        for path in files(folder, "rs") {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let inside = path.strip_prefix(folder).unwrap_or(&path).with_extension("");
            let mut module: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if let Some("mod" | "lib" | "main") = module.last().map(String::as_str) {
                module.pop();
            }
            structure.add(module, &text).with_context(|| path.display().to_string())?;
        }
        Ok(structure)
    }

    /// Adds the text of a file.
    ///
    /// # Errors
    /// The text is not Rust.
    pub fn add(&mut self, module: Module, text: &str) -> Result<()> {
        let tokens = TokenStream::from_str(text).map_err(|error| anyhow::anyhow!("not Rust: {error}"))?;
        let source = self.0.entry(module.clone()).or_default();
        Scan { source, file: &module }.tokens(tokens, &module, false);
        Ok(())
    }

    /// The number of files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.0.len()
    }

    /// All arrows between different files, sorted.
    #[must_use]
    pub fn arrows(&self) -> Vec<Arrow> {
        let mut arrows = BTreeSet::new();
        for (from, source) in &self.0 {
            let of_tests = self.is_of_tests(from);
            for named in &source.named {
                for to in self.reached(&named.inside, &named.path) {
                    if to != *from {
                        let (from, written) = (from.clone(), named.path.join("::"));
                        arrows.insert(Arrow { from, to, written, of_tests: of_tests || named.of_tests });
                    }
                }
            }
        }
        arrows.into_iter().collect()
    }

    /// Whether a file, or one that it is a part of, is compiled for tests only.
    fn is_of_tests(&self, file: &Module) -> bool {
        let is_test = |parent: &[String], name: &String| {
            self.0.get(parent).is_some_and(|source| source.tests.contains(name))
        };
        (0..file.len()).any(|length| is_test(&file[..length], &file[length]))
    }

    /// The files that a path leads to: the one that it names, and those that `use` items of that one name.
    fn reached(&self, inside: &Module, path: &[String]) -> Vec<Module> {
        /// The longest chain of `use` items that is followed.
        const CHAIN: usize = 8;
        let (mut reached, mut inside, mut path) = (Vec::new(), inside.clone(), path.to_vec());
        for _ in 0..CHAIN {
            let Some(whole) = self.absolute(&inside, &path) else { break };
            let Some(length) = (0..=whole.len()).rev().find(|&length| self.0.contains_key(&whole[..length]))
            else {
                break;
            };
            let file = whole[..length].to_vec();
            let import = whole.get(length).and_then(|name| self.0[&file].imports.get(name));
            let rest = whole.get(length + 1..).unwrap_or_default().to_vec();
            let next = import.map(|import| [import.as_slice(), &rest].concat());
            reached.push(file.clone());
            match next {
                Some(next) => (inside, path) = (file, next),
                None => break,
            }
        }
        reached
    }

    /// The path from the crate's root; `None` for a path into another crate.
    fn absolute(&self, inside: &Module, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => inside.clone(),
            "super" => inside[..inside.len().checked_sub(1)?].to_vec(),
            child => {
                let module = [inside.as_slice(), &[child.to_owned()]].concat();
                return self.0.contains_key(&module).then(|| [module.as_slice(), rest].concat());
            }
        };
        let mut rest = rest;
        while let Some(("super", others)) = rest.split_first().map(|(first, rest)| (first.as_str(), rest)) {
            base.pop()?;
            rest = others;
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// The circles of files, each as the sorted modules of its files. Code of tests does not count.
    #[must_use]
    pub fn circles(&self) -> Vec<Vec<Module>> {
        let mut next: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
        for arrow in self.arrows().into_iter().filter(|arrow| !arrow.of_tests) {
            if let Some((from, _)) = self.0.get_key_value(&arrow.from) {
                next.entry(from).or_default().insert(arrow.to);
            }
        }
        let all_from = |start: &Module| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start.clone()]);
            while let Some(at) = open.pop() {
                for to in next.get(&at).into_iter().flatten() {
                    if seen.insert(to.clone()) {
                        open.push(to.clone());
                    }
                }
            }
            seen
        };
        let reach: BTreeMap<&Module, BTreeSet<Module>> =
            self.0.keys().map(|module| (module, all_from(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, seen) in reach.iter().filter(|(module, seen)| seen.contains(**module)) {
            let back = |other: &&Module| reach.get(other).is_some_and(|seen| seen.contains(*module));
            circles.insert(seen.iter().filter(back).cloned().collect());
        }
        circles.into_iter().collect()
    }
}

/// The reading of one file.
struct Scan<'a> {
    source: &'a mut Source,
    file: &'a Module,
}

impl Scan<'_> {
    fn tokens(&mut self, tokens: TokenStream, inside: &Module, of_tests: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let (mut at, mut next_of_tests) = (0, false);
        while let Some(token) = tokens.get(at) {
            at += 1;
            let now = of_tests || next_of_tests;
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    let text = tokens.get(at).map(ToString::to_string).unwrap_or_default();
                    let text = text.replace(' ', "");
                    next_of_tests |= text.starts_with("[cfg(test") || text.starts_with("[cfg(all(test");
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => next_of_tests = false,
                TokenTree::Ident(word) if word == "mod" && is_braces(tokens.get(at + 1)) => {
                    let inner = [inside.as_slice(), &[tokens[at].to_string()]].concat();
                    if let Some(TokenTree::Group(group)) = tokens.get(at + 1) {
                        self.tokens(group.stream(), &inner, now);
                    }
                    (at, next_of_tests) = (at + 2, false);
                }
                TokenTree::Ident(word) if word == "mod" && now && is_punct(tokens.get(at + 1), ';') => {
                    if let Some(TokenTree::Ident(name)) = tokens.get(at) {
                        self.source.tests.insert(name.to_string());
                    }
                }
                TokenTree::Ident(word) if word == "use" => {
                    let end = tokens[at..].iter().position(|token| is_punct(Some(token), ';'));
                    let end = end.map_or(tokens.len(), |end| at + end);
                    self.import(&tokens[at..end], &[], inside, now);
                    at = end;
                }
                TokenTree::Ident(_) if is_colons(&tokens, at) && !is_colons(&tokens, at.wrapping_sub(3)) => {
                    let mut path = vec![token.to_string()];
                    while let (true, Some(TokenTree::Ident(word))) =
                        (is_colons(&tokens, at), tokens.get(at + 2))
                    {
                        path.push(word.to_string());
                        at += 3;
                    }
                    self.source.named.push(Named { inside: inside.clone(), path, of_tests: now });
                }
                TokenTree::Group(group) => {
                    self.tokens(group.stream(), inside, now);
                    if group.delimiter() == Delimiter::Brace {
                        next_of_tests = false;
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads the tree of a `use` item that stands behind the path `before`.
    fn import(&mut self, tree: &[TokenTree], before: &[String], inside: &Module, of_tests: bool) {
        for branch in tree.split(|token| is_punct(Some(token), ',')) {
            let (mut path, mut alias) = (before.to_vec(), None);
            let mut rest = branch.iter();
            while let Some(token) = rest.next() {
                match token {
                    TokenTree::Ident(word) if word == "as" => alias = rest.next().map(ToString::to_string),
                    TokenTree::Ident(word) if word == "self" && !path.is_empty() => {}
                    TokenTree::Ident(word) => path.push(word.to_string()),
                    TokenTree::Group(group) => {
                        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.import(&inner, &path, inside, of_tests);
                        path.clear();
                    }
                    _ => {}
                }
            }
            let Some(last) = path.last() else { continue };
            if inside == self.file {
                self.source.imports.insert(alias.unwrap_or_else(|| last.clone()), path.clone());
            }
            self.source.named.push(Named { inside: inside.clone(), path, of_tests });
        }
    }
}

fn is_punct(token: Option<&TokenTree>, character: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens.get(at), ':') && is_punct(tokens.get(at.wrapping_add(1)), ':')
}

fn is_braces(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace)
}

/// The name of a module in messages.
#[must_use]
pub fn shown(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("/") }
}

/// The rooms of a crate and the arrows that may stand between them. A room is a file of `src` with the folder of its
/// name; the crate's root is the room `lib`.
#[derive(Debug)]
pub struct Rooms(Vec<(String, BTreeSet<String>)>);

impl Rooms {
    /// Reads lines of the form `room -> room room`, from the top room down. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// A line has another form, names a room twice, or has an arrow to a room that does not stand below its own.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rooms: Vec<(String, BTreeSet<String>)> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let (room, to) = line.split_once("->").with_context(|| format!("no arrow in '{line}'"))?;
            let room = room.trim().to_owned();
            if rooms.iter().any(|(known, _)| *known == room) {
                bail!("the room {room} stands there twice");
            }
            rooms.push((room, to.split_whitespace().map(str::to_owned).collect()));
        }
        let names: Vec<String> = rooms.iter().map(|(room, _)| room.clone()).collect();
        for (at, (room, to)) in rooms.iter_mut().enumerate() {
            let below = &names[at + 1..];
            if to.iter().map(String::as_str).eq(["below", "every", "room"]) {
                *to = below.iter().cloned().collect();
            }
            if let Some(other) = to.iter().find(|other| !below.contains(other)) {
                bail!("{room} -> {other}: no room {other} stands below {room}");
            }
        }
        Ok(Rooms(rooms))
    }

    /// The arrows of a crate that may not stand, and its files that belong to no room, each as a line of text. Code
    /// of tests may name every room.
    #[must_use]
    pub fn violations(&self, structure: &Structure) -> Vec<String> {
        let room = |module: &Module| module.first().map_or("lib", String::as_str).to_owned();
        let allowed: BTreeMap<&str, &BTreeSet<String>> =
            self.0.iter().map(|(room, to)| (room.as_str(), to)).collect();
        let unknown = structure.0.keys().filter(|module| !allowed.contains_key(room(module).as_str()));
        let mut found: Vec<String> =
            unknown.map(|module| format!("{}: belongs to no room", shown(module))).collect();
        for arrow in structure.arrows().into_iter().filter(|arrow| !arrow.of_tests) {
            let (from, to) = (room(&arrow.from), room(&arrow.to));
            let stands = from == to || allowed.get(from.as_str()).is_some_and(|rooms| rooms.contains(&to));
            if !stands {
                found.push(format!("{}: {from} -> {to} by {}", shown(&arrow.from), arrow.written));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn structure(files: &[(&str, &str)]) -> Structure {
        let mut structure = Structure::default();
        for (path, text) in files {
            let module = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
            structure.add(module, text).expect("Rust");
        }
        structure
    }

    const ROOMS: &str = "# rooms\nlib -> every room below\nclient -> path\nserver -> path\npath ->\n";

    fn violations(files: &[(&str, &str)]) -> Vec<String> {
        Rooms::parse(ROOMS).expect("rooms").violations(&structure(files))
    }

    #[test]
    fn arrows_that_may_stand_stand() {
        let found = violations(&[
            ("", "mod client; mod path; mod server; pub use client::Client; use std::fmt::Debug;"),
            ("client", "mod lane; pub use self::lane::Lane; use crate::path::{self, ring::Ring as R};"),
            (
                "client/lane",
                "use super::Client; /// As [`Server`](crate::server::Server).\nfn f() { crate::path::go() }",
            ),
            ("server", "use crate::path::*; fn path() { path::client(); x.client::<u8>(); }"),
            ("path", "mod ring; use dunlin_fabric::client::X;"),
            (
                "path/ring",
                "use super::{go, super::path::other}; #[cfg(test)] mod tests { use crate::client::Lane; }",
            ),
            ("server/open", "fn f() {} #[cfg(test)] mod tests;"),
            ("server/open/tests", "mod inner; use crate::client::Client;"),
            ("server/open/tests/inner", "use crate::Client;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn every_kind_of_path_is_found() {
        let planted = |path: &str, text: &str| {
            violations(&[
                ("", "mod client; mod path; mod server; pub use server::Server;"),
                ("client", "pub use crate::path::Tx;"),
                ("server", ""),
                ("path", ""),
                (path, text),
            ])
        };
        for (path, text, found) in [
            ("server", "use crate::client::Client;", "server: server -> client by crate::client::Client"),
            (
                "server/open",
                "use crate::{path::P, client::{lane::{A, B}}};",
                "server/open: server -> client by crate::client::lane::A",
            ),
            (
                "server/open",
                "use super::super::client;",
                "server/open: server -> client by super::super::client",
            ),
            ("path", "fn f() { crate::client::g::<u8>(1) }", "path: path -> client by crate::client::g"),
            (
                "path",
                "mod inner { fn f() { super::super::client::g() } }",
                "path: path -> client by super::super::client::g",
            ),
            (
                "path",
                "fn f() { assert!(vec![crate::server::X].is_empty()) }",
                "path: path -> server by crate::server::X",
            ),
            ("client", "use crate::Server;", "client: client -> server by crate::Server"),
            ("pool", "", "pool: belongs to no room"),
        ] {
            assert!(planted(path, text).contains(&found.to_owned()), "{text}: {:?}", planted(path, text));
        }
    }

    #[test]
    fn arrows_of_the_list_run_down() {
        assert!(Rooms::parse("a -> b\nb ->\n").is_ok());
        for wrong in ["a ->\nb -> a\n", "a -> a\n", "a -> c\n", "a b\n", "a ->\na ->\n"] {
            assert!(Rooms::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn circles_are_found_whole_and_not_in_tests() {
        let circle = |of: &[&str]| of.iter().map(|file| vec![(*file).to_owned()]).collect::<Vec<_>>();
        let found = structure(&[
            ("", "mod a; mod b; mod c; mod d; mod e; pub use a::A;"),
            ("a", "use crate::b::B;"),
            ("b", "use crate::c::C; #[cfg(test)] mod tests { use crate::d::D; }"),
            ("c", "fn f(a: &super::a::A) {}"),
            ("d", "use crate::a::A; use crate::e::E;"),
            ("e", "#[cfg(test)] use crate::d::D; fn f() { self::g(); Self::h() }"),
        ]);
        assert_eq!(found.circles(), [circle(&["a", "b", "c"])]);
        let through_the_root = structure(&[("", "mod a; pub use a::A; struct R;"), ("a", "use crate::R;")]);
        assert_eq!(through_the_root.circles(), [vec![vec![], vec!["a".to_owned()]]]);
        let parent =
            structure(&[("p", "mod q; use q::Q; use r::R; mod r;"), ("p/q", "use super::R;"), ("p/r", "")]);
        assert_eq!(parent.circles(), [vec![vec!["p".to_owned()], vec!["p".to_owned(), "q".to_owned()]]]);
    }
}
