//! Extensions: optional parts of a record. They follow the record's last field and fill the rest of its body;
//! a record without extensions has no bytes there.
//!
//! | bytes | content |
//! |---|---|
//! | 0..2 | number; bit 15 lets a peer that does not know the number skip the extension |
//! | 2..4 | length of the value |
//! | 4.. | value |
//!
//! A new extension is a variant of [`Extension`], its number and its records in [`KNOWN`], and the encoding of
//! its value. The number decides once whether the extension may be skipped, so each extension has one encoding.

use super::alloc::borrow::ToOwned;
use super::alloc::string::String;
use super::alloc::vec::Vec;
use super::codec::{Reader, Writer};
use super::error::HandshakeError;
use super::frame::RecordType;
use super::{MAX_EXTENSION_BYTES, MAX_EXTENSIONS, MAX_PROGRAM_BYTES};

/// The bit of an extension's number that lets a peer skip the extension if it does not know the number.
/// Without the bit the peer refuses the record.
pub const SKIPPABLE: u16 = 0x8000;

const CLIENT: u16 = SKIPPABLE | 1;
const PROGRAM: u16 = SKIPPABLE | 2;
const CREDITS: u16 = 3;
const RENEWED_APART: u16 = 4;
const ACTIVE_QUEUE_PAIRS: u16 = SKIPPABLE | 5;
const OCCUPANCY: u16 = SKIPPABLE | 6;
const REQUEST_RING: u16 = 7;
const CONNECTIONS: u16 = SKIPPABLE | 8;
const CONTROL_LINE: u16 = 9;

/// The numbers that this build knows, each with the records in which it may stand.
const KNOWN: [(u16, &[RecordType]); 9] = [
    (CLIENT, &[RecordType::Hello]),
    (PROGRAM, &[RecordType::Hello]),
    (CREDITS, &[RecordType::OpenLane]),
    (RENEWED_APART, &[RecordType::OpenLane]),
    (ACTIVE_QUEUE_PAIRS, &[RecordType::HelloReply]),
    (OCCUPANCY, &[RecordType::HelloReply]),
    (REQUEST_RING, &[RecordType::LaneReady]),
    (CONNECTIONS, &[RecordType::HelloReply]),
    (CONTROL_LINE, &[RecordType::LaneReady]),
];

/// One extension of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extension {
    /// In `Hello`: the identity of the client. All connections of one client have the same one, which the
    /// client drew at random.
    Client(u64),
    /// In `Hello`: the name of the client's program, at most [`MAX_PROGRAM_BYTES`] bytes of UTF-8. It comes
    /// from a peer: escape it before printing.
    Program(String),
    /// In `OpenLane`: the calls on the lane are counted by credits (FLOCK section 5.1). The value is C: the calls
    /// that the client may send at first, and after each grant.
    Credits(u8),
    /// In `OpenLane`, beside [`Credits`](Extension::Credits): the client asks for more credits by WRITE_WITH_IMM
    /// (FLOCK section 7), and not in the header of a request. No value.
    RenewedApart,
    /// In `HelloReply`: the number of queue pairs that the server keeps active (MAX_AQP of FLOCK section 5.1).
    ActiveQueuePairs(u32),
    /// In `HelloReply`: the clients on the server's host and the cores that they share with the server's workers.
    /// Workers wait adaptively under busy plans if they and the clients outnumber the cores.
    Occupancy {
        /// The number of clients, the receiver included.
        clients: u32,
        /// The number of cores.
        cores: u32,
    },
    /// In `LaneReady`: the ring of requests lies in a region with those of other lanes. The key of the region is
    /// the last of the granted ones.
    RequestRing {
        /// Offset of the ring in the region, in bytes.
        offset: u64,
        /// Bytes of the ring's blocks: each message takes whole blocks.
        block: u32,
    },
    /// In `HelloReply`: the connections of the server, that of the receiver included.
    Connections(u32),
    /// In `LaneReady`: the lane's control line lies in the first of the granted regions with those of other lanes
    /// (ScaleRPC section 3.3). The value is its offset there, in bytes.
    ControlLine(u64),
    /// An extension that this build does not know and may skip.
    Skipped {
        /// The number, with [`SKIPPABLE`].
        number: u16,
        /// The value, at most [`MAX_EXTENSION_BYTES`] bytes.
        value: Vec<u8>,
    },
}

impl Extension {
    /// Returns the number, with its [`SKIPPABLE`] bit.
    pub const fn number(&self) -> u16 {
        match self {
            Extension::Client(_) => CLIENT,
            Extension::Program(_) => PROGRAM,
            Extension::Credits(_) => CREDITS,
            Extension::RenewedApart => RENEWED_APART,
            Extension::ActiveQueuePairs(_) => ACTIVE_QUEUE_PAIRS,
            Extension::Occupancy { .. } => OCCUPANCY,
            Extension::RequestRing { .. } => REQUEST_RING,
            Extension::Connections(_) => CONNECTIONS,
            Extension::ControlLine(_) => CONTROL_LINE,
            Extension::Skipped { number, .. } => *number,
        }
    }

    /// Checks whether an extension with this number may stand in a record. Returns whether the number is known.
    fn check(number: u16, record: RecordType) -> Result<bool, HandshakeError> {
        match KNOWN.iter().find(|(known, _)| *known == number) {
            Some((_, records)) if records.contains(&record) => Ok(true),
            Some(_) => Err(HandshakeError::MisplacedExtension { number, record }),
            None if number & SKIPPABLE != 0 => Ok(false),
            None => Err(HandshakeError::UnknownExtension { number, record, lane: None }),
        }
    }

    fn read(number: u16, value: &[u8], record: RecordType) -> Result<Extension, HandshakeError> {
        if !Extension::check(number, record)? {
            return Ok(Extension::Skipped { number, value: value.to_owned() });
        }
        let mut reader = Reader::new(value);
        let wrong = HandshakeError::ExtensionLength { number, length: value.len() };
        let extension = match number {
            CLIENT => Extension::Client(reader.u64("client").map_err(|_| wrong.clone())?),
            CREDITS => Extension::Credits(reader.u8("credits").map_err(|_| wrong.clone())?),
            RENEWED_APART => Extension::RenewedApart,
            ACTIVE_QUEUE_PAIRS => {
                Extension::ActiveQueuePairs(reader.u32("active queue pairs").map_err(|_| wrong.clone())?)
            }
            OCCUPANCY => Extension::Occupancy {
                clients: reader.u32("clients").map_err(|_| wrong.clone())?,
                cores: reader.u32("cores").map_err(|_| wrong.clone())?,
            },
            REQUEST_RING => Extension::RequestRing {
                offset: reader.u64("offset").map_err(|_| wrong.clone())?,
                block: reader.u32("block").map_err(|_| wrong.clone())?,
            },
            CONNECTIONS => Extension::Connections(reader.u32("connections").map_err(|_| wrong.clone())?),
            CONTROL_LINE => Extension::ControlLine(reader.u64("control line").map_err(|_| wrong.clone())?),
            _ => Extension::Program(reader.rest_as_text("program", MAX_PROGRAM_BYTES)?),
        };
        reader.finish().map_err(|_| wrong)?;
        Ok(extension)
    }

    fn write(&self, writer: &mut Writer) -> Result<(), HandshakeError> {
        writer.u16(self.number());
        match self {
            Extension::Client(client) => writer.bytes("client", &client.to_le_bytes(), MAX_EXTENSION_BYTES),
            Extension::Program(name) => writer.bytes("program", name.as_bytes(), MAX_PROGRAM_BYTES),
            Extension::Credits(credits) => writer.bytes("credits", &[*credits], MAX_EXTENSION_BYTES),
            Extension::RenewedApart => writer.bytes("renewed apart", &[], MAX_EXTENSION_BYTES),
            Extension::ActiveQueuePairs(number) => {
                writer.bytes("active queue pairs", &number.to_le_bytes(), MAX_EXTENSION_BYTES)
            }
            Extension::Occupancy { clients, cores } => {
                let [a, b, c, d] = clients.to_le_bytes();
                let [e, f, g, h] = cores.to_le_bytes();
                writer.bytes("occupancy", &[a, b, c, d, e, f, g, h], MAX_EXTENSION_BYTES)
            }
            Extension::RequestRing { offset, block } => {
                let value = [&offset.to_le_bytes()[..], &block.to_le_bytes()].concat();
                writer.bytes("request ring", &value, MAX_EXTENSION_BYTES)
            }
            Extension::Connections(number) => {
                writer.bytes("connections", &number.to_le_bytes(), MAX_EXTENSION_BYTES)
            }
            Extension::ControlLine(offset) => {
                writer.bytes("control line", &offset.to_le_bytes(), MAX_EXTENSION_BYTES)
            }
            Extension::Skipped { value, .. } => writer.bytes("extension", value, MAX_EXTENSION_BYTES),
        }
    }
}

/// The extensions of a record, in the order in which they travel: at most [`MAX_EXTENSIONS`], each number once.
/// Encoding checks both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extensions(pub Vec<Extension>);

impl Extensions {
    /// Returns the identity of the client, if the client gave it.
    pub fn client(&self) -> Option<u64> {
        self.0.iter().find_map(|extension| match extension {
            Extension::Client(client) => Some(*client),
            _ => None,
        })
    }

    /// Returns C of a lane whose calls are counted by credits.
    pub fn credits(&self) -> Option<u8> {
        self.0.iter().find_map(|extension| match extension {
            Extension::Credits(credits) => Some(*credits),
            _ => None,
        })
    }

    /// Returns whether the client asks for more credits by WRITE_WITH_IMM.
    pub fn is_renewed_apart(&self) -> bool {
        self.0.contains(&Extension::RenewedApart)
    }

    /// Returns the number of queue pairs that the server keeps active, if the server said it.
    pub fn active_queue_pairs(&self) -> Option<u32> {
        self.0.iter().find_map(|extension| match extension {
            Extension::ActiveQueuePairs(number) => Some(*number),
            _ => None,
        })
    }

    /// Returns the clients on the server's host and the cores, if the server said them.
    pub fn occupancy(&self) -> Option<(u32, u32)> {
        self.0.iter().find_map(|extension| match extension {
            Extension::Occupancy { clients, cores } => Some((*clients, *cores)),
            _ => None,
        })
    }

    /// Returns the number of connections of the server, if the server said it.
    pub fn connections(&self) -> Option<u32> {
        self.0.iter().find_map(|extension| match extension {
            Extension::Connections(number) => Some(*number),
            _ => None,
        })
    }

    /// Returns the offset of the ring of requests in the region that it shares with others, and the bytes of its
    /// blocks.
    pub fn request_ring(&self) -> Option<(u64, u32)> {
        self.0.iter().find_map(|extension| match extension {
            Extension::RequestRing { offset, block } => Some((*offset, *block)),
            _ => None,
        })
    }

    /// Returns the offset of the lane's control line in the region that it shares with others.
    pub fn control_line(&self) -> Option<u64> {
        self.0.iter().find_map(|extension| match extension {
            Extension::ControlLine(offset) => Some(*offset),
            _ => None,
        })
    }

    /// Returns the name of the client's program, if the client gave it.
    pub fn program(&self) -> Option<&str> {
        self.0.iter().find_map(|extension| match extension {
            Extension::Program(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Reads the extensions that fill the rest of a record's body.
    pub(super) fn read(reader: &mut Reader<'_>, record: RecordType) -> Result<Extensions, HandshakeError> {
        let mut read = Extensions::default();
        while !reader.is_empty() {
            read.check_room()?;
            let number = reader.u16("extension")?;
            let value = reader.bytes("extension", MAX_EXTENSION_BYTES)?;
            read.check_new(number)?;
            read.0.push(Extension::read(number, value, record)?);
        }
        Ok(read)
    }

    /// Appends the extensions to a record.
    pub(super) fn write(&self, writer: &mut Writer, record: RecordType) -> Result<(), HandshakeError> {
        let mut written = Extensions::default();
        for extension in &self.0 {
            written.check_room()?;
            let number = extension.number();
            written.check_new(number)?;
            let known = Extension::check(number, record)?;
            if known == matches!(extension, Extension::Skipped { .. }) {
                return Err(HandshakeError::MisplacedExtension { number, record });
            }
            extension.write(writer)?;
            written.0.push(extension.clone());
        }
        Ok(())
    }

    fn check_room(&self) -> Result<(), HandshakeError> {
        let (length, limit) = (self.0.len() + 1, MAX_EXTENSIONS);
        if length > limit {
            return Err(HandshakeError::FieldTooLong { field: "extensions", length, limit });
        }
        Ok(())
    }

    fn check_new(&self, number: u16) -> Result<(), HandshakeError> {
        if self.0.iter().any(|before| before.number() == number) {
            return Err(HandshakeError::RepeatedExtension { number });
        }
        Ok(())
    }
}

impl<const N: usize> From<[Extension; N]> for Extensions {
    fn from(extensions: [Extension; N]) -> Self {
        Extensions(extensions.into())
    }
}
