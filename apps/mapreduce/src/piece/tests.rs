use super::*;
use crate::program::Split;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Concatenates sorted values, so that the order of combining does not matter.
struct Collect;

impl Program for Collect {
    fn name(&self) -> String {
        "collect".to_owned()
    }

    fn map(&self, _: Split<'_>, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn combine(&self, _: &[u8], held: &mut Vec<u8>, value: &[u8]) {
        held.extend_from_slice(value);
        held.sort_unstable();
    }

    fn reduce(&self, key: &[u8], value: Vec<u8>) -> Option<Vec<u8>> {
        (key != b"out").then_some(value)
    }
}

#[derive(Debug)]
struct Memory(RefCell<Vec<u8>>);

impl Bytes for Memory {
    fn len(&self) -> u64 {
        self.0.borrow().len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OperationError> {
        into.copy_from_slice(&self.0.borrow()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OperationError> {
        self.0.borrow_mut()[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }
}

fn memory(bytes: Vec<u8>) -> Memory {
    Memory(RefCell::new(bytes))
}

const AGREEMENT: u64 = 77;

fn run(bytes: Vec<u8>, partition: (u32, u32), chunk: usize) -> Result<Run<Memory>, MapReduceError> {
    Run::open(Piece::new(1, 2), memory(bytes), partition, AGREEMENT, chunk)
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn entries(bytes: Vec<u8>) -> Result<Entries, MapReduceError> {
    let mut all = Vec::new();
    run(bytes, (0, 1), 64)?.for_each(|key, value| {
        all.push((key.to_vec(), value.to_vec()));
        true
    })?;
    Ok(all)
}

type Emitted = Vec<Entries>;

fn emitted() -> impl Strategy<Value = Emitted> {
    let key = prop_oneof![
        proptest::collection::vec(0u8..3, 0..3),
        Just(b"out".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..200),
    ];
    let value = proptest::collection::vec(any::<u8>(), 0..20);
    proptest::collection::vec(proptest::collection::vec((key, value), 0..40), 1..5)
}

/// Maps, reduces and merges as workers do, with chunks of a length.
fn all(emitted: &Emitted, partitions: u32, chunk: usize) -> Vec<u8> {
    let tables = emitted.iter().map(|emitted| {
        let mut table = Table::new(partitions);
        emitted.iter().for_each(|(key, value)| table.add(&Collect, key, value));
        table.take(AGREEMENT)
    });
    let pieces: Vec<Vec<u8>> = tables.collect();
    let mut outputs: Vec<Vec<u8>> = (0..partitions)
        .map(|partition| {
            let runs = pieces.iter().map(|piece| run(piece.clone(), (partition, partitions), chunk).unwrap());
            reduce(&Collect, &mut runs.collect::<Vec<_>>(), AGREEMENT).unwrap()
        })
        .collect();
    while outputs.len() > 1 {
        let two = outputs.drain(..2).map(|output| run(output, (0, 1), chunk).unwrap()).collect::<Vec<_>>();
        let merged =
            merge(two.try_into().unwrap(), AGREEMENT, |length| Ok(memory(vec![0; length as usize]))).unwrap();
        outputs.push(merged.0.into_inner());
    }
    outputs.remove(0)
}

proptest! {
    #[test]
    fn results_are_those_of_a_map(emitted in emitted(), partitions in 1u32..5, chunk in 1usize..100) {
        let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (key, value) in emitted.iter().flatten() {
            let held = expected.entry(key.clone()).or_default();
            Collect.combine(key, held, value);
        }
        expected.remove(&b"out"[..]);
        // A value that is alone is not sorted.
        let sorted = |entries: Entries| entries.into_iter().map(|(key, mut value)| {
            value.sort_unstable();
            (key, value)
        }).collect::<Entries>();
        let found = sorted(entries(all(&emitted, partitions, chunk)).unwrap());
        prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn damage_is_an_error_or_leaves_keys_in_order(
        emitted in emitted(), at: prop::sample::Index, byte: u8, is_cut: bool,
    ) {
        let mut bytes = all(&emitted, 2, 64);
        let at = at.index(bytes.len());
        match is_cut {
            true => bytes.truncate(at),
            false => bytes[at] = byte,
        }
        if let Ok(found) = entries(bytes) {
            prop_assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }
}

#[test]
fn pieces_of_other_jobs_and_doubled_keys_are_refused() {
    let emitted = vec![vec![(b"k".to_vec(), b"v".to_vec())]];
    let good = all(&emitted, 1, 64);
    assert_eq!(entries(good.clone()).unwrap(), emitted[0]);
    assert!(Run::open(Piece::new(0, 0), memory(good.clone()), (0, 1), AGREEMENT + 1, 64).is_err());
    assert!(run(good.clone(), (0, 2), 64).is_err());
    assert!(run(Vec::new(), (0, 1), 64).is_err());
    let two = [good.clone(), good].map(|bytes| run(bytes, (0, 1), 64).unwrap());
    let doubled = merge(two, AGREEMENT, |length| Ok(memory(vec![0; length as usize])));
    assert!(matches!(doubled, Err(MapReduceError::Damaged { .. })), "{doubled:?}");
}

#[test]
fn long_entries_are_noticed() {
    let mut table = Table::new(1);
    table.add(&Collect, b"key", &vec![0; MAX_ENTRY]);
    assert!(table.too_long && table.bytes == 0);
    let mut table = Table::new(1);
    for _ in 0..2 {
        table.add(&Collect, b"key", &vec![0; MAX_ENTRY / 2]);
    }
    assert!(table.too_long);
}
