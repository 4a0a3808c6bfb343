//! Scanner that finds the end of a struct as its bytes arrive. It delimits messages without a frame.

use super::cursor::invalid;
use super::{binary, compact};
use crate::wire::Encoding;
use pilota::thrift::{ProtocolExceptionKind, TType, ThriftException, new_protocol_exception};

#[cfg(test)]
mod tests;

/// The deepest nesting of structs and containers. Readers count only structs, and their limit is far below.
const MAX_LEVELS: usize = 256;

/// The result of scanning some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// The struct ends after this number of the given bytes.
    Whole(usize),
    /// The struct continues. The first `seen` of the given bytes belong to it; pass the bytes after these
    /// again, with at least `wanted` bytes in all.
    Part {
        /// The number of bytes that need not be passed again.
        seen: usize,
        /// The number of bytes needed beyond `seen`, at least one.
        wanted: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Level {
    Struct,
    Elements { kind: TType, left: usize },
    Entries { key: TType, value: TType, left: usize, key_seen: bool },
}

/// Finds the end of a struct. It examines each byte at most once, skips the content of long binaries, and
/// takes no memory beyond its stack of levels.
#[derive(Debug)]
pub struct Scanner {
    encoding: Encoding,
    levels: Vec<Level>,
    /// The number of bytes to skip.
    skip: usize,
    /// The number of bytes that the struct may still take.
    room: usize,
}

impl Scanner {
    /// Creates a scanner of a struct of at most `limit` bytes.
    pub fn new(encoding: Encoding, limit: usize) -> Self {
        Scanner { encoding, levels: vec![Level::Struct], skip: 0, room: limit }
    }

    /// Starts scanning another struct.
    pub fn restart(&mut self, limit: usize) {
        self.levels.clear();
        self.levels.push(Level::Struct);
        self.skip = 0;
        self.room = limit;
    }

    /// Continues with the bytes that follow those already seen. After an error or the end of a struct, call
    /// [`restart`](Scanner::restart) first.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Scanned, ThriftException> {
        let mut rest = bytes;
        loop {
            let passed = self.skip.min(rest.len());
            rest = &rest[passed..];
            self.skip -= passed;
            self.room -= passed;
            if self.skip > 0 {
                return Ok(Scanned::Part { seen: bytes.len(), wanted: self.skip });
            }
            if self.levels.is_empty() {
                return Ok(Scanned::Whole(bytes.len() - rest.len()));
            }
            let before = rest;
            if self.step(&mut rest)?.is_none() {
                if before.len() >= self.room {
                    return Err(self.too_large());
                }
                let seen = bytes.len() - before.len();
                return Ok(Scanned::Part { seen, wanted: before.len() + 1 });
            }
            let taken = before.len() - rest.len();
            self.room = self.room.checked_sub(taken).ok_or_else(|| self.too_large())?;
            if self.skip > self.room {
                return Err(self.too_large());
            }
        }
    }

    #[cold]
    fn too_large(&self) -> ThriftException {
        new_protocol_exception(ProtocolExceptionKind::SizeLimit, "the message is larger than the limit")
    }

    /// Consumes one header, length or number. Returns `None` if it is cut off.
    fn step(&mut self, rest: &mut &[u8]) -> Result<Option<()>, ThriftException> {
        let Some(top) = self.levels.len().checked_sub(1) else { return Ok(Some(())) };
        match self.levels[top] {
            Level::Struct => match self.field(rest)? {
                None => return Ok(None),
                Some(Field::Stop) => drop(self.levels.pop()),
                Some(Field::Bool) => {}
                Some(Field::Value(kind)) => return self.value(kind, rest),
            },
            Level::Elements { left: 0, .. } | Level::Entries { left: 0, .. } => drop(self.levels.pop()),
            Level::Elements { kind, left } => {
                if let Some(size) = self.fixed(kind) {
                    self.levels.pop();
                    self.skip = size.saturating_mul(left);
                } else if self.value(kind, rest)?.is_some() {
                    self.levels[top] = Level::Elements { kind, left: left - 1 };
                } else {
                    return Ok(None);
                }
            }
            Level::Entries { key, value, left, key_seen } => {
                if self.value(if key_seen { value } else { key }, rest)?.is_none() {
                    return Ok(None);
                }
                let left = if key_seen { left - 1 } else { left };
                self.levels[top] = Level::Entries { key, value, left, key_seen: !key_seen };
            }
        }
        Ok(Some(()))
    }

    fn field(&self, rest: &mut &[u8]) -> Result<Option<Field>, ThriftException> {
        let Some([header]) = array(rest) else { return Ok(None) };
        let kind = match self.encoding {
            Encoding::Binary => TType::try_from(header)?,
            Encoding::Compact => compact::kind(header & 0x0f)?,
        };
        let id = match self.encoding {
            _ if kind == TType::Stop => return Ok(Some(Field::Stop)),
            Encoding::Binary => array::<2>(rest).map(drop),
            Encoding::Compact if header >> 4 == 0 => varint(rest)?.map(drop),
            Encoding::Compact => Some(()),
        };
        Ok(id.map(|()| match kind {
            TType::Bool if self.encoding == Encoding::Compact => Field::Bool,
            kind => Field::Value(kind),
        }))
    }

    /// Returns the size of a value if all values of its type have the same size.
    fn fixed(&self, kind: TType) -> Option<usize> {
        match (kind, self.encoding) {
            (TType::Bool | TType::I8, _) => Some(1),
            (TType::Double, _) => Some(8),
            (TType::Uuid, _) => Some(16),
            (TType::I16, Encoding::Binary) => Some(2),
            (TType::I32, Encoding::Binary) => Some(4),
            (TType::I64, Encoding::Binary) => Some(8),
            _ => None,
        }
    }

    /// Consumes a value, or the header that describes the rest of it. A bool in a compact field header does
    /// not come here.
    fn value(&mut self, kind: TType, rest: &mut &[u8]) -> Result<Option<()>, ThriftException> {
        if let Some(size) = self.fixed(kind) {
            self.skip = size;
            return Ok(Some(()));
        }
        Ok(match kind {
            TType::I16 | TType::I32 | TType::I64 => varint(rest)?.map(drop),
            TType::Binary => match self.length(rest)? {
                Some(length) if length > self.room => return Err(self.too_large()),
                length => length.map(|length| self.skip = length),
            },
            TType::Struct => Some(self.enter(Level::Struct)?),
            TType::List | TType::Set => match self.sequence(rest)? {
                Some((_, 0)) => Some(()),
                Some((kind, left)) => Some(self.enter(Level::Elements { kind, left })?),
                None => None,
            },
            TType::Map => match self.map(rest)? {
                Some((_, _, 0)) => Some(()),
                Some((key, value, left)) => {
                    Some(self.enter(Level::Entries { key, value, left, key_seen: false })?)
                }
                None => None,
            },
            _ => return Err(invalid(format!("{kind:?} is not a type of values"))),
        })
    }

    fn enter(&mut self, level: Level) -> Result<(), ThriftException> {
        if self.levels.len() >= MAX_LEVELS {
            return Err(new_protocol_exception(
                ProtocolExceptionKind::DepthLimit,
                format!("values are nested more than {MAX_LEVELS} deep"),
            ));
        }
        self.levels.push(level);
        Ok(())
    }

    /// Reads a length or count of 32 bits.
    fn length(&self, rest: &mut &[u8]) -> Result<Option<usize>, ThriftException> {
        let length = match self.encoding {
            Encoding::Binary => array(rest).map(|bytes| i64::from(i32::from_be_bytes(bytes))),
            Encoding::Compact => varint(rest)?.map(|length| i64::try_from(length).unwrap_or(-1)),
        };
        length.map(usize::try_from).transpose().map_err(|_| invalid("a length is negative"))
    }

    fn sequence(&self, rest: &mut &[u8]) -> Result<Option<(TType, usize)>, ThriftException> {
        let Some([header]) = array(rest) else { return Ok(None) };
        // The type is checked before the length is read, so that the error does not depend on how many bytes
        // have arrived.
        let kind = match self.encoding {
            Encoding::Binary => TType::try_from(header)?,
            Encoding::Compact => compact::kind(header & 0x0f)?,
        };
        let size = match self.encoding {
            Encoding::Compact if header >> 4 < 15 => Some(usize::from(header >> 4)),
            _ => self.length(rest)?,
        };
        let Some(size) = size else { return Ok(None) };
        self.check(size, self.least(kind))?;
        Ok(Some((kind, size)))
    }

    fn map(&self, rest: &mut &[u8]) -> Result<Option<(TType, TType, usize)>, ThriftException> {
        let (key, value, size) = match self.encoding {
            Encoding::Binary => {
                let Some([key, value]) = array(rest) else { return Ok(None) };
                let (key, value) = (TType::try_from(key)?, TType::try_from(value)?);
                let Some(size) = self.length(rest)? else { return Ok(None) };
                (key, value, size)
            }
            Encoding::Compact => {
                let Some(size) = self.length(rest)? else { return Ok(None) };
                if size == 0 {
                    return Ok(Some((TType::Stop, TType::Stop, 0)));
                }
                let Some([types]) = array(rest) else { return Ok(None) };
                (compact::kind(types >> 4)?, compact::kind(types & 0x0f)?, size)
            }
        };
        self.check(size, self.least(key) + self.least(value))?;
        Ok(Some((key, value, size)))
    }

    fn least(&self, kind: TType) -> usize {
        match self.encoding {
            Encoding::Binary => binary::least(kind),
            Encoding::Compact => compact::least(kind),
        }
    }

    /// Rejects an impossible element count before its elements arrive.
    fn check(&self, size: usize, least: usize) -> Result<(), ThriftException> {
        if size > self.room / least {
            return Err(new_protocol_exception(
                ProtocolExceptionKind::SizeLimit,
                format!(
                    "a container is said to have {size} elements, more than the largest message has bytes for"
                ),
            ));
        }
        Ok(())
    }
}

enum Field {
    Stop,
    /// The value was in the header.
    Bool,
    Value(TType),
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*taken)
}

/// Reads a number in groups of seven bits, lowest group first, off the front. The reader checks the number of bits
/// that the type allows. Returns `None` if the bytes end within the number.
///
/// # Errors
/// The number has more than 64 bits.
pub fn varint(rest: &mut &[u8]) -> Result<Option<u64>, ThriftException> {
    let mut value = 0;
    for (place, byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            *rest = &rest[place + 1..];
            return Ok(Some(value));
        }
    }
    if rest.len() < 10 { Ok(None) } else { Err(invalid("a number has more than 64 bits")) }
}
