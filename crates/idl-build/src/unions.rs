//! Values of unions in constants and defaults. pilota's generator cannot write a union value with its
//! content, but accepts the name of a union's field as a value, and a struct with content. Each union value
//! is therefore replaced by a name in the generator's input. Appended declarations define that name, and a
//! struct that holds the content. In the generated code, the name is then replaced by the value.

use crate::tidy;
use dunlin_idl::{DefinitionId, DefinitionKind, Document, Field, FileId, Type, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, Item, ItemConst, ItemStatic, Macro, parse_quote};

/// Prefixes of the declared names: of values, of content structs' values and of content structs.
const NAME: &str = "DUNLIN_UNION_VALUE_";
const WITHIN: &str = "DUNLIN_UNION_WITHIN_";
const STRUCT: &str = "DunlinUnionWithin";

/// The declarations appended to a file's text. Numbers are unique across files, since several files may form
/// one module.
pub(crate) struct Declared<'a> {
    pub(crate) document: &'a Document,
    pub(crate) file: FileId,
    pub(crate) number: usize,
    pub(crate) text: String,
}

impl Declared<'_> {
    /// Declares a value of a union's field with the given content and returns its name.
    pub(crate) fn name(
        &mut self,
        union: DefinitionId,
        field: &Field,
        within: &str,
    ) -> Result<String, String> {
        let (number, union) = (self.number, self.named(union)?);
        let ty = self.shown(&field.ty)?;
        self.number += 1;
        let name = &field.name;
        let _ = write!(
            self.text,
            "\nstruct {STRUCT}{number} {{ 1: required {ty} value }}\
             \nconst {STRUCT}{number} {WITHIN}{number} = {{\"value\": {within}}}\
             \nconst {union} {NAME}{number} = {union}.{name}"
        );
        Ok(format!("{NAME}{number}"))
    }

    /// Returns the name of a type in this file.
    fn shown(&self, ty: &Type) -> Result<String, String> {
        Ok(match ty {
            Type::Named(id) => self.named(*id)?,
            Type::List(element) => format!("list<{}>", self.shown(element)?),
            Type::Set(element) => format!("set<{}>", self.shown(element)?),
            Type::Map(key, element) => format!("map<{}, {}>", self.shown(key)?, self.shown(element)?),
            ty => format!("{ty:?}").to_lowercase(),
        })
    }

    fn named(&self, id: DefinitionId) -> Result<String, String> {
        let name = &self.document.definition(id).name;
        if id.file == self.file {
            return Ok(name.clone());
        }
        let file = &self.document.file(id.file).name;
        let included = self.document.file(self.file).includes.iter().any(|include| include.file == id.file);
        if included {
            Ok(format!("{file}.{name}"))
        } else {
            Err(format!("a value of '{name}' is within it: include \"{file}.thrift\" here, too"))
        }
    }
}

/// Returns the union field that a value sets.
pub(crate) fn field<'d>(document: &'d Document, union: DefinitionId, value: &Value) -> Option<&'d Field> {
    let (DefinitionKind::Union(fields), Value::Map(pairs)) = (&document.definition(union).kind, value) else {
        return None;
    };
    match &pairs[..] {
        [(Value::Text(name), _)] => fields.iter().find(|field| field.name == *name),
        _ => None,
    }
}

/// Returns whether an item was declared only for the generator.
pub(crate) fn is_declared(name: &str) -> bool {
    [NAME, WITHIN, STRUCT].iter().any(|start| name.starts_with(start))
}

/// Replaces the names of union values in a module by the values.
pub(crate) fn put_in(items: &mut [Item]) {
    let mut values = Values::default();
    for item in items.iter() {
        match item {
            Item::Const(ItemConst { ident, expr, .. }) => values.learn(&ident.to_string(), expr, true),
            Item::Static(ItemStatic { ident, expr, .. }) => values.learn(&ident.to_string(), expr, false),
            _ => {}
        }
    }
    if values.fields.is_empty() {
        return;
    }
    for item in items {
        values.only_constant = true;
        values.visit_item_mut(item);
        // The content of a union may be initialized lazily; an item that contains it must then be lazy too.
        if let (false, Item::Const(made)) = (values.only_constant, &*item) {
            let ItemConst { attrs, vis, ident, ty, expr, .. } = made;
            *item = parse_quote! {
                #(#attrs)*
                #vis static #ident: ::std::sync::LazyLock<#ty> = ::std::sync::LazyLock::new(|| #expr);
            };
        }
    }
}

/// Union values by the number at the end of their names.
#[derive(Default)]
struct Values {
    fields: BTreeMap<String, Expr>,
    /// The content of the values, and whether it is constant.
    within: BTreeMap<String, (Expr, bool)>,
    /// Whether all values inserted into an item were constant.
    only_constant: bool,
}

impl Values {
    fn learn(&mut self, name: &str, value: &Expr, constant: bool) {
        if let Some(number) = name.strip_prefix(NAME) {
            self.fields.insert(number.to_owned(), value.clone());
        } else if let (Some(number), Some(within)) = (name.strip_prefix(WITHIN), only_field(value)) {
            self.within.insert(number.to_owned(), (within, constant));
        }
    }
}

/// Returns the only field's value of a struct expression, which may be inside a lazy initializer.
fn only_field(expression: &Expr) -> Option<Expr> {
    match expression {
        Expr::Struct(made) => made.fields.first().map(|field| field.expr.clone()),
        Expr::Block(block) => match &block.block.stmts[..] {
            [syn::Stmt::Expr(value, None)] => only_field(value),
            _ => None,
        },
        Expr::Call(call) => match call.args.first()? {
            Expr::Closure(closure) => only_field(&closure.body),
            _ => None,
        },
        _ => None,
    }
}

impl VisitMut for Values {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        if let Expr::Path(path) = expression
            && let Some(segment) = path.path.segments.last()
            && let Some(number) = segment.ident.to_string().strip_prefix(NAME)
            && let (Some(field), Some((within, constant))) =
                (self.fields.get(number), self.within.get(number))
        {
            self.only_constant &= constant;
            *expression = parse_quote!(#field(#within));
        }
        visit_mut::visit_expr_mut(self, expression);
    }

    fn visit_macro_mut(&mut self, call: &mut Macro) {
        tidy::each_element(call, |element| self.visit_expr_mut(element));
    }
}
