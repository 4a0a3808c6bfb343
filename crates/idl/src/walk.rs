//! Converts parse trees to a document: adds the locations of words, resolves names, and checks Thrift's rules
//! beyond its grammar.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::document::{Definition, DefinitionKind, EnumValue, Field, FileId, Requiredness, ServiceId, Type};
use crate::lexer::Kind;
use crate::load::Parsed;
use crate::outline::{FunctionOutline, Item};
use crate::scope::{Scope, twice};
use crate::source::Span;
use crate::value::{Literal, Value};
use dunlin_hints::Place;
use pilota_thrift_parser as tree;
use std::collections::HashMap;

/// A function without its hints.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) oneway: bool,
    pub(crate) arguments: Vec<Field>,
    pub(crate) result: Type,
    pub(crate) throws: Vec<Field>,
    pub(crate) documentation: String,
}

/// A service without its hints.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) extends: Option<(ServiceId, Span)>,
    pub(crate) documentation: String,
    pub(crate) functions: Vec<Signature>,
}

/// Walks the tokens of a file in parallel with its tree.
pub(crate) struct Walker<'a> {
    file: &'a Parsed,
    id: FileId,
    scope: &'a Scope,
    diagnostics: &'a mut Diagnostics,
    /// The index of the next token.
    at: usize,
    /// The index at which to stop.
    end: usize,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(
        file: &'a Parsed,
        id: FileId,
        scope: &'a Scope,
        diagnostics: &'a mut Diagnostics,
    ) -> Self {
        Walker { file, id, scope, diagnostics, at: 0, end: 0 }
    }

    fn enter(&mut self, open: usize) {
        self.at = open + 1;
        self.end = self.file.tokens.tokens[open].partner.unwrap_or(open);
    }

    /// Advances past the next token that satisfies `wanted`, skipping brackets.
    fn step_to(&mut self, mut wanted: impl FnMut(usize) -> bool) -> Option<usize> {
        while self.at < self.end {
            let index = self.at;
            let partner = self.file.tokens.tokens[index].partner;
            if wanted(index) {
                self.at = index + 1;
                return Some(index);
            }
            self.at = partner.filter(|partner| *partner > index).unwrap_or(index) + 1;
        }
        None
    }

    /// Advances past the next occurrence of a word and returns its location. The word exists, since the tree
    /// contains it.
    fn find(&mut self, word: &str) -> Span {
        let from = self.at;
        let file = self.file;
        match self.step_to(|index| file.word(index) == word) {
            Some(index) => file.tokens.tokens[index].span.clone(),
            None => {
                self.at = from;
                file.tokens.tokens.get(from).map_or(0..0, |token| token.span.clone())
            }
        }
    }

    fn find_open(&mut self, punctuation: u8) -> Option<usize> {
        let file = self.file;
        self.step_to(|index| file.tokens.tokens[index].is(punctuation))
    }

    fn place(&self, span: &Span) -> Place {
        self.file.source.place(span.start)
    }

    fn error(&mut self, span: &Span, message: impl Into<String>) {
        self.diagnostics.push(Diagnostic::error(&self.file.source, span, message));
    }

    /// Returns the name of a path and its location.
    fn path(&mut self, path: &tree::Path) -> (String, Span) {
        let mut whole: Option<Span> = None;
        for segment in path.segments.iter() {
            let span = self.find(segment);
            whole = Some(whole.map_or(span.clone(), |whole| whole.start..span.end.max(whole.start)));
        }
        let names: Vec<&str> = path.segments.iter().map(|segment| segment.as_str()).collect();
        (names.join("."), whole.unwrap_or(0..0))
    }

    fn ty(&mut self, ty: &tree::Ty) -> Type {
        use tree::Ty;
        let (word, base) = match ty {
            Ty::Void => ("void", Type::Void),
            Ty::Bool => ("bool", Type::Bool),
            Ty::Byte => ("byte", Type::I8),
            Ty::I8 => ("i8", Type::I8),
            Ty::I16 => ("i16", Type::I16),
            Ty::I32 => ("i32", Type::I32),
            Ty::I64 => ("i64", Type::I64),
            Ty::Double => ("double", Type::Double),
            Ty::String => ("string", Type::String),
            Ty::Binary => ("binary", Type::Binary),
            Ty::Uuid => ("uuid", Type::Uuid),
            Ty::List { value, .. } => {
                self.find("list");
                return Type::List(Box::new(self.value(value)));
            }
            Ty::Set { value, .. } => {
                self.find("set");
                return Type::Set(Box::new(self.value(value)));
            }
            Ty::Map { key, value, .. } => {
                self.find("map");
                let key = Box::new(self.value(key));
                return Type::Map(key, Box::new(self.value(value)));
            }
            Ty::Path(path) => {
                let (name, span) = self.path(path);
                let suggest = self.diagnostics.have_room();
                return match self.scope.type_of(self.id, &self.file.source, &name, &span, suggest) {
                    Ok(id) => Type::Named(id),
                    Err(diagnostic) => {
                        self.diagnostics.push(*diagnostic);
                        Type::Void
                    }
                };
            }
        };
        self.find(word);
        base
    }

    /// Resolves a type that has values, which `void` does not.
    fn value(&mut self, ty: &tree::Ty) -> Type {
        let found = self.ty(ty);
        if matches!(ty, tree::Ty::Void) {
            let span = self.file.tokens.tokens[self.at - 1].span.clone();
            self.error(&span, "'void' is only the result of functions");
        }
        found
    }

    /// Converts the next literal. Reports unknown names in it.
    fn literal(&mut self, value: &tree::ConstValue) -> Literal {
        let mut paths = Vec::new();
        paths_in(value, &mut paths);
        let mut at = self.at;
        for path in paths {
            let parts = parts(path);
            // The search also looks inside brackets.
            at = (at..self.end).find(|index| self.file.word(*index) == parts[0]).unwrap_or(at);
            if self.scope.constant(self.id, &parts).is_none() {
                let last = (at + 2 * (parts.len() - 1)).min(self.file.tokens.tokens.len() - 1);
                let tokens = &self.file.tokens.tokens;
                let span = tokens[at].span.start..tokens[last].span.end;
                self.error(&span, format!("there is no constant '{}'", parts.join(".")));
            }
            at += 1;
        }
        Literal { value: self.known(value), span: self.value_span() }
    }

    /// Returns the location of the value after the next equals sign.
    fn value_span(&self) -> Span {
        let tokens = &self.file.tokens.tokens;
        let Some(first) = (self.at..self.end).find(|index| tokens[*index].is(b'=')).map(|index| index + 1)
        else {
            return 0..0;
        };
        let mut last = tokens.get(first).and_then(|token| token.partner).unwrap_or(first);
        // Dotted names and signed numbers are several tokens without a space.
        while tokens.get(last + 1).is_some_and(|next| {
            let part = next.kind == Kind::Word || [b'.', b'+', b'-'].iter().any(|sign| next.is(*sign));
            let whole = tokens[first].partner.is_some() || tokens[first].kind == Kind::Literal;
            part && !whole && next.span.start == tokens[last].span.end
        }) {
            last += 1;
        }
        tokens.get(first..=last).map_or(0..0, |value| value[0].span.start..value[last - first].span.end)
    }

    /// Converts a value with its names resolved. The recursion is bounded, since the lexer limits nesting.
    fn known(&self, value: &tree::ConstValue) -> Value {
        match value {
            tree::ConstValue::Bool(value) => Value::Bool(*value),
            tree::ConstValue::Int(value) => Value::Int(value.0),
            tree::ConstValue::Double(value) => Value::Double(value.0.to_string()),
            tree::ConstValue::String(value) => Value::Text(value.0.clone()),
            // An unknown name was already reported.
            tree::ConstValue::Path(path) => {
                self.scope.constant(self.id, &parts(path)).unwrap_or(Value::Bool(false))
            }
            tree::ConstValue::List(values) => {
                Value::List(values.iter().map(|value| self.known(value)).collect())
            }
            tree::ConstValue::Map(pairs) => {
                Value::Map(pairs.iter().map(|(key, value)| (self.known(key), self.known(value))).collect())
            }
        }
    }

    /// Converts the fields up to the end.
    fn fields(&mut self, fields: &[tree::Field]) -> Vec<Field> {
        let mut all = Vec::new();
        let (mut names, mut ids) = (HashMap::new(), HashMap::new());
        for field in fields {
            let file = self.file;
            let number = self.step_to(|index| {
                file.tokens.tokens[index].kind == Kind::Word
                    && file.tokens.tokens.get(index + 1).is_some_and(|token| token.is(b':'))
            });
            let start = number.unwrap_or(self.at);
            let number = file.tokens.tokens.get(start).map_or(0..0, |token| token.span.clone());
            let ty = self.value(&field.ty);
            let span = self.find(&field.name);
            let default = field.default.as_ref().map(|value| self.literal(value));
            let id = i16::try_from(field.id).unwrap_or_default();
            if let Some(first) = ids.insert(id, number.clone()) {
                let diagnostic = twice(&self.file.source, &number, &first, &id.to_string());
                self.diagnostics.push(diagnostic);
            }
            if let Some(first) = names.insert(field.name.to_string(), span.clone()) {
                let diagnostic = twice(&self.file.source, &span, &first, &field.name);
                self.diagnostics.push(diagnostic);
            }
            all.push(Field {
                id,
                name: field.name.to_string(),
                place: self.place(&span),
                requiredness: match field.attribute {
                    tree::Attribute::Required => Requiredness::Required,
                    tree::Attribute::Optional => Requiredness::Optional,
                    tree::Attribute::Default => Requiredness::Default,
                },
                ty,
                default,
                documentation: self.file.documentation(start),
            });
        }
        all
    }

    /// Converts the type or constant of an item.
    pub(crate) fn definition(&mut self, item: &Item, tree: &tree::Item) -> Option<Definition> {
        self.at = item.tokens.start + 1;
        self.end = item.tokens.end;
        let (name, span, kind) = match tree {
            tree::Item::Typedef(typedef) => {
                let ty = self.value(&typedef.r#type);
                (&typedef.alias, self.find(&typedef.alias), DefinitionKind::Typedef(ty))
            }
            tree::Item::Constant(constant) => {
                let ty = self.value(&constant.r#type);
                let span = self.find(&constant.name);
                let value = self.literal(&constant.value);
                (&constant.name, span, DefinitionKind::Constant(ty, value))
            }
            tree::Item::Enum(it) => {
                let span = self.find(&it.name);
                (&it.name, span, DefinitionKind::Enum(self.enum_values(&it.values)))
            }
            tree::Item::Struct(it) => {
                let span = self.find(&it.name);
                (&it.name, span, DefinitionKind::Struct(self.members(&it.fields)))
            }
            tree::Item::Union(it) => {
                let span = self.find(&it.name);
                (&it.name, span, DefinitionKind::Union(self.members(&it.fields)))
            }
            tree::Item::Exception(it) => {
                let span = self.find(&it.name);
                (&it.name, span, DefinitionKind::Exception(self.members(&it.fields)))
            }
            _ => return None,
        };
        Some(Definition {
            name: name.to_string(),
            place: self.place(&span),
            kind,
            documentation: self.file.documentation(item.tokens.start),
        })
    }

    fn members(&mut self, fields: &[tree::Field]) -> Vec<Field> {
        let Some(open) = self.find_open(b'{') else { return Vec::new() };
        self.enter(open);
        self.fields(fields)
    }

    fn enum_values(&mut self, values: &[tree::EnumValue]) -> Vec<EnumValue> {
        let Some(open) = self.find_open(b'{') else { return Vec::new() };
        self.enter(open);
        let mut all = Vec::new();
        let mut names = HashMap::new();
        let mut next = Some(0i32);
        for value in values {
            let span = self.find(&value.name);
            let start = self.at - 1;
            let number = match value.value {
                Some(number) => i32::try_from(number.0).ok(),
                None => next,
            };
            if number.is_none() {
                self.error(&span, format!("the number of '{}' does not fit in an i32", &*value.name));
            }
            let number = number.unwrap_or_default();
            next = number.checked_add(1);
            if let Some(first) = names.insert(value.name.to_string(), span.clone()) {
                let diagnostic = twice(&self.file.source, &span, &first, &value.name);
                self.diagnostics.push(diagnostic);
            }
            all.push(EnumValue {
                name: value.name.to_string(),
                number,
                place: self.place(&span),
                documentation: self.file.documentation(start),
            });
        }
        all
    }

    /// Converts a service as far as its tree describes it.
    pub(crate) fn service(&mut self, item: &Item, tree: &tree::Service) -> Head {
        self.at = item.tokens.start + 1;
        self.end = item.tokens.end;
        let span = self.find(&tree.name);
        let extends = tree.extends.as_ref().and_then(|path| {
            self.find("extends");
            let (name, span) = self.path(path);
            let suggest = self.diagnostics.have_room();
            match self.scope.service_of(self.id, &self.file.source, &name, &span, suggest) {
                Ok(id) => Some((id, span)),
                Err(diagnostic) => {
                    self.diagnostics.push(*diagnostic);
                    None
                }
            }
        });
        let outlines = item.service.as_ref().map_or(&[][..], |service| &service.functions);
        let found = outlines.iter().map(|outline| self.file.word(outline.name));
        if !found.eq(tree.functions.iter().map(|function| function.name.as_str())) {
            let message = format!("the functions of '{}' are not where they were looked for", &*tree.name);
            let help = "write each as 'type name(arguments)', with throws, annotations and hints behind";
            let diagnostic = Diagnostic::error(&self.file.source, &span, message).help(help);
            self.diagnostics.push(diagnostic);
        }
        let mut functions = Vec::new();
        let mut names: HashMap<String, Span> = HashMap::new();
        for (outline, function) in outlines.iter().zip(&tree.functions) {
            let signature = self.function(outline, function);
            let span = self.file.tokens.tokens[outline.name].span.clone();
            if let Some(first) = names.insert(signature.name.clone(), span.clone()) {
                let diagnostic = twice(&self.file.source, &span, &first, &signature.name);
                self.diagnostics.push(diagnostic);
            }
            functions.push(signature);
        }
        Head {
            name: tree.name.to_string(),
            place: self.place(&span),
            extends,
            documentation: self.file.documentation(item.tokens.start),
            functions,
        }
    }

    fn function(&mut self, outline: &FunctionOutline, tree: &tree::Function) -> Signature {
        self.at = outline.start;
        self.end = outline.name;
        if tree.oneway {
            self.find("oneway");
        }
        let result = self.ty(&tree.result_type);
        let name = self.file.tokens.tokens[outline.name].span.clone();
        self.enter(outline.arguments);
        let arguments = self.fields(&tree.arguments);
        let mut throws = Vec::new();
        if let Some(open) = outline.throws {
            self.enter(open);
            throws = self.fields(&tree.throws);
        }
        if tree.oneway && result != Type::Void {
            self.error(&name, format!("'{}' is oneway, so its result must be void", &*tree.name));
        }
        if let (true, Some(open)) = (tree.oneway, outline.throws) {
            let span = self.file.tokens.tokens[open - 1].span.clone();
            self.error(&span, format!("'{}' is oneway, so it cannot throw", &*tree.name));
        }
        Signature {
            name: tree.name.to_string(),
            place: self.place(&name),
            oneway: tree.oneway,
            arguments,
            result,
            throws,
            documentation: self.file.documentation(outline.start),
        }
    }
}

/// Returns the parts of a dotted name.
fn parts(path: &tree::Path) -> Vec<&str> {
    path.segments.iter().map(|segment| segment.as_str()).collect()
}

/// Collects the names in a value in order. The recursion is bounded, since the lexer limits nesting.
fn paths_in<'a>(value: &'a tree::ConstValue, paths: &mut Vec<&'a tree::Path>) {
    match value {
        tree::ConstValue::Path(path) if !path.segments.is_empty() => paths.push(path),
        tree::ConstValue::List(values) => values.iter().for_each(|value| paths_in(value, paths)),
        tree::ConstValue::Map(entries) => {
            for (key, value) in entries {
                paths_in(key, paths);
                paths_in(value, paths);
            }
        }
        _ => {}
    }
}
