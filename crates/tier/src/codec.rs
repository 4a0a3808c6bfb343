//! The fields of messages, in little-endian order.

use crate::cut::{Layout, MAX_PIECES};
use crate::message::{IDS_AT_ONCE, Malformed};
use crate::name::Name;
use crate::place::{LmrId, NodeId, Piece};
use crate::qos::Priority;
use crate::record::{Keepers, Listed, Listing, MAX_KEEPERS};
use crate::rights::{Grantee, Grants, MAX_GRANTS, Principal, Rights};

/// The bytes of a listed region with a name of one byte.
const SHORTEST_LISTED: usize = 2 + 8 + 1;

/// Builds a message.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn new(kind: u8) -> Writer {
        Writer(vec![kind])
    }
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    pub(crate) fn id(self, id: LmrId) -> Self {
        self.u16(id.node.0).u32(id.slot).u64(id.generation)
    }
    /// At most [`IDS_AT_ONCE`].
    pub(crate) fn ids(self, ids: &[LmrId]) -> Self {
        ids.iter().fold(self.u16(ids.len() as u16), |writer, id| writer.id(*id))
    }
    /// At most 255 bytes.
    pub(crate) fn text(mut self, bytes: &[u8]) -> Self {
        debug_assert!(bytes.len() <= 255);
        self.0.push(bytes.len() as u8);
        self.0.extend_from_slice(bytes);
        self
    }
    /// Bytes of any length.
    pub(crate) fn blob(mut self, bytes: &[u8]) -> Self {
        self = self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self
    }
    pub(crate) fn keepers(self, keepers: &Keepers) -> Self {
        let writer = self.u8(keepers.count() as u8);
        keepers.iter().fold(writer, |writer, keeper| writer.u16(keeper.0))
    }
    pub(crate) fn rights(self, rights: Rights) -> Self {
        self.u8(rights.bits())
    }
    pub(crate) fn priority(self, priority: Priority) -> Self {
        self.u8(priority as u8)
    }
    /// A principal, or no byte for anyone.
    pub(crate) fn grantee(self, to: &Grantee) -> Self {
        match to {
            Grantee::Anyone => self.text(&[]),
            Grantee::Principal(principal) => self.text(principal.as_str().as_bytes()),
        }
    }
    pub(crate) fn grants(mut self, grants: &Grants) -> Self {
        self = self.u8(grants.iter().count() as u8);
        for (grantee, rights) in grants.iter() {
            self = self.grantee(grantee).rights(rights);
        }
        self
    }
    pub(crate) fn listing(mut self, listing: &Listing) -> Self {
        self = self.u8(u8::from(listing.next.is_some())).u32(listing.next.unwrap_or_default());
        self = self.u16(listing.regions.len() as u16);
        for region in &listing.regions {
            self = self.text(region.name.as_bytes()).u64(region.length).rights(region.rights);
        }
        self
    }
    pub(crate) fn layout(mut self, layout: &Layout) -> Self {
        self = self.u32(layout.pieces().len() as u32);
        for piece in layout.pieces() {
            self = self.u16(piece.node.0).u16(piece.extent).u32(piece.length).u64(piece.offset);
        }
        self = self.u16(layout.memories().len() as u16);
        for (node, memory) in layout.memories() {
            self = self.u16(node.0).u64(*memory);
        }
        self
    }
}

/// Takes the fields of a message, without a panic and without an allocation that is larger than the bytes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.take()?))
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            flag @ (0 | 1) => Ok(flag == 1),
            _ => Err(Malformed),
        }
    }
    pub(crate) fn node(&mut self) -> Result<NodeId, Malformed> {
        Ok(NodeId(self.u16()?))
    }
    pub(crate) fn id(&mut self) -> Result<LmrId, Malformed> {
        Ok(LmrId { node: self.node()?, slot: self.u32()?, generation: self.u64()? })
    }
    pub(crate) fn ids(&mut self) -> Result<Vec<LmrId>, Malformed> {
        let count = usize::from(self.u16()?);
        if count > IDS_AT_ONCE {
            return Err(Malformed);
        }
        (0..count).map(|_| self.id()).collect()
    }
    pub(crate) fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::from(self.u8()?);
        let (text, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(text)
    }
    pub(crate) fn name(&mut self) -> Result<Name, Malformed> {
        Name::new(self.text()?).map_err(|_| Malformed)
    }
    pub(crate) fn principal(&mut self) -> Result<Principal, Malformed> {
        let text = std::str::from_utf8(self.text()?).map_err(|_| Malformed)?;
        Principal::new(text).map_err(|_| Malformed)
    }
    pub(crate) fn rights(&mut self) -> Result<Rights, Malformed> {
        Rights::from_bits(self.u8()?).ok_or(Malformed)
    }
    pub(crate) fn blob(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        self.0.split_off(..length).ok_or(Malformed)
    }
    pub(crate) fn keepers(&mut self) -> Result<Keepers, Malformed> {
        let count = usize::from(self.u8()?);
        if !(1..=MAX_KEEPERS).contains(&count) {
            return Err(Malformed);
        }
        let mut keepers = Keepers::new(self.node()?);
        for _ in 1..count {
            if !keepers.add(self.node()?) {
                return Err(Malformed);
            }
        }
        Ok(keepers)
    }
    pub(crate) fn priority(&mut self) -> Result<Priority, Malformed> {
        match self.u8()? {
            0 => Ok(Priority::Low),
            1 => Ok(Priority::High),
            _ => Err(Malformed),
        }
    }
    /// At most as many bytes as a text has: UTF-8.
    pub(crate) fn string(&mut self) -> Result<String, Malformed> {
        Ok(std::str::from_utf8(self.text()?).map_err(|_| Malformed)?.to_owned())
    }
    pub(crate) fn grantee(&mut self) -> Result<Grantee, Malformed> {
        if let [0, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(Grantee::Anyone);
        }
        Ok(Grantee::Principal(self.principal()?))
    }
    pub(crate) fn grants(&mut self) -> Result<Grants, Malformed> {
        let count = usize::from(self.u8()?);
        if count > MAX_GRANTS {
            return Err(Malformed);
        }
        let grants = (0..count).map(|_| Ok((self.grantee()?, self.rights()?)));
        Ok(Grants::recovered(grants.collect::<Result<Vec<_>, Malformed>>()?))
    }
    pub(crate) fn listing(&mut self) -> Result<Listing, Malformed> {
        let (more, next, count) = (self.flag()?, self.u32()?, usize::from(self.u16()?));
        if (!more && next != 0) || count > self.0.len() / SHORTEST_LISTED {
            return Err(Malformed);
        }
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            regions.push(Listed { name: self.name()?, length: self.u64()?, rights: self.rights()? });
        }
        Ok(Listing { regions, next: more.then_some(next) })
    }
    pub(crate) fn layout(&mut self) -> Result<Layout, Malformed> {
        let count = self.u32()? as usize;
        if count > MAX_PIECES || count > self.0.len() / size_of::<Piece>() {
            return Err(Malformed);
        }
        let mut pieces = Vec::with_capacity(count);
        for _ in 0..count {
            let (node, extent) = (self.node()?, self.u16()?);
            pieces.push(Piece { node, extent, length: self.u32()?, offset: self.u64()? });
        }
        let layout = Layout::new(pieces).map_err(|_| Malformed)?;
        let count = usize::from(self.u16()?);
        if count > self.0.len() / (size_of::<NodeId>() + size_of::<u64>()) {
            return Err(Malformed);
        }
        let memories = (0..count).map(|_| Ok((self.node()?, self.u64()?)));
        let layout = layout.in_memories(memories.collect::<Result<Vec<_>, Malformed>>()?);
        if layout.memories().len() == count { Ok(layout) } else { Err(Malformed) }
    }
    pub(crate) fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { Err(Malformed) }
    }
}
