use super::*;
use crate::access::{AccessError, Kind};
use crate::cut::Layout;
use crate::place::{NodeId, Piece};
use crate::rights::{Grants, Principal, Rights};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Default)]
struct Kept(BTreeMap<Vec<u8>, Vec<u8>>);

impl Entries for Kept {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.0.insert(key.to_vec(), value.to_vec());
    }
    fn remove(&mut self, key: &[u8]) {
        self.0.remove(key);
    }
}

fn id(slot: u32) -> LmrId {
    LmrId { node: NodeId(2), slot, generation: 3 }
}

fn layout(node: u16) -> Layout {
    Layout::new(vec![Piece { node: NodeId(node), extent: 0, length: 64, offset: 0 }]).unwrap()
}

proptest! {
    /// Handles that were reported mean the same to the next life, and no others mean anything.
    #[test]
    fn the_next_life_has_the_same_handles(steps in prop::collection::vec((0u8..7, 0u32..6), 0..40)) {
        let (mut table, mut kept, mut handles) = (HandleTable::new(), Kept::default(), Vec::new());
        table.watch();
        for (step, at) in steps {
            match step {
                0 | 1 => {
                    let ticket = table.begin_map().unwrap();
                    let principal = Principal::new(["alice", "bob"][at as usize % 2]).unwrap();
                    let mapped = (&principal, Rights::READ);
                    handles.push(table.finish_map(ticket, id(at), mapped, layout(at as u16)).unwrap());
                }
                2 => {
                    if let Some(handle) = handles.get(at as usize) {
                        let _ = table.unmap(*handle);
                    }
                }
                3 => drop(table.stop(id(at), false)),
                4 => drop(table.stop(id(at), true)),
                5 => drop(table.restrict(id(at), &Grants::of_creator(Principal::new("alice").unwrap()))),
                _ => drop(table.lose(NodeId(at as u16))),
            }
            table.report(&mut kept);
        }
        let mut next = HandleTable::new();
        for (key, value) in &kept.0 {
            next.recover(&key[1..], value).unwrap();
        }
        prop_assert_eq!(next.len(), table.len());
        prop_assert_eq!(next.handles().collect::<Vec<_>>(), table.handles().collect::<Vec<_>>());
        // The principals are the same, too.
        let mut later = (table.clone(), HandleTable::new());
        kept.0.iter().for_each(|(key, value)| later.1.recover(&key[1..], value).unwrap());
        for at in 0..6 {
            let grants = Grants::of_creator(Principal::new("bob").unwrap());
            prop_assert_eq!(later.0.restrict(id(at), &grants), later.1.restrict(id(at), &grants));
        }
        for handle in &handles {
            prop_assert_eq!(later.0.describe(*handle), later.1.describe(*handle));
        }
        for handle in handles {
            let begin = |table: &mut HandleTable| {
                let begun = table.begin(handle, Kind::Read, 0, 64);
                begun.map(|operation| assert_eq!(table.end(operation), None))
            };
            // A slot that is free has another generation in the next life, whose numbers nobody knows yet.
            let before = begin(&mut table);
            prop_assert_eq!(begin(&mut next), before);
            prop_assert_eq!(next.describe(handle), table.describe(handle));
        }
        let ticket = next.begin_map().unwrap();
        let new = next.finish_map(ticket, id(9), (&Principal::new("p").unwrap(), Rights::READ), layout(1)).unwrap();
        prop_assert!(next.describe(new).is_ok() && next.len() == table.len() + 1);
    }

    /// Any bytes are a handle or a refusal.
    #[test]
    fn any_bytes_are_read_without_a_panic(
        key in prop::collection::vec(any::<u8>(), 0..6), value in prop::collection::vec(any::<u8>(), 0..60),
        small in 0u32..9,
    ) {
        let mut table = HandleTable::new();
        let _ = table.recover(&key, &value);
        let _ = table.recover(&small.to_be_bytes(), &value);
    }
}

#[test]
fn a_region_that_was_freed_stays_out_of_reach() {
    let (mut table, mut kept) = (HandleTable::new(), Kept::default());
    table.watch();
    let ticket = table.begin_map().unwrap();
    let handle =
        table.finish_map(ticket, id(1), (&Principal::new("p").unwrap(), Rights::ALL), layout(1)).unwrap();
    table.report(&mut kept);
    table.stop(id(1), false);
    table.report(&mut kept);
    let mut next = HandleTable::new();
    kept.0.iter().for_each(|(key, value)| next.recover(&key[1..], value).unwrap());
    assert!(matches!(next.begin(handle, Kind::Read, 0, 1), Err(AccessError::Gone)));
}
