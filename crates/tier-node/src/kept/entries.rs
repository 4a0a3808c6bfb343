//! The entries of a ledger that are not those of a state machine: the first byte of their keys, and their forms.

use super::Lineage;
use crate::lives::Life;
use crate::node::Known;
use dunlin_tier::process::Secret;
use dunlin_tier::{LmrId, NodeId};

pub(crate) const IDENTITY: u8 = b'I';
pub(crate) const KNOWN: u8 = b'K';
pub(crate) const FENCES: u8 = b'F';
pub(crate) const SETTLING: u8 = b'R';
pub(crate) const SESSION: u8 = b'S';
pub(crate) const GIVEN: u8 = b'G';
pub(crate) const PROCESS: u8 = b'P';
pub(crate) const PROCESS_HANDLE: u8 = b'p';
pub(crate) const PROCESS_DIRECT: u8 = b'd';

/// An entry of a ledger.
pub(crate) trait Decode: Sized {
    /// Reads an entry, without the byte of its table.
    fn decode(key: &[u8], value: &[u8]) -> Option<Self>;
}

/// Takes numbers from the front of bytes.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

pub(super) fn encode_identity(me: NodeId, name: &str, lineage: &Lineage, lengths: &[u64]) -> Vec<u8> {
    let mut value = me.0.to_le_bytes().to_vec();
    let Lineage { memory, generation, seed } = *lineage;
    for number in [memory, generation, seed, lengths.len() as u64].iter().chain(lengths) {
        value.extend_from_slice(&number.to_le_bytes());
    }
    value.extend_from_slice(name.as_bytes());
    value
}

pub(super) fn decode_identity(value: &[u8]) -> Option<(NodeId, String, Lineage, Vec<u64>)> {
    let mut numbers = Numbers(value);
    let me = NodeId(numbers.u16()?);
    let (memory, generation, seed) = (numbers.u64()?, numbers.u64()?, numbers.u64()?);
    let lineage = Lineage { memory, generation, seed };
    let count = numbers.u64()?;
    if count > crate::arena::MAX_EXTENTS as u64 {
        return None;
    }
    let lengths = (0..count).map(|_| numbers.u64()).collect::<Option<Vec<u64>>>()?;
    lengths.iter().try_fold(0u64, |sum, length| sum.checked_add(*length))?;
    Some((me, text(numbers.0)?, lineage, lengths))
}

pub(super) fn node_key(table: u8, node: NodeId) -> [u8; 3] {
    let [low, high] = node.0.to_le_bytes();
    [table, low, high]
}

fn node_of(key: &[u8]) -> Option<NodeId> {
    let mut numbers = Numbers(key);
    let node = NodeId(numbers.u16()?);
    numbers.end(node)
}

pub(super) fn known_value(Known { incarnation, fences }: Known) -> Vec<u8> {
    [incarnation, fences].iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub(super) fn decode_known(key: &[u8], value: &[u8]) -> Option<(NodeId, Known)> {
    let mut numbers = Numbers(value);
    let known = Known { incarnation: numbers.u64()?, fences: numbers.u64()? };
    numbers.end((node_of(key)?, known))
}

pub(super) fn decode_fences(key: &[u8], value: &[u8]) -> Option<(NodeId, u64)> {
    let mut numbers = Numbers(value);
    let fences = numbers.u64()?;
    numbers.end((node_of(key)?, fences))
}

pub(super) fn settling_key(LmrId { node, slot, generation }: LmrId) -> Vec<u8> {
    let mut key = node_key(SETTLING, node).to_vec();
    key.extend_from_slice(&slot.to_le_bytes());
    key.extend_from_slice(&generation.to_le_bytes());
    key
}

pub(super) fn decode_settling(key: &[u8]) -> Option<LmrId> {
    let mut numbers = Numbers(key);
    let id = LmrId { node: NodeId(numbers.u16()?), slot: numbers.u32()?, generation: numbers.u64()? };
    numbers.end(id)
}

/// Returns the key of a path of another node.
pub(crate) fn session_key(node: NodeId, path: u16) -> Vec<u8> {
    let mut key = node_key(SESSION, node).to_vec();
    key.extend_from_slice(&path.to_le_bytes());
    key
}

/// Returns the value of a process that may be at a copy.
pub(crate) fn life_value((process, start): Life) -> Vec<u8> {
    let mut value = process.to_le_bytes().to_vec();
    value.extend_from_slice(&start.to_le_bytes());
    value
}

/// Reads a path of another node, and its process.
pub(crate) fn decode_session(key: &[u8], value: &[u8]) -> Option<((NodeId, u16), Life)> {
    let (mut key, mut value) = (Numbers(key), Numbers(value));
    let (path, life) = ((NodeId(key.u16()?), key.u16()?), (value.u32()?, value.u64()?));
    key.end(())?;
    value.end((path, life))
}

/// An extent that a process was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptGiven {
    pub(crate) life: Life,
    pub(crate) extent: u16,
}

impl KeptGiven {
    pub(crate) fn key(self) -> Vec<u8> {
        let mut key = vec![GIVEN];
        key.extend_from_slice(&life_value(self.life));
        key.extend_from_slice(&self.extent.to_le_bytes());
        key
    }
}

impl Decode for KeptGiven {
    fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let mut numbers = Numbers(key);
        let (life, extent) = ((numbers.u32()?, numbers.u64()?), numbers.u16()?);
        numbers.end(KeptGiven { life, extent }).filter(|_| value.is_empty())
    }
}

/// A process that was attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptProcess {
    pub(crate) secret: Secret,
    pub(crate) life: Life,
    pub(crate) user: u32,
    pub(crate) principal: String,
}

impl KeptProcess {
    pub(crate) fn key(secret: &Secret) -> Vec<u8> {
        [&[PROCESS][..], secret].concat()
    }

    pub(crate) fn value(&self) -> Vec<u8> {
        let mut value = life_value(self.life);
        value.extend_from_slice(&self.user.to_le_bytes());
        value.extend_from_slice(self.principal.as_bytes());
        value
    }
}

impl Decode for KeptProcess {
    fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let mut numbers = Numbers(value);
        let (life, user) = ((numbers.u32()?, numbers.u64()?), numbers.u32()?);
        Some(KeptProcess { secret: key.try_into().ok()?, life, user, principal: text(numbers.0)? })
    }
}

/// A handle of a process, or its direct mapping, and the handle of the node behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptNumber {
    pub(crate) secret: Secret,
    /// The number that the process has.
    pub(crate) number: u64,
    /// The handle of the node.
    pub(crate) region: u64,
}

impl KeptNumber {
    /// Returns the key in one of the tables [`PROCESS_HANDLE`] and [`PROCESS_DIRECT`].
    pub(crate) fn key(table: u8, secret: &Secret, number: u64) -> Vec<u8> {
        let mut key = vec![table];
        key.extend_from_slice(secret);
        key.extend_from_slice(&number.to_be_bytes());
        key
    }
}

impl Decode for KeptNumber {
    fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let (secret, number) = key.split_first_chunk::<16>()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        let mut numbers = Numbers(value);
        let region = numbers.u64()?;
        numbers.end(KeptNumber { secret: *secret, number, region })
    }
}
