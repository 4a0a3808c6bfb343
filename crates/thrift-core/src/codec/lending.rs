//! Payload handling of writers: copy large payloads, or lend them so that they are sent from their place.

use pilota::thrift::{TOutputProtocol, ThriftException};
use pilota::{Bytes, FastStr};

/// The shortest payload that is lent, in bytes. Copying a shorter one is cheaper than sending one more
/// segment.
pub const LENT: usize = 16 << 10;

/// A writer of values that live for `'s`. It may refer to them instead of copying them.
pub trait Output<'s>: TOutputProtocol {
    /// Writes a `binary`.
    #[inline]
    fn write_slice(&mut self, bytes: &'s [u8]) -> Result<(), ThriftException> {
        self.write_bytes_vec(bytes)
    }

    /// Writes a `string`.
    #[inline]
    fn write_text(&mut self, text: &'s str) -> Result<(), ThriftException> {
        self.write_slice(text.as_bytes())
    }
}

/// A payload that is sent from where it lies.
#[derive(Clone, Debug)]
pub enum Payload<'s> {
    /// Borrowed from the caller, which waits until it is sent.
    Borrowed(&'s [u8]),
    /// A reference-counted `binary`.
    Shared(Bytes),
    /// A reference-counted `string`.
    Text(FastStr),
}

impl Payload<'_> {
    /// Returns the payload.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::Borrowed(bytes) => bytes,
            Payload::Shared(bytes) => bytes,
            Payload::Text(text) => text.as_bytes(),
        }
    }

    /// Copies a borrowed payload; keeps a shared one.
    pub fn into_owned(self) -> Payload<'static> {
        match self {
            Payload::Borrowed(bytes) => Payload::Shared(Bytes::copy_from_slice(bytes)),
            Payload::Shared(bytes) => Payload::Shared(bytes),
            Payload::Text(text) => Payload::Text(text),
        }
    }
}

/// The handling of large payloads by a writer of the binary encoding.
pub trait Large {
    /// Whether large payloads are lent.
    const LENDS: bool;

    /// Takes a payload, with the number of unwritten bytes in the writer's buffer at that point.
    fn take(&mut self, left: usize, payload: Payload<'static>);
}

/// Copies all payloads.
#[derive(Clone, Copy, Debug)]
pub struct Copying;

impl Large for Copying {
    const LENDS: bool = false;

    fn take(&mut self, _: usize, _: Payload<'static>) {}
}

/// Collects large payloads in a list.
#[derive(Debug)]
pub struct Lending<'p, 's>(pub(super) &'p mut Vec<(usize, Payload<'s>)>);

impl Large for Lending<'_, '_> {
    const LENDS: bool = true;

    fn take(&mut self, left: usize, payload: Payload<'static>) {
        self.0.push((left, payload));
    }
}
