//! The two questions about sharing: how the threads of a client share its lanes, and how long a server's memory
//! belongs to a lane.

/// How the threads of a client share its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Sharing {
    /// One lane for each client handle and server worker: no thread waits for another one.
    Dedicated = 1,
    /// Threads share a lane behind a lock, and each sends its own messages: the baseline of FLOCK (figure 9).
    Locked = 2,
    /// Threads share a lane, and the thread that holds it sends the calls of all of them in one message (FLOCK
    /// section 4).
    Combined = 3,
}

/// How long the memory that a server grants to a lane belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Lease {
    /// Until the lane closes.
    Forever = 1,
    /// For a time slice of the group that the client is in (ScaleRPC section 3). This version does not have it.
    Slice = 2,
}

impl Sharing {
    /// All policies.
    pub const ALL: [Sharing; 3] = [Sharing::Dedicated, Sharing::Locked, Sharing::Combined];

    /// Returns the policy's name, as in the documents.
    pub const fn name(self) -> &'static str {
        match self {
            Sharing::Dedicated => "dedicated",
            Sharing::Locked => "locked",
            Sharing::Combined => "combined",
        }
    }

    /// Returns the policy with this number in the handshake.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|sharing| *sharing as u8 == number)
    }
}

impl Lease {
    /// All leases.
    pub const ALL: [Lease; 2] = [Lease::Forever, Lease::Slice];

    /// Returns the lease's name, as in the documents.
    pub const fn name(self) -> &'static str {
        match self {
            Lease::Forever => "forever",
            Lease::Slice => "slice",
        }
    }

    /// Returns the lease with this number in the handshake.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|lease| *lease as u8 == number)
    }
}
