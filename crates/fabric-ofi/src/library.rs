//! libfabric, opened at run time, so that building needs no package of it and a machine without it gets an error to act on.

use crate::sys;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use thiserror::Error;

/// Why libfabric cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LibraryError {
    /// It is not there, or something that it needs is not.
    #[error(
        "libfabric cannot be opened ({0}); install it (Debian and Ubuntu: libfabric1; Fedora: libfabric; Amazon: the EFA installer)"
    )]
    Missing(String),
    /// It is there, but lacks a function.
    #[error("there is no {0} in libfabric: 1.17 or newer is needed")]
    Incomplete(&'static str),
    /// It is there, and too old.
    #[error("libfabric is version {major}.{minor}: 1.17 or newer is needed")]
    TooOld {
        /// What is there.
        major: u32,
        /// What is there.
        minor: u32,
    },
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that libfabric exports; all others are reached through tables of its objects.
        #[derive(Clone, Copy)]
        pub(crate) struct Library {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            fn open() -> Result<Self, LibraryError> {
                // SAFETY: the name is a C string. Opening runs the library's own initialisers, which are those that a
                // program linked with it would run. It is never closed, so its functions stay where they are.
                let handle = unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if handle.is_null() {
                    return Err(LibraryError::Missing(last_error()));
                }
                $(
                    // SAFETY: the handle is open, the name is a C string.
                    let address = unsafe { libc::dlsym(handle, concat!($symbol, "\0").as_ptr().cast()) };
                    if address.is_null() {
                        return Err(LibraryError::Incomplete($symbol));
                    }
                    // SAFETY: the symbol is a function, whose type in libfabric's header is this one.
                    let $name = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address)
                    };
                )*
                let library = Library { $($name),* };
                // SAFETY: it takes nothing and gives a number.
                let version = unsafe { (library.version)() };
                if version < sys::VERSION {
                    return Err(LibraryError::TooOld { major: version >> 16, minor: version & 0xffff });
                }
                Ok(library)
            }
        }
    };
}

functions! {
    version: "fi_version"() -> u32;
    /// Version, node, service, flags, hints; the first of a list.
    getinfo: "fi_getinfo"(u32, *const c_char, *const c_char, u64, *const sys::Info, *mut *mut sys::Info) -> c_int;
    freeinfo: "fi_freeinfo"(*mut sys::Info) -> ();
    /// Of null, an empty one with all its attributes.
    dupinfo: "fi_dupinfo"(*const sys::Info) -> *mut sys::Info;
    fabric: "fi_fabric"(*mut sys::FabricAttributes, *mut *mut sys::Fabric, *mut c_void) -> c_int;
    strerror: "fi_strerror"(c_int) -> *const c_char;
}

impl Library {
    /// The library of this process, opened when first asked for.
    pub(crate) fn get() -> Result<&'static Self, LibraryError> {
        static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        LIBRARY.get_or_init(Library::open).as_ref().map_err(Clone::clone)
    }

    /// What a number that a call gave, below zero or not, means.
    pub(crate) fn describe(&self, code: c_int) -> String {
        // SAFETY: it takes any number, and gives a string that stays.
        unsafe {
            let text = (self.strerror)(code.abs());
            if text.is_null() {
                code.to_string()
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        }
    }

    /// An outcome of a call as the system's errors are.
    pub(crate) fn outcome(&self, code: c_int) -> std::io::Result<()> {
        match code {
            0 => Ok(()),
            // libfabric's own numbers start at 256.
            code if (1..256).contains(&-code) => Err(std::io::Error::from_raw_os_error(-code)),
            code => Err(std::io::Error::other(self.describe(code))),
        }
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
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
