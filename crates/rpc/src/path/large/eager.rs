//! Eager transfer: a payload follows its announcement in fragments, which are messages as those of small payloads. The
//! receiver assembles them in private memory. They arrive whether it wants the payload or not.

use super::expected::Expected;
use super::method::PendingTransfer;
use super::queue::header;
use super::{
    Begun, Facts, Inbound, Inward, Messages, Method, Moved, Payload, Pending, Received, Receiver,
    SMALL_LIMIT, Sender, TransferQueue,
};
use crate::path::tx::{Tx, TxError};
use crate::path::{Cx, Violation};
use dunlin_fabric::{Fabric, Host, Work};
use dunlin_wire::{Descriptor, Header, Kind};

/// The most payload bytes in one fragment: the size of HatRPC's slots (section 4.3).
const FRAGMENT: usize = SMALL_LIMIT as usize;

pub(super) struct Eager;

impl Method for Eager {
    const NAME: &'static str = "eager";
    const NUMBER: u8 = 3;
    const FACTS: Facts = Facts { moved: Moved::Sent, messages: Messages::Many, early_above: None };
}

impl<F: Fabric> Sender<F> for Eager {
    fn receiver(&self, _link: F::Link, _memory: u64, window: u16) -> Inbound<F> {
        Inbound::Eager(Assembly { expected: Expected::new(window) })
    }

    fn announced(&self, queue: &mut TransferQueue<F>, call: u32, payload: Payload<F>) -> Option<Payload<F>> {
        queue.push(Pending::Eager(Fragments { call, payload, sent: 0 }));
        None
    }
}

/// A payload of which the first `sent` bytes are posted.
#[derive(Debug)]
pub(crate) struct Fragments<F: Fabric> {
    call: u32,
    payload: Payload<F>,
    sent: usize,
}

impl<F: Fabric> PendingTransfer<F> for Fragments<F> {
    fn step(&mut self, cx: &mut Cx<'_, F>, tx: &mut Tx<F>, head: u32) -> Result<bool, TxError> {
        let rest = self.payload.get(self.sent..).unwrap_or_default();
        let fragment = rest.get(..FRAGMENT).unwrap_or(rest);
        tx.fragment(cx, &header(Kind::Fragment, self.call, head), fragment)?;
        self.sent += fragment.len();
        Ok(self.sent >= self.payload.len())
    }
}

/// The destination of an announced payload.
#[derive(Debug)]
enum Place<F: Fabric> {
    /// Fragments are assembled here; the number is the bytes received.
    Private(Payload<F>, usize),
    /// Fragments are discarded; the number is the bytes still to come.
    Nowhere(usize),
}

/// The receiving end: the payloads of which fragments are still to come.
#[derive(Debug)]
pub(crate) struct Assembly<F: Fabric> {
    expected: Expected<Place<F>>,
}

impl<F: Fabric> Receiver<F> for Assembly<F> {
    fn expects(&self, call: u32) -> bool {
        self.expected.contains(call)
    }

    fn begin(&mut self, end: &mut Inward<'_, F>, from: Descriptor, wanted: bool) -> Result<Begun, Violation> {
        let length = from.length as usize;
        if length == 0 {
            return Err(Violation::Transfer("a large payload of no bytes"));
        }
        let into = if wanted { end.reserve(length) } else { None };
        let begun = if into.is_some() { Begun::Arriving } else { Begun::Refused };
        self.expected
            .put(end.call, into.map_or(Place::Nowhere(length), |buffer| Place::Private(buffer, 0)))?;
        Ok(begun)
    }

    fn on_message(
        &mut self,
        end: &mut Inward<'_, F>,
        header: &Header,
        body: &[u8],
    ) -> Result<Received<F>, Violation> {
        const TOO_MANY: Violation = Violation::Transfer("more bytes of a large payload than announced");
        if header.kind != Kind::Fragment {
            return Err(Violation::Kind(header.kind));
        }
        let whole = match self.expected.get(header.call).ok_or(Violation::Call(header.call))? {
            Place::Private(buffer, filled) => {
                let room = buffer.get_mut(*filled..*filled + body.len()).ok_or(TOO_MANY)?;
                end.cx.fabric.host().charge(Work::CopyBytes, body.len() as u32);
                room.copy_from_slice(body);
                *filled += body.len();
                *filled == buffer.len()
            }
            Place::Nowhere(left) => {
                *left = left.checked_sub(body.len()).ok_or(TOO_MANY)?;
                *left == 0
            }
        };
        Ok(match whole.then(|| self.expected.remove(header.call)).flatten() {
            None => Received::Part,
            Some(Place::Private(buffer, _)) => Received::Whole(buffer),
            Some(Place::Nowhere(_)) => Received::Nothing,
        })
    }
}
