//! The 24-byte header at the start of every message.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | kind |
//! | 1 | flags |
//! | 2..4 | code: function of a request, status of a response, number of entries of a batch or release list, or of operations |
//! | 4..8 | length of the payload, or of a batch's entries, in bytes |
//! | 8..12 | consumer head, piggybacked |
//! | 12 | credits |
//! | 13 | low bits of the lease's epoch |
//! | 14..16 | thread |
//! | 16..20 | call |
//! | 20..24 | time |

use crate::bytes;
use crate::error::Reject;
use crate::status::Status;
use crate::{Descriptor, ENTRY_ALIGN, ENTRY_META_BYTES, HEADER_BYTES};
use core::fmt;
use core::ops::BitOr;

/// The kind of a message; one byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// One call.
    Request = 1,
    /// The response to one call.
    Response = 2,
    /// Several calls, possibly from several threads.
    RequestBatch = 3,
    /// Several responses.
    ResponseBatch = 4,
    /// The rest of the ring is unused: the consumer continues at offset 0.
    Skip = 5,
    /// No payload: carries only the piggybacked head and credits, and as its code a number of operations on memory.
    Credit = 6,
    /// The client has finished reading the rendezvous responses of these calls. The payload is the list of
    /// call ids, one `u32` each.
    Release = 7,
    /// The sender is shutting down: send it no new calls.
    Drain = 8,
    /// Write rendezvous: the large payload of this call may be written. The payload is the target's
    /// [`Descriptor`].
    ClearToSend = 9,
    /// Write rendezvous: the large payload of this call was written to the target given by
    /// [`Kind::ClearToSend`].
    Written = 10,
    /// Eager transfer: the next bytes of the large payload of this call, in order.
    Fragment = 11,
    /// Pipelined transfer: the number of bytes, from the beginning of this call's large payload, that the
    /// receiver can READ now. 0 means that no more bytes will follow.
    Filled = 12,
}

dunlin_numbered::numbered!(Kind: u8 {
    Request, Response, RequestBatch, ResponseBatch, Skip, Credit, Release, Drain, ClearToSend, Written, Fragment, Filled,
});

impl Kind {
    /// Returns whether the first word of a header needs no further check: of a request, or of a response without an error,
    /// with known flags and a payload that is no descriptor. One comparison.
    #[inline(always)]
    pub(crate) const fn is_plain(self, word0: u64) -> bool {
        const FLAGS: u64 = !(Flags::KNOWN & !Flags::RENDEZVOUS.0) as u64;
        const REQUEST: u64 = 0xff | FLAGS << 8;
        const RESPONSE: u64 = REQUEST | 0xffff << 16;
        match self {
            Kind::Request => word0 & REQUEST == Kind::Request as u64,
            Kind::Response => word0 & RESPONSE == Kind::Response as u64,
            _ => false,
        }
    }

    /// Returns whether the body of such messages holds entries.
    #[inline]
    pub const fn is_batch(self) -> bool {
        matches!(self, Kind::RequestBatch | Kind::ResponseBatch)
    }

    /// Returns whether such messages are one call or one response.
    #[inline]
    pub const fn is_single(self) -> bool {
        matches!(self, Kind::Request | Kind::Response)
    }

    /// Returns whether such messages belong to the transfer of an announced large payload.
    #[inline]
    pub const fn is_transfer(self) -> bool {
        matches!(self, Kind::ClearToSend | Kind::Written | Kind::Fragment | Kind::Filled)
    }

    /// Returns whether the codes in such messages, or in their entries, are statuses.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(self, Kind::Response | Kind::ResponseBatch)
    }
}

/// A set of flags of a message or of an entry. It never contains unknown bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u8);

impl Flags {
    /// The empty set.
    pub const NONE: Flags = Flags(0);
    /// The end of a right to send: the server switches to the next group of clients, and the lease ends (ScaleRPC
    /// section 3), or it declines further credits (FLOCK section 5.1).
    pub const CONTEXT_SWITCH: Flags = Flags(1);
    /// The client's response mode (RF-RPC section 3). Set: the server replies. Clear: the client fetches.
    pub const MODE: Flags = Flags(1 << 1);
    /// The sender completes its outstanding calls and accepts no new ones.
    pub const DRAINING: Flags = Flags(1 << 2);
    /// The payload is a [`Descriptor`].
    pub const RENDEZVOUS: Flags = Flags(1 << 3);
    /// More messages of the same burst follow at once; the receiver may defer its per-burst work.
    pub const MORE: Flags = Flags(1 << 4);

    const KNOWN: u8 = 0x1f;

    /// Returns the bits as sent on the wire.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the flags for these bits, or `None` if a bit is unknown.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Flags> {
        if bits & !Self::KNOWN == 0 { Some(Flags(bits)) } else { None }
    }

    /// Returns whether all flags of `other` are set.
    #[inline]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets. Use it in constants, where `|` is not available.
    #[inline]
    pub const fn union(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns these flags without those of `other`.
    #[inline]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    #[inline]
    fn bitor(self, other: Flags) -> Flags {
        self.union(other)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Flags::CONTEXT_SWITCH, "CONTEXT_SWITCH"),
            (Flags::MODE, "MODE"),
            (Flags::DRAINING, "DRAINING"),
            (Flags::RENDEZVOUS, "RENDEZVOUS"),
            (Flags::MORE, "MORE"),
        ];
        let set = names.into_iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| name);
        formatter.write_str("Flags(")?;
        for (index, name) in set.enumerate() {
            formatter.write_str(if index == 0 { "" } else { " | " })?;
            formatter.write_str(name)?;
        }
        formatter.write_str(")")
    }
}

/// The time of a request whose deadline passed before it was sent. The server must refuse it.
pub const TIME_OVER: u32 = u32::MAX;

/// The decoded header of a message. Fields that a kind does not use must be 0; [`Header::decode`] enforces
/// this.
// The fields have the same order in memory as on the wire, so that encoding and decoding move whole words.
// With the compiler's field order, parsing a line took more than twice as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Header {
    /// Kind of the message.
    pub kind: Kind,
    /// Flags of the message.
    pub flags: Flags,
    /// Function id of a request, status number of a response, number of entries of a batch or release list;
    /// else 0.
    pub code: u16,
    /// Length in bytes of the payload, or of the entries of a batch with their metadata and padding.
    pub length: u32,
    /// Consumer position of the sender in the ring of the other direction: a wrapping count of lines.
    pub head: u32,
    /// On lanes with credits (FLOCK section 5.1): in requests the median number of calls of the messages since the
    /// client last asked for credits, 0 if it does not ask now; in responses the bit 0x80 grants them. On lanes
    /// whose results are fetched or written back, the low bits of responses are the response mode that the
    /// server requests: 0 the client's choice, 1 written back, 2 fetched whole, 3 fetched with more retries. On
    /// lanes whose leases end, which have no credits, responses carry the number of the zone.
    pub credits: u8,
    /// On lanes whose leases end, responses carry the low 7 bits of the lease's epoch, and bit 7 set; else 0.
    pub epoch: u8,
    /// Thread slot of the caller. Only in single messages.
    pub thread: u16,
    /// Call id. Only in single messages and in messages that transfer a call's large payload.
    pub call: u32,
    /// Requests: microseconds until the deadline, 0 for none, [`TIME_OVER`] if the deadline has passed; a
    /// batch has the time of all entries without a time of their own. Responses: server processing time in
    /// nanoseconds, saturating; a batch has the sum. [`Kind::Filled`]: bytes of the payload. Other kinds: 0.
    pub time: u32,
}

impl Header {
    /// Creates a header of `kind` with all other fields 0.
    #[inline]
    pub const fn new(kind: Kind) -> Header {
        Header {
            kind,
            flags: Flags::NONE,
            code: 0,
            length: 0,
            head: 0,
            credits: 0,
            epoch: 0,
            thread: 0,
            call: 0,
            time: 0,
        }
    }

    /// Encodes the header as sent on the wire.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let [word0, word1, word2] = self.words();
        let mut out = [0; HEADER_BYTES];
        bytes::put::<0, 8, HEADER_BYTES>(&mut out, word0.to_le_bytes());
        bytes::put::<8, 8, HEADER_BYTES>(&mut out, word1.to_le_bytes());
        bytes::put::<16, 8, HEADER_BYTES>(&mut out, word2.to_le_bytes());
        out
    }

    /// Returns the header as little-endian words. Three wide stores replace eleven narrow ones, because a
    /// wide load right after narrow stores to the same line stalls.
    #[inline]
    pub(crate) const fn words(&self) -> [u64; 3] {
        [
            self.kind as u64
                | (self.flags.bits() as u64) << 8
                | (self.code as u64) << 16
                | (self.length as u64) << 32,
            self.head as u64
                | (self.credits as u64) << 32
                | (self.epoch as u64) << 40
                | (self.thread as u64) << 48,
            self.call as u64 | (self.time as u64) << 32,
        ]
    }

    /// Decodes a header from private memory and checks everything that does not need the rest of the
    /// message: known kind, flags and status, zero in unused fields, consistent count and length.
    ///
    /// # Errors
    /// The [`Reject`] of the first violation.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Reject> {
        let words = Header::words_of(bytes);
        let [word0, ..] = words;
        let Some(kind) = Kind::from_wire(word0 as u8) else { return Err(Reject::UnknownKind(word0 as u8)) };
        let Some(flags) = Flags::from_bits((word0 >> 8) as u8) else {
            return Err(Reject::UnknownFlags((word0 >> 8) as u8));
        };
        let header = Header::of_words(kind, flags, words);
        header.check()?;
        Ok(header)
    }

    /// As [`decode`](Header::decode), for a header whose first word was checked by [`Kind::is_plain`].
    #[inline(always)]
    pub(crate) fn of_plain(bytes: &[u8; HEADER_BYTES]) -> Header {
        let words = Header::words_of(bytes);
        let kind = if words[0] as u8 == Kind::Request as u8 { Kind::Request } else { Kind::Response };
        Header::of_words(kind, Flags((words[0] >> 8) as u8 & Flags::KNOWN), words)
    }

    #[inline(always)]
    fn words_of(bytes: &[u8; HEADER_BYTES]) -> [u64; 3] {
        [
            bytes::u64_at::<0, HEADER_BYTES>(bytes),
            bytes::u64_at::<8, HEADER_BYTES>(bytes),
            bytes::u64_at::<16, HEADER_BYTES>(bytes),
        ]
    }

    /// Returns the header of these little-endian words, with the kind and the flags of the first one.
    #[inline(always)]
    const fn of_words(kind: Kind, flags: Flags, [word0, word1, word2]: [u64; 3]) -> Header {
        Header {
            kind,
            flags,
            code: (word0 >> 16) as u16,
            length: (word0 >> 32) as u32,
            head: word1 as u32,
            credits: (word1 >> 32) as u8,
            epoch: (word1 >> 40) as u8,
            thread: (word1 >> 48) as u16,
            call: word2 as u32,
            time: (word2 >> 32) as u32,
        }
    }

    /// Checks the rules of the header's kind.
    #[inline]
    fn check(&self) -> Result<(), Reject> {
        if self.kind.is_single() {
            if self.flags.contains(Flags::RENDEZVOUS) && self.length != Descriptor::BYTES as u32 {
                return Err(Reject::DescriptorLength(self.length));
            }
            if self.kind == Kind::Response && !Status::is_known(self.code) {
                return Err(Reject::UnknownStatus(self.code));
            }
            return Ok(());
        }
        self.check_others()
    }

    #[inline]
    fn check_others(&self) -> Result<(), Reject> {
        let reserved =
            |field, value: u32| if value == 0 { Ok(()) } else { Err(Reject::ReservedField(field)) };
        reserved("rendezvous flag", (self.flags.bits() & Flags::RENDEZVOUS.bits()).into())?;
        reserved("thread", self.thread.into())?;
        if !self.kind.is_transfer() {
            reserved("call", self.call)?;
        }
        let (count, length) = (self.code, self.length);
        match self.kind {
            Kind::RequestBatch | Kind::ResponseBatch => {
                if count == 0 {
                    return Err(Reject::EmptyBatch);
                }
                let least = u64::from(count) * ENTRY_META_BYTES as u64;
                if u64::from(length) < least || !(length as usize).is_multiple_of(ENTRY_ALIGN) {
                    return Err(Reject::BodyLength { count, length });
                }
            }
            Kind::Release => {
                reserved("time", self.time)?;
                if count == 0 {
                    return Err(Reject::EmptyBatch);
                }
                if length != u32::from(count) * 4 {
                    return Err(Reject::BodyLength { count, length });
                }
            }
            Kind::ClearToSend | Kind::Fragment => {
                reserved("time", self.time)?;
                reserved("code", count.into())?;
                if self.kind == Kind::ClearToSend && length != Descriptor::BYTES as u32 {
                    return Err(Reject::DescriptorLength(length));
                }
                if length == 0 {
                    return Err(Reject::BodyLength { count, length });
                }
            }
            Kind::Filled => {
                reserved("code", count.into())?;
                reserved("length", length)?;
            }
            Kind::Credit => {
                reserved("time", self.time)?;
                reserved("length", length)?;
            }
            Kind::Request | Kind::Response | Kind::Skip | Kind::Drain | Kind::Written => {
                reserved("time", self.time)?;
                reserved("code", count.into())?;
                reserved("length", length)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(kind: Kind) -> Header {
        Header {
            kind,
            flags: Flags::MODE | Flags::MORE,
            code: 0x0203,
            length: 0x0405_0607,
            head: 0x0809_0a0b,
            credits: 0x0c,
            epoch: 0x0d,
            thread: 0x0e0f,
            call: 0x1011_1213,
            time: 0x1415_1617,
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = full(Kind::Request).encode();
        let expected = [
            1, 0x12, 3, 2, 7, 6, 5, 4, 0xb, 0xa, 9, 8, 0xc, 0xd, 0xf, 0xe, 0x13, 0x12, 0x11, 0x10, 0x17,
            0x16, 0x15, 0x14,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(Header::decode(&bytes), Ok(full(Kind::Request)));
    }

    #[test]
    fn all_256_kinds_and_flags() {
        for number in 0..=u8::MAX {
            let mut bytes = Header::new(Kind::Request).encode();
            bytes[0] = number;
            match Header::decode(&bytes) {
                Ok(header) => assert_eq!(header.kind as u8, number),
                Err(Reject::EmptyBatch) => assert!([3, 4, 7].contains(&number)),
                Err(Reject::DescriptorLength(0)) => assert_eq!(number, 9),
                Err(Reject::BodyLength { count: 0, length: 0 }) => assert_eq!(number, 11),
                Err(reject) => {
                    assert_eq!(reject, Reject::UnknownKind(number));
                    assert!(number == 0 || number > 11);
                }
            }
            let mut bytes = Header::new(Kind::Credit).encode();
            bytes[1] = number;
            match Header::decode(&bytes) {
                Ok(header) => assert_eq!(header.flags.bits(), number),
                Err(Reject::ReservedField("rendezvous flag")) => assert!(number & 8 != 0 && number < 32),
                Err(reject) => {
                    assert_eq!(reject, Reject::UnknownFlags(number));
                    assert!(number >= 32);
                }
            }
        }
    }

    #[test]
    fn rules_of_singles() {
        let response = Header { code: 11, ..Header::new(Kind::Response) };
        assert_eq!(Header::decode(&response.encode()), Err(Reject::UnknownStatus(11)));
        // The same number is a valid function id.
        let request = Header { code: 11, ..Header::new(Kind::Request) };
        assert_eq!(Header::decode(&request.encode()), Ok(request));
        let mut rendezvous = Header { flags: Flags::RENDEZVOUS, length: 24, ..Header::new(Kind::Request) };
        assert_eq!(Header::decode(&rendezvous.encode()), Ok(rendezvous));
        rendezvous.length = 32;
        assert_eq!(Header::decode(&rendezvous.encode()), Err(Reject::DescriptorLength(32)));
    }

    #[test]
    fn rules_of_batches() {
        for kind in [Kind::RequestBatch, Kind::ResponseBatch] {
            let good = Header { code: 2, length: 40, time: 9, credits: 1, ..Header::new(kind) };
            assert_eq!(Header::decode(&good.encode()), Ok(good));
            let wrong = |header: Header| Header::decode(&header.encode()).unwrap_err();
            assert_eq!(wrong(Header { code: 0, ..good }), Reject::EmptyBatch);
            assert_eq!(wrong(Header { length: 24, ..good }), Reject::BodyLength { count: 2, length: 24 });
            assert_eq!(wrong(Header { length: 41, ..good }), Reject::BodyLength { count: 2, length: 41 });
            assert_eq!(wrong(Header { call: 1, ..good }), Reject::ReservedField("call"));
            assert_eq!(wrong(Header { thread: 1, ..good }), Reject::ReservedField("thread"));
            let flagged = Header { flags: Flags::RENDEZVOUS, ..good };
            assert_eq!(wrong(flagged), Reject::ReservedField("rendezvous flag"));
        }
    }

    #[test]
    fn rules_of_control_messages() {
        let wrong = |header: Header| Header::decode(&header.encode()).unwrap_err();
        for kind in [Kind::Skip, Kind::Credit, Kind::Drain] {
            let good = Header { head: 7, credits: 3, epoch: 2, ..Header::new(kind) };
            assert_eq!(Header::decode(&good.encode()), Ok(good));
            match kind {
                Kind::Credit => assert!(Header::decode(&Header { code: 1, ..good }.encode()).is_ok()),
                _ => assert_eq!(wrong(Header { code: 1, ..good }), Reject::ReservedField("code")),
            }
            assert_eq!(wrong(Header { length: 1, ..good }), Reject::ReservedField("length"));
            assert_eq!(wrong(Header { time: 1, ..good }), Reject::ReservedField("time"));
        }
        let release = Header { code: 3, length: 12, ..Header::new(Kind::Release) };
        assert_eq!(Header::decode(&release.encode()), Ok(release));
        assert_eq!(wrong(Header { length: 13, ..release }), Reject::BodyLength { count: 3, length: 13 });
        assert_eq!(wrong(Header { code: 0, length: 0, ..release }), Reject::EmptyBatch);
    }

    #[test]
    fn rules_of_transfers() {
        let wrong = |header: Header| Header::decode(&header.encode()).unwrap_err();
        for (kind, length) in [(Kind::ClearToSend, 24), (Kind::Written, 0), (Kind::Fragment, 4096)] {
            let good = Header { call: 5, head: 7, length, ..Header::new(kind) };
            assert_eq!(Header::decode(&good.encode()), Ok(good));
            assert_eq!(wrong(Header { code: 1, ..good }), Reject::ReservedField("code"));
            assert_eq!(wrong(Header { thread: 1, ..good }), Reject::ReservedField("thread"));
            assert_eq!(wrong(Header { time: 1, ..good }), Reject::ReservedField("time"));
            let flagged = Header { flags: Flags::RENDEZVOUS, ..good };
            assert_eq!(wrong(flagged), Reject::ReservedField("rendezvous flag"));
        }
        let of = |kind, length| Header { length, ..Header::new(kind) };
        assert_eq!(wrong(of(Kind::ClearToSend, 23)), Reject::DescriptorLength(23));
        assert_eq!(wrong(of(Kind::Written, 1)), Reject::ReservedField("length"));
        assert_eq!(wrong(of(Kind::Fragment, 0)), Reject::BodyLength { count: 0, length: 0 });
        let filled = Header { call: 5, head: 7, time: 4096, ..Header::new(Kind::Filled) };
        assert_eq!(Header::decode(&filled.encode()), Ok(filled));
        assert_eq!(wrong(Header { code: 1, ..filled }), Reject::ReservedField("code"));
        assert_eq!(wrong(Header { length: 1, ..filled }), Reject::ReservedField("length"));
    }

    #[test]
    fn flags_print_their_names() {
        assert_eq!(format!("{:?}", Flags::NONE), "Flags()");
        assert_eq!(format!("{:?}", Flags::MODE | Flags::MORE), "Flags(MODE | MORE)");
    }
}
