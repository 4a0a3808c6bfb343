//! Eviction when memory is short, and the errors at the limits.

use dunlin_kv::{MAX_KEY_LENGTH, MAX_VALUE_LENGTH, Partition, PartitionConfig, PartitionError, PutError};

const MIB: usize = 1 << 20;

fn number_key(number: usize) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let digits = number.to_string();
    key[16 - digits.len()..].copy_from_slice(digits.as_bytes());
    key
}

fn stored(partition: &Partition, numbers: std::ops::Range<usize>) -> usize {
    numbers.filter(|&number| partition.contains(&number_key(number))).count()
}

#[test]
fn borders_of_keys_and_values() {
    let mut partition = Partition::new(8 * MIB).unwrap();
    let longest_key = [b'k'; MAX_KEY_LENGTH];
    let largest_value = vec![7; MAX_VALUE_LENGTH];
    partition.put(&longest_key, &largest_value).unwrap();
    assert_eq!(partition.get(&longest_key), Some(&largest_value[..]));
    partition.put(&longest_key, b"").unwrap();
    assert_eq!(partition.get(&longest_key), Some(&b""[..]));

    assert_eq!(partition.put(b"", b"value"), Err(PutError::KeyEmpty));
    assert_eq!(
        partition.put(&[b'k'; MAX_KEY_LENGTH + 1], b"value"),
        Err(PutError::KeyTooLarge { length: MAX_KEY_LENGTH + 1 })
    );
    assert_eq!(
        partition.put(b"key", &vec![0; MAX_VALUE_LENGTH + 1]),
        Err(PutError::ValueTooLarge { length: MAX_VALUE_LENGTH + 1 })
    );
    assert_eq!(partition.get(b""), None);
    assert_eq!(partition.get(&[b'k'; 1000]), None);
    assert_eq!(partition.stats().items, 1);
}

#[test]
fn an_item_larger_than_the_memory_changes_nothing() {
    let mut partition = Partition::new(MIB / 2).unwrap();
    partition.put(b"key", b"old").unwrap();
    let error = partition.put(b"key", &vec![0; MIB]).unwrap_err();
    assert!(
        matches!(error, PutError::OutOfMemory { needed, capacity } if needed > MIB && capacity < MIB / 2)
    );
    assert_eq!(partition.get(b"key"), Some(&b"old"[..]));
}

#[test]
fn limits_that_cannot_be_met_are_errors() {
    let Err(PartitionError::LimitTooSmall { minimum, .. }) = Partition::new(1000) else {
        panic!("too small")
    };
    let smallest = Partition::new(minimum).expect("the minimum named by the error does");
    assert!(smallest.stats().reserved_bytes <= minimum as u64);

    let crowded = PartitionConfig { expected_items: Some(1 << 20), ..PartitionConfig::new(MIB) };
    let Err(PartitionError::LimitTooSmall { minimum, .. }) = Partition::with_config(crowded) else {
        panic!("the index alone is larger than the limit")
    };
    let config = PartitionConfig { memory_limit: minimum, ..crowded };
    assert!(Partition::with_config(config).is_ok());

    let huge = PartitionConfig { expected_items: Some(1), ..PartitionConfig::new(1 << 40) };
    assert!(matches!(Partition::with_config(huge), Err(PartitionError::LimitTooLarge { .. })));
    let none = PartitionConfig { index: 3, count: 3, ..PartitionConfig::new(MIB) };
    assert_eq!(
        Partition::with_config(none).map(|_| ()),
        Err(PartitionError::NoSuchPartition { index: 3, count: 3 })
    );
}

#[test]
fn small_items_fill_most_of_the_memory_before_any_goes_for_memory() {
    let mut partition = Partition::new(4 * MIB).unwrap();
    let mut number = 0;
    while partition.stats().evicted_for_memory == 0 {
        partition.put(&number_key(number), &[1; 32]).unwrap();
        number += 1;
    }
    let stats = partition.stats();
    // 64 bytes of value memory and 16 of index each; the rest goes to pages, tables and a few full buckets.
    assert!(stats.items as usize * 80 > 4 * MIB * 95 / 100, "{stats:?}");
    assert!(stats.evicted_from_bucket < stats.items / 20, "{stats:?}");
}

#[test]
fn items_read_all_the_time_outlive_those_that_are_not() {
    let mut partition = Partition::new(4 * MIB).unwrap();
    const HOT: usize = 1000;
    for number in 0..HOT {
        partition.put(&number_key(number), &[1; 200]).unwrap();
    }
    for number in HOT..100_000 {
        partition.put(&number_key(number), &[2; 200]).unwrap();
        partition.get(&number_key(number % HOT));
    }
    assert!(partition.stats().evicted_for_memory > 50_000);
    let hot = stored(&partition, 0..HOT);
    assert!(hot > HOT * 95 / 100, "only {hot} of {HOT} hot items are left");
}

#[test]
fn memory_follows_a_change_of_sizes() {
    let mut partition = Partition::new(8 * MIB).unwrap();
    let mut next = 0;
    // Each phase writes several times the memory; at its end most of the memory must hold its items.
    for value_length in [32, 1000, 30_000, 100, 300_000, 5000] {
        let value = vec![3; value_length];
        let count = 10 * 8 * MIB / (value_length + 64);
        for number in next..next + count {
            partition.put(&number_key(number), &value).unwrap();
        }
        let kept = stored(&partition, next..next + count);
        let bytes = kept * (value_length + 16);
        assert!(bytes > 5 * MIB / 2, "values of {value_length} bytes hold only {bytes} bytes");
        next += count;
    }
}

#[test]
fn deleted_memory_is_used_again_for_any_size() {
    let mut partition = Partition::new(4 * MIB).unwrap();
    for (round, value_length) in [32, 100_000, 700, 1_000_000, 9000].into_iter().enumerate() {
        let value = vec![round as u8; value_length];
        let count = (2 * MIB / (value_length + 100)).min(2000);
        for number in 0..count {
            let outcome = partition.put(&number_key(number), &value).unwrap();
            assert_eq!(outcome.evicted_for_memory, 0, "values of {value_length} bytes");
        }
        for number in 0..count {
            partition.delete(&number_key(number));
        }
    }
    let stats = partition.stats();
    assert_eq!((stats.items, stats.item_bytes), (0, 0));
    assert_eq!(stats.used_bytes, Partition::new(4 * MIB).unwrap().stats().used_bytes);
}
