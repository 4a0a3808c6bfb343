//! Frames of the control connection: the encoding of the bytes on the socket. Pure. Decoding any bytes gives
//! a frame or an error.

use crate::backend::{Greeting, Place};
use dunlin_fabric::verbs::MAX_CONTROL_MESSAGE;
use dunlin_fabric::{Access, RegionKey};
use thiserror::Error;

/// Size of the length field before each frame, in bytes.
pub(crate) const PREFIX: usize = 4;

/// The longest frame without its prefix: a control message and its kind.
pub(crate) const MAX_FRAME: usize = MAX_CONTROL_MESSAGE + 1;

/// Memory of the sender that the receiver may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The region's name on this link.
    pub(crate) key: RegionKey,
    /// Its location.
    pub(crate) place: Place,
    /// The access granted.
    pub(crate) access: Access,
}

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// The first frame in each direction: the sender's fabric and version.
    Hello(Greeting),
    /// Sent instead of a hello: too many connections wait to be accepted.
    Full,
    /// A message of the user.
    Message(&'a [u8]),
    /// A grant of memory.
    Grant(Grant),
    /// The end of a grant.
    Revoke(RegionKey),
    /// The other end of the receiver's queue pair of this name is gone.
    QueuePairClosed(u64),
    /// The other end of the receiver's queue pair of this name accepts messages from now on.
    QueuePairReady(u64),
}

/// The reason why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum FrameError {
    #[error("it sent a frame of {0} bytes")]
    Length(usize),
    #[error("it sent a frame of kind {0}")]
    Kind(u8),
    #[error("it sent a frame of kind {kind} with {length} bytes")]
    Body { kind: u8, length: usize },
    #[error("it granted access {0:#x}")]
    Access(u8),
}

impl<'a> Frame<'a> {
    /// Appends the frame with its prefix.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend([0; PREFIX]);
        match self {
            Frame::Hello(Greeting { magic, version }) => {
                into.push(1);
                into.extend(magic);
                into.extend(version.to_le_bytes());
            }
            Frame::Full => into.push(2),
            Frame::Message(message) => {
                into.push(3);
                into.extend(*message);
            }
            Frame::Grant(grant) => {
                into.push(4);
                into.extend(grant.key.0.to_le_bytes());
                into.extend(grant.place.remote_key.to_le_bytes());
                into.extend(grant.place.address.to_le_bytes());
                into.extend(grant.place.length.to_le_bytes());
                into.push(grant.access.bits());
            }
            Frame::Revoke(key) => {
                into.push(5);
                into.extend(key.0.to_le_bytes());
            }
            Frame::QueuePairClosed(name) => {
                into.push(6);
                into.extend(name.to_le_bytes());
            }
            Frame::QueuePairReady(name) => {
                into.push(7);
                into.extend(name.to_le_bytes());
            }
        }
        let length = (into.len() - start - PREFIX) as u32;
        into[start..start + PREFIX].copy_from_slice(&length.to_le_bytes());
    }

    /// Decodes the first frame; returns it with its length including the prefix, or `None` if it is
    /// incomplete.
    pub(crate) fn split(bytes: &'a [u8]) -> Result<Option<(Frame<'a>, usize)>, FrameError> {
        let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length == 0 || length > MAX_FRAME {
            return Err(FrameError::Length(length));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        Ok(Some((Frame::decode(frame)?, PREFIX + length)))
    }

    fn decode(frame: &'a [u8]) -> Result<Self, FrameError> {
        let Some((kind, body)) = frame.split_first() else { return Err(FrameError::Length(0)) };
        let wrong = FrameError::Body { kind: *kind, length: body.len() };
        let number = |at: usize| body.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        match (kind, body.len()) {
            (1, 10) => {
                let (magic, version) = body.split_first_chunk::<8>().ok_or(wrong)?;
                let version = u16::from_le_bytes(version.try_into().map_err(|_| wrong)?);
                Ok(Frame::Hello(Greeting { magic: *magic, version }))
            }
            (2, 0) => Ok(Frame::Full),
            (3, _) => Ok(Frame::Message(body)),
            (4, 33) => {
                let access = Access::from_bits(body[32]).ok_or(FrameError::Access(body[32]))?;
                let place = Place {
                    remote_key: number(8).ok_or(wrong)?,
                    address: number(16).ok_or(wrong)?,
                    length: number(24).ok_or(wrong)?,
                };
                Ok(Frame::Grant(Grant { key: RegionKey(number(0).ok_or(wrong)?), place, access }))
            }
            (5, 8) => Ok(Frame::Revoke(RegionKey(number(0).ok_or(wrong)?))),
            (6, 8) => Ok(Frame::QueuePairClosed(number(0).ok_or(wrong)?)),
            (7, 8) => Ok(Frame::QueuePairReady(number(0).ok_or(wrong)?)),
            (1..=7, _) => Err(wrong),
            (kind, _) => Err(FrameError::Kind(*kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> Vec<Frame<'static>> {
        let access = Access::READ.with(Access::ATOMIC);
        let place = Place { remote_key: 7 << 40, address: u64::MAX, length: 100 };
        let grant = Grant { key: RegionKey(1 << 40), place, access };
        vec![
            Frame::Hello(Greeting { magic: *b"DunlinXX", version: 3 }),
            Frame::Full,
            Frame::Message(b""),
            Frame::Message(b"hello"),
            Frame::Grant(grant),
            Frame::Revoke(RegionKey(3)),
            Frame::QueuePairClosed(0xff_ffff << 32 | 7),
            Frame::QueuePairReady(0x10),
        ]
    }

    #[test]
    fn what_is_encoded_is_decoded_however_it_arrives() {
        let mut bytes = Vec::new();
        frames().iter().for_each(|frame| frame.encode(&mut bytes));
        let mut rest = &bytes[..];
        for frame in frames() {
            let whole = Frame::split(rest).unwrap().unwrap();
            assert_eq!(whole.0, frame);
            for part in 0..whole.1 {
                assert_eq!(Frame::split(&rest[..part]), Ok(None), "{part} bytes of {frame:?}");
            }
            rest = &rest[whole.1..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn what_is_no_frame_has_a_reason() {
        let of = |body: &[u8]| [&(body.len() as u32).to_le_bytes(), body].concat();
        assert_eq!(Frame::split(&of(b"")), Err(FrameError::Length(0)));
        assert_eq!(Frame::split(&[0xff; 4]), Err(FrameError::Length(u32::MAX as usize)));
        assert_eq!(Frame::split(&of(&[9])), Err(FrameError::Kind(9)));
        assert_eq!(Frame::split(&of(&[6, 1])), Err(FrameError::Body { kind: 6, length: 1 }));
        assert_eq!(Frame::split(&of(b"\x01GET / HTT")), Err(FrameError::Body { kind: 1, length: 9 }));
        let mut grant = vec![4; 34];
        grant[33] = 8;
        assert_eq!(Frame::split(&of(&grant)), Err(FrameError::Access(8)));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some((frame, length))) = Frame::split(&bytes) {
                let mut again = Vec::new();
                frame.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..length]);
            }
        }
    }
}
