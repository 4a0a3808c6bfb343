//! Read rendezvous in pieces: a large payload is announced when its first piece is there, so that the receiver READs a piece
//! while the sender fills the next. The descriptor is that of the whole, and says of itself that the first [`PIECE`] bytes can be
//! READ; `Filled` messages say how much can be since. What is no longer than a piece goes as by plain read rendezvous.
//!
//! | | announced by | then | over when |
//! |---|---|---|---|
//! | in pieces | the call or answer, flagged, with the descriptor | `Filled` with more and more bytes, READs of what is new | all of it was READ, or `Filled` said 0 |
//!
//! [`Pulls`] is the receiver's part. It READs no byte that it was not told of, keeps to the length that was announced, and has
//! one READ of a payload under way at a time, of all that is new. The sender's part is [`Filling`], which whoever encodes reports
//! to, and [`Ways`], which finds out how memory is filled that the peer has READ before.

use super::{Violation, route};
use crate::client::lane::post_read;
use dunlin_fabric::{Buffer, Fabric, Nanos, QueuePairId, copy};
use dunlin_wire::Descriptor;

/// How many bytes of a payload are there when it is announced, and how often its sender tells of more.
pub const PIECE: usize = 32 << 10;

/// Who fills a large payload reports to this how far it is. It must be filled from its beginning.
pub trait Filling {
    /// The first so many bytes are as they will stay, and may be sent.
    fn filled(&mut self, bytes: usize);

    /// Copies into the payload, in the way that leads to the peer soonest. Of the longer of both the rest counts for nothing.
    fn copy(&self, to: &mut [u8], from: &[u8]);
}

impl dyn Filling + '_ {
    /// Copies `from` to the beginning of `place`, of whose payload `before` bytes are there already, and reports each piece.
    pub fn put(&mut self, before: usize, place: &mut [u8], from: &[u8]) {
        let mut done = 0;
        while done < from.len() {
            // Pieces end where they would if all of the payload were copied so.
            let piece = (PIECE - (before + done) % PIECE).min(from.len() - done);
            self.copy(&mut place[done..done + piece], &from[done..done + piece]);
            done += piece;
            self.filled(before + done);
        }
    }
}

/// How a sender fills buffers that the peer has READ. Plain stores have to wait for the peer's core to give each line up, unless
/// it has dropped them meanwhile; that takes 2 ns a line or 30, as the cores lie and as many other bytes went by. Stores past the
/// caches wait for nobody, but what was stored so has to be READ from memory. So who fills measures: it goes past the caches
/// where plain stores take several times as long, and has many buffers filled by turns where they take longer and that helps: not
/// where many lanes do that anyway, and more memory would be less in the caches.
#[derive(Debug)]
pub(crate) struct Ways {
    streams: bool,
    /// What a line takes past the caches, in sixteenths of a nanosecond.
    streamed: u32,
    /// Fills past the caches to find that out.
    samples: u8,
    /// Plain fills in a row that took several times as long.
    slow: u8,
    /// Fills until plain stores are tried again.
    left: u32,
    /// How many these are the next time.
    patience: u32,
    /// Plain fills until they are judged, and the shortest of the last of them.
    until: usize,
    shortest: u32,
    /// The shortest before there were many buffers; none if there are few.
    before: Option<u32>,
}

/// How many buffers there had better be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turns {
    /// As there are.
    #[default]
    AsBefore,
    Many,
    Few,
}

/// What a line takes past the caches before that was measured.
const STREAMED: u32 = 3 * 16;
/// Plain fills that are judged together: others may have had the core during some of them.
const WINDOW: usize = 8;
/// So many slow ones in a row are enough.
const SLOW: u8 = 3;
const SHORTEST_PATIENCE: u32 = 32;
const LONGEST_PATIENCE: u32 = 1024;

impl Default for Ways {
    fn default() -> Self {
        Ways {
            streams: false,
            streamed: STREAMED,
            samples: 2,
            slow: 0,
            left: 0,
            patience: SHORTEST_PATIENCE,
            until: WINDOW,
            shortest: u32::MAX,
            before: None,
        }
    }
}

impl Ways {
    /// Whether the next payload goes past the caches.
    pub(crate) fn begin(&mut self) -> bool {
        if self.streams {
            let streams = self.left > 0;
            self.left = self.left.saturating_sub(1);
            return streams;
        }
        self.until == 0
    }

    /// A buffer that the peer has READ was filled so.
    pub(crate) fn end(&mut self, streamed: bool, bytes: usize, took: Nanos) -> Turns {
        let line = u32::try_from(took.saturating_mul(64 * 16) / bytes.max(1) as u64).unwrap_or(u32::MAX);
        if streamed {
            // A delay by others is no property of it.
            let longest = self.streamed.saturating_add(self.streamed / 8);
            self.streamed = line.min(longest).max(self.streamed / 2).max(1);
            self.samples = self.samples.saturating_sub(1);
        } else if line / 7 * 2 > self.streamed {
            self.slow += 1;
            if self.slow < SLOW {
                return Turns::AsBefore;
            }
            self.patience =
                if self.streams { (2 * self.patience).min(LONGEST_PATIENCE) } else { SHORTEST_PATIENCE };
            (self.streams, self.slow, self.left) = (true, 0, self.patience);
            return if self.before.take().is_some() { Turns::Few } else { Turns::AsBefore };
        } else {
            (self.streams, self.slow) = (false, 0);
            self.until = self.until.saturating_sub(1);
            if self.until < WINDOW {
                self.shortest = self.shortest.min(line);
            }
        }
        if self.streams || self.until > 0 || self.samples > 0 {
            return Turns::AsBefore;
        }
        self.judge()
    }

    /// Whether many buffers may help, or have helped.
    fn judge(&mut self) -> Turns {
        let shortest = std::mem::replace(&mut self.shortest, u32::MAX);
        (self.samples, self.until) = (1, LONGEST_PATIENCE as usize);
        match self.before {
            None if shortest > self.streamed + self.streamed / 2 => {
                // Those of before go round first.
                (self.before, self.until) = (Some(shortest), 4 * WINDOW);
                Turns::Many
            }
            Some(before) if shortest > before - before / 8 => {
                self.before = None;
                Turns::Few
            }
            _ => Turns::AsBefore,
        }
    }
}

/// Copies as was chosen.
pub(crate) fn copy_into(streams: bool, to: &mut [u8], from: &[u8]) {
    if streams {
        return copy::stream(to, from);
    }
    let length = to.len().min(from.len());
    to[..length].copy_from_slice(&from[..length]);
}

/// A payload that is being READ.
#[derive(Debug)]
struct Pull<F: Fabric> {
    call: u32,
    from: Descriptor,
    /// Bytes that the peer has filled.
    filled: usize,
    /// Bytes that were READ, or are being.
    read: usize,
    /// Where they go; `None` while a READ is under way.
    into: Option<Buffer<F::Memory>>,
    /// The peer has said that there will be no more.
    over: bool,
}

/// Payloads that are being READ in pieces.
#[derive(Debug)]
pub(crate) struct Pulls<F: Fabric> {
    list: Vec<Pull<F>>,
    limit: usize,
}

/// What became of a payload.
#[derive(Debug)]
pub(crate) enum Pulled<F: Fabric> {
    /// It is none of those in pieces.
    Whole(Buffer<F::Memory>),
    /// There is more to come.
    Part,
    /// There will be no more of it.
    Over,
}

impl<F: Fabric> Pulls<F> {
    /// Of a lane with that window.
    pub(crate) fn new(window: u16) -> Self {
        Pulls { list: Vec::new(), limit: 2 * window as usize + 64 }
    }

    /// Whether the payload of a call is being READ.
    pub(crate) fn expects(&self, call: u32) -> bool {
        self.list.iter().any(|pull| pull.call == call)
    }

    /// READs what is there of a payload that was announced; `into` has its length.
    pub(crate) fn begin(
        &mut self,
        domain: &mut F::Domain,
        (queue_pair, lane): (QueuePairId, u16),
        call: u32,
        from: Descriptor,
        into: Buffer<F::Memory>,
    ) -> Result<(), Violation> {
        if self.list.len() >= self.limit || self.expects(call) {
            return Err(Violation::Transfer("more large payloads than the window allows are announced"));
        }
        let filled = PIECE.min(into.len());
        self.list.push(Pull { call, from, filled, read: 0, into: Some(into), over: false });
        self.go_on(domain, (queue_pair, lane), self.list.len() - 1)
    }

    /// READs what is new of a payload, if there is something and nothing under way.
    fn go_on(
        &mut self,
        domain: &mut F::Domain,
        at: (QueuePairId, u16),
        index: usize,
    ) -> Result<(), Violation> {
        let Some(pull) = self.list.get_mut(index).filter(|pull| pull.read < pull.filled && !pull.over) else {
            return Ok(());
        };
        let Some(mut into) = pull.into.take() else { return Ok(()) };
        let length = pull.filled - pull.read;
        if !into.set_window(pull.read, length) {
            return Err(Violation::Transfer("a piece that is no part of its payload"));
        }
        let offset = pull.from.offset + pull.read as u64;
        let piece = Descriptor { offset, length: length as u64, ..pull.from };
        pull.read = pull.filled;
        post_read::<F>(domain, at.0, route::rendezvous(at.1, pull.call), &piece, into)
    }

    /// The peer has filled so many bytes of a payload, or given it up. Says whether nothing is under way of one that was given up,
    /// which is then forgotten. One that is not known was refused, and its peer did not know that yet.
    pub(crate) fn filled(
        &mut self,
        domain: &mut F::Domain,
        at: (QueuePairId, u16),
        call: u32,
        bytes: u32,
    ) -> Result<bool, Violation> {
        let Some(index) = self.list.iter().position(|pull| pull.call == call) else { return Ok(false) };
        let pull = &mut self.list[index];
        let bytes = bytes as usize;
        if bytes == 0 && pull.filled < pull.from.length as usize {
            pull.over = true;
            let idle = pull.into.is_some();
            if idle {
                self.list.swap_remove(index);
            }
            return Ok(idle);
        }
        if pull.over || bytes <= pull.filled || bytes as u64 > pull.from.length {
            return Err(Violation::Transfer("a payload is filled as it cannot be"));
        }
        pull.filled = bytes;
        self.go_on(domain, at, index).map(|()| false)
    }

    /// A READ has come back.
    pub(crate) fn arrived(
        &mut self,
        domain: &mut F::Domain,
        at: (QueuePairId, u16),
        call: u32,
        mut buffer: Buffer<F::Memory>,
    ) -> Result<Pulled<F>, Violation> {
        let Some(index) = self.list.iter().position(|pull| pull.call == call) else {
            return Ok(Pulled::Whole(buffer));
        };
        let pull = &mut self.list[index];
        if pull.over {
            self.list.swap_remove(index);
            return Ok(Pulled::Over);
        }
        let whole = pull.from.length as usize;
        if pull.read == whole {
            self.list.swap_remove(index);
            buffer.set_window(0, whole);
            return Ok(Pulled::Whole(buffer));
        }
        pull.into = Some(buffer);
        self.go_on(domain, at, index).map(|()| Pulled::Part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64 * 2048;

    /// Fills so often where a line takes `plain` with few buffers and with many, or `streamed` nanoseconds; answers how many of the
    /// last hundred went past the caches, and whether there are many buffers in the end.
    fn run(ways: &mut Ways, fills: usize, plain: [u64; 2], streamed: u64) -> (usize, bool) {
        let (mut many, mut late) = (ways.before.is_some(), 0);
        for fill in 0..fills {
            let streams = ways.begin();
            let line = if streams { streamed } else { plain[usize::from(many)] };
            match ways.end(streams, BYTES, line * 2048) {
                Turns::AsBefore => {}
                turns => many = turns == Turns::Many,
            }
            late += usize::from(streams && fill + 100 >= fills);
        }
        (late, many)
    }

    #[test]
    fn what_is_far_slower_goes_past_the_caches() {
        let (late, many) = run(&mut Ways::default(), 900, [30, 20], 3);
        assert!(late >= 95 && !many, "{late} {many}");
        // Not if going past the caches is slow, too.
        let (late, many) = run(&mut Ways::default(), 900, [30, 30], 29);
        assert!(late <= 5 && !many, "{late} {many}");
    }

    #[test]
    fn there_are_many_buffers_where_that_helps() {
        for (plain, helps) in [([6, 2], true), ([6, 6], false), ([3, 1], false), ([6, 5], true)] {
            let (late, many) = run(&mut Ways::default(), 900, plain, 3);
            assert!(late <= 5 && many == helps, "{plain:?} {late} {many}");
        }
    }

    /// Cores may come to lie otherwise.
    #[test]
    fn what_was_chosen_is_tried_again() {
        let mut ways = Ways::default();
        for _ in 0..3 {
            assert!(run(&mut ways, 3000, [30, 20], 3).0 >= 90);
            assert_eq!(run(&mut ways, 3000, [6, 2], 3), (0, true));
        }
    }

    /// As in virtual time, where filling takes none, and where it takes for ever.
    #[test]
    fn any_time_is_borne() {
        assert!(!run(&mut Ways::default(), 3000, [0, 0], 0).1);
        let mut ways = Ways::default();
        for (fill, took) in [0, Nanos::MAX, 1, 0].into_iter().cycle().take(5000).enumerate() {
            let streams = ways.begin();
            ways.end(streams, fill % 3, took);
        }
    }
}
