//! `send`: each message is a SEND into the buffer of a RECV (HatRPC figure 3a). The receiver's RECVs and the send queue
//! bound the sender.
//!
//! # Golden counts
//!
//! Requests, doorbells, RECVs and completions of 1 024 calls, of 32 bytes unless said. One post in 64 is signaled.
//! Write rendezvous takes three messages for each payload, two of them from its sender, and a WRITE, which is
//! always signaled. Read rendezvous takes a READ, and the client reports with a SEND of its own that it has the
//! result. Eager payloads of 8 KiB are three fragments, each in a slot of 4 KiB, and all of them copied.
//!
//! ```text
//! Eager-SendRecv, client: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive
//!   1024, bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! Eager-SendRecv, server: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive
//!   1024, bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! Eager-SendRecv, 8 KiB, client: posted_send 3072, posted_signaled 48, posted_inline 1024, doorbells 3072,
//!   posted_receive 3072, bytes_posted 8716288, bytes_received 8716288, completed_send 48, completed_receive 3072
//! Eager-SendRecv, 8 KiB, server: posted_send 3072, posted_signaled 48, posted_inline 1024, doorbells 3072,
//!   posted_receive 3072, bytes_posted 8716288, bytes_received 8716288, completed_send 48, completed_receive 3072
//! Eager-SendRecv, asleep, client: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024,
//!   posted_receive 1024, bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! Eager-SendRecv, asleep, server: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024,
//!   posted_receive 1024, bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! Write-RNDV, client: posted_send 3072, posted_write 1024, posted_signaled 1024, posted_inline 3072, doorbells
//!   4096, posted_receive 3072, bytes_posted 229376, bytes_received 196608, completed_write 1024, completed_receive
//!   3072
//! Write-RNDV, server: posted_send 3072, posted_write 1024, posted_signaled 1024, posted_inline 3072, doorbells
//!   4096, posted_receive 3072, bytes_posted 229376, bytes_received 196608, completed_write 1024, completed_receive
//!   3072
//! Write-RNDV, 8 KiB, client: posted_send 3072, posted_write 1024, posted_signaled 1024, posted_inline 3072,
//!   doorbells 4096, posted_receive 3072, bytes_posted 8585216, bytes_received 196608, completed_write 1024,
//!   completed_receive 3072
//! Write-RNDV, 8 KiB, server: posted_send 3072, posted_write 1024, posted_signaled 1024, posted_inline 3072,
//!   doorbells 4096, posted_receive 3072, bytes_posted 8585216, bytes_received 196608, completed_write 1024,
//!   completed_receive 3072
//! Read-RNDV, client: posted_send 2048, posted_read 1024, posted_signaled 1056, posted_inline 2048, doorbells 3072,
//!   posted_receive 1024, bytes_posted 163840, bytes_received 65536, completed_send 32, completed_read 1024,
//!   completed_receive 1024
//! Read-RNDV, server: posted_send 1024, posted_read 1024, posted_signaled 1040, posted_inline 1024, doorbells 2048,
//!   posted_receive 2048, bytes_posted 98304, bytes_received 131072, completed_send 16, completed_read 1024,
//!   completed_receive 2048
//! Read-RNDV, 8 KiB, client: posted_send 2048, posted_read 1024, posted_signaled 1056, posted_inline 2048,
//!   doorbells 3072, posted_receive 1024, bytes_posted 8519680, bytes_received 65536, completed_send 32,
//!   completed_read 1024, completed_receive 1024
//! Read-RNDV, 8 KiB, server: posted_send 1024, posted_read 1024, posted_signaled 1040, posted_inline 1024,
//!   doorbells 2048, posted_receive 2048, bytes_posted 8454144, bytes_received 131072, completed_send 16,
//!   completed_read 1024, completed_receive 2048
//! Hybrid-EagerRNDV, client: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024,
//!   posted_receive 1024, bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! Hybrid-EagerRNDV, server: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024,
//!   posted_receive 1024, bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! Hybrid-EagerRNDV, 8 KiB, client: posted_send 3072, posted_write 1024, posted_signaled 1024, posted_inline 3072,
//!   doorbells 4096, posted_receive 3072, bytes_posted 8585216, bytes_received 196608, completed_write 1024,
//!   completed_receive 3072
//! Hybrid-EagerRNDV, 8 KiB, server: posted_send 3072, posted_write 1024, posted_signaled 1024, posted_inline 3072,
//!   doorbells 4096, posted_receive 3072, bytes_posted 8585216, bytes_received 196608, completed_write 1024,
//!   completed_receive 3072
//! AR-gRPC, client: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive 1024,
//!   bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! AR-gRPC, server: posted_send 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive 1024,
//!   bytes_posted 65536, bytes_received 65536, completed_send 16, completed_receive 1024
//! AR-gRPC, 8 KiB, client: posted_send 2048, posted_read 1024, posted_signaled 1056, posted_inline 2048, doorbells
//!   3072, posted_receive 1024, bytes_posted 8519680, bytes_received 65536, completed_send 32, completed_read 1024,
//!   completed_receive 1024
//! AR-gRPC, 8 KiB, server: posted_send 1024, posted_read 1024, posted_signaled 1040, posted_inline 1024, doorbells
//!   2048, posted_receive 2048, bytes_posted 8454144, bytes_received 131072, completed_send 16, completed_read
//!   1024, completed_receive 2048
//! ```

use super::protocol::Protocol;
use super::{
    Arrived, Ends, Facts, Half, Keys, Made, MakeError, Mechanism, Message, Notice, Place, Receiver,
    RequestHalf, ResponseHalf, RxHalf, TxHalf,
};
use crate::path::large::{LargePayload, SMALL_LIMIT};
use crate::path::rx::{Incoming, Scratch, Taken, check};
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use crate::path::{Cx, Violation};
use dunlin_fabric::{Buffer, Fabric, Operation};
use dunlin_wire::Tags;
use std::collections::VecDeque;

/// The half.
pub(super) struct Send;

impl Half for Send {
    const NAME: &'static str = "send";
    const REQUEST: u8 = 1;
    const RESPONSE: u8 = 1;
    const FACTS: Facts = Facts::reliable(Place::Receive, Notice::Polled);
}

/// SENDs in both directions.
const SENDS: (RequestHalf, ResponseHalf) = (RequestHalf::Send, ResponseHalf::Send);

/// The mechanism.
pub(crate) struct Carrier;

impl Mechanism for Carrier {
    const PROTOCOLS: &'static [Protocol] = &[
        Protocol::row(
            "Eager-SendRecv",
            SENDS,
            "HatRPC: SEND both ways, payloads copied through slots of 4 KiB",
        )
        .large(LargePayload::Eager, SMALL_LIMIT),
        Protocol::row(
            "Write-RNDV",
            SENDS,
            "HatRPC: SEND asks, the receiver names a place, the sender WRITEs there",
        )
        .large(LargePayload::Write, 0),
        Protocol::row("Read-RNDV", SENDS, "HatRPC: SEND announces, the receiver READs")
            .large(LargePayload::Read, 0),
        Protocol::row("Hybrid-EagerRNDV", SENDS, "HatRPC's baseline: eager, from 4 KiB on write rendezvous")
            .large(LargePayload::Write, SMALL_LIMIT),
        Protocol::row(
            "AR-gRPC",
            SENDS,
            "AR-gRPC, as HatRPC emulates it: eager, from 4 KiB on read rendezvous",
        ),
    ];

    fn sender<F: Fabric>(_: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
        Ok(ends.on_connection(TxHalf::Send(Sender)))
    }

    fn receiver<F: Fabric>(_: Facts, ends: &mut Ends<'_, F>) -> Result<RxHalf<F>, MakeError> {
        Ok(RxHalf::Messages(Messages(VecDeque::with_capacity(usize::from(ends.window) + 1))))
    }
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Sender;

impl<F: Fabric> super::Sender<F> for Sender {
    #[inline(never)]
    fn put(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>, message: Message<'_>) -> Result<(), TxError> {
        let data = end.data(cx.fabric, message.parts, message.total)?;
        end.post_one(cx, Operation::Send { data, immediate: None, to: None }, true)
    }

    fn listed_inline(&self, _: bool) -> Option<usize> {
        Some(0)
    }
}

/// A message that came by SEND and is not processed yet.
#[derive(Debug)]
enum Held<F: Fabric> {
    /// In the RECV's buffer.
    Buffer(Buffer<F::Memory>),
    /// Copied out of the buffer, because other lanes need the RECV.
    Copied(Vec<u8>),
}

/// The receiving end: unprocessed messages from RECVs, at most one per RECV.
#[derive(Debug)]
pub(crate) struct Messages<F: Fabric>(VecDeque<Held<F>>);

impl<F: Fabric> Receiver<F> for Messages<F> {
    #[inline]
    fn is_waiting(&self, _: u64) -> bool {
        !self.0.is_empty()
    }

    fn take(&mut self, expected: Tags, scratch: &mut Scratch) -> Result<Taken<F>, Violation> {
        let Some(held) = self.0.pop_front() else { return Ok(Taken::Nothing) };
        let bytes: &[u8] = match &held {
            Held::Buffer(buffer) => buffer,
            Held::Copied(bytes) => bytes,
        };
        let total = check(bytes, expected)?;
        if total != bytes.len() {
            return Err(Violation::Transfer("a message of another length than it says"));
        }
        Ok(Taken::Message(match held {
            Held::Buffer(buffer) => Incoming::Buffer(buffer, 0..total),
            Held::Copied(bytes) => {
                scratch[..total].copy_from_slice(&bytes);
                Incoming::Scratch(total)
            }
        }))
    }

    fn deliver(&mut self, arrived: Arrived<F>, _: Keys) -> Result<Option<u64>, Buffer<F::Memory>> {
        let Arrived { mut buffer, bytes, .. } = arrived;
        if !buffer.set_length(bytes as usize) {
            return Err(buffer);
        }
        self.0.push_back(Held::Buffer(buffer));
        Ok(None)
    }

    fn deliver_copy(&mut self, message: &[u8], limit: usize) -> Result<(), Violation> {
        if self.0.len() >= limit {
            return Err(TOO_MANY);
        }
        self.0.push_back(Held::Copied(message.to_vec()));
        Ok(())
    }

    /// Copies the messages.
    fn release(&mut self, limit: usize, mut repost: impl FnMut(Buffer<F::Memory>)) -> Result<(), Violation> {
        // Messages copied earlier precede those still in buffers.
        for held in self.0.iter_mut().rev() {
            let Held::Buffer(buffer) = held else { break };
            let copied = Held::Copied(buffer.to_vec());
            if let Held::Buffer(buffer) = std::mem::replace(held, copied) {
                repost(buffer);
            }
        }
        if self.0.len() > limit { Err(TOO_MANY) } else { Ok(()) }
    }
}

const TOO_MANY: Violation = Violation::Transfer("more messages than the window allows are waiting");
