//! The description of a job, and those who watch it.

use crate::edges::Edges;
use crate::error::GraphError;
use crate::layout::HEADER;
use crate::program::{Plain, Program};
use std::time::Duration;

/// The most members of a job.
const MAX_MEMBERS: u64 = 1024;
/// The most threads, or regions, of a member.
const MAX_PARTS: u64 = 64;
/// The longest name of a job: names of its regions and barriers are longer.
const LONGEST_NAME: u64 = 200;

/// The description of a job. All members give the same one, with their own number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The name, with which the names of its regions and barriers begin.
    pub name: String,
    /// The number of members: processes that take part. Default: 1.
    pub members: u16,
    /// The number of this member, from 0. Default: 0.
    pub member: u16,
    /// The threads of a member, each with a range of vertices. Default: 1.
    pub threads: u16,
    /// The regions of a member, on its node. Threads that share a region write its header in turns. Default: as many as
    /// threads.
    pub regions: Option<u16>,
    /// The longest time to wait for other members at a barrier. Default: 60 s.
    pub patience: Duration,
    /// Whether this member gets the data of all vertices, and not only of its own. Default: true.
    pub collects: bool,
}

impl Job {
    /// Returns a job of one member with one thread.
    pub fn new(name: &str) -> Job {
        Job {
            name: name.to_owned(),
            members: 1,
            member: 0,
            threads: 1,
            regions: None,
            patience: Duration::from_secs(60),
            collects: true,
        }
    }

    pub(crate) fn regions(&self) -> u16 {
        self.regions.unwrap_or(self.threads)
    }

    /// Returns memory that a node of a member needs for its regions, with room to spare for their rounding.
    pub fn memory<P: Program>(&self, vertices: u32) -> u64 {
        let each = 16 + P::Data::BYTES as u64;
        let regions = u64::from(self.regions());
        // The cut is by work, so a member may have nearly all vertices.
        (2 * (u64::from(vertices) * each) + regions * (2 * HEADER + 4096)).next_power_of_two().max(1 << 20)
    }

    pub(crate) fn check(&self) -> Result<(), GraphError> {
        let check = |what, value: u64, most: u64, must| match value {
            value if (1..=most).contains(&value) => Ok(()),
            value => Err(GraphError::Setting { what, value, must }),
        };
        check("the length of the name", self.name.len() as u64, LONGEST_NAME, "1 to 200 bytes")?;
        check("the number of members", self.members.into(), MAX_MEMBERS, "1 to 1024")?;
        check("the number of threads", self.threads.into(), MAX_PARTS, "1 to 64")?;
        check("the number of regions", self.regions().into(), MAX_PARTS, "1 to 64")?;
        if self.member >= self.members {
            let (what, must) = ("the number of this member", "below the number of members");
            return Err(GraphError::Setting { what, value: self.member.into(), must });
        }
        Ok(())
    }

    /// Returns a number that is the same for all members of a job, and for no other job.
    pub(crate) fn agreement<P: Program>(&self, edges: &Edges, program: &P) -> u64 {
        let numbers = [
            edges.hash(),
            edges.len(),
            edges.vertices().into(),
            self.members.into(),
            self.threads.into(),
            self.regions().into(),
            P::Data::BYTES as u64,
            program.settings(),
        ];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        bytes.extend_from_slice(P::NAME.as_bytes());
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// A step that all members have begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its number, from 1.
    pub number: u32,
    /// The vertices of all members that scatter in it.
    pub scattering: u64,
}

/// An observer of a member. All methods do nothing unless they are given.
pub trait Watch: Send + Sync + 'static {
    /// A step begins at this member: the messages are there.
    fn step(&self, _: Step) {}

    /// A thread has gathered over a number of edges, and applied at a number of vertices.
    fn worked(&self, _edges: u64, _vertices: u64) {}

    /// Returns whether the job shall end with [`GraphError::Stopped`]; asked once in a step.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// Nobody watches.
impl Watch for () {}

/// The result of a member.
#[derive(Clone, Debug)]
pub struct Outcome<D> {
    /// The data of all vertices, or of this member's if the job does not collect.
    pub data: Vec<D>,
    /// The first vertex of `data`.
    pub first: u32,
    /// The number of steps.
    pub steps: u32,
    /// The messages of all members in all steps.
    pub messages: u64,
    /// The edges over which this member has gathered, in all steps.
    pub gathered: u64,
    /// The time in which this member built its rows.
    pub building: Duration,
    /// The time of all steps.
    pub stepping: Duration,
}
