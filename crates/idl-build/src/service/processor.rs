//! Code generation for the server's side of a service: the processors of blocking and of asynchronous handlers.

use super::{Function, free};
use crate::names::{doc, upper_snake};
use crate::values::Values;
use pilota_build::Context;
use pilota_build::rir::FieldKind;
use std::fmt::Write as _;

/// Returns an unused name for the handler's context.
fn context_name(function: &Function<'_>) -> String {
    let arguments = &function.method.args;
    free("context", |name| arguments.iter().any(|argument| *function.cx.rust_name(argument.def_id) == *name))
}

/// Returns the signature of a function of the asynchronous handler trait.
fn async_signature(function: &Function<'_>) -> String {
    let parameters = function.parameters(|argument| Values::tagged(function.cx).handed(&argument.ty));
    let (name, value, failure) = (&function.name, &function.value, function.exception());
    format!(
        "fn {name}(&self, {context}: &::dunlin::thrift::Context, {parameters}) -> impl ::std::future::Future<Output = ::std::result::Result<{value}, ::dunlin::thrift::Failure<{failure}>>> + ::std::marker::Send",
        context = context_name(function),
    )
}

/// Generates a function of the asynchronous handler trait.
fn async_handler_method(function: &Function<'_>) -> String {
    let method = function.method;
    let docs = doc(&method.leading_comments, &format!("Answers `{}`.", method.name.sym));
    format!("{docs}{};\n", async_signature(function))
}

/// Generates the handler traits of an `Arc`, so that the program can keep a clone of its handler.
fn shared_handlers(out: &mut String, name: &str, functions: &[Function<'_>]) {
    let (mut methods, mut async_methods) = (String::new(), String::new());
    for function in functions {
        let (method, arguments) = (&function.name, function.names());
        let context = context_name(function);
        let parameters = function.parameters(|argument| Values::tagged(function.cx).handed(&argument.ty));
        let (value, failure) = (&function.value, function.exception());
        let _ = write!(
            methods,
            "#[inline]
            fn {method}(&self, {context}: &::dunlin::thrift::Context, {parameters}) -> ::std::result::Result<{value}, ::dunlin::thrift::Failure<{failure}>> {{
                <H as {name}>::{method}(&**self, {context}, {arguments})
            }}"
        );
        let _ = write!(
            async_methods,
            "#[inline]
            {} {{
                <H as {name}Async>::{method}(&**self, {context}, {arguments})
            }}",
            async_signature(function)
        );
    }
    let _ = writeln!(
        out,
        "/// A handler that the program shares with its server.
        impl<H: {name} + ?Sized> {name} for ::std::sync::Arc<H> {{
            {methods}
        }}

        /// A handler that the program shares with its server.
        impl<H: {name}Async> {name}Async for ::std::sync::Arc<H> {{
            {async_methods}
        }}"
    );
}

/// Generates both processors, and the trait of asynchronous handlers.
pub(super) fn processors(out: &mut String, cx: &Context, name: &str, functions: &[Function<'_>]) {
    let (values, bare_values) = (Values::tagged(cx), Values::bare(cx));
    let (mut arms, mut async_arms, mut async_methods) = (String::new(), String::new(), String::new());
    for (number, function) in functions.iter().enumerate() {
        // Variables are named by index: an argument could have the name of any other variable.
        let (mut declare, mut fields, mut given) = (String::new(), String::new(), String::new());
        let (mut bare, mut places) = (String::new(), String::new());
        for (place, argument) in function.method.args.iter().enumerate() {
            let _ = write!(declare, "let mut argument_{place} = ::std::option::Option::None;");
            let _ = write!(
                fields,
                "({}, TType::{}) => argument_{place} = ::std::option::Option::Some({}?),",
                argument.id,
                values.wire_type(&argument.ty.kind),
                values.read_argument(&argument.ty.kind)
            );
            let _ = match (argument.kind, function.default(argument)) {
                (FieldKind::Required, None) => {
                    write!(given, "thrift::required(argument_{place}, {:?})?, ", &*argument.name.sym)
                }
                (FieldKind::Required, Some((value, true))) => {
                    write!(given, "argument_{place}.unwrap_or({value}), ")
                }
                (FieldKind::Required, Some((value, false))) => {
                    write!(given, "argument_{place}.unwrap_or_else(|| {value}), ")
                }
                (FieldKind::Optional, None) => write!(given, "argument_{place}, "),
                (FieldKind::Optional, Some((value, true))) => {
                    write!(given, "argument_{place}.or(::std::option::Option::Some({value})), ")
                }
                (FieldKind::Optional, Some((value, false))) => {
                    write!(given, "argument_{place}.or_else(|| ::std::option::Option::Some({value})), ")
                }
            };
            let read = match function.takes_rest(place) {
                true => bare_values.read_rest_argument(&argument.ty.kind),
                false => format!("{}?", bare_values.read_argument(&argument.ty.kind)),
            };
            let _ = write!(bare, "let argument_{place} = {read};");
            let _ = write!(places, "argument_{place}, ");
        }
        let body = if fields.is_empty() {
            "thrift::read_arguments(input, |_, _, _| ::std::result::Result::Ok(false))?;".to_owned()
        } else {
            format!(
                "{declare}
                thrift::read_arguments(input, |id, kind, input| {{
                    match (id, kind) {{
                        {fields}
                        _ => return ::std::result::Result::Ok(false),
                    }}
                    ::std::result::Result::Ok(true)
                }})?;"
            )
        };
        let read = if function.method.args.is_empty() {
            format!(
                "match input.as_bare() {{
                    ::std::option::Option::Some(input) => input.end()?,
                    ::std::option::Option::None => {{ {body} }}
                }}"
            )
        } else if function.is_bare() {
            format!(
                "let ({places}) = match input.as_bare() {{
                    ::std::option::Option::Some(input) => {{ {bare} input.end()?; ({places}) }}
                    ::std::option::Option::None => {{ {body} ({given}) }}
                }};"
            )
        } else {
            format!("{body} let ({places}) = ({given});")
        };
        let Function { name: function_name, outcome, .. } = function;
        let arm = |arms: &mut String, wait: &str| {
            let _ = write!(
                arms,
                "{number} => match (|| -> ::std::result::Result<_, thrift::Refusal> {{
                    {read}
                    ::std::result::Result::Ok(({places}))
                }})() {{
                    ::std::result::Result::Ok(({places})) => responder.answer::<{outcome}>(self.0.{function_name}(context, {places}){wait}),
                    ::std::result::Result::Err(refusal) => responder.refuse(refusal),
                }},"
            );
        };
        arm(&mut arms, "");
        arm(&mut async_arms, ".await");
        async_methods.push_str(&async_handler_method(function));
    }
    shared_handlers(out, name, functions);
    let constant = format!("{}_SERVICE", upper_snake(name));
    let _ = writeln!(
        out,
        "/// [`{name}`] as a server runs it: give it the handler.
        #[derive(Clone, Debug)]
        pub struct {name}Processor<H>(pub H);

        impl<H: {name} + Send + Sync + 'static> ::dunlin::thrift::Processor for {name}Processor<H> {{
            fn service(&self) -> &'static ::dunlin::thrift::ServiceDescriptor {{
                &{constant}
            }}

            #[allow(unused_imports, clippy::redundant_closure_call)]
            fn process<'a, I: ::dunlin::thrift::Input<'a>, R: ::dunlin::thrift::Responder>(
                &self,
                function: usize,
                input: &mut I,
                context: &::dunlin::thrift::Context,
                responder: R,
            ) -> R::Done {{
                use ::dunlin::thrift::{{self, Input as _, TType, pilota::thrift::TInputProtocol as _}};
                match function {{
                    {arms}
                    _ => responder.refuse(thrift::unknown_function(function)),
                }}
            }}
        }}

        /// [`{name}`] with functions that may wait: an implementation writes them as `async fn`.
        pub trait {name}Async {{
            {async_methods}
        }}

        /// [`{name}Async`] as `dunlin::thrift::serve_async` runs it: give it the handler.
        #[derive(Clone, Debug)]
        pub struct {name}AsyncProcessor<H>(pub H);

        impl<H: {name}Async + Send + Sync + 'static> ::dunlin::thrift::AsyncProcessor for {name}AsyncProcessor<H> {{
            fn service(&self) -> &'static ::dunlin::thrift::ServiceDescriptor {{
                &{constant}
            }}

            #[allow(unused_imports, unused_mut, unused_variables, clippy::redundant_closure_call)]
            async fn process<'a, R: ::dunlin::thrift::Responder + Send + 'a>(
                &'a self,
                function: usize,
                mut input: ::dunlin::thrift::codec::BinaryInput<'a>,
                context: &'a ::dunlin::thrift::Context,
                responder: R,
            ) -> R::Done
            where
                R::Done: Send + 'a,
            {{
                use ::dunlin::thrift::{{self, Input as _, TType, pilota::thrift::TInputProtocol as _}};
                let input = &mut input;
                match function {{
                    {async_arms}
                    _ => responder.refuse(thrift::unknown_function(function)),
                }}
            }}
        }}"
    );
}
