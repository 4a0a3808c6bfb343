//! Handles in a ledger, and their recovery by the next life of the node.

use super::{Entry, Handle, HandleTable, MAX_HANDLES, State};
use crate::codec::{Reader, Writer};
use crate::ledger::Entries;
use crate::message::Malformed;
use crate::place::LmrId;
use crate::rights::Principal;

const GONE: u8 = 1;
const MOVED: u8 = 2;
const HAS_LAYOUT: u8 = 4;
const REVOKED: u8 = 8;

impl HandleTable {
    /// The entries of handles begin with this byte in a ledger.
    pub const TABLE: u8 = b'H';

    /// Reports changes from here on ([`report`](HandleTable::report)).
    pub fn watch(&mut self) {
        self.changes.watch();
    }

    /// Reports the handles that have changed since the last report. Operations in flight are no part of the entries.
    pub fn report(&mut self, entries: &mut impl Entries) {
        for slot in self.changes.take() {
            let key = Writer::new(HandleTable::TABLE).u32(slot.swap_bytes()).bytes();
            let entry = self.entries.get(slot as usize).filter(|entry| entry.state.is_open());
            match entry.and_then(|entry| Some((entry, self.slots.get(&(entry.id, slot))?))) {
                Some((entry, principal)) => entries.put(&key, &encode(entry, principal)),
                None => entries.remove(&key),
            }
        }
    }

    /// Adds a handle of an earlier life.
    ///
    /// # Errors
    /// The entry is not one that [`report`](HandleTable::report) makes.
    pub fn recover(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(key);
        let slot = reader.u32()?.swap_bytes();
        reader.end(())?;
        if slot as usize >= MAX_HANDLES || (slot as usize) < self.entries.len() {
            return Err(Malformed);
        }
        let (entry, principal) = decode(value)?;
        while self.entries.len() < slot as usize {
            self.free.push(self.entries.len() as u32);
            self.entries.push(Entry { state: State::Free, layout: None, generation: 1, ..entry.clone() });
        }
        self.slots.insert((entry.id, slot), principal);
        self.entries.push(entry);
        Ok(())
    }

    /// Returns the handles that are not unmapped, with their regions.
    pub fn handles(&self) -> impl Iterator<Item = (Handle, LmrId)> {
        let open = self.entries.iter().zip(0..).filter(|(entry, _)| entry.state.is_open());
        open.map(|(entry, slot)| (Handle::new(slot, entry.generation), entry.id))
    }
}

fn encode(entry: &Entry, principal: &Principal) -> Vec<u8> {
    let flags = match entry.state {
        State::Gone => GONE,
        State::Moved => MOVED,
        State::Revoked => REVOKED,
        _ => 0,
    } | if entry.layout.is_some() { HAS_LAYOUT } else { 0 };
    let writer = Writer::new(flags).u32(entry.generation).u64(entry.length).id(entry.id);
    let writer = writer.rights(entry.rights).text(principal.as_str().as_bytes());
    match &entry.layout {
        Some(layout) => writer.layout(layout).bytes(),
        None => writer.bytes(),
    }
}

fn decode(value: &[u8]) -> Result<(Entry, Principal), Malformed> {
    let mut reader = Reader::new(value);
    let (flags, generation, length) = (reader.u8()?, reader.u32()?, reader.u64()?);
    let (id, rights, principal) = (reader.id()?, reader.rights()?, reader.principal()?);
    let layout = if flags & HAS_LAYOUT != 0 { Some(reader.layout()?) } else { None };
    let state = match flags & !HAS_LAYOUT {
        0 if layout.as_ref().is_some_and(|layout| layout.length() == length) => State::Live,
        GONE => State::Gone,
        MOVED => State::Moved,
        REVOKED => State::Revoked,
        _ => return Err(Malformed),
    };
    reader.end((Entry { layout, length, id, generation, in_flight: 0, rights, state }, principal))
}

#[cfg(test)]
mod tests;
