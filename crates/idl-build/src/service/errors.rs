//! Code generation for the error of a service's callers: one enum with a variant for each declared exception
//! type of the service's functions, inherited ones included, and one for every other failure.

use super::Function;
use crate::values::Values;
use pilota_build::db::RirDatabase;
use pilota_build::rir::{FieldKind, Item, NodeKind};
use pilota_build::ty::{Ty, TyKind};
use pilota_build::{Context, DefId};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The variant of failures that are no declared exception.
const CALL: &str = "Call";

/// A type of declared exceptions.
struct Thrown {
    /// The path of the type.
    ty: String,
    /// The variant of the service's error.
    variant: String,
    /// The field with the exception's text, and whether it is optional.
    text: Option<(String, bool)>,
}

/// Returns the name of the service's error: `ServiceError`, with the first free number behind it if the module
/// has another item of that name.
pub(super) fn name(cx: &Context, service: DefId) -> String {
    let module = cx.mod_path(service);
    let items = cx.nodes().iter().filter(|(_, node)| matches!(node.kind, NodeKind::Item(_)));
    let neighbours = items.map(|(item, _)| *item).filter(|item| cx.mod_path(*item) == module);
    let taken: BTreeSet<String> = neighbours.map(|item| cx.rust_name(item).to_string()).collect();
    numbered(&format!("{}Error", cx.rust_name(service)), |name| taken.contains(name))
}

/// Returns the name, with the first number from 2 behind it that makes it free.
fn numbered(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbers = (2u32..).map(|number| format!("{name}{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbers);
    names.find(|name| !taken(name)).unwrap_or_default()
}

/// Returns the distinct types of declared exceptions, in the order of the functions.
fn thrown(cx: &Context, functions: &[Function<'_>]) -> Vec<Thrown> {
    let mut types: Vec<(String, Ty)> = Vec::new();
    for path in functions.iter().filter_map(|function| function.method.exceptions.as_ref()) {
        let Item::Enum(exceptions) = &*cx.expect_item(path.did) else { continue };
        for ty in exceptions.variants.iter().filter_map(|variant| variant.fields.first()) {
            let path = Values::tagged(cx).owned(ty);
            if !types.iter().any(|(known, _)| *known == path) {
                types.push((path, ty.clone()));
            }
        }
    }
    let plain: Vec<String> = types.iter().map(|(path, _)| last(path).to_owned()).collect();
    let mut used: BTreeSet<String> = BTreeSet::from([CALL.to_owned()]);
    let variants: Vec<String> = plain
        .iter()
        .map(|name| {
            // A numbered name never takes the name of another exception.
            let other = |candidate: &str| candidate != name && plain.iter().any(|name| name == candidate);
            let variant = numbered(name, |name| used.contains(name) || other(name));
            used.insert(variant.clone());
            variant
        })
        .collect();
    let all = types.into_iter().zip(variants);
    all.map(|((path, ty), variant)| Thrown { text: text(cx, &ty), ty: path, variant }).collect()
}

/// Returns the last part of a path.
fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path).trim()
}

/// Returns the field with an exception's text, and whether it is optional: the string `message`, or else the
/// only string.
fn text(cx: &Context, ty: &Ty) -> Option<(String, bool)> {
    let TyKind::Path(path) = &ty.kind else { return None };
    let Item::Message(message) = &*cx.expect_item(path.did) else { return None };
    let strings = message.fields.iter();
    let strings = strings.filter(|field| matches!(field.ty.kind, TyKind::String | TyKind::FastStr));
    let strings: Vec<_> = strings.collect();
    let named = strings.iter().find(|field| &*field.name.sym == "message");
    let only = match &strings[..] {
        [only] => Some(only),
        _ => None,
    };
    let field = named.or(only)?;
    Some((cx.rust_name(field.did).to_string(), field.kind == FieldKind::Optional))
}

/// Generates the error of a service's callers.
pub(super) fn error(out: &mut String, cx: &Context, name: &str, idl: &str, functions: &[Function<'_>]) {
    let thrown = thrown(cx, functions);
    let (mut variants, mut texts) = (String::new(), String::new());
    for Thrown { ty, variant, text } in &thrown {
        let what = last(ty);
        let _ = write!(variants, "/// The declared exception `{what}`.\n{variant}({ty}),\n");
        // `tidy` sees no names within format strings.
        let debug = "::std::fmt::Debug::fmt(exception, f)";
        let text_of = |value: &str| format!("{{ f.write_str(\"{what}: \")?; f.write_str({value}) }}");
        let shown = match text {
            None => debug.to_owned(),
            Some((field, false)) => text_of(&format!("&exception.{field}")),
            Some((field, true)) => format!(
                "match &exception.{field} {{
                    ::std::option::Option::Some(text) => {},
                    ::std::option::Option::None => {debug},
                }}",
                text_of("text")
            ),
        };
        let _ = write!(texts, "{name}::{variant}(exception) => {shown},");
    }
    let all: Vec<String> =
        thrown.iter().map(|Thrown { variant, .. }| format!("{name}::{variant}(_)")).collect();
    let others = |value: &str| match all.is_empty() {
        true => String::new(),
        false => format!("{} => {value},", all.join(" | ")),
    };
    let (no, none) = (others("false"), others("::std::option::Option::None"));
    let executed = others("::dunlin::Certainty::Executed");
    let _ = writeln!(
        out,
        "/// The error of a call of `{idl}`: a declared exception of the function, or a failure of the call.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum {name} {{
            {variants}
            /// The call has neither a value nor a declared exception.
            {CALL}(::dunlin::thrift::CallError),
        }}

        impl {name} {{
            /// Returns whether the function was executed. A declared exception says that it was.
            pub fn certainty(&self) -> ::dunlin::Certainty {{
                match self {{
                    {name}::{CALL}(error) => error.certainty(),
                    {executed}
                }}
            }}

            /// Returns whether the function was executed; `None` if the client does not know.
            pub fn was_executed(&self) -> ::std::option::Option<bool> {{
                self.certainty().was_executed()
            }}

            /// Returns whether the deadline of the call passed.
            pub fn is_deadline(&self) -> bool {{
                match self {{
                    {name}::{CALL}(error) => error.is_deadline(),
                    {no}
                }}
            }}

            /// Returns whether the server could not be reached, went away, or takes no calls now.
            pub fn is_unavailable(&self) -> bool {{
                match self {{
                    {name}::{CALL}(error) => error.is_unavailable(),
                    {no}
                }}
            }}
        }}

        impl ::std::fmt::Display for {name} {{
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {{
                match self {{
                    {name}::{CALL}(error) => ::std::fmt::Display::fmt(error, f),
                    {texts}
                }}
            }}
        }}

        impl ::std::error::Error for {name} {{
            fn source(&self) -> ::std::option::Option<&(dyn ::std::error::Error + 'static)> {{
                match self {{
                    {name}::{CALL}(error) => ::std::error::Error::source(error),
                    {none}
                }}
            }}
        }}

        impl ::std::convert::From<::dunlin::thrift::CallError> for {name} {{
            fn from(error: ::dunlin::thrift::CallError) -> Self {{
                {name}::{CALL}(error)
            }}
        }}

        impl ::std::convert::From<::dunlin::thrift::Never> for {name} {{
            fn from(never: ::dunlin::thrift::Never) -> Self {{
                match never {{}}
            }}
        }}"
    );
    for (path, exceptions) in functions.iter().filter_map(|function| function.exceptions.as_ref()) {
        let arms: String = exceptions
            .iter()
            .filter_map(|(from, ty)| Some((from, thrown.iter().find(|thrown| thrown.ty == *ty)?)))
            .map(|(from, Thrown { variant, .. })| {
                format!("{path}::{from}(exception) => {name}::{variant}(exception),")
            })
            .collect();
        let _ = writeln!(
            out,
            "impl ::std::convert::From<{path}> for {name} {{
                fn from(exception: {path}) -> Self {{
                    match exception {{ {arms} }}
                }}
            }}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_gets_the_first_free_number() {
        let taken = ["BankError", "BankError2"];
        assert_eq!(numbered("BankError", |name| taken.contains(&name)), "BankError3");
        assert_eq!(numbered("ShopError", |name| taken.contains(&name)), "ShopError");
        assert_eq!(last("super::shared::Elsewhere"), "Elsewhere");
        assert_eq!(last("Missing"), "Missing");
    }
}
