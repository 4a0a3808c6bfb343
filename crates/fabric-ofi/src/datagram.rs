//! The additional state of a queue pair of reliable datagrams, whose endpoint has no fixed destination: the
//! address of its other end, and the credits by which each end tells the other how many messages it has room
//! for (`flow`). Connected endpoints need none of it.

use crate::device::Device;
use crate::flow::{self, CELL, Credit, Grantor};
use crate::handles::{Endpoint, Inserted, OneSided, Remote};
use crate::memory::{Grant, OfiMemory};
use crate::places::Places;
use dunlin_fabric::{Access, Host, Nanos, RealHost, Region};
use std::io;
use std::sync::Arc;

/// The time that the end which dialled has for the first announcement, in nanoseconds: several turns of a thread of `ofi_rxm`.
const PRECEDENCE: Nanos = 50_000_000;

/// The addresses of the other end.
#[derive(Debug)]
struct Peer {
    /// The destination of messages.
    messages: Inserted,
    /// The endpoint for access to its memory, if that is another one.
    memory: Option<Inserted>,
    /// The cell into which this side writes its number of RECVs.
    cell: Remote,
    secret: u64,
    /// The time from which on this side announces its RECVs, unless it has heard of the other end's.
    speaks_at: Nanos,
}

/// See the module documentation. Dropped after the endpoint is closed.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// The cell into which the other end writes its number of RECVs.
    cell: Region<OfiMemory>,
    // Dropping it invalidates the key.
    grant: Grant,
    /// The source of the WRITE into the other end's cell.
    outgoing: Places,
    is_telling: bool,
    has_greeted: bool,
    credit: Credit,
    grantor: Grantor,
    peer: Option<Peer>,
}

impl Datagram {
    /// Makes the state for one queue pair of this device.
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Self> {
        let memory = OfiMemory::new(device, CELL as u64, Access::WRITE).map_err(io::Error::other)?;
        let cell = Region::new(memory);
        let grant = Grant::new(cell.memory(), Access::WRITE, RealHost.random())?;
        let outgoing = Places::new(1, CELL)?;
        let (credit, grantor) = (Credit::default(), Grantor::default());
        Ok(Datagram {
            cell,
            grant,
            outgoing,
            is_telling: false,
            has_greeted: false,
            credit,
            grantor,
            peer: None,
        })
    }

    /// Returns the remote address of the cell that the other end writes to.
    pub(crate) fn place(&self) -> Remote {
        self.grant.remote()
    }

    /// Sets the addresses of the other end, and whether it `is_first` to announce its RECVs: this one lets it have
    /// [`PRECEDENCE`]. A provider that connects endpoints with the first request (`ofi_rxm`) takes a second if both ends
    /// have made one.
    pub(crate) fn knows(
        &mut self,
        (messages, memory): (Inserted, Option<Inserted>),
        cell: Remote,
        secret: u64,
        is_first: bool,
    ) {
        let speaks_at = if is_first { RealHost.now().saturating_add(PRECEDENCE) } else { 0 };
        self.peer = Some(Peer { messages, memory, cell, secret, speaks_at });
    }

    /// Returns the addresses of the other end for messages and for memory; `None` until they are
    /// [known](Self::knows).
    #[inline]
    pub(crate) fn addresses(&self) -> Option<(u64, u64)> {
        let peer = self.peer.as_ref()?;
        Some((peer.messages.name, peer.memory.as_ref().unwrap_or(&peer.messages).name))
    }

    /// Returns the number that the other end wrote last, if any. `secret` is that of this side's queue pair.
    fn heard(&self, secret: u64) -> Option<u32> {
        flow::decode(self.cell.load(0), self.cell.load(8), secret)
    }

    /// Returns whether the other end has a RECV for one more message; an error if the other end wrote an
    /// impossible number.
    #[inline]
    pub(crate) fn may_send(&mut self, secret: u64) -> io::Result<bool> {
        if !self.credit.may_send()
            && let Some(posted) = self.heard(secret)
            && !self.credit.hear(posted)
        {
            return Err(io::Error::other("the other end says that it has RECVs as nobody has"));
        }
        Ok(self.credit.may_send())
    }

    /// Counts a message that was sent.
    #[inline]
    pub(crate) fn sends(&mut self) {
        self.credit.sends();
    }

    /// Counts RECVs that were given to the provider.
    pub(crate) fn posts(&mut self, count: u32) {
        (0..count).for_each(|_| self.grantor.posts());
    }

    /// Counts a message that has arrived; returns `false` if the RECV for it had not been announced.
    pub(crate) fn arrives(&mut self) -> bool {
        self.grantor.arrives()
    }

    /// Returns the number of RECVs to announce to the other end, unless an announcement is in flight or none
    /// is due.
    pub(crate) fn owes(&self) -> Option<u32> {
        if self.peer.is_none() || self.is_telling {
            return None;
        }
        if self.has_greeted { self.grantor.news() } else { Some(self.grantor.all()) }
    }

    /// Announces the number of RECVs to the other end, if that is due. Returns `WouldBlock` if the provider
    /// has no room now. `secret` is that of this side's queue pair.
    pub(crate) fn tell(&mut self, endpoint: &Endpoint, secret: u64, context: u64) -> io::Result<()> {
        let (Some(posted), Some(peer)) = (self.owes(), &self.peer) else { return Ok(()) };
        // Later on the endpoints are connected, or the provider goes on with that only by a request of this side.
        if !self.has_greeted && self.heard(secret).is_none() && RealHost.now() < peer.speaks_at {
            return Ok(());
        }
        let bytes = flow::encode(posted, peer.secret);
        // SAFETY: no posted operation uses the place, since only one WRITE is in flight at a time.
        unsafe { self.outgoing.put(0, 0, &bytes) };
        let part = libc::iovec { iov_base: self.outgoing.at(0).cast(), iov_len: CELL };
        let to = peer.memory.as_ref().unwrap_or(&peer.messages).name;
        // SAFETY: the place is not touched until the WRITE has completed or the endpoint is closed, and it is
        // dropped after that. The WRITE is delivery-complete, so that it cannot land after the next one.
        unsafe { endpoint.remote(OneSided::WriteDelivered, to, &[part], peer.cell, context) }?;
        (self.is_telling, self.has_greeted) = (true, true);
        self.grantor.tells(posted);
        Ok(())
    }

    /// Records that the announcement has completed.
    pub(crate) fn told(&mut self) {
        self.is_telling = false;
    }
}
