//! The names whose home a node is. When the view changes, a home forgets all names and hears them again from the nodes that
//! keep the records: whatever it kept may be older than changes that were reported to another home.

use crate::codec::{Reader, Writer};
use crate::ledger::{Changes, Entries};
use crate::message::Malformed;
use crate::name::Name;
use crate::place::{LmrId, NodeId};
use crate::record::{Keepers, MAX_RECORDS, RecordError};
use std::collections::{BTreeMap, BTreeSet};

/// The names whose home this node is.
#[derive(Clone, Debug, Default)]
pub struct Names {
    regions: BTreeMap<Name, (LmrId, Keepers)>,
    /// The nodes that have not reported all of their names since the view changed.
    awaited: BTreeSet<NodeId>,
    /// Names whose entries in a ledger may be older.
    changes: Changes<Name>,
}

impl Names {
    /// Begins again with a new view: forgets all names, until each of `members` has reported those of its records.
    pub fn begin(&mut self, members: impl IntoIterator<Item = NodeId>) {
        std::mem::take(&mut self.regions).into_keys().for_each(|name| self.changes.note(name));
        self.awaited = members.into_iter().collect();
    }

    /// A node tells of a region that has this name, and whose record it keeps. Of two regions the first one counts;
    /// returns whether it is this one.
    pub fn restore(&mut self, name: Name, id: LmrId, keeper: NodeId) -> bool {
        if self.claim(name.clone(), id, keeper).is_err() {
            return false;
        }
        if let Some((_, keepers)) = self.regions.get_mut(&name)
            && keepers.add(keeper)
        {
            self.changes.note(name);
        }
        true
    }

    /// A node has reported all names of its records.
    pub fn restored_by(&mut self, node: NodeId) {
        self.awaited.remove(&node);
    }

    /// Returns whether all nodes have reported their names. Until then, a name that is not here may exist.
    pub fn is_whole(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Gives a name to a region whose record `keeper` keeps. A repetition for the same region succeeds.
    pub fn claim(&mut self, name: Name, id: LmrId, keeper: NodeId) -> Result<(), RecordError> {
        match self.regions.get(&name) {
            Some((owner, _)) if *owner == id => Ok(()),
            Some(_) => Err(RecordError::Taken),
            None if self.regions.len() >= MAX_RECORDS => Err(RecordError::Full),
            None => {
                self.changes.note(name.clone());
                self.regions.insert(name, (id, Keepers::new(keeper)));
                Ok(())
            }
        }
    }

    /// Returns the region of a name, and the nodes that keep its record.
    pub fn lookup(&self, name: &Name) -> Option<(LmrId, Keepers)> {
        self.regions.get(name).copied()
    }

    /// Ends a claim. Without effect if the name belongs to another region.
    pub fn forget(&mut self, name: &Name, id: LmrId) {
        if self.lookup(name).is_some_and(|(owner, _)| owner == id) {
            self.regions.remove(name);
            self.changes.note(name.clone());
        }
    }

    /// The entries of these names begin with this byte in a ledger.
    pub const TABLE: u8 = b'N';

    /// Reports changes from here on ([`report`](Names::report)).
    pub fn watch(&mut self) {
        self.changes.watch();
    }

    /// Reports the names that have changed since the last report.
    pub fn report(&mut self, entries: &mut impl Entries) {
        for name in self.changes.take() {
            let key = [&[Names::TABLE], name.as_bytes()].concat();
            match self.lookup(&name) {
                Some((id, keepers)) => {
                    entries.put(&key, &Writer(Vec::new()).id(id).keepers(&keepers).bytes());
                }
                None => entries.remove(&key),
            }
        }
    }

    /// Adds a name of an earlier life.
    pub fn recover(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let (name, mut reader) = (Name::new(key).map_err(|_| Malformed)?, Reader::new(value));
        let region = (reader.id()?, reader.keepers()?);
        reader.end(())?;
        self.regions.insert(name, region);
        Ok(())
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LmrId = LmrId { node: NodeId(4), slot: 1, generation: 1 };

    #[test]
    fn a_name_belongs_to_one_region() {
        let (mut names, name) = (Names::default(), Name::new("a").unwrap());
        let other = LmrId { slot: 2, ..ID };
        assert!(names.is_whole());
        names.claim(name.clone(), ID, ID.node).unwrap();
        names.claim(name.clone(), ID, ID.node).unwrap();
        assert_eq!(names.claim(name.clone(), other, ID.node), Err(RecordError::Taken));
        assert!(!names.restore(name.clone(), other, ID.node) && names.restore(name.clone(), ID, ID.node));
        names.forget(&name, other);
        assert_eq!(names.lookup(&name), Some((ID, Keepers::new(ID.node))));
        names.forget(&name, ID);
        assert!(names.lookup(&name).is_none() && names.is_empty());
    }

    #[test]
    fn a_home_is_whole_when_all_nodes_have_told() {
        let (mut names, name) = (Names::default(), Name::new("a").unwrap());
        names.claim(name.clone(), ID, ID.node).unwrap();
        names.begin([NodeId(1), NodeId(4)]);
        assert!(names.is_empty() && !names.is_whole());
        names.restored_by(NodeId(7));
        assert!(names.restore(name.clone(), ID, ID.node));
        names.restored_by(NodeId(4));
        assert!(!names.is_whole());
        names.restored_by(NodeId(1));
        names.restored_by(NodeId(1));
        assert!(names.is_whole());
        assert_eq!((names.lookup(&name), names.len()), (Some((ID, Keepers::new(ID.node))), 1));
        assert!(names.restore(name.clone(), ID, NodeId(1)) && names.restore(name.clone(), ID, NodeId(1)));
        let keepers = names.lookup(&name).unwrap().1;
        assert_eq!(keepers.iter().collect::<Vec<_>>(), [NodeId(4), NodeId(1)], "both keep the record");
    }
}
