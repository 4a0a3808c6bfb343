//! An open device with its only protection domain, and the port and address in use.

use crate::events::{Event, Health};
use crate::library::{Library, LibraryError};
use crate::port::Port;
use crate::sys;
use dunlin_fabric::Atomics;
use dunlin_fabric::nic::{MELLANOX, SOFT_IWARP, SOFT_ROCE};
use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use thiserror::Error;

/// The reason why a fabric cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An environment variable is not valid.
    #[error(transparent)]
    Setting(#[from] crate::config::SettingError),
    /// libibverbs cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The machine has no RDMA device.
    #[error(
        "this machine has no RDMA device; `rdma link add rxe0 type rxe netdev eth0` gives a software one (module rdma_rxe)"
    )]
    NoDevice,
    /// No device has that name.
    #[error("there is no RDMA device '{wanted}'; there are: {found}")]
    NoSuchDevice {
        /// The requested name.
        wanted: String,
        /// The names of the devices.
        found: String,
    },
    /// No device can be used; the text has the reason for each.
    #[error("no RDMA device can be used: {0}")]
    NoneUsable(String),
    /// The device cannot be opened.
    #[error("{device} cannot be opened; is /dev/infiniband readable and writable for this user?")]
    Open {
        /// The device's name.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// The port does not exist or is down.
    #[error("{device} has no active port{which}: check the cable or the network interface, and `rdma link`")]
    NoActivePort {
        /// The device's name.
        device: String,
        /// The requested port, as text.
        which: String,
    },
    /// The port has no address, or not the requested one.
    #[error(
        "{device} port {port} has no GID{which}: give the network interface an IP address, or choose another index"
    )]
    NoGid {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
        /// The requested index, as text.
        which: String,
    },
    /// iWARP connects between IP addresses, and the device's network interface has no IP address.
    #[error("{device} has no IP address: give its network interface one (`ip addr add`)")]
    NoAddress {
        /// The device's name.
        device: String,
    },
    /// A system call failed.
    #[error("{what} of {device} failed")]
    System {
        /// The device's name.
        device: String,
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// The device, port and address to use. Fields that are `None` are chosen automatically.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device's name, as in `rdma link` and `ibv_devices`. Default: the first usable one.
    pub device: Option<String>,
    /// The port, from 1 on. Default: the first active one.
    pub port: Option<u8>,
    /// The index in the port's table of GIDs. Default: the GID of the control connection's local address, if
    /// there is one; otherwise RoCE v2 before v1, and IPv4 before IPv6.
    pub gid_index: Option<u32>,
    /// The maximum payload of a packet in bytes: 256, 512, 1024, 2048 or 4096; other values are rounded down.
    /// Default, and maximum: the port's MTU. Both ends of a connection use the smaller one.
    pub mtu: Option<u32>,
}

/// Vendors (as in `ibv_query_device`) whose NICs are known to make the bytes of a WRITE visible in order.
/// mlx4 and mlx5 do so (FaRM and HERD rely on it), Soft-RoCE copies one packet after another, and Soft-iWARP
/// copies the ordered bytes of TCP.
const IN_ORDER_VENDORS: [u32; 3] = [MELLANOX, SOFT_ROCE, SOFT_IWARP];
/// The depth of a completion queue that Soft-iWARP's library maps over more than 144 pages (32 bytes per
/// entry). The library mistakes the offset of page 144 in a process's mappings of the device for an error, so
/// no other queue may begin there.
const SOFT_IWARP_BALLAST: c_int = 1 << 15;

/// An open device. Every object made from it keeps it open.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) library: &'static Library,
    pub(crate) context: NonNull<sys::Context>,
    pub(crate) domain: NonNull<sys::ProtectionDomain>,
    /// A completion queue that is never used; see [`SOFT_IWARP_BALLAST`].
    ballast: Option<NonNull<sys::CompletionQueue>>,
    pub(crate) attributes: Attributes,
    pub(crate) name: String,
    /// Whether the device uses iWARP: RDMA over TCP, whose connections the kernel's connection manager makes.
    pub(crate) is_iwarp: bool,
    pub(crate) port: Port,
    pub(crate) health: Health,
}

/// The limits and features of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) max_memory_region: u64,
    pub(crate) max_work_requests: u32,
    pub(crate) max_completions: u32,
    pub(crate) max_queue_pairs: u32,
    pub(crate) max_shared_receives: u32,
    pub(crate) shared_receive_queues: bool,
    pub(crate) read_atomic: u8,
    pub(crate) responder_resources: u8,
    pub(crate) atomics: Atomics,
    pub(crate) in_order: bool,
    /// Whether software copies the bytes of READs, while other threads may be storing them.
    pub(crate) copies: bool,
    /// Soft-iWARP: a completion says nothing about the buffers of earlier unsignaled requests, and there are
    /// other peculiarities.
    pub(crate) is_soft_iwarp: bool,
    pub(crate) made: Made,
}

/// The vendor, model and identity of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) vendor: u32,
    pub(crate) part: u32,
    pub(crate) guid: u64,
    firmware: [u8; 64],
}

impl Made {
    /// Returns the firmware's version.
    pub(crate) fn firmware(&self) -> String {
        let end = self.firmware.iter().position(|byte| *byte == 0).unwrap_or(self.firmware.len());
        String::from_utf8_lossy(&self.firmware[..end]).trim().to_owned()
    }
}

// SAFETY: libibverbs may be called from any thread ("thread safe" in its README), and the pointers stay valid
// until the drop.
unsafe impl Send for Device {}
// SAFETY: as above; a shared `Device` only gives access to calls that libibverbs allows concurrently.
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: made in `open`. Every object made from it keeps an `Arc` to it, so none is left.
        let results = unsafe {
            [
                self.ballast.map_or(0, |queue| (self.library.destroy_cq)(queue.as_ptr())),
                (self.library.dealloc_pd)(self.domain.as_ptr()),
                (self.library.close_device)(self.context.as_ptr()),
            ]
        };
        if results != [0; 3] {
            tracing::error!(device = self.name, ?results, "a device did not close");
        }
    }
}

/// The list of devices, freed on drop.
struct DeviceList {
    library: &'static Library,
    first: *mut *mut sys::DeviceEntry,
    count: usize,
}

impl DeviceList {
    fn get(library: &'static Library) -> Result<Self, OpenError> {
        let mut count: c_int = 0;
        // SAFETY: the count is a valid place to write to.
        let first = unsafe { (library.get_device_list)(&mut count) };
        if first.is_null() {
            return match io::Error::last_os_error() {
                // The module ib_uverbs is not loaded.
                error if error.raw_os_error() == Some(libc::ENOSYS) => Err(OpenError::NoDevice),
                source => {
                    Err(OpenError::System { device: "the list".into(), what: "ibv_get_device_list", source })
                }
            };
        }
        Ok(DeviceList { library, first, count: usize::try_from(count).unwrap_or(0) })
    }

    fn entries(&self) -> impl Iterator<Item = (*mut sys::DeviceEntry, String)> {
        (0..self.count).map(|at| {
            // SAFETY: within the list, whose entries are valid until it is freed; names are C strings inside
            // them.
            unsafe {
                let entry = *self.first.add(at);
                (entry, CStr::from_ptr((self.library.get_device_name)(entry)).to_string_lossy().into_owned())
            }
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from `get_device_list`, and freed once. Devices that were opened stay valid.
        unsafe { (self.library.free_device_list)(self.first) }
    }
}

/// Returns the names of this machine's devices.
pub(crate) fn names() -> Result<Vec<String>, OpenError> {
    Ok(DeviceList::get(Library::get()?)?.entries().map(|(_, name)| name).collect())
}

impl Device {
    /// Opens the chosen device, or the first usable one.
    pub(crate) fn open(choice: &DeviceChoice) -> Result<Arc<Self>, OpenError> {
        let library = Library::get()?;
        let list = DeviceList::get(library)?;
        if list.count == 0 {
            return Err(OpenError::NoDevice);
        }
        if let Some(wanted) = &choice.device {
            let Some((entry, name)) = list.entries().find(|(_, name)| name == wanted) else {
                let found: Vec<_> = list.entries().map(|(_, name)| name).collect();
                return Err(OpenError::NoSuchDevice { wanted: wanted.clone(), found: found.join(", ") });
            };
            return Self::open_entry(library, entry, name, choice);
        }
        let mut errors = Vec::new();
        for (entry, name) in list.entries() {
            match Self::open_entry(library, entry, name, choice) {
                Ok(device) => return Ok(device),
                Err(error) => errors.push(error),
            }
        }
        match errors.len() {
            1 => Err(errors.remove(0)),
            _ => {
                let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
                Err(OpenError::NoneUsable(texts.join("; ")))
            }
        }
    }

    fn open_entry(
        library: &'static Library,
        entry: *mut sys::DeviceEntry,
        name: String,
        choice: &DeviceChoice,
    ) -> Result<Arc<Self>, OpenError> {
        // SAFETY: an entry of a list that is not freed yet.
        let context = NonNull::new(unsafe { (library.open_device)(entry) });
        let Some(context) = context else {
            let source = io::Error::last_os_error();
            return Err(OpenError::Open { device: name, source: refused_files().unwrap_or(source) });
        };
        // SAFETY: the context is open.
        let Some(domain) = NonNull::new(unsafe { (library.alloc_pd)(context.as_ptr()) }) else {
            let source = io::Error::last_os_error();
            // SAFETY: the context is open, and no object was made from it.
            unsafe { (library.close_device)(context.as_ptr()) };
            return Err(OpenError::System { device: name, what: "ibv_alloc_pd", source });
        };
        // SAFETY: an entry of a list that is not freed yet.
        let is_iwarp = unsafe { (*entry).transport } == sys::DEVICE_IWARP;
        let (attributes, port) = (Attributes::NONE, Port::default());
        // From here on the drop closes the device.
        let health = Health::default();
        let ballast = None;
        let mut device =
            Device { library, context, domain, ballast, attributes, name, is_iwarp, port, health };
        device.unblock_events()?;
        device.attributes = device.query()?;
        if device.attributes.is_soft_iwarp {
            device.add_ballast()?;
        }
        device.port = device.choose_port(choice)?;
        Ok(Arc::new(device))
    }

    /// Makes Soft-iWARP map a queue over the offset at which no other queue may begin. Called before any
    /// other mapping.
    fn add_ballast(&mut self) -> Result<(), OpenError> {
        let (context, none) = (self.context.as_ptr(), std::ptr::null_mut());
        // SAFETY: the context is open; the queue has no channel.
        let made =
            unsafe { (self.library.create_cq)(context, SOFT_IWARP_BALLAST, none, std::ptr::null_mut(), 0) };
        let Some(queue) = NonNull::new(made) else {
            let source = io::Error::last_os_error();
            return Err(OpenError::System { device: self.name.clone(), what: "ibv_create_cq", source });
        };
        self.ballast = Some(queue);
        Ok(())
    }

    /// Makes the descriptor non-blocking, since events are taken until none is left.
    fn unblock_events(&self) -> Result<(), OpenError> {
        let failed = |errno: rustix::io::Errno| self.failed("fcntl", errno.raw_os_error());
        let flags = rustix::fs::fcntl_getfl(self.events()).map_err(failed)?;
        rustix::fs::fcntl_setfl(self.events(), flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
    }

    /// Returns the descriptor that is readable when there is an event.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the context keeps the descriptor open until it is closed, which the borrow prevents.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_descriptor) }
    }

    /// Returns the reason why no peer is reachable now, if one is known.
    pub(crate) fn trouble(&self) -> Option<String> {
        let (name, port) = (&self.name, self.port.number);
        if self.health.has_failed() {
            Some(format!("{name} failed or was removed: open the fabric again when it is back"))
        } else if self.health.is_port_down() {
            Some(format!("port {port} of {name} is down: check the cable or the network interface"))
        } else {
            None
        }
    }

    /// Takes one event. Only one thread may call it.
    pub(crate) fn next_event(&self) -> Option<Event> {
        let mut raw = sys::AsyncEvent { element: std::ptr::null_mut(), kind: 0 };
        // SAFETY: the context is open, and the structure has the library's layout.
        let code = unsafe { (self.library.get_async_event)(self.context.as_ptr(), &mut raw) };
        if code != 0 {
            return None;
        }
        // SAFETY: just received, and acknowledged only after this.
        let event = unsafe { Event::read(&raw) };
        // SAFETY: received from the library, and acknowledged once. A thread that destroys the element waits
        // for that.
        unsafe { (self.library.ack_async_event)(&mut raw) };
        Some(event)
    }

    fn failed(&self, what: &'static str, code: c_int) -> OpenError {
        OpenError::System { device: self.name.clone(), what, source: errno(code) }
    }

    fn query(&self) -> Result<Attributes, OpenError> {
        // SAFETY: a structure of integers and bytes, for which zeros are valid values.
        let mut got: sys::DeviceAttributes = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the structure has the library's layout.
        let code = unsafe { (self.library.query_device)(self.context.as_ptr(), &mut got) };
        if code != 0 {
            return Err(self.failed("ibv_query_device", code));
        }
        let number = |value: c_int| u32::try_from(value).unwrap_or(0);
        let small = |value: c_int| u8::try_from(value.clamp(0, 16)).unwrap_or(0);
        Ok(Attributes {
            max_memory_region: got.max_mr_size,
            max_work_requests: number(got.max_qp_wr),
            max_completions: number(got.max_cqe),
            max_queue_pairs: number(got.max_qp),
            max_shared_receives: number(got.max_srq_wr),
            shared_receive_queues: got.max_srq > 0,
            read_atomic: small(got.max_qp_initiator_read_atomic),
            responder_resources: small(got.max_qp_read_atomic),
            atomics: match got.atomic_capability {
                sys::ATOMICS_NONE => Atomics::None,
                sys::ATOMICS_GLOBAL => Atomics::Processors,
                _ => Atomics::Device,
            },
            in_order: IN_ORDER_VENDORS.contains(&got.vendor_id),
            copies: [SOFT_ROCE, SOFT_IWARP].contains(&got.vendor_id),
            is_soft_iwarp: got.vendor_id == SOFT_IWARP,
            made: Made {
                vendor: got.vendor_id,
                part: got.vendor_part_id,
                guid: u64::from_be(got.node_guid),
                firmware: got.firmware,
            },
        })
    }

    fn choose_port(&self, choice: &DeviceChoice) -> Result<Port, OpenError> {
        let which = choice.port.map(|port| format!(" {port}")).unwrap_or_default();
        let numbers = choice.port.map_or(1..=8, |port| port..=port);
        let mut found = None;
        for number in numbers {
            let mut attributes = sys::PortAttributes::default();
            // SAFETY: the context is open, and the library's structure is not longer than this one.
            let code = unsafe { (self.library.query_port)(self.context.as_ptr(), number, &mut attributes) };
            if code != 0 {
                // After the last port.
                break;
            }
            if attributes.state == sys::PORT_ACTIVE {
                found = Some((number, attributes));
                break;
            }
        }
        let Some((number, attributes)) = found else {
            return Err(OpenError::NoActivePort { device: self.name.clone(), which });
        };
        let table = self.gids(number)?;
        Port::new(number, &attributes, &table, self.is_iwarp, choice).ok_or_else(|| OpenError::NoGid {
            device: self.name.clone(),
            port: number,
            which: choice.gid_index.map(|index| format!(" {index}")).unwrap_or_default(),
        })
    }

    fn gids(&self, port: u8) -> Result<Vec<sys::GidEntry>, OpenError> {
        // Tables have up to 1024 entries per port, most of them empty. The library returns those of all
        // ports; the kernel rejects lists of 64 KiB or more.
        let mut entries = vec![sys::GidEntry::default(); 1024];
        let size = size_of::<sys::GidEntry>();
        // SAFETY: the context is open, and the buffer has room for that number of entries of that size.
        let count = unsafe {
            (self.library.query_gid_table)(
                self.context.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size,
            )
        };
        let count = usize::try_from(count)
            .map_err(|_| self.failed("ibv_query_gid_table", c_int::try_from(count).unwrap_or(libc::EIO)))?;
        entries.truncate(count);
        entries.retain(|entry| entry.port == u32::from(port));
        Ok(entries)
    }
}

impl Attributes {
    const NONE: Attributes = Attributes {
        max_memory_region: 0,
        max_work_requests: 0,
        max_completions: 0,
        max_queue_pairs: 0,
        max_shared_receives: 0,
        shared_receive_queues: false,
        read_atomic: 0,
        responder_resources: 0,
        atomics: Atomics::None,
        in_order: false,
        copies: false,
        is_soft_iwarp: false,
        made: Made { vendor: 0, part: 0, guid: 0, firmware: [0; 64] },
    };
}

/// Returns the system's error for the files through which devices are opened, if it refuses one. The library
/// only reports that no device was found.
fn refused_files() -> Option<io::Error> {
    let folder = std::fs::read_dir("/dev/infiniband").ok()?.filter_map(Result::ok);
    folder
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("uverbs"))
        .filter_map(|entry| std::fs::OpenOptions::new().read(true).write(true).open(entry.path()).err())
        .find(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Converts the result of a call of libibverbs: an error number, negated by some drivers; other drivers
/// return `-1` with the number in `errno`.
pub(crate) fn errno(code: c_int) -> io::Error {
    if code == -1 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(code.saturating_abs()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_of_either_sign() {
        assert_eq!(errno(libc::EINVAL).raw_os_error(), Some(libc::EINVAL));
        assert_eq!(errno(-libc::EINVAL).raw_os_error(), Some(libc::EINVAL));
        // EPERM is 1, so -1 cannot be distinguished from "see errno".
        assert_eq!(errno(libc::EPERM).raw_os_error(), Some(libc::EPERM));
    }

    /// On a machine without a device the error names the remedy; with one, it opens.
    #[test]
    fn a_machine_without_a_device_says_what_to_do() {
        match Device::open(&DeviceChoice::default()) {
            Ok(device) => assert!(!device.name.is_empty()),
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("install")
                        || text.contains("rdma link")
                        || text.contains("/dev/infiniband"),
                    "{text}"
                );
            }
        }
    }
}
