//! Introduction: the first call of a connection, with which client and server agree on function ids. The
//! client asks for the server's functions by name, so that either side may be built from an older IDL.
//!
//! The answer holds, with all numbers little-endian: version `u16`; the service's name; the number of
//! functions `u16`; for each function its id `u16`, its name and its signature; and the server's TCP address,
//! or an empty text; then, for each function, where it runs and its plan (`on_server.rs`). A text is its length `u8`
//! and its bytes. A signature is its length `u16` and its bytes (`Shape::signature`); it says whether the function
//! has a bare form (`form.rs`), and it is empty if it would be too long. The id of a bare form is the function's id
//! plus one.

use crate::form::Form;
use crate::on_server::{FunctionOnServer, OnServer, ServerDescription};
use dunlin_hints::{FunctionHints, ServerConnections};
use dunlin_thrift_core::ServiceDescriptor;
use dunlin_thrift_core::signature::{difference, is_bare};

/// The function id of the introduction. The ids of the service's functions follow it.
pub(crate) const INTRODUCTION: u16 = 0;
const VERSION: u16 = 4;
/// The version of servers that do not say where functions run.
const WITHOUT_PLACES: u16 = 3;

/// Returns the engine's id of a function's tagged form. The bare form has the next id.
fn function_id(number: usize) -> u16 {
    // The engine refuses ids of 4096 and more, so a number that is cut off here is refused too.
    u16::try_from(number).unwrap_or(u16::MAX).saturating_mul(2).saturating_add(1)
}

/// Returns the function index and form of an engine id; `None` for the introduction.
#[inline]
pub(crate) fn function_number(id: u16) -> Option<(usize, Form)> {
    let number = id.checked_sub(INTRODUCTION + 1)?;
    Some((usize::from(number / 2), if number % 2 == 0 { Form::Tagged } else { Form::Bare }))
}

/// Returns the id of the tagged form of the function that has this id in this form.
pub(crate) fn tagged_id(id: u16, form: Form) -> u16 {
    match form {
        Form::Tagged => id,
        Form::Bare => id.saturating_sub(1),
    }
}

/// A function of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    id: u16,
    name: String,
    /// The signature of the arguments and the value; empty if it is not known.
    signature: Vec<u8>,
}

impl Function {
    /// Returns the function's one or two ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u16> {
        let bare = is_bare(&self.signature).then(|| self.id.saturating_add(1));
        std::iter::once(self.id).chain(bare)
    }

    /// Returns the difference because of which a client with this signature cannot be understood, if there is
    /// one.
    pub(crate) fn difference(&self, signature: &[u8]) -> Option<String> {
        difference(signature, &self.signature)
    }

    /// Returns the id and form for a client whose own signature of the function is `signature`.
    pub(crate) fn form(&self, signature: &[u8]) -> (u16, Form) {
        match is_bare(signature) && signature == self.signature {
            true => (self.id.saturating_add(1), Form::Bare),
            false => (self.id, Form::Tagged),
        }
    }
}

/// A server's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) service: String,
    pub(crate) functions: Vec<Function>,
    pub(crate) tcp: Option<String>,
    /// In the order of `functions`.
    pub(crate) on_server: Vec<OnServer>,
}

impl Introduction {
    /// Creates the introduction of a service, without [`on_server`](Introduction::on_server).
    pub(crate) fn of(service: &ServiceDescriptor, tcp: Option<String>) -> Self {
        let function = |(number, function): (usize, &FunctionHints)| Function {
            id: function_id(number),
            name: function.name.to_string(),
            signature: service.signature(number),
        };
        let functions = service.functions.iter().enumerate().map(function).collect();
        Introduction { service: service.name.to_owned(), functions, tcp, on_server: Vec::new() }
    }

    /// Returns what the server says about the function with this name.
    pub(crate) fn on_server(&self, name: &str) -> Option<&OnServer> {
        let at = self.functions.iter().position(|function| function.name == clip(name))?;
        self.on_server.get(at)
    }

    /// Converts to the public form.
    pub(crate) fn describe(self, connections: ServerConnections) -> ServerDescription {
        let Introduction { service, functions, tcp, on_server } = self;
        let functions = functions.into_iter().zip(on_server);
        let functions = functions.map(|(Function { name, .. }, OnServer { runs, why, plan })| {
            FunctionOnServer { name, runs, why, plan }
        });
        ServerDescription { service, functions: functions.collect(), tcp, connections }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        fn text(bytes: &mut Vec<u8>, text: &str) {
            // Both sides clip names alike: `function` also clips the name that it searches for.
            let text = clip(text);
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
        let mut bytes = VERSION.to_le_bytes().to_vec();
        text(&mut bytes, &self.service);
        bytes.extend_from_slice(&(self.functions.len() as u16).to_le_bytes());
        for function in &self.functions {
            bytes.extend_from_slice(&function.id.to_le_bytes());
            text(&mut bytes, &function.name);
            // At most 1024 bytes, the limit of `Shape::signature`.
            bytes.extend_from_slice(&(function.signature.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&function.signature);
        }
        text(&mut bytes, self.tcp.as_deref().unwrap_or_default());
        self.on_server.iter().for_each(|on_server| on_server.encode(&mut bytes));
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        fn number(bytes: &mut &[u8]) -> Result<u16, &'static str> {
            let (number, rest) = bytes.split_first_chunk().ok_or("it ends too early")?;
            *bytes = rest;
            Ok(u16::from_le_bytes(*number))
        }
        let mut rest = bytes;
        let version = number(&mut rest)?;
        if !(WITHOUT_PLACES..=VERSION).contains(&version) {
            return Err("it is of another version");
        }
        let service = text(&mut rest)?;
        let count = number(&mut rest)?;
        // No capacity is reserved, because the count is untrusted.
        let mut functions = Vec::new();
        for _ in 0..count {
            let (id, name) = (number(&mut rest)?, text(&mut rest)?);
            let length = number(&mut rest)?;
            functions.push(Function { id, name, signature: take(&mut rest, usize::from(length))? });
        }
        let tcp = text(&mut rest)?;
        let on_server = functions.iter().map(|_| match version {
            WITHOUT_PLACES => Ok(OnServer::unknown()),
            _ => OnServer::parse(&mut rest),
        });
        let on_server = on_server.collect::<Result<_, _>>()?;
        if !rest.is_empty() {
            return Err("there is more than belongs to it");
        }
        Ok(Introduction { service, functions, tcp: (!tcp.is_empty()).then_some(tcp), on_server })
    }

    /// Returns the function with this name.
    pub(crate) fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == clip(name))
    }
}

/// Takes `length` bytes off the front.
pub(crate) fn take(bytes: &mut &[u8], length: usize) -> Result<Vec<u8>, &'static str> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or("it ends too early")?;
    *bytes = rest;
    Ok(taken.to_vec())
}

/// Takes a text off the front.
pub(crate) fn text(bytes: &mut &[u8]) -> Result<String, &'static str> {
    let (length, rest) = bytes.split_first().ok_or("it ends too early")?;
    *bytes = rest;
    String::from_utf8(take(bytes, usize::from(*length))?).map_err(|_| "a name is not UTF-8")
}

/// Returns the longest prefix whose length fits in a `u8`.
pub(crate) fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(u8::MAX.into())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_server::PlanOnServer;
    use dunlin_rpc::RunsIn;
    use proptest::prelude::*;

    fn example() -> Introduction {
        Introduction {
            service: "KV".into(),
            functions: vec![
                Function { id: 1, name: "get".into(), signature: vec![0, 255] },
                Function { id: 7, name: "maybe".into(), signature: vec![2, 255] },
                Function { id: 5, name: "scan".into(), signature: vec![9; 1000] },
                Function { id: 3, name: "a".repeat(300), signature: Vec::new() },
            ],
            tcp: Some("127.0.0.1:9090".into()),
            on_server: [RunsIn::Worker, RunsIn::Worker, RunsIn::Pool { threads: 2 }, RunsIn::Unknown]
                .map(|runs| OnServer { runs, why: "a reason".into(), plan: PlanOnServer::Tcp })
                .to_vec(),
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let parsed = Introduction::parse(&example().encode()).unwrap();
        assert_eq!(parsed.tcp, example().tcp);
        let get = parsed.function("get").unwrap();
        assert_eq!((get.form(&[0, 255]), get.form(&[1, 255])), ((2, Form::Bare), (1, Form::Tagged)));
        assert_eq!(get.ids().collect::<Vec<_>>(), [1, 2]);
        assert_eq!((tagged_id(2, Form::Bare), tagged_id(1, Form::Tagged)), (1, 1));
        let maybe = parsed.function("maybe").unwrap();
        assert_eq!((maybe.form(&[2, 255]), maybe.ids().count()), ((7, Form::Tagged), 1));
        let long = parsed.function(&"a".repeat(300)).unwrap();
        assert_eq!((long.form(&[]), long.ids().count()), ((3, Form::Tagged), 1));
        assert_eq!(parsed.function("scan"), Some(&example().functions[2]));
        assert_eq!(parsed.function("put"), None);
        assert_eq!(parsed.on_server("scan").unwrap().runs, RunsIn::Pool { threads: 2 });
        assert_eq!(parsed, Introduction::parse(&parsed.encode()).unwrap());
    }

    #[test]
    fn each_form_has_an_id() {
        assert_eq!(function_number(INTRODUCTION), None);
        for number in [0, 1, 7] {
            let id = function_id(number);
            assert_eq!(function_number(id), Some((number, Form::Tagged)));
            assert_eq!(function_number(id + 1), Some((number, Form::Bare)));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Introduction::parse(&bytes);
        }

        #[test]
        fn a_part_of_one_is_refused(length in 0usize..1400) {
            let bytes = example().encode();
            prop_assume!(length < bytes.len());
            prop_assert!(Introduction::parse(&bytes[..length]).is_err());
        }
    }
}
