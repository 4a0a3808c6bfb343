//! The read position in a message, and the limits common to all encodings.

use super::BinaryInput;
use crate::error::CallError;
use ascii::AsAsciiStr;
use pilota::FastStr;
use pilota::thrift::{ProtocolExceptionKind, TInputProtocol, ThriftException, new_protocol_exception};
use std::fmt::Display;

/// Limits on the resources that a message may demand of its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The nesting depth of structs and containers.
    pub max_depth: u16,
    /// The number of structs in a message. A struct may take one byte in the message and hundreds of bytes in
    /// memory.
    pub max_structs: u32,
}

impl Limits {
    /// Depth 64 and 2^20 structs.
    pub const DEFAULT: Limits = Limits { max_depth: 64, max_structs: 1 << 20 };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

/// A reader that can also lend `binary` and `string` values from the message.
pub trait Input<'a>: TInputProtocol {
    /// Reads a `binary`, borrowed from the message.
    fn read_slice(&mut self) -> Result<&'a [u8], ThriftException>;

    /// Returns the reader itself if it reads values without field headers (the bare
    /// form, [`BinaryInput::bare`]).
    #[inline]
    fn as_bare(&mut self) -> Option<&mut BinaryInput<'a>> {
        None
    }

    /// Reads a `string`, borrowed from the message.
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

/// The longest text that is first checked for being ASCII. That check is faster than UTF-8 validation for
/// short texts, but not for long ones.
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

/// Copies a text.
///
/// A text too long to be stored inline takes one allocation, where [`FastStr::new`] needs two: for the bytes
/// and for the reference count. Not inlined, so that the value is built in its final place: moving it just
/// after would stall on the stores that wrote it.
#[inline(never)]
pub fn owned_str(text: &str) -> FastStr {
    made(text)
}

#[inline(always)]
fn made(text: &str) -> FastStr {
    /// The longest text that a [`FastStr`] stores inline, in bytes.
    const INLINE: usize = 30;
    if text.len() <= INLINE { FastStr::new(text) } else { FastStr::from_arc_str(text.into()) }
}

/// Reads the rest of a message as the string that a call returns. Builds it in the caller's result, as
/// [`owned_str`] does.
#[inline(never)]
pub fn read_owned_rest<E: From<CallError>>(input: &mut BinaryInput<'_>) -> Result<FastStr, E> {
    match input.read_rest_str() {
        Ok(text) => Ok(made(text)),
        Err(error) => Err(CallError::Decode(error).into()),
    }
}

/// The unread rest of a message, and the current nesting depth.
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

    /// Enters a struct: counts it and checks the depth.
    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), ThriftException> {
        if self.depth >= self.limits.max_depth {
            return Err(self.too_deep());
        }
        self.count()?;
        self.depth += 1;
        Ok(())
    }

    /// Counts a struct and checks their number.
    #[inline]
    pub(super) fn count(&mut self) -> Result<(), ThriftException> {
        if self.structs >= self.limits.max_structs {
            return Err(self.too_many());
        }
        self.structs += 1;
        Ok(())
    }

    /// Leaves a struct.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Returns how many more nesting levels the limit allows.
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

    /// Checks that a container of `size` elements of at least `least` bytes each fits in the rest of the
    /// message.
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
