//! The answer to [`STATUS`](super::STATUS): a node as its processes see it. Counters begin at 0 with the node and only
//! grow, so that two answers give rates.

use crate::codec::{Reader, Writer};
use crate::membership::MemberState;
use crate::message::Malformed;
use crate::qos::Priority;

/// An attached process in a [`NodeStatus`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The number of the attachment, which no other one of the node has.
    pub number: u64,
    /// Its process id; 0 if the kernel does not say.
    pub process: u32,
    /// Its principal.
    pub principal: String,
    /// The priority that it said when it attached: that of handles and calls without one of their own.
    pub priority: Priority,
    /// The number of its handles.
    pub handles: u32,
    /// The number of its connections.
    pub connections: u16,
    /// The regions that it has mapped directly. The node does not see operations on them.
    pub direct: u32,
    /// Counter: requests about memory that the node has begun.
    pub operations: u64,
    /// Counter: bytes that these requests read, write, set or copy.
    pub bytes: u64,
    /// Counter: calls to services.
    pub calls: u64,
    /// Requests about memory, and calls, that are under way, of all attachments of its process id.
    pub under_way: u32,
    /// Calls that wait until it receives them.
    pub queued: u32,
    /// Its registered functions.
    pub services: u16,
    /// Locks and barriers that it has or waits for, of all attachments of its process id.
    pub locks: u32,
}

impl ProcessStatus {
    fn write(&self, writer: Writer) -> Writer {
        let writer =
            writer.u64(self.number).u32(self.process).text(self.principal.as_bytes()).priority(self.priority);
        let writer = writer.u32(self.handles).u16(self.connections).u32(self.direct);
        let writer = writer.u64(self.operations).u64(self.bytes).u64(self.calls);
        writer.u32(self.under_way).u32(self.queued).u16(self.services).u32(self.locks)
    }

    fn read(reader: &mut Reader<'_>) -> Result<ProcessStatus, Malformed> {
        Ok(ProcessStatus {
            number: reader.u64()?,
            process: reader.u32()?,
            principal: reader.string()?,
            priority: reader.priority()?,
            handles: reader.u32()?,
            connections: reader.u16()?,
            direct: reader.u32()?,
            operations: reader.u64()?,
            bytes: reader.u64()?,
            calls: reader.u64()?,
            under_way: reader.u32()?,
            queued: reader.u32()?,
            services: reader.u16()?,
            locks: reader.u32()?,
        })
    }
}

/// The operations of one priority in a [`NodeStatus`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityStatus {
    /// Counter: reads, writes and atomics that the node has begun, its own ones included.
    pub operations: u64,
    /// Counter: their bytes.
    pub bytes: u64,
    /// Counter: calls to services.
    pub calls: u64,
    /// Operations that use a path to other nodes.
    pub under_way: u32,
    /// Operations that wait for a path.
    pub waiting: u32,
}

impl PriorityStatus {
    fn write(&self, writer: Writer) -> Writer {
        writer.u64(self.operations).u64(self.bytes).u64(self.calls).u32(self.under_way).u32(self.waiting)
    }

    fn read(reader: &mut Reader<'_>) -> Result<PriorityStatus, Malformed> {
        let (operations, bytes, calls) = (reader.u64()?, reader.u64()?, reader.u64()?);
        Ok(PriorityStatus { operations, bytes, calls, under_way: reader.u32()?, waiting: reader.u32()? })
    }
}

/// Counters of the places where operations of processes on bytes have run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// On the worker, and answered in the turn of their request.
    pub at_once: u64,
    /// On the worker, and answered in a later turn, since their completions took time.
    pub later: u64,
    /// In the pool, since they were long or had to wait.
    pub pool: u64,
}

/// A node in a [`NodeStatus`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// The address of its service.
    pub address: String,
    /// The number of the view with which this life of it joined.
    pub incarnation: u64,
    /// Its state.
    pub state: MemberState,
}

/// The most processes that a [`NodeStatus`] lists.
pub const MAX_LISTED_PROCESSES: usize = 1000;

/// The pages of a node's memory, as bytes by their kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Bytes in pages of the usual size, and bytes without a page yet.
    pub small: u64,
    /// Bytes in transparent huge pages, which the kernel has made by itself.
    pub transparent: u64,
    /// Bytes in reserved huge pages of 2 MiB.
    pub huge_2m: u64,
    /// Bytes in reserved huge pages of 1 GiB.
    pub huge_1g: u64,
}

impl Pages {
    /// Returns the bytes of all kinds.
    pub fn total(&self) -> u64 {
        [self.small, self.transparent, self.huge_2m, self.huge_1g].into_iter().fold(0, u64::saturating_add)
    }
}

/// The answer to [`STATUS`](super::STATUS).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node's name.
    pub node: String,
    /// Its memory in bytes.
    pub memory: u64,
    /// The part that is free and zeroed.
    pub free: u64,
    /// The part that was freed and is not zeroed yet.
    pub dirty: u64,
    /// The extents of its memory.
    pub extents: u16,
    /// The registrations that these are for other nodes.
    pub registrations: u16,
    /// The pages of its memory; `None` where the kernel does not report them.
    pub pages: Option<Pages>,
    /// A keeper has its memory and its records.
    pub is_kept: bool,
    /// Counter: requests of processes that it has answered.
    pub answered: u64,
    /// Counter: requests of processes that it has refused.
    pub refused: u64,
    /// Counters of the places where operations of processes on bytes have run.
    pub ran: Ran,
    /// Regions that were made at the node, those without a name included.
    pub regions: u64,
    /// Queue pairs to each other node that operations on memory may use.
    pub paths: u16,
    /// The reason for this number, in words.
    pub paths_reason: String,
    /// Queue pairs to other nodes that the paths have made, all nodes together.
    pub queue_pairs: u32,
    /// Connections to other nodes that calls and requests about locks have made: one for each kind and node.
    pub call_connections: u32,
    /// Calls to services that the node has under way to other nodes.
    pub calls: u32,
    /// The operations of low and of high priority: by [`Priority`](crate::Priority).
    pub priorities: [PriorityStatus; 2],
    /// The names of all nodes that are alive in the node's view.
    pub nodes: Vec<String>,
    /// The number of the node's view; 0 for a list that does not change.
    pub epoch: u64,
    /// All nodes of the view, also those that are dead or have left.
    pub members: Vec<MemberStatus>,
    /// The last failure to reach the directory, in words; empty without one.
    pub trouble: String,
    /// Attached processes, at most [`MAX_LISTED_PROCESSES`].
    pub processes: Vec<ProcessStatus>,
}

impl NodeStatus {
    /// Encodes the answer.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(Vec::new()).text(self.node.as_bytes());
        for number in [self.memory, self.free, self.dirty, self.answered, self.refused] {
            writer = writer.u64(number);
        }
        writer = writer
            .u16(self.extents)
            .u16(self.registrations)
            .u8(self.is_kept.into())
            .u8(self.pages.is_some().into());
        if let Some(Pages { small, transparent, huge_2m, huge_1g }) = self.pages {
            for number in [small, transparent, huge_2m, huge_1g] {
                writer = writer.u64(number);
            }
        }
        writer = writer.u64(self.ran.at_once).u64(self.ran.later).u64(self.ran.pool);
        writer = writer
            .u64(self.regions)
            .u16(self.paths)
            .text(self.paths_reason.as_bytes())
            .u32(self.queue_pairs)
            .u32(self.call_connections);
        writer = writer.u32(self.calls);
        for priority in &self.priorities {
            writer = priority.write(writer);
        }
        writer = writer.u16(self.nodes.len() as u16);
        for node in &self.nodes {
            writer = writer.text(node.as_bytes());
        }
        writer = writer.u64(self.epoch).text(self.trouble.as_bytes()).u16(self.members.len() as u16);
        for one in &self.members {
            writer = writer.text(one.name.as_bytes()).text(one.address.as_bytes()).u64(one.incarnation);
            writer = writer.u8(one.state as u8);
        }
        writer = writer.u16(self.processes.len() as u16);
        for one in &self.processes {
            writer = one.write(writer);
        }
        writer.0
    }

    /// Parses an answer.
    pub fn parse(bytes: &[u8]) -> Result<NodeStatus, Malformed> {
        let mut reader = Reader(bytes);
        let node = reader.string()?;
        let (memory, free, dirty) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (answered, refused) = (reader.u64()?, reader.u64()?);
        let (extents, registrations) = (reader.u16()?, reader.u16()?);
        let (is_kept, has_pages) = (reader.flag()?, reader.flag()?);
        let mut pages = || {
            let (small, transparent) = (reader.u64()?, reader.u64()?);
            Ok(Pages { small, transparent, huge_2m: reader.u64()?, huge_1g: reader.u64()? })
        };
        let pages = has_pages.then(&mut pages).transpose()?;
        let ran = Ran { at_once: reader.u64()?, later: reader.u64()?, pool: reader.u64()? };
        let (regions, paths, paths_reason) = (reader.u64()?, reader.u16()?, reader.string()?);
        let (queue_pairs, call_connections, calls) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let priorities = [PriorityStatus::read(&mut reader)?, PriorityStatus::read(&mut reader)?];
        let nodes = (0..reader.u16()?).map(|_| reader.string()).collect::<Result<_, _>>()?;
        let (epoch, trouble, count) = (reader.u64()?, reader.string()?, reader.u16()?);
        let mut member = || {
            let (name, address, incarnation) = (reader.string()?, reader.string()?, reader.u64()?);
            Ok(MemberStatus { name, address, incarnation, state: reader.member_state()? })
        };
        let members = (0..count).map(|_| member()).collect::<Result<_, _>>()?;
        let count = reader.u16()?;
        let processes = (0..count).map(|_| ProcessStatus::read(&mut reader)).collect::<Result<_, _>>()?;
        reader.end(NodeStatus {
            node,
            memory,
            free,
            dirty,
            extents,
            registrations,
            pages,
            is_kept,
            answered,
            refused,
            ran,
            regions,
            paths,
            paths_reason,
            queue_pairs,
            call_connections,
            calls,
            priorities,
            nodes,
            epoch,
            members,
            trouble,
            processes,
        })
    }
}
