//! Makes the generated code readable: removes unused items, inserts names and documentation, sorts the items,
//! and prints all in the usual format.

use crate::backend::Notes;
use crate::unions;
use proc_macro2::{Span, TokenStream};
use quote::ToTokens as _;
use std::collections::BTreeMap;
use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Attribute, Expr, ExprBlock, ExprUnary, File, Ident, ImplItem, Item, ItemUse, Macro, Pat, Path,
    PathSegment, Stmt, Token, Type, TypeReference, UnOp, UseTree, parse_quote,
};

/// Tidies pilota's output. The contents of its single module become the file.
pub(crate) fn tidy(text: &str, notes: &Notes) -> syn::Result<String> {
    let file: File = syn::parse_str(text)?;
    let mut items = Vec::new();
    for item in file.items {
        match item {
            Item::Mod(module) => items.extend(module.content.into_iter().flat_map(|(_, items)| items)),
            other => items.push(other),
        }
    }
    items = sort(tidy_module(items, "", notes));
    for item in &mut items {
        if let Item::Mod(module) = item {
            module.attrs.extend(habits());
        }
    }
    let mut file = File { shebang: None, attrs: Vec::new(), items };
    Careful.visit_file_mut(&mut file);
    Rename(&notes.renamed).visit_file_mut(&mut file);
    Ok(apart(&prettyplease::unparse(&file)))
}

/// Inserts empty lines between items, which the printer omits.
fn apart(text: &str) -> String {
    const STARTS: [&str; 9] = ["///", "#[", "pub ", "impl", "fn ", "async fn", "static ", "const ", "type "];
    let mut out = String::with_capacity(text.len() + text.len() / 32);
    let mut after_item = false;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if after_item && STARTS.iter().any(|start| trimmed.starts_with(start)) {
            out.push('\n');
        }
        after_item = matches!(trimmed, "}" | "};");
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// Allows the patterns in pilota's output that cause warnings of the compiler or clippy, and that a program
/// uses only a part of the generated code.
fn habits() -> [Attribute; 1] {
    [parse_quote!(#[allow(
        dead_code,
        unreachable_pub,
        unused_mut,
        unused_variables,
        clippy::deref_addrof,
        clippy::explicit_auto_deref,
        clippy::inherent_to_string,
        clippy::match_single_binding,
        clippy::needless_borrow,
        clippy::needless_question_mark,
        clippy::redundant_closure,
        clippy::too_many_arguments,
        clippy::unit_arg,
        clippy::unnecessary_fallible_conversions
    )])]
}

fn tidy_module(mut items: Vec<Item>, module: &str, notes: &Notes) -> Vec<Item> {
    unions::put_in(&mut items);
    let mut kept = Vec::new();
    for mut item in items {
        let name = match &item {
            // Each module has the same imports, whether it needs them or not.
            Item::Use(_) => continue,
            Item::Impl(block) => self_name(&block.self_ty),
            other => name(other),
        };
        let declared = name.as_deref().is_some_and(unions::is_declared);
        let path = name.map(|name| format!("{module}{name}")).unwrap_or_default();
        if declared || notes.dropped.contains(&path) {
            continue;
        }
        match &mut item {
            Item::Mod(inner) => {
                let prefix = format!("{path}::");
                if let Some((_, items)) = &mut inner.content {
                    *items = sort(tidy_module(std::mem::take(items), &prefix, notes));
                }
                set_doc(&mut inner.attrs, &format!("The namespace `{}` of the IDL.", inner.ident));
            }
            Item::Impl(block) => {
                let own = block.trait_.is_none();
                for item in &mut block.items {
                    match item {
                        ImplItem::Fn(function) if function.sig.ident == "decode_async" => {
                            not_asynchronous(function);
                        }
                        ImplItem::Const(value) if own => {
                            let known = notes.docs.get(&format!("{path}.{}", value.ident));
                            set_doc(
                                &mut value.attrs,
                                known.unwrap_or(&format!("The value `{}`.", value.ident)),
                            );
                        }
                        ImplItem::Fn(function) if own => document_enumeration(function),
                        _ => {}
                    }
                }
            }
            Item::Struct(s) => {
                let fields = s.fields.iter_mut().filter_map(|f| Some((f.ident.clone()?, &mut f.attrs)));
                document(
                    &mut s.attrs,
                    fields,
                    &path,
                    notes,
                    &format!("`{}` of the IDL.", s.ident),
                    "The field",
                );
            }
            Item::Enum(e) => {
                let variants = e.variants.iter_mut().map(|v| (v.ident.clone(), &mut v.attrs));
                let otherwise = format!("`{}` of the IDL.", e.ident);
                document(&mut e.attrs, variants, &path, notes, &otherwise, "The variant");
            }
            Item::Const(c) => {
                Elided.visit_type_mut(&mut c.ty);
                document_constant(&mut c.attrs, &c.ident, notes);
            }
            // The descriptor of a service documents itself.
            Item::Static(constant) if constant.attrs.is_empty() => {
                document_constant(&mut constant.attrs, &constant.ident, notes);
            }
            Item::Trait(t) => {
                let otherwise = format!("The service `{}`, as its handler implements it.", t.ident);
                t.attrs.retain(|attribute| !attribute.path().is_ident("doc"));
                set_doc(&mut t.attrs, notes.docs.get(&path).unwrap_or(&otherwise));
            }
            _ => {}
        }
        kept.push(item);
    }
    kept
}

fn document_constant(attributes: &mut Vec<Attribute>, ident: &Ident, notes: &Notes) {
    let known = notes.constants.get(&ident.to_string());
    set_doc(attributes, known.unwrap_or(&format!("The constant `{ident}` of the IDL.")));
}

/// Documents the functions that pilota generates for an enum.
fn document_enumeration(function: &mut syn::ImplItemFn) {
    let text = match function.sig.ident.to_string().as_str() {
        "inner" => "Its number.",
        "to_string" => "Its name, or its number if the IDL has no name for it.",
        "try_from_i32" => "The value of this number, if the IDL has one.",
        _ => return,
    };
    set_doc(&mut function.attrs, text);
}

/// Adds documentation to an item and its parts.
fn document<'a>(
    attributes: &mut Vec<Attribute>,
    parts: impl Iterator<Item = (Ident, &'a mut Vec<Attribute>)>,
    path: &str,
    notes: &Notes,
    otherwise: &str,
    part: &str,
) {
    let documented = |attributes: &[Attribute]| attributes.iter().any(|one| one.path().is_ident("doc"));
    if !documented(attributes) {
        set_doc(attributes, notes.docs.get(path).map_or(otherwise, String::as_str));
    }
    for (ident, attributes) in parts.filter(|(_, attributes)| !documented(attributes)) {
        let known = notes.docs.get(&format!("{path}.{ident}"));
        set_doc(attributes, known.unwrap_or(&format!("{part} `{ident}`.")));
    }
}

fn set_doc(attributes: &mut Vec<Attribute>, text: &str) {
    let lines = text.lines().map(|line| {
        let line = if line.is_empty() { String::new() } else { format!(" {line}") };
        parse_quote!(#[doc = #line])
    });
    let lines: Vec<Attribute> = lines.collect();
    attributes.splice(0..0, lines);
}

/// pilota's trait requires asynchronous decoding, which is not used here.
fn not_asynchronous(function: &mut syn::ImplItemFn) {
    function.sig = parse_quote! {
        async fn decode_async<T: ::pilota::thrift::TAsyncInputProtocol>(
            _: &mut T,
        ) -> ::std::result::Result<Self, ::pilota::thrift::ThriftException>
    };
    function.block = parse_quote!({ ::std::result::Result::Err(::dunlin::thrift::not_asynchronous()) });
}

fn name(item: &Item) -> Option<String> {
    Some(match item {
        Item::Mod(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Const(item) => item.ident.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        _ => return None,
    })
}

fn self_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

/// Sorts items: constants, types with their implementations, services, modules; by name within each group.
/// pilota's order changes with each run.
fn sort(mut items: Vec<Item>) -> Vec<Item> {
    let rank = |item: &Item| match item {
        Item::Const(_) | Item::Static(_) | Item::Macro(_) => 0,
        Item::Mod(_) => 3,
        Item::Trait(_) => 2,
        _ => 1,
    };
    items.sort_by_cached_key(|item| {
        let (owner, part) = match item {
            Item::Impl(block) => {
                let interface = block.trait_.as_ref().map(|(_, path, _)| tokens(path));
                // `impl From<X> for Failure<Exception>` stands with X.
                let owner = self_name(&block.self_ty).unwrap_or_default();
                (owner, format!("impl {}{}", interface.unwrap_or_default(), tokens(&block.self_ty)))
            }
            item => (name(item).unwrap_or_default(), String::new()),
        };
        (rank(item), owner, part)
    });
    items
}

fn tokens(node: &impl quote::ToTokens) -> String {
    let mut tokens = TokenStream::new();
    node.to_tokens(&mut tokens);
    tokens.to_string()
}

/// Omits the lifetimes of references in constants, which are `'static` implicitly.
struct Elided;

impl VisitMut for Elided {
    fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
        reference.lifetime = None;
        visit_mut::visit_type_reference_mut(self, reference);
    }
}

/// Changes each element of `vec![...]`. Visitors see only the tokens of these expressions.
pub(crate) fn each_element(call: &mut Macro, change: impl FnMut(&mut Expr)) {
    if let Ok(mut elements) = call.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
        elements.iter_mut().for_each(change);
        call.tokens = elements.to_token_stream();
    }
}

/// Renames items, and replaces paths to pilota by Dunlin's re-export.
struct Rename<'a>(&'a BTreeMap<String, String>);

impl VisitMut for Rename<'_> {
    fn visit_ident_mut(&mut self, ident: &mut Ident) {
        if let Some(name) = self.0.get(&ident.to_string()) {
            *ident = Ident::new(name, Span::call_site());
        }
    }

    fn visit_item_use_mut(&mut self, item: &mut ItemUse) {
        if item.leading_colon.is_some() && matches!(&item.tree, UseTree::Path(path) if path.ident == "pilota")
        {
            let tree = &item.tree;
            item.tree = parse_quote!(dunlin::thrift::#tree);
        }
        visit_mut::visit_item_use_mut(self, item);
    }

    fn visit_macro_mut(&mut self, call: &mut Macro) {
        each_element(call, |element| self.visit_expr_mut(element));
        visit_mut::visit_macro_mut(self, call);
    }

    fn visit_path_mut(&mut self, path: &mut Path) {
        let first = path.segments.first().map(|segment| segment.ident.to_string());
        if path.leading_colon.is_some() && first.as_deref() == Some("pilota") {
            let ours =
                ["dunlin", "thrift"].map(|name| PathSegment::from(Ident::new(name, Span::call_site())));
            let rest = std::mem::take(&mut path.segments);
            path.segments = ours.into_iter().chain(rest).collect();
        }
        visit_mut::visit_path_mut(self, path);
    }
}

/// Makes decoding safe: bounds the capacity that a message's claimed size reserves, and removes unsafe code.
struct Careful;

impl VisitMut for Careful {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        // pilota writes the elements of a list past the end of a vector and sets its length afterwards.
        if let Expr::Unsafe(block) = expression {
            let mut block = block.block.clone();
            block.stmts.retain(|statement| !is_set_length(statement));
            *expression = Expr::Block(ExprBlock { attrs: Vec::new(), label: None, block });
        }
        visit_mut::visit_expr_mut(self, expression);
        // `write_struct((&**self))`, which pilota generates for a typedef of a struct.
        if let Expr::MethodCall(syn::ExprMethodCall { args, .. }) | Expr::Call(syn::ExprCall { args, .. }) =
            expression
        {
            for argument in args {
                if let Expr::Paren(inner) = argument {
                    *argument = (*inner.expr).clone();
                }
            }
        }
        match expression {
            Expr::MethodCall(call) if call.method == "write" => {
                if let Expr::MethodCall(offset) = &*call.receiver
                    && let Expr::MethodCall(pointer) = &*offset.receiver
                    && pointer.method == "as_mut_ptr"
                {
                    let (list, element) = (&pointer.receiver, &call.args);
                    *expression = parse_quote!(#list.push(#element));
                }
            }
            Expr::Call(call) if matches!(&*call.func, Expr::Path(path) if is_with_capacity(&path.path)) => {
                let size = &call.args;
                call.args = parse_quote!(::dunlin::thrift::room(#size));
            }
            // `*&value`, where a value is otherwise read or written through a reference.
            Expr::Unary(ExprUnary { op: UnOp::Deref(_), expr, .. }) => {
                if let Expr::Reference(reference) = &**expr {
                    *expression = (*reference.expr).clone();
                }
            }
            Expr::ForLoop(each) if !mentions(&each.body, &each.pat) => each.pat = parse_quote!(_),
            _ => {}
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        visit_mut::visit_arm_mut(self, arm);
        if let Pat::TupleStruct(pattern) = &mut arm.pat
            && let Some(value @ Pat::Ident(_)) = pattern.elems.first_mut()
            && !mentions(&arm.body, value)
        {
            *value = parse_quote!(_);
        }
    }
}

fn is_set_length(statement: &Stmt) -> bool {
    matches!(statement, Stmt::Expr(Expr::MethodCall(call), _) if call.method == "set_len")
}

fn is_with_capacity(path: &Path) -> bool {
    path.segments.last().is_some_and(|segment| segment.ident == "with_capacity")
}

/// Returns whether the name in a pattern occurs in a body.
fn mentions(body: &impl quote::ToTokens, pattern: &Pat) -> bool {
    fn find(tokens: TokenStream, name: &str) -> bool {
        tokens.into_iter().any(|token| match token {
            proc_macro2::TokenTree::Ident(ident) => ident == name,
            proc_macro2::TokenTree::Group(group) => find(group.stream(), name),
            _ => false,
        })
    }
    match pattern {
        Pat::Ident(ident) => find(body.to_token_stream(), &ident.ident.to_string()),
        _ => true,
    }
}
