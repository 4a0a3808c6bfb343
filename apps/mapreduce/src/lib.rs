//! LITE-MR (LITE, SOSP 2017, section 8.2): MapReduce after Phoenix (HPCA 2007), spread over the nodes of the memory tier.
//! A master gives out tasks by RPC; results of tasks are regions on the nodes of the workers that made them, and other
//! workers read them from there.
//!
//! ```text
//! Master, work_for              a job over the tier: its master, and the workers of a process    master.rs
//! run_alone                     the same on threads of one process, without the tier             alone.rs
//!   Job, Outcome, Watch         description, result and observer of a job                        job.rs
//!   Desk                        answers workers, waits for the result                            desk.rs
//!     Schedule                  the tasks, without I/O                                           schedule.rs
//!     Request, Answer           messages of workers and master                                   message.rs
//!   work                        a worker's threads                                               worker.rs
//!     Table, Run, reduce, merge sorted runs                                                      piece.rs
//!   Cluster                     the surroundings of a worker                                     cluster.rs
//!     OverTier                  all calls of the tier                                            over_tier.rs
//! Program                       functions of a job                                               program.rs
//!   WordCount, Grep, Index      those that come with the engine                                  programs.rs
//! Input                         splits of the input                                              input.rs
//! ```
//!
//! # Phases
//!
//! 1. *Map.* A worker maps splits, and combines results by key in its memory, partitioned by the hash of the key. When no
//!    split is left, or the memory is full, it writes them into one region: a header with the place of each partition,
//!    then sorted entries. So each worker has an index of its own, in place of Phoenix's index for all.
//! 2. *Reduce.* A worker reads one partition of all regions, in chunks, and combines the values of each key. The output is
//!    a region.
//! 3. *Merge.* Outputs are merged two by two, in rounds. The master reads the last one, and frees all regions.
//!
//! # Failures
//!
//! A worker that is silent for longer than [`Job::lease`] is given up: its tasks and the results in its memory are made
//! again by others. Regions of a worker that was killed stay, as long as its node lives. If a region cannot be read, the
//! worker that misses it says so, and its contents are made again. A region is used until the end of the job, so a loss
//! in a late phase repeats few tasks. Requests of workers are numbered: a repeated one gets the same answer. A panic of
//! the program, an input that cannot be read, or a task that was begun 16 times ends the job with a text at all workers.
//! A master that ends takes the job with it; the regions of a killed master's job stay at the nodes until they are freed.
//!
//! Results are in the order of the keys, and the same for any number of workers and any failure, as far as the
//! [`Program`] keeps its rules.
//!
//! # Memory
//!
//! A worker has [`Job::memory`] for combining, the same for the region that it makes of it, and the output of one
//! partition. The nodes hold the combined results of all workers, the outputs of the partitions, and those of each round of
//! merges, until the end.
//!
//! # Trust
//!
//! The master hears only the principal that it acts for, and regions have no grants for others. Bytes of regions are
//! checked all the same: lengths against bounds, the order of the keys, a number that program, input and job have in
//! common.
#![forbid(unsafe_code)]

mod alone;
mod cluster;
mod desk;
mod error;
mod input;
mod job;
mod master;
mod message;
mod over_tier;
mod piece;
mod program;
mod programs;
mod schedule;
mod worker;

pub use alone::run_alone;
pub use error::MapReduceError;
pub use input::{Files, Input};
pub use job::{Job, Outcome, Progress, Watch};
pub use master::{Master, work_for};
pub use message::Piece;
pub use program::{Program, Split};
pub use programs::{Grep, Index, WordCount, count_of};
pub use schedule::Phase;
