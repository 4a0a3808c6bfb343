//! The partition against models that know which items it may evict, and when.

use std::collections::HashMap;

use dunlin_kv::{KeyHash, MAX_VALUE_LENGTH, Partition, PartitionConfig, partition_of};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Get(u16),
    Put(u16, usize),
    Delete(u16),
}

fn steps(
    keys: u16,
    length: impl Strategy<Value = usize> + Clone,
    count: usize,
) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..keys).prop_map(Step::Get),
        5 => (0..keys, length).prop_map(|(key, length)| Step::Put(key, length)),
        1 => (0..keys).prop_map(Step::Delete),
    ];
    prop::collection::vec(step, 1..count)
}

fn key(number: u16) -> Vec<u8> {
    // Lengths differ, and some keys are prefixes of others.
    b"key"
        .iter()
        .copied()
        .chain(number.to_string().into_bytes())
        .chain(vec![b'.'; usize::from(number % 40)])
        .collect()
}

/// Builds a value that differs from every other one and from a torn mixture of two.
fn value(version: usize, length: usize) -> Vec<u8> {
    let mut state = version as u32 | 0x0100_0000;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// Lengths around every limit: nothing, chunks, the largest chunk, runs of pages, the longest value.
fn any_length() -> impl Strategy<Value = usize> + Clone {
    prop_oneof![
        4 => 0usize..200,
        3 => 0usize..9000,
        2 => 8000usize..100_000,
        1 => 0usize..=MAX_VALUE_LENGTH,
        1 => Just(MAX_VALUE_LENGTH),
    ]
}

/// Creates a partition in which every key shares the only bucket.
fn one_bucket() -> Partition {
    let config = PartitionConfig { expected_items: Some(1), ..PartitionConfig::new(16 << 20) };
    Partition::with_config(config).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn with_ample_memory_it_is_a_map(steps in steps(300, 0usize..6000, 2000)) {
        let mut partition = Partition::new(32 << 20).unwrap();
        let mut model = HashMap::new();
        for (version, step) in steps.into_iter().enumerate() {
            match step {
                Step::Get(number) => {
                    // Prefetch whether or not the key is stored.
                    let hash = KeyHash::of(&key(number));
                    partition.prefetch(hash);
                    partition.prefetch_item(hash);
                    prop_assert_eq!(partition.get(&key(number)), model.get(&number).map(Vec::as_slice));
                }
                Step::Put(number, length) => {
                    let value = value(version, length);
                    let outcome = partition.put(&key(number), &value).unwrap();
                    prop_assert_eq!(outcome.replaced, model.insert(number, value).is_some());
                    prop_assert!(!outcome.evicted_from_bucket);
                    prop_assert_eq!(outcome.evicted_for_memory, 0);
                }
                Step::Delete(number) => {
                    prop_assert_eq!(partition.delete(&key(number)), model.remove(&number).is_some());
                }
            }
            let stats = partition.stats();
            prop_assert_eq!(stats.items, model.len() as u64);
            let bytes: usize = model.iter().map(|(number, value)| key(*number).len() + value.len()).sum();
            prop_assert_eq!(stats.item_bytes, bytes as u64);
        }
        for number in 0..300 {
            prop_assert_eq!(partition.contains(&key(number)), model.contains_key(&number));
        }
    }

    #[test]
    fn a_full_bucket_is_strictly_lru(steps in steps(14, 0usize..300, 400)) {
        let mut partition = one_bucket();
        // Least recently used first.
        let mut model: Vec<(u16, Vec<u8>)> = Vec::new();
        let mut evictions = 0;
        for (version, step) in steps.into_iter().enumerate() {
            match step {
                Step::Get(number) => {
                    let place = model.iter().position(|(other, _)| *other == number);
                    if let Some(place) = place {
                        let item = model.remove(place);
                        model.push(item);
                    }
                    let expected = place.and(model.last()).map(|(_, value)| value.as_slice());
                    prop_assert_eq!(partition.get(&key(number)), expected);
                }
                Step::Put(number, length) => {
                    let before = model.len();
                    model.retain(|(other, _)| *other != number);
                    let replaced = model.len() < before;
                    let full = model.len() == 8;
                    if full {
                        model.remove(0);
                        evictions += 1;
                    }
                    let value = value(version, length);
                    let outcome = partition.put(&key(number), &value).unwrap();
                    prop_assert_eq!((outcome.replaced, outcome.evicted_from_bucket), (replaced, full));
                    model.push((number, value));
                }
                Step::Delete(number) => {
                    let before = model.len();
                    model.retain(|(other, _)| *other != number);
                    prop_assert_eq!(partition.delete(&key(number)), model.len() < before);
                }
            }
            // `contains` must not change the order, or the next eviction differs from the model's.
            for number in 0..14 {
                let expected = model.iter().any(|(other, _)| *other == number);
                prop_assert_eq!(partition.contains(&key(number)), expected);
            }
        }
        prop_assert_eq!(partition.stats().evicted_from_bucket, evictions);
    }

    #[test]
    fn the_limit_holds_and_values_are_right_or_absent(
        limit in (1usize << 20)..(5 << 20),
        steps in steps(60, any_length(), 300),
    ) {
        let config = PartitionConfig { expected_items: Some(100), ..PartitionConfig::new(limit) };
        let mut partition = Partition::with_config(config).unwrap();
        let mut model: HashMap<u16, Vec<u8>> = HashMap::new();
        for (version, step) in steps.into_iter().enumerate() {
            match step {
                Step::Get(number) => {
                    if let Some(found) = partition.get(&key(number)) {
                        prop_assert_eq!(Some(found), model.get(&number).map(Vec::as_slice));
                    }
                }
                Step::Put(number, length) => {
                    let value = value(version, length);
                    match partition.put(&key(number), &value) {
                        Ok(_) => {
                            model.insert(number, value);
                            let stored = &model[&number];
                            prop_assert_eq!(partition.get(&key(number)), Some(stored.as_slice()));
                        }
                        // The limit is below the size of one item; other items are still there, or were
                        // evicted earlier.
                        Err(error) => {
                            prop_assert!(length + 4096 * 3 > limit * 9 / 10, "{} {}: {}", length, limit, error);
                        }
                    }
                }
                Step::Delete(number) => {
                    partition.delete(&key(number));
                    model.remove(&number);
                    prop_assert!(!partition.contains(&key(number)));
                }
            }
            let stats = partition.stats();
            prop_assert!(stats.used_bytes <= limit as u64 && stats.reserved_bytes <= limit as u64, "{:?}", stats);
            prop_assert!(stats.item_bytes <= stats.used_bytes);
        }
        let mut items = 0;
        for number in 0..60 {
            if let Some(found) = partition.get(&key(number)) {
                prop_assert_eq!(Some(found), model.get(&number).map(Vec::as_slice));
                items += 1;
            }
        }
        prop_assert_eq!(partition.stats().items, items);
    }

    #[test]
    fn multiget_is_a_get_of_each(present in 0u16..60, wanted in prop::collection::vec(0u16..80, 0..70)) {
        let mut one_by_one = Partition::new(1 << 20).unwrap();
        let mut together = Partition::new(1 << 20).unwrap();
        for number in 0..present {
            for partition in [&mut one_by_one, &mut together] {
                partition.put(&key(number), &value(usize::from(number), 40)).unwrap();
            }
        }
        let keys: Vec<_> = wanted.iter().map(|&number| key(number)).collect();
        let mut found = Vec::new();
        let visited: Result<(), ()> = together.multiget(keys.iter().map(Vec::as_slice), |value| {
            found.push(value.map(<[u8]>::to_vec));
            Ok(())
        });
        prop_assert_eq!(visited, Ok(()));
        let expected: Vec<_> = keys.iter().map(|key| one_by_one.get(key).map(<[u8]>::to_vec)).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(one_by_one.stats(), together.stats());
    }

    #[test]
    fn keys_have_one_partition_and_its_owner_knows(key in prop::collection::vec(any::<u8>(), 1..250), count in 1usize..64) {
        let owner = partition_of(&key, count);
        prop_assert!(owner < count);
        for index in 0..count {
            let config = PartitionConfig { index, count, ..PartitionConfig::new(1 << 20) };
            prop_assert_eq!(config.owns(KeyHash::of(&key)), index == owner);
        }
    }
}
