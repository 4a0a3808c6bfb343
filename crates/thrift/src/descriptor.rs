//! What generated code says about a service, as constants.

use dunlin_hints::FunctionHints;

/// A service: its functions with their hints, those that it inherits first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceDescriptor {
    /// The name in the IDL.
    pub name: &'static str,
    /// The functions. A function's place here is its number in generated code.
    pub functions: &'static [FunctionHints],
}

impl ServiceDescriptor {
    /// The number of the function of this name.
    pub fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|function| function.name == name)
    }
}
