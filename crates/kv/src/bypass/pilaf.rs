//! Pilaf's GET: for each place of the key it READs the entry, then the record, until it finds the key. Bytes
//! with a wrong checksum are READ again.

use super::connection::{Area, Reads};
use super::cuckoo::{ENTRY_BYTES, Entry, LONGEST_RECORD, checksum, places_of};
use super::server::{GetError, Got};
use super::{HEADER_BYTES, Shape, hash_of, number_at, number32_at};

/// The content of a READ entry.
enum Seen {
    Empty,
    Taken(Entry),
    /// A PUT is writing it.
    Torn,
}

/// Checks an entry that was READ. If it has a valid checksum and invalid content, the server is broken or
/// hostile.
fn parse(bytes: &[u8; ENTRY_BYTES], shape: &Shape) -> Result<Seen, GetError> {
    if *bytes == [0; ENTRY_BYTES] {
        return Ok(Seen::Empty);
    }
    if checksum(&bytes[..24]) != number_at(bytes, 24) {
        return Ok(Seen::Torn);
    }
    match bytes[13] {
        0 => return Ok(Seen::Empty),
        1 => {}
        _ => return Err(GetError::Malformed("an entry is neither empty nor taken")),
    }
    let entry = Entry {
        offset: number_at(bytes, 0),
        length: number32_at(bytes, 8),
        key_length: bytes[12],
        checksum: number_at(bytes, 16),
    };
    let length = u64::from(entry.length);
    if u32::from(entry.key_length) > entry.length || entry.length as usize > LONGEST_RECORD {
        return Err(GetError::Malformed("an entry has a length that cannot be"));
    }
    if entry.offset > shape.data_bytes || length > shape.data_bytes - entry.offset {
        return Err(GetError::Malformed("an entry names memory that is not the table's"));
    }
    Ok(Seen::Taken(entry))
}

/// Searches all places of a key.
pub(super) fn look(
    reads: &mut impl Reads,
    shape: &Shape,
    key: &[u8],
    record: &mut Vec<u8>,
    attempt: &mut u32,
) -> Result<Got, GetError> {
    for place in places_of(hash_of(key), shape.places) {
        loop {
            let mut bytes = [0; ENTRY_BYTES];
            reads.read(Area::Index, HEADER_BYTES + place * ENTRY_BYTES as u64, &mut bytes)?;
            let entry = match parse(&bytes, shape)? {
                Seen::Empty => break,
                Seen::Taken(entry) => entry,
                Seen::Torn => {
                    reads.pause(attempt)?;
                    continue;
                }
            };
            record.resize(entry.length as usize, 0);
            reads.read(Area::Data, entry.offset, record)?;
            if checksum(record) != entry.checksum {
                // The record was rewritten after the entry was READ, or is being written.
                reads.pause(attempt)?;
                continue;
            }
            let (stored, _) = record.split_at(usize::from(entry.key_length));
            if stored == key {
                record.drain(..usize::from(entry.key_length));
                return Ok(Got::Found);
            }
            break;
        }
    }
    Ok(Got::Nothing)
}
