//! Connects the two ends of a queue pair.
//!
//! Connected endpoints: the side that dialled the control connection requests the connection, and the other
//! side accepts it (`device`). Datagrams: each side opens an endpoint and sends its address, and has met the
//! other side when it knows the other address. Messages wait until the other side has announced RECVs; the side that
//! dialled announces first.

use crate::OfiLink;
use crate::datagram::Datagram;
use crate::device::request;
use crate::domain::OfiDomain;
use crate::endpoint::{QueuePairAddress, Whereabouts, leads_to};
use crate::features::EndpointKind;
use crate::handles::{Info, Place};
use crate::progress_thread::Kept;
use crate::queue_pair::Peer;
use dunlin_fabric::queue_pair_table::slot_of;
use dunlin_fabric::{CreateError, Endpoint, Host, QueuePairId, QueuePairState, RealHost, nanos};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

const GONE: CreateError = CreateError::State("the control connection is gone");

impl OfiDomain {
    /// Makes the address of a queue pair of this side for the other end of a link.
    pub(crate) fn make_endpoint(&mut self, id: QueuePairId, link: &OfiLink) -> Result<Endpoint, CreateError> {
        let (attention, device) = (Arc::clone(&self.attention), Arc::clone(&self.device));
        let queue_pair = self.queue_pair_mut(id)?;
        if queue_pair.state == QueuePairState::Error {
            return Err(CreateError::State("the queue pair is broken"));
        }
        queue_pair.bond.bind(link.shared(), queue_pair.number.into(), &attention)?;
        let (number, secret) = (queue_pair.number, queue_pair.secret);
        let place = match device.features.kind {
            EndpointKind::Connected => self.await_connection(id, link)?,
            EndpointKind::Datagram => self.open_datagrams(id, link)?,
        };
        Ok(QueuePairAddress { number, secret, place, provider: device.provider.clone() }.encode())
    }

    /// Returns the port at which the other end requests the connection, if the other end does that.
    fn await_connection(&mut self, id: QueuePairId, link: &OfiLink) -> Result<Whereabouts, CreateError> {
        if link.shared().has_dialled() {
            return Ok(Whereabouts::Port(0));
        }
        let (attention, device) = (Arc::clone(&self.attention), Arc::clone(&self.device));
        let shared = self.queue_pair(id).and_then(|found| self.shared_by(&found.config));
        let local = link.shared().local_address().ok_or(GONE)?;
        let port = device.listen_at(local).map_err(CreateError::system("listening for connections"))?.port();
        let queue_pair = self.queue_pair_mut(id)?;
        if queue_pair.awaited.is_none() && queue_pair.state == QueuePairState::Initialised {
            queue_pair.awaited =
                Some(device.await_peer(queue_pair.number, queue_pair.secret, &attention, shared));
        }
        Ok(Whereabouts::Port(port))
    }

    /// Returns the destination of datagrams to a queue pair.
    fn open_datagrams(&mut self, id: QueuePairId, link: &OfiLink) -> Result<Whereabouts, CreateError> {
        let (attention, device) = (Arc::clone(&self.attention), Arc::clone(&self.device));
        let local = link.shared().local_address().ok_or(GONE)?;
        let queue_pair = self.queue_pair_mut(id)?;
        if queue_pair.open.is_none() {
            let open = device.open_datagrams(local, &attention);
            queue_pair.open = Some(open.map_err(CreateError::system("an endpoint"))?);
            let datagram = Datagram::new(&device);
            queue_pair.datagram = Some(datagram.map_err(CreateError::system("what tells of RECVs"))?);
            // From now on the other end can reach it, whichever thread polls, and there is nothing left to
            // wait for.
            let mut kept = Kept::new(&device);
            kept.meet();
            (queue_pair.kept, queue_pair.met) = (Some(kept), true);
        }
        let (Some(open), Some(datagram)) = (&queue_pair.open, &queue_pair.datagram) else { return Err(GONE) };
        let messages = open.endpoint.address().map_err(CreateError::system("an endpoint's address"))?;
        let memory = device.memory_address(local).map_err(CreateError::system("an endpoint for memory"))?;
        Ok(Whereabouts::Datagrams { messages, memory, cell: datagram.place() })
    }

    /// Connects a queue pair to its other end.
    pub(crate) fn connect_to(
        &mut self,
        id: QueuePairId,
        link: &OfiLink,
        remote: &Endpoint,
    ) -> Result<(), CreateError> {
        let address = QueuePairAddress::decode(remote)?;
        let device = Arc::clone(&self.device);
        let queue_pair = self.queue_pair_mut(id)?;
        if queue_pair.state != QueuePairState::Initialised {
            return Err(CreateError::State("the queue pair is connected already"));
        }
        queue_pair.bond.check(link.shared())?;
        if address.provider != device.provider {
            return Err(CreateError::Endpoint("it is of another provider of libfabric"));
        }
        let peer = link.shared().peer_address().ok_or(GONE)?;
        let ask = match address.place {
            Whereabouts::Port(port) => {
                if link.shared().has_dialled() == (port == 0) || queue_pair.datagram.is_some() {
                    return Err(CreateError::Endpoint("it is of the wrong side of the control connection"));
                }
                // Only to the host at the other end of the control connection.
                (port != 0).then(|| SocketAddr::new(peer, port))
            }
            Whereabouts::Datagrams { messages, memory, cell } => {
                let Some(datagram) = &mut queue_pair.datagram else {
                    return Err(CreateError::Endpoint("it is for datagrams, and ours is a connection"));
                };
                let memory = (!memory.is_empty()).then_some(memory);
                let known = |address: &Vec<u8>| !device.features.internet || leads_to(address, peer);
                if !known(&messages) || !memory.as_ref().is_none_or(known) {
                    return Err(CreateError::Endpoint("it leads elsewhere than the control connection"));
                }
                let inserting = CreateError::system("the other end's address");
                let insert = || -> io::Result<_> {
                    Ok((device.insert(&messages)?, memory.map(|memory| device.insert(&memory)).transpose()?))
                };
                let inserted = insert().map_err(inserting)?;
                datagram.knows(inserted, cell, address.secret, !link.shared().has_dialled());
                None
            }
        };
        queue_pair.bond.meet(address.number.into());
        queue_pair.peer = Some(Peer { number: address.number, secret: address.secret });
        queue_pair.state = QueuePairState::Ready;
        let awaited = queue_pair.awaited.clone();
        if !queue_pair.met {
            queue_pair.kept = Some(Kept::new(&device));
            queue_pair.meet_by = RealHost.now().saturating_add(nanos(device.config.connect_patience));
            self.connecting += 1;
        }
        if let Some(awaited) = awaited {
            awaited.want();
        }
        match ask {
            Some(place) => {
                let say = request(address.number, address.secret);
                let found = Info::find(
                    device.domain.library,
                    &device.provider,
                    &device.asked,
                    Place::Destination(place),
                );
                if let Err(error) = found.and_then(|info| self.ask(slot_of(id), info, &say)) {
                    self.fail(slot_of(id));
                    return Err(CreateError::system("asking for a connection")(error));
                }
            }
            // For datagrams: sends the greeting.
            None => self.drive(slot_of(id)),
        }
        // The other end may already have requested, greeted or ended. The next poll checks for that.
        self.news_seen = self.news_seen.wrapping_sub(1);
        Ok(())
    }

    /// Requests a queue pair's connection.
    fn ask(&mut self, slot: usize, mut info: Info, say: &[u8]) -> io::Result<()> {
        let Some(queue_pair) = self.queue_pairs.get(slot).and_then(Option::as_ref) else { return Ok(()) };
        let shared = self.shared_by(&queue_pair.config);
        let open = self.device.open_endpoint(&mut info, &self.attention, shared.as_ref())?;
        let asked = open.endpoint.connect(&info, say);
        if let Some(queue_pair) = self.queue_pairs.get_mut(slot).and_then(Option::as_mut) {
            queue_pair.open = Some(open);
        }
        asked?;
        // RECVs can be posted before the connection exists.
        self.drive(slot);
        Ok(())
    }
}
