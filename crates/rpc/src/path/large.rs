//! Large payloads that are not READ: by write rendezvous, or eagerly in fragments. Both ends of a lane have both parts of
//! this: [`Errands`] for what goes out, [`Arrivals`] for what comes in.
//!
//! | | announced by | then | over when |
//! |---|---|---|---|
//! | write rendezvous | the call or answer, flagged, with the length | `ClearToSend` names an area, a WRITE fills it | `Written` came |
//! | eager | the same | `Fragment`s follow, in order | all bytes have come |
//!
//! A payload is in private memory before anybody looks at it, and its length is what was announced, whatever the peer
//! does afterwards.

use super::areas::{Area, Areas};
use super::rendezvous::{Exhausted, Pool};
use super::tx::{Tx, TxError};
use super::{Violation, tx};
use crate::plan::{LargePayload, SMALL_LIMIT};
use dunlin_fabric::{Buffer, Fabric, Host, Work};
use dunlin_wire::{Descriptor, Header, Kind};
use std::collections::VecDeque;

/// The most bytes of a large payload that travel in one message: what HatRPC's slots hold (section 4.3).
const FRAGMENT: usize = SMALL_LIMIT as usize;

/// Messages and WRITEs of large payloads that are posted at a time.
const STEPS_AT_ONCE: usize = 2;

/// Something to be said or written as soon as there is room.
#[derive(Debug)]
enum Errand<F: Fabric> {
    /// The peer may WRITE a payload there.
    Clear { call: u32, to: Descriptor },
    /// A payload is to be WRITTEN there, and the peer to be told.
    Write { call: u32, payload: Option<Buffer<F::Memory>>, to: Descriptor },
    /// The peer may READ so many bytes of a payload.
    Filled { call: u32, bytes: u32 },
    /// A payload is to be sent in fragments, of which the first `sent` bytes are.
    Fragments { call: u32, payload: Buffer<F::Memory>, sent: usize },
}

/// What an end of a lane has still to send of large payloads, in order.
#[derive(Debug)]
pub(crate) struct Errands<F: Fabric> {
    queue: VecDeque<Errand<F>>,
    /// There was no room for the first of them.
    stuck: bool,
}

impl<F: Fabric> Errands<F> {
    /// None; there is room for those of a window, if payloads travel so that there are any.
    pub(crate) fn new(large: LargePayload, window: u16) -> Self {
        let capacity = if large == LargePayload::Read { 0 } else { 2 * window as usize };
        Errands { queue: VecDeque::with_capacity(capacity), stuck: false }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether they wait for room.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck
    }

    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.queue.len()
    }

    /// Tells the peer where to WRITE a payload.
    pub(crate) fn clear(&mut self, call: u32, to: Descriptor) {
        self.queue.push_back(Errand::Clear { call, to });
    }

    /// Tells the peer how much of a payload there is; of a request nothing, if it is given up.
    pub(crate) fn filled(&mut self, call: u32, bytes: u32) {
        self.queue.push_back(Errand::Filled { call, bytes });
    }

    /// WRITEs a payload where the peer has said, if that is as long as announced.
    pub(crate) fn write(
        &mut self,
        call: u32,
        payload: Buffer<F::Memory>,
        place: &[u8],
    ) -> Result<(), Violation> {
        let to = Descriptor::decode(place, payload.len() as u64)?;
        if to.length != payload.len() as u64 {
            return Err(Violation::Transfer("a place of another length than the payload"));
        }
        self.queue.push_back(Errand::Write { call, payload: Some(payload), to });
        Ok(())
    }

    /// Sends a payload in fragments.
    pub(crate) fn send(&mut self, call: u32, payload: Buffer<F::Memory>) {
        self.queue.push_back(Errand::Fragments { call, payload, sent: 0 });
    }

    /// Goes on as far as there is room, but not for so long that other lanes wait for it; says whether it got anywhere.
    /// `head` is what the messages carry along.
    pub(crate) fn run(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        tx: &mut Tx<F>,
        head: u32,
    ) -> Result<bool, TxError> {
        self.stuck = false;
        for step in 0..STEPS_AT_ONCE {
            let Some(errand) = self.queue.front_mut() else { return Ok(step > 0) };
            match errand.step(fabric, domain, tx, head) {
                Ok(true) => drop(self.queue.pop_front()),
                Ok(false) => {}
                Err(TxError::Full) => {
                    self.stuck = true;
                    return Ok(step > 0);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl<F: Fabric> Errand<F> {
    /// Posts one message or WRITE; says whether that was the last.
    fn step(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        tx: &mut Tx<F>,
        head: u32,
    ) -> Result<bool, tx::TxError> {
        let header = |kind, call| Header { call, head, ..Header::new(kind) };
        match self {
            Errand::Clear { call, to } => {
                tx.single(fabric, domain, &header(Kind::ClearToSend, *call), &to.encode())?;
                Ok(true)
            }
            Errand::Filled { call, bytes } => {
                tx.single(fabric, domain, &Header { time: *bytes, ..header(Kind::Filled, *call) }, &[])?;
                Ok(true)
            }
            Errand::Write { payload, to, .. } if payload.is_some() => {
                tx.write_payload(fabric, domain, payload, to)?;
                Ok(false)
            }
            Errand::Write { call, .. } => {
                tx.single(fabric, domain, &header(Kind::Written, *call), &[])?;
                Ok(true)
            }
            Errand::Fragments { call, payload, sent } => {
                let rest = payload.get(*sent..).unwrap_or_default();
                let fragment = rest.get(..FRAGMENT).unwrap_or(rest);
                tx.fragment(fabric, domain, &header(Kind::Fragment, *call), fragment)?;
                *sent += fragment.len();
                Ok(*sent >= payload.len())
            }
        }
    }
}

/// Where an announced payload will be.
#[derive(Debug)]
enum Place<F: Fabric> {
    /// The peer WRITEs it there.
    Area(Area<F>),
    /// Fragments are put together here, of which so many bytes have come.
    Private(Buffer<F::Memory>, usize),
    /// Nobody wants its fragments, of which so many bytes are still to come.
    Nowhere(usize),
}

/// Large payloads that were announced and are not there yet.
#[derive(Debug)]
pub(crate) struct Arrivals<F: Fabric> {
    areas: Areas<F>,
    places: Vec<(u32, Place<F>)>,
    limit: usize,
}

/// What a message about a large payload has led to.
#[derive(Debug)]
pub(crate) enum Arrived<F: Fabric> {
    /// There is more to come.
    Part,
    /// All of it is here, in private memory.
    Whole(Buffer<F::Memory>),
    /// All of it has come, and there was no private memory for it.
    Lost,
    /// All of what nobody wants has come.
    Nothing,
}

impl<F: Fabric> Arrivals<F> {
    /// Of a lane with that window whose payloads travel so; areas have at most `memory` bytes.
    pub(crate) fn new(link: F::Link, large: LargePayload, memory: u64, window: u16) -> Self {
        let limit = if large == LargePayload::Read { 0 } else { 2 * window as usize + 64 };
        Arrivals { areas: Areas::new(link, memory), places: Vec::with_capacity(limit), limit }
    }

    /// Whether the payload of a call is to come.
    pub(crate) fn expects(&self, call: u32) -> bool {
        self.places.iter().any(|(expected, _)| *expected == call)
    }

    fn put(&mut self, call: u32, place: Place<F>) -> Result<(), Violation> {
        if self.places.len() >= self.limit || self.expects(call) {
            return Err(Violation::Transfer("more large payloads than the window allows are announced"));
        }
        self.places.push((call, place));
        Ok(())
    }

    /// A payload was announced that the peer will WRITE: where to, if there is memory for it.
    pub(crate) fn clear(
        &mut self,
        fabric: &F,
        call: u32,
        length: usize,
    ) -> Result<Result<Descriptor, Exhausted>, Violation> {
        let Ok(area) = self.areas.reserve(fabric, length) else { return Ok(Err(Exhausted)) };
        let descriptor = area.descriptor();
        self.put(call, Place::Area(area))?;
        Ok(Ok(descriptor))
    }

    /// A payload was announced that will come in fragments, to be put together in `into`; without that, they are thrown
    /// away.
    pub(crate) fn collect(
        &mut self,
        call: u32,
        length: usize,
        into: Option<Buffer<F::Memory>>,
    ) -> Result<(), Violation> {
        if length == 0 {
            return Err(Violation::Transfer("a large payload of no bytes"));
        }
        self.put(call, into.map_or(Place::Nowhere(length), |buffer| Place::Private(buffer, 0)))
    }

    /// Takes a message about a payload on its way to us: [`Kind::Written`] or [`Kind::Fragment`].
    pub(crate) fn take(
        &mut self,
        fabric: &F,
        private: &mut Pool<F>,
        header: &Header,
        body: &[u8],
    ) -> Result<Arrived<F>, Violation> {
        let call = header.call;
        let found = self.places.iter().position(|(expected, _)| *expected == call);
        let Some(at) = found else { return Err(Violation::Call(call)) };
        let (_, place) = &mut self.places[at];
        let arrived = match (place, header.kind) {
            (Place::Area(_), Kind::Written) => {
                let (_, Place::Area(area)) = self.places.swap_remove(at) else { return Ok(Arrived::Lost) };
                let copied = private.reserve(fabric, area.length()).map(|mut buffer| {
                    fabric.host().charge(Work::CopyBytes, area.length() as u32);
                    area.copy_out(&mut buffer);
                    buffer
                });
                self.areas.give_back(area);
                return Ok(copied.map_or(Arrived::Lost, Arrived::Whole));
            }
            (Place::Private(buffer, filled), Kind::Fragment) => {
                let Some(room) = buffer.get_mut(*filled..*filled + body.len()) else {
                    return Err(Violation::Transfer("more bytes of a large payload than announced"));
                };
                fabric.host().charge(Work::CopyBytes, body.len() as u32);
                room.copy_from_slice(body);
                *filled += body.len();
                *filled == buffer.len()
            }
            (Place::Nowhere(left), Kind::Fragment) => {
                *left = left
                    .checked_sub(body.len())
                    .ok_or(Violation::Transfer("more bytes of a large payload than announced"))?;
                *left == 0
            }
            _ => return Err(Violation::Kind(header.kind)),
        };
        if !arrived {
            return Ok(Arrived::Part);
        }
        match self.places.swap_remove(at).1 {
            Place::Private(buffer, _) => Ok(Arrived::Whole(buffer)),
            Place::Area(_) | Place::Nowhere(_) => Ok(Arrived::Nothing),
        }
    }
}
