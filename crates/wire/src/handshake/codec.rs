//! Reads and writes the fields of a record, in order.

use super::alloc::borrow::ToOwned;
use super::alloc::string::String;
use super::alloc::vec::Vec;
use super::error::HandshakeError;

/// Reads fields from the front of a body. Every read takes the field's name, for the error.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Reader<'a> {
        Reader { rest: body }
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], HandshakeError> {
        let (value, rest) = self.rest.split_first_chunk::<N>().ok_or(HandshakeError::Truncated { field })?;
        self.rest = rest;
        Ok(*value)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, HandshakeError> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, HandshakeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, HandshakeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, HandshakeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(super) fn secret(&mut self, field: &'static str) -> Result<[u8; 16], HandshakeError> {
        self.array(field)
    }

    /// Reads a two-byte length, at most `limit`, and that number of bytes.
    pub(super) fn bytes(&mut self, field: &'static str, limit: usize) -> Result<&'a [u8], HandshakeError> {
        let length = usize::from(self.u16(field)?);
        if length > limit {
            return Err(HandshakeError::FieldTooLong { field, length, limit });
        }
        let (value, rest) = self.rest.split_at_checked(length).ok_or(HandshakeError::Truncated { field })?;
        self.rest = rest;
        Ok(value)
    }

    pub(super) fn text(&mut self, field: &'static str, limit: usize) -> Result<String, HandshakeError> {
        let bytes = self.bytes(field, limit)?;
        let text = str::from_utf8(bytes).map_err(|_| HandshakeError::NotUtf8 { field })?;
        Ok(text.to_owned())
    }

    /// Reads a two-byte count, at most `limit`, and that number of `u64` values.
    pub(super) fn words(&mut self, field: &'static str, limit: usize) -> Result<Vec<u64>, HandshakeError> {
        let length = usize::from(self.u16(field)?);
        if length > limit {
            return Err(HandshakeError::FieldTooLong { field, length, limit });
        }
        (0..length).map(|_| self.u64(field)).collect()
    }

    /// Reads all remaining bytes, at most `limit`.
    pub(super) fn rest_as_text(
        &mut self,
        field: &'static str,
        limit: usize,
    ) -> Result<String, HandshakeError> {
        let bytes = core::mem::take(&mut self.rest);
        let length = bytes.len();
        if length > limit {
            return Err(HandshakeError::FieldTooLong { field, length, limit });
        }
        let text = str::from_utf8(bytes).map_err(|_| HandshakeError::NotUtf8 { field })?;
        Ok(text.to_owned())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn finish(self) -> Result<(), HandshakeError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(HandshakeError::TrailingBytes { count }),
        }
    }
}

/// Appends fields; the counterpart of [`Reader`].
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn new() -> Writer {
        Writer { bytes: Vec::new() }
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    fn length(&mut self, field: &'static str, length: usize, limit: usize) -> Result<(), HandshakeError> {
        match u16::try_from(length) {
            Ok(short) if length <= limit => {
                self.u16(short);
                Ok(())
            }
            _ => Err(HandshakeError::FieldTooLong { field, length, limit }),
        }
    }

    pub(super) fn bytes(
        &mut self,
        field: &'static str,
        value: &[u8],
        limit: usize,
    ) -> Result<(), HandshakeError> {
        self.length(field, value.len(), limit)?;
        self.raw(value);
        Ok(())
    }

    pub(super) fn words(
        &mut self,
        field: &'static str,
        value: &[u64],
        limit: usize,
    ) -> Result<(), HandshakeError> {
        self.length(field, value.len(), limit)?;
        for word in value {
            self.u64(*word);
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
