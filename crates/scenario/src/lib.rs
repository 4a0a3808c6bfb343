//! What the simulator runs: the engine, unmodified, in clusters and under loads that nobody here has.
//!
//! * [`swarm`]: random clusters, workloads and faults from a seed, and what must hold whatever happens.
//! * [`load`]: clients by the thousand on a cluster, open or closed loop, for figures and for the simulator's own speed.
//! * [`bypass`]: a store whose clients READ its tables.
//! * [`shared`]: threads that share their machine's connection.
//! * [`course`]: what those that are measured for a while have in common.
//! * [`memory`]: what handlers wait for in memory, alone and in batches.
//! * [`datagrams`]: RPC over datagrams without the engine, for what it takes of the server's processors.
//! * [`advice`]: what the model says of the plan that hints select, for a function of anybody.
//! * [`raw_verbs`]: measurements of raw verbs, played on the simulator instead of on the model alone.
//! * [`rates`]: what the NICs of simulated clusters do in a second, for clients that choose by it.
//! * [`tuning`]: a client of a function that changes, and what its tuner makes of it.
//! * [`figures`]: the papers' figures, with what the papers' texts say of them.
//!
//! What may come in: descriptions of clusters and loads, and the code that plays them. What never does: how anything is
//! printed, what hardware costs (`rnic-model` has that), and mechanism of the engine or of the simulator.

pub mod advice;
pub mod bypass;
pub mod course;
pub mod datagrams;
pub mod figures;
pub mod load;
pub mod memory;
pub mod random_values;
pub mod rates;
pub mod raw_verbs;
pub mod shared;
pub mod swarm;
pub mod tuning;
