//! The structure of a file from its tokens alone: the locations of definitions, services, functions and
//! hints. The Thrift parser knows neither hints nor locations; this module does not parse types.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::lexer::{Kind, Token, Tokens};
use crate::raw_hint::RawHint;
use crate::source::{Source, Span};
use dunlin_hints::nearest;
use std::ops::Range;

/// The keyword of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Include,
    CppInclude,
    Namespace,
    Typedef,
    Const,
    Enum,
    Struct,
    Union,
    Exception,
    Service,
}

const KEYWORDS: [(&str, ItemKind); 10] = [
    ("include", ItemKind::Include),
    ("cpp_include", ItemKind::CppInclude),
    ("namespace", ItemKind::Namespace),
    ("typedef", ItemKind::Typedef),
    ("const", ItemKind::Const),
    ("enum", ItemKind::Enum),
    ("struct", ItemKind::Struct),
    ("union", ItemKind::Union),
    ("exception", ItemKind::Exception),
    ("service", ItemKind::Service),
];

/// A definition.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) kind: ItemKind,
    /// Its tokens, without trailing separators.
    pub(crate) tokens: Range<usize>,
    /// The content of a service.
    pub(crate) service: Option<ServiceOutline>,
}

/// A service.
#[derive(Debug, Default)]
pub(crate) struct ServiceOutline {
    pub(crate) hints: Vec<RawHint>,
    pub(crate) functions: Vec<FunctionOutline>,
    /// Whether errors in it were already reported. The parser would report them again.
    pub(crate) broken: bool,
    /// The tokens of the groups of hints, each with its ';'.
    pub(crate) groups: Vec<Range<usize>>,
    /// The index of the closing brace.
    pub(crate) close: Option<usize>,
    /// The index of the bracket before its annotations.
    pub(crate) annotations: Option<usize>,
}

/// A function.
#[derive(Debug)]
pub(crate) struct FunctionOutline {
    /// The index of its first token.
    pub(crate) start: usize,
    /// The index of its name.
    pub(crate) name: usize,
    /// The index of the bracket before its arguments.
    pub(crate) arguments: usize,
    /// The index of the bracket before its exceptions.
    pub(crate) throws: Option<usize>,
    pub(crate) hints: Vec<RawHint>,
    /// The tokens of the hints in square brackets, with these.
    pub(crate) brackets: Vec<Range<usize>>,
    /// The index of the bracket before its annotations.
    pub(crate) annotations: Option<usize>,
    /// The index of the last token of its arguments and exceptions, behind which annotations may stand.
    pub(crate) last: usize,
}

/// A file's definitions, and the spans that must be blanked because they are not plain Thrift.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    pub(crate) items: Vec<Item>,
    pub(crate) blanks: Vec<Span>,
}

/// Finds the definitions of a file.
pub(crate) fn outline(source: &Source, tokens: &Tokens, diagnostics: &mut Diagnostics) -> Outline {
    let mut reader = Reader { source, tokens: &tokens.tokens, diagnostics, blanks: Vec::new() };
    let items = reader.items();
    reader.refuse_what_only_begins_as_a_number();
    reader.blank_what_is_not_known();
    Outline { items, blanks: reader.blanks }
}

/// Reads tokens by index. An index past the end is valid and has no token.
pub(crate) struct Reader<'a> {
    pub(crate) source: &'a Source,
    pub(crate) tokens: &'a [Token],
    pub(crate) diagnostics: &'a mut Diagnostics,
    pub(crate) blanks: Vec<Span>,
}

impl Reader<'_> {
    pub(crate) fn is(&self, index: usize, punctuation: u8) -> bool {
        self.tokens.get(index).is_some_and(|token| token.is(punctuation))
    }

    /// Returns the word at an index, or an empty string.
    pub(crate) fn word(&self, index: usize) -> &str {
        match self.tokens.get(index) {
            Some(token) if token.kind == Kind::Word => self.source.slice(&token.span),
            _ => "",
        }
    }

    fn is_separator(&self, index: usize) -> bool {
        self.is(index, b',') || self.is(index, b';')
    }

    /// Returns the index after the bracket that closes the one at `open`.
    pub(crate) fn behind(&self, open: usize) -> usize {
        self.tokens[open].partner.unwrap_or(open) + 1
    }

    /// Returns the byte range of some tokens, or the end of the file.
    pub(crate) fn span(&self, tokens: Range<usize>) -> Span {
        let end = self.source.text.len();
        let start = self.tokens.get(tokens.start).map_or(end, |token| token.span.start);
        let last = tokens.end.max(tokens.start + 1) - 1;
        start..self.tokens.get(last).map_or(end, |token| token.span.end)
    }

    pub(crate) fn error(&self, index: usize, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(self.source, &self.span(index..index + 1), message)
    }

    /// Returns a token's description for a message.
    pub(crate) fn called(&self, index: usize) -> String {
        match self.tokens.get(index) {
            Some(token) => {
                format!("'{}'", self.source.slice(&token.span).chars().take(40).collect::<String>())
            }
            None => "the end of the file".to_owned(),
        }
    }

    fn keyword(&self, index: usize) -> Option<ItemKind> {
        let word = self.word(index);
        KEYWORDS.iter().find(|(keyword, _)| *keyword == word).map(|(_, kind)| *kind)
    }

    fn items(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let Some(kind) = self.keyword(at) else {
                let word = self.word(at);
                let keywords = KEYWORDS.iter().map(|(keyword, _)| *keyword);
                let diagnostic = self
                    .error(at, format!("expected a definition, found {}", self.called(at)))
                    .nearest(nearest(word, keywords));
                self.diagnostics.push(diagnostic);
                at = self.next_keyword(at + 1);
                continue;
            };
            let end = self.item_end(at, kind);
            let service = (kind == ItemKind::Service).then(|| self.service(at, end));
            items.push(Item { kind, tokens: at..end, service });
            at = end;
            while self.is_separator(at) {
                self.blanks.push(self.span(at..at + 1));
                at += 1;
            }
        }
        items
    }

    /// Returns the index of the next keyword outside brackets.
    fn next_keyword(&self, mut at: usize) -> usize {
        while at < self.tokens.len() && self.keyword(at).is_none() {
            at = self.behind_whole(at);
        }
        at
    }

    /// Returns the next index, or the one after the brackets that open here.
    fn behind_whole(&self, at: usize) -> usize {
        match self.tokens[at].partner {
            Some(partner) if partner > at => partner + 1,
            _ => at + 1,
        }
    }

    /// Returns the index after a dotted name, or after a token of another kind.
    fn behind_path(&self, start: usize) -> usize {
        let mut at = start + 1;
        while self.is(at, b'.') && !self.word(at + 1).is_empty() {
            at += 2;
        }
        at
    }

    fn item_end(&self, start: usize, kind: ItemKind) -> usize {
        let braces = matches!(
            kind,
            ItemKind::Enum | ItemKind::Struct | ItemKind::Union | ItemKind::Exception | ItemKind::Service
        );
        if kind == ItemKind::Namespace {
            // Both words may be keywords.
            let name = self.behind_path(self.behind_path(start + 1));
            let end = if self.is(name, b'(') { self.behind(name) } else { name };
            return end.min(self.tokens.len());
        }
        // Skips the keyword and the name, which may itself be a keyword here.
        let mut at = start + 2;
        if !braces {
            // Commas between type parameters do not end the item.
            let mut angles = 0usize;
            while at < self.tokens.len() && self.keyword(at).is_none() {
                if self.is(at, b'<') {
                    angles += 1;
                } else if self.is(at, b'>') {
                    angles = angles.saturating_sub(1);
                } else if angles == 0 && self.is_separator(at) {
                    break;
                }
                at = self.behind_whole(at);
            }
            return at.min(self.tokens.len());
        }
        while at < self.tokens.len() && self.keyword(at).is_none() {
            let body = self.is(at, b'{');
            at = self.behind_whole(at);
            if body {
                return if self.is(at, b'(') { self.behind(at) } else { at };
            }
        }
        at.min(self.tokens.len())
    }

    fn service(&mut self, start: usize, end: usize) -> ServiceOutline {
        let mut outline = ServiceOutline::default();
        let Some(open) = (start..end).find(|index| self.is(*index, b'{')) else { return outline };
        let close = self.behind(open) - 1;
        outline.close = Some(close);
        let mut at = open + 1;
        while at < close {
            if self.tokens[at].kind == Kind::Word && self.is(at + 1, b':') {
                if !outline.functions.is_empty() {
                    let diagnostic = self
                        .error(at, "hints of a service stand before its functions")
                        .help("move the group up, or put it into [ ] behind the function that it is for");
                    self.diagnostics.push(diagnostic);
                }
                let group = at;
                at = self.hint_group(at, close, &mut outline.hints);
                outline.groups.push(group..at);
                self.blanks.push(self.span(group..at));
                continue;
            }
            match self.function(at, close) {
                Some((function, _)) if function.name == at => {
                    let word = self.word(at);
                    let message = format!("expected the type and the name of a function, found '{word}'");
                    let diagnostic = self.error(at, message).nearest(nearest(word, ["throws"]));
                    self.diagnostics.push(diagnostic);
                    outline.broken = true;
                    break;
                }
                Some((function, next)) => {
                    outline.functions.push(function);
                    at = next;
                }
                // The parser reports the error here.
                None => break,
            }
        }
        if self.is(close + 1, b'(') && close + 1 < end {
            self.annotations(close + 1, &mut outline.hints);
            outline.annotations = Some(close + 1);
        }
        outline
    }

    /// Reads a function. Returns it with the index after it.
    fn function(&mut self, start: usize, close: usize) -> Option<(FunctionOutline, usize)> {
        let mut name = start;
        loop {
            match self.tokens.get(name)?.kind {
                _ if name >= close => return None,
                Kind::Word if self.is(name + 1, b'(') && !self.is_annotation(name + 1) => break,
                // An annotation of the result type.
                Kind::Punctuation(b'(') if self.is_annotation(name) => name = self.behind(name),
                Kind::Word | Kind::Literal | Kind::Punctuation(b'<' | b'>' | b',' | b'.') => name += 1,
                Kind::Punctuation(_) => return None,
            }
        }
        let arguments = name + 1;
        let mut at = self.behind(arguments);
        let mut function = FunctionOutline {
            start,
            name,
            arguments,
            throws: None,
            hints: Vec::new(),
            brackets: Vec::new(),
            annotations: None,
            last: at - 1,
        };
        let mut separated = false;
        loop {
            if self.is(at, b'[') {
                let end = self.behind(at);
                self.bracket_hints(at, &mut function.hints);
                function.brackets.push(at..end);
                self.blanks.push(self.span(at..end));
                at = end;
            } else if separated {
                break;
            } else if self.word(at) == "throws" && self.is(at + 1, b'(') {
                let behind = self.behind(at + 1);
                if behind == at + 3 {
                    self.blanks.push(self.span(at..behind));
                } else {
                    function.throws = Some(at + 1);
                }
                function.last = behind - 1;
                at = behind;
            } else if self.is(at, b'(') {
                self.annotations(at, &mut function.hints);
                function.annotations.get_or_insert(at);
                at = self.behind(at);
            } else if self.is_separator(at) {
                separated = true;
                at += 1;
            } else {
                break;
            }
        }
        Some((function, at))
    }

    /// Returns whether brackets contain annotations: `key = "value"` or a key alone.
    pub(crate) fn is_annotation(&self, open: usize) -> bool {
        let mut at = open + 1;
        if self.word(at).is_empty() || self.word(at).starts_with(|c: char| c.is_ascii_digit()) {
            return false;
        }
        while self.is(at + 1, b'.') && !self.word(at + 2).is_empty() {
            at += 2;
        }
        self.is(at + 1, b'=') || self.is_separator(at + 1) || self.is(at + 1, b')')
    }

    /// Values of hints may be words such as `1KB`. In Thrift, a word that begins with a digit is a number;
    /// the parser would accept the digits and continue in the middle of the word.
    fn refuse_what_only_begins_as_a_number(&mut self) {
        let mut hints = self.blanks.iter().peekable();
        let mut wrong = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            while hints.next_if(|hint| hint.end <= token.span.start).is_some() {}
            let in_hint = hints.peek().is_some_and(|hint| hint.start <= token.span.start);
            if !in_hint && token.kind == Kind::Word && !is_word_or_number(self.source.slice(&token.span)) {
                wrong.push(index);
            }
        }
        for index in wrong {
            let diagnostic =
                self.error(index, format!("{} is neither a name nor a number", self.called(index)));
            self.diagnostics.push(diagnostic);
        }
    }

    /// Blanks valid Thrift that the parser rejects: annotations without a value, `&` of fields, a byte order
    /// mark.
    fn blank_what_is_not_known(&mut self) {
        if self.source.text.starts_with('\u{feff}') {
            self.blanks.push(0..'\u{feff}'.len_utf8());
        }
        for index in 0..self.tokens.len() {
            // The position between a type and a name.
            let typed = index > 0
                && (!self.word(index - 1).is_empty() || self.is(index - 1, b'>') || self.is(index - 1, b')'));
            if self.is(index, b'&') && typed && !self.word(index + 1).is_empty() {
                self.blanks.push(self.span(index..index + 1));
            }
            if self.is(index, b'(') && self.is_annotation(index) {
                for entry in self.entries(index) {
                    if entry.value.is_none() {
                        self.blanks.push(self.span(entry.tokens));
                    }
                }
            }
        }
    }
}

/// Returns whether a word is valid in Thrift: a name, or a number without sign and point.
fn is_word_or_number(word: &str) -> bool {
    if !word.starts_with(|c: char| c.is_ascii_digit()) {
        return true;
    }
    if let Some(digits) = word.strip_prefix("0x") {
        return !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    }
    let (number, exponent) = word.split_once(['e', 'E']).unwrap_or((word, ""));
    number.bytes().chain(exponent.bytes()).all(|b| b.is_ascii_digit())
}

/// Replaces spans by spaces. Line ends stay.
pub(crate) fn blank(text: &str, spans: impl IntoIterator<Item = Span>) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for span in spans {
        for byte in &mut bytes[span] {
            if !matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
    }
    // Spans lie on character boundaries, so the result is valid UTF-8.
    String::from_utf8(bytes).unwrap_or_default()
}
