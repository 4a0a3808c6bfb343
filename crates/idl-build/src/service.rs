//! Code generation for a service: trait functions, descriptor, processors and clients.

mod errors;
mod processor;

use crate::bare::part;
use crate::hints;
use crate::names::{doc, upper_camel, upper_snake};
use crate::values::{Values, is_scalar, is_text};
use dunlin_idl::Document;
use dunlin_idl::hints::FunctionHints;
use pilota_build::db::RirDatabase;
use pilota_build::rir::{self, Arg, FieldKind, Item, Literal, Method, MethodSource};
use pilota_build::ty::{Ty, TyKind};
use pilota_build::{Context, DefId};
use std::fmt::Write as _;

/// A function, with the names of the items generated for it.
struct Function<'a> {
    cx: &'a Context,
    /// The service for which it is generated.
    service: DefId,
    method: &'a Method,
    /// The function's Rust name.
    name: String,
    /// The name of the arguments' type, which a client borrows.
    arguments: String,
    /// The name of the outcome's type.
    outcome: String,
    /// The name of the type of declared exceptions, with its variants and their types.
    exceptions: Option<(String, Vec<(String, String)>)>,
    /// The name of the value's type.
    value: String,
}

/// Generates the whole service, to be inserted where pilota inserts the trait.
pub(crate) fn service(cx: &Context, id: DefId, service: &rir::Service, document: &Document) -> String {
    let name = cx.rust_name(id).to_string();
    let methods = cx.service_methods(id);
    let functions: Vec<Function<'_>> = methods.iter().map(|method| Function::new(cx, id, method)).collect();
    let mut out = String::new();
    descriptor(&mut out, &name, service, &functions, document);
    processor::processors(&mut out, cx, &name, &functions);
    let error = errors::name(cx, id);
    errors::error(&mut out, cx, &error, &service.name.sym, &functions);
    clients(&mut out, cx, &name, service, &functions, &error);
    for function in functions.iter().filter(|function| function.method.source == MethodSource::Own) {
        arguments(&mut out, cx, function);
        outcome(&mut out, cx, function);
    }
    out
}

/// Generates a function of the handler trait.
pub(crate) fn handler_method(cx: &Context, service: DefId, method: &Method) -> String {
    let function = Function::new(cx, service, method);
    let parameters = function.parameters(|argument| Values::tagged(cx).handed(&argument.ty));
    let (name, value, failure) = (&function.name, &function.value, function.exception());
    format!(
        "{}fn {name}(&self, {context}: &::dunlin::thrift::Context, {parameters}) -> ::std::result::Result<{value}, ::dunlin::thrift::Failure<{failure}>>;\n",
        doc(&method.leading_comments, &format!("Answers `{}`.", method.name.sym)),
        context = free("context", |name| method.args.iter().any(|a| *cx.rust_name(a.def_id) == *name)),
    )
}

/// Returns an unused name, made by appending underscores if necessary.
fn free(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let mut name = name.to_owned();
    while taken(&name) {
        name.push('_');
    }
    name
}

/// The client methods that are not functions of the service.
const CLIENT_METHODS: [&str; 13] = [
    "another",
    "connect",
    "connect_async",
    "connect_async_with",
    "connect_tcp",
    "connect_with",
    "flush",
    "inner",
    "plan_of",
    "transport",
    "wait",
    "wait_ready",
    "within",
];

/// Returns the names of pilota's items for a function that are not used, and the item to be renamed.
pub(crate) fn pilotas_names(
    cx: &Context,
    service: DefId,
    method: &Method,
) -> ([String; 3], (String, String)) {
    let stem = format!("{}{}", cx.rust_name(service), upper_camel(cx, method));
    let dropped = ["ArgsSend", "ArgsRecv", "ResultSend"].map(|suffix| format!("{stem}{suffix}"));
    (dropped, (format!("{stem}ResultRecv"), format!("{stem}Outcome")))
}

impl<'a> Function<'a> {
    fn new(cx: &'a Context, service: DefId, method: &'a Method) -> Self {
        let own = cx.rust_name(service);
        let related = |suffix: &str| match &method.source {
            MethodSource::Own => format!("{own}{}{suffix}", upper_camel(cx, method)),
            MethodSource::Extend(base) => {
                let path = cx.cur_related_item_path(*base);
                let (module, _) = path.rsplit_once("::").unwrap_or(("self", &path));
                format!("{module}::{}{}{suffix}", cx.rust_name(*base), upper_camel(cx, method))
            }
        };
        let exceptions = method.exceptions.as_ref().map(|path| {
            let variants = match &*cx.expect_item(path.did) {
                Item::Enum(e) => e
                    .variants
                    .iter()
                    .filter_map(|v| {
                        Some((cx.rust_name(v.did).to_string(), Values::tagged(cx).owned(v.fields.first()?)))
                    })
                    .collect(),
                _ => Vec::new(),
            };
            (cx.cur_related_item_path(path.did).to_string(), variants)
        });
        Function {
            cx,
            service,
            name: cx.rust_name(method.def_id).to_string(),
            arguments: related("Arguments"),
            outcome: related("Outcome"),
            exceptions,
            value: cx.codegen_item_ty(method.ret.kind.clone()).to_string(),
            method,
        }
    }

    /// Returns `name: type, ` for each argument.
    fn parameters(&self, ty: impl Fn(&Arg) -> String) -> String {
        self.each_argument(|name, argument| match argument.kind {
            FieldKind::Required => format!("{name}: {}, ", ty(argument)),
            FieldKind::Optional => format!("{name}: ::std::option::Option<{}>, ", ty(argument)),
        })
    }

    fn exception(&self) -> &str {
        self.exceptions.as_ref().map_or("::dunlin::thrift::Never", |(path, _)| path)
    }

    /// Returns the default of an argument, and whether it is a constant expression. It is looked up in the
    /// struct that pilota generates for the arguments.
    fn default(&self, argument: &Arg) -> Option<(String, bool)> {
        let cx = self.cx;
        let service = match &self.method.source {
            MethodSource::Own => self.service,
            MethodSource::Extend(base) => *base,
        };
        let ([_, name, _], _) = pilotas_names(cx, service, self.method);
        let node = cx.node(service)?;
        let found = node.related_nodes.iter().find(|item| cx.rust_name(**item).to_string() == name)?;
        let Item::Message(message) = &*cx.expect_item(*found) else { return None };
        let field = message.fields.iter().find(|field| field.id == argument.id)?;
        match (&argument.ty.kind, field.default.as_ref()?) {
            // These arguments are borrowed.
            (TyKind::String | TyKind::FastStr, Literal::String(text)) => Some((format!("{text:?}"), true)),
            (TyKind::Bytes | TyKind::BytesVec, Literal::String(text)) => {
                Some((format!("{text:?}.as_bytes()"), true))
            }
            _ => cx.default_val(field).map(|(value, constant)| (value.to_string(), constant)),
        }
    }

    /// Returns whether the function has a bare form, which requires that all arguments are always present.
    fn is_bare(&self) -> bool {
        self.method.args.iter().all(|argument| argument.kind == FieldKind::Required)
    }

    /// Returns whether the argument at this index takes the rest of a bare message.
    fn takes_rest(&self, place: usize) -> bool {
        place + 1 == self.method.args.len() && is_text(&self.method.args[place].ty.kind)
    }

    /// Returns the function's shape, as an expression.
    fn shape(&self) -> String {
        let is_bare = self.is_bare();
        let part = |rest: bool, ty: &Ty| match rest && is_bare {
            true => "thrift::Part::Rest".to_owned(),
            false => part(self.cx, ty),
        };
        let arguments = self.method.args.iter().enumerate().map(|(place, argument)| {
            let part = part(self.takes_rest(place), &argument.ty);
            match argument.kind == FieldKind::Optional || self.default(argument).is_some() {
                true => format!("({}, thrift::Part::Lacking(&{part})),", argument.id),
                false => format!("({}, {part}),", argument.id),
            }
        });
        format!(
            "::std::option::Option::Some(thrift::Shape {{ arguments: &[{}], value: {}, throws: {}, bare: {is_bare} }})",
            arguments.collect::<String>(),
            part(is_text(&self.method.ret.kind), &self.method.ret),
            self.exceptions.is_some()
        )
    }

    /// Returns `name, ` for each argument.
    fn names(&self) -> String {
        self.each_argument(|name, _| format!("{name}, "))
    }

    fn each_argument(&self, each: impl Fn(&str, &Arg) -> String) -> String {
        let arguments = self.method.args.iter();
        arguments.map(|argument| each(&self.cx.rust_name(argument.def_id).to_string(), argument)).collect()
    }
}

fn descriptor(
    out: &mut String,
    name: &str,
    service: &rir::Service,
    functions: &[Function<'_>],
    document: &Document,
) {
    let constant = format!("{}_SERVICE", upper_snake(name));
    let idl = &*service.name.sym;
    // Two files may define services with the same name: the one with these functions is meant.
    let known = |candidate: &&dunlin_idl::Service| {
        candidate.name == idl
            && functions.iter().all(|f| candidate.all_functions().any(|c| c.name == *f.method.name.sym))
    };
    let hinted = document.services.iter().find(known);
    let entries: String = functions
        .iter()
        .map(|function| {
            let name = &*function.method.name.sym;
            let known = hinted.and_then(|service| service.all_functions().find(|f| f.name == name));
            let hints = known.map(|function| function.hints.clone()).unwrap_or_default();
            let hints =
                FunctionHints { name: name.to_owned().into(), oneway: function.method.oneway, ..hints };
            hints::function(&hints) + ","
        })
        .collect();
    let mut extends = String::new();
    let mut base = hinted.and_then(|service| service.extends);
    while let Some(service) = base.map(|id| &document.services[id.0]) {
        let _ = write!(extends, "{:?}, ", service.name);
        base = service.extends;
    }
    let shapes: String = functions.iter().map(|function| function.shape() + ",").collect();
    let _ = writeln!(
        out,
        "/// The functions of `{idl}` with their hints, in the order of their numbers.
        pub static {constant}: ::dunlin::thrift::ServiceDescriptor = {{
            use ::dunlin::hints;
            #[allow(unused_imports)]
            use ::dunlin::thrift;
            ::dunlin::thrift::ServiceDescriptor {{ name: {idl:?}, extends: &[{extends}], functions: &[{entries}], shapes: &[{shapes}] }}
        }};"
    );
}

fn clients(
    out: &mut String,
    cx: &Context,
    name: &str,
    service: &rir::Service,
    functions: &[Function<'_>],
    error: &str,
) {
    let values = Values::tagged(cx);
    let (mut calls, mut futures) = (String::new(), String::new());
    for (number, function) in functions.iter().enumerate() {
        let Function { name, arguments, outcome, value, .. } = function;
        let bare = name.trim_start_matches("r#");
        let others = |name: &str| functions.iter().any(|other| other.name == name);
        let function_name = &match CLIENT_METHODS.contains(&bare) {
            true => free(&format!("{bare}_call"), others),
            false => name.clone(),
        };
        let push_name = free(&format!("push_{bare}"), others);
        let parameters = function.parameters(|argument| values.borrowed(&argument.ty, ""));
        let names = function.names();
        let docs = doc(&function.method.leading_comments, &format!("Calls `{}`.", function.method.name.sym));
        if function.method.oneway {
            let _ = write!(
                calls,
                "{docs}
                pub fn {function_name}(&mut self, {parameters}) -> ::std::result::Result<(), {error}> {{
                    ::std::result::Result::Ok(::dunlin::thrift::Calls::oneway(&mut self.0, {number}, &{arguments} {{ {names} }})?)
                }}"
            );
            let _ = write!(
                futures,
                "{docs}
                pub fn {function_name}(&self, {parameters}) -> ::std::result::Result<(), {error}> {{
                    ::std::result::Result::Ok(::dunlin::thrift::AsyncCalls::oneway(&self.0, {number}, &{arguments} {{ {names} }})?)
                }}"
            );
            continue;
        }
        let _ = write!(
            calls,
            "{docs}
            ///
            /// Waits for the result.
            pub fn {function_name}(&mut self, {parameters}) -> ::std::result::Result<{value}, {error}> {{
                ::dunlin::thrift::Calls::call::<_, {outcome}, {error}>(&mut self.0, {number}, &{arguments} {{ {names} }})
            }}

            /// Adds a call of [`{function_name}`](Self::{function_name}) to a batch: it goes out when the batch is full, with
            /// [`flush`](Self::flush), or when its result is waited for.
            pub fn {push_name}(&mut self, {parameters}) -> ::std::result::Result<::dunlin::thrift::Pending<{outcome}, {error}>, {error}> {{
                ::dunlin::thrift::Calls::push(&mut self.0, {number}, &{arguments} {{ {names} }})
            }}"
        );
        let _ = write!(
            futures,
            "{docs}
            ///
            /// It is sent at once; dropping the future gives it up.
            pub fn {function_name}(&self, {parameters}) -> C::Call<{outcome}, {error}> {{
                ::dunlin::thrift::AsyncCalls::call::<_, {outcome}, {error}>(&self.0, {number}, &{arguments} {{ {names} }})
            }}"
        );
    }
    let constant = format!("{}_SERVICE", upper_snake(name));
    let idl = &*service.name.sym;
    let _ = writeln!(
        out,
        "/// A client of `{idl}`, for one thread at a time. `{name}Client` alone takes every address; `{name}Client<F>` is one of a
        /// single fabric.
        #[derive(Debug)]
        pub struct {name}Client<F: ::dunlin::thrift::Connector = ::dunlin::Fabrics, C = <F as ::dunlin::thrift::Connector>::Client>(C, ::std::marker::PhantomData<F>);

        impl {name}Client {{
            /// Connects to a server at any address, with the fabrics of this process and default options; each function goes as
            /// its hints say. Blocks.
            pub fn connect(address: impl ::dunlin::thrift::IntoAddress) -> ::std::result::Result<Self, ::dunlin::thrift::ConnectError> {{
                Self::connect_with(::dunlin::Fabrics::global(), address, ::std::default::Default::default())
            }}

            /// Connects to any server of stock Thrift, Dunlin's or Apache's, at `address` (`host:port`). All functions go by TCP.
            /// Blocks.
            pub fn connect_tcp(address: &str, options: ::dunlin::thrift::tcp::ConnectionOptions) -> ::std::result::Result<Self, ::dunlin::thrift::ConnectError> {{
                let client = <::dunlin::Fabrics as ::dunlin::thrift::Connector>::tcp_client(address, &{constant}, options)?;
                ::std::result::Result::Ok({name}Client(client, ::std::marker::PhantomData))
            }}
        }}

        impl<F: ::dunlin::thrift::Connector> {name}Client<F> {{
            /// Connects to a server; each function goes as its hints say. `fabrics` is `dunlin::Fabrics`, which takes every
            /// address, or one fabric, which takes its own. Blocks.
            pub fn connect_with(fabrics: &F, address: impl ::dunlin::thrift::IntoAddress, options: ::dunlin::thrift::ClientOptions) -> ::std::result::Result<Self, ::dunlin::thrift::ConnectError> {{
                let client = fabrics.client(&address.into_address()?, &{constant}, options)?;
                ::std::result::Result::Ok({name}Client(client, ::std::marker::PhantomData))
            }}

            /// Connects another client to the same server with the same options, for another thread. Blocks.
            pub fn another(&self) -> ::std::result::Result<Self, ::dunlin::thrift::ConnectError> {{
                ::std::result::Result::Ok({name}Client(F::another(&self.0)?, ::std::marker::PhantomData))
            }}

            /// The client below: routes, deadlines, connections, what it has chosen.
            pub fn inner(&mut self) -> &mut F::Client {{
                &mut self.0
            }}

            /// This client for calls with a time of their own, in place of that of the options: `client.within(time).function(..)`. A
            /// call ends when its time has passed, and the server does not begin it later. The time includes the wait for room, and
            /// that of a batch.
            pub fn within(&mut self, time: ::std::time::Duration) -> {name}Client<F, ::dunlin::thrift::Within<'_, F::Client>> {{
                {name}Client(::dunlin::thrift::Calls::within(&mut self.0, time), ::std::marker::PhantomData)
            }}
        }}

        impl<F: ::dunlin::thrift::Connector, C: ::dunlin::thrift::Calls> {name}Client<F, C> {{

            /// The transport of the calls whose hints do not say TCP, and why it is that.
            pub fn transport(&self) -> &::dunlin::fabric::ChosenTransport {{
                ::dunlin::thrift::Calls::transport(&self.0)
            }}

            /// How the calls of the function with this name in the IDL run: protocol, waiting, place, transport, reasons.
            pub fn plan_of(&self, function: &str) -> ::std::result::Result<::dunlin::plan::RunningPlan, ::dunlin::thrift::PlanOfError> {{
                ::dunlin::thrift::Calls::plan_of(&self.0, function)
            }}

            /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile. Blocks.
            pub fn wait_ready(&mut self, at_most: ::std::time::Duration) -> ::std::result::Result<(), {error}> {{
                ::std::result::Result::Ok(::dunlin::thrift::Calls::wait_ready(&mut self.0, at_most)?)
            }}

            /// Sends the open batches.
            pub fn flush(&mut self) -> ::std::result::Result<(), {error}> {{
                ::std::result::Result::Ok(::dunlin::thrift::Calls::flush(&mut self.0)?)
            }}

            /// Waits for a call of a batch.
            pub fn wait<R: ::dunlin::thrift::Outcome>(&mut self, pending: ::dunlin::thrift::Pending<R, {error}>) -> ::std::result::Result<R::Value, {error}>
            where
                {error}: ::dunlin::thrift::ErrorOf<R>,
            {{
                ::dunlin::thrift::Calls::wait(&mut self.0, pending)
            }}

            {calls}
        }}

        /// An asynchronous client of `{idl}`, for any executor and any number of tasks; clones share its connections.
        /// `{name}AsyncClient` alone takes every address; `{name}AsyncClient<AsyncHub<F>>` is one of a single fabric.
        #[derive(Clone, Debug)]
        pub struct {name}AsyncClient<F: ::dunlin::thrift::AsyncConnector = ::dunlin::Fabrics, C = <F as ::dunlin::thrift::AsyncConnector>::AsyncClient>(C, ::std::marker::PhantomData<F>);

        impl {name}AsyncClient {{
            /// Connects to a server at any address, with the fabrics of this process and default options; each function goes as
            /// its hints say. Blocks.
            pub fn connect(address: impl ::dunlin::thrift::IntoAddress) -> ::std::result::Result<Self, ::dunlin::thrift::ConnectError> {{
                Self::connect_with(::dunlin::Fabrics::global(), address, ::std::default::Default::default())
            }}

            /// Connects to any server of stock Thrift, Dunlin's or Apache's, at `address` (`host:port`). All functions go by TCP.
            /// Blocks.
            pub fn connect_tcp(address: &str, options: ::dunlin::thrift::tcp::ConnectionOptions) -> ::std::result::Result<Self, ::dunlin::thrift::ConnectError> {{
                let client = <::dunlin::Fabrics as ::dunlin::thrift::AsyncConnector>::async_tcp_client(address, &{constant}, options)?;
                ::std::result::Result::Ok({name}AsyncClient(client, ::std::marker::PhantomData))
            }}
        }}

        impl {name}AsyncClient {{
            /// As [`connect`](Self::connect), without blocking: returns a future, for any executor. Dropping it gives the connect up.
            pub fn connect_async(address: impl ::dunlin::thrift::IntoAddress) -> ::dunlin::client::Connecting<Self, ::dunlin::thrift::ConnectError> {{
                Self::connect_async_with(::dunlin::Fabrics::global(), address, ::std::default::Default::default())
            }}

            /// As [`connect_with`](Self::connect_with), without blocking: the connect runs on a thread of its own.
            pub fn connect_async_with(fabrics: &::dunlin::Fabrics, address: impl ::dunlin::thrift::IntoAddress, options: ::dunlin::thrift::ClientOptions) -> ::dunlin::client::Connecting<Self, ::dunlin::thrift::ConnectError> {{
                let address = ::dunlin::thrift::IntoAddress::into_address(address);
                fabrics.connecting(move |fabrics| Self::connect_with(fabrics, address?, options))
            }}
        }}

        impl<F: ::dunlin::thrift::AsyncConnector> {name}AsyncClient<F> {{
            /// Connects to a server; each function goes as its hints say. `fabrics` is `dunlin::Fabrics`, which takes every
            /// address, or the hub of one fabric, which takes its own. Blocks.
            pub fn connect_with(fabrics: &F, address: impl ::dunlin::thrift::IntoAddress, options: ::dunlin::thrift::ClientOptions) -> ::std::result::Result<Self, ::dunlin::thrift::ConnectError> {{
                let client = fabrics.async_client(&address.into_address()?, &{constant}, options)?;
                ::std::result::Result::Ok({name}AsyncClient(client, ::std::marker::PhantomData))
            }}

            /// The client below: routes, what it has chosen.
            pub fn inner(&self) -> &F::AsyncClient {{
                &self.0
            }}

            /// This client for calls with a time of their own, in place of that of the options.
            pub fn within(&self, time: ::std::time::Duration) -> {name}AsyncClient<F, ::dunlin::thrift::AsyncWithin<'_, F::AsyncClient>> {{
                {name}AsyncClient(::dunlin::thrift::AsyncCalls::within(&self.0, time), ::std::marker::PhantomData)
            }}
        }}

        impl<F: ::dunlin::thrift::AsyncConnector, C: ::dunlin::thrift::AsyncCalls> {name}AsyncClient<F, C> {{

            /// The transport of the calls whose hints do not say TCP, and why it is that.
            pub fn transport(&self) -> &::dunlin::fabric::ChosenTransport {{
                ::dunlin::thrift::AsyncCalls::transport(&self.0)
            }}

            /// How the calls of the function with this name in the IDL run: protocol, waiting, place, transport, reasons.
            pub fn plan_of(&self, function: &str) -> ::std::result::Result<::dunlin::plan::RunningPlan, ::dunlin::thrift::PlanOfError> {{
                ::dunlin::thrift::AsyncCalls::plan_of(&self.0, function)
            }}

            /// Waits until the client is connected, for at most `at_most`, and connects with back-off meanwhile.
            pub async fn wait_ready(&self, at_most: ::std::time::Duration) -> ::std::result::Result<(), {error}> {{
                ::std::result::Result::Ok(::dunlin::thrift::AsyncCalls::wait_ready(&self.0, at_most).await?)
            }}

            {futures}
        }}"
    );
}

/// Generates the struct of a function's arguments for its caller.
fn arguments(out: &mut String, cx: &Context, function: &Function<'_>) {
    let values = Values::tagged(cx);
    let borrows = function.method.args.iter().any(|argument| !is_scalar(&argument.ty.kind));
    let lifetime = if borrows { "<'a>" } else { "" };
    let (mut fields, mut lengths, mut writes) = (String::new(), String::new(), String::new());
    for argument in &function.method.args {
        let (name, id) = (cx.rust_name(argument.def_id), argument.id);
        let wire = values.wire_type(&argument.ty.kind);
        let ty = values.borrowed(&argument.ty, "'a ");
        let kind = &argument.ty.kind;
        let length = |value: &str| {
            format!(
                "protocol.field_begin_len(TType::{wire}, ::std::option::Option::Some({id})) + {} + protocol.field_end_len()",
                values.length(kind, value)
            )
        };
        let write = |value: &str| {
            format!(
                "protocol.write_field_begin(TType::{wire}, {id})?; {}?; protocol.write_field_end()?;",
                values.write_argument(kind, value)
            )
        };
        if argument.kind == FieldKind::Required {
            let _ = write!(fields, "pub {name}: {ty},");
            let _ = write!(lengths, " + {}", length(&format!("self.{name}")));
            let _ = write!(writes, "{}", write(&format!("self.{name}")));
        } else {
            let _ = write!(fields, "pub {name}: ::std::option::Option<{ty}>,");
            let _ = write!(
                lengths,
                " + match self.{name} {{ ::std::option::Option::Some(value) => {}, ::std::option::Option::None => 0 }}",
                length("value")
            );
            let _ = write!(
                writes,
                "if let ::std::option::Option::Some(value) = self.{name} {{ {} }}",
                write("value")
            );
        }
    }
    let name = &function.arguments;
    let bare = if function.is_bare() { bare_arguments(cx, function) } else { String::new() };
    let _ = writeln!(
        out,
        "/// The arguments of `{idl}`, borrowed.
        #[doc(hidden)]
        #[derive(Clone, Copy, Debug)]
        pub struct {name}{lifetime} {{ {fields} }}

        impl ::dunlin::thrift::Arguments for {name}{elided} {{
            #[allow(unused_imports)]
            fn size<P: ::dunlin::thrift::pilota::thrift::TLengthProtocol>(&self, protocol: &mut P) -> usize {{
                use ::dunlin::thrift::{{TType, pilota::thrift::TLengthProtocolExt}};
                protocol.struct_begin_len(&::dunlin::thrift::ARGUMENTS) {lengths} + protocol.field_stop_len() + protocol.struct_end_len()
            }}

            #[allow(unused_imports)]
            fn encode<'s, P: ::dunlin::thrift::Output<'s>>(&'s self, protocol: &mut P) -> ::std::result::Result<(), ::dunlin::thrift::ThriftException> {{
                use ::dunlin::thrift::{{Output as _, TType, pilota::thrift::TOutputProtocolExt}};
                protocol.write_struct_begin(&::dunlin::thrift::ARGUMENTS)?;
                {writes}
                protocol.write_field_stop()?;
                protocol.write_struct_end()
            }}

            {bare}
        }}",
        idl = &*function.method.name.sym,
        elided = if borrows { "<'_>" } else { "" },
    );
}

/// Generates the bare form of arguments.
fn bare_arguments(cx: &Context, function: &Function<'_>) -> String {
    let values = Values::bare(cx);
    let (mut lengths, mut writes) = (Vec::new(), String::new());
    for (place, argument) in function.method.args.iter().enumerate() {
        let value = format!("self.{}", cx.rust_name(argument.def_id));
        let kind = &argument.ty.kind;
        let (length, write) = match function.takes_rest(place) {
            true => {
                (format!("{value}.len()"), format!("protocol.write_rest({})", values.bytes(kind, &value)))
            }
            false => (values.length(kind, &value), values.write(kind, &value)),
        };
        lengths.push(length);
        let _ = write!(writes, "{write}?;");
    }
    let lengths = if lengths.is_empty() { "0".to_owned() } else { lengths.join(" + ") };
    // A single string or binary argument is already encoded, and so are no arguments.
    let raw = match &function.method.args[..] {
        [] => Some("&[]".to_owned()),
        [only] if function.takes_rest(0) => {
            Some(values.bytes(&only.ty.kind, &format!("self.{}", cx.rust_name(only.def_id))))
        }
        _ => None,
    };
    let raw = raw.map_or(String::new(), |raw| {
        format!(
            "fn raw(&self) -> ::std::option::Option<&[u8]> {{
                ::std::option::Option::Some({raw})
            }}"
        )
    });
    format!(
        "{raw}

        #[allow(unused_imports)]
        fn bare_size(&self) -> usize {{
            use ::dunlin::thrift::{{self, TType, codec::BinaryOutput, pilota::thrift::{{TLengthProtocol, TLengthProtocolExt}}}};
            let protocol = &mut BinaryOutput::new(&mut []);
            {lengths}
        }}

        #[allow(unused_imports)]
        fn encode_bare(&self, protocol: &mut ::dunlin::thrift::codec::BinaryOutput<'_>) -> ::std::result::Result<(), ::dunlin::thrift::ThriftException> {{
            use ::dunlin::thrift::{{self, TType, pilota::thrift::{{TOutputProtocol, TOutputProtocolExt}}}};
            {writes}
            ::std::result::Result::Ok(())
        }}"
    )
}

/// Returns an expression that converts a decoded value to the result of a call.
fn of_call(read: &str, value: &str, reading: &str) -> String {
    format!(
        "match {reading} {{
            ::std::result::Result::Ok({read}) => ::std::result::Result::Ok({value}),
            ::std::result::Result::Err(error) => ::std::result::Result::Err(thrift::CallError::Decode(error).into()),
        }}"
    )
}

/// Extends pilota's result type by `Outcome`: the split into value and exception, and the bare form of the
/// value.
fn outcome(out: &mut String, cx: &Context, function: &Function<'_>) {
    let values = Values::bare(cx);
    let Function { outcome, value, .. } = function;
    let exception = function.exception();
    let ok = if value == "()" { "()" } else { "value" };
    let ok_reference = if value == "()" { "&()" } else { "value" };
    let throws = function.exceptions.is_some();
    let others = if throws { "_ => ::std::option::Option::None," } else { "" };
    let kind = &function.method.ret.kind;
    let here = if is_scalar(kind) { "*value" } else { "value" };
    let (length, write, read) = match kind {
        TyKind::Void => (
            "0".to_owned(),
            "::std::result::Result::Ok(())".to_owned(),
            "::std::result::Result::Ok(())".to_owned(),
        ),
        kind if is_text(kind) => (
            "value.len()".to_owned(),
            format!("protocol.write_rest({})", values.bytes(kind, "value")),
            match kind {
                TyKind::String => of_call("text", "text.to_owned()", "input.read_rest_str()"),
                TyKind::FastStr => "thrift::read_owned_rest(input)".to_owned(),
                TyKind::BytesVec => "::std::result::Result::Ok(input.read_rest().to_vec())".to_owned(),
                _ => {
                    "::std::result::Result::Ok(thrift::Bytes::copy_from_slice(input.read_rest()))".to_owned()
                }
            },
        ),
        kind => (
            values.length(kind, here),
            values.write(kind, here),
            of_call("value", "value", &values.read(kind)),
        ),
    };
    let (mut arms, mut failures) = (String::new(), String::new());
    if !throws {
        failures.push_str("::std::result::Result::Err(thrift::Failure::Exception(never)) => match never {},");
    }
    for (variant, _) in function.exceptions.iter().flat_map(|(_, variants)| variants) {
        let _ = write!(
            failures,
            "::std::result::Result::Err(thrift::Failure::Exception({exception}::{variant}(exception))) => ::std::result::Result::Ok({outcome}::{variant}(exception)),"
        );
        let _ = write!(
            arms,
            "{outcome}::{variant}(exception) => ::std::result::Result::Err({exception}::{variant}(exception)),"
        );
    }
    let _ = writeln!(
        out,
        "impl ::dunlin::thrift::Outcome for {outcome} {{
            type Value = {value};
            type Exception = {exception};
            const THROWS: bool = {throws};

            fn of(result: ::std::result::Result<{value}, ::dunlin::thrift::Failure<{exception}>>) -> ::std::result::Result<Self, ::dunlin::thrift::Refusal> {{
                use ::dunlin::thrift;
                match result {{
                    ::std::result::Result::Ok({ok}) => ::std::result::Result::Ok({outcome}::Ok({ok})),
                    {failures}
                    ::std::result::Result::Err(thrift::Failure::Application(exception)) => ::std::result::Result::Err(thrift::Refusal::Application(exception)),
                }}
            }}

            fn into_result(self) -> ::std::result::Result<{value}, {exception}> {{
                match self {{
                    {outcome}::Ok({ok}) => ::std::result::Result::Ok({ok}),
                    {arms}
                }}
            }}

            fn value(&self) -> ::std::option::Option<&{value}> {{
                match self {{
                    {outcome}::Ok({ok}) => ::std::option::Option::Some({ok_reference}),
                    {others}
                }}
            }}

            #[allow(unused_imports)]
            fn value_size(value: &{value}) -> usize {{
                use ::dunlin::thrift::{{self, TType, codec::BinaryOutput, pilota::thrift::{{TLengthProtocol, TLengthProtocolExt}}}};
                let protocol = &mut BinaryOutput::new(&mut []);
                {length}
            }}

            #[allow(unused_imports)]
            fn encode_value(value: &{value}, protocol: &mut ::dunlin::thrift::codec::BinaryOutput<'_>) -> ::std::result::Result<(), ::dunlin::thrift::ThriftException> {{
                use ::dunlin::thrift::{{self, TType, pilota::thrift::{{TOutputProtocol, TOutputProtocolExt}}}};
                {write}
            }}

            #[allow(unused_imports)]
            fn decode_value<CallerError: ::std::convert::From<::dunlin::thrift::CallError>>(input: &mut ::dunlin::thrift::codec::BinaryInput<'_>) -> ::std::result::Result<{value}, CallerError> {{
                use ::dunlin::thrift::{{self, pilota::thrift::TInputProtocol as _}};
                {read}
            }}
        }}"
    );
    if let Some((path, variants)) = &function.exceptions {
        // Handlers use `?` on declared exceptions. If two exceptions have the same type, the handler must
        // name the variant.
        for (variant, ty) in variants {
            if variants.iter().filter(|(_, other)| other == ty).count() > 1 {
                continue;
            }
            let _ = writeln!(
                out,
                "impl ::std::convert::From<{ty}> for ::dunlin::thrift::Failure<{path}> {{
                    fn from(exception: {ty}) -> Self {{
                        ::dunlin::thrift::Failure::Exception({path}::{variant}(exception))
                    }}
                }}"
            );
        }
    }
}
