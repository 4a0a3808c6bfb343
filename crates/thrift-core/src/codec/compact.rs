//! Reader of Thrift's compact encoding, which Dunlin uses on TCP only.

use super::cursor::{Cursor, Input, Limits, invalid, owned_str, text};
use super::skip::{no_lengths, skip};
use pilota::thrift::{
    ProtocolExceptionKind, TFieldIdentifier, TInputProtocol, TListIdentifier, TMapIdentifier,
    TMessageIdentifier, TMessageType, TSetIdentifier, TStructIdentifier, TType, ThriftException,
    new_protocol_exception,
};
use pilota::{Bytes, FastStr};

/// The first byte of a message in the compact encoding.
pub(super) const PROTOCOL_ID: u8 = 0x82;
pub(super) const VERSION: u8 = 1;

/// Reads the compact encoding.
#[derive(Clone, Debug)]
pub struct CompactInput<'a> {
    cursor: Cursor<'a>,
    /// The id of the last field in the current struct; `around` holds those of the enclosing structs.
    last: i16,
    around: Vec<i16>,
    /// The value of a bool field, which its header contains.
    pending: Option<bool>,
}

impl<'a> CompactInput<'a> {
    /// Creates a reader of a message with the default limits.
    pub fn new(bytes: &'a [u8]) -> Self {
        CompactInput::with_limits(bytes, Limits::DEFAULT)
    }

    /// Creates a reader with the given limits.
    pub fn with_limits(bytes: &'a [u8], limits: Limits) -> Self {
        CompactInput { cursor: Cursor::new(bytes, limits), last: 0, around: Vec::new(), pending: None }
    }

    /// Returns the unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.cursor.rest
    }

    /// Reads a number of at most `bits` bits in groups of seven bits, lowest group first.
    fn varint(&mut self, bits: u32) -> Result<u64, ThriftException> {
        let mut value = 0;
        for shift in (0..bits).step_by(7) {
            let byte = self.cursor.byte()?;
            let low = u64::from(byte & 0x7f);
            if shift + 7 > bits && low >> (bits - shift) != 0 {
                break;
            }
            value |= low << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(invalid(format!("a number has more than {bits} bits")))
    }

    /// Reads a number whose sign is in its lowest bit.
    fn zigzag(&mut self, bits: u32) -> Result<i64, ThriftException> {
        let value = self.varint(bits)?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn sequence(&mut self) -> Result<(TType, usize), ThriftException> {
        let header = self.cursor.byte()?;
        let kind = kind(header & 0x0f)?;
        let size = match header >> 4 {
            15 => self.varint(32)? as i64,
            size => size.into(),
        };
        let size = self.cursor.container(size, least(kind))?;
        Ok((kind, size))
    }
}

/// Returns the type with this number in the compact encoding. Both 1 and 2 are `Bool`.
pub(super) fn kind(number: u8) -> Result<TType, ThriftException> {
    Ok(match number {
        0 => TType::Stop,
        1 | 2 => TType::Bool,
        3 => TType::I8,
        4 => TType::I16,
        5 => TType::I32,
        6 => TType::I64,
        7 => TType::Double,
        8 => TType::Binary,
        9 => TType::List,
        10 => TType::Set,
        11 => TType::Map,
        12 => TType::Struct,
        13 => TType::Uuid,
        _ => return Err(invalid(format!("{number} is not a type of the compact protocol"))),
    })
}

/// Returns the fewest bytes that a value of the type takes.
pub(super) fn least(kind: TType) -> usize {
    match kind {
        TType::Double => 8,
        TType::Uuid => 16,
        _ => 1,
    }
}

impl<'a> Input<'a> for CompactInput<'a> {
    fn read_slice(&mut self) -> Result<&'a [u8], ThriftException> {
        let length = self.varint(32)?;
        self.cursor.take(length as usize)
    }
}

no_lengths!(CompactInput);

impl<'a> TInputProtocol for CompactInput<'a> {
    type Buf = &'a [u8];

    fn read_message_begin(&mut self) -> Result<TMessageIdentifier, ThriftException> {
        let [id, second] = self.cursor.array()?;
        if id != PROTOCOL_ID || second & 0x1f != VERSION {
            return Err(new_protocol_exception(
                ProtocolExceptionKind::BadVersion,
                format!("{id:#x} {second:#x} does not begin a message of version 1 of the compact protocol"),
            ));
        }
        let sequence_number = self.varint(32)? as u32 as i32;
        let name = text(self.read_slice()?)?;
        Ok(TMessageIdentifier::new(FastStr::new(name), TMessageType::try_from(second >> 5)?, sequence_number))
    }

    fn read_message_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    fn read_struct_begin(&mut self) -> Result<Option<TStructIdentifier>, ThriftException> {
        self.cursor.enter()?;
        self.around.push(self.last);
        self.last = 0;
        Ok(None)
    }

    fn read_struct_end(&mut self) -> Result<(), ThriftException> {
        self.cursor.leave();
        self.last = self.around.pop().unwrap_or_default();
        Ok(())
    }

    fn read_field_begin(&mut self) -> Result<TFieldIdentifier, ThriftException> {
        let header = self.cursor.byte()?;
        let field_type = kind(header & 0x0f)?;
        if field_type == TType::Stop {
            return Ok(TFieldIdentifier { name: None, field_type, id: Some(0) });
        }
        if field_type == TType::Bool {
            self.pending = Some(header & 0x0f == 1);
        }
        self.last = match header >> 4 {
            0 => self.read_i16()?,
            step => self
                .last
                .checked_add(step.into())
                .ok_or_else(|| invalid("the id of a field is over 32767"))?,
        };
        Ok(TFieldIdentifier { name: None, field_type, id: Some(self.last) })
    }

    fn read_field_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    fn read_bool(&mut self) -> Result<bool, ThriftException> {
        match self.pending.take() {
            Some(value) => Ok(value),
            // An element of a container. Old writers encode false as 0.
            None => match self.cursor.byte()? {
                1 => Ok(true),
                0 | 2 => Ok(false),
                other => Err(invalid(format!("{other} is not a bool"))),
            },
        }
    }

    fn read_bytes(&mut self) -> Result<Bytes, ThriftException> {
        Ok(Bytes::copy_from_slice(self.read_slice()?))
    }

    fn read_uuid(&mut self) -> Result<[u8; 16], ThriftException> {
        self.cursor.array()
    }

    fn read_i8(&mut self) -> Result<i8, ThriftException> {
        Ok(self.cursor.byte()? as i8)
    }

    fn read_i16(&mut self) -> Result<i16, ThriftException> {
        self.zigzag(16).map(|value| value as i16)
    }

    fn read_i32(&mut self) -> Result<i32, ThriftException> {
        self.zigzag(32).map(|value| value as i32)
    }

    fn read_i64(&mut self) -> Result<i64, ThriftException> {
        self.zigzag(64)
    }

    fn read_double(&mut self) -> Result<f64, ThriftException> {
        Ok(f64::from_le_bytes(self.cursor.array()?))
    }

    fn read_string(&mut self) -> Result<String, ThriftException> {
        Ok(self.read_str()?.to_owned())
    }

    fn read_faststr(&mut self) -> Result<FastStr, ThriftException> {
        Ok(owned_str(self.read_str()?))
    }

    fn read_list_begin(&mut self) -> Result<TListIdentifier, ThriftException> {
        let (element_type, size) = self.sequence()?;
        Ok(TListIdentifier { element_type, size })
    }

    fn read_list_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    fn read_set_begin(&mut self) -> Result<TSetIdentifier, ThriftException> {
        let (element_type, size) = self.sequence()?;
        Ok(TSetIdentifier { element_type, size })
    }

    fn read_set_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    fn read_map_begin(&mut self) -> Result<TMapIdentifier, ThriftException> {
        let size = self.varint(32)? as i64;
        if size == 0 {
            return Ok(TMapIdentifier { key_type: TType::Stop, value_type: TType::Stop, size: 0 });
        }
        let types = self.cursor.byte()?;
        let (key_type, value_type) = (kind(types >> 4)?, kind(types & 0x0f)?);
        let size = self.cursor.container(size, least(key_type) + least(value_type))?;
        Ok(TMapIdentifier { key_type, value_type, size })
    }

    fn read_map_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    fn skip_till_depth(&mut self, kind: TType, depth: i8) -> Result<usize, ThriftException> {
        let levels = self.cursor.levels_left().min(depth.max(0) as u16);
        skip(self, kind, levels, |input| input.read_slice().map(drop))?;
        Ok(0)
    }

    fn read_byte(&mut self) -> Result<u8, ThriftException> {
        self.cursor.byte()
    }

    fn read_bytes_vec(&mut self) -> Result<Vec<u8>, ThriftException> {
        Ok(self.read_slice()?.to_vec())
    }

    fn get_bytes(&mut self, _: Option<*const u8>, _: usize) -> Result<Bytes, ThriftException> {
        Err(invalid("fields that the reader does not know are not kept"))
    }

    fn buf(&mut self) -> &mut Self::Buf {
        &mut self.cursor.rest
    }
}
