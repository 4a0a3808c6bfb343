//! The queue pairs of a lane beside its reliable connection: one for each other transport of its halves.

use super::unconnected;
use dunlin_fabric::{QueuePairConfig, Transport};

/// Something for each of these queue pairs, as far as a lane has them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside<T> {
    /// For the unreliable connection (UC).
    pub(crate) connected: Option<T>,
    /// For the queue pair without a connection (UD).
    pub(crate) unconnected: Option<T>,
}

impl<T> Beside<T> {
    /// Returns the part of the queue pair for messages by `transport`.
    pub(crate) fn of(&self, transport: Transport) -> Option<&T> {
        match transport {
            Transport::ReliableConnection => None,
            Transport::UnreliableConnection => self.connected.as_ref(),
            Transport::UnreliableDatagram => self.unconnected.as_ref(),
        }
    }

    /// Makes another part for each queue pair.
    pub(crate) fn try_map<U, E>(self, mut make: impl FnMut(T) -> Result<U, E>) -> Result<Beside<U>, E> {
        Ok(Beside {
            connected: self.connected.map(&mut make).transpose()?,
            unconnected: self.unconnected.map(make).transpose()?,
        })
    }

    /// Makes another part for each queue pair.
    pub(crate) fn map<U>(self, mut make: impl FnMut(T) -> U) -> Beside<U> {
        Beside { connected: self.connected.map(&mut make), unconnected: self.unconnected.map(make) }
    }

    /// Adds the parts of the same queue pairs.
    pub(crate) fn with<U>(self, others: Beside<U>) -> Beside<(T, U)> {
        Beside {
            connected: self.connected.zip(others.connected),
            unconnected: self.unconnected.zip(others.unconnected),
        }
    }

    /// Returns references to the parts.
    pub(crate) const fn as_ref(&self) -> Beside<&T> {
        Beside { connected: self.connected.as_ref(), unconnected: self.unconnected.as_ref() }
    }

    /// Returns the parts of both queue pairs.
    pub(crate) fn into_iter(self) -> impl Iterator<Item = T> {
        [self.connected, self.unconnected].into_iter().flatten()
    }
}

impl<T, U> Beside<(T, U)> {
    /// Separates the two parts of each queue pair.
    pub(crate) fn unzip(self) -> (Beside<T>, Beside<U>) {
        let (connected, of_connected) = self.connected.unzip();
        let (unconnected, of_unconnected) = self.unconnected.unzip();
        (Beside { connected, unconnected }, Beside { connected: of_connected, unconnected: of_unconnected })
    }
}

/// Returns the configuration of a queue pair with `receives` RECVs beside a reliable one. A connected one carries only
/// WRITEs.
pub(crate) fn config(reliable: &QueuePairConfig, transport: Transport, receives: u32) -> QueuePairConfig {
    let inbound_bytes = match transport {
        Transport::UnreliableDatagram => unconnected::INBOUND_BYTES,
        _ => 4096,
    };
    QueuePairConfig {
        transport,
        shared_receive: None,
        max_receive: receives.max(1),
        inbound_bytes,
        ..*reliable
    }
}
