//! The bytes of a message as they are read, and the limits that hold for all encodings.

use pilota::thrift::{ProtocolExceptionKind, TInputProtocol, TType, ThriftException, new_protocol_exception};

/// What a message may demand of its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Structs and containers within each other.
    pub max_depth: u16,
    /// Elements of a container of structs or containers. The memory for them is asked for at once, before they have been
    /// read, and an element of one byte may take hundreds there; containers of other things need no such limit, since
    /// their bytes must be present.
    pub max_compound_elements: usize,
}

impl Limits {
    /// Depth 64 and a million compound elements.
    pub const DEFAULT: Limits = Limits { max_depth: 64, max_compound_elements: 1 << 20 };
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

#[inline]
pub(super) fn text(bytes: &[u8]) -> Result<&str, ThriftException> {
    std::str::from_utf8(bytes).map_err(|error| invalid(format!("a string is not UTF-8: {error}")))
}

/// What is left of a message, and how deep in it we are.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    pub(super) rest: &'a [u8],
    depth: u16,
    limits: Limits,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], limits: Limits) -> Self {
        Cursor { rest: bytes, depth: 0, limits }
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
        self.depth += 1;
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

    /// Whether a container of so many elements can be: `least` is the fewest bytes of an element, `compound` whether
    /// elements are structs or containers.
    #[inline]
    pub(super) fn container(&self, size: i64, least: usize, compound: bool) -> Result<usize, ThriftException> {
        let fits = usize::try_from(size).ok().filter(|size| *size <= self.rest.len() / least.max(1));
        match fits {
            Some(size) if !compound || size <= self.limits.max_compound_elements => Ok(size),
            _ => Err(self.container_refused(size, compound)),
        }
    }

    #[cold]
    fn container_refused(&self, size: i64, compound: bool) -> ThriftException {
        let (left, most) = (self.rest.len(), self.limits.max_compound_elements);
        let kind = if size < 0 { ProtocolExceptionKind::NegativeSize } else { ProtocolExceptionKind::SizeLimit };
        new_protocol_exception(
            kind,
            if compound && size > most as i64 {
                format!("a container is said to have {size} structs or containers; at most {most} are taken")
            } else {
                format!("a container is said to have {size} elements, but only {left} bytes are left")
            },
        )
    }
}

/// Whether a type's values have structs or containers in them, so that their memory is not bounded by their bytes.
#[inline]
pub(super) fn is_compound(kind: TType) -> bool {
    matches!(kind, TType::Struct | TType::Map | TType::Set | TType::List)
}
