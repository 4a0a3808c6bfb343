//! The messages between a process and the node of its host, which travel as calls of the RPC engine: the function
//! number says which request it is, the payload has its fields. Parsing is total, as that of the messages between nodes.
//!
//! A request that succeeds is answered with the payload that its documentation names. A refusal is an error of the
//! application: [`REFUSED`] with a [`Problem`], or [`ELSEWHERE`].

mod direct;
pub mod list;
pub mod lock;
pub mod operator;
mod problem;
pub mod service;
mod status;

pub use direct::{DirectPart, Directed, NoDirect, direct_name};
pub use operator::{HandedOver, Holdings, Lent, LentRegion};
pub use problem::Problem;
pub use status::{MAX_LISTED_PROCESSES, MemberStatus, NodeStatus, Pages, PriorityStatus, ProcessStatus, Ran};

use self::list::ListedOperation;
use self::operator::{FREE_NAMED, HAND_OVER, HELD, LEAVE, LENT, MOVE_AWAY, OperatorRequest};
use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::name::Name;
use crate::qos::Priority;
use crate::record::Listing;
use crate::rights::{Grantee, MAX_GRANTS, Rights};

/// The name of the service that a node offers to processes.
pub const SERVICE: &str = "dunlin.tier.process";
/// The environment variable that names the address of this host's node for processes.
pub const NODE_VARIABLE: &str = "DUNLIN_NODE";

/// The environment variable that names the file with the token of a process: the token names its principal.
pub const TOKEN_VARIABLE: &str = "DUNLIN_NODE_TOKEN_FILE";

/// Returns the name of a user's node among the addresses of shared memory, where [`NODE_VARIABLE`] does not say another.
pub fn default_name(user: u32) -> String {
    format!("dunlin-node-{user}")
}

/// Returns the name of the address at which a node takes calls of the engine for any service (`node:SERVICE`), from the
/// name of its address for processes.
pub fn gateway_name(name: &str) -> String {
    format!("{name}-calls")
}

/// The error of the application that carries a [`Problem`].
pub const REFUSED: u16 = 1;
/// The error of the application without a payload: the bytes are not all on this node, so ask the function that may
/// wait for other nodes.
pub const ELSEWHERE: u16 = 2;
/// The most bytes that one request of [`READ_HERE`] or [`WRITE_HERE`] moves: it keeps the node's worker for some
/// microseconds.
pub const MAX_HERE: u32 = 64 << 10;
/// The most bytes that one request of [`READ`] or [`WRITE`] moves.
pub const MAX_MOVED: u32 = 256 << 10;
/// The most bytes that one request of [`MEMSET`], [`COPY`], [`READ_INTO`] or [`WRITE_FROM`] changes.
pub const MAX_CHANGED: u32 = 4 << 20;
/// The most nodes that a region is spread over by one request.
pub const MAX_STORES: usize = 64;

/// Joins the connection to a process. Answer: [`Attached`].
pub const ATTACH: u16 = 1;
/// Reads bytes; may wait for other nodes. Answer: the bytes.
pub const READ: u16 = 2;
/// Writes bytes; may wait for other nodes.
pub const WRITE: u16 = 3;
/// As [`READ`], and only bytes that this node stores.
pub const READ_HERE: u16 = 4;
/// As [`WRITE`], and only bytes that this node stores.
pub const WRITE_HERE: u16 = 5;
/// Adds to a word. Answer: the old value, 8 bytes.
pub const FETCH_ADD: u16 = 6;
/// Compares a word and swaps it. Answer: the old value, 8 bytes.
pub const COMPARE_SWAP: u16 = 7;
/// Sets bytes to a value.
pub const MEMSET: u16 = 8;
/// Copies bytes between regions.
pub const COPY: u16 = 9;
/// Makes a region. Answer: [`Opened`].
pub const MALLOC: u16 = 10;
/// Maps a region. Answer: [`Opened`].
pub const MAP: u16 = 11;
/// Closes a handle.
pub const UNMAP: u16 = 12;
/// Frees a region for all.
pub const FREE: u16 = 13;
/// Grants rights.
pub const GRANT: u16 = 14;
/// Describes the node. Answer: [`NodeStatus`].
pub const STATUS: u16 = 15;
/// Lists regions with a name. Answer: a [`Listing`].
pub const LIST: u16 = 16;
/// Runs a list of operations on bytes; may wait for other nodes. Answer: [`list::encode_outcomes`].
pub const RUN: u16 = 29;
/// Writes bytes, and then a word. May wait for other nodes.
pub const WRITE_NOTIFY: u16 = 30;

/// Gives a region without a name its name and grants. Answer: a byte, which is 0 if its bytes are on other nodes than the
/// request says, and nothing was changed.
pub const PUBLISH: u16 = 32;

/// Moves a region with a name to the memory of another node.
pub const MOVE: u16 = 33;

/// Maps a region into the process. Answer: [`Directed`].
pub const DIRECT: u16 = 34;
/// Ends a direct mapping.
pub const LET_GO: u16 = 35;

/// As [`READ`], into a buffer of the process.
pub const READ_INTO: u16 = 36;
/// As [`WRITE`], from a buffer of the process.
pub const WRITE_FROM: u16 = 37;
/// Makes a buffer: a region without a name, in memory of this node that belongs to the process alone. Answer: [`Opened`].
pub const BUFFER: u16 = 38;

/// Takes rights away. Answer: a byte, the [bits](Rights::bits) of the rights that are left.
pub const REVOKE: u16 = 39;

/// Gives a region a lease that begins now, or takes it away.
pub const LEASE: u16 = 44;

/// The number that joins further connections to a process. Only that process knows it.
pub type Secret = [u8; 16];

/// A request of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessRequest<'a> {
    /// [`ATTACH`]: a new process, or another connection of one.
    Attach {
        /// The process to join; `None` for a new one.
        secret: Option<Secret>,
        /// The priority of the process; `None` for the highest one that its principal may have, and for that of the
        /// process that is joined.
        priority: Option<Priority>,
    },
    /// [`READ`] or [`READ_HERE`].
    Read {
        /// The priority.
        priority: Priority,
        /// The handle.
        handle: u64,
        /// The offset in bytes.
        offset: u64,
        /// The number of bytes.
        length: u32,
    },
    /// [`WRITE`] or [`WRITE_HERE`].
    Write {
        /// The priority.
        priority: Priority,
        /// The handle.
        handle: u64,
        /// The offset in bytes.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// [`READ_INTO`].
    ReadInto {
        /// The priority.
        priority: Priority,
        /// The handle.
        handle: u64,
        /// The offset in bytes.
        offset: u64,
        /// The number of bytes.
        length: u32,
        /// The handle of the buffer that gets the bytes.
        buffer: u64,
        /// The offset in the buffer, in bytes.
        at: u64,
    },
    /// [`WRITE_FROM`].
    WriteFrom {
        /// The priority.
        priority: Priority,
        /// The handle.
        handle: u64,
        /// The offset in bytes.
        offset: u64,
        /// The number of bytes.
        length: u32,
        /// The handle of the buffer that has the bytes.
        buffer: u64,
        /// The offset in the buffer, in bytes.
        at: u64,
    },
    /// [`RUN`].
    Run {
        /// The priority.
        priority: Priority,
        /// The operations, at most [`list::MAX_LISTED`].
        operations: Vec<ListedOperation<'a>>,
    },
    /// [`WRITE_NOTIFY`].
    WriteNotify {
        /// The priority.
        priority: Priority,
        /// The handle.
        handle: u64,
        /// The offset of the bytes.
        offset: u64,
        /// The offset of the word in bytes.
        word_offset: u64,
        /// The word.
        value: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// [`FETCH_ADD`].
    FetchAdd {
        /// The priority.
        priority: Priority,
        /// The handle.
        handle: u64,
        /// The offset in bytes.
        offset: u64,
        /// The addend.
        add: u64,
    },
    /// [`COMPARE_SWAP`].
    CompareSwap {
        /// The priority.
        priority: Priority,
        /// The handle.
        handle: u64,
        /// The offset in bytes.
        offset: u64,
        /// The expected value.
        expected: u64,
        /// The new value.
        swap: u64,
    },
    /// [`MEMSET`].
    Set {
        /// The handle.
        handle: u64,
        /// The offset in bytes.
        offset: u64,
        /// The number of bytes.
        length: u32,
        /// The value.
        value: u8,
    },
    /// [`COPY`].
    Copy {
        /// The handle of the source.
        handle: u64,
        /// The offset in the source, in bytes.
        offset: u64,
        /// The number of bytes.
        length: u32,
        /// The handle of the target.
        to: u64,
        /// The offset in the target, in bytes.
        target: u64,
    },
    /// [`MALLOC`].
    Malloc {
        /// The length in bytes.
        length: u64,
        /// The names of the nodes that store the region, in turns; none for this node.
        nodes: Vec<String>,
        /// Its name, if it has one.
        name: Option<Name>,
        /// Grants besides those of the creator.
        grants: Vec<(Grantee, Rights)>,
        /// Its lease in nanoseconds, if it has one.
        lease: Option<u64>,
        /// Processes of the creator's user map it directly.
        is_direct: bool,
    },
    /// [`BUFFER`].
    Buffer {
        /// The length in bytes.
        length: u64,
    },
    /// [`PUBLISH`].
    Publish {
        /// The handle.
        handle: u64,
        /// The names of the nodes that have to store the region; none for any.
        nodes: Vec<String>,
        /// The name.
        name: Name,
        /// Grants besides those that it has.
        grants: Vec<(Grantee, Rights)>,
        /// Its lease in nanoseconds, if it has one.
        lease: Option<u64>,
    },
    /// [`MAP`].
    Map {
        /// The name.
        name: Name,
        /// The rights asked for.
        rights: Rights,
    },
    /// [`DIRECT`].
    Direct {
        /// The handle.
        handle: u64,
    },
    /// [`LET_GO`].
    LetGo {
        /// The number of the mapping.
        number: u64,
    },
    /// [`UNMAP`].
    Unmap {
        /// The handle.
        handle: u64,
    },
    /// [`FREE`].
    Free {
        /// The handle.
        handle: u64,
    },
    /// [`MOVE`].
    Move {
        /// The handle.
        handle: u64,
        /// The name of the node that shall store the region.
        node: String,
    },
    /// [`GRANT`].
    Grant {
        /// The handle.
        handle: u64,
        /// The receiver.
        to: Grantee,
        /// The rights.
        rights: Rights,
    },
    /// [`REVOKE`].
    Revoke {
        /// The handle.
        handle: u64,
        /// The principal that loses them.
        from: Grantee,
        /// The rights.
        rights: Rights,
    },
    /// [`LEASE`].
    Lease {
        /// The handle.
        handle: u64,
        /// The lease in nanoseconds; `None` for none.
        length: Option<u64>,
    },
    /// [`STATUS`].
    Status,
    /// A request of the user who runs the node.
    Operate(OperatorRequest),
    /// [`LIST`].
    List {
        /// The name of the node whose regions are listed; empty for this node.
        node: String,
        /// 0, or [`Listing::next`].
        from: u32,
    },
}

fn option(flag: bool) -> u8 {
    u8::from(flag)
}

impl<'a> ProcessRequest<'a> {
    /// Returns the function number. `Read` and `Write` have two: this is the one that may wait for other nodes.
    pub fn function(&self) -> u16 {
        match self {
            ProcessRequest::Attach { .. } => ATTACH,
            ProcessRequest::Read { .. } => READ,
            ProcessRequest::Write { .. } => WRITE,
            ProcessRequest::ReadInto { .. } => READ_INTO,
            ProcessRequest::WriteFrom { .. } => WRITE_FROM,
            ProcessRequest::Run { .. } => RUN,
            ProcessRequest::WriteNotify { .. } => WRITE_NOTIFY,
            ProcessRequest::FetchAdd { .. } => FETCH_ADD,
            ProcessRequest::CompareSwap { .. } => COMPARE_SWAP,
            ProcessRequest::Set { .. } => MEMSET,
            ProcessRequest::Copy { .. } => COPY,
            ProcessRequest::Malloc { .. } => MALLOC,
            ProcessRequest::Buffer { .. } => BUFFER,
            ProcessRequest::Publish { .. } => PUBLISH,
            ProcessRequest::Map { .. } => MAP,
            ProcessRequest::Direct { .. } => DIRECT,
            ProcessRequest::LetGo { .. } => LET_GO,
            ProcessRequest::Unmap { .. } => UNMAP,
            ProcessRequest::Free { .. } => FREE,
            ProcessRequest::Move { .. } => MOVE,
            ProcessRequest::Grant { .. } => GRANT,
            ProcessRequest::Revoke { .. } => REVOKE,
            ProcessRequest::Lease { .. } => LEASE,
            ProcessRequest::Status => STATUS,
            ProcessRequest::Operate(request) => request.function(),
            ProcessRequest::List { .. } => LIST,
        }
    }

    /// Returns the number of bytes that it reads, writes, sets or copies.
    pub fn moves(&self) -> u64 {
        match self {
            ProcessRequest::Read { length, .. }
            | ProcessRequest::ReadInto { length, .. }
            | ProcessRequest::WriteFrom { length, .. }
            | ProcessRequest::Set { length, .. }
            | ProcessRequest::Copy { length, .. } => u64::from(*length),
            ProcessRequest::Write { bytes, .. } => bytes.len() as u64,
            ProcessRequest::WriteNotify { bytes, .. } => bytes.len() as u64 + 8,
            ProcessRequest::FetchAdd { .. } | ProcessRequest::CompareSwap { .. } => 8,
            ProcessRequest::Run { operations, .. } => operations.iter().map(ListedOperation::moves).sum(),
            _ => 0,
        }
    }

    /// Returns the priority, of a request that has one.
    pub fn priority(&self) -> Option<Priority> {
        match self {
            ProcessRequest::Read { priority, .. }
            | ProcessRequest::Write { priority, .. }
            | ProcessRequest::ReadInto { priority, .. }
            | ProcessRequest::WriteFrom { priority, .. }
            | ProcessRequest::WriteNotify { priority, .. }
            | ProcessRequest::FetchAdd { priority, .. }
            | ProcessRequest::CompareSwap { priority, .. }
            | ProcessRequest::Run { priority, .. } => Some(*priority),
            ProcessRequest::Attach { priority, .. } => *priority,
            _ => None,
        }
    }

    /// Encodes the payload into `bytes`, whose content is replaced: a caller that keeps them allocates nothing.
    pub fn encode_into(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        let writer = Writer(std::mem::take(bytes));
        let writer = match self {
            ProcessRequest::Attach { secret, priority } => {
                let mut writer = writer.u8(option(secret.is_some()));
                writer.0.extend_from_slice(&secret.unwrap_or_default());
                match priority {
                    Some(priority) => writer.u8(1).priority(*priority),
                    None => writer.u8(0),
                }
            }
            ProcessRequest::Read { priority, handle, offset, length } => {
                writer.priority(*priority).u64(*handle).u64(*offset).u32(*length)
            }
            ProcessRequest::Write { priority, handle, offset, bytes } => {
                let mut writer = writer.priority(*priority).u64(*handle).u64(*offset);
                writer.0.extend_from_slice(bytes);
                writer
            }
            ProcessRequest::ReadInto { priority, handle, offset, length, buffer, at }
            | ProcessRequest::WriteFrom { priority, handle, offset, length, buffer, at } => {
                let writer = writer.priority(*priority).u64(*handle).u64(*offset);
                writer.u32(*length).u64(*buffer).u64(*at)
            }
            ProcessRequest::Run { priority, operations } => {
                list::write(writer.priority(*priority), operations)
            }
            ProcessRequest::WriteNotify { priority, handle, offset, word_offset, value, bytes } => {
                let writer = writer.priority(*priority);
                let mut writer = writer.u64(*handle).u64(*offset).u64(*word_offset).u64(*value);
                writer.0.extend_from_slice(bytes);
                writer
            }
            ProcessRequest::FetchAdd { priority, handle, offset, add } => {
                writer.priority(*priority).u64(*handle).u64(*offset).u64(*add)
            }
            ProcessRequest::CompareSwap { priority, handle, offset, expected, swap } => {
                let writer = writer.priority(*priority);
                writer.u64(*handle).u64(*offset).u64(*expected).u64(*swap)
            }
            ProcessRequest::Set { handle, offset, length, value } => {
                writer.u64(*handle).u64(*offset).u32(*length).u8(*value)
            }
            ProcessRequest::Copy { handle, offset, length, to, target } => {
                writer.u64(*handle).u64(*offset).u32(*length).u64(*to).u64(*target)
            }
            ProcessRequest::Malloc { length, nodes, name, grants, lease, is_direct } => {
                let writer = writer.u64(*length).u8(option(*is_direct));
                description(writer, nodes, name.as_ref(), grants, *lease)
            }
            ProcessRequest::Publish { handle, nodes, name, grants, lease } => {
                description(writer.u64(*handle), nodes, Some(name), grants, *lease)
            }
            ProcessRequest::Map { name, rights } => writer.text(name.as_bytes()).rights(*rights),
            ProcessRequest::Unmap { handle: number }
            | ProcessRequest::Free { handle: number }
            | ProcessRequest::Direct { handle: number }
            | ProcessRequest::Buffer { length: number }
            | ProcessRequest::LetGo { number } => writer.u64(*number),
            ProcessRequest::Move { handle, node } => writer.u64(*handle).text(node.as_bytes()),
            ProcessRequest::Grant { handle, to, rights }
            | ProcessRequest::Revoke { handle, from: to, rights } => {
                writer.u64(*handle).grantee(to).rights(*rights)
            }
            ProcessRequest::Lease { handle, length } => leased(writer.u64(*handle), *length),
            ProcessRequest::Status => writer,
            ProcessRequest::Operate(request) => request.write(writer),
            ProcessRequest::List { node, from } => writer.text(node.as_bytes()).u32(*from),
        };
        *bytes = writer.0;
    }

    /// Parses the payload of a function.
    pub fn parse(function: u16, payload: &'a [u8]) -> Result<ProcessRequest<'a>, Malformed> {
        let mut reader = Reader(payload);
        let request = match function {
            ATTACH => {
                let (given, secret) = (reader.flag()?, reader.take()?);
                if !given && secret != Secret::default() {
                    return Err(Malformed);
                }
                let priority = if reader.flag()? { Some(reader.priority()?) } else { None };
                ProcessRequest::Attach { secret: given.then_some(secret), priority }
            }
            READ | READ_HERE => {
                let priority = reader.priority()?;
                let (handle, offset) = (reader.u64()?, reader.u64()?);
                ProcessRequest::Read { priority, handle, offset, length: reader.u32()? }
            }
            WRITE | WRITE_HERE => {
                let priority = reader.priority()?;
                let (handle, offset) = (reader.u64()?, reader.u64()?);
                return Ok(ProcessRequest::Write { priority, handle, offset, bytes: reader.0 });
            }
            READ_INTO | WRITE_FROM => {
                let priority = reader.priority()?;
                let (handle, offset, length) = (reader.u64()?, reader.u64()?, reader.u32()?);
                let (buffer, at) = (reader.u64()?, reader.u64()?);
                match function {
                    READ_INTO => ProcessRequest::ReadInto { priority, handle, offset, length, buffer, at },
                    _ => ProcessRequest::WriteFrom { priority, handle, offset, length, buffer, at },
                }
            }
            RUN => ProcessRequest::Run { priority: reader.priority()?, operations: list::read(&mut reader)? },
            WRITE_NOTIFY => {
                let priority = reader.priority()?;
                let (handle, offset, word_offset) = (reader.u64()?, reader.u64()?, reader.u64()?);
                let (value, bytes) = (reader.u64()?, reader.0);
                return Ok(ProcessRequest::WriteNotify {
                    priority,
                    handle,
                    offset,
                    word_offset,
                    value,
                    bytes,
                });
            }
            FETCH_ADD => {
                let priority = reader.priority()?;
                let (handle, offset) = (reader.u64()?, reader.u64()?);
                ProcessRequest::FetchAdd { priority, handle, offset, add: reader.u64()? }
            }
            COMPARE_SWAP => {
                let priority = reader.priority()?;
                let (handle, offset) = (reader.u64()?, reader.u64()?);
                ProcessRequest::CompareSwap {
                    priority,
                    handle,
                    offset,
                    expected: reader.u64()?,
                    swap: reader.u64()?,
                }
            }
            MEMSET => {
                let (handle, offset) = (reader.u64()?, reader.u64()?);
                ProcessRequest::Set { handle, offset, length: reader.u32()?, value: reader.u8()? }
            }
            COPY => {
                let (handle, offset, length) = (reader.u64()?, reader.u64()?, reader.u32()?);
                ProcessRequest::Copy { handle, offset, length, to: reader.u64()?, target: reader.u64()? }
            }
            MALLOC => {
                let (length, is_direct) = (reader.u64()?, reader.flag()?);
                let (nodes, name, grants, lease) = parse_description(&mut reader)?;
                ProcessRequest::Malloc { length, nodes, name, grants, lease, is_direct }
            }
            PUBLISH => {
                let handle = reader.u64()?;
                let (nodes, name, grants, lease) = parse_description(&mut reader)?;
                ProcessRequest::Publish { handle, nodes, name: name.ok_or(Malformed)?, grants, lease }
            }
            MAP => ProcessRequest::Map { name: reader.name()?, rights: reader.rights()? },
            DIRECT => ProcessRequest::Direct { handle: reader.u64()? },
            LET_GO => ProcessRequest::LetGo { number: reader.u64()? },
            BUFFER => ProcessRequest::Buffer { length: reader.u64()? },
            UNMAP => ProcessRequest::Unmap { handle: reader.u64()? },
            FREE => ProcessRequest::Free { handle: reader.u64()? },
            MOVE => ProcessRequest::Move { handle: reader.u64()?, node: reader.string()? },
            GRANT | REVOKE => {
                let (handle, who, rights) = (reader.u64()?, reader.grantee()?, reader.rights()?);
                match function {
                    GRANT => ProcessRequest::Grant { handle, to: who, rights },
                    _ => ProcessRequest::Revoke { handle, from: who, rights },
                }
            }
            LEASE => ProcessRequest::Lease { handle: reader.u64()?, length: parse_lease(&mut reader)? },
            STATUS => ProcessRequest::Status,
            LEAVE | FREE_NAMED | LENT | MOVE_AWAY | HELD | HAND_OVER => {
                ProcessRequest::Operate(OperatorRequest::read(function, &mut reader)?)
            }
            LIST => ProcessRequest::List { node: reader.string()?, from: reader.u32()? },
            _ => return Err(Malformed),
        };
        reader.end(request)
    }
}

fn leased(writer: Writer, lease: Option<u64>) -> Writer {
    lease.into_iter().fold(writer.u8(option(lease.is_some())), Writer::u64)
}

fn parse_lease(reader: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    if reader.flag()? { reader.u64().map(Some) } else { Ok(None) }
}

/// Writes the nodes, the name, the grants and the lease of a region.
fn description(
    mut writer: Writer,
    nodes: &[String],
    name: Option<&Name>,
    grants: &[(Grantee, Rights)],
    lease: Option<u64>,
) -> Writer {
    writer = writer.u8(nodes.len() as u8);
    for node in nodes {
        writer = writer.text(node.as_bytes());
    }
    writer = writer.text(name.map_or(&[][..], Name::as_bytes)).u8(grants.len() as u8);
    for (to, rights) in grants {
        writer = writer.grantee(to).rights(*rights);
    }
    leased(writer, lease)
}

/// The nodes, the name, the grants and the lease of a region.
pub type Description = (Vec<String>, Option<Name>, Vec<(Grantee, Rights)>, Option<u64>);

fn parse_description(reader: &mut Reader<'_>) -> Result<Description, Malformed> {
    let count = usize::from(reader.u8()?);
    if count > MAX_STORES {
        return Err(Malformed);
    }
    let nodes = (0..count).map(|_| reader.string()).collect::<Result<_, _>>()?;
    let name = match reader.text()? {
        [] => None,
        bytes => Some(Name::new(bytes).map_err(|_| Malformed)?),
    };
    let count = usize::from(reader.u8()?);
    if count > MAX_GRANTS {
        return Err(Malformed);
    }
    let grants = (0..count).map(|_| Ok((reader.grantee()?, reader.rights()?))).collect::<Result<_, _>>()?;
    Ok((nodes, name, grants, parse_lease(reader)?))
}

/// The answer to [`ATTACH`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The number that joins further connections.
    pub secret: Secret,
    /// The most requests of the process that the node serves at the same time.
    pub operations: u16,
    /// The name of the node.
    pub node: String,
    /// The principal that the node takes the process for.
    pub principal: String,
    /// A keeper holds the memory of the node: the next life of the node knows this process.
    pub is_kept: bool,
    /// The highest priority that the principal may have.
    pub highest: Priority,
}

impl Attached {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(self.secret.to_vec());
        writer = writer.u16(self.operations).text(self.node.as_bytes()).text(self.principal.as_bytes());
        writer.u8(self.is_kept.into()).priority(self.highest).0
    }

    /// Parses an answer.
    pub fn parse(bytes: &[u8]) -> Result<Attached, Malformed> {
        let mut reader = Reader(bytes);
        let (secret, operations) = (reader.take()?, reader.u16()?);
        let (node, principal, is_kept) = (reader.string()?, reader.string()?, reader.flag()?);
        let highest = reader.priority()?;
        reader.end(Attached { secret, operations, node, principal, is_kept, highest })
    }
}

/// The answer to [`MALLOC`] and [`MAP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The new handle.
    pub handle: u64,
    /// The length of the region in bytes.
    pub length: u64,
    /// The same number for all handles of one region; others may have it too. It says which of two ends of a copy
    /// comes first.
    pub region: u64,
}

impl Opened {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        Writer(Vec::with_capacity(24)).u64(self.handle).u64(self.length).u64(self.region).0
    }

    /// Parses an answer.
    pub fn parse(bytes: &[u8]) -> Result<Opened, Malformed> {
        let mut reader = Reader(bytes);
        let opened = Opened { handle: reader.u64()?, length: reader.u64()?, region: reader.u64()? };
        reader.end(opened)
    }
}

/// Encodes the answer to [`LIST`].
pub fn encode_listing(listing: &Listing) -> Vec<u8> {
    Writer(Vec::new()).listing(listing).0
}

/// Parses the answer to [`LIST`].
pub fn parse_listing(bytes: &[u8]) -> Result<Listing, Malformed> {
    let mut reader = Reader(bytes);
    let listing = reader.listing()?;
    reader.end(listing)
}

#[cfg(test)]
mod tests;
