//! The descriptor that replaces a large payload: the range that the receiver can READ, or that the sender
//! will WRITE.

use crate::bytes;
use crate::error::Reject;

/// A range of a region that a peer granted. It never holds an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The region's key, in the fabric's encoding.
    pub key: u64,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Length, in bytes.
    pub length: u64,
}

impl Descriptor {
    /// Bytes of an encoded descriptor.
    pub const BYTES: usize = 24;

    /// Encodes the descriptor. The result is the payload of a message with [`crate::Flags::RENDEZVOUS`].
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        bytes::put::<0, 8, 24>(&mut out, self.key.to_le_bytes());
        bytes::put::<8, 8, 24>(&mut out, self.offset.to_le_bytes());
        bytes::put::<16, 8, 24>(&mut out, self.length.to_le_bytes());
        out
    }

    /// Creates an announcement: the length of a payload that the sender will transfer, with no range to
    /// READ.
    #[inline]
    pub const fn announcement(length: u64) -> Descriptor {
        Descriptor { key: 0, offset: 0, length }
    }

    /// Decodes a descriptor from a payload in private memory. Checks that the length is at most
    /// `max_length` bytes and that the end does not wrap. The fabric checks that the range lies inside the
    /// region.
    ///
    /// # Errors
    /// [`Reject::DescriptorLength`] unless the payload has 24 bytes, [`Reject::DescriptorRange`] if the
    /// range is too long or wraps.
    #[inline]
    pub fn decode(payload: &[u8], max_length: u64) -> Result<Descriptor, Reject> {
        let Ok(payload) = <&[u8; Self::BYTES]>::try_from(payload) else {
            return Err(Reject::DescriptorLength(u32::try_from(payload.len()).unwrap_or(u32::MAX)));
        };
        let descriptor = Descriptor {
            key: bytes::u64_at::<0, 24>(payload),
            offset: bytes::u64_at::<8, 24>(payload),
            length: bytes::u64_at::<16, 24>(payload),
        };
        let Descriptor { offset, length, .. } = descriptor;
        if length > max_length || offset.checked_add(length).is_none() {
            return Err(Reject::DescriptorRange { offset, length, limit: max_length });
        }
        Ok(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let descriptor = Descriptor { key: 0x0102_0304_0506_0708, offset: 0x10, length: 0x0200_0000 };
        let bytes = descriptor.encode();
        assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(Descriptor::decode(&bytes, 0x0200_0000), Ok(descriptor));
    }

    #[test]
    fn lengths_and_ranges_are_checked() {
        let descriptor = Descriptor { key: 1, offset: u64::MAX - 7, length: 8 };
        assert!(matches!(Descriptor::decode(&descriptor.encode(), 8), Err(Reject::DescriptorRange { .. })));
        let descriptor = Descriptor { key: 1, offset: u64::MAX - 8, length: 8 };
        assert_eq!(Descriptor::decode(&descriptor.encode(), 8), Ok(descriptor));
        assert!(matches!(Descriptor::decode(&descriptor.encode(), 7), Err(Reject::DescriptorRange { .. })));
        assert_eq!(Descriptor::decode(&[0; 23], 8), Err(Reject::DescriptorLength(23)));
        assert_eq!(Descriptor::decode(&[0; 25], 8), Err(Reject::DescriptorLength(25)));
    }
}
