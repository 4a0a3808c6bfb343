//! The arithmetic of a ring mailbox: where the next message goes and where the next one is looked for. Pure:
//! no memory is touched here.
//!
//! A ring is a power of two of 64-byte lines. Messages lie in it in one piece; what does not fit before the end goes
//! to offset 0 behind a one-line `Skip` message. The writer knows how far the reader is from heads that the
//! reader piggybacks on its own messages, or writes into the writer's control line when it has nothing to send.

use dunlin_wire::LINE;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// A `Skip` line has to be written here first.
    pub(crate) skip_at: Option<usize>,
    /// The byte offset in the ring.
    pub(crate) at: usize,
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct RingWriter {
    lines: u64,
    /// Lines written since the beginning, skipped ones included.
    tail: u64,
    /// Lines that the reader is known to have consumed.
    head: u64,
}

impl RingWriter {
    pub(crate) fn new(bytes: usize) -> Self {
        RingWriter { lines: (bytes / LINE) as u64, tail: 0, head: 0 }
    }

    /// Where a message of `total` bytes (whole lines) goes; `None` while there is no room.
    #[inline]
    pub(crate) fn place(&self, total: usize) -> Option<Place> {
        let wanted = (total / LINE) as u64;
        let position = self.tail & (self.lines - 1);
        let to_end = self.lines - position;
        let free = self.lines - (self.tail - self.head);
        if wanted <= to_end {
            (wanted <= free).then_some(Place { skip_at: None, at: position as usize * LINE })
        } else {
            (to_end + wanted <= free).then_some(Place { skip_at: Some(position as usize * LINE), at: 0 })
        }
    }

    /// Where a message of one line goes, and whether the line that is `ahead` lines further is one to be written soon that
    /// the reader is done with; `None` while there is no room.
    #[inline(always)]
    pub(crate) fn place_line(&self, ahead: u64) -> Option<(usize, bool)> {
        let position = self.tail & (self.lines - 1);
        let free = self.lines - (self.tail - self.head);
        (free > 0).then_some((position as usize * LINE, ahead < free.min(self.lines - position)))
    }

    /// Where a `Skip` can be written ahead of a message of `total` bytes that has no place yet. A reader who has
    /// taken everything, but less than half the ring since it last told its head, would else wait for ever, as the
    /// writer would: what is left free then is enough for the message, not for both.
    pub(crate) fn skip_ahead(&self, total: usize) -> Option<usize> {
        let position = self.tail & (self.lines - 1);
        let to_end = self.lines - position;
        let free = self.lines - (self.tail - self.head);
        ((total / LINE) as u64 > to_end && to_end <= free).then_some(position as usize * LINE)
    }

    /// Lines from the place of the next message on, within the ring, that the reader is done with.
    #[inline]
    pub(crate) fn clear_ahead(&self) -> u64 {
        let to_end = self.lines - (self.tail & (self.lines - 1));
        to_end.min(self.lines - (self.tail - self.head))
    }

    /// Lines written since the beginning, skipped ones included.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Lines that the reader is known to have consumed.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Moves on by a `Skip` to the start of the ring.
    #[inline]
    pub(crate) fn skip(&mut self) {
        self.tail += self.lines - (self.tail & (self.lines - 1));
    }

    /// Moves on by a message.
    #[inline]
    pub(crate) fn advance(&mut self, total: usize) {
        self.tail += (total / LINE) as u64;
    }

    /// Takes a head from the reader, a wrapping count of lines. A head beyond what was written is refused: the
    /// peer's word decides nothing but how much may be overwritten. One that goes back is old news: it travelled on
    /// a message that we looked at later than at the control word.
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

/// The reading end.
#[derive(Debug)]
pub(crate) struct RingReader {
    lines: u64,
    /// Lines consumed since the beginning.
    head: u64,
    /// The head that the writer is sure to see.
    told: u64,
}

impl RingReader {
    pub(crate) fn new(bytes: usize) -> Self {
        RingReader { lines: (bytes / LINE) as u64, head: 0, told: 0 }
    }

    /// The byte offset of the next message.
    #[inline]
    pub(crate) fn position(&self) -> usize {
        (self.head & (self.lines - 1)) as usize * LINE
    }

    /// The byte offset of the line that comes so many lines later.
    #[inline]
    pub(crate) fn position_ahead(&self, lines: u64) -> usize {
        ((self.head + lines) & (self.lines - 1)) as usize * LINE
    }

    /// Bytes from there to the end of the ring: no message is longer.
    #[inline]
    pub(crate) fn to_end(&self) -> usize {
        (self.lines - (self.head & (self.lines - 1))) as usize * LINE
    }

    /// Moves on by a message.
    #[inline]
    pub(crate) fn advance(&mut self, total: usize) {
        self.head += (total / LINE) as u64;
    }

    /// Moves on to the start of the ring.
    #[inline]
    pub(crate) fn skip(&mut self) {
        self.head += self.lines - (self.head & (self.lines - 1));
    }

    /// The head, as the writer is told it.
    #[inline]
    pub(crate) fn head(&self) -> u32 {
        self.head as u32
    }

    /// The writer will see that head.
    #[inline]
    pub(crate) fn told(&mut self) {
        self.told = self.head;
    }

    /// Whether the writer should be told without waiting for a message that goes out anyway: a quarter of the ring
    /// was consumed since.
    #[inline]
    pub(crate) fn overdue(&self) -> bool {
        (self.head - self.told) * 4 >= self.lines
    }

    /// Whether there is anything to tell at all.
    pub(crate) fn untold(&self) -> bool {
        self.head != self.told
    }
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

    /// A reader that has taken everything makes room for any message of up to half the ring, though it tells its
    /// head only when half the ring was consumed.
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

    /// A head that went out on a message may lie unread for long: it does not count as reported.
    #[test]
    fn only_the_control_word_counts_as_reported() {
        let mut reader = RingReader::new(16 * LINE);
        reader.advance(3 * LINE);
        assert!(!reader.overdue() && reader.untold());
        reader.advance(LINE);
        assert_eq!(reader.head(), 4);
        assert!(reader.overdue());
        reader.told();
        assert!(!reader.overdue() && !reader.untold());
    }

    proptest! {
        /// Writer and reader agree on every place, and no live line is ever overwritten.
        #[test]
        fn both_ends_agree(lines in (2u32..6).prop_map(|p| 1usize << p), steps in prop::collection::vec((1usize..20, any::<bool>()), 1..300)) {
            let mut writer = RingWriter::new(lines * LINE);
            let mut reader = RingReader::new(lines * LINE);
            let mut queue = std::collections::VecDeque::new();
            let mut live = vec![false; lines];
            for (length, consume) in steps {
                let total = length.min(lines / 2) * LINE;
                if let Some(place) = writer.place(total) {
                    if let Some(at) = place.skip_at {
                        prop_assert!(!std::mem::replace(&mut live[at / LINE], true));
                        queue.push_back((at, None));
                        writer.skip();
                    }
                    for line in &mut live[place.at / LINE..(place.at + total) / LINE] {
                        prop_assert!(!std::mem::replace(line, true), "a line is still unread");
                    }
                    writer.advance(total);
                    queue.push_back((place.at, Some(total)));
                }
                if consume && let Some((at, message)) = queue.pop_front() {
                    prop_assert_eq!(reader.position(), at);
                    match message {
                        Some(total) => {
                            prop_assert!(total <= reader.to_end());
                            live[at / LINE..(at + total) / LINE].fill(false);
                            reader.advance(total);
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
