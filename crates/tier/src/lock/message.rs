//! The messages between a node and the owner of locks and barriers. Parsing is total, as in
//! [`message`](crate::message).

use super::{Grant, Member, Waiter, Word};
use crate::codec::{Reader, Writer};
use crate::membership::Epoch;
use crate::message::Malformed;
use crate::name::Name;
use crate::place::{LmrId, NodeId};
use thiserror::Error;

/// The function of the node's service for locks and barriers. Its answers come when the lock does.
pub const LOCK_CALL: u16 = 3;
/// Locks of one owner. A lock stays until its owner ends.
pub const MAX_LOCKS: u16 = 1024;
/// Callers that meet at one barrier.
pub const MAX_MEETING: u16 = 4096;

/// A request to one life of an owner: member numbers and locks mean nothing to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockMessage {
    /// The incarnation of the owner; anything for [`LockRequest::Join`].
    pub owner: u64,
    /// The request.
    pub request: LockRequest,
}

/// A request to an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockRequest {
    /// Give this life of a node a number.
    Join {
        /// The node.
        node: NodeId,
        /// Its life, which is also the identity of its connections.
        incarnation: u64,
    },
    /// Find the lock of a name, or make it.
    Open {
        /// The name.
        name: Name,
        /// The view of the member, which says that this node is the owner.
        epoch: Epoch,
    },
    /// Answer when the lock is the waiter's.
    Reserve {
        /// The lock.
        lock: u16,
        /// The waiter.
        waiter: Waiter,
        /// Without it the answer to a request for a lock that is held is [`LockReply::Done`], at once.
        waits: bool,
    },
    /// Take the lock back.
    Unlock {
        /// The lock.
        lock: u16,
        /// The word of the grant.
        word: Word,
        /// A process of the member's host died with the lock.
        poisoned: bool,
    },
    /// Forget a waiter, or take the lock back from it.
    Abandon {
        /// The lock.
        lock: u16,
        /// The waiter.
        waiter: Waiter,
    },
    /// Answer when as many have met at the barrier.
    Meet {
        /// The barrier.
        name: Name,
        /// The number of callers that meet.
        members: u16,
        /// The caller's node.
        member: Member,
        /// The node's number for the call.
        call: u64,
        /// The view of the caller's node, which says that this node is the owner.
        epoch: Epoch,
    },
    /// Forget a caller of a barrier.
    Leave {
        /// The barrier.
        name: Name,
        /// The caller's node.
        member: Member,
        /// The node's number for the call.
        call: u64,
        /// The caller has died, which ends the barrier for all.
        died: bool,
    },
}

/// The reason why an owner refuses. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LockRefusal {
    /// The member or the lock is not the owner's: it has restarted.
    #[error("the owner of the lock has restarted, and its locks are free: take the lock again")]
    Unknown,
    /// The views of the member and of the node that it takes for the owner do not agree that this node is the owner.
    #[error("another node owns the lock by now, or will soon: take the lock again")]
    NotOwner,
    /// The owner has no room for another lock, or another life of a node.
    #[error("the owner of the lock has no room for it: use fewer names, at most 1024 for each node")]
    Full,
    /// The owner's memory is full.
    #[error(
        "the owner of the lock has no memory left for its words: free regions there, or give it more memory"
    )]
    OutOfMemory,
    /// The owner could not change the lock's word.
    #[error("the owner of the lock cannot reach its own memory: see the log of that node")]
    Memory,
    /// The callers of a barrier disagree, or the number is out of range.
    #[error("{wanted} callers cannot meet at this barrier{}", met(*.present))]
    Members {
        /// The number of the refused caller.
        wanted: u16,
        /// The number of those that wait; 0 if nobody does.
        present: u16,
    },
    /// A caller's node died while it waited at the barrier, which ends it for all.
    #[error("a caller on {0} died at the barrier: nobody has passed")]
    Died(NodeId),
    /// The owner could not understand the request.
    #[error("the node did not understand the request: bring both nodes to the same release")]
    Malformed,
}

fn met(present: u16) -> String {
    match present {
        0 => format!(": 1 to {MAX_MEETING} can"),
        present => format!(", where others wait to be {present}"),
    }
}

/// The answer of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockReply {
    /// It is done.
    Done,
    /// The member's number, and the region with the words of all locks.
    Joined {
        /// The number.
        member: Member,
        /// The incarnation of the owner.
        owner: u64,
        /// The region. The word of a lock lies at eight times its number.
        words: LmrId,
    },
    /// The lock of a name.
    Opened(u16),
    /// The lock is the waiter's.
    Granted {
        /// The word of the grant.
        word: Word,
        /// The last holder died with the lock.
        poisoned: bool,
    },
    /// The request is refused.
    Refused(LockRefusal),
}

impl From<Grant> for LockReply {
    fn from(grant: Grant) -> LockReply {
        LockReply::Granted { word: grant.word, poisoned: grant.poisoned }
    }
}

fn waiter(writer: Writer, lock: u16, waiter: Waiter) -> Writer {
    writer.u16(lock).u16(waiter.member.number()).u64(waiter.call)
}

impl Reader<'_> {
    fn member(&mut self) -> Result<Member, Malformed> {
        Member::new(self.u16()?).ok_or(Malformed)
    }

    fn waiter(&mut self) -> Result<Waiter, Malformed> {
        Ok(Waiter { member: self.member()?, call: self.u64()? })
    }

    fn lock(&mut self) -> Result<u16, Malformed> {
        Ok(self.u16()?).and_then(|lock| if lock < MAX_LOCKS { Ok(lock) } else { Err(Malformed) })
    }
}

impl LockMessage {
    /// Encodes the request.
    pub fn encode(&self) -> Vec<u8> {
        let kind = |kind| Writer::new(kind).u64(self.owner);
        match &self.request {
            LockRequest::Join { node, incarnation } => kind(1).u16(node.0).u64(*incarnation),
            LockRequest::Open { name, epoch } => kind(2).epoch(*epoch).text(name.as_bytes()),
            LockRequest::Reserve { lock, waiter: who, waits } => {
                waiter(kind(3), *lock, *who).u8(u8::from(*waits))
            }
            LockRequest::Unlock { lock, word, poisoned } => {
                kind(4).u16(*lock).u64(word.bits()).u8(u8::from(*poisoned))
            }
            LockRequest::Abandon { lock, waiter: who } => waiter(kind(5), *lock, *who),
            LockRequest::Meet { name, members, member, call, epoch } => {
                let meet = kind(6).u16(*members).u16(member.number()).u64(*call);
                meet.epoch(*epoch).text(name.as_bytes())
            }
            LockRequest::Leave { name, member, call, died } => {
                kind(7).u16(member.number()).u64(*call).u8(u8::from(*died)).text(name.as_bytes())
            }
        }
        .bytes()
    }

    /// Parses a request.
    pub fn parse(bytes: &[u8]) -> Result<LockMessage, Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, owner) = (reader.u8()?, reader.u64()?);
        let request = match kind {
            1 => LockRequest::Join { node: reader.node()?, incarnation: reader.u64()? },
            2 => LockRequest::Open { epoch: reader.epoch()?, name: reader.name()? },
            3 => {
                let (lock, waiter) = (reader.lock()?, reader.waiter()?);
                LockRequest::Reserve { lock, waiter, waits: reader.flag()? }
            }
            4 => {
                let (lock, word) = (reader.lock()?, Word::from_bits(reader.u64()?));
                LockRequest::Unlock { lock, word, poisoned: reader.flag()? }
            }
            5 => LockRequest::Abandon { lock: reader.lock()?, waiter: reader.waiter()? },
            6 => {
                let (members, member, call) = (reader.u16()?, reader.member()?, reader.u64()?);
                LockRequest::Meet { epoch: reader.epoch()?, name: reader.name()?, members, member, call }
            }
            7 => {
                let (member, call, died) = (reader.member()?, reader.u64()?, reader.flag()?);
                LockRequest::Leave { name: reader.name()?, member, call, died }
            }
            _ => return Err(Malformed),
        };
        reader.end(LockMessage { owner, request })
    }
}

impl LockReply {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            LockReply::Done => Writer::new(1),
            LockReply::Joined { member, owner, words } => {
                Writer::new(2).u16(member.number()).u64(*owner).id(*words)
            }
            LockReply::Opened(lock) => Writer::new(3).u16(*lock),
            LockReply::Granted { word, poisoned } => Writer::new(4).u64(word.bits()).u8(u8::from(*poisoned)),
            LockReply::Refused(refusal) => match refusal {
                LockRefusal::Unknown => Writer::new(5).u8(1),
                LockRefusal::Full => Writer::new(5).u8(2),
                LockRefusal::OutOfMemory => Writer::new(5).u8(3),
                LockRefusal::Memory => Writer::new(5).u8(4),
                LockRefusal::Malformed => Writer::new(5).u8(5),
                LockRefusal::Members { wanted, present } => Writer::new(5).u8(6).u16(*wanted).u16(*present),
                LockRefusal::Died(node) => Writer::new(5).u8(7).u16(node.0),
                LockRefusal::NotOwner => Writer::new(5).u8(8),
            },
        }
        .bytes()
    }

    /// Parses an answer.
    pub fn parse(bytes: &[u8]) -> Result<LockReply, Malformed> {
        let mut reader = Reader::new(bytes);
        let reply = match reader.u8()? {
            1 => LockReply::Done,
            2 => LockReply::Joined { member: reader.member()?, owner: reader.u64()?, words: reader.id()? },
            3 => LockReply::Opened(reader.lock()?),
            4 => LockReply::Granted { word: Word::from_bits(reader.u64()?), poisoned: reader.flag()? },
            5 => LockReply::Refused(match reader.u8()? {
                1 => LockRefusal::Unknown,
                2 => LockRefusal::Full,
                3 => LockRefusal::OutOfMemory,
                4 => LockRefusal::Memory,
                5 => LockRefusal::Malformed,
                6 => LockRefusal::Members { wanted: reader.u16()?, present: reader.u16()? },
                7 => LockRefusal::Died(reader.node()?),
                8 => LockRefusal::NotOwner,
                _ => return Err(Malformed),
            }),
            _ => return Err(Malformed),
        };
        reader.end(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member() -> impl Strategy<Value = Member> {
        (1u16..).prop_map(|number| Member::new(number).unwrap())
    }

    fn epoch() -> impl Strategy<Value = Epoch> {
        any::<[u64; 2]>().prop_map(|[number, directory]| Epoch { number, directory })
    }

    fn request() -> impl Strategy<Value = LockMessage> {
        let name = || prop::collection::vec(any::<u8>(), 1..=255).prop_map(|name| Name::new(name).unwrap());
        let waiter = || (member(), any::<u64>()).prop_map(|(member, call)| Waiter { member, call });
        let lock = || 0..MAX_LOCKS;
        let request = prop_oneof![
            (any::<u16>(), any::<u64>())
                .prop_map(|(node, incarnation)| LockRequest::Join { node: NodeId(node), incarnation }),
            (name(), epoch()).prop_map(|(name, epoch)| LockRequest::Open { name, epoch }),
            (lock(), waiter(), any::<bool>()).prop_map(|(lock, waiter, waits)| LockRequest::Reserve {
                lock,
                waiter,
                waits
            }),
            (lock(), any::<u64>(), any::<bool>()).prop_map(|(lock, word, poisoned)| {
                LockRequest::Unlock { lock, word: Word::from_bits(word), poisoned }
            }),
            (lock(), waiter()).prop_map(|(lock, waiter)| LockRequest::Abandon { lock, waiter }),
            (name(), any::<u16>(), waiter(), epoch()).prop_map(
                |(name, members, Waiter { member, call }, epoch)| LockRequest::Meet {
                    name,
                    members,
                    member,
                    call,
                    epoch
                }
            ),
            (name(), waiter(), any::<bool>()).prop_map(|(name, Waiter { member, call }, died)| {
                LockRequest::Leave { name, member, call, died }
            }),
        ];
        (any::<u64>(), request).prop_map(|(owner, request)| LockMessage { owner, request })
    }

    fn reply() -> impl Strategy<Value = LockReply> {
        let id = (any::<u16>(), any::<u32>(), any::<u64>()).prop_map(|(node, slot, generation)| LmrId {
            node: NodeId(node),
            slot,
            generation,
        });
        prop_oneof![
            Just(LockReply::Done),
            (member(), any::<u64>(), id).prop_map(|(member, owner, words)| LockReply::Joined {
                member,
                owner,
                words
            }),
            (0..MAX_LOCKS).prop_map(LockReply::Opened),
            (any::<u64>(), any::<bool>())
                .prop_map(|(word, poisoned)| LockReply::Granted { word: Word::from_bits(word), poisoned }),
            prop::sample::select(vec![
                LockRefusal::Unknown,
                LockRefusal::Full,
                LockRefusal::OutOfMemory,
                LockRefusal::Memory,
                LockRefusal::Malformed,
                LockRefusal::Members { wanted: 3, present: 70 },
                LockRefusal::Died(NodeId(9)),
                LockRefusal::NotOwner,
            ])
            .prop_map(LockReply::Refused),
        ]
    }

    proptest! {
        #[test]
        fn messages_come_back_whole(request in request(), reply in reply()) {
            prop_assert_eq!(LockMessage::parse(&request.encode()), Ok(request));
            prop_assert_eq!(LockReply::parse(&reply.encode()), Ok(reply));
        }

        #[test]
        fn any_bytes_are_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            request in request(),
            reply in reply(),
            cut in any::<prop::sample::Index>(),
        ) {
            let _ = (LockMessage::parse(&bytes), LockReply::parse(&bytes));
            let (request, reply) = (request.encode(), reply.encode());
            prop_assert!(LockMessage::parse(&request[..cut.index(request.len())]).is_err());
            prop_assert!(LockReply::parse(&reply[..cut.index(reply.len())]).is_err());
            prop_assert!(LockMessage::parse(&[&request[..], &[1]].concat()).is_err());
            prop_assert!(LockReply::parse(&[&reply[..], &[1]].concat()).is_err());
        }
    }
}
