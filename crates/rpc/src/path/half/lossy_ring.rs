//! `write_unreliable`: a ring that is written over a connection that may lose WRITEs (HERD's requests).
//!
//! The reader takes messages in sequence, so a lost message holds up all later ones until the writer writes
//! the same bytes, with the same tag, to the same place again. The writer keeps a copy of every message that
//! the reader is not known to have taken. To rewrite a message that was taken meanwhile is harmless: the
//! reader expects messages of the next round there, which have other tags, and the writer puts none in that
//! place before it knows that the reader's head has passed it.
//!
//! Each message is rewritten with one WRITE of its own, since only the end of a WRITE is sure to become
//! visible last.
//!
//! # Golden counts
//!
//! Requests, doorbells, RECVs and completions of 1 024 calls, of 32 bytes unless said. An answer may be lost, so
//! the server reports its head every quarter of the ring over the reliable connection, where each post is signaled.
//!
//! ```text
//! HERD, client: posted_write 1024, posted_signaled 16, posted_inline 1024, doorbells 1024, posted_receive 1024,
//!   bytes_posted 65536, bytes_received 65536, completed_write 16, completed_receive 1024
//! HERD, server: posted_send 1024, posted_write 16, posted_signaled 32, posted_inline 1040, doorbells 1040,
//!   bytes_posted 65664, completed_send 16, completed_write 16
//! HERD, 8 KiB, client: posted_write 2048, posted_read 1024, posted_signaled 1056, posted_inline 2048, doorbells
//!   3072, posted_receive 1024, bytes_posted 8519680, bytes_received 65536, completed_write 32, completed_read
//!   1024, completed_receive 1024
//! HERD, 8 KiB, server: posted_send 1024, posted_write 32, posted_read 1024, posted_signaled 1072, posted_inline
//!   1056, doorbells 2080, bytes_posted 8454400, completed_send 16, completed_write 32, completed_read 1024
//! HERD, 8 together, client: posted_write 1024, posted_signaled 16, posted_inline 1024, doorbells 128,
//!   posted_receive 1024, bytes_posted 65536, bytes_received 65536, completed_write 16, completed_receive 1024
//! HERD, 8 together, server: posted_send 1024, posted_write 16, posted_signaled 32, posted_inline 1040, doorbells
//!   144, bytes_posted 65664, completed_send 16, completed_write 16
//! ```

use super::protocol::Protocol;
use super::{
    Ends, Facts, Half, Made, MakeError, Mechanism, Message, Notice, Place, RequestHalf, ResponseHalf, TxHalf,
};
use crate::path::large::LargePayload;
use crate::path::sending::Sending;
use crate::path::tx::TxError;
use crate::path::unconnected::{MTU, payload};
use crate::path::{Cx, MAX_MESSAGE, route};
use dunlin_fabric::{Fabric, Operation, RegionKey, Transport, WorkRequest};
use dunlin_wire::LINE;
use std::collections::VecDeque;

/// The half.
pub(super) struct WriteUnreliable;

impl Half for WriteUnreliable {
    const NAME: &'static str = "write_unreliable";
    const REQUEST: u8 = 7;
    const FACTS: Facts =
        Facts { place: Place::Ring, notice: Notice::Polled, transport: Transport::UnreliableConnection };
}

/// The mechanism.
pub(crate) struct Carrier;

impl Mechanism for Carrier {
    const PROTOCOLS: &'static [Protocol] = &[Protocol::row(
        "HERD",
        (RequestHalf::WriteUnreliable, ResponseHalf::Datagram),
        "HERD: WRITE over UC into memory that the server polls, the answer a datagram",
    )
    .large(LargePayload::Read, payload(MTU))];

    fn sender<F: Fabric>(facts: Facts, ends: &mut Ends<'_, F>) -> Result<Made<F>, MakeError> {
        let queue_pair = ends.beside(facts.transport)?.queue_pair;
        let ((key, base), ring) = (ends.to, LossyRing::new(ends.ring_bytes as usize));
        let half = TxHalf::Lossy(Box::new(Sender { key, base, ring }));
        Ok(Made { queue_pair, ..ends.on_connection(half) })
    }
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Sender {
    /// The peer's inbound region.
    key: RegionKey,
    /// Offset of the ring in that region.
    base: u64,
    ring: LossyRing,
}

impl<F: Fabric> super::Sender<F> for Box<Sender> {
    #[inline(never)]
    fn put(
        &mut self,
        end: &mut Sending<F>,
        cx: &mut Cx<'_, F>,
        Message { parts, total, at, .. }: Message<'_>,
    ) -> Result<(), TxError> {
        let data = end.data(cx.fabric, parts, total)?;
        self.ring.taken(end.ring.head());
        self.ring.keep(at, parts);
        let (key, offset) = (self.key, self.base + at as u64);
        let operation = Operation::Write { data, key, offset, immediate: None };
        let signaled = end.next_is_signaled(cx.fabric);
        end.post_or_list(cx.domain, WorkRequest { id: route::outgoing(end.lane), operation, signaled })?;
        end.posted(Ok(()), signaled)?;
        self.ring.posted(at, total, end.ring.tail_after(total));
        Ok(())
    }

    fn gathers(&self) -> bool {
        true
    }

    fn rewrite(&mut self, end: &mut Sending<F>, cx: &mut Cx<'_, F>) -> Result<bool, TxError> {
        end.refresh_head();
        self.ring.taken(end.ring.head());
        self.ring.start_round();
        if self.ring.is_empty() {
            return Ok(false);
        }
        while let Some((at, bytes)) = self.ring.next() {
            let (key, offset) = (self.key, self.base + at as u64);
            let mut message = [0; MAX_MESSAGE];
            let message = &mut message[..bytes.len()];
            message.copy_from_slice(bytes);
            let parts: &[&[u8]] = &[message];
            let posted = end.data(cx.fabric, parts, message.len()).and_then(|data| {
                end.post_one(cx, Operation::Write { data, key, offset, immediate: None }, true)
            });
            match posted {
                Ok(()) => self.ring.rewritten(),
                Err(TxError::Full) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// A message that the reader is not known to have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unread {
    /// Offset in the ring.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    /// The head of a reader that has taken it.
    end: u64,
}

/// The writer's state of a lossy ring.
#[derive(Debug)]
struct LossyRing {
    copy: Vec<u8>,
    unread: VecDeque<Unread>,
    /// Number of unread messages rewritten in this round.
    cursor: usize,
}

impl LossyRing {
    /// Creates the state of a ring of `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        LossyRing { copy: vec![0; bytes], unread: VecDeque::with_capacity(bytes / LINE), cursor: 0 }
    }

    /// Keeps a copy of a message that is about to be written.
    pub(crate) fn keep(&mut self, at: usize, parts: &[&[u8]]) {
        let mut to = at;
        for part in parts {
            if let Some(place) = self.copy.get_mut(to..to + part.len()) {
                place.copy_from_slice(part);
            }
            to += part.len();
        }
    }

    /// Records that the message was posted. A reader whose head is at least `end` has taken it.
    pub(crate) fn posted(&mut self, at: usize, bytes: usize, end: u64) {
        self.unread.push_back(Unread { at, bytes, end });
    }

    /// Forgets the messages that a reader with head `head` has taken.
    pub(crate) fn taken(&mut self, head: u64) {
        while self.unread.front().is_some_and(|unread| unread.end <= head) {
            self.unread.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
        }
    }

    /// Begins a round of rewrites from the first unread message, if the last round is over.
    pub(crate) fn start_round(&mut self) {
        if self.cursor >= self.unread.len() {
            self.cursor = 0;
        }
    }

    /// Returns whether the reader is known to have taken all messages.
    pub(crate) fn is_empty(&self) -> bool {
        self.unread.is_empty()
    }

    /// Returns the next message to rewrite: its offset and bytes.
    pub(crate) fn next(&self) -> Option<(usize, &[u8])> {
        let unread = self.unread.get(self.cursor)?;
        Some((unread.at, self.copy.get(unread.at..unread.at + unread.bytes)?))
    }

    /// Advances past a message that was rewritten.
    pub(crate) fn rewritten(&mut self) {
        self.cursor += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::{Place, RingReader, RingWriter};
    use proptest::prelude::*;

    /// Builds a message for the test: each line holds its number, so that a torn or stale message shows.
    fn message(number: u64, lines: usize) -> Vec<u8> {
        (0..lines)
            .flat_map(|line| {
                let mut bytes = [line as u8; LINE];
                bytes[LINE - 8..].copy_from_slice(&(number << 16 | lines as u64).to_le_bytes());
                bytes
            })
            .collect()
    }

    fn tag(memory: &[u8], line: usize) -> u64 {
        u64::from_le_bytes(memory[(line + 1) * LINE - 8..(line + 1) * LINE].try_into().unwrap())
    }

    proptest! {
        /// With lost WRITEs and late or missing heads, the reader still gets every message once, in order and
        /// whole.
        #[test]
        fn what_is_lost_is_written_again(
            lines in (3u32..6).prop_map(|power| 1usize << power),
            steps in prop::collection::vec((1usize..9, 0u8..100, 0u8..100), 50..400),
            loss in 0u8..70,
        ) {
            let mut memory = vec![0xffu8; lines * LINE];
            let (mut writer, mut reader) = (RingWriter::new(lines * LINE), RingReader::new(lines * LINE));
            let mut ring = LossyRing::new(lines * LINE);
            let (mut sent, mut taken) = (1u64, 1u64);
            // Lengths by number; 0 stands for a skip.
            let mut lengths = vec![0usize];
            let write = |memory: &mut Vec<u8>, at: usize, bytes: &[u8], lost: bool| {
                if !lost {
                    memory[at..at + bytes.len()].copy_from_slice(bytes);
                }
            };
            for (length, fate, head) in steps.into_iter().chain(std::iter::repeat_n((0, 99, 0), 20)) {
                let length = length.min(lines / 2);
                if length > 0 && let Some(Place { skip_at, at }) = writer.place(length * LINE) {
                    if let Some(at) = skip_at {
                        let bytes = message(sent, 1);
                        ring.keep(at, &[&bytes]);
                        write(&mut memory, at, &bytes, fate < loss);
                        writer.skip();
                        ring.posted(at, LINE, writer.tail());
                        lengths.push(0);
                        sent += 1;
                    }
                    let bytes = message(sent, length);
                    let (first, rest) = bytes.split_at(LINE);
                    ring.keep(at, &[first, rest]);
                    write(&mut memory, at, &bytes, fate < loss);
                    writer.advance(length * LINE);
                    ring.posted(at, length * LINE, writer.tail());
                    lengths.push(length);
                    sent += 1;
                }
                // The reader takes what is there.
                while taken < sent {
                    let line = reader.position() / LINE;
                    let length = lengths[taken as usize];
                    let expected = taken << 16 | length.max(1) as u64;
                    if tag(&memory, line) != expected {
                        break;
                    }
                    if length == 0 {
                        reader.skip();
                    } else {
                        let whole = &memory[reader.position()..reader.position() + length * LINE];
                        prop_assert_eq!(whole, &message(taken, length)[..], "message {}", taken);
                        reader.advance(length * LINE);
                    }
                    taken += 1;
                }
                if head < 30 {
                    prop_assert!(writer.on_head(reader.head()));
                    ring.taken(writer.head());
                }
                if fate % 3 == 0 {
                    ring.start_round();
                    let mut count = 0;
                    while let Some((at, bytes)) = ring.next() {
                        let bytes = bytes.to_vec();
                        write(&mut memory, at, &bytes, (fate ^ count) < loss && fate != 99);
                        ring.rewritten();
                        count += 1;
                    }
                }
            }
            prop_assert_eq!(taken, sent, "all has come in the end");
            prop_assert!(writer.on_head(reader.head()));
            ring.taken(writer.head());
            prop_assert!(ring.is_empty());
        }
    }
}
