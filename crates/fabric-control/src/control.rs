//! The control connections of a fabric over TCP: its reactor and its back-end.

use crate::backend::{Backend, Heard};
use crate::reactor::{Chores, Reactor, ReactorHandle, Waker, Watched};
use dunlin_fabric::Nanos;
use rustix::event::epoll::EventFlags;
use std::io;
use std::sync::Arc;

/// The size of the buffer for received bytes.
pub(crate) const READ_BUFFER: usize = 64 * 1024;
/// The maximum number of the back-end's descriptors.
const MAX_DESCRIPTORS: usize = 8;

/// The control connections of a fabric. Dropping it stops the control thread.
#[derive(Debug)]
pub struct Control<B: Backend> {
    reactor: ReactorHandle,
    backend: Arc<B>,
}

/// The back-end's part in the control thread: the device is looked at when that is due.
#[derive(Debug)]
struct Device<B: Backend>(Arc<B>);

impl<B: Backend> Chores for Device<B> {
    fn due(&self) -> Option<Nanos> {
        self.0.look_at()
    }

    fn work(&self, reactor: &Reactor) {
        if let Some(reason) = self.0.look() {
            reactor.lose_device(&reason);
        }
    }
}

/// One of the back-end's descriptors.
#[derive(Debug)]
struct Descriptor<B: Backend> {
    backend: Arc<B>,
    place: usize,
}

impl<B: Backend> Watched for Descriptor<B> {
    fn serve(self: Arc<Self>, reactor: &Arc<Reactor>, number: u64, flags: EventFlags, _: &mut [u8]) {
        let Heard { forget, end_links } = self.backend.hear(self.place, flags);
        if forget && let Some(descriptor) = self.backend.descriptors().get(self.place) {
            reactor.remove(number, descriptor);
        }
        if let Some(reason) = end_links {
            reactor.lose_device(&reason);
        }
    }
}

impl<B: Backend> Control<B> {
    /// Starts the control thread.
    pub fn start(backend: Arc<B>) -> io::Result<Arc<Self>> {
        let chores = Arc::new(Device(Arc::clone(&backend)));
        let handle = Reactor::start(B::THREAD, Waker::new()?, chores, READ_BUFFER)?;
        let reactor = handle.reactor();
        for (place, descriptor) in backend.descriptors().iter().enumerate().take(MAX_DESCRIPTORS) {
            let owner = Arc::new(Descriptor { backend: Arc::clone(&backend), place });
            reactor.add(reactor.next_number(), descriptor, EventFlags::IN, owner)?;
        }
        Ok(Arc::new(Control { reactor: handle, backend }))
    }

    /// Returns the back-end.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// Returns the control thread.
    pub fn reactor(&self) -> &Arc<Reactor> {
        self.reactor.reactor()
    }
}
