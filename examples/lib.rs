//! The services of the examples, as generated from `examples/idl/*.thrift`.

/// Key-value pairs with hints on each function.
pub mod kv {
    #![allow(missing_docs)]
    dunlin::include_service!("kv");
}
