//! Calls to a service of another node, as they travel between nodes (section 5.1).

use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::name::Name;
use crate::place::LmrId;
use crate::rights::Principal;

/// The function of the node's service for calls to services of its host. The result is the service's, or a [`CallAnswer`].
pub const SERVICE_CALL: u16 = 4;
/// The longest request and the longest result of a call through nodes, in bytes.
pub const MAX_CALL: u32 = 4 << 20;
/// The most bytes that the head of a call takes.
pub const MAX_HEAD: usize = 4 + 256 + 64 + 1 + 32;

/// Bits of a head's flags.
const ONE_WAY: u8 = 1;
const HAS_RING: u8 = 2;
const IN_RING: u8 = 4;

/// A range of the caller's ring at the serving node, for the payloads of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlace {
    /// The region that owns the memory.
    pub owner: LmrId,
    /// The extent.
    pub extent: u16,
    /// The offset in the extent, in bytes.
    pub offset: u64,
    /// The length of the request there, in bytes; `None` if the request follows the head.
    pub request: Option<u32>,
    /// The longest result that may be put there, in bytes. If it is not 0, the answer is a [`CallAnswer`].
    pub room: u32,
}

/// The head of a call; the request follows it, or lies in the ring.
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
    /// The call's range of the caller's ring.
    pub ring: Option<RingPlace>,
}

impl CallHead {
    /// Encodes the head and the request, which is empty if it lies in the ring.
    pub fn encode(&self, request: &[u8]) -> Vec<u8> {
        let mut flags = if self.is_one_way { ONE_WAY } else { 0 };
        if let Some(ring) = &self.ring {
            flags |= HAS_RING | if ring.request.is_some() { IN_RING } else { 0 };
        }
        let mut writer = Writer(Vec::with_capacity(MAX_HEAD + request.len()));
        writer = writer.u16(self.function).u8(flags);
        writer = writer.text(self.service.as_bytes()).text(self.caller.as_str().as_bytes());
        if let Some(RingPlace { owner, extent, offset, request, room }) = self.ring {
            writer = writer.id(owner).u16(extent).u64(offset).u32(request.unwrap_or(0)).u32(room);
        }
        writer.0.extend_from_slice(request);
        writer.0
    }

    /// Returns the length of a head without a range of a ring, in bytes.
    pub fn length(&self) -> usize {
        2 + 1 + 1 + self.service.as_bytes().len() + 1 + self.caller.as_str().len()
    }

    /// Parses a head; returns it with the place at which the request begins.
    pub fn parse(bytes: &[u8]) -> Result<(CallHead, usize), Malformed> {
        let mut reader = Reader(bytes);
        let (function, flags) = (reader.u16()?, reader.u8()?);
        let (service, caller) = (reader.name()?, reader.principal()?);
        let has = |flag: u8| flags & flag != 0;
        let ring = if has(HAS_RING) {
            let (owner, extent, offset) = (reader.id()?, reader.u16()?, reader.u64()?);
            let (length, room) = (reader.u32()?, reader.u32()?);
            let request = has(IN_RING).then_some(length);
            let is_whole = if has(IN_RING) { reader.0.is_empty() } else { length == 0 };
            if !is_whole || length > MAX_CALL || room > MAX_CALL {
                return Err(Malformed);
            }
            Some(RingPlace { owner, extent, offset, request, room })
        } else {
            None
        };
        if flags > ONE_WAY | HAS_RING | IN_RING || (has(IN_RING) && ring.is_none()) {
            return Err(Malformed);
        }
        let head = CallHead { function, is_one_way: has(ONE_WAY), service, caller, ring };
        Ok((head, bytes.len() - reader.0.len()))
    }
}

/// The answer to a call with room for its result in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAnswer<'a> {
    /// The result.
    Here(&'a [u8]),
    /// The result lies in the ring, from the begin of the call's range on: its length in bytes.
    InRing(u32),
}

impl<'a> CallAnswer<'a> {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            CallAnswer::Here(result) => {
                let mut writer = Writer(Vec::with_capacity(1 + result.len())).u8(0);
                writer.0.extend_from_slice(result);
                writer.0
            }
            CallAnswer::InRing(length) => Writer::new(1).u32(*length).0,
        }
    }

    /// Parses an answer.
    pub fn parse(bytes: &'a [u8]) -> Result<CallAnswer<'a>, Malformed> {
        let mut reader = Reader(bytes);
        match reader.u8()? {
            0 => Ok(CallAnswer::Here(reader.0)),
            1 => {
                let length = reader.u32()?;
                reader.end(CallAnswer::InRing(length))
            }
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::NodeId;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = RingPlace> {
        let id = (any::<u16>(), any::<u32>(), any::<u64>());
        let id = id.prop_map(|(node, slot, generation)| LmrId { node: NodeId(node), slot, generation });
        let numbers = (any::<u16>(), any::<u64>(), prop::option::of(0..=MAX_CALL), 0..=MAX_CALL);
        (id, numbers).prop_map(|(owner, (extent, offset, request, room))| RingPlace {
            owner,
            extent,
            offset,
            request,
            room,
        })
    }

    proptest! {
        #[test]
        fn a_call_comes_back_whole(
            service in prop::collection::vec(any::<u8>(), 1..=255), function in any::<u16>(), caller in "[a-z]{1,64}",
            is_one_way in any::<bool>(), request in prop::collection::vec(any::<u8>(), 0..300),
            ring in prop::option::of(place()),
        ) {
            let (service, caller) = (Name::new(service).unwrap(), Principal::new(&caller).unwrap());
            let is_there = ring.is_some_and(|ring| ring.request.is_some());
            let request = if is_there { Vec::new() } else { request };
            let head = CallHead { service, function, caller, is_one_way, ring };
            let bytes = head.encode(&request);
            let (parsed, at) = CallHead::parse(&bytes).unwrap();
            prop_assert!(at <= MAX_HEAD);
            prop_assert!(ring.is_some() || at == head.length());
            prop_assert_eq!((&parsed, &bytes[at..]), (&head, &request[..]));
            for cut in 0..at {
                prop_assert!(CallHead::parse(&bytes[..cut]).is_err());
            }
            if is_there {
                prop_assert_eq!(CallHead::parse(&[&bytes[..], &[0]].concat()), Err(Malformed), "a second request");
            }
        }

        #[test]
        fn an_answer_comes_back_whole(result in prop::collection::vec(any::<u8>(), 0..300), length in any::<u32>()) {
            for answer in [CallAnswer::Here(&result), CallAnswer::InRing(length)] {
                let bytes = answer.encode();
                prop_assert_eq!(CallAnswer::parse(&bytes), Ok(answer));
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = (CallHead::parse(&bytes), CallAnswer::parse(&bytes));
        }
    }

    #[test]
    fn heads_that_make_no_sense_are_refused() {
        let (service, caller) = (Name::new("s").unwrap(), Principal::new("p").unwrap());
        let owner = LmrId { node: NodeId(1), slot: 2, generation: 3 };
        let place = RingPlace { owner, extent: 0, offset: 0, request: Some(MAX_CALL + 1), room: 0 };
        let refused = |ring| {
            let (service, caller) = (service.clone(), caller.clone());
            let head = CallHead { service, function: 1, caller, is_one_way: false, ring: Some(ring) };
            CallHead::parse(&head.encode(&[])).is_err()
        };
        assert!(refused(place) && refused(RingPlace { request: None, room: MAX_CALL + 1, ..place }));
        assert!(!refused(RingPlace { request: Some(MAX_CALL), room: MAX_CALL, ..place }));
        let head = CallHead { service, function: 1, caller, is_one_way: false, ring: None };
        let mut bytes = head.encode(&[]);
        for flags in [IN_RING, 8, 255] {
            bytes[2] = flags;
            assert!(CallHead::parse(&bytes).is_err(), "flags {flags}");
        }
    }
}
