//! Dunlin and Apache's Thrift libraries, each calling the other over TCP, on every transport and encoding.
//!
//! The other side of each language is a script in `tests/interop/`, which installs what it needs by itself; what is called is
//! `everything.thrift` there. `handler.rs` is Dunlin's server, `checks.rs` what its client expects of a server.

mod checks;
mod handler;
pub mod run;

/// What was generated of the IDL.
pub mod idl {
    dunlin::include_service!("uuid");

    pub use self::everything::*;
    pub use self::uuid::*;
}
