//! What writers do with large payloads: copy them, or leave them where they lie and tell of them.

use pilota::thrift::{TOutputProtocol, ThriftException};
use pilota::{Bytes, FastStr};

/// The shortest payload that is lent: below, copying is cheaper than one more piece.
pub(crate) const LENT: usize = 16 << 10;

/// A writer of what lives for `'s`, which need not copy it.
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
    /// The caller's, who waits.
    Borrowed(&'s [u8]),
    /// Of a `binary` that others have, too.
    Shared(Bytes),
    /// Of such a `string`.
    Text(FastStr),
}

impl Payload<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Payload::Borrowed(bytes) => bytes,
            Payload::Shared(bytes) => bytes,
            Payload::Text(text) => text.as_bytes(),
        }
    }

    /// Copied, if it was only borrowed.
    pub(crate) fn into_owned(self) -> Payload<'static> {
        match self {
            Payload::Borrowed(bytes) => Payload::Shared(Bytes::copy_from_slice(bytes)),
            Payload::Shared(bytes) => Payload::Shared(bytes),
            Payload::Text(text) => Payload::Text(text),
        }
    }
}

/// What a writer of the binary encoding does with large payloads.
pub trait Large {
    /// Whether it takes them.
    const LENDS: bool;

    /// Takes one, with the bytes of the writer's place that were left then.
    fn take(&mut self, left: usize, payload: Payload<'static>);
}

/// All payloads are copied.
#[derive(Clone, Copy, Debug)]
pub struct Copying;

impl Large for Copying {
    const LENDS: bool = false;

    fn take(&mut self, _: usize, _: Payload<'static>) {}
}

/// Large payloads are put into a list.
#[derive(Debug)]
pub struct Lending<'p, 's>(pub(super) &'p mut Vec<(usize, Payload<'s>)>);

impl Large for Lending<'_, '_> {
    const LENDS: bool = true;

    fn take(&mut self, left: usize, payload: Payload<'static>) {
        self.0.push((left, payload));
    }
}
