//! FaRM's lines: each line has the version of its content, so that a reader detects content that was READ in
//! pieces or while it was written.
//!
//! A NIC READs a cache line atomically, so FaRM has one version per line. Here a READ may also be a
//! processor's copy, which reads the end of a line first and its beginning last (`fabric/copy.rs`). So a line
//! has its version at both ends, and is written from the beginning to the end. Both ends then show the same
//! version only if the bytes between them belong to that version. Content longer than [`LONGEST_READ`] is
//! READ in pieces, since a longer copy does not keep this order.

use super::space::LINE;
use dunlin_fabric::{Memory, Region};
use std::sync::atomic::{Ordering, fence};

/// Bytes of a line without its versions.
pub(super) const ROOM: usize = LINE - 8;
/// The longest READ: whole lines, fewer than the least for which a copy uses string moves.
pub(super) const LONGEST_READ: usize = 15 * LINE;

/// Returns the lines that hold `bytes` bytes.
pub(super) const fn lines_for(bytes: usize) -> usize {
    let lines = bytes.div_ceil(ROOM);
    if lines == 0 { 1 } else { lines }
}

/// Writes lines that peers may READ concurrently. The version must be even, and no other content of these
/// lines may ever have had it.
pub(super) fn write<M: Memory>(region: &Region<M>, offset: usize, lines: usize, version: u32, bytes: &[u8]) {
    debug_assert!(version.is_multiple_of(2) && bytes.len() <= lines * ROOM);
    for line in 0..lines {
        let mut room = [0; ROOM];
        let part = bytes.get(line * ROOM..).unwrap_or_default();
        let part = &part[..part.len().min(ROOM)];
        room[..part.len()].copy_from_slice(part);
        let at = offset + line * LINE;
        let first = |version: u32| {
            let four = room.first_chunk::<4>().map_or(0, |four| u32::from_le_bytes(*four));
            u64::from(version) | u64::from(four) << 32
        };
        let last = room.last_chunk::<4>().map_or(0, |four| u32::from_le_bytes(*four));
        // An odd version marks a write in progress. All other stores come after it.
        region.store(at, first(version | 1));
        fence(Ordering::SeqCst);
        region.copy_in(at + 8, &room[4..ROOM - 4]);
        region.store(at + LINE - 8, u64::from(last) | u64::from(version) << 32);
        region.store(at, first(version));
    }
}

/// Returns the version of lines that were READ, and copies their content; `None` if it is being written or
/// has several versions.
pub(super) fn check(read: &[u8], content: &mut Vec<u8>) -> Option<u32> {
    content.clear();
    let mut common = None;
    for line in read.chunks_exact(LINE) {
        let begin = super::number32_at(line, 0);
        let end = super::number32_at(line, LINE - 4);
        if begin != end || !begin.is_multiple_of(2) || common.is_some_and(|common| common != begin) {
            return None;
        }
        common = Some(begin);
        content.extend_from_slice(&line[4..LINE - 4]);
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_fabric::Access;
    use dunlin_fabric::memory::HeapMemory;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_checks_and_a_mixture_does_not(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 1usize..8) {
            let region = Region::new(HeapMemory::new(1024, Access::READ).unwrap());
            let lines = lines_for(bytes.len());
            write(&region, 64, lines, 6, &bytes);
            let mut read = vec![0; lines * LINE];
            region.copy_out(64, &mut read);
            let mut content = Vec::new();
            prop_assert_eq!(check(&read, &mut content), Some(6));
            prop_assert_eq!(&content[..bytes.len()], &bytes[..]);
            // The beginning of one version and the end of another, cut anywhere at 8 bytes.
            write(&region, 64, lines, 8, &bytes);
            let mut newer = vec![0; lines * LINE];
            region.copy_out(64, &mut newer);
            let place = (cut * 8).min(read.len() - 8);
            newer[..place].copy_from_slice(&read[..place]);
            prop_assert_eq!(check(&newer, &mut content), None);
        }
    }
}
