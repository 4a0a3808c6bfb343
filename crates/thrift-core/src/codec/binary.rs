//! Thrift's binary encoding, used in Dunlin's own messages and by most Thrift services on TCP.

use super::cursor::{Cursor, Input, Limits, invalid, no_text, owned_str, text};
use super::lending::{Copying, LENT, Large, Lending, Output, Payload};
use super::skip::{no_lengths, skip};
use dunlin_rpc::PayloadWriter;
use pilota::thrift::{
    ProtocolExceptionKind, TFieldIdentifier, TInputProtocol, TLengthProtocol, TListIdentifier,
    TMapIdentifier, TMessageIdentifier, TMessageType, TOutputProtocol, TSetIdentifier, TStructIdentifier,
    TType, ThriftException, new_protocol_exception,
};
use pilota::{Bytes, FastStr};
use std::fmt;

/// Version 1 in the upper half of a message's first word; the lowest byte is the message type.
const VERSION_1: u32 = 0x8001_0000;
const VERSION_MASK: u32 = 0xffff_0000;

/// Reads the binary encoding.
#[derive(Clone, Debug)]
pub struct BinaryInput<'a> {
    cursor: Cursor<'a>,
    bare: bool,
    /// The memory of the message, if its values may share it.
    shared: Option<&'a Bytes>,
}

/// The shortest value that shares the memory of its message, in bytes.
const SHARED: usize = 16 << 10;

impl<'a> BinaryInput<'a> {
    /// Creates a reader of a message with the default limits.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        BinaryInput::with_limits(bytes, Limits::DEFAULT)
    }

    /// Creates a reader with the given limits.
    #[inline]
    pub fn with_limits(bytes: &'a [u8], limits: Limits) -> Self {
        BinaryInput { cursor: Cursor::new(bytes, limits), bare: false, shared: None }
    }

    /// Creates a reader of consecutive values without field headers, with the default limits.
    #[inline]
    pub fn bare(bytes: &'a [u8]) -> Self {
        BinaryInput { bare: true, ..BinaryInput::new(bytes) }
    }

    /// Creates a reader of bytes in `memory`, with the default limits. A large `binary` or `string` that
    /// fills most of the memory shares it instead of being copied.
    #[inline]
    pub fn within(bytes: &'a [u8], memory: Option<&'a Bytes>) -> Self {
        BinaryInput { shared: memory, ..BinaryInput::new(bytes) }
    }

    /// Returns the unread bytes.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.cursor.rest
    }

    /// Reads all remaining bytes: a `binary` without its length.
    #[inline]
    pub fn read_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.cursor.rest)
    }

    /// Reads all remaining bytes as a `string`. See [`read_rest`](BinaryInput::read_rest).
    #[inline]
    pub fn read_rest_str(&mut self) -> Result<&'a str, ThriftException> {
        text(self.read_rest())
    }

    /// Begins a struct of the bare form. It reads nothing and counts the struct: a struct may take one byte
    /// in the message and hundreds of bytes in memory.
    #[inline]
    pub fn count_struct(&mut self) -> Result<(), ThriftException> {
        self.cursor.count()
    }

    /// Reads the bitmap of a struct's present optional fields.
    #[inline]
    pub fn read_presence<const FIELDS: usize>(&mut self) -> Result<[bool; FIELDS], ThriftException> {
        let mut present = [false; FIELDS];
        for fields in present.chunks_mut(8) {
            let byte = self.cursor.byte()?;
            if u32::from(byte) >> fields.len() != 0 {
                return Err(no_such_field());
            }
            for (place, field) in fields.iter_mut().enumerate() {
                *field = byte >> place & 1 != 0;
            }
        }
        Ok(present)
    }

    /// Returns an error if unread bytes remain.
    #[inline]
    pub fn end(&self) -> Result<(), ThriftException> {
        if self.cursor.rest.is_empty() { Ok(()) } else { Err(too_long(self.cursor.rest.len())) }
    }

    /// Returns a large value as a part of its message's memory, if it may share that memory.
    #[inline]
    fn part(&self, slice: &[u8]) -> Option<Bytes> {
        part(self.shared?, slice)
    }

    #[inline]
    fn kind(&mut self) -> Result<TType, ThriftException> {
        TType::try_from(self.cursor.byte()?)
    }

    #[inline]
    fn sequence(&mut self) -> Result<(TType, usize), ThriftException> {
        let kind = self.kind()?;
        let size = i32::from_be_bytes(self.cursor.array()?);
        let size = self.cursor.container(size.into(), least(kind))?;
        Ok((kind, size))
    }
}

/// Returns a large value as a part of its memory. It keeps at most twice its own length alive.
pub(crate) fn part(memory: &Bytes, slice: &[u8]) -> Option<Bytes> {
    let (whole, part) = (memory.as_ptr_range(), slice.as_ptr_range());
    let lies_there = whole.start <= part.start && part.end <= whole.end;
    let most = slice.len() >= SHARED && slice.len() >= memory.len() / 2;
    (lies_there && most).then(|| memory.slice_ref(slice))
}

/// Returns the fewest bytes that a value of the type takes.
pub(super) fn least(kind: TType) -> usize {
    match kind {
        TType::Bool | TType::I8 | TType::Struct | TType::Stop | TType::Void => 1,
        TType::I16 => 2,
        TType::I32 | TType::Binary => 4,
        TType::I64 | TType::Double => 8,
        TType::Uuid => 16,
        TType::List | TType::Set => 5,
        TType::Map => 6,
    }
}

impl<'a> Input<'a> for BinaryInput<'a> {
    #[inline]
    fn read_slice(&mut self) -> Result<&'a [u8], ThriftException> {
        let length = i32::from_be_bytes(self.cursor.array()?);
        match usize::try_from(length) {
            Ok(length) => self.cursor.take(length),
            Err(_) => Err(invalid(format!("a binary of {length} bytes"))),
        }
    }

    #[inline]
    fn as_bare(&mut self) -> Option<&mut BinaryInput<'a>> {
        if self.bare { Some(self) } else { None }
    }
}

no_lengths!(BinaryInput);

impl<'a> TInputProtocol for BinaryInput<'a> {
    type Buf = &'a [u8];

    fn read_message_begin(&mut self) -> Result<TMessageIdentifier, ThriftException> {
        let first = u32::from_be_bytes(self.cursor.array()?);
        let (name, kind) = if first & 0x8000_0000 == 0 {
            // The form without a version: the length of the name comes first, and the type after the name.
            let name = text(self.cursor.take(first as usize)?)?;
            (name, self.cursor.byte()?)
        } else if first & VERSION_MASK == VERSION_1 {
            (self.read_str()?, first as u8)
        } else {
            return Err(new_protocol_exception(
                ProtocolExceptionKind::BadVersion,
                format!("version {:#x} of the binary protocol; 0x8001 is spoken here", first >> 16),
            ));
        };
        let sequence_number = i32::from_be_bytes(self.cursor.array()?);
        Ok(TMessageIdentifier::new(FastStr::new(name), TMessageType::try_from(kind)?, sequence_number))
    }

    #[inline]
    fn read_message_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    #[inline]
    fn read_struct_begin(&mut self) -> Result<Option<TStructIdentifier>, ThriftException> {
        self.cursor.enter()?;
        Ok(None)
    }

    #[inline]
    fn read_struct_end(&mut self) -> Result<(), ThriftException> {
        self.cursor.leave();
        Ok(())
    }

    #[inline]
    fn read_field_begin(&mut self) -> Result<TFieldIdentifier, ThriftException> {
        let kind = self.kind()?;
        let id = if kind == TType::Stop { 0 } else { i16::from_be_bytes(self.cursor.array()?) };
        Ok(TFieldIdentifier { name: None, field_type: kind, id: Some(id) })
    }

    #[inline]
    fn read_field_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    #[inline]
    fn read_bool(&mut self) -> Result<bool, ThriftException> {
        Ok(self.cursor.byte()? != 0)
    }

    #[inline]
    fn read_bytes(&mut self) -> Result<Bytes, ThriftException> {
        let slice = self.read_slice()?;
        Ok(self.part(slice).unwrap_or_else(|| Bytes::copy_from_slice(slice)))
    }

    #[inline]
    fn read_uuid(&mut self) -> Result<[u8; 16], ThriftException> {
        self.cursor.array()
    }

    #[inline]
    fn read_i8(&mut self) -> Result<i8, ThriftException> {
        Ok(self.cursor.byte()? as i8)
    }

    #[inline]
    fn read_i16(&mut self) -> Result<i16, ThriftException> {
        Ok(i16::from_be_bytes(self.cursor.array()?))
    }

    #[inline]
    fn read_i32(&mut self) -> Result<i32, ThriftException> {
        Ok(i32::from_be_bytes(self.cursor.array()?))
    }

    #[inline]
    fn read_i64(&mut self) -> Result<i64, ThriftException> {
        Ok(i64::from_be_bytes(self.cursor.array()?))
    }

    #[inline]
    fn read_double(&mut self) -> Result<f64, ThriftException> {
        Ok(f64::from_be_bytes(self.cursor.array()?))
    }

    #[inline]
    fn read_string(&mut self) -> Result<String, ThriftException> {
        Ok(self.read_str()?.to_owned())
    }

    #[inline]
    fn read_faststr(&mut self) -> Result<FastStr, ThriftException> {
        let slice = self.read_slice()?;
        match self.part(slice) {
            Some(bytes) => FastStr::from_bytes(bytes).map_err(no_text),
            None => Ok(owned_str(text(slice)?)),
        }
    }

    #[inline]
    fn read_list_begin(&mut self) -> Result<TListIdentifier, ThriftException> {
        let (element_type, size) = self.sequence()?;
        Ok(TListIdentifier { element_type, size })
    }

    #[inline]
    fn read_list_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    #[inline]
    fn read_set_begin(&mut self) -> Result<TSetIdentifier, ThriftException> {
        let (element_type, size) = self.sequence()?;
        Ok(TSetIdentifier { element_type, size })
    }

    #[inline]
    fn read_set_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    #[inline]
    fn read_map_begin(&mut self) -> Result<TMapIdentifier, ThriftException> {
        // Some implementations write no types for an empty map; both bytes are then 0.
        let (key_type, value_type) = (self.kind()?, self.kind()?);
        let size = i32::from_be_bytes(self.cursor.array()?);
        let size = self.cursor.container(size.into(), least(key_type) + least(value_type))?;
        Ok(TMapIdentifier { key_type, value_type, size })
    }

    #[inline]
    fn read_map_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }

    fn skip_till_depth(&mut self, kind: TType, depth: i8) -> Result<usize, ThriftException> {
        let levels = self.cursor.levels_left().min(depth.max(0) as u16);
        skip(self, kind, levels, |input| input.read_slice().map(drop))?;
        Ok(0)
    }

    #[inline]
    fn read_byte(&mut self) -> Result<u8, ThriftException> {
        self.cursor.byte()
    }

    #[inline]
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

/// Writes the binary encoding into a buffer of the exact length, which [`pilota::thrift::Message::size`]
/// computes.
pub struct BinaryOutput<'a, L = Copying> {
    rest: &'a mut [u8],
    large: L,
    /// The observer of large payloads while they are copied, and the length of the whole buffer.
    filling: Option<(&'a mut dyn PayloadWriter, usize)>,
}

impl<L: fmt::Debug> fmt::Debug for BinaryOutput<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BinaryOutput")
            .field("left", &self.rest.len())
            .field("large", &self.large)
            .finish_non_exhaustive()
    }
}

impl<'a> BinaryOutput<'a> {
    /// Creates a writer into `place`.
    #[inline]
    pub fn new(place: &'a mut [u8]) -> Self {
        BinaryOutput { rest: place, large: Copying, filling: None }
    }

    /// Creates a writer into `place` that reports its progress to `filling`, so that written parts can be
    /// sent early.
    #[inline]
    pub fn filling(place: &'a mut [u8], filling: Option<&'a mut dyn PayloadWriter>) -> Self {
        let length = place.len();
        BinaryOutput { filling: filling.map(|filling| (filling, length)), ..BinaryOutput::new(place) }
    }
}

impl<'a, 'p, 's> BinaryOutput<'a, Lending<'p, 's>> {
    /// Creates a writer that does not copy large shared or borrowed payloads. It adds each to a list, with
    /// the number of unwritten bytes of `place` at that point. `place` must have room for them nevertheless;
    /// that room stays unused at its end.
    #[inline]
    pub fn lending(place: &'a mut [u8], payloads: &'p mut Vec<(usize, Payload<'s>)>) -> Self {
        BinaryOutput { rest: place, large: Lending(payloads), filling: None }
    }
}

impl<L> BinaryOutput<'_, L> {
    /// Returns the number of unwritten bytes of the buffer.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Writes raw bytes: a `binary` or `string` without its length.
    #[inline]
    pub fn write_rest(&mut self, bytes: &[u8]) -> Result<(), ThriftException> {
        self.put_bytes(bytes)
    }

    /// Writes the bitmap of a struct's present optional fields.
    #[inline]
    pub fn write_presence<const FIELDS: usize>(
        &mut self,
        present: [bool; FIELDS],
    ) -> Result<(), ThriftException> {
        for fields in present.chunks(8) {
            let bits = fields.iter().enumerate().map(|(place, field)| u8::from(*field) << place);
            self.put(&[bits.sum()])?;
        }
        Ok(())
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), ThriftException> {
        match std::mem::take(&mut self.rest).split_at_mut_checked(bytes.len()) {
            Some((place, rest)) => {
                place.copy_from_slice(bytes);
                self.rest = rest;
                Ok(())
            }
            None => Err(no_room()),
        }
    }

    #[inline]
    fn put_long(&mut self, bytes: &[u8]) -> Result<(), ThriftException> {
        self.put(&(bytes.len() as i32).to_be_bytes())?;
        self.put_bytes(bytes)
    }

    /// Writes bytes of any length; reports large ones to the observer.
    #[inline]
    fn put_bytes(&mut self, bytes: &[u8]) -> Result<(), ThriftException> {
        if bytes.len() >= LENT && self.filling.is_some() {
            return self.put_in_pieces(bytes);
        }
        self.put(bytes)
    }

    #[inline(never)]
    fn put_in_pieces(&mut self, bytes: &[u8]) -> Result<(), ThriftException> {
        let Some((filling, length)) = &mut self.filling else { return self.put(bytes) };
        let before = *length - self.rest.len();
        match std::mem::take(&mut self.rest).split_at_mut_checked(bytes.len()) {
            Some((place, rest)) => {
                filling.put(before, place, bytes);
                self.rest = rest;
                Ok(())
            }
            None => Err(no_room()),
        }
    }

    /// Writes a payload's length, and passes the payload to `lend` with the number of unwritten bytes.
    fn lend(&mut self, length: usize, lend: impl FnOnce(&mut L, usize)) -> Result<(), ThriftException> {
        self.put(&(length as i32).to_be_bytes())?;
        if length > self.rest.len() {
            return Err(no_room());
        }
        lend(&mut self.large, self.rest.len());
        Ok(())
    }
}

impl<'s> Output<'s> for BinaryOutput<'_> {}

impl<'s> Output<'s> for BinaryOutput<'_, Lending<'_, 's>> {
    #[inline]
    fn write_slice(&mut self, bytes: &'s [u8]) -> Result<(), ThriftException> {
        if bytes.len() < LENT {
            return self.put_long(bytes);
        }
        self.lend(bytes.len(), |large, left| large.0.push((left, Payload::Borrowed(bytes))))
    }
}

#[cold]
#[inline(never)]
fn no_such_field() -> ThriftException {
    invalid("an optional field is said to be there that the struct does not have")
}

#[cold]
#[inline(never)]
fn too_long(left: usize) -> ThriftException {
    invalid(format!("{left} bytes follow what belongs to the message"))
}

#[cold]
#[inline(never)]
fn no_room() -> ThriftException {
    new_protocol_exception(ProtocolExceptionKind::SizeLimit, "the value changed while it was being encoded")
}

impl<L> TLengthProtocol for BinaryOutput<'_, L> {
    fn message_begin_len(&mut self, identifier: &TMessageIdentifier) -> usize {
        12 + identifier.name.len()
    }
    fn message_end_len(&mut self) -> usize {
        0
    }
    #[inline]
    fn struct_begin_len(&mut self, _: &TStructIdentifier) -> usize {
        0
    }
    #[inline]
    fn struct_end_len(&mut self) -> usize {
        0
    }
    #[inline]
    fn field_begin_len(&mut self, _: TType, _: Option<i16>) -> usize {
        3
    }
    #[inline]
    fn field_end_len(&mut self) -> usize {
        0
    }
    #[inline]
    fn field_stop_len(&mut self) -> usize {
        1
    }
    #[inline]
    fn bool_len(&mut self, _: bool) -> usize {
        1
    }
    #[inline]
    fn bytes_len(&mut self, bytes: &[u8]) -> usize {
        4 + bytes.len()
    }
    #[inline]
    fn bytes_vec_len(&mut self, bytes: &[u8]) -> usize {
        4 + bytes.len()
    }
    #[inline]
    fn byte_len(&mut self, _: u8) -> usize {
        1
    }
    #[inline]
    fn uuid_len(&mut self, _: [u8; 16]) -> usize {
        16
    }
    #[inline]
    fn i8_len(&mut self, _: i8) -> usize {
        1
    }
    #[inline]
    fn i16_len(&mut self, _: i16) -> usize {
        2
    }
    #[inline]
    fn i32_len(&mut self, _: i32) -> usize {
        4
    }
    #[inline]
    fn i64_len(&mut self, _: i64) -> usize {
        8
    }
    #[inline]
    fn double_len(&mut self, _: f64) -> usize {
        8
    }
    #[inline]
    fn string_len(&mut self, text: &str) -> usize {
        4 + text.len()
    }
    #[inline]
    fn faststr_len(&mut self, text: &FastStr) -> usize {
        4 + text.len()
    }
    #[inline]
    fn list_begin_len(&mut self, _: TListIdentifier) -> usize {
        5
    }
    #[inline]
    fn list_end_len(&mut self) -> usize {
        0
    }
    #[inline]
    fn set_begin_len(&mut self, _: TSetIdentifier) -> usize {
        5
    }
    #[inline]
    fn set_end_len(&mut self) -> usize {
        0
    }
    #[inline]
    fn map_begin_len(&mut self, _: TMapIdentifier) -> usize {
        6
    }
    #[inline]
    fn map_end_len(&mut self) -> usize {
        0
    }
}

impl<'a, L: Large> TOutputProtocol for BinaryOutput<'a, L> {
    type BufMut = &'a mut [u8];

    fn write_message_begin(&mut self, identifier: &TMessageIdentifier) -> Result<(), ThriftException> {
        let kind: u8 = identifier.message_type.into();
        self.put(&(VERSION_1 | u32::from(kind)).to_be_bytes())?;
        self.put_long(identifier.name.as_bytes())?;
        self.write_i32(identifier.sequence_number)
    }
    fn write_message_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    #[inline]
    fn write_struct_begin(&mut self, _: &TStructIdentifier) -> Result<(), ThriftException> {
        Ok(())
    }
    #[inline]
    fn write_struct_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    #[inline]
    fn write_field_begin(&mut self, kind: TType, id: i16) -> Result<(), ThriftException> {
        let [high, low] = id.to_be_bytes();
        self.put(&[kind as u8, high, low])
    }
    #[inline]
    fn write_field_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    #[inline]
    fn write_field_stop(&mut self) -> Result<(), ThriftException> {
        self.put(&[TType::Stop as u8])
    }
    #[inline]
    fn write_bool(&mut self, value: bool) -> Result<(), ThriftException> {
        self.put(&[value.into()])
    }
    #[inline]
    fn write_bytes(&mut self, bytes: Bytes) -> Result<(), ThriftException> {
        if !L::LENDS || bytes.len() < LENT {
            return self.put_long(&bytes);
        }
        self.lend(bytes.len(), |large, left| large.take(left, Payload::Shared(bytes)))
    }
    #[inline]
    fn write_bytes_without_len(&mut self, bytes: Bytes) -> Result<(), ThriftException> {
        self.put_bytes(&bytes)
    }
    #[inline]
    fn write_uuid(&mut self, uuid: [u8; 16]) -> Result<(), ThriftException> {
        self.put(&uuid)
    }
    #[inline]
    fn write_bytes_vec(&mut self, bytes: &[u8]) -> Result<(), ThriftException> {
        self.put_long(bytes)
    }
    #[inline]
    fn write_byte(&mut self, value: u8) -> Result<(), ThriftException> {
        self.put(&[value])
    }
    #[inline]
    fn write_i8(&mut self, value: i8) -> Result<(), ThriftException> {
        self.put(&value.to_be_bytes())
    }
    #[inline]
    fn write_i16(&mut self, value: i16) -> Result<(), ThriftException> {
        self.put(&value.to_be_bytes())
    }
    #[inline]
    fn write_i32(&mut self, value: i32) -> Result<(), ThriftException> {
        self.put(&value.to_be_bytes())
    }
    #[inline]
    fn write_i64(&mut self, value: i64) -> Result<(), ThriftException> {
        self.put(&value.to_be_bytes())
    }
    #[inline]
    fn write_double(&mut self, value: f64) -> Result<(), ThriftException> {
        self.put(&value.to_be_bytes())
    }
    #[inline]
    fn write_string(&mut self, text: &str) -> Result<(), ThriftException> {
        self.put_long(text.as_bytes())
    }
    #[inline]
    fn write_faststr(&mut self, text: FastStr) -> Result<(), ThriftException> {
        if !L::LENDS || text.len() < LENT {
            return self.put_long(text.as_bytes());
        }
        self.lend(text.len(), |large, left| large.take(left, Payload::Text(text)))
    }
    #[inline]
    fn write_list_begin(&mut self, list: TListIdentifier) -> Result<(), ThriftException> {
        self.put(&[list.element_type as u8])?;
        self.write_i32(list.size as i32)
    }
    #[inline]
    fn write_list_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    #[inline]
    fn write_set_begin(&mut self, set: TSetIdentifier) -> Result<(), ThriftException> {
        self.put(&[set.element_type as u8])?;
        self.write_i32(set.size as i32)
    }
    #[inline]
    fn write_set_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    #[inline]
    fn write_map_begin(&mut self, map: TMapIdentifier) -> Result<(), ThriftException> {
        self.put(&[map.key_type as u8, map.value_type as u8])?;
        self.write_i32(map.size as i32)
    }
    #[inline]
    fn write_map_end(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    #[inline]
    fn flush(&mut self) -> Result<(), ThriftException> {
        Ok(())
    }
    fn buf_mut(&mut self) -> &mut Self::BufMut {
        &mut self.rest
    }
}
