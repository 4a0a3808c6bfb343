//! Interoperability of Dunlin and Apache's Thrift libraries: each calls the other over TCP, on every
//! transport and encoding.
//!
//! The other side of each language is a script in `tests/interop/`, which installs its dependencies. The
//! service is `everything.thrift` there. `handler.rs` is Dunlin's server, and `checks.rs` holds the checks of
//! its client. The server runs once at a TCP address, and once at `node:` with TCP besides.

mod checks;
mod handler;
pub mod node;
pub mod run;

/// The generated service.
pub mod idl {
    dunlin::include_service!("uuid");

    pub use self::everything::*;
    pub use self::uuid::*;
}
