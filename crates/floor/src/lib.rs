//! Physical floors: the fastest possible exchange of bytes between two pinned processes over shared memory.
//!
//! A [`FloorPair`] consists of this thread, pinned to one core, and a peer process (the same binary,
//! started again) pinned to another core. A sealed memfd connects them. Short **slices** of a [`Floor`] and
//! of a [`Subject`] (an RPC system under measurement) alternate in the same pair, each between two
//! cache-line probes ([`alternate()`]), because the floor of a virtual machine changes during a
//! measurement.

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

/// One physical exchange. All floors busy-wait, except [`Floor::Futex`] and [`Floor::Memcpy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Floor {
    /// One word in one cache line, toggled by both sides.
    CacheLine,
    /// 32 bytes inline in the flag's line, one such line in each direction.
    Inline32,
    /// A payload of the given number of bytes, at most [`PAYLOAD_CAPACITY`]. It is filled in private
    /// memory, copied in, copied out by the other side and summed there; then the same in the other
    /// direction.
    Payload(u32),
    /// Requests per second through a ring of 256 lines in each direction, 32 bytes inline.
    Ring {
        /// Requests in flight, 1 to [`RING_SLOTS`].
        window: u32,
    },
    /// A word handed over and back with futex wait and wake, on two cores or on one, depending on the pair.
    Futex,
    /// Copies of the given number of bytes between two private buffers in the cache. The peer is idle.
    Memcpy(u32),
}

impl Floor {
    /// Returns the name used in reports, with sizes in bytes.
    #[must_use]
    pub fn name(self) -> String {
        self.to_string()
    }

    /// Returns the code and argument that are sent to the peer.
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

/// The reason why a floor could not be measured. After any of them except `BadArgument` the pair is
/// unusable.
#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// This process may run on only one core.
    #[error(
        "this process may run on one core only, and busy floors need two; allow more with taskset or the container's cpuset"
    )]
    OneCore,
    /// A system call failed.
    #[error("cannot {action}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error number.
        source: rustix::io::Errno,
    },
    /// The peer process could not be started.
    #[error("cannot start the peer process; the binary must be readable at /proc/self/exe")]
    Spawn(#[source] std::io::Error),
    /// The peer process ended while it was needed.
    #[error("the peer process has ended ({0}); run again, and look at its message above")]
    PeerGone(String),
    /// The peer process is alive but does not answer.
    #[error(
        "the peer process has not answered for {seconds} s; is its core taken by something of real-time priority?"
    )]
    PeerSilent {
        /// Length of the wait, s.
        seconds: u64,
    },
    /// The subject on the peer's side failed.
    #[error("the peer process reports: {0}")]
    PeerFailed(String),
    /// The leading process ended.
    #[error("the process that started this peer has ended")]
    LeaderGone,
    /// The bytes that arrived differ from those sent.
    #[error("{floor} delivered other bytes than were sent: this is a bug in the floor, or broken memory")]
    WrongData {
        /// The floor.
        floor: String,
    },
    /// The kernel's per-thread statistics in /proc cannot be read.
    #[error("cannot read /proc/thread-self/status: {reason}; is /proc mounted?")]
    NoProc {
        /// The cause.
        reason: String,
    },
    /// The inherited descriptor is not a floor area.
    #[error(
        "the inherited descriptor is not a floor area: {reason}; this mode is started by the benchmark itself only"
    )]
    NotAnArea {
        /// The defect of the descriptor.
        reason: &'static str,
    },
    /// A parameter is out of range.
    #[error("{0}")]
    BadArgument(String),
    /// The client's closure failed.
    #[error("the measured call failed: {0}")]
    Subject(String),
}
