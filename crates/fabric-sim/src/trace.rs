//! The hash of a run.

/// Bytes of a line, the most frequent length of a payload.
const LINE: usize = 64;

/// A hash of all events (FNV-1a over words): equal hashes mean equal runs.
pub(crate) struct Trace(pub(crate) u64);

impl Trace {
    #[inline(always)]
    pub(crate) fn note(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    #[inline(always)]
    pub(crate) fn note_at(&mut self, kind: u64, at: u32, detail: u64) {
        self.note(kind << 56 | u64::from(at));
        self.note(detail);
    }

    #[inline(always)]
    pub(crate) fn note_bytes(&mut self, kind: u64, bytes: &[u8]) {
        self.note(kind << 56 | bytes.len() as u64);
        // Most payloads are one line.
        let Ok(line) = <&[u8; LINE]>::try_from(bytes) else { return self.note_words(bytes) };
        for word in line.as_chunks::<8>().0 {
            self.note(u64::from_le_bytes(*word));
        }
    }

    #[inline(never)]
    pub(crate) fn note_words(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.note(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.note(u64::from_le_bytes(word));
        }
    }
}
