//! The environment of a role: the fabric, the link to the other role, and a deadline.

use crate::case::Role;
use crate::failure::{Failure, Verdict};
use crate::station::Station;
use dunlin_fabric::{
    Access, Address, DialError, Endpoint, Fabric, Host, Link, Listener, Nanos, QueuePairConfig, QueuePairId,
    Region, RegionKey, ThreadDomain,
};

/// One millisecond, in the host's unit of time.
pub const MILLISECOND: Nanos = 1_000_000;

/// The environment of a role. It waits only through the fabric and its host, so that a simulator can run it.
#[derive(Debug)]
pub struct Context<F: Fabric> {
    /// The fabric under test, as this role sees it.
    pub fabric: F,
    /// The time at which the case counts as stuck and fails.
    pub deadline: Nanos,
    /// The address of this case, on which the first role listens.
    pub address: Address,
    /// Whether the other role has its own process.
    pub two_processes: bool,
    role: Role,
    listener: Option<F::Listener>,
    link: Option<F::Link>,
}

impl<F: Fabric> Context<F> {
    /// Makes a context without a link.
    pub fn alone(fabric: &F, address: &Address, limit: Nanos) -> Self {
        let deadline = fabric.host().now() + limit;
        Context {
            fabric: fabric.clone(),
            deadline,
            address: address.clone(),
            two_processes: false,
            role: Role::First,
            listener: None,
            link: None,
        }
    }

    /// Makes a context with a link to the other role, which calls this too.
    pub fn meet(
        fabric: &F,
        address: &Address,
        role: Role,
        two_processes: bool,
        limit: Nanos,
    ) -> Result<Self, Failure> {
        let mut context = Context { role, two_processes, ..Context::alone(fabric, address, limit) };
        if role == Role::First {
            context.listener = Some(fabric.listen(address)?);
        }
        context.link = Some(context.another_link()?);
        Ok(context)
    }

    /// Returns the time.
    pub fn now(&self) -> Nanos {
        self.fabric.host().now()
    }

    /// Returns the link to the other role.
    pub fn link(&self) -> &F::Link {
        self.link.as_ref().expect("only cases with two roles use the link")
    }

    /// Opens another link to the other role, which calls this too.
    pub fn another_link(&self) -> Result<F::Link, Failure> {
        if let Some(listener) = &self.listener {
            return Ok(listener.accept(self.deadline)?);
        }
        loop {
            match self.fabric.dial(&self.address, self.deadline) {
                // The first role may not listen yet.
                Err(DialError::NobodyListens { .. }) if self.now() < self.deadline => {
                    self.fabric.host().sleep(self.now() + MILLISECOND);
                }
                result => return Ok(result?),
            }
        }
    }

    /// Sends a control message.
    pub fn tell(&self, message: &[u8]) -> Verdict {
        Ok(self.link().send(message)?)
    }

    /// Returns the next control message. No domain makes progress meanwhile.
    pub fn hear(&self) -> Result<Vec<u8>, Failure> {
        Ok(self.link().receive(self.deadline)?)
    }

    /// Returns the next control message; the station makes progress meanwhile.
    pub fn hear_at(&self, station: &mut Station<F>) -> Result<Vec<u8>, Failure> {
        let link = self.link();
        station.until("a control message", |_| Ok(link.try_receive()?))
    }

    /// Sends a message and returns the other role's, which calls this too.
    pub fn exchange(&self, message: &[u8]) -> Result<Vec<u8>, Failure> {
        self.tell(message)?;
        self.hear()
    }

    /// Waits until both roles have reached this point. The station makes progress meanwhile.
    pub fn meet_at(&self, station: &mut Station<F>) -> Verdict {
        self.tell(b"here")?;
        let message = self.hear_at(station)?;
        crate::expect_eq!(message, b"here", "the roles have lost step");
        Ok(())
    }

    /// Makes a station with usual depths.
    pub fn station(&self) -> Result<Station<F>, Failure> {
        Station::new(&self.fabric, self.deadline, 1024)
    }

    /// Makes a station whose completion queues raise no events.
    pub fn station_without_events(&self) -> Result<Station<F>, Failure> {
        Station::with_events(&self.fabric, self.deadline, 1024, false)
    }

    /// Makes a queue pair and connects it to the one that the other role makes by the same call.
    pub fn connect(
        &self,
        station: &mut Station<F>,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, Failure> {
        self.connect_over(self.link(), station, config)
    }

    /// As [`connect`](Context::connect), over another link.
    pub fn connect_over(
        &self,
        link: &F::Link,
        station: &mut Station<F>,
        config: &QueuePairConfig,
    ) -> Result<QueuePairId, Failure> {
        let queue_pair = station.domain.create_queue_pair(config)?;
        let remote = self.swap_endpoints(link, station, queue_pair)?;
        station.domain.connect(queue_pair, link, &remote)?;
        Ok(queue_pair)
    }

    /// Sends a queue pair's endpoint to the other role, and returns the other role's endpoint.
    pub fn swap_endpoints(
        &self,
        link: &F::Link,
        station: &mut Station<F>,
        queue_pair: QueuePairId,
    ) -> Result<Endpoint, Failure> {
        let endpoint = station.domain.endpoint(queue_pair, link)?;
        crate::expect!(
            endpoint.0.len() <= 256,
            "an endpoint has at most 256 bytes, not {}",
            endpoint.0.len()
        );
        link.send(&endpoint.0)?;
        Ok(Endpoint(link.receive(self.deadline)?))
    }

    /// Registers a region.
    pub fn region(&self, length: usize, access: Access) -> Result<Region<F::Memory>, Failure> {
        Ok(Region::new(self.fabric.register(length as u64, access)?))
    }

    /// Grants a region and sends its key to the other role.
    pub fn lend(&self, region: &Region<F::Memory>, access: Access) -> Result<RegionKey, Failure> {
        let key = self.link().grant(region.memory(), access)?;
        self.tell(&key.0.to_le_bytes())?;
        Ok(key)
    }

    /// Returns the key of the region that the other role [lends](Context::lend).
    pub fn borrow_key(&self) -> Result<RegionKey, Failure> {
        Ok(RegionKey(self.hear_number()?))
    }

    /// Sends a number.
    pub fn tell_number(&self, number: u64) -> Verdict {
        self.tell(&number.to_le_bytes())
    }

    /// Receives a number.
    pub fn hear_number(&self) -> Result<u64, Failure> {
        let message = self.hear()?;
        let Ok(bytes) = message.as_slice().try_into() else {
            return Err(Failure::new(format!("the roles have lost step: {message:?} is not a number")));
        };
        Ok(u64::from_le_bytes(bytes))
    }

    /// Ends this role as abruptly as possible: by SIGKILL if it is the second role and has its own process,
    /// otherwise by closing the link.
    pub fn die(&self) {
        if self.two_processes && self.role == Role::Second {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        self.link().close();
    }
}
