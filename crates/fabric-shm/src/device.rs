//! The identity of this machine, as far as the rates of copies between its cores depend on it.

use dunlin_fabric::DeviceIdentity;
use std::collections::BTreeSet;
use std::fs;

/// The maximum number of cores whose caches are read.
const MOST_CORES: usize = 4096;

/// Returns the identity of this machine: the processor's model, its number of cores, and the number of
/// last-level caches, if the kernel reports it. The process's affinity does not count: a measurement on two
/// cores holds for others.
pub(crate) fn this_machine() -> DeviceIdentity {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    identity(&processor, |core| {
        // The last index is the cache level farthest from the core.
        let list = |index: u32| {
            fs::read_to_string(format!(
                "/sys/devices/system/cpu/cpu{core}/cache/index{index}/shared_cpu_list"
            ))
        };
        (0..8).map_while(|index| list(index).ok()).last()
    })
}

/// Builds the identity from the text of `/proc/cpuinfo` and the list of cores that share each core's
/// last-level cache.
fn identity(processor: &str, shared: impl Fn(usize) -> Option<String>) -> DeviceIdentity {
    let field = |name: &str| {
        processor.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.split_whitespace().collect::<Vec<_>>().join(" "))
        })
    };
    let model = field("model name").or_else(|| field("Model")).unwrap_or_else(|| "unknown".to_owned());
    let cores = processor.lines().filter(|line| line.starts_with("processor")).count().max(1);
    let caches: Option<BTreeSet<String>> =
        (0..cores.min(MOST_CORES)).map(|core| shared(core).map(|list| list.trim().to_owned())).collect();
    let caches = caches.map_or_else(|| "unknown".to_owned(), |caches| caches.len().to_string());
    DeviceIdentity::of("shm").with("processor", model).with("cores", cores).with("last-level caches", caches)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "processor\t: 0\nmodel name\t: A  Processor @ 2\nflags\t: x\n\nprocessor\t: 1\nmodel name\t: B\n";

    #[test]
    fn cores_that_share_a_cache_make_another_device_than_those_that_do_not() {
        let one = identity(TEXT, |_| Some("0-1\n".to_owned()));
        assert_eq!(one.to_string(), "shm: processor A Processor @ 2, cores 2, last-level caches 1");
        let two = identity(TEXT, |core| Some(core.to_string()));
        assert!(two.to_string().ends_with("last-level caches 2"), "{two}");
        let unknown = identity(TEXT, |core| (core == 0).then(|| "0".to_owned()));
        assert!(unknown.to_string().ends_with("last-level caches unknown"), "{unknown}");
        assert_eq!(
            identity("", |_| None).to_string(),
            "shm: processor unknown, cores 1, last-level caches unknown"
        );
    }

    #[test]
    fn this_machine_is_the_same_each_time() {
        assert_eq!(this_machine(), this_machine());
        assert_eq!(this_machine().properties.len(), 3);
    }
}
