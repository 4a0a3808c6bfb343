//! The bytes of a message as they are read, and the limits that hold for all encodings.

use super::BinaryInput;
use crate::error::CallError;
use ascii::AsAsciiStr;
use pilota::FastStr;
use pilota::thrift::{ProtocolExceptionKind, TInputProtocol, ThriftException, new_protocol_exception};
use std::fmt::Display;

/// What a message may demand of its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Structs and containers within each other.
    pub max_depth: u16,
    /// Structs in a message. One may take hundreds of bytes in memory and a single one in the message.
    pub max_structs: u32,
}

impl Limits {
    /// Depth 64 and a million structs.
    pub const DEFAULT: Limits = Limits { max_depth: 64, max_structs: 1 << 20 };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

/// A reader that can also show binary and text where they lie.
pub trait Input<'a>: TInputProtocol {
    /// A `binary`, borrowed from the message.
    fn read_slice(&mut self) -> Result<&'a [u8], ThriftException>;

    /// The reader itself, if what it reads are values without their fields' headers (the bare form of
    /// [`Form`](crate::Form)).
    #[inline]
    fn as_bare(&mut self) -> Option<&mut BinaryInput<'a>> {
        None
    }

    /// A `string`, borrowed from the message.
    #[inline]
    fn read_str(&mut self) -> Result<&'a str, ThriftException> {
        text(self.read_slice()?)
    }
}

#[cold]
pub(super) fn invalid(message: impl Into<String>) -> ThriftException {
    new_protocol_exception(ProtocolExceptionKind::InvalidData, message.into())
}

#[cold]
#[inline(never)]
fn cut_short(wanted: usize, left: usize) -> ThriftException {
    invalid(format!("the message ends too early: {wanted} more bytes are wanted and {left} are there"))
}

/// The longest text that is taken for ASCII first: short ones are looked at twice as fast so, wherever they lie, and long ones not.
const SHORT: usize = 128;

#[inline]
pub(super) fn text(bytes: &[u8]) -> Result<&str, ThriftException> {
    if bytes.len() <= SHORT
        && let Ok(text) = bytes.as_ascii_str()
    {
        return Ok(text.as_str());
    }
    std::str::from_utf8(bytes).map_err(no_text)
}

#[cold]
pub(super) fn no_text(error: impl Display) -> ThriftException {
    invalid(format!("a string is not UTF-8: {error}"))
}

/// A text of a message's own. What does not fit the value itself is allocated once: [`FastStr::new`] would do so twice, for the
/// bytes and for what counts who shares them. Not inlined, so that it is made where it goes: to move it just after waits for the
/// stores that made it.
#[inline(never)]
pub fn owned_str(text: &str) -> FastStr {
    made(text)
}

#[inline(always)]
fn made(text: &str) -> FastStr {
    /// What fits the value itself, and is copied there.
    const INLINE: usize = 30;
    if text.len() <= INLINE { FastStr::new(text) } else { FastStr::from_arc_str(text.into()) }
}

/// What is left of a message as the text that a call gives back: made in the result that its caller gets, as [`owned_str`].
#[inline(never)]
pub fn read_owned_rest<E>(input: &mut BinaryInput<'_>) -> Result<FastStr, CallError<E>> {
    match input.read_rest_str() {
        Ok(text) => Ok(made(text)),
        Err(error) => Err(CallError::Decode(error)),
    }
}

/// What is left of a message, and how deep in it we are.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    pub(super) rest: &'a [u8],
    depth: u16,
    structs: u32,
    limits: Limits,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], limits: Limits) -> Self {
        Cursor { rest: bytes, depth: 0, structs: 0, limits }
    }

    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], ThriftException> {
        match self.rest.split_at_checked(length) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(cut_short(length, self.rest.len())),
        }
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ThriftException> {
        match self.rest.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(cut_short(N, self.rest.len())),
        }
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, ThriftException> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Into a struct.
    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), ThriftException> {
        if self.depth >= self.limits.max_depth {
            return Err(self.too_deep());
        }
        self.count()?;
        self.depth += 1;
        Ok(())
    }

    /// Counts a struct.
    #[inline]
    pub(super) fn count(&mut self) -> Result<(), ThriftException> {
        if self.structs >= self.limits.max_structs {
            return Err(self.too_many());
        }
        self.structs += 1;
        Ok(())
    }

    /// Out of a struct.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// How many more levels there may be.
    pub(super) fn levels_left(&self) -> u16 {
        self.limits.max_depth - self.depth
    }

    #[cold]
    pub(super) fn too_deep(&self) -> ThriftException {
        new_protocol_exception(
            ProtocolExceptionKind::DepthLimit,
            format!("structs are nested more than {} deep", self.limits.max_depth),
        )
    }

    #[cold]
    fn too_many(&self) -> ThriftException {
        new_protocol_exception(
            ProtocolExceptionKind::SizeLimit,
            format!("the message has more than {} structs", self.limits.max_structs),
        )
    }

    /// Whether a container of so many elements can be: `least` is the fewest bytes of an element.
    #[inline]
    pub(super) fn container(&self, size: i64, least: usize) -> Result<usize, ThriftException> {
        let fits = usize::try_from(size).ok().filter(|size| *size <= self.rest.len() / least.max(1));
        fits.ok_or_else(|| self.container_refused(size))
    }

    #[cold]
    fn container_refused(&self, size: i64) -> ThriftException {
        let left = self.rest.len();
        let kind =
            if size < 0 { ProtocolExceptionKind::NegativeSize } else { ProtocolExceptionKind::SizeLimit };
        new_protocol_exception(
            kind,
            format!("a container is said to have {size} elements, but only {left} bytes are left"),
        )
    }
}
