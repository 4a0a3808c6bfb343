//! What was read: files, definitions, services, and the hints of each function.

use crate::diagnostic::Diagnostics;
use crate::value::Literal;
use dunlin_hints::{FunctionHints, Place};
use std::path::PathBuf;
use std::sync::Arc;

/// A file of a [`Document`]: its index in [`Document::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub usize);

/// A service of a [`Document`]: its index in [`Document::services`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub usize);

/// A definition of a [`Document`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionId {
    /// The file.
    pub file: FileId,
    /// The index in [`File::definitions`].
    pub index: usize,
}

/// A file and all that it includes, checked.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file that was asked for, then those that are included, each once.
    pub files: Vec<File>,
    /// The services of all files, in the order of the files.
    pub services: Vec<Service>,
    /// What is not wrong but should be looked at.
    pub warnings: Diagnostics,
}

impl Document {
    /// A file.
    pub fn file(&self, id: FileId) -> &File {
        &self.files[id.0]
    }

    /// A service.
    pub fn service(&self, id: ServiceId) -> &Service {
        &self.services[id.0]
    }

    /// A definition.
    pub fn definition(&self, id: DefinitionId) -> &Definition {
        &self.file(id.file).definitions[id.index]
    }

    /// The services of the file that was asked for, in its order.
    pub fn own_services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().filter(|service| service.file == FileId(0))
    }
}

/// A file.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path: as it was given, or the folder of an including file or an include folder with the include's path.
    pub path: PathBuf,
    /// Its name without folder and `.thrift`: what names of its definitions are prefixed with in files that include it.
    pub name: String,
    /// Its text.
    pub text: Arc<str>,
    /// Its text as plain Thrift: what `pilota-thrift-parser` does not know is blanked with spaces, every other byte is
    /// where it was.
    pub blanked_text: String,
    /// What it includes, in its order.
    pub includes: Vec<Include>,
    /// Its namespaces.
    pub namespaces: Vec<Namespace>,
    /// Its types and constants.
    pub definitions: Vec<Definition>,
}

/// An `include`.
#[derive(Clone, Debug)]
pub struct Include {
    /// The path as it was written.
    pub path: String,
    /// The file.
    pub file: FileId,
    /// Where it stands.
    pub place: Place,
}

/// A `namespace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The language, or `*`.
    pub scope: String,
    /// The name, with dots.
    pub name: String,
}

/// A type or a constant.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Its name.
    pub name: String,
    /// Where the name stands.
    pub place: Place,
    /// What it is.
    pub kind: DefinitionKind,
    /// The comments before it.
    pub documentation: String,
}

/// What a definition is.
#[derive(Clone, Debug)]
pub enum DefinitionKind {
    /// Another name of a type.
    Typedef(Type),
    /// Names of numbers.
    Enum(Vec<EnumValue>),
    /// Fields.
    Struct(Vec<Field>),
    /// Fields of which one is there.
    Union(Vec<Field>),
    /// Fields of an error.
    Exception(Vec<Field>),
    /// A value of this type.
    Constant(Type, Literal),
}

/// A value of an enum.
#[derive(Clone, Debug)]
pub struct EnumValue {
    /// Its name.
    pub name: String,
    /// Its number.
    pub number: i32,
    /// Where the name stands.
    pub place: Place,
    /// The comments before it.
    pub documentation: String,
}

/// Whether a field must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requiredness {
    /// `required`, and arguments without a word.
    Required,
    /// `optional`.
    Optional,
    /// Neither word.
    Default,
}

/// A field of a struct, an argument, or an exception that is thrown.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its number.
    pub id: i16,
    /// Its name.
    pub name: String,
    /// Where the name stands.
    pub place: Place,
    /// Whether it must be there.
    pub requiredness: Requiredness,
    /// Its type.
    pub ty: Type,
    /// What it is where it is left out.
    pub default: Option<Literal>,
    /// The comments before it.
    pub documentation: String,
}

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// `void`.
    Void,
    /// `bool`.
    Bool,
    /// `i8` and `byte`.
    I8,
    /// `i16`.
    I16,
    /// `i32`.
    I32,
    /// `i64`.
    I64,
    /// `double`.
    Double,
    /// `string`.
    String,
    /// `binary`.
    Binary,
    /// `uuid`.
    Uuid,
    /// `list<...>`.
    List(Box<Type>),
    /// `set<...>`.
    Set(Box<Type>),
    /// `map<..., ...>`.
    Map(Box<Type>, Box<Type>),
    /// A type of this or an included file.
    Named(DefinitionId),
}

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// The file that it stands in.
    pub file: FileId,
    /// Where the name stands.
    pub place: Place,
    /// The service that it extends.
    pub extends: Option<ServiceId>,
    /// The comments before it.
    pub documentation: String,
    /// Its own functions.
    pub functions: Vec<Function>,
    /// The functions of the services that it extends, the farthest first, with hints as they are for this service.
    pub inherited: Vec<Function>,
}

impl Service {
    /// All functions that its clients can call: the inherited ones, then its own.
    pub fn all_functions(&self) -> impl Iterator<Item = &Function> {
        self.inherited.iter().chain(&self.functions)
    }
}

/// A function of a service.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Where the name stands.
    pub place: Place,
    /// The service that declares it.
    pub declared_in: ServiceId,
    /// Whether the caller expects no answer.
    pub oneway: bool,
    /// What it takes.
    pub arguments: Vec<Field>,
    /// What it returns.
    pub result: Type,
    /// The exceptions that it throws.
    pub throws: Vec<Field>,
    /// The comments before it.
    pub documentation: String,
    /// What is hinted to each side, with the places where it came from.
    pub hints: FunctionHints,
}
