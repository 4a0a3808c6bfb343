//! The arithmetic of a ring mailbox: the positions of the next message to write and to read. Touches no
//! memory.
//!
//! A ring is a power of two of 64-byte lines. A message occupies contiguous lines. A message that does not
//! fit before the end of the ring goes to offset 0, behind a one-line `Skip` message. The writer learns how
//! far the reader is from heads, which the reader piggybacks on its own messages or, when it has nothing to
//! send, writes into the writer's control line.
//!
//! The unit of a ring is a line, or a block of several lines: then each message begins at a block, and takes whole
//! blocks. ScaleRPC's blocks have 4 KiB (section 3.3).

use dunlin_wire::LINE;

/// The place of a message in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The offset of a `Skip` line to write first.
    pub(crate) skip_at: Option<usize>,
    /// The byte offset in the ring.
    pub(crate) at: usize,
}

/// The writing end of a ring.
#[derive(Debug)]
pub(crate) struct RingWriter {
    lines: u32,
    /// Lines of a block.
    unit: u32,
    /// Lines written since the beginning, including skipped ones.
    tail: u64,
    /// The last head received: lines that the reader has consumed.
    head: u64,
}

impl RingWriter {
    pub(crate) fn new(bytes: usize) -> Self {
        Self::of_blocks(bytes, LINE)
    }

    /// Creates the writing end of a ring with blocks of a power of two of lines.
    pub(crate) fn of_blocks(bytes: usize, block: usize) -> Self {
        RingWriter { lines: (bytes / LINE) as u32, unit: (block / LINE) as u32, tail: 0, head: 0 }
    }

    #[inline(always)]
    fn lines(&self) -> u64 {
        self.lines.into()
    }

    /// Returns the lines from the next message on after one of `total` bytes.
    #[inline]
    pub(crate) fn tail_after(&self, total: usize) -> u64 {
        self.tail + lines_of(total, self.unit)
    }

    /// Returns the place of a message of `total` bytes (whole lines); `None` without room.
    #[inline]
    pub(crate) fn place(&self, total: usize) -> Option<Place> {
        let wanted = lines_of(total, self.unit);
        let position = self.tail & (self.lines() - 1);
        let to_end = self.lines() - position;
        let free = self.lines() - (self.tail - self.head);
        if wanted <= to_end {
            (wanted <= free).then_some(Place { skip_at: None, at: position as usize * LINE })
        } else {
            (to_end + wanted <= free).then_some(Place { skip_at: Some(position as usize * LINE), at: 0 })
        }
    }

    /// Returns the place of a one-line message; `None` without room. The flag says whether the line `ahead`
    /// lines further lies before the end of the ring and is free, so that it can be prefetched.
    #[inline(always)]
    pub(crate) fn place_line(&self, ahead: u64) -> Option<(usize, bool)> {
        let position = self.tail & (self.lines() - 1);
        let free = self.lines() - (self.tail - self.head);
        (free > 0).then_some((position as usize * LINE, ahead < free.min(self.lines() - position)))
    }

    /// Returns where a `Skip` can be written ahead of a message of `total` bytes that has no place yet.
    ///
    /// Prevents a deadlock: a reader that has consumed everything reports its head only after a quarter of
    /// the ring, and the lines free until then may be enough for the message, but not for the `Skip` as well.
    pub(crate) fn skip_ahead(&self, total: usize) -> Option<usize> {
        let position = self.tail & (self.lines() - 1);
        let to_end = self.lines() - position;
        let free = self.lines() - (self.tail - self.head);
        (lines_of(total, self.unit) > to_end && to_end <= free).then_some(position as usize * LINE)
    }

    /// Returns the number of free lines from the next message's position to the end of the ring.
    #[inline]
    pub(crate) fn clear_ahead(&self) -> u64 {
        self.to_end().min(self.lines() - (self.tail - self.head))
    }

    /// Returns the lines from the next message's position to the end of the ring.
    pub(crate) fn to_end(&self) -> u64 {
        self.lines() - (self.tail & (self.lines() - 1))
    }

    /// Returns the lines written since the beginning, including skipped ones.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the lines that the reader is known to have consumed.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Advances past a `Skip` to the start of the ring.
    #[inline]
    pub(crate) fn skip(&mut self) {
        self.tail += self.to_end();
    }

    /// Advances past a message.
    #[inline]
    pub(crate) fn advance(&mut self, total: usize) {
        self.tail = self.tail_after(total);
    }

    /// Advances past a message of one line.
    #[inline]
    pub(crate) fn advance_line(&mut self) {
        self.tail += u64::from(self.unit);
    }

    /// Applies a head from the reader, a wrapping count of lines; `false` if it is invalid.
    ///
    /// A head beyond the tail is invalid: the peer decides only how much may be overwritten. A head that goes
    /// back is valid and stale: it came with a message that was processed after a newer control word.
    #[inline]
    pub(crate) fn on_head(&mut self, head: u32) -> bool {
        let forward = head.wrapping_sub(self.head as u32);
        if u64::from(forward) <= self.tail - self.head {
            self.head += u64::from(forward);
            return true;
        }
        forward > i32::MAX as u32
    }
}

/// The reading end of a ring. Its counts wrap, as those that the writer hears of do: they differ by fewer lines than a
/// ring has, and each lane has a ring.
#[derive(Debug)]
pub(crate) struct RingReader {
    lines: u32,
    /// Lines of a block.
    unit: u32,
    /// Lines consumed since the beginning.
    head: u32,
    /// The last head reported in a way that the writer is certain to see.
    told: u32,
}

impl RingReader {
    pub(crate) fn new(bytes: usize) -> Self {
        Self::of_blocks(bytes, LINE)
    }

    /// Creates the reading end of a ring with blocks of a power of two of lines.
    pub(crate) fn of_blocks(bytes: usize, block: usize) -> Self {
        RingReader { lines: (bytes / LINE) as u32, unit: (block / LINE) as u32, head: 0, told: 0 }
    }

    /// Returns the byte offset of the next message.
    #[inline]
    pub(crate) fn position(&self) -> usize {
        (self.head & (self.lines - 1)) as usize * LINE
    }

    /// Returns the byte offset of the line `lines` after the next message's first line.
    #[inline]
    pub(crate) fn position_ahead(&self, lines: u32) -> usize {
        (self.head.wrapping_add(lines) & (self.lines - 1)) as usize * LINE
    }

    /// Returns the bytes from the next message to the end of the ring: an upper bound of its length.
    #[inline]
    pub(crate) fn to_end(&self) -> usize {
        (self.lines - (self.head & (self.lines - 1))) as usize * LINE
    }

    /// Advances past a message.
    #[inline]
    pub(crate) fn advance(&mut self, total: usize) {
        self.head = self.head.wrapping_add(lines_of(total, self.unit) as u32);
    }

    /// Advances past a message of one line.
    #[inline]
    pub(crate) fn advance_line(&mut self) {
        self.head = self.head.wrapping_add(self.unit);
    }

    /// Advances to the start of the ring.
    #[inline]
    pub(crate) fn skip(&mut self) {
        self.head = self.head.wrapping_add(self.lines - (self.head & (self.lines - 1)));
    }

    /// Returns the head in the form that is sent to the writer.
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Records that the writer will see the current head.
    #[inline]
    pub(crate) fn told(&mut self) {
        self.told = self.head;
    }

    /// Returns whether a head report is due now: a quarter of the ring was consumed since the last one.
    #[inline]
    pub(crate) fn overdue(&self) -> bool {
        self.head.wrapping_sub(self.told) >= self.lines / 4
    }

    /// Returns whether the head has changed since the last report.
    pub(crate) fn head_pending(&self) -> bool {
        self.head != self.told
    }
}

/// Returns the lines that a message of `total` bytes takes, with blocks of `unit` lines.
#[inline(always)]
fn lines_of(total: usize, unit: u32) -> u64 {
    let rest = u64::from(unit) - 1;
    ((total / LINE) as u64 + rest) & !rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_ring_takes_no_more_until_the_head_moves() {
        let mut writer = RingWriter::new(4 * LINE);
        for i in 0..4 {
            assert_eq!(writer.place(LINE), Some(Place { skip_at: None, at: i * LINE }));
            writer.advance(LINE);
        }
        assert_eq!(writer.place(LINE), None);
        assert!(writer.on_head(1));
        assert_eq!(writer.place(LINE), Some(Place { skip_at: None, at: 0 }));
        assert_eq!(writer.place(2 * LINE), None);
    }

    /// A reader that has consumed everything makes room for any message of up to half the ring, although it
    /// reports its head only after a quarter of the ring was consumed.
    #[test]
    fn writer_and_reader_never_wait_for_each_other() {
        const LINES: usize = 32;
        for first in 1..=LINES / 2 {
            for second in 1..=LINES / 2 {
                let mut writer = RingWriter::new(LINES * LINE);
                let mut reader = RingReader::new(LINES * LINE);
                for lines in [first, second].repeat(20) {
                    let mut tries = 0;
                    while writer.place(lines * LINE).is_none_or(|place| place.skip_at.is_some()) {
                        if writer.place(lines * LINE).is_some() || writer.skip_ahead(lines * LINE).is_some() {
                            writer.skip();
                            reader.skip();
                        }
                        if reader.overdue() {
                            assert!(writer.on_head(reader.head()));
                            reader.told();
                        }
                        tries += 1;
                        assert!(tries < 4, "{first} {second}");
                    }
                    writer.advance(lines * LINE);
                    reader.advance(lines * LINE);
                }
            }
        }
    }

    #[test]
    fn a_lying_head_is_refused() {
        let mut writer = RingWriter::new(4 * LINE);
        writer.advance(2 * LINE);
        assert!(!writer.on_head(3));
        assert!(writer.on_head(1));
        assert!(writer.on_head(0), "old news");
        assert_eq!(writer.head, 1, "which changes nothing");
        assert!(writer.on_head(2));
    }

    /// A head that went out with a message may stay unread for long, so it does not count as reported.
    #[test]
    fn only_the_control_word_counts_as_reported() {
        let mut reader = RingReader::new(16 * LINE);
        reader.advance(3 * LINE);
        assert!(!reader.overdue() && reader.head_pending());
        reader.advance(LINE);
        assert_eq!(reader.head(), 4);
        assert!(reader.overdue());
        reader.told();
        assert!(!reader.overdue() && !reader.head_pending());
    }

    /// The reader's counts wrap, and those of the writer do not.
    #[test]
    fn both_ends_agree_behind_the_largest_count() {
        const LINES: usize = 8;
        let mut writer = RingWriter::new(LINES * LINE);
        let mut reader = RingReader::new(LINES * LINE);
        (writer.tail, writer.head) = (u64::from(u32::MAX) - 2, u64::from(u32::MAX) - 2);
        (reader.head, reader.told) = (u32::MAX - 2, u32::MAX - 2);
        for lines in [1, 2, 3, 1, 4] {
            let ahead = reader.position_ahead(lines as u32);
            let place = writer.place(lines * LINE).unwrap();
            if place.skip_at.is_some() {
                writer.skip();
                reader.skip();
            }
            assert_eq!(place.at, reader.position());
            writer.advance(lines * LINE);
            reader.advance(lines * LINE);
            assert!(place.skip_at.is_some() || ahead == reader.position());
            assert!(reader.head_pending());
            assert_eq!(reader.overdue(), lines >= LINES / 4 || place.skip_at.is_some());
            assert!(writer.on_head(reader.head()));
            reader.told();
            assert!(!reader.overdue() && !reader.head_pending());
        }
        assert!(writer.head > u64::from(u32::MAX));
    }

    proptest! {
        /// Writer and reader agree on every position, and no unread line is overwritten.
        #[test]
        fn both_ends_agree(lines in (2u32..6).prop_map(|p| 1usize << p), unit in 0u32..3, steps in prop::collection::vec((1usize..20, any::<bool>()), 1..300)) {
            let block = LINE << unit;
            let mut writer = RingWriter::of_blocks(lines * LINE, block);
            let mut reader = RingReader::of_blocks(lines * LINE, block);
            let mut queue = std::collections::VecDeque::new();
            let mut live = vec![false; lines];
            for (length, consume) in steps {
                let total = length.min(lines / 2) * LINE;
                prop_assert!(writer.place(total).is_none_or(|place| place.at % block == 0));
                if let Some(place) = writer.place(total) {
                    if let Some(at) = place.skip_at {
                        prop_assert!(!std::mem::replace(&mut live[at / LINE], true));
                        queue.push_back((at, None));
                        writer.skip();
                    }
                    for line in &mut live[place.at / LINE..(place.at + total) / LINE] {
                        prop_assert!(!std::mem::replace(line, true), "a line is still unread");
                    }
                    if total == LINE { writer.advance_line() } else { writer.advance(total) }
                    queue.push_back((place.at, Some(total)));
                }
                if consume && let Some((at, message)) = queue.pop_front() {
                    prop_assert_eq!(reader.position(), at);
                    match message {
                        Some(total) => {
                            prop_assert!(total <= reader.to_end());
                            live[at / LINE..(at + total) / LINE].fill(false);
                            if total == LINE { reader.advance_line() } else { reader.advance(total) }
                        }
                        None => {
                            live[at / LINE] = false;
                            reader.skip();
                        }
                    }
                    let head = reader.head();
                    prop_assert!(writer.on_head(head));
                }
            }
        }
    }
}
