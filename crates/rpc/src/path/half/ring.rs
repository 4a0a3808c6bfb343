//! `write` and its relatives: the sender WRITEs each message into a ring in the receiver's memory (FaRM's RPC). The
//! halves differ in how the receiver is notified.
//!
//! # Golden counts
//!
//! Requests, doorbells, RECVs and completions of 1 024 calls, of 32 bytes unless said. One post in 64 is signaled.
//! The client reports its head after every quarter of the ring for answers (64 lines), by a WRITE of 8 bytes, or
//! with immediate data to a server that sleeps. A payload of 8 KiB is announced by a message, READ by its receiver,
//! and the client reports with one more message that it has the result. A message of Direct-Write-Send and of
//! Chained-Write-Send is two work requests. Payloads in pieces take one more message and one more READ each.
//!
//! ```text
//! Server-reply, client: posted_write 1040, posted_signaled 16, posted_inline 1040, doorbells 1040, bytes_posted
//!   65664, completed_write 16
//! Server-reply, server: posted_write 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, bytes_posted
//!   65536, completed_write 16
//! Server-reply, 8 KiB, client: posted_write 2064, posted_read 1024, posted_signaled 1056, posted_inline 2064,
//!   doorbells 3088, bytes_posted 8519808, completed_write 32, completed_read 1024
//! Server-reply, 8 KiB, server: posted_write 1024, posted_read 1024, posted_signaled 1040, posted_inline 1024,
//!   doorbells 2048, bytes_posted 8454144, completed_write 16, completed_read 1024
//! Server-reply, 64 KiB in pieces, client: posted_write 3104, posted_read 2048, posted_signaled 2096, posted_inline
//!   3104, doorbells 5152, bytes_posted 67305728, completed_write 48, completed_read 2048
//! Server-reply, 64 KiB in pieces, server: posted_write 2048, posted_read 2048, posted_signaled 2080, posted_inline
//!   2048, doorbells 4096, bytes_posted 67239936, completed_write 32, completed_read 2048
//! Direct-WriteIMM, client: posted_write 16, posted_write_immediate 1024, posted_signaled 16, posted_inline 1040,
//!   doorbells 1040, posted_receive 1024, bytes_posted 65664, completed_write 16, completed_receive_immediate 1024
//! Direct-WriteIMM, server: posted_write_immediate 1024, posted_signaled 16, posted_inline 1024, doorbells 1024,
//!   posted_receive 1024, bytes_posted 65536, completed_write 16, completed_receive_immediate 1024
//! Direct-WriteIMM, 8 KiB, client: posted_write 16, posted_write_immediate 2048, posted_read 1024, posted_signaled
//!   1056, posted_inline 2064, doorbells 3088, posted_receive 1024, bytes_posted 8519808, completed_write 32,
//!   completed_read 1024, completed_receive_immediate 1024
//! Direct-WriteIMM, 8 KiB, server: posted_write_immediate 1024, posted_read 1024, posted_signaled 1040,
//!   posted_inline 1024, doorbells 2048, posted_receive 2048, bytes_posted 8454144, completed_write 16,
//!   completed_read 1024, completed_receive_immediate 2048
//! Direct-WriteIMM, asleep, client: posted_write_immediate 1040, posted_signaled 16, posted_inline 1040, doorbells
//!   1040, posted_receive 1024, bytes_posted 65664, completed_write 16, completed_receive_immediate 1024
//! Direct-WriteIMM, asleep, server: posted_write_immediate 1024, posted_signaled 16, posted_inline 1024, doorbells
//!   1024, posted_receive 1040, bytes_posted 65536, completed_write 16, completed_receive_immediate 1040
//! Direct-Write-Send, client: posted_send 1024, posted_write 1040, posted_signaled 32, posted_inline 2064,
//!   doorbells 2064, posted_receive 1024, bytes_posted 65664, completed_send 32, completed_receive 1024
//! Direct-Write-Send, server: posted_send 1024, posted_write 1024, posted_signaled 32, posted_inline 2048,
//!   doorbells 2048, posted_receive 1024, bytes_posted 65536, completed_send 32, completed_receive 1024
//! Direct-Write-Send, 8 KiB, client: posted_send 2048, posted_write 2064, posted_read 1024, posted_signaled 1088,
//!   posted_inline 4112, doorbells 5136, posted_receive 1024, bytes_posted 8519808, completed_send 64,
//!   completed_read 1024, completed_receive 1024
//! Direct-Write-Send, 8 KiB, server: posted_send 1024, posted_write 1024, posted_read 1024, posted_signaled 1056,
//!   posted_inline 2048, doorbells 3072, posted_receive 2048, bytes_posted 8454144, completed_send 32,
//!   completed_read 1024, completed_receive 2048
//! Chained-Write-Send, client: posted_send 1024, posted_write 1040, posted_signaled 32, posted_inline 2064,
//!   doorbells 1040, posted_receive 1024, bytes_posted 65664, completed_send 32, completed_receive 1024
//! Chained-Write-Send, server: posted_send 1024, posted_write 1024, posted_signaled 32, posted_inline 2048,
//!   doorbells 1024, posted_receive 1024, bytes_posted 65536, completed_send 32, completed_receive 1024
//! Chained-Write-Send, 8 KiB, client: posted_send 2048, posted_write 2064, posted_read 1024, posted_signaled 1088,
//!   posted_inline 4112, doorbells 3088, posted_receive 1024, bytes_posted 8519808, completed_send 64,
//!   completed_read 1024, completed_receive 1024
//! Chained-Write-Send, 8 KiB, server: posted_send 1024, posted_write 1024, posted_read 1024, posted_signaled 1056,
//!   posted_inline 2048, doorbells 2048, posted_receive 2048, bytes_posted 8454144, completed_send 32,
//!   completed_read 1024, completed_receive 2048
//! ```

use super::protocol::Protocol;
use super::{
    Ends, Facts, Half, Made, MakeError, Mechanism, Message, Notice, Place, RequestHalf, Requests,
    ResponseHalf, TxHalf, staged,
};
use crate::path::listed::MAX_KEPT;
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use crate::path::{Cx, route};
use dunlin_fabric::{
    Data, Fabric, Host, InlineWrite, Memory, Operation, RegionKey, ThreadDomain, Work, WorkRequest,
};

/// The receiver polls the ring.
pub(super) struct Write;

impl Half for Write {
    const NAME: &'static str = "write";
    const REQUEST: u8 = 2;
    const RESPONSE: u8 = 2;
    const FACTS: Facts = Facts::reliable(Place::Ring, Notice::Polled);
}

/// Immediate data notifies the receiver.
pub(super) struct WriteImm;

impl Half for WriteImm {
    const NAME: &'static str = "write_imm";
    const REQUEST: u8 = 3;
    const RESPONSE: u8 = 3;
    const FACTS: Facts = Facts::reliable(Place::Ring, Notice::Immediate);
}

/// An empty SEND after the WRITE notifies the receiver.
pub(super) struct WriteSend;

impl Half for WriteSend {
    const NAME: &'static str = "write_send";
    const REQUEST: u8 = 4;
    const RESPONSE: u8 = 5;
    const FACTS: Facts = Facts::reliable(Place::Ring, Notice::Send);
}

/// An empty SEND under the same doorbell notifies the receiver.
pub(super) struct WriteSendChained;

impl Half for WriteSendChained {
    const NAME: &'static str = "write_send_chained";
    const REQUEST: u8 = 5;
    const RESPONSE: u8 = 6;
    const FACTS: Facts = Facts::reliable(Place::Ring, Notice::LinkedSend);
}

/// The mechanism.
pub(crate) struct Carrier;

impl Mechanism for Carrier {
    const PROTOCOLS: &'static [Protocol] = &[
        Protocol::row(
            "Server-reply",
            (RequestHalf::Write, ResponseHalf::Write),
            "FaRM RPC, RawWrite: both sides poll memory",
        ),
        Protocol::row(
            "Direct-WriteIMM",
            (RequestHalf::WriteImm, ResponseHalf::WriteImm),
            "HatRPC, LITE: WRITE_WITH_IMM both ways",
        ),
        Protocol::row(
            "Direct-Write-Send",
            (RequestHalf::WriteSend, ResponseHalf::WriteSend),
            "HatRPC: WRITE, then a SEND that tells of it",
        ),
        Protocol::row(
            "Chained-Write-Send",
            (RequestHalf::WriteSendChained, ResponseHalf::WriteSendChained),
            "HatRPC: WRITE and SEND under one doorbell",
        ),
    ];

    fn sender<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
        if ends.staged.is_some() {
            return staged::Carrier::sender(facts, ends);
        }
        let (key, base) = ends.to;
        Ok(ends.on_connection(TxHalf::Ring(Sender { key, base, notice: facts.notice })))
    }
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Sender {
    /// The peer's inbound region.
    key: RegionKey,
    /// Offset of the ring in that region.
    base: u64,
    /// How the receiver notices a message.
    notice: Notice,
}

/// Returns the empty SEND that announces the WRITE before it.
const fn announcement<M: Memory>() -> Operation<'static, M> {
    Operation::Send { data: Data::Inline(&[]), immediate: None, to: None }
}

impl<F: Fabric> super::Sender<F> for Sender {
    #[inline]
    fn put(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError> {
        let is_one = matches!(self.notice, Notice::Polled | Notice::Immediate);
        if !is_one || message.total > end.max_inline as usize {
            return self.put_long(end, cx, message);
        }
        let Message { parts, total, at, notify } = message;
        let (key, offset) = (self.key, self.base + at as u64);
        let immediate = (self.notice == Notice::Immediate && notify).then_some(end.lane as u32);
        let signaled = end.next_is_signaled(cx.fabric);
        let id = route::outgoing(end.lane);
        let ahead = end.ahead(total);
        let write = InlineWrite { id, parts, key, offset, immediate, signaled, ahead };
        let posted = cx.domain.post_write(end.queue_pair, write);
        end.posted(posted, signaled)
    }

    #[inline(always)]
    fn plain_ring(&self) -> Option<(RegionKey, u64)> {
        (self.notice == Notice::Polled).then_some((self.key, self.base))
    }

    /// A WRITE and a SEND with a doorbell each cannot share one with others.
    fn listed_inline(&self, notify: bool) -> Option<usize> {
        (!notify || self.notice != Notice::Send).then_some(MAX_KEPT)
    }

    fn requests<'a>(
        &self,
        end: &Sending<F>,
        data: Data<'a, F::Memory>,
        at: usize,
        notify: bool,
    ) -> Requests<'a, F::Memory> {
        let (key, offset) = (self.key, self.base + at as u64);
        let immediate = (self.notice == Notice::Immediate && notify).then_some(end.lane as u32);
        let announced = (self.notice == Notice::LinkedSend && notify).then(announcement);
        (Operation::Write { data, key, offset, immediate }, announced)
    }
}

impl Sender {
    #[inline(never)]
    fn put_long<F: Fabric>(
        &self,
        end: &mut Sending<F>,
        cx: &mut Cx<'_, F>,
        Message { parts, total, at, notify }: Message<'_>,
    ) -> Result<(), TxError> {
        let data = end.data(cx.fabric, parts, total)?;
        match super::Sender::requests(self, end, data, at, notify) {
            (write, Some(send)) => post_linked(end, cx, write, send),
            (write, None) if self.notice == Notice::Send && notify => {
                // The SEND is signaled instead. If it finds no room, the WRITE is repeated later: the peer ignores
                // messages that were not announced.
                end.post_one(cx, write, false)?;
                end.post_one(cx, announcement(), true)
            }
            (write, None) => end.post_one(cx, write, true),
        }
    }
}

/// Posts a WRITE and the SEND that announces it as one list.
fn post_linked<F: Fabric>(
    end: &mut Sending<F>,
    cx: &mut Cx<'_, F>,
    write: Operation<'_, F::Memory>,
    send: Operation<'_, F::Memory>,
) -> Result<(), TxError> {
    cx.fabric.host().charge(Work::PostWork, 2);
    let signaled = end.unsignaled + 2 >= end.signal_every;
    let id = route::outgoing(end.lane);
    let mut list = [
        Some(WorkRequest { id, operation: write, signaled: false }),
        Some(WorkRequest { id, operation: send, signaled }),
    ];
    let posted = cx.domain.post_list(end.queue_pair, &mut list);
    end.posted(posted.map_err(|refused| refused.error), signaled)?;
    // `posted` counted one request; the list has two.
    end.unsignaled += u32::from(!signaled);
    Ok(())
}
