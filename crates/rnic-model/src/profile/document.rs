//! One file of a profile: TOML in which every number is `{ value = ..., kind = "...", source = "..." }`.

use super::error::nearest;
use super::{Kind, Parameter, ProfileError, Scope, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Top-level keys whose value is text.
const WORDS: &[&str] = &["title", "processor", "nic", "notes"];
/// Prefix of the sections in which a cluster overrides its NIC.
const OVERRIDE: &str = "override";

/// A text with its line.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) line: usize,
}

/// A file, read and checked key by key.
pub(super) struct Document {
    file: String,
    words: Vec<(String, Word)>,
    values: Vec<(Parameter, usize, Value)>,
    overrides: Vec<(Parameter, Value)>,
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn bad(&self, at: usize, name: &str, problem: impl Into<String>) -> ProfileError {
        ProfileError::Value {
            file: self.file.to_owned(),
            line: self.line(at),
            name: name.to_owned(),
            problem: problem.into(),
        }
    }

    fn unknown<'b>(
        &self,
        at: usize,
        name: String,
        candidates: impl Iterator<Item = &'b str>,
    ) -> ProfileError {
        ProfileError::UnknownKey {
            file: self.file.to_owned(),
            line: self.line(at),
            nearest: nearest(&name, candidates).to_owned(),
            name,
        }
    }

    fn text_of(&self, value: &Spanned<DeValue<'_>>, name: &str) -> Result<Word, ProfileError> {
        match value.get_ref().as_str() {
            Some(text) if !text.trim().is_empty() => {
                Ok(Word { text: text.trim().to_owned(), line: self.line(value.span().start) })
            }
            _ => Err(self.bad(value.span().start, name, "must be a text that says something")),
        }
    }

    fn section(
        &self,
        section: &str,
        table: &DeTable<'_>,
        at: usize,
    ) -> Result<Vec<(Parameter, usize, Value)>, ProfileError> {
        let known: Vec<Parameter> =
            Parameter::ALL.iter().copied().filter(|parameter| parameter.section() == section).collect();
        if known.is_empty() {
            let sections = Parameter::ALL.iter().map(|parameter| parameter.section());
            return Err(self.unknown(at, section.to_owned(), sections.chain(WORDS.iter().copied())));
        }
        let mut values = Vec::new();
        for (key, value) in table {
            let at = key.span().start;
            let Some(parameter) = known.iter().copied().find(|known| known.key() == key.get_ref().as_ref())
            else {
                return Err(self.unknown(
                    at,
                    key.get_ref().to_string(),
                    known.iter().map(|parameter| parameter.key()),
                ));
            };
            values.push((parameter, self.line(at), self.number(parameter, value)?));
        }
        Ok(values)
    }

    fn number(&self, parameter: Parameter, value: &Spanned<DeValue<'_>>) -> Result<Value, ProfileError> {
        let name = parameter.name();
        let at = value.span().start;
        let shape = "must be { value = NUMBER, kind = \"measured|paper|fit|assumed\", source = \"...\" }";
        let Some(table) = value.get_ref().as_table() else {
            return Err(self.bad(at, &name, shape));
        };
        let (mut number, mut kind, mut source) = (None, None, None);
        for (key, value) in table {
            let at = value.span().start;
            match key.get_ref().as_ref() {
                "value" => {
                    let digits = match value.get_ref() {
                        DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
                        DeValue::Float(float) => float.as_str(),
                        _ => return Err(self.bad(at, &name, "must have a decimal number as its value")),
                    };
                    let parsed: f64 = digits.parse().map_err(|_| {
                        self.bad(at, &name, format!("has the value '{digits}', which is no number"))
                    })?;
                    let (low, high) = parameter.range();
                    if !(low..=high).contains(&parsed) {
                        return Err(self.bad(
                            at,
                            &name,
                            format!("is {parsed}; it must be between {low} and {high}"),
                        ));
                    }
                    number = Some(parsed);
                }
                "kind" => {
                    let word = self.text_of(value, &name)?;
                    kind = Some(match word.text.as_str() {
                        "measured" => Kind::Measured,
                        "paper" => Kind::Paper,
                        "fit" => Kind::Fit,
                        "assumed" => Kind::Assumed,
                        other => {
                            let kinds = ["measured", "paper", "fit", "assumed"];
                            return Err(self.unknown(at, other.to_owned(), kinds.into_iter()));
                        }
                    });
                }
                "source" => source = Some(self.text_of(value, &name)?.text),
                other => {
                    let keys = ["value", "kind", "source"];
                    return Err(self.unknown(key.span().start, other.to_owned(), keys.into_iter()));
                }
            }
        }
        match (number, kind, source) {
            (Some(number), Some(kind), Some(source)) => {
                Ok(Value { number, kind, source, file: self.file.to_owned() })
            }
            _ => Err(self.bad(at, &name, shape)),
        }
    }
}

impl Document {
    /// Reads a file.
    pub(super) fn read(file: &str, text: &str) -> Result<Document, ProfileError> {
        let reader = Reader { file, text };
        let parsed = DeTable::parse(text).map_err(|error| ProfileError::Syntax {
            file: file.to_owned(),
            line: reader.line(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let mut document =
            Document { file: file.to_owned(), words: Vec::new(), values: Vec::new(), overrides: Vec::new() };
        for (key, value) in parsed.get_ref() {
            let (name, at) = (key.get_ref().as_ref(), key.span().start);
            if WORDS.contains(&name) {
                document.words.push((name.to_owned(), reader.text_of(value, name)?));
                continue;
            }
            let Some(table) = value.get_ref().as_table() else {
                let sections = Parameter::ALL.iter().map(|parameter| parameter.section());
                return Err(reader.unknown(at, name.to_owned(), WORDS.iter().copied().chain(sections)));
            };
            if name == OVERRIDE {
                for (key, value) in table {
                    let at = key.span().start;
                    let Some(table) = value.get_ref().as_table() else {
                        return Err(reader.bad(
                            at,
                            OVERRIDE,
                            "holds sections of the NIC, as [override.cache]",
                        ));
                    };
                    for (parameter, line, value) in reader.section(key.get_ref(), table, at)? {
                        if parameter.scope() != Scope::Nic {
                            return Err(ProfileError::WrongFile {
                                file: file.to_owned(),
                                line,
                                name: parameter.name(),
                                belongs: "the cluster itself: write it without 'override.'",
                            });
                        }
                        document.overrides.push((parameter, value));
                    }
                }
            } else {
                document.values.extend(reader.section(name, table, at)?);
            }
        }
        Ok(document)
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Rejects keys that belong to the other file.
    pub(super) fn check_scope(&self, scope: Scope) -> Result<(), ProfileError> {
        let belongs = match scope {
            Scope::Nic => "the cluster's file",
            Scope::Cluster => "the NIC's file; a cluster overrides it in [override.*]",
        };
        match self.values.iter().find(|(parameter, ..)| parameter.scope() != scope) {
            Some((parameter, line, _)) => Err(ProfileError::WrongFile {
                file: self.file.clone(),
                line: *line,
                name: parameter.name(),
                belongs,
            }),
            None => Ok(()),
        }
    }

    pub(super) fn word(&self, name: &'static str) -> Result<&Word, ProfileError> {
        let found = self.words.iter().find(|(known, _)| known == name);
        found.map(|(_, word)| word).ok_or_else(|| ProfileError::Missing {
            file: self.file.clone(),
            section: "top of the file",
            key: name,
            meaning: "a text",
        })
    }

    pub(super) fn value(&self, parameter: Parameter) -> Option<&Value> {
        self.values.iter().find(|(known, ..)| *known == parameter).map(|(_, _, value)| value)
    }

    pub(super) fn overridden(&self, parameter: Parameter) -> Option<&Value> {
        self.overrides.iter().find(|(known, _)| *known == parameter).map(|(_, value)| value)
    }
}
