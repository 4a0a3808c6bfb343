//! The head of a message: function name, message type and sequence number.

use crate::outgoing::Outgoing;
use dunlin_thrift_core::codec::{BinaryOutput, CompactOutput, Encoding, Output, varint};
use dunlin_thrift_core::{Transport, Wire};
use pilota::thrift::{
    Message, ProtocolExceptionKind, TLengthProtocol, ThriftException, new_protocol_exception,
};

/// Message types. Others are refused.
pub(crate) const CALL: u8 = 1;
pub(crate) const REPLY: u8 = 2;
pub(crate) const EXCEPTION: u8 = 3;
pub(crate) const ONEWAY: u8 = 4;

/// The maximum length of a function's name in bytes. Names in IDL are far shorter.
const NAME_LIMIT: usize = 4096;

/// Returns the sequence number of a client's call of this number. A connection carries one call at a time, so
/// 256 numbers suffice. Each has the end of a line in it in both encodings: a web server answers nothing before
/// one, and its answer names it.
pub(crate) fn sequence(number: u64) -> i32 {
    0x0140_0a00 | (number & 0xff) as i32
}

/// A message's head. The name is a byte string, since it is only compared and sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: u8,
    pub(crate) sequence: i32,
    /// Whether the head has the old form of the binary encoding, without a version.
    pub(crate) old: bool,
}

fn bad_version(found: &[u8]) -> ThriftException {
    let text = format!("{found:02x?} does not begin a message of version 1 of the connection's protocol");
    new_protocol_exception(ProtocolExceptionKind::BadVersion, text)
}

/// Takes a name of `length` bytes. Returns `None` if it is cut off, and an error if it is too long.
fn name<'a>(rest: &mut &'a [u8], length: u64) -> Result<Option<&'a [u8]>, ThriftException> {
    let length = usize::try_from(length).ok().filter(|length| *length <= NAME_LIMIT).ok_or_else(|| {
        let text =
            format!("a function's name is said to have {length} bytes; at most {NAME_LIMIT} are taken");
        new_protocol_exception(ProtocolExceptionKind::SizeLimit, text)
    })?;
    let Some((name, left)) = rest.split_at_checked(length) else { return Ok(None) };
    *rest = left;
    Ok(Some(name))
}

fn word(rest: &mut &[u8]) -> Option<u32> {
    let (word, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(u32::from_be_bytes(*word))
}

impl<'a> Head<'a> {
    /// Reads a head and returns it with its length; `None` while it is cut off.
    pub(crate) fn read(
        encoding: Encoding,
        bytes: &'a [u8],
    ) -> Result<Option<(Self, usize)>, ThriftException> {
        let mut rest = bytes;
        let head = match encoding {
            Encoding::Binary => Self::read_binary(&mut rest)?,
            Encoding::Compact => Self::read_compact(&mut rest)?,
        };
        Ok(head.map(|head| (head, bytes.len() - rest.len())))
    }

    fn read_binary(rest: &mut &'a [u8]) -> Result<Option<Self>, ThriftException> {
        let Some(first) = word(rest) else { return Ok(None) };
        let old = first & 0x8000_0000 == 0;
        let length = match first >> 16 {
            _ if old => Some(first),
            0x8001 => word(rest),
            _ => return Err(bad_version(&first.to_be_bytes())),
        };
        let Some(length) = length else { return Ok(None) };
        let Some(name) = name(rest, length.into())? else { return Ok(None) };
        let kind = if old {
            let Some((kind, left)) = rest.split_first() else { return Ok(None) };
            *rest = left;
            *kind
        } else {
            first as u8
        };
        Ok(word(rest).map(|sequence| Head { name, kind, sequence: sequence as i32, old }))
    }

    fn read_compact(rest: &mut &'a [u8]) -> Result<Option<Self>, ThriftException> {
        let Some((begin, left)) = rest.split_first_chunk::<2>() else { return Ok(None) };
        let [id, second] = *begin;
        if id != 0x82 || second & 0x1f != 1 {
            return Err(bad_version(begin));
        }
        *rest = left;
        let Some(sequence) = varint(rest)? else { return Ok(None) };
        let Some(length) = varint(rest)? else { return Ok(None) };
        let name = name(rest, length)?;
        Ok(name.map(|name| Head { name, kind: second >> 5, sequence: sequence as u32 as i32, old: false }))
    }

    fn write(&self, encoding: Encoding, out: &mut Outgoing<'_>) {
        let length = self.name.len() as u32;
        match encoding {
            Encoding::Binary if self.old => {
                out.extend(&length.to_be_bytes());
                out.extend(self.name);
                out.extend(&[self.kind]);
                out.extend(&self.sequence.to_be_bytes());
            }
            Encoding::Binary => {
                out.extend(&(0x8001_0000 | u32::from(self.kind)).to_be_bytes());
                out.extend(&length.to_be_bytes());
                out.extend(self.name);
                out.extend(&self.sequence.to_be_bytes());
            }
            Encoding::Compact => out.append_with(|out| {
                out.extend_from_slice(&[0x82, self.kind << 5 | 1]);
                CompactOutput::new(out).write_varint(self.sequence as u32);
                CompactOutput::new(out).write_varint(length);
                out.extend_from_slice(self.name);
            }),
        }
    }
}

/// The part of a message after its head. Its payloads live for `'s`.
pub(crate) trait Body<'s> {
    fn size<P: TLengthProtocol>(&self, protocol: &mut P) -> usize;
    fn encode<P: Output<'s>>(&self, protocol: &mut P) -> Result<(), ThriftException>;
}

/// A pilota message as a body.
pub(crate) struct OfMessage<M>(pub(crate) M);

impl<'s, M: Message> Body<'s> for OfMessage<M> {
    fn size<P: TLengthProtocol>(&self, protocol: &mut P) -> usize {
        self.0.size(protocol)
    }
    fn encode<P: Output<'s>>(&self, protocol: &mut P) -> Result<(), ThriftException> {
        self.0.encode(protocol)
    }
}

/// Appends a message of at most `limit` bytes; appends nothing on an error.
pub(crate) fn append<'s>(
    out: &mut Outgoing<'s>,
    wire: Wire,
    limit: usize,
    head: &Head<'_>,
    body: &impl Body<'s>,
) -> Result<(), ThriftException> {
    let start = out.len();
    let appended = try_append(out, wire, limit, head, body);
    if appended.is_err() {
        out.truncate(start);
    }
    appended
}

fn try_append<'s>(
    out: &mut Outgoing<'s>,
    wire: Wire,
    limit: usize,
    head: &Head<'_>,
    body: &impl Body<'s>,
) -> Result<(), ThriftException> {
    let framed = wire.transport == Transport::Framed;
    if framed {
        out.extend(&[0; 4]);
    }
    let (start, place) = (out.len(), out.place());
    head.write(wire.encoding, out);
    match wire.encoding {
        Encoding::Binary => {
            let size = body.size(&mut BinaryOutput::new(&mut []));
            check(out.len() - start + size, limit)?;
            if out.encode(size, |output| body.encode(output))? != 0 {
                let text = "the value changed while it was being encoded";
                return Err(new_protocol_exception(ProtocolExceptionKind::SizeLimit, text));
            }
        }
        Encoding::Compact => {
            out.append_with(|out| body.encode(&mut CompactOutput::new(out)))?;
            check(out.len() - start, limit)?;
        }
    }
    if framed {
        let length = (out.len() - start) as u32;
        out.at(place - 4..place).copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

fn check(length: usize, limit: usize) -> Result<(), ThriftException> {
    if length > limit {
        let text = format!(
            "a message of {length} bytes is over the limit of {limit}: raise message_limit on both sides"
        );
        return Err(new_protocol_exception(ProtocolExceptionKind::SizeLimit, text));
    }
    Ok(())
}
