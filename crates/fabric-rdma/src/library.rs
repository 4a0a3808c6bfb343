//! libibverbs, opened at run time, so that building needs no RDMA package and a machine without one gets an error to
//! act on.

use crate::sys::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use thiserror::Error;

/// Why libibverbs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LibraryError {
    /// It is not there, or something that it needs is not.
    #[error(
        "libibverbs cannot be opened ({0}); install rdma-core (Debian: libibverbs1 and ibverbs-providers; Fedora: libibverbs)"
    )]
    Missing(String),
    /// It is there, but lacks a function.
    #[error("libibverbs has no {0}: rdma-core 32 or newer is needed")]
    TooOld(&'static str),
}

const NAME: &CStr = c"libibverbs.so.1";

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that are exported; those of the data path are reached through the context.
        #[derive(Clone, Copy)]
        pub(crate) struct Library {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            fn open() -> Result<Self, LibraryError> {
                // SAFETY: the name is a C string. Opening runs the library's own initialisers, which are those that a
                // program linked with it would run. It is never closed, so its functions stay where they are.
                let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if handle.is_null() {
                    return Err(LibraryError::Missing(last_error()));
                }
                $(
                    // SAFETY: the handle is open, the name is a C string.
                    let address = unsafe { libc::dlsym(handle, concat!($symbol, "\0").as_ptr().cast()) };
                    if address.is_null() {
                        return Err(LibraryError::TooOld($symbol));
                    }
                    // SAFETY: the symbol is a function, whose type in rdma-core's header is this one.
                    let $name = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address)
                    };
                )*
                Ok(Library { $($name),* })
            }
        }
    };
}

functions! {
    /// A list that ends with null; its length goes into the argument.
    get_device_list: "ibv_get_device_list"(*mut c_int) -> *mut *mut DeviceEntry;
    free_device_list: "ibv_free_device_list"(*mut *mut DeviceEntry) -> ();
    get_device_name: "ibv_get_device_name"(*mut DeviceEntry) -> *const c_char;
    open_device: "ibv_open_device"(*mut DeviceEntry) -> *mut Context;
    close_device: "ibv_close_device"(*mut Context) -> c_int;
    query_device: "ibv_query_device"(*mut Context, *mut DeviceAttributes) -> c_int;
    /// Fills what `ibv_port_attr` had at first: all but its last field.
    query_port: "ibv_query_port"(*mut Context, u8, *mut PortAttributes) -> c_int;
    /// Context, entries, how many there is room for, flags, size of one; how many there are, or an error below zero.
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
    /// Does not wait if the descriptor does not block.
    get_async_event: "ibv_get_async_event"(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: "ibv_ack_async_event"(*mut AsyncEvent) -> ();
    create_srq: "ibv_create_srq"(*mut ProtectionDomain, *mut SharedReceiveInit) -> *mut SharedReceiveQueue;
    destroy_srq: "ibv_destroy_srq"(*mut SharedReceiveQueue) -> c_int;
    create_qp: "ibv_create_qp"(*mut ProtectionDomain, *mut QueuePairInit) -> *mut QueuePair;
    modify_qp: "ibv_modify_qp"(*mut QueuePair, *mut QueuePairAttributes, c_int) -> c_int;
    destroy_qp: "ibv_destroy_qp"(*mut QueuePair) -> c_int;
    create_ah: "ibv_create_ah"(*mut ProtectionDomain, *mut AddressAttributes) -> *mut AddressHandle;
    destroy_ah: "ibv_destroy_ah"(*mut AddressHandle) -> c_int;
}

fn last_error() -> String {
    // SAFETY: the text is valid until the next call of this family on this thread, and copied before.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "no reason given".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

impl Library {
    /// The library of this process, opened when first asked for.
    pub(crate) fn get() -> Result<&'static Library, LibraryError> {
        static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        LIBRARY.get_or_init(Library::open).as_ref().map_err(Clone::clone)
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}
