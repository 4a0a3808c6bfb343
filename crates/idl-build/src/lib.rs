//! Rust from Thrift files with hints.
//!
//! What may come in: what turns an IDL into source text. What never does: anything that runs when calls are made
//! (`dunlin-thrift`), reading of hints (`dunlin-idl`).
//!
//! In a `build.rs`:
//!
//! ```no_run
//! dunlin_idl_build::compile("idl/kv.thrift").unwrap();
//! ```
//!
//! and in the program `dunlin::include_service!("kv");`. Types and their codecs are pilota's (`pilota-build`); services
//! are written by `service.rs`; `tidy.rs` makes one readable file of both.
#![forbid(unsafe_code)]

mod backend;
mod names;
mod service;
mod tidy;
mod values;

use crate::backend::{Make, Notes};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// Why there is no code.
#[derive(Debug, Error)]
pub enum Error {
    /// A file or directory.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Not in a build script.
    #[error("OUT_DIR is not set: call this from a build script, or use `dunlin gen`")]
    NoOutDirectory,
    /// The path has no name.
    #[error("{0} has no name to call the generated file by")]
    NoName(PathBuf),
    /// pilota gave up.
    #[error("the code generator of types gave up on {path}: {message}")]
    Types {
        /// The file.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// What was generated is not Rust.
    #[error("what was generated of {path} is not Rust ({error}); please report the IDL")]
    NotRust {
        /// The file.
        path: PathBuf,
        /// Where.
        error: syn::Error,
    },
}

/// Generates code of a Thrift file and all that it includes into the build script's `OUT_DIR`, as the file's name with
/// `.rs`.
pub fn compile(path: impl AsRef<Path>) -> Result<PathBuf, Error> {
    let path = path.as_ref();
    let directory = std::env::var_os("OUT_DIR").map(PathBuf::from).ok_or(Error::NoOutDirectory)?;
    let name = path.file_stem().ok_or_else(|| Error::NoName(path.into()))?;
    let out = directory.join(name).with_extension("rs");
    let text = generate(path)?;
    std::fs::write(&out, text).map_err(|error| Error::File { path: out.clone(), error })?;
    Ok(out)
}

/// The code of a Thrift file and all that it includes.
pub fn generate(path: &Path) -> Result<String, Error> {
    let file = |error| Error::File { path: path.into(), error };
    let path_seen = path.canonicalize().map_err(file)?;
    let directory = tempfile::tempdir().map_err(file)?;
    let out = directory.path().join("generated.rs");
    let notes = Arc::new(Mutex::new(Notes::default()));
    let builder = pilota_build::Builder::thrift().ignore_unused(false).with_backend(Make(Arc::clone(&notes)));
    let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        builder.compile([&path_seen], pilota_build::Output::File(out.clone()));
    }));
    if let Err(panic) = compiled {
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        return Err(Error::Types { path: path.into(), message });
    }
    let text = std::fs::read_to_string(&out).map_err(|error| Error::File { path: out.clone(), error })?;
    let notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
    tidy::tidy(&text, &notes).map_err(|error| Error::NotRust { path: path.into(), error })
}
