//! A job in one process, without the tier: the same tasks on vectors. The baseline, after Phoenix.

use crate::cluster::{Bytes, Cluster};
use crate::desk::Desk;
use crate::error::MapReduceError;
use crate::input::Input;
use crate::job::{Job, Outcome, Watch};
use crate::message::{Answer, Piece, Request};
use crate::program::Program;
use crate::worker::{Crew, work};
use dunlin_fabric::{Host, Task};
use dunlin_tier_node::OperationError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Bytes in a vector of this process.
#[derive(Clone)]
pub(crate) struct Vector(Arc<RwLock<Vec<u8>>>);

impl Bytes for Vector {
    fn len(&self) -> u64 {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        bytes[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }
}

/// The surroundings of threads of one process.
#[derive(Clone)]
pub(crate) struct InProcess<H: Host> {
    host: H,
    desk: Arc<Desk<H>>,
    pieces: Arc<Mutex<HashMap<Piece, Vector>>>,
}

impl<H: Host> Cluster for InProcess<H> {
    type Host = H;
    type Bytes = Vector;

    fn host(&self) -> &H {
        &self.host
    }

    fn ask(&self, request: &Request) -> Result<Answer, MapReduceError> {
        Ok(self.desk.answer(request))
    }

    fn create(&self, piece: Piece, length: u64) -> Result<Vector, MapReduceError> {
        let vector = Vector(Arc::new(RwLock::new(vec![0; length as usize])));
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).insert(piece, vector.clone());
        Ok(vector)
    }

    fn open(&self, piece: Piece) -> Result<Vector, MapReduceError> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.get(&piece).cloned().ok_or_else(|| MapReduceError::damaged(piece, "it was never made"))
    }

    fn free(&self, piece: Piece) {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).remove(&piece);
    }
}

/// Runs a job on threads of this process, without the tier, and passes the results to `each` as
/// [`Master::finish`](crate::Master::finish) does. Blocks until the job has ended.
///
/// # Errors
/// As [`Master::finish`](crate::Master::finish).
pub fn run_alone<H: Host, P: Program, I: Input>(
    host: &H,
    job: &Job,
    program: P,
    input: I,
    threads: u16,
    watch: Arc<dyn Watch>,
    each: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<Outcome, MapReduceError> {
    job.check()?;
    let agreement = job.agreement(&program, &input);
    let desk = Arc::new(Desk::new(host, job, input.splits(), agreement, Arc::clone(&watch)));
    let cluster = InProcess { host: host.clone(), desk: Arc::clone(&desk), pieces: Arc::default() };
    let crew =
        Arc::new(Crew { cluster: cluster.clone(), job: job.clone(), program, input, watch, agreement });
    let body = {
        let desk = Arc::clone(&desk);
        move || {
            if let Err(error) = work(&crew, threads) {
                desk.give_up(error);
            }
        }
    };
    let working = host.spawn("mapreduce-work", Box::new(body)).map_err(MapReduceError::Thread)?;
    let outcome = desk.lead(&cluster, each);
    Task::join(working);
    outcome
}
