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
mod bare;
mod blanked;
mod complete;
mod hints;
mod names;
mod service;
mod tidy;
mod unions;
mod values;

use crate::backend::{Make, Notes};
pub use dunlin_idl::{Diagnostics, Document, Lenience, Options};

use dunlin_idl::hints::Place;
use dunlin_idl::{DefinitionKind, Disk, Field};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;

/// Why there is no code. Its debug form is its text, so that a build script may `unwrap`.
#[derive(Error)]
pub enum Error {
    /// The IDL is wrong.
    #[error("{0}")]
    Idl(Diagnostics),
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
    /// A field's id is not positive: pilota makes names of ids.
    #[error("{place}: the field '{name}' has the id {id}; code is generated for positive ids only")]
    NotPositive {
        /// The field.
        name: String,
        /// Its id.
        id: i16,
        /// Where it stands.
        place: Place,
    },
    /// A constant or a default is not of its type, or cannot be written.
    #[error("{place}: the value of '{name}': {problem}")]
    Value {
        /// What has the value.
        name: String,
        /// Where it stands.
        place: Place,
        /// What is wrong.
        problem: String,
    },
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

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{self}")
    }
}

/// Generates code of a Thrift file, and all that it includes, into the build script's `OUT_DIR`, as the file's name with
/// `.rs`; gives that path. Warnings about hints become warnings of the build.
pub fn compile(path: impl AsRef<Path>) -> Result<PathBuf, Error> {
    compile_with(path, &Options::default())
}

/// As [`compile`], with folders to look for included files in, and leniency.
pub fn compile_with(path: impl AsRef<Path>, options: &Options) -> Result<PathBuf, Error> {
    let path = path.as_ref();
    let folder = std::env::var_os("OUT_DIR").map(PathBuf::from).ok_or(Error::NoOutDirectory)?;
    let name = path.file_stem().ok_or_else(|| Error::NoName(path.into()))?;
    let document = load(path, options)?;
    for warning in document.warnings.iter() {
        println!("cargo::warning={}: {}", warning.place, warning.message);
    }
    for file in &document.files {
        println!("cargo::rerun-if-changed={}", file.path.display());
    }
    let out = folder.join(name).with_extension("rs");
    let text = generate(&document, path, &folder.join("blanked").join(name))?;
    std::fs::write(&out, text).map_err(|error| Error::File { path: out.clone(), error })?;
    Ok(out)
}

/// Reads and checks a Thrift file and all that it includes.
pub fn load(path: &Path, options: &Options) -> Result<Document, Error> {
    dunlin_idl::load_with(path, options, &Disk).map_err(Error::Idl)
}

/// The code of a document that was read from `path`. `folder` is for files on the way, made if need be and left behind.
pub fn generate(document: &Document, path: &Path, folder: &Path) -> Result<String, Error> {
    check_ids(document)?;
    let texts = complete::texts(document)?;
    let in_folder = |error| Error::File { path: folder.into(), error };
    let copy =
        blanked::write(document, &texts, folder).and_then(|copy| copy.canonicalize()).map_err(in_folder)?;
    let out = folder.join("types.rs");
    let notes = Arc::new(Mutex::new(Notes::new(document)));
    let backend = Make { notes: Arc::clone(&notes), document: Arc::new(document.clone()) };
    let builder = pilota_build::Builder::thrift().ignore_unused(false).with_backend(backend);
    let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        builder.compile([&copy], pilota_build::Output::File(out.clone()));
    }));
    if let Err(panic) = compiled {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let message = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned();
        return Err(Error::Types { path: path.into(), message });
    }
    let text = std::fs::read_to_string(&out).map_err(|error| Error::File { path: out.clone(), error })?;
    let notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
    tidy::tidy(&text, &notes).map_err(|error| Error::NotRust { path: path.into(), error })
}

/// pilota would write what is not Rust, and end the process.
fn check_ids(document: &Document) -> Result<(), Error> {
    let definitions = document.files.iter().flat_map(|file| &file.definitions);
    let fields = definitions.flat_map(|definition| match &definition.kind {
        DefinitionKind::Struct(fields)
        | DefinitionKind::Union(fields)
        | DefinitionKind::Exception(fields) => &fields[..],
        _ => &[],
    });
    let functions = document.services.iter().flat_map(|service| &service.functions);
    let arguments = functions.flat_map(|function| function.arguments.iter().chain(&function.throws));
    match fields.chain(arguments).find(|field| field.id <= 0) {
        Some(Field { name, id, place, .. }) => {
            Err(Error::NotPositive { name: name.clone(), id: *id, place: place.clone() })
        }
        None => Ok(()),
    }
}
