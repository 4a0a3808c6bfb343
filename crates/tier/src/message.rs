//! The messages between nodes, which travel as calls of the RPC engine: one byte for the kind, then fields in
//! little-endian order. Parsing is total: any bytes give a message or [`Malformed`], without a panic and without an
//! allocation larger than the bytes.

use crate::codec::{Reader, Writer};
use crate::cut::Layout;
use crate::holders::Holders;
use crate::membership::Epoch;
use crate::name::Name;
use crate::place::{LmrId, NodeId};
use crate::qos::Priority;
use crate::record::{Keepers, Listing, Mapping, NAMES_AT_ONCE, RecordError};
use crate::rights::{GrantError, Grantee, Grants, Principal, Rights};
use thiserror::Error;

/// The function of the node's service that answers at once.
pub const CALL: u16 = 1;
/// The function of the node's service for requests that take long or wait for other nodes.
pub const SLOW_CALL: u16 = 2;

/// The bytes of a region's id with a name of one byte.
const SHORTEST_NAMED: usize = 14 + 2;

/// The bytes are not a message of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer node sent a message that cannot be understood: bring both nodes to the same release")]
pub struct Malformed;

/// A request to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// To a name's home: give the name to a region.
    Claim {
        /// The name.
        name: Name,
        /// The region.
        id: LmrId,
        /// The view of the node that asks. The home must have the same: in another one, that node has told its names
        /// already.
        epoch: Epoch,
    },
    /// To a name's home: find the region of a name.
    Lookup {
        /// The name.
        name: Name,
    },
    /// To a name's home: end a claim.
    Forget {
        /// The name.
        name: Name,
        /// The region that has it.
        id: LmrId,
    },
    /// To a record's node: is this id in use?
    Exists {
        /// The id.
        id: LmrId,
    },
    /// To a mapper: have those who have the region mapped directly let it go. Answer: those who have not yet.
    LetGo {
        /// The id that owns the region's memory.
        id: LmrId,
    },
    /// To a storing node: give `owner` memory in pieces.
    Allocate {
        /// The region.
        owner: LmrId,
        /// The length in bytes.
        length: u64,
        /// The longest piece, in bytes.
        piece: u32,
    },
    /// To a serving node: give `owner` memory for the payloads of calls, in one piece. Answer: [`Reply::Allocated`], perhaps
    /// of fewer bytes.
    Ring {
        /// The region.
        owner: LmrId,
        /// The length in bytes.
        length: u64,
        /// The least length in bytes.
        least: u64,
    },
    /// To a storing node: take back all memory of `owner`.
    Release {
        /// The region.
        owner: LmrId,
    },
    /// To a storing node: has it memory of `owner`? Answer: [`Reply::Flag`], or a refusal if its view is an earlier one.
    Stores {
        /// The view of the sender.
        epoch: Epoch,
        /// The region.
        owner: LmrId,
    },
    /// To any node: which of these regions has it a handle on, or a record of? Answer: [`Reply::KnownIn`], or a refusal if
    /// its view is another one.
    Known {
        /// The view of the sender.
        epoch: Epoch,
        /// Records do not count.
        by_handle: bool,
        /// Regions that the node does not know are [stopped](Request::Stop) there: an answer to a map request that is under
        /// way gives no handle on them.
        stops: bool,
        /// The regions, at most [`IDS_AT_ONCE`].
        ids: Vec<LmrId>,
    },
    /// To a record's node: map a region.
    Map {
        /// The region.
        id: LmrId,
        /// The rights asked for.
        wanted: Rights,
        /// The node of the principal.
        mapper: NodeId,
        /// The principal, for which its node vouches.
        principal: Principal,
    },
    /// To a record's node: `mapper` closed one handle.
    Unmap {
        /// The region.
        id: LmrId,
        /// The node.
        mapper: NodeId,
    },
    /// To a record's node: grant rights.
    Grant {
        /// The region.
        id: LmrId,
        /// The rights.
        rights: Rights,
        /// The granting principal.
        by: Principal,
        /// The receiver.
        to: Grantee,
    },
    /// To a record's node: take rights away. Waits for other nodes. Answer: [`Reply::Left`].
    Revoke {
        /// The region.
        id: LmrId,
        /// The rights.
        rights: Rights,
        /// The master.
        by: Principal,
        /// The principal that loses them.
        from: Grantee,
    },
    /// To a record's node: give a region a lease that begins now.
    Lease {
        /// The region.
        id: LmrId,
        /// The master.
        by: Principal,
        /// The lease in nanoseconds; `None` for none.
        length: Option<u64>,
    },
    /// To the node that orders a record's changes: add a keeper. Waits for other nodes.
    AddKeeper {
        /// The region.
        id: LmrId,
        /// The node that shall keep the record, too.
        node: NodeId,
    },
    /// To another keeper of a record: take it over from `from`, which orders its changes. Answer: [`Reply::Kept`]. It is
    /// carried out without a wait, since requests that wait for it may have all threads that may wait.
    Keep {
        /// The region's first id.
        id: LmrId,
        /// The version of the record.
        version: u64,
        /// The view of `from`.
        epoch: Epoch,
        /// The node that orders the changes.
        from: NodeId,
        /// The node has just become a keeper. Otherwise one without the record has lost it.
        is_new: bool,
        /// The record ([`Directory::record_for`](crate::Directory::record_for)).
        record: Vec<u8>,
    },
    /// To a keeper of a record: the record as it is. Answer: [`Reply::Record`].
    Record {
        /// The view that the keeper must have heard of.
        epoch: Epoch,
        /// The region's first id.
        id: LmrId,
    },
    /// To another keeper of a record: the region is freed.
    Unkeep {
        /// The region's first id.
        id: LmrId,
    },
    /// To a mapper: end the handles of principals that have fewer rights now, and say whether these are drained.
    Restrict {
        /// The view of the node that asks: a mapper with an earlier one answers later.
        epoch: Epoch,
        /// The id that owns the region's memory.
        id: LmrId,
        /// The grants.
        grants: Grants,
    },
    /// To a record's node: free a region. Waits for other nodes.
    Free {
        /// The region.
        id: LmrId,
        /// The master.
        by: Principal,
    },
    /// To a mapper: begin no operation on the region, and say whether it is drained.
    Stop {
        /// The view of the node that asks: a mapper with an earlier one answers later.
        epoch: Epoch,
        /// The region.
        id: LmrId,
        /// The region moves, and is not freed.
        moves: bool,
    },
    /// To a record's node: move a region with a name to the memory of another node. Waits for other nodes.
    Move {
        /// The region.
        id: LmrId,
        /// The master.
        by: Principal,
        /// The node that shall store it.
        to: NodeId,
    },
    /// To a record's node: move a region with a name out of the memory of a node, if it is there. Waits for other
    /// nodes.
    MoveAway {
        /// The region.
        id: LmrId,
        /// The node that stores it.
        from: NodeId,
        /// The node that shall store it.
        to: NodeId,
    },
    /// To a storing node: destroy the connections that `mapper` has now, and say whether nothing arrives over them
    /// any more. A repetition for the same region concerns the same connections.
    Fence {
        /// The region that is being freed.
        id: LmrId,
        /// The node to fence.
        mapper: NodeId,
    },
    /// To a storing node: add to a word.
    FetchAdd {
        /// The region.
        owner: LmrId,
        /// The extent.
        extent: u16,
        /// The offset in bytes.
        offset: u64,
        /// The addend.
        add: u64,
    },
    /// To a storing node: compare a word and swap it.
    CompareSwap {
        /// The region.
        owner: LmrId,
        /// The extent.
        extent: u16,
        /// The offset in bytes.
        offset: u64,
        /// The expected value.
        expected: u64,
        /// The new value.
        swap: u64,
    },
    /// To a storing node: set bytes to a value (section 7.1).
    Set {
        /// The region.
        owner: LmrId,
        /// The extent.
        extent: u16,
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        length: u32,
        /// The value.
        value: u8,
    },
    /// To a storing node: copy bytes to another region (section 7.1). The node maps the target for the principal.
    Copy {
        /// The region.
        owner: LmrId,
        /// The extent.
        extent: u16,
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        length: u32,
        /// The region to copy to.
        to: LmrId,
        /// The offset there, in bytes.
        target: u64,
        /// Whether to begin at the end: for ranges that overlap.
        backwards: bool,
        /// The principal, for which its node vouches.
        principal: Principal,
        /// The priority, as far as the share of the principal at the storing node permits it.
        priority: Priority,
    },
    /// To a record's node: list regions with a name to which a principal has a right.
    List {
        /// The principal, for which its node vouches.
        principal: Principal,
        /// The place to begin at: 0, or [`Listing::next`].
        from: u32,
    },
    /// To a name's home: these regions of records of `node` have these names, of which this is the home in the view of
    /// this epoch. Answer: [`Reply::Flag`], which is false if the home has another view, or [`Reply::Known`].
    Rehome {
        /// The node that keeps the records.
        node: NodeId,
        /// The view of that node.
        epoch: Epoch,
        /// The names, at most [`NAMES_AT_ONCE`].
        names: Vec<(Name, LmrId)>,
        /// These are the last ones.
        is_last: bool,
    },
    /// Does a process of the node serve this service? Answer: [`Reply::Flag`].
    Serves {
        /// The service.
        service: Name,
    },
}

/// The most regions in one [`Request::Known`].
pub const IDS_AT_ONCE: usize = 256;

/// The reason why a node refuses a request. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The record or the name says no.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The node has no memory left.
    #[error(
        "the node has no {wanted} bytes left: free regions there, choose another node, or give it more memory"
    )]
    OutOfMemory {
        /// The bytes requested.
        wanted: u64,
    },
    /// The place does not belong to the region (any more).
    #[error("the place does not belong to the region: it was freed")]
    NoPlace,
    /// The region to copy to cannot be written; some bytes may have been copied.
    #[error(
        "the region to copy to cannot be written by the node that stores the source: see the log of that node"
    )]
    Target,
    /// The node could not understand the request.
    #[error("the node did not understand the request: bring both nodes to the same release")]
    Malformed,
    /// The node is not the home of the name in its view, or has not heard all of its names since its view changed. Ask
    /// again.
    #[error("the nodes have changed, and names find new homes (view {epoch}): try again")]
    Rehoming {
        /// The number of the node's view.
        epoch: u64,
    },
    /// The region cannot be moved or freed, since these go on to use it. It stays where it is, and as it is.
    #[error("the region stays as it is, since it is in use by {0}: have them let it go, and try again")]
    InUse(Holders),
    /// The bytes of a region could not be copied. It stays where it is.
    #[error("the region stays where it is, since its bytes could not be copied: see the log of its node")]
    NotCopied,
    /// The right is revoked: nobody maps the region with it any more. Operations that had begun at a node that does not
    /// answer may be carried out still; the node is asked until it has stopped or ended.
    #[error("the right is revoked, and operations that {0} had begun may go on until it answers or ends")]
    Drains(NodeId),
    /// The free has begun and waits for nodes that do not answer; it goes on by itself. The memory is kept until then.
    #[error("the region is freed, and its memory is kept until {0} answers or ends")]
    Waits(NodeId),
    /// Another node orders the changes of the record.
    #[error("{0} orders the changes of the region: ask it")]
    Elsewhere(NodeId),
    /// The change is made. A node that keeps the record, too, has not heard of it; it is told until it answers or ends.
    #[error(
        "the region is changed, and {0}, which keeps its record, too, does not answer: the change is lost if others end first"
    )]
    Untold(NodeId),
}

/// The answer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// Regions that have lost their names to others: [`Request::Rehome`].
    Known(Vec<LmrId>),
    /// Regions that a node knows, and the random number of its process: [`Request::Known`].
    KnownIn {
        /// The number of the process.
        life: u64,
        /// The regions.
        ids: Vec<LmrId>,
    },
    /// Yes or no: [`Request::Exists`], [`Request::Stop`] and [`Request::Restrict`] (drained), [`Request::Fence`]
    /// (fenced), [`Request::Serves`], [`Request::Rehome`] (taken).
    Flag(bool),
    /// The region of a name, and the nodes that keep its record.
    Found(LmrId, Keepers),
    /// A record has been taken over by a node that has mapped the region for these: [`Request::Keep`].
    Kept(Vec<NodeId>),
    /// A record: [`Request::Record`].
    Record(Vec<u8>),
    /// The old value of a word.
    Old(u64),
    /// Memory for a region.
    Allocated(Layout),
    /// The region is mapped.
    Mapped(Mapping),
    /// The holders that have not let go: [`Request::LetGo`].
    Held(Holders),
    /// The rights that a principal has left: [`Request::Revoke`].
    Left(Rights),
    /// A part of a list of regions.
    Listed(Listing),
    /// The request is refused.
    Refused(Refusal),
}

impl Request {
    /// Returns whether the request may take long, or wait for other nodes: it is then a [`SLOW_CALL`].
    pub fn is_slow(&self) -> bool {
        matches!(
            self,
            Request::Free { .. }
                | Request::Revoke { .. }
                | Request::Move { .. }
                | Request::MoveAway { .. }
                | Request::Allocate { .. }
                | Request::Ring { .. }
                | Request::Set { .. }
                | Request::Copy { .. }
                | Request::List { .. }
                | Request::Grant { .. }
                | Request::Lease { .. }
                | Request::AddKeeper { .. }
        )
    }

    /// Encodes the request.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Request::Claim { name, id, epoch } if *epoch == Epoch::default() => {
                Writer::new(1).id(*id).text(name.as_bytes())
            }
            Request::Claim { name, id, epoch } => Writer::new(20).id(*id).epoch(*epoch).text(name.as_bytes()),
            Request::Lookup { name } => Writer::new(2).text(name.as_bytes()),
            Request::Forget { name, id } => Writer::new(3).id(*id).text(name.as_bytes()),
            Request::Exists { id } => Writer::new(4).id(*id),
            Request::LetGo { id } => Writer::new(23).id(*id),
            Request::Allocate { owner, length, piece } => Writer::new(5).id(*owner).u64(*length).u32(*piece),
            Request::Ring { owner, length, least } => Writer::new(35).id(*owner).u64(*length).u64(*least),
            Request::Release { owner } => Writer::new(6).id(*owner),
            Request::Map { id, wanted, mapper, principal } => {
                Writer::new(7).id(*id).u8(wanted.bits()).u16(mapper.0).text(principal.as_str().as_bytes())
            }
            Request::Unmap { id, mapper } => Writer::new(8).id(*id).u16(mapper.0),
            Request::Grant { id, rights, by, to } => {
                Writer::new(9).id(*id).rights(*rights).text(by.as_str().as_bytes()).grantee(to)
            }
            Request::Revoke { id, rights, by, from } => {
                Writer::new(24).id(*id).rights(*rights).text(by.as_str().as_bytes()).grantee(from)
            }
            Request::Restrict { epoch, id, grants } => Writer::new(25).epoch(*epoch).id(*id).grants(grants),
            Request::AddKeeper { id, node } => Writer::new(29).id(*id).u16(node.0),
            Request::Keep { id, version, epoch, from, is_new, record } => {
                let writer = Writer::new(30).id(*id).u64(*version).epoch(*epoch).u16(from.0);
                writer.u8(u8::from(*is_new)).blob(record)
            }
            Request::Record { epoch, id } => Writer::new(31).epoch(*epoch).id(*id),
            Request::Unkeep { id } => Writer::new(32).id(*id),
            Request::Lease { id, by, length: Some(length) } => {
                Writer::new(27).id(*id).u64(*length).text(by.as_str().as_bytes())
            }
            Request::Lease { id, by, length: None } => Writer::new(28).id(*id).text(by.as_str().as_bytes()),
            Request::Free { id, by } => Writer::new(10).id(*id).text(by.as_str().as_bytes()),
            Request::Stop { epoch, id, moves } => {
                Writer::new(if *moves { 21 } else { 11 }).epoch(*epoch).id(*id)
            }
            Request::Move { id, by, to } => Writer::new(22).id(*id).u16(to.0).text(by.as_str().as_bytes()),
            Request::MoveAway { id, from, to } => Writer::new(26).id(*id).u16(from.0).u16(to.0),
            Request::Fence { id, mapper } => Writer::new(12).id(*id).u16(mapper.0),
            Request::FetchAdd { owner, extent, offset, add } => {
                Writer::new(13).id(*owner).u16(*extent).u64(*offset).u64(*add)
            }
            Request::CompareSwap { owner, extent, offset, expected, swap } => {
                Writer::new(14).id(*owner).u16(*extent).u64(*offset).u64(*expected).u64(*swap)
            }
            Request::Set { owner, extent, offset, length, value } => {
                Writer::new(15).id(*owner).u16(*extent).u64(*offset).u32(*length).u8(*value)
            }
            Request::Copy { owner, extent, offset, length, to, target, backwards, principal, priority } => {
                let writer = Writer::new(16).id(*owner).u16(*extent).u64(*offset).u32(*length).id(*to);
                let writer = writer.u64(*target).u8(u8::from(*backwards)).priority(*priority);
                writer.text(principal.as_str().as_bytes())
            }
            Request::List { principal, from } => {
                Writer::new(17).text(principal.as_str().as_bytes()).u32(*from)
            }
            Request::Serves { service } => Writer::new(18).text(service.as_bytes()),
            Request::Stores { epoch, owner } => Writer::new(33).epoch(*epoch).id(*owner),
            Request::Known { epoch, by_handle, stops, ids } => {
                Writer::new(34).epoch(*epoch).u8(u8::from(*by_handle)).u8(u8::from(*stops)).ids(ids)
            }
            Request::Rehome { node, epoch, names, is_last } => {
                let mut writer = Writer::new(19).u16(node.0).epoch(*epoch).u8(u8::from(*is_last));
                writer = writer.u16(names.len() as u16);
                for (name, id) in names {
                    writer = writer.id(*id).text(name.as_bytes());
                }
                writer
            }
        }
        .0
    }

    /// Parses a request.
    pub fn parse(bytes: &[u8]) -> Result<Request, Malformed> {
        let mut reader = Reader(bytes);
        let kind = reader.u8()?;
        let request = match kind {
            1 | 3 => {
                let (id, name) = (reader.id()?, reader.name()?);
                match kind {
                    1 => Request::Claim { name, id, epoch: Epoch::default() },
                    _ => Request::Forget { name, id },
                }
            }
            2 => Request::Lookup { name: reader.name()? },
            4 => Request::Exists { id: reader.id()? },
            23 => Request::LetGo { id: reader.id()? },
            5 => Request::Allocate { owner: reader.id()?, length: reader.u64()?, piece: reader.u32()? },
            35 => Request::Ring { owner: reader.id()?, length: reader.u64()?, least: reader.u64()? },
            6 => Request::Release { owner: reader.id()? },
            7 => {
                let (id, wanted, mapper) = (reader.id()?, reader.rights()?, reader.node()?);
                Request::Map { id, wanted, mapper, principal: reader.principal()? }
            }
            8 => Request::Unmap { id: reader.id()?, mapper: reader.node()? },
            9 | 24 => {
                let (id, rights, by) = (reader.id()?, reader.rights()?, reader.principal()?);
                match (kind, reader.grantee()?) {
                    (9, to) => Request::Grant { id, rights, by, to },
                    (_, from) => Request::Revoke { id, rights, by, from },
                }
            }
            25 => Request::Restrict { epoch: reader.epoch()?, id: reader.id()?, grants: reader.grants()? },
            29 => Request::AddKeeper { id: reader.id()?, node: reader.node()? },
            30 => {
                let (id, version, epoch) = (reader.id()?, reader.u64()?, reader.epoch()?);
                let (from, is_new, record) = (reader.node()?, reader.flag()?, reader.blob()?.to_vec());
                Request::Keep { id, version, epoch, from, is_new, record }
            }
            31 => Request::Record { epoch: reader.epoch()?, id: reader.id()? },
            32 => Request::Unkeep { id: reader.id()? },
            27 | 28 => {
                let id = reader.id()?;
                let length = if kind == 27 { Some(reader.u64()?) } else { None };
                Request::Lease { id, by: reader.principal()?, length }
            }
            10 => Request::Free { id: reader.id()?, by: reader.principal()? },
            11 | 21 => Request::Stop { epoch: reader.epoch()?, id: reader.id()?, moves: kind == 21 },
            22 => {
                let (id, to) = (reader.id()?, reader.node()?);
                Request::Move { id, by: reader.principal()?, to }
            }
            26 => Request::MoveAway { id: reader.id()?, from: reader.node()?, to: reader.node()? },
            12 => Request::Fence { id: reader.id()?, mapper: reader.node()? },
            13 => {
                let (owner, extent, offset) = (reader.id()?, reader.u16()?, reader.u64()?);
                Request::FetchAdd { owner, extent, offset, add: reader.u64()? }
            }
            14 => {
                let (owner, extent, offset) = (reader.id()?, reader.u16()?, reader.u64()?);
                Request::CompareSwap { owner, extent, offset, expected: reader.u64()?, swap: reader.u64()? }
            }
            15 => {
                let (owner, extent, offset) = (reader.id()?, reader.u16()?, reader.u64()?);
                Request::Set { owner, extent, offset, length: reader.u32()?, value: reader.u8()? }
            }
            16 => {
                let (owner, extent, offset) = (reader.id()?, reader.u16()?, reader.u64()?);
                let (length, to, target) = (reader.u32()?, reader.id()?, reader.u64()?);
                let (backwards, priority, principal) =
                    (reader.flag()?, reader.priority()?, reader.principal()?);
                Request::Copy { owner, extent, offset, length, to, target, backwards, principal, priority }
            }
            17 => Request::List { principal: reader.principal()?, from: reader.u32()? },
            18 => Request::Serves { service: reader.name()? },
            33 => Request::Stores { epoch: reader.epoch()?, owner: reader.id()? },
            34 => {
                let (epoch, by_handle, stops) = (reader.epoch()?, reader.flag()?, reader.flag()?);
                Request::Known { epoch, by_handle, stops, ids: reader.ids()? }
            }
            19 => {
                let (node, epoch, is_last) = (reader.node()?, reader.epoch()?, reader.flag()?);
                let count = usize::from(reader.u16()?);
                if count > NAMES_AT_ONCE || count > reader.0.len() / SHORTEST_NAMED {
                    return Err(Malformed);
                }
                let mut names = Vec::with_capacity(count);
                for _ in 0..count {
                    let id = reader.id()?;
                    names.push((reader.name()?, id));
                }
                Request::Rehome { node, epoch, names, is_last }
            }
            20 => {
                let (id, epoch) = (reader.id()?, reader.epoch()?);
                if epoch == Epoch::default() {
                    return Err(Malformed);
                }
                Request::Claim { name: reader.name()?, id, epoch }
            }
            _ => return Err(Malformed),
        };
        reader.end(request)
    }
}

impl Reply {
    /// Encodes the reply.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Done => Writer::new(0),
            Reply::Flag(flag) => Writer::new(1).u8(u8::from(*flag)),
            Reply::Found(id, keepers) => Writer::new(2).id(*id).keepers(keepers),
            Reply::Kept(mappers) => {
                let writer = Writer::new(9).u16(mappers.len() as u16);
                mappers.iter().fold(writer, |writer, mapper| writer.u16(mapper.0))
            }
            Reply::Record(bytes) => Writer::new(10).blob(bytes),
            Reply::Known(ids) => Writer::new(11).ids(ids),
            Reply::KnownIn { life, ids } => Writer::new(12).u64(*life).ids(ids),
            Reply::Old(value) => Writer::new(3).u64(*value),
            Reply::Allocated(layout) => Writer::new(4).layout(layout),
            Reply::Mapped(mapping) => {
                Writer::new(5).u8(mapping.rights.bits()).id(mapping.id).layout(&mapping.layout)
            }
            Reply::Listed(listing) => Writer::new(6).listing(listing),
            Reply::Held(holders) => holders.write(Writer::new(7)),
            Reply::Left(rights) => Writer::new(8).rights(*rights),
            Reply::Refused(refusal) => {
                let writer = Writer::new(255);
                match refusal {
                    Refusal::Record(RecordError::NoSuch) => writer.u8(1),
                    Refusal::Record(RecordError::Denied { wanted, has }) => {
                        writer.u8(2).u8(wanted.bits()).u8(has.bits())
                    }
                    Refusal::Record(RecordError::Grant(GrantError::NotMaster)) => writer.u8(3),
                    Refusal::Record(RecordError::Grant(GrantError::Exceeds { has, grants })) => {
                        writer.u8(4).u8(has.bits()).u8(grants.bits())
                    }
                    Refusal::Record(RecordError::Grant(GrantError::TooMany)) => writer.u8(5),
                    Refusal::Record(RecordError::Grant(GrantError::LastMaster)) => writer.u8(20),
                    Refusal::Record(RecordError::Taken) => writer.u8(6),
                    Refusal::Record(RecordError::Full) => writer.u8(7),
                    Refusal::Record(RecordError::Named) => writer.u8(15),
                    Refusal::Record(RecordError::Moving) => writer.u8(16),
                    Refusal::Record(RecordError::NoName) => writer.u8(17),
                    Refusal::InUse(holders) => holders.write(writer.u8(18)),
                    Refusal::NotCopied => writer.u8(19),
                    Refusal::OutOfMemory { wanted } => writer.u8(8).u64(*wanted),
                    Refusal::NoPlace => writer.u8(9),
                    Refusal::Malformed => writer.u8(10),
                    Refusal::Waits(node) => writer.u8(11).u16(node.0),
                    Refusal::Drains(node) => writer.u8(21).u16(node.0),
                    Refusal::Record(RecordError::Unsettled) => writer.u8(22),
                    Refusal::Elsewhere(node) => writer.u8(23).u16(node.0),
                    Refusal::Untold(node) => writer.u8(24).u16(node.0),
                    Refusal::Target => writer.u8(12),
                    Refusal::Rehoming { epoch } => writer.u8(14).u64(*epoch),
                    Refusal::Record(RecordError::Quota { has, quota }) => writer.u8(13).u64(*has).u64(*quota),
                }
            }
        }
        .0
    }

    /// Parses a reply.
    pub fn parse(bytes: &[u8]) -> Result<Reply, Malformed> {
        let mut reader = Reader(bytes);
        let reply = match reader.u8()? {
            0 => Reply::Done,
            1 => Reply::Flag(reader.flag()?),
            2 => Reply::Found(reader.id()?, reader.keepers()?),
            9 => {
                let count = usize::from(reader.u16()?);
                Reply::Kept((0..count).map(|_| reader.node()).collect::<Result<_, _>>()?)
            }
            10 => Reply::Record(reader.blob()?.to_vec()),
            11 => Reply::Known(reader.ids()?),
            12 => Reply::KnownIn { life: reader.u64()?, ids: reader.ids()? },
            3 => Reply::Old(reader.u64()?),
            4 => Reply::Allocated(reader.layout()?),
            5 => {
                let (rights, id) = (reader.rights()?, reader.id()?);
                Reply::Mapped(Mapping { rights, layout: reader.layout()?, id })
            }
            6 => Reply::Listed(reader.listing()?),
            7 => Reply::Held(Holders::read(&mut reader)?),
            8 => Reply::Left(reader.rights()?),
            255 => Reply::Refused(match reader.u8()? {
                1 => RecordError::NoSuch.into(),
                2 => RecordError::Denied { wanted: reader.rights()?, has: reader.rights()? }.into(),
                3 => RecordError::from(GrantError::NotMaster).into(),
                4 => {
                    let (has, grants) = (reader.rights()?, reader.rights()?);
                    RecordError::from(GrantError::Exceeds { has, grants }).into()
                }
                5 => RecordError::from(GrantError::TooMany).into(),
                20 => RecordError::from(GrantError::LastMaster).into(),
                6 => RecordError::Taken.into(),
                7 => RecordError::Full.into(),
                15 => RecordError::Named.into(),
                16 => RecordError::Moving.into(),
                17 => RecordError::NoName.into(),
                18 => Refusal::InUse(Holders::read(&mut reader)?),
                19 => Refusal::NotCopied,
                8 => Refusal::OutOfMemory { wanted: reader.u64()? },
                9 => Refusal::NoPlace,
                10 => Refusal::Malformed,
                11 => Refusal::Waits(reader.node()?),
                21 => Refusal::Drains(reader.node()?),
                22 => RecordError::Unsettled.into(),
                23 => Refusal::Elsewhere(reader.node()?),
                24 => Refusal::Untold(reader.node()?),
                12 => Refusal::Target,
                14 => Refusal::Rehoming { epoch: reader.u64()? },
                13 => RecordError::Quota { has: reader.u64()?, quota: reader.u64()? }.into(),
                _ => return Err(Malformed),
            }),
            _ => return Err(Malformed),
        };
        reader.end(reply)
    }
}

#[cfg(test)]
mod tests;
