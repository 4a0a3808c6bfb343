//! The code generation backend for pilota. It delegates types to pilota's backend and generates services
//! itself.

use crate::bare;
use crate::names::{text, upper_snake};
use crate::service;
use dunlin_idl::{DefinitionKind, Document};
use pilota_build::rir::{Enum, Message, Method, NewType, Service};
use pilota_build::{CodegenBackend, Context, DefId, MakeBackend, ThriftBackend};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Facts about the generated items, by their paths.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Items to remove.
    pub(crate) dropped: BTreeSet<String>,
    /// Items to rename: the last parts of their paths, old and new.
    pub(crate) renamed: BTreeMap<String, String>,
    /// Documentation of items, and of their fields and variants as `item.field`.
    pub(crate) docs: BTreeMap<String, String>,
    /// Documentation of constants by name; missing for a name that several files define.
    pub(crate) constants: BTreeMap<String, String>,
}

impl Notes {
    /// Collects the documentation of a document's constants. pilota supplies that of other items.
    pub(crate) fn new(document: &Document) -> Self {
        let mut constants = BTreeMap::new();
        for definition in document.files.iter().flat_map(|file| &file.definitions) {
            if let DefinitionKind::Constant(..) = definition.kind {
                let docs = constants.entry(upper_snake(&definition.name));
                let text = text(&definition.documentation);
                docs.and_modify(String::clear).or_insert(text);
            }
        }
        constants.retain(|_, text| !text.is_empty());
        Notes { constants, ..Notes::default() }
    }
}

/// Creates the backend.
pub(crate) struct Make {
    pub(crate) notes: Arc<Mutex<Notes>>,
    pub(crate) document: Arc<Document>,
}

impl MakeBackend for Make {
    type Target = Backend;

    fn make_backend(self, context: Context) -> Backend {
        Backend { types: ThriftBackend::new(context), notes: self.notes, document: self.document }
    }
}

#[derive(Clone)]
pub(crate) struct Backend {
    types: ThriftBackend,
    notes: Arc<Mutex<Notes>>,
    document: Arc<Document>,
}

impl Backend {
    fn note(&self, note: impl FnOnce(&mut Notes)) {
        note(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the path of an item, as `module::Item`.
    fn path(&self, item: DefId) -> String {
        let cx = self.cx();
        let mut path: Vec<String> = cx.mod_path(item).iter().map(ToString::to_string).collect();
        path.push(cx.rust_name(item).to_string());
        path.join("::")
    }

    fn document<'a>(&self, item: DefId, comments: &str, parts: impl Iterator<Item = (DefId, &'a str)>) {
        let path = self.path(item);
        let parts = parts.map(|(part, comments)| (format!("{path}.{}", self.cx().rust_name(part)), comments));
        let known = parts.chain([(path.clone(), comments)]).map(|(path, comments)| (path, text(comments)));
        self.note(|notes| notes.docs.extend(known.filter(|(_, text)| !text.trim().is_empty())));
    }
}

impl CodegenBackend for Backend {
    const PROTOCOL: &'static str = "thrift";

    fn cx(&self) -> &Context {
        self.types.cx()
    }

    fn codegen_struct_impl(&self, item: DefId, stream: &mut String, message: &Message) {
        let fields = message.fields.iter().map(|field| (field.did, &*field.leading_comments));
        self.document(item, &message.leading_comments, fields);
        self.types.codegen_struct_impl(item, stream, message);
        stream.push_str(&bare::message(self.cx(), item, message));
    }

    fn codegen_enum_impl(&self, item: DefId, stream: &mut String, e: &Enum) {
        let variants = e.variants.iter().map(|variant| (variant.did, &*variant.leading_comments));
        self.document(item, &e.leading_comments, variants);
        self.types.codegen_enum_impl(item, stream, e);
    }

    fn codegen_newtype_impl(&self, item: DefId, stream: &mut String, alias: &NewType) {
        self.document(item, &alias.leading_comments, std::iter::empty());
        self.types.codegen_newtype_impl(item, stream, alias);
    }

    fn codegen_service_method(&self, service: DefId, method: &Method) -> String {
        service::handler_method(self.cx(), service, method)
    }

    fn codegen_service_impl(&self, item: DefId, stream: &mut String, service: &Service) {
        self.document(item, &service.leading_comments, std::iter::empty());
        let module: String = self.cx().mod_path(item).iter().map(|part| format!("{part}::")).collect();
        self.note(|notes| {
            for method in &service.methods {
                let (dropped, (from, to)) = service::pilotas_names(self.cx(), item, method);
                notes.dropped.extend(dropped.iter().map(|name| format!("{module}{name}")));
                notes.renamed.insert(from, to);
            }
        });
        stream.push_str(&service::service(self.cx(), item, service, &self.document));
    }
}
