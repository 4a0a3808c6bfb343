//! Literal values of constants and defaults.

use crate::document::DefinitionId;
use std::ops::Range;

/// A value with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// The value.
    pub value: Value,
    /// Its byte range in the file's text.
    pub span: Range<usize>,
}

/// A value. Not checked against the type of its constant or field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction or an exponent, in its source notation.
    Double(String),
    /// A string.
    Text(String),
    /// A reference to a constant.
    Constant(DefinitionId),
    /// A reference to an enum's value.
    EnumValue {
        /// The enum.
        of: DefinitionId,
        /// The value's name.
        name: String,
    },
    /// A list or a set: values in square brackets.
    List(Vec<Value>),
    /// A map, or a struct's fields by name: pairs in curly brackets.
    Map(Vec<(Value, Value)>),
}
