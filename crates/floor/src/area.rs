//! The memory area shared by both processes of a floor pair: layout, mapping, and payload copies.
//!
//! Everything but the payload is atomic, so the floors themselves are safe code. The peer process can write
//! all of the area, so no part of it ever becomes a `&[u8]`: payloads are copied in and out.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::FloorError;

/// Slots of the ring floor, each one cache line.
pub const RING_SLOTS: usize = 256;
/// Largest payload of a round-trip floor, bytes.
pub const PAYLOAD_CAPACITY: usize = 1 << 20;
/// Maximum size of a subject's parameters, and of its report, bytes.
pub const MESSAGE_CAPACITY: usize = 4000;
/// Bit in a sequence number that marks the end of a slice, in-band.
pub(super) const STOP: u64 = 1 << 63;

/// One cache line: a flag and the inline payload.
#[repr(C, align(64))]
pub(super) struct Line {
    pub(super) sequence: AtomicU64,
    pub(super) data: [AtomicU64; 7],
}

/// A word alone in a pair of cache lines, since the adjacent-line prefetcher fetches lines in pairs.
#[repr(C, align(128))]
pub(super) struct Lone<T>(pub(super) T);

/// A message from one side to the other, exchanged between phases. Never used while a slice runs.
#[repr(C, align(64))]
pub(super) struct Message {
    length: AtomicU32,
    bytes: [AtomicU8; MESSAGE_CAPACITY],
}

impl Message {
    /// Stores `bytes`; returns `false` if they do not fit.
    pub(super) fn store(&self, bytes: &[u8]) -> bool {
        if bytes.len() > MESSAGE_CAPACITY {
            return false;
        }
        for (slot, byte) in self.bytes.iter().zip(bytes) {
            slot.store(*byte, Ordering::Relaxed);
        }
        self.length.store(bytes.len() as u32, Ordering::Release);
        true
    }

    /// Returns a private copy of the bytes stored last. The length comes from shared memory and is cut to
    /// the capacity.
    pub(super) fn load(&self) -> Vec<u8> {
        let length = (self.length.load(Ordering::Acquire) as usize).min(MESSAGE_CAPACITY);
        self.bytes[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }
}

/// The layout of the area, for both processes. The all-zero bytes of a new memfd are a valid value.
#[repr(C, align(4096))]
pub(super) struct Layout {
    /// Written by the leading process: generation in the upper 24 bits, phase code in the lower 8. Also a
    /// futex.
    pub(super) phase: Lone<AtomicU32>,
    /// Written by the peer: the phase it has entered.
    pub(super) entered: Lone<AtomicU32>,
    /// Written by the peer: the phase it has left.
    pub(super) left: Lone<AtomicU32>,
    /// 1 if the phase just entered or left failed; `from_peer` then holds the reason.
    pub(super) failed: AtomicU32,
    /// Core that the peer runs the phase on.
    pub(super) peer_core: AtomicU32,
    /// Process id of the leading process.
    pub(super) leader: AtomicU32,
    /// Last sequence number before the phase.
    pub(super) start_sequence: AtomicU64,
    /// CPU time of the peer in the phase just left, ns.
    pub(super) peer_cpu_ns: AtomicU64,
    /// Involuntary context switches of the peer in the phase just left.
    pub(super) peer_preemptions: AtomicU64,
    pub(super) futex_request: Lone<AtomicU32>,
    pub(super) futex_response: Lone<AtomicU32>,
    pub(super) cache_line: Lone<AtomicU64>,
    pub(super) to_peer: Message,
    pub(super) from_peer: Message,
    pub(super) requests: Ring,
    pub(super) responses: Ring,
    request_payload: Payload,
    response_payload: Payload,
}

#[repr(C, align(4096))]
pub(super) struct Ring(pub(super) [Line; RING_SLOTS]);

#[repr(C, align(4096))]
struct Payload(UnsafeCell<[u8; PAYLOAD_CAPACITY]>);

/// Selects one of the two payload areas.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    Request,
    Response,
}

/// A mapping of the shared area. Unmapped on drop.
pub(super) struct Area {
    layout: NonNull<Layout>,
}

impl Area {
    /// Creates a sealed memfd of the area's size and maps it.
    pub(super) fn create() -> Result<(Self, OwnedFd), FloorError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create("dunlin-floor", flags)
            .map_err(|source| FloorError::System { action: "create the shared memory", source })?;
        rustix::fs::ftruncate(&descriptor, size_of::<Layout>() as u64)
            .map_err(|source| FloorError::System { action: "size the shared memory", source })?;
        // The seals keep either side from truncating the memfd under the other's mapping.
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|source| FloorError::System { action: "seal the shared memory", source })?;
        Ok((Self::map(&descriptor)?, descriptor))
    }

    /// Maps an area that another process created.
    ///
    /// # Errors
    /// If the descriptor has another size, or if its size is not sealed.
    pub(super) fn open(descriptor: impl AsFd) -> Result<Self, FloorError> {
        let status = rustix::fs::fstat(&descriptor)
            .map_err(|source| FloorError::System { action: "look at the inherited descriptor", source })?;
        if status.st_size != size_of::<Layout>() as i64 {
            return Err(FloorError::NotAnArea { reason: "its size is not the size of a floor area" });
        }
        let seals = rustix::fs::fcntl_get_seals(&descriptor)
            .map_err(|_| FloorError::NotAnArea { reason: "it is not a memfd" })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(FloorError::NotAnArea { reason: "its size is not sealed" });
        }
        Self::map(descriptor)
    }

    fn map(descriptor: impl AsFd) -> Result<Self, FloorError> {
        // SAFETY: the kernel chooses a fresh range of exactly the file's size. The file is sealed against
        // shrinking, so access never faults. The range is only ever accessed as `Layout`, which consists of
        // atomics and `UnsafeCell`.
        let pointer = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<Layout>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                descriptor,
                0,
            )
        }
        .map_err(|source| FloorError::System { action: "map the shared memory", source })?;
        let layout =
            NonNull::new(pointer.cast()).ok_or(FloorError::NotAnArea { reason: "it was mapped at zero" })?;
        Ok(Self { layout })
    }

    fn payload(&self, direction: Direction) -> &Payload {
        match direction {
            Direction::Request => &self.request_payload,
            Direction::Response => &self.response_payload,
        }
    }

    /// Copies private bytes into shared memory.
    ///
    /// # Panics
    /// When `from` is longer than [`PAYLOAD_CAPACITY`].
    #[inline(always)]
    pub(super) fn copy_in(&self, direction: Direction, from: &[u8]) {
        assert!(from.len() <= PAYLOAD_CAPACITY);
        let to = self.payload(direction).0.get().cast::<u8>();
        // SAFETY: the length is checked against the area; `from` is private memory, so they cannot overlap.
        // The flag protocol gives each side the area alternately; a peer that violates it corrupts payload
        // bytes, nothing else.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// Copies bytes from shared memory into private memory.
    ///
    /// # Panics
    /// When `to` is longer than [`PAYLOAD_CAPACITY`].
    #[inline(always)]
    pub(super) fn copy_out(&self, direction: Direction, to: &mut [u8]) {
        assert!(to.len() <= PAYLOAD_CAPACITY);
        let from = self.payload(direction).0.get().cast::<u8>();
        // SAFETY: as in `copy_in`.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
}

impl Deref for Area {
    type Target = Layout;

    #[inline(always)]
    fn deref(&self) -> &Layout {
        // SAFETY: the mapping lives as long as `self`, is page aligned and of the layout's size, and every
        // bit pattern is a valid `Layout`.
        unsafe { self.layout.as_ref() }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` with this size, and no reference into it outlives `self`. A
        // failure would only leave the range mapped.
        let _ = unsafe { rustix::mm::munmap(self.layout.as_ptr().cast(), size_of::<Layout>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_share_the_bytes() {
        let (ours, descriptor) = Area::create().expect("an area");
        let theirs = Area::open(&descriptor).expect("a second mapping");
        ours.copy_in(Direction::Request, b"dunlin");
        let mut copy = [0; 6];
        theirs.copy_out(Direction::Request, &mut copy);
        assert_eq!(&copy, b"dunlin");
        theirs.copy_out(Direction::Response, &mut copy);
        assert_eq!(copy, [0; 6]);
    }

    #[test]
    fn foreign_descriptors_are_refused() {
        let file = std::fs::File::open("/proc/self/exe").expect("our own binary");
        assert!(matches!(Area::open(&file), Err(FloorError::NotAnArea { .. })));
        let unsealed = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).expect("a memfd");
        rustix::fs::ftruncate(&unsealed, size_of::<Layout>() as u64).expect("room");
        assert!(matches!(Area::open(&unsealed), Err(FloorError::NotAnArea { .. })));
    }

    #[test]
    fn messages_are_bounded() {
        let (area, _descriptor) = Area::create().expect("an area");
        assert!(area.to_peer.store(b"size=32"));
        assert_eq!(area.to_peer.load(), b"size=32");
        assert!(!area.to_peer.store(&[0; MESSAGE_CAPACITY + 1]));
        area.to_peer.length.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(area.to_peer.load().len(), MESSAGE_CAPACITY);
    }
}
