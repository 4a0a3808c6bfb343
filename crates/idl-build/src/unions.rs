//! Values of unions in constants and defaults. pilota's generator knows the name of a union's field as a value of the union, without what
//! is in it, and a struct's fields with what is in them. So each such value becomes a name in the text for the generator, declared
//! behind it with a struct of what is in it; and in what was generated the name becomes the value.

use crate::tidy;
use dunlin_idl::{DefinitionId, DefinitionKind, Document, Field, FileId, Type, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, Item, ItemConst, ItemStatic, Macro, parse_quote};

/// What the names begin with, of the values, of the structs' values and of the structs.
const NAME: &str = "DUNLIN_UNION_VALUE_";
const WITHIN: &str = "DUNLIN_UNION_WITHIN_";
const STRUCT: &str = "DunlinUnionWithin";

/// The declarations behind a file's text. Numbers are counted on through all files, since several may be one module.
pub(crate) struct Declared<'a> {
    pub(crate) document: &'a Document,
    pub(crate) file: FileId,
    pub(crate) number: usize,
    pub(crate) text: String,
}

impl Declared<'_> {
    /// The name of a value of a union: of this field, with what is in it as it is written.
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

    /// A type as this file names it.
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

/// The field of a union that a value names.
pub(crate) fn field<'d>(document: &'d Document, union: DefinitionId, value: &Value) -> Option<&'d Field> {
    let (DefinitionKind::Union(fields), Value::Map(pairs)) = (&document.definition(union).kind, value) else {
        return None;
    };
    match &pairs[..] {
        [(Value::Text(name), _)] => fields.iter().find(|field| field.name == *name),
        _ => None,
    }
}

/// Whether it was declared here only.
pub(crate) fn is_declared(name: &str) -> bool {
    [NAME, WITHIN, STRUCT].iter().any(|start| name.starts_with(start))
}

/// Puts values of unions where a module has their names.
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
        // What is in a union may have to be made when it is used first, and then so has what that is in.
        if let (false, Item::Const(made)) = (values.only_constant, &*item) {
            let ItemConst { attrs, vis, ident, ty, expr, .. } = made;
            *item = parse_quote! {
                #(#attrs)*
                #vis static #ident: ::std::sync::LazyLock<#ty> = ::std::sync::LazyLock::new(|| #expr);
            };
        }
    }
}

/// By the number at the end of their names.
#[derive(Default)]
struct Values {
    fields: BTreeMap<String, Expr>,
    /// What is in them, and whether it is constant.
    within: BTreeMap<String, (Expr, bool)>,
    /// Whether all that was put into an item was.
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

/// What is in the struct with one field that an expression makes, then or when it is used first.
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
