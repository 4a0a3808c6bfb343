//! The control thread of the fabric: a [`Reactor`] over its control sockets, which also ticks for the [`Watchdog`].

use crate::config::ShmConfig;
use crate::frame::READ_BUFFER;
use crate::watchdog::Watchdog;
use dunlin_fabric_control::{Chores, Reactor, ReactorHandle, Waker};
use std::io;
use std::sync::Arc;

/// State that the control thread and all objects of a fabric share.
#[derive(Debug)]
pub(crate) struct Io {
    reactor: ReactorHandle,
    watchdog: Arc<Watchdog>,
    config: ShmConfig,
}

impl Io {
    /// Starts the control thread, which runs until the last reference is dropped.
    pub(crate) fn start(config: ShmConfig) -> io::Result<Arc<Self>> {
        let waker = Waker::new()?;
        let watchdog = Watchdog::new(Arc::clone(&waker));
        let chores = Arc::clone(&watchdog) as Arc<dyn Chores>;
        let reactor = Reactor::start("dunlin-shm-control", waker, chores, READ_BUFFER)?;
        Ok(Arc::new(Io { reactor, watchdog, config }))
    }

    pub(crate) fn reactor(&self) -> &Arc<Reactor> {
        self.reactor.reactor()
    }

    pub(crate) fn watchdog(&self) -> &Arc<Watchdog> {
        &self.watchdog
    }

    pub(crate) fn config(&self) -> &ShmConfig {
        &self.config
    }
}
