//! Expressions that borrow, measure, write and read values of each type.
//!
//! `binary` and `string` arguments are borrowed on both sides. Other arguments that do not fit in a register
//! are borrowed by the caller and owned by the handler.

use crate::bare;
use pilota_build::db::RirDatabase;
use pilota_build::rir::Item;
use pilota_build::ty::{Ty, TyKind};
use pilota_build::{Context, DefId};

/// The context of the types and the form in which values are encoded.
pub(crate) struct Values<'a> {
    cx: &'a Context,
    bare: bool,
}

impl<'a> Values<'a> {
    /// Creates the expressions of the tagged form.
    pub(crate) fn tagged(cx: &'a Context) -> Self {
        Values { cx, bare: false }
    }

    /// Creates the expressions of the bare form, without field headers.
    pub(crate) fn bare(cx: &'a Context) -> Self {
        Values { cx, bare: true }
    }

    /// Returns whether values of the type are encoded as bare structs.
    fn is_bare(&self, kind: &TyKind) -> bool {
        matches!(kind, TyKind::Path(path) if self.bare && bare::is_bare(self.cx, path.did))
    }

    /// Returns the type behind a typedef in the bare form, where it matters.
    pub(crate) fn alias(&self, kind: &TyKind) -> Option<Ty> {
        match kind {
            TyKind::Path(path) if self.bare => match &*self.cx.expect_item(path.did) {
                Item::NewType(alias) => Some(alias.ty.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the wire type, as pilota's `TType` names it.
    pub(crate) fn wire_type(&self, kind: &TyKind) -> &'static str {
        match kind {
            TyKind::String | TyKind::FastStr | TyKind::BytesVec | TyKind::Bytes => "Binary",
            TyKind::Void => "Void",
            TyKind::Bool => "Bool",
            TyKind::I8 | TyKind::U8 => "I8",
            TyKind::I16 => "I16",
            TyKind::I32 | TyKind::UInt32 => "I32",
            TyKind::I64 | TyKind::UInt64 => "I64",
            TyKind::F32 | TyKind::F64 | TyKind::OrderedF64 => "Double",
            TyKind::Uuid => "Uuid",
            TyKind::Vec(_) => "List",
            TyKind::Set(_) | TyKind::BTreeSet(_) => "Set",
            TyKind::Map(..) | TyKind::BTreeMap(..) => "Map",
            TyKind::Arc(inner) => self.wire_type(&inner.kind),
            TyKind::Path(path) => self.item_wire_type(path.did),
        }
    }

    fn item_wire_type(&self, item: DefId) -> &'static str {
        match &*self.cx.expect_item(item) {
            Item::NewType(alias) => self.wire_type(&alias.ty.kind),
            // An enum has a representation; a union does not.
            Item::Enum(e) if e.repr.is_some() => "I32",
            _ => "Struct",
        }
    }

    /// Returns the Rust name of the type of an owned value.
    pub(crate) fn owned(&self, ty: &Ty) -> String {
        self.cx.codegen_item_ty(ty.kind.clone()).to_string()
    }

    /// Returns the type of an argument on the client.
    pub(crate) fn borrowed(&self, ty: &Ty, lifetime: &str) -> String {
        match &ty.kind {
            TyKind::String | TyKind::FastStr => format!("&{lifetime}str"),
            TyKind::Bytes | TyKind::BytesVec => format!("&{lifetime}[u8]"),
            TyKind::Vec(element) => format!("&{lifetime}[{}]", self.owned(element)),
            kind if is_scalar(kind) => self.owned(ty),
            _ => format!("&{lifetime}{}", self.owned(ty)),
        }
    }

    /// Returns the type of an argument in a handler.
    pub(crate) fn handed(&self, ty: &Ty) -> String {
        match &ty.kind {
            TyKind::String | TyKind::FastStr => "&str".into(),
            TyKind::Bytes | TyKind::BytesVec => "&[u8]".into(),
            _ => self.owned(ty),
        }
    }

    /// Returns the encoded size of a value. `value` is a scalar, or a reference to a value of another type.
    pub(crate) fn length(&self, kind: &TyKind, value: &str) -> String {
        match kind {
            TyKind::Bool => format!("protocol.bool_len({value})"),
            TyKind::I8 => format!("protocol.i8_len({value})"),
            TyKind::I16 => format!("protocol.i16_len({value})"),
            TyKind::I32 => format!("protocol.i32_len({value})"),
            TyKind::I64 => format!("protocol.i64_len({value})"),
            TyKind::F64 => format!("protocol.double_len({value})"),
            TyKind::OrderedF64 => format!("protocol.double_len(({value}).0)"),
            TyKind::Uuid => format!("protocol.uuid_len({value})"),
            TyKind::String | TyKind::FastStr => format!("protocol.string_len({value})"),
            TyKind::Bytes | TyKind::BytesVec => format!("protocol.bytes_len({value})"),
            TyKind::Vec(element) => self.sequence_length("list", element, value),
            TyKind::Set(element) => self.sequence_length("set", element, value),
            TyKind::BTreeSet(element) => self.sequence_length("btree_set", element, value),
            TyKind::Map(k, v) => self.map_length("map", k, v, value),
            TyKind::BTreeMap(k, v) => self.map_length("btree_map", k, v, value),
            kind if self.is_bare(kind) => format!("thrift::Bare::bare_size({value})"),
            kind => match self.alias(kind) {
                Some(alias) => self.length(&alias.kind, &renamed(&alias.kind, value)),
                None => format!("protocol.struct_len({value})"),
            },
        }
    }

    fn sequence_length(&self, form: &str, element: &Ty, value: &str) -> String {
        format!(
            "protocol.{form}_len(TType::{}, {value}, |protocol, element| {})",
            self.wire_type(&element.kind),
            self.length(&element.kind, within(&element.kind, "element"))
        )
    }

    fn map_length(&self, form: &str, key: &Ty, element: &Ty, value: &str) -> String {
        format!(
            "protocol.{form}_len(TType::{}, TType::{}, {value}, |protocol, key| {}, |protocol, element| {})",
            self.wire_type(&key.kind),
            self.wire_type(&element.kind),
            self.length(&key.kind, within(&key.kind, "key")),
            self.length(&element.kind, within(&element.kind, "element"))
        )
    }

    /// Writes a value; of type `Result<(), ThriftException>`.
    pub(crate) fn write(&self, kind: &TyKind, value: &str) -> String {
        match kind {
            TyKind::Bool => format!("protocol.write_bool({value})"),
            TyKind::I8 => format!("protocol.write_i8({value})"),
            TyKind::I16 => format!("protocol.write_i16({value})"),
            TyKind::I32 => format!("protocol.write_i32({value})"),
            TyKind::I64 => format!("protocol.write_i64({value})"),
            TyKind::F64 => format!("protocol.write_double({value})"),
            TyKind::OrderedF64 => format!("protocol.write_double(({value}).0)"),
            TyKind::Uuid => format!("protocol.write_uuid({value})"),
            TyKind::String | TyKind::FastStr => format!("protocol.write_string({value})"),
            TyKind::Bytes | TyKind::BytesVec => format!("protocol.write_bytes_vec({value})"),
            TyKind::Vec(element) => self.sequence_write("list", element, value),
            TyKind::Set(element) => self.sequence_write("set", element, value),
            TyKind::BTreeSet(element) => self.sequence_write("btree_set", element, value),
            TyKind::Map(k, v) => self.map_write("map", k, v, value),
            TyKind::BTreeMap(k, v) => self.map_write("btree_map", k, v, value),
            kind if self.is_bare(kind) => format!("thrift::Bare::encode_bare({value}, protocol)"),
            kind => match self.alias(kind) {
                Some(alias) => self.write(&alias.kind, &renamed(&alias.kind, value)),
                None => format!("protocol.write_struct({value})"),
            },
        }
    }

    /// Writes an argument, which is borrowed for as long as the writer may need it; of type
    /// `Result<(), ThriftException>`.
    pub(crate) fn write_argument(&self, kind: &TyKind, value: &str) -> String {
        match kind {
            TyKind::String | TyKind::FastStr => format!("protocol.write_text({value})"),
            TyKind::Bytes | TyKind::BytesVec => format!("protocol.write_slice({value})"),
            kind => self.write(kind, value),
        }
    }

    fn sequence_write(&self, form: &str, element: &Ty, value: &str) -> String {
        format!(
            "protocol.write_{form}(TType::{}, {value}, |protocol, element| {})",
            self.wire_type(&element.kind),
            self.write(&element.kind, within(&element.kind, "element"))
        )
    }

    fn map_write(&self, form: &str, key: &Ty, element: &Ty, value: &str) -> String {
        format!(
            "protocol.write_{form}(TType::{}, TType::{}, {value}, |protocol, key| {}, |protocol, element| {})",
            self.wire_type(&key.kind),
            self.wire_type(&element.kind),
            self.write(&key.kind, within(&key.kind, "key")),
            self.write(&element.kind, within(&element.kind, "element"))
        )
    }

    /// Reads an argument; of type `Result`.
    pub(crate) fn read_argument(&self, kind: &TyKind) -> String {
        match kind {
            TyKind::String | TyKind::FastStr => "input.read_str()".into(),
            TyKind::Bytes | TyKind::BytesVec => "input.read_slice()".into(),
            kind => self.read(kind),
        }
    }

    /// Reads an argument that takes the rest of a bare message.
    pub(crate) fn read_rest_argument(&self, kind: &TyKind) -> String {
        match kind {
            TyKind::String | TyKind::FastStr => "input.read_rest_str()?".into(),
            _ => "input.read_rest()".into(),
        }
    }

    /// Converts a `binary` or `string` to bytes.
    pub(crate) fn bytes(&self, kind: &TyKind, value: &str) -> String {
        match kind {
            TyKind::String | TyKind::FastStr => format!("{value}.as_bytes()"),
            _ => value.to_owned(),
        }
    }

    /// Reads an owned value; of type `Result`.
    pub(crate) fn read(&self, kind: &TyKind) -> String {
        match kind {
            TyKind::Bool => "input.read_bool()".into(),
            TyKind::I8 => "input.read_i8()".into(),
            TyKind::I16 => "input.read_i16()".into(),
            TyKind::I32 => "input.read_i32()".into(),
            TyKind::I64 => "input.read_i64()".into(),
            TyKind::F64 => "input.read_double()".into(),
            TyKind::OrderedF64 => "input.read_double().map(thrift::pilota::OrderedFloat)".into(),
            TyKind::Uuid => "input.read_uuid()".into(),
            TyKind::String => "input.read_string()".into(),
            TyKind::FastStr => "input.read_faststr()".into(),
            TyKind::Bytes => "input.read_bytes()".into(),
            TyKind::BytesVec => "input.read_bytes_vec()".into(),
            TyKind::Vec(element) => format!("thrift::read_list(input, |input| {})", self.read(&element.kind)),
            TyKind::Set(element) => format!("thrift::read_set(input, |input| {})", self.read(&element.kind)),
            TyKind::BTreeSet(element) => {
                format!("thrift::read_ordered_set(input, |input| {})", self.read(&element.kind))
            }
            TyKind::Map(k, v) => {
                format!(
                    "thrift::read_map(input, |input| {}, |input| {})",
                    self.read(&k.kind),
                    self.read(&v.kind)
                )
            }
            TyKind::BTreeMap(k, v) => format!(
                "thrift::read_ordered_map(input, |input| {}, |input| {})",
                self.read(&k.kind),
                self.read(&v.kind)
            ),
            kind if self.is_bare(kind) => "thrift::Bare::decode_bare(input)".into(),
            kind => match (self.alias(kind), kind) {
                (Some(alias), TyKind::Path(path)) => {
                    let name = self.cx.cur_related_item_path(path.did);
                    format!("{}.map({name})", self.read(&alias.kind))
                }
                _ => "thrift::Message::decode(input)".into(),
            },
        }
    }
}

/// Returns the value inside a typedef's newtype: a scalar, or a reference to a value of another type.
fn renamed(kind: &TyKind, value: &str) -> String {
    // `&value.0` has the same type for `&value` and for `value`.
    let value = value.trim_start_matches('&');
    if is_scalar(kind) { format!("{value}.0") } else { format!("&{value}.0") }
}

/// Returns whether a value is passed by value instead of by reference.
pub(crate) fn is_scalar(kind: &TyKind) -> bool {
    matches!(
        kind,
        TyKind::Bool
            | TyKind::I8
            | TyKind::I16
            | TyKind::I32
            | TyKind::I64
            | TyKind::F64
            | TyKind::OrderedF64
            | TyKind::Uuid
    )
}

/// Returns whether the type is `binary` or `string`, but not a typedef of these.
pub(crate) fn is_text(kind: &TyKind) -> bool {
    matches!(kind, TyKind::String | TyKind::FastStr | TyKind::Bytes | TyKind::BytesVec)
}

/// Returns a container's element as the element's own expressions expect it.
fn within(kind: &TyKind, name: &'static str) -> &'static str {
    match (is_scalar(kind), name) {
        (true, "key") => "*key",
        (true, _) => "*element",
        (false, name) => name,
    }
}
