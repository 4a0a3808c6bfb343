//! YCSB workloads (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010): property
//! files, request distributions, and the stream of operations of a client.
//!
//! A plain key-value store differs from YCSB's tables, and [`Notice`]s inform the user: a record is one
//! value (its concatenated fields), every update writes the whole value, and SCAN becomes a MULTIGET of
//! consecutive record numbers, since a hash store has no order.

mod distribution;
mod operations;
mod properties;
mod specification;

pub use distribution::{
    Exponential, HotSpot, ScrambledZipfian, SkewedLatest, ZIPFIAN_CONSTANT, Zipfian, fnv_hash,
};
pub use operations::{Operation, OperationStream, Share};
pub use properties::{Property, PropertyError, parse_properties};
pub use specification::{
    FieldLength, InsertOrder, Notice, Proportions, RequestDistribution, Workload, WorkloadError,
};

/// The workloads shipped with the project: name and text of the property file.
pub const SHIPPED: [(&str, &str); 7] = [
    ("a", include_str!("../../workloads/a.properties")),
    ("b", include_str!("../../workloads/b.properties")),
    ("c", include_str!("../../workloads/c.properties")),
    ("d", include_str!("../../workloads/d.properties")),
    ("e", include_str!("../../workloads/e.properties")),
    ("f", include_str!("../../workloads/f.properties")),
    ("b-small", include_str!("../../workloads/b-small.properties")),
];

/// Returns the property file of a shipped workload. The name is case-insensitive (`a`, `workloada`,
/// `b-small`).
#[must_use]
pub fn shipped(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix("workload").unwrap_or(&name);
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_files_parse_without_surprise() {
        for (name, text) in SHIPPED {
            let (workload, notices) = Workload::parse(text).expect(name);
            let expected = usize::from(name == "e");
            assert_eq!(notices.len(), expected, "{name}: {notices:?}");
            assert!(workload.record_count >= 1000, "{name}");
        }
        assert!(shipped("workloadA").is_some());
        assert!(shipped("z").is_none());
    }

    #[test]
    fn the_small_workload_has_16_byte_keys_and_32_byte_values() {
        let (workload, _) = Workload::parse(shipped("b-small").expect("there")).expect("valid");
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for record in [0, 1, workload.record_count - 1, 999_999_999_999] {
            workload.write_key(record, &mut key);
            workload.write_value(record, 0, &mut value);
            assert_eq!((key.len(), value.len()), (16, 32));
        }
        assert_eq!(workload.proportions.read, 0.95);
    }
}
