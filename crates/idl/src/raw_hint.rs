//! Unparsed hints in both notations.
//!
//! HatRPC's notation (its figure 7): `hint: key = value, key = value;` for both sides, `c_hint:` for the
//! client and `s_hint:` for the server, in a service before its functions and in `[ ]` after a function.
//!
//! Plain Thrift annotations after a function or a service:
//! `(perf_goal = "latency", c_hint.polling = "busy")`. A key alone or after `hint.` applies to both sides,
//! after `c_hint.` to the client, and after `s_hint.` to the server. Other annotations are ignored.

use crate::diagnostic::Diagnostic;
use crate::lexer::Kind;
use crate::outline::Reader;
use crate::source::Span;
use dunlin_hints::{Key, Side, nearest};
use std::ops::Range;

/// A hint whose key and value are not yet parsed.
#[derive(Clone, Debug)]
pub(crate) struct RawHint {
    /// The side; `None` for both.
    pub(crate) side: Option<Side>,
    pub(crate) key: Span,
    /// The offset of the key's name in its span, after `c_hint.` or another prefix.
    pub(crate) name: usize,
    pub(crate) value: Span,
    /// The value without quotes.
    pub(crate) word: String,
}

/// The hint groups: their names and sides.
const GROUPS: [(&str, Option<Side>); 3] =
    [("hint", None), ("c_hint", Some(Side::Client)), ("s_hint", Some(Side::Server))];

const GROUP_HELP: &str = "groups are hint: for both sides, c_hint: for the client, s_hint: for the server";

/// An annotation.
pub(crate) struct Entry {
    /// Its tokens, including the separator after it.
    pub(crate) tokens: Range<usize>,
    /// The tokens of its key.
    key: Range<usize>,
    /// The token of its value.
    pub(crate) value: Option<usize>,
}

impl Reader<'_> {
    /// Reads the group that begins at `start` and ends before `end`. Returns the index after it.
    pub(crate) fn hint_group(&mut self, start: usize, end: usize, hints: &mut Vec<RawHint>) -> usize {
        let word = self.word(start);
        let side = GROUPS.iter().find(|(name, _)| *name == word).map(|(_, side)| *side);
        if side.is_none() {
            let names = GROUPS.iter().map(|(name, _)| *name);
            let mut diagnostic = self.error(start, format!("'{word}' is not a group of hints"));
            diagnostic = match nearest(word, names) {
                Some(nearest) => diagnostic.help(format!("did you mean '{nearest}'? {GROUP_HELP}")),
                None => diagnostic.help(GROUP_HELP),
            };
            self.diagnostics.push(diagnostic);
        }
        let mut at = start + 2;
        loop {
            let key = at;
            at = self.adjacent(key, end);
            if at == key {
                let message = format!("expected a hint as 'perf_goal = latency', found {}", self.called(at));
                let diagnostic = self.error(at, message);
                self.diagnostics.push(diagnostic);
                return self.group_end(at, end);
            }
            let keys = key..at;
            if !self.is(at, b'=') || at >= end {
                let message = format!("expected '=' and a value, found {}", self.called(at));
                let diagnostic = self.error(at, message);
                self.diagnostics.push(diagnostic);
                return self.group_end(at, end);
            }
            let value = at + 1;
            at = self.adjacent(value, end);
            if at == value {
                let message = format!("expected a value, found {}", self.called(at));
                let diagnostic = self.error(at, message);
                self.diagnostics.push(diagnostic);
                return self.group_end(at, end);
            }
            if let Some(side) = side {
                hints.push(self.raw(side, keys, 0, value..at));
            }
            if at < end && self.is(at, b',') {
                at += 1;
                continue;
            }
            if at < end && self.is(at, b';') {
                return at + 1;
            }
            // The last group in brackets needs no ';'.
            if at == end && self.is(end, b']') {
                return at;
            }
            let message = format!("expected ',' or ';' behind the hint, found {}", self.called(at));
            let diagnostic = self.error(at, message).help("a group of hints ends with ';'");
            self.diagnostics.push(diagnostic);
            if at < end && self.tokens[at].kind == Kind::Word && self.is(at + 1, b'=') {
                continue;
            }
            return at;
        }
    }

    /// Returns the index after the ';' that ends a group, or the index at which something else must begin.
    fn group_end(&self, mut at: usize, end: usize) -> usize {
        while at < end && !self.is(at, b';') && !self.is(at, b'(') && !self.is(at, b'[') {
            at += 1;
        }
        if at < end && self.is(at, b';') { at + 1 } else { at }
    }

    /// Returns the index after the tokens that form one word of a hint: those without gaps between them.
    pub(crate) fn adjacent(&self, start: usize, end: usize) -> usize {
        let mut at = start;
        while at < end {
            let token = &self.tokens[at];
            let part = matches!(token.kind, Kind::Word | Kind::Punctuation(b'.' | b'-' | b'+'))
                || (token.kind == Kind::Literal && at == start);
            if !part || (at > start && self.tokens[at - 1].span.end != token.span.start) {
                break;
            }
            at += 1;
            if token.kind == Kind::Literal {
                break;
            }
        }
        at
    }

    fn raw(&self, side: Option<Side>, key: Range<usize>, name: usize, value: Range<usize>) -> RawHint {
        let quoted = self.tokens[value.start].kind == Kind::Literal;
        let (key, value) = (self.span(key), self.span(value));
        let word = self.source.slice(&value);
        let word = if quoted { &word[1..word.len() - 1] } else { word }.to_owned();
        RawHint { side, key, name, value, word }
    }

    /// Reads hints in `[ ... ]`.
    pub(crate) fn bracket_hints(&mut self, open: usize, hints: &mut Vec<RawHint>) {
        let end = self.behind(open) - 1;
        let mut at = open + 1;
        while at < end {
            if self.tokens[at].kind == Kind::Word && self.is(at + 1, b':') && at + 1 < end {
                at = self.hint_group(at, end, hints);
                continue;
            }
            let message = format!("expected 'hint:', 'c_hint:' or 's_hint:', found {}", self.called(at));
            let diagnostic = self
                .error(at, message)
                .help("for example [ hint: perf_goal = latency; c_hint: polling = busy; ]");
            self.diagnostics.push(diagnostic);
            at = self.group_end(at, end).max(at + 1);
        }
    }

    /// Returns the annotations in the brackets that open at `open`, up to the first malformed one.
    pub(crate) fn entries(&self, open: usize) -> Vec<Entry> {
        let end = self.behind(open) - 1;
        let mut entries = Vec::new();
        let mut at = open + 1;
        while at < end && !self.word(at).is_empty() {
            let start = at;
            at += 1;
            while self.is(at, b'.') && !self.word(at + 1).is_empty() {
                at += 2;
            }
            let key = start..at;
            let mut value = None;
            if self.is(at, b'=') && self.tokens.get(at + 1).is_some_and(|token| token.kind == Kind::Literal) {
                value = Some(at + 1);
                at += 2;
            }
            if at < end && (self.is(at, b',') || self.is(at, b';')) {
                at += 1;
            }
            entries.push(Entry { tokens: start..at, key, value });
        }
        entries
    }

    /// Reads the annotations in the brackets that open at `open` and collects those that are hints.
    pub(crate) fn annotations(&mut self, open: usize, hints: &mut Vec<RawHint>) {
        for entry in self.entries(open) {
            let span = self.span(entry.key.clone());
            let key = self.source.slice(&span).to_owned();
            let (side, name) = match key.split_once('.') {
                None if Key::by_name(&key).is_some() => (None, 0),
                None => {
                    self.warn_of_nearly(&key, &span);
                    continue;
                }
                Some((group, name)) => match GROUPS.iter().find(|(known, _)| *known == group) {
                    Some((_, side)) => (*side, key.len() - name.len()),
                    None => {
                        self.refuse_group(group, name, &span);
                        continue;
                    }
                },
            };
            let Some(value) = entry.value else {
                let message = format!("'{key}' needs a value");
                let known = Key::by_name(&key[name..]);
                let mut diagnostic = Diagnostic::error(self.source, &span, message);
                if let Some(known) = known {
                    diagnostic = diagnostic.help(format!("{known} takes {}", known.values()));
                }
                self.diagnostics.push(diagnostic);
                continue;
            };
            hints.push(self.raw(side, entry.key, name, value..value + 1));
        }
    }

    /// Without this warning, a misspelt hint would be silently ignored as another tool's annotation.
    fn warn_of_nearly(&mut self, key: &str, span: &Span) {
        if let Some(nearest) = Key::nearest_name(key) {
            let message = format!("the annotation '{key}' is not a hint");
            let diagnostic = Diagnostic::warning(self.source, span, message).nearest(Some(nearest));
            self.diagnostics.push(diagnostic);
        }
    }

    /// Rejects a misspelt group such as `c_hnt.polling`. Annotations for other tools, such as `go.tag`, are
    /// ignored.
    fn refuse_group(&mut self, group: &str, name: &str, span: &Span) {
        let near = nearest(group, GROUPS.iter().map(|(known, _)| *known));
        if let (Some(near), Some(_)) = (near, Key::by_name(name)) {
            let message = format!("'{group}' is not a group of hints");
            let diagnostic =
                Diagnostic::error(self.source, span, message).help(format!("did you mean '{near}.{name}'?"));
            self.diagnostics.push(diagnostic);
        }
    }
}
