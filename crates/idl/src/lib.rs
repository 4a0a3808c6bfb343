//! Thrift with hints: from files to services whose functions have their hints, with the place of each.
//!
//! What may come in: reading and checking of IDL files, messages about them. What never does: what follows from hints
//! (`dunlin-hints` knows), generated code, the network.
//!
//! Everything that Thrift has is taken, and hints in two spellings: HatRPC's groups and brackets, and plain Thrift's
//! annotations, with which a file stays valid for other Thrift compilers:
//!
//! ```thrift
//! service KV {
//!   hint: perf_goal = throughput, concurrency = 64;
//!   binary get(1: binary key) [ hint: perf_goal = latency, payload_size = 1KB; c_hint: polling = busy; ]
//!   void put(1: binary key, 2: binary value) (payload_size = "1KB", s_hint.polling = "event")
//! }
//! ```
//!
//! A key alone or behind `hint.` is for both sides, behind `c_hint.` for the client, behind `s_hint.` for the server. A
//! function's hint counts more than its service's, that more than one of a service which that one extends; on the same
//! level one for a side counts more than one for both; each key by itself.
//!
//! The grammar is that of `pilota-thrift-parser`, whose tree has no places: the words of a file are found first
//! (`lexer.rs`), then where definitions, functions and hints are (`outline.rs`); what the parser does not know is blanked
//! with spaces, so that all offsets stay; each definition is parsed by itself (`grammar.rs`) and its tree gets the places
//! of its words (`walk.rs`).
#![forbid(unsafe_code)]

mod diagnostic;
mod document;
mod files;
mod grammar;
mod lexer;
mod load;
mod outline;
mod raw_hint;
mod resolve;
mod scope;
mod source;
mod value;
mod walk;

pub use diagnostic::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS, Severity};
pub use document::{
    Definition, DefinitionId, DefinitionKind, Document, EnumValue, Field, File, FileId, Function, Include,
    Namespace, Requiredness, Service, ServiceId, Type,
};
pub use dunlin_hints as hints;
pub use files::{Disk, Files, Memory};
pub use load::{Lenience, MAX_FILES, Options, load, load_with};
pub use resolve::{MAX_EXTENDS, MAX_FUNCTIONS};
pub use value::{Literal, Value};
