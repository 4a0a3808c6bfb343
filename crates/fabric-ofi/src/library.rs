//! libfabric, opened at run time: building needs no package of it, and a machine without it gets a helpful
//! error.

use crate::sys;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use thiserror::Error;

/// The reason why libfabric cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// libfabric, or a library that it needs, is missing.
    #[error(
        "libfabric cannot be opened ({0}); install it (Debian and Ubuntu: libfabric1; Fedora: libfabric; Amazon: the EFA installer)"
    )]
    Missing(String),
    /// libfabric lacks a function.
    #[error("there is no {0} in libfabric: 1.17 or newer is needed")]
    Incomplete(&'static str),
    /// libfabric is too old.
    #[error("libfabric is version {major}.{minor}: 1.17 or newer is needed")]
    TooOld {
        /// The major version found.
        major: u32,
        /// The minor version found.
        minor: u32,
    },
}

/// The signals by which a program is asked to end.
const ENDING: [c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Runs a step of opening libfabric, and puts the program's handlers of [`ENDING`] back afterwards. The libraries that providers load
/// (psm, psm2) install handlers that end the process with status 1, which would keep a server from draining.
pub(crate) fn keep_signal_handlers<T>(open: impl FnOnce() -> T) -> T {
    let before = ENDING.map(|signal| {
        // SAFETY: all zero bytes are a value of the struct, which the call fills in.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a null pointer asks for the present handler only, and the struct outlives the call.
        let code = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) };
        (code == 0).then_some(action)
    });
    let opened = open();
    for (signal, action) in ENDING.into_iter().zip(before) {
        if let Some(action) = action {
            // SAFETY: the kernel gave the struct, so the handler in it is one that the program had installed.
            unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
        }
    }
    opened
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that libfabric exports. All others are reached through the tables of its objects.
        #[derive(Clone, Copy)]
        pub(crate) struct Library {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            fn open() -> Result<Self, LibraryError> {
                // SAFETY: the name is a C string. Opening runs the library's own initialisers, which a
                // program linked with it would run too. The library is never closed, so its functions stay
                // valid.
                let handle = keep_signal_handlers(|| unsafe {
                    libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL)
                });
                if handle.is_null() {
                    return Err(LibraryError::Missing(last_error()));
                }
                $(
                    // SAFETY: the handle is open, and the name is a C string.
                    let address = unsafe { libc::dlsym(handle, concat!($symbol, "\0").as_ptr().cast()) };
                    if address.is_null() {
                        return Err(LibraryError::Incomplete($symbol));
                    }
                    // SAFETY: the symbol is a function, and this is its type in libfabric's header.
                    let $name = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address)
                    };
                )*
                let library = Library { $($name),* };
                if library.number() < sys::VERSION {
                    let (major, minor) = library.major_and_minor();
                    return Err(LibraryError::TooOld { major, minor });
                }
                Ok(library)
            }

            fn number(&self) -> u32 {
                // SAFETY: the function takes nothing and returns a number.
                unsafe { (self.version)() }
            }

            /// Returns the version of the interface.
            pub(crate) fn major_and_minor(&self) -> (u32, u32) {
                (self.number() >> 16, self.number() & 0xffff)
            }
        }
    };
}

functions! {
    version: "fi_version"() -> u32;
    /// Arguments: version, node, service, flags, hints, and the place for the first entry of the resulting
    /// list.
    getinfo: "fi_getinfo"(u32, *const c_char, *const c_char, u64, *const sys::Info, *mut *mut sys::Info) -> c_int;
    freeinfo: "fi_freeinfo"(*mut sys::Info) -> ();
    /// With a null argument, returns an empty entry with all its attributes.
    dupinfo: "fi_dupinfo"(*const sys::Info) -> *mut sys::Info;
    fabric: "fi_fabric"(*mut sys::FabricAttributes, *mut *mut sys::Fabric, *mut c_void) -> c_int;
    strerror: "fi_strerror"(c_int) -> *const c_char;
}

impl Library {
    /// Returns the library of this process; opens it at the first call.
    pub(crate) fn get() -> Result<&'static Self, LibraryError> {
        static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        LIBRARY.get_or_init(Library::open).as_ref().map_err(Clone::clone)
    }

    /// Describes the result of a call, whatever its sign.
    pub(crate) fn describe(&self, code: c_int) -> String {
        // SAFETY: the function takes any number, and returns a string that stays valid.
        unsafe {
            let text = (self.strerror)(code.abs());
            if text.is_null() {
                code.to_string()
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        }
    }

    /// Converts the result of a call into a system error.
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
