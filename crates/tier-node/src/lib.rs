//! A node of the memory tier, for its own process or for several of its host (LITE, SOSP 2017): named, permissioned
//! memory regions on every node, read and written by one-sided operations.
//!
//! ```text
//! ProcessServer         the processes of this host                            processes.rs, problem.rs
//! Tier, Lmr             the application's face                                tier.rs, lmr.rs, spec.rs
//! AnyTier, AnyLmr       the same face for a node in another process            any.rs
//! Within                operations with a time of their own                   within.rs
//! Operations            lists of operations                                   list.rs
//! Position              a place in a region, for copies                       memcpy.rs
//! Asynchronous          operations as futures                                 asynchronous.rs
//! Buffer                memory that the NIC reads and writes in place          buffer.rs
//! Direct                loads and stores of bytes on the own node               direct.rs
//! Published             bytes that exist get a name                           publish.rs
//!   Node                records, names, handles and arena of this process     node.rs, operate.rs, free.rs
//!     Path              one-sided operations to all nodes: K queue pairs each path.rs, connection.rs, posts.rs
//!     Carriers          the paths on which the worker has operations          carriers.rs, attempt.rs
//!     Paths             the order in which operations get paths               paths.rs, qos.rs
//!     PathCount         K by the device, with the reason                      path_count.rs
//!     calls             requests to other nodes, by the RPC engine            calls.rs
//!     Seats             the connection of all threads to a node               seats.rs, pool.rs
//!     passage           calls of processes on their way, and their payloads   passage.rs, lanes.rs
//!     Arena             its memory: extents and their pages               arena.rs, pages.rs
//!     Acceptor          passive ends of other nodes' paths, fences            acceptor.rs
//!     cleaner           zeroes memory, reports closed handles, ends frees     cleaner.rs
//!     locks             locks and barriers: of this node's threads            locks.rs
//!     claims            and of the processes of its host                      locks/claims.rs
//!     Owner             and of all nodes, for names whose home is this one    lock_owner.rs
//!     StateGuard        writes changes to the ledger that the next life reads  kept.rs, lives.rs
//!     PrincipalTokens   tokens that name principals of processes              tokens.rs
//!     Membership        the source of views: a list, a directory              membership.rs, membership/
//!     members           the effect of views; names tell their homes           members.rs, roster.rs
//! ```
//!
//! The state machines are those of `dunlin-tier`; this crate connects them to a fabric and adds no rules. It is
//! written against the fabric's traits: the same code runs on shared memory, on RNICs and in virtual time. The library of
//! processes that attach to a node is `dunlin-tier-client`.
#![forbid(unsafe_code)]

mod acceptor;
mod any;
mod arena;
mod asynchronous;
mod attempt;
mod buffer;
mod calling;
mod calls;
mod carriers;
mod cleaner;
mod command;
mod config;
mod connection;
mod delays;
mod direct;
mod error;
mod forward;
mod free;
mod hello;
mod item;
mod keepers;
mod kept;
mod lanes;
mod list;
mod lives;
mod lmr;
mod lock_owner;
mod locks;
mod members;
mod membership;
mod memcpy;
mod node;
mod operate;
mod orphans;
mod pages;
mod passage;
mod path;
mod path_count;
mod paths;
mod peers;
pub mod pool;
mod posts;
mod problem;
mod processes;
mod publish;
mod qos;
mod rings;
mod roster;
mod seats;
mod services;
mod serving;
mod spec;
mod steps;
mod tier;
mod tokens;
mod within;

pub use any::{AnyCalls, AnyGuard, AnyLists, AnyLmr, AnyOperation, AnyServices, AnyTier};
pub use arena::{MemorySource, Progress};
pub use asynchronous::{
    AsyncConfig, Asynchronous, InPlaceLmr, Operation, OwnedOperations, RanList, TimedLmr, TimedOperation,
    Transferred,
};
pub use buffer::{Buffer, range_within};
pub use calling::EachCall;
pub use config::{Peer, TierConfig};
pub use direct::{Bytes, Direct, DirectMemory};
pub use error::{
    BufferError, JoinError, ListError, OperationError, PublishError, ReceiveError, RequestError,
};
pub use list::{Done, Operations, Outcomes, check_list_size};
pub use lmr::Lmr;
pub use locks::{Guard, LockError};
pub use membership::{
    DirectoryClient, DirectoryConfig, DirectoryServer, Entry, FixedList, Membership, MembershipError, Own,
    Put, Store, StoreConfig, StoreError, StoreMembership,
};
#[cfg(feature = "etcd")]
pub use membership::{Etcd, EtcdConfig};
pub use memcpy::Position;
pub use path_count::{PathCount, PathReason};
pub use peers::PeersError;
pub use processes::{ProcessConfig, ProcessLimits, ProcessServer};
pub use publish::{Published, Source, publish_by};
pub use qos::QosConfig;
pub use rings::RingUse;
pub use serving::{Calls, Request};
pub use spec::Spec;
pub use tier::Tier;
pub use tokens::{MAX_TOKEN, MAX_TOKENS, MIN_TOKEN, PrincipalTokens, SecretError, TokenError, read_secret};
pub use within::Within;

pub use dunlin_tier::process::NoDirect;
pub use dunlin_tier::process::{PriorityStatus, Ran};
pub use dunlin_tier::qos::{Limit, Policy, QosError, Share};
pub use dunlin_tier::{AccessError, Epoch, Listed, Listing, Name, NodeId, Principal, Priority, Rights, View};
