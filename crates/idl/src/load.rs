//! Loading of a file with its included files.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::document::{DefinitionId, DefinitionKind, Document, File, FileId, Include, Namespace, Type};
use crate::files::{Disk, Files};
use crate::grammar;
use crate::lexer::{self, Kind, Tokens};
use crate::outline::{self, Item, ItemKind, Outline};
use crate::resolve;
use crate::scope::{Scope, is_definition};
use crate::source::{MAX_FILE, MAX_LINE, Source, Span};
use crate::walk::{Head, Walker};
use pilota_thrift_parser as tree;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// The maximum number of files of a document.
pub const MAX_FILES: usize = 256;

/// The handling of hints with an unknown key or value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lenience {
    /// Unknown hints are errors.
    #[default]
    Strict,
    /// Unknown hints cause warnings and are ignored.
    Lenient,
}

/// Options for loading.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Folders to search for included files, in this order, after the folder of the including file.
    pub include_folders: Vec<PathBuf>,
    /// The handling of unknown hints.
    pub lenience: Lenience,
}

/// Loads a file and all included files from disk, and checks them.
///
/// # Errors
/// All errors, up to [`MAX_DIAGNOSTICS`](crate::MAX_DIAGNOSTICS).
pub fn load(path: impl AsRef<Path>, include_folders: &[PathBuf]) -> Result<Document, Diagnostics> {
    let options = Options { include_folders: include_folders.to_vec(), ..Options::default() };
    load_with(path, &options, &Disk)
}

/// Loads a file and all included files from the given source, and checks them.
///
/// # Errors
/// All errors, up to [`MAX_DIAGNOSTICS`](crate::MAX_DIAGNOSTICS).
pub fn load_with(
    path: impl AsRef<Path>,
    options: &Options,
    files: &dyn Files,
) -> Result<Document, Diagnostics> {
    let mut loader = Loader {
        options,
        files,
        parsed: Vec::new(),
        known: HashMap::new(),
        open: Vec::new(),
        diagnostics: Diagnostics::default(),
    };
    let path = path.as_ref();
    match files.canonical(path).map_err(|error| error.to_string()) {
        Ok(canonical) => {
            if let Err(message) = loader.file(path, canonical) {
                loader.diagnostics.push(Diagnostic::unreadable(&path.display().to_string(), message));
            }
        }
        Err(message) => {
            let message = format!("cannot read the file: {message}");
            loader.diagnostics.push(Diagnostic::unreadable(&path.display().to_string(), message));
        }
    }
    let Loader { parsed, mut diagnostics, .. } = loader;
    let document = check(&parsed, options.lenience, &mut diagnostics);
    let order: HashMap<&str, usize> =
        parsed.iter().enumerate().map(|(index, file)| (&*file.source.name, index)).collect();
    diagnostics.sort(|file| order.get(file).copied().unwrap_or_default());
    match diagnostics.errors() {
        0 => Ok(Document { warnings: diagnostics, ..document }),
        _ => Err(diagnostics),
    }
}

/// A parsed file whose names are not yet resolved.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) path: PathBuf,
    pub(crate) source: Source,
    pub(crate) tokens: Tokens,
    pub(crate) outline: Outline,
    /// The tree of each item in the outline; `None` if it could not be parsed.
    pub(crate) trees: Vec<Option<tree::Item>>,
    blanked: String,
    pub(crate) includes: Vec<RawInclude>,
}

/// An include statement and the file it refers to.
#[derive(Debug)]
pub(crate) struct RawInclude {
    path: String,
    pub(crate) span: Span,
    pub(crate) file: Option<FileId>,
}

impl Parsed {
    /// Returns the word at a token, or an empty string.
    pub(crate) fn word(&self, index: usize) -> &str {
        match self.tokens.tokens.get(index) {
            Some(token) if token.kind == Kind::Word => self.source.slice(&token.span),
            _ => "",
        }
    }

    /// Returns the location of an item's name, if it can be found without parsing.
    pub(crate) fn name_of(&self, item: &Item) -> Option<Span> {
        let index = match item.kind {
            ItemKind::Typedef => {
                // The last word outside brackets.
                let mut last = None;
                let mut at = item.tokens.start + 1;
                while at < item.tokens.end {
                    if !self.word(at).is_empty() {
                        last = Some(at);
                    }
                    at = self.tokens.tokens[at].partner.filter(|partner| *partner > at).unwrap_or(at) + 1;
                }
                last?
            }
            ItemKind::Const => {
                let equals =
                    (item.tokens.start..item.tokens.end).find(|index| self.tokens.tokens[*index].is(b'='))?;
                equals.checked_sub(1)?
            }
            _ => item.tokens.start + 1,
        };
        (item.tokens.contains(&index) && !self.word(index).is_empty())
            .then(|| self.tokens.tokens[index].span.clone())
    }

    /// Returns the prefix of the file's names in including files.
    pub(crate) fn prefix(&self) -> &str {
        self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
    }

    /// Returns the block of comments directly before a token.
    pub(crate) fn documentation(&self, token: usize) -> String {
        let comments = &self.tokens.comments;
        let from = comments.partition_point(|comment| comment.before < token);
        let mut end = self.tokens.tokens.get(token).map_or(0, |token| token.span.start);
        let mut lines: Vec<&str> = Vec::new();
        let mut block = Vec::new();
        for comment in comments[from..].iter().take_while(|comment| comment.before == token) {
            block.push(comment);
        }
        let text = &*self.source.text;
        for comment in block.into_iter().rev() {
            // An empty line ends the block, and a comment on the line of an earlier token belongs to that
            // token.
            let gap = &text[comment.span.end..end];
            let line = text[..comment.span.start].rfind('\n').map_or(0, |newline| newline + 1);
            let alone = text[line..comment.span.start].trim().is_empty();
            if gap.matches('\n').count() > 1 || (!alone && token > 0) {
                break;
            }
            let mut inside: Vec<&str> = comment_lines(self.source.slice(&comment.span)).collect();
            inside.append(&mut lines);
            lines = inside;
            end = comment.span.start;
        }
        let first = lines.iter().position(|line| !line.is_empty()).unwrap_or(lines.len());
        let last = lines.iter().rposition(|line| !line.is_empty()).map_or(first, |last| last + 1);
        lines[first..last].join("\n")
    }
}

/// Returns a comment's lines without comment markers.
fn comment_lines(comment: &str) -> impl Iterator<Item = &str> {
    let block = comment.starts_with("/*");
    let inside = if block {
        comment.trim_start_matches("/*").trim_end_matches("*/").trim_start_matches('*')
    } else {
        comment.trim_start_matches('#').trim_start_matches('/')
    };
    inside.split('\n').map(move |line| {
        let line = if block { line.trim().trim_start_matches('*') } else { line };
        line.strip_prefix(' ').unwrap_or(line).trim_end()
    })
}

struct Loader<'a> {
    options: &'a Options,
    files: &'a dyn Files,
    parsed: Vec<Parsed>,
    known: HashMap<PathBuf, FileId>,
    /// The chain of files that include each other, down to the current one.
    open: Vec<PathBuf>,
    diagnostics: Diagnostics,
}

impl Loader<'_> {
    /// Loads a new file and its included files. The caller reports the error at the include statement.
    fn file(&mut self, path: &Path, canonical: PathBuf) -> Result<FileId, String> {
        if self.parsed.len() >= MAX_FILES {
            return Err(format!("more than {MAX_FILES} files are included"));
        }
        let bytes = self.files.read(path).map_err(|error| format!("cannot read the file: {error}"))?;
        let id = FileId(self.parsed.len());
        let parsed = self.parse(path, &bytes);
        self.parsed.push(parsed);
        self.known.insert(canonical.clone(), id);
        self.open.push(canonical);
        for index in 0..self.parsed[id.0].includes.len() {
            let (include, span) = {
                let include = &self.parsed[id.0].includes[index];
                (include.path.clone(), include.span.clone())
            };
            match self.include(path, &include) {
                Ok(file) => self.parsed[id.0].includes[index].file = Some(file),
                Err((message, help)) => {
                    let mut diagnostic = Diagnostic::error(&self.parsed[id.0].source, &span, message);
                    diagnostic.help = help;
                    self.diagnostics.push(diagnostic);
                }
            }
        }
        self.open.pop();
        Ok(id)
    }

    fn include(&mut self, from: &Path, include: &str) -> Result<FileId, (String, Option<String>)> {
        let own = from.parent().unwrap_or(Path::new(""));
        let folders = std::iter::once(own).chain(self.options.include_folders.iter().map(PathBuf::as_path));
        let mut tried = Vec::new();
        for folder in folders {
            let path = folder.join(include);
            let Ok(canonical) = self.files.canonical(&path) else {
                let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                tried.push(folder.display().to_string());
                continue;
            };
            if let Some(position) = self.open.iter().position(|open| *open == canonical) {
                let names = self.open[position..].iter().chain([&canonical]);
                let names: Vec<String> = names
                    .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
                    .collect();
                return Err((format!("files include each other: {}", names.join(" -> ")), None));
            }
            if let Some(id) = self.known.get(&canonical) {
                return Ok(*id);
            }
            return self.file(&path, canonical).map_err(|message| (message, None));
        }
        Err((format!("there is no file '{include}'"), Some(format!("looked in: {}", tried.join(", ")))))
    }

    fn parse(&mut self, path: &Path, bytes: &[u8]) -> Parsed {
        let name = path.display().to_string();
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            // The valid part of the text locates the error.
            Err(error) => {
                let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
                let source = Source::new(&name, valid);
                let end = valid.len();
                let diagnostic = Diagnostic::error(&source, &(end..end), "this is not UTF-8");
                self.diagnostics.push(diagnostic);
                ""
            }
        };
        let source = Source::new(&name, if bytes.len() > MAX_FILE { "" } else { text });
        let mut parsed = Parsed {
            path: path.to_owned(),
            tokens: Tokens::default(),
            outline: Outline::default(),
            trees: Vec::new(),
            blanked: String::new(),
            includes: Vec::new(),
            source,
        };
        if bytes.len() > MAX_FILE {
            let message = format!("the file has more than {MAX_FILE} bytes");
            self.diagnostics.push(Diagnostic::error(&parsed.source, &(0..0), message));
            return parsed;
        }
        if let Some(start) = parsed.source.too_long_line() {
            let message = format!("the line has more than {MAX_LINE} bytes");
            let place = Source::new(&name, "").place(0);
            let line = parsed.source.place(start).line;
            let mut diagnostic = Diagnostic::unreadable(&name, message);
            diagnostic.place = dunlin_hints::Place { line, ..place };
            self.diagnostics.push(diagnostic);
            return parsed;
        }
        let Some(tokens) = lexer::lex(&parsed.source, &mut self.diagnostics) else { return parsed };
        parsed.tokens = tokens;
        parsed.outline = outline::outline(&parsed.source, &parsed.tokens, &mut self.diagnostics);
        parsed.blanked = outline::blank(&parsed.source.text, parsed.outline.blanks.iter().cloned());
        self.items(&mut parsed);
        parsed
    }

    /// Parses each item separately, so that an error in one does not hide errors in another.
    fn items(&mut self, parsed: &mut Parsed) {
        for index in 0..parsed.outline.items.len() {
            let item = &parsed.outline.items[index];
            if item.service.as_ref().is_some_and(|service| service.broken) {
                parsed.trees.push(None);
                continue;
            }
            let tokens = &parsed.tokens.tokens;
            let span = tokens[item.tokens.start].span.start..tokens[item.tokens.end - 1].span.end;
            let tree = match grammar::parse(&parsed.blanked[span.clone()]) {
                Ok(tree) => Some(tree),
                // The parser accepts comments in most places; in others they are blanked.
                Err(errors) => match self.without_comments(parsed, &span) {
                    Some(tree) => Some(tree),
                    None => {
                        self.complain(parsed, index, span.start, &errors);
                        None
                    }
                },
            };
            if let Some(tree::Item::Include(include)) = &tree {
                let literal = parsed.outline.items[index].tokens.start + 1;
                let path = include.path.0.clone();
                let span = parsed.tokens.tokens[literal].span.clone();
                parsed.includes.push(RawInclude { path, span, file: None });
            }
            parsed.trees.push(tree);
        }
    }

    fn without_comments(&self, parsed: &mut Parsed, span: &Span) -> Option<tree::Item> {
        let comments = &parsed.tokens.comments;
        let first = comments.partition_point(|comment| comment.span.start < span.start);
        let inside = comments[first..].iter().map(|comment| &comment.span);
        let inside: Vec<Span> = inside
            .take_while(|comment| comment.end <= span.end)
            .map(|comment| comment.start - span.start..comment.end - span.start)
            .collect();
        if inside.is_empty() {
            return None;
        }
        let blanked = outline::blank(&parsed.blanked[span.clone()], inside);
        let tree = grammar::parse(&blanked).ok()?;
        parsed.blanked.replace_range(span.clone(), &blanked);
        Some(tree)
    }

    fn complain(&mut self, parsed: &Parsed, item: usize, start: usize, errors: &[grammar::SyntaxError]) {
        let item = &parsed.outline.items[item];
        for error in errors {
            let offset = start + error.offset;
            // The parser works on characters; the error belongs to the token at that offset, or to the next
            // one.
            let tokens = &parsed.tokens.tokens[..item.tokens.end];
            let index = tokens.partition_point(|token| token.span.end <= offset);
            let span = tokens.get(index).map_or(offset..offset, |token| token.span.clone());
            let found = match tokens.get(index) {
                Some(token) => {
                    format!("'{}'", parsed.source.slice(&token.span).chars().take(40).collect::<String>())
                }
                None => "the end of the definition".to_owned(),
            };
            let message = match (&error.custom, error.expected.as_str()) {
                (Some(custom), _) => custom.clone(),
                (None, "") if tokens.get(index).is_none() => "the definition ends too early".to_owned(),
                (None, "") => format!("unexpected {found}"),
                (None, expected) => format!("expected {expected}, found {found}"),
            };
            let mut diagnostic = Diagnostic::error(&parsed.source, &span, message);
            let fields = matches!(item.kind, ItemKind::Struct | ItemKind::Union | ItemKind::Exception);
            if fields && error.custom.is_none() && error.expected.is_empty() {
                diagnostic = diagnostic.help("a field begins with its number, as in '1: i32 name'");
            }
            self.diagnostics.push(diagnostic);
        }
    }
}

/// Resolves and checks the parsed files.
fn check(parsed: &[Parsed], lenience: Lenience, diagnostics: &mut Diagnostics) -> Document {
    let scope = Scope::new(parsed, diagnostics);
    let mut files = Vec::new();
    let mut heads: Vec<(FileId, usize, Option<Head>)> = Vec::new();
    for (number, file) in parsed.iter().enumerate() {
        let id = FileId(number);
        let mut definitions = Vec::new();
        let mut namespaces = Vec::new();
        for (index, (item, tree)) in file.outline.items.iter().zip(&file.trees).enumerate() {
            let mut walker = Walker::new(file, id, &scope, diagnostics);
            match tree {
                Some(tree::Item::Namespace(namespace)) => namespaces.push(Namespace {
                    scope: namespace.scope.0.clone(),
                    name: namespace.name.segments.iter().map(|s| s.as_str()).collect::<Vec<_>>().join("."),
                }),
                Some(tree::Item::Service(service)) => {
                    let head = walker.service(item, service);
                    heads.push((id, index, Some(head)));
                }
                // The service keeps its number.
                None if item.kind == ItemKind::Service => heads.push((id, index, None)),
                Some(tree) if is_definition(item.kind) => definitions.extend(walker.definition(item, tree)),
                _ => {}
            }
        }
        files.push(File {
            path: file.path.clone(),
            name: file.prefix().to_owned(),
            text: file.source.text.clone(),
            blanked_text: file.blanked.clone(),
            includes: file
                .includes
                .iter()
                .filter_map(|include| {
                    let place = file.source.place(include.span.start);
                    Some(Include { path: include.path.clone(), file: include.file?, place })
                })
                .collect(),
            namespaces,
            definitions,
        });
    }
    let services = resolve::services(parsed, heads, lenience, diagnostics);
    let document = Document { files, services, warnings: Diagnostics::default() };
    // Missing definitions would shift the indices.
    if diagnostics.errors() == 0 {
        typedefs(parsed, &document, diagnostics);
    }
    if diagnostics.errors() == 0 {
        throws(parsed, &document, diagnostics);
    }
    document
}

/// Reports typedefs that refer to themselves, with a depth-first search for cycles.
fn typedefs(parsed: &[Parsed], document: &Document, diagnostics: &mut Diagnostics) {
    let all = document.files.iter().enumerate().flat_map(|(number, file)| {
        (0..file.definitions.len()).map(move |index| DefinitionId { file: FileId(number), index })
    });
    let (mut done, mut open) = (HashSet::new(), HashSet::new());
    for start in all {
        // Definitions to enter or to leave.
        let mut left = vec![(start, false)];
        while let Some((id, leave)) = left.pop() {
            if leave {
                open.remove(&id);
                done.insert(id);
                continue;
            }
            let definition = document.definition(id);
            let DefinitionKind::Typedef(ty) = &definition.kind else { continue };
            if done.contains(&id) {
                continue;
            }
            if !open.insert(id) {
                let source = &parsed[id.file.0].source;
                let span = source.span(&definition.place, definition.name.len());
                let message = format!("'{}' is defined by itself", definition.name);
                diagnostics.push(Diagnostic::error(source, &span, message));
                continue;
            }
            left.push((id, true));
            named_in(ty, &mut |inner| left.push((inner, false)));
        }
    }
}

/// Calls `call` for each named type in a type. The recursion is bounded, since the lexer limits nesting.
fn named_in(ty: &Type, call: &mut impl FnMut(DefinitionId)) {
    match ty {
        Type::List(inner) | Type::Set(inner) => named_in(inner, call),
        Type::Map(key, value) => {
            named_in(key, call);
            named_in(value, call);
        }
        Type::Named(id) => call(*id),
        _ => {}
    }
}

/// Reports thrown types that are not exceptions.
fn throws(parsed: &[Parsed], document: &Document, diagnostics: &mut Diagnostics) {
    // Caches resolved names, so that a long chain of typedefs is followed only once.
    let mut known: HashMap<DefinitionId, bool> = HashMap::new();
    for service in &document.services {
        for field in service.functions.iter().flat_map(|function| &function.throws) {
            let (mut ty, mut passed) = (&field.ty, Vec::new());
            let exception = loop {
                let Type::Named(id) = ty else { break false };
                if let Some(known) = known.get(id) {
                    break *known;
                }
                passed.push(*id);
                match &document.definition(*id).kind {
                    DefinitionKind::Typedef(target) => ty = target,
                    kind => break matches!(kind, DefinitionKind::Exception(_)),
                }
            };
            known.extend(passed.into_iter().map(|id| (id, exception)));
            if !exception {
                let source = &parsed[service.file.0].source;
                let span = source.span(&field.place, field.name.len());
                let message = format!("'{}' is not an exception, so it cannot be thrown", field.name);
                diagnostics.push(Diagnostic::error(source, &span, message));
            }
        }
    }
}
