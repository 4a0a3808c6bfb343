//! Write rendezvous: the receiver names an area, and the sender WRITEs the payload there. The receiver copies it to
//! private memory before use.

use super::expected::Expected;
use super::method::PendingTransfer;
use super::queue::header;
use super::write_targets::{WriteTarget, WriteTargets};
use super::{
    Begun, Facts, Inbound, Inward, Messages, Method, Moved, Payload, Received, Receiver, Sender,
    TransferQueue,
};
use crate::path::tx::{Tx, TxError};
use crate::path::{Cx, Violation};
use dunlin_fabric::{Fabric, Host, Work};
use dunlin_wire::{Descriptor, Header, Kind};

pub(super) struct Write;

impl Method for Write {
    const NAME: &'static str = "rendezvous_write";
    const NUMBER: u8 = 2;
    const FACTS: Facts = Facts { moved: Moved::Written, messages: Messages::Few, early_above: None };
}

impl<F: Fabric> Sender<F> for Write {
    fn receiver(&self, link: F::Link, memory: u64, window: u16) -> Inbound<F> {
        let (areas, expected) = (WriteTargets::new(link, memory), Expected::new(window));
        Inbound::Write(ExpectedWrites { areas, expected })
    }

    fn place_named(
        &self,
        queue: &mut TransferQueue<F>,
        call: u32,
        payload: Payload<F>,
        place: &[u8],
    ) -> Result<(), Violation> {
        let to = Descriptor::decode(place, payload.len() as u64)?;
        if to.length != payload.len() as u64 {
            return Err(Violation::Transfer("a place of another length than the payload"));
        }
        queue.push(super::Pending::Write(Pending::Write { call, payload: Some(payload), to }));
        Ok(())
    }
}

/// A part of a transfer that is still to be posted.
#[derive(Debug)]
pub(crate) enum Pending<F: Fabric> {
    /// Sends the peer the place to WRITE a payload to.
    Clear { call: u32, to: Descriptor },
    /// WRITEs a payload to `to`, then sends `Written`.
    Write { call: u32, payload: Option<Payload<F>>, to: Descriptor },
}

impl<F: Fabric> PendingTransfer<F> for Pending<F> {
    fn step(&mut self, cx: &mut Cx<'_, F>, tx: &mut Tx<F>, head: u32) -> Result<bool, TxError> {
        match self {
            Pending::Clear { call, to } => {
                tx.single(cx, &header(Kind::ClearToSend, *call, head), &to.encode())?;
                Ok(true)
            }
            Pending::Write { payload, to, .. } if payload.is_some() => {
                tx.end.write_payload(cx, payload, to)?;
                Ok(false)
            }
            Pending::Write { call, .. } => {
                tx.single(cx, &header(Kind::Written, *call, head), &[])?;
                Ok(true)
            }
        }
    }
}

/// The receiving end: the payloads that the peer WRITEs, and their areas.
#[derive(Debug)]
pub(crate) struct ExpectedWrites<F: Fabric> {
    areas: WriteTargets<F>,
    expected: Expected<WriteTarget<F>>,
}

impl<F: Fabric> Receiver<F> for ExpectedWrites<F> {
    fn expects(&self, call: u32) -> bool {
        self.expected.contains(call)
    }

    fn begin(&mut self, end: &mut Inward<'_, F>, from: Descriptor, wanted: bool) -> Result<Begun, Violation> {
        if !wanted {
            return Ok(Begun::Refused);
        }
        let reserved = self.areas.reserve(end.cx.fabric, from.length as usize);
        let Ok(area) = reserved else { return Ok(Begun::Refused) };
        let to = area.descriptor();
        self.expected.put(end.call, area)?;
        end.queue.push(super::Pending::Write(Pending::Clear { call: end.call, to }));
        Ok(Begun::Arriving)
    }

    fn on_message(
        &mut self,
        end: &mut Inward<'_, F>,
        header: &Header,
        _body: &[u8],
    ) -> Result<Received<F>, Violation> {
        if header.kind != Kind::Written {
            return Err(Violation::Kind(header.kind));
        }
        let Some(area) = self.expected.remove(header.call) else { return Err(Violation::Call(header.call)) };
        let copied = end.reserve(area.length()).map(|mut buffer| {
            end.cx.fabric.host().charge(Work::CopyBytes, area.length() as u32);
            area.copy_out(&mut buffer);
            buffer
        });
        self.areas.give_back(area);
        Ok(copied.map_or(Received::Lost, Received::Whole))
    }

    fn targets(&self) -> Option<&WriteTargets<F>> {
        Some(&self.areas)
    }
}
