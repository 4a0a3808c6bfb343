//! Calls to a service of another node, as they travel between nodes (section 5.1).

use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::name::Name;
use crate::rights::Principal;

/// The function of the node's service for calls to services of its host. The result is the service's.
pub const SERVICE_CALL: u16 = 4;
/// The longest request and the longest result of a call through nodes, in bytes.
pub const MAX_CALL: u32 = 4 << 20;
/// The most bytes that the head of a call takes.
pub const MAX_HEAD: usize = 4 + 256 + 64 + 1;

/// The head of a call; the request follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// The service.
    pub service: Name,
    /// The function of the service.
    pub function: u16,
    /// The principal that calls, as its node vouches for it.
    pub caller: Principal,
    /// Nobody waits for a result (`LT_send`).
    pub is_one_way: bool,
}

impl CallHead {
    /// Encodes the head and the request.
    pub fn encode(&self, request: &[u8]) -> Vec<u8> {
        let mut writer = Writer(Vec::with_capacity(MAX_HEAD + request.len()));
        writer = writer.u16(self.function).u8(u8::from(self.is_one_way));
        writer = writer.text(self.service.as_bytes()).text(self.caller.as_str().as_bytes());
        writer.0.extend_from_slice(request);
        writer.0
    }

    /// Parses a head; returns it with the place at which the request begins.
    pub fn parse(bytes: &[u8]) -> Result<(CallHead, usize), Malformed> {
        let mut reader = Reader(bytes);
        let (function, is_one_way) = (reader.u16()?, reader.flag()?);
        let head = CallHead { function, is_one_way, service: reader.name()?, caller: reader.principal()? };
        Ok((head, bytes.len() - reader.0.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_call_comes_back_whole(
            service in prop::collection::vec(any::<u8>(), 1..=255), function in any::<u16>(), caller in "[a-z]{1,64}",
            is_one_way in any::<bool>(), request in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let (service, caller) = (Name::new(service).unwrap(), Principal::new(&caller).unwrap());
            let head = CallHead { service, function, caller, is_one_way };
            let bytes = head.encode(&request);
            let (parsed, at) = CallHead::parse(&bytes).unwrap();
            prop_assert!(at <= MAX_HEAD);
            prop_assert_eq!((&parsed, &bytes[at..]), (&head, &request[..]));
            for cut in 0..at {
                prop_assert!(CallHead::parse(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = CallHead::parse(&bytes);
        }
    }
}
