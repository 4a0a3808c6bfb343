//! The fabric: makes everything else.

use crate::backend::OfiBackend;
use crate::config::OfiConfig;
use crate::device::{Device, OpenError};
use crate::domain::OfiDomain;
use crate::keeper::{Keeper, Running};
use crate::library::{Library, LibraryError};
use crate::memory::OfiMemory;
use crate::send::MAX_PARTS;
use crate::{Control, OfiLink, OfiListener};
use dunlin_fabric::{
    Access, Address, Capabilities, CreateError, DialError, Fabric, ListenError, Nanos, RealHost,
    RegisterError, Scheme,
};
use std::io;
use std::sync::Arc;

/// The longest message that is sent at once, whatever the provider takes: a longer one gains nothing and keeps others waiting.
const MAX_MESSAGE: usize = Capabilities::OFI.max_message as usize;
/// The most queue pairs of a domain: they have slots of 16 bits.
const MAX_QUEUE_PAIRS: u32 = 1 << 16;

#[derive(Debug)]
struct Inner {
    control: Arc<Control>,
    running: Arc<Running>,
    device: Arc<Device>,
    capabilities: Arc<Capabilities>,
}

/// One provider of libfabric. Clones are the same fabric, with one control thread and one that keeps progress; all methods may
/// be called from any thread.
#[derive(Clone, Debug)]
pub struct OfiFabric(Arc<Inner>);

/// Whether libfabric can be used.
pub fn open_library() -> Result<(), LibraryError> {
    Library::get().map(|_| ())
}

impl OfiFabric {
    /// Opens libfabric and a provider, `tcp` for example, and starts the threads.
    pub fn new(provider: &str, config: OfiConfig) -> Result<Self, OpenError> {
        let device = Device::open(provider, config)?;
        let system = |what| move |source| OpenError::System { provider: provider.to_owned(), what, source };
        let (transmit, receive) = (device.info.transmit(), device.info.receive());
        let limits = [transmit.iov_limit, receive.iov_limit, transmit.rma_iov_limit];
        if limits[0] < MAX_PARTS || limits[1] < 2 || limits[2] < 1 {
            let source = io::Error::other(format!("it takes messages of {limits:?} parts only"));
            return Err(system("opening it")(source));
        }
        let domain = device.info.domain();
        let pairs = u32::try_from(domain.ep_cnt).unwrap_or(u32::MAX).min(MAX_QUEUE_PAIRS);
        let capabilities = Arc::new(Capabilities {
            max_inline: device.config.max_inline,
            max_message: device.info.endpoint().max_msg_size.min(MAX_MESSAGE) as u32,
            shared_receive_queue: domain.max_ep_srx_ctx > 0,
            max_queue_pairs: if pairs == 0 { MAX_QUEUE_PAIRS } else { pairs },
            ..Capabilities::OFI
        });
        let running = Keeper::start(&device).map_err(system("the thread that keeps progress"))?;
        let backend = Arc::new(OfiBackend { device: Arc::clone(&device) });
        let control = Control::start(backend).map_err(system("the control thread"))?;
        tracing::info!(provider, "opened a provider of libfabric");
        Ok(OfiFabric(Arc::new(Inner { control, running, device, capabilities })))
    }

    /// The provider's name.
    pub fn provider(&self) -> &str {
        &self.0.device.provider
    }

    /// Host and port of an address of ours.
    fn place<'a>(&self, address: &'a Address) -> Option<(&'a str, u16)> {
        (address.scheme() == Scheme::Ofi && address.provider() == Some(self.provider()))
            .then(|| address.host_and_port())
            .flatten()
    }
}

impl Fabric for OfiFabric {
    type Host = RealHost;
    type Memory = OfiMemory;
    type Link = OfiLink;
    type Listener = OfiListener;
    type Domain = OfiDomain;

    fn host(&self) -> &RealHost {
        &RealHost
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn register(&self, length: u64, access: Access) -> Result<OfiMemory, RegisterError> {
        OfiMemory::new(&self.0.device, length, access)
    }

    fn domain(&self) -> Result<OfiDomain, CreateError> {
        let Inner { control, running, device, capabilities } = &*self.0;
        OfiDomain::new(Arc::clone(capabilities), Arc::clone(device), Arc::clone(control), Arc::clone(running))
    }

    fn listen(&self, address: &Address) -> Result<OfiListener, ListenError> {
        let (host, port) = self.place(address).ok_or_else(|| ListenError::WrongScheme(address.clone()))?;
        self.0.control.listen(address, (&format!("{}:", self.provider()), host, port))
    }

    fn dial(&self, address: &Address, until: Nanos) -> Result<OfiLink, DialError> {
        let place = self.place(address).ok_or_else(|| DialError::WrongScheme(address.clone()))?;
        self.0.control.dial(address, place, until)
    }
}
