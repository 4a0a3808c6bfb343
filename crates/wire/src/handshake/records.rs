//! The records, field by field in wire order.
//!
//! Values that belong to the engine (request and response halves, completion modes, purposes of grants,
//! capability bits) are plain numbers here. The engine checks their meaning and their legal combinations.

use super::alloc::string::String;
use super::alloc::vec::Vec;
use super::codec::{Reader, Writer};
use super::error::HandshakeError;
use super::extensions::Extensions;
use super::frame::RecordType;
use super::{
    MAX_ENDPOINT_BYTES, MAX_REGION_KEYS, MAX_REGION_NAME_BYTES, MAX_SERVICE_BYTES, MAX_TEXT_BYTES,
    MAX_TOKEN_BYTES,
};
use crate::LINE;
use core::fmt;

type Result<T> = core::result::Result<T, HandshakeError>;

/// The 16 random bytes that a lane's tags are derived from. `Debug` does not print them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// The client's authentication token, at most 255 bytes. `Debug` prints only its length.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Token(pub Vec<u8>);

impl Token {
    /// Compares the token with `expected`, in a time that does not depend on the position of the first
    /// difference.
    pub fn matches(&self, expected: &[u8]) -> bool {
        let difference = self.0.iter().zip(expected).fold(0, |seen, (mine, theirs)| seen | (mine ^ theirs));
        self.0.len() == expected.len() && core::hint::black_box(difference) == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Token({} bytes)", self.0.len())
    }
}

/// The client's first record on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Lowest version that the client supports.
    pub min_version: u16,
    /// Highest version that the client supports.
    pub max_version: u16,
    /// Capabilities of the client's fabric and engine, one bit each.
    pub capabilities: u64,
    /// Process id of the client. Informational, for logs.
    pub process_id: u32,
    /// Name of the requested service, at most 255 bytes of UTF-8. It comes from a peer: escape it before
    /// printing.
    pub service: String,
    /// Authentication token, empty if none.
    pub token: Token,
    /// Optional parts.
    pub extensions: Extensions,
}

impl Hello {
    fn check(&self) -> Result<()> {
        let (lowest, highest) = (self.min_version, self.max_version);
        if lowest > highest { Err(HandshakeError::VersionRange { lowest, highest }) } else { Ok(()) }
    }

    pub(super) fn write(&self, writer: &mut Writer) -> Result<()> {
        self.check()?;
        writer.u16(self.min_version);
        writer.u16(self.max_version);
        writer.u64(self.capabilities);
        writer.u32(self.process_id);
        writer.bytes("service", self.service.as_bytes(), MAX_SERVICE_BYTES)?;
        writer.bytes("token", &self.token.0, MAX_TOKEN_BYTES)?;
        self.extensions.write(writer, RecordType::Hello)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Hello> {
        let hello = Hello {
            min_version: reader.u16("min_version")?,
            max_version: reader.u16("max_version")?,
            capabilities: reader.u64("capabilities")?,
            process_id: reader.u32("process_id")?,
            service: reader.text("service", MAX_SERVICE_BYTES)?,
            token: Token(reader.bytes("token", MAX_TOKEN_BYTES)?.to_vec()),
            extensions: Extensions::read(reader, RecordType::Hello)?,
        };
        hello.check()?;
        Ok(hello)
    }
}

/// The server's answer to a Hello that it accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloReply {
    /// The version that both sides will use.
    pub version: u16,
    /// Capabilities of the server's fabric and engine, one bit each.
    pub capabilities: u64,
    /// Number of workers that a lane can request.
    pub workers: u16,
    /// Number of functions of the service; all function ids are below it.
    pub functions: u32,
    /// Largest payload that the server accepts, in bytes.
    pub max_payload: u64,
    /// Session id, for logs and for reconnecting.
    pub session: u64,
    /// Optional parts.
    pub extensions: Extensions,
}

impl HelloReply {
    pub(super) fn write(&self, writer: &mut Writer) -> Result<()> {
        writer.u16(self.version);
        writer.u64(self.capabilities);
        writer.u16(self.workers);
        writer.u32(self.functions);
        writer.u64(self.max_payload);
        writer.u64(self.session);
        self.extensions.write(writer, RecordType::HelloReply)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<HelloReply> {
        Ok(HelloReply {
            version: reader.u16("version")?,
            capabilities: reader.u64("capabilities")?,
            workers: reader.u16("workers")?,
            functions: reader.u32("functions")?,
            max_payload: reader.u64("max_payload")?,
            session: reader.u64("session")?,
            extensions: Extensions::read(reader, RecordType::HelloReply)?,
        })
    }
}

/// The client's request for a lane: queue pair, request lease, response lease, completion modes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenLane {
    /// The lane's number, chosen by the client and unique on the connection.
    pub lane: u16,
    /// The worker to serve the lane, or [`OpenLane::ANY_WORKER`].
    pub worker: u16,
    /// Request half of the path, as the engine's number.
    pub request_half: u8,
    /// Response half of the path, as the engine's number.
    pub response_half: u8,
    /// How the client waits for completions.
    pub client_completion: u8,
    /// How the server waits for completions.
    pub server_completion: u8,
    /// Requested number of calls in flight.
    pub window: u16,
    /// Requested size of the ring that the client writes its requests into, in bytes; whole lines. 0 if the
    /// path has no ring.
    pub ring_bytes: u32,
    /// Payloads longer than this number of bytes are large, in both directions.
    pub rendezvous_above: u32,
    /// Transfer method of large payloads, as the engine's number.
    pub large: u8,
    /// How the threads of the client share the lane, as the engine's number.
    pub sharing: u8,
    /// How long the server's memory of the lane stays with the client, as the engine's number.
    pub lease: u8,
    /// The client's endpoint, in the fabric's encoding, at most 1024 bytes.
    pub endpoint: Vec<u8>,
    /// The client's endpoint of an unreliable connection; empty if there is none.
    pub unreliable_endpoint: Vec<u8>,
    /// The client's endpoint for datagrams; empty if it receives none.
    pub datagram_endpoint: Vec<u8>,
    /// Keys of the client's regions that the path needs, in the order that the path defines; at most 8.
    pub region_keys: Vec<u64>,
    /// Optional parts.
    pub extensions: Extensions,
}

impl OpenLane {
    /// Lets the server choose the worker.
    pub const ANY_WORKER: u16 = u16::MAX;

    pub(super) fn write(&self, writer: &mut Writer) -> Result<()> {
        check_ring(self.ring_bytes)?;
        writer.u16(self.lane);
        writer.u16(self.worker);
        writer.u8(self.request_half);
        writer.u8(self.response_half);
        writer.u8(self.client_completion);
        writer.u8(self.server_completion);
        writer.u16(self.window);
        writer.u32(self.ring_bytes);
        writer.u32(self.rendezvous_above);
        writer.u8(self.large);
        writer.u8(self.sharing);
        writer.u8(self.lease);
        writer.bytes("endpoint", &self.endpoint, MAX_ENDPOINT_BYTES)?;
        writer.bytes("unreliable_endpoint", &self.unreliable_endpoint, MAX_ENDPOINT_BYTES)?;
        writer.bytes("datagram_endpoint", &self.datagram_endpoint, MAX_ENDPOINT_BYTES)?;
        writer.words("region_keys", &self.region_keys, MAX_REGION_KEYS)?;
        self.extensions.write(writer, RecordType::OpenLane)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<OpenLane> {
        let lane = read_lane(reader)?;
        let open = OpenLane {
            lane,
            worker: reader.u16("worker")?,
            request_half: reader.u8("request_half")?,
            response_half: reader.u8("response_half")?,
            client_completion: reader.u8("client_completion")?,
            server_completion: reader.u8("server_completion")?,
            window: reader.u16("window")?,
            ring_bytes: reader.u32("ring_bytes")?,
            rendezvous_above: reader.u32("rendezvous_above")?,
            large: reader.u8("large")?,
            sharing: reader.u8("sharing")?,
            lease: reader.u8("lease")?,
            endpoint: reader.bytes("endpoint", MAX_ENDPOINT_BYTES)?.to_vec(),
            unreliable_endpoint: reader.bytes("unreliable_endpoint", MAX_ENDPOINT_BYTES)?.to_vec(),
            datagram_endpoint: reader.bytes("datagram_endpoint", MAX_ENDPOINT_BYTES)?.to_vec(),
            region_keys: reader.words("region_keys", MAX_REGION_KEYS)?,
            extensions: Extensions::read(reader, RecordType::OpenLane)
                .map_err(|error| error.of_lane(lane))?,
        };
        check_ring(open.ring_bytes)?;
        Ok(open)
    }
}

/// The server's parameters of an opened lane, with the resources that it grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneReady {
    /// The requested lane.
    pub lane: u16,
    /// The worker that serves the lane.
    pub worker: u16,
    /// Number of calls that may be in flight; at most the requested number.
    pub window: u16,
    /// Largest number of entries in a batch.
    pub max_batch_entries: u16,
    /// Size of the request ring, and limit of one message, in bytes; whole lines. 0 if the path has no
    /// ring.
    pub ring_bytes: u32,
    /// Longest message that the server accepts on this lane, in bytes; larger payloads use rendezvous.
    pub max_message_bytes: u32,
    /// The secret that the tags of both directions are derived from.
    pub secret: Secret,
    /// The server's endpoint, in the fabric's encoding, at most 1024 bytes.
    pub endpoint: Vec<u8>,
    /// The server's endpoint of an unreliable connection; empty if there is none.
    pub unreliable_endpoint: Vec<u8>,
    /// The worker's endpoint for datagrams, shared by all its lanes; empty if the path sends it none.
    pub datagram_endpoint: Vec<u8>,
    /// The worker's number for this lane; datagrams to the worker carry it.
    pub place: u16,
    /// Keys of the server's regions that the path needs, in the order that the path defines; at most 8.
    pub region_keys: Vec<u64>,
    /// Optional parts.
    pub extensions: Extensions,
}

impl LaneReady {
    pub(super) fn write(&self, writer: &mut Writer) -> Result<()> {
        check_ring(self.ring_bytes)?;
        writer.u16(self.lane);
        writer.u16(self.worker);
        writer.u16(self.window);
        writer.u16(self.max_batch_entries);
        writer.u32(self.ring_bytes);
        writer.u32(self.max_message_bytes);
        writer.raw(&self.secret.0);
        writer.bytes("endpoint", &self.endpoint, MAX_ENDPOINT_BYTES)?;
        writer.bytes("unreliable_endpoint", &self.unreliable_endpoint, MAX_ENDPOINT_BYTES)?;
        writer.bytes("datagram_endpoint", &self.datagram_endpoint, MAX_ENDPOINT_BYTES)?;
        writer.u16(self.place);
        writer.words("region_keys", &self.region_keys, MAX_REGION_KEYS)?;
        self.extensions.write(writer, RecordType::LaneReady)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<LaneReady> {
        let ready = LaneReady {
            lane: read_lane(reader)?,
            worker: reader.u16("worker")?,
            window: reader.u16("window")?,
            max_batch_entries: reader.u16("max_batch_entries")?,
            ring_bytes: reader.u32("ring_bytes")?,
            max_message_bytes: reader.u32("max_message_bytes")?,
            secret: Secret(reader.secret("secret")?),
            endpoint: reader.bytes("endpoint", MAX_ENDPOINT_BYTES)?.to_vec(),
            unreliable_endpoint: reader.bytes("unreliable_endpoint", MAX_ENDPOINT_BYTES)?.to_vec(),
            datagram_endpoint: reader.bytes("datagram_endpoint", MAX_ENDPOINT_BYTES)?.to_vec(),
            place: reader.u16("place")?,
            region_keys: reader.words("region_keys", MAX_REGION_KEYS)?,
            extensions: Extensions::read(reader, RecordType::LaneReady)?,
        };
        check_ring(ready.ring_bytes)?;
        Ok(ready)
    }
}

/// The reason of a refusal. Unknown numbers are kept and shown as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefusalCode(pub u16);

impl RefusalCode {
    /// The version ranges do not overlap; the text contains both.
    pub const VERSION: RefusalCode = RefusalCode(1);
    /// The token, or the peer's user, is not authorised.
    pub const UNAUTHORISED: RefusalCode = RefusalCode(2);
    /// The server has no service of that name.
    pub const UNKNOWN_SERVICE: RefusalCode = RefusalCode(3);
    /// The server's limit of connections or lanes is reached.
    pub const TOO_MANY: RefusalCode = RefusalCode(4);
    /// The plan of the lane is not legal on this server.
    pub const ILLEGAL_PLAN: RefusalCode = RefusalCode(5);
    /// Not enough memory for rings or regions.
    pub const NO_MEMORY: RefusalCode = RefusalCode(6);
    /// The server is shutting down.
    pub const DRAINING: RefusalCode = RefusalCode(7);
    /// A record was malformed or out of order.
    pub const MALFORMED: RefusalCode = RefusalCode(8);
    /// The server has no such worker.
    pub const UNKNOWN_WORKER: RefusalCode = RefusalCode(9);
    /// The fabric could not set up the lane; the text gives the reason.
    pub const FABRIC: RefusalCode = RefusalCode(10);
    /// The server does not have the sharing policy, or not the lease, that the lane asks for.
    pub const SHARING: RefusalCode = RefusalCode(11);
    /// The lane asks for an extension that the server does not know.
    pub const UNKNOWN_EXTENSION: RefusalCode = RefusalCode(12);
    /// The connection has no open lane with this number, or the lane is being closed already.
    pub const UNKNOWN_LANE: RefusalCode = RefusalCode(13);
    /// The connection has a lane with this number already.
    pub const LANE_IN_USE: RefusalCode = RefusalCode(14);
    /// The client has as many queue pairs as the server lets it use now (FLOCK section 5.1). It may ask later.
    pub const QUEUE_PAIRS: RefusalCode = RefusalCode(15);
}

/// Either side refuses to continue the connection, which ends after this record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The reason, as a number.
    pub code: RefusalCode,
    /// The reason as text, at most 512 bytes. It comes from a peer: escape it before printing.
    pub text: String,
}

impl Refused {
    pub(super) fn write(&self, writer: &mut Writer) -> Result<()> {
        writer.u16(self.code.0);
        writer.bytes("text", self.text.as_bytes(), MAX_TEXT_BYTES)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Refused> {
        Ok(Refused { code: RefusalCode(reader.u16("code")?), text: reader.text("text", MAX_TEXT_BYTES)? })
    }
}

/// The server refuses to open a lane. The connection continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneRefused {
    /// The requested lane.
    pub lane: u16,
    /// The reason, as a number.
    pub code: RefusalCode,
    /// The reason as text, at most 512 bytes. It comes from a peer: escape it before printing.
    pub text: String,
}

impl LaneRefused {
    pub(super) fn write(&self, writer: &mut Writer) -> Result<()> {
        writer.u16(self.lane);
        writer.u16(self.code.0);
        writer.bytes("text", self.text.as_bytes(), MAX_TEXT_BYTES)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<LaneRefused> {
        Ok(LaneRefused {
            lane: read_lane(reader)?,
            code: RefusalCode(reader.u16("code")?),
            text: reader.text("text", MAX_TEXT_BYTES)?,
        })
    }
}

/// The client's request for a region that the server exposes. The answer is a [`Grant`]; one of length 0 says that
/// there is no such region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// The region's name, at most [`MAX_REGION_NAME_BYTES`](super::MAX_REGION_NAME_BYTES) bytes.
    pub name: String,
}

impl Attach {
    pub(super) fn write(&self, writer: &mut Writer) -> Result<()> {
        writer.bytes("name", self.name.as_bytes(), MAX_REGION_NAME_BYTES)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Attach> {
        Ok(Attach { name: reader.text("name", MAX_REGION_NAME_BYTES)? })
    }
}

/// A region that the receiver of this record may access, in addition to those of the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Key of the region.
    pub key: u64,
    /// Length of the region, in bytes.
    pub length: u64,
    /// Purpose of the grant, as the engine's number.
    pub purpose: u8,
}

impl Grant {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u64(self.key);
        writer.u64(self.length);
        writer.u8(self.purpose);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Grant> {
        Ok(Grant { key: reader.u64("key")?, length: reader.u64("length")?, purpose: reader.u8("purpose")? })
    }
}

/// The server's final position in a lane: later requests were not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// The lane.
    pub lane: u16,
    /// Number of messages of the lane that the server has accepted. Calls in later messages were not
    /// executed.
    pub taken: u64,
}

impl Drained {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u16(self.lane);
        writer.u64(self.taken);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Drained> {
        Ok(Drained { lane: read_lane(reader)?, taken: reader.u64("taken")? })
    }
}

pub(super) fn write_lane(lane: u16, writer: &mut Writer) {
    writer.u16(lane);
}

pub(super) fn read_lane(reader: &mut Reader<'_>) -> Result<u16> {
    reader.u16("lane")
}

fn check_ring(bytes: u32) -> Result<()> {
    if (bytes as usize).is_multiple_of(LINE) { Ok(()) } else { Err(HandshakeError::RingBytes(bytes)) }
}
