//! Requests of processes for locks and barriers (section 7.2). The node is a member at the owner of each lock, and hands
//! locks to its processes.

use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::name::Name;

/// Takes a lock. Answer: a [`Granted`] when the lock is the process's, or no byte if it does not wait and the lock is
/// not free.
pub const LOCK: u16 = 25;
/// Gives a lock back.
pub const UNLOCK: u16 = 26;
/// Waits at a barrier. Answer: no byte, when all are there.
pub const BARRIER: u16 = 27;
/// Ends a request of [`LOCK`] or [`BARRIER`] whose outcome the process does not know, and gives back a lock that was
/// granted by it. Answer: the name of the node that owns the lock, or the barrier.
pub const GIVE_UP: u16 = 28;

/// Asks for the node that owns the lock and the barrier of a name. Answer: its name.
pub const LOCK_HOME: u16 = 48;

/// A request of a process about locks and barriers. The process numbers its requests that wait by *tickets*, and never
/// uses a ticket twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockingRequest {
    /// [`LOCK`].
    Lock {
        /// The number of the request.
        ticket: u64,
        /// The name of the lock.
        name: Name,
        /// The process waits for a lock that is not free.
        waits: bool,
    },
    /// [`UNLOCK`].
    Unlock {
        /// The number of the grant.
        guard: u64,
    },
    /// [`BARRIER`].
    Barrier {
        /// The number of the request.
        ticket: u64,
        /// The name of the barrier.
        name: Name,
        /// The number of callers that meet.
        members: u16,
    },
    /// [`GIVE_UP`].
    GiveUp {
        /// The number of the request that is given up.
        ticket: u64,
        /// The name in that request.
        name: Name,
    },
    /// [`LOCK_HOME`].
    Home {
        /// The name of the lock.
        name: Name,
    },
}

impl LockingRequest {
    /// Returns the function number.
    pub fn function(&self) -> u16 {
        match self {
            LockingRequest::Lock { .. } => LOCK,
            LockingRequest::Unlock { .. } => UNLOCK,
            LockingRequest::Barrier { .. } => BARRIER,
            LockingRequest::GiveUp { .. } => GIVE_UP,
            LockingRequest::Home { .. } => LOCK_HOME,
        }
    }

    /// Encodes the payload into `payload`, whose content is replaced.
    pub fn encode_into(&self, payload: &mut Vec<u8>) {
        payload.clear();
        let writer = Writer(std::mem::take(payload));
        let writer = match self {
            LockingRequest::Lock { ticket, name, waits } => {
                writer.u64(*ticket).u8(u8::from(*waits)).text(name.as_bytes())
            }
            LockingRequest::Unlock { guard } => writer.u64(*guard),
            LockingRequest::Barrier { ticket, name, members } => {
                writer.u64(*ticket).u16(*members).text(name.as_bytes())
            }
            LockingRequest::GiveUp { ticket, name } => writer.u64(*ticket).text(name.as_bytes()),
            LockingRequest::Home { name } => writer.text(name.as_bytes()),
        };
        *payload = writer.0;
    }

    /// Parses the payload of a function.
    pub fn parse(function: u16, payload: &[u8]) -> Result<LockingRequest, Malformed> {
        let mut reader = Reader(payload);
        let request = match function {
            LOCK => {
                let (ticket, waits) = (reader.u64()?, reader.flag()?);
                LockingRequest::Lock { ticket, name: reader.name()?, waits }
            }
            UNLOCK => LockingRequest::Unlock { guard: reader.u64()? },
            BARRIER => {
                let (ticket, members) = (reader.u64()?, reader.u16()?);
                LockingRequest::Barrier { ticket, name: reader.name()?, members }
            }
            GIVE_UP => {
                let ticket = reader.u64()?;
                LockingRequest::GiveUp { ticket, name: reader.name()? }
            }
            LOCK_HOME => LockingRequest::Home { name: reader.name()? },
            _ => return Err(Malformed),
        };
        reader.end(request)
    }
}

/// A lock that a process has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The number by which it is given back.
    pub guard: u64,
    /// The fence number of the grant.
    pub fence: u64,
    /// The last holder died with the lock.
    pub poisoned: bool,
}

impl Granted {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        Writer(Vec::with_capacity(17)).u64(self.guard).u64(self.fence).u8(u8::from(self.poisoned)).0
    }

    /// Parses the answer to [`LOCK`]; `None` for a lock that is not free.
    pub fn parse(bytes: &[u8]) -> Result<Option<Granted>, Malformed> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader(bytes);
        let granted = Granted { guard: reader.u64()?, fence: reader.u64()?, poisoned: reader.flag()? };
        reader.end(Some(granted))
    }
}

/// Parses the answer to [`GIVE_UP`] or [`LOCK_HOME`].
pub fn parse_owner(bytes: &[u8]) -> Result<String, Malformed> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = Name> {
        prop::collection::vec(any::<u8>(), 1..=255).prop_map(|bytes| Name::new(bytes).unwrap())
    }

    proptest! {
        #[test]
        fn requests_come_back_whole(
            name in name(), ticket in any::<u64>(), fence in any::<u64>(), members in any::<u16>(), flag in any::<bool>(),
        ) {
            let requests = [
                LockingRequest::Lock { ticket, name: name.clone(), waits: flag },
                LockingRequest::Unlock { guard: ticket },
                LockingRequest::Barrier { ticket, name: name.clone(), members },
                LockingRequest::GiveUp { ticket, name: name.clone() },
                LockingRequest::Home { name },
            ];
            let mut payload = vec![1, 2, 3];
            for request in requests {
                request.encode_into(&mut payload);
                prop_assert_eq!(LockingRequest::parse(request.function(), &payload), Ok(request.clone()));
                prop_assert!(LockingRequest::parse(request.function(), &payload[1..]) != Ok(request));
            }
            let granted = Granted { guard: ticket, fence, poisoned: flag };
            prop_assert_eq!(Granted::parse(&granted.encode()), Ok(Some(granted)));
        }

        #[test]
        fn any_bytes_are_survived(function in 20u16..64, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (LockingRequest::parse(function, &bytes), Granted::parse(&bytes), parse_owner(&bytes));
        }
    }
}
