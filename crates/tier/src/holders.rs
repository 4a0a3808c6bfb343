//! The processes and nodes that keep a region from being freed or moved.

use crate::codec::{Reader, Writer};
use crate::message::Malformed;
use crate::place::NodeId;
use std::fmt;

/// A node that uses a region, or a process of its host that has it mapped directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// The process id on the node's host; 0 for the process of the node itself.
    pub process: u32,
}

/// The most holders that are named.
const NAMED: usize = 4;

/// Holders of a region: the first few, and the number of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    named: [Holder; NAMED],
    count: u16,
}

impl Holders {
    /// Adds a holder.
    pub fn add(&mut self, holder: Holder) {
        if let Some(place) = self.named.get_mut(usize::from(self.count)) {
            *place = holder;
        }
        self.count = self.count.saturating_add(1);
    }

    /// Adds the holders of another node.
    pub fn join(&mut self, others: &Holders) {
        let before = self.count;
        others.named().iter().for_each(|holder| self.add(*holder));
        self.count = before.saturating_add(others.count);
    }

    /// Returns the first holders.
    pub fn named(&self) -> &[Holder] {
        &self.named[..NAMED.min(self.count.into())]
    }

    /// Returns the number of all holders.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Returns whether there is no holder.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn write(&self, mut writer: Writer) -> Writer {
        writer = writer.u16(self.count);
        for Holder { node, process } in self.named() {
            writer = writer.u16(node.0).u32(*process);
        }
        writer
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Holders, Malformed> {
        let mut holders = Holders { count: reader.u16()?, ..Holders::default() };
        for at in 0..holders.named().len() {
            holders.named[at] = Holder { node: reader.node()?, process: reader.u32()? };
        }
        Ok(holders)
    }
}

impl FromIterator<Holder> for Holders {
    fn from_iter<T: IntoIterator<Item = Holder>>(holders: T) -> Holders {
        let mut all = Holders::default();
        holders.into_iter().for_each(|holder| all.add(holder));
        all
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Holder { node, process }) in self.named().iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            match process {
                0 => write!(f, "{separator}{node}")?,
                process => write!(f, "{separator}process {process} at {node}")?,
            }
        }
        match self.len() - self.named().len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(node: u16, process: u32) -> Holder {
        Holder { node: NodeId(node), process }
    }

    #[test]
    fn the_first_holders_are_named_and_all_are_counted() {
        let mut few: Holders = [holder(1, 0), holder(2, 77)].into_iter().collect();
        let node = |number: u16| NodeId(number).to_string();
        assert_eq!(few.to_string(), format!("{}, process 77 at {}", node(1), node(2)));
        let many: Holders = (1..=5).map(|process| holder(3, process)).collect();
        assert_eq!((many.len(), many.named().len()), (5, 4));
        few.join(&many);
        assert_eq!(few.len(), 7);
        assert_eq!(few.named(), [holder(1, 0), holder(2, 77), holder(3, 1), holder(3, 2)]);
        assert!(few.to_string().ends_with(" and 3 more"), "{few}");
        let endless = Holders { count: u16::MAX, ..Holders::default() };
        few.join(&endless);
        assert_eq!(few.len(), usize::from(u16::MAX));
    }

    #[test]
    fn holders_travel_whole_and_cut_ones_are_refused() {
        for count in 0..7 {
            let holders: Holders = (0..count).map(|process| holder(9, process)).collect();
            let bytes = holders.write(Writer(Vec::new())).0;
            let read = |bytes| Holders::read(&mut Reader(bytes));
            assert_eq!(read(&bytes), Ok(holders));
            assert!(read(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}
