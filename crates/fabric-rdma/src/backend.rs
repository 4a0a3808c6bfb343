//! The RDMA part of control connections: a grant is a memory region of verbs, and the control thread handles
//! events of the device and, on iWARP, of the connection manager.

use crate::config::RdmaConfig;
use crate::device::Device;
use crate::events::Event;
use crate::manager::Manager;
use crate::memory::{RdmaMemory, Registration};
use dunlin_fabric::{Access, GrantError, Host, Nanos, RealHost, Scheme, nanos};
use dunlin_fabric_control::{Backend, Greeting, Heard, Limits, Place, lock};
use rustix::event::epoll::EventFlags;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// The index of the device's descriptor.
const DEVICE: usize = 0;

/// A device, as its control connections use it.
#[derive(Debug)]
pub struct RdmaBackend {
    pub(crate) device: Arc<Device>,
    /// The connection manager, if the device needs it.
    pub(crate) manager: Option<Manager>,
    pub(crate) config: RdmaConfig,
    /// While the port is down: the time at which the links end.
    port_deadline: Mutex<Option<Nanos>>,
}

impl RdmaBackend {
    pub(crate) fn new(device: Arc<Device>, manager: Option<Manager>, config: RdmaConfig) -> Self {
        RdmaBackend { device, manager, config, port_deadline: Mutex::default() }
    }

    fn device_failed(&self) -> Option<String> {
        let name = &self.device.name;
        if self.device.health.has_failed() {
            return None;
        }
        tracing::error!(device = name, "the device failed or was removed");
        self.device.health.fail();
        Some(self.device.trouble().unwrap_or_default())
    }

    /// Handles the device's asynchronous events.
    fn hear_device(&self, flags: EventFlags) -> Heard {
        let (device, ours) = (&self.device, self.device.port.number);
        let name = &device.name;
        let mut heard = Heard::default();
        while let Some(event) = device.next_event() {
            match event {
                Event::PortDown(port) if port == ours => {
                    tracing::warn!(device = name, port, "the port is down");
                    device.health.set_port_down(true);
                    let deadline = RealHost.now().saturating_add(nanos(self.config.port_patience));
                    lock(&self.port_deadline).get_or_insert(deadline);
                }
                Event::PortUp(port) if port == ours => {
                    tracing::info!(device = name, port, "the port is up");
                    device.health.set_port_down(false);
                    *lock(&self.port_deadline) = None;
                }
                Event::Broken(object, what) => {
                    tracing::warn!(device = name, ?object, "{what}");
                    device.health.break_one(object);
                }
                Event::DeviceFailed => heard.end_links = self.device_failed().or(heard.end_links),
                Event::PortDown(_) | Event::PortUp(_) | Event::Other(_) => {
                    tracing::debug!(device = name, ?event, "an event that changes nothing here");
                }
            }
        }
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // The device was removed.
            heard.forget = true;
            heard.end_links = self.device_failed().or(heard.end_links);
        }
        heard
    }
}

impl Backend for RdmaBackend {
    type Memory = RdmaMemory;
    type Registration = Arc<Registration>;

    const SCHEME: Scheme = Scheme::Rdma;
    const THREAD: &'static str = "dunlin-rdma-control";

    fn greeting(&self) -> Greeting {
        Greeting { magic: *b"DunlinRD", version: 3 }
    }

    fn limits(&self) -> Limits {
        let RdmaConfig { max_grants_per_link, greeting_patience, .. } = self.config;
        Limits { max_grants: max_grants_per_link, greeting_patience: nanos(greeting_patience) }
    }

    fn grant(
        &self,
        memory: &Arc<RdmaMemory>,
        access: Access,
    ) -> Result<(Arc<Registration>, Place), GrantError> {
        if !memory.is_of(&self.device) {
            return Err(io::Error::other("it was registered with another fabric").into());
        }
        let registration = memory.registration(access).map_err(io::Error::other)?;
        let place = Place {
            remote_key: registration.remote_key().into(),
            address: registration.address(),
            length: registration.length(),
        };
        Ok((registration, place))
    }

    fn trouble(&self) -> Option<String> {
        self.device.trouble()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let manager = self.manager.as_ref().map(Manager::descriptor);
        std::iter::once(self.device.events()).chain(manager).collect()
    }

    fn hear(&self, place: usize, flags: EventFlags) -> Heard {
        if place == DEVICE {
            return self.hear_device(flags);
        }
        self.manager.iter().for_each(Manager::hear);
        Heard::default()
    }

    fn look_at(&self) -> Option<Nanos> {
        *lock(&self.port_deadline)
    }

    fn look(&self) -> Option<String> {
        lock(&self.port_deadline).take_if(|deadline| RealHost.now() >= *deadline)?;
        Some(self.device.trouble().unwrap_or_default())
    }
}
