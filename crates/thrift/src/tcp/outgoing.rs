//! Bytes that wait to be sent.

use crate::codec::BinaryOutput;
use pilota::Bytes;
use pilota::thrift::ThriftException;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::ops::Range;

/// Pieces that are given to the system at a time.
const PIECES: usize = 16;

/// A buffer that messages are written into, and large payloads between its bytes, which go out from where they lie. Memory that was
/// written once is not cleared for the next message: for large ones that would take as long as writing them.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// What waits, and behind it what once did.
    bytes: Vec<u8>,
    end: usize,
    /// Payloads, each with the place of the byte that comes after it.
    payloads: Vec<(usize, Bytes)>,
    /// Bytes of them all.
    lent: usize,
}

impl Outgoing {
    /// How many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.end + self.lent
    }

    /// The place of the next byte, for [`at`](Outgoing::at).
    pub(super) fn place(&self) -> usize {
        self.end
    }

    /// Makes room for so many bytes more; what is in it must be written over.
    fn room(&mut self, length: usize) -> &mut [u8] {
        let begin = self.end;
        self.end += length;
        if self.bytes.len() < self.end {
            self.bytes.resize(self.end, 0);
        }
        &mut self.bytes[begin..self.end]
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends what takes so many bytes in the binary encoding. Says how many of them were not written.
    pub(super) fn encode(
        &mut self,
        size: usize,
        encode: impl FnOnce(&mut BinaryOutput<'_>) -> Result<(), ThriftException>,
    ) -> Result<usize, ThriftException> {
        self.room(size);
        let known = self.payloads.len();
        let place = &mut self.bytes[self.end - size..self.end];
        let mut output = BinaryOutput::lending(place, &mut self.payloads);
        let encoded = encode(&mut output);
        let left = output.left();
        // What was lent was not written, and each is told with the room that was left then.
        let mut lent = 0;
        for (place, payload) in &mut self.payloads[known..] {
            *place = self.end - *place;
            lent += payload.len();
        }
        self.lent += lent;
        encoded?;
        self.end -= left;
        Ok(left.saturating_sub(lent))
    }

    /// Lets something be appended whose length is not known beforehand.
    pub(super) fn append_with<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.bytes.truncate(self.end);
        let appended = append(&mut self.bytes);
        self.end = self.bytes.len();
        appended
    }

    /// What waits between two places, to be written over.
    pub(super) fn at(&mut self, places: Range<usize>) -> &mut [u8] {
        &mut self.bytes[..self.end][places]
    }

    /// Takes back what was appended last, so that `length` bytes wait; a payload as a whole.
    pub(super) fn truncate(&mut self, length: usize) {
        while let Some((place, payload)) = self.payloads.last() {
            let before = self.lent - payload.len();
            if place + before < length {
                break;
            }
            self.lent = before;
            self.payloads.pop();
        }
        self.end = self.end.min(length.saturating_sub(self.lent));
    }

    /// Sends once, what waits behind the first `sent` bytes. Says how many bytes went.
    pub(super) fn send(&self, mut stream: &TcpStream, sent: usize) -> io::Result<usize> {
        if self.payloads.is_empty() {
            return stream.write(&self.bytes[sent..self.end]);
        }
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces(sent)) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        stream.write_vectored(&slices[..count])
    }

    /// What waits behind the first `skipped` bytes, in pieces.
    fn pieces(&self, mut skipped: usize) -> impl Iterator<Item = &[u8]> {
        let mut begin = 0;
        let parts = self.payloads.iter().flat_map(move |(place, payload)| {
            let before = &self.bytes[begin..*place];
            begin = *place;
            [before, &payload[..]]
        });
        let last = self.payloads.last().map_or(0, |(place, _)| *place);
        parts.chain([&self.bytes[last..self.end]]).filter_map(move |piece| {
            let skip = skipped.min(piece.len());
            skipped -= skip;
            (skip < piece.len()).then(|| &piece[skip..])
        })
    }

    /// Takes away what has been sent.
    pub(super) fn consume(&mut self, length: usize) {
        // Bytes of the buffer that are done with, and payloads.
        let (mut left, mut own, mut done) = (length, 0, 0);
        for (place, payload) in &mut self.payloads {
            let before = left.min(*place - own);
            own += before;
            left -= before;
            let of_payload = left.min(payload.len());
            left -= of_payload;
            self.lent -= of_payload;
            if of_payload < payload.len() {
                drop(payload.split_to(of_payload));
                break;
            }
            done += 1;
        }
        own += left;
        self.payloads.drain(..done);
        self.payloads.iter_mut().for_each(|(place, _)| *place -= own);
        self.bytes.copy_within(own..self.end, 0);
        self.end -= own;
    }

    /// Gives memory over `keep` bytes back, if nothing waits.
    pub(super) fn shrink(&mut self, keep: usize) {
        if self.len() == 0 && self.bytes.capacity() > keep {
            *self = Outgoing::default();
        }
    }

    /// All that waits.
    #[cfg(test)]
    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.pieces(0).flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::LENT;
    use pilota::thrift::TOutputProtocol;
    use proptest::prelude::*;

    #[test]
    fn old_bytes_do_not_come_back() {
        let mut outgoing = Outgoing::default();
        outgoing.extend(b"first message");
        outgoing.consume(6);
        assert_eq!(outgoing.to_vec(), b"message");
        outgoing.truncate(1);
        outgoing.append_with(|bytes| bytes.extend_from_slice(b"ore"));
        assert_eq!(outgoing.to_vec(), b"more");
        outgoing.at(0..1)[0] = b'b';
        outgoing.room(1).fill(b'd');
        assert_eq!((outgoing.to_vec(), outgoing.len()), (b"bored".into(), 5));
        outgoing.truncate(0);
        outgoing.shrink(0);
        assert_eq!((outgoing.bytes.capacity(), outgoing.to_vec()), (0, Vec::new()));
    }

    /// A message of bytes of its own and payloads of these lengths between them.
    fn append(outgoing: &mut Outgoing, lengths: &[usize], fill: u8) {
        let size = 1 + lengths.iter().map(|length| 5 + length).sum::<usize>();
        let left = outgoing.encode(size, |output| {
            output.write_byte(fill)?;
            for length in lengths {
                output.write_bytes(vec![fill; *length].into())?;
                output.write_byte(fill)?;
            }
            Ok(())
        });
        assert_eq!(left.unwrap(), 0);
    }

    #[test]
    fn payloads_are_lent() {
        let mut outgoing = Outgoing::default();
        append(&mut outgoing, &[LENT, 3, LENT - 1, LENT], 1);
        assert_eq!((outgoing.payloads.len(), outgoing.lent), (2, 2 * LENT));
        let shorter = outgoing.encode(2 * LENT, |output| output.write_bytes(vec![1; LENT].into()));
        assert_eq!(shorter.unwrap(), LENT - 4);
        let longer = outgoing.encode(LENT, |output| output.write_bytes(vec![1; LENT].into()));
        assert!(longer.is_err());
        outgoing.truncate(0);
        assert_eq!((outgoing.len(), outgoing.payloads.len()), (0, 0));
    }

    proptest! {
        /// As one buffer would be, whatever is sent and taken back.
        #[test]
        fn payloads_are_as_if_they_were_copied(
            messages in proptest::collection::vec(proptest::collection::vec(0..2 * LENT, 0..3), 1..4),
            sent in proptest::collection::vec(0..2 * LENT, 0..4),
        ) {
            let mut outgoing = Outgoing::default();
            let mut expected = Vec::new();
            for (number, lengths) in messages.iter().enumerate() {
                let fill = number as u8 + 1;
                append(&mut outgoing, lengths, fill);
                expected.push(fill);
                for length in lengths {
                    expected.extend_from_slice(&(*length as u32).to_be_bytes());
                    expected.resize(expected.len() + length + 1, fill);
                }
                // Another one that comes to nothing.
                let before = outgoing.len();
                append(&mut outgoing, lengths, 99);
                outgoing.truncate(before);
                prop_assert_eq!(outgoing.len(), expected.len());
            }
            for sent in sent {
                let sent = sent.min(expected.len());
                let rest: Vec<u8> = outgoing.pieces(sent).flatten().copied().collect();
                prop_assert_eq!(&rest[..], &expected[sent..]);
                outgoing.consume(sent);
                expected.drain(..sent);
                prop_assert_eq!(outgoing.len(), expected.len());
                prop_assert!(outgoing.to_vec() == expected);
            }
        }
    }
}
