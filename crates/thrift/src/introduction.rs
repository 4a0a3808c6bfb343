//! How client and server agree on function ids: the first call of a connection asks for the server's functions by name,
//! so that either side may have been built from an older IDL.
//!
//! The answer, all numbers little-endian: version `u16`, the service's name, count `u16`, and of each function its id
//! `u16` and name; then the server's TCP address, empty if it has none. A text is its length `u8` and its bytes.

use crate::descriptor::ServiceDescriptor;

/// The function id of the introduction; those of the service begin behind it.
pub(crate) const INTRODUCTION: u16 = 0;
const VERSION: u16 = 1;

/// The engine's function id of a service's function number.
pub(crate) fn function_id(number: usize) -> u16 {
    number as u16 + 1
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) service: String,
    pub(crate) functions: Vec<(u16, String)>,
    pub(crate) tcp: Option<String>,
}

impl Introduction {
    pub(crate) fn of(service: &ServiceDescriptor, tcp: Option<String>) -> Self {
        let functions = service.functions.iter().enumerate();
        Introduction {
            service: service.name.to_owned(),
            functions: functions.map(|(number, f)| (function_id(number), f.name.to_string())).collect(),
            tcp,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        fn text(bytes: &mut Vec<u8>, text: &str) {
            // Names are cut on both sides alike: `clip` is also how a client looks them up.
            let text = clip(text);
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
        let mut bytes = VERSION.to_le_bytes().to_vec();
        text(&mut bytes, &self.service);
        bytes.extend_from_slice(&(self.functions.len() as u16).to_le_bytes());
        for (id, name) in &self.functions {
            bytes.extend_from_slice(&id.to_le_bytes());
            text(&mut bytes, name);
        }
        text(&mut bytes, self.tcp.as_deref().unwrap_or_default());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        fn number(bytes: &mut &[u8]) -> Result<u16, &'static str> {
            let (number, rest) = bytes.split_first_chunk().ok_or("it ends too early")?;
            *bytes = rest;
            Ok(u16::from_le_bytes(*number))
        }
        fn text(bytes: &mut &[u8]) -> Result<String, &'static str> {
            let (length, rest) = bytes.split_first().ok_or("it ends too early")?;
            let (text, rest) = rest.split_at_checked(usize::from(*length)).ok_or("it ends too early")?;
            *bytes = rest;
            String::from_utf8(text.to_vec()).map_err(|_| "a name is not UTF-8")
        }
        let mut rest = bytes;
        if number(&mut rest)? != VERSION {
            return Err("it is of another version");
        }
        let service = text(&mut rest)?;
        let count = number(&mut rest)?;
        // No room is made beforehand: a count may lie.
        let mut functions = Vec::new();
        for _ in 0..count {
            functions.push((number(&mut rest)?, text(&mut rest)?));
        }
        let tcp = text(&mut rest)?;
        if !rest.is_empty() {
            return Err("there is more than belongs to it");
        }
        Ok(Introduction { service, functions, tcp: (!tcp.is_empty()).then_some(tcp) })
    }

    /// The id of a function by its name.
    pub(crate) fn id(&self, name: &str) -> Option<u16> {
        self.functions.iter().find(|(_, known)| known == clip(name)).map(|(id, _)| *id)
    }
}

/// As much of a text as has room.
fn clip(text: &str) -> &str {
    &text[..text.floor_char_boundary(u8::MAX.into())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Introduction {
        Introduction {
            service: "KV".into(),
            functions: vec![(1, "get".into()), (2, "a".repeat(300))],
            tcp: Some("127.0.0.1:9090".into()),
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let parsed = Introduction::parse(&example().encode()).unwrap();
        assert_eq!(parsed.tcp, example().tcp);
        assert_eq!(parsed.id("get"), Some(1));
        assert_eq!(parsed.id(&"a".repeat(300)), Some(2));
        assert_eq!(parsed.id("put"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Introduction::parse(&bytes);
        }

        #[test]
        fn a_part_of_one_is_refused(length in 0usize..340) {
            let bytes = example().encode();
            prop_assume!(length < bytes.len());
            prop_assert!(Introduction::parse(&bytes[..length]).is_err());
        }
    }
}
