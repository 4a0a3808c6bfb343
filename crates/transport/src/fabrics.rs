//! The fabrics of a process. Each is opened at its first use.

use crate::asynchronous::Hubs;
use crate::resolve::Resolved;
use crate::tables::Tables;
use dunlin_fabric::{Address, Capabilities, Fabric, RatesBook, Scheme, Unavailable};
#[cfg(feature = "ofi")]
use dunlin_fabric_ofi::{OfiConfig, OfiFabric};
use dunlin_fabric_rdma::{OpenError, RdmaConfig, RdmaFabric};
use dunlin_fabric_shm::{ShmConfig, ShmFabric};
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use thiserror::Error;

/// Settings of all fabrics.
#[derive(Clone, Debug, Default)]
pub struct FabricsConfig {
    /// Settings of shared memory. Default: [`ShmConfig::default`].
    pub shm: ShmConfig,
    /// Settings of RDMA, in particular device, port and address. Default: [`RdmaConfig::default`].
    pub rdma: RdmaConfig,
    /// The source of measured device rates. Default: [`TablesFrom::User`].
    pub tables: TablesFrom,
    /// Transports that must not be used, neither through an `auto:` address nor by name: fabrics and TCP.
    /// Default: none.
    pub disabled: Vec<Scheme>,
    /// Settings of libfabric. Default: [`OfiConfig::default`].
    #[cfg(feature = "ofi")]
    pub ofi: OfiConfig,
}

/// The source of measured rate tables, for clients that choose between fetching and writing back and were
/// given no table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TablesFrom {
    /// The user's cache folder ([`Tables::of_user`]).
    #[default]
    User,
    /// These tables.
    Tables(Tables),
    /// No tables: clients use the built-in rates.
    Nowhere,
}

impl TablesFrom {
    fn book(&self) -> Option<Arc<dyn RatesBook>> {
        match self {
            TablesFrom::User => match Tables::of_user() {
                Ok(tables) => Some(Arc::new(tables)),
                Err(error) => {
                    tracing::debug!(target: "dunlin::transport", "measured tables are not looked for: {error}");
                    None
                }
            },
            TablesFrom::Tables(tables) => Some(Arc::new(tables.clone())),
            TablesFrom::Nowhere => None,
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    config: FabricsConfig,
    shm: Mutex<Option<ShmFabric>>,
    rdma: Mutex<Option<RdmaFabric>>,
    /// By provider.
    #[cfg(feature = "ofi")]
    ofi: Mutex<std::collections::BTreeMap<String, OfiFabric>>,
    hubs: Hubs,
}

/// All fabrics of this build.
///
/// None is opened before an address names it, so a machine without RDMA can use shared memory. Clones share
/// the fabrics, and the hubs of their asynchronous clients; one set per process is enough, and
/// [`global`](Fabrics::global) is it. All methods may be called from any thread. Methods that open a
/// fabric block.
#[derive(Clone, Debug, Default)]
pub struct Fabrics(Arc<Inner>);

/// The fabric that an address names.
#[derive(Clone, Debug)]
pub enum ChosenFabric {
    /// Shared memory between processes of one host.
    Shm(ShmFabric),
    /// RDMA verbs.
    Rdma(RdmaFabric),
    /// libfabric.
    #[cfg(feature = "ofi")]
    Ofi(OfiFabric),
}

/// A source of fabrics for addresses: all fabrics, or a single one, which accepts only its own addresses.
pub trait FabricSelector: Send + Sync + 'static {
    /// Returns the fabric that an address names, or an error; never a different fabric. May block while a
    /// fabric is opened.
    fn choose(&self, address: &Address) -> Result<ChosenFabric, Unavailable>;

    /// Resolves an `auto:` address; see [`Fabrics::resolve`]. A single fabric returns the address itself.
    fn resolve(&self, address: &Address) -> Result<Resolved, Unavailable> {
        Ok(Resolved::named(address))
    }

    /// Returns the set of all fabrics, if this is it. A single fabric is none.
    fn all(&self) -> Option<&Fabrics> {
        None
    }
}

impl FabricSelector for Fabrics {
    fn choose(&self, address: &Address) -> Result<ChosenFabric, Unavailable> {
        Fabrics::choose(self, address)
    }

    fn resolve(&self, address: &Address) -> Result<Resolved, Unavailable> {
        Fabrics::resolve(self, address)
    }

    fn all(&self) -> Option<&Fabrics> {
        Some(self)
    }
}

impl FabricSelector for ShmFabric {
    fn choose(&self, address: &Address) -> Result<ChosenFabric, Unavailable> {
        only(address, Scheme::Shm).map(|()| ChosenFabric::Shm(self.clone()))
    }
}

impl FabricSelector for RdmaFabric {
    fn choose(&self, address: &Address) -> Result<ChosenFabric, Unavailable> {
        only(address, Scheme::Rdma).map(|()| ChosenFabric::Rdma(self.clone()))
    }
}

#[cfg(feature = "ofi")]
impl FabricSelector for OfiFabric {
    fn choose(&self, address: &Address) -> Result<ChosenFabric, Unavailable> {
        only(address, Scheme::Ofi).map(|()| ChosenFabric::Ofi(self.clone()))
    }
}

fn only(address: &Address, scheme: Scheme) -> Result<(), Unavailable> {
    if address.scheme() == scheme {
        return Ok(());
    }
    let source =
        format!("only the fabric of {}: addresses was given; give all of them, Fabrics", scheme.as_str());
    Err(Unavailable { address: address.clone(), source: source.into() })
}

/// The fabrics of this process ([`Fabrics::global`]).
static GLOBAL: OnceLock<Fabrics> = OnceLock::new();

/// The fabrics of the process are in use or were set before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the fabrics of this process are set or in use already: call Fabrics::make_global once, before anything connects or serves"
)]
pub struct GlobalInUse;

impl Fabrics {
    /// Creates the set with these settings. Opens nothing yet.
    pub fn new(config: FabricsConfig) -> Self {
        Fabrics(Arc::new(Inner { config, ..Inner::default() }))
    }

    /// Returns the fabrics of this process, which all functions use that are not given others: `connect` of
    /// every client, `serve`, and [`ServerBuilder`](crate::ServerBuilder).
    ///
    /// The first use makes them, with default settings unless [`make_global`](Fabrics::make_global) was
    /// called before. They live as long as the process.
    pub fn global() -> &'static Fabrics {
        GLOBAL.get_or_init(Fabrics::default)
    }

    /// Makes these the fabrics of this process. A program with settings of its own calls it once, at its
    /// beginning; a library leaves it to the program.
    ///
    /// # Errors
    /// The fabrics of this process were used or set before; they stay.
    pub fn make_global(self) -> Result<(), GlobalInUse> {
        GLOBAL.set(self).map_err(|_| GlobalInUse)
    }

    /// Returns the hubs of the asynchronous clients.
    pub(crate) fn hubs(&self) -> &Hubs {
        &self.0.hubs
    }

    /// Returns the settings.
    pub fn config(&self) -> &FabricsConfig {
        &self.0.config
    }

    /// Returns shared memory. The first call opens it.
    pub fn shm(&self) -> io::Result<ShmFabric> {
        opened(&self.0.shm, || {
            let fabric = ShmFabric::new(self.0.config.shm.clone())?;
            if let Some(book) = self.0.config.tables.book() {
                fabric.set_rates_book(book);
            }
            Ok(fabric)
        })
    }

    /// Returns RDMA. The first call opens it; after an error a later call tries again.
    pub fn rdma(&self) -> Result<RdmaFabric, OpenError> {
        opened(&self.0.rdma, || {
            let fabric = RdmaFabric::new(self.0.config.rdma.clone())?;
            if let Some(book) = self.0.config.tables.book() {
                fabric.set_rates_book(book);
            }
            Ok(fabric)
        })
    }

    /// Returns a provider of libfabric. The first call opens it; after an error a later call tries again.
    #[cfg(feature = "ofi")]
    pub fn ofi(&self, provider: &str) -> Result<OfiFabric, dunlin_fabric_ofi::OpenError> {
        let mut known = self.0.ofi.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fabric) = known.get(provider) {
            return Ok(fabric.clone());
        }
        let fabric = OfiFabric::new(provider, self.0.config.ofi.clone())?;
        known.insert(provider.to_owned(), fabric.clone());
        Ok(fabric)
    }

    /// Fails if the settings disable the address's transport.
    pub(crate) fn allow(&self, address: &Address) -> Result<(), Unavailable> {
        if self.0.config.disabled.contains(&address.scheme()) {
            let source = "it is disabled by the settings of this process".into();
            return Err(Unavailable { address: address.clone(), source });
        }
        Ok(())
    }

    /// Returns the fabric that an address names, opening it if necessary; never a different fabric.
    pub fn choose(&self, address: &Address) -> Result<ChosenFabric, Unavailable> {
        self.allow(address)?;
        let chosen: Result<_, Box<dyn std::error::Error + Send + Sync>> = match address.scheme() {
            Scheme::Shm => self.shm().map(ChosenFabric::Shm).map_err(Into::into),
            Scheme::Rdma => self.rdma().map(ChosenFabric::Rdma).map_err(Into::into),
            #[cfg(feature = "ofi")]
            Scheme::Ofi => {
                self.ofi(address.provider().unwrap_or_default()).map(ChosenFabric::Ofi).map_err(Into::into)
            }
            #[cfg(not(feature = "ofi"))]
            Scheme::Ofi => Err("this build is without libfabric: build it with the feature `ofi`".into()),
            Scheme::Tcp => {
                Err("TCP is no fabric: typed services go by it, calls of functions by number do not".into())
            }
            Scheme::Auto => Err(
                "this takes the address of one fabric, shm:NAME or rdma:HOST:PORT; Fabrics::resolve gives it"
                    .into(),
            ),
            Scheme::Node => Err(
                "this takes the address of a fabric, shm:NAME or rdma:HOST:PORT; node: is for calls by function"
                    .into(),
            ),
            Scheme::Sim => {
                Err("the simulator is no place of this machine: use shm:NAME or rdma:HOST:PORT".into())
            }
        };
        let chosen = chosen.map_err(|source| Unavailable { address: address.clone(), source })?;
        tracing::debug!(target: "dunlin::transport", %address, transport = chosen.capabilities().name, "chosen by the address");
        Ok(chosen)
    }
}

fn opened<F: Clone, E>(place: &Mutex<Option<F>>, open: impl FnOnce() -> Result<F, E>) -> Result<F, E> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fabric) = &*place {
        return Ok(fabric.clone());
    }
    let fabric = open()?;
    *place = Some(fabric.clone());
    Ok(fabric)
}

impl ChosenFabric {
    /// Returns the fabric's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        each!(Self, self, fabric => fabric.capabilities())
    }
}

/// Runs a block with the chosen fabric. The block is compiled for each fabric, so it runs as fast as code for
/// that fabric alone. `$chosen` is a [`ChosenFabric`] or a reference to one.
///
/// ```
/// use dunlin_fabric::Fabric;
/// use dunlin_transport::{Fabrics, on_fabric};
///
/// let chosen = Fabrics::default().choose(&"shm:orders".parse()?)?;
/// let atomics = on_fabric!(&chosen, fabric => fabric.capabilities().atomics.exist());
/// assert!(atomics);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(not(feature = "ofi"))]
#[macro_export]
macro_rules! on_fabric {
    ($chosen:expr, $fabric:ident => $body:expr) => {
        match $chosen {
            $crate::ChosenFabric::Shm($fabric) => $body,
            $crate::ChosenFabric::Rdma($fabric) => $body,
        }
    };
}

/// Runs a block with the chosen fabric. The block is compiled for each fabric, so it runs as fast as code for
/// that fabric alone. `$chosen` is a [`ChosenFabric`] or a reference to one.
///
/// ```
/// use dunlin_fabric::Fabric;
/// use dunlin_transport::{Fabrics, on_fabric};
///
/// let chosen = Fabrics::default().choose(&"shm:orders".parse()?)?;
/// let atomics = on_fabric!(&chosen, fabric => fabric.capabilities().atomics.exist());
/// assert!(atomics);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "ofi")]
#[macro_export]
macro_rules! on_fabric {
    ($chosen:expr, $fabric:ident => $body:expr) => {
        match $chosen {
            $crate::ChosenFabric::Shm($fabric) => $body,
            $crate::ChosenFabric::Rdma($fabric) => $body,
            $crate::ChosenFabric::Ofi($fabric) => $body,
        }
    };
}
