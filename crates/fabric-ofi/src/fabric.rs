//! The fabric, which creates all other objects.

use crate::backend::OfiBackend;
use crate::config::OfiConfig;
use crate::device::{Device, OpenError};
use crate::domain::OfiDomain;
use crate::features::{ASKED, EndpointKind};
use crate::handles::Info;
use crate::header::HEADER;
use crate::library::{Library, LibraryError};
use crate::memory::OfiMemory;
use crate::progress_thread::{ProgressThread, Running};
use crate::{Control, OfiLink, OfiListener};
use dunlin_fabric::{
    Access, Address, AnyMemory, Capabilities, CreateError, DialError, Fabric, ListenError, Nanos,
    PlainPayloads, RealHost, RegisterError, Scheme,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The limit for one message, whatever the provider allows. A longer message would gain nothing and delay
/// others.
const MAX_MESSAGE: usize = Capabilities::OFI.max_message as usize;
/// The maximum number of queue pairs in one domain: slots have 16 bits.
const MAX_QUEUE_PAIRS: u32 = 1 << 16;
/// The same for datagrams, where each queue pair is an endpoint. Providers expect few: `tcp;ofi_rxm` has 25
/// MB of buffers for each, Slingshot's NIC allows 511, EFA's some hundred.
const MAX_DATAGRAM_PAIRS: u32 = 128;

#[derive(Debug)]
struct Inner {
    control: Arc<Control>,
    running: Arc<Running>,
    device: Arc<Device>,
    capabilities: Arc<Capabilities>,
}

/// One provider of libfabric. Clones are the same fabric, with one control thread and one keeper thread,
/// which makes progress; all methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct OfiFabric(Arc<Inner>);

/// Returns an error if libfabric cannot be used.
pub fn open_library() -> Result<(), LibraryError> {
    Library::get().map(|_| ())
}

/// Returns the usable providers of libfabric, each with the kind of endpoints that its queue pairs use:
/// connected ones if it has both.
pub fn providers() -> Result<Vec<(String, EndpointKind)>, LibraryError> {
    let library = Library::get()?;
    let mut known = BTreeMap::new();
    for asked in &ASKED {
        // An error means that no provider matches.
        for name in Info::providers(library, asked).unwrap_or_default() {
            known.entry(name).or_insert(asked.kind);
        }
    }
    Ok(known.into_iter().collect())
}

impl OfiFabric {
    /// Opens libfabric and a provider (`tcp`, `tcp;ofi_rxm`, `efa`, `cxi`), and starts the threads.
    pub fn new(provider: &str, config: OfiConfig) -> Result<Self, OpenError> {
        let device = Device::open(provider, config)?;
        let system = |what| move |source| OpenError::System { provider: provider.to_owned(), what, source };
        let features = &device.features;
        let most = if features.is_connected() { MAX_QUEUE_PAIRS } else { MAX_DATAGRAM_PAIRS };
        let pairs = features.endpoints.map_or(most, |pairs| u32::try_from(pairs).unwrap_or(u32::MAX));
        let capabilities = Arc::new(Capabilities {
            max_inline: device.config.max_inline,
            max_message: features.max_message.saturating_sub(HEADER).min(MAX_MESSAGE) as u32,
            shared_receive_queue: features.shared_receives,
            max_queue_pairs: pairs.min(most),
            ..Capabilities::OFI
        });
        let running = ProgressThread::start(&device).map_err(system("the thread that keeps progress"))?;
        let backend = Arc::new(OfiBackend { device: Arc::clone(&device) });
        let control = Control::start(backend).map_err(system("the control thread"))?;
        tracing::info!(provider, "opened a provider of libfabric");
        let fabric = OfiFabric(Arc::new(Inner { control, running, device, capabilities }));
        if let Some(fault) = fabric.known_fault() {
            tracing::warn!(provider, "{fault}");
        }
        Ok(fabric)
    }

    /// Returns a fault of this libfabric by which the end of a peer can end this process, if it has it.
    ///
    /// Up to version 1.17 its `tcp` reports a READ whose answer was cut off twice and frees it twice; the
    /// second report carries no context, which `ofi_rxm` dereferences. `ofi_rxm` READs the data of each long
    /// SEND. Version 1.18 takes the READ off its queue first.
    pub fn known_fault(&self) -> Option<String> {
        let provider = self.provider();
        let (major, minor) = self.0.device.domain.library.major_and_minor();
        ((major, minor) < (1, 18) && provider.contains("tcp") && provider.contains("ofi_rxm")).then(|| {
            format!(
                "libfabric {major}.{minor} can crash when a peer ends during a READ or a long SEND by \
                 {provider}: version 1.18 does not, nor does the provider tcp"
            )
        })
    }

    /// Returns the kind of the fabric's endpoints.
    pub fn endpoints(&self) -> EndpointKind {
        self.0.device.features.kind
    }

    /// Returns the number of messages that did not come from a queue pair's other end and were dropped.
    /// Always 0 with connected endpoints.
    pub fn strays(&self) -> u64 {
        self.0.device.reach.as_ref().map_or(0, |reach| reach.strays().load(Ordering::Relaxed))
    }

    /// Sends raw messages to the address in an endpoint, from a new endpoint at this address of the host. For
    /// tests of messages from unknown senders.
    #[cfg(feature = "testing")]
    pub fn send_as_stranger(
        &self,
        local: std::net::IpAddr,
        to: &dunlin_fabric::Endpoint,
        messages: &[Vec<u8>],
    ) -> std::io::Result<()> {
        crate::stranger::send(&self.0.device, local, to, messages)
    }

    /// Returns the provider's name.
    pub fn provider(&self) -> &str {
        &self.0.device.provider
    }

    /// Returns host and port of an address of this fabric.
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
    type Payloads = PlainPayloads;

    fn host(&self) -> &RealHost {
        &RealHost
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn payloads(&self) -> PlainPayloads {
        PlainPayloads
    }

    fn register(&self, length: u64, access: Access) -> Result<OfiMemory, RegisterError> {
        OfiMemory::new(&self.0.device, length, access)
    }

    fn adopt(&self, memory: AnyMemory) -> Result<OfiMemory, RegisterError> {
        OfiMemory::adopt(&self.0.device, memory)
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
