//! The list of the methods by which large payloads travel. A method is a file of `path/large/`, its `mod` line, and its
//! entry of the list: its public comment, and the types of its own ends. The file has the number and the name on the
//! wire, the [`Facts`], and both ends of the method. The enum, numbers, names and dispatch follow from the list
//! (`dispatch.rs`). Code above `path/` asks a method for a fact or calls it, and names none.
//!
//! The call or the answer announces a payload by a flag and a [`Descriptor`], which has the length in any case.
//!
//! | | the descriptor | then | over when |
//! |---|---|---|---|
//! | read | names the payload | the receiver READs it | the READ completes |
//! | write | has the length | `ClearToSend` names an area, a WRITE fills it | `Written` arrives |
//! | eager | has the length | `Fragment`s follow, in order | all bytes have arrived |
//! | in pieces | names the payload, of which one piece is filled | `Filled` messages with growing lengths, READs of the new bytes | all bytes were READ, or the sender gave up |
//!
//! Each end of a lane has a [`TransferQueue`] of pending messages and WRITEs, and an [`Inbound`] with the state of incoming
//! payloads. A payload lies in private memory before it is used, and has the announced length, whatever the peer does
//! afterwards. [`Pool`] has the memory of both ends.

#[macro_use]
mod dispatch;
mod expected;
mod facts;
mod method;
mod pool;
mod queue;

mod eager;
mod pipelined;
mod read;
mod write;
mod write_targets;

pub(crate) use self::facts::{Facts, Messages, Moved};
pub(crate) use self::method::{Begun, Inward, Received, Receiver, Sender};
pub(crate) use self::pipelined::EarlyPayload;
pub use self::pipelined::{PIECE, PayloadWriter};
pub(crate) use self::pool::Pool;
pub(crate) use self::queue::TransferQueue;

use self::method::{Method, Payload, PendingTransfer};
use self::write_targets::WriteTargets;
use dunlin_fabric::{Buffer, Fabric, RegionKey};
use dunlin_numbered::numbered;
use dunlin_wire::Descriptor;

/// The largest and default [`rendezvous_above`](crate::Plan::rendezvous_above): HatRPC's threshold of 4 KiB (section
/// 4.3).
pub const SMALL_LIMIT: u32 = 4096;

large_payloads! {
    read {
        /// Read rendezvous: the payload stays in the sender's memory, and the receiver READs it into private
        /// memory. One copy.
        Read;
        receiver read::Reads;
    }
    write {
        /// Write rendezvous: the sender announces the length, the receiver answers with a place, and the sender
        /// WRITEs the payload there and notifies the receiver.
        ///
        /// The receiver copies the payload out of memory that the peer can write before it uses it. A request
        /// leaves only while its client makes progress, because the client has to process the server's reply.
        Write;
        receiver write::ExpectedWrites<F>;
        pending write::Pending<F>;
    }
    eager {
        /// Eager: messages of at most [`SMALL_LIMIT`] bytes each, as for small payloads, copied at both ends.
        Eager;
        receiver eager::Assembly<F>;
        pending eager::Fragments<F>;
    }
    pipelined {
        /// Read rendezvous in pieces: announced when the first piece is ready, so that the receiver READs it
        /// while the sender fills the next one.
        Pipelined;
        receiver pipelined::PipelinedReads<F>;
        pending pipelined::Filled;
    }
}

impl LargePayload {
    /// Returns the descriptor that announces a payload; `None` if it does not lie in `exports`, and has to.
    pub(crate) fn announcement<F: Fabric>(
        self,
        exports: &Pool<F>,
        payload: &Buffer<F::Memory>,
    ) -> Option<Descriptor> {
        match self.facts().is_read() {
            true => exports.descriptor(payload),
            false => Some(Descriptor::announcement(payload.len() as u64)),
        }
    }
}

impl<F: Fabric> Inbound<F> {
    /// Returns the keys of the memory that the peer WRITEs to, for the end of their grants with the lane.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RegionKey> {
        self.get().targets().into_iter().flat_map(WriteTargets::keys)
    }
}
