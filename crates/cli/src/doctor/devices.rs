//! RDMA devices, or why there are none.

use super::Finding;
use std::fs;
use std::path::Path;

const NAME: &str = "RDMA devices";

/// Looks for RDMA devices the way the verbs library does.
pub(super) fn rdma() -> Finding {
    let class = Path::new("/sys/class/infiniband");
    let devices: Vec<String> = fs::read_dir(class)
        .map(|folder| folder.filter_map(|entry| Some(describe(&entry.ok()?.path()))).collect())
        .unwrap_or_default();
    if devices.is_empty() {
        let (found, advice) = why_none(class.exists());
        return Finding::warn(NAME, found, advice);
    }
    let found = devices.join(", ");
    if fs::read_dir("/dev/infiniband").is_err() {
        return Finding::warn(
            NAME,
            format!("{found}, but no /dev/infiniband"),
            "load ib_uverbs (modprobe ib_uverbs), or give the container the devices (--device=/dev/infiniband)",
        );
    }
    Finding::ok(NAME, found)
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Name, link layer and state of a device's first port.
fn describe(device: &Path) -> String {
    let name = device.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let port = device.join("ports/1");
    let state = read(&port.join("state")).unwrap_or_else(|| "state unknown".to_owned());
    // As in "4: ACTIVE".
    let state = state.rsplit(": ").next().unwrap_or_default().to_ascii_lowercase();
    match read(&port.join("link_layer")) {
        Some(layer) => format!("{name} ({layer}, {state})"),
        None => format!("{name} ({state})"),
    }
}

fn why_none(class_exists: bool) -> (&'static str, &'static str) {
    if class_exists {
        return (
            "none: the driver is loaded and found no device",
            "shared memory needs none; for a test over Ethernet: rdma link add rxe0 type rxe netdev eth0",
        );
    }
    let adapter = fs::read_dir("/sys/bus/pci/devices").is_ok_and(|devices| {
        devices.filter_map(Result::ok).any(|device| {
            // Class 0207 is an InfiniBand controller; vendor 15b3 makes ConnectX.
            read(&device.path().join("class")).is_some_and(|class| class.starts_with("0x0207"))
                || read(&device.path().join("vendor")).is_some_and(|vendor| vendor == "0x15b3")
        })
    });
    if adapter {
        (
            "none: there is an adapter, but no RDMA driver is loaded for it",
            "install rdma-core and load the driver (modprobe mlx5_ib)",
        )
    } else {
        (
            "none: there is no adapter, and the kernel has no RDMA driver loaded",
            "shared memory needs none; for a test over Ethernet: modprobe rdma_rxe, then rdma link add rxe0 type rxe netdev eth0",
        )
    }
}
