//! Facts that stand in the sources: documentation and messages of enums, names of environment variables.

use crate::pages::{files, root};
use anyhow::{Context as _, Result};
use quote::ToTokens as _;
use regex::Regex;
use std::collections::BTreeSet;
use std::path::Path;
use syn::{Attribute, Expr, Field, Fields, Item, ItemEnum, Lit, Meta, Visibility};

/// A variant of an enum.
#[derive(Debug)]
pub struct Variant {
    /// The name.
    pub name: String,
    /// The first paragraph of its documentation.
    pub meaning: String,
    /// The format of its message, of an error; "as its cause" for a message that is its cause's.
    pub message: Option<String>,
    /// Whether it has a source, other than through such a message.
    pub has_source: bool,
}

/// An enum with its variants.
#[derive(Debug)]
pub struct Enum {
    /// The name.
    pub name: String,
    /// The first paragraph of its documentation.
    pub meaning: String,
    /// The variants.
    pub variants: Vec<Variant>,
}

/// The public error enums of the sources in a crate's folder, in the order of files and lines.
pub fn errors_of(folder: &str) -> Result<Vec<Enum>> {
    let mut found = Vec::new();
    for file in files(&root().join(folder).join("src"), "rs") {
        found.extend(enums(&file)?.into_iter().filter(is_error).map(|item| describe(&item)));
    }
    Ok(found)
}

/// The public enums of the sources in a crate's folder that say why something failed: the name of each, and whether
/// callers have to expect further variants.
pub fn failures_of(folder: &str) -> Result<Vec<(String, bool)>> {
    let is_failure = |name: &str| name.ends_with("Error") || matches!(name, "Cause" | "Status" | "Certainty");
    let mut found = Vec::new();
    for file in files(&root().join(folder).join("src"), "rs") {
        let named = enums(&file)?.into_iter().map(|item| {
            let open = item.attrs.iter().any(|attribute| attribute.path().is_ident("non_exhaustive"));
            (item.ident.to_string(), open)
        });
        found.extend(named.filter(|(name, _)| is_failure(name)));
    }
    Ok(found)
}

/// One public enum of a file.
pub fn enum_of(file: &str, name: &str) -> Result<Enum> {
    let found = enums(&root().join(file))?.into_iter().find(|item| item.ident == name);
    found.map(|item| describe(&item)).with_context(|| format!("no enum {name} in {file}"))
}

fn enums(file: &Path) -> Result<Vec<ItemEnum>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
    let public = |item| match item {
        Item::Enum(item) if matches!(item.vis, Visibility::Public(_)) => Some(item),
        _ => None,
    };
    Ok(parsed.items.into_iter().filter_map(public).collect())
}

fn is_error(item: &ItemEnum) -> bool {
    item.variants
        .iter()
        .any(|variant| variant.attrs.iter().any(|attribute| attribute.path().is_ident("error")))
}

fn describe(item: &ItemEnum) -> Enum {
    let variants = item.variants.iter().map(|variant| Variant {
        name: variant.ident.to_string(),
        meaning: documentation(&variant.attrs),
        message: variant.attrs.iter().find_map(message),
        has_source: !is_transparent(&variant.attrs) && source(&variant.fields).is_some(),
    });
    Enum { name: item.ident.to_string(), meaning: documentation(&item.attrs), variants: variants.collect() }
}

/// The first paragraph, its links without brackets.
fn documentation(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    let lines: Vec<String> = attributes.iter().filter_map(line).take_while(|line| !line.is_empty()).collect();
    let links = Regex::new(r"\[(`[^`]*`)\](?:\([^)]*\))?").ok();
    let text = lines.join(" ");
    links.map_or(text.clone(), |links| links.replace_all(&text, "$1").into_owned())
}

fn message(attribute: &Attribute) -> Option<String> {
    let list = match &attribute.meta {
        Meta::List(list) if list.path.is_ident("error") => list,
        _ => return None,
    };
    let first = list.tokens.clone().into_iter().next()?;
    match syn::parse2::<Lit>(first.to_token_stream()) {
        Ok(Lit::Str(text)) => Some(text.value().split_whitespace().collect::<Vec<_>>().join(" ")),
        _ => Some("as its cause".to_owned()),
    }
}

/// Returns the arguments of `#[error(..)]`.
fn arguments(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("error") => Some(list.tokens.to_string()),
        _ => None,
    })
}

fn is_transparent(attributes: &[Attribute]) -> bool {
    arguments(attributes).is_some_and(|arguments| arguments == "transparent")
}

/// Returns the name or index of the field that `thiserror` takes as an error's source.
fn source(fields: &Fields) -> Option<String> {
    let is_source = |field: &Field| {
        let marked = |name| field.attrs.iter().any(|attribute| attribute.path().is_ident(name));
        marked("source") || marked("from") || field.ident.as_ref().is_some_and(|name| name == "source")
    };
    let (index, field) = fields.iter().enumerate().find(|(_, field)| is_source(field))?;
    Some(field.ident.as_ref().map_or(index.to_string(), ToString::to_string))
}

/// Returns whether the message of an error names the field that is its source.
fn repeats(attributes: &[Attribute], fields: &Fields) -> bool {
    let (Some(arguments), Some(source)) = (arguments(attributes), source(fields)) else { return false };
    let named = Regex::new(&format!(r"\{{{source}\b|\.\s*{source}\b|\*\s*{source}\b|,\s*{source}\b"));
    !is_transparent(attributes) && named.is_ok_and(|named| named.is_match(&arguments))
}

/// The errors of all crates: how many have a source, and which of those have its text in their message.
pub fn messages_with_sources() -> Result<(usize, Vec<String>)> {
    let (mut count, mut repeating) = (0, Vec::new());
    let sources = ["crates", "apps"].map(|folder| files(&root().join(folder), "rs"));
    for file in sources.into_iter().flatten() {
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        if !text.contains("#[error(") {
            continue;
        }
        let parsed = syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
        let mut check = |name: String, attributes: &[Attribute], fields: &Fields| {
            count += usize::from(source(fields).is_some());
            if repeats(attributes, fields) {
                repeating.push(format!("{}: {name}", file.display()));
            }
        };
        for item in &parsed.items {
            match item {
                Item::Enum(item) => {
                    for variant in &item.variants {
                        check(format!("{}::{}", item.ident, variant.ident), &variant.attrs, &variant.fields);
                    }
                }
                Item::Struct(item) => check(item.ident.to_string(), &item.attrs, &item.fields),
                _ => {}
            }
        }
    }
    Ok((count, repeating))
}

/// The environment variables of the project that the sources of programs and libraries name.
#[must_use]
pub fn environment_variables() -> BTreeSet<String> {
    let Ok(name) = Regex::new(r"DUNLIN_[A-Z][A-Z_]*[A-Z]\b") else { return BTreeSet::new() };
    let crates = root().join("crates");
    let sources = files(&crates, "rs").into_iter().filter(|file| {
        let inside = file.strip_prefix(&crates).unwrap_or(file);
        inside.components().nth(1).is_some_and(|part| part.as_os_str() == "src")
    });
    let mut found = BTreeSet::new();
    for file in sources {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        found.extend(name.find_iter(&text).map(|hit| hit.as_str().to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_names_its_source_is_found() {
        let repeats_source = |text: &str| {
            let item: ItemEnum = syn::parse_str(text).unwrap();
            repeats(&item.variants[0].attrs, &item.variants[0].fields)
        };
        assert!(repeats_source(r#"enum E { #[error("no: {0}")] A(#[from] F) }"#));
        assert!(repeats_source(r#"enum E { #[error("{}: no", .0.text())] A(#[source] F) }"#));
        assert!(repeats_source(r#"enum E { #[error("no: {source}")] A { source: F } }"#));
        assert!(repeats_source(r#"enum E { #[error("{}", readable(*why))] A { #[source] why: F } }"#));
        assert!(!repeats_source(r#"enum E { #[error("no: {0}")] A(F) }"#));
        assert!(!repeats_source(r#"enum E { #[error(transparent)] A(#[from] F) }"#));
        assert!(!repeats_source(r#"enum E { #[error("no: {1}")] A(#[source] F, u8) }"#));
    }
}
