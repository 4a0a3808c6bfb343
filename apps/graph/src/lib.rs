//! LITE-Graph.
#![forbid(unsafe_code)]

mod edges;
mod engine;
mod error;
mod job;
mod layout;
mod meeting;
mod partition;
mod program;
mod programs;
mod regions;
mod rows;
mod worker;

pub use edges::{Edges, MAX_SCALE, MAX_VERTICES};
pub use engine::run;
pub use error::{GraphError, LoadError};
pub use job::{Job, Outcome, Step, Watch};
pub use program::{Message, Plain, Program, Vertex};
pub use programs::{Components, Least, PageRank, PageRankRounds, Paths, Rank};
