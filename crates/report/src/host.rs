//! A description of the machine that a figure was measured on.

use serde::Serialize;

/// The properties of the machine that affect figures. There is no host name, because documents are shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostDescription {
    /// CPU model; `unknown` if the kernel does not report it.
    pub cpu: String,
    /// Number of online cores.
    pub cores: u32,
    /// Kernel name, release and architecture.
    pub kernel: String,
    /// Main memory, bytes; 0 if the kernel does not report it.
    pub memory_bytes: u64,
    /// Whether the machine is a virtual machine.
    pub virtual_machine: bool,
    /// Creation time of the document, seconds since 1970 in UTC.
    pub unix_time_s: u64,
}

impl HostDescription {
    /// Describes this machine. Reads a few files of /proc, and blocks no longer than that.
    #[must_use]
    #[allow(clippy::disallowed_methods)] // The date of a document.
    pub fn of_this_host() -> Self {
        let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kernel = rustix::system::uname();
        Self {
            cpu: field(&processor, "model name")
                .or_else(|| field(&processor, "Model"))
                .unwrap_or("unknown")
                .to_owned(),
            // Not from this thread's affinity mask: a measurement may have pinned the thread.
            cores: processor.lines().filter(|line| line.starts_with("processor")).count().max(1) as u32,
            kernel: [kernel.sysname(), kernel.release(), kernel.machine()]
                .map(|part| part.to_string_lossy())
                .join(" "),
            memory_bytes: field(&memory, "MemTotal")
                .and_then(|text| text.strip_suffix(" kB"))
                .and_then(|text| text.parse::<u64>().ok())
                .map_or(0, |kilobytes| kilobytes * 1024),
            virtual_machine: field(&processor, "flags").is_some_and(|flags| flags.contains(" hypervisor")),
            unix_time_s: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nMemTotal:       2048 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "MemTotal"), Some("2048 kB"));
        assert_eq!(field(text, "model"), None);
    }

    #[test]
    fn this_host_has_cores_and_a_kernel() {
        let host = HostDescription::of_this_host();
        assert!(host.cores >= 1);
        assert!(host.kernel.starts_with("Linux "), "{}", host.kernel);
        assert!(host.memory_bytes > 0);
    }
}
