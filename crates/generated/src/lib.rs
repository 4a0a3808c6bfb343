//! Services that are generated to be tested. `everything` has every type and every kind of function; `younger` is the same
//! service some versions later.
#![forbid(unsafe_code)]

dunlin::include_service!("everything");
dunlin::include_service!("younger");
