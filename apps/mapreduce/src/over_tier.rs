//! All calls of the tier: pieces are named regions, and the master is a service.

use crate::cluster::{Bytes, Cluster};
use crate::error::MapReduceError;
use crate::job::{Job, Watch};
use crate::message::{Answer, Piece, Request};
use dunlin_fabric::Host;
use dunlin_rpc::{CallError, Cause, Status};
use dunlin_tier_node::{AnyLmr, AnyServices, OperationError, RequestError, Rights, Spec};
use std::sync::Arc;
use std::time::Duration;

/// The function of a master's service.
pub(crate) const FUNCTION: u16 = 1;
/// The time of one call to the master, which answers at once.
const CALL_TIME: Duration = Duration::from_secs(10);
/// The pause between looks for the master.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A job's part of the tier, as one of its processes sees it.
#[derive(Clone)]
pub(crate) struct OverTier<T: AnyServices> {
    tier: T,
    job: Arc<str>,
    /// The node of the master.
    master: Arc<str>,
}

/// Returns the name of a job's service.
pub(crate) fn service(job: &str) -> String {
    format!("{job}/mapreduce")
}

impl<T: AnyServices> OverTier<T> {
    /// Returns the part of the master itself.
    pub(crate) fn of_master(tier: &T, job: &Job) -> Result<Self, MapReduceError> {
        let servers = tier.servers(service(&job.name).as_bytes()).map_err(master)?;
        // The own node comes first, and has this master's service.
        let own = servers.first().ok_or_else(|| MapReduceError::NoMaster { job: job.name.clone() })?;
        Ok(Self { tier: tier.clone(), job: job.name.as_str().into(), master: own.as_str().into() })
    }

    /// Looks for the master until it is there, or for the patience of the job.
    pub(crate) fn of_worker(tier: &T, job: &Job, watch: &dyn Watch) -> Result<Self, MapReduceError> {
        let host = tier.host();
        let until = host.now().saturating_add(dunlin_fabric::nanos(job.patience));
        loop {
            let servers = tier.servers(service(&job.name).as_bytes()).map_err(master)?;
            if let Some(node) = servers.into_iter().next() {
                return Ok(Self { tier: tier.clone(), job: job.name.as_str().into(), master: node.into() });
            }
            if watch.is_stopped() {
                return Err(MapReduceError::Stopped);
            }
            if host.now() >= until {
                return Err(MapReduceError::NoMaster { job: job.name.clone() });
            }
            host.sleep(host.now().saturating_add(dunlin_fabric::nanos(LOOK_EVERY)));
        }
    }

    fn failure(&self, error: RequestError) -> MapReduceError {
        match &error {
            RequestError::Call {
                source: CallError::NotExecuted(Cause::Refused(Status::Unauthorised)),
                ..
            } => MapReduceError::Stranger { job: self.job.to_string() },
            _ => master(error),
        }
    }

    fn region(&self, piece: Piece) -> String {
        format!("{}/{piece}", self.job)
    }
}

fn master(source: RequestError) -> MapReduceError {
    MapReduceError::Master(source.into())
}

impl<L: AnyLmr> Bytes for L {
    fn len(&self) -> u64 {
        AnyLmr::len(self)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        AnyLmr::read(self, offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        AnyLmr::write(self, offset, from)
    }
}

impl<T: AnyServices> Cluster for OverTier<T> {
    type Host = T::Host;
    type Bytes = T::Lmr;

    fn host(&self) -> &T::Host {
        self.tier.host()
    }

    fn ask(&self, request: &Request) -> Result<Answer, MapReduceError> {
        // An answer has as many pieces as the job has buffers.
        let mut answer = vec![0; 4 << 20];
        let to = (&*self.master, service(&self.job).into_bytes(), FUNCTION);
        let length = self
            .tier
            .call_within(CALL_TIME, (to.0, &to.1, to.2), &request.encode(), &mut answer)
            .map_err(|error| self.failure(error))?;
        Answer::parse(&answer[..length])
            .ok_or_else(|| master(RequestError::Answer { node: self.master.to_string() }))
    }

    fn create(&self, piece: Piece, length: u64) -> Result<T::Lmr, MapReduceError> {
        let spec = Spec::here().named(self.region(piece));
        self.tier
            .malloc(length, spec)
            .map_err(|source| MapReduceError::Create { length, source: source.into() })
    }

    fn open(&self, piece: Piece) -> Result<T::Lmr, MapReduceError> {
        let name = self.region(piece);
        self.tier
            .map(name.as_bytes(), Rights::READ)
            .map_err(|source| MapReduceError::Map { piece, source: source.into() })
    }

    fn free(&self, piece: Piece) {
        // A node that has ended has taken its regions with it.
        let name = self.region(piece);
        let _ = self.tier.map(name.as_bytes(), Rights::ALL).and_then(AnyLmr::free);
    }
}
