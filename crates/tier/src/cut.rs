//! The layout of a region over pieces, and the cutting of one operation into parts that lie in one piece each.

use crate::place::{NodeId, Piece};
use std::sync::Arc;
use thiserror::Error;

/// The longest piece that a layout may have, in bytes.
pub const MAX_PIECE: u32 = 1 << 30;
/// The most pieces of a region: 1 TiB in pieces of 4 MiB.
pub const MAX_PIECES: usize = 1 << 18;

/// The reason why pieces are not a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// There are no pieces, or too many.
    #[error("a region has 1 to {MAX_PIECES} pieces, not {0}")]
    Count(usize),
    /// A piece has a length that differs from the first one's, or the last piece is longer.
    #[error("piece {0} has a length of its own: all pieces but the last are equally long")]
    Uneven(usize),
    /// A piece is empty, too long, or its end overflows.
    #[error("piece {0} cannot be a piece: it has 1 byte to 1 GiB, and its end does not overflow")]
    Piece(usize),
}

/// The places of a region's bytes: pieces of equal length, the last one possibly shorter. So the piece of an
/// offset is found by one division.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    pieces: Arc<[Piece]>,
    /// The memory of each node that stores pieces, by a random number, in the order of the nodes. One word, so that a handle
    /// is a line.
    memories: Option<Arc<Vec<(NodeId, u64)>>>,
}

impl Layout {
    /// Checks pieces and makes a layout. The pieces may come from another node.
    pub fn new(pieces: Vec<Piece>) -> Result<Layout, LayoutError> {
        let Some(first) = pieces.first() else { return Err(LayoutError::Count(0)) };
        if pieces.len() > MAX_PIECES {
            return Err(LayoutError::Count(pieces.len()));
        }
        let (stride, last) = (first.length, pieces.len() - 1);
        for (number, piece) in pieces.iter().enumerate() {
            let end = piece.offset.checked_add(u64::from(piece.length));
            if piece.length == 0 || piece.length > MAX_PIECE || end.is_none() {
                return Err(LayoutError::Piece(number));
            }
            if piece.length != stride && !(number == last && piece.length < stride) {
                return Err(LayoutError::Uneven(number));
            }
        }
        Ok(Layout { pieces: pieces.into(), memories: None })
    }

    /// Adds the numbers of the memories in which the pieces are. A node that restarts has another memory, unless a keeper has
    /// kept it: a layout with another number names bytes that are gone. Of nodes that store no piece, nothing is added.
    #[must_use]
    pub fn in_memories(self, memories: impl IntoIterator<Item = (NodeId, u64)>) -> Layout {
        let nodes = self.nodes();
        let stores = |node: NodeId| nodes.binary_search(&node).is_ok();
        let mut memories: Vec<(NodeId, u64)> =
            memories.into_iter().filter(|(node, _)| stores(*node)).collect();
        memories.sort_unstable();
        memories.dedup_by_key(|(node, _)| *node);
        Layout { memories: (!memories.is_empty()).then(|| Arc::new(memories)), ..self }
    }

    /// Returns the nodes that store pieces with the numbers of their memories, as far as they are known.
    pub fn memories(&self) -> &[(NodeId, u64)] {
        self.memories.as_ref().map_or(&[], |memories| memories)
    }

    /// Returns the pieces in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the region's length in bytes.
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.length)).sum()
    }

    /// Returns the nodes that store pieces, each once, in ascending order.
    pub fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.pieces.iter().map(|piece| piece.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Cuts `length` bytes at `offset` at the bounds of pieces and after `step` bytes. The caller has checked
    /// the range; parts beyond the region do not appear.
    pub fn cut(&self, offset: u64, length: u64, step: u32) -> Cuts<'_> {
        let stride = u64::from(self.pieces.first().map_or(1, |piece| piece.length.max(1)));
        let number = usize::try_from(offset / stride).unwrap_or(usize::MAX);
        Cuts { pieces: &self.pieces, number, skip: offset % stride, at: 0, left: length, step: step.max(1) }
    }

    /// Returns the place of an aligned word, or `None` if its 8 bytes are not in one piece.
    pub fn word(&self, offset: u64) -> Option<Cut> {
        self.cut(offset, 8, 8).next().filter(|cut| cut.length == 8)
    }
}

/// A part of an operation that lies in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The node that stores the bytes.
    pub node: NodeId,
    /// The extent of that node's arena.
    pub extent: u16,
    /// The offset in the extent, in bytes.
    pub offset: u64,
    /// The length in bytes.
    pub length: u32,
    /// The position in the caller's buffer, in bytes.
    pub at: u64,
}

/// The parts of an operation, in the order of the caller's buffer. The default value is an operation without parts.
#[derive(Clone, Debug, Default)]
pub struct Cuts<'a> {
    pieces: &'a [Piece],
    number: usize,
    /// Bytes of the piece that are before the next part.
    skip: u64,
    at: u64,
    left: u64,
    step: u32,
}

impl Iterator for Cuts<'_> {
    type Item = Cut;

    #[inline]
    fn next(&mut self) -> Option<Cut> {
        if self.left == 0 {
            return None;
        }
        let piece = self.pieces.get(self.number)?;
        let room = u64::from(piece.length).saturating_sub(self.skip);
        if room == 0 {
            return None;
        }
        // At most `step`, so the number fits 32 bits.
        let length = self.left.min(room).min(u64::from(self.step));
        let cut = Cut {
            node: piece.node,
            extent: piece.extent,
            offset: piece.offset + self.skip,
            length: length as u32,
            at: self.at,
        };
        self.at += length;
        self.left -= length;
        self.skip += length;
        if self.skip == u64::from(piece.length) {
            self.number += 1;
            self.skip = 0;
        }
        Some(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(node: u16, offset: u64, length: u32) -> Piece {
        Piece { node: NodeId(node), extent: 0, length, offset }
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        assert_eq!(Layout::new(vec![]), Err(LayoutError::Count(0)));
        assert_eq!(Layout::new(vec![piece(0, 0, 0)]), Err(LayoutError::Piece(0)));
        assert_eq!(Layout::new(vec![piece(0, 0, MAX_PIECE + 1)]), Err(LayoutError::Piece(0)));
        assert_eq!(Layout::new(vec![piece(0, 0, 8), piece(0, u64::MAX - 6, 8)]), Err(LayoutError::Piece(1)));
        assert_eq!(
            Layout::new(vec![piece(0, 0, 8), piece(0, 8, 7), piece(0, 16, 8)]),
            Err(LayoutError::Uneven(1))
        );
        assert_eq!(Layout::new(vec![piece(0, 0, 8), piece(0, 8, 9)]), Err(LayoutError::Uneven(1)));
        assert_eq!(
            Layout::new(vec![piece(0, 0, 1); MAX_PIECES + 1]),
            Err(LayoutError::Count(MAX_PIECES + 1))
        );
    }

    #[test]
    fn words_lie_in_one_piece() {
        let layout = Layout::new(vec![piece(1, 64, 12), piece(2, 0, 12)]).unwrap();
        assert_eq!(layout.word(0).map(|cut| (cut.node, cut.offset)), Some((NodeId(1), 64)));
        assert_eq!(layout.word(8), None);
        assert_eq!(layout.word(16).map(|cut| (cut.node, cut.offset)), Some((NodeId(2), 4)));
        assert_eq!(layout.word(24), None);
        assert_eq!(layout.nodes(), [NodeId(1), NodeId(2)]);
    }

    proptest! {
        /// The parts are the bytes of the range, in order, each in its own piece, none longer than a step.
        #[test]
        fn cuts_cover_the_range_exactly(stride in 1u32..200, whole in 0usize..6, last in 1u32..200, offset in 0u64..1500, length in 0u64..1500, step in 1u32..300) {
            let mut pieces: Vec<Piece> = (0..whole).map(|number| piece(number as u16, number as u64 * 1000, stride)).collect();
            pieces.push(piece(whole as u16, whole as u64 * 1000, last.min(stride)));
            let layout = Layout::new(pieces).unwrap();
            // The place of each byte of the region, by the definition.
            let bytes: Vec<(u16, u64)> = layout.pieces().iter()
                .flat_map(|piece| (0..u64::from(piece.length)).map(move |at| (piece.node.0, piece.offset + at))).collect();
            prop_assert_eq!(bytes.len() as u64, layout.length());
            let (begin, end) = (offset.min(layout.length()), (offset + length).min(layout.length()));
            let (mut found, mut at) = (Vec::new(), 0);
            for cut in layout.cut(offset, length, step) {
                prop_assert!(cut.length >= 1 && cut.length <= step && cut.at == at);
                at += u64::from(cut.length);
                found.extend((0..u64::from(cut.length)).map(|byte| (cut.node.0, cut.offset + byte)));
            }
            prop_assert_eq!(&found[..], &bytes[begin as usize..end as usize]);
        }
    }
}
