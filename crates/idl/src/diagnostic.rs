//! Errors and warnings about a file, with their locations.

use crate::source::{Source, Span};
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use dunlin_hints::Place;
use std::fmt;
use std::ops::Range;

/// The maximum number of collected diagnostics.
pub const MAX_DIAGNOSTICS: usize = 100;

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Suspicious, but not an error.
    Warning,
    /// The file cannot be used.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// A description in one line.
    pub message: String,
    /// The location.
    pub place: Place,
    /// The text of the line at the location.
    pub line_text: String,
    /// The byte range to mark in that line.
    pub marked: Range<usize>,
    /// Advice on how to fix it.
    pub help: Option<String>,
    /// Related locations with a description of each.
    pub related: Vec<(Place, String)>,
}

impl Diagnostic {
    pub(crate) fn new(severity: Severity, source: &Source, span: &Span, message: impl Into<String>) -> Self {
        let (line, marked) = source.line(span);
        Diagnostic {
            severity,
            message: message.into(),
            place: source.place(span.start),
            line_text: line.to_owned(),
            marked,
            help: None,
            related: Vec::new(),
        }
    }

    pub(crate) fn error(source: &Source, span: &Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, source, span, message)
    }

    pub(crate) fn warning(source: &Source, span: &Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, source, span, message)
    }

    /// Creates an error about a file that cannot be read.
    pub(crate) fn unreadable(file: &str, message: impl Into<String>) -> Self {
        Self::error(&Source::new(file, ""), &(0..0), message)
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Diagnostic { help: Some(help.into()), ..self }
    }

    /// Suggests the nearest valid word, if there is one.
    pub(crate) fn nearest(self, nearest: Option<&str>) -> Self {
        match nearest {
            Some(nearest) => self.help(format!("did you mean '{nearest}'?")),
            None => self,
        }
    }

    pub(crate) fn related(mut self, place: Place, what: impl Into<String>) -> Self {
        self.related.push((place, what.into()));
        self
    }
}

/// Displays the message, `--> file:line:column`, the line with its marked range, and the advice.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.severity {
            Severity::Warning => Level::WARNING,
            Severity::Error => Level::ERROR,
        };
        let file = self.place.file.to_string();
        let snippet = Snippet::source(self.line_text.as_str())
            .line_start(self.place.line as usize)
            .path(file)
            .annotation(AnnotationKind::Primary.span(self.marked.clone()));
        let mut group = level.primary_title(self.message.as_str()).element(snippet);
        for (place, what) in &self.related {
            group = group.element(Level::NOTE.message(format!("{place}: {what}")));
        }
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        f.write_str(&Renderer::plain().render(&[group]))
    }
}

/// Errors and warnings, in the order of files and lines. `Display` shows them one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    left_out: usize,
}

impl Diagnostics {
    pub(crate) fn push(&mut self, diagnostic: Diagnostic) {
        if self.list.contains(&diagnostic) {
            return;
        }
        if self.list.len() < MAX_DIAGNOSTICS {
            self.list.push(diagnostic);
            return;
        }
        self.left_out += 1;
        // An error replaces a warning if the list is full.
        if diagnostic.severity == Severity::Error
            && let Some(warning) = self.list.iter().rposition(|other| other.severity == Severity::Warning)
        {
            self.list[warning] = diagnostic;
        }
    }

    /// Returns whether further diagnostics will be shown.
    pub(crate) fn have_room(&self) -> bool {
        self.list.len() < MAX_DIAGNOSTICS
    }

    /// Sorts by file, with the rank that `rank` returns, and location.
    pub(crate) fn sort(&mut self, rank: impl Fn(&str) -> usize) {
        self.list.sort_by_key(|diagnostic| {
            let place = &diagnostic.place;
            (rank(&place.file), place.line, place.column)
        });
    }

    /// Returns an iterator over the diagnostics.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.list.iter()
    }

    /// Returns whether there are no diagnostics.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of errors.
    pub fn errors(&self) -> usize {
        self.list.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count()
    }

    /// Returns the number of diagnostics dropped because of [`MAX_DIAGNOSTICS`].
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            write!(f, "{diagnostic}")?;
        }
        if self.left_out > 0 {
            write!(f, "\n\n{} more are not shown", self.left_out)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
