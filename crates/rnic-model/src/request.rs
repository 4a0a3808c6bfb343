//! Work requests, as far as their cost depends on them.

pub use dunlin_fabric::Transport;

/// The operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// SEND, with or without immediate: consumes a RECV at the target.
    Send,
    /// WRITE.
    Write,
    /// WRITE_WITH_IMM: writes, and consumes a RECV at the target.
    WriteImmediate,
    /// READ.
    Read,
    /// FETCH_ADD or CMP_SWAP.
    Atomic,
}

impl Opcode {
    /// Returns whether the answer carries data: READ and atomics.
    #[must_use]
    pub fn answers_with_data(self) -> bool {
        matches!(self, Opcode::Read | Opcode::Atomic)
    }

    /// Returns whether the operation consumes a RECV at the target.
    #[must_use]
    pub fn takes_receive(self) -> bool {
        matches!(self, Opcode::Send | Opcode::WriteImmediate)
    }
}

/// The pages of a registered region, for each of which a NIC holds a translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Of the size that the host's profile gives.
    #[default]
    Profile,
    /// Of this number of bytes, a power of two.
    Bytes(u64),
    /// None: the region is registered by physical addresses (LITE 4.1).
    Physical,
}

/// Memory that a NIC reads or writes: a registered region of its host and an offset. The model assumes that
/// regions start at a page of the largest size, so that offsets determine the cache set of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touch {
    /// Number of the region, unique on its host.
    pub region: u32,
    /// Offset in bytes.
    pub offset: u64,
}

/// The position of a work request in the list of its doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// The only one of its doorbell; pushed with it if small enough.
    Alone,
    /// The first of several: its doorbell covers all, and the NIC fetches them.
    First,
    /// A later one: no doorbell, and usually no separate fetch.
    Next,
}

/// One work request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Number of the queue pair on the initiator's NIC.
    pub initiator: u32,
    /// Number of the queue pair on the target's NIC.
    pub target: u32,
    /// The operation.
    pub opcode: Opcode,
    /// The queue pair's transport.
    pub transport: Transport,
    /// Payload in bytes.
    pub bytes: u32,
    /// Whether the payload is inline in the work request.
    pub inline: bool,
    /// Whether the request asks for a completion.
    pub signaled: bool,
    /// Its position in the list of its doorbell.
    pub linked: Linked,
    /// The initiator's buffer; ignored for inline payloads.
    pub local: Touch,
    /// The target's buffer; for a SEND, the buffer of the RECV that it consumes.
    pub remote: Touch,
}
