//! Read rendezvous: a large payload stays in the sender's registered memory. A descriptor of 24 bytes travels
//! in its place, and the receiver READs the payload into private memory. This takes one copy, and is safe
//! against a hostile peer, which cannot write to the receiver's memory and cannot change the copy.

use super::{Begun, Facts, Inbound, Inward, Messages, Method, Moved, Receiver, Sender};
use crate::path::posting::post_read;
use crate::path::{Violation, route};
use dunlin_fabric::Fabric;
use dunlin_wire::Descriptor;

pub(super) struct Read;

impl Method for Read {
    const NAME: &'static str = "rendezvous_read";
    const NUMBER: u8 = 1;
    const FACTS: Facts = Facts { moved: Moved::Read, messages: Messages::None, early_above: None };
}

impl<F: Fabric> Sender<F> for Read {
    fn receiver(&self, _link: F::Link, _memory: u64, _window: u16) -> Inbound<F> {
        Inbound::Read(Reads)
    }
}

/// The receiving end. A payload that is being READ lies in its work request.
#[derive(Debug)]
pub(crate) struct Reads;

impl<F: Fabric> Receiver<F> for Reads {
    fn begin(&mut self, end: &mut Inward<'_, F>, from: Descriptor, wanted: bool) -> Result<Begun, Violation> {
        let (queue_pair, lane) = end.at;
        let into = if wanted { end.reserve(from.length as usize) } else { None };
        let Some(into) = into else { return Ok(Begun::Refused) };
        post_read::<F>(end.cx.domain, queue_pair, route::rendezvous(lane, end.call), &from, into)?;
        Ok(Begun::Reading { whole: true })
    }
}
