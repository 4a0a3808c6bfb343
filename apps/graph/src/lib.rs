//! LITE-Graph (LITE, SOSP 2017, section 8.3): vertex programs in gather, apply and scatter with delta caching, after
//! PowerGraph (OSDI 2012). The data of the vertices lies in named regions of the memory tier; members read and write it
//! by one-sided operations, and a barrier ends each step.
//!
//! ```text
//! run                                a member of a job, from its regions to its result    engine.rs
//!   Job, Outcome, Watch              description, result and observer of a job            job.rs
//!   Worker                           a thread: its messages to and from regions           worker.rs
//!     Local                          gather, apply, scatter at its vertices               local.rs
//!       Rows                         its edges, by target and by source                   rows.rs
//!     Meeting, run_threads           the threads of a member                              meeting.rs, threads.rs
//!   Region                           calls of the tier for memory and locks               regions.rs
//!     Layout, Header                 layout of a region                                   layout.rs
//!   Weights                          ranges of vertices of about the same work            partition.rs
//! run_shared, run_in_memory          the same on shared memory, by loads and stores       shared.rs
//!   Space, SharedSpace               words, acquisition, release; LITE-DSM as such        space.rs
//! Program                            a vertex program                                     program.rs
//!   PageRank, Components, Paths      those that come with the engine                      programs.rs
//! Edges                              text, binary pairs, R-MAT                            edges.rs
//! ```
//!
//! # A step
//!
//! Vertices are partitioned by ranges of about the same work: a vertex costs one, and so does each edge to it. Each thread
//! of each member has a range, and so has each region, which lies on the node of its member and is called
//! `NAME/FIRST-LAST`.
//!
//! 1. *Scatter.* A thread writes the messages of its vertices by one `write` for each region: from the first message to
//!    the last. It announces them in the region's header. Threads of a member that share a region add to the header
//!    one at a time, under the lock of the region.
//! 2. *Barrier.* One thread of each member waits there.
//! 3. A member reads each region once: the header, then the part that has messages by one `read`. Its threads share the
//!    work, and the messages.
//! 4. *Gather, apply.* A thread adds up the messages over the edges to its vertices, and applies the sums.
//!
//! A region has room for the messages of two steps, so one barrier in a step is enough. With delta caching the sums stay,
//! and only vertices that changed send messages. If few do, a thread follows their edges, else it looks at all of its
//! edges. Both add in the order of the sources. So the results are the same bits for every number of members, threads and
//! regions.
//!
//! # Memory
//!
//! An edge takes 8 bytes in [`Edges`], 4 in the rows by target, and, with delta caching, 4 in the rows by source and at
//! most 8 for its source: 24 at most. A member has 8 bytes for each vertex of the graph. A region has 16 bytes and the
//! program's data for each of its vertices.
//!
//! # Failures
//!
//! If a process of the job dies, the others get [`GraphError::Barrier`] with the name of the barrier at once, if they wait
//! there. A member that ends with an error in a process that lives on is missing at the next barrier, and the others wait
//! for [`Job::patience`]. The regions of a killed process stay at the node of its host until they are freed.
//!
//! Bytes of regions are not trusted: headers are checked against bounds, and every pattern of bits is a message or a value.
//! Members compare a hash of the graph, the program and the job. A user with the right to write the regions can change
//! results, and can keep a program with delta caching from its end; [`Watch::is_stopped`] bounds it.
//!
//! # Measured
//!
//! `cargo run --release -p dunlin-app-graph --example measure` compares a plain loop with the engine. The guide of
//! applications has values of one machine.
#![forbid(unsafe_code)]

mod edges;
mod engine;
mod error;
mod job;
mod layout;
mod local;
mod meeting;
mod partition;
mod program;
mod programs;
mod regions;
mod rows;
mod shared;
mod space;
mod threads;
mod worker;

pub use edges::{Edges, MAX_SCALE, MAX_VERTICES};
pub use engine::run;
pub use error::{GraphError, LoadError};
pub use job::{Job, Outcome, Step, Watch};
pub use program::{Message, Plain, Program, Vertex};
pub use programs::{Components, Least, PageRank, PageRankRounds, Paths, Rank};
pub use shared::{run_in_memory, run_shared, shared_pages};
pub use space::{SharedSpace, Space};
