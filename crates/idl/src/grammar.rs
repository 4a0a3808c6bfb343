//! Parses one definition with `pilota-thrift-parser` and converts its errors to locations.

use chumsky::Parser as _;
use chumsky::error::{Rich, RichPattern, RichReason};
use chumsky::primitive::end;
use pilota_thrift_parser::{Components, Item};

/// The parser's error for a text that is not a definition.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    /// The byte offset of the error.
    pub(crate) offset: usize,
    /// The tokens expected there, for a message; may be empty.
    pub(crate) expected: String,
    /// A complete message, if the parser has one.
    pub(crate) custom: Option<String>,
}

/// Parses the text of one definition.
pub(crate) fn parse(text: &str) -> Result<Item, Vec<SyntaxError>> {
    let parser = Item::parse().then_ignore(Components::blank_with_comments()).then_ignore(end());
    parser.parse(text).into_result().map_err(|errors| errors.iter().map(syntax_error).collect())
}

fn syntax_error(error: &Rich<'_, char>) -> SyntaxError {
    let offset = error.span().start;
    match error.reason() {
        RichReason::Custom(message) => {
            SyntaxError { offset, expected: String::new(), custom: Some(message.clone()) }
        }
        RichReason::ExpectedFound { expected, .. } => {
            SyntaxError { offset, expected: in_words(expected), custom: None }
        }
    }
}

/// Describes the characters that the parser expects: punctuation verbatim, letters and digits as the tokens
/// that begin with them; whitespace is omitted.
fn in_words(expected: &[RichPattern<'_, char>]) -> String {
    let mut punctuation = Vec::new();
    let (mut word, mut number, mut text) = (false, false, false);
    for pattern in expected {
        match pattern {
            RichPattern::Token(token) => match **token {
                '+' | '-' => number = true,
                '"' | '\'' => text = true,
                c if c.is_ascii_digit() => number = true,
                c if c.is_alphabetic() => word = true,
                '/' | '#' | '.' => {}
                c if c.is_whitespace() => {}
                c => punctuation.push(format!("'{c}'")),
            },
            RichPattern::Label(_) | RichPattern::Identifier(_) => word = true,
            RichPattern::Any | RichPattern::SomethingElse | RichPattern::EndOfInput => {}
        }
    }
    punctuation.sort_unstable();
    punctuation.dedup();
    for (is, what) in [(word, "a word"), (number, "a number"), (text, "a quoted text")] {
        if is {
            punctuation.push(what.to_owned());
        }
    }
    match punctuation.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}
