//! Splits a file into tokens with locations. Reports unknown characters as errors and skips them.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::source::{Source, Span};

/// The maximum nesting depth of brackets of any kind. It bounds the recursion of all later passes.
pub(crate) const MAX_DEPTH: usize = 64;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Letters, digits and underscores: an identifier, a keyword or a number.
    Word,
    /// A quoted string.
    Literal,
    /// A single character.
    Punctuation(u8),
}

/// A token.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) span: Span,
    /// The index of the matching bracket, for `(`, `[`, `{` and their closing brackets.
    pub(crate) partner: Option<usize>,
}

impl Token {
    pub(crate) fn is(&self, punctuation: u8) -> bool {
        self.kind == Kind::Punctuation(punctuation)
    }
}

/// A comment, and the index of the next token.
#[derive(Clone, Debug)]
pub(crate) struct Comment {
    pub(crate) span: Span,
    pub(crate) before: usize,
}

/// A file's tokens and comments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) tokens: Vec<Token>,
    pub(crate) comments: Vec<Comment>,
}

/// Thrift's punctuation characters.
const PUNCTUATION: &[u8] = b"(){}[]<>,;:=.*+-&";

/// Splits a file into tokens. Returns `None` after reporting an error that makes the tokens unusable.
pub(crate) fn lex(source: &Source, diagnostics: &mut Diagnostics) -> Option<Tokens> {
    let text = &*source.text;
    let bytes = text.as_bytes();
    let mut all = Tokens::default();
    let mut sound = true;
    let mut at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => at += 1,
            b'#' => {
                at = line_end(text, at);
                all.comment(start..at);
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = line_end(text, at);
                all.comment(start..at);
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let Some(length) = text[at + 2..].find("*/") else {
                    let message = "this comment has no end: '*/' is missing";
                    diagnostics.push(Diagnostic::error(source, &(start..start + 2), message));
                    return None;
                };
                at += 2 + length + 2;
                all.comment(start..at);
            }
            b'"' | b'\'' => {
                let Some(end) = literal_end(bytes, at) else {
                    let message = "this text has no end: its closing quote is missing";
                    diagnostics.push(Diagnostic::error(source, &(start..start + 1), message));
                    return None;
                };
                at = end;
                all.push(Kind::Literal, start..at);
            }
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' => {
                let word = bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_');
                at += word.count();
                all.push(Kind::Word, start..at);
            }
            punctuation if PUNCTUATION.contains(&punctuation) => {
                at += 1;
                all.push(Kind::Punctuation(punctuation), start..at);
            }
            _ => {
                let character = text[at..].chars().next().unwrap_or(' ');
                at += character.len_utf8();
                sound = false;
                let message = format!("unexpected character {character:?}");
                diagnostics.push(Diagnostic::error(source, &(start..at), message));
            }
        }
    }
    (pair(&mut all.tokens, source, diagnostics) && sound).then_some(all)
}

impl Tokens {
    fn push(&mut self, kind: Kind, span: Span) {
        self.tokens.push(Token { kind, span, partner: None });
    }

    fn comment(&mut self, span: Span) {
        self.comments.push(Comment { span, before: self.tokens.len() });
    }
}

fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |length| at + length)
}

/// Returns the offset after the closing quote.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    let quote = bytes[at];
    let mut end = at + 1;
    loop {
        match *bytes.get(end)? {
            b'\\' => end += 2,
            byte if byte == quote => return Some(end + 1),
            _ => end += 1,
        }
    }
}

/// Matches brackets. Returns whether all are matched and none is nested too deeply.
fn pair(tokens: &mut [Token], source: &Source, diagnostics: &mut Diagnostics) -> bool {
    let mut open: Vec<(usize, u8)> = Vec::new();
    // Open type parameters. They are not matched: the parser reports a surplus '>'.
    let mut angles = 0usize;
    for index in 0..tokens.len() {
        let Kind::Punctuation(punctuation) = tokens[index].kind else { continue };
        let span = tokens[index].span.clone();
        match punctuation {
            b'(' => open.push((index, b')')),
            b'[' => open.push((index, b']')),
            b'{' => open.push((index, b'}')),
            b'<' => angles += 1,
            b'>' => angles = angles.saturating_sub(1),
            b')' | b']' | b'}' => {
                let closed = char::from(punctuation);
                let Some((opened, expected)) = open.pop() else {
                    let message = format!("'{closed}' closes nothing");
                    diagnostics.push(Diagnostic::error(source, &span, message));
                    return false;
                };
                if expected != punctuation {
                    let begin = tokens[opened].span.clone();
                    let message = format!("expected '{}', found '{closed}'", char::from(expected));
                    let what = format!("'{}' is opened here", source.slice(&begin));
                    diagnostics.push(
                        Diagnostic::error(source, &span, message).related(source.place(begin.start), what),
                    );
                    return false;
                }
                tokens[index].partner = Some(opened);
                tokens[opened].partner = Some(index);
            }
            // No type extends past these tokens.
            b';' | b'=' => angles = 0,
            _ => {}
        }
        if open.len() + angles > MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} deep");
            diagnostics
                .push(Diagnostic::error(source, &span, message).help("name the inner types by typedefs"));
            return false;
        }
    }
    if let Some((opened, expected)) = open.pop() {
        let span = tokens[opened].span.clone();
        let message =
            format!("'{}' is not closed: '{}' is missing", source.slice(&span), char::from(expected));
        diagnostics.push(Diagnostic::error(source, &span, message));
        return false;
    }
    true
}
