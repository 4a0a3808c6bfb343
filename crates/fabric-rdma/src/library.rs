//! libibverbs, opened at run time: building needs no RDMA package, and a machine without it gets a helpful
//! error.

use crate::sys::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use thiserror::Error;

/// The reason why libibverbs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// libibverbs, or a library that it needs, is missing.
    #[error(
        "libibverbs cannot be opened ({0}); install rdma-core (Debian: libibverbs1 and ibverbs-providers; Fedora: libibverbs)"
    )]
    Missing(String),
    /// The library of the connection manager, which only iWARP devices need, is missing.
    #[error(
        "librdmacm cannot be opened ({0}), and iWARP devices connect by it; install it (Debian: librdmacm1; Fedora: librdmacm)"
    )]
    ManagerMissing(String),
    /// One of the libraries lacks a function.
    #[error("there is no {0} in the RDMA libraries: rdma-core 32 or newer is needed")]
    TooOld(&'static str),
}

macro_rules! functions {
    ($(#[$struct_doc:meta])* $library:ident in $file:literal or $missing:path:
     $($(#[$doc:meta])* $name:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        $(#[$struct_doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $library {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $library {
            /// Returns the library of this process; opens it at the first call.
            pub(crate) fn get() -> Result<&'static Self, LibraryError> {
                static LIBRARY: OnceLock<Result<$library, LibraryError>> = OnceLock::new();
                LIBRARY.get_or_init($library::open).as_ref().map_err(Clone::clone)
            }

            fn open() -> Result<Self, LibraryError> {
                // SAFETY: the name is a C string. Opening runs the library's own initialisers, which a
                // program linked with it would run too. The library is never closed, so its functions stay
                // valid.
                let handle = unsafe { libc::dlopen(concat!($file, "\0").as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if handle.is_null() {
                    return Err($missing(last_error()));
                }
                $(
                    // SAFETY: the handle is open, and the name is a C string.
                    let address = unsafe { libc::dlsym(handle, concat!($symbol, "\0").as_ptr().cast()) };
                    if address.is_null() {
                        return Err(LibraryError::TooOld($symbol));
                    }
                    // SAFETY: the symbol is a function, and this is its type in rdma-core's header.
                    let $name = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address)
                    };
                )*
                Ok($library { $($name),* })
            }
        }

        impl std::fmt::Debug for $library {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($library))
            }
        }
    };
}

functions! {
    /// The functions that libibverbs exports. Those of the data path are reached through the context.
    Library in "libibverbs.so.1" or LibraryError::Missing:
    /// Returns a list that ends with null; stores its length in the argument.
    get_device_list: "ibv_get_device_list"(*mut c_int) -> *mut *mut DeviceEntry;
    free_device_list: "ibv_free_device_list"(*mut *mut DeviceEntry) -> ();
    get_device_name: "ibv_get_device_name"(*mut DeviceEntry) -> *const c_char;
    open_device: "ibv_open_device"(*mut DeviceEntry) -> *mut Context;
    close_device: "ibv_close_device"(*mut Context) -> c_int;
    query_device: "ibv_query_device"(*mut Context, *mut DeviceAttributes) -> c_int;
    /// Fills the original fields of `ibv_port_attr`: all but its last.
    query_port: "ibv_query_port"(*mut Context, u8, *mut PortAttributes) -> c_int;
    /// Arguments: context, entries, room for entries, flags, size of an entry. Returns the number of entries,
    /// or a negative error.
    query_gid_table: "_ibv_query_gid_table"(*mut Context, *mut GidEntry, usize, u32, usize) -> isize;
    alloc_pd: "ibv_alloc_pd"(*mut Context) -> *mut ProtectionDomain;
    dealloc_pd: "ibv_dealloc_pd"(*mut ProtectionDomain) -> c_int;
    reg_mr: "ibv_reg_mr"(*mut ProtectionDomain, *mut c_void, usize, c_int) -> *mut MemoryRegion;
    dereg_mr: "ibv_dereg_mr"(*mut MemoryRegion) -> c_int;
    create_channel: "ibv_create_comp_channel"(*mut Context) -> *mut CompletionChannel;
    destroy_channel: "ibv_destroy_comp_channel"(*mut CompletionChannel) -> c_int;
    create_cq: "ibv_create_cq"(*mut Context, c_int, *mut c_void, *mut CompletionChannel, c_int) -> *mut CompletionQueue;
    destroy_cq: "ibv_destroy_cq"(*mut CompletionQueue) -> c_int;
    get_cq_event: "ibv_get_cq_event"(*mut CompletionChannel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
    ack_cq_events: "ibv_ack_cq_events"(*mut CompletionQueue, c_uint) -> ();
    /// Does not wait if the descriptor is non-blocking.
    get_async_event: "ibv_get_async_event"(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: "ibv_ack_async_event"(*mut AsyncEvent) -> ();
    create_srq: "ibv_create_srq"(*mut ProtectionDomain, *mut SharedReceiveInit) -> *mut SharedReceiveQueue;
    destroy_srq: "ibv_destroy_srq"(*mut SharedReceiveQueue) -> c_int;
    create_qp: "ibv_create_qp"(*mut ProtectionDomain, *mut QueuePairInit) -> *mut QueuePair;
    modify_qp: "ibv_modify_qp"(*mut QueuePair, *mut QueuePairAttributes, c_int) -> c_int;
    query_qp: "ibv_query_qp"(*mut QueuePair, *mut QueuePairAttributes, c_int, *mut QueuePairInit) -> c_int;
    destroy_qp: "ibv_destroy_qp"(*mut QueuePair) -> c_int;
    create_ah: "ibv_create_ah"(*mut ProtectionDomain, *mut AddressAttributes) -> *mut AddressHandle;
    destroy_ah: "ibv_destroy_ah"(*mut AddressHandle) -> c_int;
}

functions! {
    /// The functions of librdmacm, with which iWARP connects.
    ManagerLibrary in "librdmacm.so.1" or LibraryError::ManagerMissing:
    create_event_channel: "rdma_create_event_channel"() -> *mut EventChannel;
    destroy_event_channel: "rdma_destroy_event_channel"(*mut EventChannel) -> ();
    create_id: "rdma_create_id"(*mut EventChannel, *mut *mut ConnectionId, *mut c_void, c_uint) -> c_int;
    destroy_id: "rdma_destroy_id"(*mut ConnectionId) -> c_int;
    bind_address: "rdma_bind_addr"(*mut ConnectionId, *mut libc::sockaddr) -> c_int;
    listen: "rdma_listen"(*mut ConnectionId, c_int) -> c_int;
    /// In network byte order.
    source_port: "rdma_get_src_port"(*mut ConnectionId) -> u16;
    /// Arguments: id, source (or null), destination, milliseconds.
    resolve_address: "rdma_resolve_addr"(*mut ConnectionId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    resolve_route: "rdma_resolve_route"(*mut ConnectionId, c_int) -> c_int;
    connect: "rdma_connect"(*mut ConnectionId, *mut ConnectionParameters) -> c_int;
    accept: "rdma_accept"(*mut ConnectionId, *mut ConnectionParameters) -> c_int;
    reject: "rdma_reject"(*mut ConnectionId, *const c_void, u8) -> c_int;
    migrate_id: "rdma_migrate_id"(*mut ConnectionId, *mut EventChannel) -> c_int;
    get_event: "rdma_get_cm_event"(*mut EventChannel, *mut *mut ConnectionEvent) -> c_int;
    acknowledge_event: "rdma_ack_cm_event"(*mut ConnectionEvent) -> c_int;
}

fn last_error() -> String {
    // SAFETY: the text is valid until this thread's next call of this family, and is copied before.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "no reason given".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}
