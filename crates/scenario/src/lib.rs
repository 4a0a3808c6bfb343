//! Loads for the simulator: the unmodified engine on clusters for which this project has no hardware.
//!
//! * [`load`]: thousands of clients on a cluster, in open or closed loop, for figures and for the simulator's
//!   own speed.
//! * [`bypass`]: a store whose clients READ its tables.
//! * [`shared`]: threads that share their machine's connection.
//! * [`measured_run`]: the common parts of timed runs.
//! * [`memory`]: memory waits of handlers, alone and in batches.
//! * [`datagrams`]: RPC over datagrams without the engine, to measure the server's processor time.
//! * [`erpc`]: the baseline eRPC, without the engine: credits, congestion control, retransmission.
//! * [`raw_verbs`]: raw-verb measurements, played on the simulator instead of on the model alone.
//! * [`rates`]: operation rates of simulated NICs, for clients that base their choice on them.
//! * [`tuning`]: a client of a function that changes, and the response of its tuner.
//! * [`tier`], [`native`]: threads that use the memory tier, and threads that WRITE without it.
//! * [`graph`]: PageRank by the graph engine of the memory tier, and the same engine over sockets.
//! * [`mapreduce`]: word counts by MapReduce over the memory tier, and in one process.
//! * [`membership`]: a node of the memory tier that dies, and the time until all others know it.
//! * [`log`]: threads that commit to a global log in the memory tier.
//! * [`shared_memory`]: pages that the nodes of the memory tier share.
//! * [`processes`]: processes of several hosts that all call each other.
//! * [`priorities`]: threads of two priorities that share a node of the memory tier.
//! * [`stream`]: a stream of low priority beside an application.
//! * [`synchronised`]: clients that call several servers in every step, with one schedule of the servers or without.
//!
//! This crate holds descriptions of clusters and loads, and the code that plays them. The papers' figures (`figures`),
//! the swarm (`swarm`), advice on hints (`advice`), output formats, hardware costs (`rnic-model`) and mechanisms of the
//! engine or the simulator stay outside.

pub mod bypass;
pub mod datagrams;
pub mod erpc;
pub mod graph;
pub mod load;
pub mod log;
pub mod mapreduce;
pub mod measured_run;
pub mod membership;
pub mod memory;
pub mod native;
pub mod priorities;
pub mod processes;
pub mod random_values;
pub mod rates;
pub mod raw_verbs;
pub mod shared;
pub mod shared_memory;
pub mod stream;
pub mod synchronised;
pub mod tier;
pub mod tier_calls;
pub mod tuning;
