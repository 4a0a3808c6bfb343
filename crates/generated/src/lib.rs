//! Generated services for tests. `everything` has every type and every kind of function; `younger` holds
//! later versions of the other services; `asked` is called over all transports; `forms` has functions in the
//! bare form; `numa` has services bound to nodes; `quiet` has calls that allocate nothing; `sharing` has
//! a service whose clients share connections; `values` has constants and defaults; `clashes` has the names that
//! generated items have.
//!
//! The client of a single fabric is another type than that of every address:
//!
//! ```compile_fail,E0308
//! use dunlin_generated::asked::AskedClient;
//!
//! struct Program {
//!     client: AskedClient,
//! }
//!
//! let fabric = dunlin::fabric::shm().unwrap();
//! let client = AskedClient::connect_with(&fabric, "shm:asked", Default::default()).unwrap();
//! let program = Program { client };
//! ```
#![forbid(unsafe_code)]

dunlin::include_service!("asked");
dunlin::include_service!("everything");
dunlin::include_service!("forms");
dunlin::include_service!("numa");
dunlin::include_service!("quiet");
dunlin::include_service!("sharing");
dunlin::include_service!("values");
dunlin::include_service!("younger");

/// The included file is another one than that of `everything`.
pub mod clashing {
    dunlin::include_service!("clashes");
}
