//! What generated code says about a service, as constants.

/// A function of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionDescriptor {
    /// The name in the IDL, which is its name on every wire.
    pub name: &'static str,
    /// Whether the caller waits for no answer.
    pub oneway: bool,
}

/// A service: its functions, those that it inherits first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceDescriptor {
    /// The name in the IDL.
    pub name: &'static str,
    /// The functions. A function's place here is its number in generated code.
    pub functions: &'static [FunctionDescriptor],
}

impl ServiceDescriptor {
    /// The number of the function of this name.
    pub fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|function| function.name == name)
    }
}
