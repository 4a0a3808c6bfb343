//! The messages between a node and the directory: one byte for the kind, then fields in little-endian order. Parsing is
//! total, as that of [requests](crate::message).

use super::{Epoch, Identity, MAX_MEMBERS, Member, MemberState, View};
use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::place::NodeId;
use std::collections::BTreeSet;
use thiserror::Error;

/// The function of the directory's service.
pub const MEMBER_CALL: u16 = 1;
/// The name of the directory's service.
pub const DIRECTORY_SERVICE: &str = "dunlin.tier.directory";
/// The longest message in bytes: a view of as many members as there can be.
pub const MAX_MESSAGE: usize = 1 << 20;

/// The bytes of a member whose texts have one byte each.
const SHORTEST_MEMBER: usize = 2 + 3 * 2 + 8 + 16 + 1;

/// A request to the directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberRequest {
    /// Make this node a member. Answer: [`MemberReply::View`], [`MemberReply::Wait`] or a refusal.
    Join {
        /// The node.
        identity: Identity,
        /// The greatest epoch that the node has seen.
        seen: Epoch,
        /// The number that this life of the node has had: it cannot have another.
        number: Option<NodeId>,
    },
    /// This node lives. Answer: [`MemberReply::Current`], the next view, [`MemberReply::ReportView`] or [`MemberReply::Gone`].
    Beat {
        /// The node's number.
        node: NodeId,
        /// Its incarnation.
        incarnation: Epoch,
        /// The epoch of its view.
        epoch: Epoch,
    },
    /// This node lives, and this is its view: for a directory that has restarted.
    Report {
        /// The node's number.
        node: NodeId,
        /// Its incarnation.
        incarnation: Epoch,
        /// The number of its life.
        life: u64,
        /// Its view.
        view: View,
    },
    /// This node leaves. Answer: [`MemberReply::Current`].
    Leave {
        /// The node's number.
        node: NodeId,
        /// Its incarnation.
        incarnation: Epoch,
    },
}

/// The reason why the directory does not take a node. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum MemberRefusal {
    /// A node of this name is alive.
    #[error(
        "there is a node {name} already, at {address}: give this one another name, or stop that one; if it was \
         killed, its lease ends soon"
    )]
    Taken {
        /// The name.
        name: String,
        /// The address of the other node's service.
        address: String,
    },
    /// Another node has one of the addresses.
    #[error("node {name} has the address {address} already: give this one another address")]
    Address {
        /// The name of the other node.
        name: String,
        /// The address.
        address: String,
    },
    /// There are as many names of nodes as the directory keeps.
    #[error(
        "the directory keeps {0} names of nodes already: use the name of a node that is dead or has left"
    )]
    Full(u16),
    /// The name is empty.
    #[error("a node needs a name")]
    NoName,
    /// Another node has the number that this life of the node has had, under an earlier life of the directory.
    #[error("another node has the number of this one ({0}), which cannot be changed: start this node again")]
    Number(NodeId),
}

/// An answer of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberReply {
    /// The node has the last view, or its message was taken.
    Current,
    /// The last view.
    View(View),
    /// The directory has restarted: report the view.
    ReportView,
    /// The directory has restarted and waits for the other nodes: ask again.
    Wait,
    /// The node's incarnation is not alive: join again.
    Gone,
    /// The node is refused.
    Refused(MemberRefusal),
}

impl Writer {
    pub(crate) fn epoch(self, epoch: Epoch) -> Self {
        self.u64(epoch.number).u64(epoch.directory)
    }

    /// Addresses and names have at most 255 bytes: [`Identity`].
    fn identity(self, identity: &Identity) -> Self {
        let Identity { name, calls, memory, life } = identity;
        self.text(name.as_bytes()).text(calls.as_bytes()).text(memory.as_bytes()).u64(*life)
    }

    fn view(mut self, view: &View) -> Self {
        self = self.epoch(view.epoch).u16(view.members.len() as u16);
        for Member { node, identity, incarnation, state } in &view.members {
            self = self.u16(node.0).identity(identity).epoch(*incarnation).u8(*state as u8);
        }
        self
    }
}

impl Reader<'_> {
    pub(crate) fn epoch(&mut self) -> Result<Epoch, Malformed> {
        Ok(Epoch { number: self.u64()?, directory: self.u64()? })
    }

    pub(crate) fn member_state(&mut self) -> Result<MemberState, Malformed> {
        match self.u8()? {
            0 => Ok(MemberState::Alive),
            1 => Ok(MemberState::Dead),
            2 => Ok(MemberState::Left),
            _ => Err(Malformed),
        }
    }

    fn identity(&mut self) -> Result<Identity, Malformed> {
        let (name, calls, memory) = (self.string()?, self.string()?, self.string()?);
        Ok(Identity { name, calls, memory, life: self.u64()? })
    }

    fn view(&mut self) -> Result<View, Malformed> {
        let (epoch, count) = (self.epoch()?, usize::from(self.u16()?));
        if count > MAX_MEMBERS || count > self.0.len() / SHORTEST_MEMBER {
            return Err(Malformed);
        }
        let (mut members, mut names): (Vec<Member>, _) = (Vec::with_capacity(count), BTreeSet::new());
        for _ in 0..count {
            let (node, identity, incarnation) = (self.node()?, self.identity()?, self.epoch()?);
            let state = self.member_state()?;
            let is_next = members.last().is_none_or(|last| last.node < node);
            if !is_next
                || incarnation > epoch
                || identity.name.is_empty()
                || !names.insert(identity.name.clone())
            {
                return Err(Malformed);
            }
            members.push(Member { node, identity, incarnation, state });
        }
        Ok(View { epoch, members })
    }
}

impl MemberRequest {
    /// Encodes the request.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            MemberRequest::Join { identity, seen, number } => {
                let writer = Writer::new(1).identity(identity).epoch(*seen);
                writer.u8(u8::from(number.is_some())).u16(number.map_or(0, |number| number.0))
            }
            MemberRequest::Beat { node, incarnation, epoch } => {
                Writer::new(2).u16(node.0).epoch(*incarnation).epoch(*epoch)
            }
            MemberRequest::Report { node, incarnation, life, view } => {
                Writer::new(3).u16(node.0).epoch(*incarnation).u64(*life).view(view)
            }
            MemberRequest::Leave { node, incarnation } => Writer::new(4).u16(node.0).epoch(*incarnation),
        }
        .bytes()
    }

    /// Parses a request.
    pub fn parse(bytes: &[u8]) -> Result<MemberRequest, Malformed> {
        let mut reader = Reader::new(bytes);
        let request = match reader.u8()? {
            1 => {
                let (identity, seen, has_number) = (reader.identity()?, reader.epoch()?, reader.flag()?);
                let node = reader.node()?;
                if !has_number && node != NodeId(0) {
                    return Err(Malformed);
                }
                MemberRequest::Join { identity, seen, number: has_number.then_some(node) }
            }
            2 => {
                let (node, incarnation) = (reader.node()?, reader.epoch()?);
                MemberRequest::Beat { node, incarnation, epoch: reader.epoch()? }
            }
            3 => {
                let (node, incarnation, life) = (reader.node()?, reader.epoch()?, reader.u64()?);
                MemberRequest::Report { node, incarnation, life, view: reader.view()? }
            }
            4 => MemberRequest::Leave { node: reader.node()?, incarnation: reader.epoch()? },
            _ => return Err(Malformed),
        };
        reader.end(request)
    }
}

impl MemberReply {
    /// Encodes the reply.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            MemberReply::Current => Writer::new(0),
            MemberReply::View(view) => Writer::new(1).view(view),
            MemberReply::ReportView => Writer::new(2),
            MemberReply::Wait => Writer::new(3),
            MemberReply::Gone => Writer::new(4),
            MemberReply::Refused(refusal) => {
                let writer = Writer::new(255);
                match refusal {
                    MemberRefusal::Taken { name, address } => {
                        writer.u8(1).text(name.as_bytes()).text(address.as_bytes())
                    }
                    MemberRefusal::Address { name, address } => {
                        writer.u8(2).text(name.as_bytes()).text(address.as_bytes())
                    }
                    MemberRefusal::Full(limit) => writer.u8(3).u16(*limit),
                    MemberRefusal::NoName => writer.u8(4),
                    MemberRefusal::Number(node) => writer.u8(5).u16(node.0),
                }
            }
        }
        .bytes()
    }

    /// Parses a reply.
    pub fn parse(bytes: &[u8]) -> Result<MemberReply, Malformed> {
        let mut reader = Reader::new(bytes);
        let reply = match reader.u8()? {
            0 => MemberReply::Current,
            1 => MemberReply::View(reader.view()?),
            2 => MemberReply::ReportView,
            3 => MemberReply::Wait,
            4 => MemberReply::Gone,
            255 => MemberReply::Refused(match reader.u8()? {
                1 => MemberRefusal::Taken { name: reader.string()?, address: reader.string()? },
                2 => MemberRefusal::Address { name: reader.string()?, address: reader.string()? },
                3 => MemberRefusal::Full(reader.u16()?),
                4 => MemberRefusal::NoName,
                5 => MemberRefusal::Number(reader.node()?),
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

    fn epoch() -> impl Strategy<Value = Epoch> {
        any::<[u64; 2]>().prop_map(|[number, directory]| Epoch { number, directory })
    }

    fn identity() -> impl Strategy<Value = Identity> {
        ("[a-z]{1,255}", "[a-z:0-9]{0,255}", ".{0,60}", any::<u64>())
            .prop_map(|(name, calls, memory, life)| Identity { name, calls, memory, life })
    }

    fn view() -> impl Strategy<Value = View> {
        let states = prop_oneof![Just(MemberState::Alive), Just(MemberState::Dead), Just(MemberState::Left)];
        let members = prop::collection::btree_map(any::<u16>(), (identity(), epoch(), states), 0..6);
        (epoch(), members).prop_map(|(epoch, members)| {
            let mut names = BTreeSet::new();
            let members = members.into_iter().map(|(node, (identity, incarnation, state))| Member {
                node: NodeId(node),
                identity,
                incarnation: incarnation.min(epoch),
                state,
            });
            View { epoch, members: members.filter(|one| names.insert(one.identity.name.clone())).collect() }
        })
    }

    fn request() -> impl Strategy<Value = MemberRequest> {
        let node = any::<u16>().prop_map(NodeId).boxed();
        prop_oneof![
            (identity(), epoch(), prop::option::of(node.clone()))
                .prop_map(|(identity, seen, number)| MemberRequest::Join { identity, seen, number }),
            (node.clone(), epoch(), epoch()).prop_map(|(node, incarnation, epoch)| MemberRequest::Beat {
                node,
                incarnation,
                epoch
            }),
            (node.clone(), epoch(), any::<u64>(), view()).prop_map(|(node, incarnation, life, view)| {
                MemberRequest::Report { node, incarnation, life, view }
            }),
            (node, epoch()).prop_map(|(node, incarnation)| MemberRequest::Leave { node, incarnation }),
        ]
    }

    fn reply() -> impl Strategy<Value = MemberReply> {
        let texts = ("[a-z]{1,255}", "[a-z]{0,255}").boxed();
        let refusal = prop_oneof![
            texts.clone().prop_map(|(name, address)| MemberRefusal::Taken { name, address }),
            texts.prop_map(|(name, address)| MemberRefusal::Address { name, address }),
            any::<u16>().prop_map(MemberRefusal::Full),
            Just(MemberRefusal::NoName),
            any::<u16>().prop_map(|node| MemberRefusal::Number(NodeId(node))),
        ];
        prop_oneof![
            Just(MemberReply::Current),
            view().prop_map(MemberReply::View),
            Just(MemberReply::ReportView),
            Just(MemberReply::Wait),
            Just(MemberReply::Gone),
            refusal.prop_map(MemberReply::Refused),
        ]
    }

    proptest! {
        #[test]
        fn messages_come_back_whole(request in request(), reply in reply()) {
            prop_assert_eq!(MemberRequest::parse(&request.encode()), Ok(request));
            prop_assert_eq!(MemberReply::parse(&reply.encode()), Ok(reply));
        }

        /// Shortened, lengthened, changed and random messages are refused or understood, and never cause a panic.
        #[test]
        fn any_bytes_are_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..300), request in request(), reply in reply(),
            cut in any::<prop::sample::Index>(),
        ) {
            let _ = (MemberRequest::parse(&bytes), MemberReply::parse(&bytes));
            let (request, reply) = (request.encode(), reply.encode());
            let long = |good: &[u8]| [good, &[1]].concat();
            prop_assert!(MemberRequest::parse(&request[..cut.index(request.len())]).is_err());
            prop_assert!(MemberReply::parse(&reply[..cut.index(reply.len())]).is_err());
            prop_assert!(MemberRequest::parse(&long(&request)).is_err());
            prop_assert!(MemberReply::parse(&long(&reply)).is_err());
            for mut changed in [request, reply] {
                let at = cut.index(changed.len());
                changed[at] ^= bytes.first().copied().unwrap_or(1);
                let _ = (MemberRequest::parse(&changed), MemberReply::parse(&changed));
            }
        }
    }

    #[test]
    fn a_view_with_two_nodes_of_one_name_or_number_is_refused() {
        let member = |node, name: &str| Member {
            node: NodeId(node),
            identity: Identity { name: name.into(), calls: "c".into(), memory: "m".into(), life: 1 },
            incarnation: Epoch::default(),
            state: MemberState::Alive,
        };
        let parse = |members| {
            let view = View { epoch: Epoch::default(), members };
            MemberReply::parse(&MemberReply::View(view).encode())
        };
        assert!(parse(vec![member(1, "a"), member(2, "b")]).is_ok());
        assert_eq!(parse(vec![member(1, "a"), member(2, "a")]), Err(Malformed));
        assert_eq!(parse(vec![member(1, "a"), member(1, "b")]), Err(Malformed));
        assert_eq!(parse(vec![member(2, "a"), member(1, "b")]), Err(Malformed));
        assert_eq!(parse(vec![member(1, "")]), Err(Malformed));
    }
}
