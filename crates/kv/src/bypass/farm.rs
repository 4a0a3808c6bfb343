//! FaRM's GET: one READ of the key's neighbourhood, and another of the value if it does not lie in its slot.

use super::connection::{Area, Reads};
use super::hopscotch::{ELSEWHERE, EMPTY, INLINE, NAME_BYTES, OVERFLOW, SLOT_HEADER};
use super::lines::{self, LONGEST_READ, lines_for};
use super::server::{GetError, Got};
use super::space::LINE;
use super::{HEADER_BYTES, Shape, below, hash_of, number_at, number32_at};
use crate::partition::MAX_VALUE_LENGTH;

/// READs lines, in pieces that each keep the order of their bytes.
fn read_lines(reads: &mut impl Reads, area: Area, offset: u64, into: &mut [u8]) -> Result<(), GetError> {
    let mut at = offset;
    for piece in into.chunks_mut(LONGEST_READ) {
        reads.read(area, at, piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// The READ bytes and their content; kept between GETs to avoid allocations.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    read: Vec<u8>,
    content: Vec<u8>,
}

/// The result of searching READ slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The key was found; the content is that of its slot.
    Key,
    /// The key was not found; true if the first slot says that items with this home lie in the overflow.
    Nothing(bool),
    /// A slot is being written.
    Torn,
}

fn search(slots: &[u8], key: &[u8], content: &mut Vec<u8>) -> Result<Seen, GetError> {
    let mut overflowed = false;
    for (number, line) in slots.chunks_exact(LINE).enumerate() {
        let Some(_) = lines::check(line, content) else { return Ok(Seen::Torn) };
        overflowed |= number == 0 && content[2] != 0;
        if content[1] == EMPTY {
            continue;
        }
        let behind = SLOT_HEADER + usize::from(content[0]);
        match content.get(SLOT_HEADER..behind) {
            Some(stored) if stored == key => return Ok(Seen::Key),
            Some(_) => {}
            None => return Err(GetError::Malformed("a slot's key is longer than the slot")),
        }
    }
    Ok(Seen::Nothing(overflowed))
}

/// Searches the neighbourhood of a key, and the overflow if the key may lie there.
pub(super) fn look(
    reads: &mut impl Reads,
    shape: &Shape,
    key: &[u8],
    (value, scratch): (&mut Vec<u8>, &mut Scratch),
    attempt: &mut u32,
) -> Result<Got, GetError> {
    let home = below(hash_of(key), shape.places);
    let Scratch { read, content } = scratch;
    loop {
        read.resize(shape.neighbourhood as usize * LINE, 0);
        read_lines(reads, Area::Index, HEADER_BYTES + home * LINE as u64, read)?;
        let mut seen = search(read, key, content)?;
        if seen == Seen::Nothing(true) {
            let slots = shape.places + u64::from(shape.neighbourhood) - 1;
            read.resize(OVERFLOW * LINE, 0);
            read_lines(reads, Area::Index, HEADER_BYTES + slots * LINE as u64, read)?;
            seen = search(read, key, content)?;
        }
        match seen {
            Seen::Key => {}
            Seen::Nothing(_) => return Ok(Got::Nothing),
            Seen::Torn => {
                reads.pause(attempt)?;
                continue;
            }
        }
        let (kind, length) = (content[1], number32_at(content, 4) as usize);
        let behind = SLOT_HEADER + key.len();
        match kind {
            INLINE => {
                let Some(bytes) = content.get(behind..behind.saturating_add(length)) else {
                    return Err(GetError::Malformed("a slot's value is longer than the slot"));
                };
                value.clear();
                value.extend_from_slice(bytes);
                return Ok(Got::Found);
            }
            ELSEWHERE => {}
            _ => return Err(GetError::Malformed("a slot is of no known kind")),
        }
        if behind + NAME_BYTES > content.len() || length > MAX_VALUE_LENGTH {
            return Err(GetError::Malformed("a slot names a value that cannot be"));
        }
        let (offset, version) = (number_at(content, behind), number32_at(content, behind + 8));
        let bytes = lines_for(length) * LINE;
        if offset > shape.data_bytes || bytes as u64 > shape.data_bytes - offset {
            return Err(GetError::Malformed("a slot names memory that is not the table's"));
        }
        read.resize(bytes, 0);
        read_lines(reads, Area::Data, offset, read)?;
        if lines::check(read, value) == Some(version) {
            value.truncate(length);
            return Ok(Got::Found);
        }
        // The value was rewritten after the slot was READ, or is being written.
        reads.pause(attempt)?;
    }
}
