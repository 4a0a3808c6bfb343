//! Send buffer: bytes that wait to be sent.

use dunlin_thrift_core::codec::{BinaryOutput, Lending, Payload};
use pilota::thrift::ThriftException;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::ops::Range;

/// The maximum number of segments in one system call.
const PIECES: usize = 16;

/// A buffer of encoded messages, with large payloads between its bytes. Payloads are sent from their own
/// memory and may be borrowed. Memory that was written once is not cleared for the next message, since
/// clearing a large buffer takes as long as writing it.
#[derive(Debug, Default)]
pub(crate) struct Outgoing<'s> {
    /// Pending bytes up to `end`, followed by stale bytes of earlier messages.
    bytes: Vec<u8>,
    end: usize,
    /// Payloads, each with the buffer position of the byte that follows it.
    payloads: Vec<(usize, Payload<'s>)>,
    /// The number of pending payload bytes.
    lent: usize,
    /// The number of bytes of the first payload that were already sent.
    gone: usize,
}

impl<'s> Outgoing<'s> {
    /// Returns the number of pending bytes.
    pub(crate) fn len(&self) -> usize {
        self.end + self.lent
    }

    /// Returns the buffer position of the next byte, for [`at`](Outgoing::at).
    pub(crate) fn place(&self) -> usize {
        self.end
    }

    /// Appends `length` bytes of stale content, which the caller must overwrite.
    fn room(&mut self, length: usize) -> &mut [u8] {
        let begin = self.end;
        self.end += length;
        if self.bytes.len() < self.end {
            self.bytes.resize(self.end, 0);
        }
        &mut self.bytes[begin..self.end]
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends a value whose binary encoding takes `size` bytes. Returns the number of bytes that were not
    /// written.
    pub(crate) fn encode(
        &mut self,
        size: usize,
        encode: impl FnOnce(&mut BinaryOutput<'_, Lending<'_, 's>>) -> Result<(), ThriftException>,
    ) -> Result<usize, ThriftException> {
        self.room(size);
        let known = self.payloads.len();
        let place = &mut self.bytes[self.end - size..self.end];
        let mut output = BinaryOutput::lending(place, &mut self.payloads);
        let encoded = encode(&mut output);
        let left = output.left();
        // Lent payloads were not written to the buffer; each position is still relative to its end.
        let mut lent = 0;
        for (place, payload) in &mut self.payloads[known..] {
            *place = self.end - *place;
            lent += payload.bytes().len();
        }
        self.lent += lent;
        encoded?;
        self.end -= left;
        Ok(left.saturating_sub(lent))
    }

    /// Appends through a closure, for data whose length is not known in advance.
    pub(crate) fn append_with<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.bytes.truncate(self.end);
        let appended = append(&mut self.bytes);
        self.end = self.bytes.len();
        appended
    }

    /// Returns the pending bytes at some positions, to be overwritten.
    pub(crate) fn at(&mut self, places: Range<usize>) -> &mut [u8] {
        &mut self.bytes[..self.end][places]
    }

    /// Removes the most recently appended data, so that `length` bytes are pending. Payloads are removed as a
    /// whole.
    pub(crate) fn truncate(&mut self, length: usize) {
        while let Some((place, payload)) = self.payloads.last() {
            let gone = if self.payloads.len() == 1 { self.gone } else { 0 };
            let before = self.lent - (payload.bytes().len() - gone);
            if place + before < length {
                break;
            }
            self.lent = before;
            self.gone -= gone;
            self.payloads.pop();
        }
        self.end = self.end.min(length.saturating_sub(self.lent));
    }

    /// Sends once, beginning after the first `sent` pending bytes. Returns the number of bytes sent.
    pub(crate) fn send(&self, mut stream: &TcpStream, sent: usize) -> io::Result<usize> {
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

    /// Returns the pending bytes after the first `skipped`, in segments.
    fn pieces(&self, mut skipped: usize) -> impl Iterator<Item = &[u8]> {
        let (mut begin, mut gone) = (0, self.gone);
        let parts = self.payloads.iter().flat_map(move |(place, payload)| {
            let before = &self.bytes[begin..*place];
            begin = *place;
            [before, &payload.bytes()[std::mem::take(&mut gone)..]]
        });
        let last = self.payloads.last().map_or(0, |(place, _)| *place);
        parts.chain([&self.bytes[last..self.end]]).filter_map(move |piece| {
            let skip = skipped.min(piece.len());
            skipped -= skip;
            (skip < piece.len()).then(|| &piece[skip..])
        })
    }

    /// Removes bytes that have been sent.
    pub(crate) fn consume(&mut self, length: usize) {
        // Bytes left to remove, removed buffer bytes, and removed payloads.
        let (mut left, mut own, mut done) = (length, 0, 0);
        for (place, payload) in &self.payloads {
            let before = left.min(*place - own);
            own += before;
            left -= before;
            let waiting = payload.bytes().len() - self.gone;
            let of_payload = left.min(waiting);
            left -= of_payload;
            self.lent -= of_payload;
            if of_payload < waiting {
                self.gone += of_payload;
                break;
            }
            self.gone = 0;
            done += 1;
        }
        own += left;
        self.payloads.drain(..done);
        self.payloads.iter_mut().for_each(|(place, _)| *place -= own);
        self.bytes.copy_within(own..self.end, 0);
        self.end -= own;
    }

    /// Copies the borrowed payloads.
    pub(crate) fn into_owned(self) -> Outgoing<'static> {
        let Outgoing { bytes, end, payloads, lent, gone } = self;
        let payloads = payloads.into_iter().map(|(place, payload)| (place, payload.into_owned())).collect();
        Outgoing { bytes, end, payloads, lent, gone }
    }

    /// Frees memory if the buffer is empty and its capacity exceeds `keep` bytes.
    pub(crate) fn shrink(&mut self, keep: usize) {
        if self.len() == 0 && self.bytes.capacity() > keep {
            *self = Outgoing::default();
        }
    }

    /// Returns all pending bytes.
    #[cfg(test)]
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        self.pieces(0).flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dunlin_thrift_core::codec::{LENT, Output, owned_str};
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

    /// Appends a message with payloads of these lengths between single bytes.
    fn append(outgoing: &mut Outgoing<'_>, lengths: &[usize], fill: u8) {
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

    #[test]
    fn what_is_borrowed_or_shared_is_lent_until_it_is_copied() {
        let (bytes, text) = (vec![1; LENT], "t".repeat(LENT));
        let mut outgoing = Outgoing::default();
        let left = outgoing.encode(5 * (4 + LENT) - 1, |output| {
            output.write_slice(&bytes)?;
            output.write_text(&text)?;
            output.write_faststr(owned_str(&text))?;
            // One slice of unknown lifetime, and one that is too short.
            output.write_bytes_vec(&bytes)?;
            output.write_text(&text[1..])
        });
        assert_eq!((left.unwrap(), outgoing.payloads.len()), (0, 3));
        let mut expected = Vec::new();
        for payload in [&bytes, text.as_bytes(), text.as_bytes(), &bytes, &text.as_bytes()[1..]] {
            expected.extend_from_slice(&(payload.len() as u32).to_be_bytes());
            expected.extend_from_slice(payload);
        }
        outgoing.consume(LENT / 2);
        let owned: Outgoing<'static> = outgoing.into_owned();
        drop((bytes, text));
        assert_eq!((owned.len(), owned.payloads.len()), (expected.len() - LENT / 2, 3));
        assert!(owned.to_vec() == expected[LENT / 2..]);
    }

    proptest! {
        /// Behaves like a plain buffer, whatever is sent and truncated.
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
                // A second message that is taken back.
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
