//! Services that are generated to be tested. `everything` has every type and every kind of function; `younger` is the same
//! service some versions later; `asked` is to be reached in every way, `forms` has what is called in the bare form, `numa` services
//! that are bound to nodes, `quiet` calls that allocate nothing, `values` constants and defaults.
#![forbid(unsafe_code)]

dunlin::include_service!("asked");
dunlin::include_service!("everything");
dunlin::include_service!("forms");
dunlin::include_service!("numa");
dunlin::include_service!("quiet");
dunlin::include_service!("values");
dunlin::include_service!("younger");
