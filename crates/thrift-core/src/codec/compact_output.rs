//! Writer of the compact encoding. pilota's writer encodes doubles in big-endian order, while all readers,
//! including pilota's, expect little-endian.

use super::compact::{PROTOCOL_ID, VERSION};
use super::cursor::invalid;
use super::lending::Output;
use super::skip::no_lengths;
use pilota::thrift::{
    TListIdentifier, TMapIdentifier, TMessageIdentifier, TOutputProtocol, TSetIdentifier, TStructIdentifier,
    TType, ThriftException,
};
use pilota::{Bytes, FastStr};

/// Appends the compact encoding to a vector, without computing lengths first.
#[derive(Debug)]
pub struct CompactOutput<'a> {
    out: &'a mut Vec<u8>,
    /// The id of the last field in the current struct; `around` holds those of the enclosing structs.
    last: i16,
    around: Vec<i16>,
    /// The id of a bool field whose header is still to be written, since the header contains the value.
    pending: Option<i16>,
}

// The writer does not compute lengths first, so it cannot lend payloads.
impl<'s> Output<'s> for CompactOutput<'_> {}

impl<'a> CompactOutput<'a> {
    /// Creates a writer that appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        CompactOutput { out, last: 0, around: Vec::new(), pending: None }
    }

    /// Writes a number in groups of seven bits, lowest group first.
    pub fn write_varint(&mut self, value: u32) {
        self.varint(value.into());
    }

    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn zigzag(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)) as u64);
    }

    fn header(&mut self, number: u8, id: i16) {
        match id.checked_sub(self.last) {
            Some(step @ 1..=15) => self.out.push((step as u8) << 4 | number),
            _ => {
                self.out.push(number);
                self.zigzag(id.into());
            }
        }
        self.last = id;
    }

    fn sequence(&mut self, element: TType, size: usize) -> Result<(), ThriftException> {
        let number = number(element)?;
        if size < 15 {
            self.out.push((size as u8) << 4 | number);
        } else {
            self.out.push(0xf0 | number);
            self.varint(size as u64);
        }
        Ok(())
    }

    fn long(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }
}

/// Returns the number of a type in the compact encoding. A bool element has the number of `true`.
fn number(kind: TType) -> Result<u8, ThriftException> {
    Ok(match kind {
        TType::Stop => 0,
        TType::Bool => 1,
        TType::I8 => 3,
        TType::I16 => 4,
        TType::I32 => 5,
        TType::I64 => 6,
        TType::Double => 7,
        TType::Binary => 8,
        TType::List => 9,
        TType::Set => 10,
        TType::Map => 11,
        TType::Struct => 12,
        TType::Uuid => 13,
        TType::Void => return Err(invalid("void is not a type of values")),
    })
}

no_lengths!(CompactOutput);

impl TOutputProtocol for CompactOutput<'_> {
    type BufMut = Vec<u8>;

    fn write_message_begin(&mut self, identifier: &TMessageIdentifier) -> Result<(), ThriftException> {
        let kind: u8 = identifier.message_type.into();
        self.out.extend_from_slice(&[PROTOCOL_ID, kind << 5 | VERSION]);
        self.varint(u64::from(identifier.sequence_number as u32));
        self.long(identifier.name.as_bytes());
        Ok(())
    }
    fn write_message_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    fn write_struct_begin(&mut self, _: &TStructIdentifier) -> Result<(), ThriftException> {
        self.around.push(self.last);
        self.last = 0;
        Ok(())
    }
    fn write_struct_end(&mut self) -> Result<(), ThriftException> {
        self.last = self.around.pop().unwrap_or_default();
        Ok(())
    }
    fn write_field_begin(&mut self, kind: TType, id: i16) -> Result<(), ThriftException> {
        match kind {
            TType::Bool => self.pending = Some(id),
            kind => self.header(number(kind)?, id),
        }
        Ok(())
    }
    fn write_field_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    fn write_field_stop(&mut self) -> Result<(), ThriftException> {
        self.out.push(0);
        Ok(())
    }
    fn write_bool(&mut self, value: bool) -> Result<(), ThriftException> {
        let number = if value { 1 } else { 2 };
        match self.pending.take() {
            Some(id) => self.header(number, id),
            None => self.out.push(number),
        }
        Ok(())
    }
    fn write_bytes(&mut self, bytes: Bytes) -> Result<(), ThriftException> {
        self.long(&bytes);
        Ok(())
    }
    fn write_bytes_without_len(&mut self, bytes: Bytes) -> Result<(), ThriftException> {
        self.out.extend_from_slice(&bytes);
        Ok(())
    }
    fn write_uuid(&mut self, uuid: [u8; 16]) -> Result<(), ThriftException> {
        self.out.extend_from_slice(&uuid);
        Ok(())
    }
    fn write_bytes_vec(&mut self, bytes: &[u8]) -> Result<(), ThriftException> {
        self.long(bytes);
        Ok(())
    }
    fn write_byte(&mut self, value: u8) -> Result<(), ThriftException> {
        self.out.push(value);
        Ok(())
    }
    fn write_i8(&mut self, value: i8) -> Result<(), ThriftException> {
        self.out.push(value as u8);
        Ok(())
    }
    fn write_i16(&mut self, value: i16) -> Result<(), ThriftException> {
        self.zigzag(value.into());
        Ok(())
    }
    fn write_i32(&mut self, value: i32) -> Result<(), ThriftException> {
        self.zigzag(value.into());
        Ok(())
    }
    fn write_i64(&mut self, value: i64) -> Result<(), ThriftException> {
        self.zigzag(value);
        Ok(())
    }
    fn write_double(&mut self, value: f64) -> Result<(), ThriftException> {
        self.out.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }
    fn write_string(&mut self, text: &str) -> Result<(), ThriftException> {
        self.long(text.as_bytes());
        Ok(())
    }
    fn write_faststr(&mut self, text: FastStr) -> Result<(), ThriftException> {
        self.long(text.as_bytes());
        Ok(())
    }
    fn write_list_begin(&mut self, list: TListIdentifier) -> Result<(), ThriftException> {
        self.sequence(list.element_type, list.size)
    }
    fn write_list_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    fn write_set_begin(&mut self, set: TSetIdentifier) -> Result<(), ThriftException> {
        self.sequence(set.element_type, set.size)
    }
    fn write_set_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    fn write_map_begin(&mut self, map: TMapIdentifier) -> Result<(), ThriftException> {
        self.varint(map.size as u64);
        if map.size > 0 {
            self.out.push(number(map.key_type)? << 4 | number(map.value_type)?);
        }
        Ok(())
    }
    fn write_map_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    fn flush(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    fn buf_mut(&mut self) -> &mut Self::BufMut {
        self.out
    }
}
