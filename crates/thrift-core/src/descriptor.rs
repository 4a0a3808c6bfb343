//! Service descriptors: the constants in which generated code describes a service.

use crate::shape::Shape;
use dunlin_hints::FunctionHints;

/// A service and its functions with their hints. Inherited functions come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceDescriptor {
    /// The service's name in the IDL.
    pub name: &'static str,
    /// The functions. Generated code refers to a function by its index here.
    pub functions: &'static [FunctionHints],
    /// The names of the services that it extends, the nearest first. Clients of these may call a server of
    /// this service.
    pub extends: &'static [&'static str],
    /// The shapes of the functions, in the same order; `None` for a function of unknown types.
    pub shapes: &'static [Option<Shape>],
}

impl ServiceDescriptor {
    /// Returns the index of the function with this name.
    pub fn function(&self, name: &str) -> Option<usize> {
        self.functions.iter().position(|function| function.name == name)
    }

    /// Returns the signature of a function's shape; empty if the function has no shape, or one that is too
    /// long to send.
    pub fn signature(&self, function: usize) -> Vec<u8> {
        self.shapes.get(function).and_then(|shape| shape.as_ref()?.signature()).unwrap_or_default()
    }
}
