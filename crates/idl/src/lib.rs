//! Loader of Thrift IDL files with hints: reads files and returns services whose functions have resolved
//! hints with source locations.
//!
//! This crate reads and checks IDL files and reports errors in them. It never holds the rules from hints to
//! plans (`dunlin-hints`), code generation or networking.
//!
//! It accepts all of Thrift, and hints in two notations: HatRPC's groups and brackets, and plain Thrift
//! annotations, which keep a file valid for other Thrift compilers:
//!
//! ```thrift
//! service KV {
//!   hint: perf_goal = throughput, concurrency = 64;
//!   binary get(1: binary key) [ hint: perf_goal = latency, payload_size = 1KB; c_hint: polling = busy; ]
//!   void put(1: binary key, 2: binary value) (payload_size = "1KB", s_hint.polling = "event")
//! }
//! ```
//!
//! A key alone or after `hint.` applies to both sides, after `c_hint.` to the client, and after `s_hint.` to
//! the server. A function's hint overrides its service's, which overrides that of a service it extends. On
//! the same level, a hint for one side overrides a hint for both. The rules apply to each key separately.
//!
//! The grammar is that of `pilota-thrift-parser`, whose trees have no source locations. Loading therefore
//! takes these steps: `lexer.rs` splits a file into tokens; `outline.rs` locates definitions, functions and
//! hints; syntax unknown to the parser is blanked with spaces, so that all offsets stay valid; `grammar.rs`
//! parses each definition separately; `walk.rs` adds the locations of the tokens to its tree.
#![forbid(unsafe_code)]

mod annotate;
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
