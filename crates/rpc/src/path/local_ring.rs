//! A ring in local memory that peers write messages into: the receiving end of all halves that WRITE.

use super::half::Receiver;
use super::rx::{Incoming, Scratch, Taken};
use super::{MAX_MESSAGE, Violation};
use crate::mailbox::RingReader;
use dunlin_fabric::{Fabric, Region};
use dunlin_wire::{Flags, Kind, LINE, TAG_OFFSET, Tags, parse_line};

/// The ring.
#[derive(Debug)]
pub(crate) struct LocalRing<F: Fabric> {
    pub(crate) region: Region<F::Memory>,
    /// Offset of the ring in the region: behind the control line, or its place in a pool.
    pub(crate) base: u32,
    /// The reader's position.
    pub(crate) reader: RingReader,
}

impl<F: Fabric> Receiver<F> for LocalRing<F> {
    #[inline(always)]
    fn is_waiting(&self, first: u64) -> bool {
        self.region.load(self.base as usize + self.reader.position() + TAG_OFFSET) == first
    }

    /// Does not prefetch: a line that the peer has not written yet would be taken away from the peer's cache and slow
    /// down its stores.
    #[inline]
    fn take(&mut self, expected: Tags, scratch: &mut Scratch) -> Result<Taken<F>, Violation> {
        let LocalRing { region, base, reader } = self;
        let at = *base as usize + reader.position();
        if region.load(at + TAG_OFFSET) != expected.first {
            return Ok(Taken::Nothing);
        }
        let (line, rest) = scratch.split_at_mut(LINE);
        region.copy_out(at, line);
        let Some(line) = line.first_chunk::<LINE>() else { return Ok(Taken::Nothing) };
        let first = parse_line(line, reader.to_end().min(MAX_MESSAGE))?;
        let Some(trailing) = first.trailing_tag_offset() else {
            if first.header().kind == Kind::Skip {
                reader.skip();
                return Ok(Taken::Skip { told_of: !first.header().flags.contains(Flags::MORE) });
            }
            reader.advance_line();
            return Ok(Taken::Message(Incoming::Scratch(LINE)));
        };
        if region.load(at + trailing) != expected.trailing {
            return Ok(Taken::Nothing);
        }
        // Keep the parsed copy of the first line: a hostile peer may have changed the one in the ring since.
        region.copy_out(at + LINE, &mut rest[..first.total() - LINE]);
        reader.advance(first.total());
        Ok(Taken::Message(Incoming::Scratch(first.total())))
    }

    #[inline(always)]
    fn ring(&self) -> Option<&LocalRing<F>> {
        Some(self)
    }

    #[inline(always)]
    fn ring_mut(&mut self) -> Option<&mut LocalRing<F>> {
        Some(self)
    }

    #[inline]
    fn reader(&self) -> Option<&RingReader> {
        Some(&self.reader)
    }

    #[inline]
    fn reader_mut(&mut self) -> Option<&mut RingReader> {
        Some(&mut self.reader)
    }
}
