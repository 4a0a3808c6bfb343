//! Message tags: a receiver that polls memory detects the arrival of a message by its tag.
//!
//! # Threat model
//!
//! The receiver predicts the tag of the next message of a lane from the handshake's secret, the lane, the
//! direction, the epoch and the sequence number. Memory therefore need not be cleared, and bytes left over
//! from an earlier lap of the ring are not taken for a message. Both peers of a lane know the key. A
//! hostile *peer* can send any message, and all parsing after the tag check allows for that. Tags defend
//! against *third parties* who choose values that travel as payload (a key in a store, a document in a
//! cache) and try to have stale payload parsed as a message. FLOCK's canary (header equal to trailer) can
//! be forged that way. Third parties see neither key nor tags, so one attempt succeeds with probability
//! about 2^-62. A tag is not a message authentication code: an attacker who reads the traffic sees the
//! tags, and is outside this model.
//!
//! The mixer folds a 128-bit product (the `mum` of wyhash): two dependent multiplications for one tag,
//! three for both.

use core::fmt;

/// The direction of a lane's messages. Each direction has its own tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the client to the server: requests, releases, credits.
    ToServer,
    /// From the server to the client: responses.
    ToClient,
    /// Responses that the client READs from the server's memory, on a lane that supports both response
    /// modes.
    Fetched,
}

/// The key of one direction of one lane. Cheap to copy. Do not log it; its `Debug` prints no key material.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TagKey {
    a: u64,
    b: u64,
}

/// Both tags of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags {
    /// The last 8 bytes of the first line. Odd.
    pub first: u64,
    /// The last 8 bytes of the last line of a message of several lines. Even and never 0.
    pub trailing: u64,
}

// Odd constants with evenly spread bits, from wyhash.
const P0: u64 = 0xa076_1d64_78bd_642f;
const P1: u64 = 0xe703_7ed1_a0b4_28db;
const P2: u64 = 0x8ebc_6af0_9c88_c6e3;
const P3: u64 = 0x5899_65cc_7537_4cc3;

/// Folds the 128-bit product of two words.
#[inline(always)]
const fn mum(x: u64, y: u64) -> u64 {
    let product = x as u128 * y as u128;
    product as u64 ^ (product >> 64) as u64
}

/// A bijection on 64 bits in which every input bit affects every output bit (the finaliser of SplitMix64).
/// For key derivation only.
const fn spread(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl TagKey {
    /// Derives the key of `direction` of `lane` from the handshake's 16 secret bytes. The secret must come
    /// from a cryptographic random source. Equal arguments give equal keys on both sides.
    pub const fn derive(secret: &[u8; 16], lane: u16, direction: Direction) -> TagKey {
        let secret = u128::from_le_bytes(*secret);
        let (low, high) = (secret as u64, (secret >> 64) as u64);
        let way = match direction {
            Direction::ToServer => 0,
            Direction::ToClient => 1,
            Direction::Fetched => 2,
        };
        let place = (lane as u64) << 8 | way | 1 << 32;
        let a = spread(spread(spread(low ^ P0).wrapping_add(place)) ^ high);
        let b = spread(spread(spread(high ^ P1).wrapping_add(place)).wrapping_add(low));
        TagKey { a, b }
    }

    #[inline(always)]
    const fn state(self, epoch: u32, sequence: u64) -> u64 {
        mum(self.a ^ sequence, self.b ^ (epoch as u64).wrapping_mul(P2))
    }

    /// Returns the first-line tag of message `sequence` of `epoch`. Odd, so never 0.
    ///
    /// Within an epoch no sequence number may be used twice; the lease ensures this.
    #[inline]
    pub const fn first(self, epoch: u32, sequence: u64) -> u64 {
        mum(self.state(epoch, sequence) ^ self.b, P0 ^ sequence) | 1
    }

    /// Returns the trailing tag of that message. Even and never 0, so never equal to any first tag.
    #[inline]
    pub const fn trailing(self, epoch: u32, sequence: u64) -> u64 {
        mum(self.state(epoch, sequence) ^ self.a, P3 ^ sequence) & !1 | 2
    }

    /// Returns both tags; cheaper than two separate calls.
    #[inline]
    pub const fn tags(self, epoch: u32, sequence: u64) -> Tags {
        let state = self.state(epoch, sequence);
        Tags {
            first: mum(state ^ self.b, P0 ^ sequence) | 1,
            trailing: mum(state ^ self.a, P3 ^ sequence) & !1 | 2,
        }
    }
}

impl fmt::Debug for TagKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TagKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SECRET: [u8; 16] = *b"a secret of 16 b";

    fn key() -> TagKey {
        TagKey::derive(&SECRET, 3, Direction::ToServer)
    }

    #[test]
    fn golden_values() {
        // Computed from the formulas with an independent program: both sides must agree, whatever their
        // builds.
        assert_eq!(key().tags(0, 0), Tags { first: 0x6714_f8c3_191f_52ef, trailing: 0xf848_ed1b_d1c1_353a });
        let other = TagKey::derive(&SECRET, 3, Direction::ToClient);
        assert_eq!(
            other.tags(u32::MAX, 0x0123_4567_89ab_cdef),
            Tags { first: 0x936a_c61f_c160_03d7, trailing: 0x433c_49d8_40ba_715e }
        );
    }

    #[test]
    fn both_at_once_equal_one_by_one() {
        for sequence in [0, 1, 63, u64::MAX] {
            for epoch in [0, 1, u32::MAX] {
                let tags = key().tags(epoch, sequence);
                assert_eq!(tags.first, key().first(epoch, sequence));
                assert_eq!(tags.trailing, key().trailing(epoch, sequence));
            }
        }
    }

    #[test]
    fn no_collision_over_sequences_epochs_lanes_and_directions() {
        // 2 * 2^17 values of 62 bits: a collision by chance has probability 2^-27, and the inputs are
        // fixed.
        let mut seen = BTreeSet::new();
        let mut count = 0;
        for lane in 0..4 {
            for direction in [Direction::ToServer, Direction::ToClient] {
                let key = TagKey::derive(&SECRET, lane, direction);
                for epoch in 0..16 {
                    for sequence in 0..1024 {
                        let tags = key.tags(epoch, sequence);
                        assert!(tags.first != 0 && tags.trailing != 0 && tags.first != tags.trailing);
                        seen.insert(tags.first);
                        seen.insert(tags.trailing);
                        count += 2;
                    }
                }
            }
        }
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn every_bit_is_balanced_and_every_input_bit_matters() {
        let samples = 1 << 14;
        let mut ones = [0u32; 64];
        for sequence in 0..samples {
            let tag = key().first(7, sequence);
            for (bit, ones) in ones.iter_mut().enumerate().skip(1) {
                *ones += (tag >> bit & 1) as u32;
            }
        }
        // 6 standard deviations of a fair coin: 6 * sqrt(2^14) / 2 = 384.
        for (bit, ones) in ones.iter().enumerate().skip(1) {
            assert!(ones.abs_diff(1 << 13) < 384, "bit {bit} is one {ones} times of {samples}");
        }
        // Flipping one bit of the sequence flips about half of the 63 free bits, averaged over starting
        // points.
        for bit in 0..64 {
            let flipped: u32 =
                (0..256).map(|s| (key().first(1, s) ^ key().first(1, s ^ 1 << bit)).count_ones()).sum();
            let mean = f64::from(flipped) / 256.0;
            assert!((27.0..36.0).contains(&mean), "sequence bit {bit} flips {mean} bits on average");
        }
    }

    #[test]
    fn every_bit_of_the_secret_changes_both_tags() {
        let tags = key().tags(1, 1);
        for bit in 0..128 {
            let mut secret = SECRET;
            secret[bit / 8] ^= 1 << (bit % 8);
            let other = TagKey::derive(&secret, 3, Direction::ToServer).tags(1, 1);
            assert!((tags.first ^ other.first).count_ones() > 12, "bit {bit}");
            assert!((tags.trailing ^ other.trailing).count_ones() > 12, "bit {bit}");
        }
    }

    #[test]
    fn what_somebody_can_guess_without_the_key_is_never_a_tag() {
        // Candidates that need no key: sequence numbers, epochs, constants, and tags of other keys.
        let other = TagKey::derive(&[0; 16], 3, Direction::ToServer);
        for sequence in 0..4096 {
            let tags = key().tags(0, sequence);
            for guess in
                [sequence, sequence | 1, P0, P3, u64::MAX, other.first(0, sequence), mum(sequence, P0)]
            {
                assert!(tags.first != guess && tags.trailing != guess);
            }
        }
    }

    #[test]
    fn the_key_is_not_printed() {
        assert_eq!(format!("{:?}", key()), "TagKey(..)");
    }
}
