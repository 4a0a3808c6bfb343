//! The result of loading: files, definitions, services, and the hints of each function.

use crate::diagnostic::Diagnostics;
use crate::value::Literal;
use dunlin_hints::{FunctionHints, Place};
use std::path::PathBuf;
use std::sync::Arc;

/// Identifies a file of a [`Document`] by its index in [`Document::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub usize);

/// Identifies a service of a [`Document`] by its index in [`Document::services`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub usize);

/// Identifies a definition of a [`Document`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DefinitionId {
    /// The file.
    pub file: FileId,
    /// The index in [`File::definitions`].
    pub index: usize,
}

/// A checked file with all files that it includes.
#[derive(Clone, Debug)]
pub struct Document {
    /// The loaded file, followed by the included files, each once.
    pub files: Vec<File>,
    /// The services of all files, in the order of the files.
    pub services: Vec<Service>,
    /// Warnings.
    pub warnings: Diagnostics,
}

impl Document {
    /// Returns a file.
    pub fn file(&self, id: FileId) -> &File {
        &self.files[id.0]
    }

    /// Returns a service.
    pub fn service(&self, id: ServiceId) -> &Service {
        &self.services[id.0]
    }

    /// Returns a definition.
    pub fn definition(&self, id: DefinitionId) -> &Definition {
        &self.file(id.file).definitions[id.index]
    }

    /// Returns the services of the loaded file, without those of included files.
    pub fn own_services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().filter(|service| service.file == FileId(0))
    }
}

/// A file.
#[derive(Clone, Debug)]
pub struct File {
    /// The path: as given for the loaded file; for an included file, the folder of the including file or an
    /// include folder, joined with the include's path.
    pub path: PathBuf,
    /// The file name without folder and `.thrift`. Including files use it as the prefix of the file's names.
    pub name: String,
    /// The text.
    pub text: Arc<str>,
    /// The text as plain Thrift: syntax unknown to `pilota-thrift-parser` is blanked with spaces. All other
    /// bytes keep their offsets.
    pub blanked_text: String,
    /// The include statements.
    pub includes: Vec<Include>,
    /// The namespace statements.
    pub namespaces: Vec<Namespace>,
    /// The types and constants.
    pub definitions: Vec<Definition>,
}

/// An `include` statement.
#[derive(Clone, Debug)]
pub struct Include {
    /// The path in the statement.
    pub path: String,
    /// The included file.
    pub file: FileId,
    /// The location.
    pub place: Place,
}

/// A `namespace` statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The language, or `*`.
    pub scope: String,
    /// The dotted name.
    pub name: String,
}

/// A type or a constant.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The name.
    pub name: String,
    /// The location of the name.
    pub place: Place,
    /// The kind, with its content.
    pub kind: DefinitionKind,
    /// The comments before the definition.
    pub documentation: String,
}

/// The kind and content of a definition.
#[derive(Clone, Debug)]
pub enum DefinitionKind {
    /// An alias of a type.
    Typedef(Type),
    /// An enum.
    Enum(Vec<EnumValue>),
    /// A struct.
    Struct(Vec<Field>),
    /// A union: exactly one of its fields is set.
    Union(Vec<Field>),
    /// An exception.
    Exception(Vec<Field>),
    /// A constant, with its type and value.
    Constant(Type, Literal),
}

/// A value of an enum.
#[derive(Clone, Debug)]
pub struct EnumValue {
    /// The name.
    pub name: String,
    /// The number.
    pub number: i32,
    /// The location of the name.
    pub place: Place,
    /// The comments before the value.
    pub documentation: String,
}

/// The requiredness of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requiredness {
    /// `required`, or an argument without a keyword.
    Required,
    /// `optional`.
    Optional,
    /// No keyword.
    Default,
}

/// A field of a struct, an argument, or a declared exception of a function.
#[derive(Clone, Debug)]
pub struct Field {
    /// The field id.
    pub id: i16,
    /// The name.
    pub name: String,
    /// The location of the name.
    pub place: Place,
    /// The requiredness.
    pub requiredness: Requiredness,
    /// The type.
    pub ty: Type,
    /// The default value.
    pub default: Option<Literal>,
    /// The comments before the field.
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
    /// A type defined in this or an included file.
    Named(DefinitionId),
}

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    /// The name.
    pub name: String,
    /// The file that defines the service.
    pub file: FileId,
    /// The location of the name.
    pub place: Place,
    /// The extended service.
    pub extends: Option<ServiceId>,
    /// The comments before the service.
    pub documentation: String,
    /// The service's own functions.
    pub functions: Vec<Function>,
    /// The functions of the extended services, most distant first, with their hints as resolved for this
    /// service.
    pub inherited: Vec<Function>,
}

impl Service {
    /// Returns all functions that clients can call: inherited ones, then its own.
    pub fn all_functions(&self) -> impl Iterator<Item = &Function> {
        self.inherited.iter().chain(&self.functions)
    }
}

/// A function of a service.
#[derive(Clone, Debug)]
pub struct Function {
    /// The name.
    pub name: String,
    /// The location of the name.
    pub place: Place,
    /// The service that declares the function.
    pub declared_in: ServiceId,
    /// Whether the function is oneway.
    pub oneway: bool,
    /// The arguments.
    pub arguments: Vec<Field>,
    /// The result type.
    pub result: Type,
    /// The declared exceptions.
    pub throws: Vec<Field>,
    /// The comments before the function.
    pub documentation: String,
    /// The resolved hints of both sides, with their locations.
    pub hints: FunctionHints,
}
