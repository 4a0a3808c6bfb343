//! The connection between a queue pair and the link that carried its address: notices of the other end, and
//! the memory that keys name.

use crate::backend::{Backend, Flag, LinkEvents};
use crate::link::{LinkShared, RemoteRegion};
use dunlin_fabric::{CreateError, RegionKey};
use std::sync::Arc;

const KNOWN: usize = 8;

/// Binds one queue pair to one link.
///
/// The two ends identify each other by names that are never reused, unlike a device's queue pair numbers. A
/// late notice thus never applies to a newer queue pair. The queue pair's thread owns the value. No method
/// blocks, and only those that say so take locks.
#[derive(Debug)]
pub struct QueuePairBinding<B: Backend> {
    link: Option<Arc<LinkShared<B>>>,
    /// Set when the other end is gone.
    closed: Arc<Flag>,
    /// Set when the other end accepts messages.
    ready: Arc<Flag>,
    /// The other end's name.
    theirs: Option<u64>,
    /// A cache of the regions used last, indexed by key, so that the data path takes no lock.
    known: [Option<Arc<RemoteRegion>>; KNOWN],
}

impl<B: Backend> Default for QueuePairBinding<B> {
    fn default() -> Self {
        QueuePairBinding {
            link: None,
            closed: Arc::default(),
            ready: Arc::default(),
            theirs: None,
            known: Default::default(),
        }
    }
}

impl<B: Backend> QueuePairBinding<B> {
    /// Binds the queue pair with this name to `link`, before its address is sent there. From then on
    /// `attention` is notified when the link or the other end ends, or the other end is ready.
    ///
    /// # Errors
    /// The queue pair is bound to another link.
    pub fn bind(
        &mut self,
        link: &Arc<LinkShared<B>>,
        name: u64,
        attention: &Arc<impl LinkEvents>,
    ) -> Result<(), CreateError> {
        match &self.link {
            Some(known) if Arc::ptr_eq(known, link) => {}
            Some(_) => {
                return Err(CreateError::State("the queue pair's endpoint was made for another link"));
            }
            None => {
                self.link = Some(Arc::clone(link));
                link.attach(name, &self.closed, &self.ready, attention);
            }
        }
        Ok(())
    }

    /// Returns an error unless the queue pair is bound to `link`.
    pub fn check(&self, link: &Arc<LinkShared<B>>) -> Result<(), CreateError> {
        match &self.link {
            Some(known) if Arc::ptr_eq(known, link) => Ok(()),
            _ => Err(CreateError::State("make this queue pair's endpoint for the same link first")),
        }
    }

    /// Sets the name of the other end. From then on it can be notified, and memory that it has granted can be
    /// used.
    pub fn meet(&mut self, theirs: u64) {
        self.theirs = Some(theirs);
    }

    /// Returns the region that the peer has granted under `key`; `None` if there is no such grant or the
    /// other end is not known yet. Unless the key is cached, takes locks and may read the link's socket.
    #[inline]
    pub fn region(&mut self, key: RegionKey) -> Option<&RemoteRegion> {
        let (Some(_), Some(link)) = (self.theirs, &self.link) else { return None };
        let place = &mut self.known[key.0 as usize % KNOWN];
        if place.as_ref().is_none_or(|region| region.key != key || region.is_revoked()) {
            *place = link.import(key);
        }
        place.as_deref()
    }

    /// Returns whether the other end is known to be gone.
    pub fn is_orphan(&self) -> bool {
        self.closed.is_raised() || self.link.as_ref().is_some_and(|link| !link.is_alive())
    }

    /// Returns whether the other end has announced that it accepts messages. Only fabrics whose two ends do
    /// not become ready together announce it.
    pub fn is_ready(&self) -> bool {
        self.ready.is_raised()
    }

    /// Notifies the other end, if known, that this end is no longer usable.
    pub fn tell_closed(&self) {
        if let (Some(theirs), Some(link)) = (self.theirs, &self.link)
            && !self.is_orphan()
        {
            link.tell_closed(theirs);
        }
    }

    /// Ends all notifications for this side's queue pair of this name.
    pub fn detach(&self, name: u64) {
        if let Some(link) = &self.link {
            link.detach(name);
        }
    }
}
