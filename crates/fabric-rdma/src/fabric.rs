//! The fabric, which creates all other objects.

use crate::backend::RdmaBackend;
use crate::config::RdmaConfig;
use crate::device::{self, Device, OpenError};
use crate::domain::RdmaDomain;
use crate::handles::{self, QueuePairParts};
use crate::library::{Library, LibraryError};
use crate::manager::Manager;
use crate::memory::{RdmaMemory, Registration};
use crate::send::MAX_PARTS;
use crate::{Control, RdmaLink, RdmaListener, sys};
use dunlin_fabric::{
    Access, Address, AnyMemory, Capabilities, CreateError, DeviceIdentity, DialError, Fabric, KnownRates,
    ListenError, Nanos, PlainPayloads, Rates, RatesBook, RealHost, RegisterError, Scheme, Transport,
    TransportSet,
};
use std::io;
use std::sync::Arc;

/// The limit for one message, whatever the device allows. A longer message would gain nothing and delay
/// others.
const MAX_MESSAGE: u32 = 64 << 20;
/// The maximum depth of a queue, which all devices support, with inline data too.
const MAX_QUEUE_DEPTH: u32 = 4096;
/// The maximum number of queue pairs in one domain: slots have 16 bits.
const MAX_QUEUE_PAIRS: u32 = 1 << 16;
/// Bytes before each datagram: InfiniBand's GRH, or room for it.
const DATAGRAM_HEADROOM: u32 = 40;

#[derive(Debug)]
struct Inner {
    control: Arc<Control>,
    capabilities: Arc<Capabilities>,
    rates: KnownRates,
    /// A registration with all kinds of access that has no memory at address 0.
    trap: Arc<Registration>,
}

/// RDMA verbs on one port of one device. Clones are the same fabric, with one control thread; all methods may
/// be called from any thread.
#[derive(Clone, Debug)]
pub struct RdmaFabric(Arc<Inner>);

/// Returns an error if libibverbs cannot be used.
pub fn open_library() -> Result<(), LibraryError> {
    Library::get().map(|_| ())
}

/// Returns the names of this machine's RDMA devices.
pub fn device_names() -> Result<Vec<String>, OpenError> {
    device::names()
}

impl RdmaFabric {
    /// Opens libibverbs and a device, and starts the control thread. Missing settings are taken from the
    /// environment ([`RdmaConfig::completed`]), then chosen automatically.
    pub fn new(config: RdmaConfig) -> Result<Self, OpenError> {
        let config = config.completed()?;
        let device = Device::open(&config.device)?;
        let failed = |what, source| OpenError::System { device: device.name.clone(), what, source };
        let manager = device.is_iwarp.then(|| Manager::new(&device)).transpose()?;
        let transports = match device.is_iwarp {
            true => Capabilities::IWARP.transports,
            false => TransportSet::ALL,
        };
        let max_inline =
            probe_inline(&device, transports, config.max_inline).map_err(|e| failed("ibv_create_qp", e))?;
        let attributes = device.attributes;
        let atomics = attributes.atomics;
        let capabilities = Arc::new(Capabilities {
            name: if device.is_iwarp { Capabilities::IWARP.name } else { "rdma" },
            transports,
            max_inline,
            max_message: device.port.max_message.min(MAX_MESSAGE),
            max_datagram: device.port.mtu_bytes(),
            datagram_headroom: DATAGRAM_HEADROOM,
            atomics,
            immediate: !device.is_iwarp,
            acknowledged: !device.is_iwarp,
            in_order_write: config.in_order_write.unwrap_or(attributes.in_order),
            cache_line_atomic_reads: !attributes.copies,
            shared_receive_queue: attributes.shared_receive_queues,
            events: true,
            write_wakes: false,
            wakes_others: true,
            initiator_copies: false,
            target_progress: false,
            adopts: true,
            max_queue_pairs: attributes.max_queue_pairs.min(MAX_QUEUE_PAIRS),
            max_queue_depth: attributes.max_work_requests.min(MAX_QUEUE_DEPTH),
        });
        let access = Access::READ.with(Access::WRITE);
        let access = if atomics.exist() { access.with(Access::ATOMIC) } else { access };
        let trap = RdmaMemory::new(&device, 64, access)
            .and_then(|memory| memory.registration(access))
            .map_err(|error| failed("ibv_reg_mr", io::Error::other(error)))?;
        tracing::info!(
            device = device.name,
            port = device.port.number,
            network = device.port.gid.link.name(),
            gid = %std::net::Ipv6Addr::from(device.port.gid.gid.0),
            gid_index = device.port.gid.index,
            mtu = device.port.mtu_bytes(),
            "opened an RDMA device"
        );
        let backend = Arc::new(RdmaBackend::new(Arc::clone(&device), manager, config));
        let control = Control::start(backend).map_err(|e| failed("the control thread", e))?;
        Ok(RdmaFabric(Arc::new(Inner { control, capabilities, rates: KnownRates::default(), trap })))
    }

    /// Returns a text with device, port and address, and the MTU in bytes.
    pub fn description(&self) -> String {
        let device = &self.0.control.backend().device;
        let (port, gid) = (&device.port, &device.port.gid);
        let address = std::net::Ipv6Addr::from(gid.gid.0);
        let address = address.to_ipv4_mapped().map_or_else(|| address.to_string(), |v4| v4.to_string());
        let (name, number, network, index) = (&device.name, port.number, gid.link.name(), gid.index);
        match &self.0.control.backend().manager {
            Some(manager) => format!("{name} port {number}, {network}, address {}", manager.address()),
            None => {
                format!("{name} port {number}, {network}, GID {index} ({address}), MTU {}", port.mtu_bytes())
            }
        }
    }

    /// Returns the device's name.
    pub fn device_name(&self) -> &str {
        &self.0.control.backend().device.name
    }

    /// Sets the source of measured rates. Only the first call counts. The source is not read before rates are
    /// requested.
    pub fn set_rates_book(&self, book: Arc<dyn RatesBook>) {
        self.0.rates.set_book(book);
    }
}

/// Returns the largest inline limit, up to `wanted`, with which the device creates queue pairs of each
/// transport.
fn probe_inline(device: &Arc<Device>, transports: TransportSet, wanted: u32) -> io::Result<u32> {
    let queue = handles::CompletionQueue::new(device, 1, None, 0)?;
    let mut max_inline = wanted;
    loop {
        let kinds =
            [Transport::ReliableConnection, Transport::UnreliableConnection, Transport::UnreliableDatagram];
        let made = kinds.into_iter().filter(|kind| transports.contains(*kind)).map(|transport| {
            let parts = QueuePairParts {
                transport: sys::transport(transport),
                send_completions: &queue,
                receive_completions: &queue,
                shared_receive: None,
                capacity: sys::QueuePairCapacity {
                    max_send_wr: 16,
                    max_receive_wr: 1,
                    max_send_sge: MAX_PARTS as u32,
                    max_receive_sge: 1,
                    max_inline,
                },
            };
            handles::QueuePair::new(device, parts).map(drop)
        });
        match made.collect::<io::Result<()>>() {
            Ok(()) => return Ok(max_inline),
            Err(error) if max_inline == 0 => return Err(error),
            Err(_) => max_inline = if max_inline > 16 { max_inline / 2 } else { 0 },
        }
    }
}

fn host_and_port(address: &Address) -> Option<(&str, u16)> {
    (address.scheme() == Scheme::Rdma).then(|| address.host_and_port()).flatten()
}

impl Fabric for RdmaFabric {
    type Host = RealHost;
    type Memory = RdmaMemory;
    type Link = RdmaLink;
    type Listener = RdmaListener;
    type Domain = RdmaDomain;
    type Payloads = PlainPayloads;

    fn host(&self) -> &RealHost {
        &RealHost
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn device(&self) -> DeviceIdentity {
        let device = &self.0.control.backend().device;
        let made = &device.attributes.made;
        DeviceIdentity::of(self.0.capabilities.name)
            .with("device", &device.name)
            .with("vendor", format_args!("{:#x}", made.vendor))
            .with("part", made.part)
            .with("firmware", made.firmware())
            .with("GUID", format_args!("{:016x}", made.guid))
            .with("port", device.port.number)
            .with("network", device.port.gid.link.name())
            .with("Mb/s", device.port.megabits)
            .with("MTU", device.port.mtu_bytes())
    }

    fn rates(&self) -> Option<Arc<Rates>> {
        self.0.rates.get(|| self.device())
    }

    fn payloads(&self) -> PlainPayloads {
        PlainPayloads
    }

    fn register(&self, length: u64, access: Access) -> Result<RdmaMemory, RegisterError> {
        RdmaMemory::new(&self.0.control.backend().device, length, access)
    }

    fn adopt(&self, memory: AnyMemory) -> Result<RdmaMemory, RegisterError> {
        RdmaMemory::adopt(&self.0.control.backend().device, memory)
    }

    fn domain(&self) -> Result<RdmaDomain, CreateError> {
        let Inner { control, capabilities, trap, .. } = &*self.0;
        RdmaDomain::new(Arc::clone(capabilities), trap.remote_key(), Arc::clone(control))
    }

    fn listen(&self, address: &Address) -> Result<RdmaListener, ListenError> {
        let (host, port) = host_and_port(address).ok_or_else(|| ListenError::WrongScheme(address.clone()))?;
        self.0.control.listen(address, ("", host, port))
    }

    fn dial(&self, address: &Address, until: Nanos) -> Result<RdmaLink, DialError> {
        let (host, port) = host_and_port(address).ok_or_else(|| DialError::WrongScheme(address.clone()))?;
        self.0.control.dial(address, (host, port), until)
    }
}
