//! The memory tier (LITE, SOSP 2017) for a process: named, permissioned regions, through the node of its host.
//!
//! ```text
//! Tier, Lmr       the words of `dunlin_tier_node::Tier`, in a process        tier.rs, lmr.rs
//! Buffer          memory that the node reads and writes in place              buffer.rs
//! Within          operations, cut into requests                              within.rs
//! Operations      lists of operations                                        list.rs
//! memcpy          copies between regions, cut into requests                  memcpy.rs
//! Guard           locks and barriers                                          locks.rs
//! Calls           functions of services that this process serves             calls.rs
//! Announced       a server of the engine, known at the node                   announce.rs
//!   Attachment    connections to the node, one for each thread at a time     attachment.rs
//!   Waiting       one connection for all calls that wait for other processes waiting.rs
//! ```
//!
//! The node (`dunlin node run`) owns the NIC and the memory, and checks rights and bounds. This crate cuts operations
//! into requests of a bounded size, and keeps no rules of its own. A program that is a node itself uses
//! `dunlin-tier-node` in its place.
#![forbid(unsafe_code)]

mod announce;
mod attachment;
mod buffer;
mod calls;
mod direct;
mod list;
mod lmr;
mod locks;
mod memcpy;
mod tier;
mod waiting;
mod within;

pub use announce::Announced;
pub use attachment::{AttachConfig, AttachError, default_address, default_token, gateway_address};
pub use buffer::Buffer;
pub use calls::{Calls, Request};
pub use direct::{Direct, Granted};
pub use list::Operations;
pub use lmr::Lmr;
pub use locks::Guard;
pub use tier::Tier;
pub use within::Within;

pub use dunlin_rpc::Token;
pub use dunlin_tier::message::Refusal;
pub use dunlin_tier::process::{
    HandedOver, Holdings, Lent, LentRegion, MemberStatus, NODE_VARIABLE, NodeStatus, Pages, PriorityStatus,
    ProcessStatus, Ran, TOKEN_VARIABLE,
};
pub use dunlin_tier::{MemberState, RecordError};
pub use dunlin_tier_node::{
    AccessError, AnyCalls, AnyGuard, AnyLists, AnyLmr, AnyOperation, AnyServices, AnyTier, AsyncConfig,
    Asynchronous, BufferError, Bytes, DirectMemory, Done, EachCall, ListError, Listed, Listing, LockError,
    NoDirect, Operation, OperationError, Outcomes, OwnedOperations, Position, Priority, PublishError,
    Published, ReceiveError, RequestError, Rights, SecretError, Source, Spec, read_secret,
};
