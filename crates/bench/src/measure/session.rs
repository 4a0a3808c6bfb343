//! The pinned process pair and its servers.

use std::time::{Duration, Instant};

use dunlin_fabric::Address;
use dunlin_fabric_shm::ShmFabric;
use dunlin_rpc::{Client, ClientConfig};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::MeasureError;
use super::peer::{Drive, ServiceKind, Setup};
use super::process::raise_file_limit;
use dunlin_floor::{Cores, FloorError, FloorPair};

/// A pinned process pair, and a fabric for the clients on this side. It stays on the thread that created
/// it.
pub struct Session {
    pub(super) pair: FloorPair,
    pub(super) fabric: ShmFabric,
    /// The cores that this process may use, before pinning.
    pub(super) allowed: CpuSet,
    next: u8,
    /// Number of servers started; each has a unique name.
    started: u32,
}

/// A server in the peer process.
#[derive(Clone, Debug)]
pub(super) struct Served {
    /// The number of its subject.
    pub(super) index: u8,
    address: Address,
}

impl Session {
    /// Starts the peer process and pins both sides to the first two available cores.
    ///
    /// # Errors
    /// No second core, no peer process, or no fabric.
    pub fn start() -> Result<Self, MeasureError> {
        raise_file_limit();
        let allowed = sched_getaffinity(None)
            .map_err(|source| FloorError::System { action: "ask which cores are allowed", source })?;
        let pair = FloorPair::spawn_self(Cores::first_two()?)?;
        Ok(Self { pair, fabric: super::fabric()?, allowed, next: 0, started: 0 })
    }

    /// Returns the pair, to measure floors alone.
    pub fn pair(&mut self) -> &mut FloorPair {
        &mut self.pair
    }

    /// Starts a server in the peer.
    pub(super) fn serve(&mut self, service: ServiceKind, drive: Drive) -> Result<Served, MeasureError> {
        let served = self.serve_at(self.next, service, drive)?;
        self.next += 1;
        Ok(served)
    }

    /// Replaces a server that has no clients left by a new one. The address of a server's memory affects
    /// its speed by some percent for its whole life.
    pub(super) fn serve_anew(
        &mut self,
        served: &Served,
        service: ServiceKind,
        drive: Drive,
    ) -> Result<Served, MeasureError> {
        self.serve_at(served.index, service, drive)
    }

    fn serve_at(&mut self, index: u8, service: ServiceKind, drive: Drive) -> Result<Served, MeasureError> {
        let name = format!("shm:bench-{}-{}", std::process::id(), self.started);
        self.started += 1;
        let setup = Setup { address: name.clone(), service, drive };
        let parameters =
            serde_json::to_vec(&setup).map_err(|error| MeasureError::BadArgument(error.to_string()))?;
        let address = name
            .parse()
            .map_err(|error: dunlin_fabric::AddressError| MeasureError::BadArgument(error.to_string()))?;
        self.pair.begin_subject(index, &parameters)?;
        self.pair.end_subject()?;
        Ok(Served { index, address })
    }

    /// Runs `work` while the peer serves: for connecting, loading, warming up.
    pub(super) fn while_serving<T>(
        &mut self,
        served: &Served,
        work: impl FnOnce(&ShmFabric, &Address) -> Result<T, MeasureError>,
    ) -> Result<T, MeasureError> {
        self.pair.begin_subject(served.index, &[])?;
        let outcome = work(&self.fabric, &served.address);
        let ended = self.pair.end_subject();
        let value = outcome?;
        ended?;
        Ok(value)
    }

    /// Drops the clients of a server, and serves until the peer has released their resources; a server that
    /// is not driven would keep them. Gives up after two seconds. A later connection may then run out of
    /// files, and reports that.
    pub(super) fn disconnect<T>(&mut self, served: &Served, clients: Vec<T>) -> Result<(), MeasureError> {
        if clients.is_empty() {
            return Ok(());
        }
        let peer = self.pair.peer_id();
        let files = || std::fs::read_dir(format!("/proc/{peer}/fd")).map_or(0, Iterator::count);
        self.while_serving(served, |_, _| {
            let before = files();
            let count = clients.len();
            drop(clients);
            let until = Instant::now() + Duration::from_secs(2);
            while files() + count > before && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        })
    }

    /// Connects a client to a server, which serves meanwhile.
    pub(super) fn connect(
        &mut self,
        served: &Served,
        config: &ClientConfig,
    ) -> Result<Client<ShmFabric>, MeasureError> {
        self.while_serving(served, |fabric, address| Self::connect_to(fabric, address, config))
    }

    /// Connects a client to a server that is being served.
    pub(super) fn connect_to(
        fabric: &ShmFabric,
        address: &Address,
        config: &ClientConfig,
    ) -> Result<Client<ShmFabric>, MeasureError> {
        Client::connect(fabric, address, config.clone()).map_err(|source| MeasureError::Connect {
            protocol: match config.plan {
                Some(plan) => {
                    plan.protocol().map_or_else(|| format!("{plan:?}"), |protocol| protocol.name.to_owned())
                }
                None => "the usual plan".to_owned(),
            },
            source,
        })
    }
}
