//! The pages of a node's memory, as the kernel reports them.

use dunlin_tier::process::Pages;
use std::ops::Range;

/// Returns the pages of mapped ranges of addresses; `None` where the kernel does not report them.
pub(crate) fn of(ranges: &[Range<usize>]) -> Option<Pages> {
    Some(count(&std::fs::read_to_string("/proc/self/smaps").ok()?, ranges))
}

/// Returns the bytes that the kernel can give to processes without swapping, reserved huge pages left out; `None` where
/// it does not report them.
pub(crate) fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    text.lines()
        .find_map(|line| field(line).filter(|(name, _)| *name == "MemAvailable").map(|(_, bytes)| bytes))
}

/// Counts the pages of ranges in the text of `/proc/PID/smaps`. A mapping of which a range is only a part counts with
/// the bytes of that part: the kernel joins neighbours.
fn count(text: &str, ranges: &[Range<usize>]) -> Pages {
    let mut pages = Pages::default();
    // The bytes of the present mapping that lie in the ranges.
    let mut within = 0;
    let mut is_reserved = false;
    for line in text.lines() {
        if let Some(mapping) = range_of(line) {
            let part = |range: &Range<usize>| {
                range.end.min(mapping.end).saturating_sub(range.start.max(mapping.start)) as u64
            };
            within = ranges.iter().map(part).sum();
            is_reserved = false;
            continue;
        }
        let Some((name, bytes)) = field(line).filter(|_| within > 0) else { continue };
        match (name, bytes) {
            ("KernelPageSize", GIB) => (pages.huge_1g, is_reserved) = (pages.huge_1g + within, true),
            ("KernelPageSize", MIB2) => (pages.huge_2m, is_reserved) = (pages.huge_2m + within, true),
            ("KernelPageSize", _) => pages.small += within,
            ("AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped", bytes) if !is_reserved => {
                let huge = bytes.min(within).min(pages.small);
                pages.small -= huge;
                pages.transparent += huge;
            }
            _ => {}
        }
    }
    pages
}

const MIB2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

/// Parses the first line of a mapping: `START-END PERMISSIONS ...`.
fn range_of(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

/// Parses `NAME: NUMBER kB`.
fn field(line: &str) -> Option<(&str, u64)> {
    let (name, rest) = line.split_once(':')?;
    let number = rest.trim_start().strip_suffix(" kB")?;
    Some((name, number.parse::<u64>().ok()?.checked_mul(1024)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    const TEXT: &str = "\
200000-600000 rw-s 00000000 00:01 1027 /memfd:dunlin (deleted)
Size:               4096 kB
KernelPageSize:     2048 kB
Shared_Hugetlb:     4096 kB
700000-b00000 rw-s 00000000 00:01 1028 /memfd:dunlin (deleted)
KernelPageSize:        4 kB
ShmemPmdMapped:     2048 kB
c00000-d00000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr
40000000-80000000 rw-s 00000000 00:01 1029 /memfd:dunlin (deleted)
KernelPageSize:  1048576 kB
";

    #[test]
    fn pages_are_counted_within_ranges() {
        let mib = |count: usize| count << 20;
        let all = 0..usize::MAX;
        let counted = Pages {
            small: mib(3) as u64,
            transparent: mib(2) as u64,
            huge_2m: mib(4) as u64,
            huge_1g: mib(1024) as u64,
        };
        assert_eq!(count(TEXT, &[all]), counted);
        assert_eq!(
            count(TEXT, from_ref(&(0x30_0000..0x40_0000))),
            Pages { huge_2m: mib(1) as u64, ..Pages::default() }
        );
        let one = count(TEXT, &[0x70_0000..0x80_0000, 0xc0_0000..0xc8_0000]);
        assert_eq!(one, Pages { small: mib(1) as u64 / 2, transparent: mib(1) as u64, ..Pages::default() });
        assert_eq!(count(TEXT, from_ref(&(0x60_0000..0x70_0000))), Pages::default());
        assert_eq!(count("", &[]), Pages::default());
    }

    #[test]
    fn the_kernel_reports_available_memory() {
        assert!(available().unwrap() > 1 << 20);
    }

    #[test]
    fn the_kernel_reports_memory_of_this_process() {
        let bytes = vec![1u8; 1 << 20];
        let base = bytes.as_ptr().addr();
        let pages = of(from_ref(&(base..base + bytes.len()))).unwrap();
        assert_eq!(pages.total(), 1 << 20, "{pages:?}");
    }
}
