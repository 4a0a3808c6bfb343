//! Tables against a model, and readers against writers, without a fabric: memory is read as a peer reads it.

use super::connection::{Area, ReadError, Reads};
use super::server::{GetError, get, heap, table_of};
use super::*;
use dunlin_fabric::Region;
use dunlin_fabric::memory::HeapMemory;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// READs of local memory, by the same copies as those of shared memory.
struct Local {
    index: Region<HeapMemory>,
    data: Region<HeapMemory>,
    reads: u64,
}

impl Reads for Local {
    fn read(&mut self, area: Area, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
        self.reads += 1;
        match area {
            Area::Index => self.index.copy_out(offset as usize, into),
            Area::Data => self.data.copy_out(offset as usize, into),
        }
        Ok(())
    }

    fn pause(&mut self, attempt: &mut u32) -> Result<(), ReadError> {
        *attempt += 1;
        if attempt.is_multiple_of(32) {
            std::thread::yield_now();
        }
        match *attempt {
            10_000_000.. => Err(ReadError::TimedOut { attempts: *attempt }),
            _ => Ok(()),
        }
    }
}

struct Bench {
    table: Box<dyn Table>,
    shape: Shape,
    reads: Local,
}

fn bench(kind: Kind, places: u64, data_bytes: u64) -> Bench {
    let index = heap(match kind {
        Kind::Pilaf => cuckoo::Cuckoo::<HeapMemory>::index_bytes(places),
        Kind::Farm => hopscotch::Hopscotch::<HeapMemory>::index_bytes(places, 8),
    });
    let data = heap(data_bytes);
    let reads = Local { index: index.clone(), data: data.clone(), reads: 0 };
    let (table, shape) = table_of(kind, index, data, 8);
    Bench { table, shape, reads }
}

fn lookup(reads: &mut Local, shape: &Shape, key: &[u8]) -> Result<Option<Vec<u8>>, GetError> {
    let (mut value, mut attempts) = (Vec::new(), 0);
    let found = get(reads, shape, key, &mut value, &mut farm::Scratch::default(), &mut attempts)?;
    Ok(found.then_some(value))
}

fn key_of(number: u64) -> [u8; 16] {
    let mut key = [7; 16];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

#[derive(Clone, Debug)]
enum Step {
    Put(u16, usize),
    Delete(u16),
    Get(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0u16..160;
    let length = prop_oneof![Just(0), 1usize..20, 20usize..40, 40usize..200, 800usize..3000];
    prop::collection::vec(
        prop_oneof![
            4 => (key(), length).prop_map(|(key, length)| Step::Put(key, length)),
            1 => key().prop_map(Step::Delete),
            2 => key().prop_map(Step::Get),
        ],
        1..400,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Small tables that get quite full: at every step the READs and the owner find every stored item, and a
    /// failed PUT has changed nothing.
    #[test]
    fn tables_do_what_a_map_does(steps in steps(), pilaf in any::<bool>()) {
        let kind = if pilaf { Kind::Pilaf } else { Kind::Farm };
        let mut bench = bench(kind, 150, 300_000);
        let mut model: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put(key, length) => {
                    let value = vec![number as u8; length];
                    match bench.table.put(&key_of(key.into()), &value) {
                        Ok(replaced) => prop_assert_eq!(replaced, model.insert(key, value).is_some()),
                        Err(TableError::Full) => prop_assert!(model.len() > 50, "full with {}", model.len()),
                        Err(error) => prop_assert!(matches!(error, TableError::OutOfMemory { .. }), "{}", error),
                    }
                }
                Step::Delete(key) => {
                    prop_assert_eq!(bench.table.delete(&key_of(key.into())), model.remove(&key).is_some());
                }
                Step::Get(key) => {
                    let found = lookup(&mut bench.reads, &bench.shape, &key_of(key.into())).unwrap();
                    prop_assert_eq!(found.as_ref(), model.get(&key));
                }
            }
            prop_assert_eq!(bench.table.len(), model.len());
        }
        for key in 0..160 {
            let by_reads = lookup(&mut bench.reads, &bench.shape, &key_of(key.into())).unwrap();
            let mut by_owner = Vec::new();
            let found = bench.table.get(&key_of(key.into()), &mut by_owner);
            prop_assert_eq!(by_reads.as_ref(), model.get(&key));
            prop_assert_eq!(found.then_some(by_owner), by_reads);
        }
    }

    /// With any bytes in memory, a GET ends with a value, nothing, or an error, and reads only the table's
    /// memory (`Region` would panic).
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 64..1500), pilaf in any::<bool>(), honest in any::<bool>(), key in 0u64..20) {
        struct Hostile(Local, u32);
        impl Reads for Hostile {
            fn read(&mut self, area: Area, offset: u64, into: &mut [u8]) -> Result<(), ReadError> {
                self.0.read(area, offset, into)
            }
            fn pause(&mut self, attempt: &mut u32) -> Result<(), ReadError> {
                self.1 += 1;
                *attempt += 1;
                if self.1 > 40 { Err(ReadError::TimedOut { attempts: *attempt }) } else { Ok(()) }
            }
        }
        let kind = if pilaf { Kind::Pilaf } else { Kind::Farm };
        let mut bench = bench(kind, 20, 4096);
        for number in 0..10 {
            let _ = bench.table.put(&key_of(number), &[number as u8; 100]);
        }
        // Overwrite everything, or just some place.
        let length = bench.reads.index.length();
        let start = if honest { bytes.len() % length } else { 0 };
        let part = &bytes[..bytes.len().min(length - start).min(if honest { 24 } else { usize::MAX })];
        bench.reads.index.copy_in(start, part);
        let mut hostile = Hostile(bench.reads, 0);
        let mut value = Vec::new();
        let _ = get(&mut hostile, &bench.shape, &key_of(key), &mut value, &mut farm::Scratch::default(), &mut 0);
    }
}

/// An entry with valid checksums that points outside the data memory.
#[test]
fn entries_that_check_and_lie_are_refused() {
    let mut bench = bench(Kind::Pilaf, 20, 4096);
    for (offset, length, key_length) in [(4090, 10, 4), (u64::MAX - 3, 10, 4), (0, 3, 4), (0, u32::MAX, 4)] {
        let entry = cuckoo::Entry { offset, length, key_length, checksum: 0 };
        for place in 0..20 {
            bench.reads.index.copy_in(64 + place * cuckoo::ENTRY_BYTES, &cuckoo::Entry::encode(Some(entry)));
        }
        assert!(matches!(lookup(&mut bench.reads, &bench.shape, &key_of(1)), Err(GetError::Malformed(_))));
    }
}

#[test]
fn slots_that_check_and_lie_are_refused() {
    let mut bench = bench(Kind::Farm, 20, 4096);
    let (key, mut content) = (key_of(1), [0; lines::ROOM]);
    content[0] = 16;
    content[8..24].copy_from_slice(&key);
    for (kind, length, offset) in
        [(1, 33, 0), (1, u32::MAX, 0), (2, 100, 4096), (2, 100, u64::MAX), (2, u32::MAX, 0), (3, 1, 0)]
    {
        content[1] = kind;
        content[4..8].copy_from_slice(&u32::to_le_bytes(length));
        content[24..32].copy_from_slice(&u64::to_le_bytes(offset));
        for slot in 0..27 {
            lines::write(&bench.reads.index, 64 + slot * 64, 1, 2, &content);
        }
        assert!(
            matches!(lookup(&mut bench.reads, &bench.shape, &key), Err(GetError::Malformed(_))),
            "{kind} {length} {offset}"
        );
    }
    content[0] = 200;
    for slot in 0..27 {
        lines::write(&bench.reads.index, 64 + slot * 64, 1, 2, &content);
    }
    assert!(matches!(lookup(&mut bench.reads, &bench.shape, &key), Err(GetError::Malformed(_))));
}

/// RF-RPC section 2.3: 3.2 READs for a GET from Pilaf's table, three quarters full. This test counts them
/// itself.
#[test]
fn reads_of_a_get_are_counted() {
    let items = 60_000;
    let config = BypassConfig::for_items(Kind::Pilaf, items, 48);
    let mut pilaf = bench(Kind::Pilaf, config.places, config.data_bytes);
    let config = BypassConfig::for_items(Kind::Farm, items, 48);
    let mut farm = bench(Kind::Farm, config.places, config.data_bytes);
    for number in 0..items {
        pilaf.table.put(&key_of(number), &[1; 32]).unwrap();
        farm.table.put(&key_of(number), &[1; 32]).unwrap();
    }
    let reads = |bench: &mut Bench| {
        for number in 0..items {
            assert!(lookup(&mut bench.reads, &bench.shape, &key_of(number)).unwrap().is_some());
        }
        bench.reads.reads as f64 / items as f64
    };
    let (pilaf, farm) = (reads(&mut pilaf), reads(&mut farm));
    println!("READs of a GET: {pilaf} and {farm}");
    assert!((2.6..3.8).contains(&pilaf), "{pilaf}");
    // A few items lie in the overflow.
    assert!((1.0..1.01).contains(&farm), "{farm}");
}

/// Builds a value that identifies itself: a key's number, a round, and bytes that follow from both.
fn value_of(number: u64, round: u64, length: usize) -> Vec<u8> {
    let mut value: Vec<u8> = (0..length as u64).map(|at| (at * 31 + round * 7 + number) as u8).collect();
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&round.to_le_bytes());
    value
}

/// Readers run while a writer writes, moves and frees items: each value that they get is whole, belongs to
/// the requested key, and is not older than the last one; a key that is always there is never missed.
#[test]
fn no_reader_gets_a_torn_value() {
    for kind in Kind::ALL {
        let items = 300;
        let mut made = bench(kind, if kind == Kind::Pilaf { items * 5 / 4 } else { items * 2 }, 4 << 20);
        let length_of = |number: u64, round: u64| [16, 32, 40, 500, 2000][(number + round) as usize % 5];
        for number in 0..items {
            made.table.put(&key_of(number), &value_of(number, 0, length_of(number, 0))).unwrap();
        }
        let over = Arc::new(AtomicBool::new(false));
        let (index, data, shape) = (made.reads.index.clone(), made.reads.data.clone(), made.shape);
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let over = Arc::clone(&over);
                let mut reads = Local { index: index.clone(), data: data.clone(), reads: 0 };
                std::thread::spawn(move || {
                    let mut last = vec![0; items as usize];
                    let mut gets = 0u64;
                    while !over.load(Ordering::Relaxed) || gets < 2_000 {
                        let number = (gets * 7 + reader) % items;
                        let value = lookup(&mut reads, &shape, &key_of(number)).unwrap();
                        let value = value.unwrap_or_else(|| panic!("{kind:?}: {number} was not found"));
                        let round = number_at(&value, 8);
                        assert_eq!(value, value_of(number, round, length_of(number, round)), "{kind:?}");
                        assert!(round >= last[number as usize], "{kind:?}: an older value");
                        last[number as usize] = round;
                        gets += 1;
                    }
                    gets
                })
            })
            .collect();
        for round in 1..400 {
            for number in 0..items {
                made.table.put(&key_of(number), &value_of(number, round, length_of(number, round))).unwrap();
                // Other keys come and go, so that items have to move.
                let other = 10_000 + (number * 13 + round) % 40;
                if round % 2 == 0 {
                    let _ = made.table.put(&key_of(other), &[1; 20]);
                } else {
                    made.table.delete(&key_of(other));
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| assert!(reader.join().unwrap() >= 2_000));
    }
}
