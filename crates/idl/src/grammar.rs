//! One definition through `pilota-thrift-parser`, its complaints as places.

use chumsky::Parser as _;
use chumsky::error::{Rich, RichPattern, RichReason};
use chumsky::primitive::end;
use pilota_thrift_parser::{Components, Item};

/// What the parser says of a text that is no definition.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    /// The byte from which on it cannot be understood.
    pub(crate) offset: usize,
    /// What could stand there, for a message; may be empty.
    pub(crate) expected: String,
    /// A message that says it all, if there is one.
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

/// The parser works on characters: of those that it could go on with, punctuation is told as it is, letters and
/// digits as what begins with them, and the space between words not at all.
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
