//! Frames of the control connection: the encoding of packets on the socket. Pure. Decoding any bytes gives a
//! frame or an error.

use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
use dunlin_fabric::{Access, RegionKey};
use thiserror::Error;

/// Increased when the meaning of frames, rings or doorbells changes.
pub(crate) const VERSION: u16 = 2;

const MAGIC: [u8; 8] = *b"DunlinSM";

/// The longest frame: a control message and its kind.
pub(crate) const MAX_FRAME: usize = MAX_CONTROL_MESSAGE + 1;
/// The size of a buffer for received frames, in bytes: one more than the longest, so that a longer one is detected.
pub(crate) const READ_BUFFER: usize = MAX_FRAME + 1;

/// The longest head of any frame.
pub(crate) const MAX_HEAD: usize = 64;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// The first frame in each direction.
    Hello {
        /// The sender's version.
        version: u16,
        /// A random secret; the tags of the sender's inbound rings are derived from it.
        secret: [u64; 2],
    },
    /// Sent instead of a hello: the sender refuses the connection.
    Refused(Refusal),
    /// A message of the user.
    Message(&'a [u8]),
    /// A grant of memory, sent with a descriptor.
    Grant {
        /// The region's name on this link.
        key: RegionKey,
        /// Its length in bytes.
        length: u64,
        /// The access granted.
        access: Access,
        /// The access that it was registered for, which determines the seals.
        registered: Access,
        /// Whether it is a ring or a doorbell, which no work request of a user can access.
        internal: bool,
    },
    /// The end of a grant.
    Revoke(RegionKey),
    /// The sender's queue pair is gone or broken, which breaks the receiver's queue pair of this name.
    QueuePairClosed(QueuePairName),
    /// A request for a ring for datagrams to a queue pair of the receiver.
    DatagramRequest {
        /// The number that the reply repeats.
        call: u64,
        /// The receiver's queue pair.
        queue_pair: QueuePairName,
    },
    /// The reply. The ring was granted before; if none is available, both keys are zero.
    DatagramReply {
        /// The number of the request.
        call: u64,
        /// The key of the ring.
        ring: RegionKey,
        /// The key of the doorbell of the queue pair's domain.
        doorbell: RegionKey,
        /// Whether a ring was granted.
        granted: bool,
    },
}

/// The reason why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The listener does not admit this user.
    User(u32),
    /// The versions differ; the value is the sender's version.
    Version(u16),
    /// Too many connections wait to be accepted.
    Full,
}

/// A queue pair's name within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueuePairName {
    /// The number of its domain.
    pub(crate) domain: u32,
    /// Its id in the domain.
    pub(crate) queue_pair: u32,
}

/// The reason why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum FrameError {
    /// The packet is empty or of unknown kind.
    #[error("a control frame of unknown kind {0}")]
    Kind(u8),
    /// The length does not fit the kind.
    #[error("a control frame of kind {0} has the wrong length")]
    Length(u8),
    /// A field has an invalid value.
    #[error("a control frame of kind {0} holds a value without meaning")]
    Value(u8),
    /// The sender does not use this protocol.
    #[error("the other side does not speak this protocol")]
    Magic,
}

const HELLO: u8 = 1;
const REFUSED: u8 = 2;
const MESSAGE: u8 = 3;
const GRANT: u8 = 4;
const REVOKE: u8 = 5;
const CLOSED: u8 = 6;
const REQUEST: u8 = 7;
const REPLY: u8 = 8;

/// The bytes of a frame before its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; MAX_HEAD],
    length: usize,
}

impl Head {
    fn new(kind: u8) -> Self {
        let mut head = Head { bytes: [0; MAX_HEAD], length: 0 };
        head.put(&[kind]);
        head
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Reads fields from the front and checks every length.
struct Reader<'a> {
    kind: u8,
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (first, rest) = self.left.split_first_chunk::<N>().ok_or(FrameError::Length(self.kind))?;
        self.left = rest;
        Ok(*first)
    }
    fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(self.array::<1>()?[0])
    }
    fn flag(&mut self) -> Result<bool, FrameError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Value(self.kind)),
        }
    }
    fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn access(&mut self) -> Result<Access, FrameError> {
        let kind = self.kind;
        Access::from_bits(self.u8()?).ok_or(FrameError::Value(kind))
    }
    fn name(&mut self) -> Result<QueuePairName, FrameError> {
        Ok(QueuePairName { domain: self.u32()?, queue_pair: self.u32()? })
    }
    fn end(self) -> Result<(), FrameError> {
        if self.left.is_empty() { Ok(()) } else { Err(FrameError::Length(self.kind)) }
    }
}

impl<'a> Frame<'a> {
    /// Encodes the frame as a head and a body.
    pub(crate) fn encode(&self) -> (Head, &'a [u8]) {
        let mut body: &[u8] = &[];
        let head = match self {
            Frame::Hello { version, secret } => {
                let mut head = Head::new(HELLO);
                head.put(&MAGIC);
                head.put(&version.to_le_bytes());
                head.put(&secret[0].to_le_bytes());
                head.put(&secret[1].to_le_bytes());
                head
            }
            Frame::Refused(refusal) => {
                let mut head = Head::new(REFUSED);
                head.put(&MAGIC);
                let (why, value) = match refusal {
                    Refusal::User(user) => (1, *user),
                    Refusal::Version(version) => (2, u32::from(*version)),
                    Refusal::Full => (3, 0),
                };
                head.put(&[why]);
                head.put(&value.to_le_bytes());
                head
            }
            Frame::Message(message) => {
                body = message;
                Head::new(MESSAGE)
            }
            Frame::Grant { key, length, access, registered, internal } => {
                let mut head = Head::new(GRANT);
                head.put(&key.0.to_le_bytes());
                head.put(&length.to_le_bytes());
                head.put(&[access.bits(), registered.bits(), u8::from(*internal)]);
                head
            }
            Frame::Revoke(key) => {
                let mut head = Head::new(REVOKE);
                head.put(&key.0.to_le_bytes());
                head
            }
            Frame::QueuePairClosed(name) => {
                let mut head = Head::new(CLOSED);
                head.put(&name.domain.to_le_bytes());
                head.put(&name.queue_pair.to_le_bytes());
                head
            }
            Frame::DatagramRequest { call, queue_pair } => {
                let mut head = Head::new(REQUEST);
                head.put(&call.to_le_bytes());
                head.put(&queue_pair.domain.to_le_bytes());
                head.put(&queue_pair.queue_pair.to_le_bytes());
                head
            }
            Frame::DatagramReply { call, ring, doorbell, granted } => {
                let mut head = Head::new(REPLY);
                head.put(&call.to_le_bytes());
                head.put(&ring.0.to_le_bytes());
                head.put(&doorbell.0.to_le_bytes());
                head.put(&[u8::from(*granted)]);
                head
            }
        };
        (head, body)
    }

    /// Decodes one packet.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let Some((&kind, left)) = bytes.split_first() else { return Err(FrameError::Kind(0)) };
        let mut reader = Reader { kind, left };
        let frame = match kind {
            HELLO => {
                if reader.array()? != MAGIC {
                    return Err(FrameError::Magic);
                }
                let version = reader.u16()?;
                if version != VERSION {
                    // The rest has another version's format.
                    return Ok(Frame::Hello { version, secret: [0; 2] });
                }
                Frame::Hello { version, secret: [reader.u64()?, reader.u64()?] }
            }
            REFUSED => {
                if reader.array()? != MAGIC {
                    return Err(FrameError::Magic);
                }
                let (why, value) = (reader.u8()?, reader.u32()?);
                Frame::Refused(match why {
                    1 => Refusal::User(value),
                    2 => Refusal::Version(u16::try_from(value).map_err(|_| FrameError::Value(kind))?),
                    3 => Refusal::Full,
                    _ => return Err(FrameError::Value(kind)),
                })
            }
            MESSAGE => {
                if left.len() > MAX_CONTROL_MESSAGE {
                    return Err(FrameError::Length(kind));
                }
                return Ok(Frame::Message(left));
            }
            GRANT => Frame::Grant {
                key: RegionKey(reader.u64()?),
                length: reader.u64()?,
                access: reader.access()?,
                registered: reader.access()?,
                internal: reader.flag()?,
            },
            REVOKE => Frame::Revoke(RegionKey(reader.u64()?)),
            CLOSED => Frame::QueuePairClosed(reader.name()?),
            REQUEST => Frame::DatagramRequest { call: reader.u64()?, queue_pair: reader.name()? },
            REPLY => Frame::DatagramReply {
                call: reader.u64()?,
                ring: RegionKey(reader.u64()?),
                doorbell: RegionKey(reader.u64()?),
                granted: reader.flag()?,
            },
            other => return Err(FrameError::Kind(other)),
        };
        reader.end()?;
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
        let (head, body) = frame.encode();
        [head.as_slice(), body].concat()
    }

    #[test]
    fn frames_come_back_and_cut_ones_are_refused() {
        let name = QueuePairName { domain: 3, queue_pair: 9 };
        for frame in [
            Frame::Hello { version: VERSION, secret: [1, 2] },
            Frame::Refused(Refusal::User(1000)),
            Frame::Refused(Refusal::Version(7)),
            Frame::Refused(Refusal::Full),
            Frame::Grant {
                key: RegionKey(5),
                length: 4096,
                access: Access::READ,
                registered: Access::READ.with(Access::WRITE),
                internal: true,
            },
            Frame::Revoke(RegionKey(5)),
            Frame::QueuePairClosed(name),
            Frame::DatagramRequest { call: 1, queue_pair: name },
            Frame::DatagramReply { call: 1, ring: RegionKey(1), doorbell: RegionKey(2), granted: true },
        ] {
            let bytes = bytes_of(&frame);
            assert_eq!(Frame::decode(&bytes), Ok(frame.clone()));
            for cut in 0..bytes.len() {
                assert!(Frame::decode(&bytes[..cut]).is_err(), "{frame:?} cut to {cut}");
            }
            assert!(Frame::decode(&[&bytes[..], &[0]].concat()).is_err(), "{frame:?} with one byte more");
        }
        assert_eq!(Frame::decode(&bytes_of(&Frame::Message(b"hi"))), Ok(Frame::Message(b"hi")));
    }

    #[test]
    fn another_version_is_known_by_its_number_whatever_follows() {
        let mut bytes = bytes_of(&Frame::Hello { version: 9, secret: [1, 2] });
        bytes.extend_from_slice(b"more that we do not know");
        assert_eq!(Frame::decode(&bytes), Ok(Frame::Hello { version: 9, secret: [0, 0] }));
        assert_eq!(Frame::decode(b"\x01GET / HTTP/1.1"), Err(FrameError::Magic));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0u8..10) {
            let _ = Frame::decode(&bytes);
            let bytes = [&[kind], &bytes[..]].concat();
            if let Ok(frame) = Frame::decode(&bytes)
                && !matches!(frame, Frame::Hello { version, .. } if version != VERSION) {
                    prop_assert_eq!(bytes_of(&frame), bytes);
                }
        }
    }
}
