//! What is asked of a NIC, as far as its cost depends on it.

pub use dunlin_fabric::Transport;

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// SEND, with or without immediate: takes a RECV at the target.
    Send,
    /// WRITE.
    Write,
    /// WRITE_WITH_IMM: writes, and takes a RECV at the target.
    WriteImmediate,
    /// READ.
    Read,
    /// FETCH_ADD or CMP_SWAP.
    Atomic,
}

impl Opcode {
    /// Whether the answer carries data: READ and atomics.
    #[must_use]
    pub fn answers_with_data(self) -> bool {
        matches!(self, Opcode::Read | Opcode::Atomic)
    }

    /// Whether the target's RECV is taken.
    #[must_use]
    pub fn takes_receive(self) -> bool {
        matches!(self, Opcode::Send | Opcode::WriteImmediate)
    }
}

/// Memory that a NIC reads or writes: a registered region of its host, and where in it. Regions are taken to start
/// at a page of the largest kind, so that offsets say in which cache set a line lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touch {
    /// The region's number, unique on its host.
    pub region: u32,
    /// The offset in bytes.
    pub offset: u64,
}

/// Where a work request stands under its doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// It has a doorbell to itself, and is pushed with it if it is small.
    Alone,
    /// The first of several: rings for all of them; the NIC fetches them.
    First,
    /// A further one: no doorbell, and mostly no fetch of its own.
    Next,
}

/// One work request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The queue pair's number on the initiator's NIC.
    pub initiator: u32,
    /// The queue pair's number on the target's NIC.
    pub target: u32,
    /// What to do.
    pub opcode: Opcode,
    /// The queue pair's transport.
    pub transport: Transport,
    /// Payload.
    pub bytes: u32,
    /// The payload stands in the work request.
    pub inline: bool,
    /// A completion is wanted.
    pub signaled: bool,
    /// Its place under the doorbell.
    pub linked: Linked,
    /// The initiator's buffer; of no matter for inline payloads.
    pub local: Touch,
    /// The target's buffer: of a SEND, the buffer of the RECV that it takes.
    pub remote: Touch,
}
