//! What generated code says about a service, as constants.

use crate::shape::Shape;
use dunlin_hints::FunctionHints;

/// A service: its functions with their hints, those that it inherits first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceDescriptor {
    /// The name in the IDL.
    pub name: &'static str,
    /// The functions. A function's place here is its number in generated code.
    pub functions: &'static [FunctionHints],
    /// What they take and give, in the same order; `None` for those that are not called in the bare form.
    pub shapes: &'static [Option<Shape>],
}

impl ServiceDescriptor {
    /// The number of the function of this name.
    pub fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|function| function.name == name)
    }

    /// The signature of a function's shape: empty for one without.
    pub(crate) fn signature(&self, function: usize) -> Vec<u8> {
        self.shapes.get(function).and_then(|shape| shape.as_ref()?.signature()).unwrap_or_default()
    }
}
