//! Generates Rust code from Thrift files with hints.
//!
//! This crate converts an IDL document to source text. It never holds code that runs during calls
//! (`dunlin-thrift`) or the loader of IDL files (`dunlin-idl`).
//!
//! In a `build.rs`:
//!
//! ```no_run
//! dunlin_idl_build::compile("idl/kv.thrift").unwrap();
//! ```
//!
//! and in the program `dunlin::include_service!("kv");`. pilota (`pilota-build`) generates the types and
//! their codecs, `service.rs` generates the services, and `tidy.rs` combines both into one readable file.
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

/// The error of generating code. `Debug` prints the message, so that a build script may use `unwrap`.
#[derive(Error)]
#[non_exhaustive]
pub enum Error {
    /// The IDL has errors.
    #[error("{0}")]
    Idl(Diagnostics),
    /// A file or folder cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// `OUT_DIR` is not set: the caller is not a build script.
    #[error("OUT_DIR is not set: call this from a build script, or use `dunlin gen`")]
    NoOutDirectory,
    /// The path has no file name.
    #[error("{0} has no name to call the generated file by")]
    NoName(PathBuf),
    /// A field's id is not positive. pilota derives names from ids.
    #[error("{place}: the field '{name}' has the id {id}; code is generated for positive ids only")]
    NotPositive {
        /// The field.
        name: String,
        /// The id.
        id: i16,
        /// The field's location.
        place: Place,
    },
    /// A constant or default does not match its type, or cannot be generated.
    #[error("{place}: the value of '{name}': {problem}")]
    Value {
        /// The constant or field.
        name: String,
        /// The location.
        place: Place,
        /// The reason.
        problem: String,
    },
    /// pilota's generator failed.
    #[error("the code generator of types gave up on {path}: {message}")]
    Types {
        /// The file.
        path: PathBuf,
        /// pilota's message.
        message: String,
    },
    /// The generated code is not valid Rust.
    #[error("what was generated of {path} is not Rust ({error}); please report the IDL")]
    NotRust {
        /// The file.
        path: PathBuf,
        /// The syntax error.
        error: syn::Error,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{self}")
    }
}

/// Generates code for a Thrift file and all included files into the build script's `OUT_DIR`. The output has
/// the file's name with the extension `.rs`. Returns its path. Warnings about hints become build warnings.
pub fn compile(path: impl AsRef<Path>) -> Result<PathBuf, Error> {
    compile_with(path, &Options::default())
}

/// Like [`compile`], with include folders and leniency.
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

/// Loads and checks a Thrift file and all included files.
pub fn load(path: &Path, options: &Options) -> Result<Document, Error> {
    dunlin_idl::load_with(path, options, &Disk).map_err(Error::Idl)
}

/// Generates the code of a document that was loaded from `path`. `folder` holds intermediate files; it is
/// created if necessary and not removed.
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

/// Rejects field ids that are not positive. With these, pilota would generate invalid Rust and exit the
/// process.
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
