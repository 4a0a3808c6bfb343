//! What ties a queue pair to the link that its address went out on: who tells whom of the end, and whose memory keys mean.

use crate::backend::{Backend, Flag, News};
use crate::link::{LinkShared, RemoteRegion};
use dunlin_fabric::{CreateError, RegionKey};
use std::sync::Arc;

const KNOWN: usize = 8;

/// Ties one queue pair to one link. The two ends know each other by names that do not come again as a device's numbers do: what is said
/// late of a queue pair is not taken for news of the next one. Owned by the queue pair's thread; nothing here blocks, and only what says
/// so takes a lock.
#[derive(Debug)]
pub struct Bond<B: Backend> {
    link: Option<Arc<LinkShared<B>>>,
    /// The other end is gone.
    closed: Arc<Flag>,
    /// The other end takes what is sent.
    ready: Arc<Flag>,
    /// The other end's name.
    theirs: Option<u64>,
    /// The regions used last, so that the data path takes no lock; each at the place that its key says.
    known: [Option<Arc<RemoteRegion>>; KNOWN],
}

impl<B: Backend> Default for Bond<B> {
    fn default() -> Self {
        Bond {
            link: None,
            closed: Arc::default(),
            ready: Arc::default(),
            theirs: None,
            known: Default::default(),
        }
    }
}

impl<B: Backend> Bond<B> {
    /// The address of the queue pair with this name is about to go out on `link`. From the first time on `attention` is told when
    /// the link or the queue pair's other end ends, or the other end is ready. Another link is refused.
    pub fn bind(
        &mut self,
        link: &Arc<LinkShared<B>>,
        name: u64,
        attention: &Arc<impl News>,
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

    /// Refuses to connect over another link than the one that the address went out on.
    pub fn check(&self, link: &Arc<LinkShared<B>>) -> Result<(), CreateError> {
        match &self.link {
            Some(known) if Arc::ptr_eq(known, link) => Ok(()),
            _ => Err(CreateError::State("make this queue pair's endpoint for the same link first")),
        }
    }

    /// The other end is the queue pair with this name: it can be told of ours, and memory that it has granted can be used.
    pub fn meet(&mut self, theirs: u64) {
        self.theirs = Some(theirs);
    }

    /// What the peer has granted under a name; `None` if it has not, or there is no other end yet. A name that was not asked for
    /// lately takes locks, and may read the link's socket.
    #[inline]
    pub fn region(&mut self, key: RegionKey) -> Option<&RemoteRegion> {
        let (Some(_), Some(link)) = (self.theirs, &self.link) else { return None };
        let place = &mut self.known[key.0 as usize % KNOWN];
        if place.as_ref().is_none_or(|region| region.key != key || region.is_revoked()) {
            *place = link.import(key);
        }
        place.as_deref()
    }

    /// Whether the other end is gone, as far as is known.
    pub fn is_orphan(&self) -> bool {
        self.closed.is_raised() || self.link.as_ref().is_some_and(|link| !link.is_alive())
    }

    /// Whether the other end has said that it takes what is sent. Only fabrics whose two ends are not ready at once say it.
    pub fn is_ready(&self) -> bool {
        self.ready.is_raised()
    }

    /// Tells the other end, if there is one, that ours is of no use any more.
    pub fn tell_closed(&self) {
        if let (Some(theirs), Some(link)) = (self.theirs, &self.link)
            && !self.is_orphan()
        {
            link.tell_closed(theirs);
        }
    }

    /// The queue pair with this name, ours, hears of nothing any more.
    pub fn detach(&self, name: u64) {
        if let Some(link) = &self.link {
            link.detach(name);
        }
    }
}
