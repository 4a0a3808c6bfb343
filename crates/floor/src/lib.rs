//! Physical floors: how fast two pinned processes can exchange bytes over shared memory at all.
//!
//! A [`FloorPair`] is this thread, pinned to one core, and a peer process (this very binary, started again) pinned to
//! another, joined by one sealed memfd. Short **slices** of any [`Floor`] and of any [`Subject`] (an RPC system under
//! measurement) run in turn in that one pair, each bracketed by a cache-line probe, because the floor of a virtual
//! machine moves while one looks at it ([`alternate()`]).

use std::fmt;

mod alternate;
mod area;
mod clock;
mod limit;
mod pair;
mod payload;
mod peer;
mod placement;
mod preemption;
mod slices;

pub use alternate::{Alternation, Comparison, Selection, alternate, compare, select, take_turns};
pub use area::{MESSAGE_CAPACITY, PAYLOAD_CAPACITY, RING_SLOTS};
pub use clock::{TickClock, process_cpu_ns};

pub use limit::{LimitOptions, limit};
pub use pair::{Cores, FloorPair, PEER_ARGUMENT, PeerCost};
pub use payload::{PageBuffer, answer_seed, expected_answer_sum, expected_sum, fill_bytes, sum_bytes};
pub use peer::{NoSubject, Subject, inherited_descriptor, serve_peer};
pub use placement::Placement;
pub use slices::{RING_WINDOW, Slice};

/// One physical exchange. All of them busy-wait, except [`Floor::Futex`] and [`Floor::Memcpy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Floor {
    /// One word in one cache line, toggled by both sides.
    CacheLine,
    /// 32 bytes inline in the line of the flag, one such line for each direction.
    Inline32,
    /// A payload of so many bytes (at most [`PAYLOAD_CAPACITY`]): written anew in private memory, copied in, copied out
    /// by the other side, summed there; and the same back.
    Payload(u32),
    /// Requests per second through a ring of 256 lines for each direction, 32 bytes inline, with so many in flight.
    Ring {
        /// Requests in flight, 1 to [`RING_SLOTS`].
        window: u32,
    },
    /// A word handed over and back with futex wait and wake; across cores, or on one, as the pair is set.
    Futex,
    /// Copies of so many bytes between two private buffers, hot; the peer does nothing.
    Memcpy(u32),
}

impl Floor {
    /// The name in reports, with sizes in bytes.
    #[must_use]
    pub fn name(self) -> String {
        self.to_string()
    }

    /// The code and argument that travel to the peer.
    fn encode(self) -> (u8, u32) {
        match self {
            Self::CacheLine => (2, 0),
            Self::Inline32 => (3, 0),
            Self::Payload(size) => (4, size),
            Self::Ring { window } => (5, window),
            Self::Futex => (6, 0),
            Self::Memcpy(size) => (7, size),
        }
    }

    fn decode(code: u8, argument: u32) -> Option<Self> {
        Some(match code {
            2 => Self::CacheLine,
            3 => Self::Inline32,
            4 => Self::Payload(argument),
            5 => Self::Ring { window: argument },
            6 => Self::Futex,
            7 => Self::Memcpy(argument),
            _ => return None,
        })
    }
}

impl fmt::Display for Floor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheLine => write!(formatter, "cache_line_round_trip"),
            Self::Inline32 => write!(formatter, "round_trip_32"),
            Self::Payload(size) => write!(formatter, "round_trip_{size}"),
            Self::Ring { .. } => write!(formatter, "ring_32"),
            Self::Futex => write!(formatter, "futex_round_trip"),
            Self::Memcpy(size) => write!(formatter, "memcpy_{size}"),
        }
    }
}

/// Why a floor could not be measured. The pair is of no further use after any of these but `BadArgument`.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// Fewer than two cores to pin to.
    #[error(
        "this process may run on one core only, and busy floors need two; allow more with taskset or the container's cpuset"
    )]
    OneCore,
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: rustix::io::Errno,
    },
    /// The peer process could not be started.
    #[error("cannot start the peer process: {0}; the binary must be readable at /proc/self/exe")]
    Spawn(#[source] std::io::Error),
    /// The peer process ended while it was needed.
    #[error("the peer process has ended ({0}); run again, and look at its message above")]
    PeerGone(String),
    /// The peer lives but does not answer.
    #[error(
        "the peer process has not answered for {seconds} s; is its core taken by something of real-time priority?"
    )]
    PeerSilent {
        /// How long the wait was.
        seconds: u64,
    },
    /// The subject on the peer's side failed.
    #[error("the peer process reports: {0}")]
    PeerFailed(String),
    /// The process that leads a peer ended.
    #[error("the process that started this peer has ended")]
    LeaderGone,
    /// Bytes did not arrive as they were sent.
    #[error("{floor} delivered other bytes than were sent: this is a bug in the floor, or broken memory")]
    WrongData {
        /// The floor.
        floor: String,
    },
    /// The kernel's own account of a thread cannot be read.
    #[error("cannot read /proc/thread-self/status: {reason}; is /proc mounted?")]
    NoProc {
        /// Why.
        reason: String,
    },
    /// The inherited descriptor is not a floor area.
    #[error(
        "the inherited descriptor is not a floor area: {reason}; this mode is started by the benchmark itself only"
    )]
    NotAnArea {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A parameter out of its range.
    #[error("{0}")]
    BadArgument(String),
    /// The client's closure failed.
    #[error("the measured call failed: {0}")]
    Subject(String),
}
