//! The layout of a region: two headers, two lists of messages in turns, and the data of the vertices.
//!
//! ```text
//! 0    header of even steps       64   header of odd steps
//! 128  messages of even steps     8 bytes each
//!      messages of odd steps      8 bytes each
//!      data                       as many bytes as the program says
//! ```
//!
//! Messages of two steps are needed: while a slow member reads those of one step, a fast one writes those of the next.

use std::ops::Range;

/// Bytes of a header.
pub(crate) const HEADER: u64 = 64;
/// Bytes of a message.
pub(crate) const MESSAGE: u64 = 8;
const USED: usize = 32;

/// The header of the messages of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The hash of the graph, the program and the job, which all members compare.
    pub(crate) agreement: u64,
    /// The step; 0 before the first one.
    pub(crate) step: u32,
    /// The number of messages.
    pub(crate) count: u32,
    /// The part of the region that has messages, counted from its first vertex.
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; USED] {
        let mut bytes = [0; USED];
        bytes[..8].copy_from_slice(&self.agreement.to_le_bytes());
        let numbers = [self.step, self.count, self.first, self.end];
        for (place, number) in bytes[8..24].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; USED]) -> Header {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Header {
            agreement: u64::from(number(0)) | u64::from(number(4)) << 32,
            step: number(8),
            count: number(12),
            first: number(16),
            end: number(20),
        }
    }

    /// Returns a fault of a header that is of the right job.
    pub(crate) fn fault(&self, step: u32, vertices: u32) -> Option<String> {
        let Header { first, end, count, .. } = *self;
        if self.step != step {
            return Some(format!("its messages are those of step {}, not of step {step}", self.step));
        }
        let is_right = first <= end && end <= vertices && count <= end - first && (count > 0 || end == 0);
        (!is_right).then(|| format!("{count} messages from {first} to {end} of {vertices} vertices"))
    }

    /// Adds the messages of another thread of the same step.
    pub(crate) fn add(&mut self, other: &Header) {
        if other.count == 0 {
            return;
        }
        *self = match self.count {
            0 => *other,
            count => Header {
                count: count.saturating_add(other.count),
                first: self.first.min(other.first),
                end: self.end.max(other.end),
                ..*self
            },
        };
    }
}

/// The offsets in a region of a number of vertices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) vertices: u32,
    pub(crate) data: u64,
}

impl Layout {
    /// Returns the offset of the header of a step.
    pub(crate) fn header(step: u32) -> u64 {
        u64::from(step % 2) * HEADER
    }

    /// Returns the offset of the message of a vertex, which is counted from the first one.
    pub(crate) fn message(self, step: u32, at: u32) -> u64 {
        2 * HEADER + (u64::from(step % 2) * u64::from(self.vertices) + u64::from(at)) * MESSAGE
    }

    /// Returns the offset of the data of a vertex.
    pub(crate) fn data(self, at: u32) -> u64 {
        2 * HEADER + 2 * u64::from(self.vertices) * MESSAGE + u64::from(at) * self.data
    }

    /// Returns the length of the region.
    pub(crate) fn length(self) -> u64 {
        self.data(self.vertices)
    }
}

/// Returns the name of the region of a range, `NAME/FIRST-LAST`.
pub(crate) fn name(job: &str, range: &Range<u32>) -> String {
    format!("{job}/{}-{}", range.start, range.end.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parts_of_a_region_do_not_overlap() {
        let layout = Layout { vertices: 10, data: 16 };
        assert_eq!((Layout::header(4), Layout::header(7)), (0, 64));
        assert_eq!((layout.message(2, 0), layout.message(2, 10)), (128, 208));
        assert_eq!((layout.message(3, 0), layout.message(3, 10)), (208, layout.data(0)));
        assert_eq!(layout.length(), 288 + 160);
        assert_eq!(name("rank/9", &(3..8)), "rank/9/3-7");
    }

    proptest! {
        #[test]
        fn any_header_is_bounded_or_a_fault(bytes in any::<[u8; USED]>(), vertices in 0u32..99) {
            let header = Header::parse(&bytes);
            prop_assert_eq!(Header::parse(&header.encode()), header);
            if header.fault(header.step, vertices).is_none() {
                prop_assert!(header.first <= header.end && header.end <= vertices);
                prop_assert!(header.count <= header.end - header.first);
            }
        }

        #[test]
        fn threads_add_their_messages(list in prop::collection::vec((0u32..50, 1u32..50), 1..5)) {
            let none = Header { agreement: 1, step: 3, count: 0, first: 0, end: 0 };
            let mut sum = none;
            for (first, length) in &list {
                sum.add(&Header { count: 1, first: *first, end: first + length, ..none });
            }
            prop_assert_eq!(sum.first, list.iter().map(|(first, _)| *first).min().unwrap());
            prop_assert_eq!(sum.end, list.iter().map(|(first, length)| first + length).max().unwrap());
            let before = sum;
            sum.add(&none);
            prop_assert_eq!(sum, before);
        }
    }
}
