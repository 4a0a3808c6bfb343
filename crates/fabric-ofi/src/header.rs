//! The header of each message, since libfabric does not tell a RECV which queue pair and request a message
//! belongs to. Pure.
//!
//! A WRITE with immediate data is a WRITE followed by a message that consists of a header, which consumes a
//! RECV as required. libfabric's own immediate data consume no RECV, and do not identify the queue pair where
//! RECVs are shared.

use crate::receives::SEQUENCE;

/// The size of a header, in bytes.
pub(crate) const HEADER: usize = 24;

const IMMEDIATE: u32 = 1;
const WRITE: u32 = 2;
/// The number of flag bits; the sequence number is stored above them.
const FLAGS: u32 = 2;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The receiving queue pair's device-wide number, and its secret. They identify it where RECVs are
    /// shared.
    pub(crate) number: u32,
    pub(crate) secret: u64,
    pub(crate) immediate: Option<u32>,
    /// For the notice of a WRITE: the length of the WRITE.
    pub(crate) written: Option<u32>,
    /// The message's number among all messages of the sending queue pair, in the bits of [`SEQUENCE`].
    pub(crate) sequence: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let flags = if self.immediate.is_some() { IMMEDIATE } else { 0 }
            | if self.written.is_some() { WRITE } else { 0 }
            | (self.sequence & SEQUENCE) << FLAGS;
        bytes[..8].copy_from_slice(&self.secret.to_le_bytes());
        for (place, value) in [
            (8, self.number),
            (12, flags),
            (16, self.immediate.unwrap_or(0)),
            (20, self.written.unwrap_or(0)),
        ] {
            bytes[place..place + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Decodes a peer's header; returns `None` for an invalid one.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (flags, immediate, written) = (word(12), word(16), word(20));
        let secret = u64::from(word(0)) | u64::from(word(4)) << 32;
        let told = |flag, value: u32| match flags & flag != 0 {
            true => Some(Some(value)),
            false => (value == 0).then_some(None),
        };
        let header = Header {
            number: word(8),
            secret,
            immediate: told(IMMEDIATE, immediate)?,
            written: told(WRITE, written)?,
            sequence: flags >> FLAGS,
        };
        // A WRITE has a notice only if it has immediate data.
        (header.written.is_none() || header.immediate.is_some()).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            number in any::<u32>(),
            secret in any::<u64>(),
            immediate in any::<Option<u32>>(),
            written in any::<Option<u32>>(),
            sequence in 0..=SEQUENCE,
        ) {
            let written = written.filter(|_| immediate.is_some());
            let header = Header { number, secret, immediate, written, sequence };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn no_bytes_mean_two_things(bytes in any::<[u8; HEADER]>(), flags in any::<u8>()) {
            let mut bytes = bytes;
            bytes[12..16].copy_from_slice(&[flags, 0, 0, 0]);
            if let Some(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_write_without_immediate_data_is_not_told_of() {
        let header = Header { number: 1, secret: 2, immediate: None, written: Some(3), sequence: 4 };
        assert_eq!(Header::decode(&header.encode()), None);
    }
}
