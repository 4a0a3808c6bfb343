//! The first bytes of a ledger, and the memory in which it lies.

use super::LedgerError;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Memory that a ledger is written to. Only the ledger writes it while the process lives.
pub trait LedgerMemory: std::fmt::Debug {
    /// Returns the length in bytes.
    fn length(&self) -> u64;
    /// Copies bytes into the memory. Ranges are within the length.
    fn write(&self, at: u64, bytes: &[u8]);
    /// Copies bytes out of the memory.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Stores an aligned word after everything that was written before.
    fn store(&self, at: u64, word: u64);
    /// Loads an aligned word.
    fn load(&self, at: u64) -> u64;
}

impl<M: LedgerMemory + ?Sized> LedgerMemory for Box<M> {
    fn length(&self) -> u64 {
        (**self).length()
    }
    fn write(&self, at: u64, bytes: &[u8]) {
        (**self).write(at, bytes);
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        (**self).read(at, into);
    }
    fn store(&self, at: u64, word: u64) {
        (**self).store(at, word);
    }
    fn load(&self, at: u64) -> u64 {
        (**self).load(at)
    }
}

pub(super) const SELECTOR: u64 = 16;
/// The places of the two heads.
pub(super) const HEADS: [u64; 2] = [64, 128];
/// The place of the first area.
pub(super) const START: u64 = 4096;
/// The shortest area, in bytes.
const LEAST_AREA: u64 = 4096;
/// The selector of a ledger that had no room.
pub(super) const VOID: u64 = u64::MAX;
/// The length of a head in bytes.
const HEAD: usize = 40;

/// Returns the length of an area.
pub(super) fn area_length(memory: &impl LedgerMemory) -> Result<u64, LedgerError> {
    let (least, length) = (START + 2 * LEAST_AREA, memory.length());
    if length < least { Err(LedgerError::Short { least, length }) } else { Ok((length - START) / 2 / 8 * 8) }
}

pub(super) fn check_of(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Returns the selector of a commit: the lower half of its number, and a check of the number that is never zero or void.
pub(super) fn selector_of(number: u64) -> u64 {
    let check = check_of(&number.to_le_bytes(), 0x5e1ec) as u32;
    u64::from(check.clamp(1, u32::MAX - 1)) << 32 | (number & 0xffff_ffff)
}

/// The state of the areas after a commit. The default is that before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The number of the commit, from 1.
    pub(super) number: u64,
    /// The area in use.
    pub(super) area: u64,
    /// The bytes of its batches.
    pub(super) length: u64,
    /// The chain of the checks of all batches.
    pub(super) chain: u64,
}

impl Head {
    fn place(number: u64) -> u64 {
        HEADS[(number % 2) as usize]
    }

    pub(super) fn write(&self, memory: &impl LedgerMemory) {
        let mut bytes = [0; HEAD];
        for (at, word) in [self.number, self.area, self.length, self.chain].into_iter().enumerate() {
            bytes[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        let check = check_of(&bytes[..HEAD - 8], 0x4ead);
        bytes[HEAD - 8..].copy_from_slice(&check.to_le_bytes());
        memory.write(Head::place(self.number), &bytes);
    }

    /// Reads the head that a selector names.
    pub(super) fn read(memory: &impl LedgerMemory, selector: u64) -> Result<Head, LedgerError> {
        let mut bytes = [0; HEAD];
        memory.read(Head::place(selector), &mut bytes);
        let word = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at * 8..at * 8 + 8]);
            u64::from_le_bytes(eight)
        };
        if check_of(&bytes[..HEAD - 8], 0x4ead) != word(4) {
            return Err(LedgerError::Damaged("its head"));
        }
        let head = Head { number: word(0), area: word(1), length: word(2), chain: word(3) };
        if selector_of(head.number) != selector {
            return Err(LedgerError::Damaged("its selector"));
        }
        Ok(head)
    }
}
