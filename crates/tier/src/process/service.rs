//! Requests of processes that serve functions and call them (table 1, section 5.1).

use super::list::BufferPart;
use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::name::Name;
use crate::qos::Priority;

/// Registers a function of a service. Answer: the number of the registration, 8 bytes.
pub const REGISTER: u16 = 17;
/// Ends a registration.
pub const WITHDRAW: u16 = 18;
/// Receives a request of a registered function. Answer: a [`Handed`], at any later time.
pub const RECEIVE: u16 = 19;
/// Answers a request, and receives the next one if the process wants to. Answer: none, or as that of [`RECEIVE`].
pub const REPLY: u16 = 20;
/// Calls a function of a node's service. Answer: that of the function, or its length (4 bytes) if it lies in a buffer of
/// the process; the errors are those of the call itself.
pub const INVOKE: u16 = 21;
/// Finds the nodes that serve a service. Answer: their names.
pub const SERVERS: u16 = 22;
/// Registers a server of the engine, which the process runs at an address of this host, for all functions of a service.
/// Answer: the number of the registration, 8 bytes.
pub const REGISTER_SERVER: u16 = 23;
/// Does nothing. Fails if the node does not know the process.
pub const PING: u16 = 24;
/// The error of the application that carries a [`Problem`](super::Problem) of [`INVOKE`]: the largest code. All other
/// codes are those of the service that was called, which cannot use this one.
pub const INVOKE_REFUSED: u16 = 0xfeff;
/// The error of the application without a payload: there is no request to receive, or there was none in time.
pub const NOTHING: u16 = 3;

/// The outcome of a request that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes are its result.
    Result,
    /// The bytes belong to an error of the service, with this code.
    Failed(u16),
    /// It was not executed, with this status of the engine.
    Refused(u16),
    /// The process has dropped it.
    Dropped,
}

/// Bytes that a process gives to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given<'a> {
    /// In the request.
    Here(&'a [u8]),
    /// In a buffer of the process, from where the node takes them in place.
    In(BufferPart),
}

/// The room that a process has for bytes from its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// This many bytes, which come in the answer.
    Answer(u32),
    /// A part of a buffer of the process, into which the node puts them in place.
    In(BufferPart),
}

/// A request of a process about services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceRequest<'a> {
    /// [`REGISTER`].
    Register {
        /// The service.
        service: Name,
        /// The function.
        function: u16,
    },
    /// [`REGISTER_SERVER`].
    RegisterServer {
        /// The service.
        service: Name,
        /// The address of the server, at most 255 bytes.
        address: &'a str,
    },
    /// [`PING`].
    Ping,
    /// [`WITHDRAW`].
    Withdraw {
        /// The number of the registration.
        registration: u64,
    },
    /// [`RECEIVE`].
    Receive {
        /// The number of the registration.
        registration: u64,
        /// The room for the request.
        room: Room,
        /// How long the answer waits for a request, in nanoseconds: not at all with 0, without end with `u64::MAX`.
        time: u64,
    },
    /// [`REPLY`].
    Reply {
        /// The number of the registration.
        registration: u64,
        /// The number of the request.
        number: u64,
        /// The outcome.
        outcome: Outcome,
        /// The room for the next request; none if the process receives no other.
        next: Option<Room>,
        /// The bytes of the outcome.
        bytes: Given<'a>,
    },
    /// [`INVOKE`].
    Invoke {
        /// The name of the node.
        node: &'a str,
        /// The service.
        service: Name,
        /// The function.
        function: u16,
        /// Nobody waits for a result.
        is_one_way: bool,
        /// The priority.
        priority: Priority,
        /// The room for the result. That of an answer says which results may go through a ring, and refuses none.
        room: Room,
        /// The request.
        bytes: Given<'a>,
    },
    /// [`SERVERS`].
    Servers {
        /// The service.
        service: Name,
    },
}

impl<'a> ServiceRequest<'a> {
    /// Returns the function number.
    pub fn function(&self) -> u16 {
        match self {
            ServiceRequest::Register { .. } => REGISTER,
            ServiceRequest::RegisterServer { .. } => REGISTER_SERVER,
            ServiceRequest::Ping => PING,
            ServiceRequest::Withdraw { .. } => WITHDRAW,
            ServiceRequest::Receive { .. } => RECEIVE,
            ServiceRequest::Reply { .. } => REPLY,
            ServiceRequest::Invoke { .. } => INVOKE,
            ServiceRequest::Servers { .. } => SERVERS,
        }
    }

    /// Encodes the payload into `payload`, whose content is replaced. The name of a node has at most 255 bytes.
    pub fn encode_into(&self, payload: &mut Vec<u8>) {
        payload.clear();
        let writer = Writer(std::mem::take(payload));
        let writer = match self {
            ServiceRequest::Register { service, function } => writer.u16(*function).text(service.as_bytes()),
            ServiceRequest::RegisterServer { service, address } => {
                writer.text(service.as_bytes()).text(address.as_bytes())
            }
            ServiceRequest::Ping => writer,
            ServiceRequest::Withdraw { registration } => writer.u64(*registration),
            ServiceRequest::Receive { registration, room, time } => {
                writer.u64(*registration).room(*room).u64(*time)
            }
            ServiceRequest::Reply { registration, number, outcome, next, bytes } => {
                let (kind, code) = match outcome {
                    Outcome::Result => (0, 0),
                    Outcome::Failed(code) => (1, *code),
                    Outcome::Refused(status) => (2, *status),
                    Outcome::Dropped => (3, 0),
                };
                let writer = writer.u64(*registration).u64(*number).u8(kind).u16(code);
                let writer = match next {
                    None => writer.u8(0),
                    Some(room) => writer.u8(1).room(*room),
                };
                writer.given(*bytes)
            }
            ServiceRequest::Invoke { node, service, function, is_one_way, priority, room, bytes } => {
                let writer = writer.u16(*function).u8(u8::from(*is_one_way)).priority(*priority).room(*room);
                writer.text(node.as_bytes()).text(service.as_bytes()).given(*bytes)
            }
            ServiceRequest::Servers { service } => writer.text(service.as_bytes()),
        };
        *payload = writer.0;
    }

    /// Parses the payload of a function.
    pub fn parse(function: u16, payload: &'a [u8]) -> Result<ServiceRequest<'a>, Malformed> {
        let mut reader = Reader(payload);
        let request = match function {
            REGISTER => {
                let function = reader.u16()?;
                ServiceRequest::Register { service: reader.name()?, function }
            }
            REGISTER_SERVER => {
                let service = reader.name()?;
                let address = std::str::from_utf8(reader.text()?).map_err(|_| Malformed)?;
                ServiceRequest::RegisterServer { service, address }
            }
            PING => ServiceRequest::Ping,
            WITHDRAW => ServiceRequest::Withdraw { registration: reader.u64()? },
            RECEIVE => {
                let (registration, room) = (reader.u64()?, reader.room()?);
                ServiceRequest::Receive { registration, room, time: reader.u64()? }
            }
            REPLY => {
                let (registration, number) = (reader.u64()?, reader.u64()?);
                let outcome = match (reader.u8()?, reader.u16()?) {
                    (0, 0) => Outcome::Result,
                    (1, code) => Outcome::Failed(code),
                    (2, status) => Outcome::Refused(status),
                    (3, 0) => Outcome::Dropped,
                    _ => return Err(Malformed),
                };
                let next = if reader.flag()? { Some(reader.room()?) } else { None };
                ServiceRequest::Reply { registration, number, outcome, next, bytes: reader.given()? }
            }
            INVOKE => {
                let (function, is_one_way, priority) = (reader.u16()?, reader.flag()?, reader.priority()?);
                let room = reader.room()?;
                let node = std::str::from_utf8(reader.text()?).map_err(|_| Malformed)?;
                let (service, bytes) = (reader.name()?, reader.given()?);
                ServiceRequest::Invoke { node, service, function, is_one_way, priority, room, bytes }
            }
            SERVERS => ServiceRequest::Servers { service: reader.name()? },
            _ => return Err(Malformed),
        };
        reader.end(request)
    }
}

impl Writer {
    fn buffer_part(self, BufferPart { length, buffer, at }: BufferPart) -> Self {
        self.u32(length).u64(buffer).u64(at)
    }

    fn room(self, room: Room) -> Self {
        match room {
            Room::Answer(length) => self.u8(0).u32(length),
            Room::In(part) => self.u8(1).buffer_part(part),
        }
    }

    /// Bytes that end the request.
    fn given(mut self, bytes: Given<'_>) -> Self {
        match bytes {
            Given::Here(bytes) => {
                self = self.u8(0);
                self.0.extend_from_slice(bytes);
                self
            }
            Given::In(part) => self.u8(1).buffer_part(part),
        }
    }
}

impl<'a> Reader<'a> {
    fn buffer_part(&mut self) -> Result<BufferPart, Malformed> {
        Ok(BufferPart { length: self.u32()?, buffer: self.u64()?, at: self.u64()? })
    }

    fn room(&mut self) -> Result<Room, Malformed> {
        Ok(if self.flag()? { Room::In(self.buffer_part()?) } else { Room::Answer(self.u32()?) })
    }

    /// Bytes that end the request.
    fn given(&mut self) -> Result<Given<'a>, Malformed> {
        if self.flag()? {
            return Ok(Given::In(self.buffer_part()?));
        }
        Ok(Given::Here(std::mem::take(&mut self.0)))
    }
}

/// A request that a process receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed<'a> {
    /// The number under which it is answered.
    pub number: u64,
    /// The time that is left until the caller's deadline, in nanoseconds; `None` without one.
    pub time_left: Option<u64>,
    /// The principal that calls.
    pub caller: &'a str,
    /// The length of the request in bytes.
    pub length: u32,
    /// The request; empty if it lies in the buffer of the process.
    pub request: &'a [u8],
}

impl<'a> Handed<'a> {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        let writer = Writer(Vec::with_capacity(30 + self.caller.len() + self.request.len()));
        let writer = writer.u64(self.number).u64(self.time_left.map_or(0, |left| left.saturating_add(1)));
        let mut writer = writer.u32(self.length).text(self.caller.as_bytes());
        writer.0.extend_from_slice(self.request);
        writer.0
    }

    /// Parses an answer.
    pub fn parse(bytes: &'a [u8]) -> Result<Handed<'a>, Malformed> {
        let mut reader = Reader(bytes);
        let (number, time_left) = (reader.u64()?, reader.u64()?.checked_sub(1));
        let (length, caller) = (reader.u32()?, std::str::from_utf8(reader.text()?).map_err(|_| Malformed)?);
        let request = reader.0;
        if !request.is_empty() && request.len() != length as usize {
            return Err(Malformed);
        }
        Ok(Handed { number, time_left, caller, length, request })
    }
}

/// Encodes the answer to [`SERVERS`]: names of at most 255 bytes.
pub fn encode_servers(nodes: &[String]) -> Vec<u8> {
    let mut writer = Writer(Vec::new()).u16(nodes.len() as u16);
    for node in nodes {
        writer = writer.text(node.as_bytes());
    }
    writer.0
}

/// Parses the answer to [`SERVERS`].
pub fn parse_servers(bytes: &[u8]) -> Result<Vec<String>, Malformed> {
    let mut reader = Reader(bytes);
    let nodes = (0..reader.u16()?).map(|_| reader.string()).collect::<Result<_, _>>()?;
    reader.end(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = Name> {
        prop::collection::vec(any::<u8>(), 1..=255).prop_map(|bytes| Name::new(bytes).unwrap())
    }

    fn part() -> impl Strategy<Value = BufferPart> {
        any::<(u32, u64, u64)>().prop_map(|(length, buffer, at)| BufferPart { length, buffer, at })
    }

    fn room() -> impl Strategy<Value = Room> {
        prop_oneof![any::<u32>().prop_map(Room::Answer), part().prop_map(Room::In)]
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            Just(Outcome::Result),
            any::<u16>().prop_map(Outcome::Failed),
            any::<u16>().prop_map(Outcome::Refused),
            Just(Outcome::Dropped),
        ]
    }

    proptest! {
        #[test]
        fn requests_come_back_whole(
            service in name(), function in any::<u16>(), numbers in any::<[u64; 2]>(), room in room(), flag in any::<bool>(),
            outcome in outcome(), next in prop::option::of(room()), place in prop::option::of(part()), left in any::<u32>(), node in "[a-z]{0,40}", bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let [registration, number] = numbers;
            let given = place.map_or(Given::Here(&bytes), Given::In);
            let requests = [
                ServiceRequest::Register { service: service.clone(), function },
                ServiceRequest::RegisterServer { service: service.clone(), address: &node },
                ServiceRequest::Ping,
                ServiceRequest::Withdraw { registration },
                ServiceRequest::Receive { registration, room, time: number },
                ServiceRequest::Reply { registration, number, outcome, next, bytes: given },
                ServiceRequest::Invoke {
                    node: &node, service: service.clone(), function, is_one_way: flag,
                    priority: if flag { Priority::Low } else { Priority::High }, room, bytes: given,
                },
                ServiceRequest::Servers { service },
            ];
            let mut payload = vec![1, 2, 3];
            for request in requests {
                request.encode_into(&mut payload);
                prop_assert_eq!(ServiceRequest::parse(request.function(), &payload), Ok(request));
            }
            for (length, request) in [(bytes.len() as u32, &bytes[..]), (left, &[])] {
                let handed = Handed { number, time_left: flag.then_some(left.into()), caller: &node, length, request };
                let encoded = handed.encode();
                prop_assert_eq!(Handed::parse(&encoded), Ok(handed));
            }
            let servers = vec![node.clone(); 3];
            prop_assert_eq!(parse_servers(&encode_servers(&servers)), Ok(servers));
        }

        #[test]
        fn any_bytes_are_survived(function in 0u16..30, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (ServiceRequest::parse(function, &bytes), Handed::parse(&bytes), parse_servers(&bytes));
        }
    }
}
