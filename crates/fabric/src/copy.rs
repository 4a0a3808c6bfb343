//! Copies to and from memory that another process may change at any moment.
//!
//! Rust's memory model has no plain access to such memory: a racing `memcpy` would be undefined behaviour. On
//! x86-64 the copies are inline assembly, opaque to the compiler and sound under races (torn bytes are the
//! worst case). Elsewhere they are relaxed atomics. A volatile loop would be sound too, but is slower.
//!
//! Ordering of [`to_peer`]: the last 8 bytes (if the destination's end is 8-byte aligned) become visible
//! after all others. Ordering of [`from_peer`]: the last 8 bytes of the first line are read before all
//! others. Data whose writer stores those 8 bytes last is therefore complete if they are new. A NIC's READ
//! gives the same guarantee, and a fetching client needs it. A string move alone does not give it, since it
//! may be interrupted within a line.

/// The length from which `rep movsb` is faster than a loop of 16-byte moves, because of its start-up cost.
pub const STRING_MOVE_FROM: usize = 1024;

/// Copies `length` bytes from memory that a peer may be writing into private memory. Reads the last 8 bytes
/// of the first 64 first.
///
/// # Safety
/// `source` must be readable and `destination` writable for `length` bytes, and no Rust reference other than
/// the caller's may exist to the destination. The destination may be memory of peers as well, and the two may
/// overlap: then each byte that arrives is an old or a new one.
#[inline]
pub unsafe fn from_peer(source: *const u8, destination: *mut u8, length: usize) {
    // SAFETY: the caller's contract covers both pieces.
    unsafe {
        if length >= 64 {
            arch::copy_line(source, destination);
            arch::copy(source.add(64), destination.add(64), length - 64);
        } else {
            arch::copy(source, destination, length);
        }
    }
}

/// As [`from_peer`], but copies two halves alternately, one line of each. Some processors keep more lines of
/// two streams in flight than of one string move. Only a measurement shows which is faster for long copies.
///
/// # Safety
/// As for [`from_peer`].
#[inline]
pub unsafe fn from_peer_in_halves(source: *const u8, destination: *mut u8, length: usize) {
    // SAFETY: the caller's contract. Two halves of whole lines and the rest after them are exactly `length`
    // bytes.
    unsafe {
        let half = length / 128 * 64;
        for at in (0..half).step_by(64) {
            arch::copy_line(source.add(at), destination.add(at));
            arch::copy_line(source.add(half + at), destination.add(half + at));
        }
        from_peer(source.add(2 * half), destination.add(2 * half), length - 2 * half);
    }
}

/// Copies `length` bytes into memory that a peer may be reading or writing, the last 8 bytes last.
///
/// # Safety
/// `source` must be readable and `destination` writable for `length` bytes. The source may be memory of peers as
/// well, and the two may overlap: then each byte that arrives is an old or a new one.
#[inline]
pub unsafe fn to_peer(source: *const u8, destination: *mut u8, length: usize) {
    // SAFETY: the caller's contract covers both pieces.
    unsafe {
        if length >= 8 {
            arch::copy(source, destination, length - 8);
            arch::publish(source.add(length - 8), destination.add(length - 8));
        } else {
            arch::copy(source, destination, length);
        }
    }
}

/// Copies one aligned 64-byte line from memory that a peer may be writing.
///
/// # Safety
/// `source` must be readable for 64 bytes.
#[inline]
pub unsafe fn line_from_peer(source: *const u8) -> [u8; 64] {
    let mut line = core::mem::MaybeUninit::<[u8; 64]>::uninit();
    // SAFETY: the caller guarantees that the source is readable; the copy fills all 64 bytes.
    unsafe {
        arch::copy_line(source, line.as_mut_ptr().cast());
        line.assume_init()
    }
}

/// Copies one line to memory that a peer may be reading, its last 8 bytes last.
///
/// # Safety
/// `destination` must be 64-byte aligned and writable for 64 bytes.
#[inline]
pub unsafe fn line_to_peer(line: &[u8; 64], destination: *mut u8) {
    // SAFETY: the caller guarantees that the destination is aligned and writable. The stores go in ascending
    // order, and x86 keeps the order of stores. The tag is in the last store, which is aligned and so not
    // torn.
    unsafe { arch::copy_line_ordered(line.as_ptr(), destination) }
}

/// Copies with non-temporal stores, which bypass the caches. For data that another core will read, where
/// invalidating lines in that core's cache costs more than a memory access.
///
/// Stores after the call become visible after the copied data. If the lengths differ, only the shorter one is
/// copied.
#[inline]
pub fn stream(to: &mut [u8], from: &[u8]) {
    let length = to.len().min(from.len());
    let (to, from) = (&mut to[..length], &from[..length]);
    // Only whole lines bypass the caches.
    let head = to.as_ptr().align_offset(64).min(length);
    let lines = (length - head) / 64;
    let tail = head + lines * 64;
    to[..head].copy_from_slice(&from[..head]);
    // SAFETY: both slices have `lines` times 64 bytes from `head` on, `to` is borrowed exclusively, and its
    // start at `head` is aligned.
    unsafe { arch::stream(from.as_ptr().add(head), to.as_mut_ptr().add(head), lines) };
    to[tail..].copy_from_slice(&from[tail..]);
}

/// Hints that another core will read a line that was just written, so the line may move to the shared cache
/// (CLDEMOTE). Never faults; processors without the instruction execute it as a no-op.
#[inline(always)]
pub fn demote(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint has no effect that a program can observe.
    unsafe {
        core::arch::asm!("cldemote [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = address;
}

/// Prefetches a line for writing. A hint: it never faults, whatever the address.
#[inline(always)]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect that a program can observe; processors without the instruction ignore
    // it.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = address;
}

/// The lines that [`prefetch_behind`] prefetches.
pub const LINES_BEHIND: usize = 6;

/// Prefetches the [`LINES_BEHIND`] lines behind a line for writing, one instruction each. A hint, as
/// [`prefetch_to_write`].
#[inline(always)]
pub fn prefetch_behind(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as in `prefetch_to_write`.
    unsafe {
        core::arch::asm!(
            "prefetchw [{at} + 64]", "prefetchw [{at} + 128]", "prefetchw [{at} + 192]",
            "prefetchw [{at} + 256]", "prefetchw [{at} + 320]", "prefetchw [{at} + 384]",
            at = in(reg) line, options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = line;
}

/// Prefetches a line for reading. A hint: it never faults, whatever the address.
#[inline(always)]
pub fn prefetch_to_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect that a program can observe.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = address;
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod arch {
    use super::STRING_MOVE_FROM;
    use core::arch::asm;

    #[inline]
    pub(super) unsafe fn copy(source: *const u8, destination: *mut u8, length: usize) {
        // SAFETY: the caller's contract; every branch accesses exactly [0, length).
        unsafe {
            if length >= STRING_MOVE_FROM {
                asm!("rep movsb", inout("rcx") length => _, inout("rsi") source => _, inout("rdi") destination => _,
                    options(nostack, preserves_flags));
            } else if length >= 16 {
                let mut at = 0;
                while at + 64 <= length {
                    copy_line(source.add(at), destination.add(at));
                    at += 64;
                }
                while at + 16 <= length {
                    copy16(source.add(at), destination.add(at));
                    at += 16;
                }
                if at < length {
                    copy16(source.add(length - 16), destination.add(length - 16));
                }
            } else if length >= 8 {
                copy8(source, destination);
                copy8(source.add(length - 8), destination.add(length - 8));
            } else {
                for at in 0..length {
                    copy1(source.add(at), destination.add(at));
                }
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn copy_line(source: *const u8, destination: *mut u8) {
        // SAFETY: 64 bytes each, by the caller's contract.
        unsafe {
            asm!(
                "movups {d}, [{s} + 48]", "movups {c}, [{s} + 32]", "movups {b}, [{s} + 16]", "movups {a}, [{s}]",
                "movups [{t}], {a}", "movups [{t} + 16], {b}", "movups [{t} + 32], {c}", "movups [{t} + 48], {d}",
                s = in(reg) source, t = in(reg) destination,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Loads 8 bytes at a time: the line has just been assembled from words, and a wider load would wait
    /// until those stores have left the store queue. Stores in four pieces: stores wait in that queue until
    /// the line arrives from the peer's cache, and the queue is short.
    #[inline(always)]
    pub(super) unsafe fn copy_line_ordered(source: *const u8, destination: *mut u8) {
        // SAFETY: 64 bytes each, by the caller's contract.
        unsafe {
            asm!(
                "movq {a}, [{s}]", "movhps {a}, [{s} + 8]", "movq {b}, [{s} + 16]", "movhps {b}, [{s} + 24]",
                "movq {c}, [{s} + 32]", "movhps {c}, [{s} + 40]", "movq {d}, [{s} + 48]", "movhps {d}, [{s} + 56]",
                "movups [{t}], {a}", "movups [{t} + 16], {b}", "movups [{t} + 32], {c}", "movups [{t} + 48], {d}",
                s = in(reg) source, t = in(reg) destination,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
        }
    }

    #[inline]
    pub(super) unsafe fn stream(source: *const u8, destination: *mut u8, lines: usize) {
        // SAFETY: `lines` aligned lines each, by the caller's contract. Non-temporal stores are unordered, so
        // a fence waits for them.
        unsafe {
            for line in 0..lines {
                asm!(
                    "movups {a}, [{s}]", "movups {b}, [{s} + 16]", "movups {c}, [{s} + 32]", "movups {d}, [{s} + 48]",
                    "movntdq [{t}], {a}", "movntdq [{t} + 16], {b}", "movntdq [{t} + 32], {c}", "movntdq [{t} + 48], {d}",
                    s = in(reg) source.add(line * 64), t = in(reg) destination.add(line * 64),
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                );
            }
            asm!("sfence", options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn copy16(source: *const u8, destination: *mut u8) {
        // SAFETY: 16 bytes each, by the caller's contract.
        unsafe {
            asm!("movups {a}, [{s}]", "movups [{t}], {a}", s = in(reg) source, t = in(reg) destination,
                a = out(xmm_reg) _, options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn copy8(source: *const u8, destination: *mut u8) {
        // SAFETY: 8 bytes each, by the caller's contract.
        unsafe {
            asm!("mov {a}, [{s}]", "mov [{t}], {a}", s = in(reg) source, t = in(reg) destination, a = out(reg) _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn copy1(source: *const u8, destination: *mut u8) {
        // SAFETY: one byte each, by the caller's contract.
        unsafe {
            asm!("mov {a}, [{s}]", "mov [{t}], {a}", s = in(reg) source, t = in(reg) destination, a = out(reg_byte) _,
                options(nostack, preserves_flags));
        }
    }

    /// Stores after a string move are ordered after it (Intel SDM volume 1, section 7.3.9.3), and every
    /// x86-64 processor keeps the order of plain stores.
    #[inline(always)]
    pub(super) unsafe fn publish(source: *const u8, destination: *mut u8) {
        // SAFETY: 8 bytes each, by the caller's contract.
        unsafe { copy8(source, destination) }
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
mod arch {
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

    pub(super) unsafe fn copy(source: *const u8, destination: *mut u8, length: usize) {
        let mut at = 0;
        // SAFETY: every access lies in [0, length) of both ranges and is atomic, so races are defined.
        unsafe {
            if (source as usize | destination as usize) % 8 == 0 {
                while at + 8 <= length {
                    let value =
                        AtomicU64::from_ptr(source.add(at).cast::<u64>().cast_mut()).load(Ordering::Relaxed);
                    AtomicU64::from_ptr(destination.add(at).cast()).store(value, Ordering::Relaxed);
                    at += 8;
                }
            }
            while at < length {
                let value = AtomicU8::from_ptr(source.add(at).cast_mut()).load(Ordering::Relaxed);
                AtomicU8::from_ptr(destination.add(at)).store(value, Ordering::Relaxed);
                at += 1;
            }
        }
    }

    pub(super) unsafe fn stream(source: *const u8, destination: *mut u8, lines: usize) {
        // SAFETY: `lines` lines each, by the caller's contract.
        unsafe { copy(source, destination, lines * 64) }
    }

    pub(super) unsafe fn copy_line(source: *const u8, destination: *mut u8) {
        // SAFETY: 64 bytes each, by the caller's contract.
        unsafe {
            copy(source.add(56), destination.add(56), 8);
            // The peer stores this aligned word after all others of the line, so it must be read before them.
            fence(Ordering::Acquire);
            copy(source, destination, 56);
        }
    }

    pub(super) unsafe fn copy_line_ordered(source: *const u8, destination: *mut u8) {
        // SAFETY: 64 bytes each, by the caller's contract.
        unsafe {
            copy(source, destination, 56);
            publish(source.add(56), destination.add(56));
        }
    }

    pub(super) unsafe fn publish(source: *const u8, destination: *mut u8) {
        fence(Ordering::Release);
        // SAFETY: 8 bytes each, by the caller's contract.
        unsafe {
            if destination as usize % 8 == 0 {
                let mut word = [0; 8];
                copy(source, word.as_mut_ptr(), 8);
                AtomicU64::from_ptr(destination.cast()).store(u64::from_ne_bytes(word), Ordering::Release);
            } else {
                copy(source, destination, 8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_copies_exactly() {
        for length in (0..200).chain([1023, 1024, 1025, 4096, 70_000]) {
            for shift in [0usize, 1, 7, 8] {
                let source: Vec<u8> = (0..length + shift).map(|i| (i * 31 + 7) as u8).collect();
                for way in [from_peer, from_peer_in_halves, to_peer] {
                    let mut destination = vec![0xeeu8; length + shift + 9];
                    // SAFETY: both vectors hold at least `shift + length` bytes and do not overlap.
                    unsafe { way(source.as_ptr().add(shift), destination.as_mut_ptr().add(shift), length) };
                    assert_eq!(destination[shift..shift + length], source[shift..]);
                    assert!(
                        destination[..shift].iter().chain(&destination[shift + length..]).all(|b| *b == 0xee)
                    );
                }
            }
        }
    }

    /// Ranges that overlap give any mixture of their bytes, and change nothing around the destination.
    #[test]
    fn copies_that_overlap_mix_the_bytes() {
        for length in [1usize, 7, 8, 9, 63, 64, 65, 200, 1024, 70_000] {
            for (from, to) in [(100usize, 101usize), (101, 100), (100, 108), (164, 100), (100, 100)] {
                for way in [from_peer, from_peer_in_halves, to_peer] {
                    let end = from.max(to) + length;
                    let inside = |at: &usize| (from.min(to)..end).contains(at);
                    let mut bytes: Vec<u8> =
                        (0..end + 100).map(|at| if inside(&at) { (at % 9) as u8 } else { 0xee }).collect();
                    let before = bytes.clone();
                    let start = bytes.as_mut_ptr();
                    // SAFETY: both ranges lie in the vector.
                    unsafe { way(start.add(from), start.add(to), length) };
                    for (at, byte) in bytes.iter().enumerate() {
                        let is_written = (to..to + length).contains(&at);
                        assert!(if is_written { *byte < 9 } else { *byte == before[at] }, "{length}: {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_streamed_is_copied_exactly() {
        for length in (0..300).chain([4095, 70_000]) {
            for (shift, other) in [(0usize, 3usize), (1, 0), (63, 4), (64, 64)] {
                let source: Vec<u8> = (0..length + other).map(|i| (i * 31 + 7) as u8).collect();
                let mut destination = vec![0xeeu8; length + shift + 9];
                stream(&mut destination[shift..shift + length], &source[other..]);
                assert_eq!(destination[shift..shift + length], source[other..]);
                assert!(
                    destination[..shift].iter().chain(&destination[shift + length..]).all(|b| *b == 0xee)
                );
            }
        }
    }

    #[test]
    fn lines_copy_exactly() {
        #[repr(align(64))]
        struct Line([u8; 64]);
        let source: [u8; 64] = std::array::from_fn(|i| i as u8 ^ 0x5a);
        let mut line = Line([0; 64]);
        // SAFETY: the destination is one aligned line on this stack.
        unsafe {
            line_to_peer(&source, line.0.as_mut_ptr());
            assert_eq!(line_from_peer(line.0.as_ptr()), source);
        }
        assert_eq!(line.0, source);
    }
}
