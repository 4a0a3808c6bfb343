//! The memory tier of LITE (SOSP 2017, section 4.1) as state machines without I/O: names, rights, records of
//! memory regions (LMRs), the handles of a process, the cutting of operations, the allocator of a node's
//! arena, the protocol that frees a region, and the quality of service (section 6.2).
//!
//! Every type is a pure function of its inputs. Nothing here knows a fabric, a clock, a thread or a random
//! source, and nothing is `unsafe`. The crate `dunlin-tier-node` connects the machines to a fabric.
//!
//! ```text
//! Name ── home node (hash) ──> LmrId ──> Record at a master's node: pieces, grants, mappers
//!                                           │ map: rights checked, mapper listed
//! View of the members ── alive ──> homes of names; founders ──> owners of locks
//! Handle of one process ──> HandleTable: rights, bounds ──> Cuts: (node, extent, offset, length)
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod call;
mod codec;
pub mod cut;
pub mod exchange;
pub mod handles;
pub mod holders;
pub mod ledger;
pub mod lock;
pub mod membership;
pub mod message;
pub mod name;
pub mod names;
pub mod orphans;
pub mod place;
pub mod process;
pub mod qos;
pub mod record;
pub mod retire;
pub mod rights;
pub mod ring;
pub mod slots;
pub mod space;

pub use access::{AccessError, Kind};
pub use call::{CallAnswer, CallHead, RingPlace};
pub use cut::{Cut, Cuts, Layout, LayoutError};
pub use exchange::{Act, Exchange, ExchangeLimits, Remains};
pub use handles::{Handle, HandleTable, MapTicket, Operation, TableError};
pub use holders::{Holder, Holders};
pub use membership::{Epoch, Member, MemberState, View};
pub use name::{MAX_NAME, Name, NameError, home};
pub use names::Names;
pub use orphans::{OrphanSearch, Question};
pub use place::{LmrId, NodeId, Piece};
pub use qos::Priority;
pub use record::{
    AdoptError, Directory, Ending, Heard, Keepers, Leaving, Listed, Listing, Mapping, RecordError, Revoking,
    Standing,
};
pub use retire::{Command, Retirement};
pub use rights::{GrantError, Grantee, Grants, MAX_GRANTS, Principal, PrincipalError, Rights};
pub use ring::{Ring, RingRange};
pub use slots::Slots;
pub use space::{Block, Space, SpaceError};
