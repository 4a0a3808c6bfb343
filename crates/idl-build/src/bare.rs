//! Code generation for the bare form: the shapes of types, and the methods of structs.

use crate::values::{Values, is_scalar};
use pilota_build::db::RirDatabase;
use pilota_build::rir::{Field, FieldKind, Item, Message};
use pilota_build::ty::{Ty, TyKind};
use pilota_build::{Context, DefId};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Returns whether a type is a struct with a bare form. Unions, recursive structs and structs without fields
/// have no bare form; within other structs they are encoded as tagged structs.
pub(crate) fn is_bare(cx: &Context, item: DefId) -> bool {
    match &*cx.expect_item(item) {
        Item::Message(message) => {
            let mut seen = HashSet::new();
            let recursive = message.fields.iter().any(|field| reaches(cx, &field.ty.kind, item, &mut seen));
            // Each value takes at least a byte, so a list has no more elements than bytes.
            !message.fields.is_empty() && !recursive
        }
        _ => false,
    }
}

/// Returns whether a value of the type may contain a value of `item`. Items in `seen` may not.
fn reaches(cx: &Context, kind: &TyKind, item: DefId, seen: &mut HashSet<DefId>) -> bool {
    let mut within = |ty: &Ty| reaches(cx, &ty.kind, item, seen);
    match kind {
        TyKind::Vec(inner) | TyKind::Set(inner) | TyKind::BTreeSet(inner) | TyKind::Arc(inner) => {
            within(inner)
        }
        TyKind::Map(key, value) | TyKind::BTreeMap(key, value) => within(key) || within(value),
        TyKind::Path(path) if path.did == item => true,
        TyKind::Path(path) if !seen.insert(path.did) => false,
        TyKind::Path(path) => match &*cx.expect_item(path.did) {
            Item::Message(message) => {
                message.fields.iter().any(|field| reaches(cx, &field.ty.kind, item, seen))
            }
            Item::Enum(union) => {
                let mut types = union.variants.iter().flat_map(|variant| &variant.fields);
                types.any(|ty| reaches(cx, &ty.kind, item, seen))
            }
            Item::NewType(alias) => reaches(cx, &alias.ty.kind, item, seen),
            _ => false,
        },
        _ => false,
    }
}

/// Returns the bare form of a type, as an expression of type `thrift::Part`.
pub(crate) fn part(cx: &Context, ty: &Ty) -> String {
    let values = Values::bare(cx);
    match &ty.kind {
        TyKind::Vec(element) => format!("thrift::Part::List(&{})", part(cx, element)),
        TyKind::Set(element) | TyKind::BTreeSet(element) => {
            format!("thrift::Part::Set(&{})", part(cx, element))
        }
        TyKind::Map(key, value) | TyKind::BTreeMap(key, value) => {
            format!("thrift::Part::Map(&{}, &{})", part(cx, key), part(cx, value))
        }
        TyKind::Path(path) if is_bare(cx, path.did) => {
            format!("thrift::Part::Struct(<{} as thrift::Bare>::FIELDS)", values.owned(ty))
        }
        kind => match values.alias(kind) {
            Some(alias) => part(cx, &alias),
            None => format!("thrift::Part::Whole(thrift::TType::{})", values.wire_type(kind)),
        },
    }
}

/// Generates the `Bare` implementation of a struct that has a bare form.
pub(crate) fn message(cx: &Context, item: DefId, message: &Message) -> String {
    // pilota's argument structs are not used.
    if message.is_wrapper || !is_bare(cx, item) {
        return String::new();
    }
    let values = Values::bare(cx);
    let name = cx.rust_name(item);
    let optional: Vec<_> = message.fields.iter().filter(|field| field.kind == FieldKind::Optional).collect();
    let (mut fields, mut lengths, mut writes, mut reads) =
        (String::new(), Vec::new(), String::new(), String::new());
    if !optional.is_empty() {
        lengths.push(optional.len().div_ceil(8).to_string());
        let present: String =
            optional.iter().map(|field| format!("self.{}.is_some(), ", cx.rust_name(field.did))).collect();
        let _ = write!(writes, "protocol.write_presence([{present}])?;");
    }
    let mut place = 0;
    for field in &message.fields {
        let (name, kind) = (cx.rust_name(field.did), &field.ty.kind);
        let is_optional = field.kind == FieldKind::Optional;
        let mut shape = part(cx, &field.ty);
        if !is_optional && cx.default_val(field).is_some() {
            shape = format!("thrift::Part::Lacking(&{shape})");
        }
        let _ =
            write!(fields, "thrift::Field {{ id: {}, optional: {is_optional}, part: {shape} }},", field.id);
        if is_optional {
            let value = if is_scalar(kind) { "*value" } else { "value" };
            lengths.push(format!(
                "match &self.{name} {{ ::std::option::Option::Some(value) => {}, ::std::option::Option::None => 0 }}",
                values.length(kind, value)
            ));
            let _ = write!(
                writes,
                "if let ::std::option::Option::Some(value) = &self.{name} {{ {}?; }}",
                values.write(kind, value)
            );
            let _ = write!(
                reads,
                "{name}: if present[{place}] {{ ::std::option::Option::Some({}?) }} else {{ {} }},",
                values.read(kind),
                otherwise(cx, field)
            );
            place += 1;
        } else {
            let value = format!("{}self.{name}", if is_scalar(kind) { "" } else { "&" });
            lengths.push(values.length(kind, &value));
            let _ = write!(writes, "{}?;", values.write(kind, &value));
            let _ = write!(reads, "{name}: {}?,", values.read(kind));
        }
    }
    let lengths = lengths.join(" + ");
    let present = match optional.len() {
        0 => String::new(),
        count => format!("let present: [bool; {count}] = input.read_presence()?;"),
    };
    format!(
        "impl ::dunlin::thrift::Bare for {name} {{
            const FIELDS: &'static [::dunlin::thrift::Field] = {{
                use ::dunlin::thrift;
                &[{fields}]
            }};

            #[allow(unused_imports)]
            #[inline]
            fn bare_size(&self) -> usize {{
                use ::dunlin::thrift::{{self, TType, codec::BinaryOutput, pilota::thrift::{{TLengthProtocol, TLengthProtocolExt}}}};
                let protocol = &mut BinaryOutput::new(&mut []);
                {lengths}
            }}

            #[allow(unused_imports)]
            #[inline]
            fn encode_bare(&self, protocol: &mut ::dunlin::thrift::codec::BinaryOutput<'_>) -> ::std::result::Result<(), ::dunlin::thrift::ThriftException> {{
                use ::dunlin::thrift::{{self, TType, pilota::thrift::{{TOutputProtocol, TOutputProtocolExt}}}};
                {writes}
                ::std::result::Result::Ok(())
            }}

            #[allow(unused_imports)]
            #[inline]
            fn decode_bare(input: &mut ::dunlin::thrift::codec::BinaryInput<'_>) -> ::std::result::Result<Self, ::dunlin::thrift::ThriftException> {{
                use ::dunlin::thrift::{{self, pilota::thrift::TInputProtocol as _}};
                input.count_struct()?;
                {present}
                ::std::result::Result::Ok(Self {{ {reads} }})
            }}
        }}"
    )
}

/// Returns the value of an absent optional field: its default, or `None`.
fn otherwise(cx: &Context, field: &Field) -> String {
    match cx.default_val(field) {
        Some((value, _)) => format!("::std::option::Option::Some({value})"),
        None => "::std::option::Option::None".to_owned(),
    }
}
