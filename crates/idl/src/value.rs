//! Values as they are written: those of constants, and defaults.

use crate::document::DefinitionId;
use std::ops::Range;

/// A value with the place where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// What it is.
    pub value: Value,
    /// Its bytes in the file's text.
    pub span: Range<usize>,
}

/// A value. Whether it is one of its type is not looked at here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction or an exponent, as it is written.
    Double(String),
    /// A text.
    Text(String),
    /// The name of a constant.
    Constant(DefinitionId),
    /// The name of an enum's value.
    EnumValue {
        /// The enum.
        of: DefinitionId,
        /// The value's name.
        name: String,
    },
    /// Values in square brackets: a list or a set.
    List(Vec<Value>),
    /// Pairs in curly brackets: a map, or a struct's fields by their names.
    Map(Vec<(Value, Value)>),
}
