//! The sending end of a direction.

use super::{MAX_MESSAGE, Violation};
use crate::mailbox::RingWriter;
use crate::path::route;
use dunlin_fabric::{
    Arena, Data, Fabric, Host, Operation, PostError, QueuePairId, Region, RegionKey, ThreadDomain, Work,
    WorkRequest,
};
use dunlin_wire::{Header, INLINE_PAYLOAD, Kind, LINE, SingleLayout, TagKey, encode_line};

/// How it sends.
#[derive(Debug)]
pub(crate) enum TxHalf<F: Fabric> {
    /// SEND; the receiver's RECVs and the send queue bound it.
    Send,
    /// WRITE into the peer's ring.
    Write {
        /// The peer's inbound region.
        key: RegionKey,
        /// Where its ring starts.
        base: u64,
        /// With immediate data, so that the receiver gets a completion.
        immediate: bool,
    },
    /// Into a region of our own, which the peer READs.
    Publish {
        /// That region.
        region: Region<F::Memory>,
    },
}

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxError {
    /// No room now; the peer's progress will make some.
    Full,
    /// The queue pair is broken.
    Broken,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Tx<F: Fabric> {
    half: TxHalf<F>,
    queue_pair: QueuePairId,
    lane: u16,
    ring: RingWriter,
    tags: TagKey,
    epoch: u32,
    sequence: u64,
    /// Work requests since the last signaled one: a bounded run, since slots of the send queue come back only
    /// with a signaled completion.
    unsignaled: u32,
    signal_every: u32,
    max_inline: usize,
    /// For messages over `max_inline`, which have to lie in registered memory.
    staging: Option<Arena<F::Memory>>,
    /// Our inbound region, whose control word the peer sets to the head it has reached.
    control: Region<F::Memory>,
}

/// What a direction's sending end is made of.
pub(crate) struct TxParts<F: Fabric> {
    pub(crate) half: TxHalf<F>,
    pub(crate) queue_pair: QueuePairId,
    pub(crate) lane: u16,
    pub(crate) ring_bytes: usize,
    pub(crate) tags: TagKey,
    pub(crate) max_send: u32,
    pub(crate) max_inline: usize,
    pub(crate) staging: Option<Arena<F::Memory>>,
    pub(crate) control: Region<F::Memory>,
}

impl<F: Fabric> Tx<F> {
    pub(crate) fn new(parts: TxParts<F>) -> Self {
        Tx {
            half: parts.half,
            queue_pair: parts.queue_pair,
            lane: parts.lane,
            ring: RingWriter::new(parts.ring_bytes),
            tags: parts.tags,
            epoch: 0,
            sequence: 0,
            unsignaled: 0,
            signal_every: (parts.max_send / 4).max(1),
            max_inline: parts.max_inline,
            staging: parts.staging,
            control: parts.control,
        }
    }

    /// The sequence of the next message: what a draining server's mark is compared with.
    #[inline]
    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Takes a head that the peer has piggybacked.
    #[inline]
    pub(crate) fn on_head(&mut self, head: u32) -> Result<(), Violation> {
        if matches!(self.half, TxHalf::Send) || self.ring.on_head(head) {
            Ok(())
        } else {
            Err(Violation::Head)
        }
    }

    /// Whether the peer has taken everything that was sent, as far as we know.
    pub(crate) fn is_empty(&mut self) -> bool {
        matches!(self.half, TxHalf::Send) || self.ring.is_empty() || {
            self.refresh_head();
            self.ring.is_empty()
        }
    }

    /// Reads the head that the peer has written into our control word.
    fn refresh_head(&mut self) {
        // Zero until the first report: the word carries a mark above the 32 bits of the head.
        let word = self.control.load(0);
        if word >> 32 == 1 {
            // A lie here is one of the next message too, which ends the lane.
            self.ring.on_head(word as u32);
        }
    }

    /// Whether a message of `total` bytes could go out now.
    #[inline]
    pub(crate) fn has_room(&mut self, domain: &F::Domain, total: usize) -> bool {
        match self.half {
            TxHalf::Send => domain.send_room(self.queue_pair) > 1,
            _ => {
                self.ring.place(total).is_some() || {
                    self.refresh_head();
                    self.ring.place(total).is_some()
                }
            }
        }
    }

    /// Sends one call or answer.
    #[inline]
    pub(crate) fn single(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        header: &Header,
        payload: &[u8],
    ) -> Result<(), TxError> {
        if payload.len() <= INLINE_PAYLOAD {
            self.make_room(fabric, domain, LINE)?;
            let tag = self.tags.first(self.epoch, self.sequence);
            let Ok(line) = encode_line(header, payload, tag) else { return Err(TxError::Broken) };
            self.post(fabric, domain, &[&line], LINE)
        } else {
            let Ok(layout) = SingleLayout::new(payload.len() as u32, MAX_MESSAGE) else {
                return Err(TxError::Broken);
            };
            self.make_room(fabric, domain, layout.total())?;
            let tags = self.tags.tags(self.epoch, self.sequence);
            let Ok(first) = layout.first_line(header, tags.first) else { return Err(TxError::Broken) };
            let tail = layout.tail(tags.trailing);
            fabric.host().charge(Work::CopyBytes, payload.len() as u32);
            self.post(fabric, domain, &[&first, payload, tail.as_bytes()], layout.total())
        }
    }

    /// Makes sure that a message of `total` bytes has a place, writing a `Skip` if it does not fit before the end.
    #[inline]
    fn make_room(&mut self, fabric: &F, domain: &mut F::Domain, total: usize) -> Result<(), TxError> {
        if matches!(self.half, TxHalf::Send) {
            return Ok(());
        }
        let place = match self.ring.place(total) {
            Some(place) => place,
            None => {
                self.refresh_head();
                self.ring.place(total).ok_or(TxError::Full)?
            }
        };
        match place.skip_at {
            None => Ok(()),
            Some(at) => {
                let tag = self.tags.first(self.epoch, self.sequence);
                let Ok(line) = encode_line(&Header::new(Kind::Skip), &[], tag) else {
                    return Err(TxError::Broken);
                };
                self.put(fabric, domain, &[&line], at, false)?;
                self.ring.skip();
                self.sequence += 1;
                Ok(())
            }
        }
    }

    /// Tags for the next message, once there is room for `total` bytes. A message that is then not posted leaves
    /// no trace.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        total: usize,
    ) -> Result<dunlin_wire::Tags, TxError> {
        self.make_room(fabric, domain, total)?;
        Ok(self.tags.tags(self.epoch, self.sequence))
    }

    /// Posts the message that [`begin`](Tx::begin) made room for.
    #[inline]
    pub(crate) fn post(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        parts: &[&[u8]],
        total: usize,
    ) -> Result<(), TxError> {
        let at = match self.half {
            TxHalf::Send => 0,
            _ => self.ring.place(total).ok_or(TxError::Full)?.at,
        };
        self.put(fabric, domain, parts, at, true)?;
        if !matches!(self.half, TxHalf::Send) {
            self.ring.advance(total);
        }
        self.sequence += 1;
        Ok(())
    }

    #[inline]
    fn put(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        parts: &[&[u8]],
        at: usize,
        notify: bool,
    ) -> Result<(), TxError> {
        match &self.half {
            TxHalf::Publish { region } => {
                // The first line comes last: a READ that finds its tag finds all that follows it, in whatever
                // order its bytes are read.
                let Some((first, rest)) = parts.split_first() else { return Ok(()) };
                let (line, body) = first.split_at(first.len().min(LINE));
                let mut offset = at + line.len();
                for part in std::iter::once(&body).chain(rest) {
                    region.copy_in(offset, part);
                    offset += part.len();
                }
                region.copy_in(at, line);
                Ok(())
            }
            TxHalf::Write { key, base, immediate } => {
                let (key, offset) = (*key, base + at as u64);
                let immediate = (*immediate && notify).then_some(self.lane as u32);
                let data = self.data(parts)?;
                self.request(fabric, domain, Operation::Write { data, key, offset, immediate })
            }
            TxHalf::Send => {
                let data = self.data(parts)?;
                self.request(fabric, domain, Operation::Send { data, immediate: None, to: None })
            }
        }
    }

    #[inline]
    fn data<'a>(&self, parts: &'a [&'a [u8]]) -> Result<Data<'a, F::Memory>, TxError> {
        let total: usize = parts.iter().map(|p| p.len()).sum();
        if total <= self.max_inline {
            return Ok(Data::Inline(parts));
        }
        let staging = self.staging.as_ref().ok_or(TxError::Broken)?;
        let mut buffer = staging.reserve(total).map_err(|_| TxError::Full)?;
        let mut at = 0;
        for part in parts {
            buffer[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        Ok(Data::Buffer(buffer))
    }

    #[inline]
    fn request(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        operation: Operation<'_, F::Memory>,
    ) -> Result<(), TxError> {
        fabric.host().charge(Work::PostWork, 1);
        self.unsignaled += 1;
        let signaled = self.unsignaled >= self.signal_every;
        let request = WorkRequest { id: route::outgoing(self.lane), operation, signaled };
        match domain.post(self.queue_pair, request) {
            Ok(()) => {
                if signaled {
                    self.unsignaled = 0;
                }
                Ok(())
            }
            Err(PostError::QueueFull) => {
                self.unsignaled -= 1;
                Err(TxError::Full)
            }
            Err(_) => Err(TxError::Broken),
        }
    }

    /// Tells the peer how far its messages were consumed, without a message: WRITEs its control word.
    pub(crate) fn report_head(
        &mut self,
        fabric: &F,
        domain: &mut F::Domain,
        key: RegionKey,
        head: u32,
    ) -> Result<(), TxError> {
        let word = (1u64 << 32 | head as u64).to_le_bytes();
        let parts: [&[u8]; 1] = [&word];
        self.request(
            fabric,
            domain,
            Operation::Write { data: Data::Inline(&parts), key, offset: 0, immediate: None },
        )
    }
}
