//! RDMA: library, devices with their ports and addresses, and device files; or why they are missing.

use super::Finding;
use dunlin::errors::WithSources;
use dunlin_fabric_rdma::{DeviceChoice, OpenError, RdmaConfig, RdmaFabric};
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Number of GID table entries that are checked. Tables have hundreds of entries, and the used ones come
/// first.
const GIDS: usize = 32;

const NO_DEVICE: &str = "shared memory needs none; for a test over Ethernet: modprobe rdma_rxe, then rdma link add rxe0 type rxe netdev eth0";

/// Runs all checks of RDMA.
pub(super) fn all() -> Vec<Finding> {
    let root = Path::new("/");
    let mut findings = vec![library(), devices(root)];
    findings.extend(files(root));
    if !names(root).is_empty() {
        findings.push(fabric(root));
    }
    findings
}

fn library() -> Finding {
    match dunlin_fabric_rdma::open_library() {
        Ok(()) => Finding::ok("RDMA library", "libibverbs, opened"),
        Err(error) => Finding::warn(
            "RDMA library",
            error.to_string(),
            "apt-get install libibverbs1 ibverbs-providers (and librdmacm1 for iWARP), or dnf install libibverbs librdmacm; shared memory needs none",
        ),
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).map(|found| found.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    entries.sort();
    entries
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn names(root: &Path) -> Vec<String> {
    entries(&root.join("sys/class/infiniband")).iter().map(|path| name_of(path)).collect()
}

/// Lists the kernel's RDMA devices, from sysfs.
fn devices(root: &Path) -> Finding {
    const NAME: &str = "RDMA devices";
    let class = root.join("sys/class/infiniband");
    let devices = entries(&class);
    if devices.is_empty() {
        let (found, advice) = why_none(root, class.exists());
        return Finding::warn(NAME, found, advice);
    }
    let found: Vec<String> = devices.iter().map(|device| describe(device)).collect();
    let active = devices
        .iter()
        .any(|device| entries(&device.join("ports")).iter().any(|port| state(port) == "active"));
    if !active {
        let advice = "no port is active: check the cable, `ip link set INTERFACE up`, and `rdma link`";
        return Finding::warn(NAME, found.join("; "), advice);
    }
    Finding::ok(NAME, found.join("; "))
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the state of a port, such as "4: ACTIVE".
fn state(port: &Path) -> String {
    let state = read(&port.join("state")).unwrap_or_else(|| "state unknown".to_owned());
    state.rsplit(": ").next().unwrap_or_default().to_ascii_lowercase()
}

/// Describes a device and its ports: link layer, state, and GIDs.
fn describe(device: &Path) -> String {
    let iwarp = read(&device.join("node_type")).is_some_and(|kind| kind.starts_with("4:"));
    let ports: Vec<String> = entries(&device.join("ports"))
        .iter()
        .map(|port| {
            let layer = match iwarp {
                true => "iWARP".to_owned(),
                false => read(&port.join("link_layer")).unwrap_or_else(|| "unknown layer".to_owned()),
            };
            let gids = gids(port);
            // iWARP's only GID is the hardware address, so there is no choice.
            let gids = match gids.len() {
                _ if iwarp => String::new(),
                0 => ", no GID".to_owned(),
                1 => format!(", GID {}", gids.join(", ")),
                _ => format!(", GIDs {}", gids.join(", ")),
            };
            format!("port {} {layer} {}{gids}", name_of(port), state(port))
        })
        .collect();
    format!("{} ({})", name_of(device), ports.join("; "))
}

/// Returns the used GIDs with their indices and RoCE versions.
fn gids(port: &Path) -> Vec<String> {
    (0..GIDS)
        .map_while(|index| Some((index, read(&port.join(format!("gids/{index}")))?)))
        .filter(|(_, gid)| gid.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
        .map(|(index, gid)| {
            let kind = read(&port.join(format!("gid_attrs/types/{index}")));
            let address = gid.parse::<std::net::Ipv6Addr>();
            let address = address.map_or(gid, |gid| {
                gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |address| address.to_string())
            });
            format!("{index} {}{address}", kind.map(|kind| format!("{kind} ")).unwrap_or_default())
        })
        .collect()
}

fn why_none(root: &Path, class_exists: bool) -> (&'static str, &'static str) {
    if class_exists {
        return (
            "none: the driver is loaded and found no device",
            "shared memory needs none; for a test over Ethernet: rdma link add rxe0 type rxe netdev eth0",
        );
    }
    // Class 0207 is an InfiniBand controller; vendor 15b3 makes ConnectX.
    let adapter = entries(&root.join("sys/bus/pci/devices")).iter().any(|device| {
        read(&device.join("class")).is_some_and(|class| class.starts_with("0x0207"))
            || read(&device.join("vendor")).is_some_and(|vendor| vendor == "0x15b3")
    });
    if adapter {
        (
            "none: there is an adapter, but no RDMA driver is loaded for it",
            "install rdma-core and load the driver (modprobe mlx5_ib)",
        )
    } else {
        ("none: there is no adapter, and the kernel has no RDMA driver loaded", NO_DEVICE)
    }
}

/// Checks the device files; returns `None` if there are no devices.
fn files(root: &Path) -> Option<Finding> {
    const NAME: &str = "RDMA files";
    if names(root).is_empty() {
        return None;
    }
    let folder = root.join("dev/infiniband");
    let verbs: Vec<PathBuf> =
        entries(&folder).into_iter().filter(|path| name_of(path).starts_with("uverbs")).collect();
    if verbs.is_empty() {
        return Some(Finding::warn(
            NAME,
            "no /dev/infiniband/uverbs*",
            "load ib_uverbs (modprobe ib_uverbs), or give the container the devices (--device=/dev/infiniband)",
        ));
    }
    let refused: Vec<String> = verbs
        .iter()
        .filter(|path| {
            let opened = OpenOptions::new().read(true).write(true).open(path);
            opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
        })
        .map(|path| name_of(path))
        .collect();
    if !refused.is_empty() {
        return Some(Finding::warn(
            NAME,
            format!("this user may not open {} of /dev/infiniband", refused.join(", ")),
            "join the group that owns them (usermod -aG rdma USER), or have udev give them mode 0666",
        ));
    }
    let manager = match folder.join("rdma_cm").exists() {
        true => "rdma_cm is there",
        false => "no rdma_cm, which only iWARP needs (modprobe rdma_ucm)",
    };
    Some(Finding::ok(NAME, format!("{} can be opened; {manager}", verbs_names(&verbs))))
}

fn verbs_names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| name_of(path)).collect::<Vec<_>>().join(", ")
}

/// Opens each device as a server would, with the settings of the environment.
fn fabric(root: &Path) -> Finding {
    const NAME: &str = "fabric rdma";
    let config = match RdmaConfig::default().completed() {
        Ok(config) => config,
        Err(error) => return Finding::warn(NAME, error.to_string(), "correct or unset the variable"),
    };
    let names = match &config.device.device {
        Some(name) => vec![name.clone()],
        None => names(root),
    };
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for name in names {
        let device = DeviceChoice { device: Some(name.clone()), ..config.device.clone() };
        match RdmaFabric::new(RdmaConfig { device, ..config.clone() }) {
            Ok(fabric) => good.push(fabric.description()),
            Err(error) => bad.push((name, error)),
        }
    }
    let failed: Vec<String> =
        bad.iter().map(|(name, error)| format!("{name} does not: {}", WithSources(error))).collect();
    match (good.is_empty(), bad.first()) {
        (false, _) => {
            let said: Vec<String> =
                good.iter().map(|text| format!("starts on {text}")).chain(failed).collect();
            Finding::ok(NAME, said.join("; "))
        }
        (true, Some((_, error))) => Finding::warn(NAME, failed.join("; "), advice(error)),
        (true, None) => Finding::warn(NAME, "no device", NO_DEVICE),
    }
}

fn advice(error: &OpenError) -> &'static str {
    match error {
        OpenError::Setting(_) => "correct or unset the variable",
        OpenError::Library(_) => "install the library; see the first line about RDMA",
        OpenError::NoDevice | OpenError::NoSuchDevice { .. } => {
            "see `rdma link`; unset DUNLIN_RDMA_DEVICE to take any"
        }
        OpenError::Open { .. } => "see the line about the files",
        OpenError::NoActivePort { .. } => {
            "`ip link set INTERFACE up`, and unset DUNLIN_RDMA_PORT to take any"
        }
        OpenError::NoGid { .. } | OpenError::NoAddress { .. } => {
            "`ip addr add ADDRESS/24 dev INTERFACE`, and unset DUNLIN_RDMA_GID_INDEX to take the best"
        }
        // A device or the system refuses.
        _ => "see the kernel's log, and the limit of locked memory (ulimit -l)",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Mark;
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A temporary root folder, removed on drop.
    struct Root(PathBuf);

    impl Root {
        fn new(files: &[(&str, &str)]) -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let root =
                Root(std::env::temp_dir().join(format!("dunlin-doctor-{}-{number}", std::process::id())));
            fs::create_dir_all(&root.0).unwrap();
            for (path, text) in files {
                let path = root.0.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            root
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

    fn device(state: &str) -> Vec<(String, String)> {
        let files = [
            ("sys/class/infiniband/mlx5_0/node_type", "1: CA\n"),
            ("state", state),
            ("link_layer", "Ethernet\n"),
            ("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ("gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n"),
            ("gids/2", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("gid_attrs/types/0", "IB/RoCE v1\n"),
            ("gid_attrs/types/1", "RoCE v2\n"),
        ];
        let place = |path: &str| match path.starts_with("sys") {
            true => path.to_owned(),
            false => format!("{PORT}/{path}"),
        };
        files.map(|(path, text)| (place(path), text.to_owned())).to_vec()
    }

    fn root(files: &[(String, String)]) -> Root {
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        Root::new(&files)
    }

    #[test]
    fn devices_are_told_with_ports_and_addresses() {
        let root = root(&device("4: ACTIVE\n"));
        let finding = devices(&root.0);
        assert_eq!(finding.mark, Mark::Ok);
        assert_eq!(
            finding.found,
            "mlx5_0 (port 1 Ethernet active, GIDs 0 IB/RoCE v1 fe80::1, 1 RoCE v2 10.77.0.1)"
        );
    }

    #[test]
    fn a_port_that_is_down_says_what_to_do() {
        let root = root(&device("1: DOWN\n"));
        let finding = devices(&root.0);
        assert!(finding.mark == Mark::Warn && finding.found.contains("down"), "{finding:?}");
        assert!(finding.advice.unwrap().contains("ip link set"));
    }

    #[test]
    fn no_device_has_a_reason() {
        let empty = Root::new(&[]);
        assert!(devices(&empty.0).advice.unwrap().contains("rdma link add rxe0"));
        assert!(files(&empty.0).is_none());
        let adapter = Root::new(&[("sys/bus/pci/devices/0000:01:00.0/vendor", "0x15b3\n")]);
        assert!(devices(&adapter.0).advice.unwrap().contains("mlx5_ib"));
        let driver = Root::new(&[("sys/class/infiniband/.keep", "")]);
        fs::remove_file(driver.0.join("sys/class/infiniband/.keep")).unwrap();
        assert!(devices(&driver.0).found.contains("found no device"));
    }

    #[test]
    fn the_files_that_devices_are_opened_by() {
        let mut made = device("4: ACTIVE\n");
        let without = root(&made);
        assert!(files(&without.0).unwrap().advice.unwrap().contains("ib_uverbs"));
        made.push(("dev/infiniband/uverbs0".to_owned(), String::new()));
        let with = root(&made);
        let finding = files(&with.0).unwrap();
        assert!(finding.mark == Mark::Ok && finding.found.contains("uverbs0"), "{finding:?}");
        assert!(finding.found.contains("rdma_ucm"));
        // The superuser may open every file.
        let file = with.0.join("dev/infiniband/uverbs0");
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        if OpenOptions::new().read(true).open(&file).is_err() {
            assert!(files(&with.0).unwrap().found.contains("may not open uverbs0"));
        }
    }
}
