//! What a queue pair of reliable datagrams has beside its endpoint, which knows nobody: where its other end is, and what tells
//! each of them how many messages the other has room for (`flow`). Connected endpoints need none of it.

use crate::device::Device;
use crate::flow::{self, CELL, Credit, Grantor};
use crate::handles::{Endpoint, Inserted, OneSided, Remote};
use crate::memory::{Grant, OfiMemory};
use crate::places::Places;
use dunlin_fabric::{Access, Host, RealHost, Region};
use std::io;
use std::sync::Arc;

/// Where the other end is.
#[derive(Debug)]
struct Peer {
    /// Where messages go.
    messages: Inserted,
    /// Where its memory is reached, if that is elsewhere.
    memory: Option<Inserted>,
    /// Where it is told of our RECVs.
    cell: Remote,
    secret: u64,
}

/// See the module. Dropped after the endpoint is closed.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// Where the other end writes how many RECVs it has.
    cell: Region<OfiMemory>,
    // Its key ends when this is dropped.
    grant: Grant,
    /// What is written to the other end.
    outgoing: Places,
    is_telling: bool,
    has_greeted: bool,
    credit: Credit,
    grantor: Grantor,
    peer: Option<Peer>,
}

impl Datagram {
    /// For one queue pair of this device.
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

    /// What the other end writes to.
    pub(crate) fn place(&self) -> Remote {
        self.grant.remote()
    }

    /// The other end is there, where what it has said leads.
    pub(crate) fn knows(&mut self, messages: Inserted, memory: Option<Inserted>, cell: Remote, secret: u64) {
        self.peer = Some(Peer { messages, memory, cell, secret });
    }

    /// The address of the other end for messages and for its memory; `None` until it is [known](Self::knows).
    #[inline]
    pub(crate) fn addresses(&self) -> Option<(u64, u64)> {
        let peer = self.peer.as_ref()?;
        Some((peer.messages.name, peer.memory.as_ref().unwrap_or(&peer.messages).name))
    }

    /// What the other end has written last, if anything. `secret` is that of our queue pair.
    fn heard(&self, secret: u64) -> Option<u32> {
        flow::decode(self.cell.load(0), self.cell.load(8), secret)
    }

    /// Whether the other end has a RECV for one more message. An error if it says what cannot be.
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

    /// A message has gone.
    #[inline]
    pub(crate) fn sends(&mut self) {
        self.credit.sends();
    }

    /// The provider has so many RECVs more.
    pub(crate) fn posts(&mut self, count: u32) {
        (0..count).for_each(|_| self.grantor.posts());
    }

    /// A message of the other end has come. `false` if it had not been told of a RECV for it.
    pub(crate) fn arrives(&mut self) -> bool {
        self.grantor.arrives()
    }

    /// What the other end is to be told, and is not being told.
    pub(crate) fn owes(&self) -> Option<u32> {
        if self.peer.is_none() || self.is_telling {
            return None;
        }
        if self.has_greeted { self.grantor.news() } else { Some(self.grantor.all()) }
    }

    /// Tells the other end how many RECVs there are, if it is to know. `WouldBlock` if the provider has no room now.
    pub(crate) fn tell(&mut self, endpoint: &Endpoint, context: u64) -> io::Result<()> {
        let (Some(posted), Some(peer)) = (self.owes(), &self.peer) else { return Ok(()) };
        let bytes = flow::encode(posted, peer.secret);
        // SAFETY: nothing that was posted uses the place: one WRITE is under way at a time.
        unsafe { self.outgoing.put(0, 0, &bytes) };
        let part = libc::iovec { iov_base: self.outgoing.at(0).cast(), iov_len: CELL };
        let to = peer.memory.as_ref().unwrap_or(&peer.messages).name;
        // Delivered, so that it cannot land behind the next one.
        // SAFETY: the place is not touched until the WRITE has completed or the endpoint is closed, and dropped after that.
        unsafe { endpoint.remote(OneSided::WriteDelivered, to, &[part], peer.cell, context) }?;
        (self.is_telling, self.has_greeted) = (true, true);
        self.grantor.tells(posted);
        Ok(())
    }

    /// It was told.
    pub(crate) fn told(&mut self) {
        self.is_telling = false;
    }
}
